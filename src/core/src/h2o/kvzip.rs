//! KVzip (Kim et al., arXiv 2505.23416): a block stays if repeating the prompt reads it.
//!
//! The prompt is read a second time, in parts, behind itself, and a block's score is the highest probability that a row of the same part
//! gives to one of the block's positions. No question is needed, so scores serve every request with the prefix. A part begins
//! with the block before it instead of the paper's instruction to repeat: the model goes on from there. Answers are not read again;
//! blocks of an answer rank by what decode steps read.

use trunkline_port::ScoreKind;

use super::{Needs, Rows, Scorer, Scores};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "part",
    about: "tokens of the prompt read again at a time, which need memory meanwhile",
    default: 512,
    min: 16,
    max: 1 << 16,
}];

/// Highest probability given to a position of a block when the prompt is repeated.
#[derive(Debug)]
pub(super) struct KvZip {
    part_tokens: u32,
}

impl KvZip {
    pub(super) fn new(values: &[u64]) -> Self {
        // Within the range of the parameter, so it fits.
        Self { part_tokens: values[0] as u32 }
    }
}

impl Scorer for KvZip {
    fn needs(&self) -> Needs {
        Needs { kind: ScoreKind::Max, decode_rows: 1, reread_tokens: self.part_tokens, ..Needs::default() }
    }

    fn observe(&self, scores: &mut Scores, step: &[f32], _rows: Rows) {
        scores.raise(step);
    }
}
