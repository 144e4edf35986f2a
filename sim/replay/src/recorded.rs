//! Replay of recordings: shows the recorded events to a core and compares the decisions.
//!
//! A recording (see [`trunkline_core::record`]) holds every event with its time, and the limits of the core. The core is
//! deterministic, so a second core with equal limits makes equal decisions with an equal digest. Different digests mean another
//! version of the core, or a fault in the core.
//!
//! Block hashes are recomputed rather than recorded. A recording may be gzip. A truncated recording (no trailer, a torn last line,
//! a gzip stream that ends early) is replayed as far as possible, and [`Replayed::cut_off`] reports the truncation.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trunkline_core::event::{Action, Event};
use trunkline_core::record::{self, Line, RecordError};
use trunkline_core::{ConfigError, Core};

use trunkline_sim_workload::lines::{LineFault, LineNumber, Lines};

/// Result of replaying a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Events shown to the core.
    pub events: u64,
    /// Submitted requests among the events.
    pub requests: u64,
    /// Digest of the replayed decisions, 16 hex digits.
    pub digest: String,
    /// Digest of the recorded decisions; `None` without a trailer.
    pub recorded_digest: Option<String>,
    /// `true` if the digests are equal; `None` without a recorded digest.
    #[serde(rename = "match")]
    pub matches: Option<bool>,
    /// Kind of truncation; `None` for a whole recording.
    pub cut_off: Option<CutOff>,
}

/// Truncation of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOff {
    /// Last line is whole, but no trailer.
    NoTrailer,
    /// Last line is torn, and was skipped.
    TornLine,
    /// Gzip stream ends early; the last line was skipped.
    TornGzip,
}

impl CutOff {
    /// Returns a description for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoTrailer => "it has no trailer",
            Self::TornLine => "its last line is torn",
            Self::TornGzip => "its gzip stream ends early",
        }
    }
}

/// Error in a recording: file, line and fault.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct RecordingError {
    /// Path of the recording.
    pub path: PathBuf,
    /// Line number from 1; 0 for a fault outside any line.
    pub line: u64,
    /// Fault found at that place.
    pub fault: RecordingFault,
}

/// Fault in a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingFault {
    /// File cannot be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// First line is not a header.
    #[error("not a Trunkline recording: the first line is no header")]
    NoHeader,
    /// Header of another version.
    #[error(
        "the recording has format version {found}, this program reads {}; replay it with the version that made it",
        record::VERSION
    )]
    Version {
        /// Version as found in the header.
        found: u32,
    },
    /// Recorded limits are invalid.
    #[error("recorded limits: {0}")]
    Config(#[from] Box<ConfigError>),
    /// Damaged line before the end.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Header or line after the trailer.
    #[error("a second header, or a line after the trailer; this is more than one recording")]
    Misplaced,
    /// Event with an earlier time than the event above.
    #[error("the time goes back from {before_ns} to {at_ns} ns; the recording is damaged")]
    TimeGoesBack {
        /// Time of the event above, nanoseconds.
        before_ns: u64,
        /// Time of this event, nanoseconds.
        at_ns: u64,
    },
}

/// Recorded event with the actions of the replayed core.
pub(crate) struct Shown<'a> {
    /// Time of the event on the recorded core's clock.
    pub at_ns: u64,
    /// Step ended by the event, if any.
    pub finished: Option<u64>,
    /// `true` for the loss of the worker and its step in flight.
    pub lost: bool,
    pub actions: &'a [Action],
}

