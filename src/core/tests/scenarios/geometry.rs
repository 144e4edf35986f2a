//! Scenarios 1 to 12: block counts, and the response to misuse.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_core::blocks::block::{BlockEvent, BlockPool, BlockState};
use trunkline_core::blocks::host::{HostPool, HostState};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::{Parent, PrefixTree};
use trunkline_core::{Event, Namespace, RequestId, StepResult, blocks::hash};
use trunkline_driver::Driver;

use crate::prompts::{BLOCK, config, text};

/// A tree of `capacity` blocks that evicts the least recently used.
pub fn tree(capacity: u32) -> PrefixTree {
    PrefixTree::new(BLOCK, capacity, config().make_eviction().unwrap())
}

fn panics(misuse: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(misuse)).is_err()
}

#[test]
fn scenario_001_all_blocks_of_a_fresh_core_are_free() {
    let rig = Driver::new(config());
    let stats = rig.stats();
    assert_eq!((stats.free_blocks, stats.idle_blocks, stats.free_host_blocks), (100, 0, 100));
}

#[test]
fn scenario_002_a_waiting_request_takes_nothing() {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 82), 5);
    let stats = rig.stats();
    assert_eq!((stats.waiting, stats.free_blocks, stats.held_blocks), (1, 100, 0));
    let mut tree = tree(100);
    let (mut hashes, mut found) = (Vec::new(), Prefix::default());
    found.push(9, 1);
    hash::extend_hashes(&mut hashes, Namespace::default().root(), BLOCK, &text(1, 82));
    tree.find(root(), &hashes, &text(1, 82), &mut found);
    assert!(found.is_empty() && tree.usable() == 100 && tree.pool().opened() == 0);
}

#[test]
fn scenario_003_an_admitted_request_takes_a_block_for_every_token() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 82), 5);
    assert_eq!(rig.tables[&1].len(), 6);
    assert_eq!((rig.usable(), rig.stats().private_blocks), (94, 6));
}

#[test]
fn scenario_004_full_blocks_are_published_and_the_tail_stays_private() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 82), 5);
    rig.answer();
    let stats = rig.stats();
    assert_eq!((stats.held_blocks, stats.private_blocks, stats.published_blocks), (5, 1, 5));
    rig.flush();
    assert_eq!(rig.flushed, [0], "each has a reader");
}

/// KsanaLLM: need(n) = floor(n/16) + 1; here: ceil(n/16), because a request may end before its next token needs a block.
#[test]
fn scenario_005_blocks_needed_for_tokens() {
    for (tokens, blocks, next) in [(15, 1, 1), (16, 1, 2), (17, 2, 2), (31, 2, 2), (32, 2, 3)] {
        let mut rig = Driver::new(config());
        rig.submit(1, text(1, tokens), 5);
        assert_eq!(rig.in_use(), blocks, "{tokens} tokens");
        rig.answer();
        assert_eq!(rig.in_use(), next, "{tokens} tokens and the next one");
    }
}

/// KsanaLLM: the caller's list is brought in line with the record; here: there is one table, because two could differ.
#[test]
fn scenario_006_allocation_appends_to_the_one_block_table() {
    let mut tree = tree(100);
    let mut table = Vec::new();
    assert!(tree.allocate(5, &mut table));
    let before = table.clone();
    assert!(tree.allocate(2, &mut table));
    assert_eq!((table.len(), &table[..5]), (7, &before[..]));
    tree.release(&mut table, 0);
    tree.check();
}

#[test]
fn scenario_007_blocks_taken_beyond_need_come_back_too() {
    let mut tree = tree(100);
    let mut table = Vec::new();
    assert!(tree.allocate(6, &mut table) && tree.allocate(2, &mut table));
    assert_eq!(tree.usable(), 92);
    tree.release(&mut table, 0);
    assert_eq!(tree.usable(), 100);
    tree.check();
}

/// KsanaLLM: code 3010; here: ignored without a trace, because the request or the copy may just have ended.
#[test]
fn scenario_008_unknown_requests_are_ignored() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 20), 5);
    let (digest, stats) = (rig.core.digest(), rig.stats());
    let late = StepResult { step: 77, ..StepResult::default() };
    let unknown = RequestId(9);
    for event in [
        Event::Abort(unknown),
        Event::Stop(unknown),
        Event::TransferFinished(9),
        Event::TransferFailed(9),
        Event::StepFinished(late),
    ] {
        rig.event(event);
    }
    assert_eq!((rig.core.digest(), rig.stats()), (digest, stats));
    assert!(rig.ends.is_empty());
}

