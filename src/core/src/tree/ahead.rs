//! Requests for memory ahead of its use. An operation on many sequences reads lines scattered over memory, a few for each; requested
//! before, they arrive while others are worked on.

use super::PrefixTree;
use crate::hash::BlockHash;
use crate::ids::BlockHandle;
use crate::prefetch::prefetch;

impl PrefixTree {
    /// Requests the data read and written by [`Self::publish`] of a block after `parent` from memory.
    #[inline]
    pub fn request_to_publish(&self, parent: Option<BlockHandle>, block: BlockHandle, hash: BlockHash) {
        self.index.prefetch(hash.fingerprint());
        if let Some(parent) = parent {
            self.nodes.prefetch_counts(parent.index);
        }
        self.nodes.prefetch_all(block.index);
        prefetch(self.tokens_of(block.index));
        self.pool.prefetch(block.index, 1);
    }
}
