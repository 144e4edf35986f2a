//! Seeded loads, fast-forwarded and stepped.
//!
//! `TRUNKLINE_SEEDS=1000000 cargo test -p trunkline-core --test fast_forwards` runs more of them. A failure prints the command that runs the load
//! again, and the smallest part of the load that fails too.

use trunkline_driver::fast_forwards::{Load, compare, draw};
use trunkline_driver::seeds::{self, Sample};

const SEEDS_DEFAULT: usize = 2_000;

/// Leaves requests of a load out, as long as the rest differs.
fn shrink(mut load: Load) -> Load {
    let mut at = 0;
    while at < load.requests.len() {
        let mut smaller = load.clone();
        smaller.requests.remove(at);
        if compare(&smaller).is_err() {
            (load, at) = (smaller, 0);
        } else {
            at += 1;
        }
    }
    load
}

fn run_one(seed: u64) -> u64 {
    seeds::run_one("-p trunkline-core --test fast_forwards every_request", seed, 0, |seed, _| {
        let load = draw(seed);
        compare(&load).unwrap_or_else(|difference| panic!("{difference}\n{:#?}", shrink(load)))
    })
}

#[test]
fn every_request_ends_as_in_single_steps() {
    let sample = Sample::from_env(11, SEEDS_DEFAULT);
    let skipped: Vec<u64> = sample.seeds.iter().map(|seed| run_one(*seed)).collect();
    let n = skipped.len() as u64;
    let (some, sum) = (skipped.iter().filter(|steps| **steps > 0).count(), skipped.iter().sum::<u64>());
    eprintln!("{n} loads, {sum} steps skipped over in {some} of them");
    assert!(n < 100 || sum > 10 * n, "{sum} steps were skipped over in {n} loads");
}
