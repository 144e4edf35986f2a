//! Several steps in flight: what is sent ahead, what waits, and what an early end costs.

use trunkline_core::config::PipelineBatches;
use trunkline_core::{
    Config, Event, FinishReason, Namespace, Preemption, Request, RequestId, ReuseConfig, StepResult, StepSeq,
    TierConfig, Token, WorkerFacts, Write,
};
use trunkline_driver::Driver;

const EOS: Token = 9;

fn config() -> Config {
    Config {
        block_size: 4,
        device_blocks: 32,
        max_batch_tokens: 16,
        max_batch_size: 4,
        max_context: 100,
        max_steps_in_flight: 2,
        ..Config::default()
    }
}

/// (request, computed, tokens, input from the step before) of each part of a step.
type Parts = Vec<(u64, u32, u32, bool)>;

/// Creates a core whose tokens are dictated answer by answer.
fn joined(config: Config) -> Driver {
    let mut bench = Driver::without_worker(config).dictated();
    bench.join();
    bench
}

fn submit(bench: &mut Driver, id: u64, prompt: Vec<Token>, max_tokens: u32) {
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
    request.stop_token_ids = vec![EOS];
    bench.submit_request(request);
    assert!(bench.refusals.is_empty());
}

fn parts(bench: &Driver) -> Vec<Parts> {
    let part = |seq: &StepSeq| (seq.request.0, seq.computed, seq.n_tokens, seq.input_from_last);
    bench.steps.iter().map(|step| step.seqs.iter().map(part).collect()).collect()
}

fn prompt(from: u32, n: u32) -> Vec<Token> {
    (from..from + n).collect()
}

#[test]
fn decodes_are_sent_ahead_of_their_input_and_not_past_their_last_token() {
    let mut bench = joined(config());
    submit(&mut bench, 1, prompt(100, 6), 3);
    assert_eq!(parts(&bench), [vec![(1, 0, 6, false)], vec![(1, 6, 1, true)]]);
    bench.answer_with(50);
    assert_eq!(parts(&bench), [vec![(1, 6, 1, true)], vec![(1, 7, 1, true)]]);
    bench.answer_with(51);
    assert_eq!(parts(&bench), [vec![(1, 7, 1, true)]], "the third token is the last, so nothing is run after it");
    bench.answer_with(52);
    assert_eq!(bench.tokens, [(1, 50), (1, 51), (1, 52)]);
    assert_eq!((bench.ends.as_slice(), bench.all_blocks_usable()), ([(1, FinishReason::Length)].as_slice(), true));
    assert_eq!(bench.core.stats().steps, 3, "no more steps than with one in flight");
}

#[test]
fn chunks_of_a_prefill_follow_one_another_without_waiting() {
    let mut bench = joined(config());
    submit(&mut bench, 1, prompt(100, 40), 2);
    assert_eq!(parts(&bench), [vec![(1, 0, 16, false)], vec![(1, 16, 16, false)]]);
    bench.answer_with(0);
    assert_eq!(parts(&bench), [vec![(1, 16, 16, false)], vec![(1, 32, 8, false)]]);
}

#[test]
fn an_end_is_reported_at_once_and_costs_one_row_of_each_step_in_flight() {
    let mut bench = joined(Config { max_steps_in_flight: 3, ..config() });
    submit(&mut bench, 1, prompt(100, 6), 20);
    assert_eq!(parts(&bench).len(), 3);
    bench.answer_with(EOS);
    assert_eq!(bench.ends, [(1, FinishReason::Stop)], "the client does not wait for the steps in flight");
    assert_eq!(parts(&bench), [vec![(1, 6, 1, true)], vec![(1, 7, 1, true)]]);
    assert!(!bench.all_blocks_usable(), "its blocks are written until the last of them ends");
    submit(&mut bench, 1, prompt(200, 6), 1);
    assert_eq!(parts(&bench)[2], [(1, 0, 6, false)], "the id is free again");
    bench.answer_with(60);
    bench.answer_with(61);
    assert_eq!(bench.tokens, [(1, EOS)], "tokens after the end are dropped");
    bench.answer_with(62);
    assert_eq!(bench.tokens, [(1, EOS), (1, 62)]);
    assert!(bench.all_blocks_usable());
}

