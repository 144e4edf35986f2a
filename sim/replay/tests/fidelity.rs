//! How near replays come to measurements and to another simulator. The data are public but not part of this repository: the environment
//! variable `TRUNKLINE_DATA` names a folder with `profiles/` and `traces/`; without it the tests are ignored (`sim/data.rs`).

mod fidelity {
    pub mod calibrated;
    pub mod engine;
    pub mod experts;
    pub mod kernels;
    pub mod stages;
    pub mod vidur;
    pub mod vllm;
}

use std::path::PathBuf;

use trunkline_sim_workload::summary::Summary;

/// `path` in the folder of data.
///
/// # Panics
/// If it is not there.
pub fn data(path: &str) -> PathBuf {
    let root = std::env::var_os("TRUNKLINE_DATA").expect("TRUNKLINE_DATA names the folder of data");
    let path = PathBuf::from(root).join(path);
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// Relative errors of mean, p50, p90, p95, p99 and maximum.
pub fn errors(found: &Summary, expected: &Summary) -> [f64; 6] {
    let values = |s: &Summary| [s.mean, s.p50, s.p90, s.p95, s.p99, s.max];
    let (found, expected) = (values(found), values(expected));
    std::array::from_fn(|i| found[i] / expected[i] - 1.0)
}

/// The errors in per cent, as a line.
pub fn line(what: &str, errors: &[f64]) -> String {
    let each: Vec<_> = errors.iter().map(|error| format!("{:+6.2}", 100.0 * error)).collect();
    format!("{what:>5}: {} %", each.join(" "))
}
