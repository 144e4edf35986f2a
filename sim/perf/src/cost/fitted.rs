//! Step times fitted to a server.

use super::{CostModel, Largest, LowerBound, StepErrors, StepShape, nanoseconds};
use crate::hardware::StepTime;

impl StepTime {
    /// Returns the time of a step, seconds.
    pub fn step_s(&self, shape: &StepShape) -> f64 {
        let mixed_s = if shape.prefills > 0 { self.mixed_context_token_s } else { 0.0 };
        self.constant_s
            + self.tokens.time_s(shape.tokens)
            + self.sequences.time_s(shape.sequences())
            + shape.decode_kv_tokens as f64 * (self.context_token_s + mixed_s)
            + shape.prefill_pairs as f64 * self.prefill_pair_s
    }
}

/// Cost model with step times fitted to a server.
#[derive(Clone, Debug)]
pub struct Fitted {
    time: StepTime,
    limit: LowerBound,
    name: String,
}

impl Fitted {
    /// Returns the model with the step times `time`, bounded below by `limit`.
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

    fn largest(&self, _: usize) -> Option<Largest> {
        self.time.largest
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        nanoseconds(self.limit.hold(self.time.step_s(shape), shape))
    }
}
