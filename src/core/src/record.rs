//! The recording of a run: every event a core saw, as JSON lines, so that another core can be shown the same.
//!
//! ```text
//! {"trunkline_recording":1,"config":{...}}       the header: format version and limits
//! {"at_ns":1200345,"event":{"submit":{...}}}     an event, in the order the core saw them
//! {"end":{"at_ns":99,"digest":"00f1..."}}        the trailer: the digest at the end; missing if the run was cut off
//! ```
//!
//! This file knows the lines; opening, compressing and locating files is the drivers' work.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::event::Event;

/// Version of the format, in the header.
pub const VERSION: u32 = 1;

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// The first line.
    Header {
        /// [`VERSION`].
        trunkline_recording: u32,
        /// The limits of the recorded core.
        config: Config,
    },
    /// An event.
    Event {
        /// When it happened, on the recorded core's clock.
        at_ns: u64,
        /// What happened.
        event: Event,
    },
    /// The last line.
    End {
        /// What is known at the end.
        end: End,
    },
}

/// The trailer of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The time of the last event.
    pub at_ns: u64,
    /// The decision digest, 16 hex digits.
    pub digest: String,
}

/// A line that is not one of a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or JSON of another shape.
    #[error("not a line of a Trunkline recording: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Line {
    /// Parses one line.
    pub fn parse(line: &str) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(line)?)
    }

    /// The line as text, without the newline.
    pub fn to_json(&self) -> String {
        // Every type in a line is made of numbers, strings and lists, which always serialise.
        serde_json::to_string(self).expect("a recording line serialises")
    }
}

/// The line of an event, without taking it.
pub fn event_line(at_ns: u64, event: &Event) -> String {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        at_ns: u64,
        event: &'a Event,
    }
    serde_json::to_string(&Borrowed { at_ns, event }).expect("a recording line serialises")
}
