//! Seeds of pressure runs: a sample as in CI, or those that `TRUNKLINE_SEED`, `TRUNKLINE_SEEDS` and `TRUNKLINE_REQUESTS` ask for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Requests of a run by default.
pub const REQUESTS: u64 = 60;

/// Seeds to run, and the length of each run.
#[derive(Debug)]
pub struct Sample {
    /// One run for each.
    pub seeds: Vec<u64>,
    /// Requests of each run.
    pub requests: u64,
}

impl Sample {
    /// Reads the sample from the environment: `TRUNKLINE_SEED` for one seed, else `TRUNKLINE_SEEDS` seeds made from `base`,
    /// `by_default` if unset.
    ///
    /// # Panics
    /// If a variable is not a number.
    pub fn from_env(base: u64, by_default: usize) -> Self {
        let seeds = match number("TRUNKLINE_SEED") {
            Some(seed) => vec![seed],
            None => seeds(base, number("TRUNKLINE_SEEDS").map_or(by_default, |n| n as usize)),
        };
        Self { seeds, requests: number("TRUNKLINE_REQUESTS").unwrap_or(REQUESTS) }
    }

    /// Returns `true` if the sample is at least as large as that of CI, so that counts over all runs mean something.
    pub fn is_whole(&self, by_default: usize) -> bool {
        self.seeds.len() >= by_default && self.requests >= REQUESTS
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Makes `n` seeds from one base.
pub fn seeds(base: u64, n: usize) -> Vec<u64> {
    let mut rng = Pcg64Mcg::seed_from_u64(base);
    (0..n).map(|_| rng.next_u64() >> 16).collect()
}

/// Runs a seed. A seed that fails prints the command that runs it again; `test` is the package and the test:
/// `-p trunkline-core --test oracle every_request`.
pub fn run_one<T>(test: &str, seed: u64, requests: u64, run: impl FnOnce(u64, u64) -> T) -> T {
    catch_unwind(AssertUnwindSafe(|| run(seed, requests))).unwrap_or_else(|panic| {
        eprintln!("run it again: TRUNKLINE_SEED={seed} TRUNKLINE_REQUESTS={requests} cargo test {test}");
        resume_unwind(panic)
    })
}
