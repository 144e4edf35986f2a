//! Copies that are slow, hang, fail, or are in the way.

use trunkline_core::{
    Config, Event, FinishReason, Namespace, Place, Preemption, Request, RequestId, TierConfig, Token, Write,
};
use trunkline_driver::Driver;

/// Patience for copies; an event takes a nanosecond.
const TIMEOUT_NS: u64 = 1_000_000;
/// Longer than the pause after a first failure.
const PAUSE_NS: u64 = 2_000_000;

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into(), shared: false }
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

/// Two of twelve blocks are being stored, and the answer of request 2 takes blocks that the prompt of request 3, four tokens a step, had
/// room for at admission.
fn prompt_beside_a_store(output: u32) -> Driver {
    let limits = Config { reserve_prompts: false, max_batch_tokens: 8, max_batch_size: 4, ..config() };
    let mut rig = Driver::new(limits);
    rig.submit(1, tokens(0, 9), 1);
    rig.answer_until(|rig| rig.has_ended(1));
    assert_eq!((rig.copies.len(), rig.copies[0].pairs.len()), (1, 2));
    rig.submit(2, tokens(100, 4), output);
    rig.answer();
    rig.submit(3, tokens(200, 32), 1);
    rig
}

#[test]
fn a_prompt_without_blocks_gives_its_own_up_rather_than_have_the_device_wait_for_a_store() {
    let mut rig = prompt_beside_a_store(28);
    while !rig.has_ended(2) {
        assert!(!rig.steps.is_empty(), "the device waits for the store alone: {:?}", rig.stats());
        rig.answer();
    }
    assert!(rig.stats().preemptions > 0 && rig.copies[0].pairs.len() == 2);
    rig.run_to_end();
    rig.assert_all_said(1..=3);
}

