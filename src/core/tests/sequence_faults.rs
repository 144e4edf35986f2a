//! A sequence that the worker fails alongside others: its request ends alone, and nobody else loses anything.

use trunkline_core::{
    Config, Event, FailedSeq, FinishReason, Preemption, RequestId, SeqFault, StepResult, TierConfig, Token,
    WorkerFacts, Write,
};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;

fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 64,
        max_batch_tokens: 64,
        max_batch_size: 8,
        max_context: 200,
        max_steps_in_flight: 2,
        worker: WorkerFacts { in_step_hits: true, ..WorkerFacts::default() },
        ..Config::default()
    }
}

/// A prompt that shares nothing with those of other numbers.
fn prompt(number: u32, n: u32) -> Vec<Token> {
    (0..n).map(|at| (number * 100 + at) % 1000).collect()
}

fn driver(config: Config) -> Driver {
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    driver
}

/// Runs a prompt for a token, and returns the prompt tokens found in the cache.
fn found(driver: &mut Driver, id: u64, prompt: Vec<Token>) -> u32 {
    driver.submit(id, prompt, 1);
    driver.run_to_end();
    driver.usages[&id].cached_tokens
}

/// Fails a request in the oldest step that runs it.
fn fail(driver: &mut Driver, id: u64) {
    driver.answer_until(|driver| driver.ids().contains(&id));
    driver.answer_failing(id, SeqFault::NotFinite);
}

#[test]
fn one_failed_request_costs_the_others_no_token_no_cached_block_and_no_step() {
    let run = |fails: bool| {
        let mut driver = driver(config());
        assert_eq!(found(&mut driver, 1, prompt(1, 21)), 0);
        (10..14).for_each(|id| driver.submit(id, prompt(id as u32, 7), 40));
        (0..5).for_each(|_| driver.answer());
        if fails {
            for (id, fault) in [(20, SeqFault::NotFinite), (21, SeqFault::Unsupported)] {
                driver.submit(id, prompt(id as u32, 9), 40);
                driver.answer_until(|driver| driver.ids().contains(&id));
                driver.answer_failing(id, fault);
            }
            assert_eq!(driver.ends[1..], [(20, FinishReason::NotFinite), (21, FinishReason::Unsupported)]);
        }
        driver.run_to_end();
        assert_eq!((10..14).map(|id| driver.said(id).len()).collect::<Vec<_>>(), [40; 4]);
        let steps = driver.stats().steps;
        assert_eq!(found(&mut driver, 30, prompt(1, 21)), 20, "what was cached stays cached");
        let stats = driver.stats();
        assert_eq!((driver.resets, stats.requests.restarted, stats.preemptions), (0, 0, 0));
        driver.assert_empty();
        steps
    };
    assert_eq!(run(true), run(false), "the others' steps have room for it");
}

#[test]
fn tokens_of_a_failed_request_stay_sent_and_those_of_steps_in_flight_are_dropped() {
    let mut driver = driver(Config { max_steps_in_flight: 3, ..config() });
    driver.submit(1, prompt(1, 9), 40);
    driver.submit(2, prompt(2, 9), 40);
    driver.answer_until(|driver| driver.said(1).len() == 12);
    assert_eq!(driver.steps.iter().filter(|step| step.seqs.iter().any(|seq| seq.request == RequestId(1))).count(), 3);
    driver.answer_failing(1, SeqFault::NotFinite);
    assert_eq!((driver.reason(1), driver.usages[&1].completion_tokens), (Some(FinishReason::NotFinite), 12));
    // Steps that were on the way run it on, and may fail it once more.
    driver.answer_failing(1, SeqFault::NotFinite);
    driver.run_to_end();
    assert_eq!((driver.said(1).len(), driver.said(2).len(), driver.resets), (12, 40, 0));
    // 21 tokens have KV of which the last was in the failed step: five blocks.
    let continued = [prompt(1, 9), driver.said(1).to_vec(), vec![5]].concat();
    assert_eq!(found(&mut driver, 3, continued), 20, "blocks of the steps before stay cached");
    driver.assert_empty();
}

