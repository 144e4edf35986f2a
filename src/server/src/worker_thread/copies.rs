//! The copy thread of a worker: makes transfers one after another, beside the steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Receiver;
use tracing::error;
use trunkline_port::{BlockCopier, Transfer};

use super::{CopyEnd, WorkerEvent};

/// A transfer to make, with the life of the worker meant by the transfer.
pub(crate) struct CopyJob {
    pub(crate) life: u64,
    pub(crate) transfer: Box<Transfer>,
}

/// Keeps copies of an earlier life of the worker from writing into the blocks of a later one.
#[derive(Default)]
pub(super) struct Fence {
    /// First life whose copies may still run.
    open_from: AtomicU64,
    /// Held while a copy runs, until the copy's answer is reported.
    running: Mutex<()>,
}

impl Fence {
    /// Lets no copy of a life before `life` begin. Never waits: a copy may be running.
    pub(super) fn close(&self, life: u64) {
        self.open_from.fetch_max(life, Ordering::SeqCst);
    }

    /// Waits for the running copy and the copy's report. No copy of any life runs while the guard lives.
    pub(super) fn wait(&self) -> MutexGuard<'_, ()> {
        // Whoever takes the lock after this sees the lives that were closed before.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `copy` unless `life` has ended; the fence cannot be closed meanwhile.
    fn pass<T>(&self, life: u64, copy: impl FnOnce() -> T) -> Option<T> {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        (self.open_from.load(Ordering::SeqCst) <= life).then(copy)
    }
}

/// Makes incoming transfers until nobody sends any more, or nobody listens to the answers.
pub(super) fn serve(
    mut copier: Box<dyn BlockCopier>,
    jobs: &Receiver<CopyJob>,
    fence: &Fence,
    report: &impl Fn(u64, WorkerEvent) -> bool,
) {
    for CopyJob { life, transfer } in jobs {
        let heard = fence.pass(life, || report(life, copy(&mut *copier, &transfer)));
        if heard == Some(false) {
            return;
        }
    }
}

/// Makes one transfer. Nobody reads the destinations of a failed transfer, so the worker need not be reset.
fn copy(copier: &mut dyn BlockCopier, transfer: &Transfer) -> WorkerEvent {
    let end = match catch_unwind(AssertUnwindSafe(|| copier.copy(transfer))) {
        Ok(Ok(())) => CopyEnd::Made,
        Ok(Err(err)) => {
            error!(transfer = transfer.id, "blocks could not be copied: {err}");
            if err.is_interruption() { CopyEnd::Interrupted } else { CopyEnd::Failed }
        }
        Err(_) => {
            error!(transfer = transfer.id, "the worker panicked while it copied blocks");
            CopyEnd::Failed
        }
    };
    WorkerEvent::Transferred { transfer: transfer.id, end }
}
