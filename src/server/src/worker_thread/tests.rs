//! Tests of a worker's threads, with workers that fail, panic and wait as the tests want.

use crossbeam_channel::bounded;
use trunkline_port::{BlockCopier, CopyError, Place, StepError};

use super::*;

/// Step or transfer that fails.
const FAILS: u64 = 1;
/// Step or transfer that panics.
const PANICS: u64 = 2;
/// Step that fails because of [`GUILTY`].
const NAMES: u64 = 4;
/// Transfer that fails on the way.
const INTERRUPTED: u64 = 8;
/// Transfer that waits for the gate.
const WAITS: u64 = 100;
const GUILTY: RequestId = RequestId(5);

struct Faulty {
    panic_in_reset: bool,
    copier: Option<FaultyCopier>,
    /// Told of every reset.
    log: Sender<String>,
}

struct FaultyCopier {
    /// Told when a transfer begins to wait.
    waiting: Sender<()>,
    gate: Receiver<()>,
    /// Told of every transfer made.
    log: Sender<String>,
}

impl StepRunner for Faulty {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        match step.id {
            FAILS => Err(StepError::new("no")),
            PANICS => panic!("a panic that the test wants"),
            NAMES => Err(StepError::new("no").caused_by(GUILTY)),
            _ => Ok(StepOutput::default()),
        }
    }

    fn copier(&mut self) -> Box<dyn BlockCopier> {
        Box::new(self.copier.take().expect("called once"))
    }

    fn reset(&mut self) {
        assert!(!self.panic_in_reset, "a panic that the test wants");
        self.log.send("reset".into()).unwrap();
    }
}

impl BlockCopier for FaultyCopier {
    fn copy(&mut self, transfer: &Transfer) -> Result<(), CopyError> {
        match transfer.id {
            FAILS => return Err(CopyError::new("no")),
            INTERRUPTED => return Err(CopyError::interrupted("no")),
            PANICS => panic!("a panic that the test wants"),
            WAITS.. => {
                self.waiting.send(()).unwrap();
                self.gate.recv().unwrap();
            }
            _ => {}
        }
        self.log.send(format!("transfer {}", transfer.id)).unwrap();
        Ok(())
    }
}

struct Setup {
    worker: WorkerHandle,
    reports: Receiver<WorkerReport>,
    waiting: Receiver<()>,
    gate: Sender<()>,
    log: Receiver<String>,
}

fn start(panic_in_reset: bool) -> Setup {
    let (report, reports) = bounded(64);
    let (waiting_sender, waiting) = bounded(64);
    let (gate, gate_receiver) = bounded(64);
    let (log_sender, log) = unbounded();
    let copier = FaultyCopier { waiting: waiting_sender, gate: gate_receiver, log: log_sender.clone() };
    let runner = Box::new(Faulty { panic_in_reset, copier: Some(copier), log: log_sender });
    let worker = spawn(3, 0, runner, move |sent| report.send(sent).is_ok()).unwrap();
    let setup = Setup { worker, reports, waiting, gate, log };
    assert_eq!(setup.next(), "0: ready");
    setup
}

fn describe(report: &WorkerReport) -> String {
    assert_eq!(report.worker, 3);
    let event = match &report.event {
        WorkerEvent::Ready => "ready".into(),
        WorkerEvent::Done { step, .. } => format!("step {}", step.id),
        WorkerEvent::Failed { step, guilty } => format!("step {} failed {:?}", step.id, guilty.map(|id| id.0)),
        WorkerEvent::Transferred { transfer, end } => format!("transfer {transfer} {end:?}").to_lowercase(),
        WorkerEvent::Gone => "gone".into(),
    };
    format!("{}: {event}", report.life)
}

impl Setup {
    fn step(&self, id: u64) {
        self.worker.run(Box::new(Step { id, ..Step::default() }));
    }

    fn transfer(&self, id: u64) {
        self.worker.transfer(Box::new(Transfer {
            id,
            from: Place::Device,
            to: Place::Host,
            pairs: vec![(0, 0)],
            ..Transfer::default()
        }));
    }

    fn next(&self) -> String {
        describe(&self.reports.recv().unwrap())
    }

    /// Lets the threads end and returns the rest of the reports, those of steps and those of transfers.
    fn end(self) -> (Vec<String>, Vec<String>) {
        drop(self.worker);
        drop(self.gate);
        self.reports.iter().map(|report| describe(&report)).partition(|report| !report.contains("transfer"))
    }
}

