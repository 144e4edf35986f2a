//! Outcomes of single requests, and files with one row per outcome, written as requests end.
//!
//! | file | rows |
//! |---|---|
//! | `.csv`, `.csv.gz`, any other name | lines of [`CSV_HEADER`] |
//! | `.parquet` | the same columns: whole numbers as `INT64`, times as `DOUBLE` seconds, `refused` as `BOOLEAN` |
//!
//! A double of seconds is exact to the nanosecond for the first hundred days.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

mod parquet;

/// First line of the CSV file.
pub const CSV_HEADER: &str = "id,arrival_s,replica,tenant,prompt_tokens,cached_tokens,output_tokens,queue_s,ttft_s,tpot_s,e2e_s,preemptions,refused,deadline_met,copied_tokens";

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        writeln!(to, "{CSV_HEADER}")?;
        Ok(Self(to))
    }
}

impl Sink for Lines {
    fn write(&mut self, outcome: &Outcome) -> io::Result<()> {
        let Outcome { request, replica, tenant, prompt_tokens, cached_tokens, output_tokens, copied_tokens, .. } =
            outcome;
        let seconds = |ns: Option<u64>| {
            ns.map_or_else(String::new, |ns| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000))
        };
        let arrival = seconds(Some(outcome.arrival_ns));
        let [queue, ttft, tpot, e2e] =
            [outcome.queue_ns, outcome.ttft_ns, outcome.tpot_ns, outcome.e2e_ns].map(seconds);
        let (preemptions, refused) = (outcome.preemptions, u8::from(outcome.refused));
        let met = outcome.deadline_met.map_or("", |met| if met { "1" } else { "0" });
        writeln!(
            self.0,
            "{request},{arrival},{replica},{tenant},{prompt_tokens},{cached_tokens},{output_tokens},{queue},{ttft},{tpot},{e2e},{preemptions},{refused},{met},{copied_tokens}"
        )
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
    };

    const REFUSED: Outcome = Outcome {
        request: 4,
        cached_tokens: 0,
        output_tokens: 0,
        queue_ns: None,
        ttft_ns: None,
        tpot_ns: None,
        e2e_ns: None,
        preemptions: 0,
        refused: true,
        deadline_met: None,
        copied_tokens: 0,
        ..DONE
    };

    #[test]
    fn a_line_each_plain_or_gzip() {
        let expected = format!(
            "{CSV_HEADER}\n3,1.500000000,1,0,100,32,5,0.001000000,0.002000000,0.001000001,0.006000004,2,0,1,48\n4,1.500000000,1,0,100,0,0,,,,,0,1,,0\n"
        );
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.csv", "a.csv.gz"] {
            let path = folder.path().join(name);
            let mut writer = OutcomeWriter::create(&path).unwrap();
            writer.write(&DONE);
            writer.write(&REFUSED);
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
        writer.write(&REFUSED);
        writer.finish().unwrap();
        let found = columns::read(&path).unwrap();
        assert_eq!(found.names.join(","), CSV_HEADER);
        let row = |at: usize| found.cells.iter().map(|column| column[at].to_text()).collect::<Vec<_>>().join(",");
        assert_eq!(row(0), "3,1.5,1,0,100,32,5,0.001,0.002,0.001000001,0.006000004,2,false,true,48");
        assert_eq!(row(1), "4,1.5,1,0,100,0,0,,,,,0,true,,0");
        assert_eq!(found.about[0].0, "trunkline.rows");
    }
}
