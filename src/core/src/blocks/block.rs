//! Device blocks: the state of each block, and the pool with the states.
//!
//! A block is in exactly one state. [`BlockPool::apply`] and the bulk variants of `apply` are the only functions to change the
//! state, along the table [`TRANSITIONS`]; any other change panics. Free + private + held + idle + moving + stale blocks add up to the
//! capacity by construction; [`BlockPool::check`] counts again.

use crate::blocks::nodes::for_falling_runs;
use crate::blocks::prefetch::prefetch;
pub(crate) use crate::blocks::slots::ROOM_MAX;
use crate::blocks::slots::{SlotState, Slots};
use crate::blocks::transitions::Transition;
use crate::names::ids::BlockHandle;

/// The state of a device block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// Holds no contents.
    Free,
    /// Belongs to one sequence, which may write the block.
    Private,
    /// Published and read by at least one sequence. Never written again.
    Held,
    /// Published and read by no sequence: cached, and evicted first.
    Idle,
    /// Read or written by a transfer in flight, and not by any step. Belongs to one sequence, or is being demoted to a tier.
    Moving,
    /// Published before a flush, or by a step that failed to compute the block, and read by at least one sequence or transfer since. Found
    /// by nobody, and never written again.
    Stale,
}

/// Causes of a change of [`BlockState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A sequence took the block.
    Allocated,
    /// The block is full and computed, and entered the prefix tree.
    Published,
    /// An equal block was published already; the sequence reads that one instead.
    Merged,
    /// A prefix hit gave the block a reader.
    Found,
    /// The last reader left.
    ReadersLeft,
    /// The block was dropped from the cache to make room.
    Evicted,
    /// A transfer began to read or write the block of one sequence.
    CopyBegan,
    /// A transfer began that takes the block out of the cache and into a tier.
    DemotionBegan,
    /// A prompt found the block during the demotion, or the demotion failed: the block is back in the cache.
    Readopted,
    /// The cache was flushed while the block had readers.
    Flushed,
    /// The step that was to compute the block failed to, while the block had readers.
    StruckOut,
    /// The transfer into the block ended, successfully or not; the sequence owns the block again.
    CopyEnded,
    /// The owner gave the block back, or the transfer that read the block ended.
    Released,
}

/// Every change of [`BlockState`].
pub const TRANSITIONS: [Transition<BlockEvent, BlockState>; 15] = {
    use BlockEvent::{
        Allocated, CopyBegan, CopyEnded, DemotionBegan, Evicted, Flushed, Found, Merged, Published, ReadersLeft,
        Readopted, Released, StruckOut,
    };
    use BlockState::{Free, Held, Idle, Moving, Private, Stale};
    [
        (Allocated, Free, Private),
        (Published, Private, Held),
        (Found, Idle, Held),
        (ReadersLeft, Held, Idle),
        (Evicted, Idle, Free),
        (Released, Private, Free),
        (Merged, Private, Free),
        (CopyBegan, Private, Moving),
        (DemotionBegan, Idle, Moving),
        (CopyEnded, Moving, Private),
        (Released, Moving, Free),
        (Readopted, Moving, Held),
        (Flushed, Held, Stale),
        (StruckOut, Held, Stale),
        (ReadersLeft, Stale, Free),
    ]
};

impl SlotState for BlockState {
    type Event = BlockEvent;
    const NAME: &'static str = "block";
    const FREE: Self = Self::Free;
    const TRANSITIONS: &'static [Transition<BlockEvent, Self>] = &TRANSITIONS;

    fn number(self) -> usize {
        self as usize
    }
}

/// The state and the generation of every device block.
#[derive(Debug)]
pub struct BlockPool {
    slots: Slots<BlockState>,
    /// Times each block ever used was freed, modulo 2^32.
    generations: Vec<u32>,
}

