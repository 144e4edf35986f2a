//! The texts of errors of workloads, and of the parts of traces that all formats share.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use trunkline_sim_workload::daily::DailyCurveError;
use trunkline_sim_workload::lines::LineFault;
use trunkline_sim_workload::synthetic::{WorkloadError, WorkloadFault};
use trunkline_sim_workload::tenants::BadShares;
use trunkline_sim_workload::trace::stats::StatsError;
use trunkline_sim_workload::trace::{BadSlice, BadSpeed, TraceError, TraceFault};

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
    workloads(&mut out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