/// Replays the recording at `path`. Calls `progress` with the number of events now and then.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read, is damaged before the end, or has invalid limits.
pub fn replay_recorded(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Replayed, RecordingError> {
    replay_watched(path, progress, &mut |_| {})
}

/// Replays the recording at `path` and shows every event to `watch`.
pub(crate) fn replay_watched(
    path: &Path,
    progress: &mut dyn FnMut(u64),
    watch: &mut dyn FnMut(&Shown),
) -> Result<Replayed, RecordingError> {
    let fail = |line: u64, fault| RecordingError { path: path.into(), line, fault };
    let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
    let mut replay = Replay::new(&mut lines).map_err(|fault| fail(lines.number(), fault))?;
    loop {
        match replay.next_line(&mut lines, watch) {
            Ok(true) if replay.events.is_multiple_of(1024) => progress(replay.events),
            Ok(true) => {}
            Ok(false) => break,
            Err(fault) => return Err(fail(lines.number(), fault)),
        }
    }
    progress(replay.events);
    Ok(replay.end())
}

struct Replay {
    core: Core,
    block_size: u32,
    events: u64,
    requests: u64,
    at_ns: u64,
    recorded_digest: Option<String>,
    cut_off: Option<CutOff>,
    actions: Vec<Action>,
}

/// Returns the format version claimed by a header.
fn header_version(line: &[u8]) -> Option<u32> {
    let header: serde_json::Value = serde_json::from_slice(line).ok()?;
    u32::try_from(header.get("trunkline_recording")?.as_u64()?).ok()
}

impl Replay {
    fn new(lines: &mut Lines) -> Result<Self, RecordingFault> {
        let first = lines.next_line()?.unwrap_or_default();
        // The version is looked at before the rest of the header, which other versions may have in other forms.
        match header_version(first) {
            None => return Err(RecordingFault::NoHeader),
            Some(record::VERSION) => {}
            Some(found) => return Err(RecordingFault::Version { found }),
        }
        let Ok(Line::Header { config, .. }) = parse(first) else { return Err(RecordingFault::NoHeader) };
        Ok(Self {
            block_size: config.block_size,
            core: Core::new(config).map_err(Box::new)?,
            events: 0,
            requests: 0,
            at_ns: 0,
            recorded_digest: None,
            cut_off: None,
            actions: Vec::new(),
        })
    }

    /// Handles a line; returns `false` at the end.
    fn next_line(&mut self, lines: &mut Lines, watch: &mut dyn FnMut(&Shown)) -> Result<bool, RecordingFault> {
        let line = match lines.next_line() {
            Ok(Some(line)) => parse(line),
            Ok(None) => {
                if self.recorded_digest.is_none() {
                    self.cut_off = Some(CutOff::NoTrailer);
                }
                return Ok(false);
            }
            // Only before the trailer is an early end one of the recording's contents.
            Err(LineFault::TruncatedGzip) if self.recorded_digest.is_none() => {
                self.cut_off = Some(CutOff::TornGzip);
                return Ok(false);
            }
            Err(fault) => return Err(fault.into()),
        };
        match line {
            _ if self.recorded_digest.is_some() => Err(RecordingFault::Misplaced),
            Ok(Line::Header { .. }) => Err(RecordingFault::Misplaced),
            Ok(Line::Event { at_ns, event }) => {
                self.show(at_ns, event, watch)?;
                Ok(true)
            }
            Ok(Line::End { end }) => {
                self.recorded_digest = Some(end.digest);
                Ok(true)
            }
            Err(_) if !lines.terminated() => {
                self.cut_off = Some(CutOff::TornLine);
                Ok(false)
            }
            Err(fault) => Err(fault.into()),
        }
    }

    fn show(&mut self, at_ns: u64, mut event: Event, watch: &mut dyn FnMut(&Shown)) -> Result<(), RecordingFault> {
        if at_ns < self.at_ns {
            return Err(RecordingFault::TimeGoesBack { before_ns: self.at_ns, at_ns });
        }
        self.at_ns = at_ns;
        self.events += 1;
        if let Event::Submit(request) = &mut event {
            self.requests += 1;
            request.hash_prompt(self.block_size);
        }
        let finished = if let Event::StepFinished(result) = &event { Some(result.step) } else { None };
        let lost = event == Event::WorkerLost;
        self.core.handle(at_ns, event, &mut self.actions);
        watch(&Shown { at_ns, finished, lost, actions: &self.actions });
        for action in self.actions.drain(..) {
            if let Action::RunStep(step) = action {
                self.core.recycle(step);
            }
        }
        Ok(())
    }

    fn end(self) -> Replayed {
        let digest = format!("{:016x}", self.core.digest());
        let matches = self.recorded_digest.as_ref().map(|recorded| *recorded == digest);
        Replayed {
            events: self.events,
            requests: self.requests,
            digest,
            recorded_digest: self.recorded_digest,
            matches,
            cut_off: self.cut_off,
        }
    }
}

fn parse(line: &[u8]) -> Result<Line, RecordError> {
    // Whatever is no text becomes replacement characters, which no field or name of a line has.
    Line::parse(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests;
