//! One tier of the prefix cache behind the device: host memory, disk or remote memory.
//!
//! A tier is flat: a block may be present without the blocks before it. So that a prefix is still found block by block and
//! verified to the last token, every prefix has an *identity*: a number assigned when its last block is first published, and
//! kept while a copy of that block is in any place. A block in a tier carries its own identity and the identity of the prefix
//! before it. It continues a prefix with that identity, and is the next block of a prompt if the tokens match too.

use crate::block_index::BlockIndex;
use crate::eviction::Eviction;
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};
use crate::nodes::Nodes;
use crate::slots::{SlotState, Slots};
use crate::transitions::Transition;

/// Tiers behind the device, at most.
pub const TIERS_MAX: usize = 3;

/// A published block, in whichever place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    /// The part of the chained hash used by indices.
    pub hash: u64,
    /// Identity of the prefix that the block ends.
    pub identity: u64,
    /// Identity of the prefix before the block.
    pub parent_prefix: u64,
    /// Tokens of the block.
    pub tokens: &'a [Token],
}

/// The state of a block of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TierState {
    /// Holds no contents.
    Free,
    /// Written by a transfer in flight. Found only by lookups that ask for blocks on their way too.
    Filling,
    /// Holds a block that may be evicted.
    Idle,
    /// Holds a block that transfers in flight read.
    Pinned,
    /// Read by a demotion in flight, and freed at its end. Not found by lookups.
    Leaving,
}

/// Causes of a change of [`TierState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierEvent {
    /// A transfer began to write the block.
    FillBegan,
    /// The transfer ended.
    Filled,
    /// The transfer failed.
    FillFailed,
    /// The first transfer began to read the block.
    Pinned,
    /// The last transfer that read the block ended.
    Unpinned,
    /// A demotion to the next tier began.
    DemotionBegan,
    /// The demotion ended, or the next tier did not take the block.
    DemotionEnded,
    /// The block was dropped to make room.
    Evicted,
}

/// Every change of [`TierState`].
const TIER_TRANSITIONS: [Transition<TierEvent, TierState>; 8] = {
    use TierState::{Filling, Free, Idle, Leaving, Pinned};
    [
        (TierEvent::FillBegan, Free, Filling),
        (TierEvent::Filled, Filling, Idle),
        (TierEvent::FillFailed, Filling, Free),
        (TierEvent::Pinned, Idle, Pinned),
        (TierEvent::Unpinned, Pinned, Idle),
        (TierEvent::DemotionBegan, Idle, Leaving),
        (TierEvent::DemotionEnded, Leaving, Free),
        (TierEvent::Evicted, Idle, Free),
    ]
};

impl SlotState for TierState {
    type Event = TierEvent;
    const NAME: &'static str = "tier block";
    const FREE: Self = Self::Free;
    const TRANSITIONS: &'static [Transition<TierEvent, Self>] = &TIER_TRANSITIONS;

    fn number(self) -> usize {
        self as usize
    }
}

/// The blocks of one tier.
#[derive(Debug)]
pub(crate) struct Tier {
    block_size: usize,
    slots: Slots<TierState>,
    /// Transfers in flight that read each block.
    pins: Vec<u32>,
    /// Identities of each block's prefix up to the block's end, and of the prefix before the block.
    identities: Vec<(u64, u64)>,
    nodes: Nodes,
    tokens: Vec<Token>,
    /// All blocks but free and leaving ones, by hash.
    index: BlockIndex,
    eviction: Box<dyn Eviction>,
    /// Free slots whose memory swapped-out requests use.
    lent: u32,
    /// Blocks dropped to make room.
    pub evicted: u64,
}

impl Tier {
    /// Creates an empty tier of `capacity` blocks.
    pub fn new(block_size: u32, capacity: u32, eviction: Box<dyn Eviction>) -> Self {
        Self {
            block_size: block_size as usize,
            slots: Slots::new(capacity),
            pins: Vec::new(),
            identities: Vec::new(),
            nodes: Nodes::default(),
            tokens: Vec::new(),
            index: BlockIndex::new(capacity),
            eviction,
            lent: 0,
            evicted: 0,
        }
    }

