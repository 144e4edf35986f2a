//! The two threads of a worker: one runs steps, the other begins copies of blocks in the engine's store ([`trunkline_store::Store`]), which
//! has threads of its own. The worker is owned by these threads; nobody else sees the worker.
//!
//! Steps run in the order of sending and never wait for a copy. Copies begin in the order of sending and end in any order.
//!
//! # Lives
//!
//! A worker lives until a reset; the next life begins with no sequence and no KV. Every job names the life at the time of sending.
//! When a step fails, or the driver resets the worker, the step thread
//!
//! 1. closes the fence around the worker's blocks: copies of the ended life touch no further block,
//! 2. drops the steps of the ended life still in the step queue,
//! 3. reports [`WorkerEvent::Failed`] at once, if a step failed, and waits for the driver's reset,
//! 4. waits for the blocks that are being read or written,
//! 5. resets the worker and reports [`WorkerEvent::Ready`].
//!
//! An unfit worker ([`trunkline_port::StepError::is_unfit`]) has no next life: the threads end with [`WorkerEvent::Unfit`], and the driver makes
//! another worker.
//!
//! Nothing is therefore written on behalf of an earlier life after `Ready`. A copy that hangs delays `Ready`, not `Failed`; the driver
//! watches the reset ([`crate::engines::watchdog`]).
//!
//! # Bounds
//!
//! The channels have no bound of their own: the core's thread never waits for a channel. The core bounds the contents: the number
//! of steps in flight is fixed, and transfers in flight fill different blocks, of which each place has a fixed number.

mod copies;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tracing::{error, info};
use trunkline_port::{DeviceBlocks, RequestId, Step, StepOutput, StepRunner, Transfer, TransferReport};
use trunkline_store::{Announced, Store};

pub(crate) use self::copies::{CopyJob, serve as serve_copies};
use self::copies::{Fence, LifeBlocks};

/// A job of the step thread, with the life of the worker meant by the job.
pub(crate) enum StepJob {
    /// Run a step of the model.
    Run { life: u64, step: Box<Step> },
    /// Run a step without sequences, while other workers run steps in lock step with this one.
    Idle { life: u64 },
    /// Forget all sequences and all KV, and begin this life.
    Reset { life: u64 },
}

/// Message of a worker to the driver.
pub(crate) struct WorkerReport {
    /// Number of the worker, as given to [`spawn`].
    pub(crate) worker: u32,
    /// Life of the worker at the event.
    pub(crate) life: u64,
    pub(crate) event: WorkerEvent,
}

/// Change of a worker, or the worker's answer to a job.
pub(crate) enum WorkerEvent {
    /// The worker can run steps; the KV blocks hold nothing.
    Ready,
    /// A step ended, at this moment. The step comes back for further use of the step's memory.
    Done { step: Box<Step>, output: StepOutput, ended: Instant },
    /// A step could not be run, because of request `guilty` if one is named. The worker does nothing until the next reset.
    Failed { step: Box<Step>, guilty: Option<RequestId> },
    /// A transfer ended, perhaps one of an earlier life.
    Transferred { transfer: u64, report: TransferReport },
    /// The step thread ended.
    Gone,
    /// The step thread ended after a step for which the worker is unfit, but perhaps not a new one.
    Unfit,
}

/// Driver's end of a worker's queues. Dropping the handle ends the threads.
pub(crate) struct WorkerHandle {
    worker: u32,
    life: u64,
    steps: Box<StepQueue>,
    copies: Sender<CopyJob>,
}

/// Takes a job of the step thread without waiting; returns `false` if nobody is there to do the job. Dropping the queue ends the worker.
pub(crate) type StepQueue = dyn Fn(StepJob) -> bool + Send;

/// Receiving ends of a worker's queues.
pub(crate) struct WorkerQueues {
    pub(crate) steps: Receiver<StepJob>,
    pub(crate) copies: Receiver<CopyJob>,
}

impl WorkerHandle {
    /// Makes the queues of worker number `worker`, beginning with life `life`.
    pub(crate) fn new(worker: u32, life: u64) -> (Self, WorkerQueues) {
        let (steps, step_jobs) = unbounded();
        let (copies, copy_jobs) = unbounded();
        let (steps, queues) =
            (move |job| steps.try_send(job).is_ok(), WorkerQueues { steps: step_jobs, copies: copy_jobs });
        (Self { worker, life, steps: Box::new(steps), copies }, queues)
    }

    /// Makes the handle of worker number `worker` in life `life`, whose steps go to any queue; returns the end of the queue of copies.
    pub(crate) fn of_queue(worker: u32, life: u64, steps: Box<StepQueue>) -> (Self, Receiver<CopyJob>) {
        let (copies, copy_jobs) = unbounded();
        (Self { worker, life, steps, copies }, copy_jobs)
    }

    /// Returns `true` if a report is of the worker's present life, and of this worker.
    pub(crate) fn is_current(&self, report: &WorkerReport) -> bool {
        (report.worker, report.life) == (self.worker, self.life)
    }

    /// Returns the number of the worker's present life.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Queues a step. Never waits.
    pub(crate) fn run(&self, step: Box<Step>) {
        self.check((self.steps)(StepJob::Run { life: self.life, step }));
    }

