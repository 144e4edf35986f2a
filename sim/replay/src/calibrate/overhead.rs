//! The time of an engine around its kernels, from what a run took beyond them.

use trunkline_sim_perf::cost::{CostModel, EngineOverhead, Residuals, Sample};

use super::{TooFewSamples, every_fifth, least_squares, usable};

/// Overhead of an engine, and what is left to explain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverheadFit {
    /// Overhead found, in tenths of a microsecond.
    pub overhead: EngineOverhead,
    /// Number of samples in the fit.
    pub samples: usize,
    /// Errors of the kernels alone.
    pub kernels: Residuals,
    /// Errors of every fifth step, with the overhead fitted to the others.
    pub held_out: Residuals,
}

/// Fits an overhead per step and per sequence to what `samples` took beyond `kernels`. Squared relative errors are minimised, as by
/// [`super::calibrate`]; then both parts are scaled by one factor, so that all steps together take as long as measured. A run faster than its
/// kernels has no overhead.
///
/// # Errors
///
/// [`TooFewSamples`] with fewer than [`super::SAMPLES_MIN`] usable samples.
pub fn engine_overhead(kernels: &dyn CostModel, samples: &[Sample]) -> Result<OverheadFit, TooFewSamples> {
    let samples = usable(samples)?;
    let step_s = |overhead: EngineOverhead| move |shape: &_| (kernels.step_ns(shape) + overhead.ns(shape)) as f64 / 1e9;
    let (held_out, others) = every_fifth(&samples);
    let by_others = fit(kernels, &others);
    Ok(OverheadFit {
        overhead: fit(kernels, &samples),
        samples: samples.len(),
        kernels: Residuals::of(&samples, step_s(EngineOverhead::default())),
        held_out: Residuals::of(&held_out, step_s(by_others)),
    })
}

fn fit(kernels: &dyn CostModel, samples: &[Sample]) -> EngineOverhead {
    // What is left of a step beyond its kernels, as a share of the step.
    let row = |sample: &Sample| {
        let (us, sequences) = (sample.time_s * 1e6, sample.shape.sequences() as f64);
        ([1.0 / us, sequences / us], 1.0 - kernels.step_ns(&sample.shape) as f64 / 1e3 / us)
    };
    let rows: Vec<_> = samples.iter().map(row).collect();
    let x = least_squares::robust(&rows);
    let left_us: f64 = rows.iter().zip(samples).map(|((_, left), sample)| left * sample.time_s * 1e6).sum();
    let found_us: f64 = samples.iter().map(|sample| x[0] + x[1] * sample.shape.sequences() as f64).sum();
    let scale = if found_us > 0.0 { (left_us / found_us).max(0.0) } else { 0.0 };
    let [step_us, sequence_us] = x.map(|us| (scale * us * 10.0).round() / 10.0);
    EngineOverhead { step_us, sequence_us }
}

#[cfg(test)]
mod tests {
    use super::super::SAMPLES_MIN;
    use super::*;
    use trunkline_sim_perf::cost::{self, BoxedCost, Parallel, StepShape};
    use trunkline_sim_perf::{hardware, model};

    fn kernels() -> BoxedCost {
        let (hardware, model) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        cost::of(hardware, model, Parallel::ONE)
    }

    /// Steps of an engine with this overhead, whose kernels take `share` of the time that they should.
    fn run(overhead: EngineOverhead, share: f64) -> Vec<Sample> {
        let kernels = kernels();
        let shape = |i: u64| {
            StepShape::decodes(1 + i % 64, 500 + 37 * i % 4000).and(match i % 3 {
                0 => StepShape::prefill(256 + i, 0),
                _ => StepShape::default(),
            })
        };
        let sample = |shape: StepShape| {
            let ns = share * kernels.step_ns(&shape) as f64 + overhead.ns(&shape) as f64;
            Sample { shape, time_s: ns / 1e9 }
        };
        (0..300).map(|i| sample(shape(i))).collect()
    }

    #[test]
    fn the_overhead_of_an_engine_is_found() {
        let there = EngineOverhead { step_us: 2500.0, sequence_us: 40.0 };
        let found = engine_overhead(&*kernels(), &run(there, 1.0)).unwrap();
        assert!(
            (found.overhead.step_us - 2500.0).abs() < 1.0 && (found.overhead.sequence_us - 40.0).abs() < 0.1,
            "{found:?}"
        );
        assert!(
            found.kernels.bias < -0.2 && found.held_out.bias.abs() < 1e-3 && found.held_out.p95 < 1e-3,
            "{found:?}"
        );
    }

    #[test]
    fn kernels_that_are_too_slow_leave_no_overhead() {
        let found = engine_overhead(&*kernels(), &run(EngineOverhead::default(), 0.8)).unwrap();
        assert_eq!(found.overhead, EngineOverhead::default());
        assert!(found.kernels.bias > 0.2, "{found:?}");
    }

    #[test]
    fn a_short_run_is_refused() {
        let few = &run(EngineOverhead::default(), 1.0)[..SAMPLES_MIN - 1];
        assert_eq!(engine_overhead(&*kernels(), few), Err(TooFewSamples { found: SAMPLES_MIN - 1 }));
    }
}
