//! Prompts before decodes, in chunks, with room for output: the decisions of `prefill_first: chunks`, and `preemption: retract`.

use trunkline_core::{Config, Event, Namespace, Preemption, Request, RequestId, TierConfig, Token, Write};
use trunkline_driver::Driver;

const STOP: Token = 7;

/// A core that admits by `mode`, and starts over whatever is preempted.
fn config(mode: &str) -> Config {
    Config {
        block_size: 1,
        device_blocks: 100,
        max_batch_tokens: 40,
        max_batch_size: 8,
        max_context: 200,
        launch_watermark: 0.0,
        align_chunks: false,
        preemption: Preemption::Retract,
        prefill_first: mode.parse().unwrap(),
        ..Config::default()
    }
}

/// `n` tokens, the first `shared` of which begin every prompt.
fn prompt(id: u64, shared: u32, n: u32) -> Vec<Token> {
    (0..shared).chain((shared..n).map(|at| id as u32 * 1000 + at)).map(|token| token + 100).collect()
}

/// Submits requests (id, tokens, tokens to generate) to a core whose worker joins then.
fn joined(config: Config, requests: &[(u64, u32, u32)]) -> Driver {
    let mut driver = Driver::without_worker(config);
    for (id, tokens, max_tokens) in requests {
        driver.submit(*id, prompt(*id, 0, *tokens), *max_tokens);
    }
    driver.join();
    driver
}

#[test]
fn steps_are_full_of_prompts_and_decodes_wait_for_them() {
    let mut driver = joined(config("chunks"), &[(1, 30, 4), (2, 25, 4), (3, 5, 4)]);
    assert_eq!(driver.running(), [(1, 0, 30, true), (2, 0, 10, false)], "the second prompt is split");
    driver.answer();
    assert_eq!(driver.running(), [(2, 10, 15, true), (3, 0, 5, true)], "its rest goes first, and 1 waits");
    driver.answer();
    assert_eq!(driver.running(), [(1, 30, 1, true), (2, 25, 1, true), (3, 5, 1, true)]);
    let whole = joined(config("true"), &[(1, 30, 4), (2, 25, 4), (3, 5, 4)]);
    assert_eq!(whole.running(), [(1, 0, 30, true)], "2 does not fit whole, and 3 does not pass");
}

#[test]
fn a_shared_prefix_is_awaited_or_computed_twice() {
    for (mode, first) in
        [("chunks", vec![(1, 0, 15, true)]), ("chunks:await_prefix=0", vec![(1, 0, 15, true), (2, 0, 15, true)])]
    {
        let mut driver = Driver::without_worker(config(mode));
        for id in [1, 2] {
            driver.submit(id, prompt(id, 10, 15), 2);
        }
        driver.join();
        assert_eq!(driver.running(), first, "{mode}");
        driver.run_to_end();
        assert!(driver.all_blocks_usable());
    }
}

#[test]
fn an_admission_leaves_room_for_the_output_of_those_that_run() {
    // Of 100 tokens request 1 has 20, and may generate 40.
    let admitted = |mode: &str, output: u32| {
        let mut driver = joined(config(mode), &[(1, 20, 40)]);
        driver.answer();
        driver.submit(2, prompt(2, 0, 20), output);
        driver.answer();
        driver.ids() == [2]
    };
    let most = |mode: &str| (1..100).take_while(|output| admitted(mode, *output)).last();
    assert_eq!(most("chunks"), Some(81), "without a reserve, whatever fits the device alone");
    // The first step of decodes took a token: 20 + output + 1 < 79 - 38, or half of the 38 tokens left.
    assert_eq!(most("chunks:reserve_permille=1000,least_permille=1000"), Some(19));
    assert_eq!(most("chunks:reserve_permille=500,least_permille=500"), Some(38));
}

