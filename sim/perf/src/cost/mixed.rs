//! Cost model of a fleet with several kinds of replica.

use trunkline_port::WeightReads;

use super::{BoxedCost, CostModel, Largest, PipelinedStep, StepErrors, StepShape, TimeRange, TimedStep};

/// Cost models of all kinds, and the kind of each replica.
pub struct Mixed {
    name: String,
    kinds: Vec<BoxedCost>,
    /// Kind of each replica.
    kind_of: Vec<usize>,
}

impl Mixed {
    /// Combines kinds in the order of their replicas' numbers: number of replicas, name for reports, and cost model. There MUST be
    /// at least one kind.
    pub fn new(kinds: Vec<(u32, String, BoxedCost)>) -> Self {
        assert!(!kinds.is_empty(), "a fleet has at least one kind of replica");
        let mut mixed = Self { name: String::new(), kinds: Vec::new(), kind_of: Vec::new() };
        let mut names = Vec::new();
        for (kind, (replicas, name, cost)) in kinds.into_iter().enumerate() {
            mixed.kind_of.extend((0..replicas).map(|_| kind));
            mixed.kinds.push(cost);
            names.push(name);
        }
        mixed.name = names.join("; ");
        mixed
    }
}

impl CostModel for Mixed {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the step time of the first kind.
    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.kinds[0].step_ns(shape)
    }

    fn errors(&self, replica: usize) -> StepErrors {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].errors(0)
    }

    fn range(&self, replica: usize) -> Option<TimeRange> {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].range(0)
    }

    fn largest(&self, replica: usize) -> Option<Largest> {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].largest(0)
    }

    fn weight_reads(&self, replica: usize, shape: &StepShape) -> WeightReads {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].weight_reads(0, shape)
    }

    fn timed_step(&self, replica: usize, shape: &StepShape) -> TimedStep {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].timed_step(0, shape)
    }

    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        self.kinds[0].pipelined(shape)
    }

    fn replica_pipelined(&self, replica: usize, shape: &StepShape) -> PipelinedStep {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].pipelined(shape)
    }

    fn lock_step_ns(&self, replica: usize, shapes: &[StepShape]) -> u64 {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].lock_step_ns(0, shapes)
    }

    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        let kind = self.kind_of.get(replica).copied().unwrap_or(0);
        self.kinds[kind].step_ns(shape)
    }
}
