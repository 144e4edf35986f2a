//! Tests of a driver that no thread runs: the test delivers commands and reads the jobs of the workers.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use trunkline_cluster::ClusterConfig;
use trunkline_cluster::record::Line;
use trunkline_core::{Action, Config, FinishReason, Namespace, Place, Refusal, Request, StepResult, Transfer};
use trunkline_port::{BlockFault, CopyError, DeviceBlocks, WeightReads};

use super::*;
use crate::access::caller::Caller;
use crate::driver::queue::NotTaken;
use crate::engines::idle::IdleCause;
use crate::engines::seats::Seats;
use crate::engines::stores::without_memory;
use crate::engines::watchdog::Watchdog;
use crate::engines::worker_thread::{CopyJob, StepJob, WorkerHandle, WorkerQueues};
use crate::requests::outbox::{OutboxReceiver, Output, outbox};
use crate::requests::request_events::Label;

fn cluster(engines: usize) -> ClusterConfig {
    ClusterConfig::uniform(&Config::default(), engines)
}

/// A driver that nobody runs, with a queue of one command, and the jobs of the workers of its engines.
fn driver_of(engines: u32, recorder: Option<Recorder>) -> (DriverHandle, Driver, Vec<WorkerQueues>) {
    driver_of_cluster(&cluster(engines as usize), recorder)
}

/// The same for a cluster of given settings.
fn driver_of_cluster(config: &ClusterConfig, recorder: Option<Recorder>) -> (DriverHandle, Driver, Vec<WorkerQueues>) {
    let engines = config.engines.len() as u32;
    let (workers, jobs): (Vec<_>, Vec<_>) = (0..engines).map(|at| WorkerHandle::new(at, 0)).unzip();
    let (handle, driver) = driver_of_workers(config, workers, recorder);
    (handle, driver, jobs)
}

/// The same with given queues of the workers.
fn driver_of_workers(
    config: &ClusterConfig,
    workers: Vec<WorkerHandle>,
    recorder: Option<Recorder>,
) -> (DriverHandle, Driver) {
    let (handle, commands) = queue(1);
    let watchdogs = std::iter::repeat_with(|| Watchdog::new(Duration::ZERO, 0));
    let workers = workers.into_iter().map(|worker| (worker, without_memory())).collect();
    let workers =
        Workers::new(workers, watchdogs, Seats::default(), Arc::new(|_| Err("no worker".into())), handle.clone());
    let cluster = Cluster::new(config).unwrap();
    let log = RequestLog::open(None, None).unwrap();
    let driver = Driver::new(cluster, &handle, commands, workers, (recorder, log));
    (handle, driver)
}

/// The same with one engine.
fn driver_with(recorder: Option<Recorder>) -> (DriverHandle, Driver, WorkerQueues) {
    let (handle, driver, mut jobs) = driver_of(1, recorder);
    (handle, driver, jobs.remove(0))
}

/// A report of the worker in its first life.
fn report(event: WorkerEvent) -> Command {
    Command::Worker(WorkerReport { worker: 0, life: 0, event })
}

/// The end of a transfer.
fn transferred(transfer: u64, faults: &[(u32, BlockFault)]) -> WorkerEvent {
    WorkerEvent::Transferred {
        transfer,
        report: TransferReport { faults: faults.to_vec(), ..TransferReport::default() },
    }
}

/// The same without a worker.
fn driver() -> (DriverHandle, Driver) {
    let (handle, driver, _) = driver_with(None);
    (handle, driver)
}

fn submit(id: u64) -> (Command, OutboxReceiver, oneshot::Receiver<Result<(), Refusal>>) {
    let (sender, outputs) = outbox(Caller::local().call);
    let (accepted, is_accepted) = oneshot::channel();
    let mut request = Request::new(RequestId(id), Namespace::default().root(), vec![1, 2, 3], 4);
    request.hash_prompt(Config::default().block_size);
    (
        Command::Submit {
            request: Box::new(request),
            arrival_ns: 0,
            label: Label::default(),
            outputs: sender,
            accepted,
        },
        outputs,
        is_accepted,
    )
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
    let (command, outputs, mut is_accepted) = submit(1);
    driver.take(command);
    assert_eq!(is_accepted.try_recv(), Ok(Ok(())));
    handle.send(Command::Abort(Vec::new())).unwrap();
    outputs.close();
    handle.abort_dropped(RequestId(1));
    assert_eq!(driver.cluster.core(EngineId(0)).stats().requests.finished, 0);
    driver.turn();
    assert_eq!((driver.cluster.core(EngineId(0)).stats().requests.finished, driver.clients.len()), (1, 0));
}

