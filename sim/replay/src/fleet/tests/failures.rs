//! Replicas that fail: every request ends once all the same.

use super::*;
use crate::settings::Routing;

/// The replay, after checks that hold whatever fails; and the outcomes by request.
fn with_failures(trace: &Trace, base: &Settings, router: &str, failures: &[&str]) -> (Report, Vec<Outcome>) {
    let routing = Routing {
        router: router.into(),
        failures: failures.iter().map(|spec| spec.parse().unwrap()).collect(),
        ..Routing::default()
    };
    let settings = Settings { routing, ..base.clone() };
    let replayed = || {
        let mut outcomes = Vec::new();
        let mut watch = |outcome: &Outcome| {
            outcomes.push(*outcome);
            ControlFlow::Continue(())
        };
        let report = replay_watched(trace, &settings, &OneMs, &mut watch).unwrap();
        outcomes.sort_by_key(|outcome| outcome.request);
        (report, outcomes)
    };
    let (report, outcomes) = replayed();
    assert!(outcomes.iter().map(|outcome| outcome.request).eq(0..trace.requests.len() as u64), "each ends once");
    assert_eq!(report.completed, trace.requests.len() as u64);
    assert_eq!(report.tokens.output_tokens, trace.requests.iter().map(|r| u64::from(r.output_tokens)).sum::<u64>());
    let (again, same) = replayed();
    assert_eq!((&report, &outcomes), (&Report { wall_s: report.wall_s, ..again }, &same));
    assert!(report.fleet.utilisation <= 1.0);
    (report, outcomes)
}

fn busy() -> (Trace, Settings) {
    let requests = (0..200).map(|i| request(5 * i, 100 + (i as u32 * 37) % 300, 40, &[i as u32])).collect();
    (trace(requests), Settings { replicas: 3, ..settings(16, 300) })
}

#[test]
fn requests_wait_for_a_replica_that_comes_back() {
    let (trace, settings) = busy();
    let (well, _) = with_failures(&trace, &settings, "round_robin", &[]);
    let (report, outcomes) = with_failures(&trace, &settings, "round_robin", &["1@0.3..0.9"]);
    assert_eq!(report.fleet.rerouted, 0);
    assert_ne!(report.digest, well.digest);
    assert!(
        report.latencies.e2e_s.max > well.latencies.e2e_s.max + 0.5,
        "{} {}",
        report.latencies.e2e_s.max,
        well.latencies.e2e_s.max
    );
    // While it is down others get what comes.
    let down = |outcome: &&Outcome| (300 * MS..900 * MS).contains(&outcome.arrival_ns);
    assert!(outcomes.iter().filter(down).all(|outcome| outcome.replica != 1));
    assert!(outcomes.iter().any(|outcome| outcome.replica == 1 && outcome.arrival_ns >= 900 * MS));
}

#[test]
fn requests_of_a_replica_that_stays_away_go_elsewhere() {
    let (trace, settings) = busy();
    for router in ["round_robin", "least_loaded", "random2", "prefix_affinity"] {
        let (report, outcomes) = with_failures(&trace, &settings, router, &["2@0.3"]);
        assert!(report.fleet.rerouted > 0);
        let late = outcomes.iter().filter(|outcome| outcome.arrival_ns >= 300 * MS);
        assert!(late.clone().count() > 0 && late.clone().all(|outcome| outcome.replica != 2));
        assert!(outcomes.iter().any(|outcome| outcome.replica == 2), "those before it failed");
    }
}

