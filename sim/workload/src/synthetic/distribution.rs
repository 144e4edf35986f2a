//! Distributions of lengths and times.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use super::SECONDS_MAX;
use crate::rng_stream::RngStream;
use crate::trace::LENGTH_TOKENS_MAX;

const CV_MAX: f64 = 100.0;

/// Distribution of counts, or of seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub enum Distribution {
    /// Fixed value for every draw.
    Constant {
        /// Value of every draw.
        value: f64,
    },
    /// Uniform between two values.
    Uniform {
        /// Least value, included in the range.
        min: f64,
        /// Greatest value of the range.
        max: f64,
    },
    /// Exponential distribution, which is memoryless.
    Exponential {
        /// Mean of the draws before clipping.
        mean: f64,
        /// Upper bound; higher draws are clipped to it.
        max: f64,
    },
    /// Lognormal: the logarithm is normal.
    Lognormal {
        /// Mean of the draws before clipping.
        mean: f64,
        /// Standard deviation over mean, before clipping.
        cv: f64,
        /// Upper bound; higher draws are clipped to it.
        max: f64,
    },
    /// Lengths of a trace.
    Empirical {
        /// Path of the trace; relative to the folder of the spec.
        trace: PathBuf,
        /// Kind of length: prompt or output.
        of: Column,
        /// Upper bound; higher draws are clipped to it.
        max: f64,
    },
}

/// Kind of length of a trace's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Prompt length in tokens.
    Input,
    /// Output length in tokens.
    Output,
}

/// Form in the TOML file, before validation.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Raw {
    Constant { value: f64 },
    Uniform { min: f64, max: f64 },
    Exponential { mean: f64, max: Option<f64> },
    Lognormal { mean: f64, cv: f64, max: Option<f64> },
    Empirical { trace: PathBuf, of: Column, max: Option<f64> },
}

impl TryFrom<Raw> for Distribution {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let checked = |name: &str, value: f64| {
            let message = || format!("{name} is {value}; it must be from 0 to {SECONDS_MAX}");
            if (0.0..=SECONDS_MAX).contains(&value) { Ok(value) } else { Err(message()) }
        };
        let cut = |max: Option<f64>| checked("max", max.unwrap_or(SECONDS_MAX));
        Ok(match raw {
            Raw::Constant { value } => Self::Constant { value: checked("value", value)? },
            Raw::Uniform { min, max } => {
                let (min, max) = (checked("min", min)?, checked("max", max)?);
                if min > max {
                    return Err(format!("min is {min}, above max, which is {max}; exchange them"));
                }
                Self::Uniform { min, max }
            }
            Raw::Exponential { mean, max } => Self::Exponential { mean: checked("mean", mean)?, max: cut(max)? },
            Raw::Lognormal { mean, cv, max } => {
                if !(0.0..=CV_MAX).contains(&cv) {
                    return Err(format!("cv is {cv}; it must be from 0 to {CV_MAX}"));
                }
                Self::Lognormal { mean: checked("mean", mean)?, cv, max: cut(max)? }
            }
            Raw::Empirical { trace, of, max } => Self::Empirical { trace, of, max: cut(max)? },
        })
    }
}

impl Distribution {
    /// Returns the least number of tokens that can be drawn; 1 where it is not known without drawing.
    pub(super) fn least_tokens(&self) -> u32 {
        let least = match self {
            Self::Constant { value } => *value,
            Self::Uniform { min, .. } => *min,
            Self::Exponential { .. } | Self::Lognormal { .. } | Self::Empirical { .. } => 1.0,
        };
        least.round().clamp(1.0, f64::from(LENGTH_TOKENS_MAX)) as u32
    }
}

/// Lengths of the requests of a trace.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// Input and output tokens of each request.
    pub lengths: Arc<[(u32, u32)]>,
}

/// Distribution with its samples loaded.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    distribution: Distribution,
    /// Samples of an empirical distribution.
    samples: Option<Samples>,
}

impl Sampler {
    /// Prepares a distribution; `samples` are the lengths of its trace, for an empirical distribution.
    pub(super) fn new(distribution: Distribution, samples: Option<Samples>) -> Self {
        Self { distribution, samples }
    }

    /// Returns the trace of an empirical distribution.
    pub(super) fn trace(&self) -> Option<&PathBuf> {
        match &self.distribution {
            Distribution::Empirical { trace, .. } => Some(trace),
            _ => None,
        }
    }

    pub(super) fn draw(&self, rng: &mut RngStream) -> f64 {
        match &self.distribution {
            Distribution::Constant { value } => *value,
            Distribution::Uniform { min, max } => min + rng.unit() * (max - min),
            Distribution::Exponential { mean, max } => rng.exponential(*mean).min(*max),
            Distribution::Lognormal { mean, cv, max } => rng.lognormal(*mean, *cv).min(*max),
            Distribution::Empirical { .. } => {
                let at = rng.unit();
                self.of_row(at)
            }
        }
    }

