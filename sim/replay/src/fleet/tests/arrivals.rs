//! Speeds, saturation, and loads.

use super::*;
use crate::capacity::load;

#[test]
fn twice_the_speed_is_twice_the_load() {
    let requests = vec![request(0, 10, 1, &[0]), request(100, 10, 1, &[1]), request(301, 10, 1, &[2])];
    let at = |speed| {
        let settings = Settings { arrivals: Arrivals::Traced { speed }, ..settings(16, 100) };
        run(&trace(requests.clone()), &settings).duration_s
    };
    assert_eq!([1.0, 2.0, 0.5].map(at), [0.302, 0.1515, 0.603]);
}

#[test]
fn all_at_once_is_first_come_first_served_from_the_beginning() {
    // A batch of two on each of two replicas: far more requests than may be in a core at a time.
    let mut saturated = Settings { replicas: 2, arrivals: Arrivals::AtOnce, ..settings(16, 1_000) };
    saturated.core.max_batch_size = 2;
    let mut everyone_waits = Settings { arrivals: Arrivals::TRACED, ..saturated.clone() };
    let mut trace = conversations(400, 5);
    let lazy = run(&trace, &saturated);
    trace.requests.iter_mut().for_each(|request| request.arrival_ns = 0);
    everyone_waits.core.policy = "fcfs".into();
    let eager = run(&trace, &everyone_waits);
    assert_eq!(
        (lazy.latencies.ttft_s, lazy.latencies.e2e_s, lazy.batches.steps),
        (eager.latencies.ttft_s, eager.latencies.e2e_s, eager.batches.steps)
    );
    assert_eq!((lazy.tokens.prefix_hit_tokens, lazy.duration_s), (eager.tokens.prefix_hit_tokens, eager.duration_s));
}

#[test]
fn a_load_is_a_share_of_the_capacity() {
    // One request at a time, 10 steps of a millisecond each: 100 requests a second. The trace brings 10 in a second.
    let requests = (0..50).map(|i| request(i * 100, 10, 10, &[i as u32])).collect();
    let trace = trace(requests);
    let mut settings = settings(16, 100);
    settings.core.max_batch_size = 1;
    let found = load(&trace, &settings, &OneMs, 0.8, &mut |_| {}).unwrap();
    assert!((found.capacity_requests_s - 100.0).abs() < 1e-9, "{found:?}");
    assert!((found.arrival_requests_s - 80.0).abs() < 1e-9, "{found:?}");
    assert!((found.speed - 8.0).abs() < 1e-9, "{found:?}");
    settings.arrivals = Arrivals::Traced { speed: found.speed };
    let report = run(&trace, &settings);
    // The last of 49 gaps ends at 0.6125 s.
    assert!((report.duration_s - 0.6225).abs() < 1e-6, "{}", report.duration_s);

    let fails = |trace: &Trace, settings: &Settings, fraction| {
        load(trace, settings, &OneMs, fraction, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(fails(&trace, &settings, 0.0).starts_with("load is 0; it must be above 0"));
    assert!(fails(&trace, &settings, f64::NAN).starts_with("load is NaN;"));
    let instant = self::trace(vec![request(0, 10, 1, &[0]); 3]);
    assert!(fails(&instant, &settings, 0.8).starts_with("all requests of the trace arrive at one instant"));
    let mut apart = Settings { replicas: 2, ..settings.clone() };
    apart.routing.roles = vec![trunkline_cluster::Role::Prefill, trunkline_cluster::Role::Decode];
    assert!(fails(&trace, &apart, 0.8).starts_with("with roles, a fleet has no capacity to measure"));
    settings.core.device_blocks = 1;
    assert!(fails(&trace, &settings, 0.8).starts_with("every request is too large"));
}
