//! Blocks of entries of a sequence's block tables, in all layer groups.

use std::ops::Range;

use trunkline_port::NO_BLOCK;

use crate::names::ids::BlockHandle;

/// A value that says that a layer group has no block at an entry.
pub(crate) trait Hole: Copy + PartialEq {
    /// The value.
    const HOLE: Self;
}

impl Hole for u32 {
    const HOLE: Self = NO_BLOCK;
}

impl Hole for BlockHandle {
    const HOLE: Self = Self::NONE;
}

impl Hole for bool {
    const HOLE: Self = false;
}

/// Blocks of consecutive entries of the block tables. The first group comes first; the other groups follow, entry by entry.
#[derive(Clone, Debug)]
pub(crate) struct Entries<B> {
    /// Blocks of the first group, one for each entry.
    pub first: Vec<B>,
    /// Blocks of the groups after the first: for each entry one for each group, [`Hole::HOLE`] where there is none.
    pub others: Vec<B>,
}

impl<B> Default for Entries<B> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<B> Entries<B> {
    /// No entry.
    pub const EMPTY: Self = Self { first: Vec::new(), others: Vec::new() };

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// Returns `true` without entries.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the number of groups after the first.
    fn n_others(&self) -> usize {
        self.others.len().checked_div(self.first.len()).unwrap_or(0)
    }

    /// Removes all entries from `at` on, and returns them.
    pub fn split_off(&mut self, at: usize) -> Self {
        let others = self.others.split_off(at * self.n_others());
        Self { first: self.first.split_off(at), others }
    }

    /// Removes the first `n` entries, and returns them.
    pub fn split_front(&mut self, n: usize) -> Self {
        let rest = self.split_off(n);
        std::mem::replace(self, rest)
    }
}

impl<B: Hole> Entries<B> {
    /// Returns what a group has at an entry, holes included. Group 0 is the first.
    pub fn at(&self, entry: usize, group: usize) -> B {
        match group {
            0 => self.first[entry],
            _ => self.others[entry * self.n_others() + group - 1],
        }
    }

    /// Sets what a group has at an entry.
    pub fn set(&mut self, entry: usize, group: usize, block: B) {
        let n = self.n_others();
        match group {
            0 => self.first[entry] = block,
            _ => self.others[entry * n + group - 1] = block,
        }
    }

    /// Returns `true` if a group has a block at an entry.
    pub fn has(&self, entry: usize, group: usize) -> bool {
        self.at(entry, group) != B::HOLE
    }

    /// Returns where there are blocks.
    pub fn held(&self) -> Entries<bool> {
        let held = |blocks: &[B]| blocks.iter().map(|block| *block != B::HOLE).collect();
        Entries { first: held(&self.first), others: held(&self.others) }
    }

    /// Returns what each group has at an entry, holes included.
    pub fn of_groups(&self, entry: usize) -> impl Iterator<Item = B> {
        (0..1 + self.n_others()).map(move |group| self.at(entry, group))
    }

    /// Returns the blocks of some entries: those of the first group, then those of the others, entry by entry.
    pub fn part(&self, entries: Range<usize>) -> impl Iterator<Item = B> {
        let n = self.n_others();
        let others = &self.others[entries.start * n..entries.end * n];
        self.first[entries].iter().chain(others).copied().filter(|block| *block != B::HOLE)
    }

    /// Returns all blocks, in the order of [`Self::part`].
    pub fn all(&self) -> impl Iterator<Item = B> {
        self.part(0..self.len())
    }

    /// Returns the number of blocks that the groups after the first lack from an entry on.
    pub fn holes(&self, from: usize) -> usize {
        self.others[from * self.n_others()..].iter().filter(|block| **block == B::HOLE).count()
    }

    /// Returns the number of last entries, from an entry on, at which a group has a block.
    pub fn last_held(&self, group: usize, from: usize) -> usize {
        (from..self.len()).rev().take_while(|entry| self.has(*entry, group)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three entries of three groups; the second group has no block at entry 1, the third none at the entries 0 and 2.
    fn three() -> Entries<u32> {
        Entries { first: vec![1, 2, 3], others: vec![11, NO_BLOCK, NO_BLOCK, 22, 13, NO_BLOCK] }
    }

    #[test]
    fn blocks_come_group_by_group_at_first_and_entry_by_entry_then() {
        let entries = three();
        assert_eq!(entries.all().collect::<Vec<_>>(), [1, 2, 3, 11, 22, 13]);
        assert_eq!(entries.part(1..3).collect::<Vec<_>>(), [2, 3, 22, 13]);
        assert_eq!(entries.of_groups(1).collect::<Vec<_>>(), [2, NO_BLOCK, 22]);
        assert_eq!([0, 1, 2].map(|from| entries.holes(from)), [3, 2, 1]);
        assert_eq!([0, 1, 2].map(|group| entries.last_held(group, 0)), [3, 1, 0]);
        assert_eq!([0, 1, 2].map(|group| entries.last_held(group, 2)), [1, 1, 0]);
    }

    #[test]
    fn entries_are_cut_in_all_groups() {
        let mut rest = three();
        let front = rest.split_front(2);
        assert_eq!((front.all().collect::<Vec<_>>(), front.len()), (vec![1, 2, 11, 22], 2));
        assert_eq!(rest.all().collect::<Vec<_>>(), [3, 13]);
        assert_eq!(rest.split_off(0).all().count(), 2);
        assert!(rest.is_empty() && rest.others.is_empty());
        let mut alone = Entries { first: vec![7, 8], others: Vec::new() };
        assert_eq!((alone.split_front(1).first, alone.first), (vec![7], vec![8]));
    }

    #[test]
    fn a_block_is_set_where_it_is_read() {
        let mut entries = three();
        entries.set(1, 1, 12);
        entries.set(2, 0, NO_BLOCK);
        assert!(entries.has(1, 1) && !entries.has(2, 0) && !entries.has(0, 2));
        assert_eq!(entries.all().collect::<Vec<_>>(), [1, 2, 11, 12, 22, 13]);
    }
}
