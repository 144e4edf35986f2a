//! Lines of a Bailian usage trace: JSON objects.
//!
//! A block id names the content of 16 tokens alone rather than a whole prefix. Both are equivalent here, since a cache finds a
//! block only under its prefix. Turns and types are ignored. The ids express the prompts that turns share, but not the answers in
//! later prompts: [`ReaderOptions::reuse_answers`] finds those by `chat_id` and `parent_chat_id`.

use serde::Deserialize;

use crate::trace::block_ids::{BlockId, BlockIds};
use crate::trace::block_line::{BlockIdLine, FIELDS, pieces};
use crate::trace::chats::ChatTurn;
use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::row::{RowContent, object, present};
use crate::trace::format::{
    Field, FileFacts, Format, FormatOption, LineParser, Opened, Order, Parsed, Reading, Shares, TraceFormat,
};
use crate::trace::{ReaderOptions, TraceFault};

/// Tokens per block id.
const BLOCK_TOKENS: u32 = 16;

/// JSON lines with block ids and chats, as in the usage traces of Qwen on Bailian.
pub const BAILIAN: Format = Format(&TraceFormat {
    name: "bailian",
    title: "Bailian",
    about: "JSON: `chat_id`, `timestamp` (s), `input_length`, `output_length`, `hash_ids`",
    shares: Shares::Blocks(BLOCK_TOKENS),
    options: &[FormatOption::ReuseAnswers, FormatOption::TimeUnit],
    loses: Some("chats, turns and types are left out"),
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[
            Field::Required(&["chat_id"]),
            Field::Required(&["timestamp"]),
            Field::Prompt(&["input_length"]),
            Field::Required(&["output_length"]),
            Field::Required(&["hash_ids"]),
            Field::Optional(&["parent_chat_id"]),
        ],
        open,
    },
    writing: None,
});

/// Parser of a file.
struct Parser {
    /// `true` to put the answer before into a prompt.
    reuse_answers: bool,
    numbers: BlockIds,
    facts: FileFacts,
}

/// Place of a line in its chat.
#[derive(Deserialize)]
struct Chat {
    chat_id: BlockId,
    /// Number below 0 for the first turn.
    parent_chat_id: Option<BlockId>,
}

fn open(_: &[u8], options: &ReaderOptions) -> Opened {
    let clock = Some(Clock::new(TimeUnit::Seconds, options.time_unit));
    let parser = Parser {
        reuse_answers: options.reuse_answers,
        numbers: BlockIds::default(),
        facts: FileFacts { clock, ..FileFacts::default() },
    };
    Opened { parser: Box::new(parser), order: Order::Time }
}

impl LineParser for Parser {
    fn parse(&mut self, text: &[u8]) -> Result<Parsed, TraceFault> {
        let mut line = BlockIdLine::parse(text, BAILIAN)?;
        let at_ns = self.facts.time_ns("timestamp", &present(FIELDS, "timestamp", line.timestamp.take())?)?;
        let (mut row, ids) = line.into_row(at_ns, BAILIAN, BLOCK_TOKENS, &mut self.numbers, &mut self.facts.names)?;
        if row.is_empty() {
            return Ok(Parsed::Request(row));
        }
        let ids = present(FIELDS, "hash_ids", ids)?;
        row.content = if self.reuse_answers {
            let Chat { chat_id: chat, parent_chat_id } = object(text, BAILIAN)?;
            let parent = parent_chat_id.filter(|parent| !matches!(parent, BlockId::Below0(_)));
            RowContent::Chat(ChatTurn { chat, parent, ids, block_tokens: BLOCK_TOKENS })
        } else {
            RowContent::Pieces(pieces(&ids, row.input_tokens, BLOCK_TOKENS))
        };
        Ok(Parsed::Request(row))
    }

    fn facts(&self) -> Option<&FileFacts> {
        Some(&self.facts)
    }
}
