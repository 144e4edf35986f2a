//! Calibration: fits a step-time model to a server's recording, or to a benchmark against the server.
//!
//! Both sources become samples: the batch shape and the duration of a step. The coefficients of a [`StepTime`] minimise the sum of
//! squared *relative* errors, all non-negative: a decode of 10 ms counts as much as a prefill of 300 ms. Errors above 5 % count
//! linearly rather than squared. Sequences and tokens have a coefficient for each doubling of their number that enough samples show, and the context
//! that decodes alongside prefills read has one of its own if that predicts the steps left out better. Then all coefficients are scaled by one factor, so that all steps together take as long as measured: a fit
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

use trunkline_sim_perf::cost::{Largest, LowerBound, Parallel, Residuals, Sample, StepErrors, StepShape, StepTime};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::model::Model;

use least_squares::Rows;
use terms::Terms;

mod benchmark;
mod least_squares;
mod links;
mod overhead;
mod recording;
mod terms;

pub use benchmark::{BenchmarkError, from_benchmark};
pub(crate) use links::Copies;
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
    /// Least and greatest of the ratios of measured to predicted time over the tenths of the run: how the speed of the machine varied.
    pub drift: [f64; 2],
}

/// Too few samples for a fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {found} steps to fit to; it takes at least {SAMPLES_MIN}, of different shapes: record a longer run")]
pub struct TooFewSamples {
    /// Number of usable samples.
    pub found: usize,
}

/// Samples required.
pub const SAMPLES_MIN: usize = 50;

/// Fits step times to samples of `model`.
///
/// # Errors
///
/// [`TooFewSamples`] with fewer than [`SAMPLES_MIN`] usable samples.
pub fn calibrate(model: &'static str, samples: &[Sample]) -> Result<Calibration, TooFewSamples> {
    let usable = usable(samples)?;
    let (left_out, others) = every_fifth(&usable);
    let with = fit(model, &others, true);
    let without = fit(model, &others, false);
    let is_mixed = is_better(&left_out, &with, &without);
    let by_others = if is_mixed { with } else { without };
    let size = |sample: &Sample| Largest { context: None, ..sample.shape.size() };
    let largest = usable.iter().map(size).reduce(Largest::or_larger);
    let time = StepTime { largest, ..fit(model, &usable, is_mixed) };
    let held_out_bias = Residuals::of(&left_out, |shape| by_others.step_s(shape)).bias;
    let held_out = StepErrors::of(&left_out, |shape| by_others.step_s(shape));
    let residuals = Residuals::of(&usable, |shape| time.step_s(shape));
    Ok(Calibration { time, samples: usable.len(), residuals, held_out_bias, held_out, drift: drift(&usable, &time) })
}

/// Returns `true` if `time` predicts the samples better than `other`: if its errors are smaller on average by more than two standard errors.
fn is_better(samples: &[Sample], time: &StepTime, other: &StepTime) -> bool {
    let error = |time: &StepTime, sample: &Sample| (time.step_s(&sample.shape) / sample.time_s - 1.0).abs();
    let gains = samples.iter().map(|sample| error(other, sample) - error(time, sample));
    let (sum, squares) = gains.fold((0.0, 0.0), |(sum, squares), gain| (sum + gain, squares + gain * gain));
    // With gains that do not differ on average, the sum is within two roots of the sum of squares in 95 of 100 cases.
    sum > 2.0 * squares.sqrt()
}

/// Returns the least and greatest ratio of measured to predicted time over tenths of the samples.
fn drift(samples: &[Sample], time: &StepTime) -> [f64; 2] {
    let tenths = samples.chunks(samples.len().div_ceil(10));
    let ratios = tenths.map(|tenth| 1.0 / (1.0 + Residuals::of(tenth, |shape| time.step_s(shape)).bias));
    ratios.fold([f64::INFINITY, 0.0], |[least, most], ratio| [ratio.min(least), ratio.max(most)])
}

/// Returns the samples with a duration, if there are enough.
fn usable(samples: &[Sample]) -> Result<Vec<Sample>, TooFewSamples> {
    let usable: Vec<_> = samples.iter().copied().filter(|s| s.time_s > 0.0 && s.time_s.is_finite()).collect();
    if usable.len() < SAMPLES_MIN { Err(TooFewSamples { found: usable.len() }) } else { Ok(usable) }
}

/// Returns the share of the samples that took less than nine tenths of the least time in which devices like `hardware` run the matrices of `model`:
/// in all but odd samples of clients, the server had more devices, or fewer bits. How much of its context attention reads, and in how many bits, a
/// sample does not say.
pub fn too_fast(samples: &[Sample], hardware: &Hardware, model: &Model, parallel: Parallel) -> f64 {
    let limit = LowerBound::new(hardware, model, parallel);
    let matrices = |shape: StepShape| StepShape {
        prefill_pairs: 0,
        prefill_kv_tokens: 0,
        decode_pairs: 0,
        decode_kv_tokens: 0,
        ..shape
    };
    let is_fast = |sample: &&Sample| sample.time_s > 0.0 && sample.time_s < 0.9 * limit.step_s(&matrices(sample.shape));
    let fast = samples.iter().filter(is_fast);
    fast.count() as f64 / samples.len().max(1) as f64
}

