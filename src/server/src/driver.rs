//! The core's thread: no other thread touches the cluster and the cores.
//!
//! The thread waits for commands until the next deadline of a request or the next restart of a worker, stamps each command with the
//! time of a monotonic clock, delivers the command to the cluster as an input and performs the outputs, those for workers first. The
//! thread never waits for anything else.
//!
//! # Failing workers
//!
//! A worker with a failed step is reset and joins again; the worker's requests are computed again on the same engine, or on others if a request
//! failed alone or the worker fails all steps (`trunkline_cluster`, `cluster/failing.rs`). A worker with
//! ended threads is started again ([`Workers`]), and meanwhile the worker's engine is retired: other engines continue the engine's
//! requests with the tokens generated so far. A server with one engine stops with a failure instead, and so does a server after the
//! last restart of every worker. A worker with a step or a reset that does not end ([`crate::engines::watchdog`]) is left behind, and a new worker
//! takes its place, on a server with one engine too. Attached workers come and go by themselves (`driver/attached.rs`).

mod attached;
mod client;
pub(crate) mod commands;
pub(crate) mod followers;
pub(crate) mod listening;
mod outputs;
pub(crate) mod queue;
pub(crate) mod recorder;
pub(crate) mod start;
mod tiers;
pub(crate) mod workers;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tokio::sync::{oneshot, watch};
use tonic::Status;
use tracing::{error, info, warn};
use trunkline_cluster::record::End;
use trunkline_cluster::{Cluster, EngineId, EngineState, Input, Output as ClusterOutput};
use trunkline_core::{Event, RequestId, Stats};
use trunkline_port::{PromptLogprobs, Step, StepOutput, StepRunner, TokenLogprobs, TransferReport};

use self::client::Client;
use self::followers::Followers;
use crate::driver::commands::{Command, EngineSnapshot, Snapshot, StepCounts};
use crate::driver::queue::{DriverHandle, queue};
use crate::driver::recorder::Recorder;
use crate::driver::workers::{WorkerError, Workers, log_failed};
use crate::engines::losses::Loss;
use crate::engines::step_figures::StepFigures;
use crate::engines::stores::TierSizes;
use crate::engines::worker_thread::{WorkerEvent, WorkerReport};
use crate::network::clock::Clock;
use crate::requests::outbox::Unavailable;
use crate::requests::request_log::RequestLog;
use crate::requests::request_times::{RequestFigures, RequestTimes};

/// Maximum number of commands waiting for the core's thread.
const COMMANDS_MAX: usize = 4096;
/// Ended requests from which on their memory is freed on another thread: freeing as many takes some milliseconds.
const REMAINS_MAX: usize = 1024;

/// Final state of a stopped server.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The digest of all decisions.
    pub digest: u64,
    /// Gauges and counters at the end, of all engines together.
    pub stats: Stats,
    /// Drafts and reads of weights of all ended steps, on all engines.
    pub counts: StepCounts,
    /// Reason for a stop of the server's own accord, if there is one.
    pub failure: Option<String>,
}

/// Makes the queue of commands to the core's thread.
pub(crate) fn commands() -> (DriverHandle, Receiver<Command>) {
    queue(COMMANDS_MAX)
}

/// Returns the command for a queue without senders: nobody is left who could want anything.
fn nobody_left() -> WakeUp {
    WakeUp::Command(Command::Shutdown)
}

/// Reason for waking the core's thread.
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack; a box would cost an allocation for each command"
)]
enum WakeUp {
    Command(Command),
    /// The deadline of a request has come.
    Deadline,
    /// A worker is to be started again.
    Restart,
    /// A step or a reset has taken too long.
    Timeout,
    /// An attached worker did not come back, or none came.
    Absence,
}

/// Figures of requests and steps, for metrics alone.
struct Figures {
    requests: RequestFigures,
    /// Steps by engine.
    steps: Vec<StepFigures>,
}

struct Driver {
    cluster: Cluster,
    clock: Clock,
    commands: Receiver<Command>,
    abort_missed: Arc<AtomicBool>,
    workers: Workers,
    followers: Followers,
    request_log: RequestLog,
    clients: HashMap<RequestId, Client>,
    readers: Readers,
    logprobs: Logprobs,
    /// Drafts and reads of weights of ended steps, by engine.
    counts: Vec<StepCounts>,
    figures: Figures,
    flushes: VecDeque<oneshot::Sender<u32>>,
    outputs: Vec<ClusterOutput>,
    /// Blocks that fit in the tiers, by engine.
    tier_sizes: Vec<TierSizes>,
    last_input_ns: u64,
    draining: bool,
    drained: bool,
    failure: Option<String>,
    presence: Presence,
}

