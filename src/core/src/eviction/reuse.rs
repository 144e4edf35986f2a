//! Least likely to be used again soon, learned from the traffic.
//!
//! **Victims are segments.** A segment is the blocks of one prefix that one request was the last to use. The blocks fall idle
//! together and will be read together or not at all, so the policy judges a segment as one and evicts the blocks tail first.
//! Blocks shared by many requests form segments apart from blocks of a single conversation: a block found more often than its
//! conversation had turns is shared.
//!
//! **Classes.** Conversations return, the more surely the longer they have lasted; one-off prompts do not. The class of a
//! segment is the *turn* of its request. First turns are further classed by the length of the prompt, later turns by the time
//! since the turn before, each compared with a running mean; shared segments are classed by hits. A request counts as a
//! further turn of a segment if it leaves behind at most a quarter of the segment, or one block (the last block of a prompt is
//! often partial). Blocks left behind have a class of their own.
//!
//! **Learning.** One block of each segment, the one before the last, is followed by its fingerprint, whether it is still
//! cached or not. Per class and age, a [`HazardTable`] counts the segments that reached the age and the ones that were then
//! used again (a life table; Kaplan and Meier 1958; unfollowed segments add no bias). Age is counted in blocks
//! published or read, so that age is proportional to the time a block survives, whatever the load. The prior of a class with
//! few counts is the turn before, and the prior of all classes a probability of return that falls with age, which is least
//! recently used.
//!
//! **Deciding.** From the hazards follows the worth of keeping a segment of a class and age: the best ratio, over all
//! horizons, of the probability of a read within the horizon to the expected time in the cache (the Gittins index; least hit
//! density, Beckmann et al., NSDI 2018, is a relative with one horizon). The segment of least worth is evicted. Length does
//! not matter: a long segment costs more and saves more. Within a class only the oldest and the youngest segment are
//! candidates: the probability of a return first rises with age and then falls, so the least is mostly at one of the ends.

use super::Eviction;
use super::hazard::{Followed, HazardTable, KINDS};
use super::queue::Queues;
use super::segments::Segments;
use crate::ids::BlockHandle;
use crate::nodes::Nodes;
use crate::prefetch::prefetch;

/// Turns with classes of their own; later turns count as the last one.
const TURNS: usize = 8;
/// First class of shared segments.
const SHARED: usize = TURNS * KINDS;
const SHARED_CLASSES: usize = 4;
/// Class of the blocks left behind when a request continued only part of a segment.
const LEFT_BEHIND: usize = SHARED + SHARED_CLASSES;
const CLASSES: usize = LEFT_BEHIND + 1;
/// Weight of one observation in a running mean.
const STEP: f32 = 1.0 / 256.0;
const NONE: u32 = u32::MAX;
/// Slots before the tail of the next victim that are requested from memory with it.
const KNOWN_AHEAD: u32 = 8;

/// State of a block, by slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    segment: u32,
    /// Turn of the last request to use the block.
    turn: u8,
    /// Kind of `turn`: by length or by gap.
    gap: u8,
    /// Kind of the next turn, should a request continue the block.
    next_gap: u8,
    /// `true` if the block has fallen idle since publication: only another request can continue the block now.
    settled: bool,
    /// `true` if the last reader left next to nothing of the block's segment behind.
    continues: bool,
    /// `true` if the segment is followed by this block's fingerprint.
    followed: bool,
}

impl Known {
    /// Creates the state of a block just published.
    fn new(turn: u8, gap: u8) -> Self {
        Self { segment: NONE, turn, gap, next_gap: 0, settled: false, continues: false, followed: false }
    }
}

/// Idle blocks of one chain that one request was the last to use.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Last block of the segment, once that is a leaf.
    tail: u32,
    /// Blocks left in the segment.
    len: u32,
    /// Blocks when the segment was complete.
    full: u32,
    /// Clock at which the segment fell idle.
    idle_at: u32,
    class: u8,
}