#[test]
fn a_request_whose_client_went_away_in_the_queue_never_begins() {
    let (handle, mut driver) = driver();
    let (command, outputs, _) = submit(1);
    handle.send(command).unwrap();
    outputs.close();
    handle.abort_dropped(RequestId(1));
    driver.turn();
    assert_eq!((driver.cluster.core(EngineId(0)).stats().requests.accepted, driver.clients.len()), (0, 0));
}

#[test]
fn a_deadline_ticks_and_a_refusal_is_reported() {
    let (_handle, mut driver) = driver();
    let (mut command, outputs, _) = submit(1);
    if let Command::Submit { request, .. } = &mut command {
        request.deadline_ns = Some(driver.clock.now_ns() + 1_000_000);
    }
    driver.take(command);
    driver.turn();
    assert!(matches!(outputs.try_recv(), Some(Output::Finish { reason: FinishReason::Timeout, .. })));

    driver.take(Command::Drain);
    assert!(driver.drained);
    let (command, _outputs, mut is_accepted) = submit(2);
    driver.take(command);
    assert_eq!(is_accepted.try_recv(), Ok(Err(Refusal::Draining)));
}

#[test]
fn steps_and_transfers_are_sent_to_the_worker_in_order_and_never_waited_for() {
    const TRANSFERS: u64 = 10_000;
    let transfer = |id| {
        let transfer = Transfer { id, from: Place::Host, to: Place::Device, pairs: Vec::new(), ..Transfer::default() };
        ClusterOutput::Engine(EngineId(0), Action::Transfer(Box::new(transfer)))
    };
    let (_handle, mut driver, jobs) = driver_with(None);
    driver.take(report(WorkerEvent::Ready));
    driver.perform(ClusterOutput::Engine(EngineId(0), Action::RunStep(Box::default())));
    for id in 1..=TRANSFERS {
        driver.perform(transfer(id));
    }
    assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Run { life: 0, .. })));
    for expected in 1..=TRANSFERS {
        assert!(
            matches!(jobs.copies.try_recv(), Ok(CopyJob::Begin { life: 0, transfer, .. }) if transfer.id == expected)
        );
    }
    drop(jobs);
    driver.perform(transfer(1));
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
    let (_handle, mut driver, _jobs) = driver_with(Some(Recorder::create(&path, &cluster(1)).unwrap()));
    driver.take(report(WorkerEvent::Ready));
    driver.take(report(transferred(7, &[])));
    driver.take(report(WorkerEvent::Failed { step: Box::default(), guilty: None }));
    let faults = [(0, BlockFault::Bad), (3, BlockFault::Refused)];
    driver.take(report(transferred(8, &faults)));
    driver.take(Command::Drain);
    driver.run();
    let finished = Event::TransferFinished(7);
    let partial = Event::TransferPartial { transfer: 8, faults: faults.to_vec() };
    assert_eq!(events(&path), [Event::WorkerJoined, finished, Event::WorkerLost, partial, Event::Drain]);
}

#[test]
fn a_failed_worker_is_reset_and_reports_of_its_earlier_life_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let (_handle, mut driver, jobs) = driver_with(Some(Recorder::create(&path, &cluster(1)).unwrap()));
    let failed = || report(WorkerEvent::Failed { step: Box::default(), guilty: None });
    driver.take(report(WorkerEvent::Ready));
    driver.take(failed());
    assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Reset { life: 1 })));
    driver.take(failed());
    driver.take(report(WorkerEvent::Ready));
    driver.take(report(WorkerEvent::Done {
        step: Box::default(),
        output: StepOutput::default(),
        ended: Instant::now(),
    }));
    assert!(jobs.steps.is_empty(), "one failure is one reset");
    driver.take(Command::Worker(WorkerReport { worker: 0, life: 1, event: WorkerEvent::Ready }));
    driver.take(Command::Drain);
    driver.run();
    let expected = [Event::WorkerJoined, Event::WorkerLost, Event::WorkerJoined, Event::Drain];
    assert_eq!(events(&path), expected);
}

