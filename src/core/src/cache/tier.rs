//! One tier of the prefix cache behind the device: host memory, disk or remote memory.
//!
//! A tier is flat: a block may be present without the blocks before it. So that a prefix is still found block by block and
//! verified to the last token, a block in a tier carries its key ([`crate::blocks::content_key`]), which names the prefix before it. The block
//! is the next one of a prompt if that prefix is the prompt's, and the tokens match too.

mod retained;

use std::collections::BTreeSet;

use trunkline_port::{BlockFault, BlockKey, KnownBlock, Place};

use crate::blocks::block_index::BlockIndex;
use crate::blocks::hash::BlockHash;
use crate::blocks::nodes::Nodes;
use crate::blocks::slots::{SlotState, Slots};
use crate::blocks::transitions::Transition;
use crate::cache::changes::{CacheChanges, CacheEvent};
use crate::cache::classes::Classes;
use crate::cache::floors::{CHANCES, Floors, NOBODY};
use crate::names::ids::{BlockHandle, Token};
use crate::request::retention::{Pin, RetainedBlocks};

/// A published block, in whichever place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    /// Identity of the block.
    pub key: BlockKey,
    /// Tokens of the block.
    pub tokens: &'a [Token],
    /// Tenant of the block.
    pub tenant: u64,
    /// Pin of the block, if it has one.
    pub pin: Option<Pin>,
}

/// The state of a block of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TierState {
    /// Holds no contents.
    Free,
    /// Written by a transfer in flight. Not found yet.
    Filling,
    /// Holds a block that may be evicted.
    Idle,
    /// Holds a block that transfers in flight read, demotions included.
    Pinned,
    /// Struck out: nobody finds the block any more. Freed when the transfers in flight that read or write it have ended.
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
    /// A demotion ended and no other transfer reads the block, or the next tier did not take the block.
    Demoted,
    /// The block was found bad, or flushed.
    StruckOut,
    /// The last transfer with a block that was struck out ended.
    TransfersEnded,
    /// The block was dropped to make room.
    Evicted,
}