#[test]
fn tokens_that_a_client_has_are_not_given_again() {
    // One request, half done when its replica goes: 20 tokens by 20 ms, the other half by 20 ms of steps elsewhere.
    let trace = trace(vec![request(0, 10, 40, &[0])]);
    let two = Settings { replicas: 2, ..settings(16, 100) };
    let (report, outcomes) = with_failures(&trace, &two, "round_robin", &["0@0.0205"]);
    assert_eq!((report.fleet.rerouted, outcomes[0].replica), (1, 1));
    assert_eq!((outcomes[0].ttft_ns, outcomes[0].e2e_ns), (Some(MS), Some(20 * MS + MS / 2 + 20 * MS)));
    // The other replica computes prompt and tokens so far in one step.
    assert_eq!(report.latencies.itl_s.max, 0.0015);
    // So it goes where the replica comes back: a request that was alone in the step goes elsewhere.
    let (_, outcomes) = with_failures(&trace, &two, "round_robin", &["0@0.0205..0.0305"]);
    assert_eq!(outcomes[0].replica, 1);
    // The only replica computes the tokens that it had in one go when it is back.
    let (report, outcomes) = with_failures(&trace, &settings(16, 100), "round_robin", &["0@0.0205..0.0305"]);
    assert_eq!((report.fleet.rerouted, outcomes[0].replica), (0, 0));
    assert_eq!(outcomes[0].e2e_ns, Some(30 * MS + MS / 2 + 20 * MS));
}

#[test]
fn failing_often_ends_nothing() {
    // A core gives up on a request after three failures without a token in between; the fleet does not.
    let trace = trace(vec![request(0, 10, 40, &[0])]);
    let one = settings(16, 100);
    let failures = ["0@0.0001..0.0002", "0@0.0003..0.0004", "0@0.0005..0.0006", "0@0.0007..0.0008"];
    let (report, outcomes) = with_failures(&trace, &one, "round_robin", &failures);
    assert_eq!((report.fleet.rerouted, outcomes[0].replica), (1, 0));
    assert_eq!(outcomes[0].output_tokens, 40);
}

#[test]
fn when_none_is_up_requests_wait_where_one_will_be() {
    let (trace, settings) = busy();
    let failures = ["0@0.2", "1@0.2..0.5", "2@0.2..0.4", "2@0.6..0.7", "1@0.6..0.8"];
    for router in ["round_robin", "least_loaded", "random2", "prefix_affinity"] {
        let (_, outcomes) = with_failures(&trace, &settings, router, &failures);
        assert!(outcomes.iter().all(|outcome| outcome.replica != 0 || outcome.arrival_ns < 200 * MS));
    }
}

#[test]
fn swapped_requests_tenants_and_prefixes_survive_failures() {
    let trace = conversations(300, 11);
    for serial in [false, true] {
        let mut base = Settings { replicas: 3, tenants: "0.7,0.3".parse().unwrap(), ..settings(16, 700) };
        base.core.host_blocks = 500;
        base.core.preemption = trunkline_core::Preemption::Swap;
        if serial {
            base.arrivals = Arrivals::Serial;
        }
        let failures = ["0@0.4..0.8", "1@0.5", "2@0.6..0.7", "0@1.1..1.3"];
        for router in ["least_loaded", "prefix_affinity:stale_ms=100"] {
            let (report, _) = with_failures(&trace, &base, router, &failures);
            let fairness = report.fairness.as_ref().unwrap();
            assert_eq!(fairness.tenants.iter().map(|tenant| tenant.completed).sum::<u64>(), 300);
            assert_eq!(fairness.tenants.iter().map(|tenant| tenant.requests).sum::<u64>(), 300);
        }
    }
}

#[test]
fn impossible_failures_are_refused() {
    let (trace, mut settings) = busy();
    settings.routing.failures = vec!["3@1".parse().unwrap()];
    let told = replay(&trace, &settings, &OneMs, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(told, "replica 3 is to fail, but there are 3, numbered from 0");
    settings.routing = Routing { router: "nearest".into(), ..Routing::default() };
    let told = replay(&trace, &settings, &OneMs, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(
        told,
        "unknown router 'nearest'; there are: round_robin, least_loaded, random2, prefix_affinity, added_time"
    );
    settings.routing.router = "random2:sed=1".into();
    let told = replay(&trace, &settings, &OneMs, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(told, "router 'random2' has no parameter 'sed'; it has: seed, load_stale_ms");
}
