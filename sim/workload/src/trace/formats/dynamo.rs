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
use crate::trace::format::{Field, Format, LineParser, Opened, Order, Reading, Shares, TraceFormat};

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
            let has_sessions = serde_json::from_slice::<Record>(first).is_ok_and(|it| it.agent_context.is_some());
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
    /// End of the latest turn of each session, milliseconds.
    ends_ms: HashMap<String, f64>,
    numbers: BlockIds,
}

impl LineParser for Parser {
    fn is_request(&self, line: &[u8]) -> bool {
        // What is wrong with another line is for the parser to say.
        serde_json::from_slice::<Record>(line).map_or(true, |record| record.event_type == "request_end")
    }

    fn parse(&mut self, line: &[u8]) -> Result<Option<Row>, TraceFault> {
        let Record { agent_context, request, .. } = object(line, DYNAMO)?;
        let request = present(FIELDS, "request", request)?;
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
                let (size, hashes) = (replay.trace_block_size.max(1), replay.input_sequence_hashes);
                let input = length("input_length", &replay.input_length.to_string())?;
                let ids = numbers(hashes, input, DYNAMO, size, &mut self.numbers)?;
                let content = RowContent::Pieces(pieces(&ids, input, size));
                Row { content, ..Row::without_content(at_ns, input, output) }
            }
        };
        let session = agent_context.and_then(|context| context.session_id).filter(|_| self.has_sessions);
        if let Some(session) = session {
            self.take_turn(session, received_ms, request.total_time_ms.unwrap_or(0.0).max(0.0), &mut row);
        }
        Ok(Some(row))
    }
}

impl Parser {
    /// Makes a row a turn of its session, unless it overlaps the turn before.
    fn take_turn(&mut self, session: String, received_ms: f64, took_ms: f64, row: &mut Row) {
        let before_ms = self.ends_ms.get(&session).copied();
        let end_ms = received_ms + took_ms;
        self.ends_ms.insert(session.clone(), before_ms.unwrap_or(end_ms).max(end_ms));
        let delay_ms = received_ms - before_ms.unwrap_or(received_ms);
        if delay_ms >= 0.0 {
            let is_timed = before_ms.is_none();
            row.turn = Some(RowTurn { session: session.into(), delay_ns: (delay_ms * NS_PER_MS) as u64, is_timed });
            row.at_ns = if is_timed { row.at_ns } else { 0 };
        }
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
        ];
        let requests = load(&lines).unwrap();
        let shape = |it: &TraceRequest| {
            (it.arrival_ns / 1_000_000, it.turn.map(|turn| (turn.delay_ns / 1_000_000, turn.is_last)))
        };
        let expected = [(0, Some((0, false))), (1_000, Some((0, true))), (3_000, Some((3_000, true))), (5_500, None)];
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
        assert!(many.contains("3") && many.contains("64"), "{many}");
    }
}
