//! Least likely to be used again soon, learned from the traffic.
//!
//! **Victims are segments.** A segment is the blocks of one prefix that one request was the last to use. The blocks fall idle
//! together and will be read together or not at all, so the policy judges a segment as one and evicts the blocks tail first.
//! Blocks shared by many requests form segments apart from blocks of a single conversation: a block used more often than its
//! conversation had turns is shared. Blocks computed by a request form segments apart from the ones found, and of those
//! computed the last quarter or few, the *end*, one apart from the rest: where many ask about one document, the document
//! returns and the questions do not. Unless the rest is worth much more than the end, both are evicted together.
//!
//! **Classes.** Conversations return, the more surely the longer they have lasted; one-off prompts do not. The class of a
//! segment is the *turn* of its request, once for ends, once for the rest and once for found segments. First turns are further
//! classed by the length of the prompt, later turns by the time since the turn before, each compared with a running mean, and a
//! single computed block of a later turn, often partial, has a class of its own; shared segments are classed by uses. A request
//! counts as a further turn of a segment if it leaves behind at most a quarter of the segment, or one block (the last block of
//! a prompt is often partial). Blocks left behind have a class of their own.
//!
//! **Learning.** One block of each segment, the last or the one before, is followed by its fingerprint, whether it is still
//! cached or not; in a large cache that is done for a sample of the segments. Per class and age, a [`HazardTable`] counts the
//! segments that reached the age and the ones that were then used again (a life table; Kaplan and Meier 1958; unfollowed
//! segments add no bias). Age is counted in blocks published or read, so that age is proportional to the time a block survives,
//! whatever the load. The prior of a class with few counts is the turn before, and the prior of all classes a probability of
//! return that falls with age, which is least recently used. A [`Ghost`] of the blocks evicted recently tells a block computed
//! again from one that is new, as in S3-FIFO.
//!
//! **Guard.** Shadow directories of LRU and S3-FIFO show the hits and the blocks of both. Where the policy might lose more to one of them
//! than was earned before, or nothing is to be gained, it follows that one ([`Guard`]): of the blocks not in the directory, the one of
//! least worth leaves, and in a large cache, where these are not known, the first in the order of LRU or S3-FIFO.
//!
//! **Deciding.** From the hazards follows the worth of keeping a segment of a class and age: the best ratio, over all
//! horizons, of the probability of a read within the horizon to the expected time in the cache (the Gittins index; least hit
//! density, Beckmann et al., NSDI 2018, is a relative with one horizon). The segment of least worth is evicted. Length does
//! not matter: a long segment costs more and saves more. Within a class only the oldest and the youngest segment are
//! candidates: the probability of a return first rises with age and then falls, so the least is mostly at one of the ends.

mod by_age;
mod guard;
mod hazard;
mod plain;
mod shadow;

use self::by_age::ByAge;
use self::guard::{Guard, Order};
use self::hazard::{Followed, HazardTable, KINDS};
use self::plain::PlainOrders;
use self::shadow::{LRU, RIVALS, S3FIFO, Used};
use super::Eviction;
use crate::blocks::nodes::Nodes;
use crate::blocks::prefetch::prefetch;
use crate::eviction::parts::ghost::Ghost;
use crate::eviction::parts::segments::Segments;
use crate::names::ids::BlockHandle;

/// Kind of a later turn with a single computed block.
const SINGLE: usize = 0;
/// Turns with classes of their own; later turns count as the last one.
const TURNS: usize = 8;
/// Classes of a sequence: of the ends of what requests computed, of the rest of that, and of the segments found.
const SEQUENCE: usize = TURNS * KINDS;
/// First class of segments found.
const FOUND: usize = 2 * SEQUENCE;
/// First class of shared segments.
const SHARED: usize = 3 * SEQUENCE;
/// Classes of shared segments, one for each doubling of the uses; more uses than that count as the last one.
const SHARED_CLASSES: usize = 8;
/// Class of the blocks left behind when a request continued only part of a segment.
const LEFT_BEHIND: usize = SHARED + SHARED_CLASSES;
const CLASSES: usize = LEFT_BEHIND + 1;
/// One part in so many of the blocks computed by a request is the end of the request: as much as the next request of a conversation may
/// leave behind.
const END: usize = 4;
/// Minimum number of blocks of an end. Chosen, not derived: 2 and 4 were compared, and 4 was better in small caches.
const END_MIN: usize = 4;
/// Worth of the rest in worths of the end up to which both are evicted together: neighbours that leave together are free together. Chosen, not
/// derived; no other value was tried.
const APART: f32 = 2.0;
/// Blocks in the ghost, as a multiple of the capacity, and at most: more than the processor's caches hold would cost time at every
/// eviction.
const GHOST: u32 = 2;
const GHOST_MAX: u32 = 1 << 20;
/// Weight of one observation in a running mean.
const STEP: f32 = 1.0 / 256.0;
const NONE: u32 = u32::MAX;
/// Slots before the tail of the next victim that are requested from memory with it.
const KNOWN_AHEAD: u32 = 8;