/// Every change of [`TierState`].
const TIER_TRANSITIONS: [Transition<TierEvent, TierState>; 10] = {
    use TierState::{Filling, Free, Idle, Leaving, Pinned};
    [
        (TierEvent::FillBegan, Free, Filling),
        (TierEvent::Filled, Filling, Idle),
        (TierEvent::FillFailed, Filling, Free),
        (TierEvent::Pinned, Idle, Pinned),
        (TierEvent::Unpinned, Pinned, Idle),
        (TierEvent::Demoted, Pinned, Free),
        (TierEvent::StruckOut, Filling, Leaving),
        (TierEvent::StruckOut, Pinned, Leaving),
        (TierEvent::TransfersEnded, Leaving, Free),
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
    /// Tokens kept of each block: all, or none in a simulation, where equal hashes are proof enough.
    kept_tokens: usize,
    slots: Slots<TierState>,
    /// Transfers in flight that read each block.
    pins: Vec<u32>,
    /// Identity of each block.
    keys: Vec<BlockKey>,
    nodes: Nodes,
    tokens: Vec<Token>,
    /// All blocks but free and leaving ones, by hash.
    index: BlockIndex,
    eviction: Classes,
    /// Pins that the blocks came with, up to the last slot that ever had one.
    retained: Vec<Option<Pin>>,
    /// Blocks that pins keep at full size, at most.
    retained_max: RetainedBlocks,
    now_ns: u64,
    /// Blocks that each tenant keeps.
    pub floors: Floors,
    /// Blocks of all floors together at full size.
    kept: u32,
    /// Blocks that floors may still give back to the policy.
    chances: usize,
    /// Room for blocks, at most one for each slot.
    limit: u32,
    /// Free slots whose memory swapped-out requests use.
    lent: u32,
    /// Demotions of blocks in flight.
    demoting: u32,
    /// Blocks flushed while they are written, by fingerprint. Storage that names blocks by their contents may get the old ones at any time
    /// until the writes end, so that new ones of the same name are not written before.
    flushed_writes: BTreeSet<(u64, u32)>,
    /// Blocks dropped to make room.
    pub evicted: u64,
    /// Blocks that came or went since [`Self::take_changes`], if somebody asks for them.
    changes: Option<Box<CacheChanges>>,
}

impl Tier {
    /// Creates an empty tier of `capacity` blocks, of which floors keep so many, and pins so many at most.
    pub fn new(block_size: u32, capacity: u32, (kept, retained_max): (u32, RetainedBlocks), eviction: Classes) -> Self {
        let mut floors = Floors::default();
        floors.set(kept);
        Self {
            block_size: block_size as usize,
            kept_tokens: block_size as usize,
            slots: Slots::new(capacity),
            pins: Vec::new(),
            keys: Vec::new(),
            nodes: Nodes::default(),
            tokens: Vec::new(),
            index: BlockIndex::new(capacity),
            eviction,
            retained: Vec::new(),
            retained_max,
            now_ns: 0,
            floors,
            kept,
            chances: 0,
            limit: capacity,
            lent: 0,
            demoting: 0,
            flushed_writes: BTreeSet::new(),
            evicted: 0,
            changes: None,
        }
    }

    /// Keeps no tokens of blocks, which are found by their hashes alone from now on. MUST be called before the first block comes.
    pub fn forget_tokens(&mut self) {
        self.kept_tokens = 0;
    }

    /// Notes the blocks that come and go from now on, for [`Self::take_changes`]. The tier has this number.
    pub fn listen(&mut self, tier: u8) {
        self.changes = Some(Box::new(CacheChanges::new(Place::Tier(tier))));
    }

    /// Returns the blocks that came or went since the last call, in order, and those that came behind the ones before them.
    pub fn take_changes(&mut self) -> Vec<CacheEvent> {
        self.changes.as_mut().map_or(Vec::new(), |changes| changes.take_in_order())
    }

    /// Adds all blocks that can be found to a list of changes, as if they came now: each behind the one before it in its prefix.
    pub fn add_present(&self, changes: &mut CacheChanges) {
        let mut slots: Vec<u32> = (0..self.slots.opened()).filter(|slot| self.is_present(*slot)).collect();
        slots.sort_by_key(|slot| self.keys[*slot as usize].first_token);
        for slot in slots {
            let key = &self.keys[slot as usize];
            changes.entered(key, key.group, self.tokens_of(slot), None);
        }
    }

    /// Returns `true` if no block can be found.
    pub fn has_none(&self) -> bool {
        self.count(TierState::Idle) + self.count(TierState::Pinned) == 0
    }

    /// Returns the number of blocks that fit in addition to the blocks lent.
    pub fn capacity(&self) -> u32 {
        self.limit.saturating_sub(self.lent)
    }

    /// Returns the number of blocks that fit in addition to the blocks present and lent.
    pub fn free(&self) -> u32 {
        let used = self.slots.capacity() - self.count(TierState::Free);
        self.capacity().saturating_sub(used)
    }

    /// Sets the number of blocks that fit, at most as many as there are slots. Idle blocks beyond are evicted.
    pub fn resize(&mut self, blocks: u32) {
        self.limit = blocks.min(self.slots.capacity());
        if self.kept > 0 {
            let kept = u64::from(self.kept) * u64::from(self.limit) / u64::from(self.slots.capacity());
            self.floors.set((kept as u32).max(1));
        }
        while self.slots.capacity() - self.count(TierState::Free) > self.capacity() {
            let Some(victim) = self.pop_victim() else { return };
            self.evict(victim);
        }
    }

    /// Takes in blocks found in the tier at the start, in the slots from 0 on, oldest first. Without room for all, the newest are taken. Returns
    /// the blocks taken; the slots of all others are free, and released. Blocks beyond the last slot are left out. A tier that was used before takes none.
    pub fn adopt<'a>(&mut self, blocks: &'a [KnownBlock]) -> Vec<&'a KnownBlock> {
        let surplus = blocks.len().min(self.slots.capacity() as usize).saturating_sub(self.free() as usize);
        let (mut adopted, mut unused) = (Vec::new(), Vec::new());
        for (at, known) in blocks.iter().enumerate() {
            if known.block != self.slots.opened() || known.block == self.slots.capacity() {
                break;
            }
            let slot = self.slots.take(TierEvent::FillBegan).expect("the slot was never used");
            let fits = at >= surplus && known.tokens.len() == self.block_size;
            if fits && !self.has_fingerprint(known.key.fingerprint) {
                self.fill(slot, &Contents { key: known.key, tokens: &known.tokens, tenant: NOBODY, pin: None });
                self.end_fill(slot, true);
                adopted.push(known);
            } else {
                self.open(slot);
                unused.push(slot);
            }
        }
        unused.into_iter().for_each(|slot| self.slots.release(slot, TierEvent::FillFailed));
        adopted
    }

    /// Takes in a block found in the tier's storage while the tier is used, instead of another if the tier is full. Returns the slot; `None` if the block, or
    /// another of equal hash, is there, or is of another size, or has no room.
    pub fn adopt_later(&mut self, known: &KnownBlock) -> Option<u32> {
        if known.tokens.len() != self.block_size {
            return None;
        }
        let slot = self.reserve(&Contents { key: known.key, tokens: &known.tokens, tenant: NOBODY, pin: None })?;
        self.end_fill(slot, true);
        Some(slot)
    }

    /// Sets the number of free slots whose memory swapped-out requests use.
    pub fn set_lent(&mut self, lent: u32) {
        assert!(lent <= self.count(TierState::Free), "the memory of a block is used twice");
        self.lent = lent;
    }

    /// Returns the number of blocks that fit in addition to the blocks that cannot be evicted.
    pub fn available(&self) -> u32 {
        let used = self.slots.capacity() - self.count(TierState::Free);
        self.capacity().saturating_sub(used - self.count(TierState::Idle))
    }

    /// Evicts blocks until one more fits: several if the tier holds more than its limit, because blocks could not be evicted when the limit
    /// fell. Returns `false` if too few can be evicted.
    pub fn make_room(&mut self) -> bool {
        self.make_room_by(Self::pop_victim)
    }

    fn make_room_by(&mut self, pop: fn(&mut Self) -> Option<u32>) -> bool {
        while self.free() == 0 {
            let Some(victim) = pop(self) else { return false };
            self.evict(victim);
        }
        true
    }

    /// Drops a block that the eviction policy gave up.
    fn evict(&mut self, victim: u32) {
        self.remove(victim);
        self.slots.release(victim, TierEvent::Evicted);
        self.evicted += 1;
    }

    /// Returns the number of blocks in a state.
    pub fn count(&self, state: TierState) -> u32 {
        self.slots.count(state)
    }

    /// Returns the block of a layer group with the hash `hash` in the tree that continues the prefix with the hash `parent` with these tokens, if
    /// present.
    pub fn find(&self, hash: BlockHash, parent: u128, group: u8, tokens: &[Token]) -> Option<u32> {
        let slot = self.index.find(hash.fingerprint(), |slot| self.nodes.fingerprint(slot))?;
        let key = &self.keys[slot as usize];
        let has_tokens = if self.kept_tokens == 0 { key.hash == hash.0 } else { self.tokens_of(slot) == tokens };
        let continues = key.parent == parent && key.group == group && has_tokens;
        (continues && self.slots.state(slot) != TierState::Filling).then_some(slot)
    }

    /// Returns `true` if a block with this fingerprint is present or being filled.
    pub fn has_fingerprint(&self, fingerprint: u64) -> bool {
        self.holder(fingerprint).is_some()
    }

    /// Returns the block with this fingerprint that is present or being filled.
    pub fn holder(&self, fingerprint: u64) -> Option<u32> {
        self.index.find(fingerprint, |slot| self.nodes.fingerprint(slot))
    }

    /// Returns the contents of a block.
    pub fn contents(&self, slot: u32) -> Contents<'_> {
        let (tokens, tenant, pin) = (self.tokens_of(slot), self.floors.owner(slot), self.pin_of(slot));
        Contents { key: self.keys[slot as usize], tokens, tenant, pin }
    }

    /// Reserves a slot for a block to be written by a transfer, evicting another block if the tier is full. Returns `None` if the
    /// block, or another block of equal hash, is present or being filled, if a block of equal hash was flushed while it is being filled, or if no
    /// block can be evicted.
    pub fn reserve(&mut self, contents: &Contents) -> Option<u32> {
        let fingerprint = contents.key.fingerprint;
        let is_being_filled = self.flushed_writes.range((fingerprint, 0)..=(fingerprint, u32::MAX)).next().is_some();
        if is_being_filled || self.has_fingerprint(fingerprint) || !self.make_room_by(Self::pop_unpinned) {
            return None;
        }
        let slot = self.slots.take(TierEvent::FillBegan).expect("a slot is free");
        self.fill(slot, contents);
        Some(slot)
    }

    /// Enters a block to be written to a slot just taken.
    fn fill(&mut self, slot: u32, contents: &Contents) {
        let fingerprint = contents.key.fingerprint;
        self.open(slot);
        self.nodes.publish_first(slot, BlockHash(u128::from(fingerprint)));
        self.keys[slot as usize] = contents.key;
        let kept = self.kept_tokens;
        self.tokens[slot as usize * kept..][..kept].copy_from_slice(&contents.tokens[..kept]);
        let nodes = &self.nodes;
        self.index.insert(fingerprint, slot, |slot| nodes.fingerprint(slot));
        self.floors.publish_for(contents.tenant);
        self.floors.published(&[handle(slot)]);
        self.chances = (self.chances + CHANCES).min(self.slots.opened() as usize);
        self.eviction.published(&[handle(slot)], &self.nodes);
        if let Some(pin) = contents.pin {
            self.retain(slot, pin);
        }
    }

    /// Ends the transfer that writes a block: the block is present if `ok`, else freed. A block struck out meanwhile is freed.
    pub fn end_fill(&mut self, slot: u32, ok: bool) {
        if self.slots.state(slot) == TierState::Leaving {
            self.flushed_writes.remove(&(self.keys[slot as usize].fingerprint, slot));
            self.slots.release(slot, TierEvent::TransfersEnded);
        } else if ok {
            self.slots.apply(slot, TierEvent::Filled);
            self.eviction.idle(&[handle(slot)], &self.nodes);
            if let Some(changes) = &mut self.changes {
                let tokens = &self.tokens[slot as usize * self.kept_tokens..][..self.kept_tokens];
                let key = &self.keys[slot as usize];
                changes.entered(key, key.group, tokens, None);
            }
        } else {
            self.remove(slot);
            self.slots.release(slot, TierEvent::FillFailed);
        }
    }

    /// Pins a block for a transfer that reads it, and counts a hit of a tenant if there is one.
    pub fn pin(&mut self, slot: u32, hit_by: Option<u64>) {
        self.pins[slot as usize] += 1;
        if let Some(tenant) = hit_by {
            self.nodes.hit(slot, 1);
            self.floors.found_by(slot, tenant);
        }
        if self.slots.state(slot) == TierState::Idle {
            self.eviction.read(&[handle(slot)], &self.nodes);
            self.slots.apply(slot, TierEvent::Pinned);
        }
    }

    /// Removes the pin of one transfer.
    pub fn unpin(&mut self, slot: u32) {
        self.pins[slot as usize] -= 1;
        if self.pins[slot as usize] > 0 {
            return;
        }
        if self.slots.state(slot) == TierState::Leaving {
            self.slots.release(slot, TierEvent::TransfersEnded);
        } else {
            self.slots.apply(slot, TierEvent::Unpinned);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        }
    }

    /// Pins the block to be evicted next, to be demoted. The block is found until [`Self::end_demotion`]. Returns `None` if no block is
    /// idle.
    pub fn begin_demotion(&mut self) -> Option<u32> {
        let slot = self.pop_unpinned()?;
        self.slots.apply(slot, TierEvent::Pinned);
        self.pins[slot as usize] = 1;
        self.demoting += 1;
        Some(slot)
    }

    /// Ends the demotion of a block. The block is freed if it arrived, or is bad, and no other transfer reads it; else it stays, unless
    /// it is bad.
    pub fn end_demotion(&mut self, slot: u32, fault: Option<BlockFault>) {
        self.demoting -= 1;
        if fault == Some(BlockFault::Bad) {
            self.strike_out(slot);
        }
        if fault.is_none() && self.pins[slot as usize] == 1 && self.slots.state(slot) == TierState::Pinned {
            self.pins[slot as usize] = 0;
            self.remove(slot);
            self.slots.release(slot, TierEvent::Demoted);
        } else {
            self.unpin(slot);
        }
    }

    /// Returns the number of blocks that are free, or free when the demotions in flight end.
    pub fn free_soon(&self) -> u32 {
        self.free() + self.demoting
    }

    /// Returns `true` if a slot holds a block that can be found.
    pub fn is_present(&self, slot: u32) -> bool {
        matches!(self.slots.state(slot), TierState::Idle | TierState::Pinned)
    }

    /// Lets nobody find a block any more that transfers in flight read or write. The block is freed when the transfers end.
    pub fn strike_out(&mut self, slot: u32) {
        if self.slots.state(slot) != TierState::Leaving {
            self.remove(slot);
            self.slots.apply(slot, TierEvent::StruckOut);
        }
    }

    /// Drops every block. Blocks that transfers in flight read or write are struck out.
    pub fn flush(&mut self) {
        while let Some(slot) = self.pop_idle() {
            self.remove(slot);
            self.slots.release(slot, TierEvent::Evicted);
        }
        for slot in 0..self.slots.opened() {
            match self.slots.state(slot) {
                TierState::Free => continue,
                TierState::Filling => _ = self.flushed_writes.insert((self.keys[slot as usize].fingerprint, slot)),
                _ => {}
            }
            self.strike_out(slot);
        }
    }

    /// Returns the slots freed since the last call and still free.
    pub fn take_released(&mut self) -> Vec<u32> {
        self.slots.take_released()
    }

    /// Takes a block out of the index.
    fn remove(&mut self, slot: u32) {
        let is_present = self.is_present(slot);
        if let Some(changes) = self.changes.as_mut().filter(|_| is_present) {
            let key = &self.keys[slot as usize];
            changes.left(key, key.group);
        }
        self.index.remove(self.nodes.fingerprint(slot), slot);
        self.nodes.remove(slot);
        self.floors.left(&[slot]);
        self.forget_pin(slot);
    }

    /// Takes the block to be evicted next out of the eviction policy: one that no floor keeps, unless all those tried are kept.
    fn pop_victim(&mut self) -> Option<u32> {
        let mut tries = self.count(TierState::Idle) as usize;
        loop {
            let slot = self.pop_idle()?;
            if self.floors.lets_go(&[slot]) > 0 || self.chances == 0 || tries == 1 {
                return Some(slot);
            }
            (self.chances, tries) = (self.chances - 1, tries - 1);
            self.eviction.idle(&[handle(slot)], &self.nodes);
        }
    }

    fn pop_idle(&mut self) -> Option<u32> {
        if self.count(TierState::Idle) == 0 {
            return None;
        }
        let slot = self.eviction.pop(&self.nodes).expect("some block is idle, and all are leaves");
        assert_eq!(self.slots.state(slot), TierState::Idle, "the policy evicts block {slot} of a tier");
        Some(slot)
    }

    fn tokens_of(&self, slot: u32) -> &[Token] {
        &self.tokens[slot as usize * self.kept_tokens..][..self.kept_tokens]
    }

    /// Grows the arrays for a slot that is used for the first time.
    fn open(&mut self, slot: u32) {
        let len = slot as usize + 1;
        if self.pins.len() < len {
            self.pins.resize(len, 0);
            self.keys.resize(len, BlockKey::default());
            self.nodes.open(len);
            self.tokens.resize(len * self.kept_tokens, 0);
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
                TierState::Filling => 1,
                TierState::Pinned => pins,
                // Struck out while it was written, or read.
                TierState::Leaving => pins.max(1),
            };
            assert_eq!(copies, expected, "transfers of block {slot} of a tier, which is {state:?}");
            assert!(if pins > 0 {
                matches!(state, TierState::Pinned | TierState::Leaving)
            } else {
                state != TierState::Pinned
            });
        }
        let findable = [TierState::Filling, TierState::Idle, TierState::Pinned].map(|state| self.count(state));
        assert_eq!(findable.iter().sum::<u32>() as usize, self.index.len());
        let is_findable = |slot: &u32| !matches!(self.slots.state(*slot), TierState::Free | TierState::Leaving);
        self.floors.check((0..self.slots.opened()).filter(is_findable));
        self.eviction.check(self.count(TierState::Idle), &self.nodes);
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
Demoted: Pinned -> Free
StruckOut: Filling -> Leaving
StruckOut: Pinned -> Leaving
TransfersEnded: Leaving -> Free
Evicted: Idle -> Free
";
        assert_eq!(crate::blocks::transitions::text(&TIER_TRANSITIONS), reviewed);
    }

    const EMPTY_PREFIX: u128 = 0;

    fn contents(hash: u128, parent: u128, tokens: &[Token]) -> Contents<'_> {
        let key = BlockKey { hash, parent, fingerprint: (hash * 1000 + parent) as u64, ..BlockKey::default() };
        Contents { key, tokens, tenant: 1, pin: None }
    }

    /// Returns a hash in the tree with the fingerprint of a block.
    fn hash_of(block: &Contents<'_>) -> BlockHash {
        BlockHash(block.key.fingerprint.into())
    }

    fn tier(blocks: u32) -> Tier {
        let eviction = Classes::new(crate::eviction::REGISTRY.make("lru", blocks).unwrap());
        Tier::new(2, blocks, (0, RetainedBlocks::default()), eviction)
    }

    #[test]
    fn a_block_is_found_by_its_prefix_and_tokens_once_it_is_there_and_the_oldest_goes() {
        let mut tier = tier(2);
        let a = contents(1, EMPTY_PREFIX, &[1, 2]);
        let slot = tier.reserve(&a).unwrap();
        assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), None, "it is on its way");
        assert!(tier.reserve(&a).is_none(), "not twice");
        tier.end_fill(slot, true);
        assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), Some(slot));
        assert_eq!(tier.find(hash_of(&a), 7, 0, &[1, 2]), None, "another prefix");
        assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 3]), None, "other tokens");
        assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 1, &[1, 2]), None, "another layer group");
        let b = tier.reserve(&contents(2, 1, &[3, 4])).unwrap();
        tier.end_fill(b, true);
        tier.pin(slot, Some(1));
        assert_eq!(tier.reserve(&contents(3, 2, &[5, 6])), Some(b), "the other one is read");
        assert!(tier.reserve(&contents(4, 3, &[7, 8])).is_none(), "nothing can go");
        tier.check([slot, b].into_iter());
        tier.unpin(slot);
        tier.end_fill(b, false);
        tier.check(std::iter::empty());
        assert_eq!((tier.count(TierState::Free), tier.evicted), (1, 1));
        // A block is found while it is being demoted, and stays if the demotion fails or another transfer reads it at the end.
        for (ok, is_read) in [(false, false), (true, true), (true, false)] {
            assert_eq!(tier.begin_demotion(), Some(slot));
            assert_eq!(tier.begin_demotion(), None);
            assert_eq!((tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), tier.free_soon()), (Some(slot), 2));
            if is_read {
                tier.pin(slot, Some(1));
            }
            tier.end_demotion(slot, (!ok).then_some(BlockFault::Refused));
            let stays = !ok || is_read;
            assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]).is_some(), stays);
            if is_read {
                tier.unpin(slot);
            }
            tier.check(std::iter::empty());
        }
        assert_eq!(tier.begin_demotion(), None);
        // A bad one leaves.
        let slot = tier.reserve(&a).unwrap();
        tier.end_fill(slot, true);
        assert_eq!(tier.begin_demotion(), Some(slot));
        tier.end_demotion(slot, Some(BlockFault::Bad));
        assert_eq!((tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), tier.count(TierState::Free)), (None, 2));
        tier.check(std::iter::empty());
    }

    #[test]
    fn a_tier_that_shrank_while_its_blocks_were_read_comes_down_to_its_limit_before_it_takes_another() {
        let mut tier = tier(4);
        let slots: Vec<u32> = (1..=4).map(|at| tier.reserve(&contents(at, at - 1, &[1, 2])).unwrap()).collect();
        for slot in &slots {
            tier.end_fill(*slot, true);
            tier.pin(*slot, Some(1));
        }
        tier.resize(2);
        assert_eq!((tier.count(TierState::Pinned), tier.free(), tier.available()), (4, 0, 0));
        slots[..3].iter().for_each(|slot| tier.unpin(*slot));
        assert_eq!(tier.available(), 1, "with the one that is read");
        assert!(tier.reserve(&contents(5, 4, &[1, 2])).is_some());
        assert_eq!((tier.count(TierState::Free), tier.evicted), (2, 3));
        tier.resize(1);
        assert!(tier.reserve(&contents(6, 5, &[1, 2])).is_none(), "the one that is read fills it");
    }

    #[test]
    fn a_block_that_is_struck_out_is_found_by_nobody_and_freed_after_its_transfers() {
        let mut tier = tier(3);
        let (a, b) = (contents(1, EMPTY_PREFIX, &[1, 2]), contents(2, 1, &[3, 4]));
        let [read, written] = [&a, &b].map(|contents| tier.reserve(contents).unwrap());
        tier.end_fill(read, true);
        tier.pin(read, Some(1));
        tier.pin(read, Some(1));
        tier.flush();
        assert_eq!(tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), None);
        tier.check([read, read, written].into_iter());
        let again = tier.reserve(&a).expect("the contents are in the tier no more");
        tier.end_fill(again, true);
        assert!(tier.reserve(&b).is_none(), "the write in flight may end after this one");
        tier.end_fill(written, true);
        tier.unpin(read);
        tier.check([read].into_iter());
        tier.unpin(read);
        assert_eq!((tier.find(hash_of(&a), EMPTY_PREFIX, 0, &[1, 2]), tier.count(TierState::Free)), (Some(again), 2));
        tier.check(std::iter::empty());
        assert!(tier.reserve(&b).is_some(), "the write before the flush has ended");
    }
}
