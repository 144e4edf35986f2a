//! Stages, steps in flight and token budgets of replicas that are pipelines.
//!
//! A step that is longer than the others keeps its stage while the next ones wait, and its own sequences from running again until it has left
//! all stages. So the token budget without stages is divided among the steps in the stages, and a long prompt runs in as many chunks more.

use trunkline_core::Config;
use trunkline_core::config::STEPS_IN_FLIGHT_MAX;
use trunkline_sim_perf::cost::Parallel;

use super::{Settings, SettingsError};

/// Steps in flight for each stage of a pipeline, as the server sends to a worker with stages: the next step is there before the first
/// stage is free.
pub const STEPS_PER_STAGE: u32 = 2;

/// Stages, steps in flight and token budget that a user gave; `None` to follow the devices of each kind of replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenSteps {
    /// Stages that the scheduler assumes.
    pub stages: Option<u32>,
    /// Steps in flight.
    pub steps: Option<u32>,
    /// `true` to keep the token budget of a step as it is, `false` to divide it among the stages.
    pub keeps_tokens: bool,
    /// Steps in flight for each stage if none are given: 1 for engines that send a step when another ends, [`STEPS_PER_STAGE`] for this server.
    pub per_stage: u32,
}

impl GivenSteps {
    /// Returns stages and steps in flight for devices with this parallelism and a core that has `steps` in flight without stages.
    fn of(self, parallel: Parallel, steps: u32) -> (u32, u32) {
        let filled = match parallel.pipeline {
            stages @ 2..=STEPS_IN_FLIGHT_MAX => stages,
            _ => 1,
        };
        // One step in flight is divided into micro-batches instead.
        let stages = self.stages.unwrap_or(if self.steps == Some(1) { 1 } else { filled });
        let enough = if stages > 1 { stages.saturating_mul(self.per_stage).min(STEPS_IN_FLIGHT_MAX) } else { 1 };
        (stages, self.steps.unwrap_or(steps.max(enough)))
    }

    /// Returns the token budget of a step with so many stages, at least one token for each sequence.
    fn tokens(self, core: &Config, stages: u32) -> u32 {
        if self.keeps_tokens {
            core.max_batch_tokens
        } else {
            (core.max_batch_tokens / stages).max(core.max_batch_size)
        }
    }
}

impl Settings {
    /// Sets the stages of each kind of replica to those of its devices, with enough steps in flight for all of them and a share of the token
    /// budget for each, unless given.
    pub fn fill_pipelines(&mut self, given: GivenSteps) {
        let steps = self.core.max_steps_in_flight;
        for group in &mut self.others {
            (group.pipeline_stages, group.max_steps_in_flight) = given.of(group.parallel, steps);
            group.max_batch_tokens = given.tokens(&self.core, group.pipeline_stages);
        }
        (self.core.pipeline_stages, self.core.max_steps_in_flight) = given.of(self.parallel, steps);
        self.core.max_batch_tokens = given.tokens(&self.core, self.core.pipeline_stages);
    }

    /// Checks that the scheduler of each kind of replica assumes the stages of its devices, or none.
    pub(super) fn check_pipelines(&self) -> Result<(), SettingsError> {
        let others = self.others.iter().map(|group| (group.pipeline_stages, group.parallel));
        let kinds = std::iter::once((self.core.pipeline_stages, self.parallel)).chain(others);
        for (stages, Parallel { pipeline, .. }) in kinds {
            if ![1, pipeline].contains(&stages) {
                return Err(SettingsError::PipelineStages { stages, pipeline });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parallel: &str, given: (Option<u32>, Option<u32>), per_stage: u32, steps: u32) -> (u32, u32) {
        let given = GivenSteps { stages: given.0, steps: given.1, keeps_tokens: true, per_stage };
        given.of(parallel.parse().unwrap(), steps)
    }

    #[test]
    fn a_pipeline_has_steps_for_all_of_its_stages() {
        let none = (None, None);
        assert_eq!(of("tp4", none, 2, 1), (1, 1));
        assert_eq!(of("tp4", none, 2, 3), (1, 3), "asynchronous scheduling");
        assert_eq!(of("tp2pp4", none, 2, 1), (4, 8));
        assert_eq!(of("pp4", none, 1, 2), (4, 4), "an engine that sends a step when another ends");
        assert_eq!(of("pp2", none, 1, 5), (2, 5));
        assert_eq!(of("pp40", none, 2, 1), (40, 64));
        assert_eq!(of("pp80", none, 2, 1), (1, 1), "more stages than steps can be in flight");
    }

    #[test]
    fn given_numbers_stay() {
        assert_eq!(of("pp4", (None, Some(6)), 2, 6), (4, 6));
        assert_eq!(of("pp4", (None, Some(1)), 2, 1), (1, 1), "one step at a time");
        assert_eq!(of("pp4", (Some(1), None), 2, 1), (1, 1));
        assert_eq!(of("pp4", (Some(4), None), 1, 1), (4, 4));
        assert_eq!(of("pp4", (Some(4), Some(2)), 1, 2), (4, 2));
        let given = GivenSteps { stages: None, steps: None, keeps_tokens: false, per_stage: 1 };
        let core = Config { max_batch_tokens: 8192, max_batch_size: 1500, ..Config::default() };
        assert_eq!([1, 2, 8].map(|stages| given.tokens(&core, stages)), [8192, 4096, 1500]);
        assert_eq!(GivenSteps { keeps_tokens: true, ..given }.tokens(&core, 8), 8192);
    }
}
