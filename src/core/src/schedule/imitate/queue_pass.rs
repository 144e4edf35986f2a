//! The waiting queue at the beginning of a scheduling pass: sorted, if the policy has it sorted, else looked up now and then.
//!
//! SGLang looks up the prompt of each waiting request before a sort, which keeps the prefixes from eviction for a while. An order without
//! look-ups, also that of a queue too long to be sorted, has the first requests looked up every so many passes, the head last
//! (`SchedulePolicy._touch_waiting_prefixes`, version 0.5.23). Without effect unless the eviction policy follows look-ups.

use crate::schedule::state::State;

/// Passes from one round of look-ups to the next (`WAITING_PREFIX_REFRESH_INTERVAL`).
const PASSES: u64 = 32;
/// Requests looked up in a round, at most (`WAITING_QUEUE_PREFIX_MATCH_MAX`).
const REQUESTS_MAX: usize = 128;

/// Passes with waiting requests and without a sort so far.
#[derive(Debug, Default)]
pub(crate) struct QueuePasses {
    unsorted: u64,
}

impl QueuePasses {
    /// Begins a pass that admits requests, or runs prompts under way alone.
    pub fn begin(&mut self, state: &mut State, admits: bool) {
        let follows = state.kv.tree.notes_visits();
        if state.waiting.is_empty() || !(follows || state.waiting.is_sorted()) {
            return;
        }
        let batched = state.batched();
        let State { waiting, sequences, kv, batch, config, .. } = state;
        let is_under_way = |slot: &usize| sequences[*slot].is_prefill() && !sequences[*slot].decodes_next();
        let may_admit = admits && batched < config.max_batch_size;
        if !may_admit && !batch.running.iter().any(is_under_way) {
            return;
        }
        if waiting.sort(&mut |slot, shared_tokens| kv.look_up_beginning(&sequences[slot], shared_tokens)) || !follows {
            return;
        }
        if self.unsorted.is_multiple_of(PASSES) {
            for slot in waiting.first_unparked(REQUESTS_MAX).into_iter().rev() {
                kv.look_up_beginning(&sequences[slot], 0);
            }
        }
        self.unsorted += 1;
    }
}
