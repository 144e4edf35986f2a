//! Copies to and from tiers: which blocks, in which order, on which occasion.

use trunkline_core::{Config, Preemption, TierConfig, Token, Write};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into() }
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

/// `n` tokens that begin no other prompt.
fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|at| kind * 1000 + at).collect()
}

/// Runs a request to its end. Returns the tokens of its prompt found in the cache.
fn ask(driver: &mut Driver, id: u64, prompt: Vec<Token>) -> u32 {
    driver.submit(id, prompt, 1);
    driver.run_to_end();
    driver.usages[&id].cached_tokens
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
        assert_eq!(driver.usages[&2].preemptions, 1, "{preemption:?}");
        assert!(
            stats.published_blocks < 9 + 9 + 4,
            "{preemption:?}: request 2 found blocks of its own again: {stats:?}"
        );
        assert_eq!(stats.tiers[0].stored_blocks, 0, "{preemption:?}");
        // What another request finds is a second use.
        let cached = ask(&mut driver, 3, prompt(2, 17));
        assert!(cached > 0, "{preemption:?}");
        assert_eq!(driver.stats().tiers[0].stored_blocks, u64::from(cached / BLOCK), "{preemption:?}");
    }
}
