//! Lines of a Mooncake trace: JSON objects.
//!
//! AIPerf and Dynamo write the same lines with sessions: lines of one `session_id` are its turns, and a later turn arrives `delay`
//! milliseconds after the end of the turn before. They may leave out `hash_ids`, and the `timestamp` of any line with a session.

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::RetentionHint;

use super::block_ids::{BlockId, BlockIds};
use super::row::{Row, RowContent, RowTurn, TIME_NS_END, length};
use super::{Format, HASH_ID_TOKENS, Piece, Terms, TraceFault, retention};

pub(super) const FIELDS: &str = "timestamp, input_length and output_length, and hash_ids for what prompts share";
const NS_PER_MS: f64 = 1e6;

#[derive(Deserialize)]
struct Object {
    timestamp: Option<Value>,
    created_time: Option<Value>,
    input_length: Option<Value>,
    input_tokens: Option<Value>,
    output_length: Option<Value>,
    output_tokens: Option<Value>,
    hash_ids: Option<Vec<BlockId>>,
    session_id: Option<Value>,
    delay: Option<Value>,
    delay_ms: Option<Value>,
    tenant: Option<Value>,
    namespace: Option<Value>,
    priority: Option<Value>,
    deadline_s: Option<Value>,
    retention: Option<Value>,
}

/// Line with block ids, as in the Mooncake and Bailian formats, which differ in the unit of time and the size of a block.
pub(super) struct BlockIdLine {
    pub at_ns: u64,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// `None` if nothing is known of the content.
    pub ids: Option<Box<[u32]>>,
    pub terms: Terms,
    pub retention: Box<[RetentionHint]>,
}

impl Object {
    fn parse(line: &[u8], format: Format) -> Result<Self, TraceFault> {
        let mut object: Self =
            serde_json::from_slice(line).map_err(|e| TraceFault::Malformed { format, why: e.to_string() })?;
        // Dynamo writes either name.
        object.timestamp = object.timestamp.or(object.created_time.take());
        object.input_length = object.input_length.or(object.input_tokens.take());
        object.output_length = object.output_length.or(object.output_tokens.take());
        object.delay = object.delay.or(object.delay_ms.take());
        Ok(object)
    }

    /// Returns the lengths and the content, in blocks of `block_tokens` tokens, of a line of `format` that arrives at `at_ns`.
    fn into_line(
        self,
        at_ns: u64,
        format: Format,
        block_tokens: u32,
        numbers: &mut BlockIds,
    ) -> Result<BlockIdLine, TraceFault> {
        let tokens =
            |field: &'static str, value: Option<Value>| length(field, &present(FIELDS, field, value)?.to_string());
        let input_tokens = tokens("input_length", self.input_length)?;
        let output_tokens = tokens("output_length", self.output_length)?;
        // No ids are all ids of a prompt without a full block.
        let ids = self.hash_ids.filter(|ids| !ids.is_empty() || input_tokens < block_tokens);
        let ids = ids.map(|ids| hash_ids(ids, input_tokens, format, block_tokens, numbers)).transpose()?;
        let terms = Terms::of_json([self.tenant, self.namespace, self.priority, self.deadline_s])?;
        let retention = retention::of_json(self.retention)?;
        Ok(BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention })
    }

    /// Returns the place in a session, if the line names one.
    fn turn(&mut self) -> Result<Option<RowTurn>, TraceFault> {
        let Some(session) = self.session_id.take() else { return Ok(None) };
        let session = match session {
            Value::String(name) => name,
            other => other.to_string(),
        };
        let delay_ns = self.delay.take().map(|delay| milliseconds_ns("delay", delay)).transpose()?.unwrap_or(0);
        Ok(Some(RowTurn { session: session.into(), delay_ns, is_timed: self.timestamp.is_some() }))
    }
}