#[test]
fn a_worker_that_was_reset_runs_no_step_begun_before_its_loss_was_reported() {
    // The first request needs a block that nobody has, so no second step begins until it is known to end.
    let (device_blocks, launch_watermark) = (2, 0.0);
    let core = Config { block_size: 4, device_blocks, launch_watermark, max_steps_in_flight: 2, ..Config::default() };
    let (_handle, mut driver, jobs) = driver_of_cluster(&ClusterConfig::uniform(&core, 1), None);
    let (steps, mut streams) = (&jobs[0].steps, Vec::new());
    for (id, prompt) in [(1, vec![1, 2, 3, 4]), (2, vec![5, 6])] {
        let (sender, outputs) = outbox(Caller::local().call);
        let (accepted, is_accepted) = oneshot::channel();
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 4);
        request.hash_prompt(4);
        driver.take(Command::Submit {
            request: Box::new(request),
            arrival_ns: 0,
            label: Label::default(),
            outputs: sender,
            accepted,
        });
        streams.push((outputs, is_accepted));
    }
    driver.take(report(WorkerEvent::Ready));
    let Ok(StepJob::Run { step, .. }) = steps.try_recv() else { panic!("no step") };
    assert!(step.seqs.len() == 2 && steps.is_empty());
    driver.take(report(WorkerEvent::Failed { step, guilty: Some(RequestId(1)) }));
    let runs = |job: &StepJob| matches!(job, StepJob::Run { life: 1, .. });
    assert_eq!(steps.try_iter().filter(runs).count(), 0, "the worker is not ready yet");
    driver.take(report_of(0, 1, WorkerEvent::Ready));
    assert!(steps.try_iter().filter(runs).count() > 0);
}

#[test]
fn drafts_and_reads_of_weights_are_counted() {
    let (_handle, mut driver, jobs) = driver_with(None);
    driver.take(report(WorkerEvent::Ready));
    let (command, _outputs, _) = submit(1);
    driver.take(command);
    let Ok(StepJob::Run { step, .. }) = jobs.steps.try_recv() else { panic!("no step") };
    let mut result = StepResult { step: step.id, ..StepResult::default() };
    result.push(&[5]);
    let weights = WeightReads { steps: 1, bytes: 7, reading_ns: 5, exposed_ns: 2, step_ns: 9, failed_reads: 1 };
    let output = StepOutput { result, drafted: 3, accepted: 1, weights, ..StepOutput::default() };
    driver.take(report(WorkerEvent::Done { step, output, ended: Instant::now() }));
    assert_eq!(driver.counts[0], StepCounts { drafted: 3, accepted: 1, weights });
}

#[test]
fn the_next_step_leaves_before_the_token_of_the_last_and_the_worker_waits_for_the_scheduler_alone() {
    let unread: Arc<OnceLock<OutboxReceiver>> = Arc::default();
    let (to, jobs) = crossbeam_channel::unbounded();
    let outputs = Arc::clone(&unread);
    let queue = move |job| {
        let is_out = outputs.get().is_some_and(|outputs| outputs.try_recv().is_some());
        to.send((job, is_out)).is_ok()
    };
    let (worker, _copies) = WorkerHandle::of_queue(0, 0, Box::new(queue));
    let (_handle, mut driver) = driver_of_workers(&cluster(1), vec![worker], None);
    driver.take(report(WorkerEvent::Ready));
    let (command, outputs, _) = submit(1);
    driver.take(command);
    assert!(unread.set(outputs).is_ok());
    let mut steps = Vec::new();
    for _ in 0..3 {
        let Ok((StepJob::Run { step, .. }, is_out)) = jobs.try_recv() else { panic!("no step") };
        steps.push((is_out, unread.get().unwrap().try_recv().is_some()));
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        result.push(&[5]);
        let output = StepOutput { result, ..StepOutput::default() };
        driver.take(report(WorkerEvent::Done { step, output, ended: Instant::now() }));
    }
    // When the step left, and after it.
    assert_eq!(steps, [(false, false), (false, true), (false, true)]);
    let idle = driver.workers.idle(EngineId(0), driver.clock.now_ns());
    let total_ns = IdleCause::ALL.map(|(_, cause)| idle.total_ns(cause) > 0);
    assert_eq!(total_ns, [true, true, false], "{idle:?}");
}