/// Log probabilities of the last ended step.
#[derive(Default)]
struct Logprobs {
    tokens: HashMap<RequestId, VecDeque<TokenLogprobs>>,
    prompts: Vec<PromptLogprobs>,
}

/// Readers of the outputs of the last input.
#[derive(Default)]
struct Readers {
    /// Readers of new outputs, to be woken.
    waiting: Vec<Waker>,
    /// Requests that nobody reads, to be aborted.
    gone: Vec<RequestId>,
}

/// Presence of workers, for health and for the requests that wait for a worker.
struct Presence {
    /// `true` as long as some engine has a worker, or gets one without an operator.
    served: watch::Sender<bool>,
    /// End of the wait for an attached worker, while no engine is served, nanoseconds.
    wait_until_ns: Option<u64>,
}

impl Driver {
    fn new(
        cluster: Cluster,
        handle: &DriverHandle,
        commands: Receiver<Command>,
        workers: Workers,
        (recorder, request_log): (Option<Recorder>, RequestLog),
    ) -> Self {
        let engines = (0..cluster.n_engines() as u32).map(EngineId);
        let sizes = |engine| TierSizes::new(cluster.core(engine).config(), workers.store(engine).layout().block_bytes);
        Self {
            tier_sizes: engines.map(sizes).collect(),
            counts: vec![StepCounts::default(); cluster.n_engines()],
            figures: Figures {
                requests: RequestFigures::default(),
                steps: vec![StepFigures::default(); cluster.n_engines()],
            },
            cluster,
            clock: handle.clock(),
            commands,
            abort_missed: handle.abort_missed(),
            workers,
            followers: Followers { recorder, ..Followers::default() },
            request_log,
            clients: HashMap::new(),
            readers: Readers::default(),
            logprobs: Logprobs::default(),
            flushes: VecDeque::new(),
            outputs: Vec::new(),
            last_input_ns: 0,
            draining: false,
            drained: false,
            failure: None,
            presence: Presence { served: watch::Sender::new(true), wait_until_ns: None },
        }
    }

    fn run(mut self) -> Outcome {
        while !self.drained {
            self.turn();
        }
        let digest = self.cluster.digest();
        let (stats, counts) = self.snapshot().totals();
        if let Some(recorder) = self.followers.recorder {
            let digest = format!("{digest:016x}");
            recorder.finish(End { at_ns: self.last_input_ns, digest, inputs: None });
        }
        self.request_log.finish();
        Outcome { digest, stats, counts, failure: self.failure }
    }

    /// Waits for a command, the next deadline or the next restart, and handles the first to come.
    fn turn(&mut self) {
        if self.abort_missed.swap(false, Ordering::Acquire) {
            self.find_unread();
        }
        match self.next_wake_up() {
            WakeUp::Command(command) => self.take(command),
            WakeUp::Deadline => self.apply(Input::Client(Event::Tick)),
            WakeUp::Restart => self.workers.restart_due(self.clock.now_ns()),
            WakeUp::Timeout => self.abandon(),
            WakeUp::Absence => self.end_waits(),
        }
    }

