//! Layer groups in the tiers of the prefix cache: what goes down, what comes back, and how much of a prompt is found.

use trunkline_core::{BlockFault, Config, H2oConfig, Keeps, Place, TierConfig, Token, WorkerFacts, Write, h2o};
use trunkline_driver::Driver;
use trunkline_port::LAYER_GROUPS_MAX;

/// Blocks of 4 tokens, 32 on the device for each group, and a tier of 200.
fn config(groups: &[Keeps], write: Write) -> Config {
    Config {
        block_size: 4,
        device_blocks: 32,
        max_batch_tokens: 200,
        max_batch_size: 4,
        launch_watermark: 0.0,
        // The test's clock says nothing of costs: loading always pays.
        recompute_token_ns: 1 << 40,
        worker: WorkerFacts { groups: groups.to_vec(), ..WorkerFacts::default() },
        tiers: vec![TierConfig { name: "tier".into(), blocks: 200, write, eviction: "lru".into(), shared: false }],
        ..Config::default()
    }
}

fn joined(config: Config) -> Driver {
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    driver
}

fn prompt(n: u32) -> Vec<Token> {
    (100..100 + n).collect()
}

/// Copies in flight: source, destination and blocks.
fn copies(driver: &Driver) -> Vec<(Place, Place, usize)> {
    driver.copies.iter().map(|copy| (copy.from, copy.to, copy.pairs.len())).collect()
}

fn cached(driver: &Driver, id: u64) -> u32 {
    driver.usages[&id].cached_tokens
}

/// Asks for 33 tokens, of which the device keeps nothing, and the tier the blocks that it got.
fn asked_and_evicted(groups: &[Keeps]) -> Driver {
    let mut driver = joined(config(groups, Write::Through));
    driver.submit(1, prompt(33), 1);
    driver.run_to_end();
    driver.evict_idle();
    assert_eq!(driver.stats().idle_blocks, 0);
    driver
}

/// Runs requests that take the device's blocks from all that was there.
fn push_out(driver: &mut Driver) {
    for id in 5..20 {
        driver.submit(id, (1000 * id as u32..).take(13).collect(), 3);
        driver.run_to_end();
    }
}

const DOWN: (Place, Place) = (Place::Device, Place::Tier(0));
const UP: (Place, Place) = (Place::Tier(0), Place::Device);

#[test]
fn blocks_of_all_groups_go_down_when_the_request_ends_and_come_back() {
    let mut driver = joined(config(&[Keeps::All, Keeps::Scored, Keeps::All], Write::Through));
    driver.submit(1, prompt(33), 1);
    driver.answer();
    assert_eq!(copies(&driver), [(DOWN.0, DOWN.1, 3 * 8)], "eight full blocks of 33 tokens in three groups");
    let mut keys: Vec<u128> = driver.copies[0].keys.iter().map(|key| key.hash).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 24, "each block of each group has a key of its own");
    driver.evict_idle();
    assert_eq!(driver.in_use(), 24, "the copy reads them");
    driver.finish_copy(0);
    driver.evict_idle();
    assert_eq!(driver.in_use(), 0);
    driver.submit(2, prompt(33), 1);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 24)]);
    driver.run_to_end();
    assert_eq!((cached(&driver, 2), driver.stats().tiers[0].hit_blocks), (32, 24));
    driver.assert_texts();
}

#[test]
fn as_many_groups_as_there_may_be_go_down_drop_and_come_back() {
    let groups = [vec![Keeps::All], vec![Keeps::Scored; LAYER_GROUPS_MAX - 1]].concat();
    let n = groups.len();
    let mut config = config(&groups, Write::Through);
    config.tiers[0].blocks *= n as u32;
    let (mode, by_group) = (h2o::Mode::On, true);
    config.h2o =
        H2oConfig { mode, by_group, ratio: Some(3.0), sink: 4, recent: 4, trigger: 24, interval: 2, ..config.h2o };
    let mut driver = joined(config);
    driver.submit(1, prompt(33), 20);
    driver.run_to_end();
    let dropped = driver.stats().h2o.h2o_dropped_blocks;
    assert!(dropped > 255 * 6 && dropped < 255 * 13, "{dropped}");
    driver.evict_idle();
    assert_eq!(driver.in_use(), 0);
    driver.submit(2, prompt(33), 1);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 8 * n)], "every block of every group, dropped ones too");
    driver.run_to_end();
    assert_eq!(cached(&driver, 2), 32);
    driver.assert_texts();
}

