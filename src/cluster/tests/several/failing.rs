//! Broken workers and requests that break workers: who is to blame, and who pays.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_cluster::{ClusterConfig, EngineId, Health, HealthEvent, Input, Move, router};
use trunkline_core::{Config, Event, FinishReason, RequestId};

use crate::rig::{Rig, config};

const S: u64 = 1_000_000_000;

fn rig(n: usize, router: &str) -> Rig {
    Rig::new(&ClusterConfig { router: router.into(), ..ClusterConfig::uniform(&config(), n) })
}

fn routers() -> Vec<&'static str> {
    router::REGISTRY.names().collect()
}

fn health(rig: &Rig, engine: u32) -> Health {
    rig.cluster.status(EngineId(engine)).health
}

#[test]
fn a_request_that_fails_alone_is_tried_on_another_worker_and_ends_after_three_failures_on_both() {
    for (fails_there, end) in [(false, FinishReason::Length), (true, FinishReason::Error)] {
        let mut rig = rig(2, "round_robin");
        rig.submit(1, 20, 4);
        rig.fail(0);
        assert_eq!((rig.at(1), rig.moves.as_slice()), (Some(1), [(1, Move::Failed)].as_slice()));
        if fails_there {
            rig.fail(1);
            assert_eq!(rig.at(1), Some(0));
            rig.fail(0);
        }
        rig.run_all();
        assert_eq!((rig.ends[&1], health(&rig, 0), health(&rig, 1)), (end, Health::Open, Health::Open));
    }
}

#[test]
fn a_token_forgives_failures_and_one_worker_alone_has_three() {
    let mut rig = rig(2, "round_robin");
    rig.submit(1, 20, 9);
    for at in [0, 1, 0, 1] {
        assert_eq!(rig.at(1), Some(at));
        rig.answer(at);
        rig.fail(at);
    }
    assert_eq!((rig.at(1), rig.tokens[&1].len()), (Some(0), 4));
    // The other engine goes for good.
    rig.workers[1].reset();
    rig.input(Input::Retire(EngineId(1)));
    rig.answer(0);
    // Three, and one for each failure there before.
    for failures in 1..=5 {
        assert!(!rig.ends.contains_key(&1));
        rig.fail(0);
        assert_eq!(rig.ends.contains_key(&1), failures == 5);
    }
    assert_eq!(rig.ends[&1], FinishReason::Error);
}

#[test]
fn a_request_that_a_worker_names_is_tried_on_another_and_no_other_is_blamed() {
    let mut rig = rig(2, "round_robin");
    [1, 2, 3, 4].into_iter().for_each(|id| rig.submit(id, 20, 4));
    rig.answer(0);
    assert_eq!(rig.groups(&[(1, 1), (2, 2), (3, 3), (4, 4)]), [[1, 3], [2, 4]]);
    rig.answer(0);
    for (n, at) in [0, 1, 0].into_iter().enumerate() {
        if n > 0 {
            rig.answer(at);
        }
        rig.engine(at, Event::Fail(RequestId(1)));
        assert!(!rig.ends.contains_key(&1), "the step in flight has not ended");
        rig.fail(at);
        assert_eq!(rig.ends.contains_key(&1), n == 2);
    }
    assert_eq!(rig.ends[&1], FinishReason::Error);
    rig.run_all();
    assert_eq!(rig.moves, [(1, Move::Failed); 2]);
    [2, 3, 4].into_iter().for_each(|id| rig.assert_whole(id, 4));
}

#[test]
fn an_engine_that_fails_four_steps_in_a_row_is_left_alone_until_a_probe_succeeds() {
    for router in routers() {
        let mut rig = rig(3, router);
        let mut id = 0;
        // Ten requests at a time, so that each router has work for all engines.
        let mut wave = |rig: &mut Rig, breaks: bool| {
            (0..10).for_each(|_| {
                id += 1;
                rig.submit(id, 20, 2);
            });
            let mut failed = 0;
            while let Some(engine) = rig.steps.keys().next().copied() {
                match engine {
                    0 if breaks => {
                        failed += 1;
                        rig.fail(0);
                    }
                    _ => rig.answer(engine),
                }
            }
            (id - 9..=id).for_each(|id| rig.assert_whole(id, 2));
            failed
        };
        assert_eq!((wave(&mut rig, true), health(&rig, 0)), (4, Health::Suspected), "{router}");
        assert_eq!(rig.doubts, [HealthEvent::FailedOn], "{router}");
        assert_eq!(wave(&mut rig, true), 0, "{router}: nobody is sent there");
        for pause_s in [1, 2, 4] {
            rig.now_ns += pause_s * S - S / 2;
            assert_eq!(wave(&mut rig, true), 0, "{router}");
            rig.now_ns += S / 2;
            assert_eq!((wave(&mut rig, true), health(&rig, 0)), (1, Health::Suspected), "{router}: one probe");
        }
        rig.now_ns += 8 * S;
        assert_eq!((wave(&mut rig, false), health(&rig, 0)), (0, Health::Open), "{router}: the probe succeeds");
    }
}