#[test]
fn nothing_of_the_failed_step_is_cached_and_the_chunks_before_it_are() {
    for in_step_hits in [false, true] {
        let worker = WorkerFacts { in_step_hits, ..WorkerFacts::default() };
        let mut driver = driver(Config { max_batch_tokens: 16, max_steps_in_flight: 1, worker, ..config() });
        driver.submit(1, prompt(1, 40), 5);
        driver.answer();
        driver.answer();
        assert_eq!(driver.running(), [(1, 32, 8, true)]);
        driver.answer_failing(1, SeqFault::NotFinite);
        assert_eq!(driver.reason(1), Some(FinishReason::NotFinite));
        assert_eq!(found(&mut driver, 2, prompt(1, 41)), 32);
        // What another computed since is cached as any other.
        assert_eq!(found(&mut driver, 3, prompt(1, 41)), 40);
        driver.assert_empty();
    }
}

#[test]
fn whoever_reads_blocks_of_the_failed_step_starts_over_and_says_what_it_would_alone() {
    // The second reads four blocks that the first computes in the same step, and the third joins in the step behind.
    let mut driver = driver(config());
    driver.submit(9, prompt(9, 9), 30);
    driver.answer();
    for (id, own) in [(1, 1), (2, 3)] {
        driver.submit(id, [prompt(1, 16), vec![700; own]].concat(), 8);
    }
    driver.answer();
    driver.submit(3, [prompt(1, 16), vec![800; 9]].concat(), 8);
    let parts = |driver: &Driver, step: usize| {
        driver.steps[step].seqs.iter().map(|seq| (seq.request.0, seq.computed, seq.n_tokens)).collect::<Vec<_>>()
    };
    let at = (0..2).find(|step| parts(&driver, *step).iter().any(|part| part.0 == 1)).unwrap();
    assert_eq!(parts(&driver, at)[1..], [(1, 0, 17), (2, 16, 3)]);
    fail(&mut driver, 1);
    assert_eq!(driver.reason(1), Some(FinishReason::NotFinite));
    driver.run_to_end();
    assert_eq!([9, 2, 3].map(|id| driver.said(id).len()), [30, 8, 8]);
    let stats = driver.stats();
    assert_eq!((driver.resets, stats.preemptions), (0, 0));
    assert!((1..=2).contains(&stats.requests.restarted), "{} started over", stats.requests.restarted);
    // The second computed the blocks again, and they are cached.
    assert_eq!(found(&mut driver, 4, [prompt(1, 16), vec![900; 3]].concat()), 16);
    driver.assert_empty();
}

#[test]
fn blocks_that_a_preempted_request_gave_up_at_once_leave_when_its_step_fails() {
    let preemption = Preemption::RecomputeAtOnce;
    let room = Config { device_blocks: 9, max_context: 36, launch_watermark: 0.0, policy: "fcfs".into(), ..config() };
    let mut driver = driver(Config { preemption, ..room });
    driver.submit(1, prompt(1, 15), 12);
    driver.answer_until(|driver| driver.steps[1].seqs[0].computed == 18);
    driver.submit(2, prompt(2, 13), 3);
    driver.answer();
    let runs = |driver: &Driver| driver.steps[1].seqs.iter().map(|seq| seq.request.0).collect::<Vec<_>>();
    assert_eq!(runs(&driver), [1, 2], "the prompt runs in the last step before the first request needs a block");
    driver.answer();
    assert_eq!(driver.stats().preemptions, 1, "and gives its blocks up while that step computes them");
    driver.answer_failing(2, SeqFault::NotFinite);
    assert_eq!(driver.stats().idle_blocks, 0, "nobody finds them");
    driver.run_to_end();
    assert_eq!((driver.reason(2), driver.said(1).len()), (Some(FinishReason::NotFinite), 12));
    assert_eq!(found(&mut driver, 3, prompt(2, 13)), 0);
    driver.assert_empty();
}

