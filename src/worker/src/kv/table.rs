//! The block table of a sequence in one layer group, as attention reads it: without holes.
//!
//! Where blocks were dropped, the remaining positions are numbered again from 0: the *index* of a position counts the visible positions
//! before it. Attention works with indices, so dropped blocks cost nothing, and results depend on the visible positions alone. Positions of
//! layers with a window keep their numbers: blocks are dropped behind the window, at a time that MUST NOT show in results.

use std::borrow::Cow;

use trunkline_port::NO_BLOCK;

/// Block table of a sequence in one layer group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table<'a> {
    /// Blocks by index. With a window, [`NO_BLOCK`] behind it.
    blocks: Cow<'a, [u32]>,
    /// Place of each block in the sequence's table; empty if no block is missing.
    entries: Vec<u32>,
    /// Positions missing before the sequence's rows.
    missing: usize,
    block_size: usize,
}

impl<'a> Table<'a> {
    /// Takes a table whose positions keep their numbers, holes or not.
    pub(crate) fn whole(blocks: &'a [u32], block_size: usize) -> Self {
        Self { blocks: Cow::Borrowed(blocks), entries: Vec::new(), missing: 0, block_size }
    }

    /// Takes a table and leaves out its holes. All holes MUST lie before the first row of the step.
    pub(crate) fn without_holes(blocks: &'a [u32], block_size: usize) -> Self {
        if !blocks.contains(&NO_BLOCK) {
            return Self::whole(blocks, block_size);
        }
        let held = blocks.iter().zip(0..).filter(|(block, _)| **block != NO_BLOCK);
        let (blocks_held, entries): (Vec<u32>, Vec<u32>) = held.unzip();
        let missing = (blocks.len() - entries.len()) * block_size;
        Self { blocks: Cow::Owned(blocks_held), entries, missing, block_size }
    }

    /// Returns the index of a position at or after the first row of the step.
    #[inline(always)]
    pub(crate) fn index(&self, position: usize) -> usize {
        position - self.missing
    }

    /// Returns the number of visible positions below `position`, any position.
    pub(crate) fn index_below(&self, position: usize) -> usize {
        if self.entries.is_empty() {
            return position;
        }
        let entry = (position / self.block_size) as u32;
        let at = self.entries.partition_point(|held| *held < entry);
        let offset = if self.entries.get(at) == Some(&entry) { position % self.block_size } else { 0 };
        at * self.block_size + offset
    }

    /// Returns the place in the sequence's table of the block at `index / block_size`.
    #[inline(always)]
    pub(crate) fn entry(&self, block: usize) -> usize {
        self.entries.get(block).map_or(block, |entry| *entry as usize)
    }

    /// Returns the block that holds an index.
    #[inline(always)]
    pub(crate) fn block_at(&self, index: usize) -> u32 {
        self.blocks[index / self.block_size]
    }

    /// Returns the blocks read by attention up to position `end`, exclusive.
    pub(crate) fn read(&self, end: usize) -> impl Iterator<Item = u32> {
        let n = self.index(end).div_ceil(self.block_size);
        self.blocks[..n].iter().copied().filter(|block| *block != NO_BLOCK)
    }

    /// Returns the blocks that hold the positions `first .. end`; none for an empty range.
    pub(crate) fn written(&self, first: usize, end: usize) -> impl Iterator<Item = u32> {
        let range = if first < end {
            self.index(first) / self.block_size..self.index(end).div_ceil(self.block_size)
        } else {
            0..0
        };
        self.blocks[range].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_behind_holes_move_up() {
        let raw = [7, NO_BLOCK, NO_BLOCK, 4, 9, NO_BLOCK, 2];
        let table = Table::without_holes(&raw, 4);
        assert_eq!((table.index(24), table.index(27)), (12, 15));
        assert_eq!((0..4).map(|block| table.entry(block)).collect::<Vec<_>>(), [0, 3, 4, 6]);
        assert_eq!(table.block_at(5), 4);
        assert_eq!(table.read(25).collect::<Vec<_>>(), [7, 4, 9, 2]);
        assert_eq!(table.written(24, 26).collect::<Vec<_>>(), [2]);
        // By counting.
        for position in 0..28 {
            let counted = (0..position).filter(|at| raw[at / 4] != NO_BLOCK).count();
            assert_eq!(table.index_below(position), counted, "position {position}");
        }
    }

    #[test]
    fn a_table_without_holes_is_itself() {
        let table = Table::without_holes(&[9, 8, 7, 6], 4);
        assert_eq!(table, Table::whole(&[9, 8, 7, 6], 4));
        assert_eq!((table.index(5), table.index_below(5), table.entry(3)), (5, 5, 3));
        assert_eq!(table.read(5).collect::<Vec<_>>(), [9, 8]);
        assert_eq!(table.written(6, 9).collect::<Vec<_>>(), [8, 7]);
        assert_eq!(table.written(7, 7).count(), 0);
    }

    #[test]
    fn with_a_window_positions_keep_their_numbers_and_holes_are_not_read() {
        let table = Table::whole(&[NO_BLOCK, NO_BLOCK, 3, 5], 4);
        assert_eq!((table.index(13), table.index_below(9), table.block_at(9)), (13, 9, 3));
        assert_eq!(table.read(14).collect::<Vec<_>>(), [3, 5]);
    }
}
