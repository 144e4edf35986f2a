//! Priority classes of idle blocks around the eviction policy: see [`crate::request::retention`].
//!
//! The policy holds the idle blocks of the default class. Blocks of each other class stand in a queue, last used at the back. Without
//! a hint, everything goes to the policy, and nothing else is kept.
//!
//! A block is never of a higher class than the parent: a request claims a prefix from the first block on, with ends that fall
//! from block to block, and stops where a tenant's bound is reached. Of two blocks whose class falls at one time the deeper one falls first.
//! A child therefore leaves before the parent, as the policy and the queues demand. In a tier, whose blocks have no parents, each has its own class.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::blocks::nodes::Nodes;
use crate::eviction::Eviction;
use crate::eviction::parts::queue::Queues;
use crate::journal::stats::RetentionCounters;
use crate::names::ids::BlockHandle;
use crate::request::retention::{Claim, Ends, PINNED, Pin, RetainedBlocks, class_at};

/// Queue of the blocks evicted before the policy's blocks. The queue of the class `n` above the default has number `n`.
const EARLY: usize = 0;
/// Queue of the blocks to be demoted, evicted before all others.
const DEMOTED: usize = PINNED + 1;
/// Time of a block without a timer.
const NEVER: u64 = u64::MAX;
/// Outdated timers kept at most.
const OUTDATED_SPARE: usize = 64;

/// Use of a block by requests without a hint below the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// No request has released the block since publication.
    #[default]
    Fresh,
    /// All requests had a hint that demotes.
    Demoted,
    /// All requests had a hint below the default.
    Early,
    /// A request had none.
    Usual,
}

/// Hints above the default of the contents of a slot.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Ends of the strongest hints; the first is 0 without a hint.
    ends: Ends,
    /// Tenant charged for the block.
    tenant: u64,
    /// Time of the slot's timer.
    timer_ns: u64,
}

const NO_HINT: Record = Record { ends: [0; PINNED], tenant: 0, timer_ns: NEVER };

/// Entry of the timers: time, depth and slot. Of equal times, the deepest block is first.
type Timer = Reverse<(u64, Reverse<u32>, u32)>;

/// Order in which idle blocks leave: the eviction policy's, within priority classes.
#[derive(Debug)]
pub(crate) struct Classes {
    policy: Box<dyn Eviction>,
    limits: RetainedBlocks,
    hinted: Option<Box<Hinted>>,
}

/// State of the classes but the default, once a request has a hint.
#[derive(Debug)]
struct Hinted {
    now_ns: u64,
    queues: Queues,
    /// Idle blocks in the policy.
    n_policy: u32,
    marks: Vec<Mark>,
    records: Vec<Record>,
    /// Times at which the class of a block may fall. An entry is outdated if the block has another time.
    timers: BinaryHeap<Timer>,
    n_timers: usize,
    /// Blocks charged to each tenant that has some. Never iterated, but for checks.
    charged: HashMap<u64, u32, ahash::RandomState>,
    counters: RetentionCounters,
}

impl Classes {
    pub fn new(policy: Box<dyn Eviction>) -> Self {
        Self { policy, limits: RetainedBlocks::default(), hinted: None }
    }

    /// Follows hints from `now_ns` on. `idle` blocks of `opened` slots are in the policy; published blocks count as used without a hint.
    pub fn follow_hints(&mut self, now_ns: u64, limits: RetainedBlocks, idle: u32, opened: u32) {
        if self.hinted.is_some() {
            return;
        }
        self.limits = limits;
        self.hinted = Some(Box::new(Hinted {
            now_ns,
            queues: Queues::new(1 + DEMOTED),
            n_policy: idle,
            marks: vec![Mark::Usual; opened as usize],
            records: Vec::new(),
            timers: BinaryHeap::new(),
            n_timers: 0,
            charged: HashMap::default(),
            counters: RetentionCounters::default(),
        }));
    }

    /// Returns gauges and counters.
    pub fn counters(&self) -> RetentionCounters {
        self.hinted.as_ref().map_or_else(RetentionCounters::default, |hinted| hinted.counters)
    }

    /// Returns the number of idle blocks to be demoted. They are the next victims.
    pub fn n_demoted(&self) -> u32 {
        self.hinted.as_ref().map_or(0, |hinted| hinted.queues.len(DEMOTED))
    }

