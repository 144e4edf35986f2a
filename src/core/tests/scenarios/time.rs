//! Scenarios 82 to 84, 102 and 103: time, aborts, one step at a time, and contents.

use trunkline_core::{Config, Event, FinishReason};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{BLOCK, config, request, text};
use crate::scenes::{VICTIM, swapping_out, victim};

#[test]
fn scenario_082_a_deadline_ends_a_request_waiting_or_running() {
    let mut rig = Driver::without_worker(config());
    rig.now_ns = 5000;
    let mut late = request(1, text(1, 20), 9);
    late.deadline_ns = Some(1000);
    rig.submit_request(late);
    assert_eq!(rig.ends, [(1, FinishReason::Timeout)], "it never ran");
    let mut slow = request(2, text(2, 20), 9);
    slow.deadline_ns = Some(9000);
    rig.submit_request(slow);
    rig.join();
    assert_eq!(rig.core.next_deadline_ns(), Some(9000));
    rig.now_ns = 10_000;
    rig.event(Event::Tick);
    assert_eq!(rig.ends[1], (2, FinishReason::Timeout), "the client does not wait for the step");
    assert!(!rig.all_blocks_usable(), "the worker still writes its blocks");
    rig.answer();
    assert!(rig.tokens.is_empty());
    rig.assert_empty();
}

/// KsanaLLM: on the next pass, after the step, and at once with a cancellation behind the back; here: at once in every state; its
/// blocks are kept until the step or the copy ends, because until then they are written.
#[test]
fn scenario_083_an_abort_takes_effect_at_once_and_the_blocks_follow_when_at_rest() {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 20), 9);
    rig.abort(1);
    assert!(rig.has_ended(1));

    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 20), 9);
    rig.abort(1);
    assert!(rig.has_ended(1) && !rig.all_blocks_usable());
    rig.answer();
    assert!(rig.all_blocks_usable() && rig.tokens.is_empty());

    let mut rig = swapping_out(victim());
    rig.abort(VICTIM);
    assert!(rig.has_ended(VICTIM) && rig.host_free() < 100);
    rig.finish_copy(0);
    assert_eq!(rig.host_free(), 100);
}

/// KsanaLLM: looks only at those that ran; here: ends at once, because nothing works on its blocks.
#[test]
fn scenario_084_a_decode_that_does_not_run_can_be_aborted() {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 50 * BLOCK - 1), 40);
    rig.submit(2, text(2, 30 * BLOCK - 9), 40);
    rig.submit(3, text(3, 20 * BLOCK - 9), 40);
    rig.join();
    rig.answer();
    rig.answer();
    assert_eq!((rig.moves(), rig.ids()), (vec![(Direction::Out, 20)], vec![2]));
    (0..5).for_each(|_| rig.answer());
    assert_eq!(rig.ids(), [2], "1 waits for the copy");
    rig.abort(1);
    assert_eq!(rig.ends, [(1, FinishReason::Abort)]);
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: an ended request is taken out of the plan that is parked; here: no step is planned before the last one
/// ended, because then it would rest on guesses.
#[test]
fn scenario_102_a_request_that_ends_is_in_no_later_step() {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 20), 2);
    rig.submit(2, text(2, 20), 4);
    rig.join();
    rig.answer();
    assert_eq!((rig.ids(), rig.in_use()), (vec![1, 2], 4));
    rig.answer();
    assert_eq!((rig.ids(), rig.in_use()), (vec![2], 2), "its blocks came back once");
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
    rig.assert_empty();
}

#[test]
fn scenario_103_every_cell_that_is_read_is_right() {
    // The worker compares each cell that a step reads with what it must stand for.
    let mut rig = Driver::new(Config { max_batch_tokens: 128, ..config() });
    for id in 0..30 {
        rig.submit(id, text(id as u32 % 7, 1 + id as u32 * 131 % 399), 1 + id as u32 * 61 % 99);
        rig.run_to_end();
    }
    rig.assert_all_said(0..30);
    assert_eq!(rig.stats().swaps.swap_outs, 0);
    assert!(rig.stats().tokens.cached_tokens > 100);
}

#[test]
#[should_panic(expected = "reads wrong KV")]
fn the_worker_notices_a_wrong_copy() {
    let mut rig = swapping_out(victim());
    rig.worker.spoil_transfer(rig.copies[0].id);
    rig.finish_copy(0);
    rig.flush();
    rig.abort_now(1);
    rig.run_to_end();
}
