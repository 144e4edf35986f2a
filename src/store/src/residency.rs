//! Durations of blocks in a place: time until the end, and time until the next use.

/// Buckets of a [`Spread`]: the last begins at 2^43 ns, over two hours.
const BUCKETS: usize = 44;

/// Distribution of durations, in buckets that double.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Number of durations added.
    pub count: u64,
    /// Sum of all durations, nanoseconds.
    pub sum_ns: u64,
    /// Number of durations of 2^i to 2^(i+1) nanoseconds, by i.
    pub buckets: [u64; BUCKETS],
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, buckets: [0; BUCKETS] }
    }
}

impl Spread {
    /// Adds a duration in nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.buckets[(ns.max(1).ilog2() as usize).min(BUCKETS - 1)] += 1;
    }

    /// Returns the mean in nanoseconds, 0 without durations.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count.max(1)
    }

    /// Returns an upper bound of the `share` quantile in nanoseconds, at most twice too high; 0 without durations.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        for (at, n) in self.buckets.iter().enumerate() {
            below += n;
            if below >= rank {
                return 2 << at;
            }
        }
        0
    }
}

/// Times of the blocks of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// From a block's arrival to its end in the place.
    pub lifetime: Spread,
    /// From a block's last use to its end in the place.
    pub idle_before_end: Spread,
    /// Between two uses of a block, or between the arrival and the first use.
    pub gap: Spread,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_bound_the_durations() {
        let mut spread = Spread::default();
        assert_eq!((spread.mean_ns(), spread.quantile_ns(0.5)), (0, 0));
        (1..=100).for_each(|ms| spread.add(ms * 1_000_000));
        assert_eq!((spread.count, spread.mean_ns()), (100, 50_500_000));
        let median = spread.quantile_ns(0.5);
        assert!((50_000_000..=100_000_000).contains(&median), "{median}");
        spread.add(0);
        spread.add(u64::MAX);
        assert_eq!((spread.buckets[0], spread.buckets[BUCKETS - 1]), (1, 1));
    }
}
