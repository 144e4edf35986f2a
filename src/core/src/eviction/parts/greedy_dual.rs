//! GreedyDual: idle leaves by priority, the base of the weighing policies (Young, 1994; Cao and Irani, 1997).
//!
//! A block falling idle gets the priority `floor + worth`, where `floor` is the priority of the last block evicted. The worth of
//! a block is a function of the policy; so blocks of great worth are evicted late, and blocks popular long ago in the end.
//!
//! A chain of blocks of equal worth is evicted tail first, [`RUN`] blocks at a time; then its next block waits behind the other
//! chains of the same priority. The head of a chain is therefore evicted later than the tails of its equals, because
//! every reader of a tail reads the head; and the blocks freed at once are neighbours.

use super::levels::Levels;
use crate::blocks::nodes::Nodes;
use crate::eviction::{Eviction, last};
use crate::names::ids::BlockHandle;

/// Worth of keeping an idle block, in levels of priority; [`super::levels::LEVELS`] and more count the same.
pub(in crate::eviction) type Worth = fn(u32, &Nodes) -> usize;

/// Blocks of a chain evicted in a row.
const RUN: u32 = 16;

/// Idle leaves by priority.
#[derive(Debug)]
pub(in crate::eviction) struct GreedyDual {
    levels: Levels,
    worth: Worth,
    /// Worth of the last block evicted, whose parent may be a leaf now.
    popped: usize,
    /// Blocks of one chain evicted last.
    run: u32,
    /// Next block of that chain, if the block is the first of its priority.
    next: Option<u32>,
}

impl GreedyDual {
    /// Creates an empty policy for a cache of `capacity` blocks.
    pub fn new(capacity: u32, worth: Worth) -> Self {
        Self { levels: Levels::new(crate::eviction::reserved_blocks(capacity)), worth, popped: 0, run: 0, next: None }
    }

    /// Returns the priority of the parent of the last block evicted, above the priority of that block.
    fn above(&self, parent: u32, blocks: &Nodes) -> usize {
        (self.worth)(parent, blocks).saturating_sub(self.popped)
    }

    /// Returns `true` if the parent of the last block evicted, a leaf now, is evicted next.
    fn continues(&self, parent: u32, blocks: &Nodes) -> bool {
        self.run < RUN && self.above(parent, blocks) == 0
    }

    fn evicted(&mut self, block: u32, blocks: &Nodes) {
        self.run = if self.next == Some(block) { self.run + 1 } else { 1 };
        self.next = None;
        self.popped = (self.worth)(block, blocks);
    }
}

impl Eviction for GreedyDual {
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        let block = last(chain);
        if blocks.is_leaf(block) {
            self.levels.push_back(block, (self.worth)(block, blocks));
        }
    }

    fn clear(&mut self) {
        self.levels.clear();
        (self.popped, self.run, self.next) = (0, 0, None);
    }

    fn leaf(&mut self, block: u32, blocks: &Nodes) {
        if self.continues(block, blocks) {
            self.next = Some(block);
            self.levels.push_floor(block);
        } else {
            self.levels.push_back(block, self.above(block, blocks));
        }
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.next = self.next.filter(|next| *next != last(chain));
        self.levels.remove(last(chain));
    }

    fn likely_next(&self) -> Option<u32> {
        self.levels.first()
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let block = self.levels.pop()?;
        self.evicted(block, blocks);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(mut block) = self.pop(blocks) else { return };
        out.push(block);
        for _ in 1..n {
            match blocks.next_leaf(block) {
                Some(parent) if self.continues(parent, blocks) => block = parent,
                _ => return,
            }
            self.next = Some(block);
            self.evicted(block, blocks);
            out.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::hash::BlockHash;

    /// Two idle chains of `len` blocks, the second after the first. The blocks of the second but for its tail were found `hits`
    /// times.
    fn chains(len: u32, hits: u16) -> (GreedyDual, Nodes) {
        let mut blocks = Nodes::default();
        blocks.open(2 * len as usize);
        let mut policy = GreedyDual::new(2 * len, |block, blocks| blocks.hits(block) as usize);
        for first in [0, len] {
            let hashes: Vec<_> = (first..first + len).map(|i| BlockHash(u128::from(i))).collect();
            blocks.publish(first, crate::blocks::nodes::ROOT, &hashes);
            blocks.leave(first, len as usize);
        }
        (0..hits).for_each(|_| blocks.hit(len, len as usize - 1));
        policy.idle(&chain(0, len), &blocks);
        policy.idle(&chain(len, len), &blocks);
        (policy, blocks)
    }

    fn chain(first: u32, len: u32) -> Vec<BlockHandle> {
        (first..first + len).map(|index| BlockHandle { index, generation: 0 }).collect()
    }

    fn evicted(len: u32, at_once: usize) -> Vec<u32> {
        let (mut policy, mut blocks) = chains(len, 0);
        let mut out = Vec::new();
        while out.len() < 2 * len as usize {
            let at = out.len();
            policy.pop_chain(at_once, &blocks, &mut out);
            if let Some(parent) = blocks.remove_chain(&out[at..]) {
                policy.leaf(parent, &blocks);
            }
        }
        out
    }

    #[test]
    fn a_chain_of_equal_worth_leaves_tail_first_in_runs() {
        assert_eq!(evicted(3, 1), [2, 1, 0, 5, 4, 3]);
        let tails = (4..20).rev().chain((24..40).rev());
        let heads = (0..4).rev().chain((20..24).rev());
        assert_eq!(evicted(20, 1), tails.chain(heads).collect::<Vec<_>>());
        assert_eq!(evicted(20, 7), evicted(20, 1), "one by one or many at once");
    }

    #[test]
    fn blocks_of_greater_worth_stay_after_the_tail_of_their_chain() {
        let (mut policy, mut blocks) = chains(3, 1);
        policy.read(&chain(0, 3), &blocks);
        policy.idle(&chain(0, 3), &blocks);
        // 0-1-2 fell idle again after 5, and is of equal worth. 4 and 3 were found once: a level above.
        let first = policy.pop(&blocks).unwrap();
        let parent = blocks.remove_chain(&[first]).unwrap();
        policy.leaf(parent, &blocks);
        assert_eq!((first, parent, policy.pop(&blocks)), (5, 4, Some(2)));
    }
}
