//! Prefetches: what they bring to the device, what they leave to others, and how they end. The worker's cells carry their contents.

use trunkline_core::request::retention::TO_END;
use trunkline_core::{
    Action, Config, Event, FinishReason, Namespace, Place, Refusal, Request, RequestId, RetentionHint, TierConfig,
    Token, Usage, Write,
};
use trunkline_driver::Driver;

/// Tokens in a block.
const BLOCK: u32 = 4;
const DEVICE_BLOCKS: u32 = 48;
/// Blocks that prefetches of a tenant load at a time.
const SHARE: u32 = DEVICE_BLOCKS / 4;

fn config(tiers: usize) -> Config {
    let tier = |_| TierConfig {
        name: "tier".into(),
        blocks: 200,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    };
    Config {
        block_size: BLOCK,
        device_blocks: DEVICE_BLOCKS,
        max_batch_tokens: 200,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        recompute_token_ns: 1 << 40,
        tiers: (0..tiers).map(tier).collect(),
        ..Config::default()
    }
}

fn joined(config: Config) -> Driver {
    let mut rig = Driver::with_content(config, 1);
    rig.join();
    rig
}

/// A prompt of its own kind.
fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|i| (kind * 131 + i * 7 + kind * i) % 997).collect()
}

/// Runs a request to its end; gives the tokens of its prompt that were in the cache.
fn ask(rig: &mut Driver, id: u64, prompt: Vec<Token>) -> u32 {
    rig.submit(id, prompt, 1);
    rig.run_to_end();
    rig.usages[&id].cached_tokens
}

/// Runs a request that leaves the device for the tier.
fn ask_away(rig: &mut Driver, id: u64, prompt: Vec<Token>) {
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 1);
    request.retention = vec![RetentionHint { from: 0, to: TO_END, priority: 0, ttl_ns: 0, demote: true, pin: false }];
    rig.submit_request(request);
    rig.run_to_end();
}

fn prefetch(id: u64, prompt: Vec<Token>) -> Request {
    Request { prefetch: true, ..Request::new(RequestId(id), Namespace::default().root(), prompt, 0) }
}

fn used(rig: &Driver, id: u64) -> (u32, u32) {
    let Usage { cached_tokens, loaded_tokens, completion_tokens, .. } = rig.usages[&id];
    assert_eq!(completion_tokens, 0);
    (cached_tokens, loaded_tokens)
}

#[test]
fn a_prefetched_prompt_is_on_the_device_and_its_request_loads_nothing() {
    for tiers in [1, 2] {
        let mut rig = joined(config(tiers));
        ask_away(&mut rig, 1, prompt(1, 33));
        assert_eq!((rig.stats().idle_blocks, rig.stats().tiers[0].hit_blocks), (0, 0));
        let steps = rig.stats().steps;
        rig.submit_request(prefetch(2, prompt(1, 33)));
        assert_eq!((rig.stats().loading, rig.stats().waiting), (1, 0));
        rig.run_to_end();
        assert_eq!(used(&rig, 2), (32, 32));
        assert_eq!(rig.ends.last(), Some(&(2, FinishReason::Length)));
        let stats = rig.stats();
        assert_eq!((stats.steps, stats.idle_blocks, stats.tiers[0].hit_blocks), (steps, 8, 8), "nothing is computed");
        assert_eq!(ask(&mut rig, 3, prompt(1, 33)), 32);
        let stats = rig.stats();
        assert_eq!((stats.tiers[0].hit_blocks, stats.tokens.prefetched_tokens), (8, 32), "nothing more is loaded");
        // A request that was not prefetched loads its blocks, and says so.
        ask_away(&mut rig, 4, prompt(2, 33));
        assert_eq!(ask(&mut rig, 5, prompt(2, 33)), 32);
        assert_eq!((rig.usages[&5].loaded_tokens, rig.usages[&3].loaded_tokens), (32, 0));
    }
}

#[test]
fn what_is_there_is_not_loaded_and_counts_as_just_used() {
    let mut rig = joined(config(0));
    ask(&mut rig, 1, prompt(1, 33));
    ask(&mut rig, 2, prompt(2, 33));
    rig.submit_request(prefetch(3, prompt(1, 40)));
    assert_eq!(used(&rig, 3), (32, 0), "it ends at once");
    // 16 blocks are idle, 32 are free: the eight used last stay.
    ask(&mut rig, 4, prompt(3, 39 * BLOCK));
    assert_eq!((ask(&mut rig, 5, prompt(1, 33)), ask(&mut rig, 6, prompt(2, 33))), (32, 0));
    rig.submit_request(prefetch(7, prompt(9, 33)));
    assert_eq!(used(&rig, 7), (0, 0), "nothing is known of it");
}

