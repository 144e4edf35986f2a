//! The start and the end of steps.

use super::Core;
use crate::config::Write;
use crate::core::event::Action;
use crate::core::fast_forward::{FastForwardDriver, FastForwardResult};
use crate::journal::digest::Decision;
use crate::names::ids::Token;
use crate::request::FinishReason;
use crate::request::sequence::{Ahead, Ending, SequenceEvent};
use crate::schedule::prefill_budget::PromptTokens;
use crate::schedule::state::{AHEAD, REQUESTED_FROM, State};
use crate::schedule::steps::{Part, Picked, ValuedPart};
use crate::{SeqFault, StepResult};
use crate::{
    schedule::dropping, schedule::preemption, schedule::prefetches, schedule::swap, schedule::tails,
    schedule::transfer_end,
};

impl Core {
    /// Begins steps while a sequence can run and the worker takes more.
    pub(super) fn begin_steps(&mut self, actions: &mut Vec<Action>) {
        let limit = self.state.config.max_steps_in_flight as usize;
        if self.worker_joined {
            let State { kv, batch, journal, .. } = &mut self.state;
            kv.demote_hinted(batch.len(), journal);
        }
        while self.worker_joined && self.steps.len() < limit && !self.state.sequences.is_empty() {
            let began = self.begin_step(actions);
            if !self.state.prefetches.is_empty() {
                prefetches::advance(&mut self.state);
                self.end_prefetches(actions);
            }
            if !began {
                return;
            }
        }
    }

    /// Reports the ends of prefetches.
    pub(super) fn end_prefetches(&mut self, actions: &mut Vec<Action>) {
        while let Some(slot) = self.state.prefetches.first_done() {
            self.part(slot, Ending::Finish(FinishReason::Length), actions);
        }
    }

    /// Begins a step if a sequence can run. Returns `true` if so.
    fn begin_step(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut step = self.steps.empty();
        step.id = self.state.journal.stats.steps + 1;
        let alone = self.steps.len() == 0;
        self.scheduler.schedule(&mut self.state, alone, &mut step);
        self.send_transfers(actions);
        let is_idle = self.state.prefetches.len() == self.state.sequences.len();
        let State { config, kv, journal, .. } = &mut self.state;
        if step.seqs.is_empty() {
            let waits = is_idle || !alone || !kv.transfers.is_empty() || kv.lookups.is_any_awaited();
            assert!(waits, "with no step, transfer or look-up in flight, something can run");
            // What the steps in flight compute is there for the next one.
            kv.tree.begin_step(step.id - 1);
            self.steps.recycle(step);
            return false;
        }
        if kv.reuses() {
            kv.take_copies(&mut step.copies);
        }
        let drafts = if config.max_drafts > 0 { step.seqs.iter().map(|seq| seq.n_drafts).sum() } else { 0 };
        debug_assert!(
            step.n_tokens() + drafts <= config.max_batch_tokens && step.seqs.len() as u32 <= config.max_batch_size
        );
        journal.stats.drafts.draft_tokens += u64::from(drafts);
        journal.stats.steps = step.id;
        journal.decide(Decision::Step, step.id, kv.tree.evicted());
        self.steps.begin(step.id, &mut self.scheduler.picked, self.now_ns);
        actions.push(Action::RunStep(step));
        true
    }

    /// Releases the blocks freed since the last call, and requests the transfers and look-ups begun since.
    pub(super) fn send_transfers(&mut self, actions: &mut Vec<Action>) {
        let released = self.state.kv.take_released();
        actions.extend(released.map(|(place, blocks)| Action::Release { place, blocks }));
        let outbox = self.state.kv.transfers.take_outbox();
        actions.extend(outbox.map(|transfer| Action::Transfer(Box::new(transfer))));
        let cancelled = self.state.kv.transfers.take_cancelled();
        actions.extend(cancelled.map(|transfer| Action::Cancel { transfer }));
        let outbox = self.state.kv.lookups.take_outbox();
        actions.extend(outbox.map(|lookup| Action::Lookup(Box::new(lookup))));
    }

