//! Look-ups in a tier that other cores fill too: who asks, who waits and for how long, and what is found.

use trunkline_core::{BlockFault, Config, Event, Place, TierConfig, Token, Write};
use trunkline_driver::Driver;

/// Tokens in a block.
const BLOCK: u32 = 4;

/// Computing a block takes 4,000 ns; loading one takes 10 ns.
fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 64,
        tiers: vec![TierConfig {
            name: "remote".into(),
            blocks: 64,
            write: Write::Through,
            eviction: "lru".into(),
            shared: true,
        }],
        swap_block_ns: 10,
        recompute_token_ns: 1_000,
        ..Config::default()
    }
}

/// A prompt of so many full blocks and one token, unlike those of other families.
fn prompt(family: u32, blocks: u32) -> Vec<Token> {
    (0..=blocks * BLOCK).map(|at| family * 1_000 + at).collect()
}

/// A core with storage where another core has left the blocks of a prompt.
fn next_to(config: Config, written: &[Vec<Token>]) -> Driver {
    let mut first = Driver::new(config);
    for (id, prompt) in (1000..).zip(written) {
        first.submit(id, prompt.clone(), 1);
        run_to_end(&mut first);
    }
    let mut driver = first.restarted();
    // Until a prefill is measured, computing counts as slow. A prompt without a full block asks for nothing.
    driver.submit(999, vec![1, 2, 3], 1);
    run_to_end(&mut driver);
    driver
}

/// Ends the step in flight, at 1,000 ns a token.
fn answer(driver: &mut Driver) {
    let tokens: u32 = driver.seqs().map(|seq| seq.n_tokens).sum();
    driver.now_ns += u64::from(tokens) * 1_000;
    driver.answer();
}

/// Ends all that is in flight until nothing is: look-ups and copies at once, steps after their time.
fn run_to_end(driver: &mut Driver) {
    loop {
        if !driver.lookups.is_empty() {
            driver.end_lookup(0);
        } else if !driver.copies.is_empty() {
            driver.finish_copy(0);
        } else if !driver.steps.is_empty() {
            answer(driver);
        } else {
            return driver.assert_texts();
        }
    }
}

fn cached(driver: &Driver, id: u64) -> u32 {
    driver.usages[&id].cached_tokens
}

#[test]
fn what_another_core_wrote_is_found_and_loaded_and_requests_behind_pass_meanwhile() {
    let mut driver = next_to(config(), &[prompt(1, 3)]);
    driver.submit(1, prompt(1, 5), 2);
    assert!(driver.steps.is_empty(), "the request waits for the answer");
    let asked = &driver.lookups[0];
    assert_eq!((driver.lookups.len(), asked.id, asked.tier, asked.keys.len()), (1, 1, 0, 5));
    assert!(asked.keys.windows(2).all(|keys| keys[0].hash == keys[1].parent), "a chain");
    // A prompt without a full block has nothing to ask for.
    driver.submit(2, vec![7], 4);
    assert_eq!(driver.ids(), [2]);
    driver.end_lookup(0);
    answer(&mut driver);
    let load = &driver.copies[0];
    assert_eq!((load.from, load.to, load.pairs.len()), (Place::Tier(0), Place::Device, 3));
    run_to_end(&mut driver);
    assert_eq!((cached(&driver, 1), cached(&driver, 2)), (3 * BLOCK, 0));
    let tier = driver.stats().tiers[0];
    assert_eq!((tier.looked_up_blocks, tier.found_blocks, tier.hit_blocks), (5, 3, 3));
    assert_eq!(tier.stored_blocks, 2 + 1, "what was found is not written again; the last is of request 2");
}

#[test]
fn only_the_blocks_behind_those_known_are_asked_for() {
    let mut driver = next_to(config(), &[prompt(1, 6)]);
    driver.submit(1, prompt(1, 2), 1);
    run_to_end(&mut driver);
    // On the device.
    driver.submit(2, prompt(1, 6), 1);
    assert_eq!((driver.lookups[0].keys.len(), driver.lookups[0].keys[0].first_token), (4, 2 * BLOCK));
    run_to_end(&mut driver);
    assert_eq!(cached(&driver, 2), 6 * BLOCK);
    // In the tier, and not on the device.
    driver.evict_idle();
    driver.submit(3, prompt(1, 6), 1);
    assert!(driver.lookups.is_empty(), "all of it is known");
    run_to_end(&mut driver);
    driver.evict_idle();
    let longer = [prompt(1, 6), prompt(9, 2)].concat();
    driver.submit(4, longer, 1);
    let asked = &driver.lookups[0];
    assert_eq!((asked.keys.len(), asked.keys[0].first_token), (2, 6 * BLOCK));
    run_to_end(&mut driver);
}

