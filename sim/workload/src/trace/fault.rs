//! Errors in traces, each with a remedy.

use std::fmt;
use std::path::PathBuf;
use trunkline_core::request::retention::RetentionError;
use trunkline_quote::{cut, of_parser, quoted};

use super::format::{Format, FormatOption};
use super::{HASH_ID_MAX, LENGTH_TOKENS_MAX, REQUESTS_MAX, ResultFault};
use crate::lines::{LineFault, LineNumber};

/// Error in a trace: file, line, fault and remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct TraceError {
    /// Path of the trace.
    pub path: PathBuf,
    /// Line number from 1; 0 for a fault outside any line.
    pub line: u64,
    /// Fault found at that place.
    pub fault: TraceFault,
}

/// Window in an error message: ` by more than 8 requests`, or nothing for 0.
struct BeyondWindow(usize);

impl fmt::Display for BeyondWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", past the {} requests that are put in order", self.0) }
    }
}

/// Advice in an error message: the sizes of a block, powers of two, under which a prompt has as many ids; or nothing.
struct OtherBlocks {
    ids: usize,
    tokens: u32,
    format: Format,
}

impl fmt::Display for OtherBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |size: &u32| self.tokens.div_ceil(*size) as usize == self.ids;
        match (0..=16).map(|power| 1 << power).find(fits) {
            Some(size) if self.format.takes(FormatOption::BlockTokens) => {
                write!(f, "; for blocks of {size} tokens give {} {size}", FormatOption::BlockTokens.flag())
            }
            _ => Ok(()),
        }
    }
}

/// Fault in a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceFault {
    /// File cannot be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// File without a request.
    #[error("holds no request; a trace has at least one")]
    Empty,
    /// First line of no known format.
    #[error("{0}")]
    UnknownFormat(String),
    /// CSV header without a required column.
    #[error("the header has no column {column}, only: {header}; add it", column = quoted(column), header = cut(header))]
    MissingColumn {
        /// Name of the missing column.
        column: &'static str,
        /// Header as found in the file.
        header: String,
    },
    /// CSV header with a column twice.
    #[error("the header has the column {column} twice; remove one", column = quoted(column))]
    RepeatedColumn {
        /// Name of the column.
        column: &'static str,
    },
    /// JSON object without a required field.
    #[error("field {field} is missing; a request has {expected}", field = quoted(field))]
    MissingField {
        /// Name of the missing field.
        field: &'static str,
        /// Fields of a request.
        expected: &'static str,
    },
    /// Line outside the format.
    #[error("not a line of the {format} format ({why}); fix or remove it", why = of_parser(why))]
    Malformed {
        /// Format expected of the line.
        format: Format,
        /// Message of the parser.
        why: String,
    },
    /// Length out of range, or not a whole number.
    #[error("{field} is {value}; it must be a whole number from 0 to {LENGTH_TOKENS_MAX}", value = cut(value))]
    BadLength {
        /// Name of the field or column.
        field: &'static str,
        /// Value as found in the input.
        value: String,
    },
    /// Result of a benchmark that is not a trace.
    #[error(transparent)]
    Result(#[from] ResultFault),
    /// File of a format that no reader of traces takes.
    #[error("{0}")]
    Refused(&'static str),
    /// Tenant, namespace, priority or deadline out of range.
    #[error("{field} is {value}; it must be {expected}", value = cut(value))]
    BadTerm {
        /// Name of the field or column.
        field: &'static str,
        /// Value as found in the input.
        value: String,
        /// Permitted values, in words.
        expected: &'static str,
    },
    /// Retention hint out of range.
    #[error(transparent)]
    Retention(#[from] RetentionError),
    /// Timestamp that cannot be read.
    #[error("{field} is {value}; it must be {expected}", value = cut(value))]
    BadTimestamp {
        /// Name of the field or column.
        field: &'static str,
        /// Value as found in the input.
        value: String,
        /// Expected form of the timestamp.
        expected: &'static str,
    },
    /// Request with an earlier timestamp than the request above.
    #[error(
        "the timestamp goes back by {by_s} s{}; sort the lines by their timestamps, or read N requests ahead with --reorder N",
        BeyondWindow(*window_requests)
    )]
    TimeGoesBack {
        /// Size of the step back, seconds.
        by_s: f64,
        /// Size of the reorder window, requests; see [`super::ReaderOptions::reorder_requests`].
        window_requests: usize,
    },
    /// Request long after the first.
    #[error("arrives more than 31 years after the first request; are all timestamps counted from the same time?")]
    TooLong,
    /// Session that begins in the middle of a trace without sessions.
    #[error(
        "session_id is in this line but not in the first; give the first line one too, so that the trace is read whole"
    )]
    LateSession,
    /// Option for other formats.
    #[error("{flag} is for {of} traces, and this is one of the {format} format; leave it out", flag = option.flag())]
    NotForFormat {
        /// Option of the reader.
        option: FormatOption,
        /// Formats that take it, in words.
        of: String,
        /// Format of the trace.
        format: Format,
    },
    /// Wrong number of block ids for the length of the prompt.
    #[error(
        "{found} hash_ids for input_length {input_tokens}; there must be {expected}, one for every {block_tokens} tokens or part of them{}",
        OtherBlocks { ids: *found, tokens: *input_tokens, format: *format }
    )]
    HashIdCount {
        /// Number of ids found.
        found: usize,
        /// Number of ids expected.
        expected: usize,
        /// Prompt length in tokens.
        input_tokens: u32,
        /// Format of the trace.
        format: Format,
        /// Tokens per block id.
        block_tokens: u32,
    },
    /// Number of token ids different from the length field.
    #[error("{found} token ids where {field} is {expected}; fix or remove the line")]
    TokenCount {
        /// Name of the length field.
        field: &'static str,
        /// Number of token ids found.
        found: usize,
        /// Number of token ids according to the field.
        expected: u32,
    },
    /// Block id equal to the number of another one: ids other than numbers from 0 to [`HASH_ID_MAX`] get numbers from there down.
    #[error(
        "hash id {id} is too large in a trace with ids above {HASH_ID_MAX}, below 0 or of text; number the ids from 0 on"
    )]
    HashIdsMeet {
        /// Block id as found.
        id: u32,
    },
    /// More requests than distinct numbers.
    #[error("the trace has more than {REQUESTS_MAX} requests, more than can be told apart; limit them")]
    TooManyRequests,
    /// Slice beyond the end of the trace.
    #[error("holds no request in the slice {slice}; the trace ends before it", slice = cut(slice))]
    EmptySlice {
        /// Slice as given on input.
        slice: String,
    },
}