#[test]
fn the_share_falls_with_each_step_of_decodes_and_starts_again_when_idle() {
    // Alone with 60 tokens to generate; the second request fits once little of them counts.
    let steps_until_admitted = |mode: &str| {
        let mut driver = joined(config(mode), &[(1, 10, 60)]);
        driver.answer();
        driver.submit(2, prompt(2, 0, 5), 30);
        let mut steps = 0;
        while driver.ids() != [2] {
            driver.answer();
            steps += 1;
        }
        steps
    };
    assert_eq!(steps_until_admitted("chunks"), 1);
    assert_eq!(steps_until_admitted("chunks:reserve_permille=1000,least_permille=1000"), 59, "1 has ended");
    // A request that found no room is not tried again before the batch is smaller, however small the share.
    assert_eq!(steps_until_admitted("chunks:reserve_permille=1000,decay_steps=100"), 59);
    let mode = "chunks:reserve_permille=1000,decay_steps=10";
    let mut driver = joined(config(mode), &[(1, 10, 60)]);
    (0..12).for_each(|_| driver.answer());
    driver.submit(2, prompt(2, 0, 5), 60);
    driver.answer();
    assert_eq!(driver.ids(), [2], "nothing is left of the share");
    driver.run_to_end();
    driver.submit(3, prompt(3, 0, 10), 60);
    driver.answer();
    driver.submit(4, prompt(4, 0, 5), 60);
    driver.answer();
    assert_eq!(driver.ids(), [3], "the share is whole again");
}

#[test]
fn blocks_of_a_request_that_has_ended_count_while_a_step_in_flight_uses_them() {
    let limits = Config { max_steps_in_flight: 2, ..config("chunks:reserve_permille=1000,least_permille=1000") };
    let mut driver = Driver::new(limits).dictated();
    let root = Namespace::default().root();
    driver.submit_request(Request::new(RequestId(1), root, prompt(1, 0, 10), 40));
    let stop_token_ids = vec![STOP];
    driver.submit_request(Request { stop_token_ids, ..Request::new(RequestId(2), root, prompt(2, 0, 20), 20) });
    // Prompts one by one, then decodes.
    while driver.ids() != [1, 2] {
        driver.answer_with(1);
    }
    driver.submit(3, prompt(3, 0, 20), 20);
    driver.answer_with(1);
    driver.answer_with(1);
    assert_eq!(driver.ids(), [1, 2], "no room after 1 and 2");
    driver.answer_with(STOP);
    assert_eq!(driver.ids(), [1, 2], "sent before the end of 2 was known");
    driver.answer_with(1);
    assert_eq!(driver.ids(), [3]);
}

#[test]
fn the_request_with_the_least_output_is_retracted_and_waits_behind_all_others() {
    let limits = Config { device_blocks: 60, max_batch_size: 3, ..config("chunks") };
    let mut driver = joined(limits, &[(1, 20, 30), (2, 20, 30)]);
    (0..4).for_each(|_| driver.answer());
    driver.submit(3, prompt(3, 0, 10), 30);
    driver.submit(4, prompt(4, 0, 10), 30);
    driver.answer();
    assert_eq!(driver.ids(), [3]);
    driver.answer_until(|driver| driver.stats().preemptions > 0);
    assert_eq!(driver.ids(), [1, 2], "3 has the least output");
    driver.answer_until(|driver| driver.ids().len() == 1 && driver.ids()[0] > 2);
    assert_eq!(driver.ids(), [4], "3 arrived before 4, but waits behind it");
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3, 4]);
}

#[test]
fn of_requests_with_equal_output_the_one_with_the_longest_prompt_is_retracted() {
    for (long, short) in [(1, 2), (2, 1)] {
        let tokens = |id| if id == long { 24 } else { 12 };
        let limits = Config { device_blocks: 60, ..config("chunks") };
        let mut driver = joined(limits, &[(1, tokens(1), 30), (2, tokens(2), 30)]);
        driver.answer_until(|driver| driver.stats().preemptions > 0);
        assert_eq!(driver.ids(), [short], "the order of arrival does not matter");
        driver.run_to_end();
        driver.assert_all_said([1, 2]);
    }
}

/// Returns the sequences of the step made last: (request, computed, tokens).
fn made_last(driver: &Driver) -> Vec<(u64, u32, u32)> {
    let step = driver.steps.back().expect("a step is in flight");
    step.seqs.iter().map(|seq| (seq.request.0, seq.computed, seq.n_tokens)).collect()
}