/// Returns every fifth sample, and the others.
fn every_fifth(samples: &[Sample]) -> (Vec<Sample>, Vec<Sample>) {
    let (fifths, others): (Vec<_>, Vec<_>) = samples.iter().enumerate().partition(|(at, _)| at % 5 == 4);
    let of = |numbered: Vec<(usize, &Sample)>| numbered.into_iter().map(|(_, sample)| *sample).collect();
    (of(fifths), of(others))
}

/// Fits the usual step, perhaps with a term for the context that decodes alongside prefills read, and scales it to the time of all steps together.
fn fit(model: &'static str, usable: &[Sample], is_mixed: bool) -> StepTime {
    let terms = Terms::of(usable, is_mixed);
    let mut rows = Rows::new(terms.len());
    usable.iter().for_each(|sample| rows.push(terms.row(&sample.shape).map(|term| term / sample.time_s), 1.0));
    let mut x = rows.robust();
    let predict = |shape: &_| terms.row(shape).zip(&x).map(|(term, coefficient)| term * coefficient).sum();
    let scale = 1.0 / (1.0 + Residuals::of(usable, predict).bias);
    if scale.is_finite() {
        x.iter_mut().for_each(|coefficient| *coefficient *= scale);
    }
    terms.step_time(model, &x)
}

