//! Outcomes of single requests, and files with one row per outcome, written as requests end.
//!
//! | file | rows |
//! |---|---|
//! | `.csv`, `.csv.gz`, any other name | a line of [`COLUMNS`] each, after their names |
//! | `.parquet` | the same columns: whole numbers as `INT64`, times as `DOUBLE` seconds, `refused` as `BOOLEAN` |
//!
//! A double of seconds is exact to the nanosecond for the first hundred days.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

mod parquet;

/// Access to a value of an outcome.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// Access to a number.
    Count(fn(&Outcome) -> u64),
    /// Access to a time, nanoseconds, which files have in seconds.
    Time(fn(&Outcome) -> u64),
    /// Access to a time that an outcome may lack.
    MaybeTime(fn(&Outcome) -> Option<u64>),
    /// Access to an answer.
    Flag(fn(&Outcome) -> bool),
    /// Access to an answer that an outcome may lack.
    MaybeFlag(fn(&Outcome) -> Option<bool>),
}

use Access::{Count, Flag, MaybeFlag, MaybeTime, Time};

/// Columns of all files, in order: each one line here.
pub const COLUMNS: [(&str, Access); 15] = [
    ("id", Count(|o| o.request)),
    ("arrival_s", Time(|o| o.arrival_ns)),
    ("replica", Count(|o| o.replica.into())),
    ("tenant", Count(|o| o.tenant.into())),
    ("prompt_tokens", Count(|o| o.prompt_tokens.into())),
    ("cached_tokens", Count(|o| o.cached_tokens.into())),
    ("output_tokens", Count(|o| o.output_tokens.into())),
    ("queue_s", MaybeTime(|o| o.queue_ns)),
    ("ttft_s", MaybeTime(|o| o.ttft_ns)),
    ("tpot_s", MaybeTime(|o| o.tpot_ns)),
    ("e2e_s", MaybeTime(|o| o.e2e_ns)),
    ("preemptions", Count(|o| o.preemptions.into())),
    ("refused", Flag(|o| o.refused)),
    ("deadline_met", MaybeFlag(|o| o.deadline_met)),
    ("copied_tokens", Count(|o| o.copied_tokens.into())),
];

/// Outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number in the trace, from 0.
    pub request: u64,
    /// Arrival, nanoseconds after the first arrival.
    pub arrival_ns: u64,
    /// Replica at the end of the request.
    pub replica: u32,
    /// Number of the tenant.
    pub tenant: u32,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache; 0 if refused.
    pub cached_tokens: u32,
    /// Tokens generated; 0 if refused.
    pub output_tokens: u32,
    /// Queueing time: arrival to the first step, nanoseconds; `None` if refused. After a failure before the first token, the first
    /// step on the next replica counts.
    pub queue_ns: Option<u64>,
    /// TTFT: arrival to first token, nanoseconds; `None` if refused.
    pub ttft_ns: Option<u64>,
    /// TPOT: (E2E - TTFT) / (output tokens - 1), nanoseconds; `None` with fewer than two tokens.
    pub tpot_ns: Option<u64>,
    /// E2E: arrival to end, nanoseconds; `None` if refused.
    pub e2e_ns: Option<u64>,
    /// Preemptions on the replica at the end of the request.
    pub preemptions: u32,
    /// `true` if rejected on arrival.
    pub refused: bool,
    /// `true` if completed before its deadline; `None` without a deadline.
    pub deadline_met: Option<bool>,
    /// Prompt tokens copied from other places in the cache; 0 if refused.
    pub copied_tokens: u32,
    /// Session of the request in the trace, if it is a turn of one; in no column.
    pub session: Option<u32>,
}

impl Outcome {
    /// Returns `true` if the request was ended by its deadline.
    pub fn timed_out(&self) -> bool {
        !self.refused && self.deadline_met == Some(false)
    }
}

/// Failed writing of outcomes.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the requests to {}: {fault}", path.display())]
pub struct OutcomeError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the system.
    pub fault: io::Error,
}

/// Writer of outcomes in the order of completion: Parquet for names ending in `.parquet`, else CSV, as gzip for `.gz`. CSV has
/// seconds with nine decimals. Missing values are empty.
pub struct OutcomeWriter {
    path: PathBuf,
    to: Box<dyn Sink>,
    /// First error; nothing is written after it.
    fault: Option<io::Error>,
}

/// Destination of outcomes, CSV or Parquet.
trait Sink {
    fn write(&mut self, outcome: &Outcome) -> io::Result<()>;
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// CSV file, plain or gzip.
struct Lines(Box<dyn Finish>);

/// Stream with an explicit end.
trait Finish: Write {
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl Finish for BufWriter<File> {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.flush()
    }
}

impl Finish for GzEncoder<BufWriter<File>> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        (*self).finish()?.flush()
    }
}

impl Lines {
    fn create(path: &Path, gzip: bool) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let mut to: Box<dyn Finish> =
            if gzip { Box::new(GzEncoder::new(file, Compression::fast())) } else { Box::new(file) };
        writeln!(to, "{}", COLUMNS.map(|(name, _)| name).join(","))?;
        Ok(Self(to))
    }
}

