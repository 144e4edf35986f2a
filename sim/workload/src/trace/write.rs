//! Writer of traces, compressed according to the file name.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use trunkline_files::private;

use super::blocks::PrefixTree;
use super::format::{Format, Writing};
use super::formats;
use super::{TraceRequest, retention};

const ZSTD_LEVEL: i32 = 3;

/// Failed writing of a trace.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct WriteError {
    /// Path of the file.
    pub path: PathBuf,
    /// Fault found at that place.
    pub fault: WriteFault,
}

/// Fault in writing a trace.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// File cannot be written, for example on a full disk.
    #[error("cannot be written: {0}")]
    Io(#[from] io::Error),
    /// Format without a writer.
    #[error("a trace of the {0} format cannot be written; choose {written}", written = formats::names(formats::written()))]
    Format(Format),
    /// More distinct blocks than ids.
    #[error(
        "the prompts have more than {} blocks, more than there are ids for; limit the requests",
        super::blocks::NODES_MAX
    )]
    TooManyBlocks,
}

/// Where bytes go in the end: a file, or standard output.
type Out = BufWriter<Box<dyn Write + Send>>;

enum Sink {
    Plain(Out),
    Gzip(GzEncoder<Out>),
    Zstd(zstd::Encoder<'static, Out>),
}

impl Sink {
    fn create(path: &Path, packed_as: &Path, is_private: bool) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match is_private {
            _ if is_standard(path) => Box::new(io::stdout()),
            true => Box::new(private::create(path)?),
            false => Box::new(File::create(path)?),
        };
        let file = BufWriter::with_capacity(1 << 17, out);
        Ok(match packed_as.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip(GzEncoder::new(file, Compression::best())),
            Some("zst") => Self::Zstd(zstd::Encoder::new(file, ZSTD_LEVEL)?),
            _ => Self::Plain(file),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        file.flush()
    }
}

/// Returns `true` for `-`, standard output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the temporary and the final path of a file to be written at `path`, behind symbolic links; `None` if bytes go there at once: to
/// standard output, a pipe or a device.
fn partial_of(path: &Path) -> Option<(PathBuf, PathBuf)> {
    if is_standard(path) || fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return None;
    }
    // A link to a file that is not there yet has a target, but no canonical path.
    let target = || Some(path.parent()?.join(fs::read_link(path).ok()?));
    let last = fs::canonicalize(path).ok().or_else(target).unwrap_or_else(|| path.into());
    let mut partial = OsString::from(&last);
    partial.push(".partial");
    Some((PathBuf::from(partial), last))
}

/// Line-by-line writer of a trace. The file has a temporary name until it is whole, so no partial file is ever taken for a trace. A pipe or
/// device is written as it is.
pub struct TraceWriter {
    path: PathBuf,
    /// Temporary name, and the final one behind all symbolic links; `None` for a pipe or device.
    partial: Option<(PathBuf, PathBuf)>,
    writing: &'static Writing,
    sink: Option<Sink>,
    tree: PrefixTree,
    line: String,
}

