//! Loads of memory ahead of its use. An operation on many sequences reads lines scattered over memory, a few for each; loaded
//! together before, they take the time of one.

use super::PrefixTree;
use crate::hash::BlockHash;
use crate::ids::BlockHandle;

impl PrefixTree {
    /// Loads what [`Self::publish`] reads and writes for some blocks into the processor's caches: (parent, block, hash) of each.
    pub fn load_ahead_to_publish(
        &self,
        blocks: impl Iterator<Item = (Option<BlockHandle>, BlockHandle, BlockHash)> + Clone,
    ) {
        self.index.touch(blocks.clone().map(|(.., hash)| hash.fingerprint()));
        let nodes = &self.nodes;
        let sum = blocks.fold(0, |sum, (parent, block, _)| {
            let at = block.index as usize;
            let parent = parent.map_or(at, |parent| parent.index as usize);
            let links = nodes.parents[at] ^ nodes.children[parent] ^ nodes.readers[at] ^ nodes.depths[parent];
            let rest = nodes.fingerprints[at] as u32 ^ u32::from(nodes.hits[at]) ^ self.tokens[at * self.block_size];
            sum ^ links ^ rest ^ self.pool.state(block.index) as u32
        });
        std::hint::black_box(sum);
    }
}
