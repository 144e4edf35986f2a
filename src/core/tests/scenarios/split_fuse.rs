//! Scenarios 75 to 81: prompts in chunks. KsanaLLM cuts each request's chunk to a number of tokens; here the step has a
//! budget of tokens, and chunks end with blocks.

use trunkline_core::{Config, Preemption};
use trunkline_driver::Driver;

use crate::prompts::{BLOCK, config, fork, text};

/// Blocks of 6 tokens, and so many tokens in a step.
fn chunks_of(max_batch_tokens: u32) -> Config {
    Config { block_size: 6, max_batch_tokens, max_batch_size: 4, ..config() }
}

/// KsanaLLM: chunks of 16, 16, 16, 12, and blocks as they come; here: whole blocks, and all blocks at once, because then
/// every prefill that began can end.
#[test]
fn scenario_075_a_prompt_in_chunks() {
    let mut rig = Driver::new(chunks_of(16));
    rig.submit(1, text(1, 60), 3);
    for chunk in 0..5 {
        assert_eq!(rig.running(), [(1, chunk * 12, 12, chunk == 4)]);
        assert_eq!(rig.in_use(), 10);
        assert!(rig.tokens.is_empty(), "the first token comes with the last chunk");
        rig.answer();
    }
    assert_eq!(rig.said(1).len(), 1);
}

/// KsanaLLM: every chunk but the last has the full number; here: as many whole blocks as the step has room for, because a block
/// is published when it is full.
#[test]
fn scenario_076_every_chunk_but_the_last_is_whole_blocks() {
    for (cached, own, budget) in [(0, 100, 16), (30, 71, 16), (12, 200, 64), (6, 1, 10)] {
        let mut rig = Driver::new(chunks_of(budget));
        rig.submit(1, text(1, 60), 1);
        rig.run_to_end();
        rig.submit(2, fork(1, cached, 2, own), 1);
        let (mut chunks, mut uncached) = (Vec::new(), own);
        while let [(2, computed, n_tokens, sample)] = rig.running()[..] {
            assert_eq!((computed, sample), (cached + own - uncached, n_tokens == uncached));
            chunks.push(n_tokens);
            uncached -= n_tokens;
            rig.answer();
        }
        let last = chunks.pop().unwrap();
        assert!(chunks.iter().all(|chunk| *chunk == budget / 6 * 6) && last <= budget, "{chunks:?}, {last}");
        assert_eq!(uncached, 0);
    }
}

#[test]
fn scenario_077_cached_blocks_are_no_part_of_a_chunk() {
    let mut rig = Driver::new(Config { max_batch_size: 1, ..chunks_of(6) });
    rig.submit(1, text(1, 18), 1);
    rig.run_to_end();
    rig.submit(2, text(1, 30), 1);
    assert_eq!(rig.running(), [(2, 18, 6, false)]);
    rig.answer();
    assert_eq!(rig.running(), [(2, 24, 6, true)]);
}

/// KsanaLLM: a chunk of 16 for each of three, 48 in a step; here: 16 in all, because the step's length is what decodes wait
/// for.
#[test]
fn scenario_078_the_budget_is_the_steps() {
    let mut rig = Driver::without_worker(Config { block_size: 16, ..chunks_of(20) });
    (1..=3).for_each(|id| rig.submit(id, text(id as u32, 60), 3));
    rig.join();
    assert_eq!(rig.running(), [(1, 0, 16, false)]);
    while let Some(step) = rig.step() {
        assert!(step.n_tokens() <= 20);
        rig.answer();
    }
    rig.assert_all_said(1..=3);
}

/// KsanaLLM: every request may take a chunk; here: those behind take what is left of the step, because
/// its length is what decodes wait for.
#[test]
fn scenario_079_a_chunk_leaves_the_rest_of_the_step_to_requests_behind() {
    let mut rig = Driver::without_worker(chunks_of(16));
    (1..=2).for_each(|id| rig.submit(id, text(id as u32, 14), 3));
    rig.submit(3, text(3, 2), 3);
    rig.join();
    assert_eq!(rig.running(), [(1, 0, 14, true)], "2 are left, and no block of the next fits");
    rig.answer();
    assert_eq!(rig.running(), [(1, 14, 1, true), (2, 0, 14, true)]);
    rig.answer();
    assert_eq!(rig.ids(), [1, 2, 3]);
}

/// KsanaLLM: frees what chunked prompts hold and never chunks again; here: one victim makes way, because one is enough, and is
/// chunked as before.
#[test]
fn scenario_080_a_chunked_prompt_makes_way_and_is_chunked_again() {
    let limits = Config { max_batch_tokens: 4 * BLOCK, preemption: Preemption::Recompute, ..config() };
    let mut rig = Driver::new(limits);
    rig.submit(1, text(1, 10 * BLOCK - 3), 60);
    rig.answer_until(|rig| !rig.said(1).is_empty());
    rig.submit(2, text(2, 90 * BLOCK), 5);
    rig.answer_until(|rig| rig.stats().preemptions > 0);
    assert!(rig.said(2).is_empty(), "it was still a prefill");
    assert_eq!(rig.ids(), [1], "and the decode went on");
    let published = rig.stats().idle_blocks;
    assert!(published > 0);
    rig.answer_until(|rig| rig.has_ended(1));
    let (_, computed, n_tokens, sample) = rig.running()[0];
    assert!(computed > 0 && computed <= published * BLOCK);
    assert_eq!((n_tokens, sample), (4 * BLOCK, false));
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
}

/// KsanaLLM: each gets half of what both need; here: the second waits until all of it fits, because then the first can always
/// end.
#[test]
fn scenario_081_two_prompts_that_do_not_fit_together_run_one_after_the_other() {
    let mut rig = Driver::without_worker(Config { max_batch_tokens: 256, ..config() });
    (1..=2).for_each(|id| rig.submit(id, text(id as u32, 1000), 5));
    rig.join();
    rig.answer_until(|rig| {
        assert_eq!(rig.ids().len(), 1);
        rig.ids() == [2]
    });
    assert!(rig.has_ended(1));
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
    assert_eq!(rig.stats().preemptions, 0);
}
