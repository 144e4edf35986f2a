//! Least frequently used, with dynamic ageing (LFU-DA: Arlitt et al., 2000).
//!
//! A block's priority is the number of its hits above that of the last block evicted, so what was popular long ago does not
//! stay for ever.

use super::levels::Levels;
use super::{Eviction, last};
use crate::ids::BlockHandle;
use crate::tree::Nodes;

/// Idle leaves by the number of their hits.
#[derive(Debug)]
pub(super) struct Lfu {
    levels: Levels,
}

impl Lfu {
    pub fn new(capacity: u32) -> Self {
        Self { levels: Levels::new(super::room(capacity)) }
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
