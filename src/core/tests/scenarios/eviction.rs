//! Scenarios 30 to 36: blocks left by ended requests, and the order of their eviction.

use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::{Config, FinishReason};
use trunkline_driver::Driver;

use crate::geometry::{hashes, publish_all, root, tree};
use crate::matching::merging;
use crate::prompts::{BLOCK, config, fork, text};
use crate::scenes;

#[test]
fn scenario_030_an_ended_request_leaves_its_published_blocks_idle() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 82), 5);
    rig.run_to_end();
    assert_eq!((rig.usable(), rig.stats().idle_blocks, rig.host_free()), (100, 5, 100));
}

#[test]
fn scenario_031_the_deepest_blocks_of_a_chain_go_first() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 82), 5);
    rig.run_to_end();
    rig.submit(2, text(2, 97 * BLOCK), 1);
    let stats = rig.stats();
    assert_eq!((stats.evicted_blocks, stats.idle_blocks, stats.free_blocks), (2, 3, 0));
    rig.run_to_end();
    assert_eq!(rig.usable(), 100);
    rig.submit(3, text(1, 82), 1);
    assert_eq!(rig.running(), [(3, 48, 34, true)]);
}

#[test]
fn scenario_032_a_block_that_someone_reads_is_never_evicted() {
    let mut tree = tree(10);
    let (mut table, mut more) = (Vec::new(), Vec::new());
    assert!(tree.allocate(4, &mut table));
    publish_all(&mut tree, &table, 1);
    assert!(!tree.allocate(7, &mut more) && tree.allocate(6, &mut more));
    assert!(table.iter().all(|block| tree.pool().is_current(*block)));
    // A swapped reader counts like a running one.
    let mut rig = scenes::prefix_kept(630);
    rig.abort_now(2);
    let held = rig.stats().held_blocks;
    rig.flush();
    assert_eq!(rig.stats().held_blocks, held);
    assert_eq!((rig.stats().idle_blocks, rig.stats().swapped), (0, 1));
}

/// KsanaLLM: evicting a parent frees its subtree; here: a parent is not evicted before its children, because a leaf is
/// always there to take.
#[test]
fn scenario_033_children_go_before_their_parents() {
    let mut tree = tree(7);
    let (mut table, mut found) = (Vec::new(), Prefix::default());
    assert!(tree.allocate(7, &mut table));
    publish_all(&mut tree, &table, 1);
    tree.release(&mut table, 7);
    let prompt = text(1, 7 * BLOCK);
    for evicted in 1..=7 {
        assert!(tree.allocate(1, &mut table));
        tree.find(root(), &hashes(&prompt), &prompt, &mut found);
        assert_eq!(found.len(), 7 - evicted, "the tail went");
        tree.check();
    }
}

/// KsanaLLM: evicts what was published last; here: what was used least recently, because a conversation goes on soon or
/// not at all.
#[test]
fn scenario_034_the_chain_used_last_stays() {
    for (hit_again, chain, left) in [(false, 1, 16), (false, 2, 32), (true, 1, 32), (true, 2, 16)] {
        let mut rig = Driver::new(Config { device_blocks: 6, ..config() });
        let mut run = |id, prompt| {
            rig.submit(id, prompt, 1);
            rig.run_to_end();
            rig.usages[&id].cached_tokens
        };
        run(1, text(1, 32));
        run(2, text(2, 32));
        if hit_again {
            run(3, text(1, 32));
        }
        run(4, text(4, 3 * BLOCK));
        let longer = [text(chain, 32), text(5, 1)].concat();
        assert_eq!(run(5, longer), left, "chain {chain}, hit again: {hit_again}");
    }
}

/// KsanaLLM: the blocks stay in the evictable set, 99 are usable; here: they are held, because a block is in one place.
#[test]
fn scenario_035_a_merge_into_an_idle_block_counts_it_once() {
    let mut rig = merging(1);
    rig.answer();
    assert!(rig.has_ended(2));
    assert_eq!((rig.stats().held_blocks, rig.stats().idle_blocks), (2, 1));
    rig.answer_until(|rig| rig.stats().merged_blocks > 0);
    let stats = rig.stats();
    assert_eq!((stats.held_blocks, stats.private_blocks, stats.idle_blocks), (3, 1, 0));
    assert_eq!(rig.usable(), 96);
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
}

/// KsanaLLM: blocks may be lost or be in two places; here: never, because one function moves them and all are counted.
#[test]
fn scenario_036_every_block_is_in_one_place_after_every_event() {
    // The rig counts after each event; this one has all kinds.
    let mut rig = Driver::new(Config { device_blocks: 30, max_batch_size: 6, max_drafts: 2, ..config() });
    for id in 0..40 {
        rig.submit(id, fork(id as u32 % 3, 40, 10 + id as u32, 5 + id as u32), 30);
        if id % 4 == 3 {
            rig.answer();
            rig.abort(id - 2);
        }
        if id % 7 == 6 {
            rig.flush();
        }
        if !rig.copies.is_empty() {
            if id % 5 == 0 { rig.fail_copy(0) } else { rig.finish_copy(0) }
        }
        if id == 30 {
            rig.lose_worker();
            rig.join();
        }
    }
    rig.run_to_end();
    rig.assert_empty();
    assert!(rig.stats().swaps.swap_outs > 3 && rig.stats().swaps.swap_ins > 0, "{:?}", rig.stats());
    let cut_short = rig.ends.iter().filter(|(_, reason)| *reason == FinishReason::Abort).count();
    assert_eq!((rig.ends.len(), cut_short), (40, 10));
}