/// A report of the worker of an engine.
fn report_of(worker: u32, life: u64, event: WorkerEvent) -> Command {
    Command::Worker(WorkerReport { worker, life, event })
}

/// A runner of no steps, for threads that only start and end.
struct Idle;

impl StepRunner for Idle {
    fn run(&mut self, _: &Step) -> Result<StepOutput, trunkline_port::StepError> {
        Ok(StepOutput::default())
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::new(Self)
    }

    fn reset(&mut self) {}
}

impl DeviceBlocks for Idle {
    fn block_bytes(&self) -> usize {
        1
    }

    fn read(&self, _: u32, _: &mut [u8]) -> Result<(), CopyError> {
        Ok(())
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        Ok(())
    }
}

fn state(driver: &Driver, engine: u32) -> EngineState {
    driver.cluster.status(EngineId(engine)).state
}

#[test]
fn requests_of_a_worker_that_ended_continue_on_another_engine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let (handle, mut driver, jobs) = driver_of(2, Some(Recorder::create(&path, &cluster(2)).unwrap()));
    driver.take(report_of(0, 0, WorkerEvent::Ready));
    driver.take(report_of(1, 0, WorkerEvent::Ready));
    let (first, outputs, _) = submit(1);
    driver.take(first);
    let (second, _outputs, _) = submit(2);
    driver.take(second);
    driver.take(report_of(0, 0, WorkerEvent::Gone));
    assert_eq!((state(&driver, 0), driver.cluster.engine_of(RequestId(1))), (EngineState::Gone, Some(EngineId(1))));
    assert_eq!(driver.clients.len(), 2, "no stream ended");
    assert!(outputs.try_recv().is_none(), "a pause is all that the client sees");
    assert!(matches!(jobs[1].steps.try_recv(), Ok(StepJob::Run { .. })));

    // The worker made again begins a life of its own; what is left of the one before reaches no core.
    driver.take(Command::WorkerMade { engine: EngineId(0), made: Ok(Box::new(Idle)) });
    driver.take(report_of(0, 0, WorkerEvent::Ready));
    driver.take(report_of(0, 0, transferred(3, &[])));
    assert_eq!(state(&driver, 0), EngineState::Gone);
    // The new threads report to the driver's own queue.
    let WakeUp::Command(ready) = driver.next_wake_up() else { panic!("the new threads are silent") };
    driver.take(ready);
    assert_eq!(state(&driver, 0), EngineState::Up);
    drop(handle);
    driver.take(Command::Shutdown);
    driver.run();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"engine\":0,\"change\":\"retire\""), "{text}");
    assert!(!text.contains("transfer_finished"), "{text}");
}

#[test]
fn workers_that_cannot_be_started_again_are_given_up_and_at_last_the_server() {
    let (_handle, mut driver, _jobs) = driver_of(2, None);
    driver.take(report_of(0, 0, WorkerEvent::Ready));
    driver.take(report_of(1, 0, WorkerEvent::Ready));
    let (command, outputs, _) = submit(1);
    driver.take(command);
    let lose = |driver: &mut Driver, engine: u32| {
        driver.take(report_of(engine, 0, WorkerEvent::Gone));
        let mut attempts = 0;
        while driver.workers.next_restart_ns().is_some() && driver.failure.is_none() {
            attempts += 1;
            driver.workers.cancel_restarts();
            driver.take(Command::WorkerMade { engine: EngineId(engine), made: Err("no memory".into()) });
        }
        attempts
    };
    assert_eq!(lose(&mut driver, 0), 10);
    assert_eq!((driver.drained, driver.clients.len()), (false, 1), "the other engine serves");
    assert_eq!(lose(&mut driver, 1), 10);
    assert!(driver.drained && driver.failure.is_some());
    assert!(matches!(outputs.try_recv(), Some(Output::Failed { elsewhere: false })));
}

