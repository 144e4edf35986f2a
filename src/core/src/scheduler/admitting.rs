//! Admissions of a scheduling pass, in free seats of the batch and in those of requests that are behind (`seats.rs`).

use super::{Scheduler, step_share};
use crate::admission::{Admission, admit};
use crate::config::{Config, PrefillFirst};
use crate::state::State;
use crate::step::Step;
use crate::{loading, seats};

impl Scheduler {
    /// Admits a suspect out of turn. Returns `false` if there is no room, or the suspect has to wait for blocks.
    pub(super) fn admit_suspect(&self, state: &mut State, slot: usize, budget: u32, step: &Step) -> bool {
        if state.is_under_memory_pressure() || !state.has_seat() || budget == 0 {
            return false;
        }
        let aligned_budget = (self.aligned && !step.seqs.is_empty()).then_some(budget);
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
        let share = step_share(&state.config);
        loop {
            let (has_seat, has_room) = (state.has_seat(), *budget > 0 && self.n_parts(step) < share);
            // A decode that gives up its seat leaves a token, too.
            let may_take = !has_seat && state.waiting.takes_seats() && (has_room || self.picks_decodes_alone());
            if !(may_take || has_seat && has_room) {
                return;
            }
            let State { waiting, sequences, kv, .. } = state;
            let next = waiting.next(kv.tree.evicted(), &mut |slot| kv.cached_prefix(&sequences[slot]));
            let Some(slot) = next.filter(|slot| seats::has_turn(state, *slot)) else { return };
            let victim = if has_seat { None } else { seats::victim(state, slot) };
            if victim.is_none() && !has_seat {
                return;
            }
            match admit(state, slot, self.limited_budget(state, *budget, step)) {
                Admission::Admitted => {
                    let chunk = self.chunk(state, slot, *budget, self.n_parts(step) == 0);
                    let ran = self.run_chunk(state, slot, chunk, step);
                    assert!(ran, "the blocks were counted at admission");
                    *budget -= chunk;
                }
                Admission::Deferred(hash) => state.waiting.park(slot, hash),
                Admission::Loads => loading::begin(state, slot),
                Admission::NoSeat => match victim.filter(|victim| !self.is_picked(state, *victim)) {
                    Some(victim) if has_room => seats::give_away(state, victim),
                    Some(_) => return,
                    None => return self.leave_out(state, *budget),
                },
                Admission::Full => return,
            }
        }
    }

    /// Returns the token budget left if the chunk of another prompt must fit into it as a whole, or end with a block.
    fn limited_budget(&self, state: &State, budget: u32, step: &Step) -> Option<u32> {
        let first = state.config.prefill_first;
        let limited = (self.aligned || first.is_whole()) && self.n_parts(step) > 0;
        let limit = if first == PrefillFirst::Padded { padded_budget(&state.config, step) } else { budget };
        limited.then_some(limit)
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
        state.sequences[slot].is_in_step() || self.together.iter().any(|(other, _)| *other == slot)
    }

    /// Returns `true` if the step being made has no prompt so far.
    fn picks_decodes_alone(&self) -> bool {
        self.together.is_empty() && self.picked.parts.iter().all(|part| part.decodes)
    }
}

/// Returns the tokens of another prompt in a step, at most, if every prompt counts as the longest.
fn padded_budget(config: &Config, step: &Step) -> u32 {
    let longest = step.seqs.iter().map(|seq| seq.n_tokens).max().unwrap_or(0);
    let share = config.max_batch_tokens / (step.seqs.len() as u32 + 1);
    if longest <= share { share } else { 0 }
}
