//! Blocks that leave the tree to be copied to a tier, and come back if found again or if the copy fails.

use super::{Parent, PrefixTree};
use crate::blocks::block::{BlockEvent, BlockState};
use crate::blocks::hash::BlockHash;
use crate::blocks::namespaces::is_namespace;
use crate::cache::changes::Change;
use crate::names::ids::BlockHandle;
use crate::request::retention::{Claim, Pin};

impl PrefixTree {
    /// Takes the next victim of the eviction policy out of the tree, to be copied to a tier and then freed with
    /// [`Self::end_demotion`]. Returns the block with its place and the pin that held it, or `None` if no block is idle.
    pub(crate) fn begin_demotion(&mut self) -> Option<(BlockHandle, Parent, Option<Pin>)> {
        if self.pool.count(BlockState::Idle) == 0 {
            return None;
        }
        let mut victim = Vec::new();
        self.pop_victim(1, &mut victim);
        let block = victim[0];
        let pin = self.eviction.pin_of(block);
        let before = match self.nodes.parents[block as usize] {
            parent if is_namespace(parent) => Parent::Root(self.namespaces.root(parent)),
            parent => Parent::Block(self.pool.handle(parent)),
        };
        self.remove_chain(&[block]);
        self.index.remove(self.nodes.fingerprint(block), block);
        self.leave_contents(&[block]);
        self.note_changes(Change::Left, [block]);
        self.pool.apply(block, BlockEvent::DemotionBegan);
        Some((self.pool.handle(block), before, pin))
    }

    /// Frees a block whose demotion ended or was given up.
    pub fn end_demotion(&mut self, block: u32) {
        debug_assert_eq!(self.pool.state(block), BlockState::Moving);
        self.pool.apply(block, BlockEvent::Released);
        self.evicted += 1;
    }

    /// Returns `true` if a block being demoted can go back into the tree after `parent`, which was before it.
    pub fn can_readopt(&self, block: BlockHandle, parent: Parent) -> bool {
        let is_there = |parent: BlockHandle| {
            self.pool.is_current(parent) && matches!(self.pool.state(parent.index), BlockState::Held | BlockState::Idle)
        };
        parent.block().is_none_or(is_there)
            && !self.contains(BlockHash(u128::from(self.nodes.fingerprint(block.index))))
    }

    /// Takes a block being demoted back into the tree after `parent`, with one reader. No published block may have its hash.
    pub fn readopt(&mut self, block: BlockHandle, parent: Parent) {
        let fingerprint = self.nodes.fingerprint(block.index);
        let parent = self.enter(parent);
        self.nodes.publish(block.index, parent, &[BlockHash(u128::from(fingerprint))]);
        self.pool.apply(block.index, BlockEvent::Readopted);
        self.index.insert(fingerprint, block.index, |index| self.nodes.fingerprint(index));
        self.enter_contents(&[block]);
        self.note_changes(Change::Entered, [block.index]);
        self.floors.readopted(block.index);
        self.eviction.published(&[block], &self.nodes);
    }

    /// Takes a block whose demotion failed back into the tree after `parent`, without readers. The blocks before it are read for a
    /// moment: the parent is not a leaf any more.
    pub fn restore(&mut self, block: BlockHandle, parent: Parent) {
        let ancestors =
            std::iter::successors(parent.block().map(|parent| parent.index), |block| self.nodes.parent(*block));
        let mut chain: Vec<BlockHandle> = ancestors.map(|block| self.pool.handle(block)).collect();
        chain.reverse();
        chain.iter().for_each(|block| self.share(*block));
        self.readopt(block, parent);
        chain.push(block);
        self.claim(&chain, &Claim { tenant: 0, hints: &[] });
        let n = chain.len();
        self.release(&mut chain, n);
    }
}