    fn next_wake_up(&self) -> WakeUp {
        let due = [
            (self.workers.next_restart_ns(), WakeUp::Restart),
            (self.cluster.next_deadline_ns(), WakeUp::Deadline),
            (self.workers.next_timeout_ns(), WakeUp::Timeout),
            (self.next_absence_ns(), WakeUp::Absence),
        ];
        let due = due.into_iter().filter_map(|(at_ns, reason)| Some((at_ns?, reason)));
        let Some((next_ns, reason)) = due.min_by_key(|(at_ns, _)| *at_ns) else {
            return self.commands.recv().map_or_else(|_| nobody_left(), WakeUp::Command);
        };
        if next_ns <= self.clock.now_ns() {
            // The answer to a step may be in the queue: only an answer that is not there is late.
            let answer = matches!(reason, WakeUp::Timeout).then(|| self.commands.try_recv().ok()).flatten();
            return answer.map_or(reason, WakeUp::Command);
        }
        let received = match self.clock.instant(next_ns) {
            Some(next) => self.commands.recv_deadline(next),
            None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(command) => WakeUp::Command(command),
            // Looks at the clock and the queue again.
            Err(RecvTimeoutError::Timeout) if matches!(reason, WakeUp::Timeout) => self.next_wake_up(),
            Err(RecvTimeoutError::Timeout) => reason,
            Err(RecvTimeoutError::Disconnected) => nobody_left(),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            // A client that is gone already is not worth an event.
            Command::Submit { outputs, .. } if outputs.is_closed() => {}
            Command::Submit { request, arrival_ns, label, outputs, accepted } => {
                let (id, mut times) = (request.id, RequestTimes::new(arrival_ns, request.max_tokens));
                times.deadline_ns = request.deadline_ns;
                self.clients.insert(id, Client::new(label, times, outputs, accepted));
                self.apply(Input::Client(Event::Submit(request)));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.times.queued_ns = Some(self.last_input_ns);
                    client.accept();
                }
            }
            Command::Abort(ids) => {
                for id in ids {
                    // The cluster ignores requests that have ended; leaving them out keeps recordings short.
                    if self.clients.contains_key(&id) {
                        self.apply(Input::Client(Event::Abort(id)));
                    }
                }
            }
            Command::Stop(id) => {
                if self.clients.contains_key(&id) {
                    self.apply(Input::Client(Event::Stop(id)));
                }
            }
            Command::FlushCache(reply) => {
                self.workers.flush();
                self.flushes.push_back(reply);
                self.apply(Input::Client(Event::FlushCache));
            }
            // The caller may have given up.
            Command::Snapshot(reply) if reply.is_closed() => {}
            Command::Snapshot(reply) => _ = reply.send(self.snapshot()),
            Command::Drain => {
                info!(requests = self.clients.len(), "draining");
                self.draining = true;
                self.apply(Input::Client(Event::Drain));
            }
            Command::Shutdown => self.shutdown(),
            Command::CutShort => self.cut_short(),
            Command::Worker(report) => self.take_report(report),
            Command::LookedUp { engine, lookup, found } => {
                self.apply(Input::Engine(engine, Event::LookupEnded { lookup, found }));
            }
            Command::Found { engine, tier, blocks } => self.find_later(engine, tier, blocks),
            Command::WorkerMade { engine, made } => self.replace_worker(engine, made),
            Command::Attach(attaching) => self.attach(*attaching),
            Command::Linked { engine, link, life, event } => {
                // What was under way on an earlier connection is lost.
                if self.workers.seats.is_present(engine, link) {
                    self.take_report(WorkerReport { worker: engine.0, life, event });
                }
            }
            Command::Detached { engine, link, end } => self.detach(engine, link, end),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let engine = |(engine, counts): (EngineId, &StepCounts)| EngineSnapshot {
            status: self.cluster.status(engine),
            tiers: self.cluster.core(engine).config().tiers.iter().map(|tier| tier.name.clone()).collect(),
            store: self.workers.store(engine).stats(),
            abandoned: self.workers.abandoned(engine),
            worker: self.workers.attached(engine),
            counts: *counts,
            steps: self.figures.steps[engine.index()].clone(),
            idle: self.workers.idle(engine, self.clock.now_ns()),
            workers: self.workers.counts(engine),
        };
        Snapshot {
            engines: (0..).map(EngineId).zip(&self.counts).map(engine).collect(),
            requests: self.figures.requests.clone(),
            digest: self.cluster.digest(),
            draining: self.draining,
        }
    }

    fn take_report(&mut self, report: WorkerReport) {
        if self.workers.is_from_replaced_threads(&report) {
            // Copies may be answered so late, and so may a step whose worker was abandoned.
            return self.workers.note_late(&report);
        }
        let engine = EngineId(report.worker);
        let is_current = self.workers.is_current(&report);
        match report.event {
            // The rest concerns a life of the worker that the core has given up.
            WorkerEvent::Ready if !is_current => {}
            WorkerEvent::Done { step, .. } | WorkerEvent::Failed { step, .. } if !is_current => {
                self.cluster.recycle(engine, step);
            }
            WorkerEvent::Ready => {
                self.workers.note_ready(engine);
                self.join(engine);
            }
            WorkerEvent::Done { step, output, ended } => {
                self.finish_step(engine, step, output, self.clock.at_ns(ended));
            }
            WorkerEvent::Failed { step, guilty } => {
                self.cluster.recycle(engine, step);
                if let Some(id) = guilty {
                    // It ends with the step; else it would fail the next one too, and all others in it. A step that begins now, because
                    // this request no longer runs, belongs to the life that has failed: the worker drops it.
                    // With several engines, another worker is asked before the request ends.
                    self.apply(Input::Engine(engine, Event::Fail(id)));
                }
                if self.workers.lock_steps.has(engine) {
                    let status = Status::aborted("a step of the worker failed");
                    return self.vacate(engine, Loss::FailedStep, status, "a step failed");
                }
                // Before the loss, so that whatever the core wants from then on is done by the worker's next life.
                self.workers.reset(engine, Loss::FailedStep, self.clock.now_ns());
                let requests = self.cluster.status(engine).load.requests;
                warn!(%engine, requests, "a step failed, and all KV of the worker is lost; requests are computed again");
                self.apply(Input::Engine(engine, Event::WorkerLost));
            }
            // The core ignores answers it does not wait for: those of a worker that was lost meanwhile.
            WorkerEvent::Transferred { transfer, report: TransferReport { faults, .. } } => {
                let event = match faults.is_empty() {
                    true => Event::TransferFinished(transfer),
                    false => Event::TransferPartial { transfer, faults },
                };
                self.apply(Input::Engine(engine, event));
                self.resize_tiers(engine);
            }
            ended @ (WorkerEvent::Gone | WorkerEvent::Unfit) => self.lose(engine, matches!(ended, WorkerEvent::Unfit)),
        }
    }

