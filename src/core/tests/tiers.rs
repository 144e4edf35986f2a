//! The tiers of the prefix cache behind the device, with a worker whose cells carry their contents.

use trunkline_core::request::retention::TO_END;
use trunkline_core::{
    BlockFault, Config, Event, FinishReason, Namespace, Place, Preemption, Request, RequestId, RetentionHint,
    TierConfig, Token, Write, eviction,
};
use trunkline_driver::Driver;

/// Tokens in a block.
const BLOCK: u32 = 4;
const DEVICE_BLOCKS: u32 = 48;

fn tier(blocks: u32, write: Write, eviction: &str) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: eviction.into(), shared: false }
}

/// Forty-eight blocks on the device, and these tiers.
fn config(tiers: Vec<TierConfig>) -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: DEVICE_BLOCKS,
        max_batch_tokens: 200,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        // The test's clock says nothing of costs: loading always pays.
        recompute_token_ns: 1 << 40,
        tiers,
        ..Config::default()
    }
}

/// A prompt of its own kind.
fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|i| (kind * 131 + i * 7 + kind * i) % 997).collect()
}

/// Creates a core whose requests generate what the worker's cells say.
fn joined(config: Config) -> Driver {
    let mut rig = Driver::with_content(config, 1);
    rig.join();
    rig
}

/// Runs a request to its end; gives the tokens of its prompt that were in the cache.
fn ask(rig: &mut Driver, id: u64, prompt: Vec<Token>) -> u32 {
    rig.submit(id, prompt, 1);
    rig.run_to_end();
    assert!(rig.refusals.is_empty() && rig.resets == 0);
    rig.usages[&id].cached_tokens
}

/// Asks many other things, a block each, so that what was on the device is gone from it, and slowly enough for
/// writing back.
fn overrun(rig: &mut Driver) {
    for _ in 0..DEVICE_BLOCKS + 4 {
        let id = 1000 + rig.ends.len() as u64;
        ask(rig, id, prompt(id as u32, BLOCK + 1));
    }
}

#[test]
fn what_the_device_evicted_comes_back_from_the_tier() {
    for write in [Write::Through, Write::Back] {
        let mut rig = joined(config(vec![tier(100, write, "lru")]));
        assert_eq!(ask(&mut rig, 1, prompt(1, 33)), 0);
        overrun(&mut rig);
        assert!(ask(&mut rig, 4, prompt(1, 33)) > 0, "{write:?}: {:?}", rig.core.stats());
        assert!(rig.core.stats().tiers[0].hit_blocks > 0);
    }
    let mut rig = joined(config(Vec::new()));
    ask(&mut rig, 1, prompt(1, 33));
    overrun(&mut rig);
    assert_eq!(ask(&mut rig, 3, prompt(1, 33)), 0, "without a tier it is gone");
}

/// Runs a request whose tokens from `from` on are to leave the device; gives the tokens of its prompt that were in the cache.
fn ask_demoting(rig: &mut Driver, id: u64, prompt: Vec<Token>, from: u32) -> u32 {
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 1);
    request.retention = vec![RetentionHint { from, to: TO_END, priority: 0, ttl_ns: 0, demote: true, pin: false }];
    rig.submit_request(request);
    rig.run_to_end();
    rig.usages[&id].cached_tokens
}

#[test]
fn a_demoted_request_leaves_the_device_for_the_tier_at_once_and_is_found_there() {
    for write in Write::ALL.map(|(_, write)| write) {
        let mut rig = joined(config(vec![tier(100, write, "lru")]));
        ask(&mut rig, 1, prompt(1, 33));
        let stored = rig.core.stats().tiers[0].stored_blocks;
        assert_eq!(rig.stats().idle_blocks, 8, "{write:?}");
        assert_eq!(ask_demoting(&mut rig, 2, prompt(2, 33), 8), 0);
        let stats = rig.stats();
        // Two blocks lie before the range.
        assert_eq!((stats.idle_blocks, stats.moving_blocks), (10, 0), "{write:?}");
        let demoted = stats.tiers[0].stored_blocks - stored;
        assert!(
            demoted == 6 || (demoted == 8 && matches!(write, Write::Through | Write::Prefill)),
            "{write:?}: {demoted}"
        );
        assert_eq!(ask(&mut rig, 3, prompt(2, 33)), 32, "{write:?}");
        assert_eq!(rig.stats().tiers[0].hit_blocks, 6, "{write:?}");
    }
}

