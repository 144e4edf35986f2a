//! The driver against traces made here, and against the public ones if they are there.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use trunkline_core::{Config, Token};

use super::*;
use crate::settings::Routing;
use trunkline_sim_perf::cost::{Parallel, Roofline, StepShape};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_workload::tenants::Shares;
use trunkline_sim_workload::trace::{Content, HASH_ID_TOKENS, TraceRequest, formats};

mod arrivals;
mod autoscaling;
mod closed_loop;
mod extrapolated;
mod failures;
mod fast_forwards;
mod layer_groups;
mod lock_step;
mod long_requests;
mod random_failures;
mod ranged;
mod retention;
mod routers;
mod steps_in_flight;
mod tenants;
mod terms;
mod transfers;

const MS: u64 = 1_000_000;

/// Every step takes a millisecond.
struct OneMs;

impl CostModel for OneMs {
    fn name(&self) -> &str {
        "1 ms"
    }

    fn step_ns(&self, _: &StepShape) -> u64 {
        MS
    }
}

fn settings(block_size: u32, device_blocks: u32) -> Settings {
    let mut settings = Settings {
        core: Config { block_size, device_blocks, ..Settings::core() },
        draft_acceptance: 0.5,
        ..Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    };
    settings.routing.router = "round_robin".into();
    settings
}

fn run(trace: &Trace, settings: &Settings) -> Report {
    replay(trace, settings, &OneMs, &mut |_| {}).unwrap()
}

fn request(arrival_ms: u64, input_tokens: u32, output_tokens: u32, ids: &[u32]) -> TraceRequest {
    TraceRequest {
        arrival_ns: arrival_ms * MS,
        input_tokens,
        output_tokens,
        content: Content::Blocks(ids.into()),
        ..TraceRequest::default()
    }
}

fn trace(requests: Vec<TraceRequest>) -> Trace {
    Trace { format: formats::MOONCAKE, requests }
}

/// Numbers that look random, the same on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Conversations that share a system prompt and come back, each turn longer than the one before, as in Mooncake's traces: whole
/// blocks of a turn have the same ids in the next one, its partial last block has not.
fn conversations(n: usize, seed: u64) -> Trace {
    let mut numbers = Numbers(seed);
    let mut next_id = 10;
    let mut histories: Vec<Vec<u32>> = Vec::new();
    let mut arrival_ms = 0;
    let mut requests = Vec::new();
    while requests.len() < n {
        if histories.is_empty() || numbers.below(3) == 0 {
            let system_blocks = numbers.below(3) as u32;
            histories.push((0..system_blocks).collect());
        }
        let history = numbers.below(histories.len() as u64) as usize;
        let history = &mut histories[history];
        for _ in 0..numbers.below(3) {
            history.push(next_id);
            next_id += 1;
        }
        let partial = numbers.below(u64::from(HASH_ID_TOKENS)) as u32;
        let mut ids = history.clone();
        if partial > 0 {
            ids.push(next_id);
            next_id += 1;
        }
        let input_tokens = history.len() as u32 * HASH_ID_TOKENS + partial;
        arrival_ms += numbers.below(20);
        if input_tokens > 0 {
            // Now and then the very same prompt twice.
            for _ in 0..1 + u64::from(numbers.below(8) == 0) {
                requests.push(request(arrival_ms, input_tokens, 1 + numbers.below(40) as u32, &ids));
            }
        }
    }
    requests.truncate(n);
    trace(requests)
}

/// Prompt tokens found by an unlimited cache if requests come one after another, as literally as possible: all prefixes that were
/// computed, in whole blocks, written out. The last token of a prompt is always run.
fn naive_hit_tokens(trace: &Trace, block_size: u32, replicas: usize) -> u64 {
    let size = block_size as usize;
    let mut caches = vec![HashSet::new(); replicas];
    let mut hits = 0;
    for (i, request) in trace.requests.iter().enumerate() {
        let cache = &mut caches[i % replicas];
        let prompt = request.prompt();
        let blocks = prompt.len() / size;
        let found = (1..=blocks).take_while(|n| cache.contains(&prompt[..n * size])).count();
        hits += (found * size).min(prompt.len() - 1) as u64;
        for n in 1..=blocks {
            cache.insert(prompt[..n * size].to_vec());
        }
    }
    hits
}

