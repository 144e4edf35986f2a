//! Fits a cost model to a server: from its recording, or from a benchmark against it.
//!
//! Both become samples, the shape of a step and the time it took. The coefficients of a [`StepTime`] are those that make the sum of the
//! squared *relative* errors least, none below 0: a decode of 10 ms counts as much as a prefill of 300 ms. Errors above 5 % count as
//! themselves, not as their squares.
//!
//! | source | samples | how good |
//! |---|---|---|
//! | [`from_recording`] | every step, as it was | exact shapes; times include what the server does between steps |
//! | [`from_benchmark`] | every gap between tokens of any request | shapes are put together from what clients saw; see there |
//!
//! [`calibrate`] gives the coefficients and how far they are from the samples; [`Calibration::hardware`] puts them in a description of the
//! device, which [`trunkline_sim_perf::hardware::file::to_toml`] writes and [`trunkline_sim_perf::hardware::find`] reads.

use trunkline_sim_perf::cost::{FEATURES, StepShape, StepTime, features};
use trunkline_sim_perf::hardware::{Fit, Hardware};

mod benchmark;
mod least_squares;
mod recording;

pub use benchmark::{BenchmarkError, from_benchmark};
pub use recording::from_recording;

/// A step that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What it had to do.
    pub shape: StepShape,
    /// How long it took, seconds.
    pub time_s: f64,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The coefficients.
    pub time: StepTime,
    /// Samples they were fitted to.
    pub samples: usize,
    /// How far they are from the samples.
    pub residuals: Residuals,
}

/// Relative errors of predicted times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residuals {
    /// Median of the errors without their signs.
    pub median: f64,
    /// 95th percentile of the same.
    pub p95: f64,
    /// All predicted times together against all measured ones, less 1: what a long run would be off by.
    pub bias: f64,
}

/// Too little to fit to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {found} steps to fit to; it takes at least {SAMPLES_MIN}, of different shapes: record a longer run")]
pub struct TooFewSamples {
    /// How many there are.
    pub found: usize,
}

/// Ten for each coefficient.
pub const SAMPLES_MIN: usize = 10 * FEATURES;

/// A relative error above this counts as itself and not as its square (Huber's loss): a step that was taken for another, or in which the
/// server did something else as well, says little about all others.
const OUTLIER: f64 = 0.05;
/// Fits, each weighted by the errors of the one before. The coefficients have long settled after so many.
const ROUNDS: usize = 20;

/// Fits the time of a step to samples of `model`.
pub fn calibrate(model: &'static str, samples: &[Sample]) -> Result<Calibration, TooFewSamples> {
    let usable: Vec<Sample> = samples.iter().copied().filter(|s| s.time_s > 0.0 && s.time_s.is_finite()).collect();
    if usable.len() < SAMPLES_MIN {
        return Err(TooFewSamples { found: usable.len() });
    }
    let rows = usable.iter().map(|sample| features(&sample.shape).map(|feature| feature / sample.time_s));
    let rows: Vec<_> = rows.collect();
    let mut x = least_squares::non_negative(rows.iter().map(|row| (*row, 1.0)));
    for _ in 0..ROUNDS {
        let error = |row: &[f64; FEATURES]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() - 1.0;
        let weighted = rows.iter().map(|row| (*row, (OUTLIER / error(row).abs()).min(1.0)));
        x = least_squares::non_negative(weighted);
    }
    let [constant_s, token_s, sequence_s, context_token_s, prefill_pair_s] = x;
    let time = StepTime { model, constant_s, token_s, sequence_s, context_token_s, prefill_pair_s };
    let residuals = Residuals::of(&usable, |shape| time.step_s(shape));
    Ok(Calibration { time, samples: usable.len(), residuals })
}

impl Residuals {
    /// How far `predict` is from samples.
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

impl Calibration {
    /// `base`, with what was found in place of what was known of its steps. `name` and `against`, what was measured, stay in memory as long
    /// as the program runs.
    pub fn hardware(&self, base: &Hardware, name: &str, against: &str) -> Hardware {
        Hardware {
            name: name.to_owned().leak(),
            fit: Some(Fit {
                against: against.to_owned().leak(),
                median_error: self.residuals.median,
                p95_error: self.residuals.p95,
            }),
            step_time: Some(self.time),
            ..*base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_perf::cost::{self, Parallel};
    use trunkline_sim_perf::{hardware, model};

    fn samples(time: StepTime, noise: f64) -> Vec<Sample> {
        let mut samples = Vec::new();
        for i in 0..400u64 {
            let shape = match i % 3 {
                0 => StepShape::decodes(1 + i % 50, 100 + 7 * i),
                1 => StepShape::prefill(100 + 5 * i, 3 * i),
                _ => StepShape::decodes(1 + i % 70, 10 * i).and(StepShape::prefill(512, i)),
            };
            // As many too slow as too fast, in no order.
            let sign = if (i * 0x9e37_79b9) >> 13 & 1 == 0 { 1.0 } else { -1.0 };
            samples.push(Sample { shape, time_s: time.step_s(&shape) * (1.0 + sign * noise) });
        }
        samples
    }

    const TRUE: StepTime = StepTime {
        model: "llama-3.1-8b",
        constant_s: 8e-3,
        token_s: 40e-6,
        sequence_s: 10e-6,
        context_token_s: 90e-9,
        prefill_pair_s: 2e-9,
    };

    #[test]
    fn what_made_the_samples_is_found() {
        let found = calibrate("llama-3.1-8b", &samples(TRUE, 0.0)).unwrap();
        for (found, expected) in found.time.coefficients().into_iter().zip(TRUE.coefficients()) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        }
        assert!(found.residuals.p95 < 1e-6 && found.residuals.bias.abs() < 1e-6, "{:?}", found.residuals);
        assert_eq!(found.samples, 400);
    }

    #[test]
    fn noise_is_in_the_residuals_and_not_in_signs() {
        let found = calibrate("llama-3.1-8b", &samples(StepTime { sequence_s: 0.0, ..TRUE }, 0.04)).unwrap();
        assert!((0.03..0.07).contains(&found.residuals.median), "{:?}", found.residuals);
        assert!(found.time.coefficients().iter().all(|coefficient| *coefficient >= 0.0), "{:?}", found.time);
    }

    #[test]
    fn a_calibrated_file_makes_a_fitted_model() {
        let found = calibrate("llama-3.1-8b", &samples(TRUE, 0.0)).unwrap();
        let h100 = hardware::by_name("h100-80g").unwrap();
        let text = hardware::file::to_toml(&found.hardware(h100, "mine", "a recording"));
        let mine = hardware::parse(&text).unwrap();
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let cost = cost::of(&mine, llama, Parallel::ONE);
        assert!(cost.name().starts_with("fitted (median error 0.0 %"), "{}", cost.name());
        let shape = StepShape::decodes(10, 1000);
        assert!((cost.step_ns(&shape) as f64 / 1e9 / TRUE.step_s(&shape) - 1.0).abs() < 1e-6);
        // Of another model nothing was measured.
        let other = cost::of(&mine, model::by_name("qwen3-8b").unwrap(), Parallel::ONE);
        assert_eq!(other.name(), "roofline (error not measured)");
    }

    #[test]
    fn too_little_is_refused() {
        let error = calibrate("m", &samples(TRUE, 0.0)[..49]).unwrap_err().to_string();
        assert_eq!(
            error,
            "there are 49 steps to fit to; it takes at least 50, of different shapes: record a longer run"
        );
    }
}