#[test]
fn the_blocks_of_an_aborted_request_wait_for_every_step_that_runs_it_and_the_client_for_none() {
    let mut bench = joined(Config { max_batch_size: 1, ..config() });
    submit(&mut bench, 1, prompt(100, 6), 20);
    bench.event(Event::Abort(RequestId(1)));
    assert_eq!(bench.ends, [(1, FinishReason::Abort)]);
    submit(&mut bench, 1, prompt(200, 6), 1);
    bench.answer_with(50);
    assert!(!bench.all_blocks_usable() && bench.core.stats().waiting == 1, "it fills the batch until its steps end");
    bench.answer_with(51);
    assert_eq!(parts(&bench), [[(1, 0, 6, false)]], "the id is free for a request that runs now");
    bench.answer_with(52);
    assert_eq!(bench.tokens, [(1, 52)], "no token follows the end");
    assert!(bench.all_blocks_usable() && bench.steps.is_empty());
    assert_eq!(bench.ends, [(1, FinishReason::Abort), (1, FinishReason::Length)]);
}

#[test]
fn a_request_that_was_aborted_in_the_step_it_spoils_is_blamed_and_nobody_beside_it() {
    let mut bench = joined(Config { max_steps_in_flight: 1, ..config() });
    submit(&mut bench, 1, prompt(100, 6), 30);
    for guilty in 10..14 {
        bench.answer_with(50);
        submit(&mut bench, guilty, prompt(200 + guilty as u32, 6), 5);
        bench.answer_with(50);
        assert_eq!(bench.ids().len(), 2);
        bench.event(Event::Abort(RequestId(guilty)));
        bench.event(Event::Fail(RequestId(guilty)));
        bench.event(Event::WorkerLost);
        bench.event(Event::WorkerJoined);
        assert_eq!(bench.ends.last(), Some(&(guilty, FinishReason::Abort)));
    }
    assert!(!bench.has_ended(1));
}

#[test]
fn a_preemption_waits_until_no_step_is_in_flight() {
    // Two requests of three blocks each in a pool of five: the second cannot grow while the first runs.
    let mut bench = joined(Config { device_blocks: 5, launch_watermark: 0.0, ..config() });
    submit(&mut bench, 1, prompt(100, 8), 4);
    submit(&mut bench, 2, prompt(200, 8), 4);
    while bench.core.stats().preemptions == 0 {
        assert!(bench.ends.is_empty(), "blocks run out before the first request ends");
        bench.answer_with(50);
    }
    assert_eq!(parts(&bench), [vec![(1, 10, 1, false)]], "nothing was in flight when the second one left");
    while !bench.steps.is_empty() {
        bench.answer_with(50);
    }
    assert_eq!(bench.ends, [(1, FinishReason::Length), (2, FinishReason::Length)]);
    assert_eq!(bench.tokens.len(), 8);
}

/// A core with five blocks, and two requests of three blocks each. Runs until the second cannot grow while the first runs, and is
/// preempted.
fn crowded(preemption: Preemption) -> Driver {
    let mut bench = joined(Config { device_blocks: 5, launch_watermark: 0.0, preemption, ..config() });
    submit(&mut bench, 1, prompt(100, 8), 4);
    submit(&mut bench, 2, prompt(200, 8), 4);
    while bench.core.stats().preemptions == 0 {
        assert!(bench.ends.is_empty(), "blocks run out before the first request ends");
        bench.answer_with(50);
    }
    bench
}