    /// Queues a step without sequences. Never waits.
    pub(crate) fn idle(&self) {
        self.check((self.steps)(StepJob::Idle { life: self.life }));
    }

    /// Queues a transfer. Never waits.
    pub(crate) fn transfer(&self, transfer: Box<Transfer>, announced: Vec<Announced>) {
        self.check(self.copies.try_send(CopyJob::Begin { life: self.life, transfer, announced }).is_ok());
    }

    /// Queues the end of a transfer's use, behind the transfer. Never waits.
    pub(crate) fn cancel(&self, transfer: u64) {
        self.check(self.copies.try_send(CopyJob::Cancel { transfer }).is_ok());
    }

    /// Ends the worker's life and begins the next: no job sent before has an effect after the worker is ready again.
    pub(crate) fn reset(&mut self) {
        self.life += 1;
        self.check((self.steps)(StepJob::Reset { life: self.life }));
    }

    fn check(&self, sent: bool) {
        // Fails only if the thread has ended, which is in the queue as a report.
        if !sent {
            error!(worker = self.worker, "the worker takes no steps and copies no blocks");
        }
    }
}

/// Starts the threads of worker number `worker`, beginning with life `life`. Blocks are copied by `store`. Reports of the worker leave
/// through `report`; `report` returns `true` as long as the driver listens.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn spawn(
    worker: u32,
    life: u64,
    mut runner: Box<dyn StepRunner>,
    store: &Arc<Store>,
    report: impl Fn(WorkerReport) -> bool + Clone + Send + 'static,
) -> std::io::Result<WorkerHandle> {
    let (handle, queues) = WorkerHandle::new(worker, life);
    let report = move |life, event| report(WorkerReport { worker, life, event });
    let fence = Arc::new(Fence::default());
    // The store ends with the driver, not with this thread: a folder on disk is free for the next server then.
    let (blocks, store) = (runner.blocks(), Arc::downgrade(store));
    let (copies_fence, copies_report) = (fence.clone(), report.clone());
    thread::Builder::new().name(format!("copies-{worker}")).spawn(move || {
        let of_life = |life| -> Arc<dyn DeviceBlocks> { Arc::new(LifeBlocks::new(life, &blocks, &copies_fence)) };
        copies::serve(&store, &queues.copies, &of_life, &copies_report);
    })?;
    thread::Builder::new().name(format!("steps-{worker}")).spawn(move || {
        let mut steps = Steps { runner, fence, life, is_unfit: false, report };
        // The worker's own panics are caught one by one; this is for those of its reset.
        if catch_unwind(AssertUnwindSafe(|| steps.serve(&queues.steps))).is_err() {
            error!(worker, "the worker panicked while it was reset");
        }
        let Steps { runner, life, is_unfit, report, .. } = steps;
        if is_unfit {
            // The next worker needs the memory.
            drop(runner);
            report(life, WorkerEvent::Unfit);
        } else {
            report(life, WorkerEvent::Gone);
        }
    })?;
    Ok(handle)
}

/// State of the step thread.
struct Steps<R> {
    runner: Box<dyn StepRunner>,
    fence: Arc<Fence>,
    /// Life whose steps run; earlier ones are dropped.
    life: u64,
    /// The worker cannot run the last step.
    is_unfit: bool,
    report: R,
}

impl<R: Fn(u64, WorkerEvent) -> bool> Steps<R> {
    fn serve(&mut self, jobs: &Receiver<StepJob>) {
        if !(self.report)(self.life, WorkerEvent::Ready) {
            return;
        }
        for job in jobs {
            let heard = match job {
                StepJob::Run { life, step } => life < self.life || self.run(step),
                // Embedded workers run alone.
                StepJob::Idle { .. } => true,
                StepJob::Reset { life } => self.reset(life),
            };
            if !heard {
                return;
            }
        }
    }

    /// Runs a step and reports; returns `true` if the driver listens and the worker can go on.
    fn run(&mut self, step: Box<Step>) -> bool {
        // Whatever state a panic leaves behind is thrown away by the reset.
        let guilty = match catch_unwind(AssertUnwindSafe(|| self.runner.run(&step))) {
            Ok(Ok(output)) => {
                let ended = Instant::now();
                return (self.report)(self.life, WorkerEvent::Done { step, output, ended });
            }
            Ok(Err(err)) => {
                error!(step = step.id, "the worker failed: {err}");
                if err.is_unfit() {
                    self.is_unfit = true;
                    self.fence.close(self.life + 1);
                    return false;
                }
                err.guilty()
            }
            Err(_) => {
                error!(step = step.id, "the worker panicked");
                None
            }
        };
        let failed = self.life;
        self.life += 1;
        self.fence.close(self.life);
        (self.report)(failed, WorkerEvent::Failed { step, guilty })
    }

    /// Begins a life and reports; returns `true` if the driver listens.
    fn reset(&mut self, life: u64) -> bool {
        self.fence.close(life);
        let closed = self.fence.wait();
        self.life = life;
        self.runner.reset();
        drop(closed);
        info!("the worker was reset");
        (self.report)(life, WorkerEvent::Ready)
    }
}

#[cfg(test)]
mod tests;
