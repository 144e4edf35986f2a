//! Lines of a Mooncake trace: JSON objects.

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::RetentionHint;

use super::row::{Row, RowContent, length};
use super::{Format, HASH_ID_MAX, HASH_ID_TOKENS, Terms, TraceFault, retention};

const FIELDS: &str = "timestamp, input_length, output_length and hash_ids";
const NS_PER_MS: f64 = 1e6;

#[derive(Deserialize)]
struct Object {
    timestamp: Option<Value>,
    input_length: Option<Value>,
    output_length: Option<Value>,
    hash_ids: Option<Vec<u64>>,
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
    pub ids: Box<[u32]>,
    pub terms: Terms,
    pub retention: Box<[RetentionHint]>,
}

impl BlockIdLine {
    /// Parses a line of `format` with blocks of `block_tokens` tokens; `at_ns` converts the timestamp.
    pub(super) fn parse(
        line: &[u8],
        format: Format,
        block_tokens: u32,
        at_ns: fn(Value) -> Result<u64, TraceFault>,
    ) -> Result<Self, TraceFault> {
        let object: Object =
            serde_json::from_slice(line).map_err(|e| TraceFault::Malformed { format, why: e.to_string() })?;
        let at_ns = at_ns(present(FIELDS, "timestamp", object.timestamp)?)?;
        let tokens =
            |field: &'static str, value: Option<Value>| length(field, &present(FIELDS, field, value)?.to_string());
        let input_tokens = tokens("input_length", object.input_length)?;
        let output_tokens = tokens("output_length", object.output_length)?;
        let ids = hash_ids(present(FIELDS, "hash_ids", object.hash_ids)?, input_tokens, block_tokens)?;
        let terms = Terms::of_json([object.tenant, object.namespace, object.priority, object.deadline_s])?;
        let retention = retention::of_json(object.retention)?;
        Ok(Self { at_ns, input_tokens, output_tokens, ids, terms, retention })
    }
}

pub(super) fn parse(line: &[u8]) -> Result<Row, TraceFault> {
    let BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention } =
        BlockIdLine::parse(line, Format::Mooncake, HASH_ID_TOKENS, timestamp_ns)?;
    Ok(Row { at_ns, input_tokens, output_tokens, content: RowContent::Blocks(ids), output: None, terms, retention })
}

pub(super) fn present<T>(expected: &'static str, field: &'static str, value: Option<T>) -> Result<T, TraceFault> {
    value.ok_or(TraceFault::MissingField { field, expected })
}

/// Checks that a prompt of `input_tokens` tokens has the right number of block ids, none above [`HASH_ID_MAX`].
fn hash_ids(ids: Vec<u64>, input_tokens: u32, block_tokens: u32) -> Result<Box<[u32]>, TraceFault> {
    let expected = input_tokens.div_ceil(block_tokens) as usize;
    if ids.len() != expected {
        return Err(TraceFault::HashIdCount { found: ids.len(), expected, input_tokens, block_tokens });
    }
    let checked =
        |id: u64| u32::try_from(id).ok().filter(|id| *id <= HASH_ID_MAX).ok_or(TraceFault::HashIdTooLarge { id });
    ids.into_iter().map(checked).collect()
}

/// First timestamp out of range, nanoseconds: 31 years, far below the limit of a replay's clock.
const TIMESTAMP_NS_MAX: u64 = 1_000_000_000_000_000_000;

/// Returns whole milliseconds exactly, fractions to the nearest nanosecond.
fn timestamp_ns(value: Value) -> Result<u64, TraceFault> {
    let whole = value.as_u64().and_then(|ms| ms.checked_mul(NS_PER_MS as u64)).filter(|ns| *ns < TIMESTAMP_NS_MAX);
    let any = || {
        value
            .as_f64()
            .map(|ms| ms * NS_PER_MS)
            .filter(|ns| (0.0..TIMESTAMP_NS_MAX as f64).contains(ns))
            .map(|ns| ns.round() as u64)
    };
    whole.or_else(any).ok_or_else(|| TraceFault::BadTimestamp {
        field: "timestamp",
        value: value.to_string(),
        expected: "milliseconds, not negative, below 10^12",
    })
}