impl BlockIdLine {
    /// Parses a line of `format` with blocks of `block_tokens` tokens; `at_ns` converts the timestamp.
    pub(super) fn parse(
        line: &[u8],
        format: Format,
        block_tokens: u32,
        numbers: &mut BlockIds,
        at_ns: fn(Value) -> Result<u64, TraceFault>,
    ) -> Result<Self, TraceFault> {
        let mut object = Object::parse(line, format)?;
        let at_ns = at_ns(present(FIELDS, "timestamp", object.timestamp.take())?)?;
        object.into_line(at_ns, format, block_tokens, numbers)
    }
}

/// Block ids of a trace.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// Tokens per id.
    pub tokens: u32,
    /// `true` if every line has ids; else those without have a unique prompt.
    pub are_known: bool,
}

pub(super) fn parse(line: &[u8], blocks: Blocks, numbers: &mut BlockIds) -> Result<Row, TraceFault> {
    let mut object = Object::parse(line, Format::Mooncake)?;
    let turn = object.turn()?;
    let at_ns = match object.timestamp.take() {
        None if turn.is_some() => 0,
        timestamp => milliseconds_ns("timestamp", present(FIELDS, "timestamp", timestamp)?)?,
    };
    let BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention } =
        object.into_line(at_ns, Format::Mooncake, blocks.tokens, numbers)?;
    let content = match ids {
        None if blocks.are_known => return Err(TraceFault::MissingField { field: "hash_ids", expected: FIELDS }),
        None => RowContent::None,
        Some(ids) if blocks.tokens == HASH_ID_TOKENS => RowContent::Blocks(ids),
        Some(ids) => RowContent::Pieces(pieces(&ids, input_tokens, blocks.tokens)),
    };
    Ok(Row { at_ns, input_tokens, output_tokens, content, output: None, terms, retention, turn, line: 0 })
}

/// Returns the content of a prompt with an id for every `block_tokens` tokens.
pub(super) fn pieces(ids: &[u32], input_tokens: u32, block_tokens: u32) -> Box<[Piece]> {
    let tokens_of = |i: usize| (input_tokens - i as u32 * block_tokens).min(block_tokens);
    ids.iter().enumerate().map(|(i, id)| Piece { content: *id, tokens: tokens_of(i) }).collect()
}

pub(super) fn present<T>(expected: &'static str, field: &'static str, value: Option<T>) -> Result<T, TraceFault> {
    value.ok_or(TraceFault::MissingField { field, expected })
}

/// Returns the numbers of the block ids of a prompt of `input_tokens` tokens, if there are as many as it has blocks. Engines know no hash of a block that
/// is not full: where the last block of the prompt is not, and alone has no id, no other prompt has its content.
fn hash_ids(
    ids: Vec<BlockId>,
    input_tokens: u32,
    format: Format,
    block_tokens: u32,
    numbers: &mut BlockIds,
) -> Result<Box<[u32]>, TraceFault> {
    let expected = input_tokens.div_ceil(block_tokens) as usize;
    let only_full = ids.len() + 1 == expected && ids.len() == (input_tokens / block_tokens) as usize;
    if ids.len() != expected && !only_full {
        return Err(TraceFault::HashIdCount { found: ids.len(), expected, input_tokens, format, block_tokens });
    }
    let mut of_ids = ids.into_iter().map(|id| numbers.number(id)).collect::<Result<Vec<u32>, _>>()?;
    if only_full {
        of_ids.push(numbers.next()?);
    }
    Ok(of_ids.into_boxed_slice())
}

/// Returns whole milliseconds exactly, fractions to the nearest nanosecond.
fn milliseconds_ns(field: &'static str, value: Value) -> Result<u64, TraceFault> {
    let whole = value.as_u64().and_then(|ms| ms.checked_mul(NS_PER_MS as u64)).filter(|ns| *ns < TIME_NS_END);
    let any = || {
        value
            .as_f64()
            .map(|ms| ms * NS_PER_MS)
            .filter(|ns| (0.0..TIME_NS_END as f64).contains(ns))
            .map(|ns| ns.round() as u64)
    };
    whole.or_else(any).ok_or_else(|| TraceFault::BadTimestamp {
        field,
        value: value.to_string(),
        expected: "milliseconds, not negative, before the year 2116 if counted from 1970",
    })
}
