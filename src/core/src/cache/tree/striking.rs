//! Blocks struck out of the tree: nobody finds them any more, and their readers keep them.

use std::cmp::Reverse;

use super::PrefixTree;
use crate::blocks::block::{BlockEvent, BlockState};
use crate::cache::changes::Change;
use crate::names::ids::BlockHandle;

impl PrefixTree {
    /// Strikes out all blocks with readers. A stale block is freed when the last reader leaves.
    pub fn strike_out_held(&mut self) {
        for block in 0..self.pool.opened() {
            if self.pool.state(block) == BlockState::Held {
                self.strike(block, BlockEvent::Flushed);
            }
        }
    }

    /// Strikes out published blocks with all that can be found behind them, and evicts those without readers.
    pub fn strike_out(&mut self, mut blocks: Vec<u32>) {
        blocks.sort_unstable_by_key(|block| (Reverse(self.nodes.depth(*block)), *block));
        let before = self.take_idle_before(&blocks);
        // A parent is read before its child.
        for block in blocks.iter().rev().copied() {
            if self.pool.state(block) == BlockState::Idle {
                self.eviction.read(&[self.pool.handle(block)], &self.nodes);
                self.pool.apply(block, BlockEvent::Found);
            }
        }
        for block in blocks {
            self.strike(block, BlockEvent::StruckOut);
            // The walk of a match goes on to the next slot without a look at the index.
            self.nodes.leave_run(block);
            if self.nodes.readers[block as usize] == 0 {
                self.drop_stale(&[self.pool.handle(block)]);
            }
        }
        before.iter().for_each(|block| self.pool.apply(block.index, BlockEvent::ReadersLeft));
        if !before.is_empty() {
            self.eviction.idle(&before, &self.nodes);
        }
    }

    /// Takes the idle blocks before the first of `blocks`, deepest first, out of the eviction policy, which never sees a block read without those
    /// before it. They are held afterwards. Returns them, the first of the prefix first.
    fn take_idle_before(&mut self, blocks: &[u32]) -> Vec<BlockHandle> {
        let before = blocks.last().map_or(Vec::new(), |first| self.idle_before(*first));
        if !before.is_empty() {
            self.eviction.read(&before, &self.nodes);
        }
        before.iter().for_each(|block| self.pool.apply(block.index, BlockEvent::Found));
        before
    }

    /// Returns the idle blocks before a block, the first of the prefix first.
    pub(super) fn idle_before(&self, block: u32) -> Vec<BlockHandle> {
        let all = std::iter::successors(self.nodes.parent(block), |block| self.nodes.parent(*block));
        let idle = all.take_while(|block| self.pool.state(*block) == BlockState::Idle);
        let mut before: Vec<BlockHandle> = idle.map(|block| self.pool.handle(block)).collect();
        before.reverse();
        before
    }

    /// Frees stale blocks without readers, each the parent of the next.
    pub(super) fn drop_stale(&mut self, chain: &[BlockHandle]) {
        if self.notes_left {
            self.left.extend(chain.iter().map(|block| block.index));
        }
        for block in chain.iter().rev() {
            self.leave_namespace(block.index);
            let parent = self.nodes.remove(block.index);
            self.pool.apply(block.index, BlockEvent::ReadersLeft);
            if let Some(parent) = parent.filter(|parent| self.pool.state(*parent) == BlockState::Idle) {
                self.eviction.leaf(parent, &self.nodes);
            }
        }
    }

    /// Returns the number of leading blocks of a prefix that can be found: blocks behind a stale one are stale.
    pub fn n_findable(&self, prefix: &[BlockHandle]) -> usize {
        match prefix.last() {
            Some(last) if !self.is_findable(*last) => prefix.partition_point(|block| self.is_findable(*block)),
            _ => prefix.len(),
        }
    }

    fn strike(&mut self, block: u32, event: BlockEvent) {
        self.index.remove(self.nodes.fingerprint(block), block);
        self.leave_contents(&[block]);
        self.note_changes(Change::Left, [block]);
        self.eviction.left(&[block], &self.nodes);
        self.floors.left(&[block]);
        self.pool.apply(block, event);
    }

