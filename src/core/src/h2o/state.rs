//! State of one sequence under eviction: scores, holes, and the token steps since the last plans.

use trunkline_port::{RequestId, ScoreKind};

use super::plan::{Holes, Plan, plan};
use super::scores::{Scores, sound};
use super::settings::Settings;
use super::{Needs, Rows, Scorer};

/// Scores, holes and age of the last plans of one sequence. Layer groups with the same [`Settings`] share holes; the others have their own, and perhaps
/// [scores of their own](Self::by_group). A sequence whose KV is computed again starts with a new state; a sequence
/// swapped out and in keeps its state.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// By number of the settings, or one for all.
    scores: Vec<Scores>,
    /// By number of the settings.
    holes: Vec<Holes>,
    steps: u32,
    /// Decode steps begun since the last scored one began; `None` before the first.
    unscored: Option<u32>,
    /// `true` until the prompt was read again, if the scorer asks for that.
    awaits_reread: bool,
    /// Scores of the last step by planner block; kept for its memory.
    step: Vec<f32>,
}

impl State {
    /// Creates the state of a sequence without KV, for `n` different settings. The first plan is due an interval after the first decode step, or with the first
    /// one if the scorer needs no decode steps ([`Needs::waits_for_decodes`]).
    pub fn new(needs: &Needs, n: usize) -> Self {
        Self {
            steps: if needs.waits_for_decodes() { 0 } else { u32::MAX },
            unscored: None,
            awaits_reread: needs.reread_tokens > 0,
            scores: vec![Scores::default()],
            holes: vec![Holes::default(); n],
            step: Vec::new(),
        }
    }

    /// Creates the state of a sequence like [`Self::new`], with scores of its own for each of the settings.
    pub fn by_group(needs: &Needs, n: usize) -> Self {
        Self { scores: vec![Scores::default(); n], ..Self::new(needs, n) }
    }

    /// Takes in the scores of a step: `reported` has one number for each KV block of `kv_block` tokens with a position of the
    /// sequence, from `rows` scored rows; of a state [by group](Self::by_group) that many for each of the settings, one after another. Scores of a planner block are the sum, or with [`ScoreKind::Max`] the maximum, of the scores
    /// of its KV blocks.
    pub fn report(&mut self, scorer: &dyn Scorer, settings: &Settings, reported: &[f32], kv_block: u32, rows: Rows) {
        let per_block = (settings.block_tokens / kv_block.max(1)).max(1) as usize;
        let kind = scorer.needs().kind;
        let fold = |scores: &[f32]| match kind {
            ScoreKind::Mean => scores.iter().copied().map(sound).sum(),
            ScoreKind::Max => scores.iter().copied().map(sound).fold(0.0, f32::max),
        };
        let n_entries = (reported.len() / self.scores.len()).max(1);
        for (scores, reported) in self.scores.iter_mut().zip(reported.chunks_exact(n_entries)) {
            self.step.clear();
            self.step.extend(reported.chunks(per_block).map(fold));
            scorer.observe(scores, &self.step, rows);
        }
    }

    /// Takes in the scores of a second reading of the prompt: of each KV block of `kv_block` tokens that has a position of the sequence; those behind
    /// the prompt have 0. They count for all groups. Plans wait for the report.
    pub fn report_reread(&mut self, scorer: &dyn Scorer, settings: &Settings, scores: &[f32], kv_block: u32) {
        self.awaits_reread = false;
        let n = scores.len() as u32 * kv_block;
        let scores = scores.repeat(self.scores.len());
        self.report(scorer, settings, &scores, kv_block, Rows { n, prefill: true });
    }

    /// Lets plans begin without a second reading of the prompt, which is not possible.
    pub fn give_up_reread(&mut self) {
        self.awaits_reread = false;
    }

    /// Returns `true` while plans wait for a second reading of the prompt.
    pub fn awaits_reread(&self) -> bool {
        self.awaits_reread
    }

    /// Begins a decode step. Returns the number of rows to be scored: [`Needs::decode_rows`] in one step of [`Needs::decode_interval`], the first
    /// at once, and 0 in the others.
    pub fn begin_decode(&mut self, needs: &Needs) -> u32 {
        let unscored = self.unscored.map_or(u32::MAX, |unscored| unscored + 1);
        let is_scored = unscored >= needs.decode_interval;
        self.unscored = Some(if is_scored { 0 } else { unscored });
        if is_scored { needs.decode_rows } else { 0 }
    }

    /// Forgets the decode steps in flight, which the worker gave up: the next one is scored.
    pub fn lose_steps(&mut self) {
        self.unscored = None;
    }

    /// Counts token steps: one for each decoded token, also if the step reported no scores.
    pub fn count_steps(&mut self, steps: u32) {
        self.steps = self.steps.saturating_add(steps);
    }

    /// Makes the plan of each of `settings` if plans are due for a sequence of `tokens` tokens, and begins a new interval. Otherwise returns no
    /// plan. Plans change nothing before [`Self::apply`]. `settings` MUST be of the number given to [`Self::new`], and differ in weights alone.
    pub fn plans(&mut self, scorer: &dyn Scorer, settings: &[Settings], request: RequestId, tokens: u32) -> Vec<Plan> {
        assert_eq!(settings.len(), self.holes.len(), "holes for each of the settings");
        if self.awaits_reread || !settings.iter().all(|settings| settings.is_due(tokens, self.steps)) {
            return Vec::new();
        }
        self.steps = 0;
        let groups = settings.iter().zip(&self.holes).zip(self.scores.iter().cycle());
        let plan =
            |((settings, holes), scores)| plan(settings, tokens, holes, |block| scorer.rank(scores, request, block));
        groups.map(plan).collect()
    }

    /// Makes holes of the positions dropped by applied plans. `settings` MUST be those of the plans.
    pub fn apply(&mut self, settings: &[Settings], plans: &[Plan]) {
        for ((settings, holes), plan) in settings.iter().zip(&mut self.holes).zip(plans) {
            plan.drops.iter().for_each(|positions| holes.drop_positions(positions, settings.block_tokens));
        }
    }

    /// Returns the scores by planner block: of each of the settings, or one for all.
    pub fn scores(&self) -> &[Scores] {
        &self.scores
    }

    /// Returns the blocks dropped so far, for each of the settings.
    pub fn holes(&self) -> &[Holes] {
        &self.holes
    }
}