    /// Applies the answer to the oldest step in flight.
    pub(super) fn step_finished(&mut self, result: &StepResult, actions: &mut Vec<Action>) {
        if !self.steps.contains(result.step) {
            // The answer to a step whose worker was declared lost.
            return;
        }
        if !self.steps.is_answer(result) {
            // A worker that answers nonsense, or out of order, may have written nonsense.
            self.worker_joined = false;
            actions.push(Action::ResetWorker);
            self.lose_kv(true, actions);
            return;
        }
        let Some((step, step_ns)) = self.steps.end(self.now_ns) else { unreachable!("the step was in flight") };
        self.state.kv.free_retired(step.id);
        self.state.suspects.succeeded();
        let parts = &step.picked.parts;
        self.observe_step_time(parts, step_ns);
        self.fail_sequences(parts, &result.failed);
        self.count_values(&step.picked, result, actions);
        let mut changed = std::mem::take(&mut self.changed);
        let mut begin = 0;
        for (at, (part, end)) in parts.iter().zip(&result.ends).enumerate() {
            if parts.len() >= REQUESTED_FROM
                && let Some(next) = parts.get(at + AHEAD)
            {
                self.state.request(part.slot(), next.slot());
            }
            let sampled = &result.tokens[std::mem::replace(&mut begin, *end as usize)..*end as usize];
            let fault = if result.failed.is_empty() { None } else { result.fault_of(at) };
            self.apply(*part, sampled, fault, &mut changed, actions);
        }
        self.state.waiting.serve_generated();
        let any_ended = self.publish(&mut changed);
        self.write_running();
        self.state.visit_ends(parts);
        dropping::end_step(&mut self.state, &step.picked, &result.scores);
        if any_ended {
            self.end_sequences(parts, actions);
        }
        preemption::end_steps(&mut self.state);
        self.changed = changed;
        self.steps.recycle_picked(step.picked);
    }

    /// Reports the values of prompts in a step's result, unless what the sequence computed does not count. MUST come before its tokens.
    fn count_values(&mut self, picked: &Picked, result: &StepResult, actions: &mut Vec<Action>) {
        for ValuedPart { part, from, rows } in picked.valued.iter().copied() {
            let seq = &mut self.state.sequences[picked.parts[part as usize].slot()];
            // As its tokens do.
            let has_kv = !seq.table.is_empty() || !self.state.config.preemption.retracts();
            let counts = seq.ending.is_none() && has_kv && result.fault_of(part as usize).is_none();
            if counts && seq.cold.valued.reported == from {
                seq.cold.valued.reported = from + rows;
                actions.push(Action::PromptValued { request: seq.id, first: from + 1, n: rows });
            }
        }
    }

    /// Lets the leaving sequences of a step leave: at once, or after the last step in flight with work on the sequence. The end of a
    /// request is reported at once in any case.
    fn end_sequences(&mut self, parts: &[Part], actions: &mut Vec<Action>) {
        for slot in parts.iter().map(|part| part.slot()) {
            let seq = &self.state.sequences[slot];
            if let Some(Ending::Finish(reason)) = seq.ending
                && seq.is_in_step()
            {
                if self.state.kv.frees_early(seq) {
                    let State { kv, sequences, journal, .. } = &mut self.state;
                    kv.release_ended(&mut sequences[slot], journal.stats.steps);
                }
                self.report_early(slot, reason, actions);
            }
        }
        let State { sequences, batch, .. } = &mut self.state;
        let stays = |slot: &usize| match sequences[*slot].ending {
            None | Some(Ending::StartOver) => true,
            Some(Ending::Reported(_)) => false,
            Some(_) => sequences[*slot].is_in_step(),
        };
        batch.running.retain(stays);
        batch.preempted.retain(stays);
        for slot in parts.iter().map(|part| part.slot()) {
            let Some(seq) = self.state.sequences.get(slot).filter(|seq| !seq.is_in_step()) else { continue };
            match seq.ending {
                None => {}
                Some(Ending::Reported(_)) => self.discard(slot),
                Some(Ending::StartOver) => self.start_over(slot),
                Some(ending) => self.remove(slot, ending, actions),
            }
        }
    }