#[test]
fn a_request_preempted_at_once_leaves_while_a_step_runs_it_and_keeps_the_token_sampled_there() {
    let mut bench = crowded(Preemption::RecomputeAtOnce);
    let in_flight = [vec![(1, 9, 1, true), (2, 0, 8, false)], vec![(1, 10, 1, true)]];
    assert_eq!(parts(&bench), in_flight, "the second step has a block of the request that the first still runs");
    assert_eq!(bench.core.preempted().collect::<Vec<_>>(), [RequestId(2)]);
    assert_eq!((bench.tokens.as_slice(), bench.core.stats().waiting), ([(1, 50), (1, 50)].as_slice(), 1));
    bench.answer_with(51);
    assert_eq!(bench.tokens[2..], [(1, 51), (2, 51)], "the token is right: its KV was there");
    assert!(bench.core.preempted().next().is_none() && bench.core.is_waiting(RequestId(2)));
    bench.answer_with(52);
    assert_eq!(bench.ends, [(1, FinishReason::Length)]);
    assert_eq!(parts(&bench)[0], [(2, 0, 9, false)], "nothing of its prompt was published when it left");
    (53..56).for_each(|token| bench.answer_with(token));
    assert_eq!(bench.said(2), [51, 53, 54, 55]);
    assert!(bench.all_blocks_usable());
}

#[test]
fn a_request_retracted_at_once_samples_the_token_of_the_step_in_flight_again() {
    let mut bench = crowded(Preemption::RetractAtOnce);
    assert_eq!(parts(&bench)[0], [(1, 9, 1, true), (2, 0, 8, false)]);
    bench.answer_with(51);
    assert_eq!(bench.tokens[2..], [(1, 51)], "the token for 2 is dropped");
    bench.answer_with(52);
    assert_eq!(parts(&bench)[0], [(2, 0, 8, false)]);
    (51..55).for_each(|token| bench.answer_with(token));
    assert_eq!(bench.said(2), [51, 52, 53, 54]);
    assert!(bench.all_blocks_usable());
}

/// A core with a request of 7 tokens whose first token ended it, while the step of the second one is in flight.
fn ended_early(preemption: Preemption) -> Driver {
    let mut bench = joined(Config { preemption, policy: "fcfs".into(), ..config() });
    submit(&mut bench, 1, prompt(100, 7), 10);
    bench.answer_with(EOS);
    assert!(bench.has_ended(1));
    assert_eq!(parts(&bench), [vec![(1, 7, 1, true)]]);
    bench
}

#[test]
fn a_request_that_ends_leaves_its_blocks_at_once_with_the_token_that_a_step_in_flight_computes() {
    for (preemption, in_flight, found) in [(Preemption::Retract, (30, 0), 4), (Preemption::RetractAtOnce, (30, 2), 8)] {
        let mut bench = ended_early(preemption);
        let stats = bench.stats();
        assert_eq!((stats.free_blocks, stats.idle_blocks), in_flight, "{preemption:?}");
        submit(&mut bench, 2, [prompt(100, 7), vec![EOS], prompt(200, 4)].concat(), 2);
        assert_eq!(parts(&bench)[1], [(2, found, 12 - found, false)], "{preemption:?}: found while the step runs");
        (50..53).for_each(|token| bench.answer_with(token));
        assert_eq!(bench.said(2), [51, 52]);
        assert!(bench.all_blocks_usable());
    }
}

#[test]
fn a_step_takes_all_blocks_of_a_request_that_ended_while_a_step_runs_it() {
    let limits = Config { preemption: Preemption::RetractAtOnce, policy: "fcfs".into(), ..config() };
    let mut bench = joined(Config { device_blocks: 4, max_context: 16, ..limits });
    submit(&mut bench, 1, prompt(100, 7), 9);
    bench.answer_with(EOS);
    submit(&mut bench, 2, prompt(200, 15), 1);
    assert_eq!(parts(&bench), [vec![(1, 7, 1, true)], vec![(2, 0, 15, false)]]);
    (50..52).for_each(|token| bench.answer_with(token));
    assert_eq!((bench.said(2), bench.stats().evicted_blocks), ([51].as_slice(), 2));
    assert!(bench.all_blocks_usable());
}

