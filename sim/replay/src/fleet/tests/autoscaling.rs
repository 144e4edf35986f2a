//! Replicas that start and stop by a policy: exact delays, no request lost, costs as paid.

use super::*;
use crate::autoscale::Autoscale;
use trunkline_sim_report::observer::ReplicaChange::{self, Draining, Lost, Ordered, Reopened, Started, Stopped};

/// Every step takes ten milliseconds, and these nanoseconds for each token of a prompt.
struct TenMs(u64);

impl CostModel for TenMs {
    fn name(&self) -> &str {
        "10 ms"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        10 * MS + self.0 * shape.prefill_tokens
    }
}

/// Observer of the changes of replicas, and of the ends of requests.
#[derive(Default)]
pub(super) struct Watch {
    pub changes: Vec<(u64, u32, ReplicaChange)>,
    pub outcomes: Vec<Outcome>,
}

impl Observer for Watch {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        self.outcomes.push(*outcome);
        ControlFlow::Continue(())
    }

    fn replica(&mut self, now_ns: u64, replica: u32, change: ReplicaChange) {
        self.changes.push((now_ns / MS, replica, change));
    }
}

/// Replays twice: both times every request ends once, and both reports are equal.
pub(super) fn watched(trace: &Trace, settings: &Settings) -> (Report, Watch) {
    watched_at(trace, settings, &TenMs(0))
}

/// As [`watched`], with other step times.
fn watched_at(trace: &Trace, settings: &Settings, cost: &TenMs) -> (Report, Watch) {
    let once = || {
        let mut watch = Watch::default();
        let report = replay_watched(trace, settings, cost, &mut watch).unwrap();
        watch.outcomes.sort_by_key(|outcome| outcome.request);
        (report, watch)
    };
    let (report, watch) = once();
    assert!(watch.outcomes.iter().map(|outcome| outcome.request).eq(0..trace.requests.len() as u64), "each ends once");
    assert_eq!((report.completed, report.refused), (trace.requests.len() as u64, 0));
    assert_eq!(report.tokens.output_tokens, trace.requests.iter().map(|r| u64::from(r.output_tokens)).sum::<u64>());
    let (again, same) = once();
    assert_eq!((&report, &watch.changes), (&Report { wall_s: report.wall_s, ..again }, &same.changes));
    assert!(report.fleet.utilisation <= 1.0, "{}", report.fleet.utilisation - 1.0);
    (report, watch)
}

pub(super) fn autoscaled(policy: &str, initial: u32, base: Settings) -> Settings {
    let autoscale = Autoscale { policy: policy.into(), initial };
    let replicas = autoscale.limits().unwrap().max;
    let routing = Routing { autoscale: Some(autoscale), ..base.routing };
    Settings { replicas, routing, ..base }
}

/// One request a second for ten seconds, then ten a second for thirty, then one a second for sixty. A request takes two seconds.
fn burst() -> Trace {
    let quiet = |from_ms: u64, n: u64| (0..n).map(move |i| from_ms + 1_000 * i);
    let times = quiet(0, 10).chain((0..300).map(|i| 10_000 + 100 * i)).chain(quiet(40_000, 60));
    trace(times.enumerate().map(|(i, ms)| request(ms, 100, 200, &[i as u32])).collect())
}

#[test]
fn a_replica_is_ready_exactly_after_the_start_delay() {
    let policy = "load:max=4,target=5,interval_s=5,start_delay_s=7,stabilisation_s=10";
    let (report, watch) = watched(&burst(), &autoscaled(policy, 1, settings(16, 2_000)));
    // 20 requests are in flight at 15 s: four replicas are ordered for them.
    let up: Vec<_> = watch.changes.iter().filter(|(.., change)| matches!(change, Ordered | Started)).collect();
    let expected = [
        (15_000, 1, Ordered),
        (15_000, 2, Ordered),
        (15_000, 3, Ordered),
        (22_000, 1, Started),
        (22_000, 2, Started),
        (22_000, 3, Started),
    ];
    assert_eq!(up, expected.iter().collect::<Vec<_>>());
    let first = |replica| watch.outcomes.iter().filter(|it| it.replica == replica).map(|it| it.arrival_ns / MS).min();
    assert!((1..4).all(|replica| first(replica).is_some_and(|ms| (22_000..22_500).contains(&ms))), "no request before");
    // The load falls at 42 s. Higher answers of the last 10 s hold.
    let down: Vec<_> = watch.changes.iter().filter(|(.., change)| *change == Draining).map(|(ms, ..)| *ms).collect();
    assert_eq!(down, [55_000, 55_000, 55_000]);
    let service = report.fleet.service.unwrap();
    assert_eq!((service.starts, service.stops, service.failures), (3, 3, 0));
    assert_eq!((service.ready_min, service.ready_max), (1, 4));
}

