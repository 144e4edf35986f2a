//! Where a block stands, and the pool that knows it for every block.
//!
//! A block is in exactly one place. The place is a [`BlockState`]; [`BlockPool::set`] is the only function that changes it,
//! and it refuses every change that [`TRANSITIONS`] does not list. The numbers of blocks per state are kept by the same
//! function, so free + private + held + idle + moving = capacity by construction; [`BlockPool::check`] counts again.

use crate::ids::BlockHandle;

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// Holds nothing.
    Free,
    /// Belongs to one sequence, which may write it.
    Private,
    /// Published and read by at least one sequence. Never written again.
    Held,
    /// Published and read by none: cached, and first to go.
    Idle,
    /// A copy under way reads or writes it, and no step may. It is of one sequence alone, or leaves for another tier.
    Moving,
}

/// Every change of state there is, with the occasion.
pub const TRANSITIONS: [(BlockState, BlockState, &str); 10] = [
    (BlockState::Free, BlockState::Private, "allocate"),
    (BlockState::Private, BlockState::Free, "release, or merge into an equal published block"),
    (BlockState::Private, BlockState::Held, "publish"),
    (BlockState::Held, BlockState::Idle, "last reader left"),
    (BlockState::Idle, BlockState::Held, "prefix hit"),
    (BlockState::Idle, BlockState::Free, "evict"),
    (BlockState::Private, BlockState::Moving, "a copy begins"),
    (BlockState::Idle, BlockState::Moving, "a copy begins that takes it to another tier"),
    (BlockState::Moving, BlockState::Private, "a copy to the device ended"),
    (BlockState::Moving, BlockState::Free, "a copy to the host ended, or a copy failed"),
];

impl BlockState {
    /// Whether [`TRANSITIONS`] has a change from this state to `to`.
    pub const fn may_become(self, to: Self) -> bool {
        ALLOWED[self as usize] >> to as u8 & 1 == 1
    }
}

/// [`TRANSITIONS`] as bits: by the state left, a bit for each state that may follow.
const ALLOWED: [u8; 5] = {
    let mut allowed = [0; 5];
    let mut i = 0;
    while i < TRANSITIONS.len() {
        allowed[TRANSITIONS[i].0 as usize] |= 1 << TRANSITIONS[i].1 as u8;
        i += 1;
    }
    allowed
};

/// Slots for which there is room from the beginning. Memory that is never touched costs nothing.
pub(crate) const ROOM_MAX: u32 = 1 << 22;

/// The state and generation of every block, and the stack of free ones.
///
/// Slots are opened lazily up to the capacity, so a capacity far above what is used costs nothing.
#[derive(Debug)]
pub struct BlockPool {
    capacity: u32,
    states: Vec<BlockState>,
    generations: Vec<u32>,
    /// Freed slots. Blocks of a chain are freed tail first, so they come back head first and in ascending order, which
    /// keeps the blocks of a sequence next to each other.
    freed: Vec<u32>,
    counts: [u32; 5],
}

impl BlockPool {
    /// A pool of `capacity` free blocks.
    pub fn new(capacity: u32) -> Self {
        let room = capacity.min(ROOM_MAX) as usize;
        Self {
            capacity,
            states: Vec::with_capacity(room),
            generations: Vec::with_capacity(room),
            freed: Vec::new(),
            counts: [capacity, 0, 0, 0, 0],
        }
    }

    /// All blocks there are.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Slots that have ever been used; all indices are below this.
    pub fn opened(&self) -> u32 {
        self.states.len() as u32
    }

    /// Blocks in a state.
    pub fn count(&self, state: BlockState) -> u32 {
        self.counts[state as usize]
    }

    /// The state of a block.
    pub fn state(&self, index: u32) -> BlockState {
        self.states[index as usize]
    }

    /// The handle that names the block as it is now.
    pub fn handle(&self, index: u32) -> BlockHandle {
        BlockHandle { index, generation: self.generations[index as usize] }
    }

    /// Whether the handle still names the block it was made for.
    pub fn is_current(&self, handle: BlockHandle) -> bool {
        self.generations.get(handle.index as usize) == Some(&handle.generation)
    }

    /// Makes `n` free blocks private and appends their handles to `out`. Returns `false`, and changes nothing, if fewer are free.
    #[must_use]
    pub fn allocate(&mut self, n: u32, out: &mut Vec<BlockHandle>) -> bool {
        if n > self.count(BlockState::Free) {
            return false;
        }
        let again = (n as usize).min(self.freed.len());
        for index in self.freed.drain(self.freed.len() - again..).rev() {
            let state = &mut self.states[index as usize];
            assert_eq!(*state, BlockState::Free, "block {index} is on the free stack");
            *state = BlockState::Private;
            out.push(BlockHandle { index, generation: self.generations[index as usize] });
        }
        let (first, len) = (self.opened(), n as usize - again);
        self.states.resize(first as usize + len, BlockState::Private);
        self.generations.resize(first as usize + len, 0);
        out.extend((first..).take(len).map(|index| BlockHandle { index, generation: 0 }));
        self.counts[BlockState::Free as usize] -= n;
        self.counts[BlockState::Private as usize] += n;
        true
    }

