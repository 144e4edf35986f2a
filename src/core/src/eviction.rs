//! Eviction policies: which idle block goes first, one file each, found by name.
//!
//! The tree tells a policy when blocks fall idle, are read again, or become leaves; the policy says which goes. To add one:
//! write `eviction/NAME.rs` with a type that implements [`Eviction`], and add a line to [`REGISTRY`].

mod cost;
mod ghost;
mod levels;
mod lfu;
mod life;
mod lru;
pub mod queue;
mod reuse;
mod s3fifo;

use crate::ids::BlockHandle;
use crate::registry::{Entry, Registry};
use crate::tree::Nodes;

/// An order of idle blocks.
///
/// Blocks fall idle and are read in chains: blocks of one prefix, each the parent of the next. `blocks` tells what there is
/// to know of each.
///
/// The tree guarantees: a block falls idle before it is a leaf; it does neither twice without being read or popped between;
/// a child is idle before its parent, and its parent is read before it. Of a chain only the last block can be a leaf.
///
/// An implementation MUST be a pure function of these calls and its own parameters: no clock, no randomness that is not
/// seeded, no iteration in hash order. Each call MUST take constant or logarithmic time in the number of blocks in the cache,
/// and at most linear time in the length of the chain.
pub trait Eviction: Send + std::fmt::Debug {
    /// No sequence reads the blocks of the chain any more. In time they fell idle last to first. The last one may be a leaf.
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes);

    /// An idle block is continued by no other block any more: it may be popped from now on.
    fn leaf(&mut self, block: u32, blocks: &Nodes);

    /// The idle blocks of the chain were found by a request, first to last, and are not idle any more. The last one may have
    /// been a leaf.
    fn read(&mut self, chain: &[BlockHandle], blocks: &Nodes);

    /// Takes out the leaf that is to be evicted. MUST return a leaf if there is one; there is one if any block is idle.
    fn pop(&mut self, blocks: &Nodes) -> Option<u32>;

    /// Takes out the leaf that is to be evicted, and perhaps its ancestors if they would be next, `n` blocks at most, into `out`. For
    /// policies that can do so cheaper than one by one; they are told of no leaves in between.
    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        debug_assert!(n > 0);
        out.extend(self.pop(blocks));
    }

    /// Blocks were published that had no twins, first to last: their contents were computed, perhaps again. Their slots may have
    /// stood for other contents before.
    fn published(&mut self, _chain: &[BlockHandle], _blocks: &Nodes) {}
}

/// Blocks of a cache of `capacity` for which to make room at once. Memory that is never touched costs nothing.
fn room(capacity: u32) -> usize {
    capacity.min(crate::block::ROOM_MAX) as usize
}

/// The last block of a chain, which is the only one that can be a leaf.
fn last(chain: &[BlockHandle]) -> u32 {
    chain.last().expect("a chain has a block").index
}

/// All eviction policies, made for a cache of as many blocks as the context says.
pub static REGISTRY: Registry<Box<dyn Eviction>, u32> = Registry::new(
    "eviction policy",
    &[
        Entry { name: "lru", about: "least recently used", params: &[], make: |_, n| Box::new(lru::Lru::new(n)) },
        Entry {
            name: "lfu",
            about: "least frequently used, with ageing",
            params: &[],
            make: |_, n| Box::new(lfu::Lfu::new(n)),
        },
        Entry {
            name: "s3fifo",
            about: "S3-FIFO: a small queue for one-hit wonders, a main queue, a ghost",
            params: &s3fifo::PARAMS,
            make: |values, n| Box::new(s3fifo::S3Fifo::new(values, n)),
        },
        Entry {
            name: "reuse",
            about: "least likely to be used again, learned from the traffic",
            params: &[],
            make: |_, n| Box::new(reuse::Reuse::new(n)),
        },
        Entry {
            name: "cost",
            about: "least cost of recomputing per byte (GreedyDual)",
            params: &[],
            make: |_, n| Box::new(cost::Cost::new(n)),
        },
    ],
);
