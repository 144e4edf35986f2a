//! Routers on loads made by hand.

use super::*;

const CONTEXT: RouterContext = RouterContext { engines: 3, block_size: 16, cache_blocks: 800 };

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
        let mut router = make(entry.name, CONTEXT).unwrap();
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
    let mut router = make("round_robin", CONTEXT).unwrap();
    assert!(
        is_in_turn("round_robin") && !is_in_turn("least_loaded") && !is_in_turn("random2:seed=3") && !is_in_turn("x")
    );
    let turn = |router: &mut Box<dyn Router>, open| pick(&mut **router, 0, 0, &[], &loads([0; 3], open)).engine;
    assert_eq!([0; 4].map(|_| turn(&mut router, [true; 3])), [0, 1, 2, 0]);
    assert_eq!([0; 3].map(|_| turn(&mut router, [true, false, true])), [2, 0, 2]);
    // Two sorts of requests by turns, as prompts and their decodes with roles.
    let mut router = make("round_robin", CONTEXT).unwrap();
    let decodes = [0; 4].map(|_| {
        assert_eq!(turn(&mut router, [true, false, false]), 0);
        turn(&mut router, [false, true, true])
    });
    assert_eq!(decodes, [1, 2, 1, 2]);
    let mut router = make("least_loaded", CONTEXT).unwrap();
    let least = |router: &mut Box<dyn Router>, tokens| pick(&mut **router, 0, 0, &[], &loads(tokens, [true; 3])).engine;
    assert_eq!(least(&mut router, [3, 2, 2]), 1);
    assert_eq!(least(&mut router, [3, 4, 2]), 2);
}

#[test]
fn two_choices_are_even_and_never_the_worst_of_three() {
    let mut router = make("random2:seed=7", CONTEXT).unwrap();
    let mut counts = [0u32; 3];
    for number in 0..30_000 {
        counts[pick(&mut *router, 0, number, &[], &loads([0; 3], [true; 3])).engine] += 1;
        assert_ne!(pick(&mut *router, 0, number, &[], &loads([1, 9, 1], [true; 3])).engine, 1);
    }
    assert!(counts.iter().all(|n| n.abs_diff(10_000) < 400), "{counts:?}");
}

#[test]
fn affinity_is_weighed_against_load() {
    let mut router = make("prefix_affinity:overlap_percent=100", CONTEXT).unwrap();
    let prompt = hashes(1, 64, 1, 64);
    let first = pick(&mut *router, 0, 0, &prompt, &loads([1, 0, 0], [true; 3]));
    assert_eq!(first, Pick { engine: 1, known_tokens: 0 });
    // 1024 tokens are known there, so others are better only if they hold so many fewer.
    let next = hashes(1, 64, 2, 100);
    assert_eq!(
        pick(&mut *router, 0, 1, &next, &loads([0, 1_000, 0], [true; 3])),
        Pick { engine: 1, known_tokens: 1_024 }
    );
    // Now that it has 96 blocks of the second one, 1,536 tokens are known.
    assert_eq!(pick(&mut *router, 0, 2, &next, &loads([0, 1_535, 0], [true; 3])).engine, 1);
    assert_eq!(pick(&mut *router, 0, 3, &next, &loads([0, 1_700, 0], [true; 3])), Pick { engine: 0, known_tokens: 0 });
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
    let mut router = make("prefix_affinity:stale_ms=10,overlap_percent=100", CONTEXT).unwrap();
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
    let mut router = make("prefix_affinity:overlap_percent=100", CONTEXT).unwrap();
    let picks: Vec<_> =
        (0..6).map(|own| pick(&mut *router, 0, 0, &hashes(9, 0, own, 16), &loads([0; 3], [true; 3])).engine).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn stale_loads_are_renewed_at_their_age_and_closed_engines_are_seen_at_once() {
    let mut router = make("least_loaded:load_stale_ms=10", CONTEXT).unwrap();
    let mut least = |now_ns, tokens, open| pick(&mut *router, now_ns, 0, &[], &loads(tokens, open)).engine;
    assert_eq!(least(0, [3, 2, 4], [true; 3]), 1);
    assert_eq!(least(9_999_999, [0, 2, 4], [true; 3]), 1, "the snapshot is kept");
    assert_eq!(least(9_999_999, [0, 2, 4], [true, false, true]), 0, "a closed engine is never picked");
    assert_eq!(least(10_000_000, [4, 2, 0], [true; 3]), 2, "the snapshot is renewed");
}

#[test]
fn an_empty_prompt_is_routed_to_the_engine_that_refuses_it() {
    for entry in REGISTRY.entries() {
        let mut router = make(entry.name, CONTEXT).unwrap();
        let request = Incoming { number: 1, prompt_tokens: 0, hashes: &[] };
        let pick = router.pick(0, &request, &loads([5, 0, 7], [false, true, false]));
        assert_eq!(pick, Pick { engine: 1, known_tokens: 0 }, "{}", entry.name);
    }
}