#[test]
fn requests_that_no_engine_could_take_over_move_to_the_first_that_joins() {
    let (_handle, mut driver, _jobs) = driver_of(2, None);
    let mut outputs = Vec::new();
    for engine in 0..2 {
        driver.take(report_of(engine, 0, WorkerEvent::Ready));
        let (command, received, _) = submit(engine.into());
        driver.take(command);
        outputs.push(received);
    }
    driver.take(report_of(0, 0, WorkerEvent::Gone));
    driver.take(report_of(1, 0, WorkerEvent::Gone));
    assert_eq!((driver.cluster.requests(), driver.failure.is_none()), (2, true));
    driver.join(EngineId(0));
    for id in 0..2 {
        assert_eq!(driver.cluster.engine_of(RequestId(id)), Some(EngineId(0)));
    }
}

/// A driver of one engine whose steps may take a millisecond.
fn watched() -> (DriverHandle, Driver, WorkerQueues) {
    let (handle, mut driver, _) = driver_with(None);
    let (worker, jobs) = WorkerHandle::new(0, 0);
    let watchdog = Watchdog::new(Duration::from_millis(1), 0);
    driver.workers = Workers::new(
        vec![(worker, without_memory())],
        [watchdog],
        Seats::default(),
        Arc::new(|_| Err("no worker".into())),
        handle.clone(),
    );
    (handle, driver, jobs)
}

#[test]
fn a_worker_whose_step_never_ends_is_left_behind_and_another_takes_its_place() {
    let (_handle, mut driver, jobs) = watched();
    driver.take(report(WorkerEvent::Ready));
    let (command, outputs, _) = submit(1);
    driver.take(command);
    let Ok(StepJob::Run { step, life: 0 }) = jobs.steps.try_recv() else { panic!("no step") };
    driver.turn();
    assert_eq!((state(&driver, 0), driver.workers.abandoned(EngineId(0))), (EngineState::Absent, 1));
    assert_eq!((driver.clients.len(), driver.failure.is_none()), (1, true), "the request waits for the new worker");
    assert!(driver.workers.next_restart_ns().is_some());
    assert!(jobs.steps.recv().is_err(), "the queue ends, so the threads do too if the step ever ends");

    let mut result = StepResult { step: step.id, ..StepResult::default() };
    result.push(&[5]);
    driver.take(report(WorkerEvent::Done {
        step,
        output: StepOutput { result, ..StepOutput::default() },
        ended: Instant::now(),
    }));
    driver.take(report(transferred(1, &[])));
    assert!(outputs.try_recv().is_none(), "late answers are ignored");
    driver.take(report(WorkerEvent::Gone));
    assert_eq!((driver.workers.abandoned(EngineId(0)), state(&driver, 0)), (0, EngineState::Absent));

    driver.workers.cancel_restarts();
    driver.take(Command::WorkerMade { engine: EngineId(0), made: Ok(Box::new(Idle)) });
    let Ok(ready) = driver.commands.recv() else { panic!("the new threads are silent") };
    driver.take(ready);
    assert_eq!(state(&driver, 0), EngineState::Up);
}

#[test]
fn requests_of_an_unfit_worker_wait_for_the_next_one_and_health_says_so() {
    let (_handle, mut driver, jobs) = watched();
    let served = driver.presence.served.subscribe();
    driver.take(report(WorkerEvent::Ready));
    let (command, _outputs, _) = submit(1);
    driver.take(command);
    assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Run { life: 0, .. })));
    assert!(*served.borrow());
    driver.take(report(WorkerEvent::Unfit));
    assert_eq!((state(&driver, 0), *served.borrow()), (EngineState::Absent, false));
    assert_eq!((driver.clients.len(), driver.failure.is_none()), (1, true), "the request waits for the new worker");
    driver.workers.cancel_restarts();
    driver.take(Command::WorkerMade { engine: EngineId(0), made: Err("no weights".into()) });
    assert!(driver.workers.next_restart_ns().is_some() && !*served.borrow(), "tried again");
    driver.workers.cancel_restarts();
    driver.take(Command::WorkerMade { engine: EngineId(0), made: Ok(Box::new(Idle)) });
    let Ok(ready) = driver.commands.recv() else { panic!("the new threads are silent") };
    driver.take(ready);
    assert_eq!((state(&driver, 0), *served.borrow()), (EngineState::Up, true));
}

