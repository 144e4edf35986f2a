//! The texts of errors of traces and workloads.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use trunkline_core::request::retention::RetentionError;
use trunkline_sim_workload::daily::DailyCurveError;
use trunkline_sim_workload::lines::LineFault;
use trunkline_sim_workload::synthetic::{WorkloadError, WorkloadFault};
use trunkline_sim_workload::tenants::BadShares;
use trunkline_sim_workload::trace::stats::StatsError;
use trunkline_sim_workload::trace::{
    BadSlice, BadSpeed, ConvertError, Format, FormatOption, ResultFault, TraceError, TraceFault, WriteError,
    WriteFault, formats,
};

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

fn empty() -> TraceError {
    TraceError { path: "trace.jsonl".into(), line: 0, fault: TraceFault::Empty }
}

fn traces(out: &mut String) {
    texts!(
        out,
        LineFault {
            NotFound: LineFault::NotFound,
            NoFile: LineFault::NoFile,
            Unreadable: LineFault::Unreadable(refused()),
            TruncatedGzip: LineFault::TruncatedGzip,
            CorruptGzip: LineFault::CorruptGzip(io::Error::other("bad block")),
            TruncatedZstd: LineFault::TruncatedZstd,
            CorruptZstd: LineFault::CorruptZstd(io::Error::other("bad block")),
            TooLong: LineFault::TooLong { max_bytes: 1_000 },
        }
    );
    texts!(out, TraceError = TraceError { line: 7, ..empty() });
    texts!(out, BadSpeed = BadSpeed(0.0));
    texts!(out, BadSlice = BadSlice("9..1".into()));
    texts!(
        out,
        StatsError {
            Trace: StatsError::Trace(empty()),
            Empty: StatsError::Empty,
            BlockTokens: StatsError::BlockTokens(0),
            Capacities: StatsError::Capacities(99),
            TooManyBlocks: StatsError::TooManyBlocks { block_tokens: 1 },
        }
    );
}

fn first_format() -> Format {
    formats::read().next().expect("there are formats")
}

fn faults(out: &mut String) {
    let format = first_format();
    texts!(
        out,
        TraceFault {
            Line: TraceFault::Line(LineFault::NoFile),
            Empty: TraceFault::Empty,
            UnknownFormat: TraceFault::UnknownFormat("is not a trace".into()),
            MissingColumn: TraceFault::MissingColumn { column: "arrived_at", header: "a,b".into() },
            RepeatedColumn: TraceFault::RepeatedColumn { column: "arrived_at" },
            MissingField: TraceFault::MissingField { field: "input_length", expected: "timestamp and input_length" },
            Malformed: TraceFault::Malformed { format, why: "EOF while parsing an object".into() },
            BadLength: TraceFault::BadLength { field: "input_length", value: "-1".into() },
            Result: TraceFault::Result(ResultFault::NoStarts),
            Refused: TraceFault::Refused("is the summary of a benchmark"),
            BadTerm: TraceFault::BadTerm { field: "priority", value: "300".into(), expected: "0 to 255" },
            Retention: TraceFault::Retention(RetentionError::TooMany { n: 99 }),
            BadTimestamp: TraceFault::BadTimestamp { field: "timestamp", value: "x".into(), expected: "milliseconds" },
            TimeGoesBack: TraceFault::TimeGoesBack { by_s: 1.5, window_requests: 8 },
            TooLong: TraceFault::TooLong,
            LateSession: TraceFault::LateSession,
            NotForFormat: TraceFault::NotForFormat { option: FormatOption::BlockTokens, of: "mooncake".into(), format },
            HashIdCount: TraceFault::HashIdCount {
                found: 1,
                expected: 2,
                input_tokens: 600,
                format,
                block_tokens: 512
            },
            TokenCount: TraceFault::TokenCount { field: "output_toks", found: 3, expected: 4 },
            HashIdsMeet: TraceFault::HashIdsMeet { id: 7 },
            TooManyRequests: TraceFault::TooManyRequests,
            EmptySlice: TraceFault::EmptySlice { slice: "1h..2h".into() },
        }
    );
    texts!(
        out,
        ResultFault {
            Malformed: ResultFault::Malformed { format, why: "expected a list".into() },
            Benchmarks: ResultFault::Benchmarks { n: 2 },
            Runs: ResultFault::Runs { n: 2 },
            Sample: ResultFault::Sample { kept: 10, of: 20 },
            NoStarts: ResultFault::NoStarts,
            Lengths: ResultFault::Lengths { field: "output_lens", found: 3, expected: 4 },
            Request: ResultFault::Request { number: 3, fault: Box::new(TraceFault::Empty) },
        }
    );
    texts!(
        out,
        WriteFault {
            Io: WriteFault::Io(io::Error::other("no space left")),
            Format: WriteFault::Format(format),
            TooManyBlocks: WriteFault::TooManyBlocks,
        }
    );
    texts!(
        out,
        ConvertError {
            Read: ConvertError::Read(empty()),
            Write: ConvertError::Write(WriteError { path: "out.jsonl".into(), fault: WriteFault::TooManyBlocks }),
            SameFile: ConvertError::SameFile("trace.jsonl".into()),
            Late: ConvertError::Late,
            Empty: ConvertError::Empty,
        }
    );
}

fn workloads(out: &mut String) {
    texts!(
        out,
        WorkloadError = WorkloadError {
            path: "chat.toml".into(),
            line: 3,
            fault: WorkloadFault::Toml("unknown field `arival`".into()),
        }
    );
    texts!(
        out,
        WorkloadFault {
            Unreadable: WorkloadFault::Unreadable(refused()),
            TooLong: WorkloadFault::TooLong,
            Toml: WorkloadFault::Toml("unknown field `arival`".into()),
            Range: WorkloadFault::Range { field: "think-s".into(), value: -1.0, expected: "at least 0".into() },
            NeverFits: WorkloadFault::NeverFits {
                population: "1 (chat)".into(),
                least: 900,
                system: 500,
                input: 300,
                output: 100,
                max: 800,
            },
            Samples: WorkloadFault::Samples { population: "1 (chat)".into(), error: Box::new(empty()) },
        }
    );
    texts!(
        out,
        DailyCurveError {
            Unreadable: DailyCurveError::Unreadable { path: "day.csv".into(), fault: refused() },
            Line: DailyCurveError::Line { path: "day.csv".into(), line: 3, fault: "give HOUR,RATE".into() },
            Rate: DailyCurveError::Rate { hour: 3, rate: -1.0 },
            Closed: DailyCurveError::Closed,
            Hours: DailyCurveError::Hours(23),
            Spec: DailyCurveError::Spec("noon".into()),
        }
    );
    texts!(out, BadShares = BadShares { spec: "0.9,x".into() });
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    traces(&mut out);
    faults(&mut out);
    workloads(&mut out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