/// KsanaLLM: code 3010; here: a worker that answers nonsense is reset, and misuse of the tree panics, because neither
/// leaves a state to continue from.
#[test]
fn scenario_009_impossible_claims_are_rejected() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 20), 1);
    let step = rig.step().unwrap().id;
    rig.event(Event::StepFinished(StepResult { step, tokens: vec![1, 2], ends: vec![2], ..StepResult::default() }));
    assert_eq!((rig.resets, rig.stats().held_blocks, rig.usable()), (1, 0, 100));
    rig.join();
    rig.run_to_end();
    rig.assert_all_said([1]);

    let mut tree = tree(4);
    let mut table = Vec::new();
    assert!(tree.allocate(1, &mut table));
    assert!(panics(|| _ = tree.publish(table[0], Parent::Root(root()), hash::BlockHash(1), &text(1, 15))));
}

/// KsanaLLM: may have evicted before it fails; here: counts first, because what was evicted would be lost for nothing.
#[test]
fn scenario_010_too_few_usable_blocks_change_nothing() {
    let mut tree = tree(7);
    let mut table = Vec::new();
    assert!(tree.allocate(4, &mut table));
    publish_all(&mut tree, &table, 1);
    tree.release(&mut table, 4);
    let pool = tree.pool();
    assert_eq!((pool.count(BlockState::Free), pool.count(BlockState::Idle)), (3, 4));
    assert!(!tree.allocate(8, &mut table));
    assert!(table.is_empty() && tree.evicted() == 0);
    assert_eq!(tree.pool().count(BlockState::Idle), 4);
}

/// Publishes the blocks of `table` as the chain of a family.
pub fn publish_all(tree: &mut PrefixTree, table: &[trunkline_core::BlockHandle], family: u32) {
    let tokens = text(family, table.len() as u32 * BLOCK);
    let hashes = hashes(&tokens);
    for at in 0..table.len() {
        let parent = Parent::of(root(), &table[..at]);
        tree.publish(table[at], parent, hashes[at], &tokens[at * BLOCK as usize..][..BLOCK as usize]);
    }
}

/// The root of the default namespace.
pub fn root() -> hash::BlockHash {
    Namespace::default().root()
}

/// The chained hashes of full blocks in the default namespace.
pub fn hashes(tokens: &[u32]) -> Vec<hash::BlockHash> {
    let mut hashes = Vec::new();
    hash::extend_hashes(&mut hashes, root(), BLOCK, tokens);
    hashes
}

/// KsanaLLM: a second free is error 3009 and asking for too much 1025; here: a panic and `false`, because the first is a
/// mistake of the program and the second is not.
#[test]
fn scenario_011_a_pool_counts_and_frees_once() {
    let mut pool = BlockPool::new(20);
    let mut taken = Vec::new();
    assert!(pool.allocate(3, &mut taken));
    assert_eq!((pool.count(BlockState::Free), pool.count(BlockState::Private)), (17, 3));
    pool.apply(taken[1].index, BlockEvent::Released);
    assert_eq!((pool.count(BlockState::Free), pool.count(BlockState::Private)), (18, 2));
    assert!(panics(|| pool.apply(taken[1].index, BlockEvent::Released)));
    pool.check();
    assert!(!pool.allocate(19, &mut taken) && pool.allocate(18, &mut taken));
    assert!(!pool.allocate(1, &mut taken));
    assert_eq!(taken.len(), 21);
    pool.check();
}

#[test]
fn each_pool_counts_its_own_blocks() {
    let (mut device, mut host) = (BlockPool::new(10), HostPool::new(20));
    let mut other = HostPool::new(60);
    assert!(device.allocate(1, &mut Vec::new()));
    host.allocate().unwrap();
    other.allocate().unwrap();
    other.allocate().unwrap();
    assert_eq!(device.count(BlockState::Free), 9);
    assert_eq!((host.count(HostState::Free), other.count(HostState::Free)), (19, 58));
}
