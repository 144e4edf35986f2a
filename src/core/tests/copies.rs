//! Copies to and from tiers: which blocks, in which order, on which occasion.

use trunkline_core::{Config, Event, Namespace, Place, Preemption, Request, RequestId, TierConfig, Write};
use trunkline_driver::{Driver, prompt};

const BLOCK: u32 = 4;

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into(), shared: false }
}

fn config(tiers: Vec<TierConfig>) -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 12,
        max_batch_tokens: 200,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        tiers,
        ..Config::default()
    }
}

#[test]
fn what_a_preempted_request_finds_of_its_own_is_no_second_use() {
    for (preemption, host_blocks) in [(Preemption::Recompute, 0), (Preemption::Swap, 20)] {
        let limits = Config { preemption, host_blocks, ..config(vec![tier(100, Write::SecondUse)]) };
        let mut driver = Driver::new(limits);
        driver.submit(1, prompt(1, 20), 20);
        driver.submit(2, prompt(2, 17), 20);
        driver.answer_until(|driver| driver.stats().preemptions > 0);
        driver.run_to_end();
        let stats = driver.stats();
        let usage = driver.usages[&2];
        assert_eq!((usage.preemptions, usage.cached_tokens), (1, 0), "{preemption:?}: found at the first admission");
        assert!(
            stats.published_blocks < 9 + 9 + 4,
            "{preemption:?}: request 2 found blocks of its own again: {stats:?}"
        );
        assert_eq!(stats.tiers[0].stored_blocks, 0, "{preemption:?}");
        // What another request finds is a second use.
        let cached = driver.ask(3, prompt(2, 17));
        assert!(cached > 0, "{preemption:?}");
        assert_eq!(driver.stats().tiers[0].stored_blocks, u64::from(cached / BLOCK), "{preemption:?}");
    }
}

/// Takes every block of the device for a request that fails, so that nothing is left there.
fn overrun(driver: &mut Driver) {
    let id = 1000 + driver.ends.len() as u64;
    driver.submit(id, prompt(id as u32, 12 * BLOCK - 1), 1);
    assert_eq!(driver.stats().idle_blocks, 0, "all are taken");
    driver.event(Event::Fail(RequestId(id)));
    driver.run_to_end();
}

/// The only copy in flight: from, to, and the blocks at the source.
fn copy(driver: &Driver) -> (Place, Place, Vec<u32>) {
    let [copy] = &driver.copies[..] else { panic!("not one copy: {:?}", driver.copies) };
    (copy.from, copy.to, copy.pairs.iter().map(|(from, _)| *from).collect())
}

#[test]
fn through_copies_every_published_block_of_an_ended_request_tail_first() {
    let mut driver = Driver::new(config(vec![tier(20, Write::Through)]));
    driver.submit(1, prompt(1, 13), 1);
    let table = driver.tables[&1].clone();
    driver.answer();
    assert!(driver.has_ended(1), "an end does not wait for the copy");
    assert_eq!(copy(&driver), (Place::Device, Place::Tier(0), vec![table[2], table[1], table[0]]));
    assert_eq!((driver.stats().held_blocks, driver.stats().free_blocks), (3, 9));
    driver.finish_copy(0);
    assert_eq!((driver.stats().idle_blocks, driver.stats().free_blocks), (3, 9));
    // What the tier has is not copied again.
    driver.submit(2, prompt(1, 13), 1);
    driver.answer();
    assert!(driver.copies.is_empty());
    assert_eq!(driver.stats().tiers[0].stored_blocks, 3);
}

#[test]
fn through_copies_the_blocks_of_a_request_aborted_in_a_step_when_the_step_has_ended() {
    let mut driver = Driver::new(config(vec![tier(20, Write::Through)]));
    driver.submit(1, prompt(1, 13), 9);
    driver.answer();
    let table = driver.tables[&1].clone();
    driver.abort(1);
    assert!(driver.has_ended(1) && driver.copies.is_empty(), "a step in flight runs the request");
    driver.answer();
    assert_eq!(copy(&driver), (Place::Device, Place::Tier(0), vec![table[2], table[1], table[0]]));
    driver.run_to_end();
}

#[test]
fn blocks_that_another_core_waits_for_are_urgent() {
    for (continues, shared) in [(false, false), (false, true), (true, false), (true, true)] {
        let tier = TierConfig { shared, ..tier(100, Write::Through) };
        let mut driver = Driver::new(config(vec![tier]));
        let request = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 9), 1);
        driver.submit_request(Request { continues, ..request });
        (0..driver.lookups.len()).for_each(|_| driver.end_lookup(0));
        driver.answer();
        // No other core reads a tier that is not shared.
        let is_urgent: Vec<_> = driver.copies.iter().map(|copy| copy.is_urgent).collect();
        assert_eq!(is_urgent, [continues && shared], "{continues}, {shared}");
    }
}

