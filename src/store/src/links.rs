//! Links between places: the work under way on each, its limit, and what has passed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use trunkline_port::Place;

use crate::residency::Spread;

/// Counters of the copies from one place to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// Place of the sources.
    pub from: Place,
    /// Place of the destinations.
    pub to: Place,
    /// Blocks submitted and not yet answered.
    pub queued_blocks: u64,
    /// Blocks arrived since the store was opened.
    pub blocks: u64,
    /// Bytes of the arrived blocks, uncompressed.
    pub block_bytes: u64,
    /// Bytes of the arrived blocks at the destination.
    pub stored_bytes: u64,
    /// Blocks refused because too many were queued, or the destination was full.
    pub refused: u64,
    /// Blocks failed for other reasons.
    pub failed: u64,
    /// Blocks of cancelled copies.
    pub cancelled: u64,
    /// Times from the submission of a block to its answer.
    pub waits: Spread,
}

/// Copies from one place to another, counted.
#[derive(Debug)]
pub struct Link {
    from: Place,
    to: Place,
    queued: AtomicU64,
    blocks: AtomicU64,
    block_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    waits: std::sync::Mutex<Spread>,
}

impl Link {
    /// Creates a link without copies under way.
    pub fn new(from: Place, to: Place) -> Self {
        let n = || AtomicU64::new(0);
        let (queued, blocks, block_bytes, stored_bytes) = (n(), n(), n(), n());
        let (refused, failed, cancelled) = (n(), n(), n());
        Self {
            from,
            to,
            queued,
            blocks,
            block_bytes,
            stored_bytes,
            refused,
            failed,
            cancelled,
            waits: std::sync::Mutex::default(),
        }
    }

    /// Takes credits for up to `n` blocks, such that at most `limit` are under way. Returns the number taken.
    pub fn take(&self, n: u64, limit: u64) -> u64 {
        let mut taken = 0;
        let update = |queued: u64| {
            taken = n.min(limit.saturating_sub(queued));
            Some(queued + taken)
        };
        // The closure returns no `None`.
        let _ = self.queued.fetch_update(Relaxed, Relaxed, update);
        taken
    }

    /// Counts a block that arrived, and returns its credit.
    pub fn arrived(&self, block_bytes: u64, stored_bytes: u64, wait: Duration) {
        self.blocks.fetch_add(1, Relaxed);
        self.block_bytes.fetch_add(block_bytes, Relaxed);
        self.stored_bytes.fetch_add(stored_bytes, Relaxed);
        self.ended(wait);
    }

    /// Counts a block that failed, and returns its credit.
    pub fn failed(&self, is_refusal: bool, wait: Duration) {
        if is_refusal { &self.refused } else { &self.failed }.fetch_add(1, Relaxed);
        self.ended(wait);
    }

    /// Counts a block of a cancelled copy, and returns its credit.
    pub fn cancelled(&self, wait: Duration) {
        self.cancelled.fetch_add(1, Relaxed);
        self.ended(wait);
    }

    /// Counts blocks that got no credit.
    pub fn refused(&self, n: u64) {
        self.refused.fetch_add(n, Relaxed);
    }

    fn ended(&self, wait: Duration) {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.waits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(ns);
        self.queued.fetch_sub(1, Relaxed);
    }

    /// Returns the counters of all copies so far.
    pub fn stats(&self) -> LinkStats {
        LinkStats {
            from: self.from,
            to: self.to,
            queued_blocks: self.queued.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            block_bytes: self.block_bytes.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed: self.failed.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            waits: self.waits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_limited_and_come_back() {
        let link = Link::new(Place::Device, Place::Tier(0));
        assert_eq!((link.take(3, 5), link.take(4, 5), link.take(1, 5)), (3, 2, 0));
        link.arrived(100, 60, Duration::from_nanos(8));
        link.failed(true, Duration::from_nanos(8));
        link.refused(2);
        assert_eq!(link.take(9, 5), 2);
        let stats = link.stats();
        assert_eq!((stats.queued_blocks, stats.blocks, stats.block_bytes, stats.stored_bytes), (5, 1, 100, 60));
        assert_eq!((stats.refused, stats.failed, stats.waits.count), (3, 0, 2));
    }
}
