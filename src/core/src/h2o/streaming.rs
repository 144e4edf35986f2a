//! Attention sinks (StreamingLLM, Xiao et al., ICLR 2024, arXiv 2309.17453): the first and the latest tokens stay, whatever is read.

use trunkline_port::RequestId;

use super::{Needs, Rows, Scorer, Scores};

/// All blocks rank equal, and of equals the later stays.
#[derive(Debug)]
pub(super) struct Streaming;

impl Scorer for Streaming {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn observe(&self, _scores: &mut Scores, _step: &[f32], _rows: Rows) {}

    fn rank(&self, _scores: &Scores, _request: RequestId, _block: u32) -> f32 {
        0.0
    }
}
