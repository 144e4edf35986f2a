//! The order in which requests get what is scarce: admission, prefill chunks, return from the host, shares of tenants.

use trunkline_core::config::PrefillFirst;
use trunkline_core::{Config, Event, Namespace, Preemption, Request, RequestId, TierConfig, Write};
use trunkline_driver::{Direction, Driver, prompt};

const BLOCK: u32 = 4;

fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 64,
        max_batch_tokens: 200,
        max_batch_size: 8,
        max_context: 200,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        ..Config::default()
    }
}

fn request(id: u64, tokens: u32, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), prompt(id as u32, tokens), max_tokens)
}

#[test]
fn a_tenant_pays_once_for_a_prompt_that_is_computed_twice() {
    // Output is free. Tenant 1 pays 40 tokens, and 40 more if the prompt computed again counted again; tenants 2 and 3 start level with
    // it, and tenant 2 pays 20.
    let limits = Config { policy: "vtc:output_weight=0".into(), max_batch_size: 2, ..config() };
    let mut driver = Driver::new(limits);
    let submit = |driver: &mut Driver, id, tenant, tokens, max_tokens| {
        driver.submit_request(Request { tenant, ..request(id, tokens, max_tokens) });
    };
    submit(&mut driver, 1, 1, 40, 30);
    driver.answer();
    driver.lose_worker();
    submit(&mut driver, 2, 2, 20, 4);
    submit(&mut driver, 5, 3, 5, 1);
    driver.join();
    assert_eq!(driver.running(), [(1, 0, 41, true), (2, 0, 20, true)], "the prompt is computed again");
    submit(&mut driver, 3, 2, 5, 1);
    submit(&mut driver, 4, 1, 5, 1);
    driver.answer_until(|driver| driver.has_ended(5));
    assert_eq!((driver.ids(), driver.stats().waiting), (vec![1, 4], 1), "tenant 1 was served less");
}