impl TraceWriter {
    /// Returns the format for a file name, by its suffix without that of the compression; `None` for a suffix of no format.
    pub fn format_of(path: &Path) -> Option<Format> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        let suffix = Path::new(name).extension().map_or(Some(""), |suffix| suffix.to_str())?;
        formats::written().find(|it| it.0.writing.as_ref().is_some_and(|writing| writing.suffixes.contains(&suffix)))
    }

    /// Creates a trace in a format that is written; gzip for names ending in `.gz`, Zstandard for `.zst`. Replaces an existing file once
    /// the trace is whole. `-` is standard output.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if the file cannot be created or the format has no writer.
    pub fn create(path: &Path, format: Format) -> Result<Self, WriteError> {
        let fail = |fault| WriteError { path: path.into(), fault };
        let writing = format.0.writing.as_ref().ok_or_else(|| fail(WriteFault::Format(format)))?;
        let partial = partial_of(path);
        let to = partial.as_ref().map_or(path, |(partial, _)| partial);
        let mut sink = Sink::create(to, path, writing.is_private).map_err(|e| fail(e.into()))?;
        sink.write(writing.header.as_bytes()).map_err(|e| fail(e.into()))?;
        let tree = PrefixTree::default();
        Ok(Self { path: path.into(), partial, writing, sink: Some(sink), tree, line: String::new() })
    }

    /// Writes a request, unless it is a prefetch, of which the format knows nothing. Requests MUST come in the order of arrival.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if the file cannot be written or has too many distinct blocks.
    pub fn write(&mut self, request: &TraceRequest) -> Result<(), WriteError> {
        if request.is_prefetch() && !self.writing.has_terms {
            return Ok(());
        }
        self.line.clear();
        let written = (self.writing.line)(request, &mut self.tree, &mut self.line);
        let sink = self.sink.as_mut().expect("not finished");
        let written = written.and_then(|()| Ok(sink.write(self.line.as_bytes())?));
        written.map_err(|fault| WriteError { path: self.path.clone(), fault })
    }

    /// Finishes the trace and gives the file its final name.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if the file cannot be written or renamed.
    pub fn finish(mut self) -> Result<(), WriteError> {
        let sink = self.sink.take().expect("finished once");
        let finished = sink.finish().and_then(|()| match &self.partial {
            Some((partial, last)) => fs::rename(partial, last),
            None => Ok(()),
        });
        finished.map_err(|e| {
            self.remove_partial();
            WriteError { path: self.path.clone(), fault: e.into() }
        })
    }

    fn remove_partial(&self) {
        if let Some((partial, _)) = &self.partial {
            // Nothing more can be done if it cannot be removed either.
            let _ = fs::remove_file(partial);
        }
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        if self.sink.take().is_some() {
            // The trace was given up; its beginning is of no use.
            self.remove_partial();
        }
    }
}

/// Appends a list of numbers in JSON.
pub(super) fn push_list(line: &mut String, numbers: &[u32]) {
    use std::fmt::Write;
    line.push('[');
    for (i, number) in numbers.iter().enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        write!(line, "{separator}{number}").expect("a string takes all");
    }
    line.push(']');
}

/// Appends the terms and the hints of a request to its JSON object, and ends the line.
pub(super) fn push_terms(line: &mut String, request: &TraceRequest) {
    line.push_str(&request.terms.to_json());
    line.push_str(&retention::to_json(&request.retention));
    if request.is_prefetch() {
        line.push_str(", \"prefetch\": true");
    }
    line.push_str("}\n");
}

/// Returns `value_ns` in units of `unit_ns`, a power of ten, without rounding or trailing zeros.
pub(super) fn decimal(value_ns: u64, unit_ns: u64) -> String {
    let (whole, rest) = (value_ns / unit_ns, value_ns % unit_ns);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit_ns.ilog10() as usize;
    format!("{whole}.{rest:0digits$}").trim_end_matches('0').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::formats::{MOONCAKE, VIDUR};

    #[test]
    fn decimals_are_exact_and_short() {
        for (ns, ms, s) in [
            (0, "0", "0"),
            (1, "0.000001", "0.000000001"),
            (1_500_000, "1.5", "0.0015"),
            (12_000_000_000, "12000", "12"),
            (12_345_678_901, "12345.678901", "12.345678901"),
        ] {
            assert_eq!((decimal(ns, 1_000_000).as_str(), decimal(ns, 1_000_000_000).as_str()), (ms, s));
        }
    }

    #[test]
    fn names_ask_for_formats() {
        for (name, format) in [
            ("a.csv", Some(VIDUR)),
            ("a.csv.zst", Some(VIDUR)),
            ("a.jsonl.gz", Some(MOONCAKE)),
            ("csv", Some(MOONCAKE)),
            ("-", Some(MOONCAKE)),
            ("a.parquet", None),
        ] {
            assert_eq!(TraceWriter::format_of(Path::new(name)), format, "{name}");
        }
    }
}
