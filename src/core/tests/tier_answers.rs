//! Answers of tiers block by block: what a block that does not arrive costs, tiers that are too busy, and blocks from before.

use trunkline_core::{BlockFault, BlockKey, Config, Event, KnownBlock, Place, Preemption, TierConfig, Token, Write};
use trunkline_driver::{Driver, prompt};

const BLOCK: u32 = 4;

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into(), shared: false }
}

fn driver(write: Write) -> Driver {
    Driver::new(config(write))
}

fn config(write: Write) -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 12,
        max_batch_tokens: 200,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        tiers: vec![tier(20, write)],
        ..Config::default()
    }
}

/// Index of the pair that copies the `at`-th block of the only copy's prefix: pairs come tail first.
fn pair_of(driver: &Driver, at: u32) -> u32 {
    driver.copies[0].pairs.len() as u32 - 1 - at
}

#[test]
fn a_load_keeps_the_blocks_before_the_first_that_failed_and_only_a_bad_one_leaves_the_tier() {
    for (fault, left) in [(BlockFault::Bad, 4), (BlockFault::Interrupted, 5)] {
        let mut driver = driver(Write::Through);
        driver.ask(1, prompt(1, 21));
        driver.evict_idle();
        driver.submit(2, prompt(1, 21), 1);
        assert_eq!(driver.copies[0].pairs.len(), 5);
        let failed = pair_of(&driver, 3);
        driver.end_copy_partly(0, &[(failed, fault)]);
        assert_eq!(driver.running(), [(2, 12, 9, true)], "three blocks are there, the rest is computed");
        assert_eq!(driver.stats().tiers[0].blocks, left, "{fault:?}");
        driver.run_to_end();
    }
}

#[test]
fn blocks_that_a_tier_did_not_get_are_not_found_there_and_those_that_it_got_are() {
    let mut driver = driver(Write::Through);
    driver.submit(1, prompt(1, 21), 1);
    driver.answer();
    let refused = [0, 1].map(|pair| (pair, BlockFault::Refused));
    driver.end_copy_partly(0, &refused);
    assert_eq!((driver.stats().tiers[0].blocks, driver.stats().tiers[0].skipped_blocks), (3, 2));
    driver.evict_idle();
    assert_eq!(driver.ask(2, prompt(1, 21)), 12, "the tail was refused");
}

#[test]
fn a_tier_that_refuses_gets_nothing_until_it_is_idle_and_later_what_it_missed() {
    let mut driver = driver(Write::Through);
    driver.submit(1, prompt(1, 9), 1);
    driver.submit(2, prompt(2, 9), 1);
    driver.answer_until(|driver| driver.copies.len() == 2);
    driver.end_copy_partly(0, &[(0, BlockFault::Refused)]);
    driver.submit(3, prompt(3, 9), 1);
    driver.answer();
    assert_eq!(driver.copies.len(), 1, "it is busy with the second copy");
    assert_eq!(driver.stats().tiers[0].skipped_blocks, 1 + 2);
    driver.submit(6, prompt(2, 9), 1);
    driver.answer();
    assert_eq!(driver.stats().tiers[0].skipped_blocks, 1 + 2, "the tier is about to have these");
    driver.finish_copy(0);
    driver.submit(4, prompt(4, 9), 1);
    driver.answer();
    assert_eq!(driver.copies.len(), 1, "it is idle, and takes the next");
    driver.finish_copy(0);
    // Eight of twelve blocks are idle; a prompt that takes the other four needs one more soon.
    driver.submit(5, prompt(5, 14), 3);
    driver.answer();
    let saved: Vec<(Place, usize)> = driver.copies.iter().map(|copy| (copy.to, copy.pairs.len())).collect();
    assert_eq!(saved, [(Place::Tier(0), 1)], "a victim that the tier missed, before it is evicted");
    driver.run_to_end();
}

/// Runs a prompt on a core, and another core with the same tier after it. Returns the second core, and the blocks in the tier.
fn restarted(prompt: Vec<Token>) -> (Driver, Vec<KnownBlock>) {
    let mut driver = driver(Write::Through);
    driver.submit(1, prompt, 1);
    driver.answer();
    let copy = driver.copies[0].clone();
    driver.run_to_end();
    let known = |(at, key): (usize, &BlockKey)| KnownBlock {
        block: copy.pairs[at].1,
        key: *key,
        tokens: copy.tokens_of(at).to_vec(),
    };
    let mut blocks: Vec<KnownBlock> = copy.keys.iter().enumerate().map(known).collect();
    blocks.sort_by_key(|known| known.block);
    (driver.restarted(), blocks)
}

#[test]
fn blocks_from_before_are_found_and_evicted_oldest_first() {
    let (mut driver, blocks) = restarted(prompt(1, 13));
    driver.event(Event::TierFound { tier: 0, blocks });
    assert_eq!(driver.stats().tiers[0].blocks, 3);
    assert_eq!(driver.ask(1, prompt(1, 13)), 12);
    driver.evict_idle();
    // A load ends with the head of the prompt, which is the youngest now.
    driver.event(Event::TierResized { tier: 0, blocks: 1 });
    assert_eq!((driver.stats().tiers[0].blocks, driver.stats().tiers[0].evicted_blocks), (1, 2));
    assert_eq!(driver.worker.released, [1, 2].map(|block| (Place::Tier(0), block)), "their memory is free");
    assert_eq!(driver.ask(2, prompt(1, 13)), 4);
}

