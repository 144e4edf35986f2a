//! A priority queue of blocks for priorities that only rise: a ring of levels.
//!
//! GreedyDual policies give a block the priority `floor + worth`, where `floor` is the priority of the last block evicted.
//! All priorities in use lie between the floor and the floor plus the greatest worth, so a ring of queues can hold them. A
//! bit map finds the lowest level with a block, and every operation is O(1).

use super::queue::Queues;

/// Number of levels of worth.
pub(in crate::eviction) const LEVELS: usize = 256;

/// Blocks by priority; blocks of equal priority in order of arrival.
#[derive(Debug)]
pub(in crate::eviction) struct Levels {
    queues: Queues,
    occupied: [u64; LEVELS / 64],
    /// Level of the last block evicted.
    floor: usize,
}

impl Levels {
    /// Creates an empty queue with memory reserved for `blocks`.
    pub fn new(blocks: usize) -> Self {
        Self { queues: Queues::with_capacity(LEVELS, blocks), occupied: [0; LEVELS / 64], floor: 0 }
    }

    /// Adds a block with a priority of `worth` above the floor. A worth of [`LEVELS`] or more counts as `LEVELS - 1`.
    pub fn push_back(&mut self, block: u32, worth: usize) {
        let level = (self.floor + worth.min(LEVELS - 1)) % LEVELS;
        self.queues.push_back(level, block);
        self.occupied[level / 64] |= 1 << (level % 64);
    }

    /// Adds a block with the priority of the floor, before all others of that priority.
    pub fn push_floor(&mut self, block: u32) {
        self.queues.push_front(self.floor, block);
        self.occupied[self.floor / 64] |= 1 << (self.floor % 64);
    }

    /// Takes a block out; does nothing if the block is not in.
    pub fn remove(&mut self, block: u32) {
        if let Some(level) = self.queues.queue_of(block) {
            self.queues.remove(block);
            self.clear_if_empty(level);
        }
    }

    /// Returns the block of the lowest priority.
    pub fn first(&self) -> Option<u32> {
        self.queues.front(self.lowest()?)
    }

    /// Takes out the block of the lowest priority, and raises the floor to that priority.
    pub fn pop(&mut self) -> Option<u32> {
        let level = self.lowest()?;
        let block = self.queues.pop_front(level).expect("the level is occupied");
        self.clear_if_empty(level);
        self.floor = level;
        Some(block)
    }

    /// Takes out all blocks.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.occupied = [0; LEVELS / 64];
    }

    fn clear_if_empty(&mut self, level: usize) {
        if self.queues.is_empty(level) {
            self.occupied[level / 64] &= !(1 << (level % 64));
        }
    }

    /// Finds the first occupied level at or after the floor, around the ring.
    fn lowest(&self) -> Option<usize> {
        let words = LEVELS / 64;
        let (word, bit) = (self.floor / 64, self.floor % 64);
        let first = self.occupied[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        (1..=words).map(|i| (word + i) % words).find_map(|word| {
            let bits = self.occupied[word];
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lowest_priority_is_popped_first_and_equals_in_order_of_arrival(ops in prop::collection::vec((0u32..30, 0usize..300, 0u8..4), 0..300)) {
            let mut levels = Levels::new(30);
            // (priority, order of arrival, block)
            let mut model: Vec<(usize, isize, u32)> = Vec::new();
            let mut floor = 0;
            for (order, (block, worth, op)) in (1..).zip(ops) {
                match op {
                    0..=2 => {
                        model.retain(|(_, _, other)| *other != block);
                        levels.remove(block);
                        if op == 0 {
                            model.push((floor + worth.min(LEVELS - 1), order, block));
                            levels.push_back(block, worth);
                        } else if op == 2 {
                            model.push((floor, -order, block));
                            levels.push_floor(block);
                        }
                    }
                    _ => {
                        let least = model.iter().min().copied();
                        prop_assert_eq!(levels.first(), least.map(|(_, _, block)| block));
                        model.retain(|entry| Some(*entry) != least);
                        floor = least.map_or(floor, |(priority, ..)| priority);
                        prop_assert_eq!(levels.pop(), least.map(|(_, _, block)| block));
                    }
                }
            }
        }
    }
}
