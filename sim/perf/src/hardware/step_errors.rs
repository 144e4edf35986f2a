//! Errors of step times by kind of batch, as a file of a device states them.

use std::fmt;

/// Relative errors of predicted times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residuals {
    /// Median of the absolute errors.
    pub median: f64,
    /// 95th percentile of the absolute errors.
    pub p95: f64,
    /// Sum of predicted times over sum of measured times, minus 1: the error of a long run.
    pub bias: f64,
}

/// Errors of step times by kind of batch; `None` for a kind that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepErrors {
    /// Steps with prefills alone.
    pub prefill: Option<Residuals>,
    /// Steps with decodes alone.
    pub decode: Option<Residuals>,
    /// Steps with both.
    pub mixed: Option<Residuals>,
}

impl Residuals {
    /// Returns the error to expect of a step, without sign: the median, or the error of a long run if that is larger.
    pub fn typical(&self) -> f64 {
        self.median.max(self.bias.abs())
    }

    /// Returns the larger of each figure, the bias by its size.
    fn or_larger(self, other: Self) -> Self {
        let bias = if other.bias.abs() > self.bias.abs() { other.bias } else { self.bias };
        Self { median: self.median.max(other.median), p95: self.p95.max(other.p95), bias }
    }
}

impl StepErrors {
    /// Returns the larger errors of each kind measured in both; a kind that is missing in one counts as not measured.
    pub fn or_larger(self, other: Self) -> Self {
        let larger = |a: Option<Residuals>, b: Option<Residuals>| Some(a?.or_larger(b?));
        Self {
            prefill: larger(self.prefill, other.prefill),
            decode: larger(self.decode, other.decode),
            mixed: larger(self.mixed, other.mixed),
        }
    }

    /// Returns `true` if no kind of batch was measured.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for StepErrors {
    /// Writes median and 95th percentile of each kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, errors)) in
            [("prefill", self.prefill), ("decode", self.decode), ("mixed", self.mixed)].into_iter().enumerate()
        {
            let comma = if at == 0 { "" } else { ", " };
            match errors {
                Some(Residuals { median, p95, .. }) => {
                    write!(f, "{comma}{kind} {:.1} / {:.1} %", 100.0 * median, 100.0 * p95)?;
                }
                None => write!(f, "{comma}{kind} not measured")?,
            }
        }
        Ok(())
    }
}
