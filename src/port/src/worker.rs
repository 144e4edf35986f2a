//! The trait of a worker, and its errors.

use std::error::Error;

use crate::ids::RequestId;
use crate::output::StepOutput;
use crate::step::Step;
use crate::transfer::Transfer;

/// Runs the steps of a model on its KV blocks.
pub trait StepRunner: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// If the step could not be run. The KV of all blocks counts as lost then, and [`StepRunner::reset`] is called next.
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError>;

    /// Copies blocks. All of them are copied when the function returns.
    ///
    /// # Errors
    /// If a block could not be copied. The destinations hold nothing of use then; all other blocks are unchanged. The
    /// caller assumes the same after a panic.
    fn transfer(&mut self, transfer: &Transfer) -> Result<(), CopyError>;

    /// Forgets all sequences and all KV. Called after `run` failed or panicked.
    fn reset(&mut self);
}

/// A step could not be run.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct StepError {
    guilty: Option<RequestId>,
    source: Box<dyn Error + Send + Sync>,
}

impl StepError {
    /// Wraps the reason. No request is named as its cause.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { guilty: None, source: source.into() }
    }

    /// Names the request without which the step would have run. The driver ends this request with an error; otherwise it
    /// would fail the next step too, and every request beside it.
    #[must_use]
    pub fn caused_by(mut self, request: RequestId) -> Self {
        self.guilty = Some(request);
        self
    }

    /// Returns the request without which the step would have run, if the worker named one.
    pub fn guilty(&self) -> Option<RequestId> {
        self.guilty
    }
}

/// Blocks could not be copied.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct CopyError {
    source: Box<dyn Error + Send + Sync>,
}

impl CopyError {
    /// Wraps the reason.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_error_reads_as_its_reason_and_names_the_guilty_request() {
        let error = StepError::new("no device");
        assert_eq!((error.to_string().as_str(), error.guilty()), ("no device", None));
        assert_eq!(error.caused_by(RequestId(5)).guilty(), Some(RequestId(5)));
        assert_eq!(CopyError::new("no block").to_string(), "no block");
    }
}
