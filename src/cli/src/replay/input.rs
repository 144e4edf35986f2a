//! Input of a replay: a trace in memory, a trace read while it is replayed, or a workload generated meanwhile.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use trunkline_sim_replay::recorded::{self, Recorded};
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::synthetic::{Generator, Spec};
use trunkline_sim_workload::trace::{FileSource, LeftOut, ReaderOptions, Selection, Source};

/// Part of a file to replay. Equal parts of one file are equal requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) options: ReaderOptions,
    pub(crate) selection: Selection,
    /// `true` if the file is read while it is replayed.
    pub(crate) stream: bool,
}

/// Requests that can be replayed more than once.
#[derive(Debug)]
pub(crate) enum Input {
    /// A trace in memory.
    Loaded(Trace),
    /// The recording of a server, and its part to replay.
    Recorded(Box<Recorded>, Trace),
    /// A file, read again for each replay.
    Streamed(PathBuf, Part),
    /// A workload in TOML, generated again for each replay: each session asks its next question after the previous answer.
    Workload(Box<Spec>),
}

/// Returns `true` if a file is a workload, not a trace, by its name.
pub(crate) fn is_workload(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"))
}

/// Reads the recording of a server as a trace, and selects a part.
///
/// # Errors
/// If the recording cannot be read, a format is given, or the part is empty.
pub(crate) fn recording(
    path: &Path,
    options: ReaderOptions,
    selection: &Selection,
) -> anyhow::Result<(Recorded, Trace)> {
    ensure!(options.format.is_none(), "{} is the recording of a server, in no other format", path.display());
    let plain = ReaderOptions { reorder_requests: options.reorder_requests, ..ReaderOptions::default() };
    ensure!(
        options == plain,
        "{} is the recording of a server, which has every token; leave out --reuse-answers, --time-unit and --trace-block-size",
        path.display()
    );
    let recorded = recorded::load(path, &mut |_| {})?;
    let trace = recorded.trace.select(selection);
    ensure!(!trace.requests.is_empty(), "{}: no request in the slice {}", path.display(), selection.slice);
    Ok((recorded, trace))
}

/// Reads the selected part of a trace, and says on standard error how many requests were left out.
///
/// # Errors
/// If the trace cannot be read, or the part is empty.
pub(crate) fn loaded(path: &Path, options: ReaderOptions, selection: &Selection) -> anyhow::Result<Trace> {
    let mut source = FileSource::open(path, options, selection)?;
    let trace = Trace { format: source.format(), requests: source.by_ref().collect::<Result<_, _>>()? };
    if let Some(note) = left_out(path, source.left_out()) {
        eprintln!("{note}");
    }
    notes(path, &source.remarks());
    Ok(trace)
}

/// Returns the line that says how many requests were left out; `None` if none were.
fn left_out(path: &Path, requests: LeftOut) -> Option<String> {
    (!requests.is_none()).then(|| format!("{}: left out: {requests}", path.display()))
}

/// Prints what a user should know of a file on standard error.
pub(crate) fn notes(path: &Path, remarks: &[String]) {
    remarks.iter().for_each(|remark| eprintln!("note: {}: {remark}", path.display()));
}

impl Part {
    /// Opens a trace, or a workload if the name ends in `.toml`.
    ///
    /// # Errors
    /// If the file cannot be read, or a flag about traces is given for a workload.
    pub(crate) fn open(&self, path: &Path) -> anyhow::Result<Input> {
        if is_workload(path) {
            return self.workload(path);
        }
        if recorded::is_recording(path) {
            ensure!(!self.stream, "{} is a recording, and is read whole; leave out --stream", path.display());
            let (recorded, trace) = recording(path, self.options, &self.selection)?;
            return Ok(Input::Recorded(Box::new(recorded), trace));
        }
        if self.stream {
            return Ok(Input::Streamed(path.into(), self.clone()));
        }
        Ok(Input::Loaded(loaded(path, self.options, &self.selection)?))
    }

    fn workload(&self, path: &Path) -> anyhow::Result<Input> {
        let all = Selection { limit: self.selection.limit, ..Selection::default() };
        if self.selection != all || self.options != ReaderOptions::default() {
            bail!("{} is a workload: of the flags about traces only --limit is for it", path.display());
        }
        let mut spec = Spec::load(path)?;
        spec.requests = spec.requests.min(self.selection.limit);
        Ok(Input::Workload(Box::new(spec)))
    }
}

impl Input {
    /// Returns the requests, from the first.
    pub(crate) fn source(&self) -> anyhow::Result<Box<dyn Source + '_>> {
        Ok(match self {
            Self::Loaded(trace) | Self::Recorded(_, trace) => Box::new(trace.source()),
            Self::Streamed(path, part) => Box::new(FileSource::open(path, part.options, &part.selection)?),
            Self::Workload(spec) => Box::new(Generator::new(spec)?),
        })
    }

    /// Returns the maximum number of requests; `None` if unknown.
    pub(crate) fn requests(&self) -> Option<u64> {
        match self {
            Self::Loaded(trace) | Self::Recorded(_, trace) => Some(trace.requests.len() as u64),
            Self::Streamed(_, part) => Some(part.selection.limit).filter(|limit| *limit < u64::MAX),
            Self::Workload(spec) => Some(spec.requests),
        }
    }

    /// Returns the number of tenants: one more than the greatest number of a tenant. A streamed file counts as one.
    pub(crate) fn tenants(&self) -> u64 {
        match self {
            Self::Loaded(trace) | Self::Recorded(_, trace) => trace.tenants(),
            Self::Streamed(..) => 1,
            Self::Workload(spec) => spec.tenants(),
        }
    }

    /// Returns the trace, if it is in memory.
    pub(crate) fn trace(&self) -> anyhow::Result<&Trace> {
        match self {
            Self::Loaded(trace) | Self::Recorded(_, trace) => Ok(trace),
            Self::Streamed(..) => bail!("a load needs the whole trace in memory; leave out --stream"),
            Self::Workload(_) => {
                bail!("a load needs a trace; write the workload's down with `trunkline trace generate`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_failed_are_left_out_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let rows = "2023-11-16 18:15:46,374,0\n2023-11-16 18:15:47,3,4\n2023-11-16 18:15:48,5,0\n";
        std::fs::write(&path, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")).unwrap();
        let (options, selection) = (ReaderOptions::default(), Selection::default());
        assert_eq!(
            loaded(&path, options, &selection).unwrap(),
            Trace::load_selected(&path, options, &selection).unwrap()
        );
        let mut source = FileSource::open(&path, options, &selection).unwrap();
        assert_eq!(source.by_ref().count(), 1);
        let note = left_out(Path::new("a.csv"), source.left_out());
        assert_eq!(note.as_deref(), Some("a.csv: left out: 2 requests without input or output"));
        assert_eq!(left_out(Path::new("a.csv"), LeftOut::default()), None);
    }
}
