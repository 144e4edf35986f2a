//! Events of the cache: which blocks can be found, and where. Every test with the driver, and the oracle's seeded runs, compare an index that
//! follows the events with the cache after every input; here are the events of small scenes.

use trunkline_core::{
    BlockHash, BlockKey, CacheEvent, Config, Core, Event, Keeps, KnownBlock, Namespace, Place, RemovedBlocks, Request,
    RequestId, StoredBlocks, TierConfig, Token, Write,
};
use trunkline_driver::{Driver, prompt};

const BLOCK: u32 = 4;

fn config(tiers: Vec<TierConfig>) -> Config {
    // The test's clock says nothing of costs: loading always pays.
    let (block_size, device_blocks, recompute_token_ns) = (BLOCK, 16, 1 << 40);
    Config { block_size, device_blocks, max_context: 64, recompute_token_ns, tiers, ..Config::default() }
}

fn tier(blocks: u32, write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: "lru".into(), shared: false }
}

/// Kind, place, layer group, number of blocks and of tokens of each event.
fn outline(events: &[CacheEvent]) -> Vec<(&'static str, Place, u8, usize, usize)> {
    let line = |event: &CacheEvent| match event {
        CacheEvent::Stored(StoredBlocks { place, group, hashes, tokens, .. }) => {
            ("stored", *place, *group, hashes.len(), tokens.len())
        }
        CacheEvent::Removed(RemovedBlocks { place, group, hashes }) => ("removed", *place, *group, hashes.len(), 0),
        CacheEvent::Cleared => ("cleared", Place::Device, 0, 0, 0),
    };
    events.iter().map(line).collect()
}

fn stored(events: &[CacheEvent]) -> &StoredBlocks {
    match events {
        [CacheEvent::Stored(stored)] => stored,
        events => panic!("one store and nothing else: {events:?}"),
    }
}

const DEVICE: Place = Place::Device;

#[test]
fn a_prompt_is_stored_as_one_chain_under_hashes_that_every_core_gives_it() {
    let chains = [1, 2].map(|id| {
        let mut driver = Driver::new(config(Vec::new()));
        driver.ask(id, prompt(1, 13));
        stored(driver.cache_log()).clone()
    });
    let StoredBlocks { root, parent, hashes, tokens, request, .. } = &chains[0];
    assert_eq!((*root, *parent, hashes.len()), (Namespace::default().root().0, None, 3));
    assert_eq!((tokens, *request), (&prompt(1, 12), Some(RequestId(1))));
    assert_eq!((&chains[1].hashes, chains[1].request), (hashes, Some(RequestId(2))));
}

#[test]
fn an_answer_continues_the_prompt_and_a_second_prompt_the_blocks_it_shares() {
    let mut driver = Driver::new(config(Vec::new()));
    driver.submit(1, prompt(1, 5), 8);
    driver.run_to_end();
    // Blocks of an answer are published as they fill: each behind the one before.
    let log = driver.cache_log().to_vec();
    assert_eq!(outline(&log), [("stored", DEVICE, 0, 1, 4), ("stored", DEVICE, 0, 1, 4), ("stored", DEVICE, 0, 1, 4)]);
    let chain: Vec<_> = log.iter().map(|event| stored(std::slice::from_ref(event))).collect();
    assert_eq!([chain[1].parent, chain[2].parent], [chain[0].hashes[0], chain[1].hashes[0]].map(Some));
    let mut other = prompt(1, 4);
    other.extend(prompt(2, 5));
    driver.forget_cache_log();
    driver.ask(2, other);
    let branch = stored(driver.cache_log());
    assert_eq!((branch.parent, branch.hashes.len()), (Some(chain[0].hashes[0]), 1));
    driver.forget_cache_log();
    driver.ask(3, prompt(1, 5));
    assert_eq!(driver.cache_log(), [], "all is there already");
}

#[test]
fn a_chain_is_evicted_tail_first() {
    let mut driver = Driver::new(config(Vec::new()));
    driver.ask(1, prompt(1, 49));
    let hashes = stored(driver.cache_log()).hashes.clone();
    driver.forget_cache_log();
    driver.ask(2, prompt(2, 33));
    let [CacheEvent::Removed(removed), CacheEvent::Stored(_)] = driver.cache_log() else {
        panic!("room for the second: {:?}", driver.cache_log());
    };
    let last: Vec<u128> = hashes.iter().rev().copied().take(removed.hashes.len()).collect();
    assert_eq!((&removed.hashes, removed.hashes.len()), (&last, 5));
}

