//! A line of a Bailian usage trace: a JSON object.
//!
//! Its block ids name the content of 16 tokens alone, not of the whole prefix, which comes to the same: a cache finds a
//! block under its prefix only. Chats, turns and types are not looked at: what a turn shares with the one before is in
//! the ids.

use serde::Deserialize;
use serde_json::Value;

use super::csv::seconds_ns;
use super::mooncake::{hash_ids, present};
use super::reader::{Row, RowContent, length};
use super::{Format, Piece, TraceFault};

const FIELDS: &str = "timestamp, input_length, output_length and hash_ids";
/// Tokens that an id stands for.
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
