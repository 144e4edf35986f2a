//! Layer groups in the tiers.
//!
//! A tier holds the blocks of the groups after the first as further blocks, each under a key of prefix and group
//! ([`crate::blocks::content_key::in_group`]). An entry of a chain goes down in all groups, with readers or without. A prompt continues in the
//! tiers as far as every group has the blocks read by the tokens behind: all blocks of a group that keeps every position, the last ones of a
//! group with a window.

use std::ops::RangeInclusive;

use super::Kv;
use super::tier_copies::tier_place;
use crate::blocks::block::BlockState;
use crate::blocks::entries::Hole;
use crate::cache::group_blocks::Placed;
use crate::cache::tier::Contents;
use crate::cache::tiers::PlannedBlock;
use crate::cache::transfer_table::{BlockPair, InFlight, Sources};
use crate::names::ids::BlockHandle;
use crate::request::retention::Pin;
use crate::request::sequence::{Load, Sequence};

impl Kv {
    /// Returns the cached block at a place, if there is one.
    pub(super) fn block_at(&self, placed: Placed) -> Option<BlockHandle> {
        if placed.group == 0 { Some(placed.node) } else { self.groups.get(placed.node.index, placed.group) }
    }

    /// Returns `true` if the nearest tier neither has the block of a place nor is about to get it.
    fn lacks(&self, placed: Placed) -> bool {
        self.tiers.lacks(&self.tiers.contents_on_device(&self.tree, placed))
    }

    /// Returns all layer groups.
    pub(super) fn all_groups(&self) -> RangeInclusive<usize> {
        0..=self.groups.n()
    }

    /// Adds the blocks of a published entry, in some groups, to a copy to the nearest tier. The copy reads those after the first group until
    /// its end. Blocks refused by the tier are left out.
    pub(super) fn write_entry(&mut self, node: BlockHandle, groups: RangeInclusive<usize>, sources: &mut Sources) {
        for group in groups {
            let placed = Placed { node, group };
            let Some(block) = self.block_at(placed) else { continue };
            if let Some(to) = self.tiers.reserve(&self.tiers.contents_on_device(&self.tree, placed)) {
                if group > 0 {
                    self.groups.enter(node.index, group);
                }
                sources.push(placed, BlockPair { from: block.index, to });
            }
        }
    }

    /// Lets the tiers that have blocks of a published entry keep them until the pin of the entry ends.
    pub(super) fn retain_in_tiers(&mut self, node: BlockHandle) {
        for placed in self.all_groups().map(|group| Placed { node, group }) {
            self.tiers.retain(&self.tiers.contents_on_device(&self.tree, placed));
        }
    }

    /// Returns `true` if the nearest tier has, or can get, the blocks of a published entry in every group needed whole by prompts: no
    /// prompt loads a block behind one without them.
    pub(super) fn can_follow(&self, node: BlockHandle) -> bool {
        let can = |placed| self.block_at(placed).is_some() || !self.lacks(placed);
        self.groups.whole().all(|group| can(Placed { node, group }))
    }

    /// Returns the number of blocks of a published entry missing in the nearest tier.
    pub(super) fn count_lacking(&self, node: BlockHandle) -> usize {
        let places = self.all_groups().map(|group| Placed { node, group });
        places.filter(|placed| self.block_at(*placed).is_some() && self.lacks(*placed)).count()
    }

    /// Lets go of blocks that a transfer read in the groups after the first.
    pub(super) fn leave_read(&mut self, places: impl IntoIterator<Item = Placed>) {
        places.into_iter().for_each(|placed| self.groups.leave(placed.node.index, placed.group));
    }

    /// Takes the blocks of an entry that just left the tree, with the pin that held it, to a demotion: `node` last. Returns `false` if the tier does
    /// not take `node`. Other blocks that the tier does not take are freed, and all of them if it does not have `node` either.
    pub(super) fn demote_entry(&mut self, node: BlockHandle, pin: Option<Pin>, sources: &mut Sources) -> bool {
        let first = Placed { node, group: 0 };
        let taken = self.tiers.reserve(&Contents { pin, ..self.tiers.contents_on_device(&self.tree, first) });
        // Blocks of an entry whose first one the tier refused would be of no use there.
        let is_there = taken.is_some() || !self.lacks(first);
        for group in self.groups.numbers() {
            let Some(block) = self.groups.take_out(node.index, group) else { continue };
            let placed = Placed { node, group };
            let contents = Contents { pin, ..self.tiers.contents_on_device(&self.tree, placed) };
            let to = is_there.then(|| self.tiers.reserve(&contents));
            match to.flatten() {
                Some(to) => {
                    self.tree.begin_move(block);
                    sources.push(placed, BlockPair { from: block.index, to });
                }
                None => self.tree.release(&mut vec![block], 0),
            }
        }
        // At the end a block's place in the tree is known before those of the other groups are put back.
        taken.map(|to| sources.push(first, BlockPair { from: node.index, to })).is_some()
    }

    /// Ends the demotion of a block of a group after the first: back to its place if that is in the tree again, else the block is freed.
    pub(super) fn end_demotion_in_group(&mut self, block: BlockHandle, placed: Placed) {
        self.tree.end_move(block);
        if self.tree.is_published(placed.node) && self.block_at(placed).is_none() {
            self.groups.put(placed.node.index, placed.group, block);
            self.groups.leave(placed.node.index, placed.group);
        } else {
            self.tree.release(&mut vec![block], 0);
        }
    }

