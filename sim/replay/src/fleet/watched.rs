//! Watchers of a replay: the observer, and a recording of all inputs of the cluster.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;
use trunkline_cluster::Input;
use trunkline_cluster::record::{End, InputsDigest, Line};
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_report::observer::Observer;
use trunkline_sim_report::report::Report;
use trunkline_sim_workload::trace::Source;

use super::{Fleet, ReplayError, prepare};
use crate::settings::Settings;

/// Takes the time and an input of the cluster; returns `false` to stop the replay.
type TakeInput<'a> = dyn FnMut(u64, &Input) -> bool + 'a;

/// Watchers of a fleet.
pub(super) struct Watched<'a> {
    pub observer: &'a mut dyn Observer,
    recording: Option<&'a mut TakeInput<'a>>,
    /// `true` once the observer or the recording stops the replay.
    pub stopped: bool,
}

impl<'a> Watched<'a> {
    pub fn by(observer: &'a mut dyn Observer) -> Self {
        Self { observer, recording: None, stopped: false }
    }

    /// Returns `true` if somebody wants to see each step.
    pub fn wants_steps(&self) -> bool {
        self.recording.is_some() || self.observer.wants_steps()
    }

    /// Sees an input of the cluster.
    pub fn input(&mut self, at_ns: u64, input: &Input) {
        if let Some(recording) = &mut self.recording {
            self.stopped |= !recording(at_ns, input);
        }
    }
}

/// Replay that could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordReplayError {
    /// The replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The file cannot be written.
    #[error("the recording cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Recording that is being written.
struct Recording<W> {
    out: W,
    n_engines: usize,
    inputs: InputsDigest,
    at_ns: u64,
    failed: Option<io::Error>,
}

impl<W: Write> Recording<W> {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let text = line.to_json();
        self.inputs.add(text.as_bytes());
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Returns `false` if the input could not be written.
    fn input(&mut self, at_ns: u64, input: &Input) -> bool {
        self.at_ns = at_ns;
        let line = Line::of(at_ns, input, self.n_engines);
        if self.failed.is_none() {
            self.failed = self.line(&line).err();
        }
        self.failed.is_none()
    }

    /// Returns the writer behind the last line.
    fn finish(mut self, digest: u64) -> io::Result<W> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let digest = format!("{digest:016x}");
        let end = End { at_ns: self.at_ns, digest, inputs: Some(self.inputs.to_string()) };
        self.line(&Line::End { end })?;
        Ok(self.out)
    }
}

/// Replays the requests of `source` step by step, and writes what a server would have recorded to the file at `path`; gzip if its name ends
/// in `.gz`.
///
/// # Errors
///
/// [`RecordReplayError`] if the replay fails, or the file cannot be written.
pub fn record(
    source: &mut dyn Source,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
    path: &Path,
) -> Result<Report, RecordReplayError> {
    let started = Instant::now();
    // Before the file is created: a replay that cannot begin leaves an older one as it is.
    let mut source = prepare(source, settings)?;
    let file = BufWriter::new(File::create(path)?);
    let mut report = if path.extension().is_some_and(|extension| extension == "gz") {
        let packed = GzEncoder::new(file, Compression::fast());
        let (report, packed) = record_into(&mut *source, settings, cost, observer, packed)?;
        packed.finish()?.flush()?;
        report
    } else {
        let (report, mut file) = record_into(&mut *source, settings, cost, observer, file)?;
        file.flush()?;
        report
    };
    report.wall_s = started.elapsed().as_secs_f64();
    Ok(report)
}

fn record_into<W: Write>(
    source: &mut dyn Source,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
    out: W,
) -> Result<(Report, W), RecordReplayError> {
    let cluster = settings.cluster();
    let n_engines = cluster.engines.len();
    let mut recording = Recording { out, n_engines, inputs: InputsDigest::default(), at_ns: 0, failed: None };
    recording.line(&Line::header(&cluster))?;
    let mut sink = |at_ns, input: &Input| recording.input(at_ns, input);
    let watched = Watched { observer, recording: Some(&mut sink), stopped: false };
    let mut fleet = Fleet::new(source, settings, cost, watched)?;
    let ran = fleet.run();
    let digest = fleet.cluster.digest();
    let report = ran.map(|()| fleet.report());
    // A recording that cannot be written stops the replay: its error says more.
    let out = recording.finish(digest)?;
    Ok((report?, out))
}
