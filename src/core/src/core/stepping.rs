//! The begin and the end of steps.

use super::{Core, WORKER_FAILURES_MAX};
use crate::digest::Decision;
use crate::event::Action;
use crate::fast_forward::{FastForwardDriver, FastForwardResult};
use crate::preemption::preempt;
use crate::request::FinishReason;
use crate::sequence::{Ending, Phase, SequenceEvent};
use crate::state::State;
use crate::step::{StepResult, StepSeq};
use crate::{swap, transfer_end};

impl Core {
    /// Begins a step if the worker is idle and a sequence can run.
    pub(super) fn begin_step(&mut self, actions: &mut Vec<Action>) {
        if self.steps.in_flight.is_some() || !self.worker_joined || self.state.sequences.is_empty() {
            return;
        }
        let mut step = self.steps.empty();
        self.scheduler.schedule(&mut self.state, &mut step);
        self.send_transfers(actions);
        let (config, kv, journal) = (&self.state.config, &self.state.kv, &mut self.state.journal);
        if step.seqs.is_empty() {
            assert!(!kv.transfers.is_empty(), "with no step and no transfer in flight, something can run");
            self.steps.recycle(step);
            return;
        }
        let drafts = if config.max_drafts > 0 { step.seqs.iter().map(|seq| seq.n_drafts).sum() } else { 0 };
        debug_assert!(
            step.n_tokens() + drafts <= config.max_batch_tokens && step.seqs.len() as u32 <= config.max_batch_size
        );
        journal.stats.draft_tokens += u64::from(drafts);
        journal.stats.steps += 1;
        step.id = journal.stats.steps;
        journal.decide(Decision::Step, step.id, kv.tree.evicted());
        self.steps.begin(&step, &self.scheduler.picked, self.now_ns);
        actions.push(Action::RunStep(step));
    }

    /// Requests the transfers begun since the last call.
    pub(super) fn send_transfers(&mut self, actions: &mut Vec<Action>) {
        let outbox = self.state.kv.transfers.take_outbox();
        actions.extend(outbox.map(|transfer| Action::Transfer(Box::new(transfer))));
    }

    /// Applies the answer to a step.
    pub(super) fn step_finished(&mut self, result: &StepResult, actions: &mut Vec<Action>) {
        if self.steps.in_flight != Some(result.step) {
            // The answer to a step whose worker was declared lost.
            return;
        }
        if !self.steps.is_answer(result) {
            // A worker that answers nonsense may have written nonsense.
            self.worker_joined = false;
            actions.push(Action::ResetWorker);
            self.lose_kv(actions);
            return;
        }
        self.steps.in_flight = None;
        let seqs = std::mem::take(&mut self.steps.seqs);
        let mut any_ended = false;
        self.observe_step_time(&seqs);
        for (i, (slot, seq)) in seqs.iter().enumerate() {
            any_ended |= self.apply(*slot, seq.n_tokens, result.of(i), actions);
        }
        if any_ended {
            let sequences = &self.state.sequences;
            self.state.batch.running.retain(|slot| sequences[*slot].ending.is_none());
            for (slot, _) in &seqs {
                if let Some(ending) = self.state.sequences.get(*slot).and_then(|seq| seq.ending) {
                    self.remove(*slot, ending, actions);
                }
            }
        }
        self.steps.seqs = seqs;
    }

    /// Applies a step's result to one sequence. Returns `true` if the sequence leaves the core.
    fn apply(&mut self, slot: usize, n_tokens: u32, sampled: &[u32], actions: &mut Vec<Action>) -> bool {
        let State { sequences, waiting, kv, journal, config, .. } = &mut self.state;
        let seq = &mut sequences[slot];
        seq.in_step = false;
        if seq.ending.is_none() && !sampled.is_empty() {
            if matches!(seq.phase, Phase::Prefill) {
                seq.transition(SequenceEvent::FirstToken, Phase::Decode);
            }
            journal.stats.accepted_draft_tokens += sampled.len() as u64 - 1;
            for token in sampled {
                seq.push(*token);
                if waiting.counts_service() {
                    waiting.served(seq.view.tenant, 0, 1);
                }
                journal.stats.generated_tokens += 1;
                actions.push(Action::Token { request: seq.id, token: *token });
                seq.ending = seq.finished().map(Ending::Finish);
                if seq.ending.is_some() {
                    break;
                }
            }
        }
        // Every sampled token but the last was a draft, and has KV. Tokens after the end of the request were dropped.
        let computed = seq.computed + n_tokens + (sampled.len() as u32).saturating_sub(1);
        seq.computed = computed.min(seq.tokens.len() as u32);
        let leaves = seq.ending.is_some();
        // KV that the worker failed to compute is not published.
        let failed = seq.ending == Some(Ending::Finish(FinishReason::Error));
        if !failed && seq.computed / config.block_size > seq.published {
            kv.publish(seq, journal);
        }
        leaves
    }

