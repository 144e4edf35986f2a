//! Distributions as points of the cumulative share.

use serde::Serialize;

use trunkline_sim_workload::summary::{Kept, Summary};

/// Number of evenly spaced points, 1/200 apart.
const EVEN: u64 = 200;

/// Distribution of values, such as latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values in the distribution.
    pub n: u64,
    /// Mean and percentiles, seconds.
    pub summary: Summary,
    /// Points (value in seconds, share of values not above it): the least, each half per cent, 99.9 % and the greatest, without
    /// duplicates. Each value was measured.
    pub points: Vec<(f64, f64)>,
}

impl Distribution {
    pub(super) fn of(mut values_ns: Vec<u64>) -> Self {
        values_ns.sort_unstable();
        let n = values_ns.len() as u64;
        let even = (1..=EVEN).map(|i| (n * i).div_ceil(EVEN));
        // 99.9 % is after the last but one.
        let mut ranks: Vec<u64> = std::iter::once(1).chain(even).chain([(n * 999).div_ceil(1000)]).collect();
        ranks.sort_unstable();
        let mut points: Vec<(f64, f64)> = Vec::new();
        for rank in ranks.into_iter().filter(|rank| (1..=n).contains(rank)) {
            let value_ns = values_ns[rank as usize - 1];
            let at_most = values_ns.partition_point(|value| *value <= value_ns);
            let point = (value_ns as f64 / 1e9, at_most as f64 / n as f64);
            if points.last() != Some(&point) {
                points.push(point);
            }
        }
        let mut meter = Kept::default();
        values_ns.iter().for_each(|ns| meter.record(*ns));
        Self { n, summary: meter.summary(), points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_values_and_their_shares() {
        let second = 1_000_000_000;
        let few = Distribution::of(vec![3 * second, second, second, 2 * second]);
        assert_eq!(few.points, [(1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
        assert_eq!((few.n, few.summary.p50, few.summary.max), (4, 1.0, 3.0));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    #[test]
    fn many_values_are_few_points_with_the_tail() {
        let many = Distribution::of((1..=1_000_000).rev().collect());
        assert_eq!(many.points.len(), 202);
        assert_eq!(many.points[0], (1e-9, 1e-6));
        assert_eq!(many.points[1], (5e-6, 0.005));
        assert_eq!(many.points[199..], [(995e-6, 0.995), (999e-6, 0.999), (1e-3, 1.0)]);
        assert!(many.points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
    }
}