    /// Returns the number of leading blocks of a prefix in the tree that pins hold.
    pub fn n_pinned(&self, prefix: &[BlockHandle]) -> usize {
        let hinted = self.hinted.as_ref();
        hinted.map_or(0, |hinted| prefix.partition_point(|block| hinted.class_above(block.index) == PINNED))
    }

    /// Returns the pin that holds a block, if there is one.
    pub fn pin_of(&self, block: u32) -> Option<Pin> {
        let hinted = self.hinted.as_ref().filter(|hinted| hinted.class_above(block) == PINNED)?;
        let Record { ends, tenant, .. } = hinted.records[block as usize];
        Some(Pin { until_ns: ends[PINNED - 1], tenant })
    }

    /// Pins a block that is not idle, within limits.
    pub fn pin(&mut self, block: u32, pin: Pin, limits: RetainedBlocks, nodes: &Nodes) {
        if let Some(hinted) = &mut self.hinted {
            hinted.strengthen(block, [pin.until_ns; PINNED], pin.tenant, limits, nodes);
        }
    }

    /// Forgets the hints of a block about to leave a cache without a tree.
    pub fn forget(&mut self, block: u32) {
        if let Some(hinted) = &mut self.hinted {
            hinted.forget(block);
        }
    }

    /// Returns `true` if a published block is above the default.
    pub fn is_above(&self, block: u32) -> bool {
        self.hinted.as_ref().is_some_and(|hinted| hinted.class_above(block) > 0)
    }

    /// Returns the number of idle blocks above the default.
    pub fn n_idle_above(&self) -> u32 {
        self.hinted.as_ref().map_or(0, |hinted| (1..=PINNED).map(|class| hinted.queues.len(class)).sum())
    }

    /// Returns the number of timers kept, outdated ones included.
    #[cfg(test)]
    pub fn n_timers(&self) -> usize {
        self.hinted.as_ref().map_or(0, |hinted| hinted.timers.len())
    }

    /// Sets the time, and reorders the blocks whose class fell since.
    #[inline]
    pub fn advance(&mut self, now_ns: u64, nodes: &Nodes, handle: impl Fn(u32) -> BlockHandle) {
        if let Some(hinted) = &mut self.hinted {
            while let Some(slot) = hinted.next_fallen(now_ns, nodes) {
                self.policy.idle(&[handle(slot)], nodes);
            }
        }
    }

    /// Takes in the hints of a request about to release `prefix`, a prefix in the tree.
    pub fn claim(&mut self, prefix: &[BlockHandle], claim: &Claim<'_>, block_size: usize, nodes: &Nodes) {
        let Some(hinted) = &mut self.hinted else { return };
        let early = claim.early_from(prefix.len(), block_size);
        let demoted = claim.demoted_from(prefix.len(), block_size);
        for (at, block) in prefix.iter().enumerate() {
            let asked = match at {
                at if at >= demoted => Mark::Demoted,
                at if at >= early => Mark::Early,
                _ => Mark::Usual,
            };
            let mark = mark(&mut hinted.marks, block.index);
            *mark = asked.max(*mark);
        }
        let mut at = 0;
        while let Some((ends, until)) = claim.ends_at(at, prefix.len(), block_size, hinted.now_ns) {
            for block in &prefix[at..until] {
                if !hinted.strengthen(block.index, ends, claim.tenant, self.limits, nodes) {
                    return hinted.ignore(&prefix[at..], claim, at, block_size);
                }
                at += 1;
            }
            if at == prefix.len() {
                return;
            }
        }
    }

    /// Forgets the hints of blocks about to leave the tree.
    #[inline]
    pub fn left(&mut self, blocks: &[u32], nodes: &Nodes) {
        self.policy.left(blocks, nodes);
        if let Some(hinted) = &mut self.hinted {
            blocks.iter().for_each(|block| hinted.forget(*block));
        }
    }

    /// Returns `true` if the policy evicts more blocks than asked for: see [`Eviction::evicts_whole`].
    pub fn evicts_whole(&self) -> bool {
        self.policy.evicts_whole()
    }

    /// Returns `true` if the policy reads [`Self::visit`].
    pub fn notes_visits(&self) -> bool {
        self.policy.notes_visits()
    }

    /// Takes note of the end of a look-up, a prompt or an answer: see [`Eviction::visit`].
    pub fn visit(&mut self, block: u32, nodes: &Nodes) {
        self.policy.visit(block, nodes);
    }

