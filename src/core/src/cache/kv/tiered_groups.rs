//! Layer groups in the tiers.
//!
//! A tier holds the blocks of the groups after the first as further blocks, each under a key of prefix and group
//! ([`crate::blocks::content_key::in_group`]). The blocks beside those of the tree go down, with readers or without. A prompt continues in the tiers as far
//! as every group has the blocks read by the tokens behind: all blocks of a group that keeps every position, the last ones of a
//! group with a window.

use trunkline_port::Keeps;

use super::Kv;
use super::tier_copies::tier_place;
use crate::blocks::block::BlockState;
use crate::cache::tiers::PlannedBlock;
use crate::cache::transfer_table::{BlockPair, InFlight, Sources};
use crate::names::ids::BlockHandle;
use crate::request::sequence::{Load, Sequence};

impl Kv {
    /// Adds the blocks beside a published block to a copy to the nearest tier, which reads the blocks until the end. Blocks
    /// refused by the tier are left out.
    pub(super) fn write_beside(&mut self, node: BlockHandle, sources: &mut Sources) {
        for group in 0..self.groups.n() {
            let Some(block) = self.groups.get(node.index, group) else { continue };
            let contents = self.tiers.contents_beside(&self.tree, node, group);
            if let Some(to) = self.tiers.reserve(&contents) {
                self.groups.enter(node.index, group);
                sources.push_beside(BlockPair { from: block.index, to }, node, group);
            }
        }
    }

    /// Returns `true` if the nearest tier has, or can get, the blocks beside a published block in every group needed whole by prompts:
    /// no prompt loads a block behind one without them.
    pub(super) fn can_follow(&self, node: BlockHandle) -> bool {
        let is_whole = |group: &usize| !matches!(self.groups.keeps()[*group], Keeps::Window(_));
        (0..self.groups.n()).filter(is_whole).all(|group| {
            self.groups.get(node.index, group).is_some()
                || !self.tiers.lacks(&self.tiers.contents_beside(&self.tree, node, group))
        })
    }

    /// Returns the number of blocks beside a published block missing in the nearest tier.
    pub(super) fn count_lacking_beside(&self, node: BlockHandle) -> usize {
        let lacks = |group: &usize| {
            let is_there = self.groups.get(node.index, *group).is_some();
            is_there && self.tiers.lacks(&self.tiers.contents_beside(&self.tree, node, *group))
        };
        (0..self.groups.n()).filter(lacks).count()
    }

    /// Lets go of blocks that a transfer read in the groups after the first.
    pub(super) fn leave_read(&mut self, beside: impl IntoIterator<Item = (BlockHandle, usize)>) {
        beside.into_iter().for_each(|(node, group)| self.groups.leave(node.index, group));
    }

    /// Takes the blocks beside `node`, which just left the tree, to a demotion. Blocks that the tier does not take are freed, and all of them
    /// unless the tier has `node` or takes it (`is_there`).
    pub(super) fn demote_beside(&mut self, node: BlockHandle, is_there: bool, sources: &mut Sources) {
        for group in 0..self.groups.n() {
            let Some(block) = self.groups.take_out(node.index, group) else { continue };
            let contents = self.tiers.contents_beside(&self.tree, node, group);
            match is_there.then(|| self.tiers.reserve(&contents)).flatten() {
                Some(to) => {
                    self.tree.begin_move(block);
                    sources.push_beside(BlockPair { from: block.index, to }, node, group);
                }
                None => self.tree.release(&mut vec![block], 0),
            }
        }
    }

    /// Ends the demotion of a block of a group after the first: back beside `node` if `node` is in the tree again, else the block is freed.
    pub(super) fn end_demotion_beside(&mut self, block: BlockHandle, node: BlockHandle, group: usize) {
        self.tree.end_move(block);
        if self.tree.is_published(node) && self.groups.get(node.index, group).is_none() {
            self.groups.put(node.index, group, block);
            self.groups.leave(node.index, group);
        } else {
            self.tree.release(&mut vec![block], 0);
        }
    }

