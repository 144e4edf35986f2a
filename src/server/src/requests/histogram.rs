//! Histograms with fixed buckets, owned by one thread: adding a value takes a search among some twenty bounds, no lock and no memory.

/// Buckets of a histogram.
#[derive(Debug, PartialEq)]
pub(crate) struct Buckets {
    /// Upper bounds in whole units, ascending; a value on a bound belongs to the bucket below.
    pub(crate) bounds: &'static [u64],
    /// Whole units in one unit of the exported metric: 10^9 nanoseconds in a second.
    pub(crate) scale: u32,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// Nanoseconds in a second.
const NS: u32 = 1_000_000_000;

/// Durations of requests and of their phases: 1 ms to 1,000 s.
#[rustfmt::skip]
pub(crate) static REQUEST_TIME: Buckets = Buckets {
    bounds: &[
        MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS,
        S, 2 * S, 5 * S, 10 * S, 20 * S, 50 * S, 100 * S, 200 * S, 500 * S, 1000 * S,
    ],
    scale: NS,
};

/// Durations of steps, and times between two tokens: 0.2 ms to 20 s, closer around the 10 to 100 ms of most goals.
#[rustfmt::skip]
pub(crate) static STEP_TIME: Buckets = Buckets {
    bounds: &[
        200 * US, 500 * US, MS, 2 * MS, 3 * MS, 5 * MS, 7 * MS, 10 * MS, 15 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS, 75 * MS,
        100 * MS, 150 * MS, 200 * MS, 300 * MS, 500 * MS, S, 2 * S, 5 * S, 10 * S, 20 * S,
    ],
    scale: NS,
};

/// Tokens of requests: 1 to 1,000,000.
#[rustfmt::skip]
pub(crate) static REQUEST_TOKENS: Buckets = Buckets {
    bounds: &[
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    ],
    scale: 1,
};

/// Tokens or sequences of a step: powers of 2 up to 16,384.
pub(crate) static STEP_SIZE: Buckets =
    Buckets { bounds: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], scale: 1 };

/// Counts of values by bucket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    buckets: &'static Buckets,
    /// Values in each bucket, and those above the last bound.
    counts: Vec<u64>,
    /// Sum of all values, whole units.
    sum: u128,
}

impl Histogram {
    /// Makes an empty histogram.
    pub(crate) fn new(buckets: &'static Buckets) -> Self {
        Self { buckets, counts: vec![0; buckets.bounds.len() + 1], sum: 0 }
    }

    /// Adds a value in whole units.
    pub(crate) fn add(&mut self, value: u64) {
        let at = self.buckets.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += u128::from(value);
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all values, in units of the exported metric.
    pub(crate) fn sum(&self) -> f64 {
        self.sum as f64 / f64::from(self.buckets.scale)
    }

    /// Returns the upper bound of each bucket in units of the exported metric, with the number of values in this bucket alone; the last bound
    /// is infinite.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.buckets.bounds.iter().map(|bound| *bound as f64 / f64::from(self.buckets.scale));
        bounds.chain([f64::INFINITY]).zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_lies_in_the_bucket_that_ends_at_or_above_the_latency() {
        let mut histogram = Histogram::new(&REQUEST_TIME);
        for ns in [0, 3 * MS, 5 * MS, 5 * MS + 1, 2000 * S] {
            histogram.add(ns);
        }
        let filled: Vec<_> = histogram.buckets().into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled, [(0.001, 1), (0.005, 2), (0.01, 1), (f64::INFINITY, 1)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 2_000.013_000_001));
    }

    #[test]
    fn bounds_ascend_and_sums_do_not_overflow() {
        for buckets in [&REQUEST_TIME, &STEP_TIME, &REQUEST_TOKENS, &STEP_SIZE] {
            assert!(buckets.bounds.is_sorted_by(|a, b| a < b));
        }
        let mut histogram = Histogram::new(&REQUEST_TOKENS);
        histogram.add(u64::MAX);
        histogram.add(u64::MAX);
        assert_eq!(histogram.sum(), 2.0 * u64::MAX as f64);
    }
}
