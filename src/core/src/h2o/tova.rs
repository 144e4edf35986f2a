//! Token omission via attention (TOVA, Oren et al., EMNLP 2024, arXiv 2401.06104): the last row alone decides.

use trunkline_port::ScoreKind;

use super::{Needs, Rows, Scorer, Scores};

/// Attention mass of the last row.
#[derive(Debug)]
pub(super) struct Tova;

impl Scorer for Tova {
    fn needs(&self) -> Needs {
        Needs { kind: ScoreKind::Mean, prompt_rows: 1, decode_rows: 1, ..Needs::default() }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], _rows: Rows) {
        scores.replace(step);
    }
}
