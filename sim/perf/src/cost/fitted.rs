//! A linear model of a step's time, with coefficients that were fitted to a server.

use super::{CostModel, Limit, StepShape, nanoseconds};
use crate::hardware::{Fit, StepTime};

/// What the coefficients of a [`StepTime`] are multiplied with.
pub const FEATURES: usize = 5;

/// The features of a step: a constant, tokens, sequences, context read, prefill attention pairs.
pub fn features(shape: &StepShape) -> [f64; FEATURES] {
    [1, shape.tokens, shape.sequences(), shape.decode_kv_tokens, shape.prefill_pairs].map(|n| n as f64)
}

impl StepTime {
    /// The coefficients in the order of the features.
    pub fn coefficients(&self) -> [f64; FEATURES] {
        [self.constant_s, self.token_s, self.sequence_s, self.context_token_s, self.prefill_pair_s]
    }

    /// The time of a step, seconds.
    pub fn step_s(&self, shape: &StepShape) -> f64 {
        features(shape).iter().zip(self.coefficients()).map(|(feature, coefficient)| feature * coefficient).sum()
    }
}

/// A cost model of coefficients that were fitted to a server.
#[derive(Clone, Debug)]
pub struct Fitted {
    time: StepTime,
    limit: Limit,
    name: String,
}

impl Fitted {
    /// The model of `time` on the device that `limit` is of, and how near it is to what it was fitted to.
    pub fn new(time: StepTime, limit: Limit, fit: Option<Fit>) -> Self {
        Self { time, limit, name: format!("fitted ({})", Fit::describe(fit)) }
    }
}

impl CostModel for Fitted {
    fn name(&self) -> &str {
        &self.name
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        nanoseconds(self.limit.hold(self.time.step_s(shape), shape))
    }
}
