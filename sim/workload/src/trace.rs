//! Request traces: arrival times, lengths, and shared content of prompts.
//!
//! The reader recognises the formats of [`formats`] by their content, plain, gzip or Zstandard.
//!
//! The reader ignores other columns and fields, and finds the columns of CSV by name, in any order.
//!
//! Lines MUST be in the order of their timestamps. A step back is an error rather than a reason to sort, because two traces pasted
//! together look like this; [`ReaderOptions::reorder_requests`] allows bounded disorder. Requests without input or output are left out and
//! counted, and so are failed ones, which no server completed. Results of benchmarks are read whole and put in the order of their starts.
//!
//! A trace may consist of sessions, if its format has them: lines with one `session_id` are the turns of a session, in
//! this order. A later [`Turn`] arrives `delay` milliseconds after the end of the turn before, and not before its own `timestamp`, if
//! any. Such lines need no order of time, and `input_length` counts the whole prompt. The first line MUST have a `session_id`.
//!
//! A replay needs no trace in memory: a [`Source`] yields requests one by one, from a file, a loaded [`Trace`] or a generator
//! ([`crate::synthetic`]). Prompt tokens are made at submission and never stored: see [`TraceRequest::prompt`].
//!
//! # Tokens of a prompt
//!
//! Every content has a number `c`: a block id, a piece, a request with a unique prompt, or the output of a request. Token `j` of content
//! `c` is `c + j (j + 1) / 2` modulo 2^31, so `c, c + 1, c + 3, c + 6, …`; prompt tokens lie below [`GENERATED_FROM`], generated tokens
//! at or above it. 2^31 ids and requests of any length stay distinct:
//!
//! * Two contents differ in every place, and a prefix cache compares blocks only if both contents began at the same position. Contents
//!   begin at equal positions if every content has one length everywhere, except as the last of a prompt; [`Piece`]s keep to this rule.
//! * Wherever they begin, two contents have no two tokens in a row in common, and no content has two in a row twice: tokens `j` and
//!   `j + 1` differ by `j + 1`, which tells the place. So a search for text that is not a prefix (`--reuse-anywhere`) finds only what the
//!   trace shares.

use std::ops::Range;
use std::path::Path;

use trunkline_core::{RetentionHint, Token};

pub use crate::lines::LineFault;

mod block_ids;
mod block_line;
pub mod blocks;
mod chats;
mod closed_loop;
mod convert;
mod detect;
mod fault;
mod format;
pub mod formats;
mod reader;
mod retention;
mod select;
mod sessions;
mod source;
pub mod stats;
mod terms;
mod unknown;
mod write;

pub use self::closed_loop::{ClosedLoop, ClosedLoopError, Looped};
pub use self::convert::{Conversion, ConvertError, convert, convert_file, losses};
pub use self::fault::{TraceError, TraceFault};
pub use self::format::clock::TimeUnit;
pub use self::format::results::ResultFault;
pub use self::format::{Format, FormatOption};
pub use self::reader::{LeftOut, REORDER_REQUESTS_MAX, ReaderOptions, TraceReader};
pub use self::select::{BadSlice, BadSpeed, Bound, Selected, Selection, Slice};
pub use self::sessions::Turn;
pub use self::source::{FileSource, Loaded, Outcome, Queued, Source, TimeScaled};
use self::terms::TermNames;
pub use self::terms::Terms;
pub use self::write::{TraceWriter, WriteError, WriteFault};

/// Tokens per block id, in formats without a size of their own.
pub const HASH_ID_TOKENS: u32 = 512;
/// First id of generated tokens. Prompt tokens have lower ids, so generated content never equals prompt content.
pub const GENERATED_FROM: Token = 1 << 31;
/// Greatest block id of a trace as read: ids of files that are greater, below 0 or text get numbers below.
pub const HASH_ID_MAX: u32 = GENERATED_FROM - 1;
/// Maximum number of requests in one trace: the number of distinct prompts.
pub const REQUESTS_MAX: u64 = GENERATED_FROM as u64;
/// Greatest `input_length` or `output_length`, tokens.
pub const LENGTH_TOKENS_MAX: u32 = 1 << 24;

