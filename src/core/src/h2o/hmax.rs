//! Highest probability: a block stays if any row of any head once read one of its tokens from afar.
//!
//! A mean over heads hides the few heads copying from far back; the maximum shows them. Rows nearer than 32 positions do not count,
//! since every token is read by its neighbours. The prefill computes all probabilities anyway, so they cost nothing more there.

use trunkline_port::ScoreKind;

use super::{Needs, Rows, Scorer, Scores};

/// Highest probability given to a position of a block so far.
#[derive(Debug)]
pub(super) struct HighestProbability;

impl Scorer for HighestProbability {
    fn needs(&self) -> Needs {
        Needs { kind: ScoreKind::Max, prompt_rows: u32::MAX, decode_rows: 1, ..Needs::default() }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], _rows: Rows) {
        scores.raise(step);
    }
}
