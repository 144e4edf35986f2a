//! Blocks of a sequence in the layer groups after the first: allocation, publication, prefix hits, and entries that are dropped.
//!
//! All groups take their blocks from one pool. The tables of a sequence have one length, so an entry of each stands for the same
//! positions. Does nothing for a model without groups.

use trunkline_port::Dropped;

use super::{Kv, Retired};
use crate::blocks::block::BlockState;
use crate::cache::group_blocks::Placed;
use crate::names::ids::BlockHandle;
use crate::request::sequence::Sequence;

impl Kv {
    /// Returns the number of blocks that [`Self::grow`] can hand out: free ones, and cached ones without readers, but for those promised
    /// to prompts under way.
    pub fn usable(&self) -> u32 {
        (self.tree.usable() + self.groups.n_idle()).saturating_sub(self.promised.total())
    }

    /// Returns the number of blocks of an entry in the tables of a sequence: one for each group.
    pub fn entry_blocks(&self) -> u32 {
        1 + self.groups.n() as u32
    }

    /// Returns the decrease of [`Self::usable`] once a sequence holds the prefix just found.
    pub fn count_idle_found(&self) -> u32 {
        self.tree.count_idle(&self.found) + self.groups.count_idle(&self.found)
    }

    /// Returns the number of blocks among [`Self::usable`] above the default priority, at most.
    pub fn n_idle_above(&self) -> u32 {
        self.tree.n_idle_above().saturating_mul(self.entry_blocks())
    }

    /// Returns the number of those blocks in the prefix just found, at least.
    pub fn count_idle_above_found(&self) -> u32 {
        self.tree.count_idle_above(&self.found)
    }

    /// Appends `n` entries with private blocks to each table of a sequence, evicting cached blocks if too few are free. Returns `false`,
    /// and changes nothing, if too few are usable.
    #[must_use]
    #[inline]
    pub fn grow(&mut self, seq: &mut Sequence, n: u32) -> bool {
        let grew = if self.groups.n() == 0 { self.tree.allocate(n, &mut seq.table) } else { self.grow_groups(seq, n) };
        self.name_evictions(Some(seq.id));
        grew
    }

    fn grow_groups(&mut self, seq: &mut Sequence, n: u32) -> bool {
        let needed = n * self.entry_blocks();
        if self.usable() < needed {
            return false;
        }
        self.make_room(needed);
        seq.cold.tables.resize_with(self.groups.n(), Vec::new);
        for table in std::iter::once(&mut seq.table).chain(&mut seq.cold.tables) {
            let allocated = self.tree.allocate(n, table);
            assert!(allocated, "the blocks were freed a moment ago");
        }
        self.free_left();
        true
    }

    /// Evicts cached blocks until `n` are free, or none is left to evict.
    pub fn evict_until_free(&mut self, n: u32) {
        self.make_room(n.min(self.usable()));
    }

    /// Evicts cached blocks until `n` are free. At least `n` MUST be usable.
    pub(super) fn make_room(&mut self, n: u32) {
        loop {
            let missing = n.saturating_sub(self.tree.pool().count(BlockState::Free));
            if missing == 0 {
                return;
            }
            if self.tree.pool().count(BlockState::Idle) > 0 {
                // With a block of the first group leave those of the others at its entry.
                self.tree.evict_idle(missing.div_ceil(self.entry_blocks()));
                self.free_left();
            } else {
                let block = self.groups.evict().expect("the blocks counted as usable are cached");
                self.tree.release(&mut vec![block], 0);
            }
        }
    }

    /// Frees the blocks of the other groups at entries that left the tree.
    pub fn free_left(&mut self) {
        if self.groups.n() == 0 {
            return;
        }
        let mut blocks = Vec::new();
        for node in self.tree.take_left() {
            self.groups.remove(node, &mut blocks);
        }
        self.tree.release(&mut blocks, 0);
    }

