//! Storage for segments: runs of idle blocks that an eviction policy treats as one.

use std::ops::{Index, IndexMut};

/// Segments by number. Numbers of released segments are reused, the last released first.
#[derive(Debug)]
pub(in crate::eviction) struct Segments<S> {
    slots: Vec<S>,
    released: Vec<u32>,
}

impl<S> Segments<S> {
    /// Creates a store without segments.
    pub fn new() -> Self {
        Self { slots: Vec::new(), released: Vec::new() }
    }

    /// Removes all segments.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.released.clear();
    }

    /// Stores a segment and returns its number.
    pub fn insert(&mut self, segment: S) -> u32 {
        match self.released.pop() {
            Some(number) => {
                self.slots[number as usize] = segment;
                number
            }
            None => {
                self.slots.push(segment);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Lets a number be reused. The segment can be read until then.
    pub fn release(&mut self, number: u32) {
        self.released.push(number);
    }
}

impl<S> Index<u32> for Segments<S> {
    type Output = S;

    fn index(&self, number: u32) -> &S {
        &self.slots[number as usize]
    }
}

impl<S> IndexMut<u32> for Segments<S> {
    fn index_mut(&mut self, number: u32) -> &mut S {
        &mut self.slots[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_released_last_is_reused_first() {
        let mut segments = Segments::new();
        assert_eq!([7, 8, 9].map(|segment| segments.insert(segment)), [0, 1, 2]);
        segments.release(2);
        segments.release(0);
        assert_eq!(segments[0], 7, "readable until its number is reused");
        assert_eq!([10, 11, 12].map(|segment| segments.insert(segment)), [0, 2, 3]);
        segments[2] += 1;
        assert_eq!([0, 1, 2, 3].map(|number| segments[number]), [10, 8, 12, 12]);
    }
}
