//! The workers of all engines: sends jobs to the workers' threads, and starts a worker with ended threads again.
//!
//! A failed worker is reset by the worker's own threads. A worker with ended threads needs new threads: after a pause, a restart
//! thread makes a new worker, and the lives of the new worker follow the lives of the old one. Late reports of the old threads
//! therefore have earlier lives.
//!
//! | restart | pause before |
//! |---|---|
//! | 1 | 100 ms |
//! | n | twice the pause before restart n - 1, at most 30 s |
//! | 11 | none: the worker is given up |
//!
//! A step that ends sets the count back to 0.
//!
//! A worker whose step never ends ([`crate::watchdog`]) cannot be reset: its thread is in the step. Nor can a worker whose copy hangs. The
//! worker is *abandoned*: its
//! threads stay behind with their memory and end by themselves if the step ever ends, and a new worker takes its place as after the
//! end of the threads. Late reports are dropped. Up to [`ABANDONED_MAX`] abandoned workers of an engine may exist at once; with more,
//! the worker is given up. If memory does not suffice for another worker, the restart fails and is tried again as in the table.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tracing::info;
use trunkline_cluster::EngineId;
use trunkline_port::{Lookup, Step, StepRunner, Transfer};
use trunkline_store::Store;

use crate::commands::Command;
use crate::queue::DriverHandle;
use crate::watchdog::Watchdog;
use crate::worker_thread::{self, WorkerEvent, WorkerHandle, WorkerReport};

/// Failure to make a worker.
pub type WorkerError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the worker of an engine: once for each engine when the server starts, and again whenever the threads of a worker have
/// ended. A worker made again MUST NOT share KV blocks with the one before.
pub type MakeWorker = Arc<dyn Fn(EngineId) -> Result<Box<dyn StepRunner>, WorkerError> + Send + Sync>;

/// Abandoned workers of one engine whose threads have not ended, at most.
const ABANDONED_MAX: u32 = 3;
/// Restarts in a row without an ended step, at most.
const RESTARTS_MAX: u32 = 10;
/// Pause before the first restart.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Pause before any restart, at most.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The worker of one engine.
struct Slot {
    handle: WorkerHandle,
    /// Storage of the engine's blocks behind the device; outlives the worker.
    store: Arc<Store>,
    /// First life of the present threads; reports of earlier lives are from ended threads.
    first_life: u64,
    /// Restarts since a step ended.
    restarts: u32,
    /// Time of the next restart, nanoseconds.
    restart_at_ns: Option<u64>,
    /// No restart will follow.
    given_up: bool,
    watchdog: Watchdog,
    /// Workers left behind in a step that never ended.
    abandoned: u32,
}

/// The workers of all engines, in the order of the engines.
pub(crate) struct Workers {
    slots: Vec<Slot>,
    make: MakeWorker,
    driver: DriverHandle,
}

impl Workers {
    /// Returns workers whose threads run already, each with the store of its engine.
    /// `watchdogs` has one watchdog for each worker.
    pub(crate) fn new(
        handles: Vec<(WorkerHandle, Arc<Store>)>,
        watchdogs: impl IntoIterator<Item = Watchdog>,
        make: MakeWorker,
        driver: DriverHandle,
    ) -> Self {
        let slot = |((handle, store), watchdog)| Slot {
            handle,
            store,
            first_life: 0,
            restarts: 0,
            restart_at_ns: None,
            given_up: false,
            watchdog,
            abandoned: 0,
        };
        Self { slots: handles.into_iter().zip(watchdogs).map(slot).collect(), make, driver }
    }

    fn slot(&mut self, engine: EngineId) -> &mut Slot {
        &mut self.slots[engine.index()]
    }

    /// Queues a step. Never waits.
    pub(crate) fn run(&mut self, engine: EngineId, step: Box<Step>, now_ns: u64) {
        let slot = self.slot(engine);
        slot.watchdog.sent(step.id, step.n_tokens(), now_ns);
        slot.handle.run(step);
    }

    /// Queues a transfer. Never waits.
    pub(crate) fn transfer(&self, engine: EngineId, transfer: Box<Transfer>) {
        self.slots[engine.index()].handle.transfer(transfer);
    }

    /// Begins a look-up in the store of an engine, answered with [`Command::LookedUp`]. Never waits.
    pub(crate) fn look_up(&self, engine: EngineId, lookup: Lookup) {
        let (driver, id) = (self.driver.clone(), lookup.id);
        // A driver that has stopped needs no answer.
        let done = move |found| _ = driver.send_blocking(Command::LookedUp { engine, lookup: id, found });
        self.store(engine).lookup(lookup, Box::new(done));
    }