    /// Frees idle blocks.
    pub fn evict(&mut self, blocks: &[u32]) {
        for index in blocks {
            let state = &mut self.states[*index as usize];
            assert_eq!(*state, BlockState::Idle, "block {index} is evicted");
            *state = BlockState::Free;
            let generation = &mut self.generations[*index as usize];
            *generation = generation.wrapping_add(1);
        }
        self.freed.extend_from_slice(blocks);
        self.counts[BlockState::Idle as usize] -= blocks.len() as u32;
        self.counts[BlockState::Free as usize] += blocks.len() as u32;
    }

    /// Moves a block to another state. Freeing it ends its generation: no handle to it is current any more.
    pub fn set(&mut self, index: u32, to: BlockState) {
        let from = self.states[index as usize];
        assert!(from.may_become(to), "block {index} cannot go from {from:?} to {to:?}");
        self.states[index as usize] = to;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if to == BlockState::Free {
            self.generations[index as usize] = self.generations[index as usize].wrapping_add(1);
            self.freed.push(index);
        }
    }

    /// Moves `len` blocks from `first` on, all in one state, to another, which must not be free.
    pub fn set_run(&mut self, first: u32, len: usize, from: BlockState, to: BlockState) {
        assert!(from.may_become(to) && to != BlockState::Free, "a run cannot go from {from:?} to {to:?}");
        let states = &mut self.states[first as usize..first as usize + len];
        let alike = states.iter().fold(true, |alike, state| alike & (*state == from));
        assert!(alike, "some of {len} blocks from {first} on are not {from:?}, and cannot go to {to:?}");
        states.fill(to);
        self.counts[from as usize] -= len as u32;
        self.counts[to as usize] += len as u32;
    }

    /// Appends the handles of `len` blocks from `first` on.
    pub fn handles(&self, first: u32, len: usize, out: &mut Vec<BlockHandle>) {
        let generations = &self.generations[first as usize..first as usize + len];
        out.extend(
            generations.iter().zip(first..).map(|(generation, index)| BlockHandle { index, generation: *generation }),
        );
    }

    /// Panics unless the counts are what counting says, and the free stack holds exactly the free slots.
    pub fn check(&self) {
        let mut counted = [0u32; 5];
        for state in &self.states {
            counted[*state as usize] += 1;
        }
        counted[BlockState::Free as usize] += self.capacity - self.opened();
        assert_eq!(counted, self.counts, "block counts by state drifted");
        assert_eq!(counted.iter().sum::<u32>(), self.capacity, "blocks were lost or made");
        let opened_free = self.states.iter().filter(|state| **state == BlockState::Free).count();
        assert_eq!(opened_free, self.freed.len(), "free stack and free blocks differ");
        assert!(
            self.freed.iter().all(|index| self.state(*index) == BlockState::Free),
            "a used block is on the free stack"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [BlockState; 5] =
        [BlockState::Free, BlockState::Private, BlockState::Held, BlockState::Idle, BlockState::Moving];

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let mut table = String::new();
        for from in ALL {
            for to in ALL {
                table.push(if from.may_become(to) { 'x' } else { '.' });
            }
            table.push('\n');
        }
        //                 F P H I M
        assert_eq!(table, ".x...\nx.x.x\n...x.\nx.x.x\nxx...\n", "rows: from; columns: to; order: that of `ALL`");
    }

    #[test]
    fn capacity_is_handed_out_once_and_comes_back_with_a_new_generation() {
        let mut pool = BlockPool::new(3);
        let mut all = Vec::new();
        assert!(pool.allocate(2, &mut all) && pool.allocate(1, &mut all));
        assert!(!pool.allocate(1, &mut all));
        assert_eq!(all, [0, 1, 2].map(|index| pool.handle(index)));
        let old = pool.handle(1);
        pool.set(1, BlockState::Free);
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
        pool.set(4, BlockState::Held);
        pool.set_run(1, 3, BlockState::Private, BlockState::Held);
        pool.set_run(2, 3, BlockState::Held, BlockState::Idle);
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
        pool.set_run(0, 3, BlockState::Private, BlockState::Held);
        pool.set_run(0, 3, BlockState::Held, BlockState::Idle);
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
        pool.set(0, BlockState::Held);
        pool.set_run(0, 2, BlockState::Held, BlockState::Idle);
    }

    #[test]
    #[should_panic(expected = "cannot go from Held to Free")]
    fn a_block_that_is_read_cannot_be_freed() {
        let mut pool = BlockPool::new(1);
        assert!(pool.allocate(1, &mut Vec::new()));
        pool.set(0, BlockState::Held);
        pool.set(0, BlockState::Free);
    }
}
