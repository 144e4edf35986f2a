//! Least cost of recomputing per byte, weighed by use: GreedyDual-Size-Frequency (Cherkasova, 1998).
//!
//! All blocks have the same size. Computing a block costs the matrix products, equal for all blocks, and attention over the
//! prefix before it, which grows with depth. The worth of a block is its cost times one more than its hits.

use super::levels::{LEVELS, Levels};
use super::{Eviction, last};
use crate::ids::BlockHandle;
use crate::nodes::Nodes;

/// Worth of a shallow block without hits, in levels.
const UNIT: f32 = 8.0;
/// Blocks of 16 tokens before a block at which attention costs as much as the matrices: 2 N FLOPs per token of
/// an 8 B model against 4 L h d per pair of tokens is about 30,000 tokens.
const DEPTH_OF_DOUBLE_COST: f32 = 1900.0;

/// Idle leaves, ordered by the cost of a miss.
#[derive(Debug)]
pub(super) struct Cost {
    levels: Levels,
}

impl Cost {
    pub fn new(capacity: u32) -> Self {
        Self { levels: Levels::new(super::reserved_blocks(capacity)) }
    }
}

impl Eviction for Cost {
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        if blocks.is_leaf(last(chain)) {
            self.leaf(last(chain), blocks);
        }
    }

    fn leaf(&mut self, block: u32, blocks: &Nodes) {
        let cost = 1.0 + blocks.depth(block) as f32 / DEPTH_OF_DOUBLE_COST;
        let worth = UNIT * cost * (1 + blocks.hits(block)) as f32;
        self.levels.insert(block, (worth as usize).min(LEVELS - 1));
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.levels.remove(last(chain));
    }

    fn pop(&mut self, _: &Nodes) -> Option<u32> {
        self.levels.pop()
    }
}
