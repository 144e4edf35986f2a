//! The core's thread: the only one that touches the core.
//!
//! It waits for commands until the next deadline of the core, stamps the time of each from a monotonic clock, gives it to the
//! core as an event and performs the actions that come out, in order. It never waits for anything else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};
use trunkline_core::record::End;
use trunkline_core::{Action, Core, Event, FinishReason, Refusal, Request, RequestId, Stats, Step, Token, Usage};
use trunkline_worker::TokenLogprobs;

use crate::recorder::Recorder;
use crate::worker_thread::{self, StepRunner, WorkerReport};

/// Commands waiting for the core's thread, at most.
const COMMANDS_MAX: usize = 4096;

/// The clock of all events: nanoseconds since the server started.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a server runs for less than 500 years")
    }

    fn instant(self, at_ns: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(at_ns))
    }
}

/// What the core's thread is asked to do.
pub(crate) enum Command {
    Submit {
        request: Box<Request>,
        /// Where tokens go. MUST have room for all the tokens that the request may generate and one more.
        outputs: mpsc::Sender<Output>,
        /// Told whether the core accepted the request.
        accepted: oneshot::Sender<Result<(), Refusal>>,
    },
    Abort(Vec<RequestId>),
    Stop(RequestId),
    FlushCache(oneshot::Sender<u32>),
    Snapshot(oneshot::Sender<Snapshot>),
    Drain,
    Shutdown,
    Worker(WorkerReport),
}

/// What a request is told after it was accepted.
pub(crate) enum Output {
    Token { token: Token, logprobs: Option<TokenLogprobs> },
    Finish { reason: FinishReason, usage: Usage },
}

/// The state of the core between two events.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    pub(crate) digest: u64,
    pub(crate) draining: bool,
}

/// What is known when a server has stopped.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The digest of all decisions.
    pub digest: u64,
    /// Gauges and counters at the end.
    pub stats: Stats,
    /// Why the server could not go on, if it stopped by itself.
    pub failure: Option<String>,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The queue is full.
    Full,
    /// The core's thread has ended.
    Stopped,
}

/// The other threads' end of the command queue.
#[derive(Clone)]
pub(crate) struct DriverHandle {
    commands: Sender<Command>,
    clock: Clock,
    /// An abort found the queue full: the core's thread looks for streams that nobody reads any more.
    abort_missed: Arc<AtomicBool>,
}

impl DriverHandle {
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Puts a command on the queue without waiting.
    pub(crate) fn send(&self, command: Command) -> Result<(), NotTaken> {
        self.commands.try_send(command).map_err(|err| match err {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Stopped,
        })
    }

    /// Puts a command on the queue and waits while it is full; returns whether it was taken. Not for async code.
    pub(crate) fn send_blocking(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }

    /// Aborts a request whose outputs have been closed. Never waits and is never lost.
    pub(crate) fn abort_dropped(&self, id: RequestId) {
        if self.send(Command::Abort(vec![id])) == Err(NotTaken::Full) {
            self.abort_missed.store(true, Ordering::Release);
            // Either this is taken, or the queue is full now that the flag is up, and whoever takes a command from it sees
            // the flag after that.
            let _ = self.send(Command::Abort(vec![id]));
        }
    }
}

/// A queue for `commands_max` commands, and the clock, which starts now.
pub(crate) fn queue(commands_max: usize) -> (DriverHandle, Receiver<Command>) {
    let (sender, commands) = bounded(commands_max);
    (DriverHandle { commands: sender, clock: Clock::start(), abort_missed: Arc::default() }, commands)
}

/// Starts the worker's thread and the core's. The receiver gets the outcome when the core's thread ends, and nothing if it
/// panics.
pub(crate) fn spawn(
    core: Core,
    runner: Box<dyn StepRunner>,
    recorder: Option<Recorder>,
) -> std::io::Result<(DriverHandle, oneshot::Receiver<Outcome>)> {
    let (handle, commands) = queue(COMMANDS_MAX);
    let reports = handle.clone();
    let steps = worker_thread::spawn(runner, move |report| reports.send_blocking(Command::Worker(report)))?;
    let driver = Driver::new(core, &handle, commands, steps, recorder);
    let (done, outcome) = oneshot::channel();
    thread::Builder::new().name("core".into()).spawn(move || {
        // Nobody waits for the outcome if the server was dropped.
        let _ = done.send(driver.run());
    })?;
    Ok((handle, outcome))
}

/// A request that the core was given and has not ended.
struct Client {
    outputs: mpsc::Sender<Output>,
    accepted: Option<oneshot::Sender<Result<(), Refusal>>>,
}

impl Client {
    /// Tells the handler that the core accepted, if it was not told yet. A handler that is gone took its stream with it.
    fn accept(&mut self) {
        if let Some(accepted) = self.accepted.take() {
            let _ = accepted.send(Ok(()));
        }
    }
}

