//! Caches of every capacity over the uses of blocks.

use std::collections::BinaryHeap;

use super::{ReuseBlocks, rank};
use crate::trace::blocks::Node;

/// Mark of a block without a further use.
const NEVER: u32 = u32::MAX;

/// Blocks used by each request, from the first of its prompt to the last.
pub(super) struct Uses {
    block_tokens: u32,
    nodes: Vec<Node>,
    /// End of each request's uses, and its prompt tokens.
    requests: Vec<(u32, u32)>,
}

/// Blocks and tokens found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hits {
    pub blocks: u64,
    pub tokens: u64,
}

impl Uses {
    pub(super) fn new(block_tokens: u32) -> Self {
        Self { block_tokens, nodes: Vec::new(), requests: Vec::new() }
    }

    pub(super) fn push(&mut self, node: Node) {
        self.nodes.push(node);
    }

    pub(super) fn end_request(&mut self, input_tokens: u32) {
        self.requests.push((self.nodes.len() as u32, input_tokens));
    }

    /// Returns the number of uses over all requests.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the prompt tokens of all requests.
    pub(super) fn tokens(&self) -> u64 {
        self.requests.iter().map(|(_, tokens)| u64::from(*tokens)).sum()
    }

    /// Returns the range of uses and the prompt tokens of each request.
    fn requests(&self) -> impl DoubleEndedIterator<Item = (std::ops::Range<usize>, u32)> + ExactSizeIterator {
        (0..self.requests.len()).map(|i| {
            let begin = if i == 0 { 0 } else { self.requests[i - 1].0 };
            let (end, tokens) = self.requests[i];
            (begin as usize..end as usize, tokens)
        })
    }

    /// Returns the tokens of block `at` of a request with `input_tokens` tokens.
    fn tokens_at(&self, at: usize, input_tokens: u32) -> u64 {
        u64::from((input_tokens - at as u32 * self.block_tokens).min(self.block_tokens))
    }

    /// Counts the other blocks used between two uses of every reused block. A request uses its blocks from the last to the first.
    pub(super) fn distances(&self, n_nodes: u32) -> Distances {
        let mut last = vec![0u32; n_nodes as usize];
        let mut marks = Fenwick::new(self.nodes.len());
        let mut distances = Distances { at: vec![Hits::default(); n_nodes as usize + 1] };
        let mut now = 0u32;
        let mut n_marked = 0u64;
        for (uses, input_tokens) in self.requests() {
            for (at, node) in self.nodes[uses.clone()].iter().enumerate() {
                let used = last[*node as usize];
                if used == 0 {
                    break;
                }
                let distance = n_marked - marks.sum_to(used);
                let hits = &mut distances.at[distance as usize];
                hits.blocks += 1;
                hits.tokens += self.tokens_at(at, input_tokens);
            }
            for node in self.nodes[uses].iter().rev() {
                now += 1;
                let used = std::mem::replace(&mut last[*node as usize], now);
                match used {
                    0 => n_marked += 1,
                    _ => marks.add(used, -1),
                }
                marks.add(now, 1);
            }
        }
        distances
    }

    /// Returns the next request for the block of every use.
    pub(super) fn next_uses(&self, n_nodes: u32) -> Vec<u32> {
        let mut next_of = vec![NEVER; n_nodes as usize];
        let mut next = vec![NEVER; self.nodes.len()];
        for (number, (uses, _)) in (0..self.requests.len()).zip(self.requests()).rev() {
            for at in uses {
                next[at] = std::mem::replace(&mut next_of[self.nodes[at] as usize], number as u32);
            }
        }
        next
    }

    /// Counts the hits of a cache of `capacity` blocks that evicts the block with the latest next use.
    pub(super) fn belady(&self, next_uses: &[u32], n_nodes: u32, capacity: u64) -> Hits {
        let mut cache = Clairvoyant { capacity, next: vec![None; n_nodes as usize], len: 0, order: BinaryHeap::new() };
        let mut hits = Hits::default();
        for (uses, input_tokens) in self.requests() {
            let nodes = &self.nodes[uses.clone()];
            let found = nodes.iter().take_while(|node| cache.next[**node as usize].is_some()).count();
            hits.blocks += found as u64;
            hits.tokens += (found as u64 * u64::from(self.block_tokens)).min(u64::from(input_tokens));
            for (at, (node, next)) in nodes.iter().zip(&next_uses[uses]).enumerate() {
                cache.keep(*node, *next, at as u32);
            }
            cache.shrink();
        }
        hits
    }
}

/// Cache with knowledge of the next use of every block.
struct Clairvoyant {
    capacity: u64,
    /// Next request for each cached node; `None` outside the cache.
    next: Vec<Option<u32>>,
    len: u64,
    /// Next use, place in the prompt, and node; the greatest entry is evicted first. Stale entries are skipped.
    order: BinaryHeap<(u32, u32, Node)>,
}

impl Clairvoyant {
    fn keep(&mut self, node: Node, next: u32, at: u32) {
        if self.next[node as usize].replace(next).is_none() {
            self.len += 1;
        }
        self.order.push((next, at, node));
    }

    fn shrink(&mut self) {
        while self.len > self.capacity {
            let (next, _, node) = self.order.pop().expect("every block of the cache has an entry");
            if self.next[node as usize] == Some(next) {
                self.next[node as usize] = None;
                self.len -= 1;
            }
        }
    }
}

/// Number of blocks found at each distance.
pub(super) struct Distances {
    at: Vec<Hits>,
}

impl Distances {
    /// Counts the hits of a cache of `capacity` blocks under LRU.
    pub(super) fn hits(&self, capacity: u64) -> Hits {
        let n = usize::try_from(capacity).unwrap_or(usize::MAX).min(self.at.len());
        self.at[..n].iter().fold(Hits::default(), |sum, hits| Hits {
            blocks: sum.blocks + hits.blocks,
            tokens: sum.tokens + hits.tokens,
        })
    }

    pub(super) fn reuse(&self) -> ReuseBlocks {
        let n = self.hits(u64::MAX).blocks;
        if n == 0 {
            return ReuseBlocks::default();
        }
        let at = |per_cent| {
            let rank = rank(n, per_cent);
            let mut seen = 0;
            self.at.iter().position(|hits| {
                seen += hits.blocks;
                seen >= rank
            })
        };
        let at = |per_cent| at(per_cent).expect("a rank that there is") as u64;
        ReuseBlocks { p10: at(10), p25: at(25), p50: at(50), p75: at(75), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// Prefix sums of marks, positions from 1 (Fenwick tree).
struct Fenwick {
    sums: Vec<i32>,
}

impl Fenwick {
    fn new(n: usize) -> Self {
        Self { sums: vec![0; n + 1] }
    }

    fn add(&mut self, position: u32, change: i32) {
        let mut at = position as usize;
        while at < self.sums.len() {
            self.sums[at] += change;
            at += at & at.wrapping_neg();
        }
    }

    fn sum_to(&self, position: u32) -> u64 {
        let mut at = position as usize;
        let mut sum = 0i64;
        while at > 0 {
            sum += i64::from(self.sums[at]);
            at &= at - 1;
        }
        sum as u64
    }
}
