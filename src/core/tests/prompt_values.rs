//! Requests for log probabilities of their prompts: every position is run, and asked for once.

use trunkline_core::{Config, Namespace, Preemption, Request, RequestId, SeqFault, Token};
use trunkline_driver::Driver;

fn config() -> Config {
    Config {
        block_size: 4,
        device_blocks: 64,
        max_batch_tokens: 64,
        max_batch_size: 8,
        launch_watermark: 0.0,
        ..Config::default()
    }
}

fn prompt(n: u32) -> Vec<Token> {
    (100..100 + n).collect()
}

/// Returns a request with values of its prompt.
fn valued(id: u64, prompt: Vec<Token>, max_tokens: u32) -> Request {
    let request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
    Request { prompt_logprobs: Some(2), ..request }
}

/// Returns the positions whose values the step in flight has, with those that it begins and ends at.
fn rows(rig: &Driver) -> Vec<(u64, u32, u32)> {
    let step = rig.step().expect("a step is in flight");
    let of = |rows: &trunkline_core::PromptRows| {
        let seq = &step.seqs[rows.seq as usize];
        let from = seq.computed + rows.first;
        (seq.request.0, from, from + rows.rows)
    };
    step.prompt_rows.iter().map(of).collect()
}

#[test]
fn a_cached_prompt_is_computed_again_and_others_read_it() {
    let mut rig = Driver::new(config());
    rig.submit(1, prompt(17), 1);
    rig.run_to_end();
    let blocks = rig.stats().free_blocks;
    rig.submit_request(valued(2, prompt(17), 1));
    assert_eq!((rig.running(), rows(&rig)), (vec![(2, 0, 17, true)], vec![(2, 0, 16)]));
    rig.run_to_end();
    assert_eq!((rig.requests[&RequestId(2)].valued, rig.stats().tokens.cached_tokens), (16, 0));
    assert_eq!((rig.stats().free_blocks, rig.stats().merged_blocks), (blocks, 4), "its blocks are merged");
    rig.submit(3, prompt(17), 1);
    assert_eq!((rig.running(), rows(&rig)), (vec![(3, 16, 1, true)], vec![]));
    rig.run_to_end();

    let mut alone = Driver::new(config());
    alone.submit_request(valued(1, prompt(17), 1));
    alone.run_to_end();
    alone.submit(2, prompt(17), 1);
    assert_eq!(alone.running(), [(2, 16, 1, true)], "what it computed is cached");
    alone.run_to_end();
}

#[test]
fn it_waits_for_nobody_and_others_wait_for_its_blocks() {
    let mut rig = Driver::new(Config { max_batch_tokens: 24, max_batch_size: 8, ..config() });
    rig.submit(1, prompt(40), 1);
    rig.submit_request(valued(2, prompt(40), 1));
    rig.answer();
    // Another one would wait for the blocks of the first.
    assert_eq!(rig.running(), [(1, 24, 16, true), (2, 0, 8, false)]);
    rig.run_to_end();
    let mut rig = Driver::new(Config { max_batch_tokens: 24, max_batch_size: 8, ..config() });
    rig.submit_request(valued(1, prompt(40), 1));
    rig.submit(2, prompt(41), 1);
    rig.answer();
    assert_eq!((rig.ids(), rig.stats().waiting), (vec![1], 1));
    rig.run_to_end();
    assert_eq!(rig.stats().tokens.cached_tokens, 40, "a fork finds the whole prompt");
}

#[test]
fn chunks_ask_for_their_own_positions_and_decodes_for_none() {
    let mut rig = Driver::new(Config { max_batch_tokens: 8, max_batch_size: 8, align_chunks: false, ..config() });
    rig.submit_request(valued(1, prompt(17), 3));
    for expected in [vec![(1, 0, 8)], vec![(1, 8, 16)], vec![], vec![], vec![]] {
        assert_eq!(rows(&rig), expected);
        rig.answer();
    }
    assert!(rig.has_ended(1) && rig.requests[&RequestId(1)].valued == 16);
    rig.submit_request(valued(2, prompt(1), 1));
    assert_eq!(rows(&rig), [], "before the first token is nothing");
    rig.run_to_end();
}

#[test]
fn a_preempted_prompt_asks_for_the_rest_and_reads_what_is_valued() {
    let mut rig = Driver::new(Config { max_batch_tokens: 16, preemption: Preemption::Recompute, ..config() });
    rig.submit_request(valued(1, prompt(40), 4));
    rig.answer();
    assert_eq!(rows(&rig), [(1, 16, 32)]);
    rig.lose_worker();
    rig.join();
    // The KV is lost, but not the values; a step without any is run, too.
    assert_eq!((rig.running(), rows(&rig)), (vec![(1, 0, 16, false)], vec![]));
    rig.answer();
    assert_eq!(rows(&rig), [(1, 16, 32)]);
    rig.run_to_end();
    assert_eq!(rig.requests[&RequestId(1)].valued, 39);
}

#[test]
fn the_values_of_a_sequence_that_failed_do_not_count() {
    let mut rig = Driver::new(Config { max_batch_tokens: 16, ..config() });
    rig.submit_request(valued(1, prompt(40), 4));
    rig.answer();
    rig.answer_failing(1, SeqFault::NotFinite);
    assert!(rig.has_ended(1) && rig.requests[&RequestId(1)].valued == 16);
    rig.run_to_end();
}

#[test]
fn a_request_that_brings_tokens_along_has_its_values_and_one_without_begins_again() {
    let mut rig = Driver::new(config());
    rig.submit(1, prompt(17), 1);
    rig.run_to_end();
    let moved = Request { generated: vec![rig.says(2, 0)], ..valued(2, prompt(17), 3) };
    rig.submit_request(moved);
    assert_eq!((rig.running(), rows(&rig)), (vec![(2, 16, 2, true)], vec![]), "as any other it reads the cache");
    rig.abort(2);
    rig.answer();
    rig.run_to_end();
}
