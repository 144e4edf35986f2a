//! Scenarios 37 to 53: to the host and back. One rank: counts on the host are half of KsanaLLM's.

use trunkline_core::{Config, FinishReason, Stats};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{config, fork, submit_filler, text};
use crate::scenes::{
    VICTIM, prefix_kept, sharers_coming_back, sharers_swapped, swapped, swapping_in, swapping_out, victim,
};

/// (free, idle, held, private, moving, free on the host)
fn places(rig: &Driver) -> [u32; 6] {
    let Stats { free_blocks, idle_blocks, held_blocks, private_blocks, moving_blocks, free_host_blocks, .. } =
        rig.stats();
    [free_blocks, idle_blocks, held_blocks, private_blocks, moving_blocks, free_host_blocks]
}

#[test]
fn scenario_037_all_blocks_of_a_lone_reader_are_copied() {
    let rig = swapping_out(victim());
    assert_eq!(places(&rig), [0, 0, 94 + 5, 0, 1, 94], "nothing is given up before it is copied");
    let copy = &rig.copies[0];
    let device: Vec<u32> = copy.pairs.iter().map(|(device, _)| *device).collect();
    assert_eq!(device, rig.tables[&VICTIM]);
}

/// KsanaLLM: the blocks leave the tree; here: published ones stay findable until they are evicted, because they may do
/// for a hit.
#[test]
fn scenario_038_a_swapped_request_reads_no_block_on_the_device() {
    let rig = swapped(victim());
    assert_eq!(places(&rig), [0, 5, 94, 1, 0, 94], "the private one was freed, and taken by the filler");
    assert_eq!(rig.stats().swapped, 1);
}

#[test]
fn scenario_039_after_the_copy_the_device_blocks_are_usable() {
    let mut rig = swapped(victim());
    assert_eq!((rig.usable(), rig.in_use(), rig.host_free()), (5, 95, 94));
    rig.evict_idle();
    assert_eq!((&rig.flushed[..], rig.usable()), (&[5][..], 5));
}

