//! Every eviction policy against itself: popping blocks in chains decides like popping them one by one.

use super::*;
use crate::blocks::hash::{Namespace, extend_hashes};
use crate::eviction::REGISTRY;
use proptest::prelude::*;

const SIZE: usize = 2;

/// A policy without its way to pop several blocks at once.
#[derive(Debug)]
struct OneByOne(Box<dyn Eviction>);

impl Eviction for OneByOne {
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.0.idle(chain, blocks);
    }

    fn leaf(&mut self, block: u32, blocks: &Nodes) {
        self.0.leaf(block, blocks);
    }

    fn read(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.0.read(chain, blocks);
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        self.0.pop(blocks)
    }

    fn likely_next(&self) -> Option<u32> {
        self.0.likely_next()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.0.published(chain, blocks);
    }
}

/// Runs a request: finds what is cached of a prompt, publishes the rest and leaves. Returns the number of blocks found.
fn serve(tree: &mut PrefixTree, prompt: &[Token]) -> usize {
    let root = Namespace::default().root();
    let (mut hashes, mut found, mut table) = (Vec::new(), Prefix::default(), Vec::new());
    extend_hashes(&mut hashes, root, SIZE as u32, prompt);
    tree.find(root, &hashes, prompt, &mut found);
    tree.hold(&found, &mut table);
    let cached = found.len();
    assert!(tree.allocate((hashes.len() - cached) as u32, &mut table), "all other blocks are idle");
    for at in cached..hashes.len() {
        let parent = Parent::of(root, &table[..at]);
        assert_eq!(tree.publish(table[at], parent, hashes[at], &prompt[at * SIZE..][..SIZE]), Published::New);
    }
    tree.release(&mut table, hashes.len());
    cached
}

proptest! {
    #[test]
    fn popping_chains_decides_like_popping_one_by_one(
        requests in prop::collection::vec((0u32..6, 0u32..4, 1usize..24), 1..80), capacity in 24u32..60,
    ) {
        // A policy that evicts whole leaves decides otherwise if it is asked for single blocks.
        for name in REGISTRY.names().filter(|name| !REGISTRY.make(name, capacity).unwrap().evicts_whole()) {
            let policy = || REGISTRY.make(name, capacity).unwrap();
            let mut chains = PrefixTree::new(SIZE as u32, capacity, policy());
            let mut single = PrefixTree::new(SIZE as u32, capacity, Box::new(OneByOne(policy())));
            for (family, branch, blocks) in &requests {
                // Prompts of a family share their first half.
                let half = (SIZE * blocks / 2) as u32;
                let prompt: Vec<Token> = (0..(SIZE * blocks) as u32)
                    .map(|at| 1000 * family + at + if at < half { 0 } else { 100 * (branch + 1) })
                    .collect();
                prop_assert_eq!(serve(&mut chains, &prompt), serve(&mut single, &prompt), "{}", name);
                prop_assert_eq!(chains.evicted(), single.evicted());
            }
            chains.check();
        }
    }
}

#[test]
fn a_cleared_tree_has_no_block_whoever_held_it_and_evicts_like_a_new_one() {
    const CAPACITY: u32 = 40;
    let prompt = |family: u32| (0..20).map(|at| 100 * family + at).collect::<Vec<Token>>();
    for name in ["lru", "lfu", "cost", "s3fifo", "arc", "leaves"] {
        let make = || PrefixTree::new(SIZE as u32, CAPACITY, REGISTRY.make(name, CAPACITY).unwrap());
        let (mut tree, mut new) = (make(), make());
        // Ten idle blocks, ten held ones before two private ones, and a moving one.
        serve(&mut tree, &prompt(1));
        serve(&mut tree, &prompt(2));
        let (root, mut hashes, mut found, mut table) =
            (Namespace::default().root(), Vec::new(), Prefix::default(), Vec::new());
        extend_hashes(&mut hashes, root, SIZE as u32, &prompt(2));
        tree.find(root, &hashes, &prompt(2), &mut found);
        tree.hold(&found, &mut table);
        assert!(tree.allocate(3, &mut table));
        tree.begin_move(table[12]);
        assert_eq!((tree.clear(), tree.usable(), tree.evicted()), (20, CAPACITY, 20), "{name}");
        tree.check();
        assert!(table.iter().all(|block| !tree.pool().is_current(*block)) && !tree.contains(hashes[0]));
        // Prompts of which only three fit at a time. The policy may have learned from the first two prompts.
        let mut hits = 0;
        for family in [2, 3, 4, 3, 5, 6, 2, 7, 4] {
            let cached = serve(&mut tree, &prompt(family));
            hits += cached;
            let there = serve(&mut new, &prompt(family));
            assert!(cached == there || ["s3fifo", "arc"].contains(&name), "{name}: {cached} blocks of {family}");
            tree.check();
        }
        assert!(hits > 0 && tree.evicted() > 20, "{name}");
    }
}
