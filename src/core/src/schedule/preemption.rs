//! Preemption: the victim when blocks run out, and the victim's way out of the batch, swapped or recomputed.
//!
//! The cost of a preemption is estimated in time, learned from earlier copies and prefills ([`crate::cache::links`]). Swapping copies the blocks that no other sequence reads, out and back.
//! Recomputing runs every token again whose KV will not be found in the cache: blocks with other readers will be found, and of the
//! blocks that fall idle a share, learned from earlier preemptions ([`crate::schedule::rehit`]). A sequence that might go on with other tokens when
//! computed again is swapped if the host has room.
//!
//! **No thrash.** Of running sequences with one preemption rank, a sequence that was preempted and came back is spared until it has
//! generated a token, unless all are such; then the last to arrive goes, so the first to arrive always makes progress. A sequence
//! is not spared at the expense of a more urgent one.
//!
//! **At once.** A preemption waits for the end of the steps in flight, except with [`Preemption::is_at_once`]. Then later steps take the
//! blocks at once, because a worker runs steps in order. Copies run alongside steps, so until the steps in flight end, no copy touches a
//! free or cached block, and nothing is admitted. Meanwhile the victim is in state [`crate::request::sequence::SequenceState::Preempted`]; tokens
//! sampled by the steps in flight count, unless the victim was retracted.
//!
//! **Retraction.** [`Preemption::retracts`] follows SGLang: the least output goes, and cached blocks are evicted ahead of the next need.

use std::cmp::Reverse;

use trunkline_port::Keeps;

use crate::blocks::block::BlockState;
use crate::cache::kv::Kv;
use crate::config::{Config, Preemption};
use crate::h2o::Mode;
use crate::journal::digest::Decision;
use crate::journal::preempted::{Preempted, PreemptionCause};
use crate::names::ids::BlockHandle;
use crate::policy::waiting::Waiting;
use crate::request::sequence::{GivenUp, Phase, Sequence, SequenceEvent};
use crate::schedule::readers;
use crate::schedule::rehit::RehitRate;
use crate::schedule::state::State;
use crate::schedule::swap;
use crate::schedule::victims::Key;

/// Tokens of each remaining decode for which a retraction makes room (`SGLANG_RETRACT_DECODE_STEPS`).
const TOKENS_AHEAD: u32 = 20;

/// Estimated cost of preempting a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    /// Time of the transfers out and back; `u64::MAX` if the host has no room.
    swap_ns: u64,
    /// Time of the recomputation; `u64::MAX` if the host has room and other tokens could follow a recomputation.
    recompute_ns: u64,
    /// Device blocks freed.
    freed: u64,
}

impl Loss {
    /// Estimates the cost of preempting a sequence whose first `shared` blocks have other readers.
    fn new(seq: &Sequence, shared: u32, config: &Config, rehit: RehitRate, kv: &Kv) -> Self {
        let links = &kv.transfers.links;
        let n = seq.computed_blocks(config.block_size);
        let own = seq.blocks_at(shared as usize..n) as u64;
        let freed = own + (seq.table.len() - n) as u64 * u64::from(config.n_groups());
        let shared = u64::from(shared);
        let idle = u64::from(seq.published) - shared;
        let found = (shared + rehit.expect(idle)) * u64::from(config.block_size);
        let recomputed = u64::from(seq.computed).saturating_sub(found);
        let can_swap = own > 0 && own <= u64::from(kv.free_hosts());
        let may_recompute = !(can_swap && may_change(seq, config));
        Self {
            swap_ns: if can_swap { links.swap_ns(own) } else { u64::MAX },
            recompute_ns: if may_recompute { links.recompute_ns(recomputed) } else { u64::MAX },
            freed,
        }
    }

    /// Returns the cost per freed block as a power of two, so that age decides between victims of about equal cost.
    fn level(self) -> u32 {
        let cost = self.swap_ns.min(self.recompute_ns) / self.freed.max(1);
        u64::BITS - cost.leading_zeros()
    }
}

/// Returns `true` if other tokens could follow should a sequence be computed again: it chose blocks to drop by what it read so far, or has
/// copied KV that is not the one of its own tokens.
fn may_change(seq: &Sequence, config: &Config) -> bool {
    let drops = || config.worker.groups.iter().skip(1).any(|keeps| *keeps == Keeps::Scored);
    let is_on = seq.cold.planner.as_ref().is_some_and(|planner| planner.mode == Mode::On);
    is_on && drops() || seq.exact(seq.computed) < seq.computed
}

