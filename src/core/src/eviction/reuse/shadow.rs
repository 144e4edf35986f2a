//! Shadow directories: contents of an LRU and of an S3-FIFO cache under the same traffic, without any KV.
//!
//! The `reuse` policy reports each chain of blocks on falling idle. Both directories then hold as many blocks as are idle in the
//! cache, so blocks of running requests count against neither. In a cache of up to [`EXACT`] blocks every block is followed; in a
//! larger one a sample of the blocks, chosen by fingerprint, in directories smaller by as much (Waldspurger et al., ATC 2015 and
//! 2017). A sample of blocks is less noisy than one of prefixes: nearly every long prompt has some blocks in the sample.
//!
//! Blocks held by a directory and not by the cache are *missing*, the other way round *surplus*. A missing block asked for is in the cache
//! afterwards. While the cache evicts only surplus blocks, the number of missing blocks therefore bounds its loss to the directory. A
//! [`Gap`] counts the missing blocks found in the end. Surplus blocks are known only where every block is followed.

use hashbrown::HashMap;

use crate::eviction::parts::ghost::Ghost;
use crate::eviction::parts::queue::Queues;

/// Blocks followed, at most, by each directory.
const EXACT: u32 = 1 << 14;
/// One part in so many of the cache may be idle blocks seen once before S3-FIFO spares the main queue, as in `s3fifo`.
const SMALL: u32 = 10;
/// Blocks remembered after leaving both directories, as a multiple of the blocks followed, and at most: returns later than that are
/// not counted as such. The life tables of `reuse` end at as many capacities.
const SEEN: u32 = 32;
const SEEN_MAX: u32 = 1 << 16;
const NONE: u32 = u32::MAX;
/// The directories.
pub(in crate::eviction) const RIVALS: usize = 2;
pub(in crate::eviction) const LRU: usize = 0;
pub(in crate::eviction) const S3FIFO: usize = 1;
/// Queues of S3-FIFO.
const UNPROVEN: usize = 0;
const PROVEN: usize = 1;

/// A block in one of the directories or both.
#[derive(Clone, Copy, Debug)]
struct Slot {
    fingerprint: u64,
    /// Block of the cache with the contents, when last used.
    block: u32,
    /// Slot of the nearest ancestor followed, for S3-FIFO.
    parent: u32,
    /// Slots with this one as `parent`.
    children: u32,
    /// `true` while S3-FIFO holds the block.
    in_s3fifo: bool,
    /// `true` if the block belongs to the main queue of S3-FIFO.
    proven: bool,
    /// `true` if the request being reported uses the block.
    held: bool,
    /// `true` if a request reads the block: S3-FIFO passes over the block once.
    read: bool,
    /// `true` if the cache has the block, idle or not.
    in_cache: bool,
}

/// A block of the cache falling idle.
#[derive(Clone, Copy, Debug)]
pub(in crate::eviction) struct Used {
    pub fingerprint: u64,
    /// `true` if the block was found in the cache.
    pub in_cache: bool,
    pub block: u32,
}

/// Blocks held by a directory and missing in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::eviction) struct Gap {
    pub missing: u32,
    /// Missing blocks found in the directory later, and ones evicted there unused.
    pub found: f64,
    pub unused: f64,
}

/// Blocks of one request found, of the blocks followed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::eviction) struct Found {
    /// Found in the cache itself.
    pub cache: u32,
    pub lru: u32,
    pub s3fifo: u32,
    /// Seen before, as far as is remembered.
    pub seen: u32,
}

