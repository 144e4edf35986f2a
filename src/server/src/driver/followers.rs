//! Those who follow what the cluster gets and does, without a say in it.

use std::fmt;
use std::sync::Arc;

use trunkline_cluster::EngineId;
use trunkline_core::{Core, Stats};
use trunkline_port::{Step, WeightReads};

use crate::driver::listening::Listening;
use crate::driver::recorder::Recorder;

/// A step that ended, with times on the server's clock.
#[derive(Clone, Copy, Debug)]
pub struct EndedStep<'a> {
    /// Number of the engine.
    pub engine: u32,
    /// Time at which the step was sent, or the step before ended if that is later, nanoseconds.
    pub begin_ns: u64,
    /// Time of the answer, nanoseconds.
    pub end_ns: u64,
    /// The step.
    pub step: &'a Step,
    /// Reads of streamed weights; zeros if all weights are in memory.
    pub weights: &'a WeightReads,
    /// Gauges and counters of the core before it takes the answer.
    pub stats: &'a Stats,
}

/// Receives each step that ended, on the thread of the cores: it MUST return at once.
pub trait FollowSteps: Send + Sync + fmt::Debug {
    /// Takes note of a step.
    fn ended(&self, step: &EndedStep<'_>);
}

/// All followers.
#[derive(Default)]
pub(super) struct Followers {
    pub(super) recorder: Option<Recorder>,
    pub(super) listening: Option<Listening>,
    pub(super) steps: Option<Arc<dyn FollowSteps>>,
}

impl Followers {
    /// Hands on a step of an engine that was answered.
    pub(super) fn step_ended(
        &self,
        (EngineId(engine), step): (EngineId, &Step),
        (begin_ns, end_ns): (u64, u64),
        weights: &WeightReads,
        core: &Core,
    ) {
        if let Some(steps) = &self.steps {
            steps.ended(&EndedStep { engine, begin_ns, end_ns, step, weights, stats: &core.stats() });
        }
    }
}