    /// Applies a step's result to one sequence, which failed if there is a `fault`, except for its full blocks. Adds the sequence to
    /// `changed` if it has blocks to publish, or leaves the core.
    #[inline]
    fn apply(
        &mut self,
        part: Part,
        sampled: &[Token],
        fault: Option<SeqFault>,
        changed: &mut Vec<usize>,
        actions: &mut Vec<Action>,
    ) {
        let State { sequences, waiting, journal, config, rereads, kv, background, .. } = &mut self.state;
        let slot = part.slot();
        let seq = &mut sequences[slot];
        seq.end_step(part.n_copied + part.n_tokens, part.sample);
        // Not if preempted, or ended and released at once.
        let has_kv = !seq.table.is_empty();
        let counts = has_kv || !config.preemption.retracts();
        if seq.ending.is_none() && !sampled.is_empty() && counts {
            if seq.is_prefill() {
                seq.begin_answer(self.now_ns);
                if kv.tiers.write(0) == Some(Write::Prefill) {
                    self.to_write.push(slot);
                }
            }
            // Mostly with the first token; a sequence that is swapped in may be beyond it.
            if seq.cold.planner.as_ref().is_some_and(|planner| planner.state.awaits_reread()) {
                rereads.begin(seq.id, slot);
            }
            journal.stats.drafts.accepted_draft_tokens += sampled.len() as u64 - 1;
            for token in sampled {
                seq.push(*token);
                if waiting.counts_service() && !background.has(seq) {
                    waiting.note_generated(seq.tenant);
                }
                if !seq.id.is_inner() {
                    journal.stats.tokens.generated_tokens += 1;
                    // Made in its place in the list, not copied there.
                    actions.extend(std::iter::once(*token).map(|token| Action::Token { request: seq.id, token }));
                }
                seq.ending = seq.finished().map(Ending::Finish);
                if seq.ending.is_some() {
                    break;
                }
            }
        }
        if let Some(fault) = fault {
            seq.ending = seq.ending.or(Some(Ending::Finish(fault.into())));
        }
        // Every sampled token but the last was a draft, and has KV. Tokens after the end of the request were dropped.
        if has_kv {
            let computed = seq.computed + part.n_copied + part.n_tokens + (sampled.len() as u32).saturating_sub(1);
            seq.computed = computed.min(seq.n_tokens());
            if matches!(seq.ending, Some(Ending::Finish(_))) && seq.is_in_step() && kv.frees_early(seq) {
                // Steps in flight compute the last token, and nobody reads it before they end.
                seq.computed = seq.planned().min(seq.n_tokens());
            }
        }
        if seq.ending.is_some() || seq.computed >= seq.next_stop(config.block_size) {
            seq.request_first();
            changed.push(slot);
        }
    }

    /// Publishes the full blocks of `changed` sequences, in order, and empties the list. Returns `true` if one of them leaves the core.
    fn publish(&mut self, changed: &mut Vec<usize>) -> bool {
        let mut any_ended = false;
        for (at, slot) in changed.iter().enumerate() {
            self.state.request_to_publish(changed, at);
            let seq = &self.state.sequences[*slot];
            let leaves = seq.ending.is_some();
            // KV that the worker failed to compute is not published, nor what is computed past the last token.
            let is_complete = matches!(seq.ending, Some(Ending::Reported(FinishReason::Stop | FinishReason::Length)));
            if !seq.has_failed() && !is_complete && seq.computed / self.state.config.block_size > seq.published {
                self.state.publish(*slot);
                if !leaves && self.state.kv.is_write_due(&self.state.sequences[*slot]) && !self.to_write.contains(slot)
                {
                    self.to_write.push(*slot);
                }
            }
            if leaves {
                self.state.end_shared_work(*slot);
                any_ended = true;
            } else {
                tails::join(&mut self.state, *slot);
                self.state.kv.drop_behind_windows(&mut self.state.sequences[*slot]);
            }
        }
        changed.clear();
        any_ended
    }

    /// Copies the blocks so far of running sequences to the first tier, if the tier takes blocks as they come.
    fn write_running(&mut self) {
        let mut slots = std::mem::take(&mut self.to_write);
        for slot in slots.drain(..) {
            let seq = &self.state.sequences[slot];
            if self.worker_joined && seq.ending.is_none() && !seq.has_failed() && !seq.id.is_inner() {
                let computed = self.computed_blocks(slot);
                let State { sequences, kv, journal, .. } = &mut self.state;
                kv.write_running(&mut sequences[slot], computed, journal);
            }
        }
        self.to_write = slots;
    }

