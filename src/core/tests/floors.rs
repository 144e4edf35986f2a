//! Floors of tenants in the cache: what a tenant keeps of its prompts while another floods the device and the tiers.

use trunkline_core::{Config, Event, Namespace, Request, RequestId, TierConfig, Token, Write, eviction};
use trunkline_driver::Driver;

const BLOCK: u64 = 4;
const SECOND: u64 = 1_000_000_000;

/// A device of 64 blocks: two tenants have floors of 16 each.
fn config(eviction: &str) -> Config {
    Config {
        block_size: BLOCK as u32,
        device_blocks: 64,
        max_batch_tokens: 128,
        max_batch_size: 4,
        max_context: 240,
        policy: "vtc".into(),
        eviction: eviction.into(),
        ..Config::default()
    }
}

/// One request after another.
struct Cache {
    driver: Driver,
    next: u64,
    /// Time of a step.
    step_ns: u64,
}

impl Cache {
    fn new(config: Config) -> Self {
        let mut driver = Driver::new(config);
        driver.join();
        Self { driver, next: 0, step_ns: 0 }
    }

    /// Runs a request with a prompt of `blocks` blocks, which its number tells from others, and a token more. Returns the blocks found.
    fn ask(&mut self, tenant: u64, prompt: u64, blocks: u64) -> u64 {
        let name = tenant.to_string();
        let root = Namespace { tenant: &name, ..Namespace::default() }.root();
        let prompt = (0..blocks * BLOCK + 1).map(|at| (prompt * 1000 + at) as Token).collect();
        let before = self.driver.stats().tokens.cached_tokens;
        self.driver.submit_request(Request { tenant, ..Request::new(RequestId(self.next), root, prompt, 1) });
        self.next += 1;
        self.driver.now_ns += self.step_ns;
        self.driver.run_to_end();
        (self.driver.stats().tokens.cached_tokens - before) / BLOCK
    }

    /// Another prompt of 8 blocks each time.
    fn flood(&mut self, tenant: u64, prompts: u64) {
        for _ in 0..prompts {
            self.ask(tenant, 100 + self.next, 8);
        }
    }
}

#[test]
fn a_flood_takes_no_prompt_below_the_floor_of_another_tenant() {
    for entry in eviction::REGISTRY.entries().iter().filter(|entry| entry.name != "leaves") {
        let mut cache = Cache::new(config(entry.name));
        cache.ask(1, 1, 8);
        cache.ask(1, 2, 8);
        for _ in 0..8 {
            cache.flood(2, 20);
            assert_eq!((cache.ask(1, 1, 8), cache.ask(1, 2, 8)), (8, 8), "{}", entry.name);
        }
    }
}

#[test]
fn without_floors_a_flood_takes_all_and_so_it_does_without_an_order_of_tenants() {
    for (policy, eviction, kept) in
        [("vtc", "lru:floor_percent=0", 0), ("fcfs", "lru", 0), ("fcfs", "lru:floor_percent=50", 8), ("vtc", "lru", 8)]
    {
        let mut cache = Cache::new(Config { policy: policy.into(), ..config(eviction) });
        cache.ask(1, 1, 8);
        cache.flood(2, 20);
        assert_eq!(cache.ask(1, 1, 8), kept, "{policy}, {eviction}");
    }
}

#[test]
fn a_floor_is_a_part_of_the_share_and_what_is_above_it_goes() {
    for (eviction, tenants, kept) in
        [("lru", 2, 16), ("lru", 4, 8), ("lru:floor_percent=75", 2, 24), ("lru:floor_percent=25", 2, 8)]
    {
        let mut cache = Cache::new(config(eviction));
        cache.ask(1, 1, 40);
        (3..=tenants).for_each(|tenant| assert_eq!(cache.ask(tenant, tenant, 1), 0));
        cache.flood(2, 20);
        assert_eq!(cache.ask(1, 1, 40), kept, "{eviction}, {tenants} tenants");
    }
}

#[test]
fn a_floor_ends_some_time_after_the_last_request() {
    for (seconds, kept) in [(299, 8), (302, 0)] {
        let mut cache = Cache::new(config("lru"));
        cache.ask(1, 1, 8);
        cache.driver.now_ns += seconds * SECOND;
        cache.flood(2, 20);
        assert_eq!(cache.ask(1, 1, 8), kept, "{seconds} s");
    }
}

