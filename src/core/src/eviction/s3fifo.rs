//! S3-FIFO (Yang et al., SOSP 2023): a small queue for blocks seen once, a main queue for the rest, and a ghost for
//! blocks evicted from the small queue.
//!
//! One change for a prefix tree: a block leaves the queues when read, because a held block cannot be evicted, and joins the main
//! queue on falling idle again. The original leaves the object in the queue and moves the object on reaching the front.

use super::{Eviction, last};
use crate::blocks::nodes::Nodes;
use crate::blocks::prefetch::prefetch;
use crate::eviction::parts::ghost::Ghost;
use crate::eviction::parts::queue::Queues;
use crate::names::ids::BlockHandle;
use crate::names::spec::Param;

const SMALL: usize = 0;
const MAIN: usize = 1;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "small_percent",
    about: "blocks seen once that may be idle before the main queue is spared, per cent of the cache",
    default: 10,
    min: 1,
    max: 90,
}];

/// Idle leaves in a small and a main queue.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues,
    ghost: Ghost,
    /// Unproven idle blocks above which the small queue is evicted from.
    small_max: u32,
    /// Unproven idle blocks, leaves or not.
    unproven_idle: u32,
    /// `true` for blocks that were read or came back from the ghost. Proven blocks go to the main queue.
    proven: Vec<bool>,
    /// Queue of the last block popped. The parent, a leaf now, has the same age and takes the place.
    popped: Option<usize>,
}

impl S3Fifo {
    pub fn new(values: &[u64], capacity: u32) -> Self {
        Self {
            queues: Queues::with_capacity(2, super::reserved_blocks(capacity)),
            ghost: Ghost::new(capacity),
            // Below the capacity, so it fits.
            small_max: (u64::from(capacity) * values[0] / 100) as u32,
            unproven_idle: 0,
            proven: trunkline_pages::with_capacity(super::reserved_blocks(capacity)),
            popped: None,
        }
    }

    /// Returns the queue that a block joins on falling idle.
    fn queue_of(&self, block: u32) -> usize {
        if self.proven[block as usize] { MAIN } else { SMALL }
    }

    /// Returns the queue to evict from. With `parent_waits`, the parent of the last block evicted is about to join the queue of
    /// that block.
    fn queue_to_evict(&self, parent_waits: bool) -> usize {
        let waits = |queue| parent_waits && self.popped == Some(queue);
        let empty = |queue| self.queues.is_empty(queue) && !waits(queue);
        let over = self.unproven_idle > self.small_max || empty(MAIN);
        if over && !empty(SMALL) { SMALL } else { MAIN }
    }

    fn evicted(&mut self, block: u32, queue: usize) {
        self.popped = Some(queue);
        self.unproven_idle -= u32::from(!self.proven[block as usize]);
    }

    /// Puts the unproven ones of some evicted blocks into the ghost; all of them are, or none.
    fn remember(&mut self, evicted: &[u32], blocks: &Nodes) {
        if evicted.first().is_some_and(|block| self.queue_of(*block) == SMALL) {
            self.ghost.insert_all(evicted.iter().map(|block| blocks.fingerprint(*block)));
        }
    }
}

impl Eviction for S3Fifo {
    fn reads_hits(&self) -> bool {
        false
    }

    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        for block in chain {
            let at = block.index as usize;
            if self.proven.len() <= at {
                self.proven.resize(at + 1, false);
            }
            self.proven[at] = self.ghost.take(blocks.fingerprint(block.index)).is_some();
        }
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.popped = None;
        self.unproven_idle += chain.iter().map(|block| u32::from(!self.proven[block.index as usize])).sum::<u32>();
        if blocks.is_leaf(last(chain)) {
            self.leaf(last(chain), blocks);
        }
    }

    fn clear(&mut self) {
        self.queues.clear();
        (self.unproven_idle, self.popped) = (0, None);
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let queue = self.queue_of(block);
        match self.popped {
            Some(from) if from == queue => self.queues.push_front(queue, block),
            _ => self.queues.push_back(queue, block),
        }
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.queues.remove(last(chain));
        for block in chain {
            let proven = &mut self.proven[block.index as usize];
            self.unproven_idle -= u32::from(!*proven);
            *proven = true;
        }
    }

    fn likely_next(&self) -> Option<u32> {
        let next = self.queues.front(self.queue_to_evict(false))?;
        self.queues.request(next);
        prefetch(&self.proven[next as usize..=next as usize]);
        Some(next)
    }

    fn request_to_publish(&self, fingerprint: u64) {
        self.ghost.request(fingerprint);
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let queue = self.queue_to_evict(false);
        let block = self.queues.pop_front(queue)?;
        self.evicted(block, queue);
        self.remember(&[block], blocks);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let queue = self.queue_to_evict(false);
        let Some(mut block) = self.queues.pop_front(queue) else { return };
        let at = out.len();
        loop {
            out.push(block);
            self.evicted(block, queue);
            // The parent takes the place at the front, so it is next as long as the same queue is evicted from.
            let parent = blocks.next_leaf(block).filter(|parent| self.queue_of(*parent) == queue);
            match parent {
                Some(parent) if out.len() - at < n && self.queue_to_evict(true) == queue => block = parent,
                _ => break,
            }
        }
        self.remember(&out[at..], blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::super::REGISTRY;
    use super::*;
    use crate::blocks::hash::BlockHash;

    #[test]
    fn the_small_queue_is_evicted_from_once_it_exceeds_its_share() {
        let first_victim = |spec: &str| {
            let mut blocks = Nodes::default();
            blocks.open(2);
            let mut policy = REGISTRY.make(spec, 10).unwrap();
            let [proven, seen_once] = [0, 1].map(|index| {
                blocks.publish_first(index, BlockHash(u128::from(index)));
                let chain = [BlockHandle { index, generation: 1 }];
                policy.published(&chain, &blocks);
                policy.idle(&chain, &blocks);
                chain
            });
            policy.read(&proven, &blocks);
            policy.idle(&proven, &blocks);
            (policy.pop(&blocks) == Some(seen_once[0].index), policy.pop(&blocks).is_some())
        };
        assert_eq!(first_victim("s3fifo"), (false, true), "one block of ten is no more than a tenth");
        assert_eq!(first_victim("s3fifo:small_percent=9"), (true, true));
    }
}