#[test]
fn what_another_request_used_without_a_hint_is_not_demoted_nor_is_anything_without_a_tier() {
    let mut rig = joined(config(vec![tier(100, Write::Back, "lru")]));
    ask(&mut rig, 1, prompt(1, 33));
    assert_eq!(ask_demoting(&mut rig, 2, prompt(1, 33), 0), 32);
    assert_eq!((rig.stats().idle_blocks, rig.stats().tiers[0].stored_blocks), (8, 0));
    // The other way round: it comes back, and stays.
    ask_demoting(&mut rig, 3, prompt(3, 33), 0);
    assert_eq!((rig.stats().idle_blocks, rig.stats().tiers[0].stored_blocks), (8, 8));
    assert_eq!(ask(&mut rig, 4, prompt(3, 33)), 32);
    assert_eq!(ask_demoting(&mut rig, 5, prompt(3, 33), 0), 32);
    assert_eq!(rig.stats().idle_blocks, 16);
    let mut rig = joined(config(Vec::new()));
    ask_demoting(&mut rig, 1, prompt(1, 33), 0);
    assert_eq!(rig.stats().idle_blocks, 8);
    // These are the first to be evicted.
    ask(&mut rig, 2, prompt(2, 4 * 42));
    assert_eq!((rig.stats().idle_blocks, ask(&mut rig, 3, prompt(2, 4 * 42)) > 0), (42 + 6, true));
}

#[test]
fn blocks_on_their_way_to_the_tier_are_found_and_a_failed_copy_leaves_them_on_the_device() {
    let mut rig = joined(config(vec![tier(100, Write::Back, "lru")]));
    let mut request = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 33), 1);
    request.retention = vec![RetentionHint { from: 0, to: TO_END, priority: 0, ttl_ns: 0, demote: true, pin: false }];
    rig.submit_request(request);
    while rig.copies.is_empty() {
        rig.answer();
    }
    assert_eq!((rig.copies[0].pairs.len(), rig.stats().idle_blocks), (8, 0));
    // A prompt that continues meanwhile finds the blocks on their way.
    assert_eq!(ask(&mut rig, 2, prompt(1, 33)), 32);
    assert_eq!(rig.stats().idle_blocks, 8);
    ask_demoting(&mut rig, 3, prompt(3, 33), 0);
    let mut request = Request::new(RequestId(4), Namespace::default().root(), prompt(4, 33), 1);
    request.retention = vec![RetentionHint { from: 0, to: TO_END, priority: 0, ttl_ns: 0, demote: true, pin: false }];
    rig.submit_request(request);
    while rig.copies.is_empty() {
        rig.answer();
    }
    rig.interrupt_copy(0);
    // They are back for a moment, and tried again without a hint: nobody's wish outlives the copy.
    assert_eq!(rig.stats().idle_blocks + rig.stats().moving_blocks, 16);
}

/// Requests of eight blocks each that all end before any of their copies does.
fn five_at_once(rig: &mut Driver) {
    (1..=5).for_each(|id| rig.submit(id, prompt(id as u32, 33), 1));
    while !rig.live.is_empty() {
        rig.answer();
    }
}

