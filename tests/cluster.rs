//! Seeded runs of a whole cluster with a content oracle for each engine.
//!
//! `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-tests --test cluster` runs more of them, and `TRUNKLINE_REQUESTS=5000`
//! makes each longer. A failure prints the command that runs it again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use trunkline_tests::cluster_pressure::{Outcome, run};
use trunkline_tests::pressure::seeds;

const REQUESTS: u64 = 60;
const SEEDS_DEFAULT: usize = 300;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Runs a seed. A seed that fails prints the command that runs it again.
fn run_one(seed: u64, requests: u64) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(seed, requests))).unwrap_or_else(|panic| {
        eprintln!(
            "replay it: TRUNKLINE_SEED={seed} TRUNKLINE_REQUESTS={requests} \
             cargo test -p trunkline-tests --test cluster every_request"
        );
        resume_unwind(panic)
    })
}

#[test]
fn every_request_gets_the_text_it_would_have_alone_whatever_becomes_of_its_engine() {
    let list = match number("TRUNKLINE_SEED") {
        Some(seed) => vec![seed],
        None => seeds(5, number("TRUNKLINE_SEEDS").map_or(SEEDS_DEFAULT, |n| n as usize)),
    };
    let requests = number("TRUNKLINE_REQUESTS").unwrap_or(REQUESTS);
    let sum = list.iter().fold(Outcome::default(), |sum, seed| sum.plus(&run_one(*seed, requests)));
    eprintln!("{} seeds of {requests} requests: {sum:?}", list.len());
    if list.len() >= SEEDS_DEFAULT && requests >= REQUESTS {
        assert_pressure(&sum, list.len() as u64);
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
