//! Changes in which blocks are in the tree, for a listener: see [`crate::cache::changes`].

use super::PrefixTree;
use crate::blocks::block::BlockState;
use crate::cache::changes::Change;
use crate::names::ids::Token;

impl PrefixTree {
    /// Notes the blocks that enter the tree or leave it from now on, for [`Self::take_changes`].
    pub(crate) fn listen(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Notes the blocks that are evicted from now on, for [`Self::take_evictions`].
    pub(crate) fn note_evictions(&mut self) {
        self.evictions.get_or_insert_default();
    }

    /// Returns the fingerprints of the blocks evicted since the last call.
    pub(crate) fn take_evictions(&mut self) -> Vec<u64> {
        self.evictions.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the blocks that entered the tree or left it since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<(u32, Change)> {
        self.changes.as_mut().map_or(Vec::new(), std::mem::take)
    }

    /// Returns the number of changes since the last call of [`Self::take_changes`].
    pub(crate) fn n_changes(&self) -> usize {
        self.changes.as_ref().map_or(0, Vec::len)
    }

    /// Takes the memory of a list of changes back.
    pub(crate) fn reuse_changes(&mut self, mut changes: Vec<(u32, Change)>) {
        changes.clear();
        if self.changes.as_ref().is_some_and(Vec::is_empty) {
            self.changes = Some(changes);
        }
    }

    #[inline]
    pub(super) fn note_changes(&mut self, change: Change, blocks: impl IntoIterator<Item = u32>) {
        if let Some(changes) = &mut self.changes {
            changes.extend(blocks.into_iter().map(|block| (block, change)));
        }
    }

    /// Returns the blocks that can be found, each behind the one before it in its prefix. O(blocks log blocks).
    pub(crate) fn findable_by_depth(&self) -> Vec<u32> {
        let is_in = |block: &u32| matches!(self.pool.state(*block), BlockState::Held | BlockState::Idle);
        let mut blocks: Vec<u32> = (0..self.pool.opened()).filter(is_in).collect();
        blocks.sort_by_key(|block| self.nodes.depth(*block));
        blocks
    }

    /// Returns the tokens that a block had when it was published last.
    pub(crate) fn tokens_at(&self, block: u32) -> &[Token] {
        self.tokens_of(block)
    }
}
