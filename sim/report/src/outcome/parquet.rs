//! Outcomes as rows of Parquet.

use std::io;
use std::path::Path;

use super::{Access, COLUMNS, Outcome, Sink};
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
        let seconds = |ns: u64| Cell::Real(ns as f64 / 1e9);
        let row = COLUMNS.map(|(_, access)| match access {
            Access::Count(count) => Cell::count(count(outcome)),
            Access::Time(ns) => seconds(ns(outcome)),
            Access::MaybeTime(ns) => ns(outcome).map_or(Cell::None, seconds),
            Access::Flag(flag) => Cell::Flag(flag(outcome)),
            Access::MaybeFlag(flag) => flag(outcome).map_or(Cell::None, Cell::Flag),
        });
        self.0.push(row).map_err(fault)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.finish().map_err(fault)
    }
}

/// Returns the columns of CSV, in order.
fn columns() -> Vec<Column> {
    let column = |(name, access)| match access {
        Access::Count(_) => Column::new(name, Kind::Int),
        Access::Time(_) => Column::new(name, Kind::Real),
        Access::MaybeTime(_) => Column::optional(name, Kind::Real),
        Access::Flag(_) => Column::new(name, Kind::Flag),
        Access::MaybeFlag(_) => Column::optional(name, Kind::Flag),
    };
    COLUMNS.map(column).into()
}

/// Returns the error without the path, which the caller adds.
fn fault(error: ColumnError) -> io::Error {
    match error.fault {
        ColumnFault::Io(fault) => fault,
        fault => io::Error::other(fault),
    }
}
