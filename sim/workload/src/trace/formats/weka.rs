//! Sessions of agents with their sub-agents: a JSON document for each session, as the KV cache tester of Weka writes them.
//!
//! Times and fields are those of the tester: `t` is in seconds from the beginning of the session, `api_time` how long the answer took, and `hash_ids`
//! name the blocks of the prompt, within the session unless `hash_id_scope` is `global`. Requests of a sub-agent are entries of the list of
//! an entry of the list; older files count their `t` from the beginning of the sub-agent.
//!
//! A session becomes one row of turns in the order of their starts, those of sub-agents among them: requests that overlapped follow each other
//! without a pause. All models of a session are taken to be one.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::trace::block_ids::BlockIds;
use crate::trace::format::results::{ResultFault, Results, documents, of_request};
use crate::trace::format::row::{Row, RowContent, RowTurn, TIME_NS_END, length};
use crate::trace::format::{Field, Format, Reading, Shares, TraceFormat};
use crate::trace::{Piece, ReaderOptions, TraceFault};

/// JSON documents of sessions, as in `cc-traces-weka` and AgentX.
pub const WEKA: Format = Format(&TraceFormat {
    name: "weka",
    title: "Weka",
    about: "JSON, a document for each session of an agent: `block_size`, `hash_id_scope`, `requests` with `t` (s), `in`, `out`, \
            `hash_ids`, `api_time`; [sub-agents](#sessions) are among them",
    shares: Shares::Pieces,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Document {
        fields: &[
            Field::Required(&["requests"]),
            Field::Required(&["block_size"]),
            Field::Required(&["hash_id_scope"]),
            Field::Optional(&["models"]),
        ],
        read,
    },
    writing: None,
});

/// Session of an agent.
#[derive(Deserialize)]
struct Session {
    block_size: u32,
    hash_id_scope: String,
    requests: Vec<Entry>,
}

/// Request, or an agent with requests of its own. The field `type` tells them apart too, and is not needed.
#[derive(Deserialize)]
struct Entry {
    t: f64,
    #[serde(rename = "in", default)]
    input: Value,
    #[serde(rename = "out", default)]
    output: Value,
    #[serde(default)]
    hash_ids: Vec<u64>,
    api_time: Option<f64>,
    think_time: Option<f64>,
    requests: Option<Vec<Entry>>,
}

/// Request with its start, seconds from the beginning of its session.
struct Call<'a> {
    start_s: f64,
    entry: &'a Entry,
}

/// Numbers of the blocks of a file.
#[derive(Default)]
struct Blocks {
    numbers: BlockIds,
    of_all: HashMap<u64, u32>,
}

fn read(text: &[u8], _: &ReaderOptions) -> Result<Results, TraceFault> {
    let sessions: Vec<Session> = documents(text, WEKA)?;
    let (mut rows, mut blocks) = (Vec::new(), Blocks::default());
    for (number, session) in sessions.iter().enumerate() {
        let malformed = |why: String| {
            TraceFault::from(ResultFault::Malformed { format: WEKA, why: format!("session {number}: {why}") })
        };
        if session.block_size == 0 {
            return Err(malformed("block_size is 0; it must be at least 1".into()));
        }
        let is_global = match session.hash_id_scope.as_str() {
            "local" => false,
            "global" => true,
            _ => return Err(malformed("hash_id_scope is neither local nor global".into())),
        };
        let mut calls = Vec::new();
        collect(&session.requests, 0.0, &mut calls).map_err(malformed)?;
        calls.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        let (mut of_session, mut end) = (HashMap::new(), None);
        for call in calls {
            let known = if is_global { &mut blocks.of_all } else { &mut of_session };
            let faulty = of_request(rows.len());
            let mut row = row(&call, session.block_size, known, &mut blocks.numbers).map_err(&faulty)?;
            let pause_s = pause_s(&call, end).map_err(&faulty)?;
            let turn = RowTurn { session: number.to_string().into(), delay_ns: ns(pause_s), is_timed: end.is_none() };
            (row.turn, row.at_ns) = (Some(turn), if end.is_none() { ns(call.start_s) } else { 0 });
            end = Some(End::of(&call).or_later(end));
            rows.push(row);
        }
    }
    Ok(Results { rows, ..Results::default() })
}

/// End of the requests so far of a session.
#[derive(Clone, Copy)]
struct End {
    /// Latest end that is known, seconds.
    at_s: f64,
    /// `true` if the last request says how long its answer took.
    is_known: bool,
}

