//! Copies that are slow, hang, fail, or are in the way.

use trunkline_core::{Config, Preemption, TierConfig, Token, Write};
use trunkline_driver::Driver;

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
