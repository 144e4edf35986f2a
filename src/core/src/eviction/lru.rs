//! Least recently used.
//!
//! A sequence releases its blocks tail first, and a reader of a block also reads the block's parent. In order of
//! falling idle, a child therefore always stands before its parent, and the first block is always a leaf: least-recently-used
//! and leaf-first eviction are the same pop, in O(1), without a scan (vLLM's queue of free blocks uses the same fact).
//!
//! Blocks that fell idle together form one segment of a prefix. Readers take the beginning of a segment, evictions the end, so
//! the queue holds segments, and each block knows only a segment.

use super::Eviction;
use crate::blocks::nodes::{Nodes, for_runs};
use crate::eviction::parts::queue::Queues;
use crate::eviction::parts::segments::Segments;
use crate::names::ids::BlockHandle;

/// Blocks of one prefix fallen idle together.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Last block of the segment, the next to be evicted.
    tail: u32,
    /// Blocks left in the segment.
    len: u32,
}

/// Segments in order of falling idle.
#[derive(Debug)]
pub(super) struct Lru {
    queue: Queues,
    segments: Segments<Segment>,
    /// Segment of each idle block, by the block's slot.
    segment_of: Vec<u32>,
}

impl Lru {
    pub fn new(capacity: u32) -> Self {
        let segment_of = trunkline_pages::with_capacity(super::reserved_blocks(capacity));
        Self { queue: Queues::new(1), segments: Segments::new(), segment_of }
    }

    /// Takes `by` blocks out of a segment.
    fn shrink(&mut self, segment: u32, by: u32) {
        self.segments[segment].len -= by;
        if self.segments[segment].len == 0 {
            self.queue.remove(segment);
            self.segments.release(segment);
        }
    }
}

impl Eviction for Lru {
    fn reads_hits(&self) -> bool {
        false
    }

    fn idle(&mut self, chain: &[BlockHandle], _: &Nodes) {
        let segment = self.segments.insert(Segment { tail: super::last(chain), len: chain.len() as u32 });
        self.queue.push_back(0, segment);
        for_runs(chain, |first, len| {
            let (first, end) = (first as usize, first as usize + len);
            if self.segment_of.len() < end {
                self.segment_of.resize(end, 0);
            }
            self.segment_of[first..end].fill(segment);
        });
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.segments.clear();
    }

    fn leaf(&mut self, _: u32, _: &Nodes) {}

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        let mut rest = chain;
        while let Some(first) = rest.first() {
            let segment = self.segment_of[first.index as usize];
            // A prefix passes through a segment once.
            let len = rest.partition_point(|block| self.segment_of[block.index as usize] == segment);
            self.shrink(segment, len as u32);
            rest = &rest[len..];
        }
    }

    fn likely_next(&self) -> Option<u32> {
        self.queue.front(0).map(|segment| self.segments[segment].tail)
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let segment = self.queue.front(0)?;
        let oldest = &mut self.segments[segment];
        let block = oldest.tail;
        oldest.tail = blocks.parent(block).unwrap_or(block);
        self.shrink(segment, 1);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(segment) = self.queue.front(0) else { return };
        let oldest = &mut self.segments[segment];
        let n = (oldest.len as usize).min(n);
        let mut left = n;
        while left > 0 {
            let run = blocks.falling(oldest.tail, left);
            let first = oldest.tail + 1 - run as u32;
            out.extend((first..=oldest.tail).rev());
            oldest.tail = blocks.parent(first).unwrap_or(first);
            left -= run;
        }
        self.shrink(segment, n as u32);
    }
}
