//! Least likely to be used again soon, learned from the traffic.
//!
//! **What goes is a segment**: the blocks of one prefix that one request was the last to use. They fall idle together and will be
//! read together or not at all, so they are judged as one and a victim goes tail first until nothing is left of it. What many
//! requests share stands apart from what only one conversation uses: a block found more often than its conversation had
//! turns is shared.
//!
//! **Classes.** Conversations come back, and the longer one has lasted the surer it returns; one-off prompts do not. A
//! segment is classed by the *turn* of its request; first turns further by the length of the prompt, later ones by the time since
//! the turn before, each compared with a running mean; shared segments by hits. A request is a further turn of a segment if it
//! leaves behind at most a quarter of it, or one block (the last of a prompt is often partial); what it leaves behind is a
//! class of its own.
//!
//! **Learning.** Of each segment one block is followed by its hash, whether it is still in the cache or not: the one before
//! the last. Per class and age, the policy counts how many followed segments reached that age and how many of these were then used again: a life
//! table (Kaplan and Meier 1958; those that are no longer followed do not bias it). Age is counted in blocks published
//! or read, so that it is proportional to the time a block survives, whatever the load. A class with few counts leans on the
//! turn before, and all on a chance of return that falls with age, which is least recently used.
//!
//! **Deciding.** From the hazards follows what keeping a segment of a class and age is worth: the best ratio, over all
//! horizons, of the chance to be read within the horizon to the expected time it would stay for it (the Gittins
//! index; least hit density, Beckmann et al., NSDI 2018, is its relative with one horizon). The least goes. Length does not
//! matter: a long segment costs more and saves more. Within a class the candidates are the oldest and the youngest: the
//! chance of a return first rises with age and then falls, so the least is mostly at one of the ends.

use super::Eviction;
use super::life::{Entry, Life};
use super::queue::Queues;
use crate::ids::BlockHandle;
use crate::tree::Nodes;

const TURNS: usize = 8;
/// Kinds of one turn: lengths of a first one, gaps before a later one.
pub(super) const KINDS: usize = 4;
/// The first class of shared segments.
const SHARED: usize = TURNS * KINDS;
const SHARED_CLASSES: usize = 4;
/// The class of what a request left behind of the segment it continued.
const LEFT: usize = SHARED + SHARED_CLASSES;
const CLASSES: usize = LEFT + 1;
/// Weight of one observation in a running mean.
const STEP: f32 = 1.0 / 256.0;
const NONE: u32 = u32::MAX;

/// What is known of a block, by slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    segment: u32,
    /// Turn and kind of the request that used it last; the kind of one that continues it.
    turn: u8,
    gap: u8,
    next_gap: u8,
    /// It has fallen idle since it was published: whoever continues it now is another request.
    settled: bool,
    /// Whoever read it last left next to nothing of its segment behind.
    continues: bool,
    followed: bool,
}

/// Idle blocks of one chain that one request was the last to use.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Its leaf, if it is in a queue.
    tail: u32,
    /// Blocks now, and when it fell idle.
    len: u32,
    full: u32,
    idle_at: u32,
    class: u8,
}

/// Idle segments by class, each class in order of age.
#[derive(Debug)]
pub(super) struct Reuse {
    queues: Queues,
    life: Life,
    known: Vec<Known>,
    segments: Vec<Segment>,
    unused: Vec<u32>,
    mean_gap: f32,
    mean_length: f32,
    /// The block that fell idle just now, and whether to follow its parent in its stead.
    last_idle: Option<u32>,
    follow_parent: bool,
    /// The segment that is being evicted.
    victim: u32,
    /// The segment that a request is reading, if what is left of it was left behind.
    left: u32,
}

impl Reuse {
    pub fn new(capacity: u32) -> Self {
        Self {
            queues: Queues::new(CLASSES),
            life: Life::new(capacity, CLASSES, SHARED),
            known: Vec::new(),
            segments: Vec::new(),
            unused: Vec::new(),
            mean_gap: capacity as f32,
            mean_length: 1.0,
            last_idle: None,
            follow_parent: false,
            victim: NONE,
            left: NONE,
        }
    }

    /// The contents that are followed under this hash, if they are, are used again.
    fn returned(&mut self, hash: u64) -> Option<Entry> {
        let entry = self.life.returned(hash)?;
        if usize::from(entry.class) < SHARED {
            let gap = self.life.clock.wrapping_sub(entry.since) as f32;
            self.mean_gap += (gap - self.mean_gap) * STEP;
        }
        Some(entry)
    }

    /// The kind of a later turn, by the time since the one before. 0 is kept for none.
    fn gap_class(&self, since: u32) -> u8 {
        let gap = self.life.clock.wrapping_sub(since) as f32;
        if gap > self.mean_gap {
            1
        } else if gap > self.mean_gap * 0.5 {
            2
        } else {
            3
        }
    }

    /// The kind of a first turn.
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

    fn worth(&self, class: usize, segment: u32) -> f32 {
        self.life.index[class][self.life.bucket(self.segments[segment as usize].idle_at)]
    }

    /// The segment with the least worth.
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

    fn enqueue(&mut self, segment: u32) {
        let Segment { class, idle_at, .. } = self.segments[segment as usize];
        let class = usize::from(class);
        let youngest = self
            .queues
            .back(class)
            .is_none_or(|back| self.segments[back as usize].idle_at.wrapping_sub(idle_at) as i32 <= 0);
        if youngest {
            self.queues.push_back(class, segment);
        } else {
            self.queues.push_front(class, segment);
        }
    }