    /// Reports the time of a step in which decodes had to share with prefills to the prefill budget.
    fn observe_step_time(&mut self, seqs: &[(usize, StepSeq)]) {
        let is_decode = |slot: usize| self.state.sequences[slot].is_decode();
        if self.state.config.target_step_ns > 0 && seqs.first().is_some_and(|(slot, _)| is_decode(*slot)) {
            let prompt_tokens = seqs.iter().filter(|(slot, _)| !is_decode(*slot)).map(|(_, seq)| seq.n_tokens).sum();
            self.scheduler.prefill_budget.observe(prompt_tokens, self.now_ns - self.steps.begun_ns);
        }
    }

    /// Gives up all KV: every running sequence starts over, every published block is forgotten.
    pub(super) fn lose_kv(&mut self, actions: &mut Vec<Action>) {
        self.state.journal.decide(Decision::WorkerLost, 0, self.steps.in_flight.unwrap_or(0));
        self.lose_step();
        for slot in self.state.batch.running.clone() {
            match self.state.sequences[slot].ending {
                Some(ending) => {
                    self.leave_queue(slot);
                    self.remove(slot, ending, actions);
                    swap::resume_arrived(&mut self.state);
                }
                None => {
                    preempt(&mut self.state, slot, SequenceEvent::WorkerLost);
                    // Blocks lost with the worker are not found again; that says nothing of preemptions.
                    let history = &mut self.state.sequences[slot].history;
                    (history.shared_at_preemption, history.cached_at_preemption) = (0, 0);
                }
            }
        }
        for slot in transfer_end::lose_all(&mut self.state) {
            match self.state.sequences[slot].ending {
                Some(ending) => self.remove(slot, ending, actions),
                None => self.state.start_over(slot, SequenceEvent::WorkerLost),
            }
        }
        self.state.kv.tree.flush();
    }

    /// Gives up the step in flight, and counts a failure for its sequences.
    fn lose_step(&mut self) {
        if self.steps.in_flight.take().is_none() {
            return;
        }
        let seqs = std::mem::take(&mut self.steps.seqs);
        // If the guilty request is known, the others did nothing.
        let guilty = Some(Ending::Finish(FinishReason::Error));
        let named = seqs.iter().any(|(slot, _)| self.state.sequences[*slot].ending == guilty);
        for (slot, _) in seqs {
            let seq = &mut self.state.sequences[slot];
            seq.in_step = false;
            seq.history.worker_failures += u32::from(!named);
            if seq.history.worker_failures >= WORKER_FAILURES_MAX {
                seq.ending = seq.ending.or(guilty);
            }
        }
    }

    /// Ends the step in flight at `now_ns` with a token for each sequence. If the batch is steady, this equals
    /// [`crate::Event::StepFinished`] except for [`Action::Token`]s, and the following steps are skipped as far as `driver`
    /// allows. A worker that is sent no step MUST NOT need any: block tables change during a fast-forward.
    pub fn fast_forward(
        &mut self,
        now_ns: u64,
        driver: &mut dyn FastForwardDriver,
        actions: &mut Vec<Action>,
    ) -> FastForwardResult {
        let has_deadlines = self.next_deadline_ns().is_some();
        if !self.fast_forward.is_under_way() {
            let can_begin = self.steps.in_flight.is_some() && !has_deadlines;
            if !can_begin || !self.fast_forward.begin(&self.state, &self.steps.seqs) {
                return FastForwardResult::NotSteady;
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
        if let Some(end_ns) = self.fast_forward.run(&mut self.state, &mut self.now_ns, has_deadlines, driver) {
            self.steps.in_flight = Some(self.state.journal.stats.steps);
            return FastForwardResult::Paused { end_ns };
        }
        self.fast_forward.end(&mut self.state, driver);
        self.steps.in_flight = None;
        self.expire(actions);
        self.begin_step(actions);
        self.send_transfers(actions);
        #[cfg(debug_assertions)]
        self.check_sometimes();
        FastForwardResult::Ended { begin_ns: self.now_ns }
    }
}