#[test]
fn a_small_tier_passes_all_blocks_on_to_the_one_behind_it() {
    for write in [Write::Through, Write::Prefill] {
        for blocks in [1, 3, 4, 7, 60] {
            let mut rig = joined(config(vec![tier(blocks, write, "lru"), tier(800, Write::Through, "lru")]));
            five_at_once(&mut rig);
            rig.run_to_end();
            let tiers = rig.stats().tiers;
            assert_eq!((tiers[1].blocks, tiers[0].blocks <= blocks), (40, true), "{write:?} {blocks}: {tiers:?}");
        }
    }
}

#[test]
fn what_the_second_tier_refused_is_offered_again_while_the_device_has_it() {
    for is_evicted in [false, true] {
        let mut rig = joined(config(vec![tier(60, Write::Through, "lru"), tier(800, Write::Through, "lru")]));
        rig.submit(1, prompt(1, 33), 1);
        rig.answer_until(|rig| rig.has_ended(1));
        rig.finish_copy(0);
        assert_eq!((rig.copies[0].from, rig.copies[0].pairs.len()), (Place::Tier(0), 8));
        let refused: Vec<(u32, BlockFault)> = (0..3).map(|at| (at, BlockFault::Refused)).collect();
        rig.end_copy_partly(0, &refused);
        assert_eq!((rig.stats().tiers[1].blocks, rig.copies.len()), (5, 0), "nothing is asked again at once");
        if is_evicted {
            rig.evict_idle();
        }
        ask(&mut rig, 2, prompt(2, 9));
        assert_eq!(rig.stats().tiers[1].blocks, if is_evicted { 7 } else { 10 });
    }
}

#[test]
fn blocks_that_the_first_tier_evicted_on_the_way_go_again_and_hold_up_nobody() {
    let mut rig = joined(config(vec![tier(8, Write::Through, "lru"), tier(800, Write::Through, "lru")]));
    rig.submit(1, prompt(1, 33), 1);
    rig.answer_until(|rig| rig.has_ended(1));
    rig.finish_copy(0);
    let refused: Vec<(u32, BlockFault)> = (0..7).map(|at| (at, BlockFault::Refused)).collect();
    rig.end_copy_partly(0, &refused);
    // The blocks of another take all of the first tier.
    rig.submit(2, prompt(2, 33), 1);
    rig.answer_until(|rig| rig.has_ended(2));
    rig.run_to_end();
    assert_eq!(rig.stats().tiers[1].blocks, 16, "{:?}", rig.stats().tiers);
}

#[test]
fn a_long_chain_goes_on_without_the_end_that_the_device_evicted() {
    let tiers = vec![tier(64, Write::Through, "lru"), tier(4000, Write::Through, "lru")];
    let mut rig = joined(Config { device_blocks: 1_300, max_context: 6_000, ..config(tiers) });
    rig.submit(1, prompt(1, 1_200 * BLOCK + 1), 1);
    rig.answer_until(|rig| rig.has_ended(1));
    rig.finish_copy(0);
    // The last hundred blocks make room for another prompt: they are farther from the head than is looked at in one go.
    rig.submit(2, prompt(2, 200 * BLOCK), 1);
    rig.answer_until(|rig| rig.has_ended(2));
    rig.run_to_end();
    let tiers = rig.stats().tiers;
    assert!((1_250..1_400).contains(&tiers[1].blocks), "{tiers:?}");
    assert!(ask(&mut rig, 3, prompt(1, 1_200 * BLOCK + 1)) > 1_000 * BLOCK);
}

#[test]
fn a_second_tier_that_takes_nothing_begins_no_round_of_copies() {
    let mut rig = joined(config(vec![tier(4, Write::Through, "lru"), tier(800, Write::Through, "lru")]));
    rig.event(Event::TierResized { tier: 1, blocks: 0 });
    five_at_once(&mut rig);
    rig.run_to_end();
    let tiers = rig.stats().tiers;
    assert!(tiers[1].blocks == 0 && tiers[0].stored_blocks <= 40, "each block was copied once: {tiers:?}");
}

