//! What the cluster decides, performed: jobs for workers and their blocks, and answers for clients.

use std::collections::VecDeque;

use tonic::Status;
use tracing::{debug, info, warn};
use trunkline_cluster::{EngineId, Health, HealthEvent, Move, Output as ClusterOutput};
use trunkline_core::{Action, FinishReason, RequestId};

use crate::driver::Driver;
use crate::driver::client::Client;
use crate::engines::losses::Loss;
use crate::requests::outbox::{Output, Unavailable};
use crate::requests::request_times::{self, RequestTimes};

/// Returns `true` if an output is for a client.
pub(super) fn is_answer(output: &ClusterOutput) -> bool {
    let (ClusterOutput::Engine(_, action) | ClusterOutput::Cluster(action)) = output else { return false };
    matches!(action, Action::PromptValued { .. } | Action::Token { .. } | Action::Finish { .. })
}

impl Driver {
    /// Performs an output.
    pub(super) fn perform(&mut self, output: ClusterOutput) {
        match output {
            ClusterOutput::Engine(engine, Action::RunStep(step)) => {
                for seq in step.seqs.iter().filter(|seq| seq.start) {
                    if let Some(client) = self.clients.get_mut(&seq.request) {
                        client.times.start(self.last_input_ns);
                    }
                }
                self.workers.run(engine, step, self.clock.now_ns());
            }
            ClusterOutput::Engine(engine, Action::Transfer(transfer)) => self.workers.transfer(engine, transfer),
            ClusterOutput::Engine(engine, Action::Cancel { transfer }) => self.workers.cancel(engine, transfer),
            ClusterOutput::Engine(engine, Action::Lookup(lookup)) => self.workers.look_up(engine, *lookup),
            ClusterOutput::Engine(engine, Action::Release { place, blocks }) => {
                self.workers.store(engine).release(place, &blocks);
            }
            ClusterOutput::Engine(engine, Action::Adopt { tier, blocks }) => {
                self.workers.store(engine).decide(tier, &blocks);
            }
            // Of a group, all workers start over.
            ClusterOutput::Engine(engine, Action::ResetWorker) if self.workers.lock_steps.has(engine) => {
                self.workers.hang_up(engine, Status::invalid_argument("an answer that fits no step"));
            }
            ClusterOutput::Engine(engine, Action::ResetWorker) => {
                self.workers.reset(engine, Loss::BadResult, self.last_input_ns);
            }
            ClusterOutput::Engine(engine, action) => {
                if let Action::Finish { request, reason: FinishReason::Error, .. } = action {
                    self.clients.entry(request).and_modify(|client| client.fail_on(engine));
                }
                self.answer(action);
            }
            ClusterOutput::Cluster(action) => self.answer(action),
            ClusterOutput::Moved { request, from, to, why } => {
                debug!(%request, %from, %to, ?why, "the request moved");
                if why == Move::Failed {
                    self.clients.entry(request).and_modify(|client| client.fail_on(from));
                }
                self.note_engine(request, to);
            }
            ClusterOutput::Placed { request, engine } => self.note_engine(request, engine),
            ClusterOutput::Health { engine, health: Health::Open, .. } => {
                info!(%engine, "a step succeeded; the engine takes requests again");
            }
            ClusterOutput::Health { engine, why, .. } => {
                let steps = if why == HealthEvent::Slow { "are far slower than elsewhere" } else { "fail in a row" };
                warn!(%engine, "steps {steps}; other engines take the requests until a probe succeeds");
            }
            ClusterOutput::Emptied(_) => {}
        }
    }

    /// Notes what workers without a step wait for.
    pub(super) fn note_idle(&mut self) {
        let Self { workers, cluster, clock, .. } = self;
        workers.note_waits(|engine| cluster.load(engine).requests > 0, || clock.now_ns());
    }

    fn note_engine(&mut self, request: RequestId, engine: EngineId) {
        if let Some(client) = self.clients.get_mut(&request) {
            client.engines.go_to(engine, self.last_input_ns);
        }
    }

    /// Performs an action for clients.
    fn answer(&mut self, action: Action) {
        match action {
            Action::PromptValued { request, first, .. } => {
                let found = self.logprobs.prompts.iter_mut().find(|of| of.request == request && of.first == first);
                let client = self.clients.get_mut(&request);
                let news = found.zip(client).and_then(|(prompt, client)| client.news_of(prompt));
                if let Some(tokens) = news {
                    self.output(request, Output::Prompt(tokens));
                }
            }
            Action::Token { request, token } => {
                let logprobs = self.logprobs.tokens.get_mut(&request).and_then(VecDeque::pop_front);
                self.output(request, Output::Token { token, logprobs });
            }
            Action::Finish { request, reason, usage } => {
                let client = self.clients.get(&request);
                let unavailable = client.and_then(|client| client.unavailable).filter(|why| why.explains(reason));
                let output = match (unavailable, client) {
                    (Some(why), _) => Output::Unavailable(why),
                    (None, Some(client)) if reason == FinishReason::Error => {
                        Output::Failed { elsewhere: client.failed_elsewhere }
                    }
                    _ => {
                        let times = client.map_or_else(RequestTimes::default, |client| client.times);
                        Output::Finish { reason, usage, times }
                    }
                };
                self.output(request, output);
                if let Some(client) = self.clients.remove(&request) {
                    let end = unavailable.map_or(request_times::End::Finished(reason), Unavailable::end);
                    self.figures.requests.end(&client.times, end, &usage, self.last_input_ns);
                    self.request_log.note(|| client.into_event(request, end, usage, self.last_input_ns));
                }
            }
            Action::Refuse { request, refusal } => {
                if let Some(Client { accepted: Some(accepted), .. }) = self.clients.remove(&request) {
                    let _ = accepted.send(Err(refusal));
                }
            }
            Action::Flushed { blocks } => {
                if let Some(reply) = self.flushes.pop_front() {
                    let _ = reply.send(blocks);
                }
            }
            Action::Drained => self.drained = true,
            Action::RunStep(_)
            | Action::Transfer(_)
            | Action::Cancel { .. }
            | Action::Lookup(_)
            | Action::Adopt { .. }
            | Action::Release { .. }
            | Action::ResetWorker => unreachable!("jobs are of an engine"),
            Action::Withdrawn(_) => unreachable!("requests that move stay in the cluster"),
        }
    }

    fn output(&mut self, request: RequestId, output: Output) {
        let Some(client) = self.clients.get_mut(&request) else { return };
        client.accept();
        if matches!(output, Output::Token { .. }) {
            self.figures.requests.token(&mut client.times, self.last_input_ns);
        }
        if !client.outputs.put(output, &mut self.readers.waiting) {
            self.readers.gone.push(request);
        }
    }
}
