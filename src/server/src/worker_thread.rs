//! The thread that runs steps and copies blocks. It owns the worker; nobody else sees it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tracing::{error, info};
use trunkline_port::{RequestId, Step, StepOutput, StepRunner, Transfer};

/// What the worker's thread is told to do, one after another.
pub(crate) enum Job {
    Step(Box<Step>),
    Transfer(Box<Transfer>),
    /// Forget everything, and be ready again.
    Reset,
}

/// What the worker's thread tells the driver.
pub(crate) enum WorkerReport {
    /// It can run steps; its KV blocks hold nothing.
    Ready,
    /// A step ended. The step comes back so that its memory can be used again.
    Done { step: Box<Step>, output: StepOutput },
    /// A step could not be run, because of one request if it is known; unless it is [`WorkerReport::Gone`] next, it is
    /// [`WorkerReport::Ready`].
    Failed { step: Box<Step>, guilty: Option<RequestId> },
    /// A transfer ended; if it failed the blocks it was to fill hold nothing of use.
    Transferred { transfer: u64, failed: bool },
    /// The thread ends.
    Gone,
}

/// Starts the thread. Its jobs come through the channel that is returned, its reports leave through `report`, which returns
/// whether anyone still listens. The thread ends when the channel is dropped.
///
/// The channel has no bound of its own, so that the core's thread never waits for it. The core bounds what is in it: it has one
/// step in flight, and its transfers fill different blocks, of which there are so many. Jobs of a worker that was lost may
/// still be there; they come before anything that the core asks of the next one, so what they write is written over.
pub(crate) fn spawn(
    runner: Box<dyn StepRunner>,
    report: impl Fn(WorkerReport) -> bool + Send + 'static,
) -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = unbounded();
    thread::Builder::new().name("worker".into()).spawn(move || {
        // The worker's own panics are caught one by one; this is for those of its reset.
        if catch_unwind(AssertUnwindSafe(|| serve(runner, &jobs, &report))).is_err() {
            error!("the worker panicked while it was reset");
        }
        report(WorkerReport::Gone);
    })?;
    Ok(sender)
}

fn serve(mut runner: Box<dyn StepRunner>, jobs: &Receiver<Job>, report: &impl Fn(WorkerReport) -> bool) {
    if !report(WorkerReport::Ready) {
        return;
    }
    for job in jobs {
        let heard = match job {
            Job::Step(step) => run(&mut *runner, step, report),
            Job::Transfer(transfer) => report(copy(&mut *runner, &transfer)),
            Job::Reset => {
                runner.reset();
                report(WorkerReport::Ready)
            }
        };
        if !heard {
            return;
        }
    }
}

/// Runs a step and reports; returns whether anyone listens.
fn run(runner: &mut dyn StepRunner, step: Box<Step>, report: &impl Fn(WorkerReport) -> bool) -> bool {
    // Whatever state a panic leaves behind is thrown away by `reset`.
    match catch_unwind(AssertUnwindSafe(|| runner.run(&step))) {
        Ok(Ok(output)) => report(WorkerReport::Done { step, output }),
        failure => {
            let guilty = match failure {
                Ok(Err(err)) => {
                    error!(step = step.id, "the worker failed: {err}");
                    err.guilty()
                }
                _ => {
                    error!(step = step.id, "the worker panicked");
                    None
                }
            };
            let heard = report(WorkerReport::Failed { step, guilty });
            runner.reset();
            info!("the worker was reset");
            heard && report(WorkerReport::Ready)
        }
    }
}

