//! Sums over time in a bounded number of buckets of growing width.

/// Maximum number of buckets. When all are used, pairs are merged and the width doubles.
pub(super) const BUCKETS_MAX: usize = 240;
/// Initial width, nanoseconds: 1/512 s, so that later widths are 1, 2, 4 s and so on.
pub(super) const FIRST_WIDTH_NS: u64 = 1_953_125;

/// Quantity summed in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    OutputTokens,
    /// Prompt tokens at the first admission of the request; next, prefix hits among them.
    PromptTokens,
    CachedTokens,
    /// Steps, followed by sums over steps: time, sequences and tokens.
    Steps,
    BusyNs,
    Decodes,
    Prefills,
    DecodeTokens,
    PrefillTokens,
    Arrived,
    Ended,
    Preemptions,
    /// Sum over requests that arrived in the bucket.
    TtftNs,
    TtftRequests,
    /// Copied blocks of the first link direction; the number of the direction is added.
    LinkDirection,
}

/// Sums per bucket, including one per link direction.
const SUMS: usize = Sum::LinkDirection as usize + trunkline_sim_perf::link::LINK_DIRECTIONS;

/// Quantity integrated over time in a bucket, for the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gauge {
    Waiting,
    Loading,
    Running,
    Swapped,
    BlocksInUse,
    BlocksCached,
    BlocksFree,
    /// Replicas that take new requests.
    Ready,
    /// Blocks in the first tier; further tiers follow.
    Tier,
}

/// Number of gauges per bucket.
const GAUGES: usize = Gauge::Tier as usize + trunkline_core::TIERS_MAX;
/// Values of all gauges.
pub(super) type Values = [u64; GAUGES];

/// Bucket of events in an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    sums: [f64; SUMS],
    /// Gauges integrated over nanoseconds.
    areas: [f64; GAUGES],
    maxima: Values,
}

impl Bucket {
    pub(super) fn sum(&self, sum: Sum) -> f64 {
        self.sums[sum as usize]
    }

    /// Returns the blocks copied in a link direction.
    pub(super) fn copied(&self, direction: usize) -> f64 {
        self.sums[Sum::LinkDirection as usize + direction]
    }

    /// Returns the mean of a gauge over the bucket, of which the replay covers `covered_ns`.
    pub(super) fn mean(&self, gauge: usize, covered_ns: u64) -> f64 {
        self.areas[gauge] / covered_ns.max(1) as f64
    }

    /// Returns the greatest lasting value of a gauge.
    pub(super) fn max(&self, gauge: Gauge) -> u64 {
        self.maxima[gauge as usize]
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, add)| *sum += add);
        self.areas.iter_mut().zip(other.areas).for_each(|(area, add)| *area += add);
        self.maxima.iter_mut().zip(other.maxima).for_each(|(max, other)| *max = (*max).max(other));
    }
}

/// Buckets from time 0.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    width_ns: u64,
    buckets: Vec<Bucket>,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { width_ns: FIRST_WIDTH_NS, buckets: Vec::new() }
    }
}

impl Buckets {
    pub(super) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Adds to a sum at an instant.
    pub(super) fn add(&mut self, sum: Sum, at_ns: u64, amount: f64) {
        self.at(at_ns).sums[sum as usize] += amount;
    }

    /// Adds to sums evenly over an interval.
    pub(super) fn spread(&mut self, begin_ns: u64, end_ns: u64, amounts: &[(Sum, f64)]) {
        self.over(begin_ns, end_ns, |bucket, share, _| {
            amounts.iter().for_each(|(sum, amount)| bucket.sums[*sum as usize] += amount * share);
        });
    }

    /// Adds blocks copied in a link direction evenly over an interval.
    pub(super) fn spread_copy(&mut self, begin_ns: u64, end_ns: u64, direction: usize, blocks: f64) {
        self.over(begin_ns, end_ns, |bucket, share, _| {
            bucket.sums[Sum::LinkDirection as usize + direction] += blocks * share
        });
    }

    /// Integrates gauges with constant values over an interval.
    pub(super) fn hold(&mut self, begin_ns: u64, end_ns: u64, values: &Values) {
        if begin_ns < end_ns {
            self.over(begin_ns, end_ns, |bucket, _, ns| {
                for (i, value) in values.iter().enumerate() {
                    bucket.areas[i] += *value as f64 * ns;
                    bucket.maxima[i] = bucket.maxima[i].max(*value);
                }
            });
        }
    }

    /// Visits the buckets of an interval with the share of it in each, and nanoseconds. An instant lies in one bucket.
    fn over(&mut self, begin_ns: u64, end_ns: u64, mut visit: impl FnMut(&mut Bucket, f64, f64)) {
        if end_ns <= begin_ns {
            return visit(self.at(begin_ns), 1.0, 0.0);
        }
        self.at(end_ns - 1);
        let width_ns = self.width_ns;
        let mut from_ns = begin_ns;
        for index in begin_ns / width_ns..=(end_ns - 1) / width_ns {
            let to_ns = end_ns.min((index + 1) * width_ns);
            let ns = (to_ns - from_ns) as f64;
            visit(&mut self.buckets[index as usize], ns / (end_ns - begin_ns) as f64, ns);
            from_ns = to_ns;
        }
    }

