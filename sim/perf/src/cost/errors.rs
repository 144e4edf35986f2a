//! Errors of step times, by kind of batch, against measurements that the model has not seen.

use serde::{Deserialize, Serialize};

use super::StepShape;
use crate::hardware::{Residuals, StepErrors};

/// Step with a measured duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Batch shape of the step.
    pub shape: StepShape,
    /// Measured duration of the step, seconds.
    pub time_s: f64,
}

/// Samples of a kind of batch required to state an error: the 95th percentile of fewer is one of them.
const SAMPLES_MIN: usize = 20;

impl Residuals {
    /// Returns the errors of `predict` against samples.
    pub fn of(samples: &[Sample], predict: impl Fn(&StepShape) -> f64) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        let (mut predicted_s, mut measured_s) = (0.0, 0.0);
        let error = |sample: &Sample| {
            let time_s = predict(&sample.shape);
            predicted_s += time_s;
            measured_s += sample.time_s;
            (time_s / sample.time_s - 1.0).abs()
        };
        let mut errors: Vec<f64> = samples.iter().map(error).collect();
        errors.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| errors[((errors.len() as f64 * share).ceil() as usize).clamp(1, errors.len()) - 1];
        Self { median: at(0.5), p95: at(0.95), bias: predicted_s / measured_s - 1.0 }
    }
}

impl StepErrors {
    /// Returns the errors of `predict` against samples that it has not seen. A kind of batch with fewer than 20 samples counts as
    /// not measured.
    pub fn of(samples: &[Sample], predict: impl Fn(&StepShape) -> f64) -> Self {
        let of_kind = |kind: fn(&StepShape) -> bool| {
            let samples: Vec<Sample> = samples.iter().copied().filter(|sample| kind(&sample.shape)).collect();
            (samples.len() >= SAMPLES_MIN).then(|| Residuals::of(&samples, &predict))
        };
        Self {
            prefill: of_kind(|shape| shape.prefills > 0 && shape.decodes == 0),
            decode: of_kind(|shape| shape.prefills == 0 && shape.decodes > 0),
            mixed: of_kind(|shape| shape.prefills > 0 && shape.decodes > 0),
        }
    }

    /// Returns the errors of the kind of batch of a step.
    pub fn of_shape(&self, shape: &StepShape) -> Option<Residuals> {
        match (shape.prefills > 0, shape.decodes > 0) {
            (true, true) => self.mixed,
            (true, false) => self.prefill,
            (false, _) => self.decode,
        }
    }
}

/// Returns 600 steps of all kinds that engines run, always the same ones: up to 128 decodes with contexts up to 3,563 tokens, chunks
/// up to `tokens_max` tokens after up to 2,560 computed ones, and both.
pub fn usual_steps(tokens_max: u64) -> Vec<StepShape> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % below
    };
    let decodes = [0, 1, 2, 4, 8, 16, 32, 64, 128];
    let chunks = [0, 0, 64, 128, 256, 512, 1024, tokens_max];
    let mut shapes = Vec::new();
    while shapes.len() < 600 {
        let n = decodes[draw(9) as usize];
        let mut shape = StepShape::decodes(n, 64 + draw(3500));
        let chunk = chunks[draw(8) as usize].min(tokens_max - n);
        if chunk > 1 {
            shape = shape.and(StepShape::prefill(chunk, 512 * draw(6)));
        }
        if shape.tokens > 0 {
            shapes.push(shape);
        }
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_batch_have_errors_of_their_own() {
        let right = |shape: &StepShape| shape.tokens as f64;
        let sample = |shape: StepShape| Sample { shape, time_s: right(&shape) };
        let samples: Vec<Sample> = usual_steps(2048).into_iter().map(sample).collect();
        let slow_decodes = |shape: &StepShape| right(shape) * if shape.prefills == 0 { 1.25 } else { 1.0 };
        let errors = StepErrors::of(&samples, slow_decodes);
        assert_eq!((errors.prefill, errors.mixed), (Some(Residuals::default()), Some(Residuals::default())));
        let of_decodes = Residuals { median: 0.25, p95: 0.25, bias: 0.25 };
        assert_eq!(errors.decode, Some(of_decodes));
        assert_eq!(errors.of_shape(&StepShape::decodes(1, 9)), Some(of_decodes));
        assert_eq!(errors.to_string(), "prefill 0.0 / 0.0 %, decode 25.0 / 25.0 %, mixed 0.0 / 0.0 %");
    }

    #[test]
    fn few_samples_state_no_error() {
        let samples = |n| vec![Sample { shape: StepShape::prefill(64, 0), time_s: 1.0 }; n];
        assert!(StepErrors::of(&samples(19), |_| 1.0).is_empty());
        let errors = StepErrors::of(&samples(20), |_| 0.9);
        assert_eq!(errors.to_string(), "prefill 10.0 / 10.0 %, decode not measured, mixed not measured");
        assert!((errors.prefill.unwrap().bias + 0.1).abs() < 1e-12);
    }

    #[test]
    fn the_larger_of_two_errors_is_that_of_both() {
        let of = |median, bias| Some(Residuals { median, p95: 2.0 * median, bias });
        let a = StepErrors { prefill: of(0.1, -0.3), decode: of(0.1, 0.0), mixed: None };
        let b = StepErrors { prefill: of(0.2, 0.1), decode: None, mixed: of(0.1, 0.0) };
        let both =
            StepErrors { prefill: Some(Residuals { median: 0.2, p95: 0.4, bias: -0.3 }), decode: None, mixed: None };
        assert_eq!(a.or_larger(b), both);
        assert_eq!(both.prefill.map(|errors| errors.typical()), Some(0.3), "a bias counts by its size");
    }
}
