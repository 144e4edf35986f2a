//! Traces: who asked when, how much, and what it shares with others.
//!
//! Public formats are read, plain, gzip or Zstandard, told apart by their content:
//!
//! | [`Format`] | a line | content of prompts |
//! |---|---|---|
//! | `mooncake` | JSON: `timestamp` ms, `input_length`, `output_length`, `hash_ids` | one id per 512 tokens; equal id = equal content up to there |
//! | `azure` | CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, 2023 and 2024 | none: no prompt is like any other |
//! | `burstgpt` | CSV: `Timestamp` s, `Request tokens`, `Response tokens` | none |
//! | `bailian` | JSON: `chat_id`, `timestamp` s, `input_length`, `output_length`, `hash_ids` | one id per 16 tokens |
//! | `vidur` | CSV: `arrived_at` s, `num_prefill_tokens`, `num_decode_tokens` | none |
//! | `tokens` | JSON: `arrival_time_ns`, `input_tok_ids`, `output_toks` | every token |
//!
//! Other columns and fields may be there and are not looked at; columns of CSV are found by name, in any order.
//!
//! Lines MUST be in the order of their timestamps; a file that goes back is refused rather than silently sorted,
//! because that is how two traces pasted together look. [`ReaderOptions::reorder_requests`] allows a bounded disorder.
//! Requests with no input or no output are refused as well, but for those that a BurstGPT log marks as failed by having
//! no output: they were never served, and are left out.
//!
//! What is replayed need not be a trace in memory: a [`Source`] gives requests one by one, from a file, a loaded
//! [`Trace`] or a generator ([`crate::synthetic`]).
//!
//! Tokens are made when a request is submitted, never kept: see [`TraceRequest::prompt`].
//!
//! # Which tokens
//!
//! Content that has a number `c` (of a block id, of a piece, of a request whose prompt is like no other, of a request
//! that generates) consists of the tokens `c, c + 1, c + 2, …` modulo 2^31, prompts below [`GENERATED_FROM`] and
//! generated ones above. Contents overlap, yet are never mistaken for each other: a cache finds a block under its whole
//! prefix only, so blocks of two contents are compared only where both began at the same position, and there their
//! tokens differ in every place. So 2^31 ids and requests can be told apart, however many tokens they have. That
//! contents begin at the same position needs every number to have one length, unless it is the last of a prompt;
//! [`Piece`]s keep to that.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use trunkline_core::Token;

use crate::UnknownName;
pub use crate::lines::LineFault;

mod azure;
mod bailian;
pub mod blocks;
mod convert;
mod csv;
mod fault;
mod mooncake;
mod reader;
mod select;
mod source;
pub mod stats;
mod tokens;
mod write;

pub use self::convert::{Conversion, ConvertError, convert, convert_file, losses};
pub use self::fault::{TraceError, TraceFault};
pub use self::reader::{REORDER_REQUESTS_MAX, ReaderOptions, TraceReader};
pub use self::select::{BadSlice, BadSpeed, Bound, Selected, Selection, Slice};
pub use self::source::{FileSource, Loaded, Outcome, Source, Sped};
pub use self::write::{TraceWriter, WriteError, WriteFault};

/// Tokens that one id of a Mooncake trace stands for.
pub const HASH_ID_TOKENS: u32 = 512;
/// Token ids of prompts lie below this one, those of generated tokens at or above it, so that generated content is
/// never mistaken for a prompt's.
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
    /// CSV without content, as in Azure's public LLM inference traces of 2023 and 2024.
    Azure,
    /// CSV without content, as published with BurstGPT.
    BurstGpt,
    /// JSON lines with block ids and chats, as in the usage traces of Qwen on Bailian.
    Bailian,
    /// CSV without content, as the Vidur simulator reads it.
    Vidur,
    /// JSON lines with token ids, as workloads of vLLM made from ShareGPT are written.
    Tokens,
    /// No file: made by a generator.
    Synthetic,
}