impl Sink for Lines {
    fn write(&mut self, outcome: &Outcome) -> io::Result<()> {
        for (at, (_, access)) in COLUMNS.iter().enumerate() {
            if at > 0 {
                self.0.write_all(b",")?;
            }
            let number = |flag: bool| Some(u64::from(flag));
            let (count, ns) = match access {
                Count(count) => (Some(count(outcome)), None),
                Time(ns) => (None, Some(ns(outcome))),
                MaybeTime(ns) => (None, ns(outcome)),
                Flag(flag) => (number(flag(outcome)), None),
                MaybeFlag(flag) => (flag(outcome).and_then(number), None),
            };
            if let Some(count) = count {
                write!(self.0, "{count}")?;
            }
            if let Some(ns) = ns {
                write!(self.0, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)?;
            }
        }
        writeln!(self.0)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.finish()
    }
}

impl OutcomeWriter {
    /// Creates or truncates the file and writes the header.
    ///
    /// # Errors
    ///
    /// [`OutcomeError`] if the file cannot be created.
    pub fn create(path: &Path) -> Result<Self, OutcomeError> {
        let ends_in = |end: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end));
        let to: io::Result<Box<dyn Sink>> = match ends_in("parquet") {
            true => parquet::Rows::create(path).map(|rows| Box::new(rows) as Box<dyn Sink>),
            false => Lines::create(path, ends_in("gz")).map(|lines| Box::new(lines) as Box<dyn Sink>),
        };
        let to = to.map_err(|fault| OutcomeError { path: path.into(), fault })?;
        Ok(Self { path: path.into(), to, fault: None })
    }

    /// Writes a row; [`Self::finish`] reports a failure.
    pub fn write(&mut self, outcome: &Outcome) {
        if self.fault.is_none() {
            self.fault = self.to.write(outcome).err();
        }
    }

    /// Finishes the file and reports failures.
    ///
    /// # Errors
    ///
    /// [`OutcomeError`] with the first failure of any write.
    pub fn finish(self) -> Result<(), OutcomeError> {
        let result = self.fault.map_or_else(|| self.to.finish(), Err);
        result.map_err(|fault| OutcomeError { path: self.path, fault })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use trunkline_sim_perf::columns;

    const DONE: Outcome = Outcome {
        request: 3,
        arrival_ns: 1_500_000_000,
        replica: 1,
        tenant: 0,
        prompt_tokens: 100,
        cached_tokens: 32,
        output_tokens: 5,
        queue_ns: Some(1_000_000),
        ttft_ns: Some(2_000_000),
        tpot_ns: Some(1_000_001),
        e2e_ns: Some(6_000_004),
        preemptions: 2,
        refused: false,
        deadline_met: Some(true),
        copied_tokens: 48,
        session: None,
    };

    fn refused() -> Outcome {
        let Outcome { arrival_ns, replica, prompt_tokens, .. } = DONE;
        Outcome { request: 4, arrival_ns, replica, prompt_tokens, refused: true, ..Outcome::default() }
    }

    const HEADER: &str = "id,arrival_s,replica,tenant,prompt_tokens,cached_tokens,output_tokens,queue_s,ttft_s,tpot_s,e2e_s,preemptions,refused,deadline_met,copied_tokens";

    #[test]
    fn a_line_each_plain_or_gzip() {
        let expected = format!(
            "{HEADER}\n3,1.500000000,1,0,100,32,5,0.001000000,0.002000000,0.001000001,0.006000004,2,0,1,48\n4,1.500000000,1,0,100,0,0,,,,,0,1,,0\n"
        );
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.csv", "a.csv.gz"] {
            let path = folder.path().join(name);
            let mut writer = OutcomeWriter::create(&path).unwrap();
            writer.write(&DONE);
            writer.write(&refused());
            writer.finish().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let mut text = String::new();
            match name.ends_with("gz") {
                true => GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap(),
                false => (&bytes[..]).read_to_string(&mut text).unwrap(),
            };
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_file_that_cannot_be_is_told_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.csv", "a.parquet"] {
            let path = folder.path().join("none").join(name);
            let message = OutcomeWriter::create(&path).err().unwrap().to_string();
            let begin = format!("cannot write the requests to {}: No such file", path.display());
            assert!(message.starts_with(&begin), "{message}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn parquet_has_the_columns_of_csv() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let mut writer = OutcomeWriter::create(&path).unwrap();
        writer.write(&DONE);
        writer.write(&refused());
        writer.finish().unwrap();
        let found = columns::read(&path).unwrap();
        assert_eq!(found.names.join(","), HEADER);
        let row = |at: usize| found.cells.iter().map(|column| column[at].to_text()).collect::<Vec<_>>().join(",");
        assert_eq!(row(0), "3,1.5,1,0,100,32,5,0.001,0.002,0.001000001,0.006000004,2,false,true,48");
        assert_eq!(row(1), "4,1.5,1,0,100,0,0,,,,,0,true,,0");
        assert_eq!(found.about[0].0, "trunkline.rows");
    }
}
