//! Outcomes as rows of Parquet.

use std::io;
use std::path::Path;

use super::{CSV_HEADER, Outcome, Sink};
use trunkline_sim_perf::columns::{Cell, Column, ColumnError, ColumnFault, ColumnWriter, Kind};

/// Metadata in the file's footer.
const ABOUT: [(&str, &str); 3] = [
    ("trunkline.rows", "a request of a replay each, in the order in which they ended"),
    ("trunkline.times", "seconds; arrival_s after the first arrival, the others after the request's own"),
    ("trunkline.version", env!("CARGO_PKG_VERSION")),
];

/// Parquet file of outcomes.
pub(super) struct Rows(ColumnWriter);

impl Rows {
    pub fn create(path: &Path) -> io::Result<Self> {
        ColumnWriter::create(path, columns(), &ABOUT).map(Self).map_err(fault)
    }
}

impl Sink for Rows {
    fn write(&mut self, outcome: &Outcome) -> io::Result<()> {
        let int = |n: u32| Cell::Int(n.into());
        let seconds = |ns: Option<u64>| ns.map_or(Cell::None, |ns| Cell::Real(ns as f64 / 1e9));
        let row = [
            Cell::count(outcome.request),
            seconds(Some(outcome.arrival_ns)),
            int(outcome.replica),
            int(outcome.tenant),
            int(outcome.prompt_tokens),
            int(outcome.cached_tokens),
            int(outcome.output_tokens),
            seconds(outcome.queue_ns),
            seconds(outcome.ttft_ns),
            seconds(outcome.tpot_ns),
            seconds(outcome.e2e_ns),
            int(outcome.preemptions),
            Cell::Flag(outcome.refused),
            outcome.deadline_met.map_or(Cell::None, Cell::Flag),
            int(outcome.copied_tokens),
        ];
        self.0.push(row).map_err(fault)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.finish().map_err(fault)
    }
}

/// Returns the columns of CSV, in order.
fn columns() -> Vec<Column> {
    let column = |name: &str| match name {
        "deadline_met" => Column::optional(name, Kind::Flag),
        "refused" => Column::new(name, Kind::Flag),
        "arrival_s" => Column::new(name, Kind::Real),
        "queue_s" | "ttft_s" | "tpot_s" | "e2e_s" => Column::optional(name, Kind::Real),
        _ => Column::new(name, Kind::Int),
    };
    CSV_HEADER.split(',').map(column).collect()
}

/// Returns the error without the path, which the caller adds.
fn fault(error: ColumnError) -> io::Error {
    match error.fault {
        ColumnFault::Io(fault) => fault,
        fault => io::Error::other(fault),
    }
}
