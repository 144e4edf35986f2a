//! Tests of a worker's threads, with workers that fail, panic and wait as the tests want.

use crossbeam_channel::bounded;
use trunkline_port::{BlockFault, CopyError, DeviceBlocks, Place, StepError};
use trunkline_store::{BlockLayout, StoreSettings};

use super::*;

/// Step, or block of a transfer, that fails.
const FAILS: u64 = 1;
/// Step, or block of a transfer, that panics.
const PANICS: u64 = 2;
/// Step that fails because of [`GUILTY`].
const NAMES: u64 = 4;
/// Step after which the worker is unfit.
const UNFIT: u64 = 6;
/// Block that waits for the gate.
const WAITS: u64 = 100;
const GUILTY: RequestId = RequestId(5);

struct Faulty {
    panic_in_reset: bool,
    blocks: Arc<FaultyBlocks>,
    /// Told of every reset.
    log: Sender<String>,
}

struct FaultyBlocks {
    /// Told when a block begins to wait.
    waiting: Sender<()>,
    gate: Receiver<()>,
    /// Told of every block read.
    log: Sender<String>,
}

impl StepRunner for Faulty {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        match step.id {
            FAILS => Err(StepError::new("no")),
            PANICS => panic!("a panic that the test wants"),
            NAMES => Err(StepError::new("no").caused_by(GUILTY)),
            UNFIT => Err(StepError::new("no weights").of_unfit_worker()),
            _ => Ok(StepOutput::default()),
        }
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.blocks.clone()
    }

    fn reset(&mut self) {
        assert!(!self.panic_in_reset, "a panic that the test wants");
        self.log.send("reset".into()).unwrap();
    }
}

impl DeviceBlocks for FaultyBlocks {
    fn block_bytes(&self) -> usize {
        16
    }

    fn read(&self, block: u32, _: &mut [u8]) -> Result<(), CopyError> {
        match u64::from(block) {
            FAILS => return Err(CopyError::new("no")),
            PANICS => panic!("a panic that the test wants"),
            WAITS.. => {
                self.waiting.send(()).unwrap();
                self.gate.recv().unwrap();
            }
            _ => {}
        }
        self.log.send(format!("block {block}")).unwrap();
        Ok(())
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        unreachable!("the tests copy to the host")
    }
}

struct Setup {
    worker: WorkerHandle,
    store: Arc<Store>,
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
    let blocks = FaultyBlocks { waiting: waiting_sender, gate: gate_receiver, log: log_sender.clone() };
    let runner = Box::new(Faulty { panic_in_reset, blocks: Arc::new(blocks), log: log_sender });
    // One thread: copies are made one after another.
    let layout = BlockLayout { block_bytes: 16, block_size: 16, ..BlockLayout::default() };
    let settings = StoreSettings { threads: 1, ..StoreSettings::new(layout, 1 << 20) };
    let store = Arc::new(Store::open(settings).unwrap().0);
    let worker = spawn(3, 0, runner, &store, move |sent| report.send(sent).is_ok()).unwrap();
    let setup = Setup { worker, store, reports, waiting, gate, log };
    assert_eq!(setup.next(), "0: ready");
    setup
}

fn describe(report: &WorkerReport) -> String {
    assert_eq!(report.worker, 3);
    let event = match &report.event {
        WorkerEvent::Ready => "ready".into(),
        WorkerEvent::Done { step, .. } => format!("step {}", step.id),
        WorkerEvent::Failed { step, guilty } => format!("step {} failed {:?}", step.id, guilty.map(|id| id.0)),
        WorkerEvent::Transferred { transfer, report } if report.faults.is_empty() => {
            format!("transfer {transfer} made")
        }
        WorkerEvent::Transferred { transfer, report } => {
            assert_eq!(report.faults, [(0, BlockFault::Interrupted)], "a device that cannot be read is no bad source");
            format!("transfer {transfer} interrupted")
        }
        WorkerEvent::Gone => "gone".into(),
        WorkerEvent::Unfit => "unfit".into(),
    };
    format!("{}: {event}", report.life)
}

impl Setup {
    fn step(&self, id: u64) {
        self.worker.run(Box::new(Step { id, ..Step::default() }));
    }

    fn transfer(&self, id: u64) {
        let transfer = Transfer {
            id,
            from: Place::Device,
            to: Place::Host,
            pairs: vec![(id as u32, id as u32)],
            ..Transfer::default()
        };
        self.worker.transfer(Box::new(transfer), Vec::new());
    }

    fn next(&self) -> String {
        describe(&self.reports.recv().unwrap())
    }

    /// Lets the threads end after so many more answers to transfers. Returns the rest of the reports, those of steps and those of
    /// transfers.
    fn end(self, answers: usize) -> (Vec<String>, Vec<String>) {
        drop(self.worker);
        drop(self.gate);
        let (mut steps, mut transfers) = (Vec::new(), Vec::new());
        while transfers.len() < answers {
            let report = describe(&self.reports.recv().unwrap());
            if report.contains("transfer") { &mut transfers } else { &mut steps }.push(report);
        }
        drop(self.store);
        steps.extend(self.reports.iter().map(|report| describe(&report)));
        (steps, transfers)
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
    assert_eq!(test.end(0).0, ["2: gone"]);
}

#[test]
fn an_unfit_worker_ends_and_runs_no_step_in_the_queue() {
    let test = start(false);
    test.step(UNFIT);
    test.step(7);
    assert_eq!(test.next(), "0: unfit");
    assert_eq!(test.end(0).0, Vec::<String>::new());
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
    for (transfer, step) in [(FAILS, 3), (PANICS, 5), (4, 7)] {
        test.transfer(transfer);
        test.step(step);
    }
    let (steps, transfers) = test.end(3);
    assert_eq!(steps, ["0: step 3", "0: step 5", "0: step 7", "0: gone"]);
    assert_eq!(transfers, ["0: transfer 1 interrupted", "0: transfer 2 interrupted", "0: transfer 4 made"]);
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
    let (steps, transfers) = test.end(3);
    assert_eq!(steps, ["1: ready", "1: step 20", "1: gone"]);
    let expected = ["0: transfer 100 made", "0: transfer 7 interrupted", "1: transfer 21 made"];
    assert_eq!(transfers, expected, "copies of the life before touch no block");
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
    // Were the second copy made, it might wait for the gate in its turn.
    test.gate.send(()).unwrap();
    let mut rest = Vec::new();
    while !["0: transfer 100 made", "1: ready"].iter().all(|report| rest.iter().any(|other| other == report)) {
        rest.push(test.next());
    }
    test.transfer(5);
    while rest.last().unwrap() != "1: transfer 5 made" {
        rest.push(test.next());
    }
    let log: Vec<String> = test.log.try_iter().collect();
    assert_eq!(log.last().unwrap(), "block 5");
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