/// Idle segments by class, each class in order of age.
#[derive(Debug)]
pub(super) struct Reuse {
    queues: Queues,
    hazards: HazardTable,
    known: Vec<Known>,
    segments: Segments<Segment>,
    /// Running mean of the time between two turns, in blocks published or read.
    mean_gap: f32,
    /// Running mean of the length of first turns, in blocks.
    mean_length: f32,
    /// Last block to fall idle; `None` after another event.
    last_idle: Option<u32>,
    /// `true` if the parent of `last_idle` is to be followed instead.
    follow_parent: bool,
    /// Segment being evicted, or [`NONE`].
    victim: u32,
    /// Segment being read by a request, if blocks are left behind; else [`NONE`].
    left: u32,
    /// Class of the last segment to become the victim, and `true` if it was the youngest: a guess at the next.
    last_victim: (u8, bool),
}

impl Reuse {
    pub fn new(capacity: u32) -> Self {
        Self {
            queues: Queues::new(CLASSES),
            hazards: HazardTable::new(capacity, CLASSES, SHARED),
            known: Vec::new(),
            segments: Segments::new(),
            mean_gap: capacity as f32,
            mean_length: 1.0,
            last_idle: None,
            follow_parent: false,
            victim: NONE,
            left: NONE,
            last_victim: (0, false),
        }
    }

    /// Counts a return of the followed contents with this fingerprint. Returns `None` if none are followed.
    fn returned(&mut self, fingerprint: u64) -> Option<Followed> {
        let entry = self.hazards.returned(fingerprint)?;
        if usize::from(entry.class) < SHARED {
            let gap = self.hazards.clock.wrapping_sub(entry.since) as f32;
            self.mean_gap += (gap - self.mean_gap) * STEP;
        }
        Some(entry)
    }

    /// Returns the kind of a later turn, by the time since the turn before. Never 0.
    fn gap_class(&self, since: u32) -> u8 {
        let gap = self.hazards.clock.wrapping_sub(since) as f32;
        if gap > self.mean_gap {
            1
        } else if gap > self.mean_gap * 0.5 {
            2
        } else {
            3
        }
    }

    /// Returns the kind of a first turn, by length in blocks.
    fn length_class(&mut self, length: u32) -> u8 {
        let length = length as f32;
        self.mean_length += (length - self.mean_length) * STEP;
        let times = length / self.mean_length;
        if times < 0.25 {
            0
        } else if times < 1.0 {
            1
        } else if times < 4.0 {
            2
        } else {
            3
        }
    }

    /// Returns the worth of keeping a segment.
    fn worth(&self, class: usize, segment: u32) -> f32 {
        self.hazards.index[class][self.hazards.bucket(self.segments[segment].idle_at)]
    }

    /// Returns the queued segment of least worth.
    fn least(&self) -> Option<u32> {
        let mut least: Option<(f32, u32)> = None;
        for class in 0..CLASSES {
            let Some(front) = self.queues.front(class) else { continue };
            let back = self.queues.back(class).filter(|back| *back != front);
            for segment in [Some(front), back].into_iter().flatten() {
                let worth = self.worth(class, segment);
                if least.is_none_or(|(than, _)| worth < than) {
                    least = Some((worth, segment));
                }
            }
        }
        least.map(|(_, segment)| segment)
    }

    /// Queues a segment by class: at the end if the segment is the youngest, else at the front.
    fn enqueue(&mut self, segment: u32) {
        let Segment { class, idle_at, .. } = self.segments[segment];
        let class = usize::from(class);
        let youngest =
            self.queues.back(class).is_none_or(|back| self.segments[back].idle_at.wrapping_sub(idle_at) as i32 <= 0);
        if youngest {
            self.queues.push_back(class, segment);
        } else {
            self.queues.push_front(class, segment);
        }
    }

    /// Takes one block out of a segment. Returns the shrunk segment.
    fn shrink(&mut self, segment: u32) -> Segment {
        self.segments[segment].len -= 1;
        let shrunk = self.segments[segment];
        self.release_if_empty(segment);
        shrunk
    }

