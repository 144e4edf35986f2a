//! The tree against a literal model, under every eviction policy, and with colliding hashes.

use super::*;
use crate::blocks::hash::{Namespace, chain, extend_hashes};
use crate::eviction::REGISTRY;
use proptest::prelude::*;

const SIZE: u32 = 4;

/// Reference model: published prefixes with their readers and the time at which the last reader left.
#[derive(Default)]
struct Model {
    /// (prefix in tokens, readers, left at); `left at` orders idle prefixes.
    published: Vec<(Vec<Token>, u32, u64)>,
    private: u32,
    clock: u64,
}

impl Model {
    fn longest(&self, tokens: &[Token]) -> usize {
        let has = |n: usize| self.published.iter().any(|(prefix, ..)| prefix == &tokens[..n * SIZE as usize]);
        (1..=tokens.len() / SIZE as usize).take_while(|n| has(*n)).count()
    }

    fn evict(&mut self) {
        let oldest = self
            .published
            .iter()
            .enumerate()
            .filter(|(_, (_, readers, _))| *readers == 0)
            .min_by_key(|(_, (_, _, left))| *left)
            .map(|(at, _)| at)
            .expect("something is idle");
        let (gone, ..) = self.published.remove(oldest);
        assert!(
            !self.published.iter().any(|(prefix, ..)| prefix.len() > gone.len() && prefix.starts_with(&gone)),
            "least recently used must be a leaf"
        );
    }
}

/// A sequence that has taken blocks for its tokens.
struct Reader {
    tokens: Vec<Token>,
    hashes: Vec<BlockHash>,
    table: Vec<BlockHandle>,
    published: usize,
}

#[derive(Clone, Debug)]
enum Op {
    /// Admit a sequence: a family of prefixes, a branch of it, and a length.
    Admit(u32, u32, usize),
    /// Publish one more block of the n-th reader.
    Publish(usize),
    /// Publish the computed blocks of the n-th reader, as one chain if allowed, as the scheduler does.
    PublishTo(usize, usize),
    /// The n-th reader leaves.
    Leave(usize),
    Flush,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0u32..3, 0u32..3, 1usize..28).prop_map(|(family, branch, len)| Op::Admit(family, branch, len)),
        5 => (0usize..8).prop_map(Op::Publish),
        5 => (0usize..8, 1usize..8).prop_map(|(n, blocks)| Op::PublishTo(n, blocks)),
        3 => (0usize..8).prop_map(Op::Leave),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..120)
}

fn prompt(family: u32, branch: u32, len: usize) -> Vec<Token> {
    (0..len as u32).map(|at| if at < 10 { family * 100 + at } else { 1000 + branch * 100 + at }).collect()
}

/// Publishes the next block of a reader.
fn publish_one(tree: &mut PrefixTree, model: &mut Model, reader: &mut Reader) -> Result<(), TestCaseError> {
    let at = reader.published;
    let tokens = &reader.tokens[at * SIZE as usize..][..SIZE as usize];
    let parent = Parent::of(Namespace::default().root(), &reader.table[..at]);
    let prefix = &reader.tokens[..(at + 1) * SIZE as usize];
    let duplicate = model.published.iter_mut().find(|(p, ..)| p == prefix);
    match tree.publish(reader.table[at], parent, reader.hashes[at], tokens) {
        Published::New => {
            prop_assert!(duplicate.is_none());
            model.published.push((prefix.to_vec(), 1, 0));
        }
        Published::Merged(handle) => {
            prop_assert!(tree.pool().is_current(handle));
            duplicate.expect("merged with a published block").1 += 1;
            tree.free_duplicate(std::mem::replace(&mut reader.table[at], handle));
        }
        Published::Collided => prop_assert!(false, "no collision can happen here"),
    }
    model.private -= 1;
    reader.published += 1;
    Ok(())
}

