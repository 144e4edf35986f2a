//! Who watches a replay: what is shown to it, and what it may say.

use std::ops::ControlFlow;

use trunkline_core::Stats;
use trunkline_core::transfer::Place;

use crate::outcome::Outcome;
use trunkline_sim_perf::cost::StepShape;

/// Sees what happens in a replay, in the order of virtual time, and can stop it.
///
/// It MUST NOT matter to the replay whether it is watched: what is shown is a copy. A closure that takes an [`Outcome`] is an observer
/// of the ends of requests alone.
pub trait Observer {
    /// A request ended or was turned away. [`ControlFlow::Break`] stops the replay, which is then [`trunkline_sim_replay::ReplayError::Stopped`].
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()>;

    /// Whether [`Observer::step`] is to be called. The same answer every time. Showing every step costs time: nothing is leapt over.
    fn wants_steps(&self) -> bool {
        false
    }

    /// A step begins.
    fn step(&mut self, step: &StepSeen<'_>) {
        let _ = step;
    }

    /// A copy of blocks ended, or its replica failed before it did.
    fn transfer(&mut self, transfer: &TransferSeen) {
        let _ = transfer;
    }

    /// A replica failed, or is back.
    fn replica(&mut self, now_ns: u64, replica: u32, up: bool) {
        let _ = (now_ns, replica, up);
    }
}

impl<F: FnMut(&Outcome) -> ControlFlow<()>> Observer for F {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        self(outcome)
    }
}

/// A step of a replica, when it begins.
#[derive(Clone, Copy, Debug)]
pub struct StepSeen<'a> {
    /// Whose.
    pub replica: u32,
    /// When it begins, nanoseconds.
    pub begin_ns: u64,
    /// When it will have ended, unless the replica fails before.
    pub end_ns: u64,
    /// What is in it.
    pub shape: StepShape,
    /// The core's gauges and counters with this step under way.
    pub stats: &'a Stats,
}

/// A copy of blocks from place to place, when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSeen {
    /// Whose.
    pub replica: u32,
    /// When it was asked for, nanoseconds.
    pub asked_ns: u64,
    /// When the latency of its link was over and its bytes began to move, which they shared with the other copies of that direction. The
    /// time of its end if the replica failed before.
    pub begin_ns: u64,
    /// When it ended, or the replica failed.
    pub end_ns: u64,
    /// Whether the replica failed before its end, so that nothing came of it.
    pub cut: bool,
    /// From where.
    pub from: Place,
    /// To where.
    pub to: Place,
    /// How many blocks.
    pub blocks: u32,
}

/// Several observers, each of which sees everything.
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

    fn replica(&mut self, now_ns: u64, replica: u32, up: bool) {
        self.0.iter_mut().for_each(|observer| observer.replica(now_ns, replica, up));
    }
}
