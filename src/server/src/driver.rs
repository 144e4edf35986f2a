//! The core's thread: the only one that touches the core.
//!
//! The thread waits for commands until the next deadline of the core, stamps each command with the time of a monotonic clock,
//! hands it to the core as an event and performs the resulting actions in order. It never waits for anything else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};
use trunkline_core::record::End;
use trunkline_core::{Action, Core, Event, Refusal, RequestId, Stats};
use trunkline_port::{StepRunner, TokenLogprobs};

use crate::clock::Clock;
use crate::commands::{Command, Drafts, Output, Snapshot};
use crate::queue::{DriverHandle, queue};
use crate::recorder::Recorder;
use crate::worker_thread::{self, WorkerEvent, WorkerHandle, WorkerReport};

/// Commands waiting for the core's thread, at most.
const COMMANDS_MAX: usize = 4096;

/// Number of the only worker.
const WORKER: u32 = 0;

/// Final state of a server that has stopped.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The digest of all decisions.
    pub digest: u64,
    /// Gauges and counters at the end.
    pub stats: Stats,
    /// Drafts of all steps that ended.
    pub drafts: Drafts,
    /// Reason for which the server stopped by itself, if it did.
    pub failure: Option<String>,
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
    let worker = worker_thread::spawn(WORKER, runner, move |report| reports.send_blocking(Command::Worker(report)))?;
    let driver = Driver::new(core, &handle, commands, worker, recorder);
    let (done, outcome) = oneshot::channel();
    thread::Builder::new().name("core".into()).spawn(move || {
        // Nobody waits for the outcome if the server was dropped.
        let _ = done.send(driver.run());
    })?;
    Ok((handle, outcome))
}

/// Client of a request that the core knows.
struct Client {
    outputs: mpsc::Sender<Output>,
    accepted: Option<oneshot::Sender<Result<(), Refusal>>>,
}