#[test]
fn second_use_takes_what_was_found_before_and_nothing_else() {
    let mut rig = joined(config(vec![tier(100, Write::SecondUse, "lru")]));
    ask(&mut rig, 1, prompt(1, 33));
    assert_eq!(rig.core.stats().tiers[0].stored_blocks, 0);
    ask(&mut rig, 2, prompt(1, 33));
    assert_eq!(rig.core.stats().tiers[0].stored_blocks, 8);
}

#[test]
fn prefill_stores_a_prompt_while_its_answer_is_generated() {
    for (write, early) in [(Write::Prefill, 8), (Write::Through, 0)] {
        let mut rig = joined(config(vec![tier(100, write, "lru"), tier(100, write, "lru")]));
        rig.submit(1, prompt(1, 33), 20);
        rig.answer_until(|rig| rig.said(1).len() == 4);
        let on_the_way: usize = rig.copies.iter().map(|copy| copy.pairs.len()).sum();
        assert_eq!((on_the_way, rig.core.stats().tiers[0].stored_blocks), (early, 0), "{write:?}");
        rig.run_to_end();
        // What the answer adds comes at the end, and nothing is stored twice.
        assert_eq!(rig.core.stats().tiers.map(|tier| tier.stored_blocks)[..2], [13, 13], "{write:?}");
    }
}

#[test]
fn a_tier_has_the_blocks_so_far_of_a_long_answer() {
    const SECOND: u64 = 1_000_000_000;
    for write in [Write::Through, Write::Prefill, Write::SecondUse, Write::Back] {
        let mut rig = joined(config(vec![tier(100, write, "lru")]));
        rig.submit(1, prompt(1, 33), 60);
        rig.answer_until(|rig| rig.said(1).len() == 20);
        rig.copies.clear();
        let stored = rig.stats().tiers[0].blocks;
        rig.now_ns += 5 * SECOND;
        rig.answer_until(|rig| rig.said(1).len() == 24);
        let late: Vec<usize> = rig.copies.iter().map(|copy| copy.pairs.len()).collect();
        let expected = match write {
            Write::Through => vec![14],
            Write::Prefill => vec![6],
            Write::SecondUse | Write::Back => vec![],
        };
        assert_eq!((&late, stored), (&expected, 0), "{write:?}");
        rig.answer_until(|rig| rig.said(1).len() == 40);
        assert_eq!(rig.copies.len(), expected.len(), "{write:?}: not again before five seconds");
    }
}

#[test]
fn what_the_tier_dropped_of_a_long_answer_is_not_copied_again_until_its_end() {
    let mut rig = joined(config(vec![tier(4, Write::Through, "lru")]));
    rig.submit(1, prompt(1, 33), 60);
    for said in [8, 16, 24, 32] {
        rig.answer_until(|rig| rig.said(1).len() == said);
        while !rig.copies.is_empty() {
            rig.finish_copy(0);
        }
        rig.now_ns += 5_000_000_000;
    }
    // Four of the prompt's blocks at first, and two of the answer's each time after.
    assert_eq!(rig.stats().tiers[0].stored_blocks, 4 + 2 + 2);
}

#[test]
fn a_tier_drops_the_tail_of_a_prefix_before_its_head() {
    for name in eviction::REGISTRY.names() {
        let mut rig = joined(config(vec![tier(10, Write::Through, name)]));
        ask(&mut rig, 1, prompt(1, 33));
        // Four more blocks: two of the eight there must go.
        ask(&mut rig, 2, prompt(2, 17));
        // What cannot be computed takes every block of the device and leaves nothing in the tier.
        rig.submit(3, prompt(3, DEVICE_BLOCKS * BLOCK - 1), 1);
        assert_eq!(rig.core.stats().idle_blocks, 0, "{name}: all are taken");
        rig.event(Event::Fail(RequestId(3)));
        rig.run_to_end();
        let cached = ask(&mut rig, 4, prompt(1, 33));
        assert!(cached >= 16, "{name}: {cached} of 32 tokens are left");
    }
}

