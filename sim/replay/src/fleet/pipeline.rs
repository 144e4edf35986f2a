//! Steps in flight on the modelled hardware of one replica.
//!
//! Without a pipeline steps run one after another: a step that is sent early begins when the one before it ends. The stages of a pipeline
//! each run another step: a step enters a stage as soon as it has left the stage before and the step ahead has left this one, so none
//! overtakes another. A token sampled in the last stage is not known before: a step that runs it enters the first stage no earlier.

use std::collections::VecDeque;

use trunkline_sim_perf::cost::PipelinedStep;

/// Clock of the steps on one replica.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    /// Time at which each stage is free for the next step.
    free_ns: Vec<u64>,
    /// Ends of the last steps, oldest first, as many as stages.
    ends_ns: VecDeque<u64>,
    /// Total time in which at least one step ran.
    pub busy_ns: u64,
}

impl Pipeline {
    /// Returns an idle pipeline of `stages` stages, at least one.
    pub fn new(stages: u32) -> Self {
        let stages = stages.max(1) as usize;
        Self { free_ns: vec![0; stages], ends_ns: VecDeque::with_capacity(stages), busy_ns: 0 }
    }

    /// Returns `true` if there are several stages.
    pub fn has_stages(&self) -> bool {
        self.free_ns.len() > 1
    }

    /// Adds a step that is sent at `at_ns` to a replica of which every step takes `slowness` times as long. With `awaits_token` the step
    /// runs a token of a step in flight, which is as many steps ahead as there are stages, or more. Returns the start and the end.
    pub fn push(&mut self, at_ns: u64, times: PipelinedStep, slowness: f64, awaits_token: bool) -> (u64, u64) {
        let (stage_ns, last_ns) = (slowed(times.stage_ns, slowness), slowed(times.last_ns, slowness));
        let is_full = self.ends_ns.len() == self.free_ns.len();
        let token_ns = if awaits_token && is_full { self.ends_ns[0] } else { 0 };
        let begin_ns = at_ns.max(self.free_ns[0]).max(token_ns);
        let last = self.free_ns.len() - 1;
        let mut left_ns = begin_ns;
        for (stage, free_ns) in self.free_ns.iter_mut().enumerate() {
            left_ns = left_ns.max(*free_ns) + if stage == last { last_ns } else { stage_ns };
            *free_ns = left_ns;
        }
        let before_ns = self.ends_ns.back().copied().unwrap_or(0);
        self.busy_ns += left_ns - begin_ns.max(before_ns);
        if is_full {
            self.ends_ns.pop_front();
        }
        self.ends_ns.push_back(left_ns);
        (begin_ns, left_ns)
    }

    /// Drops all steps: the replica failed at `now_ns`.
    pub fn clear(&mut self, now_ns: u64) {
        let end_ns = self.ends_ns.back().copied().unwrap_or(0);
        self.busy_ns -= end_ns.saturating_sub(now_ns);
        self.free_ns.fill(now_ns);
        self.ends_ns.clear();
    }
}

/// Longest duration of a step, nine years: so that the end of a step fits wherever one may begin.
const STEP_NS_MAX: u64 = 1 << 58;