/// Preempts the victim among the running sequences, for a block that the sequence in slot `by` needs; `None` if all wait for copies.
pub(crate) fn preempt_one(state: &mut State, by: Option<usize>) {
    let slot = victim(state);
    let sharing = state.kv.tree.sharing_changes();
    let rank = |state: &State| state.waiting.preemption_rank(&state.sequences[slot].view(0));
    let tenant_rank = state.waiting.counts_service().then(|| rank(state));
    swap_or_preempt(state, slot, PreemptionCause::Block, by);
    if state.config.preemption.retracts() {
        evict_ahead(state);
    }
    let State { batch, sequences, reserve, .. } = state;
    reserve.preempted(batch.running.iter().map(|slot| &sequences[*slot]));
    // Other keys change if another sequence now reads blocks alone, or if the tenant's standing was lifted. With a transfer that reads the
    // same blocks, no count says so.
    let lifted = tenant_rank.is_some_and(|before| rank(state) != before);
    let uncounted = state.config.preemption == Preemption::Cost && state.kv.transfers.read_prefixes();
    if lifted || uncounted || state.kv.tree.sharing_changes() != sharing {
        state.victims.clear();
    }
}

/// Takes a running sequence out of the batch, to the host or to be computed again, as the configuration and the costs say: for the sequence in
/// slot `by`, if there is one.
pub(crate) fn swap_or_preempt(state: &mut State, slot: usize, cause: PreemptionCause, by: Option<usize>) {
    let (request, by) = (state.sequences[slot].id, by.map(|by| state.sequences[by].id));
    let swaps = match state.config.preemption {
        Preemption::Swap => true,
        Preemption::Recompute | Preemption::Retract | Preemption::RecomputeAtOnce | Preemption::RetractAtOnce => false,
        Preemption::Cost => {
            let Loss { swap_ns, recompute_ns, .. } = loss(state, slot);
            let swaps = swap_ns < recompute_ns;
            // What the others cost may have changed with it.
            if !swaps && swap_ns < u64::MAX && state.kv.transfers.links.passed_over_host(recompute_ns) {
                state.victims.clear();
            }
            swaps
        }
    };
    let swapped = swaps && swap::begin_out(state, slot);
    if !swapped {
        preempt(state, slot);
    }
    state.journal.note_preempted(Preempted { request, cause, by, swapped });
}

/// Takes a prompt without a block for its next chunk out of the batch, to be computed again.
pub(crate) fn preempt_prompt(state: &mut State, slot: usize) {
    let request = state.sequences[slot].id;
    preempt(state, slot);
    state.journal.note_preempted(Preempted { request, cause: PreemptionCause::Prompt, by: None, swapped: false });
}

/// Evicts cached blocks after a retraction, until the decodes left have blocks for their next tokens, or none is cached (`release_req`,
/// SGLang 0.5.23). SGLang does not cache the output of a running request. The retraction found no idle block, so the output, behind the
/// prompt, is evicted first: under the policy `leaves` as a whole, which is the same.
fn evict_ahead(state: &mut State) {
    let State { batch, sequences, kv, config, .. } = state;
    let (mut decodes, mut taken) = (0, 0);
    for seq in batch.running.iter().map(|slot| &sequences[*slot]).filter(|seq| seq.decodes_next()) {
        decodes += 1;
        // The pass under way gave it a block.
        let is_fresh =
            seq.planned().is_multiple_of(config.block_size) && seq.planned() < seq.capacity(config.block_size);
        taken += u32::from(is_fresh);
    }
    let needed = (decodes * TOKENS_AHEAD).div_ceil(config.block_size).saturating_sub(taken);
    kv.evict_until_free(needed * kv.entry_blocks());
}

/// Returns the running sequence to preempt, the one of the lowest key ([`key`]).
pub(crate) fn victim(state: &mut State) -> usize {
    loop {
        while let Some((before, slot)) = state.victims.pop() {
            // A swap-out took host blocks since: swapping another sequence may be impossible now, which can only raise a key.
            if key(state, slot) == before {
                debug_assert_eq!(Some(slot), search(state), "the victim is the one that a search over all finds");
                return slot;
            }
            state.victims.clear();
        }
        assert!(!state.batch.running.is_empty(), "a sequence that needs a block is running");
        // The last to arrive are mostly the last to join, and win between equals: found first, they stay.
        for at in (0..state.batch.running.len()).rev() {
            let slot = state.batch.running[at];
            let key = key(state, slot);
            state.victims.offer(key, slot);
        }
    }
}

/// Takes note of a running sequence that took a block since the last victim was chosen.
pub(crate) fn grew(state: &mut State, slot: usize) {
    if !state.victims.is_empty() {
        let key = key(state, slot);
        state.victims.update(key, slot);
    }
}

/// Returns the place of a running sequence in the order of preemption: the background goes first, then the lowest preemption rank, then sequences that
/// made progress since an earlier preemption, then the least cost per freed block, to a power of two, then the last to arrive.
///
/// A rank that follows the cache says what a preemption would cost, not how urgent a request is, and is lowest for a sequence that is
/// being recomputed. Under such a policy progress counts before the rank.
fn key(state: &State, slot: usize) -> Key {
    let State { sequences, waiting, victims, config, .. } = state;
    let seq = &sequences[slot];
    let spared = i128::from(victims.is_spared(slot, progress(seq, config)));
    let level = if config.preemption == Preemption::Cost { loss(state, slot).level() } else { 0 };
    let is_served = !state.background.has(seq);
    Key { is_served, order: order(waiting, seq, spared, config), level, arrival: Reverse(victims.arrival(slot)) }
}

