//! Repair of streamed weights before a worker takes the place of another.

use std::path::PathBuf;

use tracing::info;
use trunkline_worker::Model;

use crate::model::model_source::ModelSource;
use crate::model::weights_settings::Placement;

/// The way to a model's weights, to write a damaged file of packed weights again.
#[derive(Clone, Debug, Default)]
pub struct WeightsRepair {
    /// Setting `--model`.
    model: Option<PathBuf>,
    placement: Placement,
    revision: String,
    workers: usize,
}

impl WeightsRepair {
    /// Notes the setting `--model`, and the places and the revision of the weights of a number of workers.
    pub fn new(model: Option<PathBuf>, placement: Placement, revision: &str, workers: usize) -> Self {
        Self { model, placement, revision: revision.to_owned(), workers }
    }

    /// Opens the packed weights of `model` again, or writes the file again, if a read failed since the last call.
    ///
    /// # Errors
    /// In one line, if the weights cannot be read or written.
    pub fn run(&self, model: &Model) -> Result<(), String> {
        let Placement::Stream(streaming) = &self.placement else { return Ok(()) };
        if !model.needs_repair() {
            return Ok(());
        }
        let source = ModelSource::of(self.model.as_deref());
        let repaired = source.repair(model, streaming, &self.revision, self.workers);
        if let Some(reason) = repaired.map_err(|error| format!("{error:#}"))? {
            info!("wrote packed weights again: {reason}");
        }
        Ok(())
    }
}