    /// Returns the bucket of an instant, and creates all buckets up to it.
    fn at(&mut self, at_ns: u64) -> &mut Bucket {
        while at_ns / self.width_ns >= BUCKETS_MAX as u64 {
            self.halve();
        }
        let index = (at_ns / self.width_ns) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        &mut self.buckets[index]
    }

    fn halve(&mut self) {
        let half = self.buckets.len().div_ceil(2);
        for i in 0..half {
            let mut merged = std::mem::take(&mut self.buckets[2 * i]);
            if let Some(second) = self.buckets.get(2 * i + 1) {
                merged.merge(second);
            }
            self.buckets[i] = merged;
        }
        self.buckets.truncate(half);
        self.width_ns *= 2;
    }

    /// Returns the buckets from 0 to `duration_ns`. A rest shorter than half a bucket joins the bucket before.
    pub(super) fn end(mut self, duration_ns: u64) -> Vec<Bucket> {
        self.at(duration_ns.saturating_sub(1));
        let whole = (duration_ns + self.width_ns / 2) / self.width_ns;
        let n = (whole as usize).clamp(1, self.buckets.len());
        let rest = self.buckets.split_off(n);
        let last = &mut self.buckets[n - 1];
        // What is behind the rest is after the end of the last request: a failure, at most.
        rest.iter().take(1).for_each(|bucket| last.merge(bucket));
        self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u64 = FIRST_WIDTH_NS;

    fn outputs(buckets: &Buckets) -> Vec<f64> {
        buckets.buckets.iter().map(|bucket| bucket.sum(Sum::OutputTokens)).collect()
    }

    #[test]
    fn what_lasts_is_shared_out_by_time() {
        let mut buckets = Buckets::default();
        // Half a bucket, a whole one, a quarter.
        buckets.spread(W / 2 + 1, 2 * W + W / 4 + 1, &[(Sum::OutputTokens, 7.0)]);
        let shares = outputs(&buckets);
        assert_eq!(shares.len(), 3);
        for (share, expected) in shares.iter().zip([2.0, 4.0, 1.0]) {
            assert!((share - expected).abs() < 1e-5, "{shares:?}");
        }
        buckets.add(Sum::OutputTokens, W, 1.0);
        buckets.spread(W, W, &[(Sum::OutputTokens, 2.0)]);
        assert!((outputs(&buckets)[1] - 7.0).abs() < 1e-5, "an instant on an edge belongs to what follows");
    }

    #[test]
    fn gauges_are_means_over_time_and_maxima_that_lasted() {
        let mut buckets = Buckets::default();
        let waiting = |n: u64| {
            let mut values = Values::default();
            values[Gauge::Waiting as usize] = n;
            values
        };
        buckets.hold(0, W / 5, &waiting(10));
        buckets.hold(W / 5, W / 5, &waiting(1000));
        buckets.hold(W / 5, 2 * W, &waiting(5));
        let [first, second] = &buckets.buckets[..] else { panic!("two") };
        assert_eq!((first.mean(0, W), first.max(Gauge::Waiting)), (6.0, 10));
        assert_eq!((second.mean(0, W), second.max(Gauge::Waiting)), (5.0, 5));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut buckets = Buckets::default();
        for i in 0..10_000_u64 {
            buckets.add(Sum::OutputTokens, i * W, 1.0);
            assert!(buckets.buckets.len() <= BUCKETS_MAX);
        }
        assert_eq!(buckets.width_ns, 64 * W, "10000 / 240 is 42");
        let counts = outputs(&buckets);
        assert_eq!(counts.len(), 157);
        assert!(counts[..156].iter().all(|count| *count == 64.0));
        assert_eq!(counts[156], 16.0);
        let mut far = Buckets::default();
        far.add(Sum::OutputTokens, 0, 3.0);
        far.add(Sum::OutputTokens, u64::MAX / 4, 4.0);
        assert_eq!(outputs(&far).iter().sum::<f64>(), 7.0);
    }

    #[test]
    fn a_short_rest_joins_the_bucket_before_it() {
        let made = |duration_ns: u64| {
            let mut buckets = Buckets::default();
            buckets.spread(0, duration_ns, &[(Sum::OutputTokens, 1.0)]);
            buckets.add(Sum::Ended, duration_ns, 1.0);
            let made = buckets.end(duration_ns);
            assert!((made.iter().map(|bucket| bucket.sum(Sum::OutputTokens)).sum::<f64>() - 1.0).abs() < 1e-9);
            assert_eq!(made.iter().map(|bucket| bucket.sum(Sum::Ended)).sum::<f64>(), 1.0);
            made.len()
        };
        assert_eq!([2 * W, 2 * W + W / 3, 2 * W + 2 * W / 3, W / 9, 0].map(made), [2, 2, 3, 1, 1]);
    }
}
