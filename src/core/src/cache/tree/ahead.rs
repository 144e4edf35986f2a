//! Requests for memory ahead of its use. An operation on many sequences reads lines scattered over memory, a few for each; requested
//! before, they arrive while others are worked on.

use super::{PrefixTree, for_runs};
use crate::blocks::hash::BlockHash;
use crate::blocks::prefetch::prefetch;
use crate::names::ids::BlockHandle;

/// Slots of the next victims requested from memory ahead of their eviction.
const VICTIMS_AHEAD: u32 = 16;

impl PrefixTree {
    /// Requests the data read and written by [`Self::publish`] of a block after `parent` from memory.
    #[inline]
    pub fn request_to_publish(&self, parent: Option<BlockHandle>, block: BlockHandle, hash: BlockHash) {
        self.index.prefetch(hash.fingerprint());
        self.eviction.request_to_publish(hash.fingerprint());
        if let Some(parent) = parent {
            self.nodes.prefetch_counts(parent.index);
        }
        self.nodes.prefetch_all(block.index);
        prefetch(self.tokens_of(block.index));
        self.pool.prefetch(block.index, 1);
    }

    /// Requests the blocks that are likely to be evicted next from memory. A chain leaves last to first.
    pub(super) fn request_victims(&self) {
        let Some(last) = self.eviction.likely_next() else { return };
        let first = (last + 1).saturating_sub(VICTIMS_AHEAD);
        let len = (last + 1 - first) as usize;
        self.nodes.prefetch_run(first, len);
        self.pool.prefetch(first, len);
    }

    /// Requests the data written by [`Self::add_chain`] from memory, all at once.
    #[inline]
    pub(super) fn request_to_add(&self, chain: &[BlockHandle], hashes: &[BlockHash]) {
        for_runs(chain, |first, len| {
            self.nodes.prefetch_run(first, len);
            let begin = first as usize * self.block_size;
            prefetch(&self.tokens[begin..begin + len * self.block_size]);
            self.pool.prefetch(first, len);
        });
        for hash in hashes {
            self.index.prefetch(hash.fingerprint());
            self.eviction.request_to_publish(hash.fingerprint());
        }
    }
}
