//! Shows a core the events that another one saw, and compares what the two decided.
//!
//! A recording (see [`trunkline_core::record`]) holds every event with its time and the limits of the core that saw it. The core
//! is deterministic, so a second one under the same limits decides the same, and the two digests are equal. If they are not, the
//! recording was made by another version of the core, or the core has a fault.
//!
//! Block hashes are not recorded; they are made again. A recording may be gzip. One that was cut off (no trailer, a torn last line, a
//! gzip stream that ends early) is replayed as far as it goes, and [`Replayed::cut_off`] says so.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trunkline_core::event::{Action, Event};
use trunkline_core::record::{self, Line, RecordError};
use trunkline_core::{ConfigError, Core};

use trunkline_sim_workload::lines::{LineFault, LineNumber, Lines};

/// The result of replaying a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Events shown to the core.
    pub events: u64,
    /// Requests among them.
    pub requests: u64,
    /// Digest of the replayed decisions, 16 hex digits.
    pub digest: String,
    /// Digest of the recorded decisions, if the recording has its trailer.
    pub recorded_digest: Option<String>,
    /// Whether they are equal; nothing if there is nothing to compare.
    #[serde(rename = "match")]
    pub matches: Option<bool>,
    /// Why the recording has no trailer: it ends too early, in this way.
    pub cut_off: Option<CutOff>,
}

/// How a recording ends too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOff {
    /// Its last line is whole, but is no trailer.
    NoTrailer,
    /// Its last line is torn; it was left out.
    TornLine,
    /// Its gzip stream ends early; the line in which it does was left out.
    TornGzip,
}

impl CutOff {
    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoTrailer => "it has no trailer",
            Self::TornLine => "its last line is torn",
            Self::TornGzip => "its gzip stream ends early",
        }
    }
}

/// A fault in a recording: which file, which line, what.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct RecordingError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the fault is not in a line.
    pub line: u64,
    /// What is wrong with it.
    pub fault: RecordingFault,
}

/// What can be wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingFault {
    /// The file could not be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// The first line is no header.
    #[error("not a Trunkline recording: the first line is no header")]
    NoHeader,
    /// The header is of another version.
    #[error(
        "the recording has format version {found}, this program reads {}; replay it with the version that made it",
        record::VERSION
    )]
    Version {
        /// The version.
        found: u32,
    },
    /// The recorded limits are none that a core can work under.
    #[error("recorded limits: {0}")]
    Config(#[from] ConfigError),
    /// A line in the middle is damaged.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A header or anything after the trailer.
    #[error("a second header, or a line after the trailer; this is more than one recording")]
    Misplaced,
    /// An event comes before the one above it.
    #[error("the time goes back from {before_ns} to {at_ns} ns; the recording is damaged")]
    TimeGoesBack {
        /// The time above, nanoseconds.
        before_ns: u64,
        /// The time here, nanoseconds.
        at_ns: u64,
    },
}

/// An event of a recording and what the replayed core wants done after it.
pub(crate) struct Shown<'a> {
    /// When it happened, on the recorded core's clock.
    pub at_ns: u64,
    /// The step it ended, if it ended one.
    pub finished: Option<u64>,
    /// Whether it is the loss of the worker, and of the step in flight.
    pub lost: bool,
    pub actions: &'a [Action],
}

/// Replays the recording at `path`. `progress` is told the number of events now and then.
pub fn replay_recorded(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Replayed, RecordingError> {
    replay_watched(path, progress, &mut |_| {})
}

/// The same, and `watch` is shown every event.
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

/// The format version that a header claims.
fn header_version(line: &[u8]) -> Option<u32> {
    let header: serde_json::Value = serde_json::from_slice(line).ok()?;
    u32::try_from(header.get("trunkline_recording")?.as_u64()?).ok()
}

impl Replay {
    fn new(lines: &mut Lines) -> Result<Self, RecordingFault> {
        let first = lines.next()?.unwrap_or_default();
        // The version is looked at before the rest of the header, which other versions may have in other forms.
        match header_version(first) {
            None => return Err(RecordingFault::NoHeader),
            Some(record::VERSION) => {}
            Some(found) => return Err(RecordingFault::Version { found }),
        }
        let Ok(Line::Header { config, .. }) = parse(first) else { return Err(RecordingFault::NoHeader) };
        Ok(Self {
            block_size: config.block_size,
            core: Core::new(config)?,
            events: 0,
            requests: 0,
            at_ns: 0,
            recorded_digest: None,
            cut_off: None,
            actions: Vec::new(),
        })
    }

    /// Takes in a line; `false` at the end.
    fn next_line(&mut self, lines: &mut Lines, watch: &mut dyn FnMut(&Shown)) -> Result<bool, RecordingFault> {
        let line = match lines.next() {
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
