//! Preemption victims under pressure. In debug builds the core compares each victim with a search over all running sequences.

use trunkline_core::{Config, Namespace, Preempted, Preemption, PreemptionCause, Request, RequestId, Token, policy};
use trunkline_driver::Driver;

fn text(family: u64, n: u32) -> Vec<Token> {
    (0..n).map(|at| family as u32 * 10_000 + at).collect()
}

fn submit(rig: &mut Driver, id: u64, priority: i32, prompt: Vec<Token>, max_tokens: u32) {
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
    request.priority = priority;
    request.tenant = id % 3;
    rig.submit_request(request);
}

/// Under strict priorities, the preempted one is among the least urgent that run, however little it has done since it came back.
#[test]
fn a_sequence_that_came_back_is_not_spared_at_the_expense_of_a_more_urgent_one() {
    let mut again = 0;
    for (device_blocks, max_batch_tokens) in [(40, 12), (48, 8), (60, 16), (64, 9)] {
        let config = Config {
            block_size: 4,
            device_blocks,
            max_batch_tokens,
            max_batch_size: 8,
            align_chunks: false,
            launch_watermark: 0.0,
            preemption: Preemption::Recompute,
            policy: "priority:ageing_ms=0".into(),
            ..Config::default()
        };
        again += run_with_strict_priorities(Driver::new(config));
    }
    assert!(again > 0, "no request was preempted again before its next token");
}

/// Runs requests of four priorities, the less urgent the earlier. Returns the number of requests preempted twice between two tokens.
fn run_with_strict_priorities(mut rig: Driver) -> u32 {
    const N: u64 = 24;
    let priority = |id: u64| 3 - (id / 6) as i32;
    let mut said_before = [None; N as usize];
    let mut again = 0;
    for round in 0.. {
        if round % 3 == 0 && round / 3 < N {
            let id = round / 3;
            submit(&mut rig, id, priority(id), text(id, 30 + id as u32 * 7 % 60), 40);
        } else if rig.live.is_empty() {
            return again;
        }
        let known = (0..N).filter(|id| rig.requests.contains_key(&RequestId(*id)));
        let running: Vec<u64> =
            known.filter(|id| !rig.has_ended(*id) && !rig.core.is_waiting(RequestId(*id))).collect();
        rig.answer();
        let is_victim = |id: &u64| rig.core.is_waiting(RequestId(*id));
        let least = running.iter().filter(|id| !rig.has_ended(**id) && !is_victim(id)).map(|id| priority(*id)).max();
        for id in running.iter().copied().filter(is_victim) {
            assert!(least.is_none_or(|least| priority(id) >= least), "{id} went instead of one of priority {least:?}");
            let said = Some(rig.said(id).len());
            again += u32::from(said_before[id as usize] == said);
            said_before[id as usize] = said;
        }
    }
    unreachable!("rounds do not end")
}

/// Random load on a pool far too small, with shared prefixes, swaps and every policy. The core compares each victim.
#[test]
fn every_victim_is_the_one_that_a_search_over_all_finds() {
    let mut seed = 7u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let mut preemptions = 0;
    for round in 0..6 {
        for name in policy::REGISTRY.names() {
            let config = Config {
                block_size: 4,
                device_blocks: 40,
                host_blocks: [0, 9, 200][round % 3],
                max_batch_tokens: 64,
                max_batch_size: 16,
                launch_watermark: 0.0,
                swap_in_watermark: 0.0,
                policy: name.into(),
                ..Config::default()
            };
            let mut rig = Driver::new(config);
            for id in 0..40 {
                let family = draw(5);
                let mut prompt = text(family, 12 * (family as u32 % 3));
                prompt.extend(text(100 + id, 1 + draw(60) as u32));
                submit(&mut rig, id, draw(5) as i32 - 2, prompt, 1 + draw(50) as u32);
                for _ in 0..draw(4) {
                    if !rig.steps.is_empty() {
                        rig.answer();
                    }
                }
                if draw(12) == 0 {
                    rig.abort(draw(id + 1));
                }
            }
            rig.run_to_end();
            rig.assert_empty();
            preemptions += rig.stats().preemptions;
        }
    }
    assert!(preemptions > 300, "{preemptions} preemptions");
}

/// Some requests ask what one before asked, and all say the same, so that blocks merge, also with those that several others read. Steps of a
/// pipeline run some of the requests alone: the others merge later.
#[test]
fn every_victim_is_the_right_one_also_among_requests_whose_blocks_merge() {
    let mut seed = 11u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let (mut preemptions, mut merged) = (0, 0);
    for round in 0..60 {
        let config = Config {
            block_size: 3,
            device_blocks: 20,
            host_blocks: [0, 9][round % 2],
            max_batch_tokens: 24,
            max_batch_size: 12,
            max_steps_in_flight: 1 + draw(3) as u32,
            pipeline_stages: 1 + draw(3) as u32,
            launch_watermark: 0.0,
            swap_in_watermark: 0.0,
            preemption: Preemption::Cost,
            ..Config::default()
        };
        let mut rig = Driver::new(config).saying(|_, n| 7_000 + n);
        for id in 0..16 {
            let family = draw(3);
            submit(&mut rig, id, 0, text(family, 10 + 4 * family as u32), 4 + draw(24) as u32);
            for _ in 0..draw(5) {
                if !rig.steps.is_empty() {
                    rig.answer();
                }
            }
        }
        rig.run_to_end();
        rig.assert_empty();
        preemptions += rig.stats().preemptions;
        merged += rig.stats().merged_blocks;
    }
    assert!(preemptions > 300 && merged > 300, "{preemptions} preemptions, {merged} blocks merged");
}

