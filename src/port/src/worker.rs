//! The traits of a worker, and the errors of a worker.

use std::error::Error;
use std::sync::Arc;

use crate::ids::RequestId;
use crate::output::StepOutput;
use crate::step::Step;

/// Runs the steps of a model on the worker's KV blocks.
pub trait StepRunner: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// If the step could not be run. The KV of all blocks counts as lost then, and [`StepRunner::reset`] is called next.
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError>;

    /// Runs a step without sequences, while other workers in lock step with this one run a step. Does nothing by default.
    fn idle(&mut self) {}

    /// Returns the worker's blocks, for copies on other threads while steps run. Called once, before the first step.
    fn blocks(&mut self) -> Arc<dyn DeviceBlocks>;

    /// Forgets all sequences and all KV. Called after `run` failed or panicked, and when no copy is running.
    fn reset(&mut self);
}

/// The KV blocks of a device, as bytes, for use on any thread while steps run.
///
/// A block's bytes are its elements, little-endian, as `[layer][keys, values][token][head][dim]`, whatever the layout in the
/// device's memory. Layers are those of the block's layer group, in order; a smaller group than the largest leaves the rest zero. A caller MUST NOT write a block in use by a step, nor read a block written by a step; the core's transfers
/// do neither.
pub trait DeviceBlocks: Send + Sync {
    /// Returns the bytes of a block; equal for all blocks.
    fn block_bytes(&self) -> usize;

    /// Copies a block's bytes into `bytes`, which is [`Self::block_bytes`] long.
    ///
    /// # Errors
    /// If there is no such block, or the device cannot be read.
    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError>;

    /// Replaces a block's bytes by `bytes`, which is [`Self::block_bytes`] long.
    ///
    /// # Errors
    /// If there is no such block, or the device cannot be written. The block holds nothing of use then.
    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError>;
}

/// A step could not be run.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct StepError {
    guilty: Option<RequestId>,
    is_unfit: bool,
    source: Box<dyn Error + Send + Sync>,
}

impl StepError {
    /// Wraps the reason. No request is named as the cause.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { guilty: None, is_unfit: false, source: source.into() }
    }

    /// Names the request at fault: without the request the step would have run. The driver ends this request with an error;
    /// otherwise the request would fail the next step too, and every other request of the step.
    #[must_use]
    pub fn caused_by(mut self, request: RequestId) -> Self {
        self.guilty = Some(request);
        self
    }

    /// Marks the worker as unfit for another step: a new worker MUST take the place; a reset does not suffice.
    #[must_use]
    pub fn of_unfit_worker(mut self) -> Self {
        self.is_unfit = true;
        self
    }

    /// Returns `true` if a new worker MUST take the place of this one.
    pub fn is_unfit(&self) -> bool {
        self.is_unfit
    }

    /// Returns the request at fault, if the worker named one: without the request the step would have run.
    pub fn guilty(&self) -> Option<RequestId> {
        self.guilty
    }
}

/// A block could not be read from the device, or written to it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CopyError(Box<dyn Error + Send + Sync>);

impl CopyError {
    /// Wraps the reason.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_error_reads_as_its_reason_and_names_the_guilty_request() {
        let error = StepError::new("no device");
        assert_eq!((error.to_string().as_str(), error.guilty()), ("no device", None));
        assert!(!error.is_unfit() && StepError::new("no weights").of_unfit_worker().is_unfit());
        assert_eq!(error.caused_by(RequestId(5)).guilty(), Some(RequestId(5)));
        assert_eq!(CopyError::new("no block").to_string(), "no block");
    }
}
