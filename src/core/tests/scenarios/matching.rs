//! Scenarios 13 to 29: prefix hits, sharing and publication.

use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::{Parent, Published};
use trunkline_core::{Config, blocks::hash};
use trunkline_driver::Driver;

use crate::geometry::{hashes, publish_all, root, tree};
use crate::prompts::{BLOCK, config, fork, request, text};

/// A rig that has seen a prompt and forgotten nothing.
fn seen(config: Config, tokens: u32) -> Driver {
    let mut rig = Driver::new(config);
    rig.submit(1, text(1, tokens), 1);
    rig.run_to_end();
    rig
}

#[test]
fn scenario_013_a_prompt_shares_the_full_blocks_it_has_in_common() {
    let mut rig = seen(config(), 48);
    rig.submit(2, fork(1, 36, 2, 18), 5);
    assert_eq!(rig.running(), [(2, 32, 22, true)]);
    assert_eq!((rig.stats().held_blocks, rig.stats().private_blocks), (2, 2));
}

#[test]
fn scenario_014_a_prompt_below_a_block_never_hits() {
    let mut rig = seen(config(), 15);
    rig.submit(2, text(1, 15), 1);
    assert_eq!(rig.running(), [(2, 0, 15, true)]);
    rig.run_to_end();
    assert_eq!(rig.stats().tokens.cached_tokens, 0);
}

/// KsanaLLM: takes one more block and writes the last token again into a shared one; here: takes none until the next
/// token needs it and writes no shared block, because others read it.
#[test]
fn scenario_015_a_full_hit_runs_the_last_token_only() {
    let mut rig = seen(config(), 48);
    rig.submit(2, text(1, 48), 5);
    assert_eq!(rig.running(), [(2, 47, 1, true)]);
    assert_eq!(rig.seqs().next().unwrap().kv_write_from, 48);
    assert_eq!((rig.stats().held_blocks, rig.stats().private_blocks), (3, 0));
    rig.answer();
    assert_eq!(rig.running(), [(2, 48, 1, true)], "it decodes");
    assert_eq!(rig.stats().private_blocks, 1);
    rig.run_to_end();
    assert_eq!(rig.usages[&2].cached_tokens, 47);
}

#[test]
fn scenario_016_one_token_after_a_hit_is_all_that_runs() {
    let mut rig = seen(config(), 48);
    rig.submit(2, text(1, 49), 5);
    assert_eq!(rig.running(), [(2, 48, 1, true)]);
    assert_eq!((rig.stats().held_blocks, rig.stats().private_blocks), (3, 1));
}

#[test]
fn scenario_017_a_waiting_request_gains_what_is_published_meanwhile() {
    let mut rig = seen(Config { max_batch_size: 1, ..config() }, 32);
    rig.submit(2, fork(1, 32, 2, 22), 3);
    rig.submit(3, fork(1, 32, 2, 22), 3);
    assert_eq!(rig.running(), [(2, 32, 22, true)], "two blocks are there");
    rig.answer_until(|rig| rig.ids() == [3]);
    assert_eq!(rig.running(), [(3, 48, 6, true)], "and now three");
}

#[test]
fn scenario_018_a_waiting_request_loses_what_is_evicted_meanwhile() {
    let mut rig = seen(Config { max_batch_size: 1, device_blocks: 8, ..config() }, 48);
    rig.submit(2, text(2, 64), 49);
    rig.submit(3, text(1, 48), 3);
    rig.answer_until(|rig| rig.stats().evicted_blocks == 2);
    rig.answer_until(|rig| rig.ids() == [3]);
    assert_eq!(rig.running(), [(3, 16, 32, true)], "only the first block is left");
}

/// KsanaLLM: both compute block 2, then one copy is dropped; here: the second waits, because the first is computing it.
#[test]
fn scenario_019_equal_prompts_share_blocks_in_flight() {
    let mut rig = Driver::without_worker(config());
    for id in [2, 3] {
        rig.submit(id, fork(1, 32, 2, 22), 5);
    }
    rig.join();
    assert_eq!(rig.running(), [(2, 0, 54, true)], "the second would fit in the step");
    rig.answer();
    assert_eq!(rig.running(), [(2, 54, 1, true), (3, 48, 6, true)]);
    assert_eq!(rig.tables[&2][..3], rig.tables[&3][..3]);
    assert_ne!(rig.tables[&2][3], rig.tables[&3][3]);
    assert_eq!((rig.stats().held_blocks, rig.stats().private_blocks), (3, 2));
}

