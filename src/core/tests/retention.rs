//! Retention hints through the whole core: what stays, what goes first, and when hints end. Numbers of blocks found are pinned.

use trunkline_core::request::retention::{PRIORITY_DEFAULT, PRIORITY_MAX, TO_END};
use trunkline_core::{Config, Event, Namespace, Refusal, Request, RequestId, RetentionHint, Token, eviction};
use trunkline_driver::Driver;

/// Tokens in a block.
const BLOCK: u32 = 2;
/// Blocks of the system prompt.
const SYSTEM: u32 = 6;

/// A core of 40 blocks that serves one request after another.
struct Cache {
    driver: Driver,
    requests: u64,
}

fn hint(from: u32, to: u32, priority: u8, ttl_ns: u64) -> RetentionHint {
    RetentionHint { from, to, priority, ttl_ns, demote: false, pin: false }
}

/// Returns a prompt of `blocks` blocks with a content of its own, and one token more.
fn prompt(content: u32, blocks: u32) -> Vec<Token> {
    (0..blocks * BLOCK).map(|at| content * 1000 + at).chain([7]).collect()
}

impl Cache {
    fn new(eviction: &str) -> Self {
        let limits = Config {
            block_size: BLOCK,
            device_blocks: 40,
            max_batch_tokens: 4096,
            max_context: 4096,
            eviction: eviction.into(),
            ..Config::default()
        };
        Self { driver: Driver::new(limits).dictated(), requests: 0 }
    }

    /// Runs a request. Returns the number of blocks found.
    fn ask(&mut self, tenant: u64, prompt: Vec<Token>, max_tokens: u32, hints: &[RetentionHint]) -> u32 {
        self.requests += 1;
        let root = Namespace::default().root();
        let mut request = Request::new(RequestId(self.requests), root, prompt, max_tokens);
        request.hash_prompt(BLOCK);
        request.tenant = tenant;
        request.retention = hints.to_vec();
        self.driver.event(Event::Submit(Box::new(request)));
        while !self.driver.steps.is_empty() {
            self.driver.answer_with(1);
        }
        self.driver.usages[&self.requests].cached_tokens / BLOCK
    }

    /// Runs `n` prompts of 8 blocks that nobody asks for again.
    fn flood(&mut self, n: u32) {
        for _ in 0..n {
            let content = 100 + self.requests as u32;
            self.ask(9, prompt(content, 8), 1, &[]);
        }
    }

    /// Lets time pass.
    fn pass(&mut self, ns: u64) {
        self.driver.now_ns += ns;
        self.driver.event(Event::Tick);
    }

    fn retained(&self) -> u32 {
        self.driver.stats().retention.retained_blocks
    }
}

fn system(priority: u8, ttl_ns: u64) -> RetentionHint {
    hint(0, SYSTEM * BLOCK, priority, ttl_ns)
}

/// Asks for the system prompt with a hint, then floods the cache. Returns the blocks found of the system prompt.
fn found_after_flood(eviction: &str, hints: &[RetentionHint]) -> u32 {
    let mut cache = Cache::new(eviction);
    assert_eq!(cache.ask(1, prompt(1, SYSTEM), 1, hints), 0);
    cache.flood(20);
    cache.ask(1, prompt(1, SYSTEM), 1, &[])
}

#[test]
fn a_system_prompt_with_a_hint_survives_a_flood_under_every_policy() {
    for name in eviction::REGISTRY.names() {
        assert_eq!(found_after_flood(name, &[system(80, 0)]), SYSTEM, "{name}");
        assert_eq!(found_after_flood(name, &[]), 0, "{name}");
        assert_eq!(found_after_flood(name, &[system(PRIORITY_DEFAULT, 0)]), 0, "{name}");
        assert_eq!(found_after_flood(name, &[system(10, 0)]), 0, "{name}");
    }
}

#[test]
fn a_hint_that_has_ended_does_nothing() {
    for (passed, found) in [(900, SYSTEM), (1_001, 0)] {
        let mut cache = Cache::new("lru");
        cache.ask(1, prompt(1, SYSTEM), 1, &[system(100, 1_000)]);
        cache.flood(1);
        cache.pass(passed);
        assert_eq!(cache.retained(), found);
        cache.flood(10);
        assert_eq!(cache.ask(1, prompt(1, SYSTEM), 1, &[]), found, "after {passed} ns");
    }
}