#[test]
fn requests_come_first_and_blocks_above_the_default_stay() {
    let mut rig = joined(Config { eviction: "lru:retain_percent=100".into(), ..config(1) });
    ask_away(&mut rig, 1, prompt(1, 33));
    // 41 of 48 blocks are above the default.
    let mut kept = Request::new(RequestId(2), Namespace::default().root(), prompt(2, 41 * BLOCK), 1);
    kept.retention = vec![RetentionHint { from: 0, to: TO_END, priority: 80, ttl_ns: 0, demote: false, pin: false }];
    rig.submit_request(kept);
    rig.run_to_end();
    assert_eq!(rig.stats().retention.retained_blocks, 41);
    // A running request keeps a block, and two are left to it: four of seven are there to take.
    rig.submit(3, prompt(3, 3), 40);
    rig.submit_request(prefetch(4, prompt(1, 33)));
    rig.answer();
    assert_eq!(rig.copies.iter().map(|copy| copy.pairs.len()).sum::<usize>(), 4);
    rig.run_to_end();
    assert_eq!(used(&rig, 4), (16, 16), "as much as fits");
    let stats = rig.stats();
    assert_eq!((stats.retention.evicted_retained_blocks, stats.preemptions), (4, 0), "eleven blocks of 3");
}

#[test]
fn a_prefetch_takes_nothing_that_a_waiting_request_needs() {
    let mut rig = joined(Config { max_batch_size: 1, max_batch_tokens: 200, ..config(1) });
    ask_away(&mut rig, 1, prompt(1, 33));
    rig.submit(2, prompt(2, 4), 30);
    // Behind it waits one that needs all but a block or two.
    rig.submit(3, prompt(3, 46 * BLOCK), 2);
    rig.submit_request(prefetch(4, prompt(1, 33)));
    rig.answer_until(|rig| rig.ends.iter().any(|(id, _)| *id == 2));
    let loads = rig.copies.iter().any(|copy| copy.to == Place::Device);
    assert!(!loads && !rig.usages.contains_key(&4), "it waits");
    rig.run_to_end();
    assert_eq!(rig.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>()[1..], [2, 3, 4]);
    // All but two blocks are still being copied to the tier then.
    assert_eq!((used(&rig, 4), rig.stats().preemptions), ((8, 8), 0));
}

#[test]
fn a_tenant_has_a_bound_of_prefetches_and_of_their_blocks() {
    let mut rig = joined(config(1));
    let kinds = [1, 2, 3].map(|kind| prompt(kind, 8 * BLOCK + 1));
    for (id, prompt) in (1..).zip(kinds.clone()) {
        ask_away(&mut rig, id, prompt);
    }
    for (id, prompt) in (11..).zip(kinds) {
        rig.submit_request(prefetch(id, prompt));
    }
    let loading = rig.copies.iter().map(|copy| copy.pairs.len()).sum::<usize>();
    assert_eq!(loading as u32, SHARE, "eight blocks, and four of the next");
    rig.run_to_end();
    assert_eq!([11, 12, 13].map(|id| used(&rig, id).1), [32, 16, 32]);
    // With the worker gone they wait.
    rig.event(Event::WorkerLost);
    (20..30).for_each(|id| rig.submit_request(prefetch(id, prompt(1, 33))));
    let full = Refusal::PrefetchesFull { limit: 8 };
    assert_eq!(rig.refusals, [(28, full), (29, full)]);
    rig.submit_request(Request { tenant: 7, ..prefetch(30, prompt(1, 33)) });
    assert_eq!(rig.refusals.len(), 2, "another tenant has its own");
    rig.join();
    rig.run_to_end();
    assert_eq!(rig.usages[&30].cached_tokens, 32);
}

