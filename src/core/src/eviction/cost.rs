//! Least cost of recomputing per byte, weighed by use: GreedyDual-Size-Frequency (Cherkasova, 1998).
//!
//! All blocks have the same size. Computing one costs the matrices, the same for each, and attention over what lies before it,
//! which grows with depth; so deep blocks are dearer. A block's worth is its cost times the hits it had, plus one.

use super::levels::{LEVELS, Levels};
use super::{BlockView, Eviction};

/// Worth of a shallow block that was never hit, in levels.
const UNIT: f32 = 8.0;
/// Blocks of 16 tokens before a block at which attention costs as much as the matrices: 2 N FLOPs per token of
/// an 8 B model against 4 L h d per pair of tokens is about 30,000 tokens.
const DEPTH_OF_DOUBLE_COST: f32 = 1900.0;

/// Idle leaves by what it would cost to miss them.
#[derive(Debug, Default)]
pub(super) struct Cost {
    levels: Levels,
}

impl Eviction for Cost {
    fn idle(&mut self, _: &BlockView) {}

    fn leaf(&mut self, block: &BlockView) {
        let cost = 1.0 + block.depth as f32 / DEPTH_OF_DOUBLE_COST;
        let worth = UNIT * cost * (1 + block.hits) as f32;
        self.levels.insert(block.index, (worth as usize).min(LEVELS - 1));
    }

    fn read(&mut self, block: &BlockView) {
        self.levels.remove(block.index);
    }

    fn pop(&mut self) -> Option<u32> {
        self.levels.pop()
    }
}