#[test]
fn a_worker_whose_reset_never_ends_is_left_behind() {
    let (_handle, mut driver, jobs) = watched();
    driver.take(report(WorkerEvent::Ready));
    let (command, _outputs, _) = submit(1);
    driver.take(command);
    let Ok(StepJob::Run { step, life: 0 }) = jobs.steps.try_recv() else { panic!("no step") };
    driver.take(report(WorkerEvent::Failed { step, guilty: None }));
    assert!(matches!(jobs.steps.try_recv(), Ok(StepJob::Reset { life: 1 })));
    driver.turn();
    assert_eq!((state(&driver, 0), driver.workers.abandoned(EngineId(0))), (EngineState::Absent, 1));
    assert_eq!((driver.clients.len(), driver.failure.is_none()), (1, true), "the request waits for the new worker");
    assert!(driver.workers.next_restart_ns().is_some());
    driver.take(report_of(0, 1, WorkerEvent::Ready));
    assert_eq!(state(&driver, 0), EngineState::Absent, "too late");
}

#[test]
fn an_answer_in_the_queue_is_not_late() {
    let (handle, mut driver, jobs) = watched();
    driver.take(report(WorkerEvent::Ready));
    let (command, _outputs, _) = submit(1);
    driver.take(command);
    let Ok(StepJob::Run { step, .. }) = jobs.steps.try_recv() else { panic!("no step") };
    let mut result = StepResult { step: step.id, ..StepResult::default() };
    result.push(&[5]);
    handle
        .send(report(WorkerEvent::Done {
            step,
            output: StepOutput { result, ..StepOutput::default() },
            ended: Instant::now(),
        }))
        .unwrap();
    let due_ns = driver.workers.next_timeout_ns().unwrap();
    while driver.clock.now_ns() <= due_ns {
        std::hint::spin_loop();
    }
    driver.turn();
    assert_eq!((state(&driver, 0), driver.workers.abandoned(EngineId(0))), (EngineState::Up, 0));
}

#[test]
fn a_worker_left_behind_too_often_is_given_up() {
    let (_handle, mut driver, _jobs) = watched();
    let mut streams = Vec::new();
    for life in 0.. {
        // The request before fails with the third step that fails.
        let (command, outputs, _) = submit(life);
        driver.take(command);
        streams.push(outputs);
        driver.take(report_of(0, life, WorkerEvent::Ready));
        driver.turn();
        if driver.failure.is_some() {
            assert_eq!((life, driver.drained), (3, true));
            break;
        }
        driver.workers.cancel_restarts();
    }
    assert!(
        streams
            .iter_mut()
            .all(|outputs| matches!(outputs.try_recv(), Some(Output::Failed { .. } | Output::Unavailable(_))))
    );
}

#[test]
fn times_of_requests_and_losses_of_workers_are_counted() {
    let (handle, mut driver, jobs) = driver_with(None);
    driver.take(report(WorkerEvent::Ready));
    let (command, _outputs, _) = submit(1);
    driver.take(command);
    let Ok(StepJob::Run { step, .. }) = jobs.steps.try_recv() else { panic!("no step") };
    driver.take(report(WorkerEvent::Failed { step, guilty: None }));
    driver.take(report_of(0, 1, WorkerEvent::Ready));
    for token in 1..=4 {
        let Some(step) = jobs.steps.try_iter().find_map(|job| match job {
            StepJob::Run { life: 1, step } => Some(step),
            _ => None,
        }) else {
            panic!("no step for token {token}")
        };
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        result.push(&[token]);
        driver.take(report_of(
            0,
            1,
            WorkerEvent::Done { step, output: StepOutput { result, ..StepOutput::default() }, ended: Instant::now() },
        ));
    }
    let snapshot = driver.snapshot();
    let (requests, engine) = (&snapshot.requests, &snapshot.engines[0]);
    assert_eq!((requests.first_token.count(), requests.inter_token.count()), (1, 3));
    assert_eq!((requests.e2e.count(), requests.generated_tokens.sum()), (1, 4.0));
    assert!(requests.e2e.sum() <= handle.clock().now_ns() as f64 * 1e-9);
    assert_eq!(requests.ended().find(|(reason, _)| *reason == "length"), Some(("length", 1)));
    assert_eq!((engine.steps.duration.count(), engine.steps.tokens.sum()), (4, 6.0));
    let lost: Vec<_> = engine.workers.lost().filter(|(_, n)| *n > 0).collect();
    assert_eq!((engine.workers.joined, lost), (2, vec![("failed_step", 1)]));
}
