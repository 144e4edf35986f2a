//! Ranges of real step times in reports.

use super::*;
use trunkline_sim_perf::cost::TimeRange;
use trunkline_sim_workload::trace::ClosedLoop;

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
    let of = |arrivals: Arrivals| {
        let requests = (0..40).map(|at| request(at * 2, 16, 5, &[at as u32])).collect();
        let settings = Settings { arrivals, ..settings.clone() };
        replay(&trace(requests), &settings, &Ranged(range), &mut |_| {}).unwrap()
    };
    let users = |think_s| Arrivals::Closed(ClosedLoop { users: 2, think_s, ramp_s: 0.0 });
    let busy = of(users(0.0));
    assert_eq!(busy.settings.time_range, Some(range));
    // Each step of 1 ms takes 0.5 to 2.5 ms, and up to 2 ms of launches.
    let [low, high] = busy.time_factors().unwrap();
    assert!((low - 0.5).abs() < 1e-9 && (high - 4.5).abs() < 1e-6, "{low} {high}");
    assert!([Arrivals::Serial, Arrivals::AtOnce].map(of).iter().all(|report| report.time_factors().is_some()));
    assert_eq!(of(users(1.0)).time_factors(), None, "a pause does not become longer with the steps");
    let open = of(Arrivals::TRACED);
    assert!(open.fleet.utilisation > 0.95);
    assert_eq!(open.time_factors(), None, "arrivals do not wait for slower steps");
    let without = run(&trace(vec![request(0, 16, 5, &[0])]), &settings);
    assert_eq!((without.settings.time_range, without.time_factors()), (None, None));
}
