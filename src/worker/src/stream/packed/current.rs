//! The file with a model's packed weights: another one takes its place after a fault.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{GroupFault, ModelError, WeightsFault};
use crate::stream::packed::PackedFile;

/// The present file of a model, shared by the model's workers.
pub(crate) struct CurrentFile {
    state: Mutex<State>,
    /// Held while a file is written in the place of the present one.
    repairing: Mutex<()>,
}

struct State {
    file: Arc<PackedFile>,
    has_failed: bool,
}

impl CurrentFile {
    pub(crate) fn new(file: PackedFile) -> Self {
        Self { state: Mutex::new(State { file: Arc::new(file), has_failed: false }), repairing: Mutex::new(()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from another file.
    #[cfg(test)]
    pub(crate) fn set_file(&mut self, file: Box<dyn trunkline_files::BlockFile>) {
        Arc::get_mut(&mut self.lock().file).expect("nobody reads").set_file(file);
    }

    /// Returns the present file.
    pub(crate) fn file(&self) -> Arc<PackedFile> {
        Arc::clone(&self.lock().file)
    }

    /// Returns `true` if a group could not be read from the present file.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Notes an unreadable group of `file`; a damaged file is removed.
    pub(crate) fn fail(&self, file: &Arc<PackedFile>, group: usize, fault: GroupFault) -> WeightsFault {
        let mut state = self.lock();
        state.has_failed |= Arc::ptr_eq(&state.file, file);
        file.fail(group, fault)
    }

    /// Takes the file returned by `open` in the place of a failed one. Returns the reason, if the file was written. Callers wait for each
    /// other, and `open` is called once for a failed file.
    ///
    /// # Errors
    ///
    /// The error of `open`; the present file stays.
    pub(crate) fn repair(
        &self,
        open: impl FnOnce() -> Result<(PackedFile, Option<String>), ModelError>,
    ) -> Result<Option<String>, ModelError> {
        let _repairing = self.repairing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_failed() {
            return Ok(None);
        }
        let (file, written) = open()?;
        *self.lock() = State { file: Arc::new(file), has_failed: false };
        Ok(written)
    }
}
