//! Planners of eviction within sequences: who has one, and the scores that each asks the worker for.

use trunkline_port::Keeps;

use crate::config::{Config, ConfigError};
use crate::h2o::{self, Mode, Plan, Scorer, Settings};
use crate::request::sequence::{Planner, Sequence};

/// Settings, scorer and default mode of eviction within sequences.
#[derive(Debug)]
pub(crate) struct Planners {
    /// Mode of requests that ask for none.
    default: Mode,
    /// Floors, block, trigger and target; several settings differ in weights alone.
    pub settings: Vec<Settings>,
    /// `true` if each group that evicts has settings and scores of its own.
    pub by_group: bool,
    /// `true` if the first group, which keeps every position, has scores all the same.
    scores_first: bool,
    /// Ranks blocks.
    pub scorer: Box<dyn Scorer>,
    /// Layer groups after the first that evict, by number. Each has the number of its settings.
    pub groups: Vec<(usize, usize)>,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// `true` once a sequence had a planner.
    pub is_used: bool,
}

impl Planners {
    /// Creates the planner of a configuration.
    ///
    /// # Errors
    /// If the scorer is unknown.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let evicts = |(group, keeps): (usize, &Keeps)| (*keeps == Keeps::Scored).then_some(group);
        let groups: Vec<usize> = (0..).zip(&config.worker.groups).skip(1).filter_map(evicts).collect();
        let mut settings = config.h2o.group_settings(config.block_size);
        let by_group = config.h2o.by_group && !groups.is_empty();
        if by_group {
            // Without weights there is one for all.
            let last = settings.len() - 1;
            settings = (0..groups.len()).map(|at| settings[at.min(last)]).collect();
        }
        let last = settings.len() - 1;
        Ok(Self {
            default: config.h2o.mode,
            settings,
            by_group,
            scores_first: config.worker.groups.first() == Some(&Keeps::Scored),
            scorer: config.h2o.make_scorer(config.block_size)?,
            groups: groups.into_iter().enumerate().map(|(at, group)| (group, at.min(last))).collect(),
            block_size: config.block_size,
            is_used: false,
        })
    }

    /// Gives a sequence that joins the batch a planner, unless it has one or its request keeps all blocks.
    pub fn begin(&mut self, seq: &mut Sequence) {
        let mode = seq.cold.h2o.unwrap_or(self.default);
        if mode != Mode::Off && seq.cold.planner.is_none() {
            let (needs, n) = (self.scorer.needs(), self.settings.len());
            let mut state = if self.by_group { h2o::State::by_group(&needs, n) } else { h2o::State::new(&needs, n) };
            if seq.cold.history.reread_failed {
                state.give_up_reread();
            }
            seq.cold.planner = Some(Box::new(Planner { mode, state, dropped_tokens: 0 }));
            self.is_used = true;
        }
    }

    /// Begins a step of a sequence that runs `n_tokens` tokens. Returns the number of rows to score.
    pub fn begin_step(&self, seq: &mut Sequence, n_tokens: u32) -> u32 {
        if let Some(from) = seq.cold.reread_from {
            return (seq.planned() + n_tokens).saturating_sub(seq.planned().max(from));
        }
        let (decodes, planned, needs) = (seq.decodes_next(), seq.planned(), self.scorer.needs());
        let Some(planner) = &mut seq.cold.planner else { return 0 };
        match decodes {
            true => planner.state.begin_decode(&needs).min(n_tokens),
            false => needs.rows_of_chunk(planned, n_tokens, seq.prompt_tokens),
        }
    }

    /// Returns the tokens dropped by plans, one for each of the settings, on average over the groups that evict, rounded down.
    pub fn dropped_tokens(&self, plans: &[Plan]) -> u32 {
        let sum: u64 = self.groups.iter().map(|(_, settings)| u64::from(plans[*settings].dropped())).sum();
        match self.groups.len() as u64 {
            0 => plans.iter().map(Plan::dropped).sum::<u32>() / plans.len().max(1) as u32,
            n => (sum / n) as u32,
        }
    }

    /// Returns the number of scores that a worker reports for a sequence that runs `n_tokens` tokens next: one for each entry of its block
    /// table with a position, in each list.
    pub fn n_scores(&self, seq: &Sequence, n_tokens: u32) -> u32 {
        (seq.planned() + n_tokens).div_ceil(self.block_size) * self.n_lists() as u32
    }

    /// Returns the number of lists of scores that a worker reports for a sequence.
    pub fn n_lists(&self) -> usize {
        if self.by_group { self.settings.len() + usize::from(self.scores_first) } else { 1 }
    }

    /// Returns the groups with the `settings`-th settings.
    pub fn groups_of(&self, settings: usize) -> &[(usize, usize)] {
        // They stand in the order of their settings.
        let begin = self.groups.partition_point(|(_, of)| *of < settings);
        &self.groups[begin..][..self.groups[begin..].partition_point(|(_, of)| *of == settings)]
    }

    /// Returns the lists of the groups that evict among those that a worker reported for a sequence.
    pub fn evicting<'a>(&self, scores: &'a [f32]) -> &'a [f32] {
        let skips_first = self.by_group && self.scores_first;
        if skips_first { &scores[scores.len() / self.n_lists()..] } else { scores }
    }
}