    /// Returns the sources of a demotion that stood beside `node`, the source of its pair `at`: block, and group.
    pub(super) fn demoted_beside(
        &self,
        node: BlockHandle,
        transfer: u64,
        at: usize,
    ) -> impl Iterator<Item = (u32, usize)> + '_ {
        let transfer = self.transfers.get(transfer).into_iter();
        transfer.flat_map(move |InFlight { pairs, purpose, .. }| {
            // These come right before the pair of the node, behind those of other nodes.
            let place = move |before: usize| Some((pairs[before].from, purpose.beside()?.get(before)?));
            let of_node = (0..at).rev().map_while(place).take_while(move |(_, (beside, _))| *beside == node);
            of_node.map(|(block, (_, group))| (block, group))
        })
    }

    /// Puts blocks of a demotion back beside `nodes`, which were taken back into the tree, to be read by the transfer: the sources beside those of
    /// its pairs `at`. Returns what the transfer reads.
    pub(super) fn revive_beside(&mut self, transfer: u64, nodes: &[(BlockHandle, usize)]) -> Vec<(BlockHandle, usize)> {
        let mut moving = Vec::new();
        for (node, at) in nodes {
            moving.extend(self.demoted_beside(*node, transfer, *at).map(|(block, group)| (block, (*node, group))));
        }
        moving.sort_unstable_by_key(|(block, _)| *block);
        for (block, (node, group)) in &moving {
            let block = self.tree.pool().handle(*block);
            self.tree.end_move(block);
            self.groups.put(node.index, *group, block);
        }
        moving.into_iter().map(|(_, place)| place).collect()
    }

    /// Cuts the plan of a load to where every group has what the tokens behind read, and plans the blocks of the groups after the first.
    pub(super) fn plan_groups(&mut self) {
        let n = self.groups.n();
        self.plan_beside.clear();
        if n == 0 {
            return;
        }
        let is_open = std::array::from_fn(|tier| !self.transfers.is_stuck(tier_place(tier)));
        let before = self.hit();
        self.plan_beside.resize(self.plan.len() * n, None);
        let (plan, beside, tiers) = (&self.plan, &mut self.plan_beside, &self.tiers);
        let usable = self.groups.usable_behind(before, plan, |at, group| {
            beside[at * n + group] = tiers.find_beside(plan[at], group, is_open);
            beside[at * n + group].is_some()
        });
        self.plan.truncate(usable);
        self.plan_beside.truncate(usable * n);
        for group in 0..n {
            let unread = self.groups.first_read(group, before + usable).saturating_sub(before).min(usable);
            (0..unread).for_each(|at| self.plan_beside[at * n + group] = None);
        }
    }

    /// Cuts the plan of a load to its first `n` entries, or further to where every group has what the tokens behind read. Keeps
    /// the whole plan if that saves more time.
    pub(super) fn cut_plan(&mut self, n: usize) {
        if self.groups.n() == 0 {
            self.plan.truncate(n);
            return;
        }
        let whole = (self.plan.clone(), self.plan_beside.clone());
        let saved_ns = self.saved_by_plan();
        self.plan.truncate(n);
        self.plan_groups();
        if saved_ns > self.saved_by_plan() {
            (self.plan, self.plan_beside) = whole;
        }
    }

    /// Returns the time saved by the planned load, nanoseconds.
    fn saved_by_plan(&self) -> f64 {
        self.transfers.links.savings(self.planned_copies()).last().unwrap_or(0.0)
    }

    /// Returns, for each entry of the plan, the tiers of its copies: one for each layer group.
    pub(super) fn planned_copies(&self) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        self.plan.iter().enumerate().map(|(at, planned)| {
            let beside = self.planned_beside(at).iter().flatten();
            std::iter::once(planned).chain(beside).map(|planned| planned.tier)
        })
    }

    /// Returns the planned copies of an entry of the plan, in the groups after the first.
    pub(super) fn planned_beside(&self, at: usize) -> &[Option<PlannedBlock>] {
        let n = self.groups.n();
        self.plan_beside.get(at * n..(at + 1) * n).unwrap_or_default()
    }

    /// Ends the copies of a load in a sequence's tables. Returns the number of leading entries usable by the
    /// sequence, behind the published ones.
    pub fn end_load(&mut self, seq: &Sequence, load: &Load) -> usize {
        let range = seq.published as usize..(seq.published + load.blocks) as usize;
        let entries = &seq.table[range.clone()];
        entries.iter().for_each(|block| self.tree.end_move(*block));
        for table in &seq.cold.tables {
            for block in &table[range.clone()] {
                if self.tree.pool().state(block.index) == BlockState::Moving {
                    self.tree.end_move(*block);
                }
            }
        }
        let n = self.groups.n();
        let good = &entries[..load.good as usize];
        self.groups.usable_behind(seq.published as usize, good, |at, group| load.beside[at * n + group])
    }

    /// Drops the entries that a load left empty, of the `good` first ones: those behind windows.
    pub fn drop_empty(&mut self, seq: &mut Sequence, load: &Load, good: usize) {
        let (first, n) = (seq.published as usize, self.groups.n());
        for at in 0..good {
            for group in (0..n).filter(|group| !load.beside[at * n + group]) {
                if seq.cold.tables[group][first + at] != BlockHandle::NONE {
                    self.drop_entries(seq, group, first + at, 1, None);
                }
            }
        }
    }

    /// Moves the blocks still filled by a transfer from a loading sequence's tables of the groups after the first to the result. Ends
    /// the copies of the others.
    pub fn orphan_beside(
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
    pub fn freed_read(&self, beside: impl Iterator<Item = (BlockHandle, usize)>) -> u32 {
        beside.filter(|(node, group)| self.groups.readers(node.index, *group) == 1).count() as u32
    }
}