/// Request of a trace, with its lengths and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival time, nanoseconds after the first arrival of the trace.
    pub arrival_ns: u64,
    /// Prompt length in tokens, at least 1.
    pub input_tokens: u32,
    /// Output length in tokens; 0 for a prefetch, which brings the cached part of the prompt to the device.
    pub output_tokens: u32,
    /// Content of the prompt.
    pub content: Content,
    /// Tokens of the output, at least `output_tokens`, if known; else [`generated_token`] numbers them.
    pub output: Option<Box<[Token]>>,
    /// Tenant, namespace, priority and deadline.
    pub terms: Terms,
    /// Priorities of the tokens in the prefix cache: see [`trunkline_core::request::retention`].
    pub retention: Box<[RetentionHint]>,
    /// Place in a session. A later turn arrives when the turn before has ended, but not before `arrival_ns`.
    pub turn: Option<Turn>,
}

impl Default for TraceRequest {
    /// Returns a request at the beginning, of one token in and one token out, with default terms.
    fn default() -> Self {
        Self {
            arrival_ns: 0,
            input_tokens: 1,
            output_tokens: 1,
            content: Content::Unique(0),
            output: None,
            terms: Terms::default(),
            retention: Box::default(),
            turn: None,
        }
    }
}

/// Known content of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Block ids, one per [`HASH_ID_TOKENS`] tokens, at most [`HASH_ID_MAX`]; the last id may cover fewer tokens.
    Blocks(Box<[u32]>),
    /// Consecutive contents with as many tokens as the prompt.
    Pieces(Box<[Piece]>),
    /// Explicit ids of all tokens.
    Tokens(Box<[Token]>),
    /// Unique content, shared with no other prompt of the trace: the number of its request, below [`GENERATED_FROM`].
    Unique(u32),
}

/// Part of a prompt: the first tokens of a content.
///
/// A content MUST have an equal number of tokens everywhere, except as the last of a prompt; otherwise contents could begin at
/// different positions and be confused with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Number of the content; from [`GENERATED_FROM`] on, the output of request `content - GENERATED_FROM`.
    pub content: u32,
    /// Length in tokens, at least 1.
    pub tokens: u32,
}

impl Piece {
    fn token_ids(self) -> impl Iterator<Item = Token> {
        (0..self.tokens).map(move |j| (self.content & GENERATED_FROM) | token(self.content, j))
    }
}

impl TraceRequest {
    /// Makes the tokens of the prompt. Two prompts have equal tokens if and only if their contents are equal. The vector has room
    /// for the output, since the core appends generated tokens.
    pub fn prompt(&self) -> Vec<Token> {
        let mut prompt = Vec::with_capacity((self.input_tokens + self.output_tokens) as usize);
        match &self.content {
            Content::Unique(number) => prompt.extend(tokens_of(*number, self.input_tokens)),
            Content::Pieces(pieces) => pieces.iter().for_each(|piece| prompt.extend(piece.token_ids())),
            Content::Tokens(tokens) => prompt.extend_from_slice(tokens),
            Content::Blocks(ids) => {
                let mut left = self.input_tokens;
                for id in ids {
                    let n = left.min(HASH_ID_TOKENS);
                    prompt.extend(tokens_of(*id, n));
                    left -= n;
                }
            }
        }
        assert_eq!(prompt.len(), self.input_tokens as usize, "content covers the prompt");
        prompt
    }

    /// Returns `true` for a request that asks for no token.
    pub fn is_prefetch(&self) -> bool {
        self.output_tokens == 0
    }

    /// Returns token `n` of the output, from 0, of this request, which has number `number`.
    pub fn output_token(&self, number: u64, n: u32) -> Token {
        let known = self.output.as_ref().and_then(|output| output.get(n as usize));
        known.copied().unwrap_or_else(|| generated_token(number, n))
    }

    /// Appends tokens of the output to `tokens`, as [`Self::output_token`] numbers them.
    pub fn extend_output(&self, number: u64, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        match &self.output {
            None => tokens.extend(numbers.map(|n| generated_token(number, n))),
            Some(_) => tokens.extend(numbers.map(|n| self.output_token(number, n))),
        }
    }