#[test]
fn hits_are_those_of_a_naive_cache() {
    let trace = conversations(60, 7);
    for block_size in [7, 16, 100, 512] {
        for replicas in [1, 3] {
            let settings = Settings { replicas, arrivals: Arrivals::Serial, ..settings(block_size, 10_000_000) };
            let report = run(&trace, &settings);
            let expected = naive_hit_tokens(&trace, block_size, replicas as usize);
            assert!(expected > 10_000, "the trace shares something");
            assert_eq!(report.tokens.prefix_hit_tokens, expected, "blocks of {block_size}, {replicas} replicas");
            assert_eq!(
                report.tokens.prompt_tokens,
                trace.requests.iter().map(|r| u64::from(r.input_tokens)).sum::<u64>()
            );
            assert_eq!(report.tokens.prefix_hit_ratio, expected as f64 / report.tokens.prompt_tokens as f64);
            assert_eq!(report.counters.evicted_blocks, 0);
            let (blocks, runs) = (report.tokens.prefix_blocks, report.tokens.prefix_runs);
            // A prompt that is cached whole takes its last block too, and computes the last token again.
            let more = blocks * u64::from(block_size) - expected;
            assert!(
                more <= trace.requests.len() as u64,
                "{blocks} blocks of {block_size} taken, {expected} tokens found"
            );
            assert!((1..=blocks).contains(&runs));
            assert_eq!(report.tokens.mean_prefix_run, blocks as f64 / runs as f64);
        }
    }
}

#[test]
fn every_request_gets_its_tokens_and_the_same_replay_gives_the_same_report() {
    let trace = conversations(300, 1);
    let cost = Roofline::new(hardware::by_name("l4-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    for (replicas, device_blocks) in [(1, 2_000), (1, 700), (4, 700)] {
        let settings = Settings { replicas, ..settings(16, device_blocks) };
        let mut first = replay(&trace, &settings, &cost, &mut |_| {}).unwrap();
        let second = replay(&trace, &settings, &cost, &mut |_| {}).unwrap();
        assert_eq!((first.requests, first.refused), (300, 0));
        assert_eq!(first.completed, 300);
        assert_eq!(first.tokens.output_tokens, trace.requests.iter().map(|r| u64::from(r.output_tokens)).sum::<u64>());
        assert!(first.counters.evicted_blocks > 0 || device_blocks > 700, "the cache is under pressure");
        assert!(first.latencies.ttft_s.p50 > 0.0 && first.latencies.ttft_s.p50 <= first.latencies.e2e_s.p50);
        first.wall_s = second.wall_s;
        assert_eq!(first, second);
    }
}

#[test]
fn the_digest_tells_replays_apart() {
    let trace = conversations(60, 2);
    let mut digests = HashSet::new();
    for settings in [
        settings(16, 2_000),
        settings(16, 2_001),
        settings(32, 2_000),
        Settings { replicas: 2, ..settings(16, 2_000) },
        Settings { arrivals: Arrivals::Serial, ..settings(16, 2_000) },
    ] {
        digests.insert(run(&trace, &settings).digest);
    }
    // One more block than is ever used makes no difference to any decision.
    assert!(digests.len() >= 4, "{digests:?}");
    assert!(digests.iter().all(|digest| digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit())));
}

#[test]
fn running_out_of_blocks_preempts_and_still_finishes() {
    let requests = (0..8).map(|i| request(0, 64, 200, &[i])).collect();
    let report = run(&trace(requests), &settings(16, 60));
    assert!(report.preemptions > 0);
    assert_eq!((report.completed, report.tokens.output_tokens), (8, 1600));
}

#[test]
fn latencies_of_one_request() {
    // A prefill of two chunks, then four decodes; the first arrival is time 0.
    let settings = Settings {
        core: Config { max_batch_tokens: 64, max_batch_size: 8, ..settings(16, 100).core },
        ..settings(16, 100)
    };
    let report = run(&trace(vec![request(0, 100, 5, &[0])]), &settings);
    let all = |s: f64| trunkline_sim_workload::summary::Summary { mean: s, p50: s, p90: s, p95: s, p99: s, max: s };
    assert_eq!(report.batches.steps, 6);
    assert_eq!(report.latencies.ttft_s, all(0.002));
    assert_eq!(report.latencies.tpot_s, all(0.001));
    assert_eq!(report.latencies.itl_s, all(0.001));
    assert_eq!(report.latencies.e2e_s, all(0.006));
    assert_eq!(report.duration_s, 0.006);
    assert_eq!((report.tokens.prompt_tokens, report.tokens.output_tokens), (100, 5));
}

