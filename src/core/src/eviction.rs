//! Eviction policies: the order in which idle blocks leave a cache, one file each, found by name.
//!
//! The tree reports to a policy when blocks fall idle, are read again, or become leaves; the policy picks the victims. To add
//! one: write `eviction/NAME.rs` with a type that implements [`Eviction`], and add a line to [`REGISTRY`].

mod cost;
mod leaves;
mod lfu;
mod lru;
pub mod parts;
mod s3fifo;

use self::parts::greedy_dual::GreedyDual;
use self::parts::two_lists::{Bound, TwoLists};
use crate::blocks::nodes::Nodes;
use crate::names::ids::BlockHandle;
use crate::names::registry::{Entry, Registry};

/// An order of idle blocks.
///
/// Blocks fall idle and are read in chains: blocks of one prefix, each the parent of the next. `blocks` holds what the tree
/// knows of each block.
///
/// The tree guarantees:
///
/// * A block falls idle before it becomes a leaf. Neither happens twice without a read or a pop in between.
/// * A child falls idle before its parent, and a parent is read before its child.
/// * Only the last block of a chain can be a leaf.
///
/// An implementation MUST be a pure function of these calls and its own parameters: no clock, no unseeded randomness, no
/// iteration in hash order. Each call MUST take constant or logarithmic time in the number of blocks in the cache, and at most
/// linear time in the length of the chain.
pub trait Eviction: Send + std::fmt::Debug {
    /// Takes in a chain without readers. The blocks fell idle last to first. The last one may be a leaf.
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes);

    /// Makes an idle block a candidate for [`Self::pop`]: the last child has left the tree.
    fn leaf(&mut self, block: u32, blocks: &Nodes);

    /// Takes out the idle blocks of a chain, first to last, found by a request. The last one may have been a leaf.
    fn read(&mut self, chain: &[BlockHandle], blocks: &Nodes);

    /// Takes out the leaf to be evicted. MUST return a leaf if there is one; there is one if any block is idle.
    fn pop(&mut self, blocks: &Nodes) -> Option<u32>;

    /// Takes out the leaf to be evicted and, if next in order, ancestors of the leaf: at most `n` blocks, appended to `out`. For
    /// policies that do this faster than block by block; [`Self::leaf`] is not called in between.
    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        debug_assert!(n > 0);
        out.extend(self.pop(blocks));
    }

    /// Returns a block that is likely to be evicted next, if finding one is cheap. The tree loads the block ahead; decisions do not
    /// depend on the answer.
    fn likely_next(&self) -> Option<u32> {
        None
    }

    /// Requests from memory what [`Self::published`] reads for a block with this fingerprint, a moment before.
    fn request_to_publish(&self, _fingerprint: u64) {}

    /// Forgets all blocks: the cache lost its contents. What was learned from the traffic stays.
    fn clear(&mut self);

    /// Returns `true` if the policy reads [`Nodes::hits`]. If it does not, the tree need not count them.
    fn reads_hits(&self) -> bool {
        true
    }

    /// Returns `true` if the policy evicts as many blocks as it likes, and no fewer than asked for: [`Self::pop_chain`] is then asked for
    /// all idle blocks, until enough have left. MUST be constant.
    fn evicts_whole(&self) -> bool {
        false
    }

    /// Returns `true` if the policy reads [`Self::visit`]. If not, the tree need not call it. MUST be constant.
    fn notes_visits(&self) -> bool {
        false
    }

    /// Takes note of a look-up with this block, published and not evicted since, as the last one found, or of a prompt or an answer ending
    /// with the block.
    fn visit(&mut self, _block: u32, _blocks: &Nodes) {}

    /// Takes note of blocks about to leave the tree, by the policy's choice or otherwise. A cache without a tree does not call this.
    fn left(&mut self, _chain: &[u32], _blocks: &Nodes) {}

    /// Takes note of newly computed blocks without duplicates, first to last. The contents may have been in the cache before,
    /// and the slots may have held other contents.
    fn published(&mut self, _chain: &[BlockHandle], _blocks: &Nodes) {}
}

/// Number of blocks to reserve memory for at once, of a cache of `capacity` blocks. Memory that is never touched costs nothing.
fn reserved_blocks(capacity: u32) -> usize {
    capacity.min(crate::blocks::block::ROOM_MAX) as usize
}

/// Returns the last block of a chain, the only one that can be a leaf.
fn last(chain: &[BlockHandle]) -> u32 {
    chain.last().expect("a chain has a block").index
}

/// All eviction policies. The context is the capacity of the cache, in blocks.
pub static REGISTRY: Registry<Box<dyn Eviction>, u32> = Registry::new(
    "eviction policy",
    &[
        Entry { name: "lru", about: "least recently used", params: &[], make: |_, n| Box::new(lru::Lru::new(n)) },
        Entry {
            name: "lfu",
            about: "least frequently used, with ageing",
            params: &[],
            make: |_, n| Box::new(GreedyDual::new(n, lfu::worth)),
        },
        Entry {
            name: "s3fifo",
            about: "S3-FIFO: a small queue for one-hit wonders, a main queue, a ghost",
            params: &s3fifo::PARAMS,
            make: |values, n| Box::new(s3fifo::new(values, n)),
        },
        Entry {
            name: "arc",
            about: "ARC: blocks never found apart from found ones, in shares that follow what comes back",
            params: &[],
            make: |_, n| Box::new(TwoLists::new(Bound::Adaptive, n)),
        },
        Entry {
            name: "leaves",
            about: "whole leaves of a radix tree, least recently looked up; SGLang's",
            params: &[],
            make: |_, n| Box::new(leaves::Leaves::new(n)),
        },
        Entry {
            name: "cost",
            about: "least cost of recomputing per byte (GreedyDual)",
            params: &[],
            make: |_, n| Box::new(GreedyDual::new(n, cost::worth)),
        },
    ],
);
