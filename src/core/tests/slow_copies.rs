//! Copies that are slow, hang, fail, or are in the way.

use trunkline_core::{
    Config, Event, FinishReason, Namespace, Place, Preemption, Request, RequestId, TierConfig, Token, Write,
};
use trunkline_driver::Driver;

/// Patience for copies; an event takes a nanosecond.
const TIMEOUT_NS: u64 = 1_000_000;

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into() }
}

/// Twelve blocks of four tokens on the device, and one tier.
fn config() -> Config {
    Config {
        block_size: 4,
        device_blocks: 12,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        tiers: vec![tier(100, Write::Through)],
        copy_timeout_ns: TIMEOUT_NS,
        ..Config::default()
    }
}

fn tokens(from: u32, n: u32) -> Vec<Token> {
    (from..from + n).collect()
}

#[test]
fn a_store_that_others_read_too_frees_nothing_and_is_not_waited_for() {
    let mut rig = Driver::new(Config { host_blocks: 50, preemption: Preemption::Swap, ..config() });
    rig.submit(1, tokens(0, 9), 1);
    rig.answer();
    assert_eq!(rig.copies.len(), 1, "the prompt of 1 is being stored");
    rig.submit(2, tokens(100, 20), 20);
    rig.submit(3, tokens(0, 9), 30);
    while !(rig.has_ended(2) && rig.has_ended(3)) {
        if !rig.steps.is_empty() {
            rig.answer();
        } else {
            assert!(rig.copies.len() > 1, "the device waits for the store alone: {:?}", rig.stats());
            rig.finish_copy(1);
        }
    }
    assert!(rig.stats().swaps.swap_outs > 0);
    rig.run_to_end();
}

#[test]
fn decodes_do_not_all_wait_for_a_store_that_frees_blocks_at_its_end() {
    let mut rig = Driver::new(config());
    rig.submit(1, tokens(0, 9), 1);
    rig.answer();
    assert_eq!((rig.copies.len(), rig.copies[0].pairs.len()), (1, 2));
    // Five blocks each, and both need a sixth in the same step.
    rig.submit(2, tokens(100, 19), 8);
    rig.submit(3, tokens(200, 19), 8);
    while rig.ends.len() < 3 {
        assert!(!rig.steps.is_empty(), "the device idles behind the store: {:?}", rig.stats());
        rig.answer();
        if rig.copies.len() > 1 {
            rig.finish_copy(1);
        }
    }
    assert!(rig.stats().preemptions > 0 && rig.copies[0].pairs.len() == 2, "the first store is still under way");
    rig.run_to_end();
    rig.assert_all_said(1..=3);
}

/// Runs a request of one output token to its end. Returns the prompt tokens found in the cache.
fn ask(rig: &mut Driver, id: u64, prompt: Vec<Token>) -> u32 {
    rig.submit(id, prompt, 1);
    rig.run_to_end();
    rig.usages[&id].cached_tokens
}

/// Lets the time of the copies in flight run out.
fn pass_timeout(rig: &mut Driver) {
    let due_ns = rig.core.next_deadline_ns().expect("a copy in flight has a deadline");
    assert_eq!(due_ns / TIMEOUT_NS, (rig.now_ns + TIMEOUT_NS) / TIMEOUT_NS, "the copies began just now");
    rig.now_ns = due_ns + 1000;
    rig.event(Event::Tick);
}

/// A driver with the first four blocks of prompt 0.. in a tier and not on the device, and request 2, which loads them.
fn loading(config: Config) -> Driver {
    let mut rig = Driver::new(config);
    ask(&mut rig, 0, tokens(0, 17));
    ask(&mut rig, 1, tokens(1000, 45));
    rig.submit(2, tokens(0, 17), 3);
    assert_eq!((rig.stats().loading, rig.copies.len(), rig.copies[0].from), (1, 1, Place::Tier(0)));
    rig
}

