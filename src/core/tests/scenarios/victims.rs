//! Choice of preemption victims, and of swapping or recomputation.

use trunkline_core::{Config, Preemption};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{BLOCK, config, submit_filler, text};
use crate::swap::before_both_ways;

/// A filler of 79 blocks takes those of a victim, the last to arrive, that has 20 full blocks and one with `tail` tokens.
fn press(rig: &mut Driver, round: u64, tail: u32) {
    let (filler, victim) = (2 * round + 1, 2 * round + 2);
    submit_filler(rig, filler, 79, 3);
    rig.submit(victim, text(victim as u32, 20 * BLOCK + tail - 3), 40);
    let before = rig.stats().preemptions;
    rig.answer_until(|rig| rig.stats().preemptions > before);
    rig.abort(filler);
    rig.run_to_end();
    assert_eq!(rig.usages[&victim].preemptions, 1);
}

fn costs(swap_block_ns: u64, recompute_token_ns: u64) -> Config {
    Config { preemption: Preemption::Cost, swap_block_ns, recompute_token_ns, ..config() }
}

#[test]
fn what_is_cheap_to_copy_is_swapped_and_what_is_dear_is_recomputed() {
    for (config, swapped) in [(costs(1, 1000), true), (costs(1_000_000, 1), false)] {
        let mut rig = Driver::new(config).timed();
        press(&mut rig, 0, 4);
        assert_eq!(rig.stats().swaps.swap_outs == 1, swapped);
        assert_eq!(rig.stats().preemptions, 1);
    }
    let mut rig = Driver::new(Config { host_blocks: 20, ..costs(1, 1000) }).timed();
    press(&mut rig, 0, 4);
    assert_eq!(rig.stats().swaps.swap_outs, 0, "21 blocks do not fit on the host");
}

#[test]
fn blocks_that_will_be_found_again_make_recomputing_cheap() {
    // 21 blocks out and back are 168. Of the 20 full ones half are expected back at first: 160 tokens, and the tail.
    let mut rig = Driver::new(costs(4, 1)).timed();
    press(&mut rig, 0, 15);
    assert_eq!(rig.stats().swaps.swap_outs, 1, "160 + 15 is more than 168");
    let mut rig = Driver::new(costs(4, 1)).timed();
    press(&mut rig, 0, 4);
    assert_eq!(rig.stats().swaps.swap_outs, 0, "160 + 4 is not");
    press(&mut rig, 1, 15);
    assert_eq!(rig.stats().swaps.swap_outs, 0, "all were found, so by now 11 are expected back");
    assert_eq!(rig.stats().preemptions, 2);
}

#[test]
fn a_prefill_that_has_done_little_is_cheaper_than_the_last_to_arrive() {
    for (preemption, runs_on) in [(Preemption::Cost, [1, 3]), (Preemption::Recompute, [1, 2])] {
        let mut rig = Driver::new(Config { max_batch_tokens: 100, host_blocks: 0, preemption, ..config() });
        submit_filler(&mut rig, 1, 10, 4);
        rig.answer_until(|rig| !rig.said(1).is_empty());
        rig.submit(2, text(2, 89 * BLOCK), 5);
        rig.submit(3, text(3, 2), 40);
        rig.answer_until(|rig| rig.stats().preemptions > 0);
        assert!(rig.said(2).is_empty(), "2 is still a prefill");
        assert_eq!(rig.ids(), runs_on, "{preemption:?}");
        rig.run_to_end();
        rig.assert_empty();
    }
}

#[test]
fn who_came_back_is_spared_until_it_has_said_something() {
    let short = steps_until_short();
    for (steps, victim) in [(short - 1, 3), (short - 3, 4)] {
        let mut rig = before_both_ways();
        (0..steps).for_each(|_| rig.answer());
        rig.finish_copy(0);
        rig.answer_until(|rig| !rig.copies.is_empty());
        assert_eq!(rig.moves()[0].0, Direction::Out);
        let device: Vec<u32> = rig.copies[0].pairs.iter().map(|(device, _)| *device).collect();
        assert!(rig.tables[&victim].starts_with(&device), "the victim is {victim}");
        rig.run_to_end();
        rig.assert_empty();
    }
}

/// Steps until a decode finds no block while 4 is on its way back.
fn steps_until_short() -> u32 {
    let mut rig = before_both_ways();
    for steps in 0.. {
        if rig.copies.len() == 2 {
            return steps;
        }
        rig.answer();
    }
    unreachable!()
}

#[test]
fn the_last_to_arrive_makes_way_for_the_first() {
    for preemption in [Preemption::Swap, Preemption::Recompute] {
        let mut rig = Driver::without_worker(Config { device_blocks: 8, preemption, ..config() });
        (1..=4).for_each(|id| rig.submit(id, text(id as u32, 30), 20));
        rig.join();
        rig.run_to_end();
        rig.assert_all_said(1..=4);
        rig.assert_empty();
        assert_eq!(rig.usages[&1].preemptions, 0, "{preemption:?}");
        assert!(rig.usages[&4].preemptions > 0, "{preemption:?}");
    }
}
