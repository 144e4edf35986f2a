//! Users who each wait for their answers.

use super::*;
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_workload::trace::ClosedLoop;

/// Counts steps, which disables fast-forward.
struct Steps(u64);

impl Observer for Steps {
    fn ended(&mut self, _: &Outcome) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn step(&mut self, _: &StepSeen<'_>) {
        self.0 += 1;
    }
}

fn looped(users: u32, think_s: f64, replicas: u32) -> Settings {
    let arrivals = Arrivals::Closed(ClosedLoop { users, think_s, ramp_s: 0.0 });
    Settings { arrivals, replicas, ..settings(16, 4_000) }
}

/// Replays a trace and returns the report, and the arrivals and ends of all requests in the order of arrival.
fn times(trace: &Trace, settings: &Settings) -> (Report, Vec<(u64, u64)>) {
    let mut times = vec![(0, 0); trace.requests.len()];
    let report = replay_watched(trace, settings, &OneMs, &mut |outcome: &Outcome| {
        times[outcome.request as usize] = (outcome.arrival_ns, outcome.arrival_ns + outcome.e2e_ns.unwrap());
        ControlFlow::Continue(())
    });
    (report.unwrap(), times)
}

#[test]
fn so_many_requests_run_at_a_time_and_each_begins_at_the_end_of_another() {
    let trace = conversations(200, 5);
    for (users, replicas) in [(1, 1), (8, 1), (8, 3), (300, 2)] {
        let (report, times) = times(&trace, &looped(users, 0.0, replicas));
        assert_eq!((report.completed, report.settings.arrivals.speed), (200, None));
        assert_eq!(report.settings.arrivals.closed_loop.unwrap().concurrency, users);
        let at = |moment: u64| times.iter().filter(|(begin, end)| *begin <= moment && moment < *end).count() as u32;
        let most = times.iter().map(|(begin, _)| at(*begin)).max().unwrap();
        assert_eq!(most, users.min(200), "never more, and at some time as many");
        for (number, (begin, _)) in times.iter().enumerate().skip(users as usize) {
            assert!(times[..number].iter().any(|(_, end)| end == begin), "request {number}");
        }
    }
}

#[test]
fn a_pause_lowers_the_rate_by_the_law_of_little() {
    let trace = conversations(400, 5);
    let (busy, _) = times(&trace, &looped(4, 0.0, 2));
    let (idle, _) = times(&trace, &looped(4, 2.0, 2));
    // Users over the time from one request to the next, but for the last requests of each.
    let expected = 4.0 / (idle.latencies.e2e_s.mean + 2.0);
    assert!((idle.requests_s / expected - 1.0).abs() < 0.05, "{} {expected}", idle.requests_s);
    assert!(busy.requests_s > 1.2 * idle.requests_s);
}

#[test]
fn fast_forwards_change_nothing_and_nothing_does_it_again() {
    let trace = conversations(150, 9);
    for router in ["round_robin", "prefix_affinity", "added_time"] {
        let mut settings = looped(6, 0.1, 3);
        settings.routing.router = router.into();
        let first = run(&trace, &settings);
        assert_eq!(first, Report { wall_s: first.wall_s, ..run(&trace, &settings) });
        let mut steps = Steps(0);
        let single = replay_watched(&trace, &settings, &OneMs, &mut steps).unwrap();
        assert_eq!((single.digest, steps.0), (first.digest, first.batches.steps), "{router}");
    }
}

#[test]
fn a_replay_that_is_recorded_has_the_same_users() {
    let (trace, settings) = (conversations(60, 5), looped(4, 0.5, 2));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl.gz");
    let mut nobody = |_: &Outcome| ControlFlow::Continue(());
    let mut recorded = record(&mut trace.source(), &settings, &OneMs, &mut nobody, &path).unwrap();
    let mut plain = replay_watched(&trace, &settings, &OneMs, &mut nobody).unwrap();
    assert!(recorded.wall_s > 0.0 && plain.wall_s > 0.0);
    (recorded.wall_s, plain.wall_s) = (0.0, 0.0);
    assert_eq!(recorded, plain);
    // Settings that cannot be replayed leave the file as it is.
    let before = std::fs::read(&path).unwrap();
    let none = Settings { replicas: 0, ..settings };
    record(&mut trace.source(), &none, &OneMs, &mut nobody, &path).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