/// Directories of LRU and S3-FIFO over the blocks followed.
#[derive(Debug)]
pub(in crate::eviction) struct Shadow {
    /// One block in so many is followed, a power of two.
    follow_every: u32,
    /// Unproven blocks above which S3-FIFO evicts from the queue of these.
    small_max: u32,
    /// Slots by fingerprint.
    slots_by_fingerprint: HashMap<u64, u32, ahash::RandomState>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Blocks that LRU holds, in order of use.
    lru: Queues,
    /// Leaves that S3-FIFO holds.
    s3fifo: Queues,
    /// Blocks that S3-FIFO holds, and the unproven ones of these.
    len: u32,
    unproven: u32,
    /// Blocks that S3-FIFO evicted unproven.
    ghost: Ghost,
    /// Blocks that left both directories.
    seen: Ghost,
    /// Slots of the request being reported, first to last; empty between calls.
    chain: Vec<u32>,
    /// Slots by idle block of the cache, or [`NONE`] for blocks not followed or in neither directory.
    slot_of: Vec<u32>,
    /// Blocks held by the directories and missing in the cache.
    pub gaps: [Gap; RIVALS],
    /// Idle blocks of the cache, surplus since the last look, each with the directory in question.
    pub surplus: Vec<(usize, u32)>,
}

impl Shadow {
    /// Creates empty directories for a cache of `capacity` blocks.
    pub fn new(capacity: u32) -> Self {
        let follow_every = capacity.div_ceil(EXACT).next_power_of_two();
        let followed = Self::followed(capacity);
        Self {
            follow_every,
            small_max: followed / SMALL,
            slots_by_fingerprint: HashMap::with_capacity_and_hasher(2 * followed as usize, Default::default()),
            slots: Vec::new(),
            free: Vec::new(),
            lru: Queues::new(1),
            s3fifo: Queues::new(2),
            len: 0,
            unproven: 0,
            ghost: Ghost::new(followed),
            seen: Ghost::new((followed * SEEN).min(SEEN_MAX)),
            chain: Vec::new(),
            slot_of: Vec::new(),
            gaps: Default::default(),
            surplus: Vec::new(),
        }
    }

    /// Returns the number of blocks followed in a full cache.
    pub fn followed(capacity: u32) -> u32 {
        (capacity / capacity.div_ceil(EXACT).next_power_of_two()).max(1)
    }

    /// Returns `true` if every block is followed.
    pub fn is_exact(&self) -> bool {
        self.follow_every == 1
    }

    /// Lets both directories use a chain of blocks falling idle, first to last. `idle` is the number of idle blocks in the cache
    /// afterwards. Returns the blocks found.
    pub fn used(&mut self, chain: impl Iterator<Item = Used>, idle: u32) -> Found {
        let capacity = (idle / self.follow_every).max(1);
        let found = self.hold(chain);
        for at in (0..self.chain.len()).rev() {
            let slot = self.chain[at];
            self.lru.remove(slot);
            self.lru.push_back(0, slot);
        }
        self.use_s3fifo(capacity);
        while self.lru.len(0) > capacity {
            let slot = self.lru.pop_front(0).expect("it has blocks");
            self.left(LRU, slot);
            self.release(slot);
        }
        found
    }

    /// Takes note of an idle block of the cache being read, before the cache evicts others for the request.
    pub fn read(&mut self, block: u32) {
        let Some(slot) = self.leave(block) else { return };
        let at = &mut self.slots[slot as usize];
        if at.in_s3fifo {
            self.unproven -= u32::from(!at.proven);
            (at.proven, at.read) = (true, true);
        }
    }

    /// Takes note of an idle block leaving the cache.
    pub fn evicted(&mut self, block: u32) {
        let slot = self.leave(block).filter(|slot| self.slots[*slot as usize].block == block);
        let Some(slot) = slot else { return };
        self.slots[slot as usize].in_cache = false;
        let holders = self.holders(slot);
        for (gap, holds) in self.gaps.iter_mut().zip(holders) {
            gap.missing += u32::from(holds);
        }
    }

    /// Returns `true` if every block is followed and a directory does not hold this idle block of the cache.
    pub fn is_surplus(&self, rival: usize, block: u32) -> bool {
        let slot = self.slot_of.get(block as usize).filter(|_| self.is_exact());
        slot.is_some_and(|slot| *slot == NONE || !self.holders(*slot)[rival])
    }

    /// Returns for each directory whether it holds a block.
    fn holders(&self, slot: u32) -> [bool; RIVALS] {
        [self.lru.queue_of(slot).is_some(), self.slots[slot as usize].in_s3fifo]
    }