#[test]
fn a_chunk_is_found_from_the_next_step_on_while_a_step_in_flight_computes_it() {
    for (mode, two) in [("chunks:await_prefix=0", (2, 40, 25)), ("chunks:await_prefix=0,find_chunks=1", (2, 80, 12))] {
        let limits = Config { device_blocks: 400, max_steps_in_flight: 2, ..config(mode) };
        let mut driver = Driver::with_content(limits, 1);
        driver.submit(1, prompt(1, 90, 95), 4);
        driver.submit(2, prompt(2, 90, 92), 4);
        driver.join();
        assert_eq!((driver.steps.len(), made_last(&driver)), (2, vec![(1, 40, 40)]), "{mode}");
        driver.answer();
        assert_eq!(made_last(&driver), [(1, 80, 15), two], "{mode}: the second chunk is in flight");
        driver.run_to_end();
        assert_eq!(driver.stats().tokens.cached_tokens, u64::from(two.1), "{mode}");
        driver.assert_all_said([1, 2]);
        driver.assert_empty();
    }
}

#[test]
fn a_chunk_that_another_prompt_has_computed_meanwhile_is_merged_and_found() {
    let mode = "chunks:await_prefix=0,find_chunks=1";
    let mut driver = Driver::with_content(Config { device_blocks: 400, max_steps_in_flight: 2, ..config(mode) }, 1);
    driver.submit(1, prompt(1, 30, 30), 4);
    driver.submit(2, prompt(2, 30, 70), 4);
    driver.submit(3, [prompt(2, 30, 50), prompt(3, 0, 5)].concat(), 4);
    driver.join();
    assert_eq!(driver.running(), [(1, 0, 30, true), (2, 0, 10, false)]);
    assert_eq!(made_last(&driver), [(2, 10, 40)]);
    driver.answer();
    // Tokens 10 to 30 are published by 1, and computed again by 2 in the step in flight.
    assert_eq!(made_last(&driver), [(2, 50, 20), (3, 50, 5)]);
    assert_eq!(driver.stats().merged_blocks, 30);
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
    driver.assert_empty();
}

#[test]
fn prompts_of_a_step_evict_nothing_that_another_one_of_the_step_found() {
    // 2 needs 40 blocks: 19 of 6, and the next ones in the order of use, of 1.
    for (mode, third) in [("chunks", (3, 9, 26)), ("chunks:take_together=1", (3, 30, 5))] {
        let limits = Config { eviction: "lru".into(), max_batch_tokens: 90, ..config(mode) };
        let mut driver = joined(limits, &[]);
        for (id, tokens) in [(6, 30), (1, 30), (5, 50)] {
            driver.submit(id, prompt(id, 0, tokens), 1);
            driver.run_to_end();
        }
        driver.submit(4, prompt(4, 0, 1), 3);
        assert_eq!(driver.running(), [(4, 0, 1, true)], "a step for the others to wait for");
        driver.submit(2, prompt(2, 0, 40), 1);
        driver.submit(3, [prompt(1, 0, 30), prompt(3, 0, 5)].concat(), 1);
        driver.answer();
        let tokens = driver.running().iter().map(|part| (part.0, part.1, part.2)).collect::<Vec<_>>();
        assert_eq!(tokens, [(2, 0, 40), third], "{mode}");
        driver.run_to_end();
        driver.assert_all_said([1, 2, 3, 4, 5, 6]);
        driver.assert_empty();
    }
}

#[test]
fn prompts_that_take_blocks_together_take_those_of_their_chunks_alone() {
    let mut driver = joined(config("chunks:take_together=1"), &[(1, 30, 1), (2, 60, 1)]);
    assert_eq!(driver.running(), [(1, 0, 30, true), (2, 0, 10, false)]);
    assert_eq!(driver.stats().free_blocks, 60, "the other 50 are promised");
    driver.submit(3, prompt(3, 0, 30), 1);
    driver.answer();
    assert_eq!(driver.running(), [(2, 10, 40, false)]);
    driver.answer();
    assert_eq!(driver.running(), [(2, 50, 10, true), (3, 0, 30, true)]);
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
    driver.assert_empty();
}

#[test]
fn a_worker_that_comes_back_starts_over_if_chunks_of_its_lost_steps_were_found() {
    for (mode, restarted) in [("chunks:await_prefix=0", 0), ("chunks:await_prefix=0,find_chunks=1", 2)] {
        let mut driver = Driver::with_content(Config { device_blocks: 400, max_steps_in_flight: 2, ..config(mode) }, 1);
        driver.submit(1, prompt(1, 90, 95), 4);
        driver.submit(2, prompt(2, 90, 92), 4);
        driver.join();
        driver.answer();
        driver.event(Event::WorkerResumed);
        if driver.steps.is_empty() {
            driver.join();
        }
        assert_eq!((driver.stats().requests.restarted, driver.stats().preemptions), (restarted, 0), "{mode}");
        driver.run_to_end();
        driver.assert_all_said([1, 2]);
        driver.assert_empty();
    }
}

