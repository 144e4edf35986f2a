//! The recording of a run: all events delivered to a core, as JSON lines, so that another core can replay them.
//!
//! ```text
//! {"trunkline_recording":2,"config":{...}}       the header: format version and limits
//! {"at_ns":1200345,"event":{"submit":{...}}}     an event, in order of delivery
//! {"end":{"at_ns":99,"digest":"00f1..."}}        the trailer: the digest at the end; missing if the run was interrupted
//! ```
//!
//! This module formats and parses lines; drivers open, compress and locate files.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::event::Event;

/// Version of the format, written in the header.
pub const VERSION: u32 = 2;

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// First line of a recording.
    Header {
        /// Version of the format: [`VERSION`].
        trunkline_recording: u32,
        /// Configuration of the recorded core.
        config: Config,
    },
    /// An event delivered to the core.
    Event {
        /// Time of the event on the recorded core's clock, nanoseconds.
        at_ns: u64,
        /// The event as delivered.
        event: Event,
    },
    /// Last line of a recording.
    End {
        /// Summary of the run.
        end: End,
    },
}

/// The trailer of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Time of the last event, nanoseconds.
    pub at_ns: u64,
    /// The decision digest, 16 hex digits.
    pub digest: String,
}

/// Failure to read a line of a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Line that is no JSON, or JSON of another shape.
    #[error("not a line of a Trunkline recording: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Line {
    /// Parses one line.
    ///
    /// # Errors
    /// Fails if the text is not a line of a recording.
    pub fn parse(line: &str) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Formats the line as JSON, without the newline.
    pub fn to_json(&self) -> String {
        // Every type in a line is made of numbers, strings and lists, which always serialise.
        serde_json::to_string(self).expect("a recording line serialises")
    }
}

/// Formats the line of an event as JSON, without taking ownership of the event.
pub fn event_line(at_ns: u64, event: &Event) -> String {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        at_ns: u64,
        event: &'a Event,
    }
    serde_json::to_string(&Borrowed { at_ns, event }).expect("a recording line serialises")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Request, RequestId, Sampling, StepResult};

    #[test]
    fn every_kind_of_line_survives_being_written_and_read() {
        let mut request = Request::new(RequestId(u64::MAX), Namespace::default().root(), vec![0, u32::MAX], 3);
        request.deadline_ns = Some(u64::MAX);
        request.sampling = Sampling { temperature: 0.7, seed: u64::MAX, logprobs: Some(2), ..Sampling::default() };
        let events = [
            Event::Submit(Box::new(request)),
            Event::Abort(RequestId(1)),
            Event::Stop(RequestId(2)),
            Event::Withdraw(RequestId(4)),
            Event::Fail(RequestId(3)),
            Event::WorkerJoined,
            Event::WorkerLost,
            Event::StepFinished(StepResult { step: 9, tokens: vec![1, 2], ends: vec![1, 1, 2] }),
            Event::TransferFinished(3),
            Event::TransferFailed(u64::MAX),
            Event::Tick,
            Event::FlushCache,
            Event::Drain,
            Event::Shutdown,
        ];
        for event in events {
            let line = Line::Event { at_ns: u64::MAX, event: event.clone() };
            assert_eq!(line.to_json(), event_line(u64::MAX, &event));
            assert_eq!(Line::parse(&line.to_json()).unwrap(), line);
        }
        let header = Line::Header { trunkline_recording: VERSION, config: Config::default() };
        assert_eq!(Line::parse(&header.to_json()).unwrap(), header);
        let end = Line::End { end: End { at_ns: 5, digest: "00ff".into() } };
        assert_eq!(Line::parse(&end.to_json()).unwrap(), end);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "",
            "{",
            "{}",
            "[1]",
            "{\"at_ns\":1}",
            "{\"at_ns\":-1,\"event\":\"tick\"}",
            "{\"at_ns\":1,\"event\":\"nap\"}",
        ] {
            assert!(Line::parse(line).is_err(), "{line}");
        }
    }
}
