//! Failures of replicas at random times: exponential times between failures and to repair, from a seed.
//!
//! A replica fails after a time in service drawn with the mean MTBF (mean time between failures), and comes back with an empty cache
//! after a time drawn with the mean MTTR (mean time to repair): the Markov model of availability, MTBF / (MTBF + MTTR) of the time.
//! The requests of the replica move to other replicas at once, with all tokens so far; if no other replica is up or starting, they
//! wait for the first that is. Every draw is a hash of the seed, the replica and the number of the draw, so a replica fails at the
//! same ages under all policies.

use std::fmt;

use trunkline_core::draw::{mix, unit};

/// Stream of draws for failures; see [`trunkline_core::draw`].
const FAILURE_STREAM: u64 = 0x6661_696c;
const HOUR_NS: f64 = 3.6e12;
const MINUTE_NS: f64 = 6e10;
/// Longest mean time, hours or minutes.
const MEAN_MAX: f64 = 1e7;
/// Shortest mean time, hours or minutes: far below, a replay would be failures alone.
const MEAN_MIN: f64 = 1e-4;

/// Failures at random times, with repairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomFailures {
    /// Mean time in service between two failures of a replica, hours.
    pub mtbf_hours: f64,
    /// Mean time to repair, minutes.
    pub mttr_minutes: f64,
    /// Seed of all draws.
    pub seed: u64,
}

/// Mean time out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}; it must be from {MEAN_MIN} to {MEAN_MAX} {unit}")]
pub struct RandomFailuresError {
    /// Name of the mean: `mtbf` or `mttr`.
    pub name: &'static str,
    /// Value as given on input.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
}

impl RandomFailures {
    /// Checks both means.
    ///
    /// # Errors
    ///
    /// [`RandomFailuresError`] with the first mean out of range.
    pub fn validate(&self) -> Result<(), RandomFailuresError> {
        for (name, value, unit) in [("mtbf", self.mtbf_hours, "hours"), ("mttr", self.mttr_minutes, "minutes")] {
            if !(MEAN_MIN..=MEAN_MAX).contains(&value) {
                return Err(RandomFailuresError { name, value, unit });
            }
        }
        Ok(())
    }

    /// Returns the time in service of a replica from start number `n` to the failure, nanoseconds.
    pub(crate) fn service_ns(&self, replica: usize, n: u64) -> u64 {
        self.draw_ns(self.mtbf_hours * HOUR_NS, replica, 2 * n)
    }

    /// Returns the time to repair a replica that failed after start number `n`, nanoseconds.
    pub(crate) fn repair_ns(&self, replica: usize, n: u64) -> u64 {
        self.draw_ns(self.mttr_minutes * MINUTE_NS, replica, 2 * n + 1)
    }

    fn draw_ns(&self, mean_ns: f64, replica: usize, position: u64) -> u64 {
        let uniform = unit(FAILURE_STREAM ^ mix(self.seed), replica as u64, position);
        ((-mean_ns * libm::log(1.0 - uniform)).round() as u64).saturating_add(1)
    }
}

impl fmt::Display for RandomFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mtbf_hours, mttr_minutes, seed } = self;
        write!(f, "at random: MTBF {mtbf_hours} h, MTTR {mttr_minutes} min, seed {seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exponential_with_the_means_asked_for() {
        let random = RandomFailures { mtbf_hours: 2.0, mttr_minutes: 5.0, seed: 1 };
        for (draw, mean_ns) in [
            (RandomFailures::service_ns as fn(&RandomFailures, usize, u64) -> u64, 2.0 * HOUR_NS),
            (RandomFailures::repair_ns, 5.0 * MINUTE_NS),
        ] {
            let all: Vec<f64> = (0..20_000).map(|n| draw(&random, (n % 4) as usize, n / 4) as f64 / mean_ns).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
            assert!((mean - 1.0).abs() < 0.03 && (variance.sqrt() - 1.0).abs() < 0.05, "{mean} {variance}");
        }
        let other = RandomFailures { seed: 2, ..random };
        assert_ne!(random.service_ns(0, 0), other.service_ns(0, 0));
        assert_ne!(random.service_ns(0, 0), random.service_ns(1, 0));
    }

    #[test]
    fn the_longest_mean_is_longer_than_any_replay_and_never_0() {
        let random = RandomFailures { mtbf_hours: MEAN_MAX, mttr_minutes: MEAN_MAX, seed: 0 };
        assert!((0..1000).all(|n| random.service_ns(n, 0) > HOUR_NS as u64 && random.repair_ns(n, 0) > 0));
    }

    #[test]
    fn means_out_of_range_are_refused_in_one_line() {
        let of = |mtbf_hours, mttr_minutes| RandomFailures { mtbf_hours, mttr_minutes, seed: 0 }.validate();
        assert_eq!(of(1.0, 1.0), Ok(()));
        let message = |result: Result<(), RandomFailuresError>| result.unwrap_err().to_string();
        assert_eq!(message(of(0.0, 1.0)), "mtbf is 0; it must be from 0.0001 to 10000000 hours");
        assert_eq!(message(of(1.0, f64::NAN)), "mttr is NaN; it must be from 0.0001 to 10000000 minutes");
    }
}
