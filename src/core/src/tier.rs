//! One tier of slower memory behind the device: host, disk, remote. Which published blocks it has, and which go first.
//!
//! A tier is flat: it may have a block without the blocks before it. So that a prefix is still found block by block and
//! verified to the last token, every prefix has an *identity*, a number given when its last block was first published and
//! kept while any copy of that block is anywhere. A block in a tier carries its own identity and that of the prefix
//! before it; it continues a prefix if that is its number, and it is the next block of a prompt if its tokens are the
//! next ones.

use crate::block_index::BlockIndex;
use crate::eviction::Eviction;
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};
use crate::nodes::Nodes;

/// A published block, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    /// Part of its chained hash, to find it by.
    pub hash: u64,
    /// The prefix it ends.
    pub identity: u64,
    /// The prefix before it.
    pub before: u64,
    pub tokens: &'a [Token],
}

/// Where a block of a tier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TierState {
    /// Holds nothing.
    Free,
    /// A copy writes it. Findable only to see that it is on its way.
    Filling,
    /// Holds a block that may be evicted.
    Idle,
    /// Holds a block that a copy reads.
    Pinned,
    /// The same, and it goes when the copy ends. Not findable.
    Leaving,
}

/// The blocks of one tier.
#[derive(Debug)]
pub(crate) struct Tier {
    block_size: usize,
    capacity: u32,
    states: Vec<TierState>,
    counts: [u32; 5],
    freed: Vec<u32>,
    /// Copies that read a block.
    pins: Vec<u32>,
    /// (its prefix, the prefix before it).
    identities: Vec<(u64, u64)>,
    nodes: Nodes,
    tokens: Vec<Token>,
    /// All but free and leaving ones.
    index: BlockIndex,
    eviction: Box<dyn Eviction>,
    /// Blocks that were dropped to make room.
    pub evicted: u64,
}