struct Driver {
    core: Core,
    clock: Clock,
    commands: Receiver<Command>,
    abort_missed: Arc<AtomicBool>,
    steps: Sender<Box<Step>>,
    recorder: Option<Recorder>,
    clients: HashMap<RequestId, Client>,
    /// Requests found to have nobody reading their outputs, to be aborted.
    unread: Vec<RequestId>,
    /// Log probabilities of the tokens of the step that has just ended.
    logprobs: HashMap<RequestId, VecDeque<TokenLogprobs>>,
    flushes: VecDeque<oneshot::Sender<u32>>,
    actions: Vec<Action>,
    last_event_ns: u64,
    draining: bool,
    drained: bool,
    failure: Option<String>,
}

impl Driver {
    fn new(
        core: Core,
        handle: &DriverHandle,
        commands: Receiver<Command>,
        steps: Sender<Box<Step>>,
        recorder: Option<Recorder>,
    ) -> Self {
        Self {
            core,
            clock: handle.clock,
            commands,
            abort_missed: handle.abort_missed.clone(),
            steps,
            recorder,
            clients: HashMap::new(),
            unread: Vec::new(),
            logprobs: HashMap::new(),
            flushes: VecDeque::new(),
            actions: Vec::new(),
            last_event_ns: 0,
            draining: false,
            drained: false,
            failure: None,
        }
    }

    fn run(mut self) -> Outcome {
        while !self.drained {
            self.turn();
        }
        let digest = self.core.digest();
        if let Some(recorder) = self.recorder {
            recorder.finish(End { at_ns: self.last_event_ns, digest: format!("{digest:016x}") });
        }
        Outcome { digest, stats: self.core.stats(), failure: self.failure }
    }

    /// Waits for one command, or the next deadline, and deals with it.
    fn turn(&mut self) {
        if self.abort_missed.swap(false, Ordering::Acquire) {
            self.find_unread();
        }
        match self.next_command() {
            Some(command) => self.take(command),
            None => self.apply(Event::Tick),
        }
    }

