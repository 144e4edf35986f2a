//! The thread that runs steps. It owns the worker; nobody else sees it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::{error, info};
use trunkline_core::Step;
use trunkline_worker::{StepOutput, Worker};

/// Why a step could not be run.
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// Runs the steps of a model. The embedded [`Worker`] is one; tests bring their own.
pub trait StepRunner: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// If the step could not be run. The KV of all blocks counts as lost then, and [`StepRunner::reset`] is called next.
    fn run(&mut self, step: &Step) -> Result<StepOutput, RunError>;

    /// Forgets all sequences and all KV. Called after `run` failed or panicked.
    fn reset(&mut self);
}

impl StepRunner for Worker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, RunError> {
        Ok(Self::run(self, step)?)
    }

    fn reset(&mut self) {
        Self::reset(self);
    }
}

/// What the worker's thread tells the driver.
pub(crate) enum WorkerReport {
    /// It can run steps; its KV blocks hold nothing.
    Ready,
    /// A step ended. The step comes back so that its memory can be used again.
    Done { step: Box<Step>, output: StepOutput },
    /// A step could not be run; unless it is [`WorkerReport::Gone`] next, it is [`WorkerReport::Ready`].
    Failed { step: Box<Step> },
    /// The thread ends.
    Gone,
}

/// Starts the thread. Its steps come through the channel that is returned, its reports leave through `report`, which returns
/// whether anyone still listens. The thread ends when the channel is dropped.
pub(crate) fn spawn(
    runner: Box<dyn StepRunner>,
    report: impl Fn(WorkerReport) -> bool + Send + 'static,
) -> std::io::Result<Sender<Box<Step>>> {
    // The core has one step in flight at most. The second place is for the step after one that was given up.
    let (sender, steps) = bounded(2);
    thread::Builder::new().name("worker".into()).spawn(move || {
        // The worker's own panics are caught one by one; this is for those of its reset.
        if catch_unwind(AssertUnwindSafe(|| serve(runner, &steps, &report))).is_err() {
            error!("the worker panicked while it was reset");
        }
        report(WorkerReport::Gone);
    })?;
    Ok(sender)
}

fn serve(mut runner: Box<dyn StepRunner>, steps: &Receiver<Box<Step>>, report: &impl Fn(WorkerReport) -> bool) {
    if !report(WorkerReport::Ready) {
        return;
    }
    for step in steps {
        // Whatever state a panic leaves behind is thrown away by `reset`.
        let result = catch_unwind(AssertUnwindSafe(|| runner.run(&step)));
        let heard = match result {
            Ok(Ok(output)) => report(WorkerReport::Done { step, output }),
            failure => {
                match failure {
                    Ok(Err(err)) => error!(step = step.id, "the worker failed: {err}"),
                    _ => error!(step = step.id, "the worker panicked"),
                }
                let heard = report(WorkerReport::Failed { step });
                runner.reset();
                info!("the worker was reset");
                heard && report(WorkerReport::Ready)
            }
        };
        if !heard {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Faulty {
        panic_in_reset: bool,
    }

    impl StepRunner for Faulty {
        fn run(&mut self, step: &Step) -> Result<StepOutput, RunError> {
            match step.id {
                1 => Err("no".into()),
                2 => panic!("a panic that the test wants"),
                _ => Ok(StepOutput::default()),
            }
        }

        fn reset(&mut self) {
            assert!(!self.panic_in_reset, "a panic that the test wants");
        }
    }

    fn start(panic_in_reset: bool) -> (Sender<Box<Step>>, Receiver<WorkerReport>) {
        let (reports, received) = bounded(16);
        let steps = spawn(Box::new(Faulty { panic_in_reset }), move |report| reports.send(report).is_ok()).unwrap();
        assert!(matches!(received.recv(), Ok(WorkerReport::Ready)));
        (steps, received)
    }

    fn step(id: u64) -> Box<Step> {
        Box::new(Step { id, ..Step::default() })
    }

    #[test]
    fn errors_and_panics_are_reported_and_the_thread_goes_on() {
        let (steps, reports) = start(false);
        for id in 1..=2 {
            steps.send(step(id)).unwrap();
            assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { step }) if step.id == id));
            assert!(matches!(reports.recv(), Ok(WorkerReport::Ready)));
        }
        steps.send(step(3)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Done { step, .. }) if step.id == 3));
        drop(steps);
        assert!(matches!(reports.recv(), Ok(WorkerReport::Gone)));
    }

    #[test]
    fn a_worker_that_cannot_be_reset_is_gone() {
        let (steps, reports) = start(true);
        steps.send(step(1)).unwrap();
        assert!(matches!(reports.recv(), Ok(WorkerReport::Failed { .. })));
        assert!(matches!(reports.recv(), Ok(WorkerReport::Gone)));
    }
}
