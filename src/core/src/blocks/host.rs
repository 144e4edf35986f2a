//! Host blocks: KV of swapped-out sequences in host memory.
//!
//! A host block holds one block of KV for one or more swapped sequences with the prefix up to the block in common. At most one
//! transfer fills or reads a block at a time: a second sequence in need of the block joins the transfer in flight.

use crate::blocks::slots::{SlotState, Slots};
use crate::blocks::transitions::Transition;

/// The state of a host block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HostState {
    /// Holds no contents.
    Free,
    /// Written by a swap-out in flight.
    Filling,
    /// Holds KV for at least one sequence.
    Full,
    /// Holds KV for at least one sequence, and is read by a swap-in in flight.
    Reading,
}

/// Causes of a change of [`HostState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A swap-out began to write the block.
    FillBegan,
    /// The swap-out ended.
    Filled,
    /// The swap-out failed.
    FillFailed,
    /// A swap-in began to read the block.
    ReadBegan,
    /// The swap-in ended, successfully or not.
    ReadEnded,
    /// The last sequence that holds the block left.
    HoldersLeft,
}

/// Every change of [`HostState`].
pub const HOST_TRANSITIONS: [Transition<HostEvent, HostState>; 6] = {
    use HostEvent::{FillBegan, FillFailed, Filled, HoldersLeft, ReadBegan, ReadEnded};
    use HostState::{Filling, Free, Full, Reading};
    [
        (FillBegan, Free, Filling),
        (Filled, Filling, Full),
        (FillFailed, Filling, Free),
        (ReadBegan, Full, Reading),
        (ReadEnded, Reading, Full),
        (HoldersLeft, Full, Free),
    ]
};

impl SlotState for HostState {
    type Event = HostEvent;
    const NAME: &'static str = "host block";
    const FREE: Self = Self::Free;
    const TRANSITIONS: &'static [Transition<HostEvent, Self>] = &HOST_TRANSITIONS;

    fn number(self) -> usize {
        self as usize
    }
}

/// The state of every host block, and the number of sequences that hold it.
#[derive(Debug)]
pub struct HostPool {
    slots: Slots<HostState>,
    holders: Vec<u32>,
}

impl HostPool {
    /// Creates a pool of `capacity` free blocks.
    pub fn new(capacity: u32) -> Self {
        Self { slots: Slots::new(capacity), holders: Vec::new() }
    }

    /// Returns the number of blocks in a state.
    pub fn count(&self, state: HostState) -> u32 {
        self.slots.count(state)
    }

    /// Returns the number of blocks that are not free.
    pub fn used(&self) -> u32 {
        self.slots.capacity() - self.count(HostState::Free)
    }

    /// Returns the state of a block.
    pub fn state(&self, block: u32) -> HostState {
        self.slots.state(block)
    }

    /// Takes a free block for a swap-out to fill, with one holder. Returns `None` if no block is free.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.slots.take(HostEvent::FillBegan)?;
        if self.holders.len() <= block as usize {
            self.holders.resize(block as usize + 1, 0);
        }
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Marks a block full: the swap-out ended.
    pub fn filled(&mut self, block: u32) {
        self.slots.apply(block, HostEvent::Filled);
    }

    /// Frees a block whose swap-out failed.
    pub fn fill_failed(&mut self, block: u32) {
        assert_eq!(self.holders[block as usize], 1, "a block is shared only when it is full");
        self.holders[block as usize] = 0;
        self.slots.release(block, HostEvent::FillFailed);
    }

    /// Marks a block as read by a swap-in.
    pub fn begin_read(&mut self, block: u32) {
        self.slots.apply(block, HostEvent::ReadBegan);
    }

    /// Marks a block as read no more: the swap-in ended.
    pub fn end_read(&mut self, block: u32) {
        self.slots.apply(block, HostEvent::ReadEnded);
    }

    /// Adds a holder to a full block.
    pub fn hold(&mut self, block: u32) {
        debug_assert!(matches!(self.state(block), HostState::Full | HostState::Reading));
        self.holders[block as usize] += 1;
    }

    /// Removes a holder; the last one to leave frees the block.
    pub fn leave(&mut self, block: u32) {
        self.holders[block as usize] -= 1;
        if self.holders[block as usize] == 0 {
            self.slots.release(block, HostEvent::HoldersLeft);
        }
    }

    /// Returns the blocks freed since the last call and still free.
    pub fn take_released(&mut self) -> Vec<u32> {
        self.slots.take_released()
    }

    /// Returns the number of sequences that hold a block.
    pub fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }

    /// Panics unless the counts are right. `held` yields each block once per sequence that holds it.
    pub fn check(&self, held: impl Iterator<Item = u32>) {
        self.slots.check();
        let mut holders = vec![0; self.holders.len()];
        held.for_each(|block| holders[block as usize] += 1);
        for (block, holders) in (0..).zip(holders) {
            let state = self.state(block);
            assert_eq!(self.holders(block), holders, "holders of host block {block}");
            assert_eq!(state == HostState::Free, holders == 0, "host block {block} is {state:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let reviewed = "\
FillBegan: Free -> Filling
Filled: Filling -> Full
FillFailed: Filling -> Free
ReadBegan: Full -> Reading
ReadEnded: Reading -> Full
HoldersLeft: Full -> Free
";
        assert_eq!(crate::blocks::transitions::text(&HOST_TRANSITIONS), reviewed);
    }

    #[test]
    fn a_block_is_freed_by_its_last_holder_and_handed_out_once() {
        let mut pool = HostPool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        assert_ne!(a, b);
        assert_eq!(pool.allocate(), None);
        pool.filled(a);
        pool.hold(a);
        pool.begin_read(a);
        pool.check([a, a, b].into_iter());
        pool.end_read(a);
        pool.leave(a);
        assert_eq!((pool.state(a), pool.holders(a)), (HostState::Full, 1));
        pool.leave(a);
        pool.fill_failed(b);
        assert_eq!(pool.count(HostState::Free), 2);
        pool.check(std::iter::empty());
        assert!(pool.allocate().is_some_and(|block| block < 2));
    }

    #[test]
    #[should_panic(expected = "host block 0 is Reading, where HoldersLeft cannot happen")]
    fn a_block_that_a_copy_reads_cannot_be_freed() {
        let mut pool = HostPool::new(1);
        let block = pool.allocate().unwrap();
        pool.filled(block);
        pool.begin_read(block);
        pool.leave(block);
    }
}