    fn release_if_empty(&mut self, segment: u32) {
        if self.segments[segment].len > 0 {
            return;
        }
        self.queues.remove(segment);
        self.segments.release(segment);
        if self.victim == segment {
            self.victim = NONE;
        }
        if self.left == segment {
            self.left = NONE;
        }
    }

    /// Chooses the segment to evict from, and takes it out of its queue: the one evicted from before, as long as its next block
    /// is a leaf, or the one of least worth.
    fn next_victim(&mut self, blocks: &Nodes) -> Option<u32> {
        self.settle_left(blocks);
        self.last_idle = None;
        let segment = match self.victim {
            NONE => self.least()?,
            victim if self.queues.queue_of(victim).is_none() => self.least()?,
            victim => victim,
        };
        self.victim = segment;
        let class = self.segments[segment].class;
        self.last_victim = (class, self.queues.front(usize::from(class)) != Some(segment));
        self.queues.remove(segment);
        Some(segment)
    }

    /// Moves the rest of a continued segment to the class [`LEFT_BEHIND`]: the request has read all blocks of its hit.
    fn settle_left(&mut self, blocks: &Nodes) {
        let segment = std::mem::replace(&mut self.left, NONE);
        if segment == NONE {
            return;
        }
        let queued = self.queues.remove(segment);
        self.segments[segment].class = LEFT_BEHIND as u8;
        self.segments[segment].idle_at = self.hazards.clock;
        let tail = self.segments[segment].tail;
        if queued {
            self.enqueue(segment);
            self.hazards.follow(blocks.fingerprint(tail), LEFT_BEHIND as u8, 0);
            self.known[tail as usize].followed = true;
        }
    }

    /// Returns the turn of the last request to use a block, and the kind of the turn. `before` is the child, if the child fell
    /// idle just before.
    fn turn(&mut self, block: u32, before: Option<u32>, blocks: &Nodes) -> (u8, u8) {
        let known = self.known[block as usize];
        let (turn, gap) = match before {
            Some(before) => (self.known[before as usize].turn, self.known[before as usize].gap),
            None if known.settled && known.continues => (known.turn.saturating_add(1), known.next_gap),
            None => (known.turn, known.gap),
        };
        let first = turn == 0 && before.is_none();
        (turn, if first { self.length_class(blocks.depth(block) + 1) } else { gap })
    }

    /// Puts a block into a segment on falling idle. The descendants in the chain fell idle before.
    fn fall_idle(&mut self, block: u32, blocks: &Nodes) {
        let before = self.last_idle.filter(|before| blocks.parent(*before) == Some(block));
        let (turn, gap) = self.turn(block, before, blocks);
        let shared = blocks.hits(block) > u32::from(turn) + 1;
        let class = if shared {
            SHARED + (blocks.hits(block).ilog2() as usize).min(SHARED_CLASSES) - 1
        } else {
            usize::from(turn).min(TURNS - 1) * KINDS + usize::from(gap)
        } as u8;
        let joined = before.map(|before| self.known[before as usize].segment).filter(|segment| {
            let class = usize::from(self.segments[*segment].class);
            shared == (SHARED..LEFT_BEHIND).contains(&class)
        });
        let (segment, follow) = match joined {
            Some(segment) => {
                self.segments[segment].len += 1;
                self.segments[segment].full += 1;
                (segment, self.follow_parent)
            }
            None => {
                let idle_at = self.hazards.clock;
                let segment = self.segments.insert(Segment { tail: block, len: 1, full: 1, idle_at, class });
                // The next request often does not continue the last block of this one; follow the block before the last.
                let follow =
                    shared || blocks.parent(block).is_none() || blocks.parent_hits(block) > u32::from(turn) + 1;
                (segment, follow)
            }
        };
        self.follow_parent = joined.is_none() && !follow;
        let known = &mut self.known[block as usize];
        *known = Known { segment, turn, gap, settled: true, continues: false, followed: follow, ..*known };
        if follow {
            self.hazards.follow(blocks.fingerprint(block), self.segments[segment].class, turn);
        }
        self.last_idle = Some(block);
    }

