//! Lines of a Mooncake trace: JSON objects.
//!
//! Benchmarks and Dynamo write the same lines with sessions: lines of one `session_id` are its turns, and a later turn arrives `delay`
//! milliseconds after the end of the turn before. They may leave out `hash_ids`, and the `timestamp` of any line with a session.

use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::trace::block_ids::BlockIds;
use crate::trace::block_line::{BlockIdLine, FIELDS, pieces};
use crate::trace::blocks::{PrefixTree, blocks_of};
use crate::trace::format::row::{Row, RowContent, RowTurn, TIME_NS_END, present};
use crate::trace::format::{
    Field, Format, FormatOption, LineParser, Opened, Order, Reading, Shares, TraceFormat, Writing,
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
    options: &[FormatOption::BlockTokens],
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
    };
    Opened { parser: Box::new(parser), order: if session_id.is_some() { Order::Sessions } else { Order::Time } }
}

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Option<Row>, TraceFault> {
        let mut line = BlockIdLine::parse(line, MOONCAKE)?;
        let turn = turn(&mut line)?;
        let at_ns = match line.timestamp.take() {
            None if turn.is_some() => 0,
            timestamp => milliseconds_ns("timestamp", present(FIELDS, "timestamp", timestamp)?)?,
        };
        let (mut row, ids) = line.into_row(at_ns, MOONCAKE, self.block_tokens, &mut self.numbers)?;
        row.turn = turn;
        row.content = match ids {
            None if self.has_ids => return Err(TraceFault::MissingField { field: "hash_ids", expected: FIELDS }),
            None => RowContent::None,
            Some(ids) if self.block_tokens == HASH_ID_TOKENS => RowContent::Blocks(ids),
            Some(ids) => RowContent::Pieces(pieces(&ids, row.input_tokens, self.block_tokens)),
        };
        Ok(Some(row))
    }
}

/// Returns the place in a session, if the line names one.
fn turn(line: &mut BlockIdLine) -> Result<Option<RowTurn>, TraceFault> {
    let Some(session) = line.session_id.take() else { return Ok(None) };
    let session = match session {
        Value::String(name) => name,
        other => other.to_string(),
    };
    let delay_ns = line.delay.take().map(|delay| milliseconds_ns("delay", delay)).transpose()?.unwrap_or(0);
    Ok(Some(RowTurn { session: session.into(), delay_ns, is_timed: line.timestamp.is_some() }))
}

/// Returns whole milliseconds exactly, fractions to the nearest nanosecond.
fn milliseconds_ns(field: &'static str, value: Value) -> Result<u64, TraceFault> {
    let whole = value.as_u64().and_then(|ms| ms.checked_mul(NS_PER_MS)).filter(|ns| *ns < TIME_NS_END);
    let any = || {
        value
            .as_f64()
            .map(|ms| ms * NS_PER_MS as f64)
            .filter(|ns| (0.0..TIME_NS_END as f64).contains(ns))
            .map(|ns| ns.round() as u64)
    };
    whole.or_else(any).ok_or_else(|| TraceFault::BadTimestamp {
        field,
        value: value.to_string(),
        expected: "milliseconds, not negative, before the year 2116 if counted from 1970",
    })
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
