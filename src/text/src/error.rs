//! Errors of loading a tokenizer, of reading facts about a model, and of encoding a text.

use std::path::{Path, PathBuf};

use trunkline_foreign::Panicked;
use trunkline_quote::of_parser;

use crate::library::Fault;
use crate::mistakes::Mistake;

/// A file with facts about a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// No folder or file has the name.
    #[error("{}: there is no such folder or file; give a Hugging Face folder or a GGUF file", path.display())]
    Absent {
        /// Path of the model.
        path: PathBuf,
    },
    /// The file exists but cannot be read.
    #[error("cannot read {}: {source}; check that it is a file and its permissions", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file can be read, but not understood.
    #[error("{}: {}", path.display(), of_parser(problem))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Fault of the file.
        problem: String,
    },
    /// A GGUF file is cut short, malformed, or beyond the limits of the reader.
    #[error("{} cannot be read as a GGUF file of version 3: {}; download it again", path.display(), of_parser(problem))]
    Gguf {
        /// Path of the file.
        path: PathBuf,
        /// Fault of the file.
        problem: String,
    },
    /// The file or folder is not the one that was meant.
    #[error(transparent)]
    Mistake(#[from] Mistake),
}

impl FactsError {
    pub(crate) fn invalid(path: &Path, problem: String) -> Self {
        Self::Invalid { path: path.to_owned(), problem }
    }
}

/// A tokenizer cannot be loaded, or a text cannot be turned into tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The model folder has no `tokenizer.json`.
    #[error(
        "{} is missing: a model folder needs its fast tokenizer; save it with save_pretrained",
        path.display()
    )]
    MissingFile {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// A file of the model cannot be used.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// `tokenizer.json` cannot be used.
    #[error("{}: {}; it must be a Hugging Face fast tokenizer", path.display(), of_parser(problem))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Message of the tokenizers library.
        problem: String,
    },
    /// The tokenizer in a GGUF file cannot be used.
    #[error("{}: {}", path.display(), of_parser(problem))]
    Gguf {
        /// Path of the file.
        path: PathBuf,
        /// Fault of the file, or feature of its tokenizer that this crate does not know.
        problem: String,
    },
    /// The tokenizer refused a text.
    #[error("the text cannot be tokenized: {problem}")]
    Encode {
        /// Message of the tokenizers library.
        problem: String,
    },
    /// The tokenizer panicked at a text: a fault of `tokenizer.json` that the texts tried at load did not reach, or of the library.
    #[error("the model's tokenizer failed on a text, where it should have refused the text or its tokenizer.json: {0}")]
    Panicked(Panicked),
}

impl From<Fault> for TokenizerError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(problem) => Self::Encode { problem },
            Fault::Panicked(panicked) => Self::Panicked(panicked),
        }
    }
}
