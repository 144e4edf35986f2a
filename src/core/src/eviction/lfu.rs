//! Least frequently used, with dynamic ageing (LFU-DA: Arlitt et al., 2000).
//!
//! A block's priority is the number of its hits above that of the last block evicted, so what was popular long ago does not
//! stay for ever.

use super::levels::Levels;
use super::{BlockView, Eviction};

/// Idle leaves by the number of their hits.
#[derive(Debug, Default)]
pub(super) struct Lfu {
    levels: Levels,
}

impl Eviction for Lfu {
    fn idle(&mut self, _: &BlockView) {}

    fn leaf(&mut self, block: &BlockView) {
        self.levels.insert(block.index, block.hits as usize);
    }

    fn read(&mut self, block: &BlockView) {
        self.levels.remove(block.index);
    }

    fn pop(&mut self) -> Option<u32> {
        self.levels.pop()
    }
}