    /// The next command, or `None` if a deadline of the core comes first.
    fn next_command(&self) -> Option<Command> {
        let deadline_ns = self.core.next_deadline_ns();
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.clock.now_ns()) {
            return None;
        }
        let received = match deadline_ns.and_then(|deadline_ns| self.clock.instant(deadline_ns)) {
            Some(deadline) => self.commands.recv_deadline(deadline),
            None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            // Nobody is left who could want anything.
            Err(RecvTimeoutError::Disconnected) => Some(Command::Shutdown),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            // A client that is gone already is not worth an event.
            Command::Submit { outputs, .. } if outputs.is_closed() => {}
            Command::Submit { request, outputs, accepted } => {
                let id = request.id;
                self.clients.insert(id, Client { outputs, accepted: Some(accepted) });
                self.apply(Event::Submit(request));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.accept();
                }
            }
            Command::Abort(ids) => {
                for id in ids {
                    // The core ignores requests that have ended; leaving them out keeps recordings short.
                    if self.clients.contains_key(&id) {
                        self.apply(Event::Abort(id));
                    }
                }
            }
            Command::Stop(id) => {
                if self.clients.contains_key(&id) {
                    self.apply(Event::Stop(id));
                }
            }
            Command::FlushCache(reply) => {
                self.flushes.push_back(reply);
                self.apply(Event::FlushCache);
            }
            Command::Snapshot(reply) => {
                let snapshot =
                    Snapshot { stats: self.core.stats(), digest: self.core.digest(), draining: self.draining };
                // The caller may have given up.
                let _ = reply.send(snapshot);
            }
            Command::Drain => {
                info!(requests = self.clients.len(), "draining");
                self.draining = true;
                self.apply(Event::Drain);
            }
            Command::Shutdown => self.shutdown(),
            Command::Worker(report) => self.take_report(report),
        }
    }

    fn take_report(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::Ready => self.apply(Event::WorkerJoined),
            WorkerReport::Done { step, output } => {
                self.core.recycle(step);
                for entry in output.logprobs {
                    self.logprobs.entry(entry.request).or_default().push_back(entry);
                }
                self.apply(Event::StepFinished(output.result));
                self.logprobs.clear();
            }
            WorkerReport::Failed { step } => {
                self.core.recycle(step);
                warn!(requests = self.clients.len(), "all KV is lost; requests are computed again");
                self.apply(Event::WorkerLost);
            }
            WorkerReport::Gone => {
                self.failure = Some("the worker ended and cannot be started again".into());
                self.apply(Event::WorkerLost);
                self.shutdown();
            }
        }
    }

    /// Ends everything now. The step that may be running is not waited for: its worker is given up, so that the core lets go
    /// of the requests in it.
    fn shutdown(&mut self) {
        info!(requests = self.clients.len(), "stopping");
        self.draining = true;
        self.apply(Event::Shutdown);
        if !self.drained {
            self.apply(Event::WorkerLost);
        }
    }

    /// Gives an event to the core and performs what it wants.
    fn apply(&mut self, event: Event) {
        self.apply_one(event);
        while let Some(id) = self.unread.pop() {
            if self.clients.contains_key(&id) {
                self.apply_one(Event::Abort(id));
            }
        }
    }

    fn apply_one(&mut self, event: Event) {
        let now_ns = self.clock.now_ns();
        self.last_event_ns = now_ns;
        if let Some(recorder) = &mut self.recorder {
            recorder.event(now_ns, &event);
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.core.handle(now_ns, event, &mut actions);
        for action in actions.drain(..) {
            self.perform(action);
        }
        self.actions = actions;
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::RunStep(step) => {
                // Fails only if the worker's thread has ended, which is in the queue as a report.
                if self.steps.try_send(step).is_err() {
                    error!("the worker takes no steps");
                }
            }
            Action::Transfer(_) => unreachable!("the core has no host blocks"),
            Action::Token { request, token } => {
                let logprobs = self.logprobs.get_mut(&request).and_then(VecDeque::pop_front);
                self.output(request, Output::Token { token, logprobs });
            }
            Action::Finish { request, reason, usage } => {
                self.output(request, Output::Finish { reason, usage });
                self.clients.remove(&request);
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
        }
    }

    fn output(&mut self, request: RequestId, output: Output) {
        let Some(client) = self.clients.get_mut(&request) else { return };
        client.accept();
        match client.outputs.try_send(output) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => self.unread.push(request),
            Err(mpsc::error::TrySendError::Full(_)) => {
                debug_assert!(false, "the channel has room for all the tokens of its request");
                error!(%request, "a request generated more tokens than it asked for");
                self.unread.push(request);
            }
        }
    }

    /// Looks for requests whose outputs nobody reads any more.
    fn find_unread(&mut self) {
        let mut unread: Vec<RequestId> =
            self.clients.iter().filter(|(_, client)| client.outputs.is_closed()).map(|(id, _)| *id).collect();
        unread.sort_unstable();
        for id in unread {
            self.apply(Event::Abort(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{Config, Namespace};

    use super::*;

    /// A driver that nobody runs, with a queue of one command and no worker.
    fn driver() -> (DriverHandle, Driver) {
        let (handle, commands) = queue(1);
        let (steps, _) = bounded(1);
        let core = Core::new(Config::default()).unwrap();
        let driver = Driver::new(core, &handle, commands, steps, None);
        (handle, driver)
    }

    fn submit(id: u64) -> (Command, mpsc::Receiver<Output>, oneshot::Receiver<Result<(), Refusal>>) {
        let (sender, outputs) = mpsc::channel(8);
        let (accepted, is_accepted) = oneshot::channel();
        let mut request = Request::new(RequestId(id), Namespace::default().root(), vec![1, 2, 3], 4);
        request.hash_prompt(Config::default().block_size);
        (Command::Submit { request: Box::new(request), outputs: sender, accepted }, outputs, is_accepted)
    }

    #[test]
    fn a_full_queue_takes_nothing_and_a_stopped_driver_neither() {
        let (handle, driver) = driver();
        assert_eq!(handle.send(Command::Abort(Vec::new())), Ok(()));
        assert_eq!(handle.send(Command::Abort(Vec::new())), Err(NotTaken::Full));
        drop(driver);
        assert_eq!(handle.send(Command::Abort(Vec::new())), Err(NotTaken::Stopped));
        assert!(!handle.send_blocking(Command::Drain));
    }

    #[test]
    fn an_abort_that_finds_the_queue_full_is_not_lost() {
        let (handle, mut driver) = driver();
        let (command, mut outputs, mut is_accepted) = submit(1);
        driver.take(command);
        assert_eq!(is_accepted.try_recv(), Ok(Ok(())));
        handle.send(Command::Abort(Vec::new())).unwrap();
        outputs.close();
        handle.abort_dropped(RequestId(1));
        assert_eq!(driver.core.stats().finished, 0);
        driver.turn();
        assert_eq!((driver.core.stats().finished, driver.clients.len()), (1, 0));
    }

    #[test]
    fn a_request_whose_client_went_away_in_the_queue_never_begins() {
        let (handle, mut driver) = driver();
        let (command, mut outputs, _) = submit(1);
        handle.send(command).unwrap();
        outputs.close();
        handle.abort_dropped(RequestId(1));
        driver.turn();
        assert_eq!((driver.core.stats().accepted, driver.clients.len()), (0, 0));
    }

    #[test]
    fn a_deadline_ticks_and_a_refusal_is_told() {
        let (_handle, mut driver) = driver();
        let (mut command, mut outputs, _) = submit(1);
        if let Command::Submit { request, .. } = &mut command {
            request.deadline_ns = Some(driver.clock.now_ns() + 1_000_000);
        }
        driver.take(command);
        driver.turn();
        assert!(matches!(outputs.try_recv(), Ok(Output::Finish { reason: FinishReason::Timeout, .. })));

        driver.take(Command::Drain);
        assert!(driver.drained);
        let (command, _outputs, mut is_accepted) = submit(2);
        driver.take(command);
        assert_eq!(is_accepted.try_recv(), Ok(Err(Refusal::Draining)));
    }
}
