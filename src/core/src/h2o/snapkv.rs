//! SnapKV (Li et al., NeurIPS 2024, arXiv 2404.14469): the last rows of a prompt show what its answer will read.
//!
//! The paper thins the prompt alone, so blocks after the prompt rank highest here: no row of the prompt read them. The paper's pooling over
//! neighbouring positions is left to the blocks.

use trunkline_port::{RequestId, ScoreKind};

use super::{Needs, Rows, Scorer, Scores};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] =
    [Param { key: "rows", about: "last rows of the prompt that are looked at", default: 32, min: 1, max: 4096 }];

/// Attention mass of the last rows of the prompt.
#[derive(Debug)]
pub(super) struct SnapKv {
    rows: u32,
}

impl SnapKv {
    pub(super) fn new(values: &[u64]) -> Self {
        // Within the range of the parameter, so it fits.
        Self { rows: values[0] as u32 }
    }
}

impl Scorer for SnapKv {
    fn needs(&self) -> Needs {
        Needs { kind: ScoreKind::Mean, prompt_rows: self.rows, decode_rows: 0, ..Needs::default() }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], rows: Rows) {
        // Means over the rows of each chunk become sums, so that the rows of a window over two chunks count equally.
        if rows.prefill {
            scores.add(rows.n as f32, step);
        }
    }

    fn rank(&self, scores: &Scores, _request: RequestId, block: u32) -> f32 {
        scores.get(block).unwrap_or(f32::MAX)
    }
}