#[test]
fn blocks_go_on_to_the_tier_behind_and_come_back_from_it() {
    for (near, far) in [(Write::Through, Write::Through), (Write::Through, Write::Back), (Write::Back, Write::Back)] {
        let mut rig = joined(config(vec![tier(60, near, "lru"), tier(800, far, "lru")]));
        ask(&mut rig, 1, prompt(1, 33));
        (0..4).for_each(|_| overrun(&mut rig));
        assert!(ask(&mut rig, 9, prompt(1, 33)) > 0, "{near:?} {far:?}: {:?}", rig.core.stats().tiers);
        assert!(rig.core.stats().tiers[1].hit_blocks > 0, "{near:?} {far:?}");
    }
}

#[test]
fn a_copy_that_fails_costs_a_recomputation() {
    let mut rig = joined(config(vec![tier(100, Write::Through, "lru")]));
    ask(&mut rig, 1, prompt(1, 33));
    overrun(&mut rig);
    rig.submit(3, prompt(1, 33), 2);
    assert_eq!((rig.core.stats().loading, rig.copies.len()), (1, 1));
    rig.fail_copy(0);
    rig.run_to_end();
    assert_eq!((rig.reason(3), rig.usages[&3].cached_tokens), (Some(FinishReason::Length), 0));
}

#[test]
fn a_request_that_loads_ends_at_once_and_its_blocks_are_free_when_its_copies_end() {
    let (abort, stop) = (Event::Abort(RequestId(3)), Event::Stop(RequestId(3)));
    for (end, reason) in [(abort, FinishReason::Abort), (stop, FinishReason::Stop)] {
        let mut rig = joined(config(vec![tier(100, Write::Through, "lru")]));
        ask(&mut rig, 1, prompt(1, 33));
        overrun(&mut rig);
        rig.submit(3, prompt(1, 33), 2);
        assert_eq!((rig.core.stats().loading, rig.cancelled.len()), (1, 0));
        rig.event(end);
        assert_eq!(rig.reason(3), Some(reason));
        assert_eq!(rig.core.stats().moving_blocks, 8, "its blocks are being written");
        assert_eq!(rig.cancelled, rig.copies.iter().map(|copy| copy.id).collect(), "for nobody");
        rig.run_to_end();
        let stats = rig.core.stats();
        assert_eq!((stats.free_blocks + stats.idle_blocks, stats.moving_blocks), (DEVICE_BLOCKS, 0));
    }
}

#[test]
fn tiers_outlive_a_worker_and_a_late_copy_of_it_is_ignored() {
    let mut rig = joined(config(vec![tier(100, Write::Through, "lru")]));
    ask(&mut rig, 1, prompt(1, 33));
    overrun(&mut rig);
    rig.submit(3, prompt(1, 33), 2);
    let late = rig.copies.remove(0).id;
    rig.lose_worker();
    rig.event(Event::TransferFinished(late));
    rig.join();
    rig.run_to_end();
    assert_eq!((rig.reason(3), rig.usages[&3].cached_tokens), (Some(FinishReason::Length), 32));
}

#[test]
fn a_flush_empties_the_tiers_too() {
    let mut rig = joined(config(vec![tier(100, Write::Through, "lru")]));
    ask(&mut rig, 1, prompt(1, 33));
    rig.event(Event::FlushCache);
    assert_eq!(rig.core.stats().tiers[0].blocks, 0);
    assert_eq!(ask(&mut rig, 2, prompt(1, 33)), 0);
}