#[test]
fn a_prompt_alone_waits_for_blocks_that_a_store_frees() {
    let mut rig = prompt_beside_a_store(9);
    rig.answer_until(|rig| rig.steps.is_empty());
    assert_eq!((rig.stats().preemptions, rig.stats().running, rig.has_ended(2)), (0, 1, true));
    (0..rig.copies.len()).for_each(|_| rig.finish_copy(0));
    assert_eq!((rig.ids(), rig.stats().preemptions), (vec![3], 0), "it goes on where it was");
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
            // Else its blocks are found on the device.
            rig.evict_idle();
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
fn a_request_on_the_host_is_recomputed_while_the_copy_of_another_hangs() {
    let limits = Config { device_blocks: 13, host_blocks: 50, preemption: Preemption::Swap, ..config() };
    let mut rig = Driver::without_worker(Config { tiers: Vec::new(), ..limits });
    rig.submit(1, tokens(100, 20), 8);
    rig.submit(2, tokens(200, 20), 8);
    rig.submit(3, tokens(300, 9), 8);
    rig.join();
    // The first block that is missing takes 3 to the host, the next one 2, whose copy hangs.
    rig.answer_until(|rig| !rig.copies.is_empty());
    rig.finish_copy(0);
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!((rig.stats().swapped, rig.stats().swaps.swap_outs), (2, 2));
    pass_timeout(&mut rig);
    rig.answer();
    assert_eq!(rig.stats().swapped, 0, "3 does not wait for a copy from a host that does not answer");
    rig.answer_until(|rig| rig.ends.len() == 3);
    assert_eq!((rig.copies.len(), rig.stats().swaps.swap_ins), (1, 0), "all have ended during the copy");
    rig.submit(4, tokens(400, 9), 16);
    rig.submit(5, tokens(500, 9), 16);
    rig.answer_until(|rig| rig.ends.len() == 5);
    let stats = rig.stats();
    assert_eq!((rig.copies.len(), stats.swaps.swap_outs), (1, 2), "and nobody leaves for the host");
    assert_eq!(stats.preemptions, 3);
    rig.finish_copy(0);
    rig.run_to_end();
    rig.assert_all_said([1, 2, 3, 4, 5]);
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

#[test]
fn a_bad_block_leaves_its_tier_and_is_not_loaded_again() {
    let mut rig = loading(config());
    rig.fail_copy(0);
    rig.run_to_end();
    rig.now_ns += PAUSE_NS;
    let mut loads = 0;
    for round in 1..5 {
        // Pushed off the device by requests whose prompts the tier keeps.
        ask(&mut rig, 100 + u64::from(round), tokens(1000 * round + 1000, 45));
        rig.submit(200 + u64::from(round), tokens(0, 17), 1);
        loads += u32::from(rig.copies.iter().any(|copy| copy.to == Place::Device));
        rig.run_to_end();
    }
    assert_eq!(rig.stats().swaps.failed_transfers, 1);
    assert_eq!(loads, 4, "the recomputed blocks were stored instead of the bad ones");
}

#[test]
fn a_request_waits_for_a_load_about_as_long_as_for_its_own_prompt_and_no_longer() {
    const STEP_NS: u64 = 10_000_000;
    let mut rig = Driver::new(Config { copy_timeout_ns: 30_000_000_000, ..config() });
    for (id, from, n) in [(0, 0, 17), (1, 1000, 45)] {
        rig.submit(id, tokens(from, n), 1);
        rig.now_ns += STEP_NS;
        rig.answer_until(|rig| rig.has_ended(id));
        (0..rig.copies.len()).for_each(|_| rig.finish_copy(0));
    }
    rig.submit(2, tokens(0, 17), 3);
    assert_eq!((rig.stats().loading, rig.copies[0].from), (1, Place::Tier(0)));
    let wait_ns = rig.core.next_deadline_ns().expect("the load has an end") - rig.now_ns;
    assert!((STEP_NS / 8..2 * STEP_NS).contains(&wait_ns), "{wait_ns} ns where a prompt takes {STEP_NS}");
    rig.now_ns += wait_ns;
    rig.event(Event::Tick);
    assert_eq!(rig.running(), [(2, 0, 17, true)], "it is computed");
    rig.finish_copy(0);
    rig.run_to_end();
}

/// Has a request of ten tokens stored in each of a hundred milliseconds, and lets each store end as `end` says. Returns the number of stores.
fn stores(end: fn(&mut Driver)) -> usize {
    let mut rig = Driver::new(config());
    let mut n = 0;
    for id in 0..100 {
        rig.submit(id, tokens(id as u32 * 50, 10), 1);
        rig.answer_until(|rig| rig.has_ended(id));
        n += rig.copies.len();
        while !rig.copies.is_empty() {
            end(&mut rig);
        }
        rig.now_ns += 1_000_000;
        rig.event(Event::Tick);
    }
    n
}

#[test]
fn a_tier_whose_copies_fail_or_come_late_is_tried_ever_more_seldom_and_one_that_works_always() {
    let late = |rig: &mut Driver| {
        rig.now_ns += 2 * TIMEOUT_NS;
        rig.event(Event::Tick);
        rig.finish_copy(0);
    };
    assert_eq!(stores(|rig| rig.finish_copy(0)), 100);
    for (name, end) in [
        ("failed", (|rig| rig.fail_copy(0)) as fn(&mut Driver)),
        ("interrupted", |rig| rig.interrupt_copy(0)),
        ("late", late),
    ] {
        let n = stores(end);
        // Pauses of 1, 2, 4, ... 64 ms.
        assert!((4..=8).contains(&n), "{n} copies {name}");
    }
}

#[test]
fn a_block_whose_copy_was_interrupted_on_the_way_stays_in_its_tier() {
    let mut rig = loading(config());
    let stored = rig.stats().tiers[0].blocks;
    rig.interrupt_copy(0);
    assert_eq!((rig.stats().tiers[0].blocks, rig.stats().loading), (stored, 0));
    assert_eq!(rig.running(), [(2, 0, 17, true)]);
    rig.run_to_end();
}

#[test]
fn of_several_loads_the_leading_blocks_that_arrived_are_kept() {
    let tiers = vec![tier(12, Write::Through), tier(100, Write::Through)];
    // The first block is on the device, the second in the near tier, the rest in the far one.
    for (fails, runs) in [(Place::Tier(1), (2, 8, 25, true)), (Place::Tier(0), (2, 4, 29, true))] {
        let mut rig = Driver::new(Config { tiers: tiers.clone(), ..config() });
        ask(&mut rig, 0, tokens(0, 33));
        ask(&mut rig, 1, tokens(1000, 41));
        rig.submit(2, tokens(0, 33), 1);
        let mut loads: Vec<(Place, usize)> = rig.copies.iter().map(|copy| (copy.from, copy.pairs.len())).collect();
        loads.sort_unstable();
        assert_eq!(loads, [(Place::Tier(0), 1), (Place::Tier(1), 6)]);
        while let Some(copy) = rig.copies.first() {
            if copy.from == fails { rig.fail_copy(0) } else { rig.finish_copy(0) }
        }
        assert_eq!(rig.running(), [runs]);
        rig.run_to_end();
    }
}

#[test]
fn leading_blocks_that_arrived_before_an_abort_are_found_by_the_next() {
    let tiers = vec![tier(12, Write::Through), tier(100, Write::Through)];
    let loads = |rig: &Driver| {
        let mut loads: Vec<(Place, usize)> = rig.copies.iter().map(|copy| (copy.from, copy.pairs.len())).collect();
        loads.sort_unstable();
        loads
    };
    // The first block is on the device, the second in the near tier, the rest in the far one.
    // The test's clock says nothing of costs: loading always pays.
    let mut rig = Driver::new(Config { tiers, recompute_token_ns: 1 << 40, ..config() });
    ask(&mut rig, 0, tokens(0, 33));
    ask(&mut rig, 1, tokens(1000, 41));
    rig.submit(2, tokens(0, 33), 1);
    assert_eq!(loads(&rig), [(Place::Tier(0), 1), (Place::Tier(1), 6)]);
    let near = rig.copies.iter().position(|copy| copy.from == Place::Tier(0)).expect("a load from the near tier");
    rig.finish_copy(near);
    rig.abort(2);
    rig.run_to_end();
    rig.submit(3, tokens(0, 33), 1);
    assert_eq!(loads(&rig), [(Place::Tier(1), 6)], "the second block is on the device");
    rig.run_to_end();
}

#[test]
fn a_load_that_takes_longer_than_computing_is_left_out() {
    let mut rig = Driver::new(Config { swap_block_ns: 50_000, recompute_token_ns: 1_000, ..config() });
    ask(&mut rig, 0, tokens(0, 17));
    ask(&mut rig, 1, tokens(1000, 45));
    rig.submit(2, tokens(0, 17), 1);
    assert_eq!(
        (rig.stats().loading, rig.running()),
        (0, vec![(2, 0, 17, true)]),
        "4 us to compute a block, 50 to load it"
    );
    rig.run_to_end();
}

/// Asks for the prompt in the tier, where every load takes 100 us and a step 1 us for each token. Returns `true` if it was loaded.
fn loads_slowly(rig: &mut Driver, id: u64) -> bool {
    rig.evict_idle();
    rig.submit(id, tokens(0, 17), 1);
    let loads = rig.stats().loading == 1;
    if loads {
        rig.now_ns += 100_000;
        rig.finish_copy(0);
    }
    while let Some(step) = rig.steps.front() {
        rig.now_ns += u64::from(step.n_tokens()) * 1_000;
        rig.answer();
    }
    rig.run_to_end();
    loads
}

#[test]
fn a_tier_whose_loads_proved_slow_is_tried_again_now_and_then() {
    let mut rig = Driver::new(Config { swap_block_ns: 300, recompute_token_ns: 1_000, ..config() });
    ask(&mut rig, 0, tokens(0, 17));
    let loads: Vec<bool> = (10..500).map(|id| loads_slowly(&mut rig, id)).collect();
    let runs: Vec<(bool, usize)> = loads.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    // A trial takes about 100 us longer than expected. In between, requests compute for 16 times as long, 16 us each.
    assert_eq!(runs[..4], [(true, 5), (false, 102), (true, 1), (false, 101)]);
}

/// Sixty-four blocks on the device, and a tier that takes blocks about to be evicted: the first three blocks of prompt 500.. are on
/// their way there.
fn demoting() -> Driver {
    let tiers = vec![tier(100, Write::Back)];
    let mut rig = Driver::new(Config { device_blocks: 64, tiers, ..config() });
    rig.submit(7, tokens(500, 13), 1);
    rig.answer();
    rig.submit(0, tokens(0, 233), 1);
    rig.answer();
    rig.submit(1, tokens(900, 2), 9);
    assert_eq!((rig.copies.len(), rig.copies[0].from), (1, Place::Device));
    assert!(rig.copies[0].pairs.len() >= 3);
    rig
}

#[test]
fn a_block_is_found_while_it_is_written_back_and_stays_on_the_device_then() {
    let mut rig = demoting();
    rig.submit(2, tokens(500, 13), 1);
    rig.answer();
    assert!(rig.running().contains(&(2, 12, 1, true)), "{:?}", rig.running());
    rig.answer_until(|rig| rig.has_ended(2));
    rig.finish_copy(0);
    rig.submit(3, tokens(500, 13), 1);
    rig.answer();
    assert!(rig.running().contains(&(3, 12, 1, true)) && rig.stats().loading == 0, "{:?}", rig.running());
    rig.run_to_end();
    assert!(rig.all_blocks_usable());
}

#[test]
fn a_block_whose_write_back_fails_is_in_the_cache_again() {
    let mut rig = demoting();
    let idle = rig.stats().idle_blocks;
    let demoted = rig.copies[0].pairs.len() as u32;
    rig.fail_copy(0);
    // The next write-back may have begun at once.
    let moving = rig.stats().moving_blocks;
    assert_eq!(rig.stats().idle_blocks + moving, idle + demoted);
    rig.submit(2, tokens(500, 13), 1);
    rig.answer();
    assert!(rig.running().contains(&(2, 12, 1, true)), "{:?}", rig.running());
    rig.run_to_end();
    assert!(rig.all_blocks_usable());
}

#[test]
fn nothing_computed_before_a_flush_is_found_after_it() {
    // A request that runs, and its prefix in the cache; another whose prompt is being stored.
    let mut rig = Driver::new(Config { device_blocks: 40, ..config() });
    rig.submit(1, tokens(1000, 17), 1);
    rig.answer();
    assert_eq!(rig.copies.len(), 1);
    rig.submit(2, tokens(0, 9), 20);
    rig.answer();
    rig.flush();
    rig.finish_copy(0);
    assert_eq!(rig.stats().tiers[0].blocks, 0, "what was on its way to the tier is gone");
    rig.submit(3, tokens(0, 9), 20);
    rig.submit(4, tokens(1000, 17), 1);
    rig.answer();
    assert!(
        rig.running().contains(&(3, 0, 9, true)) && rig.running().contains(&(4, 0, 17, true)),
        "{:?}",
        rig.running()
    );
    rig.answer_until(|rig| rig.has_ended(2));
    let stored: usize = rig.copies.iter().map(|copy| copy.pairs.len()).sum();
    assert_eq!(stored, 4, "of 4; nothing of 2 is stored or cached");
    rig.run_to_end();
    rig.submit(5, tokens(0, 9), 1);
    assert_eq!(rig.running(), [(5, 8, 1, true)], "what 3 computed since is found");
    rig.run_to_end();
    assert!(rig.all_blocks_usable());
}

#[test]
fn swapped_requests_that_do_not_fit_beside_a_copy_that_hangs_are_not_held_up_by_it() {
    let config = Config {
        device_blocks: 18,
        host_blocks: 40,
        preemption: Preemption::Swap,
        // Nobody comes back while another runs.
        swap_in_watermark: 100.0,
        ..config()
    };
    let mut rig = Driver::new(config);
    let (one, other) = (tokens(100, 17), tokens(200, 17));
    rig.submit(1, tokens(0, 9), 30);
    rig.submit(2, one.clone(), 8);
    rig.submit(3, other.clone(), 8);
    rig.answer_until(|rig| rig.stats().published_blocks >= 10);
    rig.submit(4, [one, tokens(300, 4)].concat(), 40);
    rig.submit(5, [other, tokens(400, 4)].concat(), 40);
    // Requests 4 and 5 leave for the host, and keep the four blocks each that they share with requests 2 and 3.
    while !rig.has_ended(1) {
        match rig.copies.is_empty() {
            true => rig.answer(),
            false => rig.finish_copy(0),
        }
    }
    assert_eq!((rig.stats().swapped, rig.steps.len(), rig.copies.len()), (2, 0, 1), "{:?}", rig.stats());
    assert_eq!(rig.copies[0].to, Place::Tier(0), "what request 1 computed is stored, and the store hangs");
    pass_timeout(&mut rig);
    assert_eq!(rig.stats().swapped, 1, "request 5 gives its blocks up, and request 4 comes back");
    rig.finish_copy(1);
    rig.answer();
    assert_eq!((rig.ids(), rig.copies.len()), (vec![4], 1), "request 4 is back, and runs");
    rig.finish_copy(0);
    rig.run_to_end();
    rig.assert_all_said(1..=5);
}
