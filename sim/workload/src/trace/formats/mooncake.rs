//! Lines of a Mooncake trace: JSON objects.
//!
//! Benchmarks and routers write the same lines with sessions: lines of one `session_id` are its turns, and a later turn arrives `delay`
//! milliseconds after the end of the turn before. They may leave out `hash_ids`, and the `timestamp` of any line with a session.

use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::trace::block_ids::BlockIds;
use crate::trace::block_line::{BlockIdLine, FIELDS, pieces};
use crate::trace::blocks::{PrefixTree, blocks_of};
use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::row::{RowContent, RowTurn, present};
use crate::trace::format::{
    Field, FileFacts, Format, FormatOption, LineParser, Opened, Order, Parsed, Reading, Shares, TraceFormat, Writing,
};
use crate::trace::write::{decimal, push_list, push_terms};
use crate::trace::{Content, HASH_ID_TOKENS, ReaderOptions, TraceFault, TraceRequest, WriteFault};

const NS_PER_MS: u64 = 1_000_000;

/// JSON lines with block ids, as published with the Mooncake paper (FAST 2025).
pub const MOONCAKE: Format = Format(&TraceFormat {
    name: "mooncake",
    title: "Mooncake",
    about: "JSON: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, without which shared prefixes are unknown; \
            [sessions](#sessions) have `session_id` and `delay` (ms)",
    shares: Shares::Blocks(HASH_ID_TOKENS),
    options: &[FormatOption::BlockTokens, FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[
            Field::Required(&["timestamp", "created_time", "session_id"]),
            Field::Prompt(&["input_length", "input_tokens"]),
            Field::Required(&["output_length", "output_tokens"]),
            Field::Optional(&["hash_ids"]),
            Field::Optional(&["session_id"]),
        ],
        open,
    },
    writing: Some(Writing {
        suffixes: &["", "jsonl", "json"],
        header: "",
        is_private: false,
        has_terms: true,
        line: write,
    }),
});

/// Parser of a file.
struct Parser {
    block_tokens: u32,
    /// `true` if every line has ids; else those without have a unique prompt.
    has_ids: bool,
    numbers: BlockIds,
    facts: FileFacts,
}

/// Fields that say of what kind a file is.
#[derive(Default, Deserialize)]
struct Telltale {
    session_id: Option<IgnoredAny>,
    hash_ids: Option<Value>,
}

fn open(first: &[u8], options: &ReaderOptions) -> Opened {
    // What is wrong with a damaged line is for the parser to say.
    let Telltale { session_id, hash_ids } = serde_json::from_slice(first).unwrap_or_default();
    let parser = Parser {
        block_tokens: options.block_tokens.map_or(HASH_ID_TOKENS, NonZeroU32::get),
        has_ids: hash_ids.is_some_and(|ids| ids != Value::Array(Vec::new())),
        numbers: BlockIds::default(),
        facts: FileFacts { clock: Some(Clock::new(TimeUnit::Milliseconds, options.time_unit)), ..FileFacts::default() },
    };
    Opened { parser: Box::new(parser), order: if session_id.is_some() { Order::Sessions } else { Order::Time } }
}

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let mut line = BlockIdLine::parse(line, MOONCAKE)?;
        let (timestamp, has_session) = (line.timestamp.take(), line.session_id.is_some());
        let at_ns = match &timestamp {
            None if has_session => 0,
            _ => self.facts.time_ns("timestamp", &present(FIELDS, "timestamp", timestamp.as_ref().cloned())?)?,
        };
        let turn = turn(&mut line, timestamp.is_some(), &self.facts)?;
        let (mut row, ids) =
            line.into_row(at_ns, MOONCAKE, self.block_tokens, &mut self.numbers, &mut self.facts.names)?;
        row.turn = turn;
        row.content = match ids {
            None if self.has_ids && row.input_tokens > 0 => {
                return Err(TraceFault::MissingField { field: "hash_ids", expected: FIELDS });
            }
            None => RowContent::None,
            Some(ids) if self.block_tokens == HASH_ID_TOKENS => RowContent::Blocks(ids),
            Some(ids) => RowContent::Pieces(pieces(&ids, row.input_tokens, self.block_tokens)),
        };
        Ok(Parsed::Request(row))
    }

    fn facts(&self) -> Option<&FileFacts> {
        Some(&self.facts)
    }
}

/// Returns the place in a session, if the line names one. A delay is in milliseconds, or in the unit that the user gives unless its name says another:
/// a unit by which timestamps are dates says nothing of it.
fn turn(line: &mut BlockIdLine, is_timed: bool, facts: &FileFacts) -> Result<Option<RowTurn>, TraceFault> {
    let Some(session) = line.session_id.take() else { return Ok(None) };
    let session = match session {
        Value::String(name) => name,
        other => other.to_string(),
    };
    let given = facts.clock.as_ref().and_then(Clock::given);
    let (field, delay, unit) = match line.delay.take() {
        None => ("delay_ms", line.delay_ms.take(), TimeUnit::Milliseconds),
        delay => ("delay", delay, given.unwrap_or(TimeUnit::Milliseconds)),
    };
    let ns = |delay: Value| {
        let text = delay.to_string();
        unit.ns(&text).ok_or(TraceFault::BadTimestamp { field, value: text, expected: unit.expected() })
    };
    let delay_ns = delay.map(ns).transpose()?.unwrap_or(0);
    Ok(Some(RowTurn { session: session.into(), delay_ns, is_timed }))
}

fn write(request: &TraceRequest, tree: &mut PrefixTree, line: &mut String) -> Result<(), WriteFault> {
    let at_ms = decimal(request.arrival_ns, NS_PER_MS);
    let TraceRequest { input_tokens, output_tokens, content, .. } = request;
    line.push_str(&format!(
        r#"{{"timestamp": {at_ms}, "input_length": {input_tokens}, "output_length": {output_tokens}, "hash_ids": "#
    ));
    match content {
        Content::Blocks(ids) => push_list(line, ids),
        _ => push_list(line, &made_ids(request, tree)?),
    }
    push_terms(line, request);
    Ok(())
}

/// Returns one id per 512 tokens, equal for two blocks with an equal prefix up to their ends.
fn made_ids(request: &TraceRequest, tree: &mut PrefixTree) -> Result<Box<[u32]>, WriteFault> {
    let mut ids = Vec::with_capacity(request.input_tokens.div_ceil(HASH_ID_TOKENS) as usize);
    let mut full = false;
    let unshared = matches!(request.content, Content::Unique(_));
    blocks_of(request, HASH_ID_TOKENS, |content, _| {
        let id = match unshared {
            true => tree.unshared(),
            false => tree.child(ids.last().copied(), content).map(|(id, _)| id),
        };
        full |= id.is_none();
        ids.extend(id);
    });
    if full { Err(WriteFault::TooManyBlocks) } else { Ok(ids.into()) }
}