/// Ends copies, and steps while none is in flight, until a condition holds.
fn run_until(rig: &mut Driver, is_so: impl Fn(&Driver) -> bool) {
    while !is_so(rig) {
        if rig.copies.is_empty() { rig.answer() } else { rig.finish_copy(0) }
    }
}

#[test]
fn the_last_of_the_swapped_requests_gives_up_its_blocks_for_one_that_runs_alone() {
    let config = Config {
        block_size: 4,
        device_blocks: 18,
        host_blocks: 40,
        preemption: Preemption::Swap,
        launch_watermark: 0.0,
        // Nobody comes back while another runs.
        swap_in_watermark: 100.0,
        ..Config::default()
    };
    let mut rig = Driver::new(config);
    let (one, other) = (text(1, 17), text(2, 17));
    submit(&mut rig, 1, 0, text(3, 9), 60);
    submit(&mut rig, 2, 0, one.clone(), 8);
    submit(&mut rig, 3, 0, other.clone(), 8);
    rig.answer_until(|rig| rig.stats().published_blocks >= 10);
    submit(&mut rig, 4, 0, [one, text(4, 4)].concat(), 40);
    submit(&mut rig, 5, 0, [other, text(5, 4)].concat(), 40);
    // Requests 4 and 5 leave for the host, and keep the four blocks each that they share with requests 2 and 3.
    run_until(&mut rig, |rig| rig.has_ended(2) && rig.has_ended(3));
    assert_eq!((rig.stats().swapped, rig.stats().swaps.swap_outs, rig.ids()), (2, 2, vec![1]));
    assert!(!rig.core.is_waiting(RequestId(4)) && !rig.core.is_waiting(RequestId(5)));
    // Request 1 outgrows the ten blocks that are left.
    run_until(&mut rig, |rig| rig.stats().swapped < 2);
    assert_eq!(rig.ids(), [1]);
    assert!(
        rig.core.is_waiting(RequestId(5)) && !rig.core.is_waiting(RequestId(4)),
        "the last to arrive is recomputed"
    );
    rig.run_to_end();
    rig.assert_empty();
    assert_eq!(rig.stats().swaps.swap_ins, 1, "request 4 comes back from the host");
}

#[test]
fn a_request_that_shared_its_blocks_with_a_victim_is_cheaper_to_preempt_next() {
    let config = Config {
        block_size: 4,
        device_blocks: 18,
        launch_watermark: 0.0,
        preemption: Preemption::Cost,
        recompute_token_ns: 3 << 20,
        ..Config::default()
    };
    let mut rig = Driver::without_worker(config).timed();
    for id in 1..=3 {
        submit(&mut rig, id, 0, text(id, 13), 20);
    }
    submit(&mut rig, 4, 0, text(4, 13), 20);
    submit(&mut rig, 5, 0, [text(4, 12), text(5, 6)].concat(), 20);
    rig.join();
    rig.answer_until(|rig| rig.stats().preemptions > 0);
    // All need a block at once. A block freed costs about two tokens, for half of the blocks will be found again. Request 4 has one block of its
    // own and three with 5: four tokens for one block, and two for each of four once 5 is gone. Of equals the last to arrive goes.
    let waiting = [1, 2, 3, 4, 5].map(|id| rig.core.is_waiting(RequestId(id)));
    assert_eq!((waiting, rig.stats().preemptions), ([false, false, false, true, true], 2));
    rig.run_to_end();
    rig.assert_empty();
}

/// Two requests whose decodes together need more blocks than there are.
fn run_short_of_blocks(asks: bool, preemption: Preemption, host_blocks: u32) -> (u64, Vec<Preempted>) {
    let config =
        Config { block_size: 2, device_blocks: 8, host_blocks, launch_watermark: 0.0, preemption, ..Config::default() };
    let mut rig = Driver::new(config);
    if asks {
        rig.core.note_preempted();
    }
    submit(&mut rig, 1, 0, text(1, 5), 8);
    submit(&mut rig, 2, 0, text(2, 5), 8);
    let mut noted = Vec::new();
    while !rig.live.is_empty() {
        rig.answer();
        while !rig.copies.is_empty() {
            rig.finish_copy(0);
        }
        noted.extend(rig.core.take_preempted());
    }
    (rig.core.digest(), noted)
}

#[test]
fn preemptions_have_a_cause_for_those_who_ask_and_decisions_are_the_same() {
    let went =
        |swapped| Preempted { request: RequestId(2), cause: PreemptionCause::Block, by: Some(RequestId(1)), swapped };
    for (preemption, host_blocks, swapped) in [(Preemption::Recompute, 0, false), (Preemption::Swap, 8, true)] {
        let (digest, noted) = run_short_of_blocks(true, preemption, host_blocks);
        assert_eq!(noted.first(), Some(&went(swapped)), "{noted:?}");
        assert_eq!(run_short_of_blocks(false, preemption, host_blocks), (digest, Vec::new()));
    }
}
