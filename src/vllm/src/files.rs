//! The small files of a model: what `config.json` says, and the files that make a tokenizer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Names of the files that make a tokenizer, as gateways look for them.
const NAMES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    CONFIG,
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "preprocessor_config.json",
];
/// Endings of further files: vocabularies of other libraries, and templates.
const ENDINGS: [&str; 3] = [".model", ".tiktoken", ".jinja"];
const CONFIG: &str = "config.json";
/// Maximum number of bytes of all files: many times the tokenizer of Gemma 3, which has 33 MB.
const BYTES_MAX: u64 = 1 << 28;

/// Files of a model.
#[derive(Clone, Debug, Default)]
pub enum ModelFiles {
    /// None: a GGUF file, or random weights.
    #[default]
    Missing,
    /// Files of the tokenizer by name, with their contents.
    Memory(&'static [(&'static str, &'static [u8])]),
    /// A Hugging Face folder.
    Folder(PathBuf),
}

/// Reason for which the files of a tokenizer cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("the model has no tokenizer files to send; give the gateway a tokenizer of its own")]
    Missing,
    #[error("the tokenizer files have more than {BYTES_MAX} bytes; give the gateway a tokenizer of its own")]
    TooLarge,
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot compress the tokenizer files")]
    Compress(#[from] io::Error),
}

fn is_of_tokenizer(name: &str) -> bool {
    NAMES.contains(&name) || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

fn read(path: &Path) -> Result<Vec<u8>, FilesError> {
    fs::read(path).map_err(|source| FilesError::Read { path: path.to_owned(), source })
}

impl ModelFiles {
    /// Reads the files that make the tokenizer, by name.
    ///
    /// # Errors
    /// If there are none, they are too large, or one cannot be read.
    pub(crate) fn of_tokenizer(&self) -> Result<Vec<(String, Vec<u8>)>, FilesError> {
        let mut files = match self {
            Self::Missing => Vec::new(),
            Self::Memory(files) => {
                let of_tokenizer = files.iter().filter(|(name, _)| is_of_tokenizer(name));
                of_tokenizer.map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
            }
            Self::Folder(folder) => of_folder(folder)?,
        };
        if files.is_empty() {
            return Err(FilesError::Missing);
        }
        files.sort();
        Ok(files)
    }

    /// Returns what `config.json` says; nothing if it is missing or malformed, as the model's own reader says so.
    pub(crate) fn config(&self) -> Value {
        let bytes = match self {
            Self::Missing => None,
            Self::Memory(files) => files.iter().find(|(name, _)| *name == CONFIG).map(|(_, bytes)| bytes.to_vec()),
            Self::Folder(folder) => {
                let path = folder.join(CONFIG);
                let is_small = fs::metadata(&path).is_ok_and(|about| about.len() <= BYTES_MAX);
                is_small.then(|| read(&path).ok()).flatten()
            }
        };
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }
}

fn of_folder(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, FilesError> {
    let wrong = |source| FilesError::Read { path: folder.to_owned(), source };
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Caches of models link their files.
        let about = fs::metadata(entry.path());
        if !is_of_tokenizer(&name) || !about.as_ref().is_ok_and(fs::Metadata::is_file) {
            continue;
        }
        bytes += about.map_or(0, |about| about.len());
        if bytes > BYTES_MAX {
            return Err(FilesError::TooLarge);
        }
        files.push((name, read(&entry.path())?));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_files_of_a_tokenizer_and_weights_stay_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["tokenizer.json", "model.safetensors", "chat_template.jinja", "tokenizer.model", "config.json"];
        for name in names {
            fs::write(folder.path().join(name), format!("{{\"name\": \"{name}\"}}")).unwrap();
        }
        fs::create_dir(folder.path().join("old.model")).unwrap();
        let files = ModelFiles::Folder(folder.path().to_owned());
        let found: Vec<String> = files.of_tokenizer().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer.model"]);
        assert_eq!(files.config()["name"], "config.json");
        assert!(matches!(ModelFiles::Missing.of_tokenizer(), Err(FilesError::Missing)));
        assert_eq!(ModelFiles::Missing.config(), Value::Null);
    }
}