/// A tier of host memory.
fn with_tier(shared: bool, mut settings: Settings) -> Settings {
    let (name, eviction) = ("host".into(), "lru".into());
    let write = trunkline_core::Write::Through;
    settings.core.tiers = vec![trunkline_core::TierConfig { name, blocks: 5_000, write, eviction, shared }];
    settings.shared_memory = shared;
    settings
}

#[test]
fn a_stopped_replica_drains_and_comes_back_with_an_empty_cache() {
    // The same prompt all the time; a long answer begins just before the load falls.
    let mut times: Vec<u64> = (0..100).map(|i| 100 * i).collect();
    times.extend((0..100).map(|i| 60_000 + 100 * i));
    let output = |ms| if ms == 9_900 { 3_000 } else { 100 };
    let trace = trace(times.iter().map(|ms| request(*ms, 512, output(*ms), &[7])).collect());
    let policy = "load:max=2,target=5,interval_s=5,start_delay_s=1,stabilisation_s=0";
    let base = settings(16, 4_000);
    // Host memory is lost too, unless all replicas share it.
    let tiers = [(base.clone(), 3), (with_tier(false, base.clone()), 3), (with_tier(true, base), 2)];
    for (base, misses) in tiers {
        // Prompts take so long that loading one pays.
        let (report, watch) = watched_at(&trace, &autoscaled(policy, 2, base), &TenMs(100_000));
        let of = |replica: u32| watch.changes.iter().filter(move |it| it.1 == replica).map(|it| (it.0, it.2));
        let long = watch.outcomes[99];
        // One of both holds the long answer, so the other one stops, in the instant of the observation.
        let idle = 1 - long.replica;
        let changes = [(15_000, Draining), (15_000, Stopped), (65_000, Ordered), (66_000, Started)];
        assert_eq!(of(idle).collect::<Vec<_>>(), changes);
        assert_eq!(of(long.replica).count(), 0);
        let e2e_ms = long.e2e_ns.unwrap() / MS;
        assert!((30_000..=30_200).contains(&e2e_ms), "the answer is not disturbed: {e2e_ms}");
        // Only the first prompt at each replica, in each of its lives, is computed.
        let missed = watch.outcomes.iter().filter(|it| it.cached_tokens == 0).map(|it| it.arrival_ns / MS);
        let missed: Vec<_> = missed.collect();
        assert!(missed.len() == misses && missed[..2].iter().all(|ms| *ms < 1_000), "{missed:?}");
        assert!(missed[2..].iter().all(|ms| *ms >= 66_000), "{missed:?}");
        assert_eq!(report.fleet.rerouted, 0);
    }
}

/// Two replicas with room for one request at a time, and three requests at each: long ones first. The second replica drains from
/// 5 s to 10 s.
pub(super) fn draining(base: Settings) -> (Trace, Settings) {
    let mut base = Settings { replicas: 2, ..base };
    base.core.max_batch_size = 1;
    let trace = trace((0..6).map(|i| request(0, 100, 2_000 / (1 + u32::from(i % 2 == 1)), &[i])).collect());
    (trace, autoscaled("load:max=2,target=100,interval_s=5,stabilisation_s=0", 2, base))
}

#[test]
fn requests_waiting_at_a_draining_replica_move_and_running_ones_end() {
    let (trace, settings) = draining(settings(16, 2_000));
    let (report, watch) = watched(&trace, &settings);
    assert_eq!(watch.changes, [(5_000, 1, Draining), (10_000, 1, Stopped)], "as soon as the last has ended");
    assert_eq!(report.fleet.rerouted, 2, "two waited");
    let ended_there: Vec<_> = watch.outcomes.iter().filter(|it| it.replica == 1).collect();
    assert_eq!(ended_there.len(), 1);
    let end_ms = ended_there[0].e2e_ns.unwrap() / MS;
    assert_eq!((ended_there[0].preemptions, end_ms), (0, 10_000));
}