#[test]
fn a_prompt_that_others_had_cached_stays_cached_when_a_reader_of_all_of_it_fails() {
    // Its last token runs again, and writes nothing.
    let mut driver = driver(config());
    found(&mut driver, 1, prompt(1, 16));
    driver.submit(2, prompt(1, 16), 5);
    assert_eq!(driver.running(), [(2, 15, 1, true)]);
    driver.answer_failing(2, SeqFault::NotFinite);
    assert_eq!(found(&mut driver, 3, prompt(1, 17)), 16);
    driver.assert_empty();
}

#[test]
fn a_client_that_gives_up_first_gets_one_answer_and_its_blocks_leave_all_the_same() {
    type GivesUp = fn(RequestId) -> Event;
    for (gives_up, reason) in [(Event::Abort as GivesUp, FinishReason::Abort), (Event::Stop, FinishReason::Stop)] {
        let mut driver = driver(config());
        driver.submit(1, prompt(1, 17), 5);
        driver.submit(2, [prompt(1, 16), vec![7]].concat(), 5);
        driver.answer_until(|driver| driver.ids().contains(&2));
        driver.event(gives_up(RequestId(1)));
        fail(&mut driver, 1);
        driver.run_to_end();
        assert_eq!(driver.ends, [(1, reason), (2, FinishReason::Length)]);
        driver.assert_empty();
    }
}

#[test]
fn a_request_that_is_taken_back_goes_to_another_core_without_an_end() {
    let mut driver = driver(config());
    driver.submit(1, prompt(1, 9), 5);
    driver.event(Event::Withdraw(RequestId(1)));
    driver.answer_failing(1, SeqFault::NotFinite);
    driver.answer_until(|driver| driver.steps.is_empty());
    assert_eq!((driver.withdrawn.len(), driver.ends.len()), (1, 0));
    assert_eq!(found(&mut driver, 2, prompt(1, 10)), 0, "its blocks were not computed here");
}

#[test]
fn blocks_from_before_the_failed_step_are_copied_to_a_tier_and_no_others() {
    let tier =
        TierConfig { name: "tier".into(), blocks: 50, write: Write::Through, eviction: "lru".into(), shared: false };
    let mut driver = driver(Config { max_batch_tokens: 16, tiers: vec![tier], ..config() });
    driver.submit(1, prompt(1, 40), 5);
    driver.answer();
    driver.answer();
    driver.answer_failing(1, SeqFault::NotFinite);
    driver.run_to_end();
    assert_eq!(driver.stats().tiers[0].stored_blocks, 8);
}

#[test]
fn a_worker_lost_behind_a_failed_sequence_blames_nobody_for_it() {
    // The failed request is still in a step in flight when the worker goes.
    let mut driver = driver(config());
    driver.submit(1, prompt(1, 9), 40);
    driver.submit(2, prompt(2, 9), 40);
    driver.answer_until(|driver| driver.said(1).len() == 3);
    driver.answer_failing(1, SeqFault::NotFinite);
    assert!(driver.ids().contains(&1));
    driver.lose_worker();
    driver.join();
    driver.run_to_end();
    assert_eq!(driver.ends, [(1, FinishReason::NotFinite), (2, FinishReason::Length)]);
    driver.assert_empty();
}

#[test]
fn failures_of_no_sequence_or_out_of_order_are_not_believed() {
    type Spoils = fn(&mut StepResult);
    let ways: [(&str, Spoils); 3] = [
        ("beyond the last", |result| result.failed = vec![FailedSeq { seq: 2, fault: SeqFault::NotFinite }]),
        ("twice", |result| {
            result.tokens.remove(0);
            result.ends.iter_mut().for_each(|end| *end -= 1);
            result.failed = vec![FailedSeq { seq: 0, fault: SeqFault::NotFinite }; 2];
        }),
        ("with a token", |result| result.failed = vec![FailedSeq { seq: 1, fault: SeqFault::NotFinite }]),
    ];
    for (what, spoil) in ways {
        let mut driver = driver(config());
        [1, 2].into_iter().for_each(|id| driver.submit(id, prompt(id as u32, 9), 9));
        driver.answer_until(|driver| driver.ids().len() == 2);
        let mut result = driver.end_step();
        spoil(&mut result);
        driver.event(Event::StepFinished(result));
        assert_eq!(driver.resets, 1, "{what}");
    }
}