#[test]
fn waiting_counts_and_a_single_token_has_no_tpot() {
    let one_at_a_time = Settings { core: Config { max_batch_size: 1, ..settings(16, 100).core }, ..settings(16, 100) };
    let requests = vec![request(0, 10, 5, &[0]), request(1, 10, 1, &[1]), request(100, 10, 1, &[2])];
    let report = run(&trace(requests.clone()), &one_at_a_time);
    // 1 ms alone; 4 ms of waiting for the first and 1 ms; 1 ms alone.
    assert_eq!((report.latencies.ttft_s.max, report.latencies.ttft_s.p50), (0.005, 0.001));
    assert_eq!(report.latencies.tpot_s.mean, 0.001);
    assert_eq!(report.duration_s, 0.101);
    // One after another nobody waits, and there is no gap to the third.
    let report = run(&trace(requests.clone()), &Settings { arrivals: Arrivals::Serial, ..one_at_a_time.clone() });
    assert_eq!((report.latencies.ttft_s.max, report.duration_s), (0.001, 0.007));
    // With a replica each nobody waits either.
    let report = run(&trace(requests), &Settings { replicas: 3, ..one_at_a_time });
    assert_eq!((report.latencies.ttft_s.max, report.duration_s), (0.001, 0.101));
}

#[test]
fn what_can_never_fit_is_counted_and_the_rest_goes_on() {
    let requests = vec![request(0, 10, 5, &[0]), request(1, 512, 5, &[1]), request(2, 10, 5, &[2])];
    for arrivals in [Arrivals::TRACED, Arrivals::Serial, Arrivals::AtOnce] {
        let report = run(&trace(requests.clone()), &Settings { arrivals, ..settings(16, 10) });
        assert_eq!((report.requests, report.completed, report.refused), (3, 2, 1));
        assert_eq!(report.tokens.prompt_tokens, 20);
    }
    let all_refused = run(&trace(vec![request(0, 512, 5, &[1])]), &settings(16, 1));
    assert_eq!((all_refused.completed, all_refused.refused, all_refused.tokens.prefix_hit_ratio), (0, 1, 0.0));
    assert!(all_refused.to_json().contains("\"refused\": 1"));
}

#[test]
fn impossible_settings_are_refused() {
    let trace = conversations(1, 3);
    let fails = |settings: Settings| replay(&trace, &settings, &OneMs, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(fails(Settings { replicas: 0, ..settings(16, 10) }), "replicas is 0; it must be at least 1");
    assert_eq!(fails(settings(0, 10)), "block_size is 0; it must be between 1 and 4096");
    let mut unknown = settings(16, 10);
    unknown.core.policy = "magic".into();
    assert!(fails(unknown).starts_with("unknown policy 'magic'; there are: "));
    let slow = |speed| Settings { arrivals: Arrivals::Traced { speed }, ..settings(16, 10) };
    assert_eq!(fails(slow(0.0)), "speed is 0; it must be above 0, such as 2 for twice the load");
    assert!(
        fails(slow(f64::NAN)).starts_with("speed is NaN;") && fails(slow(f64::INFINITY)).starts_with("speed is inf;")
    );
    let beyond = "an arrival, a step or a copy ends after more than 146 years; check the trace, --speed, --slow and the hardware file";
    assert_eq!(fails(slow(1e-13)), beyond);
    let lucky = Settings { draft_acceptance: 1.5, ..settings(16, 10) };
    assert_eq!(fails(lucky), "draft_acceptance is 1.5; it must be between 0 and 1");
    let mut halted = settings(16, 10);
    halted.routing.slow = vec!["0:1e13".parse().unwrap()];
    let decodes = self::trace(vec![request(0, 16, 64, &[1])]);
    assert_eq!(replay(&decodes, &halted, &OneMs, &mut |_| {}).unwrap_err().to_string(), beyond);
}

#[test]
fn progress_reaches_the_number_of_requests() {
    let trace = conversations(200, 4);
    let mut seen = Vec::new();
    replay(&trace, &settings(16, 10_000), &OneMs, &mut |ended| seen.push(ended)).unwrap();
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&200));
}

/// A public trace in the folder named by the environment.
fn public_trace(name: &str) -> PathBuf {
    let folder = std::env::var_os("TRUNKLINE_DATA").expect("TRUNKLINE_DATA names the folder of data");
    PathBuf::from(folder).join("traces").join(name)
}

/// Tokens of hits in an unlimited cache, requests one after another, from the ids alone: a table of (prefix, first token of
/// the next block). Tokens of an id are consecutive, so the first one stands for the block; it MUST lie in one id whole.
struct NaiveHits {
    blocks: u64,
    hit_blocks: u64,
    hit_tokens: u64,
}