    /// Prepares the stores of all engines for a flush of the cache.
    pub(crate) fn flush(&self) {
        self.slots.iter().for_each(|slot| slot.store.stop_sharing());
    }

    /// Returns the store of an engine.
    pub(crate) fn store(&self, engine: EngineId) -> &Store {
        &self.slots[engine.index()].store
    }

    /// Ends the life of a worker and begins the next.
    pub(crate) fn reset(&mut self, engine: EngineId, now_ns: u64) {
        let slot = self.slot(engine);
        slot.watchdog.reset(now_ns);
        slot.handle.reset();
    }

    /// Notes that a worker is ready to run steps.
    pub(crate) fn note_ready(&mut self, engine: EngineId) {
        self.slot(engine).watchdog.clear();
    }

    /// Returns `true` if a report is of the worker's present life.
    pub(crate) fn is_current(&self, report: &WorkerReport) -> bool {
        self.slots[report.worker as usize].handle.is_current(report)
    }

    /// Returns `true` if a report is from ended threads with new threads in place.
    pub(crate) fn is_from_replaced_threads(&self, report: &WorkerReport) -> bool {
        report.life < self.slots[report.worker as usize].first_life
    }

    /// Notes that a worker has run a step.
    pub(crate) fn note_step(&mut self, engine: EngineId, step: u64, now_ns: u64) {
        let slot = self.slot(engine);
        slot.restarts = 0;
        slot.watchdog.ended(step, now_ns);
    }

    /// Returns the time at which a step in flight or a reset is taken for lost, of any worker, nanoseconds.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.watchdog.due_ns()).min()
    }

    /// Returns a worker with a step or a reset that is taken for lost at `now_ns`.
    pub(crate) fn timed_out(&self, now_ns: u64) -> Option<EngineId> {
        let is_due = |slot: &Slot| slot.watchdog.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        self.slots.iter().position(is_due).map(|at| EngineId(at as u32))
    }

    /// Leaves the threads of a worker behind; reports of the worker are dropped from now on.
    pub(crate) fn abandon(&mut self, engine: EngineId) {
        let slot = self.slot(engine);
        slot.watchdog.clear();
        slot.abandoned += 1;
        slot.first_life = slot.handle.life() + 1;
        // Without their senders, the queues of the threads end after the job under way.
        slot.handle = WorkerHandle::new(engine.0, slot.first_life).0;
    }

    /// Notes a report of replaced or abandoned threads.
    pub(crate) fn note_late(&mut self, report: &WorkerReport) {
        if matches!(report.event, WorkerEvent::Gone) {
            let slot = &mut self.slots[report.worker as usize];
            slot.abandoned = slot.abandoned.saturating_sub(1);
        }
    }

    /// Returns the number of workers of an engine left behind in a step that never ended.
    pub(crate) fn abandoned(&self, engine: EngineId) -> u32 {
        self.slots[engine.index()].abandoned
    }

    /// Plans the next restart of a worker with ended threads, and returns the pause before the restart. Returns `None` after too
    /// many restarts in a row.
    pub(crate) fn plan_restart(&mut self, engine: EngineId, now_ns: u64) -> Option<Duration> {
        let slot = self.slot(engine);
        if slot.abandoned > ABANDONED_MAX || slot.restarts == RESTARTS_MAX {
            slot.given_up = true;
            return None;
        }
        let pause = pause_before(slot.restarts);
        slot.restarts += 1;
        slot.restart_at_ns = Some(now_ns + pause.as_nanos() as u64);
        Some(pause)
    }

    /// Returns the time of the next restart of any worker, nanoseconds.
    pub(crate) fn next_restart_ns(&self) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.restart_at_ns).min()
    }

    /// Returns `true` if all workers have been given up.
    pub(crate) fn all_given_up(&self) -> bool {
        self.slots.iter().all(|slot| slot.given_up)
    }

    /// Forgets planned restarts, for tests that make workers themselves.
    #[cfg(test)]
    pub(crate) fn cancel_restarts(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.restart_at_ns = None);
    }

    /// Starts making the workers due now, each on a new thread; the thread answers with [`Command::WorkerMade`].
    pub(crate) fn restart_due(&mut self, now_ns: u64) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.restart_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_none() {
                continue;
            }
            let engine = EngineId(at as u32);
            let (make, driver) = (self.make.clone(), self.driver.clone());
            let thread = thread::Builder::new().name(format!("restart-{at}")).spawn(move || {
                let made =
                    catch_unwind(AssertUnwindSafe(|| make(engine))).unwrap_or_else(|_| Err("it panicked".into()));
                // A driver that has stopped needs no worker.
                driver.send_blocking(Command::WorkerMade { engine, made });
            });
            if let Err(err) = thread {
                // The system may have a thread to spare later.
                tracing::error!(%engine, %err, "cannot start a thread to restart a worker");
                slot.restart_at_ns = Some(now_ns + PAUSE_MAX.as_nanos() as u64);
            }
        }
    }

    /// Starts the threads of a newly made worker.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub(crate) fn replace(&mut self, engine: EngineId, runner: Box<dyn StepRunner>) -> std::io::Result<()> {
        let first_life = self.slots[engine.index()].handle.life() + 1;
        let store = Arc::clone(&self.slots[engine.index()].store);
        let handle = spawn_threads(engine, first_life, runner, &store, &self.driver)?;
        let slot = self.slot(engine);
        (slot.handle, slot.first_life) = (handle, first_life);
        info!(%engine, "the worker was started again");
        Ok(())
    }
}