#[test]
fn what_a_worker_could_not_compute_is_not_published_and_does_not_count_against_others() {
    let mut rig = joined(config(vec![tier(100, Write::Through, "lru")]));
    rig.submit(1, prompt(1, 9), 30);
    for guilty in 10..16 {
        rig.answer();
        rig.submit(guilty, prompt(guilty as u32, 9), 5);
        rig.answer();
        assert_eq!(rig.step().unwrap().seqs.len(), 2);
        rig.event(Event::Fail(RequestId(guilty)));
        rig.lose_worker();
        rig.join();
        assert_eq!(rig.reason(guilty), Some(FinishReason::Error));
    }
    rig.run_to_end();
    assert_eq!(rig.reason(1), Some(FinishReason::Length));
    let published = rig.core.stats().published_blocks;
    rig.submit(2, prompt(2, 33), 1);
    rig.event(Event::Fail(RequestId(2)));
    rig.run_to_end();
    assert_eq!(rig.core.stats().published_blocks, published);
}

#[test]
fn swapped_requests_and_a_host_tier_share_one_memory() {
    let host = TierConfig { name: "host".into(), ..tier(12, Write::Through, "lru") };
    let mut rig = joined(Config { host_blocks: 20, preemption: Preemption::Swap, ..config(vec![host]) });
    // With nothing swapped the tier fills all 32 blocks.
    for id in 1..=9 {
        ask(&mut rig, id, prompt(id as u32, 4 * BLOCK + 1));
    }
    let blocks = |rig: &Driver| rig.stats().tiers[0].blocks;
    assert_eq!((blocks(&rig), rig.host_free()), (32, 32), "every block of the tier could be evicted for a swap-out");
    // Two requests that outgrow the device: one is swapped out, and the tier makes room.
    rig.submit(10, prompt(10, 24 * BLOCK - 4), 60);
    rig.submit(11, prompt(11, 24 * BLOCK - 4), 60);
    rig.answer_until(|rig| rig.stats().swaps.swap_outs > 0);
    let out = rig.copies.iter().find(|copy| copy.to == Place::Host).expect("a swap-out is in flight");
    assert_eq!(
        out.keys.len(),
        out.pairs.len() - 1,
        "full blocks are named, so that none is copied that host memory has"
    );
    let taken = 32 - rig.host_free();
    assert!(taken > 20, "{taken} blocks: more than the twenty that are not the tier's");
    assert!(blocks(&rig) + taken <= 32, "{} of the tier and {taken} of the swapped request", blocks(&rig));
    rig.run_to_end();
    assert_eq!(rig.host_free(), 32);
    rig.assert_texts();
    // A first tier that is not host memory leaves the swapped requests their own blocks.
    let rig = joined(Config { host_blocks: 8, ..config(vec![tier(12, Write::Through, "lru")]) });
    assert_eq!(rig.host_free(), 8);
}

/// A request of a tenant that pins its prompt for so long.
fn pinning(id: u64, tenant: u64, prompt: Vec<Token>, ttl_ns: u64) -> Request {
    let hint = RetentionHint { from: 0, to: TO_END, priority: 100, ttl_ns, demote: false, pin: true };
    let request = Request::new(RequestId(id), Namespace::default().root(), prompt, 1);
    Request { tenant, retention: vec![hint], ..request }
}

/// Runs a request that pins its prompt; gives the tokens that are pinned on the device.
fn ask_pinning(rig: &mut Driver, id: u64, tenant: u64, prompt: Vec<Token>) -> u32 {
    rig.submit_request(pinning(id, tenant, prompt, LONG_NS));
    rig.run_to_end();
    rig.usages[&id].pinned_tokens
}

/// Time of a pin that outlasts its test.
const LONG_NS: u64 = 1 << 45;

/// Takes all idle blocks of the device, and fills the tiers with other prompts, several times over.
fn press(rig: &mut Driver) {
    for _ in 0..4 {
        rig.evict_idle();
        overrun(rig);
    }
    rig.evict_idle();
}

