//! Ranks of data-parallel attention, which run every step together.
//!
//! Each rank is a replica: a core with requests, KV and a schedule of its own. The tokens of all ranks meet at the experts of each
//! layer, so a group runs one step at a time, of all ranks with work, as long as the cost model says for the group
//! ([`trunkline_sim_perf::cost::CostModel::lock_step_ns`]). A rank without work runs along in an empty step. A step sent while the group runs waits for the next one, as in vLLM, whose
//! ranks agree before each step. Nothing is padded: with CUDA graphs vLLM pads the ranks of a step to the largest.

use std::collections::VecDeque;
use std::ops::Range;

use trunkline_core::Step;
use trunkline_sim_perf::cost::{PipelinedStep, StepShape};

use super::{Fleet, SimEvent};
use crate::settings::Settings;

/// Groups of the fleet.
pub(super) struct LockSteps {
    groups: Vec<Group>,
    /// Group of each replica.
    group_of: Vec<Option<usize>>,
}

struct Group {
    ranks: Range<usize>,
    /// Steps sent and not begun, oldest first, of each rank.
    waiting: Vec<VecDeque<(StepShape, Box<Step>)>>,
    /// `true` while a step runs or is about to begin: an event is scheduled.
    is_running: bool,
}

impl LockSteps {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut group_of = vec![None; settings.n_replicas() as usize];
        let groups = settings.lock_step_groups();
        for (group, ranks) in groups.iter().enumerate() {
            group_of[ranks.clone()].fill(Some(group));
        }
        let group = |ranks: Range<usize>| Group {
            waiting: ranks.clone().map(|_| VecDeque::new()).collect(),
            ranks,
            is_running: false,
        };
        Self { groups: groups.into_iter().map(group).collect(), group_of }
    }

    /// Returns the group of a replica; `None` for a replica that runs alone.
    pub(super) fn group_of(&self, replica: usize) -> Option<usize> {
        self.group_of[replica]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

impl Fleet<'_> {
    /// Takes a step of a rank. Begins it with the steps that other ranks send at the same instant, unless the group runs a step.
    pub(super) fn await_group(&mut self, at_ns: u64, replica: usize, group: usize, shape: StepShape, step: Box<Step>) {
        let it = &mut self.lock_steps.groups[group];
        it.waiting[replica - it.ranks.start].push_back((shape, step));
        if !it.is_running {
            it.is_running = true;
            self.schedule(at_ns, SimEvent::LockStep { group });
        }
    }

    /// Begins the next step of a group whose last step ended; the group idles if no rank has work.
    pub(super) fn begin_lock_step(&mut self, group: usize) {
        let it = &mut self.lock_steps.groups[group];
        let ranks = it.ranks.clone();
        let steps: Vec<Option<(StepShape, Box<Step>)>> = it.waiting.iter_mut().map(VecDeque::pop_front).collect();
        it.is_running = steps.iter().any(Option::is_some);
        if !it.is_running {
            return;
        }
        let shapes: Vec<StepShape> =
            steps.iter().map(|step| step.as_ref().map_or(StepShape::default(), |(shape, _)| *shape)).collect();
        let latency_ns = self.cost.lock_step_ns(ranks.start, &shapes);
        // All wait for the slowest rank.
        let slowness = self.replicas[ranks.clone()].iter().map(|rank| rank.slowness).fold(0.0, f64::max);
        let times = PipelinedStep::undivided(latency_ns);
        let mut group_end_ns = self.now_ns;
        for (replica, step) in ranks.zip(steps) {
            let Some((shape, step)) = step else { continue };
            let (begin_ns, end_ns) = self.replicas[replica].pipeline.push(self.now_ns, times, slowness, false);
            group_end_ns = end_ns;
            self.started(replica, (begin_ns, end_ns), shape, step);
        }
        self.schedule(group_end_ns, SimEvent::LockStep { group });
    }
}