proptest! {
    #[test]
    fn the_tree_agrees_with_the_model(ops in ops(), capacity in 4u32..40) {
        let root = Namespace::default().root();
        let mut tree = PrefixTree::new(SIZE, capacity, REGISTRY.make("lru", capacity).unwrap());
        let mut model = Model::default();
        let mut readers: Vec<Reader> = Vec::new();
        for op in ops {
            match op {
                Op::Admit(family, branch, len) => {
                    let tokens = prompt(family, branch, len);
                    let mut hashes = Vec::new();
                    extend_hashes(&mut hashes, root, SIZE, &tokens);
                    let mut found = Prefix::default();
                    tree.find(root, &hashes, &tokens, &mut found);
                    let expected = model.longest(&tokens);
                    prop_assert_eq!(found.len(), expected);
                    prop_assert_eq!(tree.estimate(&hashes) as usize, expected);
                    let held_idle = tree.count_idle(&found);
                    let model_idle = (1..=expected)
                        .filter(|n| model.published.iter().any(|(p, r, _)| p == &tokens[..n * SIZE as usize] && *r == 0))
                        .count();
                    prop_assert_eq!(held_idle as usize, model_idle);
                    let needed = len.div_ceil(SIZE as usize) - expected;
                    let idle = model.published.iter().filter(|(_, r, _)| *r == 0).count();
                    let free = capacity as usize - model.private as usize - model.published.len();
                    prop_assert_eq!(tree.usable() as usize, idle + free);
                    let mut table = Vec::new();
                    if idle + free - model_idle < needed {
                        // Not enough: nothing may change.
                        prop_assert!(tree.usable() - held_idle < needed as u32);
                        continue;
                    }
                    tree.hold(&found, &mut table);
                    prop_assert!(tree.allocate(needed as u32, &mut table));
                    for (prefix, r, _) in &mut model.published {
                        *r += u32::from(tokens[..expected * SIZE as usize].starts_with(prefix));
                    }
                    for _ in free..needed {
                        model.evict();
                    }
                    model.private += needed as u32;
                    readers.push(Reader { tokens, hashes, table, published: expected });
                }
                Op::Publish(n) => {
                    let Some(reader) = readers.get_mut(n) else { continue };
                    if reader.published < reader.hashes.len() {
                        publish_one(&mut tree, &mut model, reader)?;
                    }
                }
                Op::PublishTo(n, blocks) => {
                    let Some(reader) = readers.get_mut(n) else { continue };
                    let to = (reader.published + blocks).min(reader.hashes.len());
                    while reader.published < to {
                        let from = reader.published;
                        let parent = Parent::of(root, &reader.table[..from]);
                        if tree.is_continued(parent) {
                            publish_one(&mut tree, &mut model, reader)?;
                            continue;
                        }
                        let tokens = &reader.tokens[from * SIZE as usize..to * SIZE as usize];
                        tree.publish_chain(&reader.table[from..to], parent, &reader.hashes[from..to], tokens);
                        for blocks in from + 1..=to {
                            let prefix = &reader.tokens[..blocks * SIZE as usize];
                            prop_assert!(!model.published.iter().any(|(p, ..)| p == prefix), "a duplicate was published");
                            model.published.push((prefix.to_vec(), 1, 0));
                        }
                        model.private -= (to - from) as u32;
                        reader.published = to;
                    }
                }
                Op::Leave(n) => {
                    if n >= readers.len() {
                        continue;
                    }
                    let mut reader = readers.remove(n);
                    model.private -= (reader.table.len() - reader.published) as u32;
                    tree.release(&mut reader.table, reader.published);
                    for blocks in (1..=reader.published).rev() {
                        let prefix = &reader.tokens[..blocks * SIZE as usize];
                        let entry = model.published.iter_mut().find(|(p, ..)| p == prefix).expect("still there");
                        entry.1 -= 1;
                        model.clock += 1;
                        entry.2 = model.clock;
                    }
                }
                Op::Flush => {
                    let idle = model.published.iter().filter(|(_, r, _)| *r == 0).count();
                    prop_assert_eq!(tree.flush() as usize, idle);
                    model.published.retain(|(_, r, _)| *r > 0);
                }
            }
            tree.check();
            for reader in &readers {
                prop_assert!(reader.table.iter().all(|handle| tree.pool().is_current(*handle)));
            }
        }
    }
}

#[test]
fn every_policy_evicts_every_idle_block_leaf_first() {
    let root = Namespace::default().root();
    for name in REGISTRY.names() {
        let mut tree = PrefixTree::new(SIZE, 60, REGISTRY.make(name, 60).unwrap());
        for round in 0..40u32 {
            let tokens = prompt(round % 3, round % 5, 8 + (round as usize * 7) % 33);
            let mut hashes = Vec::new();
            extend_hashes(&mut hashes, root, SIZE, &tokens);
            let (mut found, mut table) = (Prefix::default(), Vec::new());
            tree.find(root, &hashes, &tokens, &mut found);
            tree.hold(&found, &mut table);
            assert!(
                tree.allocate((hashes.len() - found.len()) as u32, &mut table),
                "{name}: all other blocks are idle"
            );
            for at in found.len()..hashes.len() {
                let block = &tokens[at * SIZE as usize..][..SIZE as usize];
                let parent = Parent::of(root, &table[..at]);
                assert_eq!(tree.publish(table[at], parent, hashes[at], block), Published::New);
            }
            tree.release(&mut table, hashes.len());
            // Evicting asserts that the policy names an idle leaf.
            tree.check();
        }
        assert!(tree.evicted() > 0, "{name} was not asked");
        let idle = tree.usable() - tree.pool().count(BlockState::Free);
        assert_eq!(tree.flush(), idle);
        tree.check();
    }
}

