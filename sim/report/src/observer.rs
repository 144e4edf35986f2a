//! Observers of a replay.

use std::ops::ControlFlow;

use trunkline_core::Place;
use trunkline_core::Stats;

use crate::outcome::Outcome;
use trunkline_sim_perf::cost::{StepShape, WeightReads};

/// Observer of the events of a replay, in the order of virtual time; it can stop the replay.
///
/// An observer MUST NOT influence the replay: it receives copies. A closure with an [`Outcome`] argument observes the ends of
/// requests.
pub trait Observer {
    /// Called at the end or refusal of a request. [`ControlFlow::Break`] stops the replay with the error `ReplayError::Stopped`.
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()>;

    /// Returns `true` to receive [`Observer::step`]; MUST be constant. Observing steps costs time, since it disables fast-forward.
    fn wants_steps(&self) -> bool {
        false
    }

    /// Called at the start of a step.
    fn step(&mut self, step: &StepSeen<'_>) {
        let _ = step;
    }

    /// Called at the end of a copy of blocks, or at the failure of its replica.
    fn transfer(&mut self, transfer: &TransferSeen) {
        let _ = transfer;
    }

    /// Called at the failure, return, start or stop of a replica.
    fn replica(&mut self, now_ns: u64, replica: u32, change: ReplicaChange) {
        let _ = (now_ns, replica, change);
    }
}

impl<F: FnMut(&Outcome) -> ControlFlow<()>> Observer for F {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        self(outcome)
    }
}

/// Change of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaChange {
    /// Failure with a return later.
    Failed,
    /// Failure for good.
    Lost,
    /// Return after a failure, with an empty cache.
    Back,
    /// Order of a replica, usable after the start delay.
    Ordered,
    /// End of the start delay: ready, with an empty cache.
    Started,
    /// Begin of a drain: no new requests.
    Draining,
    /// Drain taken back: ready again, with the cache.
    Reopened,
    /// End of a drain, or cancelled order: the memory is lost.
    Stopped,
}

impl ReplicaChange {
    /// Returns `true` if the worker ends with this change, and the KV with it.
    pub fn ends_worker(self) -> bool {
        matches!(self, Self::Failed | Self::Lost | Self::Stopped)
    }

    /// Returns the name in timelines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failed | Self::Lost => "failed",
            Self::Back => "back",
            Self::Ordered => "ordered",
            Self::Started => "started",
            Self::Draining => "draining",
            Self::Reopened => "reopened",
            Self::Stopped => "stopped",
        }
    }
}

/// Step of a replica at the start.
#[derive(Clone, Copy, Debug)]
pub struct StepSeen<'a> {
    /// Number of the replica.
    pub replica: u32,
    /// Start of the step, nanoseconds.
    pub begin_ns: u64,
    /// Planned end of the step, unless the replica fails before, nanoseconds.
    pub end_ns: u64,
    /// Batch shape of the step.
    pub shape: StepShape,
    /// Reads of weights for the step; zeros if no weights are streamed.
    pub weights: WeightReads,
    /// Gauges and counters of the core with this step under way.
    pub stats: &'a Stats,
}

/// Copy of blocks between two places, at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSeen {
    /// Number of the replica.
    pub replica: u32,
    /// Time of the request for the copy, nanoseconds.
    pub asked_ns: u64,
    /// End of the link latency and start of the bytes, which share the link with other copies of that direction, nanoseconds. Equal
    /// to the end if the replica failed before.
    pub begin_ns: u64,
    /// End of the copy, or failure of the replica, nanoseconds.
    pub end_ns: u64,
    /// `true` if the replica failed before the end, so the blocks did not arrive.
    pub interrupted: bool,
    /// Source of the blocks.
    pub from: Place,
    /// Destination of the blocks.
    pub to: Place,
    /// Number of KV blocks copied.
    pub blocks: u32,
}

/// Several observers; each receives every event.
#[derive(Default)]
pub struct Observers<'a>(pub Vec<&'a mut dyn Observer>);

impl Observer for Observers<'_> {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        for observer in &mut self.0 {
            if observer.ended(outcome).is_break() {
                flow = ControlFlow::Break(());
            }
        }
        flow
    }

    fn wants_steps(&self) -> bool {
        self.0.iter().any(|observer| observer.wants_steps())
    }

    fn step(&mut self, step: &StepSeen<'_>) {
        self.0.iter_mut().for_each(|observer| observer.step(step));
    }

    fn transfer(&mut self, transfer: &TransferSeen) {
        self.0.iter_mut().for_each(|observer| observer.transfer(transfer));
    }

    fn replica(&mut self, now_ns: u64, replica: u32, change: ReplicaChange) {
        self.0.iter_mut().for_each(|observer| observer.replica(now_ns, replica, change));
    }
}