#[test]
fn a_worker_that_comes_back_starts_over_if_it_may_lack_the_last_token_of_a_request_that_ended() {
    for (preemption, resumes) in [(Preemption::Retract, true), (Preemption::RetractAtOnce, false)] {
        let mut bench = ended_early(preemption);
        bench.event(Event::WorkerResumed);
        assert_eq!(bench.stats().idle_blocks, u32::from(resumes), "{preemption:?}: the block of the prompt is kept");
        if !resumes {
            bench.join();
        }
        submit(&mut bench, 2, prompt(100, 12), 1);
        bench.answer_with(50);
        assert_eq!(bench.said(2), [50]);
        assert!(bench.all_blocks_usable());
    }
}

#[test]
fn chunks_of_a_request_that_was_given_up_are_found_as_far_as_they_were_computed() {
    for event in [Event::Abort as fn(RequestId) -> Event, Event::Stop, Event::Withdraw, Event::Fail] {
        for reserve_prompts in [true, false] {
            let limits = Config { preemption: Preemption::RetractAtOnce, policy: "fcfs".into(), ..config() };
            let mut bench = joined(Config { reserve_prompts, ..limits });
            submit(&mut bench, 1, prompt(100, 64), 4);
            assert_eq!(parts(&bench), [vec![(1, 0, 16, false)], vec![(1, 16, 16, false)]]);
            bench.event(event(RequestId(1)));
            bench.answer_with(0);
            bench.answer_with(0);
            assert!(bench.steps.is_empty());
            submit(&mut bench, 2, prompt(100, 64), 1);
            let found = parts(&bench)[0][0].1;
            assert!(found <= 32, "{found} tokens found, of 32 computed");
            while !bench.steps.is_empty() {
                bench.answer_with(50);
            }
            assert!(bench.has_ended(2) && bench.all_blocks_usable());
        }
    }
}

#[test]
fn a_preempted_request_ends_in_every_way_while_a_step_runs_it() {
    for event in [Event::Abort as fn(RequestId) -> Event, Event::Stop, Event::Withdraw, Event::Fail] {
        let mut bench = crowded(Preemption::RecomputeAtOnce);
        bench.event(event(RequestId(2)));
        bench.answer_with(51);
        assert!(bench.core.preempted().next().is_none());
        assert!(bench.has_ended(2) || bench.withdrawn.len() == 1, "{:?}", bench.ends);
        assert_eq!(bench.tokens[2..], [(1, 51)], "no token follows the end");
        submit(&mut bench, 3, prompt(300, 4), 1);
        while !bench.steps.is_empty() {
            bench.answer_with(52);
        }
        assert!(bench.has_ended(1) && bench.has_ended(3) && bench.all_blocks_usable());
    }
    for event in [Event::WorkerLost, Event::WorkerTaken, Event::WorkerResumed] {
        let mut bench = crowded(Preemption::RecomputeAtOnce);
        let is_lost = !matches!(event, Event::WorkerResumed);
        bench.event(event);
        if is_lost {
            assert!(bench.core.is_waiting(RequestId(2)));
            bench.join();
        }
        while !bench.steps.is_empty() {
            bench.answer_with(52);
        }
        assert_eq!((bench.said(1).len(), bench.said(2).len()), (4, 4));
        assert!(bench.all_blocks_usable());
    }
}

