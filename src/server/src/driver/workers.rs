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
//! A step that ends sets the count back to 0. Health is `NOT_SERVING` while no prefilling engine has a worker.
//!
//! A worker with a failing disk or a damaged file of weights is unfit for another step and ends by itself; another takes the place as in the table, after repairing the
//! file.
//!
//! A worker whose step never ends ([`crate::engines::watchdog`]) cannot be reset: its thread is in the step. Nor can a worker whose copy hangs. The
//! worker is *abandoned*: its
//! threads stay behind with their memory and end by themselves if the step ever ends, and a new worker takes its place as after the
//! end of the threads. Late reports are dropped. Up to [`ABANDONED_MAX`] abandoned workers of an engine may exist at once; with more,
//! the worker is given up. If memory does not suffice for another worker, the restart fails and is tried again as in the table.
//!
//! Attached workers ([`crate::engines::seats`]) are never made and never given up: the server waits until one dials.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tracing::{info, warn};
use trunkline_cluster::EngineId;
use trunkline_core::Config;
use trunkline_port::{CopyError, DeviceBlocks, FailedSeq, Lookup, Step, StepRunner, Transfer};
use trunkline_store::Store;

use crate::driver::commands::{Attaching, Command, WorkerSnapshot};
use crate::driver::queue::DriverHandle;
use crate::engines::idle::{Idle, IdleCause};
use crate::engines::link::{Link, LinkBlocks};
use crate::engines::lock_steps::LockSteps;
use crate::engines::losses::{Loss, WorkerCounts};
use crate::engines::seats::{SeatState, Seats};
use crate::engines::watchdog::Watchdog;
use crate::engines::worker_thread::{self, StepQueue, WorkerEvent, WorkerHandle, WorkerReport, serve_copies};

/// Failure to make a worker.
pub type WorkerError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the worker of an engine: once for each engine when the server starts, and again whenever the threads of a worker have
/// ended. A worker made again MUST NOT share KV blocks with the one before.
pub type MakeWorker = Arc<dyn Fn(EngineId) -> Result<Box<dyn StepRunner>, WorkerError> + Send + Sync>;

/// Maximum number of abandoned workers of one engine whose threads have not ended.
const ABANDONED_MAX: u32 = 3;
/// Maximum number of restarts in a row without an ended step.
const RESTARTS_MAX: u32 = 10;
/// Pause before the first restart.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a restart.
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
    /// The worker ended, and the next one is not ready yet.
    is_restarting: bool,
    /// No restart will follow.
    given_up: bool,
    watchdog: Watchdog,
    /// Time without a step.
    idle: Idle,
    /// Workers left behind in a step that never ended.
    abandoned: u32,
    /// Connection of an attached worker, also of one that broke.
    link: Option<Arc<Link>>,
    counts: WorkerCounts,
}

/// The workers of all engines, in the order of the engines.
pub(crate) struct Workers {
    slots: Vec<Slot>,
    /// Seats of the engines with attached workers.
    pub(crate) seats: Seats,
    /// Attached workers that run in lock step.
    pub(crate) lock_steps: LockSteps,
    make: MakeWorker,
    driver: DriverHandle,
}

impl Workers {
    /// Returns workers whose threads run already, each with the store of its engine, but for the engines of `seats`, where nobody is.
    /// `watchdogs` has one watchdog for each worker.
    pub(crate) fn new(
        handles: Vec<(WorkerHandle, Arc<Store>)>,
        watchdogs: impl IntoIterator<Item = Watchdog>,
        seats: Seats,
        make: MakeWorker,
        driver: DriverHandle,
    ) -> Self {
        let slot = |((handle, store), watchdog)| Slot {
            handle,
            store,
            first_life: 0,
            restarts: 0,
            restart_at_ns: None,
            is_restarting: false,
            given_up: false,
            watchdog,
            idle: Idle::default(),
            abandoned: 0,
            link: None,
            counts: WorkerCounts::default(),
        };
        let slots = handles.into_iter().zip(watchdogs).map(slot).collect();
        Self { slots, seats, lock_steps: LockSteps::default(), make, driver }
    }

    fn slot(&mut self, engine: EngineId) -> &mut Slot {
        &mut self.slots[engine.index()]
    }

