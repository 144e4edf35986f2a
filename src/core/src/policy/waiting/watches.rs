//! Waiting requests by the block after their cached prefix.
//!
//! A policy ranking by the cache needs the number of cached tokens of each waiting request. Counting all of them in every
//! step would cost more than the step. The number can only grow when the first missing block is published, so each
//! request watches that block. The number can only shrink when a block is evicted; that makes the rank worse, so it is enough
//! to count again before the request is admitted ([`super::Waiting::next`]).

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::blocks::hash::BlockHash;

/// Watched blocks, with the requests watching each.
#[derive(Debug, Default)]
pub(super) struct Watches {
    /// (block, slot of the request).
    watches: BTreeSet<(BlockHash, usize)>,
    /// Number of requests per watched block, to answer in O(1) for blocks that none watches. Never iterated.
    counts: HashMap<u64, u32, ahash::RandomState>,
    /// Published blocks with requests left to count again, in the order of publication.
    grown: VecDeque<BlockHash>,
}

impl Watches {
    /// Lets the request in `slot` watch a block.
    pub fn add(&mut self, hash: BlockHash, slot: usize) {
        if self.watches.insert((hash, slot)) {
            *self.counts.entry(hash.fingerprint()).or_default() += 1;
        }
    }

    /// Ends a watch.
    pub fn remove(&mut self, hash: BlockHash, slot: usize) {
        if self.watches.remove(&(hash, slot)) {
            let count = self.counts.get_mut(&hash.fingerprint()).expect("a watched block is counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&hash.fingerprint());
            }
        }
    }

    /// Takes note of a published block.
    pub fn published(&mut self, hash: BlockHash) {
        if self.counts.contains_key(&hash.fingerprint()) {
            self.grown.push_back(hash);
        }
    }

    /// Moves the slots of requests that watch a published block to `slots`, as far as `slots` stays within `max`. The requests watch
    /// nothing then.
    pub fn take_grown(&mut self, max: usize, slots: &mut Vec<usize>) {
        while let Some(hash) = self.grown.front().copied() {
            let from = slots.len();
            let watching = self.watches.range((hash, 0)..=(hash, usize::MAX));
            slots.extend(watching.take(max - from).map(|(_, slot)| *slot));
            for slot in &slots[from..] {
                self.remove(hash, *slot);
            }
            if slots.len() == max {
                return;
            }
            self.grown.pop_front();
        }
    }
}