#[test]
fn one_look_up_serves_all_requests_with_the_prefix() {
    let mut driver = next_to(config(), &[prompt(1, 4)]);
    for id in 1..=3 {
        driver.submit(id, prompt(1, 4), 1);
    }
    assert_eq!(driver.lookups.len(), 1);
    assert!(driver.steps.is_empty());
    run_to_end(&mut driver);
    assert_eq!([1, 2, 3].map(|id| cached(&driver, id)), [4 * BLOCK; 3]);
    assert_eq!(driver.stats().tiers[0].hit_blocks, 4, "loaded once");
}

#[test]
fn nobody_waits_for_longer_than_computing_takes_nor_asks_while_an_answer_is_late() {
    let mut driver = next_to(config(), &[prompt(1, 4), prompt(2, 4), prompt(3, 4)]);
    driver.submit(1, prompt(1, 4), 1);
    let begun_ns = driver.now_ns;
    let due_ns = driver.core.next_deadline_ns().expect("the wait has an end");
    assert!((due_ns - begun_ns).abs_diff(4 * 4_000) < 10, "{due_ns} after {begun_ns}");
    driver.now_ns = due_ns - 2;
    driver.event(Event::Tick);
    assert!(driver.steps.is_empty(), "not yet");
    driver.event(Event::Tick);
    assert_eq!(driver.running(), [(1, 0, 4 * BLOCK + 1, true)], "all of it is computed");
    driver.submit(2, prompt(2, 4), 1);
    assert_eq!((driver.lookups.len(), driver.core.next_deadline_ns()), (1, None));
    answer(&mut driver);
    assert_eq!(driver.ids(), [2], "it does not wait for a tier that is late");
    // Once the answer is there the next request asks, and does not wait: the last answer took longer than computing.
    driver.end_lookup(0);
    answer(&mut driver);
    driver.submit(3, prompt(3, 4), 1);
    assert_eq!((driver.lookups.len(), driver.ids()), (1, vec![3]));
    run_to_end(&mut driver);
    assert_eq!([1, 2, 3].map(|id| cached(&driver, id)), [0; 3]);
    assert_eq!(driver.stats().tiers[0].found_blocks, 2 * 4);
}

#[test]
fn the_first_request_waits_for_a_second_because_nobody_knows_how_long_computing_takes() {
    let mut driver = Driver::new(config());
    driver.submit(1, prompt(1, 4), 1);
    assert_eq!(driver.core.next_deadline_ns(), Some(driver.now_ns + 1_000_000_000));
    run_to_end(&mut driver);
    driver.submit(2, prompt(2, 4), 1);
    assert!(driver.core.next_deadline_ns().is_some_and(|due_ns| due_ns - driver.now_ns < 5 * 4_000));
    run_to_end(&mut driver);
}

#[test]
fn one_request_waits_until_the_first_answer_shows_that_the_storage_lives() {
    let mut driver = Driver::new(config());
    driver.submit(1, prompt(1, 4), 1);
    assert!(driver.steps.is_empty());
    driver.submit(2, prompt(2, 4), 1);
    assert_eq!((driver.lookups.len(), driver.ids()), (2, vec![2]), "the second asks too, and does not wait");
    driver.end_lookup(0);
    answer(&mut driver);
    for id in [3, 4] {
        driver.submit(id, prompt(id as u32, 4), 1);
    }
    answer(&mut driver);
    assert!(driver.steps.is_empty() && driver.lookups.len() == 3, "answers come at once: both wait");
    run_to_end(&mut driver);
}

#[test]
fn requests_stop_waiting_for_a_tier_that_finds_nothing_and_wait_again_once_it_does() {
    let written: Vec<_> = (100..140).map(|family| prompt(family, 4)).collect();
    let mut driver = next_to(config(), &written);
    // Each answer takes half of the time to compute the prompt.
    let ask = |driver: &mut Driver, family: u32| {
        driver.submit(u64::from(family), prompt(family, 4), 1);
        assert_eq!(driver.lookups.len(), 1, "every request asks");
        let waited = driver.steps.is_empty();
        driver.now_ns += 2 * 4_000;
        run_to_end(driver);
        waited
    };
    let misses: Vec<bool> = (1..=20).map(|family| ask(&mut driver, family)).collect();
    let waited = misses.iter().filter(|waited| **waited).count();
    assert!(misses[..3].iter().all(|waited| *waited) && (3..8).contains(&waited), "{misses:?}");
    assert!(misses[waited..].iter().all(|waited| !waited), "{misses:?}");
    let hits: Vec<bool> = (100..140).map(|family| ask(&mut driver, family)).collect();
    assert!(!hits[0] && hits[39], "{hits:?}");
    assert_eq!(cached(&driver, 139), 4 * BLOCK);
}