    /// Queues a step. Never waits.
    pub(crate) fn run(&mut self, engine: EngineId, step: Box<Step>, now_ns: u64) {
        // A worker with a broken connection has the time to come back, and no other.
        let is_broken = self.seats.state(engine) == Some(SeatState::Broken);
        self.lock_steps.sent(engine);
        let slot = self.slot(engine);
        if !is_broken {
            slot.watchdog.sent(step.id, step.n_tokens(), now_ns);
            slot.idle.stop(now_ns);
        }
        slot.handle.run(step);
    }

    /// Queues the idle steps that workers owe those in lock step with them. Never waits.
    pub(crate) fn run_idle(&mut self) {
        while let Some(engine) = self.lock_steps.next_idle() {
            self.slots[engine.index()].handle.idle();
        }
    }

    /// Queues a transfer. Never waits.
    pub(crate) fn transfer(&self, engine: EngineId, transfer: Box<Transfer>) {
        let slot = &self.slots[engine.index()];
        // Before any look-up that follows this transfer, though its thread begins it later.
        let announced = slot.store.announce(&transfer);
        slot.handle.transfer(transfer, announced);
    }

    /// Gives up what is not copied yet of a transfer. Never waits.
    pub(crate) fn cancel(&self, engine: EngineId, transfer: u64) {
        self.slots[engine.index()].handle.cancel(transfer);
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
    pub(crate) fn reset(&mut self, engine: EngineId, why: Loss, now_ns: u64) {
        let slot = self.slot(engine);
        slot.counts.lose(why);
        slot.watchdog.reset(now_ns);
        slot.idle.forget();
        slot.handle.reset();
    }

    /// Notes that a worker is ready to run steps.
    pub(crate) fn note_ready(&mut self, engine: EngineId) {
        let slot = self.slot(engine);
        slot.watchdog.clear();
        slot.is_restarting = false;
    }

    /// Returns `true` if a report is of the worker's present life.
    pub(crate) fn is_current(&self, report: &WorkerReport) -> bool {
        self.slots[report.worker as usize].handle.is_current(report)
    }

    /// Returns `true` if a report is from ended threads with new threads in place.
    pub(crate) fn is_from_replaced_threads(&self, report: &WorkerReport) -> bool {
        report.life < self.slots[report.worker as usize].first_life
    }

    /// Notes that a worker joined its engine, with empty KV blocks.
    pub(crate) fn note_joined(&mut self, engine: EngineId, now_ns: u64) {
        let slot = self.slot(engine);
        slot.counts.joined += 1;
        slot.idle.wait(IdleCause::Requests, now_ns);
    }

    /// Notes that the threads of a worker ended.
    pub(crate) fn note_ended(&mut self, engine: EngineId) {
        self.slot(engine).counts.lose(Loss::Ended);
    }

    /// Returns the beginnings and losses of an engine's workers.
    pub(crate) fn counts(&self, engine: EngineId) -> WorkerCounts {
        self.slots[engine.index()].counts
    }

    /// Notes that a worker has run a step; returns the time of the step, nanoseconds, unless the step was not expected.
    pub(crate) fn note_step(&mut self, engine: EngineId, step: u64, now_ns: u64) -> Option<u64> {
        let slot = self.slot(engine);
        slot.restarts = 0;
        let duration_ns = slot.watchdog.ended(step, now_ns);
        if duration_ns.is_some() && !slot.watchdog.has_steps() {
            slot.idle.wait(IdleCause::Scheduler, now_ns);
        }
        self.lock_steps.answered(engine);
        duration_ns
    }

    /// Notes what workers without a step wait for.
    pub(crate) fn note_waits(&mut self, has_requests: impl Fn(EngineId) -> bool, now_ns: impl Fn() -> u64) {
        for (engine, slot) in (0..).map(EngineId).zip(&mut self.slots).filter(|(_, slot)| slot.idle.is_waiting()) {
            let cause = if has_requests(engine) { IdleCause::Blocks } else { IdleCause::Requests };
            slot.idle.wait(cause, now_ns());
        }
    }

    /// Returns the time without a step of an engine's worker until now.
    pub(crate) fn idle(&self, engine: EngineId, now_ns: u64) -> Idle {
        self.slots[engine.index()].idle.until(now_ns)
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
        slot.idle.forget();
        slot.counts.lose(Loss::Timeout);
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
        slot.is_restarting = true;
        // Nobody runs the steps that were sent.
        slot.watchdog.clear();
        slot.idle.forget();
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

    /// Returns `true` if the worker of an engine has been given up.
    pub(crate) fn is_given_up(&self, engine: EngineId) -> bool {
        self.slots[engine.index()].given_up
    }

    /// Returns `true` if an engine has a worker, attached with all of its group or embedded, or gets one without an operator: an embedded one is started again,
    /// and one with a broken connection comes back.
    pub(crate) fn is_served(&self, engine: EngineId) -> bool {
        match self.seats.has(engine) {
            true => self.seats.is_occupied(engine) && self.lock_steps.is_ready(engine),
            false => !self.slots[engine.index()].given_up,
        }
    }

    /// Returns `true` if an engine is served, and not only after a restart to come.
    pub(crate) fn is_ready(&self, engine: EngineId) -> bool {
        self.is_served(engine) && !self.slots[engine.index()].is_restarting
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
        slot.counts.restarted += 1;
        info!(%engine, "the worker was started again");
        Ok(())
    }
}

impl Workers {
    /// Returns the number of the present life of an engine's worker.
    pub(crate) fn life(&self, engine: EngineId) -> u64 {
        self.slots[engine.index()].handle.life()
    }

    /// Seats a worker on an engine whose core has these limits, and welcomes it: in the next life, or in the same one if the worker
    /// resumes.
    ///
    /// # Errors
    /// Fails if a thread cannot be started; the connection ends then.
    pub(crate) fn attach(
        &mut self,
        engine: EngineId,
        attaching: Attaching,
        core: &Config,
        resumed: bool,
    ) -> std::io::Result<()> {
        let Attaching { worker, queue, seated, .. } = attaching;
        let life = self.life(engine) + u64::from(!resumed);
        queue.welcome(life, self.seats.welcome(engine, &worker, life, core, resumed));
        let (link, block_bytes) = (Arc::clone(queue.link()), self.store(engine).layout().block_bytes);
        let blocks = {
            let link = Arc::clone(&link);
            move |life| -> Arc<dyn DeviceBlocks> { Arc::new(LinkBlocks::new(Arc::clone(&link), life, block_bytes)) }
        };
        let handle = self.connect(engine, life, queue.into_steps(), blocks)?;
        match resumed {
            true => self.seats.resume(engine, worker),
            false => self.seats.attach(engine, worker),
        }
        let slot = self.slot(engine);
        slot.handle = handle;
        if let Some(before) = slot.link.replace(link) {
            before.end(tonic::Status::aborted("the worker came back on another connection"));
        }
        slot.watchdog.clear();
        slot.idle.forget();
        if !resumed {
            slot.first_life = life;
        }
        // The task that waits for this reads the connection, and reports its end.
        let _ = seated.send(Ok(engine));
        Ok(())
    }

    /// Notes that the connection of a worker broke: copies fail, and steps wait for the worker.
    pub(crate) fn note_broken(&mut self, engine: EngineId, is_closed: bool, now_ns: u64) {
        self.seats.note_broken(engine, is_closed, now_ns);
        let slot = self.slot(engine);
        slot.watchdog.clear();
        slot.idle.forget();
        slot.link.iter().for_each(|link| link.close_copies());
    }

    /// Ends the connection of a worker with a status. The end is reported like any other.
    pub(crate) fn hang_up(&self, engine: EngineId, status: tonic::Status) {
        self.slots[engine.index()].link.iter().for_each(|link| link.end(status.clone()));
    }

    /// Ends the connection of a worker with a status, and makes its seat vacant. The loss of a worker in a reset is counted already.
    pub(crate) fn vacate(&mut self, engine: EngineId, loss: Loss, status: tonic::Status) {
        let is_resetting = self.is_resetting(engine);
        let slot = self.slot(engine);
        if let Some(link) = slot.link.take() {
            if !is_resetting {
                slot.counts.lose(loss);
            }
            link.end(status);
        }
        self.seats.vacate(engine);
        self.empty(engine);
    }

    /// Gives an engine without a worker a queue: steps go nowhere, and copies between other places than the device take place.
    pub(crate) fn empty(&mut self, engine: EngineId) {
        let life = self.life(engine) + 1;
        let nobody = |_| -> Arc<dyn DeviceBlocks> { Arc::new(NoBlocks) };
        let handle = self.connect(engine, life, Box::new(|_| true), nobody);
        let slot = self.slot(engine);
        slot.watchdog.clear();
        slot.idle.forget();
        slot.first_life = life;
        // Without a thread, copies wait until they are overdue.
        slot.handle = handle.unwrap_or_else(|_| WorkerHandle::new(engine.0, life).0);
    }

    /// Starts the thread that begins an engine's copies, and returns the handle of the worker.
    fn connect(
        &self,
        engine: EngineId,
        life: u64,
        steps: Box<StepQueue>,
        blocks: impl Fn(u64) -> Arc<dyn DeviceBlocks> + Send + 'static,
    ) -> std::io::Result<WorkerHandle> {
        let (handle, jobs) = WorkerHandle::of_queue(engine.0, life, steps);
        let (store, driver) = (Arc::downgrade(&self.slots[engine.index()].store), self.driver.clone());
        let report =
            move |life, event| driver.send_blocking(Command::Worker(WorkerReport { worker: engine.0, life, event }));
        let name = format!("copies-{}", engine.0);
        thread::Builder::new().name(name).spawn(move || serve_copies(&store, &jobs, &blocks, &report))?;
        Ok(handle)
    }

    /// Returns `true` if the worker of an engine is being reset.
    pub(crate) fn is_resetting(&self, engine: EngineId) -> bool {
        self.slots[engine.index()].watchdog.is_resetting()
    }

    /// Returns `true` if the attached worker of an engine broke a rule, also while the end of its connection is still on the way.
    pub(crate) fn is_faulty(&self, engine: EngineId) -> bool {
        self.slots[engine.index()].link.as_ref().is_some_and(|link| link.is_faulty())
    }

    /// Returns `true` if the attached worker of an engine sent a message in the last two heartbeats.
    pub(crate) fn is_heard(&self, engine: EngineId, now_ns: u64) -> bool {
        let heard_ns = self.slots[engine.index()].link.as_ref().map(|link| link.stats().heard_ns);
        let presence_ns = self.seats.presence().as_nanos();
        heard_ns.is_some_and(|heard_ns| u128::from(now_ns.saturating_sub(heard_ns)) < presence_ns)
    }

    /// Returns the attached worker of an engine.
    pub(crate) fn attached(&self, engine: EngineId) -> Option<WorkerSnapshot> {
        let worker = self.seats.occupant(engine)?;
        let slot = &self.slots[engine.index()];
        Some(WorkerSnapshot {
            name: worker.name.clone(),
            program: worker.program.clone(),
            state: self.seats.state(engine)?,
            lock_step: self.lock_steps.rank(engine).map(|(group, rank)| (group.to_owned(), rank)),
            waits_for_group: !self.lock_steps.is_ready(engine),
            life: slot.handle.life(),
            stats: slot.link.as_ref()?.stats(),
        })
    }
}

/// Blocks of an engine without a worker.
struct NoBlocks;

impl DeviceBlocks for NoBlocks {
    fn block_bytes(&self) -> usize {
        0
    }

    fn read(&self, _: u32, _: &mut [u8]) -> Result<(), CopyError> {
        Err(CopyError::new("the engine has no worker"))
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        Err(CopyError::new("the engine has no worker"))
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

/// Writes the sequences of a step that the worker failed to the log.
pub(crate) fn log_failed(engine: EngineId, step: &Step, failed: &[FailedSeq]) {
    for FailedSeq { seq, fault } in failed {
        let request = step.seqs[*seq as usize].request;
        warn!(%engine, %request, "the request ends alone: {fault}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::queue::queue;
    use crate::engines::worker_thread::WorkerEvent;

    const ENGINE: EngineId = EngineId(1);

    fn workers() -> (Workers, crossbeam_channel::Receiver<Command>) {
        let (driver, commands) = queue(4);
        let store = crate::engines::stores::without_memory();
        let handles = (0..2).map(|at| (WorkerHandle::new(at, 0).0, store.clone())).collect();
        let watchdogs = std::iter::repeat_with(|| Watchdog::new(Duration::ZERO, 0));
        (
            Workers::new(
                handles,
                watchdogs,
                Seats::default(),
                Arc::new(|engine| Err(format!("no {engine}").into())),
                driver,
            ),
            commands,
        )
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
        assert!(workers.is_given_up(ENGINE) && !workers.is_given_up(EngineId(0)), "the other worker runs");
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
        workers.reset(ENGINE, Loss::FailedStep, 0);
        let report = |life| WorkerReport { worker: ENGINE.0, life, event: WorkerEvent::Ready };
        assert!(workers.is_current(&report(1)) && !workers.is_current(&report(0)));
        assert!(!workers.is_from_replaced_threads(&report(0)), "the same threads, an earlier life");
        workers.slot(ENGINE).first_life = 2;
        workers.slot(ENGINE).handle = WorkerHandle::new(ENGINE.0, 2).0;
        assert!(workers.is_from_replaced_threads(&report(1)) && workers.is_current(&report(2)));
    }
}
