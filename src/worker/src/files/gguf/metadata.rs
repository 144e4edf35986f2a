//! Metadata of a GGUF file by key, with types, and errors of the file in one line.

use std::path::Path;

use gguf_rs_lib::prelude::{GGUFError, Metadata, MetadataValue};

use crate::error::ModelError;
use crate::memory::exhausted;

/// Words of the library for an allocation that failed.
const NO_MEMORY: &str = "Unable to allocate";

/// The metadata of the file at a path, with an architecture whose name begins the keys of the architecture.
pub(super) struct Facts<'a> {
    pub(super) path: &'a Path,
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl<'a> Facts<'a> {
    /// Returns the full key for `key`, in which a dot in front stands for the architecture.
    fn full(&self, key: &str) -> String {
        if key.starts_with('.') { format!("{}{key}", self.architecture) } else { key.to_owned() }
    }

    fn get<T>(
        &self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let key = self.full(key);
        let Some(value) = self.metadata.get(&key) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(format!("{key} is not {kind}"))),
        }
    }

    /// Returns an integer of any width.
    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, ModelError> {
        self.get(key, "a whole number", |value| {
            value.as_i64().or_else(|| value.as_u64().and_then(|value| i64::try_from(value).ok()))
        })
    }

    /// Returns a number from 0 to 2^32 - 1.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.integer(key)? {
            None => Ok(None),
            Some(value) => match u32::try_from(value) {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(self.wrong(format!("{} is {value}", self.full(key)))),
            },
        }
    }

    /// Returns a number that every file of the architecture has.
    pub(super) fn required(&self, key: &str) -> Result<u32, ModelError> {
        self.count(key)?.ok_or_else(|| self.wrong(format!("{} is missing", self.full(key))))
    }

    /// Returns a number with a fraction.
    pub(super) fn real(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.get(key, "a number", MetadataValue::as_f64)
    }

    /// Returns a text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.get(key, "a text", MetadataValue::as_str)
    }

    /// Refuses the metadata.
    pub(super) fn wrong(&self, problem: String) -> ModelError {
        ModelError::Gguf { path: self.path.to_owned(), problem: format!("its metadata is wrong: {problem}") }
    }
}

/// Puts an error of the library at a tensor into one line.
pub(super) fn unreadable(path: &Path, error: &GGUFError) -> ModelError {
    if error.to_string().contains(NO_MEMORY) {
        return exhausted(path, std::fs::metadata(path).map_or(0, |metadata| metadata.len()));
    }
    let problem = match error {
        GGUFError::UnexpectedEof => "the file is cut short".to_owned(),
        other => other.to_string().replace(['\n', '\r'], " "),
    };
    ModelError::Gguf { path: path.to_owned(), problem }
}
