//! Who leaves the batch when blocks run out, and how: by swapping or by recomputing.
//!
//! What a preemption costs is estimated in time. Swapping copies, out and back, the blocks that no one else reads.
//! Recomputing runs every token again whose KV will not be found in the cache: blocks that others read will be; of those that
//! fall idle a share will be, which is learned from earlier preemptions.
//!
//! **No thrash.** Who was preempted and came back is spared until it has generated a token, unless all are such; then the
//! last to arrive goes, so the first to arrive always gets on.

use std::cmp::Reverse;

use crate::block::BlockState;
use crate::config::Preemption;
use crate::host::HostState;
use crate::scheduler::{Scheduler, decision};

/// One whole, in the unit of [`Rehit`].
const WHOLE: u64 = 1024;
/// What one observation counts against those before it.
const WEIGHT: u64 = 8;

/// The share of blocks left idle by preempted sequences that they find again, in [`WHOLE`]ths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rehit(u64);

impl Default for Rehit {
    fn default() -> Self {
        Self(WHOLE / 2)
    }
}

impl Rehit {
    /// `found` of `left` blocks were found again.
    pub fn observe(&mut self, found: u32, left: u32) {
        if left > 0 {
            let share = u64::from(found.min(left)) * WHOLE / u64::from(left);
            self.0 = (self.0 * (WEIGHT - 1) + share) / WEIGHT;
        }
    }

    /// How many of `blocks` will be found again.
    pub fn expect(self, blocks: u64) -> u64 {
        blocks * self.0 / WHOLE
    }
}

/// Estimates of what preempting a sequence costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    swap_ns: u64,
    recompute_ns: u64,
    /// Blocks that it frees.
    freed: u64,
}

impl Scheduler {
    /// Preempts the running sequence that is least dear.
    pub fn preempt_one(&mut self) -> usize {
        let slot = self.victim();
        let swap = match self.preemption {
            Preemption::Swap => true,
            Preemption::Recompute => false,
            Preemption::Cost => {
                let loss = self.loss(slot);
                loss.swap_ns < loss.recompute_ns
            }
        };
        if !(swap && self.begin_swap_out(slot)) {
            self.preempt(slot);
        }
        slot
    }

    /// The least dear running sequence: one that made progress; of those the one the policy cares for least; of those the one
    /// that costs least for what it frees, to a power of two; of those the last to arrive.
    fn victim(&self) -> usize {
        let dearness = |slot: &&usize| {
            let seq = &self.sequences[**slot];
            let spared = seq.preemptions > 0 && seq.generated() == seq.generated_at_entry;
            let cost = match self.preemption {
                Preemption::Cost => self.loss(**slot).level(),
                _ => 0,
            };
            let keep = self.waiting.preemption_rank(&seq.view(seq.published * self.block_size));
            (spared, keep, cost, Reverse(seq.arrival))
        };
        *self.running.iter().min_by_key(dearness).expect("a sequence that needs a block is running")
    }

    fn loss(&self, slot: usize) -> Loss {
        let seq = &self.sequences[slot];
        let published = seq.published as usize;
        // Readers of a block read its ancestors: those that others read too are a prefix.
        let shared = seq.table[..published].partition_point(|block| self.tree.readers(*block) > 1) as u64;
        let own = seq.computed_blocks(self.block_size) as u64 - shared;
        let idle = published as u64 - shared;
        let again =
            u64::from(seq.computed).saturating_sub((shared + self.rehit.expect(idle)) * u64::from(self.block_size));
        let can_swap = own > 0 && own <= u64::from(self.swap.host.count(HostState::Free));
        Loss {
            swap_ns: if can_swap { own.saturating_mul(2).saturating_mul(self.swap_block_ns) } else { u64::MAX },
            recompute_ns: again.saturating_mul(self.recompute_token_ns),
            freed: seq.table.len() as u64 - shared,
        }
    }

    /// Takes a sequence out of the batch, gives up its blocks, and puts it back in its place among the waiting.
    pub fn preempt(&mut self, slot: usize) {
        self.leave_batch(slot);
        let seq = &mut self.sequences[slot];
        assert!(!seq.in_step, "a worker may still write the blocks of {}", seq.id);
        self.digest.decide(decision::PREEMPT, seq.id.0, u64::from(seq.computed));
        seq.left_shared = 0;
        seq.left_cached = seq.published;
        for block in &seq.table[..seq.published as usize] {
            debug_assert_eq!(self.tree.pool().state(block.index), BlockState::Held);
            if self.tree.readers(*block) == 1 {
                break;
            }
            seq.left_shared += 1;
            seq.left_cached -= 1;
        }
        seq.preemptions += 1;
        self.stats.preemptions += 1;
        self.release_all(slot);
        self.sequences[slot].rewind();
        self.wait(slot);
    }
}

impl Loss {
    /// Cost per freed block, as a power of two, so that age decides between about equals.
    fn level(self) -> u32 {
        let cost = self.swap_ns.min(self.recompute_ns) / self.freed.max(1);
        u64::BITS - cost.leading_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_found_again_follows_what_was_seen() {
        let mut rehit = Rehit::default();
        assert_eq!(rehit.expect(100), 50);
        (0..60).for_each(|_| rehit.observe(10, 10));
        assert!(rehit.expect(1000) > 980);
        (0..60).for_each(|_| rehit.observe(0, 7));
        assert!(rehit.expect(1000) < 20);
        rehit.observe(5, 0);
        assert!(rehit.expect(1000) < 20, "nothing left says nothing");
    }
}
