//! Heavy hitters (H2O, Zhang et al., NeurIPS 2023, arXiv 2306.14048): the blocks read most by decode steps stay.
//!
//! The paper sums attention over all steps; the moving average forgets old steps, as in MNN: a block read long ago makes room.

use trunkline_port::ScoreKind;

use super::settings::Settings;
use super::{Needs, Rows, Scorer, Scores};

/// Moving average of the attention mass of decode steps.
#[derive(Debug)]
pub(super) struct HeavyHitters {
    alpha: f32,
}

impl HeavyHitters {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { alpha: settings.alpha }
    }
}

impl Scorer for HeavyHitters {
    fn needs(&self) -> Needs {
        Needs { kind: ScoreKind::Mean, prompt_rows: 0, decode_rows: 1, ..Needs::default() }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], _rows: Rows) {
        scores.average(self.alpha, step);
    }
}