#[test]
fn blocks_from_before_with_other_tokens_or_another_prefix_are_not_found() {
    let (mut other_tokens, blocks) = restarted(prompt(1, 13));
    let mut changed = blocks.clone();
    changed[1].tokens[0] += 1;
    other_tokens.event(Event::TierFound { tier: 0, blocks: changed });
    assert_eq!(other_tokens.ask(1, prompt(1, 13)), 4, "up to the block before");

    let (mut other_prefix, _) = restarted(prompt(1, 13));
    let mut changed = blocks;
    changed[0].key.parent += 1;
    other_prefix.event(Event::TierFound { tier: 0, blocks: changed });
    assert_eq!(other_prefix.ask(1, prompt(1, 13)), 0, "the first block is of another namespace");
}

#[test]
fn without_room_for_all_blocks_from_before_the_oldest_are_released() {
    let (mut driver, blocks) = restarted(prompt(1, 21));
    driver.event(Event::TierResized { tier: 0, blocks: 2 });
    driver.event(Event::TierFound { tier: 0, blocks: blocks.clone() });
    assert_eq!(driver.stats().tiers[0].blocks, 2);
    assert_eq!(driver.worker.released, [0, 1, 2].map(|block| (Place::Tier(0), block)));
    driver.event(Event::TierFound { tier: 7, blocks: blocks.clone() });
    driver.event(Event::TierFound { tier: 0, blocks });
    assert_eq!(driver.stats().tiers[0].blocks, 2, "no such tier, and not twice");
}

#[test]
fn a_block_from_before_that_cannot_be_taken_is_released_and_the_others_are_found() {
    let (mut driver, mut blocks) = restarted(prompt(1, 21));
    // The second slot has another block by the hash of the first.
    blocks[1].key.fingerprint = blocks[0].key.fingerprint;
    driver.event(Event::TierFound { tier: 0, blocks });
    assert_eq!((driver.stats().tiers[0].blocks, &driver.worker.released[..]), (4, &[(Place::Tier(0), 1)][..]));
    assert_eq!(driver.ask(1, prompt(1, 21)), 4, "up to the block released");
}

/// Runs a prompt on a core, and another prompt on another core with the same tier. Returns the second core, and the blocks of the first prompt, which the storage
/// of the tier numbers from 10 on.
fn restarted_and_used(first: Vec<Token>, second: Vec<Token>) -> (Driver, Vec<KnownBlock>) {
    let (mut driver, mut blocks) = restarted(first);
    let numbers = blocks.iter().map(|known| (known.block, Some(known.block + 10))).collect::<Vec<_>>();
    driver.worker.adopt(0, &numbers);
    blocks.iter_mut().for_each(|known| known.block += 10);
    assert_eq!(driver.ask(1, second), 0);
    driver.run_to_end();
    (driver, blocks)
}

#[test]
fn blocks_from_before_are_found_while_the_tier_is_used() {
    let (mut driver, blocks) = restarted_and_used(prompt(1, 13), prompt(2, 9));
    assert_eq!(driver.stats().tiers[0].blocks, 2, "of the second prompt");
    let digest = driver.core.digest();
    driver.event(Event::TierFoundLater { tier: 0, blocks: blocks.clone() });
    assert_ne!(driver.core.digest(), digest);
    assert_eq!(driver.stats().tiers[0].blocks, 5);
    driver.evict_idle();
    assert_eq!(driver.ask(2, prompt(1, 13)), 12, "the contents are those of the first core");
    driver.event(Event::TierFoundLater { tier: 0, blocks: blocks.clone() });
    let mut short = blocks[0].clone();
    short.tokens.pop();
    short.key.fingerprint += 1;
    driver.event(Event::TierFoundLater { tier: 0, blocks: vec![short] });
    driver.event(Event::TierFoundLater { tier: 7, blocks });
    assert_eq!(driver.stats().tiers[0].blocks, 5, "not twice, no block of another size, and no such tier");
}

#[test]
fn blocks_from_before_that_come_later_take_the_place_of_older_ones() {
    let (mut driver, blocks) = restarted_and_used(prompt(1, 13), prompt(2, 9));
    driver.event(Event::TierResized { tier: 0, blocks: 2 });
    driver.event(Event::TierFoundLater { tier: 0, blocks });
    assert_eq!((driver.stats().tiers[0].blocks, driver.stats().tiers[0].evicted_blocks), (2, 3));
    driver.evict_idle();
    assert_eq!(driver.ask(2, prompt(2, 9)), 0, "evicted");
}

#[test]
fn blocks_from_before_a_flush_are_not_found_after_it() {
    let (mut driver, blocks) = restarted_and_used(prompt(1, 13), prompt(2, 9));
    driver.event(Event::FlushCache);
    driver.event(Event::TierFoundLater { tier: 0, blocks });
    assert_eq!(driver.stats().tiers[0].blocks, 0);
    assert_eq!(driver.ask(2, prompt(1, 13)), 0);
}

#[test]
fn host_blocks_are_released_when_their_request_is_back() {
    let config = Config { host_blocks: 20, preemption: Preemption::Swap, tiers: Vec::new(), ..config(Write::Through) };
    let mut driver = Driver::new(config);
    driver.submit(1, prompt(1, 20), 20);
    driver.submit(2, prompt(2, 17), 20);
    driver.answer_until(|driver| driver.copies.iter().any(|copy| copy.to == Place::Host));
    let mut hosts: Vec<_> = driver.copies[0].pairs.iter().map(|(_, to)| (Place::Host, *to)).collect();
    hosts.sort_unstable();
    driver.run_to_end();
    assert_eq!(driver.stats().swaps.swap_ins, 1);
    assert_eq!(driver.worker.released, hosts);
}

#[test]
fn a_tier_resized_to_nothing_takes_nothing() {
    let mut driver = driver(Write::Through);
    driver.event(Event::TierResized { tier: 0, blocks: 0 });
    driver.ask(1, prompt(1, 13));
    assert_eq!((driver.stats().tiers[0].blocks, driver.stats().tiers[0].stored_blocks), (0, 0));
}
