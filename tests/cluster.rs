//! Seeded runs of a whole cluster with a content oracle for each engine.
//!
//! `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-tests --test cluster` runs more of them, and `TRUNKLINE_REQUESTS=5000`
//! makes each longer. A failure prints the command that runs it again.

use trunkline_driver::seeds::{self, REQUESTS, Sample, seeds};
use trunkline_tests::cluster_pressure::{Outcome, run};

const SEEDS_DEFAULT: usize = 300;

fn run_one(seed: u64, requests: u64) -> Outcome {
    seeds::run_one("-p trunkline-tests --test cluster every_request", seed, requests, run)
}

#[test]
fn every_request_gets_the_text_it_would_have_alone_whatever_becomes_of_its_engine() {
    let sample = Sample::from_env(5, SEEDS_DEFAULT);
    let runs = sample.seeds.iter().map(|seed| run_one(*seed, sample.requests));
    let sum = runs.fold(Outcome::default(), |sum, outcome| sum.plus(&outcome));
    eprintln!("{} seeds of {} requests: {sum:?}", sample.seeds.len(), sample.requests);
    if sample.is_whole(SEEDS_DEFAULT) {
        assert_pressure(&sum, sample.seeds.len() as u64);
    }
}

/// The runs must have been under pressure, or they prove nothing.
fn assert_pressure(sum: &Outcome, seeds: u64) {
    assert!(sum.completed > 5 * seeds && sum.interrupted > seeds && sum.refused > 0 && sum.refused_by_all > 0);
    assert!(sum.moved_lost > seeds / 2 && sum.moved_drained > seeds / 2 && sum.handed_over > seeds);
    assert!(sum.moved_and_completed > seeds && sum.orphaned > 0 && sum.emptied > seeds / 10);
    assert!(sum.lost > seeds / 2 && sum.retired > seeds / 2 && sum.nonsense > seeds / 10);
    assert!(sum.steps_ahead > seeds);
}

#[test]
fn the_same_seed_decides_the_same() {
    for seed in seeds(6, 10) {
        assert_eq!(run_one(seed, REQUESTS), run_one(seed, REQUESTS));
    }
}
