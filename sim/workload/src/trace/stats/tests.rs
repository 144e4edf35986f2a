//! Statistics against what can be counted by hand, by brute force, and against the public figures if the trace is at
//! hand.

use std::collections::HashMap;
use std::path::PathBuf;

use super::*;
use crate::trace::{Piece, TraceReader, formats};

fn request(arrival_ms: u64, input_tokens: u32, ids: &[u32]) -> TraceRequest {
    let arrival_ns = arrival_ms * 1_000_000;
    TraceRequest {
        arrival_ns,
        input_tokens,
        output_tokens: 7,
        content: Content::Blocks(ids.into()),
        ..TraceRequest::default()
    }
}

fn of(requests: &[TraceRequest], capacities: &[u64]) -> TraceStats {
    let options = StatsOptions { block_tokens: None, capacities: capacities.to_vec() };
    stats(requests.iter().cloned().map(Ok), formats::MOONCAKE, &options).unwrap()
}

#[test]
fn lengths_and_arrivals() {
    let requests: Vec<_> = (0..100).map(|i| request(i * 1_000, i as u32 + 1, &[i as u32])).collect();
    let stats = of(&requests, &[]);
    assert_eq!((stats.requests, stats.format.as_str()), (100, "mooncake"));
    let Lengths { total, mean, p50, p90, p99, max } = stats.input_tokens;
    assert_eq!((total, mean, p50, p90, p99, max), (5050, 50.5, 50, 90, 99, 100));
    assert_eq!((stats.output_tokens.p50, stats.output_tokens.mean), (7, 7.0));
    let arrivals = stats.arrivals;
    assert!((arrivals.duration_s - 99.0).abs() < 1e-9 && (arrivals.rate_requests_s - 1.0).abs() < 1e-9);
    assert!(arrivals.gap_cv < 1e-6, "{arrivals:?}");
    assert_eq!((arrivals.peak_minute_requests, arrivals.peak_minute), (60, 0));
    assert!((arrivals.peak_requests_s() - 1.0).abs() < 1e-9);
    let second: Vec<_> = (0..101).map(|i| request(i * 10, 9, &[i as u32])).collect();
    let peak_requests_s = of(&second, &[]).arrivals.peak_requests_s();
    assert!((peak_requests_s - 100.0).abs() < 1e-6, "{peak_requests_s}");
}

#[test]
fn hits_counted_by_hand() {
    let requests = [
        request(0, 1000, &[1, 2]),
        request(1_000, 600, &[1, 3]),
        // 2 is known, but not at the beginning.
        request(2_000, 512, &[2]),
        request(5_000, 1000, &[1, 2]),
    ];
    let prefixes = of(&requests, &[1, 2, 3, 4]).prefixes.unwrap();
    assert_eq!((prefixes.blocks, prefixes.distinct_blocks, prefixes.requests_with_hits), (7, 4, 2));
    assert_eq!(prefixes.hit_ratio_blocks, 3.0 / 7.0);
    assert_eq!(prefixes.hit_ratio_tokens, (512.0 + 1000.0) / 3112.0);
    // Uses: 2 1 | 3 1 | 2' | 2 1: the first request's 1 is found at distance 0, the last one's at 1, its 2 after 3, 1
    // and 2'.
    assert_eq!((prefixes.reuse_blocks.p10, prefixes.reuse_blocks.p50, prefixes.reuse_blocks.max), (0, 1, 3));
    let blocks: Vec<_> = prefixes.capacities.iter().map(|it| (it.lru_blocks * 7.0, it.belady_blocks * 7.0)).collect();
    assert_eq!(blocks, [(1.0, 2.0), (2.0, 3.0), (2.0, 3.0), (3.0, 3.0)]);
    assert_eq!(prefixes.reuse_s.max, 5.0);
}

#[test]
fn prompts_of_other_namespaces_are_not_found() {
    let mut requests = [1000, 1000, 1000, 600].map(|tokens| request(0, tokens, &[1, 2]));
    (requests[1].terms.namespace, requests[3].terms.namespace) = (7, 7);
    let prefixes = of(&requests, &[]).prefixes.unwrap();
    // The third finds two blocks of the first, and the fourth one of the second.
    assert_eq!((prefixes.blocks, prefixes.distinct_blocks, prefixes.hit_ratio_blocks), (8, 5, 3.0 / 8.0));
}

#[test]
fn no_content_has_no_prefixes() {
    let unlike = TraceRequest {
        arrival_ns: 0,
        input_tokens: 9,
        output_tokens: 1,
        content: Content::Unique(0),
        ..TraceRequest::default()
    };
    let stats = stats([Ok(unlike)].into_iter(), formats::AZURE, &StatsOptions::default()).unwrap();
    assert_eq!(stats.prefixes, None);
    assert_eq!((stats.arrivals.rate_requests_s, stats.arrivals.peak_minute_requests), (0.0, 1));
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let none = || std::iter::empty();
    let fault = |options| stats(none(), formats::AZURE, &options).unwrap_err().to_string();
    assert_eq!(fault(StatsOptions::default()), "the trace holds no request");
    assert_eq!(
        fault(StatsOptions { block_tokens: Some(0), ..Default::default() }),
        "block size is 0 tokens; it must be from 1 to 1048576"
    );
    assert_eq!(
        fault(StatsOptions { capacities: vec![0], ..Default::default() }),
        "1 capacities; give at most 64, each at least 1 block"
    );
}