    /// Learns from the time of a step, whose decodes come first: the prefill budget, and the cost of recomputation from prefills.
    fn observe_step_time(&mut self, parts: &[Part], step_ns: u64) {
        let is_decode = |part: &&Part| {
            let seq = &self.state.sequences[part.slot()];
            seq.is_decode() || (seq.is_preempted() && part.decodes)
        };
        // Without tiers an estimate is good enough, and most steps have prompts at an end or not at all.
        let has_prompt = || [parts.first(), parts.last()].into_iter().flatten().any(|part| !is_decode(&part));
        let mut prompts = PromptTokens::default();
        if !self.state.kv.tiers.is_empty() || has_prompt() {
            parts.iter().filter(|part| !is_decode(part)).for_each(|part| prompts.add(part.write_from, part.n_tokens));
        }
        let prompt_tokens = prompts.total();
        let State { background, sequences, .. } = &self.state;
        let is_background = background.is_any() && parts.iter().all(|part| background.has(&sequences[part.slot()]));
        let budget = &mut self.scheduler.prefill_budget;
        match (parts.first().is_some_and(|part| is_decode(&part)), prompt_tokens) {
            (true, 0) => budget.observe_decodes(parts.len(), 1, step_ns),
            (true, _) => budget.observe_beside(&prompts, step_ns),
            (false, 0) => {}
            (false, _) => budget.observe_prompts(&prompts, step_ns, is_background),
        }
        if prompt_tokens > 0 {
            self.state.kv.transfers.links.observe_prefill(prompt_tokens, step_ns);
        }
    }

    /// Gives up all KV: every running sequence starts over, every published block is forgotten. The steps in flight count as failures of
    /// their sequences if `blames`.
    pub(super) fn lose_kv(&mut self, blames: bool, actions: &mut Vec<Action>) {
        self.state.journal.decide(Decision::WorkerLost, u64::from(!blames), self.steps.oldest().unwrap_or(0));
        self.keep_restarts();
        self.lose_steps(blames);
        // Taken as a whole: each would look for its place otherwise.
        let running = std::mem::take(&mut self.state.batch.running);
        let mut lost = Vec::with_capacity(running.len());
        for (at, slot) in running.iter().copied().enumerate() {
            if at % AHEAD == 0 {
                self.state.load_cold_ahead(&running[at..]);
                self.state.request_tails(&running[at..]);
            }
            match self.state.sequences[slot].ending {
                Some(ending) => {
                    self.leave_queue(slot);
                    self.remove(slot, ending, actions);
                    swap::resume_arrived(&mut self.state);
                }
                None => {
                    preemption::lose(&mut self.state, slot);
                    lost.push((slot, self.state.sequences[slot].view(0)));
                }
            }
        }
        for slot in std::mem::take(&mut self.state.batch.preempted) {
            match self.state.sequences[slot].ending {
                Some(ending) => self.remove(slot, ending, actions),
                None => {
                    self.state.sequences[slot].rewind(SequenceEvent::WorkerLost);
                    lost.push((slot, self.state.sequences[slot].view(0)));
                }
            }
        }
        for slot in transfer_end::lose_all(&mut self.state) {
            self.state.rewind(slot, SequenceEvent::WorkerLost);
            lost.push((slot, self.state.sequences[slot].view(0)));
        }
        self.state.kv.clear_device();
        self.state.wait_all(lost);
    }

    /// Gives up the steps in flight of a worker that has kept its KV, and sends every sequence again. A worker that may not have computed
    /// blocks which others found already is reset.
    pub(super) fn resume_worker(&mut self, actions: &mut Vec<Action>) {
        if !self.worker_joined {
            return;
        }
        let kv = &self.state.kv;
        let may_lack = kv.has_freed_early() || kv.copies_wait() && self.state.config.worker.in_step_hits;
        if may_lack || self.steps.slots().any(|slot| self.state.has_published_ahead(slot)) {
            self.worker_joined = false;
            actions.push(Action::ResetWorker);
            return self.lose_kv(false, actions);
        }
        self.state.journal.decide(Decision::WorkerResumed, 0, self.steps.oldest().unwrap_or(0));
        let steps = self.steps.lose();
        self.state.kv.free_retired(u64::MAX);
        let parts: Vec<Part> = steps.into_iter().flat_map(|step| step.picked.parts).collect();
        for part in &parts {
            let seq = &mut self.state.sequences[part.slot()];
            seq.ahead = Ahead::default();
            if let Some(planner) = &mut seq.cold.planner {
                planner.state.lose_steps();
            }
        }
        self.end_sequences(&parts, actions);
        for at in 0..self.state.batch.running.len() {
            let slot = self.state.batch.running[at];
            self.state.drop_copied(slot);
            let seq = &mut self.state.sequences[slot];
            (seq.on_worker, seq.mirror.table_sent) = (false, 0);
        }
        preemption::end_steps(&mut self.state);
    }

