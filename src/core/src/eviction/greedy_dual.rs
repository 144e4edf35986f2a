//! GreedyDual: idle leaves by priority, the base of the policies that weigh blocks (Young, 1994; Cao and Irani, 1997).
//!
//! A block falling idle gets the priority `floor + worth`, where `floor` is the priority of the last block evicted. The worth of
//! a block is a function of the policy; blocks of great worth are thereby evicted late, and blocks popular long ago in the end.
//!
//! A parent fell idle together with its last child, so a parent whose last child leaves gets the floor of that child. A chain of
//! blocks of equal worth is therefore evicted tail first, as one, before the next chain is touched.

use super::levels::Levels;
use super::{Eviction, last};
use crate::ids::BlockHandle;
use crate::nodes::Nodes;

/// Worth of keeping an idle block, in levels of priority; [`super::levels::LEVELS`] and more count alike.
pub(super) type Worth = fn(u32, &Nodes) -> usize;

/// Idle leaves by priority.
#[derive(Debug)]
pub(super) struct GreedyDual {
    levels: Levels,
    worth: Worth,
    /// Worth of the last block evicted, whose parent may be a leaf now.
    popped: usize,
}

impl GreedyDual {
    /// Creates an empty policy for a cache of `capacity` blocks.
    pub fn new(capacity: u32, worth: Worth) -> Self {
        Self { levels: Levels::new(super::reserved_blocks(capacity)), worth, popped: 0 }
    }

    /// Returns the priority of the parent of the last block evicted, above the priority of that block.
    fn above(&self, parent: u32, blocks: &Nodes) -> usize {
        (self.worth)(parent, blocks).saturating_sub(self.popped)
    }
}

impl Eviction for GreedyDual {
    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        let block = last(chain);
        if blocks.is_leaf(block) {
            self.levels.push_back(block, (self.worth)(block, blocks));
        }
    }

    fn leaf(&mut self, block: u32, blocks: &Nodes) {
        match self.above(block, blocks) {
            0 => self.levels.push_floor(block),
            above => self.levels.push_back(block, above),
        }
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.levels.remove(last(chain));
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let block = self.levels.pop()?;
        self.popped = (self.worth)(block, blocks);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some(mut block) = self.pop(blocks) else { return };
        out.push(block);
        for _ in 1..n {
            match blocks.next_leaf(block) {
                Some(parent) if self.above(parent, blocks) == 0 => block = parent,
                _ => return,
            }
            self.popped = (self.worth)(block, blocks);
            out.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::BlockHash;

    /// Two idle chains of three blocks: 0-1-2, then 3-4-5. The first two blocks of the second were found `hits` times.
    fn chains(hits: u16) -> (GreedyDual, Nodes) {
        let mut blocks = Nodes::default();
        blocks.open(6);
        let mut policy = GreedyDual::new(6, |block, blocks| blocks.hits(block) as usize);
        for first in [0, 3] {
            let hashes = [0, 1, 2].map(|i| BlockHash(u128::from(first + i)));
            blocks.publish(first, crate::nodes::ROOT, &hashes);
            blocks.leave(first, 3);
        }
        (0..hits).for_each(|_| [3, 4].into_iter().for_each(|block| blocks.found(block)));
        for first in [0, 3] {
            let chain = [0, 1, 2].map(|i| BlockHandle { index: first + i, generation: 0 });
            policy.idle(&chain, &blocks);
        }
        (policy, blocks)
    }

    fn evicted(hits: u16, at_once: usize) -> Vec<u32> {
        let (mut policy, mut blocks) = chains(hits);
        let mut out = Vec::new();
        while out.len() < 6 {
            let at = out.len();
            policy.pop_chain(at_once, &blocks, &mut out);
            if let Some(parent) = blocks.remove_chain(&out[at..]) {
                policy.leaf(parent, &blocks);
            }
        }
        out
    }

    #[test]
    fn a_chain_of_equal_worth_leaves_tail_first_before_the_next_chain() {
        assert_eq!(evicted(0, 1), [2, 1, 0, 5, 4, 3]);
        assert_eq!(evicted(0, 4), evicted(0, 1), "one by one or many at once");
    }

    #[test]
    fn blocks_of_greater_worth_stay_after_the_tail_of_their_chain() {
        let (mut policy, mut blocks) = chains(1);
        policy.read(&[0, 1, 2].map(|index| BlockHandle { index, generation: 0 }), &blocks);
        policy.idle(&[0, 1, 2].map(|index| BlockHandle { index, generation: 0 }), &blocks);
        // 0-1-2 fell idle again after 5, and is of equal worth. 4 and 3 were found once: a level above.
        let first = policy.pop(&blocks).unwrap();
        let parent = blocks.remove_chain(&[first]).unwrap();
        policy.leaf(parent, &blocks);
        assert_eq!((first, parent, policy.pop(&blocks)), (5, 4, Some(2)));
    }
}