#[test]
fn the_worker_of_a_closed_engine_gets_work_again_if_all_others_are_gone() {
    let mut rig = rig(2, "round_robin");
    (1..=8).for_each(|id| rig.submit(id, 20, 3));
    (0..4).for_each(|_| rig.fail(0));
    assert_eq!((health(&rig, 0), rig.counts(0)), (Health::Suspected, (0, 0)));
    rig.lose(1);
    rig.submit(9, 20, 3);
    assert_eq!(rig.at(9), Some(1), "rather waits for a worker that is expected back");
    rig.input(Input::Retire(EngineId(1)));
    assert!((1..=9).all(|id| rig.at(id) == Some(0)));
    rig.run_all();
    (1..=9).for_each(|id| rig.assert_whole(id, 3));
}

#[test]
fn the_queue_of_another_engine_takes_the_requests_of_a_suspected_one_though_it_is_full() {
    let core = Config { max_queue: 2, max_queued_tokens: 60, ..config() };
    let mut rig = Rig::new(&ClusterConfig::uniform(&core, 2));
    (1..=6).for_each(|id| rig.submit(id, 20, 3));
    (7..=20).for_each(|id| rig.submit(id, 20, 3));
    assert!(!rig.refused.is_empty(), "the queues are full");
    (0..4).for_each(|_| rig.fail(0));
    assert_eq!((health(&rig, 0), rig.counts(0)), (Health::Suspected, (0, 0)));
    rig.run_all();
    assert_eq!(rig.ends.len() + rig.refused.len(), 20);
    assert!(rig.ends.values().all(|reason| *reason == FinishReason::Length), "{:?}", rig.ends);
}

#[test]
fn a_step_that_hangs_longer_than_the_requests_take_elsewhere_closes_the_engine() {
    for (hangs_ns, expected) in [(S / 2, Health::Open), (60 * S, Health::Suspected)] {
        let mut rig = rig(2, "round_robin");
        (1..=8).for_each(|id| rig.submit(id, 20, 3));
        (0..2).for_each(|at| rig.answer(at));
        rig.now_ns += hangs_ns;
        rig.fail(0);
        assert_eq!(health(&rig, 0), expected);
        rig.run_all();
        (1..=8).for_each(|id| rig.assert_whole(id, 3));
    }
}

#[test]
fn an_engine_whose_steps_are_far_slower_than_elsewhere_is_left_alone_until_they_are_not() {
    for router in routers() {
        let mut rig = rig(3, router);
        let mut id = 0;
        let mut wave = |rig: &mut Rig, slow_ns: u64| {
            (0..12).for_each(|_| {
                id += 1;
                rig.submit(id, 20, 9);
            });
            let mut steps = 0;
            while let Some(engine) = rig.steps.keys().next_back().copied() {
                if engine == 0 {
                    (steps, rig.now_ns) = (steps + 1, rig.now_ns + slow_ns);
                } else {
                    rig.now_ns += S / 1000;
                }
                rig.answer(engine);
            }
            (id - 11..=id).for_each(|id| rig.assert_whole(id, 9));
            steps
        };
        assert!(wave(&mut rig, S / 1000) >= 9 && health(&rig, 0) == Health::Open, "{router}");
        // One step that shows it, and one that was sent before the requests could move.
        assert!(wave(&mut rig, 4 * S) <= 2, "{router}");
        assert_ne!(health(&rig, 0), Health::Open, "{router}");
        assert_eq!(rig.doubts, [HealthEvent::Slow], "{router}");
        rig.now_ns += 2 * S;
        assert!(wave(&mut rig, S / 1000) >= 9 && health(&rig, 0) == Health::Open, "{router}: fast again");
    }
}

