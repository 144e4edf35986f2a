//! Summaries of measured values: mean, percentiles and maximum.
//!
//! | meter | memory | error of percentiles |
//! |---|---|---|
//! | [`Kept`] | 8 bytes per value up to a million values, then a [`Histogram`] | none, then 0.05 % |
//! | [`Histogram`] | 450 kB | 0.05 % |
//!
//! Percentiles are nearest-rank: the p-th percentile is the smallest measured value not exceeded by at least p per cent of the
//! values. No percentile lies between two measured values.

use serde::{Serialize, Serializer};

/// Summary of a distribution, seconds. All fields are 0 for an empty distribution, which is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Arithmetic mean of the values, seconds.
    pub mean: f64,
    /// Median (50th percentile), seconds.
    pub p50: f64,
    /// 90th percentile of the values, seconds.
    pub p90: f64,
    /// 95th percentile of the values, seconds.
    pub p95: f64,
    /// 99th percentile of the values, seconds.
    pub p99: f64,
    /// Greatest value (100th percentile), seconds.
    pub max: f64,
}

impl Summary {
    fn new(n: u64, sum_ns: u128, max_ns: u64, percentile_ns: impl Fn(u64) -> u64) -> Self {
        if n == 0 {
            return Self::default();
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let at = |per_cent| seconds(percentile_ns(nearest_rank(n, per_cent)));
        Self {
            mean: sum_ns as f64 / n as f64 / 1e9,
            p50: at(50),
            p90: at(90),
            p95: at(95),
            p99: at(99),
            max: seconds(max_ns),
        }
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Values {
            mean: f64,
            p50: f64,
            p90: f64,
            p95: f64,
            p99: f64,
            max: f64,
        }
        let Self { mean, p50, p90, p95, p99, max } = *self;
        let values = Values { mean, p50, p90, p95, p99, max };
        Some(values).filter(|_| *self != Self::default()).serialize(serializer)
    }
}

/// Returns the rank, from 1, of the p-th percentile of `n` values.
fn nearest_rank(n: u64, per_cent: u64) -> u64 {
    (n * per_cent).div_ceil(100).clamp(1, n)
}

/// Number of values kept one by one before counting begins.
const KEPT_MAX: usize = 1 << 20;

/// Meter with exact percentiles for the first million values; beyond that a [`Histogram`] bounds the memory.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    values_ns: Vec<u64>,
    counted: Option<Box<Histogram>>,
}

impl Kept {
    /// Adds a value in nanoseconds.
    pub fn record(&mut self, value_ns: u64) {
        match &mut self.counted {
            Some(histogram) => histogram.record(value_ns, 1),
            None if self.values_ns.len() < KEPT_MAX => self.values_ns.push(value_ns),
            None => self.count().record(value_ns, 1),
        }
    }

    /// Moves all values to a histogram and continues counting there.
    fn count(&mut self) -> &mut Histogram {
        let values_ns = std::mem::take(&mut self.values_ns);
        let histogram = self.counted.get_or_insert_default();
        values_ns.into_iter().for_each(|value_ns| histogram.record(value_ns, 1));
        histogram
    }

    /// Adds all values of another meter.
    pub fn extend(&mut self, other: &Self) {
        if let Some(histogram) = &other.counted {
            self.count().extend(histogram);
        }
        other.values_ns.iter().for_each(|value_ns| self.record(*value_ns));
    }

    /// Returns the summary of all values, and consumes the meter.
    pub fn summary(mut self) -> Summary {
        if let Some(histogram) = &self.counted {
            return histogram.summary();
        }
        self.values_ns.sort_unstable();
        let sum_ns = self.values_ns.iter().map(|ns| u128::from(*ns)).sum();
        let max_ns = self.values_ns.last().copied().unwrap_or(0);
        Summary::new(self.values_ns.len() as u64, sum_ns, max_ns, |rank| self.values_ns[rank as usize - 1])
    }
}

const SUB_BITS: u32 = 10;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB_BUCKETS;

/// Histogram with buckets at most 1/1024 as wide as their values; 450 kB for any number of values.
///
/// Values below 2048 ns have a bucket each. A percentile is the middle of its bucket, at most 1/2048 off; mean and maximum are
/// exact.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    n: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], n: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Histogram {
    /// Adds a value in nanoseconds `times` times.
    #[inline]
    pub fn record(&mut self, value_ns: u64, times: u64) {
        self.counts[bucket(value_ns)] += times;
        self.n += times;
        self.sum_ns += u128::from(value_ns) * u128::from(times);
        self.min_ns = self.min_ns.min(value_ns);
        self.max_ns = self.max_ns.max(value_ns);
    }

    /// Adds all values of another histogram.
    pub fn extend(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.n += other.n;
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the summary of all values.
    pub fn summary(&self) -> Summary {
        Summary::new(self.n, self.sum_ns, self.max_ns, |rank| self.value_at(rank))
    }

    fn value_at(&self, rank: u64) -> u64 {
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(i).clamp(self.min_ns, self.max_ns);
            }
        }
        unreachable!("rank {rank} of {} values", self.n)
    }
}