    /// Gives a sequence the blocks of the groups after the first at the prefix that it just took, as far as its tokens read them.
    pub(super) fn hold_groups(&mut self, seq: &mut Sequence) {
        seq.cold.tables.resize_with(self.groups.n(), Vec::new);
        let n = seq.table.len();
        for (group, table) in (1..).zip(&mut seq.cold.tables) {
            let first = self.groups.first_read(group, n);
            table.resize(first, BlockHandle::NONE);
            table.extend(seq.table[first..].iter().map(|node| self.groups.enter(node.index, group)));
        }
    }

    /// Publishes the blocks of the groups after the first at the entries `from..to`, just published in the tree.
    pub(super) fn publish_groups(&mut self, seq: &Sequence, from: usize, to: usize) {
        for (group, table) in (1..).zip(&seq.cold.tables) {
            for (node, block) in seq.table[from..to].iter().zip(&table[from..to]) {
                if *block != BlockHandle::NONE {
                    self.groups.put(node.index, group, *block);
                }
            }
        }
    }

    /// Replaces the blocks of entry `at`, whose duplicate `node` was published before, by those published with it, or publishes them.
    pub(super) fn merge_groups(&mut self, seq: &mut Sequence, at: usize, node: u32, last_step: Option<u64>) {
        for (group, table) in (1..).zip(&mut seq.cold.tables) {
            let block = table[at];
            if block == BlockHandle::NONE {
                continue;
            }
            if self.groups.get(node, group).is_none() {
                self.groups.put(node, group, block);
            } else {
                table[at] = self.groups.enter(node, group);
                self.retire(last_step, Retired::Private(block));
            }
        }
    }

    /// Releases the blocks of a sequence in the groups after the first, from entry `first` on, and cuts the tables there.
    pub fn release_groups(&mut self, seq: &mut Sequence, first: usize) {
        let published = seq.published as usize;
        for (group, table) in (1..).zip(&mut seq.cold.tables) {
            let entries = (first..).zip(table.drain(first.min(table.len())..));
            for (at, block) in entries.filter(|(_, block)| *block != BlockHandle::NONE) {
                match seq.table.get(at) {
                    Some(node) if at < published => self.groups.leave(node.index, group),
                    _ => self.tree.release(&mut vec![block], 0),
                }
            }
        }
    }

    /// Drops the entries that lie behind the windows of a sequence whose next token is at `seq.computed`. The blocks stay as they are
    /// until the end of steps in flight with the entries in a table.
    pub fn drop_behind_windows(&mut self, seq: &mut Sequence) {
        let last_step = seq.is_in_step().then_some(seq.cold.last_step);
        for i in 0..self.groups.windows().len() {
            let group = self.groups.windows()[i];
            let Some(table) = seq.cold.tables.get(group - 1) else { return };
            let end = self.groups.first_visible(group, seq.computed) as usize;
            let is_there = |at: &usize| table[*at] != BlockHandle::NONE;
            // Entries are dropped first to last, so those before the first one there are gone.
            let n = (0..end.min(table.len())).rev().take_while(is_there).count();
            self.drop_entries(seq, group, end.min(table.len()) - n, n, last_step);
        }
    }

    /// Drops `n` entries from `first` on, none of which is dropped yet, from a sequence's table in a group after the first. The blocks are let go of
    /// at the end of `last_step`, the last step in flight that reads them, or at once.
    pub fn drop_entries(&mut self, seq: &mut Sequence, group: usize, first: usize, n: usize, last_step: Option<u64>) {
        if n == 0 {
            return;
        }
        for at in first..first + n {
            let block = std::mem::replace(&mut seq.cold.tables[group - 1][at], BlockHandle::NONE);
            debug_assert!(block != BlockHandle::NONE, "an entry is dropped once");
            let block = if at < seq.published as usize {
                Retired::Cached(Placed { node: seq.table[at], group })
            } else {
                Retired::Private(block)
            };
            self.retire(last_step, block);
        }
        if seq.on_worker {
            let sent = (seq.mirror.table_sent as usize).clamp(first, first + n);
            if sent > first {
                // The index in the step follows with the step.
                seq.cold.drops.push(Dropped {
                    seq: 0,
                    group: group as u32,
                    first: first as u32,
                    n: (sent - first) as u32,
                });
            }
        }
    }
}