#[test]
fn a_draining_replica_that_fails_does_not_come_back() {
    let (trace, mut settings) = draining(settings(16, 2_000));
    settings.routing.failures = vec!["1@7..8".parse().unwrap()];
    let (report, watch) = watched(&trace, &settings);
    assert_eq!(watch.changes, [(5_000, 1, Draining), (7_000, 1, Lost)]);
    assert_eq!(report.fleet.rerouted, 3, "the running one too");
    let service = report.fleet.service.unwrap();
    assert_eq!((service.failures, service.failed[0].requests, service.failed[0].back_s), (1, 1, None));
}

#[test]
fn the_slo_policy_sees_first_tokens_and_tokens_after() {
    // A request every five seconds, with a first token after 1.01 s, and one of 10 ms after: none is unserved when observed.
    let trace = trace((0..12).map(|i| request(5_000 * i + 1_000, 100, 20, &[i as u32])).collect());
    let first = |policy: &str| {
        let policy = format!("slo:max=2,interval_s=5,stabilisation_s=0,start_delay_s=1,{policy}");
        let (_, watch) = watched_at(&trace, &autoscaled(&policy, 1, settings(16, 2_000)), &TenMs(10_000_000));
        watch.changes.first().map(|it| (it.0, it.2))
    };
    assert_eq!(first("ttft_ms=1000"), Some((5_000, Ordered)));
    assert_eq!(first("ttft_ms=1020"), None);
    assert_eq!(first("ttft_ms=0,tpot_ms=9"), Some((5_000, Ordered)));
    assert_eq!(first("ttft_ms=0,tpot_ms=10"), None);
}

#[test]
fn a_drain_is_taken_back_before_another_replica_is_ordered() {
    // Long answers keep all replicas busy; the load falls between two bursts.
    let times = (0..20).map(|i| (50 * i, 1_200)).chain((0..40).map(|i| (8_000 + 10 * i, 400)));
    let trace = trace(times.enumerate().map(|(i, (ms, tokens))| request(ms, 100, tokens, &[i as u32])).collect());
    let policy = "load:max=3,target=10,interval_s=2,start_delay_s=60,stabilisation_s=0";
    let (_, watch) = watched(&trace, &autoscaled(policy, 3, settings(16, 60_000)));
    let changes: Vec<_> = watch.changes.iter().take(2).map(|(ms, _, change)| (*ms, *change)).collect();
    assert_eq!(changes, [(2_000, Draining), (10_000, Reopened)]);
}

#[test]
fn the_fleet_is_as_large_as_the_load_and_costs_what_it_runs() {
    let trace = burst();
    let priced = |settings: Settings| Settings { prices: vec![3.6], ..settings };
    let policy = "load:max=4,target=5,interval_s=5,start_delay_s=5,stabilisation_s=10";
    let (scaled, watch) = watched(&trace, &priced(autoscaled(policy, 1, settings(16, 2_000))));
    let fixed = watched(&trace, &priced(Settings { replicas: 4, ..settings(16, 2_000) })).0;
    let [scaled_service, fixed_service] = [&scaled, &fixed].map(|report| report.fleet.service.clone().unwrap());
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(close(fixed_service.replica_hours, 4.0 * fixed.duration_s / 3600.0));
    assert!(close(fixed_service.total_cost.unwrap(), 3.6 * fixed_service.replica_hours));
    assert_eq!((fixed_service.starts, fixed_service.ready_min), (0, 4));
    assert_eq!(fixed_service.cost_per_day, None, "for less than a day");
    // Three replicas from their orders at 15 s to their stops, and the first all the time.
    let stops: Vec<f64> = watch.changes.iter().filter(|it| it.2 == Stopped).map(|it| it.0 as f64 / 1e3).collect();
    assert!(stops.len() == 3 && stops.iter().all(|at_s| (55.0..57.1).contains(at_s)), "{stops:?}");
    let expected_s = scaled.duration_s + stops.iter().map(|at_s| at_s - 15.0).sum::<f64>();
    assert!((scaled_service.replica_hours * 3600.0 - expected_s).abs() < 0.01, "{scaled_service:?}");
    assert!(scaled.fleet.utilisation > fixed.fleet.utilisation);
    // No autoscaling, the least replicas: an inverted policy would be here.
    let one = watched(&trace, &autoscaled("load:max=4,target=1000000", 1, settings(16, 2_000))).0;
    assert_eq!(one.fleet.service.unwrap().ready_max, 1);
}