/// Makes a transfer. Nobody reads the blocks of one that failed, so the worker need not be reset.
fn copy(runner: &mut dyn StepRunner, transfer: &Transfer) -> WorkerReport {
    let failed = match catch_unwind(AssertUnwindSafe(|| runner.transfer(transfer))) {
        Ok(Ok(())) => false,
        Ok(Err(err)) => {
            error!(transfer = transfer.id, "blocks could not be copied: {err}");
            true
        }
        Err(_) => {
            error!(transfer = transfer.id, "the worker panicked while it copied blocks");
            true
        }
    };
    WorkerReport::Transferred { transfer: transfer.id, failed }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use trunkline_port::{CopyError, Place, StepError};

    use super::*;

    struct Faulty {
        panic_in_reset: bool,
    }

    impl StepRunner for Faulty {
        fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
            match step.id {
                1 => Err(StepError::new("no")),
                2 => panic!("a panic that the test wants"),
                4 => Err(StepError::new("no").caused_by(RequestId(5))),
                _ => Ok(StepOutput::default()),
            }
        }

        fn transfer(&mut self, transfer: &Transfer) -> Result<(), CopyError> {
            match transfer.id {
                1 => Err(CopyError::new("no")),
                2 => panic!("a panic that the test wants"),
                _ => Ok(()),
            }
        }

        fn reset(&mut self) {
            assert!(!self.panic_in_reset, "a panic that the test wants");
        }
    }

    fn start(panic_in_reset: bool) -> (Sender<Job>, Receiver<WorkerReport>) {
        let (reports, received) = bounded(16);
        let jobs = spawn(Box::new(Faulty { panic_in_reset }), move |report| reports.send(report).is_ok()).unwrap();
        assert!(matches!(received.recv(), Ok(WorkerReport::Ready)));
        (jobs, received)
    }

    fn step(id: u64) -> Job {
        Job::Step(Box::new(Step { id, ..Step::default() }))
    }

    fn transfer(id: u64) -> Job {
        Job::Transfer(Box::new(Transfer { id, from: Place::Device, to: Place::Host, pairs: vec![(0, 0)] }))
    }

    #[test]
    fn errors_and_panics_are_reported_and_the_thread_goes_on() {
        let (jobs, reports) = start(false);
        for id in 1..=2 {
            jobs.send(step(id)).unwrap();
            assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { step, .. }) if step.id == id));
            assert!(matches!(reports.recv(), Ok(WorkerReport::Ready)));
        }
        jobs.send(step(3)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Done { step, .. }) if step.id == 3));
        drop(jobs);
        assert!(matches!(reports.recv(), Ok(WorkerReport::Gone)));
    }

    #[test]
    fn transfers_are_made_in_order_with_steps_and_their_failures_lose_nothing() {
        let (jobs, reports) = start(true);
        for job in [transfer(1), transfer(2), step(3), transfer(3), transfer(4), step(5)] {
            jobs.send(job).unwrap();
        }
        drop(jobs);
        let told: Vec<String> = reports
            .iter()
            .map(|report| match report {
                WorkerReport::Transferred { transfer, failed } => format!("transfer {transfer} {failed}"),
                WorkerReport::Done { step, .. } => format!("step {}", step.id),
                WorkerReport::Gone => "gone".into(),
                _ => "lost".into(),
            })
            .collect();
        let expected =
            ["transfer 1 true", "transfer 2 true", "step 3", "transfer 3 false", "transfer 4 false", "step 5", "gone"];
        assert_eq!(told, expected);
    }

    #[test]
    fn transfers_behind_a_step_that_failed_are_answered_after_the_reset() {
        let (jobs, reports) = start(false);
        jobs.send(step(1)).unwrap();
        jobs.send(transfer(3)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { .. })));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Ready)));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Transferred { transfer: 3, failed: false })));
    }

    #[test]
    fn the_request_that_an_error_names_is_reported() {
        let (jobs, reports) = start(false);
        jobs.send(step(4)).unwrap();
        let guilty = Some(RequestId(5));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { guilty: named, .. }) if named == guilty));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Ready)));
        jobs.send(step(1)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { guilty: None, .. })));
    }

    #[test]
    fn a_worker_that_cannot_be_reset_is_gone() {
        let (jobs, reports) = start(true);
        jobs.send(step(1)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { .. })));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Gone)));
    }
}