#[test]
fn a_hint_falls_class_by_class() {
    // After half of its time to live a priority of 100 is worth less than one of 80 without an end, before more.
    for (passed, first, second) in [(100, SYSTEM, 0), (600, 0, SYSTEM)] {
        let mut cache = Cache::new("lru:retain_percent=100");
        cache.ask(1, prompt(1, SYSTEM), 1, &[system(100, 1_000)]);
        cache.ask(1, prompt(2, SYSTEM), 1, &[system(80, 0)]);
        cache.pass(passed);
        // All 40 blocks but those of one of the two.
        cache.ask(1, prompt(3, 40 - SYSTEM - 1), 1, &[]);
        assert_eq!(cache.driver.stats().retention.evicted_retained_blocks, 6, "after {passed} ns");
        let found = (cache.ask(1, prompt(1, SYSTEM), 1, &[]), cache.ask(1, prompt(2, SYSTEM), 1, &[]));
        assert_eq!(found, (first, second), "after {passed} ns");
    }
}

#[test]
fn answers_with_a_low_priority_leave_first() {
    let answer = |priority| [hint(17, TO_END, priority, 0)];
    // Prompt and answer of 8 blocks each; the answer follows the prompt, so it would leave before other prompts only by its hint.
    let found = |hints: &[RetentionHint]| {
        let mut cache = Cache::new("lru");
        cache.ask(1, prompt(1, SYSTEM), 1, &[]);
        cache.ask(1, prompt(2, 8), 17, hints);
        // 6 + 16 blocks are there, 18 are free: 24 need 6 more.
        cache.ask(1, prompt(3, 23), 1, &[]);
        cache.ask(1, prompt(1, SYSTEM), 1, &[])
    };
    assert_eq!(
        [found(&[]), found(&answer(PRIORITY_DEFAULT)), found(&answer(0)), found(&answer(34))],
        [0, 0, SYSTEM, SYSTEM]
    );
}

#[test]
fn a_prompt_that_others_use_without_a_hint_does_not_leave_early() {
    let mut cache = Cache::new("lru");
    cache.ask(1, prompt(1, SYSTEM), 1, &[]);
    cache.ask(2, prompt(1, SYSTEM), 1, &[hint(0, TO_END, 0, 0)]);
    cache.ask(3, prompt(2, SYSTEM), 1, &[hint(0, TO_END, 0, 0)]);
    cache.ask(3, prompt(3, 33), 1, &[]);
    assert_eq!((cache.ask(1, prompt(1, SYSTEM), 1, &[]), cache.ask(1, prompt(2, SYSTEM), 1, &[])), (SYSTEM, 0));
}

#[test]
fn a_tenant_keeps_its_share_and_no_more() {
    // A quarter of 40 blocks. The bound takes the first blocks of a prompt: those behind are of no use without them.
    let mut cache = Cache::new("lru");
    for content in 1..4 {
        cache.ask(1, prompt(content, SYSTEM), 1, &[system(100, 0)]);
    }
    let stats = cache.driver.stats().retention;
    assert_eq!((stats.retained_blocks, stats.ignored_retained_blocks), (10, 8));
    cache.flood(10);
    let found = [1, 2, 3].map(|content| cache.ask(1, prompt(content, SYSTEM), 1, &[]));
    assert_eq!(found, [6, 4, 0]);
    // Another tenant has a share of its own; all together have half.
    cache.ask(2, prompt(5, 8), 1, &[hint(0, 16, 50, 0)]);
    assert_eq!(cache.retained(), 18);
    cache.ask(3, prompt(6, 8), 1, &[hint(0, 16, 50, 0)]);
    assert_eq!(cache.retained(), 20);
}

#[test]
fn the_share_is_a_parameter_of_the_eviction() {
    for (eviction, retained) in [("lru:retain_percent=0", 0), ("s3fifo:small_percent=20,retain_percent=50", 20)] {
        let mut cache = Cache::new(eviction);
        cache.ask(1, prompt(1, 30), 1, &[hint(0, TO_END, 100, 0)]);
        assert_eq!(cache.retained(), retained, "{eviction}");
    }
    let fault =
        |eviction: &str| Config { eviction: eviction.into(), ..Config::default() }.validate().unwrap_err().to_string();
    assert_eq!(
        fault("lru:retain_percent=101"),
        "eviction policy 'lru': retain_percent is '101'; it must be a whole number between 0 and 100"
    );
    assert_eq!(fault("lfi:retain_percent=1").split(';').next(), Some("unknown eviction policy 'lfi'"));
}

#[test]
fn malformed_hints_are_refused() {
    let mut cache = Cache::new("lru");
    let mut request = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 1), 1);
    request.hash_prompt(BLOCK);
    request.retention = vec![hint(4, 4, 50, 0)];
    cache.driver.event(Event::Submit(Box::new(request)));
    assert!(matches!(cache.driver.refusals[..], [(1, Refusal::Retention(_))]), "{:?}", cache.driver.refusals);
}