#[test]
fn a_prefetch_ends_however_its_load_ends() {
    for event in [Event::Abort(RequestId(2)), Event::WorkerLost, Event::FlushCache] {
        let mut rig = joined(config(1));
        ask_away(&mut rig, 1, prompt(1, 33));
        rig.submit_request(prefetch(2, prompt(1, 33)));
        assert_eq!(rig.copies.len(), 1);
        rig.event(event.clone());
        if !rig.joined {
            rig.join();
        }
        rig.run_to_end();
        let expected = match event {
            Event::Abort(_) => (2, FinishReason::Abort),
            _ => (2, FinishReason::Length),
        };
        assert_eq!(rig.ends.last(), Some(&expected), "{event:?}");
        if event == Event::WorkerLost {
            assert_eq!(used(&rig, 2), (32, 32), "it begins again");
        }
        rig.event(Event::FlushCache);
        assert_eq!(rig.stats().free_blocks, DEVICE_BLOCKS, "{event:?}");
    }
}

#[test]
fn a_request_that_comes_meanwhile_waits_for_the_blocks_and_loads_none() {
    let mut rig = joined(config(1));
    ask_away(&mut rig, 1, prompt(1, 33));
    rig.submit_request(prefetch(2, prompt(1, 33)));
    rig.submit(3, prompt(1, 33), 2);
    assert_eq!((rig.copies.len(), rig.steps.len()), (1, 0));
    rig.run_to_end();
    assert_eq!((rig.usages[&3].cached_tokens, rig.usages[&3].loaded_tokens), (32, 0));
    assert_eq!(rig.stats().tiers[0].hit_blocks, 8);
}

#[test]
fn a_pinned_prefix_that_the_device_had_to_evict_is_in_the_tier_whatever_the_tier_takes() {
    for write in Write::ALL.map(|(_, write)| write) {
        let mut limits = config(1);
        limits.tiers[0].write = write;
        let mut rig = joined(limits);
        let mut request = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 33), 1);
        let ttl_ns = 1 << 45;
        request.retention = vec![RetentionHint { from: 0, to: 33, priority: 100, ttl_ns, demote: false, pin: true }];
        rig.submit_request(request);
        rig.run_to_end();
        assert_eq!((rig.usages[&1].pinned_tokens, rig.stats().tiers[0].stored_blocks), (32, 8), "{write:?}");
        // The device whole.
        ask(&mut rig, 2, prompt(2, 48 * BLOCK));
        assert_eq!(rig.stats().retention.retained_blocks, 0);
        assert_eq!(ask(&mut rig, 3, prompt(1, 33)), 32, "{write:?}");
    }
}

#[test]
fn a_core_without_prefetches_decides_as_before() {
    let digest = |prefetches: bool| {
        let mut rig = joined(config(1));
        for id in 0..20 {
            ask(&mut rig, id, prompt(id as u32 % 5, 20 + id as u32));
            if prefetches {
                rig.submit_request(prefetch(100 + id, prompt(id as u32 % 5, 20)));
                rig.run_to_end();
            }
        }
        rig.core.digest()
    };
    assert_eq!(digest(false), digest(false));
    assert_ne!(digest(false), digest(true), "prefetches are decisions");
    // Nothing else is output at the end of one.
    let mut rig = joined(config(0));
    let mut actions = Vec::new();
    let mut request = prefetch(1, prompt(1, 9));
    request.hash_prompt(BLOCK);
    rig.core.handle(0, Event::Submit(Box::new(request)), &mut actions);
    assert!(matches!(actions[..], [Action::Finish { .. }]), "{actions:?}");
}

#[test]
fn prefetches_say_nothing_of_how_long_answers_take() {
    for (within_ns, hopeless) in [(20_000, 1), (60_000, 0)] {
        let quick = Config { policy: "edf".into(), max_batch_size: 1, recompute_token_ns: 1, ..config(1) };
        let mut rig = joined(quick);
        rig.submit(1, prompt(1, 9), 20);
        while !rig.has_ended(1) {
            rig.now_ns += 1_000;
            rig.answer();
        }
        for id in 2..200 {
            rig.submit_request(prefetch(id, prompt(1, 9)));
            rig.run_to_end();
        }
        rig.submit(200, prompt(2, 9), 20);
        // Forty tokens take 40 us.
        let mut waiting = Request::new(RequestId(201), Namespace::default().root(), prompt(3, 9), 40);
        waiting.deadline_ns = Some(rig.now_ns + within_ns);
        rig.submit_request(waiting);
        rig.answer();
        assert_eq!(rig.stats().requests.hopeless, hopeless, "within {within_ns} ns");
    }
}