/// Prompts that share prefixes in many ways.
fn tangle(n: usize, seed: u64) -> Vec<TraceRequest> {
    let mut state = seed;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    (0..n)
        .map(|i| {
            let pieces: Box<[_]> = (0..1 + below(6)).map(|_| Piece { content: below(3) as u32, tokens: 10 }).collect();
            let input_tokens = pieces.len() as u32 * 10;
            TraceRequest {
                arrival_ns: i as u64,
                input_tokens,
                output_tokens: 1,
                content: Content::Pieces(pieces),
                ..TraceRequest::default()
            }
        })
        .collect()
}

/// A cache of prefixes as lists of contents: uses and evicts one leaf at a time, by `rank` of the prefix, least first.
fn brute(requests: &[TraceRequest], capacity: usize, rank: impl Fn(usize, &[u32], u64) -> u64) -> u64 {
    let mut cache: HashMap<Vec<u32>, u64> = HashMap::new();
    let (mut hits, mut clock) = (0, 0);
    for (number, request) in requests.iter().enumerate() {
        let Content::Pieces(pieces) = &request.content else { unreachable!() };
        let path: Vec<_> = pieces.iter().map(|piece| piece.content).collect();
        hits += (1..=path.len()).take_while(|n| cache.contains_key(&path[..*n])).count() as u64;
        for n in (1..=path.len()).rev() {
            clock += 1;
            cache.insert(path[..n].to_vec(), clock);
        }
        while cache.len() > capacity {
            let is_leaf = |path: &[u32]| !cache.keys().any(|other| other.len() > path.len() && other.starts_with(path));
            let leaves = cache.iter().filter(|(path, _)| is_leaf(path));
            let victim =
                leaves.min_by_key(|(path, used)| (rank(number, path, **used), path.to_vec())).unwrap().0.clone();
            cache.remove(&victim);
        }
    }
    hits
}

#[test]
fn one_pass_agrees_with_caches_that_evict_leaf_by_leaf() {
    for seed in 0..20 {
        let requests = tangle(60, seed);
        let options = StatsOptions { block_tokens: Some(10), capacities: (1..=40).step_by(3).collect() };
        let found = stats(requests.iter().cloned().map(Ok), formats::SYNTHETIC, &options).unwrap().prefixes.unwrap();
        let next_use = |after: usize, path: &[u32]| {
            let uses = |request: &TraceRequest| {
                let Content::Pieces(pieces) = &request.content else { unreachable!() };
                pieces.len() >= path.len() && pieces.iter().zip(path).all(|(piece, content)| piece.content == *content)
            };
            requests[after + 1..].iter().position(uses).unwrap_or(usize::MAX) as u64
        };
        for of_capacity in &found.capacities {
            let capacity = of_capacity.blocks as usize;
            let hits = |ratio: f64| (ratio * found.blocks as f64).round() as u64;
            assert_eq!(hits(of_capacity.lru_blocks), brute(&requests, capacity, |_, _, used| used), "LRU {capacity}");
            let belady = brute(&requests, capacity, |now, path, _| u64::MAX - next_use(now, path));
            assert_eq!(hits(of_capacity.belady_blocks), belady, "Belady {capacity}");
            assert!(of_capacity.belady_blocks >= of_capacity.lru_blocks);
            assert!(of_capacity.belady_blocks <= found.hit_ratio_blocks);
        }
    }
}

#[test]
#[cfg_attr(not(trunkline_traces), ignore = "TRUNKLINE_DATA names no folder with traces/")]
fn the_public_figures_of_the_conversation_trace() {
    let name = "mooncake_conversation.jsonl.gz";
    let folder = std::env::var_os("TRUNKLINE_DATA").expect("TRUNKLINE_DATA names the folder of data");
    let path = PathBuf::from(folder).join("traces").join(name);
    let lru = [(1_000, 0.0445), (2_000, 0.0543), (5_000, 0.1118), (10_000, 0.2116), (20_000, 0.2878), (50_000, 0.3546)];
    let belady = [(1_000, 0.1907), (2_000, 0.2550), (5_000, 0.3412), (10_000, 0.3664)];
    let options = StatsOptions { block_tokens: Some(512), capacities: lru.map(|(blocks, _)| blocks).to_vec() };
    let stats = stats(TraceReader::open(&path, None).unwrap(), formats::MOONCAKE, &options).unwrap();
    let prefixes = stats.prefixes.unwrap();
    assert_eq!((stats.requests, prefixes.blocks, prefixes.distinct_blocks), (12_031, 288_500, 182_790));
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 0.5e-4, "{found} for {expected}");
    close(prefixes.hit_ratio_blocks, 0.3664);
    for (found, (_, expected)) in prefixes.capacities.iter().zip(lru) {
        close(found.lru_blocks, expected);
    }
    for (found, (_, expected)) in prefixes.capacities.iter().zip(belady) {
        close(found.belady_blocks, expected);
    }
}
