//! Retention hints of the requests that use the tree's blocks.

use super::PrefixTree;
use crate::blocks::block::BlockState;
use crate::blocks::prefix::Prefix;
use crate::journal::stats::RetentionCounters;
use crate::names::ids::BlockHandle;
use crate::request::retention::{Claim, Pin, RetainedBlocks};

impl PrefixTree {
    /// Follows retention hints from `now_ns` on, within limits, unless hints are followed already. Without hints, claims do nothing.
    pub fn follow_hints(&mut self, now_ns: u64, limits: RetainedBlocks) {
        self.eviction.follow_hints(now_ns, limits, self.pool.count(BlockState::Idle), self.pool.opened());
    }

    /// Sets the time for hints and floors. Times MUST NOT go back.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        self.floors.advance(now_ns);
        self.eviction.advance(now_ns, &self.nodes, |slot| self.pool.handle(slot));
    }

    /// Takes in the hints of a request about to release the published blocks `prefix`, from the first block of the prompt on. A request
    /// MUST claim the prefix before releasing any block, also without hints.
    pub fn claim(&mut self, prefix: &[BlockHandle], claim: &Claim<'_>) {
        let prefix = &prefix[..self.n_findable(prefix)];
        if !prefix.is_empty() {
            self.eviction.claim(prefix, claim, self.block_size, &self.nodes);
        }
    }

    /// Returns the number of idle blocks to be demoted at once. They are the next victims.
    pub fn n_demoted(&self) -> u32 {
        self.eviction.n_demoted()
    }

    /// Returns the number of leading blocks of a published prefix that pins hold.
    pub fn n_pinned(&self, prefix: &[BlockHandle]) -> usize {
        self.eviction.n_pinned(&prefix[..self.n_findable(prefix)])
    }

    /// Returns the pin that holds a block of the tree, if there is one.
    pub(crate) fn pin_of(&self, block: BlockHandle) -> Option<Pin> {
        self.eviction.pin_of(block.index)
    }

    /// Returns the number of idle blocks above the default priority.
    pub fn n_idle_above(&self) -> u32 {
        self.eviction.n_idle_above()
    }

    /// Returns the number of idle blocks above the default priority in a prefix just found.
    pub fn count_idle_above(&self, found: &Prefix) -> u32 {
        let above = found.count_first(|block| self.eviction.is_above(block)) as u32;
        above.saturating_sub(found.len() as u32 - self.count_idle(found))
    }

    /// Returns gauges and counters of hints.
    pub fn retention(&self) -> RetentionCounters {
        self.eviction.counters()
    }
}

#[cfg(test)]
mod tests;