    /// Takes an idle block out of its segment for a request. The parent was taken out before.
    fn read_one(&mut self, block: u32, blocks: &Nodes) {
        self.hazards.clock = self.hazards.clock.wrapping_add(1);
        let at = block as usize;
        let segment = self.known[at].segment;
        if self.left != segment {
            self.settle_left(blocks);
        }
        let Segment { len, full, idle_at, class, .. } = self.shrink(segment);
        let continues = usize::from(class) < SHARED && (len <= 1 || len <= full / 4);
        if continues && len > 0 {
            self.left = segment;
        }
        let next_gap = self.gap_class(idle_at);
        let known = &mut self.known[at];
        known.continues = continues;
        known.next_gap = next_gap;
        if known.followed {
            known.followed = false;
            self.returned(blocks.fingerprint(block));
        }
    }

    /// Takes note of a newly computed block. The turn follows from the parent, or from a return of the contents.
    fn published_one(&mut self, block: u32, blocks: &Nodes) {
        self.hazards.clock = self.hazards.clock.wrapping_add(1);
        self.settle_left(blocks);
        let at = block as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, Known::new(0, 0));
        }
        let (mut turn, mut gap) = match blocks.parent(block).map(|parent| &self.known[parent as usize]) {
            None => (0, 0),
            Some(parent) if !parent.settled => (parent.turn, parent.gap),
            Some(parent) if !parent.continues || blocks.parent_hits(block) > u32::from(parent.turn) + 1 => (0, 0),
            Some(parent) => (parent.turn.saturating_add(1), parent.next_gap),
        };
        if let Some(entry) = self.returned(blocks.fingerprint(block))
            && usize::from(entry.class) < SHARED
        {
            turn = entry.turn.saturating_add(1);
            gap = self.gap_class(entry.since);
        }
        self.known[at] = Known::new(turn, gap);
    }
}

impl Eviction for Reuse {
    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        chain.iter().for_each(|block| self.published_one(block.index, blocks));
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.settle_left(blocks);
        for (after, block) in chain.iter().rev().enumerate() {
            self.fall_idle(block.index, blocks);
            if after == 0 && blocks.is_leaf(block.index) {
                self.leaf(block.index, blocks);
            }
        }
    }

    fn clear(&mut self) {
        self.queues.clear();
        self.segments.clear();
        (self.last_idle, self.follow_parent, self.victim, self.left) = (None, false, NONE, NONE);
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let segment = self.known[block as usize].segment;
        self.segments[segment].tail = block;
        self.enqueue(segment);
    }

    fn read(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.last_idle = None;
        for block in chain {
            self.read_one(block.index, blocks);
        }
    }

    fn likely_next(&self) -> Option<u32> {
        let (class, is_youngest) = self.last_victim;
        let class = usize::from(class);
        let segment = if is_youngest { self.queues.back(class) } else { self.queues.front(class) }?;
        self.queues.request(segment);
        let tail = self.segments[segment].tail;
        prefetch(&self.known[tail.saturating_sub(KNOWN_AHEAD) as usize..=tail as usize]);
        Some(tail)
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let segment = self.next_victim(blocks)?;
        let block = self.segments[segment].tail;
        self.shrink(segment);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(segment) = self.next_victim(blocks) else { return };
        let mut block = self.segments[segment].tail;
        for _ in 0..n {
            out.push(block);
            self.segments[segment].len -= 1;
            // The parent, a leaf then, would make the segment the victim again.
            match blocks.next_leaf(block).filter(|parent| self.known[*parent as usize].segment == segment) {
                Some(parent) => block = parent,
                None => break,
            }
        }
        self.release_if_empty(segment);
    }
}