    pub fn published(&mut self, chain: &[BlockHandle], nodes: &Nodes) {
        if let Some(hinted) = &mut self.hinted {
            chain.iter().for_each(|block| *mark(&mut hinted.marks, block.index) = Mark::Fresh);
        }
        self.policy.published(chain, nodes);
    }

    pub fn request_to_publish(&self, fingerprint: u64) {
        self.policy.request_to_publish(fingerprint);
    }

    pub fn likely_next(&self) -> Option<u32> {
        self.policy.likely_next()
    }

    /// Takes in a chain without readers: see [`Eviction::idle`].
    pub fn idle(&mut self, chain: &[BlockHandle], nodes: &Nodes) {
        let usual = match &mut self.hinted {
            Some(hinted) => hinted.idle_early(chain),
            None => chain.len(),
        };
        let above = self.hinted.as_mut().map_or(0, |hinted| hinted.count_above(&chain[..usual]));
        if above < usual {
            self.policy.idle(&chain[above..usual], nodes);
        }
        if let Some(hinted) = &mut self.hinted {
            hinted.n_policy += (usual - above) as u32;
            hinted.idle_above(&chain[..above]);
        }
    }

    /// Takes out the idle blocks of a chain: see [`Eviction::read`].
    pub fn read(&mut self, chain: &[BlockHandle], nodes: &Nodes) {
        let mut rest = chain;
        if let Some(hinted) = &mut self.hinted {
            rest = hinted.take_out(chain);
        }
        if !rest.is_empty() {
            self.policy.read(rest, nodes);
        }
    }

    pub fn leaf(&mut self, block: u32, nodes: &Nodes) {
        if self.hinted.as_ref().is_none_or(|hinted| hinted.queues.queue_of(block).is_none()) {
            self.policy.leaf(block, nodes);
        }
    }

    /// Returns `true` if the next victim is one that the policy picks, and may get back.
    pub fn pops_from_policy(&self) -> bool {
        let is_next = |hinted: &Hinted| {
            hinted.n_policy > 0 && [DEMOTED, EARLY].iter().all(|queue| hinted.queues.is_empty(*queue))
        };
        !self.policy.evicts_whole() && self.hinted.as_ref().is_none_or(|hinted| is_next(hinted))
    }

    /// Takes out the leaf to be evicted: see [`Eviction::pop`].
    pub fn pop(&mut self, nodes: &Nodes) -> Option<u32> {
        let Some(hinted) = &mut self.hinted else { return self.policy.pop(nodes) };
        if let Some(block) = [DEMOTED, EARLY].iter().find_map(|queue| hinted.queues.pop_front(*queue)) {
            return Some(block);
        }
        if hinted.n_policy > 0 {
            hinted.n_policy -= 1;
            return self.policy.pop(nodes);
        }
        let block = (1..=PINNED).find_map(|class| hinted.queues.pop_front(class))?;
        hinted.counters.evicted_retained_blocks += 1;
        Some(block)
    }

    /// Takes out one to `n` blocks to be evicted: see [`Eviction::pop_chain`].
    pub fn pop_chain(&mut self, n: usize, nodes: &Nodes, out: &mut Vec<u32>) {
        // A policy takes ancestors along, which may be of another class.
        let Some(hinted) = &mut self.hinted else { return self.policy.pop_chain(n, nodes, out) };
        if (EARLY..=DEMOTED).any(|queue| !hinted.queues.is_empty(queue)) {
            return out.extend(self.pop(nodes));
        }
        let before = out.len();
        self.policy.pop_chain(n, nodes, out);
        hinted.n_policy -= (out.len() - before) as u32;
    }

    pub fn clear(&mut self) {
        self.policy.clear();
        if let Some(hinted) = &mut self.hinted {
            hinted.clear();
        }
    }

    /// Checks counts and the order of classes, with `idle` blocks in the tree.
    ///
    /// # Panics
    /// Panics on any contradiction.
    pub fn check(&self, idle: u32, nodes: &Nodes) {
        let Some(hinted) = &self.hinted else { return };
        hinted.check(idle, nodes, self.limits);
    }
}

