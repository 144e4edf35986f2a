//! Writes the recording of a run: every input seen by the cluster (see [`trunkline_cluster::record`]).
//!
//! The core's thread copies each input into a bounded channel; a separate thread turns the input into a line and writes the line. A
//! recording with a hole would be worth nothing, so if the disk fails or falls behind, recording stops for good, with one error in
//! the log, and serving continues. The part written until then replays.
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use flate2::Compression;
use flate2::write::GzEncoder;
use tracing::{error, info};
use trunkline_cluster::record::{End, InputsDigest, Line};
use trunkline_cluster::{ClusterConfig, Input};
use trunkline_files::private;

/// Maximum number of lines waiting for the disk.
const LINES_MAX: usize = 8192;
/// Longest time until an input is on disk, or in the hands of the operating system.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time to wait for the end of a recording to be written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A recording being written.
pub(crate) struct Recorder {
    path: PathBuf,
    /// Empty once recording has stopped.
    lines: Option<Sender<Line>>,
    n_engines: usize,
    /// Returns whether everything was written.
    writer: JoinHandle<bool>,
}

impl Recorder {
    /// Creates the file, compressed if the name ends in `.gz`, and writes the header. A file of this name becomes `FILE.old`.
    pub(crate) fn create(path: &Path, cluster: &ClusterConfig) -> io::Result<Self> {
        let mut sink = Sink::create(path)?;
        let (header, mut digest) = (Line::header(cluster).to_json(), InputsDigest::default());
        digest.add(header.as_bytes());
        sink.write_line(header)?;
        sink.flush()?;
        let (lines, received) = bounded(LINES_MAX);
        let name = path.to_owned();
        let writer = thread::Builder::new().name("recorder".into()).spawn(move || {
            let written = write_all(&mut sink, digest, &received);
            if let Err(err) = &written {
                error!("recording to {} stopped: {err}; serving goes on", name.display());
            }
            written.is_ok()
        })?;
        Ok(Self { path: path.to_owned(), lines: Some(lines), n_engines: cluster.engines.len(), writer })
    }

    /// Adds an input of the cluster, with the input's time.
    pub(crate) fn input(&mut self, at_ns: u64, input: &Input) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(Line::of(at_ns, input, self.n_engines)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                error!("recording to {} stopped: the disk cannot keep up; serving goes on", self.path.display());
                self.lines = None;
            }
            // The writer has said why.
            Err(TrySendError::Disconnected(_)) => self.lines = None,
        }
    }

    /// Adds the trailer and waits until everything is written. Returns `true` if the recording is whole; otherwise the reason was
    /// logged.
    pub(crate) fn finish(self, end: End) -> bool {
        let ended = match self.lines {
            Some(lines) => lines.send_timeout(Line::End { end }, FINISH_TIMEOUT).is_ok(),
            None => false,
        };
        let written = self.writer.join();
        if written.is_err() {
            error!("the writer of the recording {} panicked", self.path.display());
        }
        ended && written.unwrap_or(false)
    }
}

fn write_all(sink: &mut Sink, mut digest: InputsDigest, lines: &Receiver<Line>) -> io::Result<()> {
    let mut flushed = Instant::now();
    let mut dirty = false;
    loop {
        match lines.recv_timeout(FLUSH_INTERVAL) {
            Ok(Line::End { end }) => {
                let end = End { inputs: Some(digest.to_string()), ..end };
                sink.write_line(Line::End { end }.to_json())?;
                dirty = true;
            }
            Ok(line) => {
                let line = line.to_json();
                digest.add(line.as_bytes());
                sink.write_line(line)?;
                dirty = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return sink.finish(),
        }
        if dirty && flushed.elapsed() >= FLUSH_INTERVAL {
            sink.flush()?;
            flushed = Instant::now();
            dirty = false;
        }
    }
}

enum Sink {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
}

impl Sink {
    /// Creates the file. An existing one becomes `FILE.old` first, instead of what had that name.
    fn create(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|file| file.is_file() && file.len() > 0) {
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            private::close_all(path, [path.to_owned()]);
            fs::rename(path, &old)?;
            info!("the recording of the run before is now {}", Path::new(&old).display());
        }
        let file = BufWriter::new(private::create(path)?);
        let gzip = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if gzip { Self::Gzip(GzEncoder::new(file, Compression::fast())) } else { Self::Plain(file) })
    }

    /// Writes a line in one piece: the file ends with a whole line whenever the buffer is written out.
    fn write_line(&mut self, mut line: String) -> io::Result<()> {
        line.push('\n');
        match self {
            Self::Plain(out) => out.write_all(line.as_bytes()),
            Self::Gzip(out) => out.write_all(line.as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => {
                out.try_finish()?;
                out.get_mut().flush()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use flate2::read::GzDecoder;
    use trunkline_cluster::EngineId;
    use trunkline_cluster::record::VERSION;
    use trunkline_core::{Config, Event};

    use super::*;

    fn record(path: &Path) {
        let mut recorder = Recorder::create(path, &ClusterConfig::uniform(&Config::default(), 1)).unwrap();
        recorder.input(3, &Input::Engine(EngineId(0), Event::WorkerJoined));
        recorder.input(5, &Input::Client(Event::Tick));
        assert!(recorder.finish(End { at_ns: 5, digest: format!("{:016x}", 7), inputs: None }));
    }

    fn check(text: &str) {
        let mut inputs = InputsDigest::default();
        text.lines().take(3).for_each(|line| inputs.add(line.as_bytes()));
        let lines: Vec<Line> = text.lines().map(|line| Line::parse(line).unwrap()).collect();
        assert_eq!(
            lines,
            [
                Line::Header { trunkline_recording: VERSION, config: Box::default() },
                Line::Event { at_ns: 3, engine: None, event: Event::WorkerJoined },
                Line::Event { at_ns: 5, engine: None, event: Event::Tick },
                Line::End {
                    end: End { at_ns: 5, digest: "0000000000000007".into(), inputs: Some(inputs.to_string()) }
                },
            ]
        );
    }

    #[test]
    fn a_recording_has_header_events_and_trailer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.rec.jsonl");
        record(&path);
        check(&fs::read_to_string(path).unwrap());
    }

    #[test]
    fn a_name_ending_in_gz_compresses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.rec.jsonl.gz");
        record(&path);
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        check(&text);
    }

    #[test]
    fn the_recording_of_the_run_before_is_kept_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.rec.jsonl");
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        record(&path);
        check(&fs::read_to_string(&path).unwrap());
        let old = dir.path().join("run.rec.jsonl.old");
        assert_eq!(fs::read_to_string(&old).unwrap(), "before");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&path), mode(&old)], [0o600; 2], "they hold the prompts of all clients");
    }

    #[test]
    fn a_disk_that_fails_stops_the_recording_and_nothing_else() {
        let (lines, received) = bounded(LINES_MAX);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-only");
        fs::write(&path, "").unwrap();
        // A file opened for reading fails like a full disk does: when the buffer is written out.
        let mut sink = Sink::Plain(BufWriter::new(File::open(&path).unwrap()));
        let writer = thread::spawn(move || write_all(&mut sink, InputsDigest::default(), &received).is_ok());
        let mut recorder = Recorder { path, lines: Some(lines), n_engines: 1, writer };
        while recorder.lines.is_some() {
            recorder.input(1, &Input::Client(Event::Tick));
        }
        recorder.input(2, &Input::Client(Event::Tick));
        assert!(!recorder.finish(End { at_ns: 2, digest: String::new(), inputs: None }));
    }
}