#[test]
fn a_window_that_came_back_is_found_on_the_device_by_the_next_request() {
    // A window that ends one token into a block: the prompt's last token reads a block that the next token does not.
    let mut driver = asked_and_evicted(&[Keeps::All, Keeps::Window(9)]);
    driver.submit(2, prompt(33), 1);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 8 + 3)]);
    driver.run_to_end();
    driver.submit(3, prompt(33), 1);
    assert_eq!((copies(&driver), driver.running()), (vec![], vec![(3, 32, 1, true)]));
    driver.run_to_end();
    assert_eq!([cached(&driver, 2), cached(&driver, 3)], [32, 32]);
    driver.assert_texts();
}

#[test]
fn a_load_that_pays_with_its_window_alone_is_not_cut_before_it() {
    // A block takes 1.6 ms to compute and 1 ms to load. The last two entries take two copies each and pay nothing, but without them the two
    // before would be the window: 8 copies instead of 6 blocks, not 10 instead of 8.
    let costs = |config| Config { recompute_token_ns: 400_000, swap_block_ns: 1_000_000, ..config };
    let mut driver = joined(costs(config(&[Keeps::All, Keeps::Window(8)], Write::Through)));
    driver.submit(1, prompt(33), 1);
    driver.run_to_end();
    driver.evict_idle();
    driver.submit(2, prompt(33), 1);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 8 + 2)]);
    driver.run_to_end();
    driver.assert_texts();
}

#[test]
fn of_a_window_only_what_the_next_token_reads_comes_back() {
    let mut driver = asked_and_evicted(&[Keeps::All, Keeps::Window(8)]);
    driver.submit(2, prompt(33), 1);
    // The first group needs all eight blocks. Token 31, the last one cached, sees 24 to 31: the blocks 6 and 7.
    assert_eq!(copies(&driver), [(UP.0, UP.1, 8 + 2)]);
    driver.finish_copy(0);
    assert_eq!(driver.running(), [(2, 32, 1, true)]);
    // Nine blocks in the first group; token 32 sees 25 to 32 in the second: the blocks 6, 7 and 8.
    assert_eq!(driver.in_use(), 9 + 3, "blocks behind the window are given back at once");
    driver.run_to_end();
    driver.assert_texts();
}

#[test]
fn a_prompt_is_found_as_far_as_every_group_has_what_is_read_behind() {
    // Pairs go down tail first, and of each block the second group first: pair 9 is block 3 of the first group.
    let run = |groups: &[Keeps], fault: u32| {
        let mut driver = joined(config(groups, Write::Through));
        driver.submit(1, prompt(33), 1);
        driver.answer();
        driver.end_copy_partly(0, &[(fault, BlockFault::Interrupted)]);
        driver.evict_idle();
        driver.submit(2, prompt(33), 1);
        let loaded = driver.copies[0].pairs.len();
        driver.run_to_end();
        driver.assert_texts();
        (cached(&driver, 2), loaded)
    };
    let evicting = [Keeps::All, Keeps::Scored];
    assert_eq!(run(&evicting, 9), (12, 6), "block 3 of the first group is missing");
    assert_eq!(run(&evicting, 8), (12, 6), "block 3 of the second group is missing");
    let windows = [Keeps::All, Keeps::Window(8)];
    assert_eq!(run(&windows, 8), (32, 10), "block 3 is behind the window");
    assert_eq!(run(&windows, 2), (24, 8), "block 6 is in the window; before it the tier has what 24 tokens need");
}

