//! Compaction of a session's history, alongside its turns.
//!
//! A task asks the model for a summary, then computes the new context into the prefix cache, both as requests in the background. The chat
//! goes on in the old context meanwhile. If somebody waits, both are like the session's turns; a turn that waits computes the new
//! context itself. Aborting the task aborts its request.
//!
//! A model that answers with its end token alone is asked again, with the end tokens masked for the first tokens.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use trunkline_chat::{Phase, Plan, Totals, Usage, Want};
use trunkline_core::{FinishReason, Token};

use crate::access::caller::Caller;
use crate::proto;
use crate::requests::outbox::Output;
use crate::service::sessions::asked_again::{beginning_of_summary, rest_of_summary};
use crate::service::sessions::counts::{Compacted, SessionCounts};
use crate::service::sessions::entry::{CompactionTask, Entry};
use crate::service::sessions::setup::Setup;
use crate::service::stream::{failed_alone, worker_failure};
use crate::service::submission::{Submitted, Submitter};

/// Pause before a patient request is submitted again.
const RETRY: Duration = Duration::from_millis(10);
/// Maximum number of outputs taken at once.
const OUTPUTS_MAX: usize = 64;

/// Who waits for a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Nobody: the chat goes on in the old context.
    Nobody,
    /// The caller of `Compact`.
    Caller,
    /// A turn without room, which computes the new context itself.
    Turn,
}

/// Maker of compactions.
pub(crate) struct Compactor {
    pub(crate) submitter: Arc<Submitter>,
    /// Time for each request.
    pub(crate) timeout: Duration,
    pub(crate) counts: Arc<SessionCounts>,
}