#[test]
fn nothing_is_asked_if_loading_does_not_pay_or_the_cache_was_flushed() {
    let slow = Config { swap_block_ns: 1 << 30, ..config() };
    let mut driver = next_to(slow, &[prompt(1, 4)]);
    driver.submit(1, prompt(1, 4), 1);
    assert!(driver.lookups.is_empty() && driver.ids() == [1]);
    run_to_end(&mut driver);

    // Storage may hold what was computed before the weights changed.
    let mut driver = next_to(config(), &[prompt(1, 4), prompt(2, 4)]);
    driver.submit(1, prompt(1, 4), 1);
    driver.flush();
    driver.end_lookup(0);
    assert_eq!(driver.running(), [(1, 0, 4 * BLOCK + 1, true)], "an answer from before counts for nothing");
    driver.submit(2, prompt(2, 4), 1);
    assert!(driver.lookups.is_empty());
    run_to_end(&mut driver);
    assert_eq!((cached(&driver, 1), cached(&driver, 2)), (0, 0));
}

#[test]
fn a_request_that_left_takes_the_wait_along_and_others_profit_from_the_answer() {
    let mut driver = next_to(config(), &[prompt(1, 4)]);
    driver.submit(1, prompt(1, 4), 1);
    driver.abort(1);
    driver.end_lookup(0);
    assert_eq!(driver.stats().tiers[0].blocks, 4);
    driver.submit(2, prompt(1, 4), 1);
    assert!(driver.lookups.is_empty() && driver.copies.len() == 1);
    run_to_end(&mut driver);
    assert_eq!(cached(&driver, 2), 4 * BLOCK);
}

#[test]
fn an_answer_nobody_waits_for_or_beyond_the_question_does_no_harm() {
    let mut driver = next_to(config(), &[prompt(1, 2)]);
    driver.event(Event::LookupEnded { lookup: 1, found: 3 });
    driver.submit(1, prompt(1, 4), 1);
    let lookup = driver.lookups.pop().unwrap().id;
    driver.event(Event::LookupEnded { lookup, found: u32::MAX });
    driver.event(Event::LookupEnded { lookup, found: 1 });
    let load = &driver.copies[0];
    let missing: Vec<_> = driver.worker.missing(load.id).map(|pair| (pair, BlockFault::Bad)).collect();
    assert_eq!((load.pairs.len(), missing.len()), (4, 2), "the storage has two of four");
    driver.end_copy_partly(0, &missing);
    run_to_end(&mut driver);
    assert_eq!(cached(&driver, 1), 2 * BLOCK, "the rest is computed");
}

#[test]
fn a_tier_that_is_not_shared_is_never_asked() {
    let mut config = config();
    config.tiers[0].shared = false;
    let mut driver = next_to(config, &[prompt(1, 4)]);
    driver.submit(1, prompt(1, 4), 1);
    assert!(driver.lookups.is_empty() && driver.ids() == [1]);
    run_to_end(&mut driver);
}

#[test]
fn a_write_in_flight_at_a_flush_does_not_replace_what_is_written_after_it() {
    let mut driver = next_to(config(), &[]);
    driver.submit(1, prompt(1, 3), 1);
    driver.end_lookup(0);
    answer(&mut driver);
    assert_eq!(driver.copies.len(), 1, "the blocks of the prompt are on the way");
    driver.flush();
    // The same prompt is computed again, with other weights as far as the core knows.
    driver.submit(2, prompt(1, 3), 1);
    answer(&mut driver);
    assert_eq!(driver.copies.len(), 1, "the storage could get the old blocks after the new ones");
    driver.finish_copy(0);
    driver.submit(3, prompt(1, 3), 1);
    run_to_end(&mut driver);
    assert_eq!((cached(&driver, 2), cached(&driver, 3)), (0, 12), "the device has the new blocks");
    driver.evict_idle();
    // The worker compares what it loads with what was computed after the flush.
    driver.submit(4, prompt(1, 3), 1);
    assert_eq!(driver.copies[0].from, Place::Tier(0));
    run_to_end(&mut driver);
    assert_eq!(cached(&driver, 4), 12);
}
