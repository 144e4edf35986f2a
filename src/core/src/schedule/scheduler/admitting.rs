//! Admissions of a scheduling pass, in free seats of the batch and in those of requests that are behind (`seats.rs`).

use super::Scheduler;
use crate::Step;
use crate::schedule::admission::{Admission, admit};
use crate::schedule::preemption::swap_or_preempt;
use crate::schedule::state::State;
use crate::schedule::{imitate, loading, seats};

impl Scheduler {
    /// Admits a suspect out of turn. Returns `false` if there is no room, or the suspect has to wait for blocks.
    pub(super) fn admit_suspect(&self, state: &mut State, slot: usize, budget: u32, step: &Step) -> bool {
        if state.is_under_memory_pressure() || !state.has_seat() || budget == 0 {
            return false;
        }
        let aligned_budget = (self.aligns() && !step.seqs.is_empty()).then_some(budget);
        match admit(state, slot, aligned_budget) {
            Admission::Admitted => true,
            Admission::Loads => {
                loading::begin(state, slot);
                false
            }
            Admission::Deferred(_) | Admission::Full | Admission::NoSeat => false,
        }
    }

    /// Admits the head of the queue, and those behind it, while there is room.
    pub(super) fn admit_waiting(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) {
        if !seats::may_admit(state) {
            return;
        }
        loop {
            let has_seat = state.has_seat();
            if !(if has_seat { self.has_room(state, *budget, step) } else { state.waiting.takes_seats() }) {
                return;
            }
            let State { waiting, sequences, kv, .. } = state;
            let next = waiting.next(kv.tree.evicted(), &mut |slot| kv.cached_prefix(&sequences[slot]));
            let Some(slot) = next.filter(|slot| seats::has_turn(state, *slot)) else { return };
            let goes_on = match has_seat {
                true => self.admit_next(state, slot, budget, step),
                false => self.take_seat(state, slot, budget, step),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Admits a request to a free seat. Returns `false` if there is no room, neither for those behind.
    fn admit_next(&mut self, state: &mut State, slot: usize, budget: &mut u32, step: &mut Step) -> bool {
        match admit(state, slot, self.limited_budget(state, *budget, step)) {
            Admission::Admitted => {
                let chunk = self.chunk(state, slot, *budget, self.n_parts(step) == 0);
                let ran = self.run_chunk(state, slot, chunk, step);
                assert!(ran, "the blocks were counted at admission");
                *budget -= chunk;
            }
            Admission::Deferred(hash) => state.waiting.park(slot, hash),
            Admission::Loads => loading::begin(state, slot),
            Admission::Full | Admission::NoSeat => return false,
        }
        true
    }

    /// Frees a seat for a waiting request, if the last running one is behind it and nothing else is missing: now, or, if steps run the
    /// last one, in the pass after they end. Returns `true` if a request may be admitted now.
    fn take_seat(&mut self, state: &mut State, slot: usize, budget: &mut u32, step: &mut Step) -> bool {
        let Some(victim) = seats::victim(state, slot) else { return false };
        if has_prompt_beside(state, victim) {
            return false;
        }
        // The tokens of the one that leaves are free then, too.
        let freed = *budget + self.picked_tokens(victim);
        match admit(state, slot, self.limited_budget(state, freed, step)) {
            Admission::Deferred(hash) => state.waiting.park(slot, hash),
            Admission::NoSeat if self.is_picked(state, victim) => {
                self.leave_out(state, freed);
                return false;
            }
            // The one that leaves may be the next of the queue, so the seat is given away at once, or not at all.
            Admission::NoSeat if state.waiting.counts_service() => {
                if !self.has_room(state, *budget, step) {
                    return false;
                }
                swap_or_preempt(state, victim);
                return self.admit_next(state, slot, budget, step);
            }
            Admission::NoSeat => swap_or_preempt(state, victim),
            _ => return false,
        }
        true
    }

    /// Returns `true` if the step being made takes a part of another request.
    fn has_room(&self, state: &State, budget: u32, step: &Step) -> bool {
        budget > 0 && self.n_parts(step) < imitate::step_share(&state.config)
    }

    /// Returns the token budget left if the chunk of another prompt must fit into it as a whole, or end with a block.
    fn limited_budget(&self, state: &State, budget: u32, step: &Step) -> Option<u32> {
        let limited = (self.aligns() || state.config.prefill_first.is_whole()) && self.n_parts(step) > 0;
        limited.then(|| imitate::padded_budget(&state.config, step).unwrap_or(budget))
    }

    /// Leaves the next requests to give up their seats out of the next steps: as many as make room for prompts of `budget` tokens.
    fn leave_out(&self, state: &mut State, budget: u32) {
        let (mut tokens, mut leaving) = (0, std::mem::take(&mut state.batch.leaving));
        for (head, seat) in seats::exchanges(state) {
            leaving.push(seat);
            tokens += u64::from(state.sequences[head].n_tokens());
            if tokens >= u64::from(budget) {
                break;
            }
        }
        state.batch.leaving = leaving;
    }

    /// Returns `true` if a step in flight, or the one being made, runs the sequence.
    fn is_picked(&self, state: &State, slot: usize) -> bool {
        state.sequences[slot].is_in_step() || self.picked_tokens(slot) > 0
    }

    /// Returns the number of tokens that the step being made runs of a sequence.
    fn picked_tokens(&self, slot: usize) -> u32 {
        let picked = self.picked.parts.iter().map(|part| (part.slot(), part.n_tokens));
        picked.chain(self.together.iter().copied()).find(|(other, _)| *other == slot).map_or(0, |(_, n)| n)
    }
}

/// Returns `true` if the prompt of another running sequence goes on behind the step being made, and takes the tokens that the one in `slot`
/// leaves.
fn has_prompt_beside(state: &State, slot: usize) -> bool {
    let goes_on = |other: &usize| {
        let seq = &state.sequences[*other];
        *other != slot && seq.is_prefill() && !seq.decodes_next() && seq.ending.is_none()
    };
    state.batch.running.iter().any(goes_on)
}