#[test]
fn a_block_that_does_not_arrive_cuts_the_load_where_its_group_needs_it() {
    let run = |groups: &[Keeps], fault: u32| {
        let mut driver = asked_and_evicted(groups);
        driver.submit(2, prompt(33), 1);
        driver.end_copy_partly(0, &[(fault, BlockFault::Bad)]);
        driver.run_to_end();
        driver.assert_texts();
        cached(&driver, 2)
    };
    assert_eq!(run(&[Keeps::All, Keeps::Scored], 4), 20, "block 5 of the second group");
    assert_eq!(run(&[Keeps::All, Keeps::Scored], 5), 20, "block 5 of the first group");
    // With block 7 of the window missing, 28 tokens need block 5 and 6 of it, and block 5 was not loaded.
    assert_eq!(run(&[Keeps::All, Keeps::Window(8)], 0), 0);
    assert_eq!(run(&[Keeps::All, Keeps::Window(100)], 0), 28);
}

#[test]
fn what_others_may_ask_for_goes_down_although_the_request_dropped_it() {
    // 33 tokens leave a window of 8 behind; the blocks before it stay cached, and go down with the rest.
    let mut driver = asked_and_evicted(&[Keeps::All, Keeps::Window(8)]);
    assert_eq!(driver.stats().tiers[0].blocks, 16);
    let mut other = prompt(17);
    other.extend([1, 2, 3, 4]);
    driver.submit(2, other, 1);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 4 + 2)], "four blocks, and a window of two before another end");
    driver.run_to_end();
    assert_eq!(cached(&driver, 2), 16);
    driver.assert_texts();
}

/// A device of which writing back keeps an eighth free, full of one prompt of 25 blocks in each of two groups.
fn full() -> Driver {
    let mut driver = joined(config(&[Keeps::All, Keeps::Scored], Write::Back));
    driver.submit(1, prompt(101), 1);
    driver.run_to_end();
    // Three more requests of 13 tokens leave 64 - 2 x (25 + 3) = 8 blocks free: the eighth. The next needs more.
    driver.submit(2, (500..513).collect(), 1);
    driver.run_to_end();
    assert_eq!(driver.stats().idle_blocks, 2 * 28);
    driver.submit(3, (600..613).collect(), 2);
    driver
}

#[test]
fn blocks_leave_the_device_with_those_beside_them() {
    let mut driver = full();
    driver.answer();
    assert_eq!(copies(&driver), [(DOWN.0, DOWN.1, 8)], "four blocks in both groups, for the eight that were taken");
    driver.finish_copy(0);
    driver.run_to_end();
    driver.submit(4, prompt(101), 1);
    driver.run_to_end();
    assert_eq!(cached(&driver, 4), 100, "21 blocks are on the device, four in the tier");
    driver.assert_texts();
}

#[test]
fn blocks_go_down_again_beside_one_that_the_tier_kept() {
    let mut driver = full();
    driver.answer();
    // The last block of the prompt arrives without its block in the other group.
    driver.end_copy_partly(0, &[(0, BlockFault::Interrupted)]);
    driver.run_to_end();
    driver.submit(4, prompt(101), 1);
    driver.run_to_end();
    assert_eq!(cached(&driver, 4), 96, "the last block is computed again, in both groups");
    push_out(&mut driver);
    driver.submit(90, prompt(101), 1);
    driver.run_to_end();
    assert_eq!(cached(&driver, 90), 100);
    driver.assert_texts();
}