    /// Takes out an idle block of the cache. Returns its slot.
    fn leave(&mut self, block: u32) -> Option<u32> {
        let slot = std::mem::replace(self.slot_of.get_mut(block as usize)?, NONE);
        (slot != NONE).then_some(slot)
    }

    /// Takes note of a block leaving a directory.
    fn left(&mut self, rival: usize, slot: u32) {
        let Slot { block, in_cache, .. } = self.slots[slot as usize];
        if !in_cache {
            self.gaps[rival].missing -= 1;
            self.gaps[rival].unused += 1.0;
        } else if self.is_exact() && self.slot_of.get(block as usize) == Some(&slot) {
            self.surplus.push((rival, block));
        }
    }

    /// Forgets the contents of both directories.
    pub fn clear(&mut self) {
        self.slots_by_fingerprint.clear();
        self.slots.clear();
        self.free.clear();
        self.lru.clear();
        self.s3fifo.clear();
        self.slot_of.clear();
        self.surplus.clear();
        self.gaps.iter_mut().for_each(|gap| gap.missing = 0);
        (self.len, self.unproven) = (0, 0);
    }

    /// Collects the slots of a chain in `self.chain`, with slots for new blocks. A block counts as found if all before it are.
    fn hold(&mut self, chain: impl Iterator<Item = Used>) -> Found {
        self.chain.clear();
        let mut found = Found::default();
        let (mut in_lru, mut in_s3fifo) = (true, true);
        for Used { fingerprint, in_cache, block } in chain {
            // The low bits choose a place in the table.
            if (fingerprint >> 32) as u32 & (self.follow_every - 1) != 0 {
                continue;
            }
            let known = self.slots_by_fingerprint.get(&fingerprint).copied();
            in_lru &= known.is_some_and(|slot| self.lru.queue_of(slot).is_some());
            in_s3fifo &= known.is_some_and(|slot| self.slots[slot as usize].in_s3fifo);
            let seen = in_lru || in_s3fifo || in_cache || (known.is_none() && self.seen.take(fingerprint).is_some());
            found.cache += u32::from(in_cache);
            found.lru += u32::from(in_lru);
            found.s3fifo += u32::from(in_s3fifo);
            found.seen += u32::from(seen);
            let slot = known.unwrap_or_else(|| self.add(fingerprint));
            self.enter(block, slot);
            self.chain.push(slot);
        }
        found
    }

    /// Takes in a block of the cache with its slot.
    fn enter(&mut self, block: u32, slot: u32) {
        let holders = self.holders(slot);
        let known = &mut self.slots[slot as usize];
        let was_missing = !std::mem::replace(&mut known.in_cache, true);
        (known.held, known.read, known.block) = (true, false, block);
        for (gap, holds) in self.gaps.iter_mut().zip(holders) {
            gap.missing -= u32::from(was_missing && holds);
            gap.found += f64::from(was_missing && holds);
        }
        let at = block as usize;
        if self.slot_of.len() <= at {
            self.slot_of.resize(at + 1, NONE);
        }
        self.slot_of[at] = slot;
    }

    fn add(&mut self, fingerprint: u64) -> u32 {
        let new = Slot {
            fingerprint,
            block: NONE,
            parent: NONE,
            children: 0,
            in_s3fifo: false,
            proven: false,
            held: false,
            read: false,
            in_cache: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        };
        self.slots_by_fingerprint.insert(fingerprint, slot);
        slot
    }

    /// Forgets a block in neither directory.
    fn release(&mut self, slot: u32) {
        let Slot { fingerprint, block, in_s3fifo, .. } = self.slots[slot as usize];
        if in_s3fifo || self.lru.queue_of(slot).is_some() {
            return;
        }
        if let Some(known) = self.slot_of.get_mut(block as usize).filter(|known| **known == slot) {
            *known = NONE;
        }
        self.seen.insert_all(std::iter::once(fingerprint));
        self.slots_by_fingerprint.remove(&fingerprint);
        self.free.push(slot);
    }