impl End {
    fn of(call: &Call<'_>) -> Self {
        let took_s = call.entry.api_time;
        Self { at_s: call.start_s + took_s.unwrap_or(0.0).max(0.0), is_known: took_s.is_some() }
    }

    fn or_later(self, other: Option<Self>) -> Self {
        Self { at_s: other.map_or(self.at_s, |other| other.at_s.max(self.at_s)), ..self }
    }
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Returns the pause of a request after the end of those before it, seconds: as the times say, or else as the client says.
fn pause_s(call: &Call<'_>, end: Option<End>) -> Result<f64, TraceFault> {
    match (end, call.entry.think_time) {
        (None, _) => Ok(0.0),
        (Some(End { at_s, is_known: true }), _) => Ok((call.start_s - at_s).max(0.0)),
        (Some(_), Some(pause_s)) => Ok(pause_s.max(0.0)),
        (Some(_), None) => {
            Err(TraceFault::MissingField { field: "think_time", expected: "one after a request without api_time" })
        }
    }
}

/// Appends the requests of a list, and of the sub-agents in it. If the first of a sub-agent seems to start before it, all of its times count from its
/// start, `begin_s`.
fn collect<'a>(entries: &'a [Entry], begin_s: f64, calls: &mut Vec<Call<'a>>) -> Result<(), String> {
    let origin_s = if entries.first().is_some_and(|first| first.t < begin_s) { begin_s } else { 0.0 };
    for entry in entries {
        let start_s = origin_s + entry.t;
        if !(0.0..TIME_NS_END as f64 / 1e9).contains(&start_s) {
            return Err(format!("t is {}; it must be seconds, from 0 on", entry.t));
        }
        if entry.requests.is_none() || !entry.input.is_null() {
            calls.push(Call { start_s, entry });
        }
        if let Some(own) = &entry.requests {
            collect(own, start_s, calls)?;
        }
    }
    Ok(())
}