impl BlockPool {
    /// Creates a pool of `capacity` free blocks.
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: Slots::new(capacity),
            generations: trunkline_pages::with_capacity(capacity.min(ROOM_MAX) as usize),
        }
    }

    /// Returns the number of blocks in the pool.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Frees all blocks, in whatever state, as if none had been used ever. All handles become stale.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.generations.iter_mut().for_each(|generation| *generation = generation.wrapping_add(1));
    }

    /// Returns the number of blocks used since the last [`Self::clear`]; all indices in use are below this number.
    pub fn opened(&self) -> u32 {
        self.slots.opened()
    }

    /// Returns the number of blocks in a state.
    pub fn count(&self, state: BlockState) -> u32 {
        self.slots.count(state)
    }

    /// Returns the state of a block.
    pub fn state(&self, index: u32) -> BlockState {
        self.slots.state(index)
    }

    /// Returns the handle of the block in the block's current generation.
    pub fn handle(&self, index: u32) -> BlockHandle {
        BlockHandle { index, generation: self.generations[index as usize] }
    }

    /// Returns `true` if the block was not freed since the handle was made.
    pub fn is_current(&self, handle: BlockHandle) -> bool {
        self.generations.get(handle.index as usize) == Some(&handle.generation)
    }

    /// Makes `n` free blocks private and appends their handles to `table`, the blocks of one sequence: next to the last block there if
    /// possible, and in few runs of neighbours. Returns `false`, and changes nothing, if fewer are free.
    #[must_use]
    pub fn allocate(&mut self, n: u32, table: &mut Vec<BlockHandle>) -> bool {
        let (after, have) = growth(n, table);
        let generations = &mut self.generations;
        self.slots.take_many(n, after, have, BlockEvent::Allocated, |first, len| {
            let (begin, end) = (first as usize, (first + len) as usize);
            if generations.len() < end {
                generations.resize(end, 0);
            }
            table.extend(handles(first, &generations[begin..end]));
        })
    }

    /// Returns the number of blocks to evict before [`Self::allocate`] with the same arguments, so that the new blocks are neighbours:
    /// 0 if they are already, or if enough blocks are kept free anyway.
    pub fn lacking(&self, n: u32, table: &[BlockHandle]) -> u32 {
        let (after, have) = growth(n, table);
        self.slots.lacking(n, after, have, self.count(BlockState::Idle))
    }

    /// Returns the length of the runs for a table of `have` blocks, a power of 2.
    pub fn run_length(&self, have: u32) -> u32 {
        self.slots.run_length(have)
    }

    /// Ends the reservation of the free blocks after the last block of a table that grows no more.
    pub fn end_reservation(&mut self, last: BlockHandle) {
        self.slots.end_reservation(last.index);
    }

    /// Frees idle blocks, in order.
    pub fn evict(&mut self, blocks: &[u32]) {
        self.slots.free_all(blocks, BlockState::Idle, BlockEvent::Evicted);
        for_falling_runs(blocks, |first, len| {
            let generations = &mut self.generations[first as usize..first as usize + len];
            generations.iter_mut().for_each(|generation| *generation = generation.wrapping_add(1));
        });
    }

    /// Applies an event to a block. A freed block enters the next generation: all handles to the block become stale.
    pub fn apply(&mut self, index: u32, event: BlockEvent) {
        if self.slots.apply(index, event) == BlockState::Free {
            self.end_generation(index);
        }
    }

    /// Applies an event to `len` blocks from `first` on. The event MUST NOT free, and all the blocks MUST be in one state.
    pub fn apply_run(&mut self, first: u32, len: usize, event: BlockEvent) {
        self.slots.apply_run(first, len, event);
    }

    /// Appends the handles of `len` blocks from `first` on.
    pub fn handles(&self, first: u32, len: usize, out: &mut Vec<BlockHandle>) {
        out.extend(handles(first, &self.generations[first as usize..first as usize + len]));
    }

    /// Requests states and generations of `len` blocks from `first` on from memory.
    #[inline]
    pub(crate) fn prefetch(&self, first: u32, len: usize) {
        prefetch(&self.generations[first as usize..first as usize + len]);
        self.slots.prefetch(first, len);
    }

    /// Panics unless counting the states again gives the counts, and the map of free blocks holds exactly the free ones.
    pub fn check(&self) {
        self.slots.check();
        assert!(self.generations.len() >= self.opened() as usize, "every opened block has a generation");
    }

    fn end_generation(&mut self, index: u32) {
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
    }
}

