//! What can be wrong with a trace, in words that say what to do.

use std::fmt;
use std::path::PathBuf;

use super::{Format, HASH_ID_MAX, LENGTH_TOKENS_MAX, REQUESTS_MAX};
use crate::lines::{LineFault, LineNumber};

/// A fault in a trace: which file, which line, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the fault is not in a line.
    pub line: u64,
    /// What is wrong with it.
    pub fault: TraceFault,
}

/// ` by more than 8 requests` in the message of an error; nothing for 0.
struct BeyondWindow(usize);

impl fmt::Display for BeyondWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", past the {} requests that are put in order", self.0) }
    }
}

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceFault {
    /// The file could not be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// There is no request in the file.
    #[error("holds no request; a trace has at least one")]
    Empty,
    /// The first line is of no format that is known.
    #[error(
        "neither Mooncake JSON lines (first line begins with '{{') nor Azure CSV (header TIMESTAMP,ContextTokens,GeneratedTokens) \
         nor any other format that is known; convert it, or force one of {} if the first line is unusual",
        Format::ALL.map(Format::as_str).join(", ")
    )]
    UnknownFormat,
    /// The CSV header lacks a column.
    #[error("the header has no column '{column}', only: {header}; add it")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// What the header says.
        header: String,
    },
    /// The JSON object lacks a field.
    #[error("field '{field}' is missing; a request has {expected}")]
    MissingField {
        /// The field.
        field: &'static str,
        /// The fields that a request has.
        expected: &'static str,
    },
    /// The line is not one of the format.
    #[error("not a line of the {format} format ({why}); mend or remove it")]
    Malformed {
        /// The format it should have.
        format: Format,
        /// What is wrong.
        why: String,
    },
    /// A length is no count of tokens, or out of range.
    #[error("{field} is {value}; it must be a whole number from 1 to {LENGTH_TOKENS_MAX}")]
    BadLength {
        /// The field or column.
        field: &'static str,
        /// What it says.
        value: String,
    },
    /// A timestamp cannot be read.
    #[error("{field} is {value}; it must be {expected}")]
    BadTimestamp {
        /// The field or column.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it should look like.
        expected: &'static str,
    },
    /// A request came before the one above it.
    #[error("the timestamp goes back by {by_s} s{}; sort the lines by their timestamps", BeyondWindow(*window_requests))]
    TimeGoesBack {
        /// By how much, seconds.
        by_s: f64,
        /// Requests that were put in order by reading ahead; see [`super::ReaderOptions::reorder_requests`].
        window_requests: usize,
    },
    /// There are more or fewer ids than the prompt's length asks for.
    #[error(
        "{found} hash_ids for input_length {input_tokens}; there must be {expected}, one for every {block_tokens} tokens or part thereof"
    )]
    HashIdCount {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
        /// Tokens of the prompt.
        input_tokens: u32,
        /// Tokens that an id stands for.
        block_tokens: u32,
    },
    /// There are more or fewer token ids than the line says.
    #[error("{found} token ids where {field} is {expected}; mend or remove the line")]
    TokenCount {
        /// The field that says how many.
        field: &'static str,
        /// How many there are.
        found: usize,
        /// How many it says.
        expected: u32,
    },
    /// The id cannot be told apart from others.
    #[error("hash id {id} is above {HASH_ID_MAX}; number the ids from 0 on")]
    HashIdTooLarge {
        /// The id.
        id: u64,
    },
    /// There are more requests than there are numbers for them.
    #[error("the trace has more than {REQUESTS_MAX} requests, more than can be told apart; limit them")]
    TooManyRequests,
    /// A slice that begins after the end.
    #[error("holds no request in the slice {slice}; the trace ends before it")]
    EmptySlice {
        /// The slice.
        slice: String,
    },
}
