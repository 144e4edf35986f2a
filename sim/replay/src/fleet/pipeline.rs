//! Steps in flight on the modelled hardware of one replica.
//!
//! Without a pipeline steps run one after another: a step that is sent early begins when the one before it ends. The stages of a pipeline
//! each run another step: a step begins as soon as the one before it has left the first stage, and none overtakes another.

use trunkline_sim_perf::cost::PipelinedStep;

/// Clock of the steps on one replica.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pipeline {
    /// Time at which the first stage is free for the next step.
    first_stage_free_ns: u64,
    /// End of the last step.
    end_ns: u64,
    /// Total time in which at least one step ran.
    pub busy_ns: u64,
}

impl Pipeline {
    /// Adds a step that is sent at `at_ns` to a replica of which every step takes `slowness` times as long. Returns its begin and end.
    pub fn push(&mut self, at_ns: u64, times: PipelinedStep, slowness: f64) -> (u64, u64) {
        let (latency_ns, stage_ns) = (slowed(times.latency_ns, slowness), slowed(times.stage_ns, slowness));
        let begin_ns = at_ns.max(self.first_stage_free_ns);
        // Behind a longer step the last stage is the one to wait for.
        let end_ns = (begin_ns + latency_ns).max(self.end_ns + stage_ns);
        self.busy_ns += end_ns - begin_ns.max(self.end_ns);
        (self.first_stage_free_ns, self.end_ns) = (begin_ns + stage_ns, end_ns);
        (begin_ns, end_ns)
    }

    /// Drops all steps: the replica failed at `now_ns`.
    pub fn clear(&mut self, now_ns: u64) {
        self.busy_ns -= self.end_ns.saturating_sub(now_ns);
        (self.first_stage_free_ns, self.end_ns) = (now_ns, now_ns);
    }
}

/// Returns the duration of a step on a slow replica.
pub(super) fn slowed(duration_ns: u64, slowness: f64) -> u64 {
    if slowness == 1.0 { duration_ns } else { (duration_ns as f64 * slowness).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(latency_ns: u64, stage_ns: u64) -> PipelinedStep {
        PipelinedStep { latency_ns, stage_ns }
    }

    #[test]
    fn without_stages_steps_run_one_after_another() {
        let mut pipeline = Pipeline::default();
        assert_eq!(pipeline.push(10, step(5, 5), 1.0), (10, 15));
        assert_eq!(pipeline.push(10, step(7, 7), 1.0), (15, 22), "sent ahead, begun behind");
        assert_eq!(pipeline.push(30, step(5, 5), 2.0), (30, 40), "a slow replica takes twice as long");
        assert_eq!(pipeline.busy_ns, 5 + 7 + 10);
        pipeline.clear(33);
        assert_eq!((pipeline.busy_ns, pipeline.push(33, step(5, 5), 1.0)), (15, (33, 38)));
    }

    #[test]
    fn stages_run_different_steps_and_none_overtakes() {
        let mut pipeline = Pipeline::default();
        assert_eq!(pipeline.push(0, step(40, 10), 1.0), (0, 40));
        assert_eq!(pipeline.push(0, step(40, 10), 1.0), (10, 50), "one stage behind");
        assert_eq!(pipeline.push(0, step(80, 20), 1.0), (20, 100));
        assert_eq!(
            pipeline.push(0, step(40, 10), 1.0),
            (40, 110),
            "a short step waits behind a long one in every stage"
        );
        assert_eq!(pipeline.busy_ns, 110);
    }
}
