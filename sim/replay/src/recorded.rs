//! Replay of recordings: delivers the recorded inputs to a cluster and compares the decisions.
//!
//! A recording (see [`trunkline_cluster::record`]) holds every input with its time, and the settings of the cluster; a server with one
//! engine is a cluster of one. Clusters are deterministic, so a second cluster with equal settings makes equal decisions with an equal
//! digest. Different digests mean another version of the program, or a fault in it.
//!
//! Block hashes are recomputed rather than recorded. A recording may be gzip. A truncated recording (no trailer, a torn last line,
//! a gzip stream that ends early) is replayed as far as possible, and [`Replayed::cut_off`] reports the truncation.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trunkline_cluster::record::{self, InputsDigest, Line, RecordError};
use trunkline_cluster::{Cluster, ClusterConfig, ClusterError, EngineId, Input, Output};
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{ConfigError, Request};

use trunkline_sim_workload::lines::{LineFault, LineNumber, Lines};

mod as_trace;

pub use self::as_trace::{Recorded, is_recording, load, settings};

/// Result of replaying a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Inputs replayed.
    pub events: u64,
    /// Submitted requests among the events.
    pub requests: u64,
    /// Digest of the replayed decisions, 16 hex digits.
    pub digest: String,
    /// Digest of the recorded decisions; `None` without a trailer.
    pub recorded_digest: Option<String>,
    /// `true` if the digests are equal, of decisions and of inputs; `None` without a recorded digest.
    #[serde(rename = "match")]
    pub matches: Option<bool>,
    /// `true` if the inputs are those that were recorded; `None` if the recording does not say, as of an earlier version: then an input that was changed without
    /// a change of a decision is not found.
    pub inputs_match: Option<bool>,
    /// Kind of truncation; `None` for a whole recording.
    pub cut_off: Option<CutOff>,
}

/// Truncation of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    #[error("not a Trunkline recording: the first line is not a header")]
    NoHeader,
    /// Header of another version.
    #[error(
        "the recording has format version {found}, this program reads {} and {}; replay it with the version that made it",
        record::VERSION,
        record::VERSION_CLUSTER
    )]
    Version {
        /// Version as found in the header.
        found: u32,
    },
    /// Recorded limits are invalid.
    #[error("recorded limits: {0}")]
    Config(Box<ConfigError>),
    /// Recorded settings of a cluster are invalid.
    #[error("recorded settings: {0}")]
    Cluster(Box<ClusterError>),
    /// Input of an engine that the cluster lacks.
    #[error("{engine} is not in the recorded cluster, which has {engines}; the recording is damaged")]
    Engine {
        /// Engine named in the line.
        engine: EngineId,
        /// Number of engines of the recorded cluster.
        engines: usize,
    },
    /// No request of the recording can be replayed as a trace.
    #[error("no request of the recording got a token, so there is nothing to replay")]
    NoRequests,
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

/// Recorded input with the outputs of the replayed cluster.
pub(crate) struct Shown<'a> {
    /// Time of the input on the recorded clock, nanoseconds.
    pub at_ns: u64,
    /// Engine named by the input; `None` if it came from a client.
    pub engine: Option<EngineId>,
    /// News of the worker of that engine.
    pub news: Option<(EngineId, News)>,
    pub outputs: &'a [Output],
}

/// Follower of a replay.
pub(crate) trait Watcher {
    /// Prepares the cluster before the first input.
    fn begin(&mut self, _cluster: &mut Cluster) {}

    /// Sees an input before the cluster does, with the prompt hashed.
    fn hear(&mut self, _at_ns: u64, _input: &Input) {}

    /// Sees the outputs of an input, and the cluster behind it.
    fn see(&mut self, shown: &Shown, cluster: &mut Cluster);
}

impl<F: FnMut(&Shown)> Watcher for F {
    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        self(shown);
    }
}

/// News of a worker.
#[derive(Clone, Copy)]
pub(crate) enum News {
    /// Step of this id ended.
    StepEnded(u64),
    /// Transfer of this id ended, with every block if `is_whole`.
    CopyEnded { id: u64, is_whole: bool },
    /// Steps and transfers in flight are lost, with all KV.
    Lost,
    /// Steps in flight are lost, and no KV.
    Resumed,
    /// A worker is there, without KV.
    Joined,
}