#[test]
fn a_hash_of_another_prefix_is_a_miss_and_cannot_be_published_over() {
    let root = Namespace::default().root();
    let tokens: Vec<Token> = (0..SIZE).collect();
    let forged = chain(root, &tokens);
    let mut tree = PrefixTree::new(SIZE, 4, REGISTRY.make("lru", 4).unwrap());
    let mut table = Vec::new();
    assert!(tree.allocate(2, &mut table));
    assert_eq!(tree.publish(table[0], Parent::Root(root), forged, &tokens), Published::New);
    let other = vec![9; SIZE as usize];
    let mut found = Prefix::default();
    tree.find(root, &[forged], &other, &mut found);
    assert!(found.is_empty(), "the hash is there, the tokens are not");
    assert_eq!(tree.publish(table[1], Parent::Root(root), forged, &other), Published::Collided);
    assert_eq!(tree.collisions(), 2);
    // Behind a block without children no duplicate is looked for: the second block of one hash is found or not, never mistaken.
    assert_eq!(tree.publish(table[1], Parent::Block(table[0]), forged, &tokens), Published::New);
    tree.find(root, &[forged, forged], &[&tokens[..], &tokens].concat(), &mut found);
    let slots: Vec<u32> = found.slots().collect();
    assert!(table.iter().map(|block| block.index).collect::<Vec<_>>().starts_with(&slots), "{found:?}");
    tree.check();
    tree.release(&mut table, 2);
    assert_eq!(tree.flush(), 2);
    tree.check();
}

/// Two namespaces whose first blocks have one hash: each finds its own block only, whatever the hash says.
#[test]
fn equal_hashes_in_two_namespaces_do_not_hit() {
    let roots = [1, 2].map(BlockHash);
    let tokens: Vec<Token> = (0..2 * SIZE).collect();
    let (first, second) = tokens.split_at(SIZE as usize);
    let forged = [BlockHash(7 << 64 | 5), BlockHash(8 << 64 | 6)];
    let mut tree = PrefixTree::new(SIZE, 4, REGISTRY.make("lru", 4).unwrap());
    let mut table = Vec::new();
    assert!(tree.allocate(3, &mut table));
    assert_eq!(tree.publish(table[0], Parent::Root(roots[0]), forged[0], first), Published::New);
    assert_eq!(tree.publish(table[1], Parent::Block(table[0]), forged[1], second), Published::New);
    let find = |tree: &mut PrefixTree, root: BlockHash| {
        let mut found = Prefix::default();
        tree.find(root, &forged, &tokens, &mut found);
        found.len()
    };
    assert_eq!([find(&mut tree, roots[0]), find(&mut tree, roots[1])], [2, 0]);
    assert_eq!(tree.publish(table[2], Parent::Root(roots[1]), forged[0], first), Published::Collided);
    tree.check();
    let mut private = table.split_off(2);
    tree.release(&mut private, 0);
    tree.release(&mut table, 2);
    assert_eq!(tree.flush(), 2);
    tree.check();
    // The namespace is gone with its blocks, and its number is free for another.
    assert!(tree.allocate(1, &mut table));
    assert_eq!(tree.publish(table[0], Parent::Root(roots[1]), forged[0], first), Published::New);
    assert_eq!([find(&mut tree, roots[0]), find(&mut tree, roots[1])], [0, 1]);
    tree.check();
}

/// Prefixes taken are counted with the runs of neighbours that they form.
#[test]
fn the_runs_of_prefixes_taken_are_counted() {
    let root = Namespace::default().root();
    let mut tree = PrefixTree::new(SIZE, 20, REGISTRY.make("lru", 20).unwrap());
    let tokens = prompt(1, 1, 5 * SIZE as usize);
    let mut hashes = Vec::new();
    extend_hashes(&mut hashes, root, SIZE, &tokens);
    let (mut table, mut other, mut found) = (Vec::new(), Vec::new(), Prefix::default());
    assert!(tree.allocate(2, &mut table) && tree.allocate(1, &mut other) && tree.allocate(3, &mut table));
    for at in 0..5 {
        let block = &tokens[at * SIZE as usize..][..SIZE as usize];
        assert_eq!(tree.publish(table[at], Parent::of(root, &table[..at]), hashes[at], block), Published::New);
    }
    tree.release(&mut table, 5);
    assert_eq!(tree.taken(), (0, 0));
    tree.find(root, &hashes, &tokens, &mut found);
    tree.hold(&found, &mut table);
    assert_eq!(tree.taken(), (5, 2));
}

#[test]
fn the_pieces_of_a_run_are_the_run() {
    for len in [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
        let slots = pieces(9, len).flat_map(|(first, len)| first..first + len as u32);
        assert!(slots.eq(9..9 + len as u32) && pieces(9, len).all(|(_, len)| len <= PIECE), "{len} slots");
    }
}