/// Returns the bucket of a value: its first 11 bits, and `shift`, the number of bits dropped.
#[inline]
fn bucket(value: u64) -> usize {
    let shift = (63 - (value | 1).leading_zeros()).saturating_sub(SUB_BITS);
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

fn middle(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let low = ((bucket - (shift << SUB_BITS)) as u64) << shift;
    low + (1u64 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values spread over ten orders of magnitude.
    fn values(n: u64) -> Vec<u64> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        (0..n)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 20) >> (state % 34)
            })
            .collect()
    }

    fn exact(values: &[u64]) -> Summary {
        let mut meter = Kept::default();
        values.iter().for_each(|v| meter.record(*v));
        meter.summary()
    }

    fn counted(values: &[u64]) -> Summary {
        let mut meter = Histogram::default();
        values.iter().for_each(|v| meter.record(*v, 1));
        meter.summary()
    }

    #[test]
    fn a_summary_of_nothing_is_null_in_json() {
        assert_eq!(serde_json::to_string(&exact(&[])).unwrap(), "null");
        let second = r#"{"mean":1.0,"p50":1.0,"p90":1.0,"p95":1.0,"p99":1.0,"max":1.0}"#;
        assert_eq!(serde_json::to_string(&exact(&[1_000_000_000])).unwrap(), second);
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).rev().map(|s| s * 1_000_000_000).collect();
        let expected = Summary { mean: 50.5, p50: 50.0, p90: 90.0, p95: 95.0, p99: 99.0, max: 100.0 };
        assert_eq!(exact(&hundred), expected);
        let three = exact(&[3_000_000_000, 1_000_000_000, 2_000_000_000]);
        assert_eq!(three, Summary { mean: 2.0, p50: 2.0, p90: 3.0, p95: 3.0, p99: 3.0, max: 3.0 });
        let one = Summary { mean: 7e-9, p50: 7e-9, p90: 7e-9, p95: 7e-9, p99: 7e-9, max: 7e-9 };
        assert_eq!(exact(&[7]), one);
        assert_eq!(counted(&[7]), one);
        assert_eq!(exact(&[]), Summary::default());
        assert_eq!(counted(&[]), Summary::default());
    }

    #[test]
    fn the_smallest_value_that_enough_do_not_exceed() {
        for n in 1..300 {
            let values = values(n);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for per_cent in [50, 90, 95, 99] {
                let value = sorted[nearest_rank(n, per_cent) as usize - 1];
                let at_most = values.iter().filter(|v| **v <= value).count() as u64;
                let below = values.iter().filter(|v| **v < value).count() as u64;
                assert!(at_most * 100 >= n * per_cent && below * 100 < n * per_cent, "{n} {per_cent}");
            }
        }
    }

    #[test]
    fn buckets_cover_all_values_in_order() {
        let mut edges: Vec<u64> = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]).collect();
        edges.extend([u64::MAX, u64::MAX - 1]);
        edges.extend(values(10_000));
        edges.sort_unstable();
        assert!(edges.is_sorted_by_key(|v| bucket(*v)));
        assert!(bucket(u64::MAX) < BUCKETS);
        for value in edges {
            let error = middle(bucket(value)).abs_diff(value);
            assert!(u128::from(error) * 2048 <= u128::from(value), "{value}: {error}");
        }
    }

    #[test]
    fn more_than_can_be_kept_are_counted_whoever_has_them() {
        let values = values(KEPT_MAX as u64 + 1000);
        let (first, rest) = values.split_at(700);
        let meter = |values: &[u64]| {
            let mut meter = Kept::default();
            values.iter().for_each(|value| meter.record(*value));
            meter
        };
        let mut few_and_many = meter(first);
        few_and_many.extend(&meter(rest));
        let mut many_and_few = meter(rest);
        many_and_few.extend(&meter(first));
        assert!(meter(rest).counted.is_some() && meter(first).counted.is_none());
        assert!(meter(&values[..KEPT_MAX]).counted.is_none());
        let expected = counted(&values);
        assert_eq!(few_and_many.summary(), expected);
        assert_eq!(many_and_few.summary(), expected);
        assert_eq!(meter(&values).summary(), expected);
    }

    #[test]
    fn counting_is_within_a_two_thousandth_of_keeping() {
        let values = values(200_000);
        let (kept, counted) = (exact(&values), counted(&values));
        assert_eq!((kept.mean, kept.max), (counted.mean, counted.max));
        for (a, b) in
            [(kept.p50, counted.p50), (kept.p90, counted.p90), (kept.p95, counted.p95), (kept.p99, counted.p99)]
        {
            assert!((a - b).abs() <= a / 2048.0 + 1e-15, "{a} {b}");
        }
    }
}