/// State of a block, by slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    segment: u32,
    /// Requests known to have used the contents before the block was last computed.
    uses_before: u16,
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
    /// `true` if the ghost of S3-FIFO would have known the block when computed.
    remembered: bool,
}

impl Known {
    /// Creates the state of a block just published.
    fn new(turn: u8, gap: u8, uses_before: u16) -> Self {
        Self {
            segment: NONE,
            uses_before,
            turn,
            gap,
            next_gap: 0,
            settled: false,
            continues: false,
            followed: false,
            remembered: false,
        }
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
    queued: ByAge,
    hazards: HazardTable,
    ghost: Ghost,
    known: Vec<Known>,
    segments: Segments<Segment>,
    guard: Guard,
    plain: PlainOrders,
    /// Queued segments ending with a block not held by LRU, and by S3-FIFO.
    surplus: [ByAge; RIVALS],
    capacity: u32,
    /// Running mean of the time between two turns, in blocks published or read.
    mean_gap: f32,
    /// Running mean of the length of first turns, in blocks.
    mean_length: f32,
    /// Last block to fall idle; `None` after another event.
    last_idle: Option<u32>,
    /// Uses of that block.
    last_uses: u32,
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
            queued: ByAge::new(CLASSES),
            hazards: HazardTable::new(capacity, CLASSES, SHARED, SEQUENCE),
            ghost: Ghost::new(capacity.saturating_mul(GHOST).min(GHOST_MAX)),
            known: Vec::new(),
            segments: Segments::new(),
            guard: Guard::new(capacity),
            plain: PlainOrders::new(capacity),
            surplus: [(); RIVALS].map(|()| ByAge::new(CLASSES)),
            capacity,
            mean_gap: capacity as f32,
            mean_length: 1.0,
            last_idle: None,
            last_uses: 0,
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

    /// Returns the queued segment to evict from: the one of least worth, or the first in the order chosen by the guard.
    fn first(&mut self) -> Option<u32> {
        let order = self.guard.order();
        let Some(rival) = rival(order) else { return self.least(&self.queued) };
        loop {
            if let Some(segment) = self.least(&self.surplus[rival]) {
                return Some(segment);
            }
            if rival == LRU || !self.guard.shadow.is_exact() || !self.guard.shadow.evict_from_s3fifo() {
                break;
            }
            self.note_surplus();
        }
        let plain = self.plain.first(order, |segment| self.queued.contains(segment));
        plain.or_else(|| self.least(&self.queued))
    }

    /// Takes note of blocks evicted by LRU or S3-FIFO and not by the cache.
    fn note_surplus(&mut self) {
        for (rival, block) in self.guard.shadow.surplus.drain(..) {
            let segment = self.known[block as usize].segment;
            if segment == NONE || !self.queued.contains(segment) || self.surplus[rival].contains(segment) {
                continue;
            }
            let Segment { tail, class, idle_at, .. } = self.segments[segment];
            if tail == block {
                self.surplus[rival].insert(usize::from(class), segment, idle_at);
            }
        }
    }

    /// Returns the segment of least worth of some.
    fn least(&self, queued: &ByAge) -> Option<u32> {
        let mut least: Option<(f32, u32)> = None;
        for class in queued.occupied() {
            let oldest = queued.oldest(class);
            let youngest = queued.youngest(class).filter(|youngest| Some(*youngest) != oldest);
            for segment in oldest.into_iter().chain(youngest) {
                let worth = self.worth(class, segment);
                if least.is_none_or(|(than, _)| worth < than) {
                    least = Some((worth, segment));
                }
            }
        }
        least.map(|(_, segment)| segment)
    }

    /// Queues a segment by class and age.
    fn enqueue(&mut self, segment: u32) {
        let Segment { tail, class, idle_at, .. } = self.segments[segment];
        self.queued.insert(usize::from(class), segment, idle_at);
        for (rival, surplus) in self.surplus.iter_mut().enumerate() {
            if self.guard.shadow.is_surplus(rival, tail) {
                surplus.insert(usize::from(class), segment, idle_at);
            }
        }
    }

    /// Takes a segment out of the queue of its class. Returns `false` if the segment is in none.
    fn dequeue(&mut self, segment: u32) -> bool {
        let class = usize::from(self.segments[segment].class);
        self.surplus.iter_mut().for_each(|surplus| _ = surplus.remove(class, segment));
        self.queued.remove(class, segment)
    }

    /// Takes one block out of a segment. Returns the shrunk segment.
    fn shrink(&mut self, segment: u32) -> Segment {
        self.segments[segment].len -= 1;
        self.plain.shrink(segment);
        let shrunk = self.segments[segment];
        self.release_if_empty(segment);
        shrunk
    }

    fn release_if_empty(&mut self, segment: u32) {
        if self.segments[segment].len > 0 {
            return;
        }
        self.dequeue(segment);
        self.plain.end(segment);
        self.segments.release(segment);
        if self.victim == segment {
            self.victim = NONE;
        }
        if self.left == segment {
            self.left = NONE;
        }
    }

    /// Chooses the segment to evict from, and takes it out of its queue. In the learned order, the segment evicted from before comes
    /// first, as long as its next block is a leaf.
    fn next_victim(&mut self, blocks: &Nodes) -> Option<u32> {
        self.settle_left(blocks);
        self.last_idle = None;
        let order = self.guard.order();
        let segment = match self.victim {
            victim if victim != NONE && order == Order::Learned && self.queued.contains(victim) => victim,
            _ => self.first()?,
        };
        self.victim = segment;
        let class = self.segments[segment].class;
        self.last_victim = (class, self.queued.oldest(usize::from(class)) != Some(segment));
        self.dequeue(segment);
        self.plain.evicted_from(segment, order);
        Some(segment)
    }

    /// Returns the segment of the parent of the last block of an end, if the segment is to be evicted with the end: both were computed
    /// by one request and are about equally worth keeping, as far as is known.
    fn rest(&self, end: u32, parent: u32) -> Option<u32> {
        let rest = self.known[parent as usize].segment;
        // The parent waits in the order of another priority.
        if rest == NONE || self.guard.order() != Order::Learned {
            return None;
        }
        let (end, Segment { class, idle_at, .. }) = (self.segments[end], self.segments[rest]);
        if class != end.class + SEQUENCE as u8 || usize::from(class) >= FOUND || idle_at != end.idle_at {
            return None;
        }
        let worth = |class: u8| self.hazards.index[usize::from(class)][self.hazards.bucket(idle_at)];
        (worth(class) <= worth(end.class) * APART).then_some(rest)
    }

    /// Takes the last block out of the segment to evict from. Returns the segment and the block to be evicted next, if that is the parent:
    /// of the same segment, or of one that leaves with it. The parent, a leaf then, would become the victim again.
    fn take(&mut self, segment: u32, block: u32, blocks: &Nodes) -> Option<(u32, u32)> {
        self.segments[segment].len -= 1;
        self.plain.shrink(segment);
        self.guard.shadow.evicted(block);
        let parent = blocks.next_leaf(block);
        let mut next = Some(segment);
        if self.segments[segment].len == 0 {
            next = parent.and_then(|parent| self.rest(segment, parent));
            self.release_if_empty(segment);
            self.victim = next.unwrap_or(NONE);
        }
        let order = self.guard.order();
        next = next.filter(|next| match rival(order).filter(|_| self.guard.shadow.is_exact()) {
            // Without a surplus the cache holds what LRU does, and the oldest segment is next.
            Some(LRU) if self.surplus[LRU].occupied().next().is_none() => true,
            Some(rival) => parent.is_some_and(|parent| self.guard.shadow.is_surplus(rival, parent)),
            None => self.plain.goes_on(*next, order, |segment| self.queued.contains(segment)),
        });
        next.zip(parent.filter(|parent| Some(self.known[*parent as usize].segment) == next))
    }

    /// Moves the rest of a continued segment to the class [`LEFT_BEHIND`]: the request has read all blocks of its hit.
    fn settle_left(&mut self, blocks: &Nodes) {
        let segment = std::mem::replace(&mut self.left, NONE);
        if segment == NONE {
            return;
        }
        let queued = self.dequeue(segment);
        self.segments[segment].class = LEFT_BEHIND as u8;
        self.segments[segment].idle_at = self.hazards.clock;
        let tail = self.segments[segment].tail;
        if queued {
            self.enqueue(segment);
            self.follow(tail, LEFT_BEHIND as u8, 0, self.uses(tail, blocks), blocks);
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

    /// Returns the number of requests known to have used a block.
    fn uses(&self, block: u32, blocks: &Nodes) -> u32 {
        u32::from(self.known[block as usize].uses_before) + blocks.hits(block) + 1
    }

    /// Returns `true` if a block was computed by the request holding it, for the first time as far as is known.
    fn is_new(&self, block: u32, blocks: &Nodes) -> bool {
        !self.known[block as usize].settled && self.uses(block, blocks) == 1
    }

    /// Returns the class of a segment ending with a block. `parent_is_new` is `None` for the first block of a prompt; `is_end` is
    /// `true` in the end of a prompt.
    fn class(&self, block: u32, (turn, gap): (u8, u8), uses: u32, parent_is_new: Option<bool>, is_end: bool) -> usize {
        if uses > u32::from(turn) + 1 {
            return SHARED + (uses.ilog2() as usize).min(SHARED_CLASSES) - 1;
        }
        let group = usize::from(turn).min(TURNS - 1) * KINDS;
        let computed = !self.known[block as usize].settled && uses == 1;
        match computed {
            true if is_end && turn > 0 && parent_is_new == Some(false) => group + SINGLE,
            true if is_end => group + usize::from(gap),
            true => SEQUENCE + group + usize::from(gap),
            false => FOUND + group + usize::from(gap),
        }
    }

    /// Lets the table follow a segment by this block, if the segment is in the sample.
    fn follow(&mut self, block: u32, class: u8, turn: u8, uses: u32, blocks: &Nodes) {
        let uses = uses.min(u16::MAX.into()) as u16;
        let followed = self.hazards.follow(blocks.fingerprint(block), class, turn, uses);
        self.known[block as usize].followed |= followed;
    }

    /// Puts a block into a segment on falling idle. The descendants in the chain fell idle before. `is_end` is `true` in the end of
    /// the blocks that the request computed.
    fn fall_idle(&mut self, block: u32, is_end: bool, blocks: &Nodes) {
        let before = self.last_idle.filter(|before| blocks.parent(*before) == Some(block));
        let (turn, gap) = self.turn(block, before, blocks);
        // A block was used whenever a descendant was.
        let uses = self.uses(block, blocks).max(before.map_or(1, |_| self.last_uses));
        let parent_is_new = blocks.parent(block).map(|parent| self.is_new(parent, blocks));
        let class = self.class(block, (turn, gap), uses, parent_is_new, is_end);
        let sort = |class| if class < SHARED { class / SEQUENCE } else { class };
        let joined = before
            .map(|before| self.known[before as usize].segment)
            .filter(|segment| sort(usize::from(self.segments[*segment].class)) == sort(class));
        let proven = self.known[block as usize].settled || self.known[block as usize].remembered;
        let (segment, follow) = match joined {
            Some(segment) => {
                self.segments[segment].len += 1;
                self.segments[segment].full += 1;
                let Segment { len, .. } = self.segments[segment];
                self.plain.grow(segment, len - 1, proven);
                (segment, self.follow_parent)
            }
            None => {
                let (idle_at, class) = (self.hazards.clock, class as u8);
                let segment = self.segments.insert(Segment { tail: block, len: 1, full: 1, idle_at, class });
                self.plain.begin(segment);
                self.plain.grow(segment, 0, proven);
                // The next request often does not continue the last block of this one; follow the block before the last.
                (segment, class as usize >= SEQUENCE || parent_is_new != Some(true))
            }
        };
        self.follow_parent = joined.is_none() && !follow;
        let known = &mut self.known[block as usize];
        *known = Known { segment, turn, gap, settled: true, continues: false, followed: false, ..*known };
        if follow {
            self.follow(block, self.segments[segment].class, turn, uses, blocks);
        }
        (self.last_idle, self.last_uses) = (Some(block), uses);
    }

    /// Takes an idle block out of its segment for a request. The parent was taken out before.
    fn read_one(&mut self, block: u32, blocks: &Nodes) {
        self.hazards.clock = self.hazards.clock.wrapping_add(1);
        self.guard.shadow.read(block);
        let at = block as usize;
        let segment = self.known[at].segment;
        if self.left != segment {
            self.settle_left(blocks);
        }
        let Segment { len, full, idle_at, class, .. } = self.shrink(segment);
        let continues = usize::from(class) < SHARED && (len <= 1 || len <= full / END as u32);
        if continues && len > 0 {
            self.left = segment;
        }
        let next_gap = self.gap_class(idle_at);
        let known = &mut self.known[at];
        known.segment = NONE;
        known.continues = continues;
        known.next_gap = next_gap;
        if known.followed {
            known.followed = false;
            self.returned(blocks.fingerprint(block));
        }
    }

    /// Returns the turn of a request computing a block after `parent`, and the kind of the turn.
    fn turn_after(&self, parent: Option<u32>, blocks: &Nodes) -> (u8, u8) {
        let Some(parent) = parent else { return (0, 0) };
        let known = &self.known[parent as usize];
        if !known.settled {
            (known.turn, known.gap)
        } else if known.continues && self.uses(parent, blocks) <= u32::from(known.turn) + 2 {
            (known.turn.saturating_add(1), known.next_gap)
        } else {
            (0, 0)
        }
    }

    /// Takes note of a newly computed block. The turn follows from the parent, or from a return of the contents.
    fn published_one(&mut self, block: u32, blocks: &Nodes) {
        self.hazards.clock = self.hazards.clock.wrapping_add(1);
        self.settle_left(blocks);
        let at = block as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, Known::new(0, 0, 0));
        }
        let (mut turn, mut gap) = self.turn_after(blocks.parent(block), blocks);
        // A parent is evicted after its children, so after a block that the ghost does not know are none that it knows.
        let is_behind_new = blocks.parent(block).is_some_and(|parent| {
            let known = &self.known[parent as usize];
            !known.settled && known.uses_before == 0
        });
        let ghost_age = if is_behind_new { None } else { self.ghost.take(blocks.fingerprint(block)) };
        let mut uses_before = u16::from(ghost_age.is_some());
        if let Some(entry) = self.returned(blocks.fingerprint(block)) {
            uses_before = entry.uses;
            if usize::from(entry.class) < SHARED {
                turn = entry.turn.saturating_add(1);
                gap = self.gap_class(entry.since);
            }
        }
        let remembered = ghost_age.is_some_and(|age| age < self.capacity);
        self.known[at] = Known { remembered, ..Known::new(turn, gap, uses_before) };
    }
}

/// Returns the directory to follow in an order.
fn rival(order: Order) -> Option<usize> {
    match order {
        Order::Learned => None,
        Order::Lru => Some(LRU),
        Order::S3Fifo => Some(S3FIFO),
    }
}

impl Eviction for Reuse {
    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        chain.iter().for_each(|block| self.published_one(block.index, blocks));
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.settle_left(blocks);
        self.plain.settle();
        let used = chain.iter().map(|block| Used {
            fingerprint: blocks.fingerprint(block.index),
            in_cache: self.known[block.index as usize].settled,
            block: block.index,
        });
        self.guard.used(chain.len(), used, self.plain.idle() + chain.len() as u32);
        self.note_surplus();
        let computed = chain.iter().rev().take_while(|block| !self.known[block.index as usize].settled).count();
        let end = (computed / END).max(END_MIN);
        for (after, block) in chain.iter().rev().enumerate() {
            self.fall_idle(block.index, after < end, blocks);
            if after == 0 && blocks.is_leaf(block.index) {
                self.leaf(block.index, blocks);
            }
        }
    }