#[test]
fn a_block_that_a_step_in_flight_computes_is_not_copied_to_a_tier() {
    let tier =
        TierConfig { name: "tier".into(), blocks: 200, write: Write::Through, eviction: "lru".into(), shared: false };
    let mode = config("chunks:await_prefix=0,find_chunks=1");
    let limits = Config { device_blocks: 400, max_steps_in_flight: 3, tiers: vec![tier], ..mode };
    let mut driver = Driver::with_content(limits, 1);
    driver.join();
    driver.submit(1, prompt(1, 30, 30), 1);
    driver.submit(2, prompt(2, 30, 95), 1);
    assert_eq!((driver.steps.len(), made_last(&driver)), (3, vec![(2, 40, 40)]));
    // The blocks of 1 are merged with those of the first chunk of 2, whose step runs next.
    driver.answer();
    assert!(driver.has_ended(1) && driver.copies.is_empty());
    assert_eq!(driver.stats().merged_blocks, 30);
    driver.run_to_end();
    driver.assert_all_said([1, 2]);
    driver.assert_empty();
}

#[test]
fn the_output_of_a_retracted_request_leaves_the_cache_and_the_prompt_stays() {
    let limits = Config { eviction: "leaves".into(), ..config("chunks") };
    let mut driver = joined(limits, &[(1, 10, 45), (2, 10, 80)]);
    driver.answer_until(|driver| driver.stats().preemptions > 0);
    let (output, stats) = (driver.said(2).to_vec(), driver.stats());
    assert_eq!((output.len(), stats.evicted_blocks, stats.idle_blocks), (41, 40, 10), "a leaf leaves as a whole");
    driver.answer_until(|driver| driver.ids() == [2]);
    assert_eq!(driver.running(), [(2, 10, 40, false)], "of 51 tokens those of the prompt are found");
    driver.run_to_end();
    driver.assert_all_said([1, 2]);
    driver.submit(3, [prompt(2, 0, 10), output].concat(), 1);
    assert_eq!(driver.running(), [(3, 50, 1, true)], "the output of a request that has ended is found");
}

#[test]
fn a_retraction_makes_room_for_20_tokens_of_each_remaining_decode() {
    // With 61 blocks request 1 has just taken the last one.
    for (device_blocks, evicted) in [(60, 20), (61, 19)] {
        let mut driver = joined(Config { device_blocks, ..config("chunks") }, &[(1, 20, 30), (2, 20, 30)]);
        driver.answer_until(|driver| driver.stats().preemptions > 0);
        assert_eq!((driver.ids(), driver.stats().evicted_blocks), (vec![1], evicted), "{device_blocks} blocks");
        driver.run_to_end();
        driver.assert_all_said([1, 2]);
    }
}

#[test]
fn nothing_is_retracted_while_a_step_in_flight_samples_a_last_token() {
    for (answer, preemptions) in [(11, 0), (12, 1)] {
        let at_once = Config { preemption: Preemption::RetractAtOnce, max_steps_in_flight: 2, ..config("chunks") };
        let mut driver = joined(Config { device_blocks: 60, ..at_once }, &[(1, 20, answer), (2, 20, 20)]);
        driver.answer_until(|driver| driver.said(1).len() == 10);
        assert_eq!(driver.steps.len(), preemptions + 1, "the 11th token of 1 is being sampled, and no block is free");
        driver.run_to_end();
        assert_eq!(driver.stats().preemptions, preemptions as u64);
        driver.assert_all_said([1, 2]);
    }
}

#[test]
fn a_prompt_computed_with_output_is_a_leaf_of_its_own() {
    let limits = Config { device_blocks: 60, eviction: "leaves".into(), ..config("chunks") };
    let mut driver = joined(limits, &[(1, 20, 12), (2, 20, 13)]);
    driver.run_to_end();
    assert_eq!(driver.stats().preemptions, 1, "2 has computed 31 tokens again as a prompt, and then one more");
    // The leaves of 1 go first, then the last token of 2, then the other 11 of the output.
    driver.submit(3, prompt(3, 0, 30), 1);
    driver.run_to_end();
    driver.submit(4, prompt(2, 0, 21), 1);
    assert_eq!(driver.running(), [(4, 20, 1, true)]);
}