impl Client {
    /// Notifies the handler once that the core accepted. A handler that is gone has dropped its stream.
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
    worker: WorkerHandle,
    recorder: Option<Recorder>,
    clients: HashMap<RequestId, Client>,
    /// Requests found to have nobody reading their outputs, to be aborted.
    unread: Vec<RequestId>,
    /// Log probabilities of the tokens of the step that has just ended.
    logprobs: HashMap<RequestId, VecDeque<TokenLogprobs>>,
    drafts: Drafts,
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
        worker: WorkerHandle,
        recorder: Option<Recorder>,
    ) -> Self {
        Self {
            core,
            clock: handle.clock(),
            commands,
            abort_missed: handle.abort_missed(),
            worker,
            recorder,
            clients: HashMap::new(),
            unread: Vec::new(),
            logprobs: HashMap::new(),
            drafts: Drafts::default(),
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
        Outcome { digest, stats: self.core.stats(), drafts: self.drafts, failure: self.failure }
    }

    /// Waits for a command, or the next deadline, and handles it.
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
                let (stats, digest) = (self.core.stats(), self.core.digest());
                let snapshot = Snapshot { stats, drafts: self.drafts, digest, draining: self.draining };
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
        let is_current = self.worker.is_current(&report);
        match report.event {
            // The rest concerns a life of the worker that the core has given up.
            WorkerEvent::Ready if !is_current => {}
            WorkerEvent::Done { step, .. } | WorkerEvent::Failed { step, .. } if !is_current => self.core.recycle(step),
            WorkerEvent::Ready => self.apply(Event::WorkerJoined),
            WorkerEvent::Done { step, output } => {
                self.core.recycle(step);
                self.drafts.drafted += output.drafted;
                self.drafts.accepted += output.accepted;
                for entry in output.logprobs {
                    self.logprobs.entry(entry.request).or_default().push_back(entry);
                }
                self.apply(Event::StepFinished(output.result));
                self.logprobs.clear();
            }
            WorkerEvent::Failed { step, guilty } => {
                self.core.recycle(step);
                // First, so that whatever the core wants from here on is done by the worker's next life.
                self.worker.reset();
                if let Some(id) = guilty {
                    // It ends with the step; else it would fail the next one too, and all beside it.
                    self.apply(Event::Fail(id));
                }
                warn!(requests = self.clients.len(), "all KV is lost; requests are computed again");
                self.apply(Event::WorkerLost);
            }
            // The core ignores answers it does not wait for: those of a worker that was lost meanwhile.
            WorkerEvent::Transferred { transfer, failed: false } => self.apply(Event::TransferFinished(transfer)),
            WorkerEvent::Transferred { transfer, failed: true } => self.apply(Event::TransferFailed(transfer)),
            WorkerEvent::Gone => {
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
            Action::RunStep(step) => self.worker.run(step),
            Action::Transfer(transfer) => self.worker.transfer(transfer),
            Action::ResetWorker => self.worker.reset(),
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
            Action::Withdrawn(_) => unreachable!("no request is taken back"),
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
    use std::path::Path;

    use trunkline_core::record::Line;
    use trunkline_core::{Config, FinishReason, Namespace, Place, Request, StepResult, Transfer};
    use trunkline_port::StepOutput;

    use super::*;
    use crate::queue::NotTaken;
    use crate::worker_thread::{CopyJob, StepJob, WorkerQueues};

    /// A driver that nobody runs, with a queue of one command, and what its worker would be told.
    fn driver_with(recorder: Option<Recorder>) -> (DriverHandle, Driver, WorkerQueues) {
        let (handle, commands) = queue(1);
        let (worker, jobs) = WorkerHandle::new(WORKER);
        let core = Core::new(Config::default()).unwrap();
        let driver = Driver::new(core, &handle, commands, worker, recorder);
        (handle, driver, jobs)
    }

    /// A report of the worker in its first life.
    fn report(event: WorkerEvent) -> Command {
        Command::Worker(WorkerReport { worker: WORKER, life: 0, event })
    }

    /// The same without a worker.
    fn driver() -> (DriverHandle, Driver) {
        let (handle, driver, _) = driver_with(None);
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
        assert_eq!(driver.core.stats().requests.finished, 0);
        driver.turn();
        assert_eq!((driver.core.stats().requests.finished, driver.clients.len()), (1, 0));
    }

    #[test]
    fn a_request_whose_client_went_away_in_the_queue_never_begins() {
        let (handle, mut driver) = driver();
        let (command, mut outputs, _) = submit(1);
        handle.send(command).unwrap();
        outputs.close();
        handle.abort_dropped(RequestId(1));
        driver.turn();
        assert_eq!((driver.core.stats().requests.accepted, driver.clients.len()), (0, 0));
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

    #[test]
    fn steps_and_transfers_are_sent_to_the_worker_in_order_and_never_waited_for() {
        const TRANSFERS: u64 = 10_000;
        let (_handle, mut driver, jobs) = driver_with(None);
        driver.take(report(WorkerEvent::Ready));
        driver.perform(Action::RunStep(Box::default()));
        for id in 1..=TRANSFERS {
            driver.perform(Action::Transfer(Box::new(Transfer {
                id,
                from: Place::Host,
                to: Place::Device,
                pairs: Vec::new(),
            })));
        }
        assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Run { life: 0, .. })));
        for expected in 1..=TRANSFERS {
            assert!(matches!(jobs.copies.try_recv(), Ok(CopyJob { life: 0, transfer }) if transfer.id == expected));
        }
        drop(jobs);
        driver.perform(Action::Transfer(Box::new(Transfer {
            id: 1,
            from: Place::Host,
            to: Place::Device,
            pairs: Vec::new(),
        })));
    }

    /// The events of a recording.
    fn events(path: &Path) -> Vec<Event> {
        let text = std::fs::read_to_string(path).unwrap();
        let event = |line| match Line::parse(line).unwrap() {
            Line::Event { event, .. } => Some(event),
            _ => None,
        };
        text.lines().filter_map(event).collect()
    }

    #[test]
    fn answers_to_transfers_are_events_and_recorded_even_if_the_core_does_not_wait_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let (_handle, mut driver, _jobs) = driver_with(Some(Recorder::create(&path, &Config::default()).unwrap()));
        driver.take(report(WorkerEvent::Ready));
        driver.take(report(WorkerEvent::Transferred { transfer: 7, failed: false }));
        driver.take(report(WorkerEvent::Failed { step: Box::default(), guilty: None }));
        driver.take(report(WorkerEvent::Transferred { transfer: 8, failed: true }));
        driver.take(Command::Drain);
        driver.run();
        let (finished, failed) = (Event::TransferFinished(7), Event::TransferFailed(8));
        assert_eq!(events(&path), [Event::WorkerJoined, finished, Event::WorkerLost, failed, Event::Drain]);
    }

    #[test]
    fn a_failed_worker_is_reset_and_reports_of_its_earlier_life_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let (_handle, mut driver, jobs) = driver_with(Some(Recorder::create(&path, &Config::default()).unwrap()));
        let failed = || report(WorkerEvent::Failed { step: Box::default(), guilty: None });
        driver.take(report(WorkerEvent::Ready));
        driver.take(failed());
        assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Reset { life: 1 })));
        driver.take(failed());
        driver.take(report(WorkerEvent::Ready));
        driver.take(report(WorkerEvent::Done { step: Box::default(), output: StepOutput::default() }));
        assert!(jobs.steps.is_empty(), "one failure is one reset");
        driver.take(Command::Worker(WorkerReport { worker: WORKER, life: 1, event: WorkerEvent::Ready }));
        driver.take(Command::Drain);
        driver.run();
        let expected = [Event::WorkerJoined, Event::WorkerLost, Event::WorkerJoined, Event::Drain];
        assert_eq!(events(&path), expected);
    }

    #[test]
    fn drafts_are_counted() {
        let (_handle, mut driver, jobs) = driver_with(None);
        driver.take(report(WorkerEvent::Ready));
        let (command, _outputs, _) = submit(1);
        driver.take(command);
        let Ok(StepJob::Run { step, .. }) = jobs.steps.try_recv() else { panic!("no step") };
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        result.push(&[5]);
        let output = StepOutput { result, drafted: 3, accepted: 1, ..StepOutput::default() };
        driver.take(report(WorkerEvent::Done { step, output }));
        assert_eq!(driver.drafts, Drafts { drafted: 3, accepted: 1 });
    }
}
