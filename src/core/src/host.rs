//! KV blocks in host memory: what swapped-out sequences left there.
//!
//! A host block holds one block of KV for one or more swapped sequences (those that share the prefix up to it). It is
//! filled by one copy and read by at most one at a time: whoever else wants it joins that copy.

/// Where a host block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HostState {
    /// Holds nothing.
    Free,
    /// A copy to the host writes it.
    Filling,
    /// Holds KV that some sequence wants back.
    Full,
    /// The same, and a copy to the device reads it.
    Reading,
}

/// Every change of state there is, with the occasion.
pub const HOST_TRANSITIONS: [(HostState, HostState, &str); 6] = [
    (HostState::Free, HostState::Filling, "swap-out begins"),
    (HostState::Filling, HostState::Full, "swap-out ended"),
    (HostState::Filling, HostState::Free, "swap-out failed"),
    (HostState::Full, HostState::Reading, "swap-in begins"),
    (HostState::Reading, HostState::Full, "swap-in ended or failed"),
    (HostState::Full, HostState::Free, "the last holder left"),
];

/// The state of every host block, and how many sequences want it.
///
/// Slots are opened lazily up to the capacity.
#[derive(Debug)]
pub struct HostPool {
    capacity: u32,
    states: Vec<HostState>,
    holders: Vec<u32>,
    freed: Vec<u32>,
    counts: [u32; 4],
}

impl HostPool {
    /// A pool of `capacity` free blocks.
    pub fn new(capacity: u32) -> Self {
        Self { capacity, states: Vec::new(), holders: Vec::new(), freed: Vec::new(), counts: [capacity, 0, 0, 0] }
    }

    /// Blocks in a state.
    pub fn count(&self, state: HostState) -> u32 {
        self.counts[state as usize]
    }

    /// The state of a block.
    pub fn state(&self, block: u32) -> HostState {
        self.states[block as usize]
    }

    /// A free block, to be filled, with one holder. `None` if there is none.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.freed.pop() {
            Some(block) => block,
            None if (self.states.len() as u32) < self.capacity => {
                self.states.push(HostState::Free);
                self.holders.push(0);
                self.states.len() as u32 - 1
            }
            None => return None,
        };
        self.set(block, HostState::Filling);
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// The copy that fills it ended.
    pub fn filled(&mut self, block: u32) {
        self.set(block, HostState::Full);
    }

    /// The copy that was to fill it came to nothing.
    pub fn unfilled(&mut self, block: u32) {
        assert_eq!(self.holders[block as usize], 1, "a block is shared only when it is full");
        self.holders[block as usize] = 0;
        self.set(block, HostState::Free);
    }

    /// A copy begins to read it.
    pub fn begin_read(&mut self, block: u32) {
        self.set(block, HostState::Reading);
    }

    /// That copy ended.
    pub fn end_read(&mut self, block: u32) {
        debug_assert_eq!(self.state(block), HostState::Reading);
        self.set(block, HostState::Full);
    }

    /// One more sequence wants it.
    pub fn hold(&mut self, block: u32) {
        debug_assert!(matches!(self.state(block), HostState::Full | HostState::Reading));
        self.holders[block as usize] += 1;
    }

    /// One sequence less wants it; the last one frees it.
    pub fn leave(&mut self, block: u32) {
        self.holders[block as usize] -= 1;
        if self.holders[block as usize] == 0 {
            self.set(block, HostState::Free);
        }
    }

    /// How many sequences want it.
    pub fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }

    fn set(&mut self, block: u32, to: HostState) {
        let from = self.states[block as usize];
        let listed = HOST_TRANSITIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to));
        assert!(listed, "host block {block} cannot go from {from:?} to {to:?}");
        self.states[block as usize] = to;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if to == HostState::Free {
            self.freed.push(block);
        }
    }

    /// Panics unless the counts are what counting says. `holders` says how many sequences want each opened block.
    pub fn check(&self, holders: impl Iterator<Item = u32>) {
        let mut counted = [0u32; 4];
        let mut wanted = vec![0; self.states.len()];
        holders.for_each(|block| wanted[block as usize] += 1);
        for (block, state) in self.states.iter().enumerate() {
            counted[*state as usize] += 1;
            assert_eq!(self.holders[block], wanted[block], "holders of host block {block}");
            assert_eq!(*state == HostState::Free, wanted[block] == 0, "host block {block} is {state:?}");
        }
        counted[HostState::Free as usize] += self.capacity - self.states.len() as u32;
        assert_eq!(counted, self.counts, "host block counts by state drifted");
        assert_eq!(counted.iter().sum::<u32>(), self.capacity, "host blocks were lost or made");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        pool.unfilled(b);
        assert_eq!(pool.count(HostState::Free), 2);
        pool.check(std::iter::empty());
        assert!(pool.allocate().is_some_and(|block| block < 2));
    }

    #[test]
    #[should_panic(expected = "cannot go from Reading to Free")]
    fn a_block_that_a_copy_reads_cannot_be_freed() {
        let mut pool = HostPool::new(1);
        let block = pool.allocate().unwrap();
        pool.filled(block);
        pool.begin_read(block);
        pool.leave(block);
    }
}
