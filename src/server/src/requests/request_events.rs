//! The end of a request, as the log and the file of requests have it: ids, sizes and times, no prompt and no token.

use std::fmt::Write;

use trunkline_cluster::EngineId;
use trunkline_core::{FinishReason, Preempted, RequestId, Usage};

use crate::network::refusals::Reason;
use crate::requests::request_times::{End, RequestTimes};
use crate::requests::trace_parent::TraceParent;

/// Maximum number of engines of one request that are named.
const ENGINES_MAX: usize = 16;
/// Maximum number of preemptions of one request that are kept: the first ones.
const PREEMPTIONS_MAX: usize = 16;

/// Name of a request and of its tenant, from the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// The client's id of the request, or the server's.
    pub(crate) id: String,
    /// The client's name for the tenant; empty for none.
    pub(crate) tenant: String,
    /// Place of the call in the client's trace, if it has one.
    pub(crate) parent: Option<TraceParent>,
}

/// Engines that ran a request, in order, and preemptions there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Engines {
    /// Each with the time from which on, nanoseconds.
    named: Vec<(u32, u64)>,
    moves: u32,
    /// Each with its time, nanoseconds.
    preempted: Vec<(u64, Preempted)>,
}

impl Engines {
    /// Notes the engine that a request waits or runs on from `now_ns` on.
    pub(crate) fn go_to(&mut self, engine: EngineId, now_ns: u64) {
        if self.named.last().is_some_and(|(last, _)| *last == engine.0) {
            return;
        }
        self.moves += u32::from(!self.named.is_empty());
        if self.named.len() == ENGINES_MAX {
            self.named.pop();
        }
        self.named.push((engine.0, now_ns));
    }

    /// Notes a preemption at `now_ns`.
    pub(crate) fn preempt(&mut self, preempted: Preempted, now_ns: u64) {
        if self.preempted.len() < PREEMPTIONS_MAX {
            self.preempted.push((now_ns, preempted));
        }
    }

    /// Returns the first preemptions, each with its time, nanoseconds.
    pub(crate) fn preempted(&self) -> &[(u64, Preempted)] {
        &self.preempted
    }

    /// Returns the number of times that the request went from one engine to another.
    pub(crate) fn moves(&self) -> u32 {
        self.moves
    }

    /// Returns the numbers of the engines, each with the time from which on, nanoseconds.
    pub(crate) fn since(&self) -> impl Iterator<Item = (u32, u64)> {
        self.named.iter().copied()
    }

    /// Returns the numbers of the engines.
    pub(crate) fn text(&self) -> String {
        self.named.iter().map(|(engine, _)| engine.to_string()).collect::<Vec<_>>().join(">")
    }
}

/// Reader of a request's output when the request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The stream is there.
    There,
    /// The client ended the call, or is gone.
    Gone,
    /// The client did not read, and the output was discarded.
    Slow,
}

/// Manner in which a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// The request was accepted.
    Ended(End, Reader),
    /// The request was not accepted.
    Refused(Reason, tonic::Code),
}

/// A request that has ended, or was refused.
#[derive(Clone, Debug)]
pub(crate) struct RequestEvent {
    pub(crate) label: Label,
    /// Number in the core and in recordings; `None` if the request never got one.
    pub(crate) number: Option<RequestId>,
    pub(crate) ending: Ending,
    pub(crate) engines: Engines,
    /// Times on the clock of the server.
    pub(crate) times: RequestTimes,
    /// End, nanoseconds on the clock of the server.
    pub(crate) end_ns: u64,
    pub(crate) usage: Usage,
}

/// Value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    None,
    Text(String),
    Count(u64),
    /// Seconds, in nanoseconds.
    Seconds(u64),
    Flag(bool),
}

impl Cell {
    fn seconds(ns: Option<u64>) -> Self {
        ns.map_or(Self::None, Self::Seconds)
    }
}

