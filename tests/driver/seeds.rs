//! Seeds of pressure runs: a sample as in CI, or those that `TRUNKLINE_SEED`, `TRUNKLINE_SEEDS` and `TRUNKLINE_REQUESTS` ask for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

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

/// Runs all seeds of a sample on all processors, as [`run_one`] does, and adds up what the runs came to with `plus`. A seed that fails keeps no
/// other from its run.
///
/// # Panics
/// If a seed failed, after the last one.
pub fn run_all<T: Default + Send>(test: &str, sample: &Sample, run: fn(u64, u64) -> T, plus: fn(T, &T) -> T) -> T {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let (mut sum, mut n_failed) = (T::default(), 0);
    let part = |first: usize| {
        let (mut sum, mut n_failed) = (T::default(), 0);
        for seed in sample.seeds.iter().skip(first).step_by(n_threads) {
            match catch_unwind(AssertUnwindSafe(|| run_one(test, *seed, sample.requests, run))) {
                Ok(one) => sum = plus(sum, &one),
                Err(_) => n_failed += 1,
            }
        }
        (sum, n_failed)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|first| scope.spawn(move || part(first))).collect();
        for thread in threads {
            let (part, failed) = thread.join().expect("panics are caught");
            (sum, n_failed) = (plus(std::mem::take(&mut sum), &part), n_failed + failed);
        }
    });
    assert_eq!(n_failed, 0, "of {} seeds so many failed", sample.seeds.len());
    sum
}