    /// Returns the length of the row at the share `at` of the way through the trace.
    fn of_row(&self, at: f64) -> f64 {
        let Distribution::Empirical { of, max, .. } = &self.distribution else { return 0.0 };
        let Some(samples) = &self.samples else { return 0.0 };
        let row = (at * samples.lengths.len() as f64) as usize;
        let (input, output) = samples.lengths[row.min(samples.lengths.len() - 1)];
        let length = if *of == Column::Input { input } else { output };
        f64::from(length).min(*max)
    }

    /// Draws a whole number from 1 to `max`. A uniform distribution includes both ends.
    pub(super) fn count(&self, rng: &mut RngStream, max: u32) -> u32 {
        let drawn = match &self.distribution {
            Distribution::Uniform { min, max } => {
                let (min, max) = (min.round(), max.round());
                (min + (rng.unit() * (max - min + 1.0)).floor()).min(max)
            }
            _ => self.draw(rng).round(),
        };
        drawn.clamp(1.0, f64::from(max)) as u32
    }

    pub(super) fn tokens(&self, rng: &mut RngStream) -> u32 {
        self.count(rng, LENGTH_TOKENS_MAX)
    }

    /// Draws a time, nanoseconds.
    pub(super) fn time_ns(&self, rng: &mut RngStream) -> u64 {
        (self.draw(rng).clamp(0.0, SECONDS_MAX) * 1e9).round() as u64
    }

    /// Draws from two distributions; from one row if both name one trace.
    pub(super) fn pair(input: &Self, output: &Self, rng: &mut RngStream) -> (u32, u32) {
        match (input.trace(), output.trace()) {
            (Some(a), Some(b)) if a == b => {
                let at = rng.unit();
                let tokens = |sampler: &Self| sampler.of_row(at).clamp(1.0, f64::from(LENGTH_TOKENS_MAX)) as u32;
                (tokens(input), tokens(output))
            }
            _ => (input.tokens(rng), output.tokens(rng)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(distribution: Distribution) -> Sampler {
        Sampler::new(distribution, None)
    }

    #[test]
    fn counts_are_whole_and_even() {
        let uniform = sampler(Distribution::Uniform { min: 1.0, max: 4.0 });
        let mut rng = RngStream::new(3, 0, 0);
        let mut counts = [0u32; 5];
        (0..100_000).for_each(|_| counts[uniform.count(&mut rng, 9) as usize] += 1);
        assert_eq!(counts[0], 0);
        assert!(counts[1..].iter().all(|n| n.abs_diff(25_000) < 600), "{counts:?}");
        assert_eq!(sampler(Distribution::Constant { value: 0.0 }).count(&mut rng, 9), 1);
        assert_eq!(sampler(Distribution::Constant { value: 12.0 }).count(&mut rng, 9), 9);
    }

    #[test]
    fn values_are_cut_where_asked_for() {
        let mut rng = RngStream::new(4, 0, 0);
        let cut = sampler(Distribution::Lognormal { mean: 100.0, cv: 2.0, max: 150.0 });
        let drawn: Vec<_> = (0..1000).map(|_| cut.tokens(&mut rng)).collect();
        assert!(drawn.iter().all(|n| *n <= 150) && drawn.contains(&150));
        assert_eq!(sampler(Distribution::Constant { value: 1.5 }).time_ns(&mut rng), 1_500_000_000);
    }

    #[test]
    fn lengths_of_one_trace_are_of_one_request() {
        let samples = Samples { lengths: (1..=100).map(|n| (n, 1000 + n)).collect() };
        let of = |of, trace: &str| {
            let distribution = Distribution::Empirical { trace: trace.into(), of, max: 1e9 };
            Sampler::new(distribution, Some(samples.clone()))
        };
        let mut rng = RngStream::new(5, 0, 0);
        let mut sum = 0;
        for _ in 0..10_000 {
            let (input, output) = Sampler::pair(&of(Column::Input, "a"), &of(Column::Output, "a"), &mut rng);
            assert_eq!(input + 1000, output);
            sum += input;
        }
        assert!((f64::from(sum) / 10_000.0 - 50.5).abs() < 1.0, "{sum}");
        let apart = |rng: &mut RngStream| Sampler::pair(&of(Column::Input, "a"), &of(Column::Output, "b"), rng);
        assert!((0..100).any(|_| {
            let (input, output) = apart(&mut rng);
            input + 1000 != output
        }));
    }
}
