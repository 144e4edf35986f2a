//! Paths through swapping that need several events to coincide.

use trunkline_core::{Config, Event};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{BLOCK, config, fork, submit_filler, text};
use crate::scenes::{
    VICTIM, sharers, sharers_coming_back, sharers_swapped, swapped, swapping_in, swapping_out, victim,
};
use crate::swap::both_ways;

#[test]
fn who_joined_a_copy_that_fails_is_recomputed_too() {
    let mut rig = sharers_coming_back();
    rig.finish_copy(1);
    rig.fail_copy(0);
    let stats = rig.stats();
    assert_eq!((stats.swapped, stats.waiting, stats.free_host_blocks, stats.moving_blocks), (0, 2, 100, 0));
    rig.run_to_end();
    rig.assert_empty();
    assert_eq!((rig.said(3).len(), rig.said(4).len()), (90, 90));
}

#[test]
fn who_joined_a_copy_that_fails_waits_for_its_own_copy_first() {
    let mut rig = sharers_coming_back();
    rig.fail_copy(0);
    assert_eq!((rig.stats().swapped, rig.stats().waiting), (1, 1), "the blocks of 4 are still being written");
    rig.finish_copy(0);
    assert_eq!((rig.stats().swapped, rig.stats().waiting, rig.host_free()), (0, 2, 100));
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn a_joiner_whose_own_copy_fails_does_not_disturb_the_other() {
    let mut rig = sharers_coming_back();
    rig.fail_copy(1);
    assert_eq!((rig.stats().swapped, rig.stats().waiting, rig.host_free()), (1, 1, 96));
    rig.finish_copy(0);
    assert_eq!((rig.stats().swapped, rig.stats().swaps.swap_ins, rig.host_free()), (0, 1, 100));
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn who_joined_the_copy_of_a_request_that_ends_is_recomputed() {
    for joiner_first in [false, true] {
        let mut rig = sharers_coming_back();
        rig.abort(3);
        assert!(rig.has_ended(3) && rig.stats().moving_blocks > 0, "its blocks are being written");
        if joiner_first {
            rig.finish_copy(1);
            rig.finish_copy(0);
        } else {
            rig.finish_copy(0);
            rig.finish_copy(0);
        }
        assert_eq!((rig.stats().swapped, rig.host_free()), (0, 100));
        rig.run_to_end();
        rig.assert_empty();
        assert_eq!(rig.said(4).len(), 90);
    }
}

#[test]
fn a_joiner_that_ends_leaves_the_copy_to_the_other() {
    let mut rig = sharers_coming_back();
    rig.finish_copy(1);
    rig.abort(4);
    assert!(rig.has_ended(4), "no copy of its own runs");
    assert_eq!(rig.host_free(), 100 - 4);
    rig.finish_copy(0);
    assert_eq!((rig.host_free(), rig.stats().swaps.swap_ins), (100, 1));
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn what_one_finds_in_the_tree_the_other_swapped_holders_read_too() {
    let mut rig = sharers_swapped();
    rig.abort_now(5);
    assert_eq!(rig.moves(), [(Direction::In, 1)], "the shared blocks of 3 are still on the device");
    assert_eq!((rig.host_free(), rig.stats().idle_blocks), (98, 0), "and 4 has no need of its copies of them");
    rig.abort_now(2);
    assert_eq!(rig.moves(), [(Direction::In, 1), (Direction::In, 1)]);
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn two_sharers_that_go_at_once_may_land_on_the_host_in_any_order() {
    for first in [0, 1] {
        let mut rig = sharers(config());
        rig.answer_until(|rig| !rig.copies.is_empty());
        // The copy of 4 takes its time, and filler 1 has its block to wait for. Filler 2 finds none left to wait for.
        rig.answer_until(|rig| rig.copies.len() == 2);
        assert_eq!(rig.moves(), [(Direction::Out, 1), (Direction::Out, 4)]);
        rig.finish_copy(first);
        rig.finish_copy(0);
        assert_eq!((rig.stats().swapped, rig.host_free()), (2, 95));
        rig.run_to_end();
        rig.assert_empty();
        assert_eq!((rig.said(3).len(), rig.said(4).len()), (90, 90));
    }
}

#[test]
fn copies_in_both_directions_may_fail() {
    for fails in [[true, false], [false, true], [true, true]] {
        let mut rig = both_ways();
        for fails in fails {
            if fails { rig.fail_copy(0) } else { rig.finish_copy(0) }
        }
        assert_eq!(rig.stats().swaps.failed_transfers, fails.iter().filter(|fails| **fails).count() as u64);
        rig.run_to_end();
        rig.assert_empty();
        assert_eq!((rig.said(3).len(), rig.said(4).len()), (60, 60));
    }
}

#[test]
fn a_lost_worker_ends_all_copies_and_costs_no_text() {
    let scenes = [swapping_out(victim()), swapped(victim()), swapping_in(victim()), sharers_coming_back(), both_ways()];
    for mut rig in scenes {
        let late: Vec<u64> = rig.copies.iter().map(|copy| copy.id).collect();
        rig.lose_worker();
        let stats = rig.stats();
        assert_eq!((stats.free_blocks, stats.free_host_blocks, stats.swapped), (100, 100, 0));
        rig.join();
        late.into_iter().for_each(|id| rig.event(Event::TransferFinished(id)));
        assert_eq!(rig.host_free(), 100, "late answers are ignored");
        rig.run_to_end();
        rig.assert_empty();
        rig.assert_texts();
    }
}

#[test]
fn a_swap_out_that_fails_costs_a_recomputation() {
    let mut rig = swapping_out(victim());
    rig.fail_copy(0);
    assert_eq!((rig.stats().swapped, rig.stats().waiting, rig.host_free()), (0, 1, 100));
    assert_eq!((rig.stats().idle_blocks, rig.ids()), (5, vec![1]), "its published blocks stay findable");
    rig.abort_now(1);
    assert_eq!(rig.running()[0], (VICTIM, 80, 5, true));
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn a_prefill_that_is_swapped_goes_on_where_it_was() {
    let limits = Config { max_batch_tokens: 4 * 16, ..config() };
    let mut rig = Driver::new(limits);
    rig.submit(1, text(1, 10 * 16 - 3), 60);
    rig.answer_until(|rig| !rig.said(1).is_empty());
    rig.submit(2, text(2, 90 * 16), 5);
    rig.answer_until(|rig| !rig.copies.is_empty());
    let computed = rig.moves()[0].1 as u32 * 16;
    assert!(computed > 0 && computed < 90 * 16, "only what has KV is copied");
    rig.finish_copy(0);
    rig.flush();
    rig.answer_until(|rig| rig.has_ended(1));
    rig.finish_copy(0);
    assert_eq!(rig.running(), [(2, computed, 64, false)]);
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
    rig.assert_empty();
}

#[test]
fn a_second_is_preempted_only_when_copies_do_not_free_enough() {
    // Both fillers run short at once: the copy of 4 frees one block, so 3 goes as well.
    let mut rig = Driver::without_worker(config());
    submit_filler(&mut rig, 1, 50, 3);
    submit_filler(&mut rig, 2, 45, 3);
    rig.submit(3, text(3, 54), 90);
    rig.submit(4, text(3, 54), 90);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 1), (Direction::Out, 4)]);
    assert!(rig.steps.is_empty(), "both fillers wait");
    rig.finish_copy(0);
    assert_eq!(rig.ids(), [1], "one of them has its block");
    rig.finish_copy(0);
    rig.answer();
    assert_eq!((rig.ids(), rig.stats().preemptions), (vec![1, 2], 2));
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn when_no_swapped_request_fits_the_last_gives_up_what_it_keeps() {
    let mut rig = Driver::without_worker(Config { host_blocks: 200, swap_in_watermark: 20.0, ..config() });
    rig.submit(1, fork(7, 160, 8, 2), 300);
    rig.submit(2, text(2, 60 * BLOCK - 3), 600);
    rig.submit(3, fork(7, 160, 9, 29 * BLOCK - 7), 40);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 29)], "3 keeps 10 blocks that 1 reads");
    rig.finish_copy(0);
    rig.abort_now(1);
    // 2 is alone now, and grows until only those 10 are left.
    rig.answer_until(|rig| rig.stats().swapped == 0);
    assert!(rig.copies.is_empty(), "to copy 2 out as well would help nobody");
    assert_eq!((rig.ids(), rig.stats().waiting), (vec![2], 1), "3 is to be recomputed, so 2 has its 91st");
    assert_eq!(rig.host_free(), 200);
    rig.run_to_end();
    rig.assert_empty();
    assert_eq!((rig.said(2).len(), rig.said(3).len()), (600, 40));
}

