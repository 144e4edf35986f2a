//! Heavy hitters (H2O, Zhang et al., NeurIPS 2023, arXiv 2306.14048): the blocks read most by decode steps stay.
//!
//! The paper sums attention over all steps; the moving average forgets old steps, as in MNN: a block read long ago makes room. Where a step in
//! several is scored, the scored step stands for the steps before.

use trunkline_port::ScoreKind;

use super::settings::Settings;
use super::{Needs, Rows, Scorer, Scores};

/// Moving average of the attention mass of decode steps.
#[derive(Debug)]
pub(super) struct HeavyHitters {
    /// Weight of the past from one scored step to the next.
    alpha: f32,
    interval: u32,
}

impl HeavyHitters {
    pub(super) fn new(settings: &Settings) -> Self {
        let interval = settings.scored_every();
        // Step by step, so that every machine rounds the same way; beyond some thousand steps nothing of the past is left.
        let alpha = (0..interval).fold(1.0, |alpha, _| alpha * settings.alpha);
        Self { alpha, interval }
    }
}

impl Scorer for HeavyHitters {
    fn needs(&self) -> Needs {
        Needs {
            kind: ScoreKind::Mean,
            prompt_rows: 0,
            decode_rows: 1,
            decode_interval: self.interval,
            ..Needs::default()
        }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], _rows: Rows) {
        scores.average(self.alpha, step);
    }
}
