//! Admission: a waiting request finds the cached prefix of its prompt, takes every block needed for the tokens, and enters the
//! batch.

use crate::digest::Decision;
use crate::sequence::{Phase, SequenceEvent};
use crate::state::State;

/// The outcome of an attempt to admit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The request is in the batch.
    Admitted,
    /// The request has its blocks, and transfers from tiers are to fill some first.
    Loads,
    /// Another request computes the next block of the prefix; requests behind this one may pass.
    Deferred,
    /// There is no room.
    Full,
}

/// Moves a waiting request into the batch, with the prefix hit and every block needed for the tokens, if there is room.
///
/// `aligned_budget` is the token budget left if the request's first chunk must end at a block boundary; a request that cannot run a
/// block within this budget is not admitted, unless it loads blocks first.
pub(crate) fn admit(state: &mut State, slot: usize, aligned_budget: Option<u32>) -> Admission {
    let size = state.config.block_size;
    let State { sequences, kv, .. } = state;
    kv.find(&sequences[slot]);
    if is_computed_by_another(state, slot, state.kv.found.len()) {
        return Admission::Deferred;
    }
    let State { sequences, kv, journal, .. } = state;
    let seq = &mut sequences[slot];
    let loads = kv.plan_load(seq);
    let total = seq.tokens.len() as u32;
    let hit = kv.found.len() as u32;
    // The last token is run again even if its KV is there, because its logits are not.
    let computed = (hit * size).min(total - 1);
    if !loads && aligned_budget.is_some_and(|budget| budget < (total - computed).min(size)) {
        return Admission::Full;
    }
    let needed = total.div_ceil(size) - hit;
    let usable = kv.tree.usable() - kv.tree.count_idle(&kv.found);
    // Some blocks for each running sequence are left, so that admission does not cause the next preemption.
    let watermark = (f64::from(state.batch.len()) * state.config.launch_watermark).ceil() as u32;
    if usable < needed.saturating_add(watermark) {
        if loads && !std::mem::replace(&mut seq.history.prefetched, true) {
            kv.prefetch(journal);
        }
        return Admission::Full;
    }
    take_blocks(state, slot, needed, computed);
    let State { sequences, journal, waiting, .. } = state;
    let seq = &mut sequences[slot];
    let decision = if loads { Decision::Load } else { Decision::Admit };
    journal.decide(decision, seq.id.0, u64::from(computed));
    waiting.remove(slot);
    if loads {
        return Admission::Loads;
    }
    seq.transition(SequenceEvent::Admitted, Phase::Prefill);
    state.count_cached(slot);
    state.enter_batch(slot);
    Admission::Admitted
}

/// Gives a sequence its prefix hit and `needed` private blocks.
fn take_blocks(state: &mut State, slot: usize, needed: u32, computed: u32) {
    let State { sequences, kv, rehit, .. } = state;
    let seq = &mut sequences[slot];
    if seq.history.admissions == 0 {
        kv.tree.hold(&kv.found, &mut seq.table);
    } else {
        kv.tree.hold_again(&kv.found, &mut seq.table);
    }
    seq.history.admissions += 1;
    let allocated = kv.tree.allocate(needed, &mut seq.table);
    assert!(allocated, "usable blocks were counted a moment ago");
    seq.published = kv.found.len() as u32;
    seq.computed = computed;
    let found = seq.published.saturating_sub(seq.history.shared_at_preemption);
    rehit.observe(found, seq.history.cached_at_preemption);
    (seq.history.shared_at_preemption, seq.history.cached_at_preemption) = (0, 0);
}

/// Returns `true` if a sequence in the batch, or one that loads, is about to publish the `at`-th block of a waiting request.
fn is_computed_by_another(state: &State, slot: usize, at: usize) -> bool {
    // The chained hash of a block names all blocks before it too.
    let Some(hash) = state.sequences[slot].hashes.get(at) else { return false };
    let others = state.batch.running.iter().chain(&state.loading);
    others.map(|other| &state.sequences[*other]).any(|other| {
        matches!(other.phase, Phase::Prefill | Phase::Loading(_))
            && !other.unpublishable
            && other.ending.is_none()
            && other.published <= at as u32
            && other.hashes.get(at) == Some(hash)
    })
}