/// Has 1 compute, token by token, a block that 2 has in its prompt: 40 tokens of one family and the first 8 tokens that 1 generates.
pub fn merging(second_says: u32) -> Driver {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 40), 20);
    let said = (0..8).map(|n| rig.says(1, n));
    let longer = text(1, 40).into_iter().chain(said).chain(text(2, 6)).collect();
    rig.submit(2, longer, second_says);
    rig.join();
    rig.answer();
    assert_eq!(rig.running(), [(1, 40, 1, true), (2, 32, 22, true)]);
    rig
}

#[test]
fn scenario_020_a_block_computed_twice_is_kept_once() {
    let mut rig = merging(20);
    let own = rig.tables[&1][2];
    rig.answer_until(|rig| rig.stats().merged_blocks > 0);
    assert_eq!(rig.stats().published_blocks, 3);
    let table_keep = rig.seqs().next().unwrap().table_keep;
    assert_eq!(table_keep, 2, "the worker is told of the other block");
    assert_eq!(rig.tables[&1][2], rig.tables[&2][2]);
    assert_ne!(rig.tables[&1][2], own);
    assert_eq!((rig.stats().held_blocks, rig.stats().private_blocks), (3, 2));
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
}

/// KsanaLLM: 40 blocks, 13 after the step; here: never more than 13, because nine wait for the first.
#[test]
fn scenario_021_ten_equal_prompts_are_computed_once() {
    let mut rig = Driver::without_worker(config());
    (1..=10).for_each(|id| rig.submit(id, text(1, 54), 5));
    rig.join();
    assert_eq!((rig.ids(), rig.in_use()), (vec![1], 4));
    rig.answer();
    assert_eq!((rig.ids().len(), rig.in_use()), (10, 13));
    assert_eq!((rig.stats().held_blocks, rig.stats().merged_blocks), (3, 0));
    rig.run_to_end();
    rig.assert_all_said(1..=10);
}

/// KsanaLLM: requests of the first step share nothing at first; here: only the first of them runs in it, because the others
/// would compute the same.
#[test]
fn scenario_022_from_the_second_step_on_all_share_the_prefix() {
    let mut rig = Driver::without_worker(Config { block_size: 6, ..config() });
    (1..=4).for_each(|id| rig.submit(id, fork(1, 18, 1 + id as u32, 9), 6));
    rig.join();
    assert_eq!(rig.ids(), [1]);
    rig.answer();
    rig.submit(5, fork(1, 18, 6, 9), 6);
    rig.answer();
    assert_eq!(rig.ids(), [1, 2, 3, 4, 5]);
    assert!(rig.tables.values().all(|table| table[..3] == rig.tables[&1][..3]));
    assert_eq!(rig.stats().tokens.cached_tokens, 4 * 18);
}

#[test]
fn scenario_023_blocks_that_would_be_hit_do_not_count_as_usable() {
    for (tokens, found) in [(1600, 2), (1616, 2), (1600, 0)] {
        let mut tree = tree(100);
        let mut table = Vec::new();
        assert!(tree.allocate(5, &mut table));
        publish_all(&mut tree, &table, 1);
        tree.release(&mut table, 5);
        let prompt = if found == 2 { fork(1, 32, 2, tokens - 32) } else { text(2, tokens) };
        let mut blocks = Prefix::default();
        tree.find(root(), &hashes(&prompt), &prompt, &mut blocks);
        assert_eq!((tree.usable(), blocks.len() as u32, tree.count_idle(&blocks)), (100, found, found));
        tree.hold(&blocks, &mut table);
        assert_eq!(tree.usable(), 100 - found);
        let fits = tokens == 1600;
        assert_eq!(tree.allocate(tokens / BLOCK - found, &mut table), fits);
        assert_eq!(
            tree.evicted(),
            if !fits {
                0
            } else if found == 2 {
                3
            } else {
                5
            }
        );
    }
}