#[test]
fn swapped_requests_come_back_by_preemption_rank_not_by_arrival() {
    let limits = Config {
        device_blocks: 12,
        host_blocks: 30,
        preemption: Preemption::Swap,
        policy: "priority".into(),
        ..config()
    };
    let mut driver = Driver::without_worker(limits);
    for (id, priority, max_tokens) in [(1, 0, 34), (2, 5, 30), (3, 3, 30)] {
        driver.submit_request(Request { priority, ..request(id, 13, max_tokens) });
    }
    driver.join();
    driver.answer_until(|driver| !driver.copies.is_empty());
    driver.finish_copy(0);
    driver.answer_until(|driver| !driver.copies.is_empty());
    driver.finish_copy(0);
    assert_eq!((driver.ids(), driver.stats().swapped), (vec![1], 2), "2 went first, then 3");
    // When 1 has ended there is room for one of them.
    driver.answer_until(|driver| !driver.copies.is_empty() || driver.has_ended(1));
    let back: Vec<usize> =
        driver.moves().into_iter().filter(|(way, _)| *way == Direction::In).map(|(_, n)| n).collect();
    assert_eq!(back.first(), Some(&6), "the more urgent one; the other has four blocks");
    driver.run_to_end();
    assert_eq!(driver.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
}

#[test]
fn a_prefill_that_gets_no_block_holds_back_the_smaller_ones_behind_it() {
    let tier =
        TierConfig { name: "tier".into(), blocks: 50, write: Write::Through, eviction: "lru".into(), shared: false };
    let mut driver = Driver::new(Config { device_blocks: 24, max_batch_tokens: 16, tiers: vec![tier], ..config() });
    for id in 1..=3 {
        driver.submit_request(request(id, 5, 1));
        driver.run_to_end();
    }
    // What fails takes the whole device, so the three blocks are in the tier only.
    driver.submit_request(request(90, 95, 1));
    driver.event(Event::Fail(RequestId(90)));
    driver.run_to_end();
    driver.submit_request(request(4, 3, 40));
    driver.answer();
    for (id, rest) in [(11, 14), (12, 10), (13, 1)] {
        let tokens = [prompt(id - 10, 4), prompt(id, rest)].concat();
        driver.submit(u64::from(id), tokens, 1);
    }
    driver.answer();
    assert_eq!((driver.ids(), driver.stats().loading), (vec![4], 3));
    (0..3).for_each(|_| driver.finish_copy(0));
    driver.answer();
    // 16 tokens less one decode, less 14: for a block of the next there is no room, for the one token behind it there would be.
    assert_eq!(driver.running(), [(4, 5, 1, true), (11, 4, 14, true)]);
    driver.answer();
    assert_eq!(driver.ids(), [4, 12, 13]);
}

#[test]
fn nobody_waits_for_the_prefix_of_a_request_that_ends() {
    for end in [Event::Abort(RequestId(1)), Event::Withdraw(RequestId(1))] {
        let mut driver = Driver::new(Config { max_batch_tokens: 16, max_steps_in_flight: 2, ..config() });
        driver.submit(1, prompt(1, 60), 2);
        driver.submit(2, prompt(1, 60), 2);
        assert_eq!((driver.steps.len(), driver.stats().waiting), (2, 1), "2 waits for what 1 computes");
        driver.event(end);
        driver.answer();
        let last: Vec<u64> = driver.steps.back().unwrap().seqs.iter().map(|seq| seq.request.0).collect();
        assert_eq!(last, [2], "1 computes no more of it");
        driver.run_to_end();
    }
}

#[test]
fn many_requests_may_wait_for_one_prefix_and_those_behind_them_pass() {
    let mut driver = Driver::without_worker(config());
    driver.submit(1, prompt(1, 9), 4);
    (2..=12).for_each(|id| driver.submit(id, prompt(1, 9), 4));
    driver.submit(13, prompt(13, 9), 4);
    driver.join();
    assert_eq!((driver.ids(), driver.stats().waiting), (vec![1, 13], 11));
    driver.run_to_end();
    assert_eq!(driver.stats().merged_blocks, 0);
}

#[test]
fn a_victim_whose_blocks_others_share_is_cheap_to_swap() {
    // 3 has ten blocks of 2 and two of its own; the host has room for four.
    let limits = Config {
        device_blocks: 20,
        host_blocks: 4,
        preemption: Preemption::Cost,
        swap_block_ns: 1,
        recompute_token_ns: 1_000_000,
        ..config()
    };
    let mut driver = Driver::new(limits).timed();
    driver.submit(1, prompt(1, 15), 40);
    driver.submit(2, [prompt(2, 40), prompt(22, 3)].concat(), 20);
    driver.answer();
    driver.submit(3, [prompt(2, 40), prompt(33, 4)].concat(), 20);
    driver.answer_until(|driver| driver.stats().preemptions > 0);
    assert_eq!((driver.stats().swaps.swap_outs, driver.moves().len()), (1, 1), "{:?}", driver.stats());
    driver.run_to_end();
}

#[test]
fn requests_after_a_shutdown_are_refused() {
    let mut driver = Driver::new(config());
    driver.submit_request(request(1, 5, 30));
    driver.event(Event::Shutdown);
    driver.submit_request(request(2, 5, 1));
    assert_eq!(driver.refusals.len(), 1);
    driver.run_to_end();
    assert_eq!((driver.drained, driver.ends.len()), (1, 1));
}

#[test]
fn prompts_go_first_and_alone_without_chunked_prefill() {
    let limits = Config { prefill_first: PrefillFirst::Whole, max_batch_tokens: 40, max_batch_size: 4, ..config() };
    let mut driver = Driver::without_worker(limits);
    for (id, tokens) in [(1, 20), (2, 15), (3, 10)] {
        driver.submit_request(request(id, tokens, 6));
    }
    driver.join();
    assert_eq!(driver.running(), [(1, 0, 20, true), (2, 0, 15, true)], "5 tokens are left, and a prompt stays whole");
    driver.submit_request(request(4, 5, 6));
    driver.answer();
    assert_eq!(driver.running(), [(3, 0, 10, true), (4, 0, 5, true)], "decodes wait for prompts");
    driver.answer();
    assert_eq!(driver.running(), [(1, 20, 1, true), (2, 15, 1, true), (3, 10, 1, true), (4, 5, 1, true)]);
    // The batch is full, so decodes run on until one ends.
    driver.submit_request(request(5, 8, 6));
    for computed in 21..25 {
        driver.answer();
        assert_eq!((driver.running()[0], driver.running().len()), ((1, computed, 1, true), 4));
    }
    driver.answer();
    assert_eq!(
        driver.running(),
        [(5, 0, 8, true)],
        "1 and 2 have ended, and the prompt goes before the decodes of 3 and 4"
    );
}

#[test]
fn padded_prompts_count_as_the_longest_of_their_step() {
    let limits = Config { prefill_first: PrefillFirst::Padded, max_batch_tokens: 40, max_batch_size: 9, ..config() };
    let mut driver = Driver::without_worker(limits);
    for (id, tokens) in [(1, 20), (2, 5), (3, 5), (4, 13), (5, 13), (6, 14), (7, 40), (8, 1)] {
        driver.submit_request(request(id, tokens, 6));
    }
    driver.join();
    let mut steps = Vec::new();
    for _ in 0..5 {
        steps.push(driver.running().iter().map(|(id, _, tokens, _)| (*id, *tokens)).collect::<Vec<_>>());
        driver.answer();
    }
    assert_eq!(steps[0], [(1, 20), (2, 5)], "three times 20 are too many");
    assert_eq!(steps[1], [(3, 5), (4, 13), (5, 13)], "four times 14 are too many");
    assert_eq!((&steps[2][..], &steps[3][..]), (&[(6, 14)][..], &[(7, 40)][..]));
    assert_eq!(steps[4], [(8, 1)]);
}

#[test]
fn a_prompt_longer_than_a_step_runs_in_chunks_that_decodes_wait_for() {
    let limits = Config { prefill_first: PrefillFirst::Whole, align_chunks: false, max_batch_tokens: 30, ..config() };
    let mut driver = Driver::without_worker(limits);
    driver.submit_request(request(1, 10, 9));
    driver.submit_request(request(2, 70, 9));
    driver.join();
    let mut steps = Vec::new();
    for _ in 0..5 {
        steps.push(driver.running());
        driver.answer();
    }
    let chunks = [vec![(2, 0, 30, false)], vec![(2, 30, 30, false)], vec![(2, 60, 10, true)]];
    assert_eq!((&steps[0], &steps[1..4]), (&vec![(1, 0, 10, true)], &chunks[..]));
    assert_eq!(steps[4], [(1, 10, 1, true), (2, 70, 1, true)]);
}

#[test]
fn a_sorted_queue_has_one_of_several_new_prefixes_first_and_then_the_longest_found() {
    // 1 and 2 share twelve tokens, and so do 4 and 1.
    for (policy, first) in
        [("lpm_sorted:check_tokens=8,shared_tokens=12", [1, 3]), ("lpm_sorted:shared_tokens=0", [1, 2])]
    {
        let prefill_first = "chunks:await_prefix=0".parse().unwrap();
        let limits = Config { policy: policy.into(), max_batch_size: 2, prefill_first, ..config() };
        let mut driver = Driver::without_worker(limits);
        for (id, kind) in [(1, 1), (2, 1), (3, 3)] {
            driver.submit(id, [prompt(kind, 12), prompt(10 + id as u32, 4)].concat(), 1);
        }
        driver.join();
        assert_eq!(driver.ids(), first, "{policy}");
        driver.submit(5, prompt(5, 16), 1);
        driver.submit(4, [prompt(1, 12), prompt(14, 4)].concat(), 1);
        driver.answer();
        let rest: Vec<u64> = if first[1] == 3 { vec![2, 4] } else { vec![4, 3] };
        assert_eq!(driver.ids(), rest, "{policy}: 4 arrived last and is cached, 5 is not");
        driver.run_to_end();
    }
}

#[test]
fn more_waiting_requests_than_are_sorted_stay_in_their_order() {
    let prefill_first = "chunks:await_prefix=0".parse().unwrap();
    let policy = "lpm_sorted:queue_max=3".into();
    let mut driver = Driver::new(Config { policy, max_batch_size: 1, prefill_first, ..config() });
    driver.submit(1, prompt(1, 12), 1);
    for (id, kind) in [(2, 2), (3, 3), (4, 4), (5, 1)] {
        driver.submit(id, [prompt(kind, 12), vec![7; 4]].concat(), 1);
    }
    driver.answer();
    assert_eq!(driver.ids(), [2], "5 has a prefix, but four wait");
    driver.answer();
    assert_eq!(driver.ids(), [5], "three wait");
    driver.run_to_end();
    assert_eq!(driver.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 5, 3, 4]);
}

