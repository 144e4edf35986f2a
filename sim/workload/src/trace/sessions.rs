//! Sessions of a trace: a later turn arrives when the turn before has ended, as an agent sends its next request after an answer.
//!
//! The lines of a trace with sessions come in any order of time, often session by session. A reader takes all lines, and puts requests in the
//! order of their earliest times: the line's own timestamp, or that of the turn before and the delay, as if
//! answers took no time. A replay of them is closed: see [`Source`].
//!
//! [`Source`]: super::Source

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::TraceRequest;
use super::format::row::Row;

/// Place of a request in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of the session in the trace, from 0.
    pub session: u32,
    /// Time from the end of the turn before, nanoseconds; of no meaning for the first turn.
    pub delay_ns: u64,
    /// `true` for the last turn of the session.
    pub is_last: bool,
}

/// Latest turn of a session.
#[derive(Default)]
struct Latest {
    /// Number of the session, and index of its latest turn with work.
    with_work: Option<(u32, usize)>,
    /// Earliest time of the latest turn, with work or without.
    at_ns: u64,
    /// Delays of the turns without work since the latest turn with work.
    delay_ns: u64,
}

/// Puts the rows of a trace with sessions in the order of their earliest times, which become their times. Rows with equal times keep
/// their order, and so do the turns of a session. A session that names no time begins with the trace. Rows without work are left out; the
/// time and the delay of such a turn count for the next turn.
pub(super) fn in_order(rows: Vec<Row>) -> Vec<(Row, Option<Turn>)> {
    let timed = |row: &Row| row.turn.as_ref().is_none_or(|turn| turn.is_timed);
    let begin_ns = rows.iter().filter(|row| timed(row)).map(|row| row.at_ns).min().unwrap_or(0);
    let mut latest: HashMap<Box<str>, Latest> = HashMap::new();
    let mut n_sessions = 0;
    let mut placed: Vec<(Row, Option<Turn>)> = Vec::with_capacity(rows.len());
    for mut row in rows {
        let (is_timed, is_empty) = (timed(&row), row.is_empty());
        let Some(turn) = row.turn.take() else {
            if !is_empty {
                placed.push((row, None));
            }
            continue;
        };
        let before = latest.get(&turn.session);
        let least_ns = before.map_or(begin_ns, |before| before.at_ns.saturating_add(turn.delay_ns));
        row.at_ns = least_ns.max(if is_timed { row.at_ns } else { 0 });
        let session = latest.entry(turn.session).or_default();
        let delay_ns = session.delay_ns.saturating_add(turn.delay_ns);
        session.at_ns = row.at_ns;
        session.delay_ns = if is_empty { delay_ns } else { 0 };
        if is_empty {
            continue;
        }
        if let Some((_, index)) = session.with_work {
            placed[index].1.as_mut().expect("a turn").is_last = false;
        }
        let number = session.with_work.map_or(n_sessions, |(number, _)| number);
        n_sessions = n_sessions.max(number + 1);
        session.with_work = Some((number, placed.len()));
        placed.push((row, Some(Turn { session: number, delay_ns, is_last: true })));
    }
    placed.sort_by_key(|(row, _)| row.at_ns);
    placed
}

/// One session in the course of a replay.
#[derive(Clone, Debug, Default)]
struct Session {
    /// Turns that wait for the one in flight.
    waiting: VecDeque<TraceRequest>,
    /// Time at which the latest turn ended, if none is in flight.
    ended_ns: Option<u64>,
}

/// The sessions of a replay: which turns wait, and for what.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    /// Sessions with a turn to come, by number.
    begun: HashMap<u32, Session>,
    /// Session of each turn in flight that another one follows, by the number of the request.
    in_flight: HashMap<u64, u32>,
    /// Turns whose time is known, by that time and in the order in which it became known.
    due: BTreeMap<(u64, u64), TraceRequest>,
    n_due: u64,
}

impl Sessions {
    /// Takes a turn that waits for another one. Returns any other request: it arrives at its own time.
    pub(super) fn hold(&mut self, request: TraceRequest) -> Option<TraceRequest> {
        let session = request.turn.and_then(|turn| self.begun.get_mut(&turn.session));
        let Some(session) = session else { return Some(request) };
        match session.ended_ns.filter(|_| session.waiting.is_empty()) {
            Some(ended_ns) => self.fall_due(request, ended_ns),
            None => session.waiting.push_back(request),
        }
        None
    }