/// Starts the threads of the worker of an engine, with the driver as the receiver of reports.
///
/// # Errors
/// Fails if a thread cannot be started.
pub(crate) fn spawn_threads(
    engine: EngineId,
    first_life: u64,
    runner: Box<dyn StepRunner>,
    store: &Arc<Store>,
    driver: &DriverHandle,
) -> std::io::Result<WorkerHandle> {
    let driver = driver.clone();
    let report = move |report| driver.send_blocking(Command::Worker(report));
    worker_thread::spawn(engine.0, first_life, runner, store, report)
}

fn pause_before(restarts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << restarts.min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::queue;
    use crate::worker_thread::WorkerEvent;

    const ENGINE: EngineId = EngineId(1);

    fn workers() -> (Workers, crossbeam_channel::Receiver<Command>) {
        let (driver, commands) = queue(4);
        let store = crate::stores::without_memory();
        let handles = (0..2).map(|at| (WorkerHandle::new(at, 0).0, store.clone())).collect();
        let watchdogs = std::iter::repeat_with(|| Watchdog::new(Duration::ZERO, 0));
        (Workers::new(handles, watchdogs, Arc::new(|engine| Err(format!("no {engine}").into())), driver), commands)
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let (mut workers, _commands) = workers();
        let mut pauses = Vec::new();
        while let Some(pause) = workers.plan_restart(ENGINE, 0) {
            assert_eq!(workers.next_restart_ns(), Some(pause.as_nanos() as u64));
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        assert!(!workers.all_given_up(), "the other worker runs");
        workers.note_step(ENGINE, 1, 0);
        assert_eq!(workers.plan_restart(ENGINE, 7), Some(PAUSE_MIN), "a step that ended starts the count again");
    }

    #[test]
    fn a_restart_is_made_when_due_and_once() {
        let (mut workers, commands) = workers();
        workers.plan_restart(ENGINE, 5).unwrap();
        let due_ns = workers.next_restart_ns().unwrap();
        workers.restart_due(due_ns - 1);
        assert_eq!(workers.next_restart_ns(), Some(due_ns));
        workers.restart_due(due_ns);
        assert_eq!(workers.next_restart_ns(), None);
        let Ok(Command::WorkerMade { engine: ENGINE, made: Err(err) }) = commands.recv() else { panic!("no answer") };
        assert_eq!(err.to_string(), "no engine 1");
        workers.restart_due(due_ns);
        assert!(commands.is_empty());
    }

    #[test]
    fn reports_of_replaced_threads_have_earlier_lives() {
        let (mut workers, _commands) = workers();
        workers.reset(ENGINE, 0);
        let report = |life| WorkerReport { worker: ENGINE.0, life, event: WorkerEvent::Ready };
        assert!(workers.is_current(&report(1)) && !workers.is_current(&report(0)));
        assert!(!workers.is_from_replaced_threads(&report(0)), "the same threads, an earlier life");
        workers.slot(ENGINE).first_life = 2;
        workers.slot(ENGINE).handle = WorkerHandle::new(ENGINE.0, 2).0;
        assert!(workers.is_from_replaced_threads(&report(1)) && workers.is_current(&report(2)));
    }
}
