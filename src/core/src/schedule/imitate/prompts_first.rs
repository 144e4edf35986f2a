//! Prompts before decodes: [`Config::prefill_first`](crate::Config::prefill_first), as SGLang and engines with padded prompts run them.

use crate::Step;
use crate::config::{Config, PrefillFirst};
use crate::schedule::scheduler::Scheduler;
use crate::schedule::state::State;

impl Scheduler {
    /// Fills a step with prompts alone, for [`Config::prefill_first`]. Returns `false` if none can run.
    pub(in crate::schedule) fn run_prompts(&mut self, state: &mut State, step: &mut Step) -> bool {
        if state.suspects.is_narrowing() {
            return false;
        }
        while self.begin_in(state) {}
        let mut budget = state.config.max_batch_tokens;
        self.run_prefills_and_admit(state, &mut budget, step);
        !step.seqs.is_empty()
    }

    /// Adds the chunks that waited for the last admission to the step, as far as blocks are usable: the promised ones.
    pub(in crate::schedule) fn run_together(&mut self, state: &mut State, step: &mut Step) {
        for at in 0..self.together.len() {
            let (slot, n_tokens) = self.together[at];
            let State { sequences, kv, .. } = &mut *state;
            let seq = &mut sequences[slot];
            if kv.take_chunk(seq, seq.planned() + n_tokens) {
                self.run_taken(state, slot, n_tokens, step);
            }
        }
        self.together.clear();
    }
}

/// Returns `true` if the chunks of the step being made take their blocks together, behind the admissions.
pub(in crate::schedule) fn takes_together(state: &State) -> bool {
    let State { config, kv, waiting, suspects, .. } = state;
    // Blocks that nobody promised could be missing behind the admissions.
    let is_plain = kv.groups.n() == 0 && kv.tiers.is_empty() && !config.worker.in_step_hits && config.reserve_prompts;
    config.prefill_first.takes_together() && is_plain && !waiting.counts_service() && !suspects.is_narrowing()
}

/// Returns the tokens of another prompt in a step, at most, if every prompt counts as the longest: [`PrefillFirst::Padded`].
pub(in crate::schedule) fn padded_budget(config: &Config, step: &Step) -> Option<u32> {
    if config.prefill_first != PrefillFirst::Padded {
        return None;
    }
    let longest = step.seqs.iter().map(|seq| seq.n_tokens).max().unwrap_or(0);
    let share = config.max_batch_tokens / (step.seqs.len() as u32 + 1);
    Some(if longest <= share { share } else { 0 })
}