#[test]
fn scenario_024_eviction_spares_what_the_request_just_found() {
    for (more, fits) in [(5, true), (6, false)] {
        let mut tree = tree(10);
        let mut table = Vec::new();
        assert!(tree.allocate(7, &mut table));
        publish_all(&mut tree, &table, 1);
        tree.release(&mut table, 7);
        let (prompt, mut found) = (text(1, 5 * BLOCK), Prefix::default());
        tree.find(root(), &hashes(&prompt), &prompt, &mut found);
        tree.hold(&found, &mut table);
        assert_eq!(tree.allocate(more, &mut table), fits);
        assert_eq!(tree.evicted(), if fits { 2 } else { 0 });
        tree.find(root(), &hashes(&prompt), &prompt, &mut found);
        assert_eq!(found.len(), 5);
        tree.check();
    }
}

#[test]
fn scenario_025_generated_tokens_are_found_by_the_next_turn() {
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 10), 40);
    rig.run_to_end();
    assert_eq!(rig.stats().idle_blocks, 3, "49 tokens have KV");
    let turn = [text(1, 10), rig.said(1).to_vec(), text(2, 5)].concat();
    rig.submit(2, turn, 1);
    assert_eq!(rig.running(), [(2, 48, 7, true)]);
}

#[test]
fn scenario_026_equal_blocks_under_different_parents_are_different() {
    let mut rig = Driver::new(config());
    for id in [1, 2] {
        rig.submit(id, fork(id as u32, 16, 9, 16), 1);
        assert_eq!(rig.running(), [(id, 0, 32, true)]);
        rig.run_to_end();
    }
    assert_eq!((rig.stats().published_blocks, rig.stats().merged_blocks), (4, 0));
}

#[test]
fn scenario_027_equal_hashes_of_different_tokens_do_not_match() {
    let mut rig = seen(config(), 48);
    let mut forged = request(2, text(2, 48), 5);
    forged.hashes = hashes(&text(1, 48));
    rig.submit_request(forged);
    assert_eq!(rig.running(), [(2, 0, 48, true)], "no hit");
    rig.run_to_end();
    rig.assert_all_said([1, 2]);
    assert_eq!(rig.stats().published_blocks, 3, "and nothing of it is published over the others");
    rig.submit(3, text(1, 49), 1);
    assert_eq!(rig.running(), [(3, 48, 1, true)]);

    let mut tree = tree(4);
    let mut table = Vec::new();
    assert!(tree.allocate(2, &mut table));
    let forged = hash::BlockHash(5);
    assert_eq!(tree.publish(table[0], Parent::Root(root()), forged, &text(1, 16)), Published::New);
    assert_eq!(tree.publish(table[1], Parent::Root(root()), forged, &text(2, 16)), Published::Collided);
}

#[test]
fn scenario_028_only_accepted_drafts_are_published() {
    for (right, published) in [(0, 0), (1, 1)] {
        let mut rig = Driver::new(Config { max_drafts: 3, ..config() });
        rig.submit(1, text(1, 14), 20);
        rig.answer();
        assert_eq!(rig.seqs().next().unwrap().n_drafts, 3);
        rig.answer_drafting(right);
        assert_eq!(rig.stats().published_blocks, published, "14 + 1 + {right} tokens have KV");
        rig.run_to_end();
        rig.assert_all_said([1]);
    }
}

/// KsanaLLM: counts a hit at each attempt; here: once, because a request is served once.
#[test]
fn scenario_029_hits_are_counted_once_however_long_a_request_waits() {
    // After 2 and the two blocks that 3 finds, one block is left: a prompt that needs three more is tried without success in every pass.
    for (own, attempts) in [(8, 1), (40, 7)] {
        let mut rig = seen(Config { device_blocks: 10, ..config() }, 32);
        rig.submit(2, text(2, 100), 8);
        rig.submit(3, fork(1, 32, 3, own), 2);
        for _ in 0..attempts {
            assert_eq!((rig.ids(), rig.stats().waiting, rig.stats().tokens.cached_tokens), (vec![2], 1, 0));
            rig.answer();
        }
        assert_eq!(
            rig.stats().waiting,
            u32::from(own > 8),
            "one that needs the block that is left is admitted at once"
        );
        rig.answer();
        assert_eq!((rig.stats().waiting, rig.stats().tokens.cached_tokens), (0, 32));
        rig.run_to_end();
        assert_eq!(
            (rig.stats().tokens.cached_tokens, rig.stats().tokens.prompt_tokens),
            (32, 32 + 100 + 32 + u64::from(own))
        );
    }
}
