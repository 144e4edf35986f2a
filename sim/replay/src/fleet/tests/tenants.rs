//! Tenants in a small fleet, and how evenly policies serve them.

use super::*;

#[test]
fn tenants_share_the_cache_and_their_sums_are_the_whole() {
    let trace = conversations(300, 6);
    let whole = run(&trace, &settings(16, 700));
    let report = run(&trace, &Settings { tenants: "0.9,0.1".parse().unwrap(), ..settings(16, 700) });
    assert_eq!((whole.fairness, &whole.digest), (None, &report.digest), "under fcfs tenants make no difference");
    assert_eq!(
        (whole.latencies.ttft_s, whole.latencies.e2e_s, whole.latencies.tpot_s),
        (report.latencies.ttft_s, report.latencies.e2e_s, report.latencies.tpot_s)
    );
    let fairness = report.fairness.unwrap();
    let [flood, other] = &fairness.tenants[..] else { panic!("two tenants") };
    assert_eq!(flood.requests + other.requests, 300);
    assert!((250..290).contains(&flood.requests), "{}", flood.requests);
    assert_eq!(flood.output_tokens + other.output_tokens, report.tokens.output_tokens);
    assert_eq!(flood.prefix_hit_tokens + other.prefix_hit_tokens, report.tokens.prefix_hit_tokens);
    assert!(report.latencies.ttft_s.max == flood.ttft_s.max.max(other.ttft_s.max));
    assert!(fairness.service_gap_max > 0 && flood.contended_s > 0.0);
    assert_eq!(flood.contended_s, other.contended_s, "two tenants compete with each other");
    assert!(flood.contended_service_s > other.contended_service_s, "who asks most gets most under fcfs");
}

#[test]
fn what_is_found_in_the_cache_is_no_service() {
    // One at a time, 512 prompt tokens and 3 generated: 518 units for the first, which computes the prompt; 7 for each of the
    // others, which run its last token only.
    let trace = trace(vec![request(0, 512, 3, &[0]); 20]);
    let shares: Shares = "1,1".parse().unwrap();
    let first = shares.tenant_of(0, 0);
    let of_other = (0..20).filter(|i| shares.tenant_of(*i, 0) != first).count();
    assert!((5..15).contains(&of_other), "{of_other}");
    let mut settings = Settings { tenants: shares, ..settings(16, 1_000) };
    settings.core.max_batch_size = 1;
    let fairness = run(&trace, &settings).fairness.unwrap();
    // The first begins alone; its prompt is computed while the others come.
    let (low, high) = (518 - 20 * 7, 518 + 20 * 7);
    assert!((low..=high).contains(&fairness.service_gap_max), "{}", fairness.service_gap_max);
}

#[test]
fn a_fair_policy_keeps_the_gap_within_its_bound() {
    // Tenant 0 floods: ten requests to one, and both always have some waiting.
    let requests = (0..600).map(|i| request(0, 300 + i % 100, 20, &[i])).collect();
    let trace = trace(requests);
    let mut settings = Settings { tenants: "10,1".parse().unwrap(), ..settings(16, 200) };
    settings.core.max_batch_size = 8;
    let mut gap = |policy: &str| {
        settings.core.policy = policy.into();
        run(&trace, &settings).fairness.unwrap().service_gap_max
    };
    // Twice what generating all tokens that the device holds counts, which is more than the longest prompt.
    let bound = 2 * (2 * 200 * 16);
    let (fcfs, vtc) = (gap("fcfs"), gap("vtc"));
    assert!(vtc <= bound && fcfs > 5 * vtc, "fcfs {fcfs}, vtc {vtc}, bound {bound}");
}