impl Tier {
    pub fn new(block_size: u32, capacity: u32, eviction: Box<dyn Eviction>) -> Self {
        Self {
            block_size: block_size as usize,
            capacity,
            states: Vec::new(),
            counts: [capacity, 0, 0, 0, 0],
            freed: Vec::new(),
            pins: Vec::new(),
            identities: Vec::new(),
            nodes: Nodes::default(),
            tokens: Vec::new(),
            index: BlockIndex::new(capacity),
            eviction,
            evicted: 0,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn count(&self, state: TierState) -> u32 {
        self.counts[state as usize]
    }

    /// The block that continues the prefix `before` with these tokens, if it is here or on its way.
    fn lookup(&self, hash: u64, before: u64, tokens: &[Token]) -> Option<u32> {
        let slot = self.index.find(hash, |slot| self.nodes.fingerprint(slot))?;
        (self.identities[slot as usize].1 == before && self.tokens_of(slot) == tokens).then_some(slot)
    }

    /// The same, if it is here.
    pub fn find(&self, hash: u64, before: u64, tokens: &[Token]) -> Option<u32> {
        self.lookup(hash, before, tokens).filter(|slot| self.states[*slot as usize] != TierState::Filling)
    }

    /// The identity of the prefix that these tokens make of the prefix `before`, if a block here or on its way tells.
    pub fn identity(&self, hash: u64, before: u64, tokens: &[Token]) -> Option<u64> {
        self.lookup(hash, before, tokens).map(|slot| self.identities[slot as usize].0)
    }

    /// What a block holds.
    pub fn contents(&self, slot: u32) -> Contents<'_> {
        let (identity, before) = self.identities[slot as usize];
        Contents { hash: self.nodes.fingerprint(slot), identity, before, tokens: self.tokens_of(slot) }
    }

    /// Room for a block that a copy will bring, which may evict another. `None` if it is here or on its way already, if
    /// another of its hash is, or if no block can go.
    pub fn reserve(&mut self, contents: &Contents) -> Option<u32> {
        if self.index.find(contents.hash, |slot| self.nodes.fingerprint(slot)).is_some() {
            return None;
        }
        let slot = match self.freed.pop() {
            Some(slot) => slot,
            None if (self.states.len() as u32) < self.capacity => self.open(),
            None => {
                let slot = self.strike_out_victim()?;
                self.evicted += 1;
                self.set(slot, TierState::Free);
                self.freed.pop().expect("freed a moment ago")
            }
        };
        self.set(slot, TierState::Filling);
        self.nodes.publish_first(slot, BlockHash(u128::from(contents.hash)));
        self.identities[slot as usize] = (contents.identity, contents.before);
        self.tokens[slot as usize * self.block_size..][..self.block_size].copy_from_slice(contents.tokens);
        let nodes = &self.nodes;
        self.index.insert(contents.hash, slot, |slot| nodes.fingerprint(slot));
        self.eviction.published(&[handle(slot)], &self.nodes);
        Some(slot)
    }

    /// The copy that writes a block ended.
    pub fn end_fill(&mut self, slot: u32, ok: bool) {
        if ok {
            self.set(slot, TierState::Idle);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        } else {
            self.index.remove(self.nodes.fingerprint(slot), slot);
            self.nodes.remove(slot);
            self.set(slot, TierState::Free);
        }
    }

    /// A copy reads a block, which was `found` by a prompt or not.
    pub fn pin(&mut self, slot: u32, found: bool) {
        self.pins[slot as usize] += 1;
        if found {
            self.nodes.found(slot);
        }
        if self.states[slot as usize] == TierState::Idle {
            self.eviction.read(&[handle(slot)], &self.nodes);
            self.set(slot, TierState::Pinned);
        }
    }

    /// That copy ended.
    pub fn unpin(&mut self, slot: u32) {
        self.pins[slot as usize] -= 1;
        if self.pins[slot as usize] == 0 {
            self.set(slot, TierState::Idle);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        }
    }

    /// Takes the block that goes first out of the tier, but for its contents. `None` if none can go.
    pub fn begin_leaving(&mut self) -> Option<u32> {
        let slot = self.strike_out_victim()?;
        self.set(slot, TierState::Leaving);
        Some(slot)
    }

    /// Frees it.
    pub fn end_leaving(&mut self, slot: u32) {
        debug_assert_eq!(self.states[slot as usize], TierState::Leaving);
        self.set(slot, TierState::Free);
    }

    /// Drops every block that no copy works on.
    pub fn flush(&mut self) {
        while let Some(slot) = self.strike_out_victim() {
            self.set(slot, TierState::Free);
        }
    }

    fn strike_out_victim(&mut self) -> Option<u32> {
        if self.count(TierState::Idle) == 0 {
            return None;
        }
        let slot = self.eviction.pop(&self.nodes).expect("some block is idle, and all are leaves");
        assert_eq!(self.states[slot as usize], TierState::Idle, "the policy evicts block {slot} of a tier");
        self.index.remove(self.nodes.fingerprint(slot), slot);
        self.nodes.remove(slot);
        Some(slot)
    }

    fn tokens_of(&self, slot: u32) -> &[Token] {
        &self.tokens[slot as usize * self.block_size..][..self.block_size]
    }

    fn open(&mut self) -> u32 {
        let slot = self.states.len() as u32;
        self.states.push(TierState::Free);
        self.pins.push(0);
        self.identities.push((0, 0));
        self.nodes.open(slot as usize + 1);
        self.tokens.resize((slot as usize + 1) * self.block_size, 0);
        slot
    }

    fn set(&mut self, slot: u32, to: TierState) {
        use TierState::{Filling, Free, Idle, Leaving, Pinned};
        let from = self.states[slot as usize];
        let listed = matches!(
            (from, to),
            (Free, Filling)
                | (Filling, Idle | Free)
                | (Idle, Pinned | Leaving | Free)
                | (Pinned, Idle)
                | (Leaving, Free)
        );
        assert!(listed, "block {slot} of a tier cannot go from {from:?} to {to:?}");
        self.states[slot as usize] = to;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if to == Free {
            self.freed.push(slot);
        }
    }

    /// Panics unless the counts are what counting says. `copied` are the blocks that copies under way read or write.
    pub fn check(&self, copied: impl Iterator<Item = u32>) {
        let mut counted = [0u32; 5];
        let mut copies = vec![0; self.states.len()];
        copied.for_each(|slot| copies[slot as usize] += 1);
        for (slot, state) in self.states.iter().enumerate() {
            counted[*state as usize] += 1;
            let expected = match state {
                TierState::Free | TierState::Idle => 0,
                TierState::Filling | TierState::Leaving => 1,
                TierState::Pinned => self.pins[slot],
            };
            assert_eq!(copies[slot], expected, "copies of block {slot} of a tier, which is {state:?}");
            assert_eq!(self.pins[slot] > 0, *state == TierState::Pinned);
        }
        counted[TierState::Free as usize] += self.capacity - self.states.len() as u32;
        assert_eq!(counted, self.counts, "counts of a tier drifted");
        let findable = [TierState::Filling, TierState::Idle, TierState::Pinned].map(|state| self.count(state));
        assert_eq!(findable.iter().sum::<u32>() as usize, self.index.len());
    }
}

/// A tier's blocks have no generations: who has one pins it.
fn handle(slot: u32) -> BlockHandle {
    BlockHandle { index: slot, generation: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_PREFIX: u64 = 0;

    fn contents(identity: u64, before: u64, tokens: &[Token]) -> Contents<'_> {
        Contents { hash: identity * 1000 + before, identity, before, tokens }
    }

    #[test]
    fn a_block_is_found_by_its_prefix_and_tokens_once_it_is_there_and_the_oldest_goes() {
        let mut tier = Tier::new(2, 2, crate::eviction::REGISTRY.make("lru", 2).unwrap());
        let a = contents(1, EMPTY_PREFIX, &[1, 2]);
        let slot = tier.reserve(&a).unwrap();
        assert_eq!(tier.find(a.hash, EMPTY_PREFIX, &[1, 2]), None, "it is on its way");
        assert_eq!(tier.identity(a.hash, EMPTY_PREFIX, &[1, 2]), Some(1));
        assert!(tier.reserve(&a).is_none(), "not twice");
        tier.end_fill(slot, true);
        assert_eq!(tier.find(a.hash, EMPTY_PREFIX, &[1, 2]), Some(slot));
        assert_eq!(tier.find(a.hash, 7, &[1, 2]), None, "another prefix");
        assert_eq!(tier.find(a.hash, EMPTY_PREFIX, &[1, 3]), None, "other tokens");
        let b = tier.reserve(&contents(2, 1, &[3, 4])).unwrap();
        tier.end_fill(b, true);
        tier.pin(slot, true);
        assert_eq!(tier.reserve(&contents(3, 2, &[5, 6])), Some(b), "the other one is read");
        assert!(tier.reserve(&contents(4, 3, &[7, 8])).is_none(), "nothing can go");
        tier.check([slot, b].into_iter());
        tier.unpin(slot);
        tier.end_fill(b, false);
        tier.check(std::iter::empty());
        assert_eq!((tier.count(TierState::Free), tier.evicted), (1, 1));
        assert_eq!(tier.begin_leaving(), Some(slot));
        assert_eq!(tier.find(a.hash, EMPTY_PREFIX, &[1, 2]), None);
        tier.end_leaving(slot);
        assert_eq!(tier.begin_leaving(), None);
    }
}
