//! Lines of a Bailian usage trace: JSON objects.
//!
//! A block id names the content of 16 tokens alone rather than a whole prefix. Both are equivalent here, since a cache finds a
//! block only under its prefix. Turns and types are ignored. The ids express the prompts that turns share, but not the answers in
//! later prompts: [`ReaderOptions::reuse_answers`] finds those by `chat_id` and `parent_chat_id`.
//!
//! [`ReaderOptions::reuse_answers`]: super::ReaderOptions::reuse_answers

use serde::Deserialize;
use serde_json::Value;

use super::block_ids::BlockIds;
use super::chats::ChatTurn;
use super::csv::{SECONDS, seconds_ns};
use super::mooncake::{BlockIdLine, FIELDS, pieces, present};
use super::row::{Row, RowContent};
use super::{Format, TraceFault};

/// Tokens per block id.
pub(super) const BLOCK_TOKENS: u32 = 16;

/// Place of a line in its chat.
#[derive(Deserialize)]
struct Chat {
    chat_id: i64,
    /// -1 for the first turn.
    parent_chat_id: Option<i64>,
}

/// Parses a line; the answer before belongs into its prompt if `reuse_answers` is set.
pub(super) fn parse(line: &[u8], reuse_answers: bool, numbers: &mut BlockIds) -> Result<Row, TraceFault> {
    let BlockIdLine { at_ns, input_tokens, output_tokens, ids, terms, retention } =
        BlockIdLine::parse(line, Format::Bailian, BLOCK_TOKENS, numbers, timestamp_ns)?;
    let ids = present(FIELDS, "hash_ids", ids)?;
    let content = if reuse_answers {
        let malformed = |e: serde_json::Error| TraceFault::Malformed { format: Format::Bailian, why: e.to_string() };
        let Chat { chat_id: chat, parent_chat_id } = serde_json::from_slice(line).map_err(malformed)?;
        let parent = parent_chat_id.filter(|parent| *parent >= 0);
        RowContent::Chat(ChatTurn { chat, parent, ids, block_tokens: BLOCK_TOKENS })
    } else {
        RowContent::Pieces(pieces(&ids, input_tokens, BLOCK_TOKENS))
    };
    Ok(Row { at_ns, input_tokens, output_tokens, content, output: None, terms, retention, turn: None, line: 0 })
}

fn timestamp_ns(value: Value) -> Result<u64, TraceFault> {
    let text = value.to_string();
    seconds_ns(&text).ok_or(TraceFault::BadTimestamp { field: "timestamp", value: text, expected: SECONDS })
}
