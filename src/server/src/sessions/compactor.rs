//! Compaction of a session's history, beside its turns.
//!
//! A task asks the model for a summary, then computes the new context into the prefix cache, both as requests of low priority. The chat
//! goes on in the old context meanwhile. If somebody waits, the summary has the priority of the session's turns, and the next turn computes
//! the new context. Aborting the task aborts its request.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use trunkline_chat::{Plan, Usage, Want};
use trunkline_core::{FinishReason, Token};

use crate::caller::Caller;
use crate::outbox::Output;
use crate::proto;
use crate::sessions::counts::{Compacted, SessionCounts};
use crate::sessions::entry::{CompactionTask, Entry};
use crate::sessions::setup::Setup;
use crate::submission::Submitter;

/// Outputs taken at once, at most.
const OUTPUTS_MAX: usize = 64;

/// Maker of compactions.
pub(crate) struct Compactor {
    pub(crate) submitter: Arc<Submitter>,
    /// Time for each request.
    pub(crate) timeout: Duration,
    pub(crate) counts: Arc<SessionCounts>,
}

impl Compactor {
    /// Begins a compaction on behalf of a caller, who may wait (`urgent`); returns `false` if there is nothing to do, or a compaction is under
    /// way.
    pub(crate) fn start(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
        want: Want,
        (urgent, instruction): (bool, Option<Vec<Token>>),
    ) -> bool {
        let plan = {
            let mut state = entry.lock();
            let plan = if state.deleted { None } else { state.chat.plan(want) };
            let Some(plan) = plan else { return false };
            plan
        };
        let number = plan.number;
        let guard = Guard { entry: entry.clone(), number, counts: self.counts.clone(), end: Compacted::Cancelled };
        let (compactor, caller) = (self.clone(), caller.on_behalf());
        // A runtime that ends drops the task at once, whose guard takes the lock.
        let task = tokio::spawn(async move { compactor.compact(guard, &caller, plan, (urgent, instruction)).await });
        let mut state = entry.lock();
        match state.deleted {
            true => task.abort(),
            false => state.compaction = Some(CompactionTask { number, urgent, handle: task.abort_handle() }),
        }
        true
    }

    /// Begins a compaction if the recent turns are above the high watermark.
    pub(crate) fn start_if_long(self: &Arc<Self>, entry: &Arc<Entry>, caller: &Caller) {
        let is_long = entry.lock().chat.is_long();
        if is_long {
            self.start(entry, caller, Want::default(), (false, None));
        }
    }

    async fn compact(
        &self,
        mut guard: Guard,
        caller: &Caller,
        plan: Plan,
        (urgent, instruction): (bool, Option<Vec<Token>>),
    ) {
        let entry = guard.entry.clone();
        let limits = *entry.lock().chat.limits();
        let instruction = instruction.unwrap_or_else(|| entry.setup.instruction.clone());
        let context = plan.context.len() + instruction.len() + limits.summary as usize;
        let prompt = match entry.setup.sampled || context > entry.setup.summary_context as usize {
            true => {
                plan.sampled_prompt(&entry.setup.lead, entry.setup.sample_max(&limits, instruction.len()), &instruction)
            }
            false => plan.context_prompt(&instruction),
        };
        let request = entry.setup.summary(prompt, limits.summary, urgent);
        let summary = self.ask(&entry.setup, caller, request).await;
        let context = match summary {
            Ok((summary, usage)) => {
                if summary.is_empty() {
                    guard.end = Compacted::Failed;
                }
                entry.lock().chat.summarised(plan.number, summary, usage)
            }
            Err(reason) => {
                guard.end = Compacted::Failed;
                entry.lock().chat.failed(plan.number, &reason);
                None
            }
        };
        if urgent {
            if entry.lock().chat.skip_warming() {
                guard.end = Compacted::Done;
            }
        } else if let Some(context) = context {
            // Without a context computed ahead the next turn computes the context: slower, and as right.
            let warmed = self.ask(&entry.setup, caller, entry.setup.background(context, 1)).await;
            entry.lock().chat.warmed(plan.number, warmed.map_or(Usage::default(), |(_, usage)| usage));
            guard.end = Compacted::Done;
        }
    }

    /// Runs a request; returns the tokens, without a stop token at their end.
    async fn ask(
        &self,
        setup: &Setup,
        caller: &Caller,
        request: proto::GenerateRequest,
    ) -> Result<(Vec<Token>, Usage), String> {
        let checked = setup.check(&self.submitter, request).map_err(|invalid| invalid.0)?;
        let arrival_ns = self.submitter.driver.clock().now_ns();
        let submitted = self.submitter.submit(caller, checked, arrival_ns, Some(self.timeout)).await;
        let mut submitted = submitted.map_err(|rejection| rejection.to_string())?;
        let (mut tokens, mut taken) = (Vec::new(), Vec::new());
        loop {
            if poll_fn(|cx| submitted.outputs().poll_recv_many(cx, &mut taken, OUTPUTS_MAX)).await == 0 {
                submitted.end();
                return Err("the server has stopped".into());
            }
            for output in taken.drain(..) {
                match output {
                    Output::Token { token, .. } => tokens.push(token),
                    Output::Finish { reason, usage } => {
                        submitted.end();
                        let usage = Usage {
                            prompt: usage.prompt_tokens,
                            cached: usage.cached_tokens,
                            completion: usage.completion_tokens,
                            preemptions: usage.preemptions,
                        };
                        return whole(reason, tokens).map(|tokens| (tokens, usage));
                    }
                    Output::NoWorker => {
                        submitted.end();
                        return Err("no worker is left to run the request".into());
                    }
                }
            }
        }
    }
}

/// Returns the tokens of a whole answer, or the reason for having none.
fn whole(reason: FinishReason, mut tokens: Vec<Token>) -> Result<Vec<Token>, String> {
    match reason {
        FinishReason::Stop => {
            tokens.pop();
            Ok(tokens)
        }
        FinishReason::Length => Ok(tokens),
        FinishReason::Abort => Err("the request was aborted".into()),
        FinishReason::Timeout => Err("time was up".into()),
        FinishReason::Error => Err("the worker failed on the request too often".into()),
    }
}

/// Leaves no compaction under way behind, however its task ends.
struct Guard {
    entry: Arc<Entry>,
    /// Number of the plan.
    number: u64,
    counts: Arc<SessionCounts>,
    end: Compacted,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.counts.note_compaction(self.end);
        let mut state = self.entry.lock();
        state.chat.cancel_unready(self.number);
        // Another compaction may have begun since this one was cancelled.
        state.compaction.take_if(|task| task.number == self.number);
        drop(state);
        self.entry.changed();
    }
}
