//! Turns of prompts, where steps have a target time of times their decodes: one prompt would take what is left of each step, and those behind it would wait
//! for its end. Before decodes were measured, only the limits of the configuration cut prompts, which take turns as well.
//!
//! * In two steps of three the shortest rest in steps goes first, and a prompt after the admissions if the head of the queue is shorter. So a short prompt is computed
//!   within a few steps of its arrival, however many long ones are under way, and of any client.
//! * In the third the prompt goes first that ran longest ago, and the admissions come last. So each gets a step in at most three times as many as there are
//!   prompts, however many short ones arrive.
//!
//! Only steps count for which several prompts compete, one after another: who comes to a prompt alone goes first.
//!
//! The shortest rest first gives the least mean time (Smith, *Various optimizers for single-stage production*, 1956); equal turns bound the time of each.

use super::{Scheduler, chunk_begin, runs_prompt};
use crate::Step;
use crate::config::StepTarget;
use crate::schedule::state::State;

/// Steps after which turns begin again.
const TURNS: u8 = 3;

impl Scheduler {
    /// Lists the prompts under way in the order in which they run in the step. Returns the number of those before the admissions.
    pub(super) fn list_prompts(&mut self, state: &State, step: &Step) -> usize {
        let State { batch, sequences, waiting, .. } = state;
        self.prompts.clear();
        if step.seqs.len() < batch.running.len() {
            self.prompts.extend(batch.running.iter().filter(|slot| runs_prompt(state, **slot)));
        }
        if !self.takes_turns(state) {
            return self.prompts.len();
        }
        if self.prompts.len() + usize::from(!waiting.is_empty()) < 2 {
            return self.prompts.len();
        }
        // Steps of a fast-forward count like others.
        let (last, turn) = self.turn;
        let turn = match step.id - last {
            0 => turn,
            1 => (turn + 1) % TURNS,
            _ => 1,
        };
        self.turn = (step.id, turn);
        if turn == 0 {
            self.prompts.sort_by_key(|slot| sequences[*slot].chunk_step);
            return self.prompts.len();
        }
        let budget = &self.prefill_budget;
        let rest = |slot: usize| budget.rest(chunk_begin(state, slot), sequences[slot].unplanned());
        self.prompts.sort_by_key(|slot| rest(*slot));
        let head = waiting.first().map_or(u64::MAX, rest);
        self.prompts.partition_point(|slot| rest(*slot) <= head)
    }

    fn takes_turns(&self, state: &State) -> bool {
        let config = &state.config;
        let is_served = matches!(config.target_step_ns, StepTarget::Times(_));
        is_served && config.reserve_prompts && !config.prefill_first.is_on() && !state.suspects.is_narrowing()
    }
}
