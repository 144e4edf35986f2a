//! How near replays come to measurements and to another simulator. The data are public but not part of this repository: the environment
//! variable `TRUNKLINE_DATA` names a folder with `profiles/` and `traces/`; without it the tests say so and pass.

mod fidelity {
    pub mod engine;
    pub mod kernels;
    pub mod vidur;
    pub mod vllm;
}

use std::path::PathBuf;

use trunkline_sim_workload::summary::Summary;

/// `path` in the folder of data, or nothing and a word about it.
pub fn data(path: &str) -> Option<PathBuf> {
    let path = std::env::var_os("TRUNKLINE_DATA").map(|root| PathBuf::from(root).join(path));
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        println!("skipped: TRUNKLINE_DATA names no folder that holds the data of this test");
    }
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