    /// Takes the answer to a step that ended at `now_ns`.
    fn finish_step(&mut self, engine: EngineId, step: Box<Step>, output: StepOutput, now_ns: u64) {
        if let Some(duration_ns) = self.workers.note_step(engine, step.id, now_ns) {
            self.figures.steps[engine.index()].add(&step, duration_ns);
            let begin_ns = now_ns.saturating_sub(duration_ns);
            self.followers.step_ended((engine, &step), (begin_ns, now_ns), &output.weights, self.cluster.core(engine));
        }
        log_failed(engine, &step, &output.result.failed);
        self.cluster.recycle(engine, step);
        let StepOutput { drafted, accepted, weights, .. } = output;
        self.counts[engine.index()] += StepCounts { drafted, accepted, weights };
        for entry in output.logprobs {
            self.logprobs.tokens.entry(entry.request).or_default().push_back(entry);
        }
        self.logprobs.prompts = output.prompts;
        self.apply(Input::Engine(engine, Event::StepFinished(output.result)));
        self.logprobs.tokens.clear();
        self.logprobs.prompts.clear();
    }

    /// Reports a worker as ready to run steps, and lets the worker help out engines without one.
    fn join(&mut self, engine: EngineId) {
        if self.cluster.status(engine).state == EngineState::Closed {
            // The KV of a worker with a broken connection was given up meanwhile. Else the engine would never take requests again.
            self.apply(Input::OpenEngine(engine));
        }
        self.workers.note_joined(engine, self.clock.now_ns());
        self.apply(Input::Engine(engine, Event::WorkerJoined));
        self.note_served();
        self.help_out();
    }

    /// Handles the end of a worker's threads. A new worker may do what an unfit one cannot.
    fn lose(&mut self, engine: EngineId, is_unfit: bool) {
        self.workers.note_ended(engine);
        let requests = self.cluster.status(engine).load.requests;
        if is_unfit {
            warn!(%engine, requests, "the worker is unfit for another step; another is started in its place");
            return self.exchange(engine);
        }
        if self.cluster.n_engines() == 1 {
            self.apply(Input::Engine(engine, Event::WorkerLost));
            return self.fail("the worker ended and cannot be started again");
        }
        warn!(%engine, requests, "the worker ended; other engines continue its requests");
        self.apply(Input::Retire(engine));
        self.plan_restart(engine);
    }

    /// Leaves a worker behind in an endless step or reset, and plans another in the place.
    fn abandon(&mut self) {
        let Some(engine) = self.workers.timed_out(self.clock.now_ns()) else { return };
        if self.workers.seats.has(engine) {
            return self.hurry(engine);
        }
        let requests = self.cluster.status(engine).load.requests;
        error!(%engine, requests, "a step or a reset takes too long; the worker is left behind and another is started in its place");
        // Before the loss, so that whatever the core wants from then on is not a job of the old worker.
        self.workers.abandon(engine);
        self.exchange(engine);
    }

    /// Plans another worker in the place of an ended one or one left behind. The requests start over: on other engines, or on the same one when the new
    /// worker joins.
    fn exchange(&mut self, engine: EngineId) {
        let alone = self.cluster.n_engines() == 1;
        self.apply(if alone { Input::Engine(engine, Event::WorkerLost) } else { Input::Retire(engine) });
        self.plan_restart(engine);
    }