    fn clear(&mut self) {
        self.queued.clear();
        self.surplus.iter_mut().for_each(ByAge::clear);
        self.segments.clear();
        self.guard.clear();
        self.plain.clear();
        (self.last_idle, self.follow_parent, self.victim, self.left) = (None, false, NONE, NONE);
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let segment = self.known[block as usize].segment;
        self.segments[segment].tail = block;
        self.enqueue(segment);
        self.plain.leaf(segment);
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
        let segment = if is_youngest { self.queued.youngest(class) } else { self.queued.oldest(class) }?;
        self.queued.request(segment);
        let tail = self.segments[segment].tail;
        prefetch(&self.known[tail.saturating_sub(KNOWN_AHEAD) as usize..=tail as usize]);
        Some(tail)
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let segment = self.next_victim(blocks)?;
        let block = self.segments[segment].tail;
        self.take(segment, block, blocks);
        self.ghost.insert_all(std::iter::once(blocks.fingerprint(block)));
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(segment) = self.next_victim(blocks) else { return };
        let begin = out.len();
        let mut next = Some((segment, self.segments[segment].tail));
        while let Some((segment, block)) = next.filter(|_| out.len() - begin < n) {
            out.push(block);
            next = self.take(segment, block, blocks);
        }
        self.ghost.insert_all(out[begin..].iter().map(|block| blocks.fingerprint(*block)));
    }
}
