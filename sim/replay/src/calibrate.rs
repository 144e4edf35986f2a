//! Calibration: fits a step-time model to a server's recording, or to a benchmark against the server.
//!
//! Both sources become samples: the batch shape and the duration of a step. The coefficients of a [`StepTime`] minimise the sum of
//! squared *relative* errors, all non-negative: a decode of 10 ms counts as much as a prefill of 300 ms. Errors above 5 % count
//! linearly rather than squared. Then all coefficients are scaled by one factor, so that all steps together take as long as measured: a fit
//! by steps follows the usual step, and a long run pays for the slow ones too.
//!
//! How far the total is off on steps that the fit has not seen is measured with every fifth step left out ([`Calibration::held_out_bias`]).
//!
//! | source | samples | quality |
//! |---|---|---|
//! | [`from_recording`] | every step | exact shapes; times include the server's work between steps |
//! | [`from_benchmark`] | every gap between tokens of any request | shapes reconstructed from the clients' view; see there |
//!
//! [`engine_overhead`] takes the kernels as given, and fits what the engine adds to them.
//!
//! [`calibrate`] returns the coefficients and their errors; [`Calibration::hardware`] adds them to the description of a device,
//! which [`trunkline_sim_perf::hardware::file::to_toml`] writes and [`trunkline_sim_perf::hardware::find`] reads.

use trunkline_sim_perf::cost::{FEATURES, Residuals, Sample, StepErrors, StepTime, features};
use trunkline_sim_perf::hardware::Hardware;

mod benchmark;
mod least_squares;
mod links;
mod overhead;
mod recording;

pub use benchmark::{BenchmarkError, from_benchmark};
pub use links::{BusyPeriod, LinkFit, PERIODS_MIN, fit_links};
pub use overhead::{OverheadFit, engine_overhead};
pub use recording::{Observed, from_recording};

/// Result of a calibration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Coefficients of the fitted model.
    pub time: StepTime,
    /// Number of samples in the fit.
    pub samples: usize,
    /// Errors of the fit.
    pub residuals: Residuals,
    /// Sum of predicted times over sum of measured times, minus 1, of every fifth step, with a fit to the others.
    pub held_out_bias: f64,
    /// Errors of every fifth step by kind of batch, with a fit to the others.
    pub held_out: StepErrors,
}

/// Too few samples for a fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {found} steps to fit to; it takes at least {SAMPLES_MIN}, of different shapes: record a longer run")]
pub struct TooFewSamples {
    /// Number of usable samples.
    pub found: usize,
}

/// Samples required: ten per coefficient.
pub const SAMPLES_MIN: usize = 10 * FEATURES;

/// Fits step times to samples of `model`.
///
/// # Errors
///
/// [`TooFewSamples`] with fewer than [`SAMPLES_MIN`] usable samples.
pub fn calibrate(model: &'static str, samples: &[Sample]) -> Result<Calibration, TooFewSamples> {
    let usable = usable(samples)?;
    let time = fit(model, &usable);
    let (left_out, others) = every_fifth(&usable);
    let by_others = fit(model, &others);
    let held_out_bias = Residuals::of(&left_out, |shape| by_others.step_s(shape)).bias;
    let held_out = StepErrors::of(&left_out, |shape| by_others.step_s(shape));
    let residuals = Residuals::of(&usable, |shape| time.step_s(shape));
    Ok(Calibration { time, samples: usable.len(), residuals, held_out_bias, held_out })
}

/// Returns the samples with a duration, if there are enough.
fn usable(samples: &[Sample]) -> Result<Vec<Sample>, TooFewSamples> {
    let usable: Vec<_> = samples.iter().copied().filter(|s| s.time_s > 0.0 && s.time_s.is_finite()).collect();
    if usable.len() < SAMPLES_MIN { Err(TooFewSamples { found: usable.len() }) } else { Ok(usable) }
}

/// Returns every fifth sample, and the others.
fn every_fifth(samples: &[Sample]) -> (Vec<Sample>, Vec<Sample>) {
    let (fifths, others): (Vec<_>, Vec<_>) = samples.iter().enumerate().partition(|(at, _)| at % 5 == 4);
    let of = |numbered: Vec<(usize, &Sample)>| numbered.into_iter().map(|(_, sample)| *sample).collect();
    (of(fifths), of(others))
}

/// Fits the usual step, and scales it to the time of all steps together.
fn fit(model: &'static str, usable: &[Sample]) -> StepTime {
    let row = |sample: &Sample| (features(&sample.shape).map(|feature| feature / sample.time_s), 1.0);
    let x = least_squares::robust(&usable.iter().map(row).collect::<Vec<_>>());
    let [constant_s, token_s, sequence_s, context_token_s, prefill_pair_s] = x;
    let (against, errors) = ("", StepErrors::default());
    let time = StepTime { model, constant_s, token_s, sequence_s, context_token_s, prefill_pair_s, against, errors };
    let scale = 1.0 / (1.0 + Residuals::of(usable, |shape| time.step_s(shape)).bias);
    if !scale.is_finite() {
        return time;
    }
    let [constant_s, token_s, sequence_s, context_token_s, prefill_pair_s] = x.map(|coefficient| scale * coefficient);
    StepTime { constant_s, token_s, sequence_s, context_token_s, prefill_pair_s, ..time }
}

impl Calibration {
    /// Returns `base` with the fitted step times and their held-out errors. `name` and `against`, the reference of the errors, stay in
    /// memory for the life of the program.
    pub fn hardware(&self, base: &Hardware, name: &str, against: &str) -> Hardware {
        Hardware {
            name: name.to_owned().leak(),
            step_time: Some(StepTime { against: against.to_owned().leak(), errors: self.held_out, ..self.time }),
            ..*base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_perf::cost::{self, Parallel, StepShape};
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
        against: "",
        errors: StepErrors { prefill: None, decode: None, mixed: None },
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
        let stated = "held-out error, median / p95: prefill 0.0 / 0.0 %, decode 0.0 / 0.0 %, mixed 0.0 / 0.0 %";
        assert_eq!(cost.name(), format!("fitted ({stated}; against a recording)"));
        assert_eq!(cost.errors(0), found.held_out);
        let shape = StepShape::decodes(10, 1000);
        assert!((cost.step_ns(&shape) as f64 / 1e9 / TRUE.step_s(&shape) - 1.0).abs() < 1e-6);
        // Another model has the roofline of the device, and its error.
        let other = cost::of(&mine, model::by_name("qwen3-8b").unwrap(), Parallel::ONE);
        assert_eq!(other.name(), cost::of(h100, model::by_name("qwen3-8b").unwrap(), Parallel::ONE).name());
    }

    #[test]
    fn all_steps_together_take_as_long_as_measured_though_some_are_slow() {
        // One step of ten takes half as long again, as beside another program.
        let slow = |(at, sample): (usize, Sample)| {
            let times = if at % 10 == 3 { 1.5 } else { 1.0 };
            Sample { time_s: sample.time_s * times, ..sample }
        };
        let samples: Vec<Sample> = samples(TRUE, 0.0).into_iter().enumerate().map(slow).collect();
        let found = calibrate("llama-3.1-8b", &samples).unwrap();
        assert!(found.residuals.bias.abs() < 1e-9, "{:?}", found.residuals);
        assert!((1.02..1.08).contains(&(found.time.token_s / TRUE.token_s)), "{:?}", found.time);
        // No slow step is the fifth of five, so the held-out steps are shorter than the fit to the others says.
        assert!((0.03..0.09).contains(&found.held_out_bias), "{}", found.held_out_bias);
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