/// Returns the mark of a slot.
fn mark(marks: &mut Vec<Mark>, slot: u32) -> &mut Mark {
    let at = slot as usize;
    if marks.len() <= at {
        marks.resize(at + 1, Mark::Fresh);
    }
    &mut marks[at]
}

impl Hinted {
    /// Returns the class above the default of a block, 0 without a hint.
    fn class_above(&self, slot: u32) -> usize {
        self.records.get(slot as usize).map_or(0, |record| class_at(&record.ends, self.now_ns))
    }

    /// Queues the last blocks of a chain that all leave early. Returns the number of blocks before.
    fn idle_early(&mut self, chain: &[BlockHandle]) -> usize {
        let mut before = chain.len();
        while let Some(last) = before.checked_sub(1) {
            let queue = match self.marks.get(chain[last].index as usize) {
                Some(Mark::Demoted) => DEMOTED,
                Some(Mark::Early) => EARLY,
                Some(Mark::Fresh | Mark::Usual) | None => break,
            };
            self.queues.push_back(queue, chain[last].index);
            before = last;
        }
        before
    }

    /// Returns the number of leading blocks of a chain above the default.
    fn count_above(&self, chain: &[BlockHandle]) -> usize {
        if self.counters.retained_blocks == 0 {
            return 0;
        }
        chain.partition_point(|block| self.class_above(block.index) > 0)
    }

    /// Queues blocks above the default by class.
    fn idle_above(&mut self, chain: &[BlockHandle]) {
        for block in chain.iter().rev() {
            self.queues.push_back(self.class_above(block.index), block.index);
        }
    }

