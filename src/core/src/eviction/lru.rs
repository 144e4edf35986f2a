//! Least recently used.
//!
//! A sequence that leaves gives its blocks back tail first, and whoever reads a block reads its parent too. So in the order in
//! which blocks fell idle a child always stands before its parent, and the first is always a leaf: least-recently-used and
//! leaf-first eviction are the same pop, in O(1), without a scan (the same observation carries vLLM's queue of free blocks).
//!
//! The blocks that fell idle together are one segment of a prefix, of which readers take the beginning and evictions the
//! end. So the queue is one of segments, and a block knows no more than its own.

use super::Eviction;
use super::queue::Queues;
use crate::ids::BlockHandle;
use crate::tree::Nodes;

/// Idle blocks of one prefix that fell idle together.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The last of them.
    tail: u32,
    len: u32,
}

/// Segments in the order in which they fell idle.
#[derive(Debug)]
pub(super) struct Lru {
    queue: Queues,
    segments: Vec<Segment>,
    /// Segments that are empty.
    unused: Vec<u32>,
    /// The segment of each idle block.
    of: Vec<u32>,
}

impl Lru {
    pub fn new(capacity: u32) -> Self {
        let of = Vec::with_capacity(super::room(capacity));
        Self { queue: Queues::new(1), segments: Vec::new(), unused: Vec::new(), of }
    }

    /// Takes blocks out of a segment.
    fn shrink(&mut self, segment: u32, by: u32) {
        let it = &mut self.segments[segment as usize];
        it.len -= by;
        if it.len == 0 {
            self.queue.remove(segment);
            self.unused.push(segment);
        }
    }
}

impl Eviction for Lru {
    fn idle(&mut self, chain: &[BlockHandle], _: &Nodes) {
        let fresh = Segment { tail: super::last(chain), len: chain.len() as u32 };
        let segment = match self.unused.pop() {
            Some(segment) => {
                self.segments[segment as usize] = fresh;
                segment
            }
            None => {
                self.segments.push(fresh);
                self.segments.len() as u32 - 1
            }
        };
        self.queue.push_back(0, segment);
        for block in chain {
            let at = block.index as usize;
            if self.of.len() <= at {
                self.of.resize(at + 1, 0);
            }
            self.of[at] = segment;
        }
    }

    fn leaf(&mut self, _: u32, _: &Nodes) {}

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        let mut rest = chain;
        while let Some(first) = rest.first() {
            let segment = self.of[first.index as usize];
            // A prefix goes through a segment once.
            let len = rest.partition_point(|block| self.of[block.index as usize] == segment);
            self.shrink(segment, len as u32);
            rest = &rest[len..];
        }
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let segment = self.queue.front(0)?;
        let it = &mut self.segments[segment as usize];
        let block = it.tail;
        it.tail = blocks.parent(block).unwrap_or(block);
        self.shrink(segment, 1);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(segment) = self.queue.front(0) else { return };
        let it = &mut self.segments[segment as usize];
        let n = (it.len as usize).min(n);
        for _ in 0..n {
            out.push(it.tail);
            it.tail = blocks.parent(it.tail).unwrap_or(it.tail);
        }
        self.shrink(segment, n as u32);
    }
}
