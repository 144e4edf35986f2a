//! Random eviction: a hash of seed, request and block. A baseline: a gate passed by `random` measures nothing.

use trunkline_port::RequestId;

use super::{Needs, Rows, Scorer, Scores};
use crate::draw;
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] =
    [Param { key: "seed", about: "number that selects the hash", default: 0, min: 0, max: u64::MAX }];

/// Stream of draws for ranks.
const STREAM: u64 = 0x6832_6f5f_7261_6e64;

/// Hash of seed, request and block, constant for each block.
#[derive(Debug)]
pub(super) struct Random {
    stream: u64,
}

impl Random {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { stream: draw::mix(STREAM ^ values[0]) }
    }
}

impl Scorer for Random {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn observe(&self, _scores: &mut Scores, _step: &[f32], _rows: Rows) {}

    fn rank(&self, _scores: &Scores, request: RequestId, block: u32) -> f32 {
        draw::unit(self.stream, request.0, u64::from(block)) as f32
    }
}
