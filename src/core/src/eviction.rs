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

/// What a policy may know of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockView {
    /// The block's slot. The same number may stand for other contents later, after the block was popped.
    pub index: u32,
    /// The block before it in its prefix.
    pub parent: Option<u32>,
    /// Hits of that block.
    pub parent_hits: u32,
    /// Blocks before it in its prefix.
    pub depth: u32,
    /// The low half of its chained hash: the same contents have the same one, whatever the slot.
    pub hash: u64,
    /// Times a request found it in the cache since it was published.
    pub hits: u32,
}

/// An order of idle blocks.
///
/// The tree guarantees: a block is `idle` before it is `leaf`; it is neither twice without a `read` or a `pop` between; blocks of a
/// sequence fall idle tail first, so that a child is always `idle` before its parent.
///
/// An implementation MUST be a pure function of these calls and its own parameters: no clock, no randomness that is not
/// seeded, no iteration in hash order. Each call MUST take constant or logarithmic time in the number of blocks.
pub trait Eviction: Send + std::fmt::Debug {
    /// No sequence reads the block any more.
    fn idle(&mut self, block: &BlockView);

    /// The block is idle and no other block continues it: it may be popped from now on.
    fn leaf(&mut self, block: &BlockView);

    /// An idle block was found by a request and is not idle any more. It may or may not have been a leaf.
    fn read(&mut self, block: &BlockView);

    /// Takes out the leaf that is to be evicted. MUST return a leaf if there is one; there is one if any block is idle.
    fn pop(&mut self) -> Option<u32>;

    /// A block was published that had no twin: its contents were computed, perhaps again.
    fn published(&mut self, _block: &BlockView) {}
}

/// A policy's name, one line about it, and how to make one for a cache of so many blocks.
type Entry = (&'static str, &'static str, fn(u32) -> Box<dyn Eviction>);

/// All eviction policies.
pub const REGISTRY: [Entry; 5] = [
    ("lru", "least recently used", |_| Box::<lru::Lru>::default()),
    ("lfu", "least frequently used, with ageing", |_| Box::<lfu::Lfu>::default()),
    ("s3fifo", "S3-FIFO: a small queue for one-hit wonders, a main queue, a ghost", |n| {
        Box::new(s3fifo::S3Fifo::new(n))
    }),
    ("reuse", "least likely to be used again, learned from the traffic", |n| Box::new(reuse::Reuse::new(n))),
    ("cost", "least cost of recomputing per byte (GreedyDual)", |_| Box::<cost::Cost>::default()),
];

/// The names of all eviction policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(name, ..)| *name)
}

/// The eviction policy called `name`, if there is one, for a cache of `capacity` blocks.
pub fn by_name(name: &str, capacity: u32) -> Option<Box<dyn Eviction>> {
    REGISTRY.iter().find(|(known, ..)| *known == name).map(|(_, _, make)| make(capacity))
}