/// Returns the last block of a table, unless the last entry was dropped, and the number of entries after `n` more.
fn growth(n: u32, table: &[BlockHandle]) -> (Option<u32>, u32) {
    let last = table.last().filter(|last| **last != BlockHandle::NONE);
    (last.map(|last| last.index), (table.len() as u32).saturating_add(n))
}

/// Returns the handles of the blocks from `first` on with these generations.
fn handles(first: u32, generations: &[u32]) -> impl Iterator<Item = BlockHandle> + '_ {
    generations.iter().zip(first..).map(|(generation, index)| BlockHandle { index, generation: *generation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let reviewed = "\
Allocated: Free -> Private
Published: Private -> Held
Found: Idle -> Held
ReadersLeft: Held -> Idle
Evicted: Idle -> Free
Released: Private -> Free
Merged: Private -> Free
CopyBegan: Private -> Moving
DemotionBegan: Idle -> Moving
CopyEnded: Moving -> Private
Released: Moving -> Free
Readopted: Moving -> Held
Flushed: Held -> Stale
StruckOut: Held -> Stale
ReadersLeft: Stale -> Free
";
        assert_eq!(crate::blocks::transitions::text(&TRANSITIONS), reviewed);
    }

    #[test]
    fn capacity_is_handed_out_once_and_comes_back_with_a_new_generation() {
        let mut pool = BlockPool::new(3);
        let mut all = Vec::new();
        assert!(pool.allocate(2, &mut all) && pool.allocate(1, &mut all));
        assert!(!pool.allocate(1, &mut all));
        assert_eq!(all, [0, 1, 2].map(|index| pool.handle(index)));
        let old = pool.handle(1);
        pool.apply(1, BlockEvent::Released);
        assert!(!pool.is_current(old));
        assert!(pool.allocate(1, &mut all));
        assert_eq!((all[3], all[3].index), (pool.handle(1), 1));
        assert!(!pool.is_current(old), "the slot is the same, the block is not");
        assert!(pool.is_current(pool.handle(1)));
        pool.check();
    }

    #[test]
    fn a_run_changes_like_its_blocks_one_by_one() {
        let mut pool = BlockPool::new(6);
        assert!(pool.allocate(5, &mut Vec::new()));
        pool.apply(4, BlockEvent::Published);
        pool.apply_run(1, 3, BlockEvent::Published);
        pool.apply_run(2, 3, BlockEvent::ReadersLeft);
        let states: Vec<_> = (0..5).map(|index| pool.state(index)).collect();
        let [p, h, i] = [BlockState::Private, BlockState::Held, BlockState::Idle];
        assert_eq!(states, [p, h, i, i, i]);
        pool.check();
        let mut handles = Vec::new();
        pool.handles(1, 2, &mut handles);
        assert_eq!(handles, [pool.handle(1), pool.handle(2)]);
    }

    #[test]
    fn evicted_blocks_are_free_and_the_last_is_taken_first() {
        let mut pool = BlockPool::new(4);
        let mut taken = Vec::new();
        assert!(pool.allocate(3, &mut taken));
        pool.apply_run(0, 3, BlockEvent::Published);
        pool.apply_run(0, 3, BlockEvent::ReadersLeft);
        pool.evict(&[2, 1]);
        pool.check();
        assert!(pool.is_current(taken[0]) && !pool.is_current(taken[1]) && !pool.is_current(taken[2]));
        let mut again = Vec::new();
        assert!(pool.allocate(3, &mut again));
        assert_eq!(again.iter().map(|block| block.index).collect::<Vec<_>>(), [1, 2, 3]);
        pool.check();
    }

    #[test]
    #[should_panic(expected = "some of 2 blocks from 0 on are not Held")]
    fn a_run_of_different_states_cannot_change() {
        let mut pool = BlockPool::new(2);
        assert!(pool.allocate(2, &mut Vec::new()));
        pool.apply(0, BlockEvent::Published);
        pool.apply_run(0, 2, BlockEvent::ReadersLeft);
    }

    #[test]
    #[should_panic(expected = "block 0 is Held, where Released cannot happen")]
    fn a_block_that_is_read_cannot_be_freed() {
        let mut pool = BlockPool::new(1);
        assert!(pool.allocate(1, &mut Vec::new()));
        pool.apply(0, BlockEvent::Published);
        pool.apply(0, BlockEvent::Released);
    }
}