#[test]
fn a_load_that_hangs_turns_into_recomputation_in_other_blocks() {
    let mut rig = loading(config());
    let taken: Vec<u32> = rig.copies[0].pairs.iter().map(|(_, to)| *to).collect();
    pass_timeout(&mut rig);
    assert_eq!(rig.running(), [(2, 0, 17, true)], "all of the prompt is computed");
    assert_eq!((rig.stats().moving_blocks, rig.core.next_deadline_ns()), (4, None), "the copy may still write");
    assert!(rig.tables[&2].iter().all(|block| !taken.contains(block)), "{:?} and {taken:?}", rig.tables[&2]);
    rig.answer_until(|rig| rig.has_ended(2));
    assert_eq!(rig.usages[&2].cached_tokens, 0);
    rig.finish_copy(0);
    rig.run_to_end();
    assert!(rig.all_blocks_usable());
}

#[test]
fn a_tier_with_a_hung_copy_is_left_alone_until_the_copy_ends() {
    let mut rig = loading(config());
    pass_timeout(&mut rig);
    rig.answer_until(|rig| rig.has_ended(2));
    rig.submit(3, tokens(2000, 21), 1);
    rig.answer_until(|rig| rig.has_ended(3));
    assert_eq!(rig.copies.len(), 1, "nothing is stored there");
    rig.flush();
    rig.submit(4, tokens(0, 17), 1);
    assert_eq!((rig.stats().loading, rig.copies.len()), (0, 1), "nothing is loaded from there");
    rig.answer();
    rig.finish_copy(0);
    rig.submit(5, tokens(3000, 21), 1);
    rig.answer();
    assert_eq!(rig.copies.len(), 1, "the tier takes blocks again");
    rig.run_to_end();
}

#[test]
fn a_request_that_loads_from_a_hung_tier_ends_at_its_deadline_and_on_an_abort() {
    let mut rig = loading(config());
    let mut hurried = Request::new(RequestId(3), Namespace::default().root(), tokens(0, 17), 3);
    hurried.deadline_ns = Some(rig.now_ns + 500);
    rig.submit_request(hurried);
    assert_eq!(rig.core.next_deadline_ns(), Some(rig.now_ns + 499));
    rig.now_ns += 600;
    rig.event(Event::Tick);
    rig.abort(2);
    assert_eq!((rig.reason(3), rig.reason(2)), (Some(FinishReason::Timeout), Some(FinishReason::Abort)));
    rig.run_to_end();
    assert!(rig.all_blocks_usable());
}

#[test]
fn a_swap_that_hangs_in_either_direction_turns_into_recomputation() {
    for is_out in [true, false] {
        // Six blocks each, and one for the seventh of both.
        let limits = Config { device_blocks: 13, host_blocks: 50, preemption: Preemption::Swap, ..config() };
        let mut rig = Driver::new(Config { tiers: Vec::new(), ..limits });
        rig.submit(1, tokens(100, 20), 8);
        rig.submit(2, tokens(200, 20), 8);
        rig.answer_until(|rig| !rig.copies.is_empty());
        if !is_out {
            rig.finish_copy(0);
            rig.answer_until(|rig| !rig.copies.is_empty());
        }
        assert_eq!(rig.copies[0].from == Place::Device, is_out);
        pass_timeout(&mut rig);
        assert_eq!(rig.stats().swapped, 0, "out {is_out}");
        rig.answer_until(|rig| rig.has_ended(1));
        let hung = rig.copies.len();
        assert_eq!(hung, 1, "no other copy begins with the host");
        rig.finish_copy(0);
        rig.run_to_end();
        rig.assert_empty();
        rig.assert_all_said([1, 2]);
    }
}

#[test]
fn drained_waits_for_what_is_being_stored_but_not_for_a_copy_that_hangs() {
    for hangs in [false, true] {
        let mut rig = Driver::new(config());
        rig.submit(1, tokens(0, 17), 1);
        rig.event(Event::Drain);
        rig.answer();
        assert_eq!((rig.copies.len(), rig.drained), (1, 0));
        if hangs {
            pass_timeout(&mut rig)
        } else {
            rig.finish_copy(0)
        }
        assert_eq!(rig.drained, 1);
    }
}

#[test]
fn a_worker_that_joins_in_place_of_another_has_none_of_its_kv() {
    let mut rig = Driver::new(Config { tiers: Vec::new(), ..config() });
    ask(&mut rig, 1, tokens(0, 9));
    rig.submit(2, tokens(0, 9), 5);
    rig.join();
    assert_eq!(rig.running(), [(2, 0, 9, true)], "nothing is there, and the step is run again");
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
}
