//! Routers on loads made by hand.

use super::*;

fn context() -> RouterContext {
    let engine = EngineFacts { kind: 0, cache_blocks: 800, token_ns: 100_000, decodes: true };
    RouterContext { engines: vec![engine; 3], block_size: 16 }
}

fn loads(tokens: [u64; 3], open: [bool; 3]) -> Vec<Load> {
    tokens.iter().zip(open).map(|(tokens, open)| Load { open, tokens: *tokens, ..Load::default() }).collect()
}

/// Hashes of a prompt of so many blocks, the first of which are those of other prompts of the same `shared` part.
fn hashes(shared: u128, n_shared: u128, own: u128, n: u128) -> Vec<BlockHash> {
    (0..n).map(|i| BlockHash(if i < n_shared { shared << 32 | i } else { own << 32 | i })).collect()
}

fn pick(router: &mut dyn Router, now_ns: u64, number: u64, hashes: &[BlockHash], loads: &[Load]) -> Pick {
    let request = Incoming { number, prompt_tokens: hashes.len() as u32 * 16 + 1, hashes };
    router.pick(now_ns, &request, loads)
}

#[test]
fn names_are_unique_and_closed_engines_are_left_out() {
    let mut names: Vec<_> = REGISTRY.entries().iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), REGISTRY.entries().len());
    for entry in REGISTRY.entries() {
        assert!(entry.params.iter().all(|param| (param.min..=param.max).contains(&param.default)));
        let mut router = make(entry.name, context()).unwrap();
        for number in 0..50 {
            let prompt = hashes(1, 8, 2 + u128::from(number), 12);
            let two = pick(&mut *router, number, number, &prompt, &loads([5, 0, 7], [true, false, true])).engine;
            assert_ne!(two, 1, "{}", entry.name);
            let one = pick(&mut *router, number, number, &prompt, &loads([0, 0, 7], [false, false, true])).engine;
            assert_eq!(one, 2, "{}", entry.name);
        }
    }
}

#[test]
fn turns_go_round_and_the_least_loaded_is_found() {
    let mut router = make("round_robin", context()).unwrap();
    assert!(
        is_in_turn("round_robin") && !is_in_turn("least_loaded") && !is_in_turn("random2:seed=3") && !is_in_turn("x")
    );
    let turn = |router: &mut Box<dyn Router>, open| pick(&mut **router, 0, 0, &[], &loads([0; 3], open)).engine;
    assert_eq!([0; 4].map(|_| turn(&mut router, [true; 3])), [0, 1, 2, 0]);
    assert_eq!([0; 3].map(|_| turn(&mut router, [true, false, true])), [2, 0, 2]);
    // Two sorts of requests by turns, as prompts and their decodes with roles.
    let mut router = make("round_robin", context()).unwrap();
    let decodes = [0; 4].map(|_| {
        assert_eq!(turn(&mut router, [true, false, false]), 0);
        turn(&mut router, [false, true, true])
    });
    assert_eq!(decodes, [1, 2, 1, 2]);
    let mut router = make("least_loaded", context()).unwrap();
    let least = |router: &mut Box<dyn Router>, tokens| pick(&mut **router, 0, 0, &[], &loads(tokens, [true; 3])).engine;
    assert_eq!(least(&mut router, [3, 2, 2]), 1);
    assert_eq!(least(&mut router, [3, 4, 2]), 2);
}

#[test]
fn two_choices_are_even_and_never_the_worst_of_three() {
    let mut router = make("random2:seed=7", context()).unwrap();
    let mut counts = [0u32; 3];
    for number in 0..30_000 {
        counts[pick(&mut *router, 0, number, &[], &loads([0; 3], [true; 3])).engine] += 1;
        assert_ne!(pick(&mut *router, 0, number, &[], &loads([1, 9, 1], [true; 3])).engine, 1);
    }
    assert!(counts.iter().all(|n| n.abs_diff(10_000) < 400), "{counts:?}");
}

#[test]
fn affinity_is_weighed_against_load() {
    let mut router = make("prefix_affinity", context()).unwrap();
    let prompt = hashes(1, 64, 1, 64);
    let first = pick(&mut *router, 0, 0, &prompt, &loads([1, 0, 0], [true; 3]));
    assert_eq!(first, Pick { engine: 1, known_tokens: 0 });
    // 1024 tokens are known there, so others are better only if they hold four times as many fewer.
    let next = hashes(1, 64, 2, 100);
    assert_eq!(
        pick(&mut *router, 0, 1, &next, &loads([0, 4_000, 0], [true; 3])),
        Pick { engine: 1, known_tokens: 1_024 }
    );
    // Now that it has 96 blocks of the second one, 1,536 tokens are known.
    assert_eq!(pick(&mut *router, 0, 2, &next, &loads([0, 6_143, 0], [true; 3])).engine, 1);
    assert_eq!(pick(&mut *router, 0, 3, &next, &loads([0, 6_800, 0], [true; 3])), Pick { engine: 0, known_tokens: 0 });
    // Who lost its cache is as good as any other.
    router.lost(0);
    router.lost(1);
    assert_eq!(pick(&mut *router, 0, 4, &next, &loads([1, 1, 0], [true; 3])), Pick { engine: 2, known_tokens: 0 });
    // A request that is known whole has a token to run.
    let whole = Incoming { number: 5, prompt_tokens: 1_536, hashes: &next[..96] };
    assert_eq!(router.pick(0, &whole, &loads([1, 1, 0], [true; 3])), Pick { engine: 2, known_tokens: 1_535 });
}

