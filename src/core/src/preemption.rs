//! Preemption: the victim when blocks run out, and the victim's way out of the batch, swapped or recomputed.
//!
//! The cost of a preemption is estimated in time. Swapping copies the blocks that no other sequence reads, out and back.
//! Recomputing runs every token again whose KV will not be found in the cache: blocks with other readers will be found, and of the
//! blocks that fall idle a share, learned from earlier preemptions ([`crate::rehit`]).
//!
//! **No thrash.** A sequence that was preempted and came back is spared until it has generated a token, unless all are such; then the
//! last to arrive goes, so the first to arrive always makes progress.

use std::cmp::Reverse;

use crate::block::BlockState;
use crate::config::Preemption;
use crate::digest::Decision;
use crate::readers;
use crate::sequence::SequenceEvent;
use crate::state::State;
use crate::swap;

/// Estimated cost of preempting a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    /// Time of the transfers out and back; `u64::MAX` if the host has no room.
    swap_ns: u64,
    /// Time of the recomputation.
    recompute_ns: u64,
    /// Device blocks freed.
    freed: u64,
}

impl Loss {
    /// Returns the cost per freed block as a power of two, so that age decides between victims of about equal cost.
    fn level(self) -> u32 {
        let cost = self.swap_ns.min(self.recompute_ns) / self.freed.max(1);
        u64::BITS - cost.leading_zeros()
    }
}

/// Preempts the victim among the running sequences.
pub(crate) fn preempt_one(state: &mut State) {
    let slot = victim(state);
    let swaps = match state.config.preemption {
        Preemption::Swap => true,
        Preemption::Recompute => false,
        Preemption::Cost => {
            let loss = loss(state, slot);
            loss.swap_ns < loss.recompute_ns
        }
    };
    if !(swaps && swap::begin_out(state, slot)) {
        preempt(state, slot, SequenceEvent::Preempted);
    }
}

/// Returns the running sequence to preempt. Candidates have made progress; among candidates the lowest preemption rank decides,
/// then the least cost per freed block, to a power of two, then the latest arrival.
fn victim(state: &State) -> usize {
    let rank = |slot: &&usize| {
        let seq = &state.sequences[**slot];
        let spared = seq.history.preemptions > 0 && seq.generated() == seq.history.generated_at_entry;
        let cost = match state.config.preemption {
            Preemption::Cost => loss(state, **slot).level(),
            Preemption::Swap | Preemption::Recompute => 0,
        };
        let preemption_rank = state.waiting.preemption_rank(&seq.view(seq.published * state.config.block_size));
        (spared, preemption_rank, cost, Reverse(seq.view.arrival))
    };
    *state.batch.running.iter().min_by_key(rank).expect("a sequence that needs a block is running")
}

fn loss(state: &State, slot: usize) -> Loss {
    let (seq, config, kv) = (&state.sequences[slot], &state.config, &state.kv);
    let published = seq.published as usize;
    let shared = readers::shared(kv, &seq.table[..published]) as u64;
    let own = seq.computed_blocks(config.block_size) as u64 - shared;
    let idle = published as u64 - shared;
    let found = (shared + state.rehit.expect(idle)) * u64::from(config.block_size);
    let recomputed = u64::from(seq.computed).saturating_sub(found);
    let can_swap = own > 0 && own <= u64::from(kv.free_hosts());
    Loss {
        swap_ns: if can_swap { own.saturating_mul(2).saturating_mul(config.swap_block_ns) } else { u64::MAX },
        recompute_ns: recomputed.saturating_mul(config.recompute_token_ns),
        freed: seq.table.len() as u64 - shared,
    }
}

/// Takes a sequence out of the batch, releases the sequence's blocks, and returns the sequence to the waiting queue.
pub(crate) fn preempt(state: &mut State, slot: usize, event: SequenceEvent) {
    state.leave_batch(slot);
    let State { sequences, kv, journal, .. } = state;
    let seq = &mut sequences[slot];
    assert!(!seq.is_in_step(), "a worker may still write the blocks of {}", seq.id);
    journal.decide(Decision::Preempt, seq.id.0, u64::from(seq.computed));
    let published = &seq.table[..seq.published as usize];
    debug_assert!(published.iter().all(|block| kv.tree.pool().state(block.index) == BlockState::Held));
    let shared = published.iter().take_while(|block| kv.tree.readers(**block) > 1).count() as u32;
    seq.history.shared_at_preemption = shared;
    seq.history.cached_at_preemption = seq.published - shared;
    seq.history.preemptions += 1;
    journal.stats.preemptions += 1;
    kv.release(seq);
    seq.rewind(event);
    state.wait(slot);
}