#[test]
fn dropped_blocks_of_a_prompt_are_saved_before_others_take_their_room() {
    for write in [Write::Back, Write::Through] {
        let mut config = config(&[Keeps::All, Keeps::Scored], write);
        let settings =
            H2oConfig { ratio: Some(3.0), sink: 4, recent: 4, trigger: 24, interval: 2, ..H2oConfig::default() };
        config.h2o = H2oConfig { mode: h2o::Mode::On, ..settings };
        let mut driver = joined(config);
        driver.submit(1, prompt(101), 16);
        while driver.stats().h2o.h2o_dropped_blocks == 0 {
            driver.answer();
        }
        // The first request holds 26 blocks of one group and 10 of the other; the next needs more than the 12 that are free.
        driver.submit(2, (500..541).collect(), 8);
        driver.run_to_end();
        assert_eq!(driver.stats().preemptions, 0);
        push_out(&mut driver);
        driver.submit(90, prompt(101), 1);
        driver.run_to_end();
        assert_eq!(cached(&driver, 90), 100, "{write:?}");
        driver.assert_texts();
    }
}

#[test]
fn blocks_on_their_way_down_are_found_and_those_that_did_not_arrive_come_back() {
    let mut found = full();
    found.answer();
    found.submit(4, prompt(101), 1);
    found.answer();
    assert_eq!(found.running(), [(4, 100, 1, true)], "they are read where they are");
    found.finish_copy(0);
    found.run_to_end();
    found.assert_texts();
    let mut failed = full();
    failed.answer();
    failed.fail_copy(0);
    failed.run_to_end();
    failed.submit(4, prompt(101), 1);
    assert_eq!(failed.running(), [(4, 100, 1, true)], "they are back on the device");
    failed.run_to_end();
    failed.assert_texts();
}

fn shared(groups: &[Keeps]) -> Config {
    let mut config = config(groups, Write::Through);
    config.tiers[0].shared = true;
    config
}

/// A core with storage where another core has left the blocks of 33 tokens, but this one.
fn next_to(groups: &[Keeps], fault: Option<u32>) -> Driver {
    let mut first = joined(shared(groups));
    first.submit(1, prompt(33), 1);
    first.end_lookup(0);
    first.answer();
    let faults: Vec<_> = fault.map(|pair| (pair, BlockFault::Interrupted)).into_iter().collect();
    first.end_copy_partly(0, &faults);
    first.run_to_end();
    first.restarted()
}

#[test]
fn a_shared_tier_is_asked_for_the_blocks_of_all_groups() {
    let mut driver = next_to(&[Keeps::All, Keeps::Scored], None);
    driver.submit(2, prompt(41), 1);
    assert_eq!(driver.lookups[0].keys.len(), 20, "ten blocks in two groups");
    driver.end_lookup(0);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 16)]);
    driver.run_to_end();
    assert_eq!((cached(&driver, 2), driver.stats().tiers[0].found_blocks), (32, 16));
    driver.assert_texts();
}

#[test]
fn a_shared_tier_is_asked_for_windows_once_the_end_of_the_prefix_is_known() {
    let groups = [Keeps::All, Keeps::Window(8)];
    let mut driver = next_to(&groups, None);
    driver.submit(2, prompt(41), 1);
    assert_eq!(driver.lookups[0].keys.len(), 10);
    driver.end_lookup(0);
    assert_eq!((driver.lookups[0].keys.len(), driver.copies.len()), (2, 0), "the last two blocks of the window");
    assert_eq!(driver.stats().waiting, 1, "the request goes on waiting");
    driver.end_lookup(0);
    assert_eq!(copies(&driver), [(UP.0, UP.1, 8 + 2)]);
    driver.run_to_end();
    assert_eq!((cached(&driver, 2), driver.stats().tiers[0].looked_up_blocks), (32, 12));
    driver.assert_texts();

    // Pair 0 is the last block of the window.
    let mut driver = next_to(&groups, Some(0));
    driver.submit(2, prompt(41), 1);
    (0..2).for_each(|_| driver.end_lookup(0));
    assert_eq!((driver.copies.len(), driver.running()), (0, vec![(2, 0, 41, true)]), "of no use without its window");
    driver.run_to_end();
    assert_eq!(driver.stats().tiers[0].found_blocks, 0);
}
