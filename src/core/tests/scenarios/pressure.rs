//! Scenarios 66 to 74: decodes that find no block.

use trunkline_core::{Config, Event, FinishReason, Preemption};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{BLOCK, config, fork, text};

/// A (1) and B (2) fill the pool with 50 blocks each; A's 800th token is its last without a 51st block.
fn two_fill_the_pool(preemption: Preemption) -> Driver {
    let mut rig = Driver::without_worker(Config { preemption, ..config() });
    rig.submit(1, text(1, 797), 300);
    rig.submit(2, text(2, 796), 300);
    rig.join();
    rig.answer_until(|rig| rig.stats().preemptions > 0);
    rig
}

/// KsanaLLM: A, whose allocation failed, is the victim; here: B, because it arrived last.
#[test]
fn scenario_066_the_victim_is_recomputed_and_finds_its_blocks_again() {
    let mut rig = two_fill_the_pool(Preemption::Recompute);
    assert_eq!(rig.running(), [(1, 800, 1, true)]);
    let stats = rig.stats();
    assert_eq!((stats.waiting, stats.idle_blocks, stats.free_blocks), (1, 49, 0), "B is not admitted again at once");
    rig.answer_until(|rig| rig.stats().evicted_blocks > 0);
    assert_eq!(rig.running(), [(1, 816, 1, true)]);
    rig.abort_now(1);
    assert_eq!(rig.running(), [(2, 48 * BLOCK, 799 + 1 - 48 * BLOCK, true)], "B's deepest block was evicted");
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: A is the victim; here: B, because it arrived last.
#[test]
fn scenario_067_the_victim_is_swapped_and_comes_back_before_others_are_admitted() {
    let mut rig = two_fill_the_pool(Preemption::Swap);
    assert_eq!(rig.moves(), [(Direction::Out, 50)]);
    rig.submit(3, text(3, 5), 1);
    rig.finish_copy(0);
    rig.answer();
    assert_eq!((rig.ids(), rig.stats().waiting), (vec![1], 1), "49 blocks are usable, and not for 3");
    rig.abort_now(1);
    assert_eq!(rig.moves().len(), 1);
    assert_eq!((rig.moves()[0].0, rig.ids()), (Direction::In, vec![3]), "once 2 is on its way back");
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn scenario_068_requests_without_a_block_wait_for_one_swap_out() {
    let mut rig = Driver::without_worker(config());
    (1..=4).for_each(|id| rig.submit(id, text(id as u32, 25 * BLOCK - 1), 40));
    rig.join();
    rig.answer();
    rig.answer();
    assert_eq!(rig.moves(), [(Direction::Out, 25)]);
    assert_eq!((rig.stats().running, rig.stats().preemptions), (3, 1), "three keep their places");
    assert!(rig.steps.is_empty(), "and do not run");
    rig.finish_copy(0);
    assert_eq!(rig.ids(), [1, 2, 3]);
    rig.run_to_end();
    rig.assert_all_said(1..=4);
    rig.assert_empty();
}

/// KsanaLLM: a sole request without a block stays and stops all admission; here: there is no such, because what cannot run
/// alone is refused on submission.
#[test]
fn scenario_069_a_sole_request_always_finds_a_block() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 1), 1600);
    rig.run_to_end();
    rig.assert_all_said([1]);
    assert_eq!(rig.stats().preemptions, 0);
    rig.submit(2, text(2, 1), 1600);
    rig.run_to_end();
    assert_eq!((rig.stats().preemptions, rig.ends.len()), (0, 2), "not in a full cache either");
}

/// KsanaLLM: no way out; here: it does not come to that (69), and one that waits for a block still ends at once, because
/// nothing works on its blocks.
#[test]
fn scenario_070_a_request_that_waits_for_a_block_can_time_out_and_be_aborted() {
    for timeout in [false, true] {
        let mut rig = Driver::without_worker(config());
        for id in [1, 2] {
            let mut request = crate::prompts::request(id, text(id as u32, 50 * BLOCK - 1), 40);
            request.deadline_ns = (id == 1).then_some(1000);
            rig.submit_request(request);
        }
        rig.join();
        rig.answer();
        rig.answer();
        assert_eq!((rig.moves(), rig.steps.is_empty()), (vec![(Direction::Out, 50)], true));
        if timeout {
            rig.now_ns = 1000;
            rig.event(Event::Tick);
        } else {
            rig.abort(1);
        }
        assert_eq!(rig.ends, [(1, if timeout { FinishReason::Timeout } else { FinishReason::Abort })]);
        assert_eq!(rig.usable(), 50);
        rig.run_to_end();
        rig.assert_empty();
    }
}