#[test]
fn a_flush_and_a_lost_worker_clear_the_device() {
    let mut driver = Driver::new(config(Vec::new()));
    driver.ask(1, prompt(1, 13));
    driver.forget_cache_log();
    // The blocks of one that runs are found no longer, and leave no second trace at its end.
    driver.submit(2, prompt(2, 13), 4);
    driver.answer();
    driver.flush();
    driver.run_to_end();
    assert_eq!(outline(driver.cache_log()), [("stored", DEVICE, 0, 3, 12), ("cleared", DEVICE, 0, 0, 0)]);
    driver.forget_cache_log();
    driver.ask(3, prompt(3, 9));
    driver.lose_worker();
    assert_eq!(outline(driver.cache_log()), [("stored", DEVICE, 0, 2, 8), ("cleared", DEVICE, 0, 0, 0)]);
}

#[test]
fn beside_blocks_in_a_tier_a_lost_device_is_told_block_by_block() {
    let mut driver = Driver::new(config(vec![tier(8, Write::Through)]));
    driver.ask(1, prompt(1, 13));
    let far = Place::Tier(0);
    assert_eq!(outline(driver.cache_log()), [("stored", DEVICE, 0, 3, 12), ("stored", far, 0, 3, 12)]);
    let chain = match &driver.cache_log()[0] {
        CacheEvent::Stored(chain) => chain.clone(),
        event => panic!("{event:?}"),
    };
    assert_eq!(driver.indexed(far), driver.indexed(DEVICE));
    driver.forget_cache_log();
    driver.lose_worker();
    let tail_first = chain.hashes.iter().rev().copied().collect();
    let removed = RemovedBlocks { place: DEVICE, group: 0, hashes: tail_first };
    assert_eq!(driver.cache_log(), [CacheEvent::Removed(removed)]);
    driver.join();
    driver.forget_cache_log();
    driver.flush();
    assert_eq!(outline(driver.cache_log()), [("cleared", DEVICE, 0, 0, 0), ("removed", far, 0, 3, 0)]);
}

#[test]
fn what_a_tier_holds_from_before_is_stored_there() {
    let mut driver = Driver::new(config(vec![tier(8, Write::Through)]));
    driver.submit(1, prompt(1, 13), 1);
    driver.answer();
    let copy = driver.copies[0].clone();
    driver.run_to_end();
    let there = driver.indexed(Place::Tier(0));
    assert_eq!(there.len(), 3);
    let known = |(at, key): (usize, &BlockKey)| {
        let (block, tokens) = (copy.pairs[at].1, copy.tokens_of(at).to_vec());
        KnownBlock { block, key: *key, tokens }
    };
    let mut blocks: Vec<KnownBlock> = copy.keys.iter().enumerate().map(known).collect();
    blocks.sort_by_key(|known| known.block);
    let mut driver = driver.replaced();
    driver.event(Event::TierFound { tier: 0, blocks });
    assert_eq!((driver.indexed(Place::Tier(0)), driver.indexed(DEVICE)), (there, vec![]));
}

#[test]
fn each_layer_group_has_the_blocks_that_it_keeps() {
    let mut config = config(Vec::new());
    config.worker.groups = vec![Keeps::All, Keeps::Window(4)];
    let mut driver = Driver::new(Config { device_blocks: 32, ..config });
    driver.ask(1, prompt(1, 13));
    let groups: Vec<(u8, usize)> = outline(driver.cache_log()).iter().map(|line| (line.2, line.3)).collect();
    assert_eq!(groups, [(0, 3), (1, 3)], "until the window has moved on, it has them all");
    let events = driver.cache_log();
    let (CacheEvent::Stored(first), CacheEvent::Stored(second)) = (&events[0], &events[1]) else {
        panic!("{events:?}")
    };
    assert_eq!((&first.hashes, &first.tokens), (&second.hashes, &second.tokens));
}

#[test]
fn nobody_hears_of_private_blocks_and_the_digest_does_not_know_who_listens() {
    let run = |listens: bool| {
        let mut core = Core::new(config(vec![tier(8, Write::Through)])).unwrap();
        if listens {
            core.listen_to_cache();
        }
        let mut actions = Vec::new();
        core.handle(0, Event::WorkerJoined, &mut actions);
        let mut request = Request::new(RequestId(1), BlockHash(1), (0..7).collect::<Vec<Token>>(), 1);
        request.hash_prompt(BLOCK);
        core.handle(1, Event::Submit(Box::new(request)), &mut actions);
        let early = core.take_cache_events();
        (core.digest(), early, core.cached_blocks())
    };
    let (digest, early, cached) = run(true);
    assert_eq!((digest, vec![], vec![]), run(false));
    assert_eq!((early, cached), (vec![], vec![]), "nothing is published before it is computed");
}

#[test]
#[should_panic(expected = "the cache is in use")]
fn one_who_listens_begins_before_the_first_block() {
    let mut core = Core::new(config(Vec::new())).unwrap();
    core.handle(0, Event::WorkerJoined, &mut Vec::new());
    let mut request = Request::new(RequestId(1), BlockHash(1), vec![1; 7], 1);
    request.hash_prompt(BLOCK);
    core.handle(1, Event::Submit(Box::new(request)), &mut Vec::new());
    core.listen_to_cache();
}