impl RequestEvent {
    /// Returns `true` if the request was never accepted.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.ending, Ending::Refused(..))
    }

    /// Returns the reason for the end, as metrics name it.
    pub(crate) fn reason(&self) -> &'static str {
        match self.ending {
            Ending::Ended(end, _) => end.name(),
            Ending::Refused(reason, _) => reason.name(),
        }
    }

    /// Returns the status of the call in the form of gRPC.
    pub(crate) fn status(&self) -> tonic::Code {
        use tonic::Code;
        match self.ending {
            Ending::Refused(_, code) => code,
            Ending::Ended(End::NoWorker | End::CutShort, _) => Code::Unavailable,
            Ending::Ended(End::Finished(reason), reader) => match (reason, reader) {
                (FinishReason::Timeout, _) => Code::DeadlineExceeded,
                (FinishReason::Error | FinishReason::NotFinite, _) => Code::Internal,
                (FinishReason::Unsupported, _) => Code::InvalidArgument,
                (FinishReason::Abort, Reader::Slow) => Code::ResourceExhausted,
                (FinishReason::Abort, Reader::Gone) => Code::Cancelled,
                (FinishReason::Stop | FinishReason::Length | FinishReason::Abort, _) => Code::Ok,
            },
        }
    }

    /// Returns the name and the value of each column: those of `replay --requests` first, under the same names.
    pub(crate) fn columns(&self) -> [(&'static str, Cell); 20] {
        let Self { label, engines, times, usage, end_ns, .. } = self;
        let is_refused = self.is_refused();
        let since = |ns: Option<u64>| Cell::seconds(ns.map(|ns| ns.saturating_sub(times.arrival_ns)));
        let count = |n: u32| Cell::Count(n.into());
        let further = u64::from(usage.completion_tokens.saturating_sub(1));
        let decode = times.first_token_ns.filter(|_| further > 0).map(|first| end_ns.saturating_sub(first) / further);
        let met = match self.ending {
            Ending::Ended(End::Finished(FinishReason::Timeout), _) => Cell::Flag(false),
            Ending::Ended(End::Finished(FinishReason::Stop | FinishReason::Length), _) => {
                times.deadline_ns.map_or(Cell::None, |deadline_ns| Cell::Flag(*end_ns <= deadline_ns))
            }
            Ending::Ended(..) | Ending::Refused(..) => Cell::None,
        };
        [
            ("id", Cell::Text(label.id.clone())),
            ("arrival_s", Cell::Seconds(times.arrival_ns)),
            ("replica", engines.named.last().map_or(Cell::None, |(engine, _)| count(*engine))),
            ("tenant", Cell::Text(label.tenant.clone())),
            ("prompt_tokens", count(usage.prompt_tokens)),
            ("cached_tokens", count(usage.cached_tokens)),
            ("output_tokens", count(usage.completion_tokens)),
            ("queue_s", since(times.started_ns)),
            ("ttft_s", since(times.first_token_ns)),
            ("tpot_s", Cell::seconds(decode)),
            ("e2e_s", since((!is_refused).then_some(*end_ns))),
            ("preemptions", count(usage.preemptions)),
            ("refused", Cell::Flag(is_refused)),
            ("deadline_met", met),
            ("copied_tokens", count(usage.copied_tokens)),
            ("reason", Cell::Text(self.reason().into())),
            ("status", Cell::Text(code_name(self.status()).into())),
            ("engines", Cell::Text(engines.text())),
            ("moves", count(engines.moves)),
            ("prepare_s", since(times.queued_ns)),
        ]
    }
}

/// Returns the name of a status, as in the table of statuses of the protocol.
pub(crate) fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        _ => "UNKNOWN",
    }
}

