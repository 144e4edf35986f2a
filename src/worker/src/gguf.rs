//! Models in GGUF files, <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>: one file with metadata and tensors.
//!
//! The `gguf-rs-lib` crate parses and checks the file: every count and length has a limit, and every tensor lies within the file.
//! This module gives metadata and tensors their meaning: [`shape`] reads the configuration, [`tensors`] the weights.

mod metadata;
mod shape;
mod tensors;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use gguf_rs_lib::prelude::GGUFFileReader;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::metadata::unreadable;
use crate::gguf::tensors::FileTensors;
use crate::weights::{Weights, collect};

/// Reads configuration and weights of the GGUF file at `path`.
///
/// # Errors
///
/// The file cannot be read, is no GGUF file, describes a model of an unsupported kind, or lacks a tensor.
pub(crate) fn load(path: &Path) -> Result<(ModelConfig, Weights), ModelError> {
    let file = File::open(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    let mut reader = GGUFFileReader::new(BufReader::new(file)).map_err(|error| unreadable(path, &error))?;
    let (mut config, family) = shape::config(path, &reader)?;
    let mut tensors = FileTensors::new(path, &mut reader, family, &config);
    if let Some(divisors) = tensors.rope_divisors(&config)? {
        config.rope_scaling = Some(divisors);
    }
    let weights = collect(&config, &mut tensors)?;
    tensors.finish()?;
    Ok((config, weights))
}

#[cfg(test)]
#[path = "gguf/file_tests.rs"]
mod tests;