#[test]
fn a_flush_and_a_lost_worker_end_all_hints() {
    let mut cache = Cache::new("lru");
    for event in [Event::FlushCache, Event::WorkerLost] {
        cache.ask(1, prompt(1, SYSTEM), 1, &[system(100, 50)]);
        assert_eq!(cache.retained(), SYSTEM);
        cache.driver.event(event.clone());
        assert_eq!(cache.retained(), 0);
        if event == Event::WorkerLost {
            cache.driver.join();
        }
        cache.pass(100);
    }
}

#[test]
fn hints_that_say_nothing_change_no_decision() {
    let digest = |hints: &[RetentionHint]| {
        let mut cache = Cache::new("arc");
        for content in 0..60 {
            cache.ask(1, prompt(content % 7, 4 + content % 9), 3, hints);
        }
        cache.driver.core.digest()
    };
    assert_eq!(digest(&[]), digest(&[hint(0, TO_END, PRIORITY_DEFAULT, 5)]));
    assert_ne!(digest(&[]), digest(&[hint(0, 6, 80, 0)]));
}

/// Returns a hint that pins the system prompt for so long.
fn pin(ttl_ns: u64) -> RetentionHint {
    RetentionHint { pin: true, ..system(PRIORITY_MAX, ttl_ns) }
}

#[test]
fn a_pin_does_not_fall_before_its_time_and_outlasts_every_priority() {
    for (passed, pinned, retained) in [(0, SYSTEM, 0), (900, SYSTEM, 0), (1_001, 0, SYSTEM)] {
        let mut cache = Cache::new("lru:retain_percent=100");
        cache.ask(1, prompt(1, SYSTEM), 1, &[pin(1_000)]);
        cache.ask(1, prompt(2, SYSTEM), 1, &[system(PRIORITY_MAX, 0)]);
        cache.pass(passed);
        // All 40 blocks but those of one of the two.
        cache.ask(1, prompt(3, 40 - SYSTEM - 1), 1, &[]);
        let found = (cache.ask(1, prompt(1, SYSTEM), 1, &[]), cache.ask(1, prompt(2, SYSTEM), 1, &[]));
        assert_eq!(found, (pinned, retained), "after {passed} ns");
    }
}

#[test]
fn an_answer_says_what_is_pinned_within_the_bound_of_the_tenant() {
    let mut cache = Cache::new("lru");
    let mut pinned = |tenant, content, hints: &[RetentionHint]| {
        cache.ask(tenant, prompt(content, SYSTEM), 1, hints);
        cache.driver.usages[&cache.requests].pinned_tokens / BLOCK
    };
    // A quarter of 40 blocks, from the first block of each prompt on.
    let found = [1, 2, 3].map(|content| pinned(1, content, &[pin(1_000_000)]));
    assert_eq!(found, [6, 4, 0]);
    assert_eq!(pinned(2, 4, &[system(PRIORITY_MAX, 0)]), 0, "a priority is no pin");
    assert_eq!(pinned(2, 5, &[RetentionHint { to: 4, ..pin(1_000_000) }]), 2, "of a range of four tokens");
}

#[test]
fn a_device_full_of_pins_serves_a_request_that_needs_it_whole() {
    let mut cache = Cache::new("lru:retain_percent=100");
    for content in 1..6 {
        cache.ask(1, prompt(content, SYSTEM), 1, &[pin(1 << 40)]);
    }
    assert_eq!(cache.retained(), 30);
    cache.ask(2, prompt(9, 39), 1, &[]);
    assert!(cache.driver.refusals.is_empty());
    assert_eq!(cache.driver.ends.last().map(|(id, _)| *id), Some(6));
    assert_eq!((cache.retained(), cache.driver.stats().preemptions), (0, 0));
}

#[test]
fn malformed_pins_are_refused() {
    let day = 86_400_000_000_000;
    for (priority, ttl_ns) in [(PRIORITY_MAX, 0), (PRIORITY_MAX, day + 1), (99, 5)] {
        let mut cache = Cache::new("lru");
        let mut request = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 1), 1);
        request.hash_prompt(BLOCK);
        request.retention = vec![RetentionHint { pin: true, ..hint(0, 4, priority, ttl_ns) }];
        cache.driver.event(Event::Submit(Box::new(request)));
        assert!(matches!(cache.driver.refusals[..], [(1, Refusal::Retention(_))]), "{:?}", cache.driver.refusals);
    }
}
