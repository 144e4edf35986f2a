//! Models in GGUF files, <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>: one file with metadata and tensors.
//!
//! The `gguf-rs-lib` crate parses and checks the file: every count and length has a limit, and every tensor lies within the file.
//! This module gives metadata and tensors their meaning: [`shape`] reads the configuration, [`tensors`] the weights.

mod metadata;
mod shape;
mod tensors;

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use gguf_rs_lib::prelude::Metadata;
use trunkline_text::{FactsError, ModelFacts, gguf_parts, open_gguf};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::files::gguf::metadata::Facts;
use crate::files::gguf::tensors::{FileTensors, Part};
use crate::files::weights::{Keep, Weights, collect, collect_groups};
use crate::memory::{check_weights, exhausted};

/// Reads configuration, facts and weights of the GGUF file at `path`, which may be any part of a split one.
///
/// # Errors
///
/// A file cannot be read, is not a GGUF file, describes a model of an unsupported kind, or lacks a tensor.
pub(crate) fn load(path: &Path, keep: &mut dyn Keep) -> Result<(ModelConfig, ModelFacts, Weights), ModelError> {
    let (config, facts, mut tensors) = open_all(path, keep.in_memory())?;
    let weights = collect(&config, &mut tensors, keep)?;
    tensors.finish()?;
    Ok((config, facts, weights))
}

/// Reads the groups of matrices of the GGUF file at `path` and nothing else; they go to `keep`.
///
/// # Errors
///
/// As [`load`], but for surplus tensors.
pub(crate) fn load_groups(path: &Path, keep: &mut dyn Keep) -> Result<(), ModelError> {
    let (config, _, mut tensors) = open_all(path, false)?;
    collect_groups(&config, &mut tensors, keep)
}

/// A model's configuration and facts, and its tensors, none of them taken yet.
type Opened = (ModelConfig, ModelFacts, FileTensors<BufReader<File>>);

/// Opens all parts of a file, whose weights must fit into memory if they are to be `in_memory`.
fn open_all(path: &Path, in_memory: bool) -> Result<Opened, ModelError> {
    let parts = gguf_parts(path)?.into_iter().map(open).collect::<Result<Vec<Part<_>>, _>>()?;
    if in_memory {
        let sizes = parts.iter().map(|part| std::fs::metadata(&part.path).map_or(0, |metadata| metadata.len()));
        check_weights(path, sizes.sum())?;
    }
    let Part { path, reader } = &parts[0];
    let facts = ModelFacts::of_gguf(path, reader.metadata())?;
    let tensors: Vec<_> = parts.iter().flat_map(|part| part.reader.tensor_infos()).collect();
    let (mut config, family) = shape::config(path, reader.metadata(), &tensors, &facts)?;
    check_count(path, reader.metadata(), tensors.len())?;
    let facts = config.set_ends(facts, path)?;
    let mut tensors = FileTensors::new(parts, family, &config);
    if let Some(divisors) = tensors.rope_divisors(&config)? {
        config.rope_scaling = Some(divisors);
    }
    Ok((config, facts, tensors))
}

/// Opens a file.
fn open(path: PathBuf) -> Result<Part<BufReader<File>>, ModelError> {
    match open_gguf(&path) {
        Ok(reader) => Ok(Part { path, reader }),
        Err(FactsError::Read { source, .. }) if source.kind() == ErrorKind::OutOfMemory => {
            Err(exhausted(&path, std::fs::metadata(&path).map_or(0, |metadata| metadata.len())))
        }
        Err(FactsError::Gguf { path, problem }) => Err(ModelError::Gguf { path, problem }),
        Err(error) => Err(error.into()),
    }
}

/// Checks that the parts of a split model have all tensors.
fn check_count(path: &Path, metadata: &Metadata, found: usize) -> Result<(), ModelError> {
    let facts = Facts { path, metadata, architecture: "" };
    match facts.integer("split.tensors.count")? {
        Some(expected) if expected != found as i64 => {
            let problem = format!("its parts have {found} of {expected} tensors");
            Err(ModelError::Gguf { path: path.to_owned(), problem })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "gguf/file_tests.rs"]
mod tests;
