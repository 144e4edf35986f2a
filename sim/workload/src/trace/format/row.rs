//! Parsed line of a trace, common to all formats.

use serde::de::DeserializeOwned;
use serde_json::Value;
use trunkline_core::{RetentionHint, Token};

use super::Format;
use crate::trace::block_ids::with_long_ids_quoted;
use crate::trace::chats::ChatTurn;
use crate::trace::{LENGTH_TOKENS_MAX, Piece, Terms, TraceFault};

/// First time of a line out of range, nanoseconds: counted from 1970, the year 2116.
pub(in crate::trace) const TIME_NS_END: u64 = 1 << 62;

/// Parsed line, before comparison with other lines.
pub(in crate::trace) struct Row {
    /// Nanoseconds since an origin shared by all lines.
    pub at_ns: u64,
    pub input_tokens: u32,
    pub output_tokens: u32,
    pub content: RowContent,
    /// Tokens of the output, if known.
    pub output: Option<Box<[Token]>>,
    pub terms: Terms,
    pub retention: Box<[RetentionHint]>,
    /// Place in a session, if the trace has sessions.
    pub turn: Option<RowTurn>,
    /// `true` for a request that asks for no token; others without a token are left out.
    pub is_prefetch: bool,
    /// Number of the line, from 1; 0 until the reader knows.
    pub line: u64,
}

impl Row {
    /// Creates the row of a request of which times and lengths alone are known.
    pub(in crate::trace) fn without_content(at_ns: u64, input_tokens: u32, output_tokens: u32) -> Self {
        Self {
            at_ns,
            input_tokens,
            output_tokens,
            content: RowContent::None,
            output: None,
            terms: Terms::default(),
            retention: Box::default(),
            turn: None,
            is_prefetch: false,
            line: 0,
        }
    }

    /// Returns `true` for a request without work: no input, or no output though it is no prefetch.
    pub(in crate::trace) fn is_empty(&self) -> bool {
        self.input_tokens == 0 || self.output_tokens == 0 && !self.is_prefetch
    }
}

/// Place of a line in a session, as the line says it.
pub(in crate::trace) struct RowTurn {
    /// Name of the session.
    pub session: Box<str>,
    /// Time from the end of the turn before, nanoseconds.
    pub delay_ns: u64,
    /// `true` if [`Row::at_ns`] is the line's own; else it is 0.
    pub is_timed: bool,
}

/// Content according to a line.
pub(in crate::trace) enum RowContent {
    None,
    Blocks(Box<[u32]>),
    Pieces(Box<[Piece]>),
    Tokens(Box<[Token]>),
    /// Turn of a chat whose prompt holds the answer before.
    Chat(ChatTurn),
}

/// Parses a JSON object of `format`.
pub(in crate::trace) fn object<T: DeserializeOwned>(text: &[u8], format: Format) -> Result<T, TraceFault> {
    serde_json::from_slice(&with_long_ids_quoted(text))
        .map_err(|e| TraceFault::Malformed { format, why: e.to_string() })
}

/// Returns the value of a required field; `expected` has the fields of a request, in words.
pub(in crate::trace) fn present<T>(
    expected: &'static str,
    field: &'static str,
    value: Option<T>,
) -> Result<T, TraceFault> {
    value.ok_or(TraceFault::MissingField { field, expected })
}

/// Returns a number without a fraction of zeros: some programs write whole numbers as `374.0`.
pub(in crate::trace) fn whole(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    }
}

/// Parses a number of tokens from 0 to [`LENGTH_TOKENS_MAX`].
pub(in crate::trace) fn length(field: &'static str, text: &str) -> Result<u32, TraceFault> {
    match whole(text).parse() {
        Ok(n @ 0..=LENGTH_TOKENS_MAX) => Ok(n),
        _ => Err(TraceFault::BadLength { field, value: if text.is_empty() { "empty".into() } else { text.into() } }),
    }
}

/// Parses the length of an output, and the field `prefetch`, which is returned too: with `true` there is no output.
pub(in crate::trace) fn output_length(
    expected: &'static str,
    field: &'static str,
    value: Option<Value>,
    prefetch: Option<Value>,
) -> Result<(u32, bool), TraceFault> {
    match prefetch {
        None | Some(Value::Null | Value::Bool(false)) => {
            Ok((length(field, &present(expected, field, value)?.to_string())?, false))
        }
        Some(Value::Bool(true)) if value.as_ref().is_none_or(|length| length.as_f64() == Some(0.0)) => Ok((0, true)),
        Some(Value::Bool(true)) => {
            let value = value.map_or_else(String::new, |length| length.to_string());
            Err(TraceFault::BadTerm { field, value, expected: "0, or left out, for a prefetch" })
        }
        Some(other) => {
            Err(TraceFault::BadTerm { field: "prefetch", value: other.to_string(), expected: "true or false" })
        }
    }
}
