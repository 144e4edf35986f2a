//! Least frequently used, with dynamic ageing (LFU-DA: Arlitt et al., 2000).
//!
//! The priority of a block is its number of hits plus the priority of the last block evicted. Blocks popular long ago are
//! thereby evicted in the end.

use super::levels::Levels;
use super::{Eviction, last};
use crate::ids::BlockHandle;
use crate::nodes::Nodes;

/// Idle leaves, ordered by number of hits.
#[derive(Debug)]
pub(super) struct Lfu {
    levels: Levels,
}

impl Lfu {
    pub fn new(capacity: u32) -> Self {
        Self { levels: Levels::new(super::reserved_blocks(capacity)) }
    }
}

impl Eviction for Lfu {
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        if blocks.is_leaf(last(chain)) {
            self.leaf(last(chain), blocks);
        }
    }

    fn leaf(&mut self, block: u32, blocks: &Nodes) {
        self.levels.insert(block, blocks.hits(block) as usize);
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.levels.remove(last(chain));
    }

    fn pop(&mut self, _: &Nodes) -> Option<u32> {
        self.levels.pop()
    }
}
