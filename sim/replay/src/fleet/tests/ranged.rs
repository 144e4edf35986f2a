//! Ranges of real step times in reports.

use super::*;
use trunkline_sim_perf::cost::TimeRange;

/// Steps of a millisecond, of which nothing but a range is known.
struct Ranged(TimeRange);

impl CostModel for Ranged {
    fn name(&self) -> &str {
        "ranged"
    }

    fn step_ns(&self, _: &StepShape) -> u64 {
        MS
    }

    fn range(&self, _: usize) -> Option<TimeRange> {
        Some(self.0)
    }
}

#[test]
fn times_of_busy_replicas_have_the_range_of_their_steps() {
    let range = TimeRange { low: 0.5, high: 2.5, launches_s: 0.002, why: "nobody measured it" };
    let settings = settings(512, 1000);
    let of = |arrivals: [u64; 2]| {
        let requests = arrivals.into_iter().map(|at_ms| request(at_ms, 16, 5, &[at_ms as u32])).collect();
        replay(&trace(requests), &settings, &Ranged(range), &mut |_| {}).unwrap()
    };
    let busy = of([0, 0]);
    assert_eq!(busy.settings.time_range, Some(range));
    // Each step of 1 ms takes 0.5 to 2.5 ms, and up to 2 ms of launches.
    let [low, high] = busy.time_factors().unwrap();
    assert!((low - 0.5).abs() < 1e-9 && (high - 4.5).abs() < 1e-6, "{low} {high}");
    assert_eq!(of([0, 1000]).time_factors(), None, "a pause does not become longer with the steps");
    let without = run(&trace(vec![request(0, 16, 5, &[0])]), &settings);
    assert_eq!((without.settings.time_range, without.time_factors()), (None, None));
}
