//! Traces: who asked when, how much, and what it shares with others.
//!
//! Two public formats are read, plain or gzip, told apart by their content:
//!
//! | [`Format`] | a line | content of prompts |
//! |---|---|---|
//! | `mooncake` | JSON: `timestamp` ms, `input_length`, `output_length`, `hash_ids` | one id per 512 tokens; equal id = equal content up to there |
//! | `azure` | CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` | none: no prompt is like any other |
//!
//! Lines MUST be in the order of their timestamps; a file that goes back is refused rather than silently sorted, because that
//! is how two traces pasted together look. Requests with no input or no output are refused as well.
//!
//! Tokens are made when a request is submitted, never kept: see [`TraceRequest::prompt`].
//!
//! # Which tokens
//!
//! Content that has a number `c` (of a block id, of a request whose prompt is like no other, of a request that generates) consists of
//! the tokens `c, c + 1, c + 2, …` modulo 2^31, prompts below [`GENERATED_FROM`] and generated ones above. Contents overlap, yet
//! are never mistaken for each other: a cache finds a block under its whole prefix only, so blocks of two contents are compared
//! only where both began at the same position, and there their tokens differ in every place. So 2^31 ids and requests can be told
//! apart, however many tokens they have.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use trunkline_core::Token;

use crate::UnknownName;
pub use crate::lines::LineFault;
use crate::lines::Lines;

mod azure;
mod mooncake;

/// Tokens that one id of a Mooncake trace stands for.
pub const HASH_ID_TOKENS: u32 = 512;
/// Token ids of prompts lie below this one, those of generated tokens at or above it, so that generated content is never
/// mistaken for a prompt's.
pub const GENERATED_FROM: Token = 1 << 31;
/// The greatest id of a Mooncake trace.
pub const HASH_ID_MAX: u32 = GENERATED_FROM - 1;
/// Requests of one trace at most: as many can be told apart.
pub const REQUESTS_MAX: u64 = GENERATED_FROM as u64;
/// The greatest `input_length` or `output_length`, tokens.
pub const LENGTH_TOKENS_MAX: u32 = 1 << 24;

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON lines with block ids, as published with the Mooncake paper (FAST 2025).
    Mooncake,
    /// CSV without content, as in Azure's public LLM inference traces.
    Azure,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Mooncake, Self::Azure];

    /// The name on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Azure => "azure",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|format| format.as_str() == name).ok_or_else(|| UnknownName {
            kind: "trace format",
            name: name.into(),
            known: Self::ALL.map(Self::as_str).to_vec(),
        })
    }
}

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it arrives, nanoseconds after the first one of its trace.
    pub arrival_ns: u64,
    /// Tokens of the prompt. At least one.
    pub input_tokens: u32,
    /// Tokens that were generated. At least one.
    pub output_tokens: u32,
    /// What the prompt says.
    pub content: Content,
}

/// What is known of a prompt's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An id for every [`HASH_ID_TOKENS`] tokens, at most [`HASH_ID_MAX`]; the last may stand for fewer tokens.
    Blocks(Box<[u32]>),
    /// Nothing but that no other prompt of the trace is like it: it has the number of its request, below [`GENERATED_FROM`].
    Unique(u32),
}

impl TraceRequest {
    /// Makes the prompt. Equal content gives equal tokens, and only equal content does. The vector has room for the output, because the
    /// core appends it there.
    pub fn prompt(&self) -> Vec<Token> {
        let mut prompt = Vec::with_capacity((self.input_tokens + self.output_tokens) as usize);
        match &self.content {
            Content::Unique(number) => prompt.extend(tokens_of(*number, self.input_tokens)),
            Content::Blocks(ids) => {
                let mut left = self.input_tokens;
                for id in ids {
                    let n = left.min(HASH_ID_TOKENS);
                    prompt.extend(tokens_of(*id, n));
                    left -= n;
                }
            }
        }
        assert_eq!(prompt.len(), self.input_tokens as usize, "ids cover the prompt");
        prompt
    }
}

/// The first `n` tokens of prompt content number `content`.
fn tokens_of(content: u32, n: u32) -> impl ExactSizeIterator<Item = Token> {
    (0..n).map(move |j| content.wrapping_add(j) & (GENERATED_FROM - 1))
}

/// Token `n`, from 0, that the `request`-th request generates.
pub fn generated_token(request: u64, n: u32) -> Token {
    GENERATED_FROM | (request as u32).wrapping_add(n)
}

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

/// `, line 7` in the message of an error; nothing for line 0.
pub(crate) struct LineNumber(pub u64);

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", line {}", self.0) }
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
        "neither Mooncake JSON lines (first line begins with '{{') nor Azure CSV (header TIMESTAMP,ContextTokens,GeneratedTokens); \
         convert it, or force a format if the first line is unusual"
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
    #[error("field '{field}' is missing; a request has timestamp, input_length, output_length and hash_ids")]
    MissingField {
        /// The field.
        field: &'static str,
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
    #[error("the timestamp goes back by {by_s} s; sort the lines by their timestamps")]
    TimeGoesBack {
        /// By how much, seconds.
        by_s: f64,
    },
    /// There are more or fewer ids than the prompt's length asks for.
    #[error(
        "{found} hash_ids for input_length {input_tokens}; there must be {expected}, one for every {HASH_ID_TOKENS} tokens or part thereof"
    )]
    HashIdCount {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
        /// Tokens of the prompt.
        input_tokens: u32,
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
}