    /// Returns the sources of a demotion in the groups after the first, of the entry whose node is the source of pair `at`: block, and place.
    pub(super) fn demoted_in_groups(&self, transfer: u64, at: usize) -> impl Iterator<Item = (u32, Placed)> + '_ {
        let transfer = self.transfers.get(transfer).into_iter();
        transfer.flat_map(move |InFlight { pairs, purpose, .. }| {
            let places = purpose.places();
            // These come right before the pair of the node, behind those of other nodes.
            let of_node = (0..at).rev().take_while(move |before| places[*before].node == places[at].node);
            of_node.map(move |before| (pairs[before].from, places[before]))
        })
    }

    /// Puts blocks of a demotion back to their places in the groups after the first, to be read by the transfer: those of the entries, taken
    /// back into the tree, whose nodes are the sources of its pairs `entries`. Returns what the transfer reads.
    pub(super) fn revive_in_groups(&mut self, transfer: u64, entries: &[usize]) -> Vec<Placed> {
        let moving = entries.iter().flat_map(|at| self.demoted_in_groups(transfer, *at));
        let mut moving: Vec<(u32, Placed)> = moving.collect();
        moving.sort_unstable_by_key(|(block, _)| *block);
        for (block, placed) in &moving {
            let block = self.tree.pool().handle(*block);
            self.tree.end_move(block);
            self.groups.put(placed.node.index, placed.group, block);
        }
        moving.into_iter().map(|(_, placed)| placed).collect()
    }

    /// Cuts the plan of a load to where every group has what the tokens behind read, and plans the blocks of the groups after the first.
    pub(super) fn plan_groups(&mut self) {
        let n = self.groups.n();
        if n == 0 {
            return;
        }
        let is_open = std::array::from_fn(|tier| !self.transfers.is_stuck(tier_place(tier)));
        let before = self.hit();
        self.plan.others.clear();
        self.plan.others.resize(self.plan.len() * n, PlannedBlock::HOLE);
        let (plan, tiers) = (&mut self.plan, &self.tiers);
        let usable = self.groups.usable_behind(before, plan.len(), |at, group| {
            let found = tiers.find_in_group(plan.at(at, 0), group, is_open);
            plan.set(at, group, found.unwrap_or(PlannedBlock::HOLE));
            found.is_some()
        });
        self.plan.split_off(usable);
        for group in self.groups.numbers() {
            let unread = self.groups.first_read(group, before + usable).saturating_sub(before).min(usable);
            (0..unread).for_each(|at| self.plan.set(at, group, PlannedBlock::HOLE));
        }
    }

    /// Cuts the plan of a load to its first `n` entries, or further to where every group has what the tokens behind read. Keeps
    /// the whole plan if that saves more time.
    pub(super) fn cut_plan(&mut self, n: usize) {
        if self.groups.n() == 0 {
            self.plan.first.truncate(n);
            return;
        }
        let whole = self.plan.clone();
        let saved_ns = self.saved_by_plan();
        self.plan.split_off(n);
        self.plan_groups();
        if saved_ns > self.saved_by_plan() {
            self.plan = whole;
        }
    }

    /// Returns the time saved by the planned load, nanoseconds.
    fn saved_by_plan(&self) -> f64 {
        self.transfers.links.savings(self.planned_copies()).last().unwrap_or(0.0)
    }

    /// Returns, for each entry of the plan, the tiers of its copies: one for each layer group.
    pub(super) fn planned_copies(&self) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        let tiers_of = |at| self.plan.part(at..at + 1).map(|planned| planned.tier);
        (0..self.plan.len()).map(tiers_of)
    }

    /// Ends the copies of a load into a sequence's tables from entry `first` on. Returns the number of leading entries usable by the
    /// sequence from there on.
    pub fn end_load(&mut self, seq: &Sequence, first: usize, load: &Load) -> usize {
        let range = first..first + load.filled.len();
        seq.table[range.clone()].iter().for_each(|block| self.tree.end_move(*block));
        for block in seq.cold.tables.iter().flat_map(|table| &table[range.clone()]) {
            if self.tree.pool().state(block.index) == BlockState::Moving {
                self.tree.end_move(*block);
            }
        }
        self.groups.usable_behind(first, load.good(), |at, group| load.filled.has(at, group))
    }

    /// Drops the entries that a load left empty, of the `good` first ones: those behind windows.
    pub fn drop_empty(&mut self, seq: &mut Sequence, load: &Load, good: usize) {
        let first = seq.published as usize;
        for at in 0..good {
            for group in self.groups.numbers().filter(|group| !load.filled.has(at, *group)) {
                if seq.cold.tables[group - 1][first + at] != BlockHandle::NONE {
                    self.drop_entries(seq, group, first + at, 1, None);
                }
            }
        }
    }

    /// Moves the blocks still filled by a transfer from a loading sequence's tables of the groups after the first to the result. Ends
    /// the copies of the others.
    pub fn orphan_in_groups(
        &mut self,
        seq: &mut Sequence,
        blocks: usize,
        is_filled: impl Fn(u32) -> bool,
    ) -> Vec<BlockHandle> {
        let entries = seq.published as usize..seq.published as usize + blocks;
        let mut kept = Vec::new();
        for block in seq.cold.tables.iter_mut().flat_map(|table| &mut table[entries.clone()]) {
            if self.tree.pool().state(block.index) != BlockState::Moving {
                continue;
            }
            if is_filled(block.index) {
                kept.push(std::mem::replace(block, BlockHandle::NONE));
            } else {
                self.tree.end_move(*block);
            }
        }
        kept
    }

    /// Returns the number of blocks in the groups after the first read by a transfer alone: idle at the end of the transfer.
    pub fn freed_read(&self, places: impl Iterator<Item = Placed>) -> u32 {
        places.filter(|placed| self.groups.readers(placed.node.index, placed.group) == 1).count() as u32
    }
}