#[test]
fn no_copy_touches_a_block_released_at_once_before_the_step_in_flight_has_ended() {
    // The tier has the first two blocks of a third prompt, whose load would take the blocks of the preempted request.
    let tier =
        TierConfig { name: "tier".into(), blocks: 8, write: Write::Through, eviction: "lru".into(), shared: false };
    let config = Config { device_blocks: 8, launch_watermark: 0.0, tiers: vec![tier], ..config() };
    let mut bench = joined(Config { preemption: Preemption::RecomputeAtOnce, ..config });
    submit(&mut bench, 3, prompt(300, 9), 1);
    bench.answer_with(50);
    bench.finish_copy(0);
    bench.evict_idle();
    submit(&mut bench, 1, prompt(100, 16), 12);
    submit(&mut bench, 2, prompt(200, 12), 12);
    while bench.core.stats().preemptions == 0 {
        bench.answer_with(50);
    }
    submit(&mut bench, 4, prompt(300, 9), 1);
    bench.event(Event::Abort(RequestId(2)));
    assert!(bench.copies.is_empty(), "4 is next, and there is room, but the blocks of 2 are in a step");
    bench.answer_with(50);
    assert_eq!(bench.copies.len(), 1, "the step has ended");
    while !bench.steps.is_empty() || !bench.copies.is_empty() {
        if bench.copies.is_empty() { bench.answer_with(50) } else { bench.finish_copy(0) }
    }
    assert!(bench.has_ended(4) && bench.all_blocks_usable());
}

#[test]
fn a_duplicate_is_freed_when_no_step_reads_it_any_more() {
    // Both compute the same second block: the prompts differ in nothing that is shared when the second is admitted.
    let mut bench = joined(Config { max_batch_size: 2, ..config() });
    submit(&mut bench, 1, prompt(100, 3), 6);
    submit(&mut bench, 2, prompt(100, 3), 6);
    while bench.core.stats().merged_blocks == 0 {
        bench.answer_with(50);
    }
    let stats = bench.core.stats();
    let held = stats.private_blocks;
    assert!(!bench.steps.is_empty(), "a step sent before the merge reads the duplicate");
    bench.answer_with(50);
    bench.answer_with(50);
    assert!(bench.core.stats().private_blocks < held, "the duplicate is free");
    while !bench.steps.is_empty() {
        bench.answer_with(50);
    }
    assert!(bench.all_blocks_usable());
}

#[test]
fn the_stages_of_a_pipeline_run_equal_shares_of_the_decodes() {
    let mut bench = joined(Config { max_steps_in_flight: 2, pipeline_stages: 2, ..config() });
    (1..=4).for_each(|id| submit(&mut bench, id, prompt(100 * id as u32, 3), 20));
    // The first step has one prefill, the second the three others; then each takes two decodes.
    (0..6).for_each(|_| bench.answer_with(50));
    let requests: Vec<Vec<u64>> =
        parts(&bench).iter().map(|parts| parts.iter().map(|(request, ..)| *request).collect()).collect();
    assert_eq!(requests.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2], "{requests:?}");
    let mut all = requests.concat();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4], "no sequence is in two stages");
    assert!(parts(&bench).concat().iter().all(|(.., input_from_last)| !input_from_last));
}

#[test]
fn a_step_may_take_every_decode_that_waits() {
    let staged = |pipeline_batches| Config {
        max_steps_in_flight: 2,
        pipeline_stages: 2,
        worker: WorkerFacts { pipeline_batches, ..WorkerFacts::default() },
        max_batch_tokens: 20,
        ..config()
    };
    let lengths = |bench: &Driver| parts(bench).iter().map(Vec::len).collect::<Vec<_>>();
    for (mode, next, later) in [(PipelineBatches::Ready, 3, [1, 3]), (PipelineBatches::Apart, 2, [2, 2])] {
        let mut bench = joined(staged(mode));
        (1..=4).for_each(|id| submit(&mut bench, id, prompt(100 * id as u32, 3), 20));
        assert_eq!(lengths(&bench), [1, 1], "the first two to come");
        // The third step takes the decode and both that wait, or half of the four sequences that may run.
        bench.answer_with(50);
        assert_eq!(lengths(&bench), [1, next], "{mode:?}");
        (0..8).for_each(|_| bench.answer_with(50));
        let mut all = lengths(&bench);
        all.sort_unstable();
        assert_eq!(all, later, "{mode:?}: decodes stay where they are");
    }
}

