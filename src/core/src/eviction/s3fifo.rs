//! S3-FIFO (Yang et al., SOSP 2023): a small queue for what is seen once, a main queue for the rest, a ghost.
//!
//! One change for a prefix tree: a block that is read leaves the queues, because it cannot be evicted, and joins the
//! main queue when it falls idle again; the original leaves it where it is and moves it when it comes to the front.

use super::ghost::Ghost;
use super::queue::Queues;
use super::{BlockView, Eviction};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Share of the small queue, one in so many.
const SMALL_SHARE: u32 = 10;

/// Idle leaves in two queues.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues,
    ghost: Ghost<()>,
    small_max: u32,
    /// Idle blocks, leaves or not, that are not proven.
    unproven_idle: u32,
    hashes: Vec<u64>,
    /// Blocks that came back from the ghost, or were read: they go to the main queue.
    proven: Vec<bool>,
    /// The last block popped and where from: its parent, a leaf now, is of its age and takes its place.
    popped: Option<usize>,
}

impl S3Fifo {
    pub fn new(capacity: u32) -> Self {
        Self {
            queues: Queues::new(2),
            ghost: Ghost::new(capacity as usize),
            small_max: capacity / SMALL_SHARE,
            unproven_idle: 0,
            hashes: Vec::new(),
            proven: Vec::new(),
            popped: None,
        }
    }
}

impl Eviction for S3Fifo {
    fn published(&mut self, block: &BlockView) {
        let at = block.index as usize;
        if self.proven.len() <= at {
            self.proven.resize(at + 1, false);
            self.hashes.resize(at + 1, 0);
        }
        self.hashes[at] = block.hash;
        self.proven[at] = self.ghost.take(block.hash).is_some();
    }

    fn idle(&mut self, block: &BlockView) {
        self.unproven_idle += u32::from(!self.proven[block.index as usize]);
        self.popped = None;
    }

    fn leaf(&mut self, block: &BlockView) {
        let queue = if self.proven[block.index as usize] { MAIN } else { SMALL };
        match self.popped {
            Some(from) if from == queue => self.queues.push_front(queue, block.index),
            _ => self.queues.push_back(queue, block.index),
        }
    }

    fn read(&mut self, block: &BlockView) {
        self.queues.remove(block.index);
        self.unproven_idle -= u32::from(!self.proven[block.index as usize]);
        self.proven[block.index as usize] = true;
    }

    fn pop(&mut self) -> Option<u32> {
        let over = self.unproven_idle > self.small_max || self.queues.is_empty(MAIN);
        let queue = if over && !self.queues.is_empty(SMALL) { SMALL } else { MAIN };
        let block = self.queues.pop_front(queue)?;
        self.popped = Some(queue);
        if queue == SMALL {
            self.unproven_idle -= 1;
            self.ghost.insert(self.hashes[block as usize], ());
        }
        Some(block)
    }
}