#[test]
fn errors_and_panics_are_reported_and_the_thread_continues_after_a_reset() {
    let mut test = start(false);
    for (life, id) in [FAILS, PANICS].into_iter().enumerate() {
        test.step(id);
        assert_eq!(test.next(), format!("{life}: step {id} failed None"));
        test.worker.reset();
        assert_eq!(test.next(), format!("{}: ready", life + 1));
    }
    test.step(3);
    assert_eq!(test.next(), "2: step 3");
    assert_eq!(test.end().0, ["2: gone"]);
}

#[test]
fn the_request_that_an_error_names_is_reported() {
    let test = start(false);
    test.step(NAMES);
    assert_eq!(test.next(), "0: step 4 failed Some(5)");
}

#[test]
fn steps_and_transfers_are_each_made_in_order_and_a_failed_transfer_loses_nothing() {
    let test = start(true);
    for (transfer, step) in [(FAILS, 3), (PANICS, 5), (INTERRUPTED, 6), (4, 7)] {
        test.transfer(transfer);
        test.step(step);
    }
    let (steps, transfers) = test.end();
    assert_eq!(steps, ["0: step 3", "0: step 5", "0: step 6", "0: step 7", "0: gone"]);
    assert_eq!(
        transfers,
        ["0: transfer 1 failed", "0: transfer 2 failed", "0: transfer 8 interrupted", "0: transfer 4 made"]
    );
}

#[test]
fn a_blocked_copy_keeps_no_step_from_finishing() {
    let test = start(false);
    test.transfer(WAITS);
    test.waiting.recv().unwrap();
    test.transfer(7);
    for id in 10..20 {
        test.step(id);
        assert_eq!(test.next(), format!("0: step {id}"));
    }
    test.gate.send(()).unwrap();
    assert_eq!((test.next().as_str(), test.next().as_str()), ("0: transfer 100 made", "0: transfer 7 made"));
}

#[test]
fn a_failed_step_is_reported_at_once_while_a_copy_hangs_and_drops_what_is_queued() {
    let mut test = start(false);
    test.transfer(WAITS);
    test.waiting.recv().unwrap();
    // One behind the copy that hangs, one behind the step that fails.
    test.transfer(7);
    test.step(FAILS);
    test.step(9);
    assert_eq!(test.next(), "0: step 1 failed None");
    test.worker.reset();
    test.step(20);
    test.transfer(21);
    assert!(test.log.is_empty(), "the worker is not reset while a copy runs");
    test.gate.send(()).unwrap();
    let (steps, transfers) = test.end();
    assert_eq!(steps, ["1: ready", "1: step 20", "1: gone"]);
    assert_eq!(transfers, ["0: transfer 100 made", "1: transfer 21 made"], "copies of the life before are dropped");
}

#[test]
fn a_reset_waits_for_the_copy_under_way_and_drops_the_others() {
    let mut test = start(false);
    test.transfer(WAITS);
    test.waiting.recv().unwrap();
    test.transfer(WAITS + 1);
    test.step(3);
    assert_eq!(test.next(), "0: step 3");
    test.worker.reset();
    assert!(test.log.is_empty(), "the worker is not reset while a copy runs");
    test.gate.send(()).unwrap();
    // Were the second copy not dropped, it might wait for the gate in its turn.
    test.gate.send(()).unwrap();
    assert_eq!(test.next(), "0: transfer 100 made");
    let mut rest = vec![test.next()];
    while rest.last().unwrap() != "1: ready" {
        rest.push(test.next());
    }
    test.transfer(5);
    assert_eq!(test.next(), "1: transfer 5 made");
    let log: Vec<String> = test.log.try_iter().collect();
    assert_eq!(log.last().unwrap(), "transfer 5");
    assert_eq!(log[log.len() - 2], "reset", "no copy of the life before ends after the reset");
}

#[test]
fn a_worker_that_cannot_be_reset_is_gone() {
    let mut test = start(true);
    test.step(FAILS);
    assert_eq!(test.next(), "0: step 1 failed None");
    test.worker.reset();
    assert_eq!(test.next(), "1: gone");
}

#[test]
fn a_report_of_an_earlier_life_or_of_another_worker_is_not_current() {
    let (mut worker, _queues) = WorkerHandle::new(3, 0);
    let report = |worker, life| WorkerReport { worker, life, event: WorkerEvent::Ready };
    assert!(worker.is_current(&report(3, 0)) && !worker.is_current(&report(2, 0)));
    worker.reset();
    assert!(worker.is_current(&report(3, 1)) && !worker.is_current(&report(3, 0)));
}