fn row(
    call: &Call<'_>,
    block_size: u32,
    known: &mut HashMap<u64, u32>,
    numbers: &mut BlockIds,
) -> Result<Row, TraceFault> {
    let Entry { input, output, hash_ids, .. } = call.entry;
    let (input_tokens, output_tokens) = (length("in", &input.to_string())?, length("out", &output.to_string())?);
    let expected = input_tokens.div_ceil(block_size) as usize;
    if hash_ids.len() > expected {
        let found = hash_ids.len();
        return Err(TraceFault::HashIdCount { found, expected, input_tokens, format: WEKA, block_tokens: block_size });
    }
    let (mut pieces, mut left) = (Vec::new(), input_tokens);
    for id in hash_ids {
        let content = match known.get(id) {
            Some(number) => *number,
            None => *known.entry(*id).or_insert(numbers.next()?),
        };
        let tokens = left.min(block_size);
        pieces.push(Piece { content, tokens });
        left -= tokens;
    }
    // What no id names is shared with nobody.
    if left > 0 {
        pieces.push(Piece { content: numbers.next()?, tokens: left });
    }
    let content = RowContent::Pieces(pieces.into());
    Ok(Row { content, ..Row::without_content(0, input_tokens, output_tokens) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::trace::{Content, Trace, TraceRequest};

    fn load(text: &str) -> Result<Vec<TraceRequest>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let name = file.path().display().to_string();
        let trace = Trace::load(file.path(), None, None);
        trace.map(|trace| trace.requests).map_err(|error| error.to_string().replace(&name, ""))
    }

    fn session(scope: &str, requests: &str) -> String {
        format!(
            r#"{{"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "{scope}", "tool_tokens": 5, "requests": [{requests}]}}"#
        )
    }

    fn call(t: f64, input: u32, ids: &str, api_time: f64) -> String {
        format!(
            r#"{{"t": {t}, "type": "n", "model": "m", "in": {input}, "out": 9, "hash_ids": [{ids}], "stop": "", "api_time": {api_time}}}"#
        )
    }

    /// Blocks of a prompt: numbers in the order of appearance, and tokens.
    fn blocks(requests: &[TraceRequest]) -> Vec<Vec<(usize, u32)>> {
        let mut seen = Vec::new();
        let mut number = |content: u32| {
            seen.iter().position(|it| *it == content).unwrap_or_else(|| {
                seen.push(content);
                seen.len() - 1
            })
        };
        let pieces = requests.iter().map(|request| match &request.content {
            Content::Pieces(pieces) => pieces.iter().map(|it| (number(it.content), it.tokens)).collect(),
            other => panic!("{other:?}"),
        });
        pieces.collect()
    }

    #[test]
    fn requests_of_an_agent_and_its_sub_agents_are_turns_in_the_order_of_their_starts() {
        let of_sub_agent = |t: f64| {
            let inner = [call(t, 64, "9", 1.0), call(t + 5.0, 66, "9", 1.0)].join(", ");
            format!(r#"{{"t": 4.0, "agent_id": "x", "status": "completed", "requests": [{inner}]}}"#)
        };
        let first = call(0.0, 100, "1, 2", 3.0);
        let last = call(11.5, 130, "1, 2, 3", 1.0);
        for inner in [4.0, 0.0] {
            let requests = load(&session("local", &[&first[..], &of_sub_agent(inner), &last].join(", "))).unwrap();
            let turns: Vec<_> = requests.iter().map(|it| (it.input_tokens, it.turn.unwrap())).collect();
            assert_eq!(turns.iter().map(|(tokens, _)| *tokens).collect::<Vec<_>>(), [100, 64, 66, 130]);
            let delays = turns.iter().map(|(_, turn)| turn.delay_ns as f64 / 1e9).collect::<Vec<_>>();
            assert_eq!(delays, [0.0, 1.0, 4.0, 1.5], "from end to start");
            assert_eq!(turns.iter().map(|(_, turn)| turn.is_last).collect::<Vec<_>>(), [false, false, false, true]);
            let sub_agent = [vec![(2, 64)], vec![(2, 64), (3, 2)]];
            let expected = [&[vec![(0, 64), (1, 36)]], &sub_agent[..], &[vec![(0, 64), (1, 64), (4, 2)]]].concat();
            assert_eq!(blocks(&requests), expected);
        }
    }

    #[test]
    fn what_overlapped_follows_without_a_pause() {
        let delays = |calls: &[String]| {
            let requests = load(&session("local", &calls.join(", "))).unwrap();
            requests.iter().map(|it| it.turn.unwrap().delay_ns / 1_000_000_000).collect::<Vec<_>>()
        };
        // The first takes 100 s; the third overlaps it, and the fourth comes 7 s after it.
        let calls = [(0.0, 100.0), (1.0, 1.0), (50.0, 1.0), (107.0, 1.0)].map(|(t, took)| call(t, 64, "1", took));
        assert_eq!(delays(&calls), [0, 0, 0, 7]);
        let untimed = call(0.0, 64, "1", 3.0).replace(", \"api_time\": 3", "");
        let next = call(9.0, 64, "1", 1.0);
        let paused = next.replace("\"stop\"", "\"think_time\": 4.0, \"stop\"");
        assert_eq!(delays(&[untimed.clone(), paused]), [0, 4], "as the client says");
        let fault = load(&session("local", &[untimed, next].join(", "))).unwrap_err();
        assert!(fault.contains("request 1 of the result: field 'think_time' is missing"), "{fault}");
    }

    #[test]
    fn sessions_share_blocks_only_if_ids_are_of_all() {
        let both = |scope: &str| format!("{0}\n{0}\n", session(scope, &call(0.0, 65, "7", 1.0)));
        let shared = |scope: &str| blocks(&load(&both(scope)).unwrap());
        assert_eq!(shared("local"), [[(0, 64), (1, 1)], [(2, 64), (3, 1)]]);
        assert_eq!(shared("global"), [[(0, 64), (1, 1)], [(0, 64), (2, 1)]]);
        // Pretty documents are read too.
        let pretty = both("global").replace(r#""models""#, "\n\"models\"").replacen('{', "{\n", 1);
        assert_eq!(blocks(&load(&pretty).unwrap()), shared("global"));
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: String| load(&text).unwrap_err();
        let of = |scope: &str, requests: &str| fault(session(scope, requests));
        assert!(of("x", "").ends_with("(session 0: hash_id_scope is neither local nor global)"), "{}", of("x", ""));
        let ids = of("local", &call(0.0, 64, "1, 2", 1.0));
        assert!(ids.contains("request 0 of the result: ") && ids.contains("hash_ids"), "{ids}");
        let time = of("local", &call(-1.0, 64, "1", 1.0));
        assert!(time.ends_with("(session 0: t is -1; it must be seconds, from 0 on)"), "{time}");
        let length = of("local", &call(0.0, 64, "1", 1.0).replace("\"in\"", "\"input\""));
        assert!(length.ends_with("in is null; it must be a whole number from 0 to 16777216"), "{length}");
        let none = fault(session("local", "").replace("64", "0"));
        assert!(none.contains("block_size is 0; it must be at least 1"), "{none}");
    }
}
