//! Admissions of a scheduling pass, in free seats of the batch and in those of requests that are behind (`seats.rs`).

use super::Scheduler;
use crate::Step;
use crate::journal::preempted::PreemptionCause;
use crate::journal::reasons::Lack;
use crate::schedule::admission::{Admission, admit};
use crate::schedule::preemption::swap_or_preempt;
use crate::schedule::state::State;
use crate::schedule::{background, imitate, loading, preemption, seats};

impl Scheduler {
    /// Admits a suspect out of turn. Returns `false` if there is no room, or the suspect has to wait for blocks.
    pub(super) fn admit_suspect(&self, state: &mut State, slot: usize, budget: u32, step: &Step) -> bool {
        if state.is_under_memory_pressure() || !state.has_seat() || budget == 0 {
            return false;
        }
        let is_limited = self.aligned && !step.seqs.is_empty();
        match admit(state, slot, &self.fits(state, budget, is_limited)) {
            Admission::Admitted => true,
            Admission::Loads => {
                loading::begin(state, slot);
                false
            }
            Admission::Deferred(_) | Admission::Full | Admission::NoBlocks | Admission::NoSeat => false,
        }
    }

    /// Admits the head of the queue, and those behind it, while there is room.
    pub(super) fn admit_waiting(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) {
        if !seats::may_admit(state) {
            return note_head(state, if state.has_seat() { Lack::Turn } else { Lack::Seat });
        }
        loop {
            let has_seat = state.has_seat();
            if !(if has_seat { self.has_room(state, *budget, step) } else { seats::are_taken(state) }) {
                return note_head(state, if has_seat { Lack::Tokens } else { Lack::Seat });
            }
            let State { waiting, sequences, kv, .. } = state;
            let next = waiting.next(kv.tree.evicted(), &mut |slot| kv.cached_prefix(&sequences[slot]));
            let is_held = |slot: usize| state.background.holds(&state.sequences[slot]);
            let Some(slot) = next.filter(|slot| seats::has_turn(state, *slot) && !is_held(*slot)) else {
                return note_head(state, Lack::Turn);
            };
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
        let admission = admit(state, slot, &self.fits_beside(state, *budget, step));
        match admission {
            Admission::Admitted => {
                let chunk = match self.chunk(state, slot, *budget, self.n_parts(step) == 0) {
                    // There was room where the prompt begins. Behind what is copied a token takes more of the step.
                    0 => state.sequences[slot].next_uncopied().min(state.config.block_size).min(*budget),
                    chunk => chunk,
                };
                let ran = self.run_chunk(state, slot, chunk, step);
                assert!(ran, "the blocks were counted at admission");
                *budget -= chunk;
            }
            Admission::Deferred(hash) => state.waiting.park(slot, hash),
            Admission::Loads => loading::begin(state, slot),
            Admission::NoBlocks => return self.take_blocks(state, slot),
            Admission::Full | Admission::NoSeat => return false,
        }
        true
    }

    /// Takes the blocks of a background request for the one in slot `by`. Returns `false` if there is none, or a step runs it.
    pub(super) fn take_blocks(&self, state: &mut State, by: usize) -> bool {
        if !background::gives_blocks(state, by) {
            return false;
        }
        let slot = preemption::victim(state);
        let taken = !self.is_picked(state, slot);
        if taken {
            swap_or_preempt(state, slot, PreemptionCause::Block, Some(by));
        }
        state.victims.clear();
        taken
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
        let admission = admit(state, slot, &self.fits_beside(state, freed, step));
        match admission {
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
                swap_or_preempt(state, victim, PreemptionCause::Seat, Some(slot));
                return self.admit_next(state, slot, budget, step);
            }
            Admission::NoSeat => swap_or_preempt(state, victim, PreemptionCause::Seat, Some(slot)),
            Admission::NoBlocks => return self.take_blocks(state, slot),
            _ => return false,
        }
        true
    }

    /// Returns `true` if the step being made takes a part of another request.
    fn has_room(&self, state: &State, budget: u32, step: &Step) -> bool {
        budget > 0 && self.prefill_budget.has_room() && self.n_parts(step) < imitate::step_share(&state.config)
    }

    /// Returns whether the first chunk of another prompt fits into the step, as [`admit`] asks.
    fn fits_beside<'a>(&'a self, state: &State, budget: u32, step: &Step) -> impl Fn(u32, u32) -> bool + use<'a> {
        let is_whole = state.config.prefill_first.is_whole();
        let is_limited = (self.aligned || is_whole || self.prefill_budget.is_limited()) && self.n_parts(step) > 0;
        let budget = imitate::padded_budget(&state.config, step).unwrap_or(budget);
        self.fits(state, budget, is_limited)
    }

    /// Returns whether a prompt of which `rest` tokens are to be computed from position `begin` on may begin within the budget: with all, a block, or as
    /// little as the target time leaves.
    fn fits<'a>(&'a self, state: &State, budget: u32, is_limited: bool) -> impl Fn(u32, u32) -> bool + use<'a> {
        let (is_whole, block_size) = (state.config.prefill_first.is_whole(), state.config.block_size);
        move |begin, rest| {
            let least = match self.aligns(begin) {
                _ if is_whole => rest,
                true => rest.min(block_size),
                false => rest.min(1),
            };
            !is_limited || budget.min(self.prefill_budget.left(begin)) >= least
        }
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

/// Notes the lack of the head of the queue, if somebody asks.
fn note_head(state: &mut State, lack: Lack) {
    if state.journal.not_admitted.is_some()
        && let Some(slot) = state.waiting.first()
    {
        state.journal.note_lack(state.sequences[slot].id, lack);
    }
}

/// Returns `true` if the prompt of another running sequence goes on behind the step being made, and takes the tokens that the one in `slot`
/// leaves.
fn has_prompt_beside(state: &State, slot: usize) -> bool {
    let goes_on = |other: &usize| {
        let seq = &state.sequences[*other];
        let is_prompt = seq.is_prefill() && !seq.decodes_next() && seq.ending.is_none();
        *other != slot && is_prompt && !state.background.holds(seq)
    };
    state.batch.running.iter().any(goes_on)
}
