//! Acceptance scenarios of several engines: hand-over from prefill to decode engines, and balance between engines.
//!
//! `src/core/tests/scenarios/` has the others, and checks that none is missing.

use trunkline_cluster::{ClusterConfig, EngineConfig, EngineId, Input, Move, ROUTER_DEFAULT, Role};
use trunkline_core::{Config, Event, FinishReason, Preemption, RequestId, TierConfig, Write};

use crate::rig::{Rig, config};

/// A prefill engine with a large batch, and a decode engine with these limits.
fn apart(decode: Config) -> Rig {
    let prefill = Config { max_batch_size: 64, max_batch_tokens: 4096, tiers: decode.tiers.clone(), ..config() };
    let engine = |role, core| EngineConfig { core, role, kv_class: 0 };
    let engines = vec![engine(Role::Prefill, prefill), engine(Role::Decode, decode)];
    Rig::new(&ClusterConfig { engines, router: ROUTER_DEFAULT.into() })
}

/// Engines that all prefill and decode, under the router `least_loaded`.
fn balanced(n: usize) -> Rig {
    Rig::new(&ClusterConfig { router: "least_loaded".into(), ..ClusterConfig::uniform(&config(), n) })
}

#[test]
fn scenario_085_a_decode_engine_fills_up_to_the_batch_size() {
    let mut rig = apart(config());
    (1..=20).for_each(|id| rig.submit(id, 40, 20));
    while rig.counts(0) != (0, 0) {
        rig.answer(0);
    }
    rig.answer(1);
    assert_eq!((rig.moves.len(), rig.counts(1)), (20, (8, 12)));
    rig.run_all();
    (1..=20).for_each(|id| rig.assert_whole(id, 20));
}

#[test]
fn scenario_086_a_decode_engine_with_a_full_batch_takes_none() {
    let mut rig = apart(config());
    (1..=8).for_each(|id| rig.submit(id, 40, 60));
    rig.answer(0);
    rig.answer(0);
    (0..3).for_each(|_| rig.answer(1));
    assert_eq!(rig.counts(1), (8, 0));
    (11..=30).for_each(|id| rig.submit(id, 40, 60));
    while rig.counts(0) != (0, 0) {
        rig.answer(0);
    }
    for _ in 0..5 {
        rig.answer(1);
        assert_eq!(rig.counts(1), (8, 20));
        assert!(rig.steps[&1].seqs.iter().all(|seq| seq.request.0 <= 8));
    }
}

/// Two engines that share a tier; request 1 is handed over, and the decode engine waits for the answer of the tier.
fn asking() -> (Rig, u64) {
    let (name, eviction) = ("shared".into(), "lru".into());
    let tier = TierConfig { name, blocks: 64, write: Write::Through, eviction, shared: true };
    let mut rig = apart(Config { tiers: vec![tier], ..config() });
    rig.submit(1, 80, 6);
    while let Some((0, lookup)) = rig.lookups.pop() {
        rig.engine(0, Event::LookupEnded { lookup, found: 0 });
    }
    rig.answer(0);
    assert_eq!((rig.at(1), rig.lookups.len(), rig.lookups[0].0), (Some(1), 1, 1));
    assert!(!rig.steps.contains_key(&1), "nothing runs before the answer");
    let lookup = rig.lookups.pop().unwrap().1;
    (rig, lookup)
}

/// KsanaLLM: a request whose blocks do not come stays in transfer; here: the decode engine waits for the answer of the shared tier no
/// longer than computing the prompt takes, because a lost copy may only cost a recomputation. An abort leaves the transfer in both.
#[test]
fn scenario_087_a_request_whose_blocks_do_not_come_is_computed_and_an_aborted_one_leaves() {
    let (mut rig, lookup) = asking();
    rig.input(Input::Client(Event::Abort(RequestId(1))));
    assert_eq!((rig.ends[&1], rig.at(1)), (FinishReason::Abort, None));
    rig.engine(1, Event::LookupEnded { lookup, found: 5 });
    assert!(!rig.steps.contains_key(&1), "it never reaches decoding");

    let (mut rig, _) = asking();
    rig.now_ns = rig.cluster.next_deadline_ns().expect("the answer is awaited for a bounded time");
    rig.input(Input::Client(Event::Tick));
    let seq = &rig.steps[&1].seqs[0];
    assert_eq!((seq.computed, seq.n_tokens), (0, 81), "prompt and first token are computed here");
    rig.run_all();
    rig.assert_whole(1, 6);
}

#[test]
fn scenario_089_a_prefill_engine_generates_one_token_and_hands_over_once() {
    let mut rig = apart(config());
    rig.submit(1, 40, 5);
    rig.answer(0);
    assert_eq!((rig.tokens[&1].len(), rig.moves.as_slice()), (1, [(1, Move::HandedOver)].as_slice()));
    assert_eq!((rig.counts(0), rig.counts(1)), ((0, 0), (1, 0)));
    assert!(!rig.steps.contains_key(&0), "the prefill engine decodes nothing");
    rig.run_all();
    assert_eq!(rig.moves.len(), 1);
    rig.assert_whole(1, 5);
}

