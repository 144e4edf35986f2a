//! Traces of requests as NVIDIA Dynamo writes them (`DYN_REQUEST_TRACE`, schema `dynamo.request.trace.v1`): JSON lines with a record each.
//!
//! Records of ended requests count, those of tools and payloads do not. Dynamo names each block of a prompt by a hash of all blocks up to it. Requests
//! of one session, if agents name theirs, are its turns; one that began before the turn before it had ended arrives at its own time.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::trace::TraceFault;
use crate::trace::block_ids::{BlockId, BlockIds};
use crate::trace::block_line::{numbers, pieces};
use crate::trace::format::row::{Row, RowContent, RowTurn, TIME_NS_END, length, object, present};
use crate::trace::format::{Field, Format, LineParser, Opened, Order, Parsed, Reading, Shares, TraceFormat};

const NS_PER_MS: f64 = 1e6;

/// JSON lines of Dynamo's request traces.
pub const DYNAMO: Format = Format(&TraceFormat {
    name: "dynamo",
    title: "Dynamo",
    about: "JSON of `DYN_REQUEST_TRACE`: `event_type` `request_end`, `agent_context.session_id`, `request` with `request_received_ms`, \
            `output_tokens`, `total_time_ms` and `replay`",
    shares: Shares::Pieces,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[
            Field::Required(&["schema"]),
            Field::Required(&["event_type"]),
            Field::Optional(&["request"]),
            Field::Optional(&["agent_context"]),
        ],
        open: |first, _| {
            // What is wrong with a damaged line is for the parser to say.
            let has_sessions = object::<Record>(first, DYNAMO).is_ok_and(|record| record.session().is_some());
            let parser = Parser { has_sessions, ends_ms: HashMap::new(), numbers: BlockIds::default() };
            Opened { parser: Box::new(parser), order: if has_sessions { Order::Sessions } else { Order::Any } }
        },
    },
    writing: None,
});

/// Fields of a request, in words.
const FIELDS: &str =
    "request_received_ms, output_tokens, and replay with trace_block_size, input_length and input_sequence_hashes";

#[derive(Deserialize)]
struct Record {
    event_type: String,
    agent_context: Option<AgentContext>,
    request: Option<Request>,
}

impl Record {
    fn session(&self) -> Option<&str> {
        self.agent_context.as_ref()?.session_id.as_deref()
    }
}

#[derive(Deserialize)]
struct AgentContext {
    session_id: Option<String>,
}

#[derive(Deserialize)]
struct Request {
    request_received_ms: Option<f64>,
    total_time_ms: Option<f64>,
    input_tokens: Option<Value>,
    output_tokens: Option<Value>,
    replay: Option<Replay>,
}

#[derive(Deserialize)]
struct Replay {
    trace_block_size: u32,
    input_length: Value,
    input_sequence_hashes: Vec<BlockId>,
}

struct Parser {
    has_sessions: bool,
    /// End of the last turn of each session, milliseconds.
    ends_ms: HashMap<String, f64>,
    numbers: BlockIds,
}

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let mut record: Record = object(line, DYNAMO)?;
        if record.event_type != "request_end" {
            return Ok(Parsed::Nothing);
        }
        let request = present(FIELDS, "request", record.request.take())?;
        let received_ms = present(FIELDS, "request_received_ms", request.request_received_ms)?;
        if !(0.0..TIME_NS_END as f64 / NS_PER_MS).contains(&received_ms) {
            let value = received_ms.to_string();
            return Err(TraceFault::BadTimestamp {
                field: "request_received_ms",
                value,
                expected: "milliseconds, from 0 on",
            });
        }
        let output = length("output_tokens", &present(FIELDS, "output_tokens", request.output_tokens)?.to_string())?;
        let at_ns = (received_ms * NS_PER_MS) as u64;
        let mut row = match request.replay {
            None => {
                let input = present(FIELDS, "replay", request.input_tokens)?;
                Row::without_content(at_ns, length("input_tokens", &input.to_string())?, output)
            }
            Some(replay) => {
                let (size, hashes) = (replay.trace_block_size, replay.input_sequence_hashes);
                if size == 0 {
                    let why = "trace_block_size is 0; it must be at least 1".into();
                    return Err(TraceFault::Malformed { format: DYNAMO, why });
                }
                let input = length("input_length", &replay.input_length.to_string())?;
                let ids = numbers(hashes, input, DYNAMO, size, &mut self.numbers)?;
                let content = RowContent::Pieces(pieces(&ids, input, size));
                Row { content, ..Row::without_content(at_ns, input, output) }
            }
        };
        if let Some(session) = record.session() {
            if !self.has_sessions {
                return Err(TraceFault::LateSession);
            }
            let took_ms = present(FIELDS, "total_time_ms", request.total_time_ms)?;
            self.take_turn(session, received_ms, received_ms + took_ms.max(0.0), &mut row);
        }
        Ok(Parsed::Request(row))
    }
}