#[test]
fn a_pinned_prefix_that_left_the_device_stays_in_the_tier_until_its_pin_ends() {
    let of_lru = Write::ALL.map(|(_, write)| (write, "lru"));
    for (write, name) in of_lru.into_iter().chain(eviction::REGISTRY.names().map(|name| (Write::Through, name))) {
        let mut rig = joined(config(vec![tier(40, write, name)]));
        ask(&mut rig, 1, prompt(1, 33));
        assert_eq!(ask_pinning(&mut rig, 2, 1, prompt(2, 33)), 32);
        press(&mut rig);
        let found = [1, 2].map(|kind| ask(&mut rig, 10 + u64::from(kind), prompt(kind, 33)));
        assert_eq!(found, [0, 32], "{write:?} {name}");
        rig.now_ns += LONG_NS;
        rig.event(Event::Tick);
        press(&mut rig);
        assert_eq!(ask(&mut rig, 20, prompt(2, 33)), 0, "{write:?} {name}");
    }
}

#[test]
fn a_pin_holds_what_the_tier_had_before_it() {
    for is_prefetch in [false, true] {
        let mut rig = joined(config(vec![tier(40, Write::Through, "lru")]));
        ask(&mut rig, 1, prompt(1, 33));
        if is_prefetch {
            rig.evict_idle();
        }
        let request = pinning(2, 1, prompt(1, 33), LONG_NS);
        let max_tokens = if is_prefetch { 0 } else { request.max_tokens };
        rig.submit_request(Request { prefetch: is_prefetch, max_tokens, ..request });
        rig.run_to_end();
        assert_eq!((rig.usages[&2].pinned_tokens, rig.stats().tiers[0].stored_blocks), (32, 8));
        press(&mut rig);
        assert_eq!(ask(&mut rig, 3, prompt(1, 33)), 32, "prefetch: {is_prefetch}");
    }
}

/// Pins four prompts of eight blocks, two of them of one tenant; gives what is found of each under pressure.
fn found_of_pinned(eviction: &str, blocks: u32) -> [u32; 4] {
    let mut rig = joined(Config { eviction: eviction.into(), ..config(vec![tier(40, Write::Through, "lru")]) });
    rig.event(Event::TierResized { tier: 0, blocks });
    for (kind, tenant) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
        ask_pinning(&mut rig, u64::from(kind), tenant, prompt(kind, 33));
    }
    press(&mut rig);
    [1, 2, 3, 4].map(|kind| ask(&mut rig, 10 + u64::from(kind), prompt(kind, 33)) / BLOCK)
}

#[test]
fn pins_keep_a_share_of_the_tier_and_no_more() {
    // A quarter for a tenant, half for all; the first blocks of a prompt.
    assert_eq!(found_of_pinned("lru", 40), [8, 2, 8, 2]);
    assert_eq!(found_of_pinned("lru", 20), [5, 0, 5, 0]);
    assert_eq!(found_of_pinned("lru:retain_percent=0", 40), [0; 4]);
}

#[test]
fn a_tier_full_of_pins_gives_up_one_block_for_others() {
    let limits = Config { eviction: "lru:retain_percent=100".into(), ..config(vec![tier(8, Write::Through, "lru")]) };
    let mut rig = joined(limits);
    assert_eq!(ask_pinning(&mut rig, 1, 1, prompt(1, 33)), 32);
    ask(&mut rig, 2, prompt(2, 33));
    rig.evict_idle();
    assert_eq!([2, 1].map(|kind| ask(&mut rig, 10 + u64::from(kind), prompt(kind, 33))), [BLOCK, 7 * BLOCK]);
}

#[test]
fn a_pin_goes_with_its_block_to_the_tier_behind() {
    for (_, write) in Write::ALL {
        let mut rig = joined(config(vec![tier(8, Write::Through, "lru"), tier(40, write, "lru")]));
        ask(&mut rig, 1, prompt(1, 33));
        // The near tier keeps two blocks of the eight.
        assert_eq!(ask_pinning(&mut rig, 2, 1, prompt(2, 33)), 32);
        press(&mut rig);
        let found = [1, 2].map(|kind| ask(&mut rig, 10 + u64::from(kind), prompt(kind, 33)));
        // A near tier that copies a block to the far one first has no room for the eighth, which stays pinned on the device; `press` drops it.
        assert_eq!(found, [0, if write == Write::Back { 28 } else { 32 }], "{write:?}");
    }
}

