//! Counts of the beginnings and losses of an engine's worker. The counts outlive the worker.

/// Reason for the loss of a worker's KV. The requests of the worker start over, or move to other engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A step failed.
    FailedStep,
    /// The answer to a step does not fit the step.
    BadResult,
    /// A step or a reset took too long.
    Timeout,
    /// The threads of an embedded worker ended.
    Ended,
    /// An attached worker left, was replaced, did not come back in time, or is in lock step with a worker that is lost.
    Detached,
}

impl Loss {
    /// All reasons with their names, in the order of the numbers.
    const NAMES: [&'static str; 5] = ["failed_step", "bad_result", "timeout", "ended", "detached"];
}

/// Beginnings and losses of the workers of one engine since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerCounts {
    /// Times that a worker became ready with empty KV blocks, the first time included.
    pub(crate) joined: u64,
    /// Workers whose threads were started again.
    pub(crate) restarted: u64,
    lost: [u64; Loss::NAMES.len()],
}

impl WorkerCounts {
    /// Counts a loss.
    pub(crate) fn lose(&mut self, why: Loss) {
        self.lost[why as usize] += 1;
    }

    /// Returns the number of losses by reason.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Loss::NAMES.into_iter().zip(self.lost)
    }
}