    /// Gives up the steps in flight, and counts a failure for their sequences if `blames`.
    fn lose_steps(&mut self, blames: bool) {
        let lost_ns = self.steps.time_ns(self.now_ns).unwrap_or(0);
        let steps = self.steps.lose();
        self.state.kv.free_retired(u64::MAX);
        // If the guilty request is known, the others did nothing. Its ending is another one if the client gave up first.
        let slots = || steps.iter().flat_map(|step| &step.picked.parts).map(|part| part.slot());
        let named = slots().any(|slot| self.state.sequences[slot].has_failed());
        let first = slots().next();
        let alone = slots().all(|slot| Some(slot) == first);
        let counts = self.state.suspects.counts(alone);
        if first.is_some() && blames && !named {
            self.state.suspects.begin_failure(self.state.journal.stats.steps);
        }
        let mut explained: u32 = 0;
        for slot in slots() {
            let State { sequences, suspects, .. } = &mut self.state;
            let Some(seq) = sequences.get_mut(slot).filter(|seq| seq.is_in_step()) else { continue };
            seq.ahead = Ahead::default();
            if let Some(Ending::Reported(_)) = seq.ending {
                self.discard(slot);
                continue;
            }
            if named || !blames {
                continue;
            }
            suspects.note_row(seq);
            let failures = if counts { &mut seq.worker_failures } else { &mut seq.suspicion };
            *failures = failures.saturating_add(1);
            suspects.consider(slot, seq);
            if alone {
                suspects.note_lone(seq);
            }
            if counts && u32::from(seq.worker_failures) >= suspects.limit(seq) {
                explained = explained.saturating_add(seq.failures_here());
                seq.ending = seq.ending.or(Some(Ending::Finish(FinishReason::Error)));
            }
        }
        self.state.suspects.explain(explained);
        if !steps.is_empty() && blames {
            self.state.suspects.failed(named);
            self.state.suspects.lose_time(lost_ns);
            let parts: Vec<usize> = slots().collect();
            self.give_up_readings(|slot| parts.contains(&slot));
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
            // The steps of a fast-forward are in flight one at a time.
            let one_at_a_time = self.state.config.max_steps_in_flight == 1 && !has_deadlines;
            let one_at_a_time = one_at_a_time && !self.state.suspects.is_narrowing();
            let step = self.steps.only().filter(|_| one_at_a_time);
            if !step.is_some_and(|step| self.fast_forward.begin(&self.state, &step.picked.parts)) {
                return FastForwardResult::NotSteady;
            }
            self.state.suspects.succeeded();
        }
        self.advance(now_ns);
        let before = self.fast_forward.tokens();
        let paused = self.fast_forward.run(&mut self.state, &mut self.now_ns, has_deadlines, driver);
        let tokens = self.fast_forward.tokens() - before;
        if let Some(end_ns) = paused {
            let step = self.steps.only().expect("the step that began the fast-forward stands for all");
            step.id = self.state.journal.stats.steps;
            return FastForwardResult::Paused { end_ns, tokens };
        }
        let steps = self.fast_forward.steps();
        self.fast_forward.end(&mut self.state, driver);
        self.advance(self.now_ns);
        let ended = self.steps.end(self.now_ns);
        if let Some((step, took_ns)) = ended {
            self.scheduler.prefill_budget.observe_decodes(step.picked.parts.len(), steps, took_ns);
            self.steps.recycle_picked(step.picked);
        }
        self.to_write.append(&mut self.fast_forward.take_to_write());
        self.write_running();
        self.expire(actions);
        self.begin_steps(actions);
        self.send_transfers(actions);
        #[cfg(debug_assertions)]
        self.check_sometimes();
        FastForwardResult::Ended { begin_ns: self.now_ns, tokens }
    }
}