impl Parser {
    /// Makes a row a turn of its session, unless it began before the end of the turn before.
    fn take_turn(&mut self, session: &str, begin_ms: f64, end_ms: f64, row: &mut Row) {
        let before_ms = self.ends_ms.get(session).copied();
        let delay_ms = before_ms.map_or(0.0, |before_ms| begin_ms - before_ms);
        if delay_ms < 0.0 {
            return;
        }
        let is_timed = before_ms.is_none();
        row.turn = Some(RowTurn { session: session.into(), delay_ns: (delay_ms * NS_PER_MS) as u64, is_timed });
        row.at_ns = if is_timed { row.at_ns } else { 0 };
        self.ends_ms.insert(session.into(), end_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::trace::{Content, Trace, TraceRequest};

    fn load(lines: &[String]) -> Result<Vec<TraceRequest>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), lines.join("\n")).unwrap();
        Trace::load(file.path(), None, None).map(|trace| trace.requests).map_err(|error| error.fault.to_string())
    }

    fn record(session: &str, received_ms: u64, took_ms: u64, replay: &str) -> String {
        let context = format!(r#""agent_context": {{"session_id": "{session}", "trajectory_id": "t"}}, "#);
        let context = if session.is_empty() { "" } else { &context };
        format!(
            r#"{{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": {}, {context}
            "request": {{"request_id": "a", "request_received_ms": {received_ms}, "total_time_ms": {took_ms}.0, "output_tokens": 8{replay}}}}}"#,
            received_ms + took_ms
        )
        .replace('\n', " ")
    }

    fn replay(length: u32, hashes: &str) -> String {
        format!(
            r#", "replay": {{"trace_block_size": 64, "input_length": {length}, "input_sequence_hashes": [{hashes}]}}"#
        )
    }

    const T0: u64 = 1_700_000_000_000;

    #[test]
    fn requests_of_a_session_follow_their_pauses_and_others_their_times() {
        let one = replay(100, "18000000000000000001, 18000000000000000002");
        let more = replay(130, "18000000000000000001, 18000000000000000003, 5");
        let tool = r#"{"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"tool_call_id": "x"}}"#;
        let lines = [
            record("s", T0, 2_000, &one),
            tool.into(),
            record("s", T0 + 5_000, 1_000, &more),
            record("s", T0 + 5_500, 9_000, &one),
            record("other", T0 + 1_000, 100, &one),
            record("s", T0 + 20_000, 1_000, &one),
        ];
        let requests = load(&lines).unwrap();
        let shape = |it: &TraceRequest| {
            (it.arrival_ns / 1_000_000, it.turn.map(|turn| (turn.delay_ns / 1_000_000, turn.is_last)))
        };
        // The earliest times, as if answers took no time; a pause begins at the end of the last turn, which the third request is not.
        let expected = [
            (0, Some((0, false))),
            (1_000, Some((0, true))),
            (3_000, Some((3_000, false))),
            (5_500, None),
            (17_000, Some((14_000, true))),
        ];
        assert_eq!(requests.iter().map(shape).collect::<Vec<_>>(), expected);
        let blocks = |at: usize| match &requests[at].content {
            Content::Pieces(pieces) => pieces.iter().map(|it| (it.content, it.tokens)).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(blocks(0), blocks(1));
        assert!(blocks(0)[0] == blocks(2)[0] && blocks(0)[1].0 != blocks(2)[1].0 && blocks(2)[2].1 == 2);
    }

    #[test]
    fn without_sessions_requests_arrive_at_their_times() {
        let lines = [record("", T0 + 7_000, 1, &replay(64, "1")), record("", T0, 1, r#", "input_tokens": 9"#)];
        let requests = load(&lines).unwrap();
        let shape = |it: &TraceRequest| (it.arrival_ns / 1_000_000, it.input_tokens, it.turn);
        assert_eq!(requests.iter().map(shape).collect::<Vec<_>>(), [(0, 9, None), (7_000, 64, None)]);
    }

    #[test]
    fn faults_are_named() {
        let fault = |replay: &str| load(&[record("", T0, 1, replay)]).unwrap_err();
        assert!(
            fault("").starts_with("field 'replay' is missing; a request has request_received_ms, "),
            "{}",
            fault("")
        );
        let many = fault(&replay(64, "1, 2, 3"));
        assert!(many.starts_with("3 hash_ids for input_length 64; there must be 1"), "{many}");
        let size = fault(&replay(64, "1").replace("\"trace_block_size\": 64", "\"trace_block_size\": 0"));
        assert!(size.contains("trace_block_size is 0"), "{size}");
        let untimed = record("s", T0, 1, &replay(64, "1")).replace("\"total_time_ms\": 1.0, ", "");
        assert!(load(&[untimed]).unwrap_err().starts_with("field 'total_time_ms' is missing"));
        let late = [record("", T0, 1, &replay(64, "1")), record("s", T0, 1, &replay(64, "1"))];
        assert!(load(&late).unwrap_err().starts_with("session_id is in this line but not in the first"));
    }
}
