//! Seeded runs of the core with the content oracle.
//!
//! `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-tests --test oracle` runs more of them; a failure prints the seed, and
//! `TRUNKLINE_SEED=… cargo test -p trunkline-tests --test oracle` runs that one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use trunkline_tests::pressure::{Outcome, run, seeds};

const REQUESTS: u64 = 60;
const SEEDS_DEFAULT: usize = 400;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

#[test]
fn every_request_gets_the_text_it_would_have_alone() {
    let list = match number("TRUNKLINE_SEED") {
        Some(seed) => vec![seed],
        None => seeds(1, number("TRUNKLINE_SEEDS").map_or(SEEDS_DEFAULT, |n| n as usize)),
    };
    let mut sum = Outcome::default();
    for seed in &list {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(*seed, REQUESTS))).unwrap_or_else(|panic| {
            eprintln!("replay it: TRUNKLINE_SEED={seed} cargo test -p trunkline-tests --test oracle");
            resume_unwind(panic)
        });
        sum.completed += outcome.completed;
        sum.cut_short += outcome.cut_short;
        sum.refused += outcome.refused;
        sum.preemptions += outcome.preemptions;
        sum.cached_tokens += outcome.cached_tokens;
        sum.merged_blocks += outcome.merged_blocks;
        sum.evicted_blocks += outcome.evicted_blocks;
        sum.workers_lost += outcome.workers_lost;
    }
    eprintln!("{} seeds: {sum:?}", list.len());
    if list.len() >= SEEDS_DEFAULT {
        // The runs must have been under pressure, or they prove nothing.
        assert!(sum.completed > 5 * list.len() as u32 && sum.cut_short > list.len() as u32 && sum.refused > 0);
        assert!(sum.preemptions > list.len() as u64 && sum.evicted_blocks > list.len() as u64);
        assert!(sum.cached_tokens > 10 * list.len() as u64 && sum.merged_blocks > list.len() as u64 / 2);
        assert!(sum.workers_lost > list.len() as u32 / 10);
    }
}

#[test]
fn the_same_seed_decides_the_same() {
    for seed in seeds(2, 10) {
        assert_eq!(run(seed, REQUESTS), run(seed, REQUESTS));
    }
}
