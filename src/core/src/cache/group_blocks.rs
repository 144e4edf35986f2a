//! Blocks of the layer groups after the first.
//!
//! The tree holds the blocks of the first group, which keeps every position. For each block published there, this table holds the
//! blocks with the KV of the same tokens in the other groups. These blocks have readers of their own: a sequence that dropped the
//! positions in a group reads the group's block no more, and still reads the block of the first group. A block without readers stays
//! for later prefix hits until memory is needed; of several, the first to lose its readers goes first.
//!
//! The table knows neither hashes nor tokens: the tree verified both for the block of the first group. Groups have their numbers in
//! the model: the first is group 0, of which nothing is here.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use trunkline_port::Keeps;

use crate::blocks::prefix::Prefix;
use crate::cache::changes::Change;
use crate::names::ids::BlockHandle;

/// Row of a slot without blocks.
const NO_ROW: u32 = u32::MAX;

/// Outdated entries of the queue of blocks without readers before the queue is cleared of them.
const OUTDATED_SPARE: usize = 64;

/// Where a cached device block is, in any layer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The block of the tree with the KV of the same tokens: in the first group, the block itself.
    pub node: BlockHandle,
    /// The layer group, from 0 for the tree's.
    pub group: usize,
}

/// Blocks of the groups after the first, by the slot of the first group's block in the tree.
#[derive(Debug)]
pub(crate) struct GroupBlocks {
    /// Positions kept by each group, the first included.
    keeps: Vec<Keeps>,
    /// Groups with a window, and the number of others after the first, of which a prompt needs every block.
    windows: Vec<usize>,
    n_whole: u32,
    block_size: u32,
    /// Row of each slot; [`NO_ROW`] without blocks. Slots are those of the blocks of all groups, of which one group has the tree's.
    rows: Vec<u32>,
    members: Vec<Row>,
    free_rows: Vec<u32>,
    /// One entry for each row and group; [`BlockHandle::NONE`] without a block.
    blocks: Vec<BlockHandle>,
    /// Sequences that read each block.
    readers: Vec<u32>,
    /// Times each entry gained or lost its first reader: tells current entries of `idle` from outdated ones.
    changes: Vec<u32>,
    /// Entries without readers, with the number of changes then; the first lost its readers first.
    idle: VecDeque<(u32, u32)>,
    n_idle: u32,
    n_blocks: u32,
    evicted: u64,
    /// Blocks that requests can find from now on, or no longer, since [`Self::take_changes`], if somebody asks for them.
    noted: Option<Vec<(u32, usize, Change)>>,
}

/// Sums over the blocks at one block of the tree: a request that waits for room asks for these in every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    /// Slot of the block of the tree.
    node: u32,
    n_blocks: u32,
    /// Blocks in groups without a window, and the blocks among them without readers.
    n_whole: u32,
    n_idle: u32,
    /// `true` if the block of the tree was struck out, so that nobody finds these blocks either.
    is_hidden: bool,
}

impl GroupBlocks {
    /// Creates an empty table for the groups of a configuration, the first of which is the tree's.
    pub fn new(groups: &[Keeps], block_size: u32) -> Self {
        let is_window = |group: &usize| matches!(groups[*group], Keeps::Window(_));
        let windows: Vec<usize> = (1..groups.len()).filter(is_window).collect();
        Self {
            n_whole: (groups.len().saturating_sub(1) - windows.len()) as u32,
            keeps: groups.to_vec(),
            windows,
            block_size,
            rows: Vec::new(),
            members: Vec::new(),
            free_rows: Vec::new(),
            blocks: Vec::new(),
            readers: Vec::new(),
            changes: Vec::new(),
            idle: VecDeque::new(),
            n_idle: 0,
            n_blocks: 0,
            evicted: 0,
            noted: None,
        }
    }

    /// Notes the blocks that requests can find from now on, or no longer, for [`Self::take_changes`].
    pub fn listen(&mut self) {
        self.noted = Some(Vec::new());
    }

