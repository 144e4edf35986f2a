//! The small files of a Hugging Face folder, on a disk or in memory.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::FactsError;
use crate::mistakes::Mistake;

/// Maximum number of bytes of a file: eight times the largest `tokenizer.json` in use, of Gemma 3, which has 33 MB.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Files of a model by name.
#[derive(Clone, Copy, Debug)]
pub enum Files<'a> {
    /// A folder.
    Folder(&'a Path),
    /// Name of the folder, and names with contents.
    Memory(&'a str, &'a [(&'a str, &'a [u8])]),
}

impl<'a> Files<'a> {
    /// Returns the path of a file, which may be missing.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(dir) => dir.join(name),
            Self::Memory(dir, _) => Path::new(dir).join(name),
        }
    }

    /// Returns `true` if a file is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(dir) => dir.join(name).exists(),
            Self::Memory(_, files) => files.iter().any(|(known, _)| *known == name),
        }
    }

    /// Reads a file; `None` if it is missing.
    ///
    /// # Errors
    ///
    /// The file is there but cannot be read.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, FactsError> {
        match self {
            Self::Folder(_) if !self.has(name) => Ok(None),
            Self::Folder(dir) => {
                let path = dir.join(name);
                let read = std::fs::metadata(&path).and_then(|about| match about.len() {
                    bytes if bytes > FILE_BYTES_MAX => Ok(Err(bytes)),
                    _ => std::fs::read(&path).map(Ok),
                });
                match read {
                    Ok(Ok(bytes)) => Ok(Some(bytes.into())),
                    Ok(Err(bytes)) => {
                        let problem = format!("it has {bytes} bytes; at most {FILE_BYTES_MAX} are read");
                        Err(self.malformed(name, &problem))
                    }
                    Err(source) => Err(FactsError::Read { path, source }),
                }
            }
            Self::Memory(_, files) => {
                Ok(files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| (*bytes).into()))
            }
        }
    }

    /// Reads a file as JSON; `None` if it is missing.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not JSON of this form.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FactsError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.malformed(name, &error.to_string()))
    }

    /// Describes a file that is not as it should be.
    pub(crate) fn malformed(&self, name: &str, problem: &str) -> FactsError {
        let path = self.path(name);
        let problem = || FactsError::invalid(&path, format!("{problem}; download it again or repair it"));
        Mistake::of_file(&path).map_or_else(problem, FactsError::from)
    }
}
