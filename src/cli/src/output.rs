//! Results on standard output or in files: tables of text, and JSON.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
pub(crate) use trunkline_sim_report::numbers::grouped;

/// Exit status of a command whose answer is no: a plan without hardware for its SLOs, a budget exceeded, no settings to recommend. 1 is a failure, and 2
/// a wrong command line.
pub(crate) const NOT_MET: u8 = 3;

/// Destination of results as JSON.
#[derive(Clone, Debug, Args)]
pub(crate) struct JsonArgs {
    /// Write the results as JSON to a file, or to standard output if FILE is `-`, instead of tables; a list if there are
    /// several results.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Writes JSON to a file, or to standard output if the path is `-`.
///
/// # Errors
/// If the file cannot be written; the message names `what` is written.
pub(crate) fn write_json(what: &str, to: &Path, json: &str) -> anyhow::Result<()> {
    if to.as_os_str() == "-" {
        return print(json);
    }
    fs::write(to, format!("{json}\n")).with_context(|| format!("cannot write the {what} to {}", to.display()))
}

/// Writes a line, or several, to standard output.
///
/// # Errors
/// If standard output is closed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

/// Makes an empty table without lines.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// Aligns all columns but the first `skip` to the right.
pub(crate) fn align_right(table: &mut Table, skip: usize) {
    table.column_iter_mut().skip(skip).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
}

/// Formats seconds, to a tenth of a millisecond.
pub(crate) fn seconds(s: f64) -> String {
    format!("{s:.4}")
}

/// Formats a share in per cent.
pub(crate) fn per_cent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