#[test]
fn chunks_of_a_prompt_follow_one_another_unless_requests_are_apart() {
    for (mode, expected) in [
        (PipelineBatches::Even, vec![vec![(1, 0, 16, false)], vec![(1, 16, 16, false)]]),
        (PipelineBatches::Ready, vec![vec![(1, 0, 16, false)], vec![(1, 16, 16, false)]]),
        (PipelineBatches::Apart, vec![vec![(1, 0, 16, false)], vec![(2, 0, 16, false)]]),
    ] {
        let worker = WorkerFacts { pipeline_batches: mode, ..WorkerFacts::default() };
        let limits = Config { max_steps_in_flight: 2, pipeline_stages: 2, worker, ..config() };
        let mut bench = joined(limits);
        submit(&mut bench, 1, prompt(100, 40), 2);
        submit(&mut bench, 2, prompt(200, 40), 2);
        assert_eq!(parts(&bench), expected, "{mode:?}");
    }
}

#[test]
fn an_answer_out_of_order_is_not_believed_and_a_lost_worker_takes_all_steps_along() {
    let mut bench = joined(config());
    submit(&mut bench, 1, prompt(100, 6), 4);
    let id = bench.steps[1].id;
    bench.event(Event::StepFinished(StepResult { step: id, tokens: vec![50], ends: vec![1], ..StepResult::default() }));
    assert_eq!((bench.resets, bench.tokens.len()), (1, 0));
    bench.event(Event::WorkerJoined);
    assert_eq!(parts(&bench).len(), 2, "everything starts over");
    bench.answer_with(EOS);
    assert_eq!(bench.ends, [(1, FinishReason::Stop)]);
    bench.event(Event::WorkerLost);
    assert!(
        bench.all_blocks_usable(),
        "the step that ran the ended request is lost, and with it the last hold on its blocks"
    );
}

#[test]
fn one_step_in_flight_decides_as_before_there_were_several() {
    let mut bench = joined(Config { max_steps_in_flight: 1, ..config() });
    (1..=5).for_each(|id| submit(&mut bench, id, prompt(10 * id as u32, 9), 5));
    while !bench.steps.is_empty() {
        bench.answer_with(50);
    }
    // Recordings carry digests, so this number must not change between versions unnoticed.
    assert_eq!(bench.core.digest(), 15_709_468_960_314_608_246);
}

/// Steps in flight hold the sources of copies, so a request alone may lack a block though it fits the device.
#[test]
fn a_request_alone_waits_for_its_own_steps_instead_of_losing_them() {
    for preemption in [Preemption::RetractAtOnce, Preemption::RecomputeAtOnce] {
        let reuse = ReuseConfig { anywhere: 1, ..ReuseConfig::default() };
        let config = Config {
            block_size: 2,
            device_blocks: 7,
            preemption,
            max_steps_in_flight: 5,
            worker: WorkerFacts { reuse, ..WorkerFacts::default() },
            ..config()
        };
        let mut bench = joined(config);
        submit(&mut bench, 1, [prompt(200, 1), prompt(100, 5)].concat(), 1);
        bench.answer_with(50);
        // Five of six tokens are copied from the three blocks of request 1. With four of its own, nothing is left for the third decode.
        submit(&mut bench, 2, prompt(100, 6), 8);
        let in_flight = parts(&bench);
        assert_eq!(in_flight, [vec![(2, 5, 1, false)], vec![(2, 6, 1, true)], vec![(2, 7, 1, true)]], "{preemption:?}");
        for token in 0..8 {
            bench.answer_with(60 + token);
        }
        assert_eq!((bench.usages[&2].copied_tokens, bench.usages[&2].preemptions), (5, 0), "{preemption:?}");
        assert_eq!(bench.said(2), (60..68).collect::<Vec<_>>(), "{preemption:?}: every step counts");
        bench.assert_empty();
    }
}