/// Appends the names of the columns as the first line of a CSV file.
pub(crate) fn csv_header(columns: &[(&'static str, Cell)], line: &mut String) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    line.push_str(&names.join(","));
    line.push('\n');
}

/// Appends a row as a line of CSV. Missing values are empty, flags 0 or 1, and times have nine decimals, as in the files of replays.
pub(crate) fn csv_row(columns: &[(&'static str, Cell)], line: &mut String) {
    for (at, (_, cell)) in columns.iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        match cell {
            Cell::None => {}
            Cell::Text(text) => csv_text(text, line),
            Cell::Flag(flag) => line.push(if *flag { '1' } else { '0' }),
            Cell::Count(_) | Cell::Seconds(_) => number(cell, line),
        }
    }
    line.push('\n');
}

/// Appends a row as a JSON object in one line. Missing values are left out.
pub(crate) fn json_row(columns: &[(&'static str, Cell)], line: &mut String) {
    let mut is_first = true;
    for (name, cell) in columns.iter().filter(|(_, cell)| *cell != Cell::None) {
        line.push(if std::mem::take(&mut is_first) { '{' } else { ',' });
        // Writing to a string does not fail.
        let _ = write!(line, "\"{name}\":");
        match cell {
            Cell::Text(text) => json_text(text, line),
            Cell::Flag(flag) => line.push_str(if *flag { "true" } else { "false" }),
            Cell::None | Cell::Count(_) | Cell::Seconds(_) => number(cell, line),
        }
    }
    line.push_str("}\n");
}

fn number(cell: &Cell, line: &mut String) {
    // Writing to a string does not fail.
    let _ = match cell {
        Cell::Count(n) => write!(line, "{n}"),
        Cell::Seconds(ns) => write!(line, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
        Cell::None | Cell::Text(_) | Cell::Flag(_) => Ok(()),
    };
}

/// Appends a text from a client: no text begins a line of its own, and a comma or quotation mark begins no column.
fn csv_text(text: &str, line: &mut String) {
    let is_quoted = text.contains([',', '"']);
    line.push_str(if is_quoted { "\"" } else { "" });
    for character in text.chars() {
        match character {
            '"' => line.push_str("\"\""),
            control if control.is_control() => line.extend(control.escape_default()),
            plain => line.push(plain),
        }
    }
    line.push_str(if is_quoted { "\"" } else { "" });
}

fn json_text(text: &str, line: &mut String) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            control if control.is_control() => {
                // Control characters are below 0x10000. Writing to a string does not fail.
                let _ = write!(line, "\\u{:04x}", u32::from(control));
            }
            plain => line.push(plain),
        }
    }
    line.push('"');
}

/// A request that ended, for tests.
#[cfg(test)]
pub(crate) mod sample {
    use super::*;

    pub(crate) const MS: u64 = 1_000_000;

    pub(crate) fn event() -> RequestEvent {
        let mut engines = Engines::default();
        [(2, 1502), (2, 1510), (0, 1515)].into_iter().for_each(|(engine, ms)| engines.go_to(EngineId(engine), ms * MS));
        let mut times = RequestTimes::new(1500 * MS, 100);
        times.queued_ns = Some(1501 * MS);
        times.deadline_ns = Some(9000 * MS);
        (times.started_ns, times.first_token_ns) = (Some(1510 * MS), Some(1520 * MS));
        RequestEvent {
            label: Label { id: "a,\"b\"\n".into(), tenant: "acme".into(), parent: None },
            number: Some(RequestId(7)),
            ending: Ending::Ended(End::Finished(FinishReason::Stop), Reader::There),
            engines,
            times,
            end_ns: 1560 * MS,
            usage: Usage {
                prompt_tokens: 100,
                cached_tokens: 32,
                completion_tokens: 5,
                preemptions: 1,
                ..Usage::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{MS, event};
    use super::*;

    #[test]
    fn a_row_has_the_columns_and_no_text_of_a_client_breaks_it() {
        let mut text = String::new();
        let columns = event().columns();
        csv_header(&columns, &mut text);
        csv_row(&columns, &mut text);
        json_row(&columns, &mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "id,arrival_s,replica,tenant,prompt_tokens,cached_tokens,output_tokens,queue_s,ttft_s,tpot_s,e2e_s,preemptions,refused,deadline_met,copied_tokens,reason,status,engines,moves,prepare_s",
                r#""a,""b""\n",1.500000000,0,acme,100,32,5,0.010000000,0.020000000,0.010000000,0.060000000,1,0,1,0,stop,OK,2>0,1,0.001000000"#,
                r#"{"id":"a,\"b\"\u000a","arrival_s":1.500000000,"replica":0,"tenant":"acme","prompt_tokens":100,"cached_tokens":32,"output_tokens":5,"queue_s":0.010000000,"ttft_s":0.020000000,"tpot_s":0.010000000,"e2e_s":0.060000000,"preemptions":1,"refused":false,"deadline_met":true,"copied_tokens":0,"reason":"stop","status":"OK","engines":"2>0","moves":1,"prepare_s":0.001000000}"#,
            ]
        );
    }

    #[test]
    fn a_refused_request_has_no_times() {
        let refused = RequestEvent {
            number: None,
            ending: Ending::Refused(Reason::QueueFull, tonic::Code::ResourceExhausted),
            engines: Engines::default(),
            times: RequestTimes::new(5 * MS, 0),
            usage: Usage::default(),
            ..event()
        };
        let mut row = String::new();
        csv_row(&refused.columns(), &mut row);
        assert!(row.ends_with(",0.005000000,,acme,0,0,0,,,,,0,1,,0,queue_full,RESOURCE_EXHAUSTED,,0,\n"), "{row}");
    }

    #[test]
    fn the_status_is_that_of_the_call() {
        use tonic::Code;
        let status = |reason, reader| {
            let ending = Ending::Ended(End::Finished(reason), reader);
            RequestEvent { ending, ..event() }.status()
        };
        assert_eq!(status(FinishReason::Abort, Reader::There), Code::Ok);
        assert_eq!(status(FinishReason::Abort, Reader::Gone), Code::Cancelled);
        assert_eq!(status(FinishReason::Abort, Reader::Slow), Code::ResourceExhausted);
        assert_eq!(status(FinishReason::Timeout, Reader::There), Code::DeadlineExceeded);
        assert_eq!(status(FinishReason::Error, Reader::There), Code::Internal);
        assert_eq!(status(FinishReason::NotFinite, Reader::There), Code::Internal);
        assert_eq!(status(FinishReason::Unsupported, Reader::There), Code::InvalidArgument);
        let lost = RequestEvent { ending: Ending::Ended(End::NoWorker, Reader::There), ..event() };
        assert_eq!((lost.status(), lost.reason()), (Code::Unavailable, "no_worker"));
    }

    #[test]
    fn a_request_that_moves_for_ever_names_few_engines() {
        let mut engines = Engines::default();
        (0..100).for_each(|engine| engines.go_to(EngineId(engine), 0));
        assert_eq!((engines.named.len(), engines.named.last(), engines.moves), (ENGINES_MAX, Some(&(99, 0)), 99));
    }
}