    /// Notes when a turn arrives whose turn before ended at `ended_ns`.
    fn fall_due(&mut self, mut request: TraceRequest, ended_ns: u64) {
        let turn = request.turn.expect("a turn");
        if let Some(session) = self.begun.get_mut(&turn.session) {
            session.ended_ns = None;
        }
        request.arrival_ns = request.arrival_ns.max(ended_ns.saturating_add(turn.delay_ns));
        self.due.insert((request.arrival_ns, self.n_due), request);
        self.n_due += 1;
    }

    /// Returns the time of the next turn that is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    /// Takes the next turn that is due.
    pub(super) fn pop(&mut self) -> Option<TraceRequest> {
        self.due.pop_first().map(|(_, request)| request)
    }

    /// Notes that a request is in flight under `number`.
    pub(super) fn begin(&mut self, number: u64, request: &TraceRequest) {
        let Some(turn) = request.turn else { return };
        if turn.is_last {
            self.begun.remove(&turn.session);
        } else {
            self.begun.entry(turn.session).or_default();
            self.in_flight.insert(number, turn.session);
        }
    }

    /// Notes the end of request `number`: the next turn of its session is due.
    pub(super) fn ended(&mut self, number: u64, now_ns: u64) {
        let Some(session) = self.in_flight.remove(&number) else { return };
        let of = self.begun.get_mut(&session).expect("a turn follows");
        match of.waiting.pop_front() {
            Some(request) => self.fall_due(request, now_ns),
            None => of.ended_ns = Some(now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::super::{FileSource, Outcome, ReaderOptions, Selection, Source, TimeScaled, Trace};

    const LINES: &str = r#"
{"session_id": "b", "timestamp": 3000, "input_length": 10, "output_length": 1}
{"session_id": "b", "delay": 500, "input_length": 20, "output_length": 1}
{"session_id": "a", "timestamp": 2000, "input_length": 1, "output_length": 1}
{"session_id": "a", "timestamp": 9000, "input_length": 2, "output_length": 1}
{"session_id": "a", "delay_ms": 100, "input_tokens": 3, "output_tokens": 1, "hash_ids": null}
{"timestamp": 4000, "input_length": 7, "output_length": 1}
"#;

    const MS: u64 = 1_000_000;

    fn file(lines: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        file
    }

    /// Replays a source in which every request takes `e2e_ms`. Returns the arrivals in milliseconds, and the prompt lengths.
    fn arrivals(source: &mut dyn Source, e2e_ms: u64) -> Vec<(u64, u32)> {
        let (mut seen, mut running) = (Vec::new(), Vec::new());
        loop {
            let next = source.next_arrival_ns().unwrap();
            if let Some((number, end_ns)) = running.first().copied()
                && next.is_none_or(|next| end_ns <= next)
            {
                running.remove(0);
                source.ended(number, end_ns, Outcome::Completed);
                assert!(source.earliest_arrival_ns(0, end_ns) <= source.next_arrival_ns().unwrap().unwrap_or(u64::MAX));
                continue;
            }
            let Some(at_ns) = next else { return seen };
            let request = source.next_request().unwrap().unwrap();
            assert_eq!(request.arrival_ns, at_ns);
            running.push((seen.len() as u64, at_ns + e2e_ms * MS));
            seen.push((at_ns / MS, request.input_tokens));
        }
    }

    #[test]
    fn a_turn_arrives_after_the_end_of_the_turn_before() {
        let trace = Trace::load(file(LINES).path(), None, None).unwrap();
        // By their earliest times: session a begins the trace.
        assert_eq!(trace.requests.iter().map(|request| request.input_tokens).collect::<Vec<_>>(), [1, 10, 20, 7, 2, 3]);
        assert!(trace.source().waits_for_ends());
        assert_eq!(
            arrivals(&mut trace.source(), 50),
            [(0, 1), (1000, 10), (1550, 20), (2000, 7), (7000, 2), (7150, 3)]
        );
        // Answers that take ten seconds hold up every later turn, and nothing else.
        let slow = arrivals(&mut trace.source(), 10_000);
        assert_eq!(slow, [(0, 1), (1000, 10), (2000, 7), (10_000, 2), (11_500, 20), (20_100, 3)]);
        // At twice the speed, delays are halved and answers take as long.
        let fast = arrivals(&mut TimeScaled::new(trace.source(), 2.0), 50);
        assert_eq!(fast, [(0, 1), (500, 10), (800, 20), (1000, 7), (3500, 2), (3600, 3)]);
    }

    #[test]
    fn a_file_read_on_demand_is_the_same_and_a_slice_begins_with_any_turn() {
        let file = file(LINES);
        let selection = Selection::default();
        let mut source = FileSource::open(file.path(), ReaderOptions::default(), &selection).unwrap();
        let trace = Trace::load(file.path(), None, None).unwrap();
        assert_eq!(arrivals(&mut source, 10_000), arrivals(&mut trace.source(), 10_000));
        let selection = Selection { slice: "2..".parse().unwrap(), ..selection };
        let part = trace.select(&selection);
        // The second turn of b comes at its earliest time, since the first is not there.
        assert_eq!(arrivals(&mut part.source(), 50), [(0, 20), (500, 7), (5500, 2), (5650, 3)]);
        let mut source = FileSource::open(file.path(), ReaderOptions::default(), &selection).unwrap();
        assert_eq!(arrivals(&mut source, 50), arrivals(&mut part.source(), 50));
    }

    #[test]
    fn a_turn_without_work_hands_its_time_and_delay_on() {
        // The first turn of a and the middle turn of b have no work; c has none at all.
        let lines = r#"
{"session_id": "c", "timestamp": 0, "input_length": 5, "output_length": 0}
{"session_id": "d", "timestamp": 0, "input_length": 9, "output_length": 1}
{"session_id": "a", "timestamp": 2000, "input_length": 5, "output_length": 0}
{"session_id": "a", "delay": 300, "input_length": 1, "output_length": 1}
{"session_id": "b", "timestamp": 3000, "input_length": 2, "output_length": 1}
{"session_id": "b", "timestamp": 6000, "delay": 100, "input_length": 0, "output_length": 1}
{"session_id": "b", "delay": 400, "input_length": 3, "output_length": 1}
"#;
        let file = file(lines);
        let trace = Trace::load(file.path(), None, None).unwrap();
        assert_eq!(arrivals(&mut trace.source(), 50), [(0, 9), (2300, 1), (3000, 2), (6400, 3)]);
        let slow = arrivals(&mut trace.source(), 10_000);
        assert_eq!(slow, [(0, 9), (2300, 1), (3000, 2), (13_500, 3)]);
        let sessions: Vec<u32> = trace.requests.iter().map(|request| request.turn.unwrap().session).collect();
        assert_eq!(sessions, [0, 1, 2, 2]);
        let mut source = FileSource::open(file.path(), ReaderOptions::default(), &Selection::default()).unwrap();
        while source.next_request().unwrap().is_some() {}
        assert_eq!(source.left_out().empty, 3);
    }

    #[test]
    fn no_request_waits_where_arrivals_are_not_by_time() {
        let trace = Trace::load(file(LINES).path(), None, None).unwrap();
        let mut source = trace.source();
        source.wait_for_no_end();
        assert!(!source.waits_for_ends());
        let mut taken = Vec::new();
        while let Some(request) = source.next_request().unwrap() {
            taken.push(request);
        }
        assert_eq!(taken, trace.requests);
    }

    #[test]
    fn a_session_that_begins_late_is_refused() {
        let lines = r#"{"timestamp": 0, "input_length": 7, "output_length": 1}
{"session_id": "a", "timestamp": 5, "input_length": 7, "output_length": 1}"#;
        let file = file(lines);
        let error = Trace::load(file.path(), None, None).unwrap_err().to_string();
        assert!(error.ends_with(
            ", line 2: session_id is in this line but not in the first; give the first line one too, so that the trace is read whole"
        ), "{error}");
    }
}