#[test]
fn who_asks_for_more_than_others_left_gets_it_from_floors_too() {
    let mut cache = Cache::new(config("lru"));
    cache.ask(1, 1, 8);
    cache.ask(2, 2, 58);
    assert_eq!(cache.ask(1, 1, 8), 5, "a prompt of 58 blocks and its answer leave room for 5 others");
}

#[test]
fn many_prompts_of_a_tenant_are_kept_together_with_what_they_share() {
    let mut cache = Cache::new(config("lru"));
    // 4 blocks in common, and one of its own each.
    let name = "1";
    let root = Namespace { tenant: name, ..Namespace::default() }.root();
    let branch = |cache: &mut Cache, branch: u64| {
        let prompt = (0..21).map(|at| (at + if at < 16 { 0 } else { 1000 * branch }) as Token).collect();
        let before = cache.driver.stats().tokens.cached_tokens;
        cache.driver.submit_request(Request { tenant: 1, ..Request::new(RequestId(cache.next), root, prompt, 1) });
        cache.next += 1;
        cache.driver.run_to_end();
        (cache.driver.stats().tokens.cached_tokens - before) / BLOCK
    };
    (1..=10).for_each(|at| assert_eq!(branch(&mut cache, at), if at == 1 { 0 } else { 4 }));
    cache.flood(2, 30);
    (1..=10).for_each(|at| assert_eq!(branch(&mut cache, at), 5, "branch {at}"));
}

#[test]
fn one_tenant_decides_as_without_floors() {
    for entry in eviction::REGISTRY.entries() {
        let digest = |eviction: String| {
            let mut cache = Cache::new(config(&eviction));
            for at in 0..200 {
                cache.ask(1, at * 7 % 13, 1 + at * 5 % 11);
            }
            assert!(cache.driver.stats().evicted_blocks > 100);
            cache.driver.core.digest()
        };
        assert_eq!(digest(entry.name.into()), digest(format!("{}:floor_percent=0", entry.name)), "{}", entry.name);
    }
}

/// The device of [`config`], with tiers of so many blocks that take all that requests leave. Loading always pays.
fn tiered(tiers: &[u32], eviction: &str) -> Cache {
    let tier = |blocks: &u32| TierConfig {
        name: "tier".into(),
        blocks: *blocks,
        write: Write::Through,
        eviction: eviction.into(),
        shared: false,
    };
    let tiers = tiers.iter().map(tier).collect();
    let config = Config { tiers, launch_watermark: 0.0, recompute_token_ns: 1 << 40, ..config("lru") };
    Cache { step_ns: SECOND / 10, ..Cache::new(config) }
}

/// Empties the device.
fn lose_device(cache: &mut Cache) {
    cache.driver.lose_worker();
    cache.driver.join();
}

#[test]
fn a_flood_takes_no_prompt_below_the_floor_of_another_tenant_in_a_tier() {
    for entry in eviction::REGISTRY.entries().iter().filter(|entry| entry.name != "leaves") {
        for n_tiers in [1, 2] {
            let mut cache = tiered(&[64, 64][..n_tiers], entry.name);
            cache.ask(1, 1, 8);
            cache.ask(1, 2, 8);
            cache.flood(2, 40);
            lose_device(&mut cache);
            if n_tiers == 2 {
                cache.driver.event(Event::TierResized { tier: 0, blocks: 0 });
            }
            assert_eq!((cache.ask(1, 1, 8), cache.ask(1, 2, 8)), (8, 8), "{}, tier {n_tiers}", entry.name);
        }
    }
}

#[test]
fn all_that_a_floor_keeps_in_a_tier_stays_however_much_it_is() {
    let mut cache = tiered(&[1000], "lru");
    (0..30).for_each(|prompt| assert_eq!(cache.ask(1, prompt, 8), 0));
    cache.flood(2, 400);
    lose_device(&mut cache);
    (0..30).for_each(|prompt| assert_eq!(cache.ask(1, prompt, 8), 8, "prompt {prompt}"));
}

#[test]
fn a_tier_that_got_smaller_has_smaller_floors() {
    let mut cache = tiered(&[128], "lru");
    (0..4).for_each(|prompt| assert_eq!(cache.ask(1, prompt, 8), 0));
    cache.driver.event(Event::TierResized { tier: 0, blocks: 64 });
    cache.flood(2, 40);
    lose_device(&mut cache);
    let kept: u64 = (0..4).map(|prompt| cache.ask(1, prompt, 8)).sum();
    assert!((8..=16).contains(&kept), "{kept} of 16 blocks");
}
