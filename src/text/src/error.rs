//! Errors of loading a tokenizer and of encoding a text.

use std::path::PathBuf;

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
    /// The file exists but cannot be read.
    #[error("cannot read {}: {source}; check that it is a file and its permissions", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// `tokenizer.json` cannot be used.
    #[error("{}: {problem}; it must be a Hugging Face fast tokenizer", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Message of the tokenizers library.
        problem: String,
    },
    /// The tokenizer in a GGUF file cannot be used.
    #[error("{}: {problem}", path.display())]
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
}

impl TokenizerError {
    /// Wraps an error of the tokenizers library.
    pub(crate) fn encode(error: tokenizers::Error) -> Self {
        Self::Encode { problem: error.to_string() }
    }
}