/// 3 shares its first block with 4 and 5, which share one more. The copy of 3 fails while 4, which joined it, still
/// copies the second: 5 must not begin to read that one too.
fn the_first_of_three_comes_to_nothing(nothing: impl Fn(&mut Driver)) {
    let mut rig = Driver::without_worker(config());
    let mut tried = 0;
    for free in 1..28 {
        rig = Driver::without_worker(config());
        submit_filler(&mut rig, 1, 88 - free, 3);
        rig.submit(6, text(66, free * BLOCK - 2), 400);
        rig.submit(3, fork(7, BLOCK, 33, 60), 390);
        rig.submit(4, fork(7, 2 * BLOCK, 31, 9), 390);
        rig.submit(5, fork(7, 2 * BLOCK, 32, 60), 390);
        rig.join();
        for _ in 0..300 {
            if rig.stats().swapped == 3 {
                break;
            }
            if rig.copies.is_empty() { rig.answer() } else { rig.finish_copy(0) }
        }
        while !rig.copies.is_empty() {
            rig.finish_copy(0);
        }
        rig.flush();
        rig.abort_now(6);
        if rig.copies.len() == 2 && rig.stats().swapped == 3 && !rig.steps.is_empty() {
            tried += 1;
            nothing(&mut rig);
            rig.answer();
            rig.run_to_end();
            rig.assert_empty();
        }
    }
    assert!(tried > 0, "it never came to that: {:?}", rig.stats());
}

#[test]
fn a_block_is_not_read_twice_when_the_copy_before_it_was_aborted() {
    the_first_of_three_comes_to_nothing(|rig| {
        rig.abort(3);
        rig.finish_copy(0);
    });
}

#[test]
fn a_block_is_not_read_twice_when_the_copy_before_it_failed() {
    the_first_of_three_comes_to_nothing(|rig| rig.fail_copy(0));
}
