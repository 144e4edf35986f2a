//! The time of an engine around its kernels: scheduling, preparing the batch, sampling, sending tokens out.

use std::fmt;
use std::str::FromStr;

use trunkline_port::WeightReads;
use trunkline_quote::quoted;

use super::{BoxedCost, CostModel, Largest, PipelinedStep, StepErrors, StepShape, TimeRange, TimedStep};

/// Longest overhead per step or sequence, microseconds.
const US_MAX: f64 = 1e6;

/// Time that an engine adds to the kernels of each step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineOverhead {
    /// Per step, microseconds.
    pub step_us: f64,
    /// Per sequence in the step, and so per generated token, microseconds.
    pub sequence_us: f64,
}

/// Text that is no overhead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "engine overhead {} is not STEP_US or STEP_US:SEQUENCE_US, numbers from 0 to {US_MAX}; example: 850:12 for 850 us a step and 12 us for each sequence"
, quoted(.0))]
pub struct EngineOverheadError(String);

impl EngineOverhead {
    /// Returns the overhead of a step, nanoseconds.
    pub fn ns(&self, shape: &StepShape) -> u64 {
        ((self.step_us + self.sequence_us * shape.sequences() as f64) * 1e3).round() as u64
    }

    /// Adds the overhead to the steps of a cost model.
    pub fn around(self, cost: BoxedCost) -> BoxedCost {
        if self == Self::default() {
            return cost;
        }
        Box::new(Hosted { name: format!("{}; engine overhead {self}", cost.name()), cost, overhead: self })
    }
}

impl FromStr for EngineOverhead {
    type Err = EngineOverheadError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| part.parse().ok().filter(|us| (0.0..=US_MAX).contains(us));
        let (step, sequence) = text.split_once(':').unwrap_or((text, "0"));
        let parsed = number(step).zip(number(sequence)).map(|(step_us, sequence_us)| Self { step_us, sequence_us });
        parsed.ok_or_else(|| EngineOverheadError(text.into()))
    }
}

impl fmt::Display for EngineOverhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us a step, {} us a sequence", self.step_us, self.sequence_us)
    }
}

/// A cost model of kernels, with an engine around them.
struct Hosted {
    name: String,
    cost: BoxedCost,
    overhead: EngineOverhead,
}

impl Hosted {
    /// Adds the overhead to the last stage, which samples: a step is longer by the overhead, and so is the slowest stage.
    fn with_overhead(&self, step: PipelinedStep, shape: &StepShape) -> PipelinedStep {
        PipelinedStep { last_ns: step.last_ns + self.overhead.ns(shape), ..step }
    }
}

impl CostModel for Hosted {
    fn name(&self) -> &str {
        &self.name
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.cost.step_ns(shape) + self.overhead.ns(shape)
    }

    /// Returns the errors of the kernels.
    fn errors(&self, replica: usize) -> StepErrors {
        self.cost.errors(replica)
    }

    fn range(&self, replica: usize) -> Option<TimeRange> {
        self.cost.range(replica)
    }

    fn largest(&self, replica: usize) -> Option<Largest> {
        self.cost.largest(replica)
    }

    fn weight_reads(&self, replica: usize, shape: &StepShape) -> WeightReads {
        self.cost.weight_reads(replica, shape)
    }

    fn timed_step(&self, replica: usize, shape: &StepShape) -> TimedStep {
        let step = self.cost.timed_step(replica, shape);
        TimedStep { ns: step.ns + self.overhead.ns(shape), ..step }
    }

    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        self.with_overhead(self.cost.pipelined(shape), shape)
    }

    fn replica_pipelined(&self, replica: usize, shape: &StepShape) -> PipelinedStep {
        self.with_overhead(self.cost.replica_pipelined(replica, shape), shape)
    }

    /// Adds the overhead of the rank with the most sequences: the others wait for it.
    fn lock_step_ns(&self, replica: usize, shapes: &[StepShape]) -> u64 {
        let overhead_ns = shapes.iter().map(|shape| self.overhead.ns(shape)).max().unwrap_or(0);
        self.cost.lock_step_ns(replica, shapes) + overhead_ns
    }

    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        self.cost.replica_step_ns(replica, shape) + self.overhead.ns(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{self, Parallel};
    use crate::{hardware, model};

    fn kernels() -> BoxedCost {
        let (hardware, model) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        cost::of(hardware, model, Parallel::ONE)
    }

    #[test]
    fn every_step_is_longer_by_the_overhead() {
        let (kernels, hosted) = (kernels(), "850:12.5".parse::<EngineOverhead>().unwrap().around(kernels()));
        let shape = StepShape::decodes(8, 1000).and(StepShape::prefill(512, 0));
        let more_ns = 850_000 + 9 * 12_500;
        assert_eq!(hosted.step_ns(&shape), kernels.step_ns(&shape) + more_ns);
        assert_eq!(hosted.replica_step_ns(3, &shape), kernels.replica_step_ns(3, &shape) + more_ns);
        assert_eq!(hosted.timed_step(3, &shape).ns, hosted.replica_step_ns(3, &shape));
        let (with, without) = (hosted.pipelined(&shape), kernels.pipelined(&shape));
        assert_eq!((with.stage_ns, with.last_ns), (without.stage_ns, without.last_ns + more_ns));
        assert_eq!(hosted.replica_pipelined(0, &shape), with);
        assert_eq!(hosted.name(), format!("{}; engine overhead 850 us a step, 12.5 us a sequence", kernels.name()));
    }

    #[test]
    fn ranks_in_lock_step_wait_for_the_longest_overhead() {
        let (hardware, model) = (hardware::by_name("h100-80g").unwrap(), model::by_name("qwen3-30b-a3b").unwrap());
        let kernels = || cost::of(hardware, model, "dp2ep2".parse().unwrap());
        let shapes = [StepShape::decodes(8, 1000), StepShape::decodes(20, 1000)];
        let alone_ns = kernels().lock_step_ns(0, &shapes);
        assert!(alone_ns > kernels().step_ns(&shapes[1]), "the experts have the tokens of both ranks");
        let hosted = "850:12.5".parse::<EngineOverhead>().unwrap().around(kernels());
        assert_eq!(hosted.lock_step_ns(0, &shapes), alone_ns + 850_000 + 20 * 12_500);
        let kinds = vec![(2, "a".into(), self::kernels()), (2, "b".into(), kernels())];
        let mixed = cost::Mixed::new(kinds);
        assert_eq!(mixed.lock_step_ns(2, &shapes), alone_ns, "of the kind of the group");
        assert_ne!(mixed.lock_step_ns(0, &shapes), alone_ns);
    }

    #[test]
    fn no_overhead_changes_nothing() {
        assert_eq!(EngineOverhead::default().around(kernels()).name(), kernels().name());
    }

    #[test]
    fn text_that_is_no_overhead_is_refused() {
        assert_eq!("40".parse(), Ok(EngineOverhead { step_us: 40.0, sequence_us: 0.0 }));
        for wrong in ["", "x", "1:2:3", "-1", "1:-2", "2000000", "nan", "1:"] {
            let message = wrong.parse::<EngineOverhead>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("engine overhead '{wrong}' is not STEP_US")), "{message}");
        }
    }
}