    /// Truncates the prompt so that prompt and output have at most `max_context` tokens. An output of `max_context` tokens or more
    /// is truncated too, and one prompt token remains. `max_context` MUST be at least 2.
    pub fn cut_to(&mut self, max_context: u32) {
        assert!(max_context >= 2, "a token of the prompt and one of the answer");
        self.output_tokens = self.output_tokens.min(max_context - 1);
        let tokens = max_context - self.output_tokens;
        if self.input_tokens <= tokens {
            return;
        }
        retention::cut(&mut self.retention, self.input_tokens, tokens);
        self.input_tokens = tokens;
        match &mut self.content {
            Content::Unique(_) => {}
            Content::Tokens(ids) => *ids = ids[..tokens as usize].into(),
            Content::Blocks(ids) => *ids = ids[..tokens.div_ceil(HASH_ID_TOKENS) as usize].into(),
            Content::Pieces(pieces) => {
                let mut left = tokens;
                let cut = pieces.iter().map_while(|piece| {
                    let kept = piece.tokens.min(left);
                    left -= kept;
                    (kept > 0).then_some(Piece { tokens: kept, ..*piece })
                });
                *pieces = cut.collect();
            }
        }
    }
}

/// Returns the first `n` tokens of prompt content number `content`.
fn tokens_of(content: u32, n: u32) -> impl ExactSizeIterator<Item = Token> {
    (0..n).map(move |j| token(content, j))
}

/// Returns token `j` of content `content` modulo 2^31.
fn token(content: u32, j: u32) -> Token {
    // The product is even, and below 2^64.
    let triangle = (u64::from(j) * (u64::from(j) + 1) / 2) as u32;
    content.wrapping_add(triangle) & (GENERATED_FROM - 1)
}

/// Returns generated token `n`, from 0, of request number `request`.
pub fn generated_token(request: u64, n: u32) -> Token {
    GENERATED_FROM | token(request as u32, n)
}

/// Trace in memory: a few dozen bytes per request and four per block id. [`Trace::load`] keeps the rules of this module; other
/// constructors MUST keep them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Format of the trace.
    pub format: Format,
    /// Requests in the order of arrival.
    pub requests: Vec<TraceRequest>,
}

impl Trace {
    /// Reads a whole trace, or its first `limit` requests; the rest of the file is not read.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file cannot be read or is not a valid trace.
    pub fn load(path: &Path, format: Option<Format>, limit: Option<usize>) -> Result<Self, TraceError> {
        let limit = limit.map_or(u64::MAX, |limit| limit as u64);
        let options = ReaderOptions { format, ..ReaderOptions::default() };
        Self::load_selected(path, options, &Selection { limit, ..Selection::default() })
    }

    /// Reads the selected part of a trace.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file cannot be read, is not a valid trace, or ends before the selection.
    pub fn load_selected(path: &Path, options: ReaderOptions, selection: &Selection) -> Result<Self, TraceError> {
        let source = FileSource::open(path, options, selection)?;
        Ok(Self { format: source.format(), requests: source.collect::<Result<_, _>>()? })
    }

    /// Returns the selected part of the trace. References of requests to each other's outputs go by the numbers in the part.
    pub fn select(&self, selection: &Selection) -> Self {
        let requests = selection.of(self.requests.iter().cloned().map(Ok));
        Self { format: self.format, requests: requests.filter_map(Result::ok).collect() }
    }

    /// Returns the number of tenants: one more than the greatest number of a tenant.
    pub fn tenants(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.terms.tenant) + 1).max().unwrap_or(1)
    }

    /// Returns the requests as a source.
    pub fn source(&self) -> Loaded<'_> {
        Loaded::new(self)
    }
}

#[cfg(test)]
mod formats_tests;
#[cfg(test)]
mod inputs_tests;
#[cfg(test)]
mod registry_tests;
#[cfg(test)]
mod results_tests;
#[cfg(test)]
mod tests;
