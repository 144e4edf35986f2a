//! Lines of a Bailian usage trace: JSON objects.
//!
//! A block id names the content of 16 tokens alone rather than a whole prefix. Both are equivalent here, since a cache finds a
//! block only under its prefix. Chats, turns and types are ignored: block ids already express the content shared between turns.

use serde_json::Value;

use super::csv::seconds_ns;
use super::mooncake::BlockIdLine;
use super::row::{Row, RowContent};
use super::{Format, Piece, TraceFault};

/// Tokens per block id.
pub(super) const BLOCK_TOKENS: u32 = 16;

pub(super) fn parse(line: &[u8]) -> Result<Row, TraceFault> {
    let BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention } =
        BlockIdLine::parse(line, Format::Bailian, BLOCK_TOKENS, timestamp_ns)?;
    let tokens_of = |i: usize| (input_tokens - i as u32 * BLOCK_TOKENS).min(BLOCK_TOKENS);
    let pieces = ids.iter().enumerate().map(|(i, id)| Piece { content: *id, tokens: tokens_of(i) }).collect();
    Ok(Row { at_ns, input_tokens, output_tokens, content: RowContent::Pieces(pieces), output: None, terms, retention })
}

fn timestamp_ns(value: Value) -> Result<u64, TraceFault> {
    let text = value.to_string();
    seconds_ns(&text).ok_or(TraceFault::BadTimestamp {
        field: "timestamp",
        value: text,
        expected: "seconds, not negative, below 10^9",
    })
}