impl Calibration {
    /// Returns `base` with the fitted step times of `model`, spread like `parallel`, and their held-out errors. `name` and `against`, the
    /// reference of the errors, stay in memory for the life of the program.
    pub fn hardware(&self, base: &Hardware, model: &Model, parallel: Parallel, name: &str, against: &str) -> Hardware {
        let time = StepTime {
            model: model.name,
            model_bytes: Some(model.size()),
            parallel: parallel.to_string().leak(),
            against: against.to_owned().leak(),
            errors: self.held_out,
            ..self.time
        };
        Hardware { name: name.to_owned().leak(), step_time: Some(time), ..*base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_perf::cost::{self, Curve, Piece};
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

    const LINE: Curve = Curve(&[Piece { from: 0, each_s: 10e-6 }]);
    const TRUE: StepTime = StepTime {
        model: "llama-3.1-8b",
        model_bytes: None,
        parallel: "",
        constant_s: 8e-3,
        tokens: Curve(&[Piece { from: 0, each_s: 40e-6 }]),
        sequences: LINE,
        context_token_s: 90e-9,
        mixed_context_token_s: 50e-9,
        prefill_pair_s: 2e-9,
        largest: None,
        against: "",
        errors: StepErrors { prefill: None, decode: None, mixed: None },
    };

    #[test]
    fn what_made_the_samples_is_found() {
        let found = calibrate("llama-3.1-8b", &samples(TRUE, 0.0)).unwrap();
        for (found, expected) in [
            (found.time.constant_s, TRUE.constant_s),
            (found.time.tokens.time_s(3000), TRUE.tokens.time_s(3000)),
            (found.time.sequences.time_s(100), TRUE.sequences.time_s(100)),
            (found.time.context_token_s, TRUE.context_token_s),
            (found.time.mixed_context_token_s, TRUE.mixed_context_token_s),
            (found.time.prefill_pair_s, TRUE.prefill_pair_s),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
        }
        assert!(found.residuals.p95 < 1e-6 && found.residuals.bias.abs() < 1e-6, "{:?}", found.residuals);
        assert_eq!(found.samples, 400);
    }

    #[test]
    fn noise_is_in_the_residuals_and_not_in_signs() {
        let found =
            calibrate("llama-3.1-8b", &samples(StepTime { sequences: Curve::default(), ..TRUE }, 0.04)).unwrap();
        assert!((0.03..0.07).contains(&found.residuals.median), "{:?}", found.residuals);
        let time = found.time;
        let pieces = time.tokens.0.iter().chain(time.sequences.0).map(|piece| piece.each_s);
        let contexts = [time.context_token_s, time.mixed_context_token_s];
        let mut all = pieces.chain(contexts).chain([time.constant_s, time.prefill_pair_s]);
        assert!(all.all(|coefficient| coefficient >= 0.0), "{time:?}");
    }

    #[test]
    fn steps_faster_than_the_device_are_counted() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        // 141 GB of weights take 42 ms on one device, and 11 ms on four.
        let at = |time_s| Sample { shape: StepShape::decodes(4, 100), time_s };
        let share = |samples: &[Sample], parallel: &str| too_fast(samples, h100, llama, parallel.parse().unwrap());
        assert_eq!(share(&[at(0.012); 20], "tp1"), 1.0);
        assert_eq!(share(&[at(0.012); 20], "tp4"), 0.0);
        assert_eq!(share(&[at(0.012), at(0.050), at(0.060), at(0.0)], "tp1"), 0.25);
        // Attention may read a window of a long context alone.
        let long = Sample { shape: StepShape::decodes(64, 100_000), time_s: 0.050 };
        assert_eq!(share(&[long], "tp1"), 0.0);
    }

    #[test]
    fn a_calibrated_file_makes_a_fitted_model() {
        let found = calibrate("llama-3.1-8b", &samples(TRUE, 0.0)).unwrap();
        let h100 = hardware::by_name("h100-80g").unwrap();
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let text = hardware::file::to_toml(&found.hardware(h100, llama, Parallel::ONE, "mine", "a recording"));
        let mine = hardware::parse(&text).unwrap();
        let cost = cost::of(&mine, llama, Parallel::ONE);
        let stated = "held-out error, median / p95: prefill 0.0 / 0.0 %, decode 0.0 / 0.0 %, mixed 0.0 / 0.0 %";
        assert_eq!(cost.name(), format!("fitted ({stated}; against a recording)"));
        assert_eq!(cost.errors(0), found.held_out);
        assert_eq!(cost.largest(0), Some(Largest { sequences: 71, tokens: 2085, context: None }));
        let shape = StepShape::decodes(10, 1000);
        assert!((cost.step_ns(&shape) as f64 / 1e9 / TRUE.step_s(&shape) - 1.0).abs() < 1e-6);
        // Another model has the roofline of the device, and its error.
        let qwen = model::by_name("qwen3-8b").unwrap();
        let [other, roofline] = [&mine, h100].map(|hardware| cost::of(hardware, qwen, Parallel::ONE).name().to_owned());
        let note = "; the file has step times of another model: llama-3.1-8b on one device)";
        assert_eq!(other, format!("{}{note}", roofline.strip_suffix(')').unwrap()));
    }

    #[test]
    fn all_steps_together_take_as_long_as_measured_though_some_are_slow() {
        // One step of ten takes half as long again, as when another program runs.
        let slow = |(at, sample): (usize, Sample)| {
            let times = if at % 10 == 3 { 1.5 } else { 1.0 };
            Sample { time_s: sample.time_s * times, ..sample }
        };
        let samples: Vec<Sample> = samples(TRUE, 0.0).into_iter().enumerate().map(slow).collect();
        let found = calibrate("llama-3.1-8b", &samples).unwrap();
        assert!(found.residuals.bias.abs() < 1e-9, "{:?}", found.residuals);
        let slower = found.time.tokens.time_s(2000) / TRUE.tokens.time_s(2000);
        assert!((1.02..1.08).contains(&slower), "{:?}", found.time);
        // No slow step is the fifth of five, so the held-out steps are shorter than the fit to the others says.
        assert!((0.03..0.09).contains(&found.held_out_bias), "{}", found.held_out_bias);
    }

    #[test]
    fn bends_are_found_and_go_on_beyond_the_samples() {
        // Batches are free up to 4 sequences, and chunks take twice as long for each token beyond 256.
        let of = |from, each_s| Piece { from, each_s };
        let sequences = Curve::new(vec![of(0, 0.0), of(4, 300e-6)]);
        let tokens = Curve::new(vec![of(0, 40e-6), of(256, 80e-6)]);
        let bent = StepTime { sequences, tokens, ..TRUE };
        let light = |i: u64| match i % 2 {
            0 => StepShape::decodes(1 + i % 16, 100 + i),
            _ => StepShape::prefill(16 + 7 * (i % 100), i),
        };
        let of = |shape: StepShape| Sample { shape, time_s: bent.step_s(&shape) };
        let samples: Vec<Sample> = (0..2000).map(|i| of(light(i))).collect();
        let found = calibrate("m", &samples).unwrap().time;
        for shape in [StepShape::decodes(3, 500), StepShape::decodes(64, 500), StepShape::prefill(2000, 0)] {
            let error = found.step_s(&shape) / bent.step_s(&shape) - 1.0;
            assert!(error.abs() < 0.01, "{shape:?}: {error}, {found:?}");
        }
    }

    #[test]
    fn context_beside_prefills_counts_apart_only_where_it_shows() {
        let with = |mixed_context_token_s| {
            let found = calibrate("m", &samples(StepTime { mixed_context_token_s, ..TRUE }, 0.05)).unwrap();
            found.time.mixed_context_token_s
        };
        assert_eq!(with(0.0), 0.0);
        assert!((with(500e-9) / 500e-9 - 1.0).abs() < 0.2, "{}", with(500e-9));
    }

    #[test]
    fn a_machine_that_slows_down_is_seen_in_tenths_of_the_run() {
        let drift = |slow: f64| {
            let mut samples = samples(TRUE, 0.02);
            samples[320..].iter_mut().for_each(|sample| sample.time_s *= slow);
            calibrate("m", &samples).unwrap().drift
        };
        let [least, most] = drift(1.0);
        assert!(0.98 < least && most < 1.02, "{least} {most}");
        let [least, most] = drift(1.3);
        assert!((1.2..1.4).contains(&(most / least)), "{least} {most}");
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