    /// Reads the blocks of the chain that S3-FIFO holds, evicts, and adds the others, as `s3fifo` does.
    fn use_s3fifo(&mut self, capacity: u32) {
        let mut absent = 0;
        for slot in &self.chain {
            let at = &mut self.slots[*slot as usize];
            if at.in_s3fifo {
                self.s3fifo.remove(*slot);
                self.unproven -= u32::from(!at.proven);
                at.proven = true;
            } else {
                absent += 1;
                at.proven = self.ghost.take(at.fingerprint).is_some();
            }
        }
        while self.len + absent > capacity && self.evict_from_s3fifo() {}
        let mut parent = NONE;
        for slot in &self.chain {
            let at = &mut self.slots[*slot as usize];
            at.held = false;
            if !at.in_s3fifo {
                (at.in_s3fifo, at.parent, at.children) = (true, parent, 0);
                self.len += 1;
                self.unproven += u32::from(!at.proven);
                if parent != NONE {
                    self.slots[parent as usize].children += 1;
                }
            }
            parent = *slot;
        }
        if let Some(last) = self.slots.get(parent as usize).filter(|last| last.children == 0) {
            self.s3fifo.push_back(usize::from(last.proven), parent);
        }
    }

    /// Evicts a leaf from S3-FIFO, or passes over one being read. Returns `false` if there is none.
    pub fn evict_from_s3fifo(&mut self) -> bool {
        let over = self.unproven > self.small_max || self.s3fifo.is_empty(PROVEN);
        let from = if over && !self.s3fifo.is_empty(UNPROVEN) { UNPROVEN } else { PROVEN };
        let Some(slot) = self.s3fifo.pop_front(from) else { return false };
        if std::mem::take(&mut self.slots[slot as usize].read) {
            self.s3fifo.push_back(PROVEN, slot);
            return true;
        }
        self.len -= 1;
        let evicted = &mut self.slots[slot as usize];
        evicted.in_s3fifo = false;
        let parent = evicted.parent;
        if !evicted.proven {
            self.unproven -= 1;
            self.ghost.insert_all(std::iter::once(evicted.fingerprint));
        }
        if let Some(above) = self.slots.get_mut(parent as usize) {
            above.children -= 1;
            let (is_leaf, queue) = (above.children == 0 && !above.held, usize::from(above.proven));
            // A parent in the queue of the child takes the place of the child.
            match is_leaf {
                true if queue == from => self.s3fifo.push_front(queue, parent),
                true => self.s3fifo.push_back(queue, parent),
                false => {}
            }
        }
        self.left(S3FIFO, slot);
        self.release(slot);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::mix;

    /// Blocks that the cache has not found, in slots of their own.
    fn computed(chain: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Used> {
        chain.into_iter().map(|id| Used { fingerprint: mix(id), in_cache: false, block: id as u32 })
    }

    /// Lets a request use a chain in a cache of ten idle blocks. Returns the blocks found by LRU and by S3-FIFO.
    fn ask(shadow: &mut Shadow, chain: &[u64]) -> (u32, u32) {
        let found = shadow.used(computed(chain.iter().copied()), 10);
        (found.lru, found.s3fifo)
    }

    #[test]
    fn lru_forgets_the_oldest_and_s3fifo_keeps_a_block_used_twice() {
        let mut shadow = Shadow::new(10);
        assert_eq!(ask(&mut shadow, &[1, 2]), (0, 0));
        assert_eq!(ask(&mut shadow, &[1, 2]), (2, 2));
        (10..20).for_each(|once| _ = ask(&mut shadow, &[once * 10, once * 10 + 1]));
        assert_eq!(ask(&mut shadow, &[1, 2]), (0, 2));
        // LRU has the last requests, the tail of the oldest of them gone.
        assert_eq!(ask(&mut shadow, &[160, 161]).0, 2);
        assert_eq!(ask(&mut shadow, &[110, 111]).0, 0);
    }

    #[test]
    fn a_parent_is_evicted_after_its_children() {
        let mut shadow = Shadow::new(10);
        ask(&mut shadow, &[1, 2, 3]);
        ask(&mut shadow, &[1, 4, 5, 6, 7]);
        // One block too many: the tail of the first request leaves.
        assert_eq!(ask(&mut shadow, &[1, 4, 5, 6, 7, 8, 9, 10, 11]), (5, 5));
        assert_eq!(ask(&mut shadow, &[1, 2, 3]), (2, 2));
    }

    #[test]
    fn a_block_seen_before_is_known_after_leaving_both() {
        let mut shadow = Shadow::new(10);
        ask(&mut shadow, &[1]);
        (10..30).for_each(|once| _ = ask(&mut shadow, &[once]));
        let found = shadow.used(computed([1, 2]), 10);
        assert_eq!((found.lru, found.s3fifo, found.seen), (0, 0, 1));
    }

    #[test]
    fn a_sample_finds_the_share_of_a_large_cache() {
        let capacity = 4 * EXACT;
        let mut shadow = Shadow::new(capacity);
        let mut found = [0, 0];
        for at in 0..3 * capacity / 8 {
            // Every other request returns after half of the cache, or after twice.
            let back = [capacity / 16 - 1, capacity / 4 - 1][(at / 2 % 2) as usize];
            let request = if at % 2 == 1 && at > back { at - back } else { at };
            let chain = computed((0..8).map(|block| u64::from(request * 8 + block)));
            found[(at / 2 % 2) as usize] += shadow.used(chain, capacity).lru * shadow.follow_every;
        }
        assert!(shadow.follow_every == 4 && found[1] == 0, "{found:?}");
        let expected = 3 * capacity / 4;
        assert!(found[0].abs_diff(expected) < expected / 5, "{found:?}, expected {expected}");
    }

    /// A cache of 40 blocks, each in the slot of its number, that evicts the oldest leaf or what the directory of S3-FIFO says.
    struct Cache {
        shadow: Shadow,
        /// Idle blocks, oldest first and children before parents.
        idle: Vec<u64>,
    }

    impl Cache {
        /// Lets a request use a prompt of four blocks. Returns the blocks found.
        fn ask(&mut self, prompt: u64, follows: bool) -> Found {
            let chain = [0, 1, 2, 3].map(|at| prompt * 4 + at);
            let kept = chain.iter().take_while(|id| self.idle.contains(id)).count();
            for id in &chain[..kept] {
                self.idle.retain(|other| other != id);
                self.shadow.read(*id as u32);
            }
            while self.idle.len() + chain.len() > 40 {
                let surplus = |id: &&u64| self.shadow.is_surplus(S3FIFO, **id as u32);
                let victim = if follows { self.idle.iter().find(surplus) } else { self.idle.first() };
                let Some(victim) = victim.copied() else {
                    assert!(self.shadow.evict_from_s3fifo());
                    continue;
                };
                self.idle.retain(|id| *id != victim);
                self.shadow.evicted(victim as u32);
            }
            self.idle.extend(chain.iter().rev());
            let used = |(at, id): (usize, &u64)| Used { in_cache: at < kept, ..computed([*id]).next().expect("one") };
            self.shadow.used(chain.iter().enumerate().map(used), 40)
        }
    }

    #[test]
    fn a_cache_that_evicts_what_s3fifo_does_not_hold_comes_to_find_what_s3fifo_finds() {
        let mut cache = Cache { shadow: Shadow::new(40), idle: Vec::new() };
        let mut found = [Found::default(); 3];
        for at in 0..3000 {
            // Seven popular prompts, and two of three are asked for once.
            let prompt = if at % 3 == 0 { mix(at) % 7 } else { 100 + at };
            let now = cache.ask(prompt, at >= 1000);
            let then = &mut found[(at / 1000) as usize];
            then.cache += now.cache;
            then.s3fifo += now.s3fifo;
        }
        let [apart, after, together] = found.map(|found| (found.cache, found.s3fifo));
        assert!(apart.0 * 2 < apart.1, "{found:?}");
        assert!(after.0 < after.1 && after.1 - after.0 <= 28, "the popular prompts are computed once more: {found:?}");
        assert_eq!(together.0, together.1);
    }
}
