//! Least frequently used, with dynamic ageing (LFU-DA: Arlitt et al., 2000).
//!
//! The priority of a block is its number of hits plus the priority of the last block evicted when the block fell idle. Blocks
//! popular long ago are evicted in the end.

use crate::blocks::nodes::Nodes;

/// Returns the number of hits: the worth of a block for [`crate::eviction::parts::greedy_dual::GreedyDual`].
pub(super) fn worth(block: u32, blocks: &Nodes) -> usize {
    blocks.hits(block) as usize
}