    /// Returns a block and all that can be found behind it. O(blocks of the device).
    pub fn blocks_from(&self, first: BlockHandle) -> Vec<u32> {
        let mut is_behind: Vec<Option<bool>> = vec![None; self.pool.opened() as usize];
        is_behind[first.index as usize] = Some(true);
        let (mut found, mut path) = (vec![first.index], Vec::new());
        for block in 0..self.pool.opened() {
            if !matches!(self.pool.state(block), BlockState::Held | BlockState::Idle) {
                continue;
            }
            let mut at = Some(block);
            let is = loop {
                let Some(block) = at else { break false };
                if let Some(is) = is_behind[block as usize] {
                    break is;
                }
                path.push(block);
                at = self.nodes.parent(block);
            };
            if is {
                found.extend(&path);
            }
            path.drain(..).for_each(|block| is_behind[block as usize] = Some(is));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parent, Published};
    use super::*;
    use crate::blocks::hash::{BlockHash, Namespace, extend_hashes};
    use crate::blocks::prefix::Prefix;
    use crate::eviction::REGISTRY;
    use crate::names::ids::Token;

    const SIZE: usize = 4;

    fn hashes(tokens: &[Token]) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        extend_hashes(&mut hashes, Namespace::default().root(), SIZE as u32, tokens);
        hashes
    }

    /// Publishes the blocks of a prompt that continue a table.
    fn publish(tree: &mut PrefixTree, tokens: &[Token], table: &mut Vec<BlockHandle>) {
        let from = table.len();
        assert!(tree.allocate((tokens.len() / SIZE - from) as u32, table));
        for at in from..table.len() {
            let parent = Parent::of(Namespace::default().root(), &table[..at]);
            let published = tree.publish(table[at], parent, hashes(tokens)[at], &tokens[at * SIZE..][..SIZE]);
            assert_eq!(published, Published::New);
        }
    }

    fn find(tree: &mut PrefixTree, tokens: &[Token]) -> Prefix {
        let mut found = Prefix::default();
        tree.find(Namespace::default().root(), &hashes(tokens), tokens, &mut found);
        found
    }

    #[test]
    fn nobody_finds_what_was_struck_out_and_the_blocks_before_stay_cached() {
        for policy in ["lru", "s3fifo", "leaves", "arc", "cost"] {
            let mut tree = PrefixTree::new(SIZE as u32, 16, REGISTRY.make(policy, 16).unwrap());
            let one: Vec<Token> = (0..6 * SIZE as u32).collect();
            let mut other = one.clone();
            other[3 * SIZE..].iter_mut().for_each(|token| *token += 100);
            let mut table = Vec::new();
            publish(&mut tree, &one, &mut table);
            // One reader of four blocks, and one that leaves the prefix behind three, and leaves a block idle.
            let (mut reader, mut branch) = (Vec::new(), Vec::new());
            let found = find(&mut tree, &one[..4 * SIZE]);
            tree.hold(&found, &mut reader);
            let found = find(&mut tree, &other);
            tree.hold(&found, &mut branch);
            assert_eq!((reader.len(), branch.len()), (4, 3));
            publish(&mut tree, &other[..4 * SIZE], &mut branch);
            tree.release(&mut branch, 4);
            let blocks = tree.blocks_from(table[2]);
            assert_eq!(blocks.len(), 5, "four of the first, and the idle one");
            tree.strike_out(blocks);
            tree.check();
            assert_eq!((find(&mut tree, &one).len(), find(&mut tree, &other).len()), (2, 2));
            assert_eq!((tree.n_findable(&table), tree.n_findable(&reader), tree.n_findable(&[])), (2, 2, 0));
            // The neighbours in the next slots are not taken for the continuation, and others may take their place.
            let mut again = Vec::new();
            let found = find(&mut tree, &one);
            tree.hold(&found, &mut again);
            publish(&mut tree, &one, &mut again);
            assert_eq!(find(&mut tree, &one).len(), 6);
            tree.check();
            tree.release(&mut table, 6);
            tree.check();
            tree.release(&mut reader, 4);
            tree.release(&mut again, 6);
            tree.check();
            assert_eq!((tree.pool().count(BlockState::Stale), tree.pool().count(BlockState::Idle)), (0, 6), "{policy}");
            assert_eq!(tree.flush(), 6);
        }
    }

    #[test]
    fn the_idle_blocks_before_struck_ones_are_evicted_in_their_turn() {
        for policy in ["lru", "lfu", "s3fifo", "leaves", "arc", "cost"] {
            let mut tree = PrefixTree::new(SIZE as u32, 16, REGISTRY.make(policy, 16).unwrap());
            let tokens: Vec<Token> = (0..3 * SIZE as u32).collect();
            let mut table = Vec::new();
            publish(&mut tree, &tokens, &mut table);
            let last = table[2];
            tree.release(&mut table, 3);
            let blocks = tree.blocks_from(last);
            tree.strike_out(blocks);
            tree.check();
            assert_eq!((find(&mut tree, &tokens).len(), tree.usable()), (2, 16), "{policy}");
            // Each block is evicted once.
            assert!(tree.allocate(16, &mut table), "{policy}");
            assert_eq!((tree.evicted(), find(&mut tree, &tokens).len()), (2, 0), "{policy}");
            tree.check();
        }
    }
}
