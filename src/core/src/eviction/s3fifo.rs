//! S3-FIFO (Yang et al., SOSP 2023): a small queue for what is seen once, a main queue for the rest, a ghost.
//!
//! One change for a prefix tree: a block that is read leaves the queues, because it cannot be evicted, and joins the
//! main queue when it falls idle again; the original leaves it where it is and moves it when it comes to the front.

use super::ghost::Ghost;
use super::queue::Queues;
use super::{Eviction, last};
use crate::ids::BlockHandle;
use crate::tree::Nodes;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Share of the small queue, one in so many.
const SMALL_SHARE: u32 = 10;

/// Idle leaves in two queues.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues,
    ghost: Ghost,
    small_max: u32,
    /// Idle blocks, leaves or not, that are not proven.
    unproven_idle: u32,
    /// Blocks that came back from the ghost, or were read: they go to the main queue.
    proven: Vec<bool>,
    /// The last block popped and where from: its parent, a leaf now, is of its age and takes its place.
    popped: Option<usize>,
}

impl S3Fifo {
    pub fn new(capacity: u32) -> Self {
        Self {
            queues: Queues::with_room(2, super::room(capacity)),
            ghost: Ghost::new(capacity),
            small_max: capacity / SMALL_SHARE,
            unproven_idle: 0,
            proven: Vec::with_capacity(super::room(capacity)),
            popped: None,
        }
    }
}

impl Eviction for S3Fifo {
    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        for block in chain {
            let at = block.index as usize;
            if self.proven.len() <= at {
                self.proven.resize(at + 1, false);
            }
            self.proven[at] = self.ghost.take(blocks.hash(block.index));
        }
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.popped = None;
        self.unproven_idle += chain.iter().map(|block| u32::from(!self.proven[block.index as usize])).sum::<u32>();
        if blocks.is_leaf(last(chain)) {
            self.leaf(last(chain), blocks);
        }
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let queue = if self.proven[block as usize] { MAIN } else { SMALL };
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

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let over = self.unproven_idle > self.small_max || self.queues.is_empty(MAIN);
        let queue = if over && !self.queues.is_empty(SMALL) { SMALL } else { MAIN };
        let block = self.queues.pop_front(queue)?;
        self.popped = Some(queue);
        if queue == SMALL {
            self.unproven_idle -= 1;
            self.ghost.insert(blocks.hash(block));
        }
        Some(block)
    }
}
