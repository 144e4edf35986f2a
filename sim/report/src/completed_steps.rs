//! Completed steps: each step is held back until no failure of its replica can interrupt it.

use crate::observer::StepSeen;
use trunkline_sim_perf::cost::{StepShape, WeightReads};

/// Step after the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedStep {
    pub replica: u32,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// `true` if the replica failed before the end of the step, which then has no result.
    pub interrupted: bool,
    pub shape: StepShape,
    /// Reads of weights, if the step ends.
    pub weights: WeightReads,
    /// Device blocks in use during the step.
    pub blocks_in_use: u32,
}

/// Step under way of each replica, which a failure could still interrupt.
#[derive(Clone, Debug)]
pub(crate) struct PendingSteps(Vec<Option<CompletedStep>>);

impl PendingSteps {
    pub(crate) fn new(replicas: u32) -> Self {
        Self(vec![None; replicas as usize])
    }

    /// Records the start of a step and returns the previous step of the replica, now complete.
    pub(crate) fn step(&mut self, seen: &StepSeen<'_>) -> Option<CompletedStep> {
        let stats = seen.stats;
        self.0[seen.replica as usize].replace(CompletedStep {
            replica: seen.replica,
            begin_ns: seen.begin_ns,
            end_ns: seen.end_ns,
            interrupted: false,
            shape: seen.shape,
            weights: seen.weights,
            blocks_in_use: stats.blocks_in_use(),
        })
    }

    /// Returns the step of a failing replica, interrupted unless complete.
    pub(crate) fn fail(&mut self, now_ns: u64, replica: u32) -> Option<CompletedStep> {
        let step = self.0[replica as usize].take()?;
        Some(CompletedStep { end_ns: step.end_ns.min(now_ns), interrupted: step.end_ns > now_ns, ..step })
    }

    /// Returns the last steps at the end of the replay.
    pub(crate) fn end(&mut self) -> Vec<CompletedStep> {
        self.0.iter_mut().filter_map(Option::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::Stats;

    use super::*;

    fn step(pending_steps: &mut PendingSteps, begin_ns: u64, end_ns: u64) -> Option<(u64, u64, bool)> {
        let stats = &Stats::default();
        let (shape, weights) = (StepShape::default(), WeightReads::default());
        let past = pending_steps.step(&StepSeen { replica: 0, begin_ns, end_ns, shape, weights, stats });
        past.map(|past| (past.begin_ns, past.end_ns, past.interrupted))
    }

    #[test]
    fn a_failure_cuts_the_step_that_is_under_way() {
        let mut pending_steps = PendingSteps::new(1);
        assert_eq!(step(&mut pending_steps, 0, 10), None);
        assert_eq!(step(&mut pending_steps, 10, 20), Some((0, 10, false)));
        let cut = pending_steps.fail(16, 0).unwrap();
        assert_eq!((cut.end_ns, cut.interrupted), (16, true));
        assert_eq!(pending_steps.fail(17, 0), None);
        // After the failure nothing of before is left.
        assert_eq!(step(&mut pending_steps, 30, 40), None);
        let whole = pending_steps.fail(40, 0).unwrap();
        assert_eq!((whole.end_ns, whole.interrupted), (40, false), "it ended in the instant of the failure");
        assert_eq!(pending_steps.end(), []);
    }
}
