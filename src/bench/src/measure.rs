//! Repeated timings, and reports of their median and range.

use std::fs;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use trunkline::h2o::numbers::SEED;

/// Size of a buffer larger than any processor cache, in words of 8 bytes.
const SWEEP_WORDS: usize = 24 << 20;

/// Figure of a benchmark: median and range of several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the operation: `find`, `store`.
    pub what: String,
    /// Case: sizes, state of caches, policy.
    pub case: String,
    pub unit: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

/// All figures of a benchmark, and the machine of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    benchmark: &'static str,
    version: &'static str,
    cpu: String,
    debug_assertions: bool,
    quick: bool,
    seed: u64,
    /// Notes on the meaning of the figures.
    notes: Vec<&'static str>,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(benchmark: &'static str, quick: bool, notes: Vec<&'static str>) -> Self {
        Self {
            benchmark,
            version: env!("CARGO_PKG_VERSION"),
            cpu: cpu(),
            debug_assertions: cfg!(debug_assertions),
            quick,
            seed: SEED,
            notes,
            rows: Vec::new(),
        }
    }

    /// Adds a figure from the values of all runs.
    pub fn add(&mut self, what: &str, case: impl Into<String>, unit: &'static str, mut values: Vec<f64>) {
        values.sort_by(f64::total_cmp);
        let case = case.into();
        // Progress for the user. If standard error is closed, it is lost.
        let _ = writeln!(io::stderr(), "{what}, {case}: {:.3} {unit}", quantile(&values, 0.5));
        self.rows.push(Row {
            what: what.into(),
            case,
            unit,
            median: quantile(&values, 0.5),
            min: values[0],
            max: values[values.len() - 1],
            runs: values.len(),
        });
    }

    /// Returns the report as a table of text.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["what", "case", "median", "min", "max", "unit", "runs"]);
        for row in &self.rows {
            let [median, min, max] = [row.median, row.min, row.max].map(digits);
            let runs = row.runs.to_string();
            table.add_row([&row.what, &row.case, &median, &min, &max, row.unit, &runs]);
        }
        for column in [2, 3, 4, 6] {
            table.column_mut(column).expect("seven columns").set_cell_alignment(CellAlignment::Right);
        }
        let checks = if self.debug_assertions { ", with debug assertions: the figures mean nothing" } else { "" };
        let notes = self.notes.iter().map(|note| format!("{note}\n")).collect::<String>();
        format!(
            "trunkline {} bench {} on {}{checks}\n{notes}\n{}",
            self.version,
            self.benchmark,
            self.cpu,
            table.trim_fmt()
        )
    }
}

/// Formats a value with three or four significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.3}"),
        medium if medium < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Returns the `q`-quantile of sorted values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = (sorted.len() as f64 * q) as usize;
    sorted[at.min(sorted.len() - 1)]
}

/// Returns the name of the processor.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.map_or_else(|| format!("unknown {} processor", std::env::consts::ARCH), str::to_string)
}

/// Returns the time that `work` takes, nanoseconds.
pub fn time_ns<T>(work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_nanos() as f64
}

/// Evicts all other data from the processor's caches.
pub struct Sweeper(Vec<u64>);

impl Sweeper {
    pub fn new() -> Self {
        Self(vec![1; SWEEP_WORDS])
    }

    pub fn sweep(&mut self) {
        for line in self.0.chunks_exact_mut(8) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_with_its_extremes() {
        let mut report = Report::new("test", true, vec!["A note."]);
        report.add("thing", "case", "ns", vec![3.0, 1.0, 2.0, 9.0, 4.0]);
        let row = &report.rows[0];
        assert_eq!((row.min, row.median, row.max, row.runs), (1.0, 3.0, 9.0, 5));
        assert!(report.render().contains("A note."));
    }

    #[test]
    fn digits_that_count_are_kept() {
        assert_eq!([0.123_45, 12.34, 123_456.7].map(digits), ["0.123", "12.3", "123457"]);
    }
}