#[test]
fn every_policy_grows_under_a_burst_and_shrinks_after() {
    let mut base = settings(16, 2_000);
    base.core.max_batch_size = 4;
    base.routing.router = "least_loaded".into();
    let common = "max=6,interval_s=5,start_delay_s=5,stabilisation_s=10";
    for (name, own) in
        [("load", "target=5"), ("queue", "target=4,running=3"), ("slo", "ttft_ms=500,window_s=10,step_percent=100")]
    {
        let settings = autoscaled(&format!("{name}:{common},{own}"), 1, base.clone());
        let (report, watch) = watched(&burst(), &settings);
        let service = report.fleet.service.unwrap();
        assert!(service.ready_max >= 3 && service.stops >= 1, "{name}: {service:?}");
        let first = watch.changes.iter().find(|it| it.2 == Ordered).unwrap().0;
        assert!((10_000..=20_000).contains(&first), "{name} orders in the burst, not at {first}");
        let last = watch.changes.iter().rev().find(|it| it.2 == Draining).unwrap().0;
        assert!(last > 40_000, "{name} stops after the burst, not at {last}");
        let alone = watched(&burst(), &Settings { replicas: 1, ..base.clone() }).0;
        assert!(report.latencies.ttft_s.p90 < alone.latencies.ttft_s.p90 / 2.0, "{name}");
    }
}

#[test]
fn replicas_that_fail_for_good_are_replaced_and_lose_nothing() {
    let policy = "load:max=3,target=50,interval_s=5,start_delay_s=2,stabilisation_s=0";
    for failures in
        [&["0@12"][..], &["0@12", "1@13"], &["0@12", "1@20"], &["0@12..30"], &["0@15", "1@15.5..40"], &["2@5"]]
    {
        let mut settings = autoscaled(policy, 1, settings(16, 2_000));
        settings.routing.failures = failures.iter().map(|spec| spec.parse().unwrap()).collect();
        watched(&burst(), &settings);
    }
    let mut settings = autoscaled(policy, 1, settings(16, 2_000));
    settings.routing.failures = vec!["0@12".parse().unwrap()];
    let changes = watched(&burst(), &settings).1.changes;
    assert_eq!(changes[..3], [(12_000, 1, Ordered), (12_000, 0, Lost), (14_000, 1, Started)]);
}

#[test]
fn tiers_and_steps_in_flight_survive_stops() {
    let trace = conversations(300, 11);
    for shared in [false, true] {
        let mut base = with_tier(shared, settings(16, 700));
        base.core.max_steps_in_flight = 2;
        base.arrivals = Arrivals::Traced { speed: 0.1 };
        let policy = "load:max=4,target=4,interval_s=1,start_delay_s=0,stabilisation_s=0";
        let (report, _) = watched(&trace, &autoscaled(policy, 2, base));
        let service = report.fleet.service.unwrap();
        assert!(service.starts > 0 && service.stops > 0, "{service:?}");
    }
}

#[test]
fn impossible_autoscaling_is_refused() {
    let message = |change: fn(&mut Settings)| {
        let mut settings = autoscaled("load:max=4", 1, settings(16, 2_000));
        change(&mut settings);
        replay(&burst(), &settings, &OneMs, &mut |_| {}).unwrap_err().to_string()
    };
    assert_eq!(message(|it| it.replicas = 3), "autoscaling up to 4 replicas in a fleet of 3; the two must be equal");
    assert_eq!(
        message(|it| it.routing.roles = vec![Default::default(); 4]),
        "autoscaling is for replicas that prefill and decode; leave out --roles"
    );
    assert_eq!(
        message(|it| it.arrivals = Arrivals::AtOnce),
        "a fleet that is measured by sending all requests at once cannot be autoscaled"
    );
    assert_eq!(
        message(|it| it.prices = vec![0.0]),
        "1 prices for 1 kinds of replica; give each kind a price above 0, or none"
    );
}
