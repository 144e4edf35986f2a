//! Links and codec of a machine, from the reports of `trunkline-bench disk|swap|codec --json`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Report of a benchmark, as far as the simulator needs it.
#[derive(Deserialize)]
struct Report {
    benchmark: String,
    quick: bool,
    debug_assertions: bool,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    what: String,
    case: String,
    median: f64,
}

/// Measured figures; `None` where no report has one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Bandwidth between device and host, GB/s: the slower direction.
    pub host_gb_s: Option<f64>,
    /// Bandwidth of the disk tier, GB/s: the slower direction.
    pub disk_gb_s: Option<f64>,
    /// Size of a compressed block over its size before.
    pub compression: Option<f64>,
    /// Speed of one core's compression or decompression, whichever is slower, GB/s.
    pub compression_gb_s: Option<f64>,
}

impl Report {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a report of `trunkline-bench --json`", path.display()))?;
        let is_meaningful = !report.quick && !report.debug_assertions;
        ensure!(is_meaningful, "{} is a quick run or one of a debug build; measure again without", path.display());
        Ok(report)
    }

    /// Returns the median of a figure.
    fn figure(&self, what: &str, case: &str) -> anyhow::Result<f64> {
        let row = self.rows.iter().find(|row| row.what == what && row.case == case);
        let row = row.filter(|row| row.median.is_finite() && row.median > 0.0);
        Ok(row
            .with_context(|| format!("the report of bench {} has no figure '{what}, {case}'", self.benchmark))?
            .median)
    }
}

impl Measured {
    /// Reads the reports in `paths`; of two with the same figure the later one counts.
    ///
    /// # Errors
    /// If a file is not a report of a whole run in release, or of another benchmark.
    pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut measured = Self::default();
        for path in paths {
            let report = Report::read(path)?;
            let slower = |one: (&str, &str), other: (&str, &str)| {
                Ok::<f64, anyhow::Error>(report.figure(one.0, one.1)?.min(report.figure(other.0, other.1)?))
            };
            match report.benchmark.as_str() {
                "disk" => measured.disk_gb_s = Some(slower(("tier", "write"), ("tier", "read"))? / 1e3),
                "swap" => measured.host_gb_s = Some(slower(("swap out", "used memory"), ("swap in", ""))? / 1e3),
                "codec" => {
                    let first = report.rows.iter().find(|row| row.what == "ratio").context("no ratio in the report")?;
                    let case = first.case.as_str();
                    measured.compression = Some(1.0 / report.figure("ratio", case)?);
                    measured.compression_gb_s = Some(slower(("encode", case), ("decode", case))?);
                }
                other => bail!("{} is a report of bench {other}; give one of disk, swap or codec", path.display()),
            }
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &tempfile::TempDir, benchmark: &str, quick: bool, rows: &[(&str, &str, f64)]) -> PathBuf {
        let path = folder.path().join(format!("{benchmark}.json"));
        let rows: Vec<_> = rows
            .iter()
            .map(|(what, case, median)| serde_json::json!({ "what": what, "case": case, "median": median }))
            .collect();
        let report =
            serde_json::json!({ "benchmark": benchmark, "quick": quick, "debug_assertions": false, "rows": rows });
        fs::write(&path, report.to_string()).unwrap();
        path
    }

    #[test]
    fn the_slower_direction_of_each_link_counts() {
        let folder = tempfile::tempdir().unwrap();
        let disk = file(
            &folder,
            "disk",
            false,
            &[("plain", "write", 1.0), ("tier", "write", 900.0), ("tier", "read", 1500.0)],
        );
        let swap =
            [("swap out", "new memory", 2_000.0), ("swap out", "used memory", 8_000.0), ("swap in", "", 16_000.0)];
        let swap = file(&folder, "swap", false, &swap);
        let codec =
            [("ratio", "BF16, P2", 1.6), ("encode", "BF16, P2", 1.2), ("decode", "BF16, P2", 1.0), ("ratio", "x", 9.0)];
        let codec = file(&folder, "codec", false, &codec);
        let measured = Measured::read(&[disk, swap, codec]).unwrap();
        assert_eq!((measured.disk_gb_s, measured.host_gb_s), (Some(0.9), Some(8.0)));
        assert_eq!((measured.compression, measured.compression_gb_s), (Some(1.0 / 1.6), Some(1.0)));
        assert_eq!(Measured::read(&[]).unwrap(), Measured::default());
    }

    #[test]
    fn reports_that_say_nothing_of_links_are_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: PathBuf| format!("{:#}", Measured::read(&[path]).unwrap_err());
        assert!(error(file(&folder, "disk", true, &[])).contains("is a quick run"));
        assert!(error(file(&folder, "tree", false, &[])).ends_with("give one of disk, swap or codec"));
        assert_eq!(
            error(file(&folder, "swap", false, &[])),
            "the report of bench swap has no figure 'swap out, used memory'"
        );
        assert!(error(folder.path().join("missing")).starts_with("cannot read "));
    }
}
