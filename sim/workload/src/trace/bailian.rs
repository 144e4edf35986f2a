//! Lines of a Bailian usage trace: JSON objects.
//!
//! A block id names the content of 16 tokens alone rather than a whole prefix. Both are equivalent here, since a cache finds a
//! block only under its prefix. Chats, turns and types are ignored: block ids already express the content shared between turns.

use serde::Deserialize;
use serde_json::Value;

use super::csv::seconds_ns;
use super::mooncake::{hash_ids, present};
use super::reader::{Row, RowContent, length};
use super::{Format, Piece, TraceFault};

const FIELDS: &str = "timestamp, input_length, output_length and hash_ids";
/// Tokens per block id.
pub(super) const BLOCK_TOKENS: u32 = 16;

#[derive(Deserialize)]
struct Object {
    timestamp: Option<Value>,
    input_length: Option<Value>,
    output_length: Option<Value>,
    hash_ids: Option<Vec<u64>>,
}

pub(super) fn parse(line: &[u8]) -> Result<Row, TraceFault> {
    let object: Object = serde_json::from_slice(line)
        .map_err(|e| TraceFault::Malformed { format: Format::Bailian, why: e.to_string() })?;
    let timestamp = present(FIELDS, "timestamp", object.timestamp)?.to_string();
    let at_ns = seconds_ns(&timestamp).ok_or(TraceFault::BadTimestamp {
        field: "timestamp",
        value: timestamp,
        expected: "seconds, not negative, below 10^9",
    })?;
    let input_tokens = length("input_length", &present(FIELDS, "input_length", object.input_length)?.to_string())?;
    let output_tokens = length("output_length", &present(FIELDS, "output_length", object.output_length)?.to_string())?;
    let ids = hash_ids(present(FIELDS, "hash_ids", object.hash_ids)?, input_tokens, BLOCK_TOKENS)?;
    let tokens_of = |i: usize| (input_tokens - i as u32 * BLOCK_TOKENS).min(BLOCK_TOKENS);
    let pieces = ids.iter().enumerate().map(|(i, id)| Piece { content: *id, tokens: tokens_of(i) }).collect();
    Ok(Row { at_ns, input_tokens, output_tokens, content: RowContent::Pieces(pieces) })
}