#[test]
fn a_pin_goes_with_a_block_that_the_device_writes_back() {
    let mut rig = joined(config(vec![tier(40, Write::Back, "lru")]));
    // The tier takes nothing at the end of the request.
    rig.event(Event::TierResized { tier: 0, blocks: 0 });
    assert_eq!(ask_pinning(&mut rig, 1, 1, prompt(1, 33)), 32);
    rig.event(Event::TierResized { tier: 0, blocks: 40 });
    assert_eq!(rig.stats().tiers[0].stored_blocks, 0);
    // All of the device but the eight blocks, of which some go ahead of need; the others stay there.
    rig.submit(2, prompt(2, 39 * BLOCK), 4);
    rig.run_to_end();
    let written = rig.stats().tiers[0].stored_blocks as u32;
    assert!((1..8).contains(&written), "{written}");
    (0..4).for_each(|_| overrun(&mut rig));
    assert_eq!(ask(&mut rig, 3, prompt(1, 33)), 32);
    assert_eq!(rig.stats().tiers[0].hit_blocks, u64::from(written));
}

#[test]
fn a_swapped_request_takes_the_memory_of_pinned_blocks() {
    let host = TierConfig { name: "host".into(), ..tier(12, Write::Through, "lru") };
    let eviction = "lru:retain_percent=100".into();
    let mut rig = joined(Config { host_blocks: 20, preemption: Preemption::Swap, eviction, ..config(vec![host]) });
    for id in 1..=4 {
        ask_pinning(&mut rig, id, 1, prompt(id as u32, 33));
    }
    assert_eq!((rig.stats().tiers[0].blocks, rig.host_free()), (32, 32));
    rig.submit(10, prompt(10, 24 * BLOCK - 4), 60);
    rig.submit(11, prompt(11, 24 * BLOCK - 4), 60);
    rig.answer_until(|rig| rig.stats().swaps.swap_outs > 0);
    let taken = 32 - rig.host_free();
    assert!(taken > 20 && rig.stats().tiers[0].blocks + taken <= 32, "{taken} blocks taken");
    rig.run_to_end();
    rig.assert_texts();
}

/// Runs two requests that need more blocks than the device has. Returns the tokens that steps ran, and the preemptions.
fn run_two_that_do_not_fit(host_blocks: u32, tiers: Vec<TierConfig>) -> (u32, u64) {
    let mut rig = joined(Config { host_blocks, device_blocks: 24, ..config(tiers) });
    for id in [1, 2] {
        rig.submit(id, prompt(id as u32, 33), 50);
    }
    let mut tokens = 0;
    loop {
        if !rig.copies.is_empty() {
            rig.finish_copy(0);
        } else if let Some(step) = rig.step() {
            tokens += step.n_tokens();
            rig.answer();
        } else {
            break;
        }
    }
    assert!(rig.has_ended(1) && rig.has_ended(2));
    rig.assert_texts();
    (tokens, rig.stats().preemptions)
}

#[test]
fn a_preempted_request_comes_back_from_a_tier_where_the_host_has_no_room() {
    // Each runs its prompt of 33 tokens, and 49 of its answer.
    let once = 2 * (33 + 49);
    let (alone, preemptions) = run_two_that_do_not_fit(0, Vec::new());
    assert!(alone >= once + 33 && preemptions > 0, "{alone}");
    for host_blocks in [0, 2] {
        let (with_a_disk, _) = run_two_that_do_not_fit(host_blocks, vec![tier(400, Write::Back, "lru")]);
        assert!(with_a_disk < once + 4 * BLOCK, "{with_a_disk} of {alone}");
    }
}
