//! SimEvent routers do for a fleet.

use super::*;

const ALL: [&str; 6] = [
    "round_robin",
    "least_loaded",
    "random2",
    "added_time",
    "prefix_affinity",
    "prefix_affinity:stale_ms=2000,view_chunks=50",
];

fn routed(router: &str, replicas: u32, device_blocks: u32) -> Settings {
    Settings {
        replicas,
        routing: Routing { router: router.into(), ..Routing::default() },
        ..settings(16, device_blocks)
    }
}

/// The replay, and how many requests and prompt tokens went to each replica.
fn shares(trace: &Trace, settings: &Settings) -> (Report, Vec<(u64, u64)>) {
    let mut shares = vec![(0, 0); settings.replicas as usize];
    let mut ended = HashSet::new();
    let report = replay_watched(trace, settings, &OneMs, &mut |outcome: &Outcome| {
        assert!(ended.insert(outcome.request), "every request ends once");
        let share = &mut shares[outcome.replica as usize];
        share.0 += 1;
        share.1 += u64::from(outcome.prompt_tokens);
        ControlFlow::Continue(())
    });
    assert_eq!(ended.len(), trace.requests.len());
    (report.unwrap(), shares)
}

#[test]
fn every_router_serves_every_request_and_does_so_again() {
    let trace = conversations(300, 5);
    let mut digests = HashSet::new();
    for router in ALL {
        for replicas in [1, 3] {
            let settings = routed(router, replicas, 1_000);
            let first = run(&trace, &settings);
            assert_eq!((first.completed, first.refused, first.fleet.rerouted), (300, 0, 0));
            assert_eq!(first.settings.router, router);
            assert_eq!(first, Report { wall_s: first.wall_s, ..run(&trace, &settings) });
            if replicas == 3 {
                digests.insert(first.digest);
            } else {
                assert_eq!(first.digest, run(&trace, &routed("round_robin", 1, 1_000)).digest, "one has no choice");
            }
        }
    }
    assert!(digests.len() >= 4, "routers differ: {digests:?}");
}

#[test]
fn another_seed_draws_others() {
    let trace = conversations(100, 5);
    let digest = |spec| run(&trace, &routed(spec, 4, 1_000)).digest;
    assert_eq!(digest("random2"), digest("random2:seed=0"));
    assert_ne!(digest("random2"), digest("random2:seed=1"));
}

#[test]
fn prefixes_are_found_where_they_were_sent() {
    // Conversations of some turns, so many that turns of one go to all replicas if they go in turn.
    let trace = conversations(600, 9);
    let hits = |router| run(&trace, &routed(router, 4, 100_000)).tokens.prefix_hit_ratio;
    let one = run(&trace, &routed("round_robin", 1, 100_000)).tokens.prefix_hit_ratio;
    let [in_turn, affine, late] = ["round_robin", "prefix_affinity", "prefix_affinity:stale_ms=1000"].map(hits);
    assert!(affine > 1.2 * in_turn, "{affine} {in_turn}");
    assert!(
        affine <= one && late <= affine && late > in_turn,
        "one {one}, affine {affine}, late {late}, in turn {in_turn}"
    );
    // A view that never comes is none.
    assert!(hits("prefix_affinity:stale_ms=86400000") < 0.9 * affine);
    // A view of one chunk knows the first of a prompt at best.
    assert!(hits("prefix_affinity:view_chunks=1") < affine);
}

#[test]
fn loads_are_balanced_by_tokens() {
    // Long and short prompts by turns: in turn, two replicas get all the long ones.
    let requests = (0..400)
        .map(|i| {
            request(i, if i % 2 == 0 { 2_000 } else { 20 }, 20, &[(4 * i) as u32; 4][..if i % 2 == 0 { 4 } else { 1 }])
        })
        .collect();
    let trace = trace(requests);
    let spread = |router| {
        let (_, shares) = shares(&trace, &routed(router, 4, 20_000));
        let tokens = shares.iter().map(|(_, tokens)| *tokens);
        tokens.clone().max().unwrap() as f64 / tokens.min().unwrap() as f64
    };
    let [in_turn, least, random2] = ["round_robin", "least_loaded", "random2"].map(spread);
    assert!(in_turn > 50.0 && least < 1.3 && random2 < 2.0, "{in_turn} {least} {random2}");
}

#[test]
fn a_slow_replica_gets_less_from_those_who_look() {
    let requests = (0..300).map(|i| request(2 * i, 100, 50, &[i as u32])).collect();
    let trace = trace(requests);
    let with = |router| {
        let mut settings = routed(router, 3, 2_000);
        settings.routing.slow = vec!["1:5".parse().unwrap()];
        shares(&trace, &settings)
    };
    let (in_turn, shares) = with("round_robin");
    assert_eq!(shares.iter().map(|share| share.0).collect::<Vec<_>>(), [100, 100, 100]);
    assert_eq!(in_turn.settings.slow, ["1:5"]);
    let well = run(&trace, &routed("round_robin", 3, 2_000));
    assert!(
        in_turn.latencies.e2e_s.max > 4.0 * well.latencies.e2e_s.max,
        "{} {}",
        in_turn.latencies.e2e_s.max,
        well.latencies.e2e_s.max
    );
    let (least, shares) = with("least_loaded");
    assert!(shares[1].0 < 60, "{shares:?}");
    assert!(least.latencies.e2e_s.mean < in_turn.latencies.e2e_s.mean);
}

#[test]
fn steps_count_as_use() {
    // One request on one of two replicas: 6 steps of 1 ms each in 6 ms.
    let trace = trace(vec![request(0, 100, 6, &[0])]);
    assert_eq!(run(&trace, &routed("least_loaded", 2, 100)).fleet.utilisation, 0.5);
}

#[test]
fn capacity_is_that_of_the_router_without_failures() {
    let trace = conversations(200, 3);
    let load = |settings: &Settings| crate::capacity::load(&trace, settings, &OneMs, 0.8, &mut |_| {}).unwrap();
    let mut settings = routed("prefix_affinity", 2, 2_000);
    settings.routing.failures = vec!["0@1".parse().unwrap()];
    let capacity = |settings: &Settings| load(settings).capacity_requests_s;
    assert_eq!(capacity(&settings), capacity(&routed("prefix_affinity", 2, 2_000)));
    // Shared prefixes, of which each replica has room for a part.
    let requests = (0..400).map(|n| {
        let prefix = (n / 4 + n) as u32 % 8;
        request(n, 2 * HASH_ID_TOKENS + 10, 2, &[prefix, 8 + prefix, 100 + n as u32])
    });
    let trace = self::trace(requests.collect());
    let of = |router| {
        let mut settings = routed(router, 4, 200);
        settings.core.max_batch_size = 4;
        crate::capacity::load(&trace, &settings, &fast_forwards::Linear, 0.8, &mut |_| {}).unwrap().capacity_requests_s
    };
    let [in_turn, least_loaded, affine] = ["round_robin", "least_loaded", "prefix_affinity"].map(of);
    assert!(affine > 2.0 * in_turn && least_loaded < affine, "{in_turn} {least_loaded} {affine}");
    settings.arrivals = Arrivals::AtOnce;
    let refused = replay(&trace, &settings, &OneMs, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(refused, "a fleet that is measured by sending all requests at once cannot have failures");
}
