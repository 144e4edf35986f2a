//! Storing prompts in a prefix tree, as the core does after computing them.

use trunkline_core::blocks::hash::BlockHash;
use trunkline_core::cache::tree::{Parent, PrefixTree, Published};
use trunkline_core::eviction;
use trunkline_core::names::ids::{BlockHandle, Token};

/// Publishes the blocks of a table that hold a prompt, from index `from` on.
pub fn publish(
    tree: &mut PrefixTree,
    root: BlockHash,
    prompt: (&[Token], &[BlockHash]),
    from: usize,
    table: &[BlockHandle],
) {
    let (tokens, hashes) = prompt;
    let block_size = tokens.len() / hashes.len();
    for (at, block) in tokens.chunks_exact(block_size).enumerate().skip(from) {
        let parent = Parent::of(root, &table[..at]);
        if !tree.is_continued(parent) {
            return tree.publish_chain(&table[at..], parent, &hashes[at..], &tokens[at * block_size..]);
        }
        let published = tree.publish(table[at], parent, hashes[at], block);
        debug_assert_eq!(published, Published::New);
    }
}

/// Makes the policy that evicts the least recently used block first, of a cache of `capacity` blocks.
pub fn lru(capacity: usize) -> Box<dyn eviction::Eviction> {
    eviction::REGISTRY.make("lru", capacity as u32).expect("there is lru")
}
