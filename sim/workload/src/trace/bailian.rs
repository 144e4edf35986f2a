//! Lines of a Bailian usage trace: JSON objects.
//!
//! A block id names the content of 16 tokens alone rather than a whole prefix. Both are equivalent here, since a cache finds a
//! block only under its prefix. Chats, turns and types are ignored: block ids already express the content shared between turns.

use serde_json::Value;

use super::csv::{SECONDS, seconds_ns};
use super::mooncake::{BlockIdLine, FIELDS, pieces, present};
use super::row::{Row, RowContent};
use super::{Format, TraceFault};

/// Tokens per block id.
pub(super) const BLOCK_TOKENS: u32 = 16;

pub(super) fn parse(line: &[u8]) -> Result<Row, TraceFault> {
    let BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention } =
        BlockIdLine::parse(line, Format::Bailian, BLOCK_TOKENS, timestamp_ns)?;
    let ids = present(FIELDS, "hash_ids", ids)?;
    let content = RowContent::Pieces(pieces(&ids, input_tokens, BLOCK_TOKENS));
    Ok(Row { at_ns, input_tokens, output_tokens, content, output: None, terms, retention, turn: None })
}

fn timestamp_ns(value: Value) -> Result<u64, TraceFault> {
    let text = value.to_string();
    seconds_ns(&text).ok_or(TraceFault::BadTimestamp { field: "timestamp", value: text, expected: SECONDS })
}