#[test]
fn second_use_behind_a_tier_copies_what_was_found_in_that_tier() {
    let mut driver = Driver::new(config(vec![tier(20, Write::Through), tier(20, Write::SecondUse)]));
    driver.ask(1, prompt(1, 13));
    overrun(&mut driver);
    assert_eq!(driver.stats().tiers[1].stored_blocks, 0, "no use yet");
    driver.submit(2, prompt(1, 13), 1);
    let (from, to, near) = copy(&driver);
    assert_eq!((from, to, near.len()), (Place::Tier(0), Place::Device, 3));
    driver.finish_copy(0);
    assert_eq!(copy(&driver), (Place::Tier(0), Place::Tier(1), near), "the same blocks, in the same order");
    driver.run_to_end();
    let tiers = driver.stats().tiers;
    assert_eq!((tiers[0].hit_blocks, tiers[1].hit_blocks, tiers[1].stored_blocks), (3, 0, 3));
    assert_eq!(driver.usages[&2].cached_tokens, 12);
}

#[test]
fn through_behind_a_tier_copies_what_arrived_there() {
    let mut driver = Driver::new(config(vec![tier(20, Write::Through), tier(20, Write::Through)]));
    driver.submit(1, prompt(1, 13), 1);
    driver.answer();
    let near: Vec<u32> = driver.copies[0].pairs.iter().map(|(_, to)| *to).collect();
    driver.finish_copy(0);
    assert_eq!(copy(&driver), (Place::Tier(0), Place::Tier(1), near));
}

#[test]
fn blocks_in_a_far_tier_come_nearer_once_while_their_request_waits_for_room() {
    let mut driver = Driver::new(config(vec![tier(3, Write::Through), tier(50, Write::Through)]));
    driver.ask(1, prompt(1, 13));
    driver.ask(2, prompt(2, 13));
    let blocks = driver.stats().tiers.map(|tier| tier.blocks);
    assert_eq!(blocks[..2], [3, 6], "the near tier has the second prompt only");
    // A request that takes the whole device runs for three steps; there is no room for another.
    driver.submit(3, prompt(3, 45), 3);
    driver.submit(4, prompt(1, 14), 1);
    assert_eq!(driver.stats().waiting, 1);
    driver.answer();
    let (from, to, far) = copy(&driver);
    assert_eq!((from, to, far), (Place::Tier(1), Place::Tier(0), vec![0, 1, 2]), "the blocks of the first prompt");
    driver.answer();
    assert_eq!(driver.copies.len(), 1, "not again in the next pass");
    driver.finish_copy(0);
    // What fails is not stored, so it drives nothing out of the near tier.
    driver.event(Event::Fail(RequestId(3)));
    driver.run_to_end();
    let tiers = driver.stats().tiers;
    assert_eq!((tiers[0].hit_blocks, tiers[1].hit_blocks), (3, 0), "loaded from near");
    assert_eq!(driver.usages[&4].cached_tokens, 12);
}

#[test]
fn a_tier_continues_a_prefix_that_was_computed_again() {
    // Request n has the tokens 0, 1, 2 and so on, the first n of them as its prompt.
    let mut driver = Driver::new(config(vec![tier(20, Write::Through)])).saying(|id, n| id as u32 + n);
    let run = |driver: &mut Driver, n: u64, max_tokens: u32| {
        driver.submit(n, (0..n as u32).collect(), max_tokens);
        driver.run_to_end();
        driver.usages[&n].cached_tokens
    };
    assert_eq!(run(&mut driver, 9, 8), 0);
    assert_eq!(driver.stats().tiers[0].stored_blocks, 4);
    overrun(&mut driver);
    // Its prompt is shorter than a block, so it computes two blocks that the tier has too.
    assert_eq!(run(&mut driver, 2, 8), 0);
    assert_eq!((driver.stats().tiers[0].stored_blocks, driver.stats().idle_blocks), (4, 2));
    assert_eq!(run(&mut driver, 17, 1), 16, "two blocks on the device, then two in the tier");
    assert_eq!(driver.stats().tiers[0].hit_blocks, 2);
}

#[test]
fn a_prefix_written_back_block_by_block_is_found_whole_in_the_far_tier() {
    // The near tier has room for two blocks only.
    let limits = Config { device_blocks: 24, ..config(vec![tier(2, Write::Back), tier(40, Write::Through)]) };
    let mut driver = Driver::new(limits);
    driver.ask(1, prompt(1, 17));
    for id in 2..40 {
        driver.ask(id, prompt(id as u32, 5));
    }
    assert!(driver.stats().tiers[1].blocks >= 10, "{:?}", driver.stats().tiers);
    assert_eq!(driver.ask(50, prompt(1, 17)), 16);
    assert_eq!(driver.stats().tiers[1].hit_blocks, 4);
}

#[test]
fn a_decode_waits_for_blocks_that_a_store_is_about_to_free() {
    let mut driver = Driver::new(config(vec![tier(50, Write::Through)]));
    driver.submit(1, prompt(1, 29), 1);
    driver.answer();
    assert_eq!((driver.copies.len(), driver.stats().held_blocks, driver.usable()), (1, 7, 5));
    driver.submit(2, prompt(2, 7), 12);
    driver.submit(3, prompt(3, 10), 12);
    driver.answer_until(|driver| driver.ids() == [3]);
    assert_eq!((driver.stats().preemptions, driver.stats().running, driver.usable()), (0, 2, 0));
    driver.finish_copy(0);
    driver.answer();
    assert_eq!(driver.ids(), [2, 3]);
    driver.run_to_end();
    assert_eq!(driver.stats().preemptions, 0);
}