#[test]
fn scenario_071_a_recomputed_request_keeps_its_output() {
    let mut rig = two_fill_the_pool(Preemption::Recompute);
    let before = rig.said(2).to_vec();
    assert_eq!(before.len(), 4);
    rig.abort(1);
    rig.flush();
    rig.answer();
    assert_eq!(rig.running().len(), 1);
    let (id, computed, n_tokens, sample) = rig.running()[0];
    assert_eq!((id, computed + n_tokens, sample), (2, 796 + 4, true), "prompt and output are prefilled");
    rig.run_to_end();
    assert_eq!(rig.said(2).len(), 300);
    assert_eq!(rig.said(2)[..4], before);
    assert_eq!((rig.usages[&2].preemptions, rig.usages[&2].cached_tokens), (1, 0));
    assert_eq!(rig.stats().tokens.prompt_tokens, 797 + 796, "counted when they were first admitted");
}

#[test]
fn scenario_072_fewer_drafts_the_more_decode() {
    for (n, drafts) in [(1, 15), (2, 7), (3, 4), (4, 3), (5, 2), (6, 1), (7, 1), (8, 1), (9, 0), (16, 0)] {
        let mut rig = Driver::without_worker(Config { max_drafts: 20, ..config() });
        (1..=n).for_each(|id| rig.submit(id, text(id as u32, 5), 60));
        rig.join();
        rig.answer();
        assert_eq!(rig.seqs().count() as u64, n);
        assert!(rig.seqs().all(|seq| seq.n_drafts == drafts), "{n} decodes: {:?}", rig.step());
    }
}

/// KsanaLLM: its cache was off; here: it is always on, because it costs nothing.
#[test]
fn scenario_073_swapping_loses_nothing_and_small_requests_need_none() {
    let limits = Config { block_size: 6, max_batch_size: 8, host_blocks: 200, ..config() };
    let mut rig = Driver::new(limits.clone());
    for id in 0..10 {
        let (prompt, output) = (150 + id as u32 * 37 % 50, 1 + id as u32 * 83 % 199);
        rig.submit(id, text(id as u32, prompt), output);
    }
    rig.run_to_end();
    rig.assert_all_said(0..10);
    rig.assert_empty();
    let stats = rig.stats();
    assert!(stats.swaps.swap_outs > 0 && stats.swaps.swap_ins > 0 && stats.swaps.failed_transfers == 0);

    let mut rig = Driver::new(limits);
    for id in 0..100 {
        rig.submit(id, text(id as u32, 1 + id as u32 * 37 % 59), 1 + id as u32 * 83 % 39);
        if rig.stats().waiting > 2 {
            rig.answer();
        }
    }
    rig.run_to_end();
    rig.assert_all_said(0..100);
}

#[test]
fn scenario_074_a_shared_prompt_under_pressure_is_exact_in_both_modes() {
    for (preemption, host_blocks) in [(Preemption::Swap, 100), (Preemption::Recompute, 0)] {
        let mut rig = Driver::new(Config { device_blocks: 40, max_batch_size: 8, preemption, host_blocks, ..config() });
        for id in 0..50 {
            rig.submit(id, fork(99, 180, id as u32, 1 + id as u32 * 37 % 99), 3 + id as u32 * 83 % 150);
        }
        rig.run_to_end();
        rig.assert_all_said(0..50);
        rig.assert_empty();
        let stats = rig.stats();
        assert_eq!((stats.swaps.swap_outs > 0, stats.swaps.failed_transfers), (preemption == Preemption::Swap, 0));
        assert!(stats.preemptions > 0);
    }
}
