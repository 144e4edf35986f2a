//! Recordings in a form that needs no decisions to be read: for versions of the program that decide otherwise.
//!
//! The inputs of a recording have meaning only behind the decisions of the version that made it: the end of a step lists tokens, and the decisions say
//! whose they are. A saved recording has what follows from them, and another version can run it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trunkline_cluster::record::Line;
use trunkline_cluster::{ClusterConfig, EngineId, Input};
use trunkline_core::StepResult;
use trunkline_quote::of_parser;

use super::Timing;
use super::run::Run;
use super::script::{Entry, Script, Served, What};
use super::times::Times;
use crate::recorded::{Replayed, engine_of};

/// Version of the form.
const VERSION: u32 = 2;

/// Saved recording that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct SavedError {
    /// Path of the file.
    pub path: PathBuf,
    /// Fault found.
    pub fault: SavedFault,
}

/// Fault of a saved recording.
#[derive(Debug, thiserror::Error)]
pub enum SavedFault {
    /// The file cannot be read or written.
    #[error("cannot be read or written: {0}")]
    File(#[from] io::Error),
    /// Not of this form.
    #[error("not a recording saved by `trunkline ci --save`: {}", of_parser(&.0.to_string()))]
    Form(#[from] serde_json::Error),
    /// Another version of the form.
    #[error("saved in version {found}, this program reads {VERSION}; save it again with a version near this one")]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// Parts that do not fit each other.
    #[error("the parts of the saved recording do not fit each other; save it again")]
    Damaged,
}

/// Version of a file, whatever else is in it.
#[derive(Deserialize)]
struct Form {
    trunkline_saved_recording: u32,
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SavedFault> {
    let file = GzDecoder::new(BufReader::new(File::open(path)?));
    Ok(serde_json::from_reader(BufReader::new(file))?)
}

#[derive(Serialize, Deserialize)]
struct Saved {
    trunkline_saved_recording: u32,
    cluster: ClusterConfig,
    replayed: Replayed,
    lines_digest: String,
    requests: Vec<Served>,
    entries: Vec<SavedEntry>,
    marks: Vec<u64>,
    times: Times,
    acceptance: f64,
    texts: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedEntry {
    Submit(usize, Line),
    Fixed(Line),
    Stop(Line),
    Follows(Line),
    Step { at_ns: u64, engine: EngineId, step: u64, odd: Option<Box<StepResult>> },
}

impl SavedEntry {
    fn of(entry: &Entry, n_engines: usize) -> Self {
        let line = |input| Line::of(entry.at_ns, input, n_engines);
        match &entry.what {
            What::Submit(at, input) => Self::Submit(*at, line(input)),
            What::Fixed(input) => Self::Fixed(line(input)),
            What::Stop(input) => Self::Stop(line(input)),
            What::Follows(input) => Self::Follows(line(input)),
            What::Step { engine, step, odd } => {
                Self::Step { at_ns: entry.at_ns, engine: *engine, step: *step, odd: odd.clone() }
            }
        }
    }

    fn into_entry(self) -> Option<Entry> {
        let (line, what): (Line, fn(Box<Input>) -> What) = match self {
            Self::Step { at_ns, engine, step, odd } => {
                return Some(Entry { at_ns, what: What::Step { engine, step, odd } });
            }
            Self::Submit(at, line) => {
                let (at_ns, input) = line.input()?;
                return Some(Entry { at_ns, what: What::Submit(at, Box::new(input)) });
            }
            Self::Fixed(line) => (line, What::Fixed),
            Self::Stop(line) => (line, What::Stop),
            Self::Follows(line) => (line, What::Follows),
        };
        let (at_ns, input) = line.input()?;
        Some(Entry { at_ns, what: what(Box::new(input)) })
    }
}

impl Script {
    /// Writes the recording to a file, gzip, for other versions of the program, with its digest
    /// ([`digest_of_lines`](crate::recorded::digest_of_lines)).
    ///
    /// # Errors
    ///
    /// [`SavedError`] if the file cannot be written.
    pub fn save(&self, lines_digest: String, path: &Path) -> Result<(), SavedError> {
        let n_engines = self.cluster.engines.len();
        let all: Vec<usize> = (0..self.entries.len()).collect();
        let run = Run::new(self, &[], Timing::Recorded).and_then(|run| run.decisions_at(&all));
        let texts = run.expect("a recording runs again without a change");
        let saved = Saved {
            trunkline_saved_recording: VERSION,
            cluster: self.cluster.clone(),
            replayed: self.replayed.clone(),
            lines_digest,
            requests: self.requests.clone(),
            entries: self.entries.iter().map(|entry| SavedEntry::of(entry, n_engines)).collect(),
            marks: self.marks.clone(),
            times: self.times.clone(),
            acceptance: self.acceptance,
            texts,
        };
        let write = || -> Result<(), SavedFault> {
            let mut packed = GzEncoder::new(BufWriter::new(File::create(path)?), Compression::fast());
            serde_json::to_writer(&mut packed, &saved)?;
            packed.finish()?.flush()?;
            Ok(())
        };
        write().map_err(|fault| SavedError { path: path.into(), fault })
    }

    /// Reads a saved recording, and the digest of the recording itself.
    ///
    /// # Errors
    ///
    /// [`SavedError`] if the file cannot be read, or is not of this form.
    pub fn saved(path: &Path) -> Result<(Self, String), SavedError> {
        let read = || -> Result<(Self, String), SavedFault> {
            let Form { trunkline_saved_recording: found } = read_json(path)?;
            if found != VERSION {
                return Err(SavedFault::Version { found });
            }
            let mut saved: Saved = read_json(path)?;
            let lines_digest = std::mem::take(&mut saved.lines_digest);
            Ok((Self::of_saved(saved).ok_or(SavedFault::Damaged)?, lines_digest))
        };
        read().map_err(|fault| SavedError { path: path.into(), fault })
    }

    fn of_saved(saved: Saved) -> Option<Self> {
        let Saved { cluster, replayed, requests, entries, marks, mut times, acceptance, texts, .. } = saved;
        let entries: Vec<Entry> = entries.into_iter().map(SavedEntry::into_entry).collect::<Option<_>>()?;
        let engines = cluster.engines.len();
        let fits = |entry: &Entry| match &entry.what {
            What::Submit(at, input) => {
                is_in(engines, input) && requests.get(*at).is_some_and(|served| served.at_ns == entry.at_ns)
            }
            What::Step { engine, .. } => engine.index() < engines,
            What::Fixed(input) | What::Stop(input) | What::Follows(input) => is_in(engines, input),
        };
        let in_order = entries.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns);
        let is_whole = engines > 0
            && entries.len() == marks.len()
            && texts.len() == marks.len()
            && in_order
            && entries.iter().all(fits)
            && requests.iter().all(Served::is_in_order);
        times.fit();
        is_whole.then_some(Self { cluster, replayed, requests, entries, marks, times, acceptance, texts })
    }
}

/// Returns `true` if the engine that an input names is one of so many.
fn is_in(engines: usize, input: &Input) -> bool {
    engine_of(input).is_none_or(|engine| engine.index() < engines)
}
