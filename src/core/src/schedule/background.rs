//! Background requests: work that serves nobody at once, as summaries of sessions and second readings of prompts.
//!
//! Under every policy they rank behind all others:
//!
//! * **Admission.** They wait behind all others ([`crate::policy::waiting`]).
//! * **Steps.** While another request waits, or its prompt is being computed, no step runs them, unless nothing else can run: neither their
//!   tokens nor the time of a step are added to the time to a first token. A step of them alone is never sent ahead of a result, and
//!   its prompt tokens take twice the time of the decodes at most, so who comes meanwhile waits for one short step.
//! * **Seats and blocks.** They are preempted first. Under every policy a waiting request takes their seats (`seats.rs`) and, if it lacks blocks,
//!   these too; nobody waits for a block that they are to compute.
//! * **Shares.** What they run counts for no tenant: it takes nothing from others.
//!
//! **Bound.** [`crate::BACKGROUND_NS`] after its acceptance a request ranks as any other, and counts for its tenant. It then ends as any other does.

use crate::request::sequence::Phase;
use crate::schedule::state::State;
use crate::schedule::swap_queue::SwapPlace;
use crate::schedule::{readers, seats};

/// Begins a step: requests that have waited enough rank as any other, and the rest is held back from the step if another one waits. Returns `true` if the
/// step would run background requests alone.
pub(crate) fn begin_step(state: &mut State) -> bool {
    let now_ns = state.kv.transfers.now_ns;
    while let Some(slot) = state.background.first_due(now_ns) {
        promote(state, slot);
    }
    state.background.release();
    if !state.background.is_any() {
        return false;
    }
    let is_served = |slot: &usize| !state.background.has(&state.sequences[*slot]);
    let is_prompt = |slot: &usize| {
        let seq = &state.sequences[*slot];
        seq.is_prefill() && !seq.decodes_next() && seq.ending.is_none()
    };
    let mut served = state.batch.running.iter().filter(|slot| is_served(slot)).peekable();
    let waits = state.waiting.has_served() || state.swaps.swapped_slots().any(|slot| is_served(&slot));
    let is_alone = !waits && served.peek().is_none();
    if waits || served.any(is_prompt) {
        state.background.hold();
    }
    is_alone
}

/// Lets a background request rank as any other from now on.
fn promote(state: &mut State, slot: usize) {
    let State { background, sequences, waiting, swaps, victims, .. } = state;
    let seq = &mut sequences[slot];
    background.leave(slot, seq);
    waiting.promote(slot);
    let before = waiting.preemption_rank(&seq.view(seq.computed));
    seq.cold.view.is_background = false;
    let rise = waiting.preemption_rank(&seq.view(seq.computed)) - before;
    if let Phase::Swapped(swapped) = &mut seq.phase {
        let arrival = seq.cold.view.arrival;
        swaps.swapped.remove(&SwapPlace::new(swapped.preemption_rank, arrival, slot));
        swapped.preemption_rank += rise;
        swaps.swapped.insert(SwapPlace::new(swapped.preemption_rank, arrival, slot));
    }
    victims.clear();
}

/// Returns `true` if the blocks of a background request are to be taken for the request in slot `by`: that one is served, and no blocks are on their way from
/// others.
pub(crate) fn gives_blocks(state: &State, by: usize) -> bool {
    let is_served = |slot: usize| !state.background.has(&state.sequences[slot]);
    let any = state.background.is_any() && state.batch.running.iter().any(|slot| !is_served(*slot));
    any && is_served(by) && readers::freed_by_swaps(state) == 0
}

/// Returns the first request to come back from the host, if it waits for blocks of background requests.
pub(crate) fn awaited_by_swapped(state: &State) -> Option<usize> {
    if !state.background.is_any() {
        return None;
    }
    let slot = state.swaps.swapped_slots().next()?;
    (gives_blocks(state, slot) && !seats::is_for_head(state, slot)).then_some(slot)
}