    /// Plans the next restart of a worker, or gives the worker up.
    fn plan_restart(&mut self, engine: EngineId) {
        if let Some(pause) = self.workers.plan_restart(engine, self.clock.now_ns()) {
            info!(%engine, ?pause, "the worker will be started again");
            return self.note_served();
        }
        error!(%engine, "the worker ended too often and is given up");
        if self.prefilling(None).all(|engine| self.workers.is_given_up(engine)) {
            return self.fail("all workers that take new requests ended and none can be started again");
        }
        self.note_served();
        self.fail_all(engine);
    }

    /// Returns the requests on an engine, in order.
    fn requests_on(&self, engine: EngineId) -> Vec<RequestId> {
        let here = |id: &RequestId| self.cluster.engine_of(*id) == Some(engine);
        let mut requests: Vec<RequestId> = self.clients.keys().copied().filter(here).collect();
        requests.sort_unstable();
        requests
    }

    /// Ends all requests on an engine that has no worker any more.
    fn fail_all(&mut self, engine: EngineId) {
        for id in self.requests_on(engine) {
            self.clients.entry(id).and_modify(|client| client.unavailable = Some(Unavailable::NoWorker));
            self.apply(Input::Client(Event::Fail(id)));
        }
    }

    /// Starts the threads of a newly made worker.
    fn replace_worker(&mut self, engine: EngineId, made: Result<Box<dyn StepRunner>, WorkerError>) {
        let replaced = made.and_then(|runner| Ok(self.workers.replace(engine, runner)?));
        if let Err(err) = replaced {
            error!(%engine, "the worker could not be started again: {err}");
            self.plan_restart(engine);
        }
    }

    /// Stops the server by itself.
    fn fail(&mut self, failure: &str) {
        self.failure = Some(failure.into());
        self.clients.values_mut().for_each(|client| client.unavailable = Some(Unavailable::NoWorker));
        self.shutdown();
    }

    /// Ends the requests that a drain has waited for long enough, so that clients send them to another server.
    fn cut_short(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        warn!(requests = self.clients.len(), "requests did not end within --drain-timeout; they end with UNAVAILABLE");
        self.clients.values_mut().for_each(|client| client.unavailable = Some(Unavailable::Stopping));
        self.shutdown();
    }

    /// Ends everything now. Steps still running are not waited for: the workers are released, so that the cores release the
    /// requests of the steps.
    fn shutdown(&mut self) {
        info!(requests = self.clients.len(), "stopping");
        self.draining = true;
        self.apply(Input::Client(Event::Shutdown));
        for at in 0..self.counts.len() {
            if !self.drained {
                self.apply(Input::Engine(EngineId(at as u32), Event::WorkerLost));
            }
        }
    }

    /// Delivers an input to the cluster and performs the outputs: those for workers first, for a device waits for its next step, and no client waits for
    /// the device.
    fn apply(&mut self, input: Input) {
        self.apply_one(input);
        while let Some(id) = self.readers.gone.pop() {
            if self.clients.contains_key(&id) {
                self.apply_one(Input::Client(Event::Abort(id)));
            }
        }
    }

    fn apply_one(&mut self, input: Input) {
        let now_ns = self.clock.now_ns();
        self.last_input_ns = now_ns;
        if let Some(recorder) = &mut self.followers.recorder {
            recorder.input(now_ns, &input);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        self.cluster.handle(now_ns, input, &mut outputs);
        self.note_preempted();
        for job in outputs.extract_if(.., |output| !outputs::is_answer(output)) {
            self.perform(job);
        }
        outputs.drain(..).for_each(|answer| self.perform(answer));
        self.outputs = outputs;
        self.workers.run_idle();
        self.note_idle();
        // The next step is under way; now the streams of the last one.
        self.readers.waiting.drain(..).for_each(Waker::wake);
        self.pass_changes();
        self.free_remains();
    }

    /// Frees the memory of the requests that ended, on a thread of its own if they are many.
    fn free_remains(&mut self) {
        let remains = self.cluster.take_remains();
        if remains.len() >= REMAINS_MAX {
            // Without a thread, the memory is freed here.
            let _ = thread::Builder::new().name("free".into()).spawn(move || drop(remains));
        }
    }

    /// Looks for requests whose outputs nobody reads any more.
    fn find_unread(&mut self) {
        let mut unread: Vec<RequestId> =
            self.clients.iter().filter(|(_, client)| client.outputs.is_closed()).map(|(id, _)| *id).collect();
        unread.sort_unstable();
        for id in unread {
            self.apply(Input::Client(Event::Abort(id)));
        }
    }
}

#[cfg(test)]
mod tests;
