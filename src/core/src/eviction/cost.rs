//! Least cost of recomputing per byte, weighed by use: GreedyDual-Size-Frequency (Cherkasova, 1998).
//!
//! All blocks have the same size. Computing a block costs the matrix products, equal for all blocks, and attention over the
//! prefix before it, which grows with depth. The worth of a block is cost times (1 + hits).

use crate::blocks::nodes::Nodes;

/// Worth of a shallow block without hits, in levels.
const UNIT: f32 = 8.0;
/// Blocks of 16 tokens before a block at which attention costs as much as the matrices: 2 N FLOPs per token of
/// an 8 B model against 4 L h d per pair of tokens is about 30,000 tokens.
const DEPTH_OF_DOUBLE_COST: f32 = 1900.0;

/// Returns the cost of a miss: the worth of a block for [`crate::eviction::parts::greedy_dual::GreedyDual`].
pub(super) fn worth(block: u32, blocks: &Nodes) -> usize {
    let cost = 1.0 + blocks.depth(block) as f32 / DEPTH_OF_DOUBLE_COST;
    (UNIT * cost * (1 + blocks.hits(block)) as f32) as usize
}