#[test]
fn scenario_040_coming_back_takes_the_same_number_of_blocks() {
    let mut rig = swapping_in(victim());
    assert_eq!(rig.moves(), [(Direction::In, 6)]);
    assert_eq!((rig.usable(), rig.host_free()), (94, 94));
    assert_eq!(rig.stats().moving_blocks, 6);
    rig.finish_copy(0);
    let stats = rig.stats();
    assert_eq!((stats.held_blocks, stats.private_blocks, stats.free_host_blocks), (5, 1, 100));
    assert_eq!(rig.usable(), 94);
    assert_eq!(rig.ids(), [VICTIM]);
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn scenario_041_a_full_last_block_needs_one_more() {
    let mut victim = victim();
    victim.prompt = text(82, 94);
    let rig = swapping_in(victim);
    assert_eq!(rig.moves(), [(Direction::In, 6)]);
    assert_eq!((rig.stats().private_blocks, rig.usable()), (1, 93));
}

#[test]
fn scenario_042_only_blocks_that_no_runner_reads_are_copied() {
    let rig = sharers_swapped();
    assert_eq!((rig.stats().swaps.swap_outs, rig.stats().swaps.swapped_out_blocks), (2, 1 + 4));
}

/// KsanaLLM: idle branches under the moved chain are dropped; here: they stay idle until evicted, because they cost nothing.
#[test]
fn scenario_043_the_last_reader_takes_the_shared_blocks_along() {
    let rig = sharers_swapped();
    assert_eq!(rig.host_free(), 95, "4 of the one, 1 of the other");
    let stats = rig.stats();
    assert_eq!((stats.swapped, stats.moving_blocks), (2, 0));
    assert_eq!((rig.in_use(), rig.usable(), stats.idle_blocks), (97, 3, 3));
}

/// KsanaLLM: a third request computed the blocks again; here: the first to come back brings them, because nothing is
/// admitted while requests are swapped out.
#[test]
fn scenario_044_a_swapped_request_reads_what_another_brought_back() {
    let mut rig = sharers_swapped();
    rig.evict_idle();
    rig.abort_now(5);
    assert_eq!(rig.moves(), [(Direction::In, 4)], "there is room for one of them");
    assert_eq!(rig.host_free(), 95);
    rig.finish_copy(0);
    assert_eq!((rig.host_free(), rig.stats().swapped), (99, 1), "the other keeps its own block there only");
    assert_eq!(rig.stats().swaps.found_blocks, 3, "the other reads the shared ones");
    rig.abort_now(2);
    assert_eq!(rig.moves(), [(Direction::In, 1)]);
    rig.finish_copy(0);
    assert_eq!(rig.host_free(), 100);
    rig.answer();
    assert_eq!(rig.ids(), [1, 3, 4]);
    assert_eq!(rig.tables[&3][..3], rig.tables[&4][..3]);
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn scenario_045_a_swapped_request_that_is_dropped_leaves_nothing() {
    let mut rig = sharers_swapped();
    rig.evict_idle();
    rig.abort_now(5);
    rig.finish_copy(0);
    let in_use = rig.in_use();
    rig.abort(4);
    assert_eq!((rig.host_free(), rig.in_use()), (100, in_use), "3 goes on reading the shared blocks");
    assert_eq!(rig.ends.last(), Some(&(4, FinishReason::Abort)));
}

/// KsanaLLM: tail to head; here: head to tail in one copy, because nothing is unlinked while it runs.
#[test]
fn scenario_046_a_copy_lists_blocks_in_the_order_of_the_table() {
    let out = swapping_out(victim());
    let (devices, hosts): (Vec<u32>, Vec<u32>) = out.copies[0].pairs.iter().copied().unzip();
    assert_eq!(devices, out.tables[&VICTIM]);
    let back = swapping_in(victim());
    assert_eq!(back.copies[0].pairs.iter().map(|(host, _)| *host).collect::<Vec<_>>(), hosts);
}

#[test]
fn scenario_047_too_small_a_host_means_recomputing() {
    let pressed = |host_blocks| {
        let mut rig = Driver::without_worker(Config { host_blocks, ..config() });
        submit_filler(&mut rig, 1, 94, 2);
        rig.submit_request(victim());
        rig.join();
        rig.answer_until(|rig| rig.stats().preemptions > 0);
        rig
    };
    assert_eq!(pressed(6).moves(), [(Direction::Out, 6)]);
    let rig = pressed(5);
    assert_eq!((rig.stats().swaps.swap_outs, rig.host_free(), rig.stats().waiting), (0, 5, 1));
    assert!(rig.copies.is_empty());
    assert_eq!(rig.stats().idle_blocks, 5, "its published blocks stay findable");
}

#[test]
fn scenario_048_blocks_that_a_runner_reads_stay_also_when_it_ends() {
    let mut rig = prefix_kept(630);
    assert_eq!(rig.stats().swaps.swapped_out_blocks, 40);
    // The filler takes a block each 16 tokens, so that the victim cannot come back at once.
    rig.answer_until(|rig| rig.usable() == 37);
    rig.abort_now(2);
    rig.evict_idle();
    assert_eq!(rig.in_use() as usize, rig.tables[&1].len() + 10, "10 are kept");
    rig.submit(4, fork(7, 160, 4, 8), 1);
    rig.abort_now(1);
    assert_eq!(rig.moves(), [(Direction::In, 40)], "the victim reads the 10 where they are");
    assert_eq!(rig.running(), [(4, 160, 8, true)], "and so does a new prompt");
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: the two directions exclude each other; here: they do not, because their blocks differ.
#[test]
fn scenario_049_both_directions_at_once() {
    let mut rig = both_ways();
    rig.finish_copy(1);
    rig.finish_copy(0);
    rig.run_to_end();
    rig.assert_empty();

    let mut rig = both_ways();
    rig.finish_copy(0);
    rig.finish_copy(0);
    rig.run_to_end();
    rig.assert_empty();
}

/// Two fillers, a small request (3) and the victim (4): the victim is on its way back.
pub fn before_both_ways() -> Driver {
    let mut rig = Driver::without_worker(config());
    submit_filler(&mut rig, 1, 50, 2);
    submit_filler(&mut rig, 2, 30, 10);
    rig.submit(3, text(3, 5 * 16 + 1), 60);
    rig.submit(5, text(5, 5 * 16 - 12), 60);
    rig.submit(4, text(4, 9 * 16 - 8), 60);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 9)]);
    rig.finish_copy(0);
    rig.evict_idle();
    rig.abort_now(5);
    assert_eq!(rig.moves(), [(Direction::In, 9)]);
    rig
}