/// KsanaLLM: drops the request from every queue; here: the request is recomputed on the decode engine, because its tokens are known
/// there.
#[test]
fn scenario_090_a_decode_engine_preempts_without_host_blocks() {
    let mut rig = apart(Config { device_blocks: 10, host_blocks: 0, preemption: Preemption::Swap, ..config() });
    // Two requests of four blocks each, which grow to seven.
    (1..=2).for_each(|id| rig.submit(id, 60, 50));
    rig.run_all();
    let stats = rig.cluster.core(EngineId(1)).stats();
    assert!(stats.preemptions > 0, "the blocks ran out");
    assert_eq!((stats.private_blocks, stats.held_blocks, stats.free_blocks + stats.idle_blocks), (0, 0, 10));
    (1..=2).for_each(|id| rig.assert_whole(id, 50));
}

/// KsanaLLM: sorts what has arrived by length, longest first: {200, 50} and {150, 100}; here: each request is placed as it arrives,
/// on the engine with the fewest tokens, because waiting for others to compare with costs time to the first token.
#[test]
fn scenario_091_requests_go_to_the_engine_with_the_fewest_tokens_as_they_arrive() {
    let mut rig = balanced(2);
    let prompts = [(1, 100), (2, 200), (3, 50), (4, 150)];
    prompts.iter().for_each(|(id, n)| rig.submit(*id, *n, 5));
    assert_eq!(rig.groups(&prompts), [vec![100, 50, 150], vec![200]]);
}

#[test]
fn scenario_092_sixteen_requests_on_three_engines_have_sums_within_a_fifth_of_each_other() {
    let mut rig = balanced(3);
    let loads = [(101, 5), (102, 6), (103, 7)];
    loads.iter().for_each(|(id, n)| rig.submit(*id, *n, 5));
    assert_eq!(rig.groups(&loads), [[5], [6], [7]]);
    let prompts: Vec<(u64, u32)> = (1..=16).map(|n| (n, n as u32)).collect();
    prompts.iter().for_each(|(id, n)| rig.submit(*id, *n, 5));
    let sums: Vec<u32> = rig.groups(&[&loads[..], &prompts].concat()).iter().map(|group| group.iter().sum()).collect();
    assert_eq!(sums.iter().sum::<u32>(), 18 + 136);
    assert!(sums.iter().all(|sum| sum.abs_diff(sums[0]) * 5 <= sums[0]), "{sums:?}");
}

#[test]
fn scenario_093_engines_with_more_load_get_fewer_requests() {
    let mut rig = balanced(3);
    let loads = [(101, 1), (102, 5), (103, 10)];
    loads.iter().for_each(|(id, n)| rig.submit(*id, *n, 5));
    assert_eq!(rig.groups(&loads), [[1], [5], [10]]);
    let prompts: Vec<(u64, u32)> = (1..=20).map(|id| (id, 10)).collect();
    prompts.iter().for_each(|(id, n)| rig.submit(*id, *n, 5));
    let sizes: Vec<usize> = rig.groups(&prompts).iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 20);
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
}

#[test]
fn scenario_095_a_request_in_chunks_stays_on_its_engine() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&Config { max_batch_tokens: 64, ..config() }, 2));
    rig.submit(1, 300, 3);
    let home = rig.at(1).unwrap();
    for chunk in 0..4 {
        assert_eq!((rig.at(1), rig.steps[&home].seqs[0].computed), (Some(home), chunk * 64));
        // The other engine has less to do; the request holds blocks here, and stays.
        rig.answer(home);
    }
    rig.run_all();
    assert!(rig.moves.is_empty());
    rig.assert_whole(1, 3);
}

/// KsanaLLM: holds a prefill back while every rank decodes, up to a time limit; here: none is held, because the prefill budget of a step
/// bounds what a prefill costs the decodes in its step.
#[test]
fn scenario_096_prefills_are_not_held_while_every_engine_decodes() {
    let mut rig = balanced(4);
    (1..=4).for_each(|id| rig.submit(id, 40, 50));
    let mut homes: Vec<_> = (1..=4).map(|id| rig.at(id).unwrap()).collect();
    homes.sort_unstable();
    assert_eq!(homes, [0, 1, 2, 3], "idle engines get one each, at once");
    (0..4).for_each(|engine| rig.answer(engine));
    assert!((0..4).all(|engine| rig.steps[&engine].seqs[0].n_tokens == 1), "all decode");
    rig.submit(5, 40, 50);
    let home = rig.at(5).unwrap();
    rig.answer(home);
    let parts: Vec<_> = rig.steps[&home].seqs.iter().map(|seq| (seq.request.0, seq.n_tokens)).collect();
    assert_eq!(parts[1..], [(5, 40)], "it runs in the next step, alongside the decode");
}
