//! Replicas that fail at random: requests move, none is lost, and the seed decides.

use super::autoscaling::{Watch, autoscaled, draining, watched};
use super::*;
use crate::random_failures::RandomFailures;
use trunkline_sim_report::observer::ReplicaChange::{Back, Draining, Failed, Lost, Stopped};

/// A hundred seconds of requests, each of a second.
fn steady() -> Trace {
    trace((0..400).map(|i| request(250 * i, 100, 100, &[i as u32])).collect())
}

fn failing(replicas: u32, mtbf_s: f64, mttr_s: f64, seed: u64) -> Settings {
    let random = RandomFailures { mtbf_hours: mtbf_s / 3600.0, mttr_minutes: mttr_s / 60.0, seed };
    let routing = Routing { random_failures: Some(random), ..settings(16, 2_000).routing };
    Settings { replicas, routing, ..settings(16, 2_000) }
}

fn failures(watch: &Watch) -> Vec<(u64, u32)> {
    watch.changes.iter().filter(|it| it.2 == Failed).map(|it| (it.0, it.1)).collect()
}

#[test]
fn requests_of_a_failed_replica_move_at_once_and_end() {
    let settings = failing(3, 20.0, 5.0, 1);
    let (report, watch) = watched(&steady(), &settings);
    let random = settings.routing.random_failures.unwrap();
    let first = (0..3).map(|replica| (random.service_ns(replica, 0), replica as u32)).min().unwrap();
    assert_eq!(failures(&watch)[0], (first.0 / MS, first.1), "the first failure is the first draw");
    let back = watch.changes.iter().find(|it| it.2 == Back && it.1 == first.1).unwrap().0;
    assert_eq!(back, (first.0 + random.repair_ns(first.1 as usize, 0)) / MS);
    let service = report.fleet.service.unwrap();
    assert_eq!(
        service.failures,
        failures(&watch).iter().filter(|it| it.0 < (report.duration_s * 1e3) as u64).count() as u64
    );
    assert!(service.failures >= 8, "{service:?}");
    assert_eq!(service.failed[0].at_s, first.0 as f64 / 1e9);
    let moved: u64 = service.failed.iter().map(|it| u64::from(it.requests)).sum();
    assert!(moved > 0 && report.fleet.rerouted >= moved, "{} of {moved}", report.fleet.rerouted);
    // A request takes a second, and 5 s to repair would show.
    assert!(report.latencies.e2e_s.p99 < 2.0, "{:?}", report.latencies.e2e_s);
}

#[test]
fn other_seeds_fail_at_other_times_and_rare_failures_never() {
    let at = |seed| failures(&watched(&steady(), &failing(3, 20.0, 5.0, seed)).1);
    assert_ne!(at(1), at(2));
    let never = watched(&steady(), &failing(3, 1e9, 5.0, 1)).0;
    let plain = watched(&steady(), &Settings { replicas: 3, ..settings(16, 2_000) }).0;
    assert_eq!((never.digest, never.fleet.service.unwrap().failures), (plain.digest, 0));
    assert_eq!(plain.fleet.service, None, "without failures nothing is counted");
}

#[test]
fn when_all_replicas_are_down_requests_wait_for_the_first_to_come_back() {
    for replicas in [1, 2] {
        for seed in 0..6 {
            let (report, _) = watched(&steady(), &failing(replicas, 6.0, 6.0, seed));
            let service = report.fleet.service.unwrap();
            assert_eq!(service.ready_min, 0, "seed {seed}: {service:?}");
        }
    }
}

#[test]
fn availability_is_that_of_the_means() {
    let trace = trace((0..4_000).map(|i| request(500 * i, 100, 10, &[i as u32])).collect());
    let (report, _) = watched(&trace, &failing(20, 30.0, 10.0, 3));
    let available = report.fleet.service.unwrap().ready_mean / 20.0;
    assert!((available - 0.75).abs() < 0.02, "{available}");
}

#[test]
fn failures_at_random_go_with_failures_at_given_times_and_with_autoscaling() {
    let policy = "load:min=2,max=5,target=2,interval_s=3,start_delay_s=2,stabilisation_s=5";
    for seed in 0..8 {
        let mut settings = autoscaled(policy, 2, failing(5, 15.0, 5.0, seed));
        settings.routing.failures = ["0@10", "1@20..30", "3@25", "1@40..41"].map(|spec| spec.parse().unwrap()).into();
        let (report, _) = watched(&steady(), &settings);
        assert!(report.fleet.service.unwrap().failures > 0);
        let tenants = Settings { tenants: "0.7,0.3".parse().unwrap(), ..settings };
        watched(&steady(), &tenants);
    }
}

#[test]
fn a_draining_replica_that_fails_at_random_does_not_come_back() {
    // The second replica fails within its drain, and the first does not fail.
    let of = |seed| failing(2, 20.0, 1.0, seed);
    let suits = |seed: &u64| {
        let random = of(*seed).routing.random_failures.unwrap();
        (5_500..9_500).contains(&(random.service_ns(1, 0) / MS)) && random.service_ns(0, 0) > 60_000 * MS
    };
    let seed = (0..1_000).find(suits).unwrap();
    let (trace, settings) = draining(of(seed));
    let changes = watched(&trace, &settings).1.changes;
    let of_second: Vec<_> = changes.iter().filter(|it| it.1 == 1).map(|it| it.2).collect();
    assert_eq!(of_second, [Draining, Lost]);
}

#[test]
fn no_request_is_lost_when_most_replicas_are_under_repair() {
    let policy = "load:min=1,max=2,target=2,interval_s=1,start_delay_s=2,stabilisation_s=0";
    for seed in 0..10 {
        watched(&steady(), &autoscaled(policy, 2, failing(2, 5.0, 5.0, seed)));
    }
}

#[test]
fn requests_that_wait_at_a_replica_taken_out_under_repair_move_to_the_one_that_is_left() {
    // Both are under repair at 16 s, when one is taken out; the requests wait at the one that failed last.
    let of = |seed| failing(2, 10.0, 20.0, seed);
    let suits = |seed: &u64| {
        let random = of(*seed).routing.random_failures.unwrap();
        let [first, second] = [0, 1].map(|replica| random.service_ns(replica, 0) / MS);
        let back = [0, 1].map(|replica| (random.service_ns(replica, 0) + random.repair_ns(replica, 0)) / MS);
        first < second && second < 14_000 && back.iter().all(|ms| *ms > 18_000)
    };
    let seed = (0..1_000).find(suits).unwrap();
    let policy = "load:max=2,target=1000,interval_s=1,start_delay_s=2,stabilisation_s=15";
    let (_, watch) = watched(&steady(), &autoscaled(policy, 2, of(seed)));
    assert!(watch.changes.contains(&(16_000, 1, Stopped)), "{:?}", watch.changes);
    let waited = |outcome: &&Outcome| (14_000..18_000).contains(&(outcome.arrival_ns / MS));
    assert!(watch.outcomes.iter().filter(waited).all(|outcome| outcome.replica == 0));
}