/// Replays the recording at `path`. Calls `progress` with the number of events now and then.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read, is damaged before the end, or has invalid limits.
pub fn replay_recorded(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Replayed, RecordingError> {
    replay_watched(path, progress, &mut |_: &Shown| {})
}

/// Replays the recording at `path` and shows every event to `watch`.
pub(crate) fn replay_watched(
    path: &Path,
    progress: &mut dyn FnMut(u64),
    watcher: &mut dyn Watcher,
) -> Result<Replayed, RecordingError> {
    let fail = |line: u64, fault| RecordingError { path: path.into(), line, fault };
    let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
    let mut replay = Replay::new(&mut lines).map_err(|fault| fail(lines.number(), fault))?;
    watcher.begin(&mut replay.cluster);
    loop {
        match replay.next_line(&mut lines, watcher) {
            Ok(true) if replay.events.is_multiple_of(1024) => progress(replay.events),
            Ok(true) => {}
            Ok(false) => break,
            Err(fault) => return Err(fail(lines.number(), fault)),
        }
    }
    progress(replay.events);
    Ok(replay.end())
}

/// Returns the digest of the lines of the recording at `path`, 16 hex digits: the same however the file is packed.
///
/// # Errors
///
/// [`RecordingError`] if the file cannot be read.
pub fn digest_of_lines(path: &Path) -> Result<String, RecordingError> {
    let fail = |line, fault: LineFault| RecordingError { path: path.into(), line, fault: fault.into() };
    let mut lines = Lines::open(path).map_err(|fault| fail(0, fault))?;
    let mut digest = InputsDigest::default();
    loop {
        match lines.next_line() {
            Ok(Some(line)) => digest.add(line),
            Ok(None) | Err(LineFault::TruncatedGzip) => return Ok(digest.to_string()),
            Err(fault) => return Err(fail(lines.number(), fault)),
        }
    }
}

struct Replay {
    cluster: Cluster,
    block_size: u32,
    events: u64,
    requests: u64,
    at_ns: u64,
    recorded_digest: Option<String>,
    inputs: InputsDigest,
    inputs_match: Option<bool>,
    cut_off: Option<CutOff>,
    outputs: Vec<Output>,
}

/// Returns the format version claimed by a header.
fn header_version(line: &[u8]) -> Option<u32> {
    let header: serde_json::Value = serde_json::from_slice(line).ok()?;
    u32::try_from(header.get("trunkline_recording")?.as_u64()?).ok()
}

/// Reads the header, adds it to a digest, and returns the settings of the recorded cluster.
fn header(lines: &mut Lines, inputs: &mut InputsDigest) -> Result<ClusterConfig, RecordingFault> {
    let first = lines.next_line()?.unwrap_or_default();
    inputs.add(first);
    // The version is looked at before the rest of the header, which other versions may have in other forms.
    match header_version(first) {
        None => return Err(RecordingFault::NoHeader),
        Some(record::VERSION | record::VERSION_CLUSTER) => {}
        Some(found) => return Err(RecordingFault::Version { found }),
    }
    parse(first).ok().and_then(Line::cluster).ok_or(RecordingFault::NoHeader)
}

impl Replay {
    fn new(lines: &mut Lines) -> Result<Self, RecordingFault> {
        let mut inputs = InputsDigest::default();
        let config = header(lines, &mut inputs)?;
        let cluster = Cluster::new(&config).map_err(|fault| match (fault, config.engines.len()) {
            (ClusterError::Core { error, .. }, 1) => RecordingFault::Config(Box::new(error)),
            (fault, _) => RecordingFault::Cluster(Box::new(fault)),
        })?;
        Ok(Self {
            block_size: config.engines[0].core.block_size,
            cluster,
            events: 0,
            requests: 0,
            at_ns: 0,
            recorded_digest: None,
            inputs,
            inputs_match: None,
            cut_off: None,
            outputs: Vec::new(),
        })
    }

    /// Handles a line; returns `false` at the end.
    fn next_line(&mut self, lines: &mut Lines, watcher: &mut dyn Watcher) -> Result<bool, RecordingFault> {
        let line = match lines.next_line() {
            Ok(Some(line)) => {
                let parsed = parse(line);
                if !matches!(parsed, Ok(Line::End { .. })) {
                    self.inputs.add(line);
                }
                parsed
            }
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
            Ok(Line::End { end }) => {
                self.inputs_match = end.inputs.map(|inputs| inputs == self.inputs.to_string());
                self.recorded_digest = Some(end.digest);
                Ok(true)
            }
            Ok(line) => {
                let (at_ns, input) = line.input().ok_or(RecordingFault::Misplaced)?;
                self.show(at_ns, input, watcher)?;
                Ok(true)
            }
            Err(_) if !lines.terminated() => {
                self.cut_off = Some(CutOff::TornLine);
                Ok(false)
            }
            Err(fault) => Err(fault.into()),
        }
    }

    fn show(&mut self, at_ns: u64, mut input: Input, watcher: &mut dyn Watcher) -> Result<(), RecordingFault> {
        if at_ns < self.at_ns {
            return Err(RecordingFault::TimeGoesBack { before_ns: self.at_ns, at_ns });
        }
        let (engines, engine) = (self.cluster.n_engines(), engine_of(&input));
        if let Some(engine) = engine.filter(|engine| engine.index() >= engines) {
            return Err(RecordingFault::Engine { engine, engines });
        }
        self.at_ns = at_ns;
        self.events += 1;
        if let Some(request) = submitted(&mut input) {
            self.requests += 1;
            request.hash_prompt(self.block_size);
        }
        let news = news(&input);
        watcher.hear(at_ns, &input);
        self.cluster.handle(at_ns, input, &mut self.outputs);
        watcher.see(&Shown { at_ns, engine, news, outputs: &self.outputs }, &mut self.cluster);
        for output in self.outputs.drain(..) {
            if let Output::Engine(engine, Action::RunStep(step)) = output {
                self.cluster.recycle(engine, step);
            }
        }
        Ok(())
    }

    fn end(self) -> Replayed {
        let digest = format!("{:016x}", self.cluster.digest());
        let is_changed = self.inputs_match == Some(false);
        let matches = self.recorded_digest.as_ref().map(|recorded| *recorded == digest && !is_changed);
        Replayed {
            events: self.events,
            requests: self.requests,
            digest,
            recorded_digest: self.recorded_digest,
            matches,
            inputs_match: self.inputs_match,
            cut_off: self.cut_off,
        }
    }
}

/// Returns the engine that an input names.
pub(crate) fn engine_of(input: &Input) -> Option<EngineId> {
    match input {
        Input::Client(_) => None,
        Input::Engine(engine, _) | Input::Retire(engine) | Input::DrainEngine(engine) | Input::OpenEngine(engine) => {
            Some(*engine)
        }
    }
}

/// Returns what an input says about a worker.
fn news(input: &Input) -> Option<(EngineId, News)> {
    let (engine, event) = match input {
        Input::Engine(engine, event) => (*engine, event),
        Input::Retire(engine) => return Some((*engine, News::Lost)),
        _ => return None,
    };
    let news = match event {
        Event::StepFinished(result) => News::StepEnded(result.step),
        Event::TransferFinished(id) => News::CopyEnded { id: *id, is_whole: true },
        Event::TransferFailed(id) | Event::TransferInterrupted(id) | Event::TransferPartial { transfer: id, .. } => {
            News::CopyEnded { id: *id, is_whole: false }
        }
        Event::WorkerLost | Event::WorkerTaken => News::Lost,
        Event::WorkerResumed => News::Resumed,
        Event::WorkerJoined => News::Joined,
        _ => return None,
    };
    Some((engine, news))
}

/// Returns the request that an input submits, to be hashed.
fn submitted(input: &mut Input) -> Option<&mut Request> {
    match input {
        Input::Client(Event::Submit(request)) | Input::Engine(_, Event::Submit(request)) => Some(request),
        _ => None,
    }
}

/// Returns the request that an input submits.
pub(crate) fn request_of(input: &Input) -> Option<&Request> {
    match input {
        Input::Client(Event::Submit(request)) | Input::Engine(_, Event::Submit(request)) => Some(request),
        _ => None,
    }
}

fn parse(line: &[u8]) -> Result<Line, RecordError> {
    // Whatever is not text becomes replacement characters, which no field or name of a line has.
    Line::parse(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests;