    /// Returns the blocks, by block of the tree and group, that entered the table or left it since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<(u32, usize, Change)> {
        self.noted.as_mut().map_or(Vec::new(), std::mem::take)
    }

    /// Returns the number of changes since the last call of [`Self::take_changes`].
    pub fn n_changes(&self) -> usize {
        self.noted.as_ref().map_or(0, Vec::len)
    }

    /// Notes that nobody finds the blocks at a block of the tree any more, which is being struck out.
    pub fn hide(&mut self, node: u32) {
        let there: Vec<usize> = self.numbers().filter(|group| self.get(node, *group).is_some()).collect();
        there.into_iter().for_each(|group| self.note(node, group, Change::Left));
        if let Some(row) = self.rows.get(node as usize).filter(|row| **row != NO_ROW) {
            self.members[*row as usize].is_hidden = true;
        }
    }

    /// Notes that nobody finds any block of the table any more.
    pub fn hide_all(&mut self) {
        self.members.iter_mut().for_each(|row| row.is_hidden = true);
    }

    /// Returns the groups with a block that requests can find at a block of the tree.
    pub fn found_at(&self, node: u32) -> impl Iterator<Item = usize> + '_ {
        let is_shown = self.row(node).is_some_and(|row| !row.is_hidden);
        self.numbers().filter(move |group| is_shown && self.get(node, *group).is_some())
    }

    fn note(&mut self, node: u32, group: usize, change: Change) {
        let is_hidden = self.row(node).is_some_and(|row| row.is_hidden);
        if let Some(noted) = self.noted.as_mut().filter(|_| !is_hidden) {
            noted.push((node, group, change));
        }
    }

    /// Returns the number of groups after the first.
    pub fn n(&self) -> usize {
        self.keeps.len().saturating_sub(1)
    }

    /// Returns the groups after the first.
    pub fn numbers(&self) -> RangeInclusive<usize> {
        1..=self.n()
    }

    /// Returns the groups of which a prompt needs every block: the first, and others without a window.
    pub fn whole(&self) -> impl Iterator<Item = usize> {
        (0..=self.n()).filter(|group| *group == 0 || self.is_whole(*group))
    }

    /// Returns the groups with a window.
    pub fn windows(&self) -> &[usize] {
        &self.windows
    }

    /// Returns the number of blocks without readers.
    pub fn n_idle(&self) -> u32 {
        self.n_idle
    }

    /// Returns the number of blocks in the table.
    pub fn n_blocks(&self) -> u32 {
        self.n_blocks
    }

    /// Returns the number of blocks evicted so far, without those that left with a block of the tree.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the block of a group after the first at a block of the tree, if there is one.
    pub fn get(&self, node: u32, group: usize) -> Option<BlockHandle> {
        let at = self.at(node, group)?;
        Some(self.blocks[at]).filter(|block| *block != BlockHandle::NONE)
    }

    /// Returns the number of readers of a block; 0 if there is none.
    pub fn readers(&self, node: u32, group: usize) -> u32 {
        self.at(node, group).map_or(0, |at| self.readers[at])
    }

    /// Adds a block, with one reader, at a block of the tree that has none in the group.
    pub fn put(&mut self, node: u32, group: usize, block: BlockHandle) {
        let row = self.row_for(node);
        let is_whole = u32::from(self.is_whole(group));
        self.members[row].n_blocks += 1;
        self.members[row].n_whole += is_whole;
        let at = row * self.n() + group - 1;
        assert!(self.blocks[at] == BlockHandle::NONE, "block {node} has a block in group {group}");
        (self.blocks[at], self.readers[at]) = (block, 1);
        self.n_blocks += 1;
        self.note(node, group, Change::Entered);
    }

    /// Adds a reader to a block. Returns the block.
    pub fn enter(&mut self, node: u32, group: usize) -> BlockHandle {
        let at = self.held(node, group);
        self.readers[at] += 1;
        if self.readers[at] == 1 {
            self.changes[at] = self.changes[at].wrapping_add(1);
            self.n_idle -= 1;
            let (row, is_whole) = (self.rows[node as usize] as usize, u32::from(self.is_whole(group)));
            self.members[row].n_idle -= is_whole;
        }
        self.blocks[at]
    }

    /// Removes a reader from a block.
    pub fn leave(&mut self, node: u32, group: usize) {
        let at = self.held(node, group);
        self.readers[at] -= 1;
        if self.readers[at] == 0 {
            self.changes[at] = self.changes[at].wrapping_add(1);
            self.idle.push_back((at as u32, self.changes[at]));
            self.n_idle += 1;
            let (row, is_whole) = (self.rows[node as usize] as usize, u32::from(self.is_whole(group)));
            self.members[row].n_idle += is_whole;
            self.tidy();
        }
    }

    /// Removes the block that lost its last reader first, and returns it. `None` if all have readers.
    pub fn evict(&mut self) -> Option<BlockHandle> {
        while let Some((at, change)) = self.idle.pop_front() {
            let at = at as usize;
            if self.is_idle(at, change) {
                self.evicted += 1;
                return Some(self.take(at));
            }
        }
        None
    }

    /// Removes the block of a group at a block about to leave the tree, and returns it. It MUST NOT have readers.
    pub fn take_out(&mut self, node: u32, group: usize) -> Option<BlockHandle> {
        self.get(node, group)?;
        let at = self.held(node, group);
        assert_eq!(self.readers[at], 0, "a reader of a block reads the block of the first group");
        Some(self.take(at))
    }

    /// Removes the blocks at a block gone from the tree, and appends them to `out`. None may have readers.
    pub fn remove(&mut self, node: u32, out: &mut Vec<BlockHandle>) {
        out.extend(self.numbers().filter_map(|group| self.take_out(node, group)));
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.members.clear();
        self.free_rows.clear();
        self.blocks.clear();
        self.readers.clear();
        self.changes.clear();
        self.idle.clear();
        (self.n_idle, self.n_blocks) = (0, 0);
    }

    /// Returns the number of leading blocks of a prefix that a request can use: every group has the blocks that the tokens behind
    /// the prefix read.
    pub fn usable(&self, found: &Prefix) -> usize {
        let n_whole = |node: u32| self.row(node).map_or(0, |row| row.n_whole);
        let n = found.slots().take_while(|node| n_whole(*node) == self.n_whole).count();
        if self.windows.is_empty() {
            return n;
        }
        let slots: Vec<u32> = found.slots().take(n).collect();
        self.shorten(0, n, |at, group| self.get(slots[at], group).is_some())
    }

    /// Returns the number of leading blocks, of `rest` that continue a prefix of `before` blocks that can be used, for which the longer
    /// prefix can be used too. `has` tells if a group after the first has such a block, and is asked at most once for each.
    pub fn usable_behind(&self, before: usize, rest: usize, mut has: impl FnMut(usize, usize) -> bool) -> usize {
        let is_lacking = |at: &usize| self.numbers().any(|group| self.is_whole(group) && !has(*at, group));
        let n = (0..rest).find(is_lacking).unwrap_or(rest);
        self.shorten(before, n, has)
    }

    /// Returns the number of blocks, of `n` that continue a prefix of `before` blocks, for which every window has the blocks read by the
    /// tokens behind.
    fn shorten(&self, before: usize, mut n: usize, mut has: impl FnMut(usize, usize) -> bool) -> usize {
        // Each window has the blocks from here on, up to `n`.
        let mut there_from = vec![n; self.windows.len()];
        'shorter: loop {
            for (group, from) in self.windows.iter().zip(&mut there_from) {
                *from = n.min(*from);
                let first = self.first_read(*group, before + n).saturating_sub(before);
                while *from > first {
                    if !has(*from - 1, *group) {
                        // No window with this block in it can be read; one may end before.
                        n = *from - 1;
                        continue 'shorter;
                    }
                    *from -= 1;
                }
            }
            return n;
        }
    }

    /// Returns the first of `n` blocks of a prefix read in a group by tokens after the prefix, or by the last token of the prefix.
    pub fn first_read(&self, group: usize, n: usize) -> usize {
        let position = (n as u32 * self.block_size).saturating_sub(1);
        self.first_visible(group, position) as usize
    }

    /// Returns the first block that the token at `position` reads in a group.
    pub fn first_visible(&self, group: usize, position: u32) -> u32 {
        match self.keeps[group] {
            Keeps::Window(window) => (position + 1).saturating_sub(window) / self.block_size,
            Keeps::All | Keeps::Scored => 0,
        }
    }

    /// Returns the number of blocks without readers that a request would read with the prefix just found, which it can use.
    pub fn count_idle(&self, found: &Prefix) -> u32 {
        let whole: u32 = found.slots().filter_map(|node| self.row(node)).map(|row| row.n_idle).sum();
        let idle_in = |group: &usize| {
            let read = found.slots().skip(self.first_read(*group, found.len()));
            read.filter(|node| self.at(*node, *group).is_some_and(|at| self.readers[at] == 0)).count()
        };
        whole + self.windows.iter().map(idle_in).sum::<usize>() as u32
    }

    /// Returns `true` if a prompt needs every block of a group: the group has no window.
    fn is_whole(&self, group: usize) -> bool {
        !matches!(self.keeps[group], Keeps::Window(_))
    }

    /// Returns the sums over the blocks at a block of the tree; `None` without any.
    fn row(&self, node: u32) -> Option<&Row> {
        let row = self.rows.get(node as usize).filter(|row| **row != NO_ROW)?;
        Some(&self.members[*row as usize])
    }

    /// Returns the entry of a slot in a group, if the slot has a row.
    fn at(&self, node: u32, group: usize) -> Option<usize> {
        let row = self.rows.get(node as usize).filter(|row| **row != NO_ROW)?;
        Some(*row as usize * self.n() + group - 1)
    }

    /// Returns the entry of a block.
    ///
    /// # Panics
    /// If there is no block.
    fn held(&self, node: u32, group: usize) -> usize {
        let at = self.at(node, group).filter(|at| self.blocks[*at] != BlockHandle::NONE);
        at.unwrap_or_else(|| panic!("block {node} has no block in group {group}"))
    }

    /// Returns the row of a slot, and gives it one if it has none.
    fn row_for(&mut self, node: u32) -> usize {
        if self.rows.len() <= node as usize {
            self.rows.resize(node as usize + 1, NO_ROW);
        }
        if self.rows[node as usize] == NO_ROW {
            let row = self.free_rows.pop().unwrap_or_else(|| {
                let end = self.blocks.len() + self.n();
                self.blocks.resize(end, BlockHandle::NONE);
                self.readers.resize(end, 0);
                self.changes.resize(end, 0);
                self.members.push(Row::default());
                self.members.len() as u32 - 1
            });
            self.rows[node as usize] = row;
            self.members[row as usize] = Row { node, ..Row::default() };
        }
        self.rows[node as usize] as usize
    }

    fn is_idle(&self, at: usize, change: u32) -> bool {
        self.blocks[at] != BlockHandle::NONE && self.readers[at] == 0 && self.changes[at] == change
    }

    fn take(&mut self, at: usize) -> BlockHandle {
        self.note(self.members[at / self.n()].node, 1 + at % self.n(), Change::Left);
        self.changes[at] = self.changes[at].wrapping_add(1);
        self.n_idle -= 1;
        self.n_blocks -= 1;
        let (at_row, is_whole) = (at / self.n(), u32::from(self.is_whole(1 + at % self.n())));
        let row = &mut self.members[at_row];
        row.n_blocks -= 1;
        row.n_whole -= is_whole;
        row.n_idle -= is_whole;
        if row.n_blocks == 0 {
            self.rows[row.node as usize] = NO_ROW;
            self.free_rows.push(at_row as u32);
        }
        std::mem::replace(&mut self.blocks[at], BlockHandle::NONE)
    }

    /// Clears the queue of outdated entries when they are many.
    fn tidy(&mut self) {
        if self.idle.len() > 2 * self.n_idle as usize + OUTDATED_SPARE {
            let mut idle = std::mem::take(&mut self.idle);
            idle.retain(|(at, change)| self.is_idle(*at as usize, *change));
            self.idle = idle;
        }
    }

    /// Panics unless the counts are right, the blocks have `readers` readers in all, and every block is accepted by `is_good`.
    pub fn check(&self, readers: usize, is_good: impl Fn(u32, BlockHandle) -> bool) {
        assert_eq!(self.readers.iter().sum::<u32>() as usize, readers, "readers of groups drifted");
        let there = || (0..self.blocks.len()).filter(|at| self.blocks[*at] != BlockHandle::NONE);
        assert_eq!(there().count(), self.n_blocks as usize, "blocks of groups drifted");
        assert_eq!(there().filter(|at| self.readers[*at] == 0).count(), self.n_idle as usize, "idle blocks drifted");
        let queued = self.idle.iter().filter(|(at, change)| self.is_idle(*at as usize, *change)).count();
        assert_eq!(queued, self.n_idle as usize, "a block without readers is not in the queue");
        for row in self.rows.iter().filter(|row| **row != NO_ROW) {
            let entries = self.numbers().map(|group| (group, *row as usize * self.n() + group - 1));
            let blocks: Vec<_> = entries.filter(|(_, at)| self.blocks[*at] != BlockHandle::NONE).collect();
            let whole = || blocks.iter().filter(|(group, _)| self.is_whole(*group));
            let row = self.members[*row as usize];
            let (n_blocks, n_whole) = (blocks.len() as u32, whole().count() as u32);
            let n_idle = whole().filter(|(_, at)| self.readers[*at] == 0).count() as u32;
            assert_eq!(row, Row { n_blocks, n_whole, n_idle, ..row }, "sums of groups drifted");
        }
        for at in there() {
            let (node, block) = (self.members[at / self.n()].node, self.blocks[at]);
            assert_eq!(self.at(node, 1 + at % self.n()), Some(at), "rows drifted");
            assert!(is_good(node, block), "{block:?} stands at block {node}, which is not in the tree");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32) -> BlockHandle {
        BlockHandle { index, generation: 0 }
    }

    fn prefix(n: u32) -> Prefix {
        let mut found = Prefix::default();
        found.push(0, n as usize);
        found
    }

    /// Blocks of 4 tokens; a group that evicts, and one with a window of 8 tokens. Blocks at the slots 0 to 9 in both.
    fn filled() -> GroupBlocks {
        let mut blocks = GroupBlocks::new(&[Keeps::All, Keeps::Scored, Keeps::Window(8)], 4);
        for node in 0..10 {
            blocks.put(node, 1, block(100 + node));
            blocks.put(node, 2, block(200 + node));
        }
        blocks
    }

    #[test]
    fn the_block_that_lost_its_readers_first_is_evicted_first() {
        let mut blocks = filled();
        assert_eq!((blocks.n_idle(), blocks.n_blocks(), blocks.evict()), (0, 20, None));
        blocks.leave(3, 1);
        blocks.leave(1, 2);
        blocks.leave(2, 1);
        assert_eq!(blocks.enter(3, 1), block(103), "read again");
        blocks.leave(3, 1);
        assert_eq!([0, 1, 2, 3].map(|_| blocks.evict()), [Some(block(201)), Some(block(102)), Some(block(103)), None]);
        assert_eq!((blocks.n_idle(), blocks.n_blocks(), blocks.get(3, 1)), (0, 17, None));
        blocks.check(17, |_, _| true);
    }

    #[test]
    fn a_prefix_is_usable_up_to_the_first_block_that_an_evicting_group_lacks() {
        let mut blocks = filled();
        assert_eq!(blocks.usable(&prefix(10)), 10);
        assert_eq!(blocks.usable(&prefix(12)), 10);
        blocks.leave(6, 1);
        assert_eq!((blocks.usable(&prefix(10)), blocks.count_idle(&prefix(10))), (10, 1));
        blocks.evict();
        assert_eq!(blocks.usable(&prefix(10)), 6);
    }

    #[test]
    fn a_window_needs_its_last_blocks_alone() {
        let mut blocks = filled();
        // The last of 40 tokens reads the positions from 32 on: the blocks 8 and 9.
        for node in [2, 7] {
            blocks.leave(node, 2);
            blocks.evict();
        }
        assert_eq!(blocks.usable(&prefix(10)), 10);
        // The last of 36 tokens would read 28 to 35, and block 7 is missing; the last of 28 reads 20 to 27.
        assert_eq!((blocks.usable(&prefix(9)), blocks.usable(&prefix(8))), (7, 7));
        assert_eq!((blocks.usable(&prefix(4)), blocks.usable(&prefix(3))), (2, 2));
        assert_eq!([blocks.first_visible(2, 7), blocks.first_visible(2, 8), blocks.first_visible(2, 12)], [0, 0, 1]);
    }

    #[test]
    fn what_is_usable_is_found_by_asking_for_each_block_once() {
        let groups = GroupBlocks::new(&[Keeps::All, Keeps::Scored, Keeps::Window(8), Keeps::Window(12)], 4);
        // All sets of missing blocks, of 7 behind 3: compared with the definition.
        for missing in 0..1u32 << 14 {
            let is_missing = |at: usize, group: usize| group > 1 && missing >> (7 * (group - 2) + at) & 1 == 1;
            let reads = |n: usize, group: usize| groups.first_read(group, 3 + n).saturating_sub(3)..n;
            let can_use = |n: &usize| (2..4).all(|group| reads(*n, group).all(|at| !is_missing(at, group)));
            let mut asked = std::collections::BTreeSet::new();
            let usable = groups.usable_behind(3, 7, |at, group| {
                assert!(asked.insert((at, group)), "{at} in group {group} is asked for twice");
                !is_missing(at, group)
            });
            assert_eq!(Some(usable), (0..=7).rev().find(can_use), "{missing:b}");
        }
        assert_eq!(groups.usable_behind(3, 7, |at, group| group > 1 || at != 4), 4);
    }

    #[test]
    fn blocks_leave_with_the_block_of_the_tree() {
        let mut blocks = filled();
        blocks.leave(4, 1);
        blocks.leave(4, 2);
        let mut out = Vec::new();
        blocks.remove(4, &mut out);
        blocks.remove(50, &mut out);
        assert_eq!(out, [block(104), block(204)]);
        assert_eq!((blocks.n_idle(), blocks.evict()), (0, None));
        blocks.put(4, 1, block(7));
        blocks.check(19, |node, block| block.index % 100 == node || block.index == 7);
    }

    #[test]
    fn rows_of_slots_without_blocks_are_used_again() {
        let mut blocks = filled();
        for round in 1..50 {
            let (old, new) = ((round - 1) * 1000, round * 1000);
            for group in 1..3 {
                blocks.leave(old, group);
            }
            blocks.remove(old, &mut Vec::new());
            blocks.put(new, 2, block(7));
            blocks.put(new, 1, block(8));
            assert_eq!((blocks.get(old, 1), blocks.get(new, 2)), (None, Some(block(7))));
        }
        assert_eq!(blocks.blocks.len(), 20, "ten rows of two groups, however far apart the slots lie");
        blocks.check(20, |_, _| true);
    }

    #[test]
    fn outdated_entries_do_not_pile_up() {
        let mut blocks = filled();
        for _ in 0..1000 {
            blocks.leave(0, 1);
            blocks.enter(0, 1);
        }
        assert!(blocks.idle.len() <= OUTDATED_SPARE + 1);
    }
}