#[test]
fn write_back_takes_the_next_victims_once_few_blocks_are_free_and_counts_them_as_evicted() {
    let limits = Config { device_blocks: 16, ..config(vec![tier(50, Write::Back)]) };
    let mut driver = Driver::new(limits);
    driver.submit(1, prompt(1, 25), 1);
    let table = driver.tables[&1].clone();
    driver.run_to_end();
    driver.ask(2, prompt(2, 25));
    assert_eq!((driver.stats().idle_blocks, driver.stats().tiers[0].stored_blocks), (12, 0), "four blocks are free");
    driver.submit(3, prompt(3, 13), 3);
    assert_eq!((driver.usable(), driver.copies.len()), (12, 0));
    driver.answer();
    assert_eq!(
        copy(&driver),
        (Place::Device, Place::Tier(0), vec![table[5], table[4]]),
        "an eighth, the oldest tail first"
    );
    assert_eq!((driver.stats().evicted_blocks, driver.stats().moving_blocks), (0, 2));
    driver.finish_copy(0);
    assert_eq!((driver.stats().evicted_blocks, driver.stats().free_blocks), (2, 2));
}

#[test]
fn write_back_leaves_an_idle_block_for_each_running_request() {
    for (idle, copied) in [(1, 0), (2, 1), (3, 2), (5, 2)] {
        let mut driver = Driver::new(Config { device_blocks: 16, ..config(vec![tier(50, Write::Back)]) });
        driver.ask(1, prompt(1, idle * BLOCK + 1));
        driver.submit(2, prompt(2, (16 - idle) * BLOCK - 1), 4);
        assert_eq!((driver.stats().idle_blocks, driver.stats().free_blocks), (idle, 0));
        driver.answer();
        let blocks: usize = driver.copies.iter().map(|copy| copy.pairs.len()).sum();
        assert_eq!(blocks, copied, "{idle} idle blocks");
        driver.run_to_end();
        assert_eq!(driver.stats().preemptions, 0);
    }
}

#[test]
fn a_full_tier_keeps_what_was_found_in_it_if_its_policy_counts_hits() {
    for (eviction, cached) in [("lfu", 8), ("lru", 0)] {
        let near = TierConfig { eviction: eviction.into(), ..tier(4, Write::Through) };
        let mut driver = Driver::new(config(vec![near]));
        driver.ask(1, prompt(1, 9));
        overrun(&mut driver);
        assert_eq!(driver.ask(2, prompt(1, 9)), 8);
        (10..14).for_each(|id| _ = driver.ask(id, prompt(id as u32, 9)));
        overrun(&mut driver);
        assert_eq!(driver.ask(20, prompt(1, 9)), cached, "{eviction}");
    }
}

#[test]
fn a_failed_load_costs_the_blocks_from_its_first_on_and_no_block_before() {
    let mut driver = Driver::new(config(vec![tier(12, Write::Through), tier(100, Write::Through)]));
    driver.ask(1, prompt(1, 33));
    driver.ask(2, prompt(2, 41));
    driver.submit(3, prompt(1, 33), 1);
    assert_eq!(driver.copies.iter().map(|copy| copy.from).collect::<Vec<_>>(), [Place::Tier(0), Place::Tier(1)]);
    let far: Vec<u32> = driver.copies[1].pairs.iter().map(|(_, to)| *to).collect();
    driver.finish_copy(0);
    driver.fail_copy(0);
    let good = driver.tables[&3].iter().position(|block| far.contains(block)).unwrap() as u32;
    assert!(good >= 2, "the near tier had the head of the prompt");
    assert_eq!(driver.running(), [(3, good * BLOCK, 33 - good * BLOCK, true)]);
    driver.run_to_end();
}

#[test]
fn what_was_computed_after_a_flush_does_not_go_with_what_was_swapped_out_before() {
    let limits =
        Config { preemption: Preemption::Swap, host_blocks: 20, policy: "priority".into(), ..config(Vec::new()) };
    let mut driver = Driver::with_content(limits, 1);
    driver.join();
    let urgent = |id: u64, priority: i32, tokens: u32| {
        let root = Namespace::default().root();
        Request { priority, ..Request::new(RequestId(id), root, prompt(1, 20), tokens) }
    };
    driver.submit_request(urgent(1, 5, 12));
    driver.answer();
    driver.flush();
    // The second request computes the same prompt again, and takes the blocks of the first.
    driver.submit_request(urgent(2, -5, 16));
    driver.answer_until(|driver| driver.stats().preemptions > 0);
    driver.run_to_end();
    let swaps = driver.stats().swaps;
    assert!(swaps.swap_ins == 1 && swaps.swapped_out_blocks >= 6, "{swaps:?}");
    assert_eq!(swaps.swapped_in_blocks, swaps.swapped_out_blocks, "all come back, though the prompt is cached");
    driver.assert_all_said([1, 2]);
}
