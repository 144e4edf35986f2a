//! Retention hints of traces in replays.

use super::transfers::SlowPrefill;
use super::*;
use trunkline_core::request::retention::TO_END;
use trunkline_core::{RetentionHint, TierConfig, Write};

/// Requests of two blocks of 512 tokens: every eighth begins with the block of a system prompt, the others are one-off.
fn assistants(hints: &[RetentionHint]) -> Trace {
    let made = |i: u32| {
        let ids = if i.is_multiple_of(8) { [0, 2 * i + 1] } else { [2 * i + 2, 2 * i + 1] };
        let retention = if i.is_multiple_of(8) { hints.into() } else { Box::default() };
        TraceRequest { retention, ..request(u64::from(i) * 40, 1024, 8, &ids) }
    };
    trace((0..80).map(made).collect())
}

fn system(priority: u8, ttl_ns: u64) -> RetentionHint {
    RetentionHint { from: 0, to: 512, priority, ttl_ns, demote: false, pin: false }
}

#[test]
fn a_replay_follows_the_hints_of_a_trace() {
    // 330 blocks of 16 tokens hold five requests; seven one-off requests come between two with the system prompt.
    let found = |hints: &[RetentionHint]| {
        let report = run(&assistants(hints), &settings(16, 330));
        assert_eq!(report.completed, 80);
        report.tokens.prefix_hit_tokens
    };
    assert_eq!(found(&[]), 0);
    assert_eq!(found(&[system(80, 0)]), 9 * 512);
    assert_eq!(found(&[system(80, 1_000 * MS)]), 9 * 512);
    assert_eq!(found(&[system(80, 20 * MS)]), 0, "the hint ends before the next request");
    assert_eq!(found(&[system(20, 0)]), 0);
}

#[test]
fn a_prefetch_takes_the_load_out_of_the_time_to_the_first_token_of_what_follows() {
    // A prompt that has left the device for the tier comes back after a while, with and without a prefetch before.
    let asked = |at_ms, content: u32, output| {
        let ids: Vec<u32> = (8 * content..8 * content + 8).collect();
        request(at_ms, 4_096, output, &ids)
    };
    let mut trace = trace((0..30).map(|i| asked(u64::from(i) * 200, i, 4)).collect());
    trace.requests.extend([asked(8_000, 0, 0), asked(9_000, 0, 4)]);
    let mut settings = settings(16, 1_200);
    settings.core.tiers = vec![TierConfig {
        name: "host".into(),
        blocks: 20_000,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    }];
    let [with, without] = [true, false].map(|hints| {
        let settings = Settings { hints, ..settings.clone() };
        replay(&trace, &settings, &SlowPrefill, &mut |_| {}).unwrap()
    });
    // Without the prefetch, forty blocks are computed while the others are loaded.
    for (report, found) in [(&with, 4_095), (&without, 4_095 - 40 * 16)] {
        assert_eq!((report.requests, report.completed, report.refused), (31, 31, 0), "a prefetch is no request");
        assert_eq!(report.tokens.prefix_hit_tokens, found);
    }
    let hints = [&with, &without].map(|report| report.tokens.hints.expect("a prefetch is a hint"));
    assert_eq!(hints.map(|hints| (hints.prefetches, hints.prefetched_tokens)), [(1, 4_096), (1, 0)]);
    assert!(with.latencies.ttft_s.mean < without.latencies.ttft_s.mean, "nothing is loaded while a client waits");
}

#[test]
fn hints_change_nothing_between_steps_and_fast_forwards() {
    let mut trace = conversations(150, 5);
    for (i, request) in trace.requests.iter_mut().enumerate() {
        let to = request.input_tokens / 2 + 1;
        let prompt = RetentionHint { to, priority: 30 + (i % 70) as u8, ..system(0, 0) };
        let ttl_ns = if prompt.priority < 35 { 0 } else { (i % 5) as u64 * 60 * MS };
        let answer = RetentionHint { from: request.input_tokens, to: TO_END, ..system(0, 0) };
        request.retention = [RetentionHint { ttl_ns, ..prompt }, answer].into();
    }
    for eviction in ["lru", "arc", "s3fifo:retain_percent=60"] {
        let mut settings = settings(16, 2_500);
        settings.core.eviction = eviction.into();
        let report = fast_forwards::same(&trace, &settings, &OneMs);
        assert!(report.tokens.prefix_hit_tokens > 0);
    }
}
