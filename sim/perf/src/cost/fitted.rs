//! Linear model of the step time, with coefficients fitted to a server.

use super::{CostModel, LowerBound, StepErrors, StepShape, nanoseconds};
use crate::hardware::StepTime;

/// Number of features of a [`StepTime`].
pub const FEATURES: usize = 5;

/// Returns the features of a step: a constant, tokens, sequences, context read, and prefill attention pairs.
pub fn features(shape: &StepShape) -> [f64; FEATURES] {
    [1, shape.tokens, shape.sequences(), shape.decode_kv_tokens, shape.prefill_pairs].map(|n| n as f64)
}

impl StepTime {
    /// Returns the coefficients in the order of the features.
    pub fn coefficients(&self) -> [f64; FEATURES] {
        [self.constant_s, self.token_s, self.sequence_s, self.context_token_s, self.prefill_pair_s]
    }

    /// Returns the time of a step, seconds.
    pub fn step_s(&self, shape: &StepShape) -> f64 {
        features(shape).iter().zip(self.coefficients()).map(|(feature, coefficient)| feature * coefficient).sum()
    }
}

/// Cost model with coefficients fitted to a server.
#[derive(Clone, Debug)]
pub struct Fitted {
    time: StepTime,
    limit: LowerBound,
    name: String,
}

impl Fitted {
    /// Returns the model with the coefficients `time`, bounded below by `limit`.
    pub fn new(time: StepTime, limit: LowerBound) -> Self {
        let error = match time.errors.is_empty() {
            true => "error not measured".into(),
            false => format!("held-out error, median / p95: {}; against {}", time.errors, time.against),
        };
        Self { time, limit, name: format!("fitted ({error})") }
    }
}

impl CostModel for Fitted {
    fn name(&self) -> &str {
        &self.name
    }

    fn errors(&self, _: usize) -> StepErrors {
        self.time.errors
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        nanoseconds(self.limit.hold(self.time.step_s(shape), shape))
    }
}