#[test]
fn a_stale_view_lags() {
    let mut router = make("prefix_affinity:stale_ms=10", context()).unwrap();
    let prompt = hashes(1, 64, 1, 64);
    let known = |router: &mut Box<dyn Router>, now_ns| {
        pick(&mut **router, now_ns, 0, &prompt, &loads([0, 1, 1], [true; 3])).known_tokens
    };
    assert_eq!([0, 9_999_999, 10_000_000].map(|now_ns| known(&mut router, now_ns)), [0, 0, 1_024]);
    router.lost(0);
    assert_eq!([10_000_001, 21_000_000].map(|now_ns| known(&mut router, now_ns)), [0, 1_024]);
}

#[test]
fn idle_engines_share_the_prefixes() {
    let mut router = make("prefix_affinity", context()).unwrap();
    let picks: Vec<_> =
        (0..6).map(|own| pick(&mut *router, 0, 0, &hashes(9, 0, own, 16), &loads([0; 3], [true; 3])).engine).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn stale_loads_are_renewed_at_their_age_and_closed_engines_are_seen_at_once() {
    let mut router = make("least_loaded:load_stale_ms=10", context()).unwrap();
    let mut least = |now_ns, tokens, open| pick(&mut *router, now_ns, 0, &[], &loads(tokens, open)).engine;
    assert_eq!(least(0, [3, 2, 4], [true; 3]), 1);
    assert_eq!(least(9_999_999, [0, 2, 4], [true; 3]), 1, "the snapshot is kept");
    assert_eq!(least(9_999_999, [0, 2, 4], [true, false, true]), 0, "a closed engine is never picked");
    assert_eq!(least(10_000_000, [4, 2, 0], [true; 3]), 2, "the snapshot is renewed");
}

#[test]
fn an_empty_prompt_is_routed_to_the_engine_that_refuses_it() {
    for entry in REGISTRY.entries() {
        let mut router = make(entry.name, context()).unwrap();
        let request = Incoming { number: 1, prompt_tokens: 0, hashes: &[] };
        let pick = router.pick(0, &request, &loads([5, 0, 7], [false, true, false]));
        assert_eq!(pick, Pick { engine: 1, known_tokens: 0 }, "{}", entry.name);
    }
}

/// Teaches a router steps of 1 ms, with 20 us for a prompt token, 1 ns for a pair and 50 ns for a token read, and answers of 100 tokens.
fn taught(spec: &str) -> Box<dyn Router> {
    let mut router = make(spec, context()).unwrap();
    for at in 0..2_000u64 {
        let (tokens, decodes) = (at % 3 * 512, at % 7);
        let work = StepWork { tokens, pairs: tokens * (at % 5_000), decodes, read: decodes * (at % 1_999) };
        let ns = 1_000_000 + 20_000 * work.tokens + work.pairs + 50 * work.read;
        router.stepped(at as usize % 3, &work, ns);
        router.answered(100);
    }
    router
}

#[test]
fn a_long_prefix_is_left_only_when_the_others_cost_more_than_computing_it_again() {
    let mut router = taught("added_time");
    let prompt = hashes(1, 640, 1, 640);
    let load = |requests, tokens| Load { open: true, requests, tokens, ..Load::default() };
    let idle = load(0, 0);
    assert_eq!(pick(&mut *router, 0, 0, &prompt, &[idle; 3]), Pick { engine: 0, known_tokens: 0 });
    // 10,240 tokens take 0.26 s, which count four times. Together with n others of 10,000 tokens each, an answer of 100 tokens takes 0.05 s longer for it
    // and for each of them, n times. Arrivals are minutes apart.
    let stays = |router: &mut Box<dyn Router>, minute: u64, n: u32| {
        let busy = load(n, u64::from(n) * 10_000);
        pick(&mut **router, minute * 60_000_000_000, minute, &prompt, &[busy, idle, idle]).engine == 0
    };
    assert!(stays(&mut router, 1, 8) && !stays(&mut router, 2, 30));
    // The first token counts less: it moves sooner.
    let mut eager = taught("added_time:ttft_percent=50");
    pick(&mut *eager, 0, 0, &prompt, &[idle; 3]);
    assert!(stays(&mut eager, 1, 1) && !stays(&mut eager, 2, 8));
}

#[test]
fn a_prompt_goes_where_it_delays_the_fewest_and_waits_least() {
    let mut router = taught("added_time");
    let load = |requests, prefill_tokens: u64| Load {
        open: true,
        requests,
        tokens: 1_000,
        prefill_tokens,
        prefill_pairs: prefill_tokens * prefill_tokens / 2,
        answer_tokens: 0,
    };
    let mut engine = |minute: u64, loads: [Load; 3]| {
        pick(&mut *router, minute * 60_000_000_000, minute, &hashes(7, 0, u128::from(minute), 64), &loads).engine
    };
    assert_eq!(engine(1, [load(9, 0), load(3, 0), load(5, 0)]), 1, "the fewest are delayed");
    assert_eq!(engine(2, [load(3, 5_000), load(3, 0), load(3, 2_000)]), 1, "no prompt is ahead");
    assert_eq!(engine(3, [load(3, 0), load(2, 9_000), load(9, 0)]), 0, "a long wait is worse than one more to delay");
}

#[test]
fn a_prefix_that_an_engine_lost_is_no_reason() {
    let mut router = taught("added_time");
    let prompt = hashes(1, 640, 1, 640);
    let idle = [Load { open: true, ..Load::default() }; 3];
    assert_eq!(pick(&mut *router, 0, 0, &prompt, &idle).engine, 0);
    assert_eq!(pick(&mut *router, 0, 1, &prompt, &idle), Pick { engine: 0, known_tokens: 10_240 });
    router.lost(0);
    assert_eq!(pick(&mut *router, 0, 2, &prompt, &idle), Pick { engine: 0, known_tokens: 0 });
}