    /// Takes the blocks of an idle chain out of the queues. Returns the blocks in the policy, which are counted out.
    fn take_out<'a>(&mut self, chain: &'a [BlockHandle]) -> &'a [BlockHandle] {
        let above = chain.iter().take_while(|block| self.queues.remove(block.index)).count();
        let early = chain[above..].iter().rev().take_while(|block| self.queues.remove(block.index)).count();
        let rest = &chain[above..chain.len() - early];
        self.n_policy -= rest.len() as u32;
        rest
    }

    /// Strengthens the hints of a block that somebody reads, and charges the tenant for the block. Returns `false`, and changes nothing,
    /// if the tenant is at a bound.
    fn strengthen(&mut self, slot: u32, ends: Ends, tenant: u64, limits: RetainedBlocks, nodes: &Nodes) -> bool {
        let at = slot as usize;
        if self.records.len() <= at {
            self.records.resize(at + 1, NO_HINT);
        }
        let record = self.records[at];
        let is_stronger = ends.iter().zip(record.ends).any(|(end, present)| *end > present && *end > self.now_ns);
        if !is_stronger {
            return true;
        }
        let is_new = record.ends[0] == 0;
        if is_new || record.tenant != tenant {
            let charged = self.charged.get(&tenant).copied().unwrap_or(0);
            if charged >= limits.of_tenant || (is_new && self.counters.retained_blocks >= limits.of_all) {
                return false;
            }
            if is_new {
                self.counters.retained_blocks += 1;
            } else {
                self.discharge(record.tenant);
            }
            *self.charged.entry(tenant).or_insert(0) += 1;
        }
        let record = &mut self.records[at];
        record.tenant = tenant;
        record.ends.iter_mut().zip(ends).for_each(|(present, end)| *present = end.max(*present));
        self.set_timer(slot, nodes);
        true
    }

    /// Counts the blocks of a request whose hints are ignored, from the `first` block of the prefix on.
    fn ignore(&mut self, rest: &[BlockHandle], claim: &Claim<'_>, first: usize, block_size: usize) {
        let n = first + rest.len();
        let mut at = first;
        while let Some((_, until)) = claim.ends_at(at, n, block_size, self.now_ns).filter(|_| at < n) {
            self.counters.ignored_retained_blocks += (until - at) as u64;
            at = until;
        }
    }

    /// Sets the timer of a block to the next fall of the class, unless an earlier one is set.
    fn set_timer(&mut self, slot: u32, nodes: &Nodes) {
        let record = &mut self.records[slot as usize];
        let class = class_at(&record.ends, self.now_ns);
        let falls_ns = record.ends[class - 1];
        if falls_ns >= record.timer_ns {
            return;
        }
        self.n_timers += usize::from(record.timer_ns == NEVER);
        record.timer_ns = falls_ns;
        self.timers.push(Reverse((falls_ns, Reverse(nodes.depth(slot)), slot)));
        if self.timers.len() > OUTDATED_SPARE + 2 * self.n_timers {
            let records = &self.records;
            self.timers.retain(|Reverse((at_ns, _, slot))| records[*slot as usize].timer_ns == *at_ns);
        }
    }

    /// Lets classes fall up to a time, until a block falls that belongs to the policy. Returns that block.
    fn next_fallen(&mut self, now_ns: u64, nodes: &Nodes) -> Option<u32> {
        while let Some(Reverse((at_ns, Reverse(depth), slot))) = self.timers.peek().copied() {
            if at_ns > now_ns {
                break;
            }
            self.timers.pop();
            let record = &mut self.records[slot as usize];
            if record.timer_ns != at_ns || nodes.depth(slot) != depth {
                continue;
            }
            record.timer_ns = NEVER;
            self.n_timers -= 1;
            self.now_ns = at_ns;
            let class = class_at(&record.ends, at_ns);
            if class > 0 {
                self.set_timer(slot, nodes);
            } else {
                self.forget(slot);
            }
            if self.queues.queue_of(slot).is_some_and(|queue| queue != class) {
                self.queues.remove(slot);
                if class == 0 {
                    self.n_policy += 1;
                    return Some(slot);
                }
                self.queues.push_back(class, slot);
            }
        }
        self.now_ns = now_ns;
        None
    }

    /// Forgets the hints of a block.
    fn forget(&mut self, slot: u32) {
        let Some(record) = self.records.get_mut(slot as usize).filter(|record| record.ends[0] > 0) else { return };
        let Record { tenant, timer_ns, .. } = std::mem::replace(record, NO_HINT);
        self.n_timers -= usize::from(timer_ns != NEVER);
        self.counters.retained_blocks -= 1;
        self.discharge(tenant);
    }

    fn discharge(&mut self, tenant: u64) {
        let charged = self.charged.get_mut(&tenant).expect("a charged block has a tenant");
        *charged -= 1;
        if *charged == 0 {
            self.charged.remove(&tenant);
        }
    }

    fn clear(&mut self) {
        self.queues.clear();
        self.n_policy = 0;
        self.marks.clear();
        self.records.clear();
        self.timers.clear();
        self.n_timers = 0;
        self.charged.clear();
        self.counters.retained_blocks = 0;
    }

    fn check(&self, idle: u32, nodes: &Nodes, limits: RetainedBlocks) {
        let queued: u32 = (EARLY..=DEMOTED).map(|queue| self.queues.len(queue)).sum();
        assert_eq!(self.n_policy + queued, idle, "an idle block is in no class, or in two");
        let mut charged: HashMap<u64, u32> = HashMap::new();
        for (slot, record) in self.records.iter().enumerate() {
            let class = class_at(&record.ends, self.now_ns);
            assert_eq!(record.ends[0] > 0, class > 0, "the hint of block {slot} has ended");
            if class == 0 {
                assert_eq!(record.timer_ns, NEVER, "block {slot} has a timer and no hint");
                continue;
            }
            assert!(record.timer_ns <= record.ends[class - 1], "the class of block {slot} falls unnoticed");
            *charged.entry(record.tenant).or_insert(0) += 1;
        }
        assert_eq!(charged.values().sum::<u32>(), self.counters.retained_blocks);
        assert!(charged.values().all(|n| *n <= limits.of_tenant) && self.counters.retained_blocks <= limits.of_all);
        assert!(charged.len() == self.charged.len(), "a tenant without blocks is charged");
        assert!(charged.iter().all(|(tenant, n)| self.charged.get(tenant) == Some(n)), "charges of tenants drifted");
        for class in EARLY..=PINNED {
            for slot in self.queues.iter(class) {
                assert_eq!(self.class_above(slot), class, "block {slot} is in the wrong class");
                let parent = nodes.parent(slot).filter(|parent| nodes.readers[*parent as usize] == 0);
                let queue = parent.map(|parent| self.queues.queue_of(parent));
                let outlives =
                    queue.is_some_and(|queue| queue == Some(DEMOTED) || (class != EARLY && queue < Some(class)));
                assert!(!outlives, "{slot} outlives its parent");
            }
        }
        assert!(self.queues.iter(DEMOTED).all(|slot| self.class_above(slot) == 0), "a block to be demoted is to stay");
    }
}