/// A trace in memory: a few dozen bytes per request and four per block id. What [`Trace::load`] gives keeps the rules of this
/// module; who makes one otherwise MUST keep them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// How it was written.
    pub format: Format,
    /// Its requests, in the order of arrival.
    pub requests: Vec<TraceRequest>,
}

impl Trace {
    /// Reads a whole trace, or its first `limit` requests; what comes after them is not looked at.
    pub fn load(path: &Path, format: Option<Format>, limit: Option<usize>) -> Result<Self, TraceError> {
        let reader = TraceReader::open(path, format)?;
        let format = reader.format();
        let requests = reader.take(limit.unwrap_or(usize::MAX)).collect::<Result<Vec<_>, _>>()?;
        if requests.is_empty() {
            return Err(TraceError { path: path.into(), line: 0, fault: TraceFault::Empty });
        }
        Ok(Self { format, requests })
    }
}

/// What a line says, before it is seen next to the others.
struct Row {
    /// Nanoseconds since a moment that is the same for all lines.
    at_ns: u64,
    input_tokens: u32,
    output_tokens: u32,
    /// Ids of the blocks, if the format has them.
    blocks: Option<Box<[u32]>>,
}

enum Parser {
    Mooncake,
    Azure(azure::Columns),
}

/// Reads a trace line by line. After an error there is nothing more.
pub struct TraceReader {
    path: PathBuf,
    lines: Lines,
    parser: Parser,
    /// The first line, if it was read to find the format and holds a request.
    pending: Option<Vec<u8>>,
    first_ns: Option<u64>,
    last_ns: u64,
    n_requests: u64,
    ended: bool,
}

impl TraceReader {
    /// Opens a trace and finds its format from the first line that is not blank, unless `format` says it.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, TraceError> {
        let fail = |line, fault| TraceError { path: path.into(), line, fault };
        let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
        let first = loop {
            match lines.next() {
                Err(fault) => return Err(fail(lines.number(), fault.into())),
                Ok(None) => return Err(fail(0, TraceFault::Empty)),
                Ok(Some(line)) => {
                    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
                    if !line.is_empty() {
                        break line.to_vec();
                    }
                }
            }
        };
        let number = lines.number();
        let format = format.or_else(|| detect(&first)).ok_or_else(|| fail(number, TraceFault::UnknownFormat))?;
        let (parser, pending) = match format {
            Format::Mooncake => (Parser::Mooncake, Some(first)),
            Format::Azure => {
                let columns = azure::Columns::of_header(&first).map_err(|fault| fail(number, fault))?;
                (Parser::Azure(columns), None)
            }
        };
        Ok(Self { path: path.into(), lines, parser, pending, first_ns: None, last_ns: 0, n_requests: 0, ended: false })
    }

    /// The format of the lines.
    pub fn format(&self) -> Format {
        match self.parser {
            Parser::Mooncake => Format::Mooncake,
            Parser::Azure(_) => Format::Azure,
        }
    }

    fn next_row(&mut self) -> Result<Option<Row>, TraceFault> {
        let parse = |line: &[u8]| match &self.parser {
            Parser::Mooncake => mooncake::parse(line),
            Parser::Azure(columns) => columns.parse(line),
        };
        if let Some(line) = self.pending.take() {
            return parse(&line).map(Some);
        }
        while let Some(line) = self.lines.next()? {
            let line = line.trim_ascii();
            if !line.is_empty() {
                return parse(line).map(Some);
            }
        }
        Ok(None)
    }

    fn place(&mut self, row: Row) -> Result<TraceRequest, TraceFault> {
        let first_ns = *self.first_ns.get_or_insert(row.at_ns);
        if row.at_ns < self.last_ns {
            return Err(TraceFault::TimeGoesBack { by_s: (self.last_ns - row.at_ns) as f64 / 1e9 });
        }
        self.last_ns = row.at_ns;
        if self.n_requests == REQUESTS_MAX {
            return Err(TraceFault::TooManyRequests);
        }
        let content = row.blocks.map_or(Content::Unique(self.n_requests as u32), Content::Blocks);
        self.n_requests += 1;
        Ok(TraceRequest {
            arrival_ns: row.at_ns - first_ns,
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            content,
        })
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = match self.next_row() {
            Ok(None) => {
                self.ended = true;
                return None;
            }
            Ok(Some(row)) => self.place(row),
            Err(fault) => Err(fault),
        };
        Some(row.map_err(|fault| {
            self.ended = true;
            TraceError { path: self.path.clone(), line: self.lines.number(), fault }
        }))
    }
}

fn detect(first: &[u8]) -> Option<Format> {
    if first.starts_with(b"{") {
        return Some(Format::Mooncake);
    }
    azure::looks_like_header(first).then_some(Format::Azure)
}

/// A count of tokens from 1 to [`LENGTH_TOKENS_MAX`].
fn length(field: &'static str, text: &str) -> Result<u32, TraceFault> {
    match text.parse() {
        Ok(n @ 1..=LENGTH_TOKENS_MAX) => Ok(n),
        _ => Err(TraceFault::BadLength { field, value: text.into() }),
    }
}

#[cfg(test)]
mod tests;