fn naive_hits_of_ids(trace: &Trace, block_size: u32, partial_blocks: bool) -> NaiveHits {
    assert!(HASH_ID_TOKENS.is_multiple_of(block_size));
    let mut nodes: HashMap<(u32, u32), u32> = HashMap::new();
    let mut hits = NaiveHits { blocks: 0, hit_blocks: 0, hit_tokens: 0 };
    for request in &trace.requests {
        let Content::Blocks(ids) = &request.content else { panic!("a trace with ids") };
        let (mut node, mut prefix_known, mut found_tokens) = (0, true, 0);
        for begin in (0..request.input_tokens).step_by(block_size as usize) {
            let n = block_size.min(request.input_tokens - begin);
            if n < block_size && !partial_blocks {
                break;
            }
            let token = ids[(begin / HASH_ID_TOKENS) as usize] + begin % HASH_ID_TOKENS;
            let next = nodes.len() as u32 + 1;
            // A partial block is found by its id whatever its length, as those who published the figure count.
            let entry = nodes.entry((node, token));
            prefix_known &= matches!(entry, std::collections::hash_map::Entry::Occupied(_));
            node = *entry.or_insert(next);
            hits.blocks += 1;
            if prefix_known {
                hits.hit_blocks += 1;
                found_tokens += n;
            }
        }
        hits.hit_tokens += u64::from(found_tokens.min(request.input_tokens - 1));
    }
    hits
}

#[test]
fn without_prefix_caching_no_request_finds_anothers_blocks() {
    let twice = trace(vec![request(0, 1024, 4, &[1, 2]), request(100, 1024, 4, &[1, 2]), request(200, 512, 4, &[1])]);
    let cached = run(&twice, &settings(16, 1000));
    assert_eq!(cached.tokens.prefix_hit_tokens, 1023 + 511);
    let settings = Settings { prefix_caching: false, ..settings(16, 1000) };
    let alone = run(&twice, &settings);
    assert_eq!((alone.tokens.prefix_hit_tokens, alone.completed), (0, 3));
    assert_eq!(alone.settings.model, "llama-3.1-8b, without prefix caching");
}

/// The published figure for Mooncake's conversation trace, and why ours is another. An unlimited cache, requests one after another,
/// 512-token blocks, partial last blocks counted as blocks: 0.3664 of the blocks hit. The core publishes a block only when it is full,
/// so partial last blocks are neither counted nor hit; and of a prompt that is found whole, the last token is run again.
#[test]
#[cfg_attr(not(trunkline_traces), ignore = "TRUNKLINE_DATA names no folder with traces/")]
fn hits_on_the_conversation_trace() {
    let path = public_trace("mooncake_conversation.jsonl.gz");
    let mut trace = Trace::load(&path, None, None).unwrap();
    assert_eq!(trace.requests.len(), 12_031);
    // Generated tokens are like no prompt's, so one is enough to measure hits.
    trace.requests.iter_mut().for_each(|request| request.output_tokens = 1);
    let partial = naive_hits_of_ids(&trace, 512, true);
    assert_eq!(partial.blocks, 288_500);
    assert_eq!(format!("{:.4}", partial.hit_blocks as f64 / partial.blocks as f64), "0.3664");

    let full = naive_hits_of_ids(&trace, 512, false);
    let prompt_tokens: u64 = trace.requests.iter().map(|request| u64::from(request.input_tokens)).sum();
    eprintln!(
        "512-token blocks: {} of {} blocks hit counting partial ones, {} of {} full ones; {} of {prompt_tokens} tokens ({:.4})",
        partial.hit_blocks,
        partial.blocks,
        full.hit_blocks,
        full.blocks,
        full.hit_tokens,
        full.hit_tokens as f64 / prompt_tokens as f64
    );
    let report = run(&trace, &Settings { arrivals: Arrivals::Serial, ..settings(512, 10_000_000) });
    assert_eq!((report.completed, report.tokens.prompt_tokens), (12_031, prompt_tokens));
    assert_eq!(report.tokens.prefix_hit_tokens, full.hit_tokens);

    trace.requests.truncate(500);
    let report = run(&trace, &Settings { arrivals: Arrivals::Serial, ..settings(16, 10_000_000) });
    assert_eq!(report.tokens.prefix_hit_tokens, naive_hits_of_ids(&trace, 16, false).hit_tokens);
}

#[test]
#[cfg_attr(not(trunkline_traces), ignore = "TRUNKLINE_DATA names no folder with traces/")]
fn the_azure_trace_loads_and_shares_nothing() {
    let path = public_trace("azure_conv_2023.csv.gz");
    let trace = Trace::load(&path, None, None).unwrap();
    assert_eq!((trace.format, trace.requests.len()), (formats::AZURE, 19_366));
    assert_eq!(trace.requests.iter().map(|request| u64::from(request.output_tokens)).sum::<u64>(), 4_088_665);
    let trace = Trace { requests: trace.requests[..300].to_vec(), ..trace };
    let report = run(&trace, &settings(16, 20_000));
    assert_eq!((report.completed, report.tokens.prefix_hit_tokens), (300, 0));
}