impl Format {
    /// All formats of files.
    pub const ALL: [Self; 6] = [Self::Mooncake, Self::Azure, Self::BurstGpt, Self::Bailian, Self::Vidur, Self::Tokens];

    /// The name on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Azure => "azure",
            Self::BurstGpt => "burstgpt",
            Self::Bailian => "bailian",
            Self::Vidur => "vidur",
            Self::Tokens => "tokens",
            Self::Synthetic => "synthetic",
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
    /// Contents one after another, of as many tokens as the prompt.
    Pieces(Box<[Piece]>),
    /// The tokens themselves.
    Tokens(Box<[Token]>),
    /// Nothing but that no other prompt of the trace is like it: it has the number of its request, below
    /// [`GENERATED_FROM`].
    Unique(u32),
}

/// A part of a prompt: the first tokens of a content.
///
/// A content MUST have the same number of tokens wherever it occurs, unless it is the last of a prompt; else contents
/// could begin at different positions and be mistaken for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The number of the content; from [`GENERATED_FROM`] on it is what request `content - GENERATED_FROM` generated.
    pub content: u32,
    /// Tokens. At least one.
    pub tokens: u32,
}

impl Piece {
    fn token_ids(self) -> impl Iterator<Item = Token> {
        (0..self.tokens)
            .map(move |j| (self.content & GENERATED_FROM) | (self.content.wrapping_add(j) & (GENERATED_FROM - 1)))
    }
}

impl TraceRequest {
    /// Makes the prompt. Equal content gives equal tokens, and only equal content does. The vector has room for the
    /// output, because the core appends it there.
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

    /// Cuts the prompt so that it has no more than `max_context` tokens together with its answer. If the answer alone has as many, it is cut
    /// too, and one token is left of the prompt. `max_context` MUST be at least 2.
    pub fn cut_to(&mut self, max_context: u32) {
        assert!(max_context >= 2, "a token of the prompt and one of the answer");
        self.output_tokens = self.output_tokens.min(max_context - 1);
        let tokens = max_context - self.output_tokens;
        if self.input_tokens <= tokens {
            return;
        }
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

/// The first `n` tokens of prompt content number `content`.
fn tokens_of(content: u32, n: u32) -> impl ExactSizeIterator<Item = Token> {
    (0..n).map(move |j| content.wrapping_add(j) & (GENERATED_FROM - 1))
}

/// Token `n`, from 0, that the `request`-th request generates.
pub fn generated_token(request: u64, n: u32) -> Token {
    GENERATED_FROM | (request as u32).wrapping_add(n)
}

/// A trace in memory: a few dozen bytes per request and four per block id. What [`Trace::load`] gives keeps the rules
/// of this module; who makes one otherwise MUST keep them.
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
        let limit = limit.map_or(u64::MAX, |limit| limit as u64);
        let options = ReaderOptions { format, ..ReaderOptions::default() };
        Self::load_selected(path, options, &Selection { limit, ..Selection::default() })
    }

    /// Reads what is selected of a trace.
    pub fn load_selected(path: &Path, options: ReaderOptions, selection: &Selection) -> Result<Self, TraceError> {
        let source = FileSource::open(path, options, selection)?;
        Ok(Self { format: source.format(), requests: source.collect::<Result<_, _>>()? })
    }

    /// A part of it. What requests of a made-up workload have of each other's answers is not renumbered, so they no
    /// longer share them.
    pub fn select(&self, selection: &Selection) -> Self {
        let requests = selection.of(self.requests.iter().cloned().map(Ok));
        Self { format: self.format, requests: requests.filter_map(Result::ok).collect() }
    }

    /// The requests as a source.
    pub fn source(&self) -> Loaded<'_> {
        Loaded::new(self)
    }
}

#[cfg(test)]
mod formats_tests;
#[cfg(test)]
mod tests;