/// Runs requests on engines whose steps fail at these rates, of 100, with some requests that fail everywhere. Returns the steps that failed on each engine.
fn run_with(rates: &[u32], router: &str, seed: u64, poisons: &BTreeSet<u64>) -> Vec<u32> {
    let mut rig = rig(rates.len(), router);
    let mut random = seed.wrapping_mul(2).wrapping_add(1);
    let mut draw = move |n: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as u32 % n
    };
    let (mut failed, mut lone) = (vec![0; rates.len()], BTreeMap::<u64, BTreeSet<u32>>::new());
    for id in 1..=200 {
        rig.submit(id, 20 + draw(40), 1 + draw(8));
        for _ in 0..draw(6) {
            let engines: Vec<u32> = rig.steps.keys().copied().collect();
            let Some(engine) = engines.get(draw(engines.len().max(1) as u32) as usize).copied() else { break };
            step(&mut rig, engine, &mut failed, &mut lone, poisons, draw(100) < rates[engine as usize]);
        }
    }
    while let Some(engine) = rig.steps.keys().next().copied() {
        step(&mut rig, engine, &mut failed, &mut lone, poisons, draw(100) < rates[engine as usize]);
    }
    for id in 1..=200 {
        let expected = if poisons.contains(&id) { FinishReason::Error } else { FinishReason::Length };
        assert_eq!(rig.ends[&id], expected, "request {id} under {router}, rates {rates:?}, seed {seed}");
        assert!(!poisons.contains(&id) || lone[&id].len() >= 2, "request {id} failed on {:?} alone", lone[&id]);
    }
    failed
}

fn step(
    rig: &mut Rig,
    engine: u32,
    failed: &mut [u32],
    lone: &mut BTreeMap<u64, BTreeSet<u32>>,
    poisons: &BTreeSet<u64>,
    fails: bool,
) {
    rig.now_ns += S / 100;
    let ids: Vec<u64> = rig.steps[&engine].seqs.iter().map(|seq| seq.request.0).collect();
    if !fails && !ids.iter().any(|id| poisons.contains(id)) {
        return rig.answer(engine);
    }
    failed[engine as usize] += 1;
    if let [id] = ids[..] {
        lone.entry(id).or_default().insert(engine);
    }
    rig.fail(engine);
}

#[test]
fn fewer_broken_workers_than_all_end_no_request() {
    let cases: [&[u32]; 8] = [
        &[100, 0, 0],
        &[0, 100, 100],
        &[50, 0, 50],
        &[10, 10, 0],
        &[0, 1, 30],
        &[100, 100, 100, 0, 100],
        &[100, 0],
        &[3, 50, 100, 0],
    ];
    for seed in 0..4 {
        for (router, rates) in routers().into_iter().flat_map(|router| cases.map(|rates| (router, rates))) {
            let failed = run_with(rates, router, seed, &BTreeSet::new());
            for (failed, rate) in failed.into_iter().zip(rates) {
                assert!(*rate < 100 || failed <= 4 + 8, "{router}: {failed} steps on a worker that fails each");
            }
        }
    }
}

#[test]
fn requests_that_fail_everywhere_end_alone_after_two_workers() {
    for seed in 0..4 {
        for router in routers() {
            run_with(&[0, 0, 0], router, seed, &BTreeSet::from([3, 50, 51, 120]));
            run_with(&[0, 100, 0], router, seed, &BTreeSet::from([7, 90]));
            run_with(&[0, 10, 0, 0], router, seed, &BTreeSet::from([30, 31, 32, 150]));
        }
    }
}

#[test]
fn two_workers_that_were_calm_are_enough_and_others_are_spared() {
    let mut rig = rig(5, "round_robin");
    // More than 1,024 steps on each engine.
    for id in 1..=40 {
        rig.submit(id, 20, 150);
        if id % 5 == 0 {
            rig.run_all();
        }
    }
    for poison in 100..104 {
        rig.submit(poison, 20, 3);
        let mut failed = 0;
        while let Some(engine) = rig.steps.keys().next().copied() {
            failed += 1;
            rig.fail(engine);
        }
        assert_eq!((rig.ends[&poison], failed), (FinishReason::Error, 2), "the failures before are explained");
    }
}