impl Compactor {
    /// Begins a compaction on behalf of a caller; returns `false` if there is nothing to do, or a compaction is under
    /// way.
    pub(crate) fn start(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
        want: Want,
        (waiting, instruction): (Waiting, Option<Vec<Token>>),
    ) -> bool {
        let (plan, before) = {
            let mut state = entry.lock();
            let plan = if state.deleted { None } else { state.chat.plan(want) };
            let Some(plan) = plan else { return false };
            (plan, *state.chat.totals())
        };
        let number = plan.number;
        let guard = Guard { entry: entry.clone(), number, counts: self.counts.clone(), before };
        let (compactor, caller) = (self.clone(), caller.on_behalf());
        // A runtime that ends drops the task at once, whose guard takes the lock.
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = caller.call.withdrawn() => {}
                () = compactor.compact(guard, &caller, plan, (waiting, instruction)) => {}
            }
        });
        let mut state = entry.lock();
        match state.deleted {
            true => task.abort(),
            // A task may have ended by now.
            false if matches!(state.chat.phase(), Phase::Summarising | Phase::Warming) => {
                let urgent = waiting != Waiting::Nobody;
                state.compaction = Some(CompactionTask { number, urgent, handle: task.abort_handle() });
            }
            false => {}
        }
        true
    }

    /// Begins a compaction if the recent turns are above the high watermark.
    pub(crate) fn start_if_long(self: &Arc<Self>, entry: &Arc<Entry>, caller: &Caller) {
        let is_long = entry.lock().chat.is_long();
        if is_long {
            self.start(entry, caller, Want::default(), (Waiting::Nobody, None));
        }
    }

    async fn compact(
        &self,
        guard: Guard,
        caller: &Caller,
        plan: Plan,
        (waiting, instruction): (Waiting, Option<Vec<Token>>),
    ) {
        let urgent = waiting != Waiting::Nobody;
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
        let summary = self.summary(&entry.setup, caller, request, urgent).await;
        let context = match summary {
            Ok((summary, usage)) => entry.lock().chat.summarised(plan.number, summary, usage),
            Err(reason) => {
                entry.lock().chat.failed(plan.number, &reason);
                None
            }
        };
        if waiting == Waiting::Turn {
            entry.lock().chat.skip_warming();
        } else if let Some(context) = context {
            // Without a context computed ahead the next turn computes the context: slower, and as right.
            let warmed = self.ask(&entry.setup, caller, entry.setup.background(context, 1, urgent), urgent).await;
            entry.lock().chat.warmed(plan.number, warmed.map_or(Usage::default(), |(_, usage)| usage));
        }
    }

    /// Asks for a summary, and once more if the model writes none: then its first tokens end nothing, and it goes on by itself.
    async fn summary(
        &self,
        setup: &Setup,
        caller: &Caller,
        request: proto::GenerateRequest,
        patient: bool,
    ) -> Result<(Vec<Token>, Usage), String> {
        let (summary, mut usage) = self.ask(setup, caller, request.clone(), patient).await?;
        let ends = &self.submitter.model.eos_token_ids;
        if ends.is_empty() || !self.is_blank(&summary) {
            return Ok((summary, usage));
        }
        let again = |reason: String| format!("the model wrote an empty summary, and asked again none: {reason}");
        let beginning = beginning_of_summary(request.clone(), ends);
        let (mut summary, used) = self.ask(setup, caller, beginning, patient).await.map_err(again)?;
        usage += used;
        if let Some(rest) = rest_of_summary(request, &summary) {
            let (rest, used) = self.ask(setup, caller, rest, patient).await.map_err(again)?;
            usage += used;
            summary.extend(rest);
        }
        Ok((if self.is_blank(&summary) { Vec::new() } else { summary }, usage))
    }

    /// Returns `true` if a summary says nothing.
    fn is_blank(&self, summary: &[Token]) -> bool {
        self.submitter.tokenizer.decode(summary).trim().is_empty()
    }

    /// Submits a request; a patient one again and again while there are too many others. The requests of a summary that was cancelled for
    /// this one may still count.
    async fn submit(
        &self,
        setup: &Setup,
        caller: &Caller,
        request: proto::GenerateRequest,
        patient: bool,
    ) -> Result<Submitted, String> {
        let clock = self.submitter.driver.clock();
        let (arrival_ns, timeout_ns) = (clock.now_ns(), u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let checked = setup.check(&self.submitter, request.clone()).map_err(|invalid| invalid.0)?;
            let submitted = self.submitter.submit(caller, checked, arrival_ns, Some(self.timeout)).await;
            let has_time = clock.now_ns().saturating_sub(arrival_ns) < timeout_ns;
            match submitted {
                Err(rejection) if patient && has_time && rejection.is_overload() => sleep(RETRY).await,
                submitted => return submitted.map_err(|rejection| rejection.to_string()),
            }
        }
    }

    /// Runs a request, submitted patiently or not; returns the tokens, without a stop token at their end.
    async fn ask(
        &self,
        setup: &Setup,
        caller: &Caller,
        request: proto::GenerateRequest,
        patient: bool,
    ) -> Result<(Vec<Token>, Usage), String> {
        let mut submitted = self.submit(setup, caller, request, patient).await?;
        let (mut tokens, mut taken) = (Vec::new(), Vec::new());
        loop {
            if poll_fn(|cx| submitted.outputs().poll_recv_many(cx, &mut taken, OUTPUTS_MAX)).await == 0 {
                submitted.end();
                return Err("the server has stopped".into());
            }
            for output in taken.drain(..) {
                match output {
                    // None is asked for.
                    Output::Prompt(_) => {}
                    Output::Token { token, .. } => tokens.push(token),
                    Output::Finish { reason, usage, .. } => {
                        submitted.end();
                        let usage = Usage {
                            prompt: usage.prompt_tokens,
                            cached: usage.cached_tokens,
                            completion: usage.completion_tokens,
                            preemptions: usage.preemptions,
                        };
                        return whole(reason, tokens).map(|tokens| (tokens, usage));
                    }
                    Output::Failed { elsewhere } => {
                        submitted.end();
                        return Err(failed_alone(elsewhere).message().into());
                    }
                    Output::Unavailable(why) => {
                        submitted.end();
                        return Err(why.message().into());
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
        FinishReason::Error | FinishReason::NotFinite | FinishReason::Unsupported => {
            Err(worker_failure(reason).message().into())
        }
    }
}

/// Leaves no compaction under way behind, however its task ends.
struct Guard {
    entry: Arc<Entry>,
    /// Number of the plan.
    number: u64,
    counts: Arc<SessionCounts>,
    /// Totals of the chat when the compaction began.
    before: Totals,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        state.chat.cancel_unready(self.number);
        let totals = state.chat.totals();
        // A new context that is ready takes effect when the running turn ends.
        let end = match state.chat.phase() {
            Phase::Ready => Compacted::Done,
            _ if totals.compactions > self.before.compactions => Compacted::Done,
            _ if totals.failed > self.before.failed => Compacted::Failed,
            _ => Compacted::Cancelled,
        };
        self.counts.note_compaction(end);
        // Another compaction may have begun since this one was cancelled.
        state.compaction.take_if(|task| task.number == self.number);
        drop(state);
        self.entry.changed();
    }
}
