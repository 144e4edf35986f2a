//! Models in GGUF files, <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>: one file with metadata and tensors.
//!
//! The `gguf-rs-lib` crate parses and checks the file: every count and length has a limit, and every tensor lies within the file.
//! This module gives metadata and tensors their meaning: [`shape`] reads the configuration, [`tensors`] the weights.

mod metadata;
mod shape;
mod tensors;

use std::fs::File;
use std::io::{BufReader, ErrorKind, Seek, SeekFrom};
use std::path::Path;

use gguf_rs_lib::prelude::{GGUFError, GGUFFileReader};
use gguf_rs_lib::reader::file_reader::GGUFReaderConfig;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::metadata::unreadable;
use crate::gguf::tensors::FileTensors;
use crate::memory::check_weights;
use crate::weights::{Keep, Weights, collect};

/// Reads configuration and weights of the GGUF file at `path`.
///
/// # Errors
///
/// The file cannot be read, is no GGUF file, describes a model of an unsupported kind, or lacks a tensor.
pub(crate) fn load(path: &Path, keep: &mut dyn Keep) -> Result<(ModelConfig, Weights), ModelError> {
    let file = File::open(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    if keep.in_memory() {
        check_weights(path, file.metadata().map_or(0, |metadata| metadata.len()))?;
    }
    let mut reader = GGUFFileReader::new(BufReader::new(&file)).map_err(|error| match error {
        GGUFError::UnexpectedEof => cut_short(path, &file),
        GGUFError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => cut_short(path, &file),
        error => unreadable(path, &error),
    })?;
    let (mut config, family) = shape::config(path, &reader)?;
    let mut tensors = FileTensors::new(path, &mut reader, family, &config);
    if let Some(divisors) = tensors.rope_divisors(&config)? {
        config.rope_scaling = Some(divisors);
    }
    let weights = collect(&config, &mut tensors, keep)?;
    tensors.finish()?;
    Ok((config, weights))
}

/// Describes a file that ends too early, with the sizes it has and should have.
fn cut_short(path: &Path, mut file: &File) -> ModelError {
    // Without the check that the tensors lie within the file, the list of tensors is read as far as the file has it.
    let config = GGUFReaderConfig { validate_integrity: false, ..GGUFReaderConfig::default() };
    let reader =
        file.seek(SeekFrom::Start(0)).ok().and_then(|_| GGUFFileReader::with_config(BufReader::new(file), config).ok());
    let expected = reader.and_then(|reader| {
        let ends = reader
            .tensor_infos()
            .iter()
            .map(|tensor| tensor.data_offset().checked_add(tensor.checked_expected_data_size().ok()?));
        ends.max().flatten()?.checked_add(reader.tensor_data_offset())
    });
    let found = file.metadata().map_or(0, |metadata| metadata.len());
    let problem = match expected {
        Some(expected) => format!("the file is cut short: it has {found} of {expected} bytes"),
        None => format!("the file is cut short: its {found} bytes end before the list of its tensors does"),
    };
    ModelError::Gguf { path: path.to_owned(), problem }
}

#[cfg(test)]
#[path = "gguf/file_tests.rs"]
mod tests;