/// Returns the duration of a step on a slow replica.
pub(super) fn slowed(duration_ns: u64, slowness: f64) -> u64 {
    let slowed_ns = if slowness == 1.0 { duration_ns } else { (duration_ns as f64 * slowness).round() as u64 };
    slowed_ns.min(STEP_NS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(stage_ns: u64, last_ns: u64) -> PipelinedStep {
        PipelinedStep { stage_ns, last_ns }
    }

    #[test]
    fn without_stages_steps_run_one_after_another() {
        let mut pipeline = Pipeline::new(1);
        let whole = PipelinedStep::undivided;
        assert_eq!(pipeline.push(10, whole(5), 1.0, false), (10, 15));
        assert_eq!(pipeline.push(10, whole(7), 1.0, true), (15, 22), "sent ahead, begun behind");
        assert_eq!(pipeline.push(30, whole(5), 2.0, false), (30, 40), "a slow replica takes twice as long");
        assert_eq!(pipeline.busy_ns, 5 + 7 + 10);
        pipeline.clear(33);
        assert_eq!((pipeline.busy_ns, pipeline.push(33, whole(5), 1.0, true)), (15, (33, 38)));
    }

    #[test]
    fn stages_run_different_steps_and_none_overtakes() {
        let mut pipeline = Pipeline::new(4);
        assert_eq!(pipeline.push(0, step(10, 10), 1.0, false), (0, 40));
        assert_eq!(pipeline.push(0, step(10, 10), 1.0, false), (10, 50), "one stage behind");
        assert_eq!(pipeline.push(0, step(20, 20), 1.0, false), (20, 100));
        assert_eq!(
            pipeline.push(0, step(10, 10), 1.0, false),
            (40, 110),
            "a short step waits behind a long one in every stage"
        );
        assert_eq!(pipeline.busy_ns, 110);
        assert_eq!(pipeline.push(0, step(10, 35), 1.0, false), (50, 145), "the last stage has more to do");
    }

    #[test]
    fn a_step_waits_for_the_tokens_it_runs() {
        let mut pipeline = Pipeline::new(2);
        assert_eq!(pipeline.push(0, step(40, 40), 1.0, false), (0, 80));
        assert_eq!(pipeline.push(0, step(10, 10), 1.0, true), (40, 90), "its token is older than the steps in flight");
        let mut prefill = pipeline.clone();
        assert_eq!(prefill.push(0, step(10, 10), 1.0, false), (50, 100), "the first stage is free");
        assert_eq!(pipeline.push(0, step(10, 10), 1.0, true), (80, 100), "the token is sampled at 80");
        assert_eq!(pipeline.push(0, step(10, 10), 1.0, true), (90, 110));
        pipeline.clear(200);
        assert_eq!(pipeline.push(200, step(1, 1), 1.0, true), (200, 202), "of an earlier life");
    }

    /// Runs all steps through stages that each have a queue, tick by tick. Returns begins and ends.
    fn ticked(stages: usize, steps: &[(u64, PipelinedStep)]) -> Vec<(u64, u64)> {
        let mut queues: Vec<VecDeque<usize>> = vec![VecDeque::new(); stages + 1];
        let mut running: Vec<Option<(usize, u64)>> = vec![None; stages];
        let mut times = vec![(0, 0); steps.len()];
        for now_ns in 0.. {
            queues[0].extend((0..steps.len()).filter(|at| steps[*at].0 == now_ns));
            for stage in 0..stages {
                if let Some((at, end_ns)) = running[stage]
                    && end_ns <= now_ns
                {
                    running[stage] = None;
                    queues[stage + 1].push_back(at);
                    times[at].1 = now_ns;
                }
                if running[stage].is_none()
                    && let Some(at) = queues[stage].pop_front()
                {
                    let PipelinedStep { stage_ns, last_ns } = steps[at].1;
                    running[stage] = Some((at, now_ns + if stage + 1 == stages { last_ns } else { stage_ns }));
                    if stage == 0 {
                        times[at].0 = now_ns;
                    }
                }
            }
            if queues[stages].len() == steps.len() {
                return times;
            }
        }
        unreachable!("the steps end")
    }

    #[test]
    fn stages_are_servers_with_queues_between() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % n
        };
        for stages in 1..=6 {
            let mut at_ns = 0;
            let steps: Vec<(u64, PipelinedStep)> = (0..60)
                .map(|_| {
                    at_ns += draw(12);
                    (at_ns, step(1 + draw(20), 1 + draw(30)))
                })
                .collect();
            let mut pipeline = Pipeline::new(stages as u32);
            let found: Vec<_> = steps.iter().map(|(at, times)| pipeline.push(*at, *times, 1.0, false)).collect();
            assert_eq!(found, ticked(stages, &steps), "{stages} stages");
        }
    }
}