/// Two fillers, a small request (3) that is being swapped out, and the victim (4) that is being swapped in.
pub fn both_ways() -> Driver {
    let mut rig = before_both_ways();
    rig.answer_until(|rig| rig.copies.len() == 2);
    assert_eq!(rig.moves()[1].0, Direction::Out);
    rig
}

/// KsanaLLM: frees c2; here: x keeps it, because who reads a block keeps it and all before it from being freed.
#[test]
fn scenario_050_blocks_kept_for_a_swapped_request_survive_the_swap_of_another() {
    let mut rig = Driver::without_worker(Config { swap_in_watermark: 2.0, ..config() });
    submit_filler(&mut rig, 1, 49, 3);
    submit_filler(&mut rig, 2, 43, 7);
    let (w, y, x) = (3, 4, 5);
    rig.submit(w, fork(3, 48, 6, 6), 60);
    rig.submit(y, fork(3, 32, 7, 22), 60);
    rig.submit(x, fork(3, 48, 8, 6), 60);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 1)], "x reads b0, b1, c2 on the device");
    rig.finish_copy(0);
    rig.abort_now(w);
    rig.evict_idle();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!((rig.copies.len(), rig.stats().swapped), (1, 2), "y goes, x has not come back");
    rig.finish_copy(0);
    rig.evict_idle();
    rig.answer();
    let fillers = rig.tables[&1].len() + rig.tables[&2].len();
    assert_eq!(rig.in_use() as usize, fillers + 3, "b0, b1 and c2 stay x's");
    rig.abort_now(2);
    rig.run_to_end();
    rig.assert_empty();
    assert!(rig.ends.contains(&(x, FinishReason::Length)) && rig.ends.contains(&(y, FinishReason::Length)));
}

/// KsanaLLM: loses three blocks; here: the second joins the copy of the first, because the host block is being read.
#[test]
fn scenario_051_two_that_come_back_at_once_copy_each_shared_block_once() {
    let mut rig = sharers_coming_back();
    let mut hosts: Vec<u32> = rig.copies.iter().flat_map(|copy| copy.pairs.iter().map(|(host, _)| *host)).collect();
    hosts.sort_unstable();
    hosts.dedup();
    assert_eq!((hosts.len(), rig.stats().moving_blocks), (5, 5));
    let others = rig.in_use() - 5;
    rig.finish_copy(1);
    assert_eq!(rig.stats().swapped, 2, "4 has its own block, and waits for the shared ones");
    rig.finish_copy(0);
    assert_eq!((rig.stats().swapped, rig.host_free(), rig.in_use()), (0, 100, others + 5));
    rig.answer();
    assert_eq!(rig.ids(), [1, 5, 3, 4]);
    assert_eq!(rig.tables[&3][..3], rig.tables[&4][..3]);
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: host blocks leak; here: both pools are full again, because every state has its way to end.
#[test]
fn scenario_052_a_swapped_request_that_ends_gives_its_host_blocks_back() {
    for timeout in [false, true] {
        let mut victim = victim();
        victim.deadline_ns = Some(1000);
        let mut rig = swapped(victim);
        let usable = rig.usable();
        if timeout {
            rig.now_ns = 1000;
            rig.event(trunkline_core::Event::Tick);
        } else {
            rig.abort(VICTIM);
        }
        let reason = if timeout { FinishReason::Timeout } else { FinishReason::Abort };
        assert_eq!(rig.ends, [(VICTIM, reason)]);
        assert_eq!((rig.host_free(), rig.usable(), rig.stats().swapped), (100, usable, 0));
        rig.run_to_end();
        rig.assert_empty();
    }
}

/// KsanaLLM: waits for the next arrival; here: comes back at once, because the end of a copy is an event like others.
#[test]
fn scenario_053_a_lone_request_on_its_way_out_comes_back() {
    let mut rig = swapping_out(victim());
    rig.abort(1);
    assert!(rig.has_ended(1) && rig.steps.is_empty());
    rig.finish_copy(0);
    assert_eq!(rig.moves(), [(Direction::In, 1)], "what is published is still on the device");
    rig.finish_copy(0);
    assert_eq!(rig.ids(), [VICTIM]);
    rig.run_to_end();
    rig.assert_empty();
    assert_eq!(rig.ends[1], (VICTIM, FinishReason::Length));
}
