//! Writes the recording of a run: every event that the core saw (see [`trunkline_core::record`]).
//!
//! The core's thread copies each event into a bounded channel; a thread of its own turns it into a line and writes it. A
//! recording with a hole would be worth nothing, so if the disk fails or falls behind, recording stops for good, with one
//! error in the log, and serving goes on. What was written up to then replays.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use flate2::Compression;
use flate2::write::GzEncoder;
use tracing::error;
use trunkline_core::record::{End, Line, VERSION, event_line};
use trunkline_core::{Config, Event};

/// Events on their way to the disk, at most.
const EVENTS_MAX: usize = 8192;
/// Longest time after which an event is on disk, or in the hands of the operating system.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time to wait for the end of a recording to be written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

enum Entry {
    Event { at_ns: u64, event: Event },
    End(End),
}

/// A recording being written.
pub(crate) struct Recorder {
    path: PathBuf,
    /// Empty once recording has stopped.
    entries: Option<Sender<Entry>>,
    /// Returns whether everything was written.
    writer: JoinHandle<bool>,
}

impl Recorder {
    /// Creates the file, compressed if its name ends in `.gz`, and writes the header.
    pub(crate) fn create(path: &Path, config: &Config) -> io::Result<Self> {
        let mut sink = Sink::create(path)?;
        sink.write_line(Line::Header { trunkline_recording: VERSION, config: config.clone() }.to_json())?;
        sink.flush()?;
        let (entries, received) = bounded(EVENTS_MAX);
        let name = path.to_owned();
        let writer = thread::Builder::new().name("recorder".into()).spawn(move || {
            let written = write_all(&mut sink, &received);
            if let Err(err) = &written {
                error!("recording to {} stopped: {err}; serving goes on", name.display());
            }
            written.is_ok()
        })?;
        Ok(Self { path: path.to_owned(), entries: Some(entries), writer })
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, at_ns: u64, event: &Event) {
        let Some(entries) = &self.entries else { return };
        match entries.try_send(Entry::Event { at_ns, event: event.clone() }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                error!("recording to {} stopped: the disk cannot keep up; serving goes on", self.path.display());
                self.entries = None;
            }
            // The writer has said why.
            Err(TrySendError::Disconnected(_)) => self.entries = None,
        }
    }

    /// Adds the trailer and waits until everything is written. Returns whether the recording is whole; if it is not,
    /// the reason was logged.
    pub(crate) fn finish(self, end: End) -> bool {
        let ended = match self.entries {
            Some(entries) => entries.send_timeout(Entry::End(end), FINISH_TIMEOUT).is_ok(),
            None => false,
        };
        let written = self.writer.join();
        if written.is_err() {
            error!("the writer of the recording {} panicked", self.path.display());
        }
        ended && written.unwrap_or(false)
    }
}

fn write_all(sink: &mut Sink, entries: &Receiver<Entry>) -> io::Result<()> {
    let mut flushed = Instant::now();
    let mut dirty = false;
    loop {
        match entries.recv_timeout(FLUSH_INTERVAL) {
            Ok(entry) => {
                sink.write_line(match entry {
                    Entry::Event { at_ns, event } => event_line(at_ns, &event),
                    Entry::End(end) => Line::End { end }.to_json(),
                })?;
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
    fn create(path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let gzip = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if gzip { Self::Gzip(GzEncoder::new(file, Compression::fast())) } else { Self::Plain(file) })
    }

    /// Writes a line in one piece, so that the file ends with a whole line whenever the buffer is written out.
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

    use flate2::read::GzDecoder;

    use super::*;

    fn record(path: &Path) {
        let mut recorder = Recorder::create(path, &Config::default()).unwrap();
        recorder.event(3, &Event::WorkerJoined);
        recorder.event(5, &Event::Tick);
        assert!(recorder.finish(End { at_ns: 5, digest: format!("{:016x}", 7) }));
    }

    fn check(text: &str) {
        let lines: Vec<Line> = text.lines().map(|line| Line::parse(line).unwrap()).collect();
        assert_eq!(
            lines,
            [
                Line::Header { trunkline_recording: VERSION, config: Config::default() },
                Line::Event { at_ns: 3, event: Event::WorkerJoined },
                Line::Event { at_ns: 5, event: Event::Tick },
                Line::End { end: End { at_ns: 5, digest: "0000000000000007".into() } },
            ]
        );
    }

    #[test]
    fn a_recording_has_header_events_and_trailer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.rec.jsonl");
        record(&path);
        check(&std::fs::read_to_string(path).unwrap());
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
    fn a_disk_that_fails_stops_the_recording_and_nothing_else() {
        let (entries, received) = bounded(EVENTS_MAX);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-only");
        std::fs::write(&path, "").unwrap();
        // A file opened for reading fails like a full disk does: when the buffer is written out.
        let mut sink = Sink::Plain(BufWriter::new(File::open(&path).unwrap()));
        let writer = thread::spawn(move || write_all(&mut sink, &received).is_ok());
        let mut recorder = Recorder { path, entries: Some(entries), writer };
        while recorder.entries.is_some() {
            recorder.event(1, &Event::Tick);
        }
        recorder.event(2, &Event::Tick);
        assert!(!recorder.finish(End { at_ns: 2, digest: String::new() }));
    }
}