    /// Returns the number of blocks that fit beside the blocks lent.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity() - self.lent
    }

    /// Returns the number of free slots whose memory is not lent.
    pub fn free(&self) -> u32 {
        self.count(TierState::Free) - self.lent
    }

    /// Sets the number of free slots whose memory swapped-out requests use.
    pub fn set_lent(&mut self, lent: u32) {
        assert!(lent <= self.count(TierState::Free), "the memory of a block is used twice");
        self.lent = lent;
    }

    /// Evicts a block unless a slot is free. Returns `false` if no block can be evicted.
    pub fn make_room(&mut self) -> bool {
        if self.free() == 0 {
            let Some(victim) = self.remove_victim() else { return false };
            self.slots.apply(victim, TierEvent::Evicted);
            self.evicted += 1;
        }
        true
    }

    /// Returns the number of blocks in a state.
    pub fn count(&self, state: TierState) -> u32 {
        self.slots.count(state)
    }

    /// Returns the block that continues the prefix `parent_prefix` with these tokens, if present or being filled.
    fn lookup(&self, hash: u64, parent_prefix: u64, tokens: &[Token]) -> Option<u32> {
        let slot = self.index.find(hash, |slot| self.nodes.fingerprint(slot))?;
        (self.identities[slot as usize].1 == parent_prefix && self.tokens_of(slot) == tokens).then_some(slot)
    }

    /// Returns the block that continues the prefix `parent_prefix` with these tokens, if present.
    pub fn find(&self, hash: u64, parent_prefix: u64, tokens: &[Token]) -> Option<u32> {
        self.lookup(hash, parent_prefix, tokens).filter(|slot| self.slots.state(*slot) != TierState::Filling)
    }

    /// Returns the identity of the prefix that these tokens make of the prefix `parent_prefix`, if its last block is present or
    /// being filled.
    pub fn identity(&self, hash: u64, parent_prefix: u64, tokens: &[Token]) -> Option<u64> {
        self.lookup(hash, parent_prefix, tokens).map(|slot| self.identities[slot as usize].0)
    }

    /// Returns the contents of a block.
    pub fn contents(&self, slot: u32) -> Contents<'_> {
        let (identity, parent_prefix) = self.identities[slot as usize];
        Contents { hash: self.nodes.fingerprint(slot), identity, parent_prefix, tokens: self.tokens_of(slot) }
    }

    /// Reserves a slot for a block to be written by a transfer, evicting another block if the tier is full. Returns `None` if the
    /// block, or another block of equal hash, is present or being filled, or if no block can be evicted.
    pub fn reserve(&mut self, contents: &Contents) -> Option<u32> {
        if self.index.find(contents.hash, |slot| self.nodes.fingerprint(slot)).is_some() {
            return None;
        }
        if !self.make_room() {
            return None;
        }
        let slot = self.slots.take(TierEvent::FillBegan).expect("a slot is free");
        self.open(slot);
        self.nodes.publish_first(slot, BlockHash(u128::from(contents.hash)));
        self.identities[slot as usize] = (contents.identity, contents.parent_prefix);
        self.tokens[slot as usize * self.block_size..][..self.block_size].copy_from_slice(contents.tokens);
        let nodes = &self.nodes;
        self.index.insert(contents.hash, slot, |slot| nodes.fingerprint(slot));
        self.eviction.published(&[handle(slot)], &self.nodes);
        Some(slot)
    }

    /// Ends the transfer that writes a block: the block is present if `ok`, else freed.
    pub fn end_fill(&mut self, slot: u32, ok: bool) {
        if ok {
            self.slots.apply(slot, TierEvent::Filled);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        } else {
            self.index.remove(self.nodes.fingerprint(slot), slot);
            self.nodes.remove(slot);
            self.slots.apply(slot, TierEvent::FillFailed);
        }
    }

    /// Pins a block for a transfer that reads it, and counts a hit of the block if `is_hit`.
    pub fn pin(&mut self, slot: u32, is_hit: bool) {
        self.pins[slot as usize] += 1;
        if is_hit {
            self.nodes.hit(slot, 1);
        }
        if self.slots.state(slot) == TierState::Idle {
            self.eviction.read(&[handle(slot)], &self.nodes);
            self.slots.apply(slot, TierEvent::Pinned);
        }
    }

    /// Removes the pin of one transfer.
    pub fn unpin(&mut self, slot: u32) {
        self.pins[slot as usize] -= 1;
        if self.pins[slot as usize] == 0 {
            self.slots.apply(slot, TierEvent::Unpinned);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        }
    }

    /// Takes the block to be evicted next out of the index, to be demoted. Its contents stay until [`Self::end_demotion`]. Returns
    /// `None` if no block is idle.
    pub fn begin_demotion(&mut self) -> Option<u32> {
        let slot = self.remove_victim()?;
        self.slots.apply(slot, TierEvent::DemotionBegan);
        Some(slot)
    }

    /// Frees a block whose demotion ended or was given up.
    pub fn end_demotion(&mut self, slot: u32) {
        self.slots.apply(slot, TierEvent::DemotionEnded);
    }

    /// Drops every block that no transfer reads or writes.
    pub fn flush(&mut self) {
        while let Some(slot) = self.remove_victim() {
            self.slots.apply(slot, TierEvent::Evicted);
        }
    }

    /// Takes the block to be evicted next out of the index.
    fn remove_victim(&mut self) -> Option<u32> {
        if self.count(TierState::Idle) == 0 {
            return None;
        }
        let slot = self.eviction.pop(&self.nodes).expect("some block is idle, and all are leaves");
        assert_eq!(self.slots.state(slot), TierState::Idle, "the policy evicts block {slot} of a tier");
        self.index.remove(self.nodes.fingerprint(slot), slot);
        self.nodes.remove(slot);
        Some(slot)
    }

    fn tokens_of(&self, slot: u32) -> &[Token] {
        &self.tokens[slot as usize * self.block_size..][..self.block_size]
    }

    /// Grows the arrays for a slot that is used for the first time.
    fn open(&mut self, slot: u32) {
        let len = slot as usize + 1;
        if self.pins.len() < len {
            self.pins.resize(len, 0);
            self.identities.resize(len, (0, 0));
            self.nodes.open(len);
            self.tokens.resize(len * self.block_size, 0);
        }
    }

    /// Panics unless the counts are right. `copied` yields each block once per transfer in flight that reads or writes it.
    pub fn check(&self, copied: impl Iterator<Item = u32>) {
        self.slots.check();
        let mut copies = vec![0; self.pins.len()];
        copied.for_each(|slot| copies[slot as usize] += 1);
        for (slot, copies) in (0..).zip(copies) {
            let (state, pins) = (self.slots.state(slot), self.pins[slot as usize]);
            let expected = match state {
                TierState::Free | TierState::Idle => 0,
                TierState::Filling | TierState::Leaving => 1,
                TierState::Pinned => pins,
            };
            assert_eq!(copies, expected, "transfers of block {slot} of a tier, which is {state:?}");
            assert_eq!(pins > 0, state == TierState::Pinned);
        }
        let findable = [TierState::Filling, TierState::Idle, TierState::Pinned].map(|state| self.count(state));
        assert_eq!(findable.iter().sum::<u32>() as usize, self.index.len());
    }
}

/// Returns the handle that eviction policies see. Blocks of a tier have no generations: a reader pins its block.
fn handle(slot: u32) -> BlockHandle {
    BlockHandle { index: slot, generation: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let reviewed = "\
FillBegan: Free -> Filling
Filled: Filling -> Idle
FillFailed: Filling -> Free
Pinned: Idle -> Pinned
Unpinned: Pinned -> Idle
DemotionBegan: Idle -> Leaving
DemotionEnded: Leaving -> Free
Evicted: Idle -> Free
";
        assert_eq!(crate::transitions::text(&TIER_TRANSITIONS), reviewed);
    }

    const EMPTY_PREFIX: u64 = 0;

    fn contents(identity: u64, parent_prefix: u64, tokens: &[Token]) -> Contents<'_> {
        Contents { hash: identity * 1000 + parent_prefix, identity, parent_prefix, tokens }
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
        assert_eq!(tier.begin_demotion(), Some(slot));
        assert_eq!(tier.find(a.hash, EMPTY_PREFIX, &[1, 2]), None);
        tier.end_demotion(slot);
        assert_eq!(tier.begin_demotion(), None);
    }
}