/// Requests 1 and 2 leave two cached blocks each, the only ones other than those of request 3, which takes one of them when its answer
/// grows. Request 4, with the prompt of 1, waits in the full batch meanwhile. Returns the tokens that 4 finds.
fn found_behind(prompt_of_3: u32, steps_before: usize) -> u32 {
    let limits =
        Config { device_blocks: 10, max_batch_tokens: 16, max_batch_size: 1, eviction: "leaves".into(), ..config() };
    let mut driver = Driver::new(limits);
    // Every 32nd pass looks prompts up. Each of these requests, of less than a block, is admitted in a pass of its own.
    for (id, tokens) in (100..129).map(|id| (id, 3)).chain([(1, 9), (2, 9)]) {
        driver.submit_request(request(id, tokens, 1));
        driver.run_to_end();
    }
    assert_eq!(driver.stats().evicted_blocks, 0);
    driver.submit_request(request(3, prompt_of_3, 26 - prompt_of_3));
    (0..steps_before).for_each(|_| driver.answer());
    driver.submit(4, prompt(1, 9), 1);
    let evicted = driver.stats().evicted_blocks;
    driver.answer_until(|driver| driver.has_ended(3));
    assert!(driver.stats().evicted_blocks - evicted > 0);
    driver.run_to_end();
    driver.usages[&4].cached_tokens
}

#[test]
fn waiting_prompts_are_looked_up_in_a_full_batch_only_while_a_prompt_runs() {
    assert_eq!(
        found_behind(8, 1),
        0,
        "decodes alone: the prompt of 1 was looked up before that of 2, and leaves first"
    );
    assert_eq!(found_behind(20, 0), 8, "the second chunk of 3 has it looked up again");
}