    /// One block less in a segment.
    fn shrink(&mut self, segment: u32) {
        let it = &mut self.segments[segment as usize];
        it.len -= 1;
        if it.len == 0 {
            self.queues.remove(segment);
            self.unused.push(segment);
            if self.victim == segment {
                self.victim = NONE;
            }
            if self.left == segment {
                self.left = NONE;
            }
        }
    }

    /// The request has read all it found: what is left of the segment it continued was left behind.
    fn settle_left(&mut self, blocks: &Nodes) {
        let segment = std::mem::replace(&mut self.left, NONE);
        if segment == NONE {
            return;
        }
        let queued = self.queues.remove(segment);
        let it = &mut self.segments[segment as usize];
        it.class = LEFT as u8;
        it.idle_at = self.life.clock;
        let tail = it.tail;
        if queued {
            self.enqueue(segment);
            self.life.follow(blocks.hash(tail), LEFT as u8, 0);
            self.known[tail as usize].followed = true;
        }
    }

    /// A block falls idle, after those of its chain that continue it.
    fn fall_idle(&mut self, block: u32, blocks: &Nodes) {
        let at = block as usize;
        let before = self.last_idle.filter(|before| blocks.parent(*before) == Some(block));
        let mut known = self.known[at];
        let (turn, gap) = match before {
            Some(before) => (self.known[before as usize].turn, self.known[before as usize].gap),
            None if !known.settled => (known.turn, known.gap),
            None if known.continues => (known.turn.saturating_add(1), known.next_gap),
            None => (known.turn, known.gap),
        };
        let gap = if turn == 0 && before.is_none() { self.length_class(blocks.depth(block) + 1) } else { gap };
        let shared = blocks.hits(block) > u32::from(turn) + 1;
        let class = if shared {
            SHARED + (blocks.hits(block).ilog2() as usize).min(SHARED_CLASSES) - 1
        } else {
            usize::from(turn).min(TURNS - 1) * KINDS + usize::from(gap)
        } as u8;
        let joined = before.map(|before| self.known[before as usize].segment).filter(|segment| {
            let of = usize::from(self.segments[*segment as usize].class);
            shared == (SHARED..LEFT).contains(&of)
        });
        let mut follow = false;
        let segment = match joined {
            Some(segment) => {
                let it = &mut self.segments[segment as usize];
                it.len += 1;
                it.full += 1;
                if self.follow_parent {
                    follow = true;
                }
                segment
            }
            None => {
                let fresh = Segment { tail: block, len: 1, full: 1, idle_at: self.life.clock, class };
                // The last block of a request is often not what the next one continues; follow the one before it.
                follow = shared || blocks.parent(block).is_none() || blocks.parent_hits(block) > u32::from(turn) + 1;
                match self.unused.pop() {
                    Some(segment) => {
                        self.segments[segment as usize] = fresh;
                        segment
                    }
                    None => {
                        self.segments.push(fresh);
                        self.segments.len() as u32 - 1
                    }
                }
            }
        };
        self.follow_parent = joined.is_none() && !follow;
        known.segment = segment;
        known.turn = turn;
        known.gap = gap;
        known.settled = true;
        known.continues = false;
        known.followed = follow;
        self.known[at] = known;
        if follow {
            self.life.follow(blocks.hash(block), self.segments[segment as usize].class, turn);
        }
        self.last_idle = Some(block);
    }

    /// An idle block is read, after its parent.
    fn read_one(&mut self, block: u32, blocks: &Nodes) {
        self.life.clock = self.life.clock.wrapping_add(1);
        let at = block as usize;
        let segment = self.known[at].segment;
        if self.left != segment {
            self.settle_left(blocks);
        }
        self.shrink(segment);
        let Segment { len, full, idle_at, class, .. } = self.segments[segment as usize];
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
            self.returned(blocks.hash(block));
        }
    }
}

impl Reuse {
    fn published_one(&mut self, block: u32, blocks: &Nodes) {
        self.life.clock = self.life.clock.wrapping_add(1);
        self.settle_left(blocks);
        let at = block as usize;
        if self.known.len() <= at {
            let fresh = Known {
                segment: NONE,
                turn: 0,
                gap: 0,
                next_gap: 0,
                settled: false,
                continues: false,
                followed: false,
            };
            self.known.resize(at + 1, fresh);
        }
        let (mut turn, mut gap) = match blocks.parent(block).map(|parent| &self.known[parent as usize]) {
            None => (0, 0),
            Some(parent) if !parent.settled => (parent.turn, parent.gap),
            Some(parent) if !parent.continues || blocks.parent_hits(block) > u32::from(parent.turn) + 1 => (0, 0),
            Some(parent) => (parent.turn.saturating_add(1), parent.next_gap),
        };
        if let Some(entry) = self.returned(blocks.hash(block))
            && usize::from(entry.class) < SHARED
        {
            turn = entry.turn.saturating_add(1);
            gap = self.gap_class(entry.since);
        }
        self.known[at] =
            Known { segment: NONE, turn, gap, next_gap: 0, settled: false, continues: false, followed: false };
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

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let segment = self.known[block as usize].segment;
        self.segments[segment as usize].tail = block;
        self.enqueue(segment);
    }

    fn read(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.last_idle = None;
        for block in chain {
            self.read_one(block.index, blocks);
        }
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        self.settle_left(blocks);
        self.last_idle = None;
        let segment = match self.victim {
            NONE => self.least()?,
            victim if self.queues.queue_of(victim).is_none() => self.least()?,
            victim => victim,
        };
        self.victim = segment;
        self.queues.remove(segment);
        let block = self.segments[segment as usize].tail;
        self.shrink(segment);
        Some(block)
    }
}