/// Returns the number of tokens generated by a sequence, or with at-once preemption also sampled by steps in flight.
fn progress(seq: &Sequence, config: &Config) -> u32 {
    seq.generated() + if config.preemption.is_at_once() { u32::from(seq.ahead.samples) } else { 0 }
}

fn order(waiting: &Waiting, seq: &Sequence, spared: i128, config: &Config) -> (i128, i128) {
    if config.preemption.retracts() {
        return (i128::from(seq.generated()), -i128::from(seq.prompt_tokens));
    }
    if !waiting.has_preemption_ranks() {
        return (0, spared);
    }
    let rank = waiting.preemption_rank(&seq.view(seq.published * config.block_size));
    if waiting.ranks_by_cache() { (spared, rank) } else { (rank, spared) }
}

/// Returns the victim by comparing all running sequences again. For checks.
fn search(state: &State) -> Option<usize> {
    let key = |slot: &usize| {
        let seq = &state.sequences[*slot];
        let spared =
            seq.cold.history.preemptions > 0 && progress(seq, &state.config) == seq.cold.history.generated_at_entry;
        let level = if state.config.preemption == Preemption::Cost { loss(state, *slot).level() } else { 0 };
        let order = order(&state.waiting, seq, i128::from(spared), &state.config);
        Key { is_served: !state.background.has(seq), order, level, arrival: Reverse(seq.cold.view.arrival) }
    };
    state.batch.running.iter().copied().min_by_key(key)
}

fn loss(state: &State, slot: usize) -> Loss {
    let (seq, kv) = (&state.sequences[slot], &state.kv);
    let shared = readers::shared(kv, &seq.table[..seq.published as usize]) as u32;
    Loss::new(seq, shared, &state.config, state.rehit, kv)
}

/// Takes a running sequence, whose KV was lost with the worker, back to its beginning. The caller takes it out of the batch, frees all
/// blocks at once and lets the sequence wait.
pub(crate) fn lose(state: &mut State, slot: usize) {
    state.end_shared_work(slot);
    state.free_worker_slot(slot);
    let seq = &mut state.sequences[slot];
    state.journal.decide(Decision::Preempt, seq.id.0, u64::from(seq.computed));
    state.journal.stats.requests.restarted += 1;
    let history = &mut seq.cold.history;
    // Blocks lost with the worker are not found again; that says nothing of preemptions.
    (history.shared_at_preemption, history.cached_at_preemption) = (0, 0);
    history.preemptions += 1;
    seq.table.clear();
    seq.cold.tables.iter_mut().for_each(Vec::clear);
    seq.rewind(SequenceEvent::WorkerLost);
}

/// Takes a sequence out of the batch, releases the sequence's blocks, and returns the sequence to the waiting queue, at the end of the
/// steps in flight with the sequence if there are some.
fn preempt(state: &mut State, slot: usize) {
    state.leave_batch(slot);
    let State { sequences, kv, journal, config, batch, .. } = state;
    let seq = &mut sequences[slot];
    let is_in_step = seq.is_in_step();
    assert!(!is_in_step || config.preemption.is_at_once(), "a worker may still write the blocks of {}", seq.id);
    journal.decide(Decision::Preempt, seq.id.0, u64::from(seq.computed));
    let published = &seq.table[..seq.published as usize];
    let is_held =
        |block: &BlockHandle| matches!(kv.tree.pool().state(block.index), BlockState::Held | BlockState::Stale);
    debug_assert!(published.iter().all(is_held));
    let shared = published.iter().take_while(|block| kv.tree.readers(**block) > 1).count() as u32;
    let is_findable = published.first().is_some_and(|first| kv.tree.is_findable(*first));
    (seq.cold.history.shared_at_preemption, seq.cold.history.cached_at_preemption) =
        if is_findable { (shared, seq.published - shared) } else { (0, 0) };
    seq.cold.history.preemptions += 1;
    journal.stats.preemptions += 1;
    if is_in_step {
        let given_up = if config.publishes_ahead() { Some(Box::new(GivenUp::of(seq))) } else { None };
        kv.release_at_once(seq, journal.stats.steps);
        batch.preempted.push(slot);
        seq.rewind(SequenceEvent::Preempted);
        seq.cold.given_up = given_up;
    } else {
        kv.release(seq);
        seq.rewind(SequenceEvent::Preempted);
    }
    if config.preemption.retracts() {
        seq.cold.history.queued_as = Some(state.next_arrival);
        state.next_arrival += 2;
    }
    if !is_in_step {
        state.wait(slot);
    }
}

/// Lets preempted sequences wait for admission, except for those that steps in flight still run.
pub(crate) fn end_steps(state: &mut State) {
    let mut at = 0;
    while let Some(slot) = state.batch.preempted.get(at).copied() {
        let seq = &mut state.sequences[slot];
        if seq.is_in_step() {
            at += 1;
            continue;
        }
        seq.settle();
        seq.cold.given_up = None;
        seq.transition(SequenceEvent::StepsEnded, Phase::Waiting);
        state.batch.preempted.remove(at);
        state.wait(slot);
    }
}
