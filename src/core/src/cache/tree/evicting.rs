//! Eviction: blocks without readers leave the tree, in the order of the policy.

use super::{PrefixTree, SHORT};
use crate::blocks::block::BlockState;
use crate::blocks::hash::BlockHash;
use crate::blocks::namespaces::is_namespace;
use crate::cache::changes::Change;
use crate::cache::floors::CHANCES;
use crate::names::ids::BlockHandle;

impl PrefixTree {
    /// Evicts up to `n` idle blocks, as many as there are.
    pub fn evict_idle(&mut self, n: u32) {
        self.evict(n.min(self.pool.count(BlockState::Idle)));
    }

    /// Evicts every idle block. Returns the number of blocks evicted.
    pub fn flush(&mut self) -> u32 {
        let n = self.pool.count(BlockState::Idle);
        self.evict(n);
        n
    }

    /// Returns `true` if the eviction policy reads [`Self::visit`].
    pub fn notes_visits(&self) -> bool {
        self.eviction.notes_visits()
    }

    /// Reports a published block as the end of a look-up, of a prompt or of an answer: see [`crate::eviction::Eviction::visit`].
    pub fn visit(&mut self, block: u32) {
        self.eviction.visit(block, &self.nodes);
    }

    /// Reports the block with a hash, if published, as [`Self::visit`] does. The tokens are not compared.
    pub fn visit_hash(&mut self, hash: BlockHash) {
        if let Some(block) = self.lookup(hash) {
            self.visit(block);
        }
    }

    /// Evicts `n` blocks. At least `n` MUST be idle.
    pub(super) fn evict(&mut self, n: u32) {
        if n == 0 {
            return;
        }
        let mut left = n;
        while left > 0 {
            let asked = match self.eviction.evicts_whole() {
                true => self.pool.count(BlockState::Idle) - self.leaving.len() as u32,
                false => left,
            };
            left = left.saturating_sub(self.pop_chain(asked));
        }
        self.drop_leaving();
    }

    /// Evicts blocks so that the next `n` blocks of a table can be neighbours, as far as the pool keeps blocks free for that.
    pub(super) fn evict_ahead(&mut self, n: u32, table: &[BlockHandle]) {
        let lacking = self.pool.lacking(n, table);
        let mut left = lacking.min(self.pool.count(BlockState::Idle));
        if left == 0 || self.eviction.evicts_whole() {
            return;
        }
        let run = self.pool.run_length(table.len() as u32 + n);
        while left > 0 {
            left -= self.pop_chain(1);
            // The blocks of a chain leave last to first: down to the beginning of a run.
            let last = *self.leaving.last().expect("a block was popped");
            let more = left.min(last % run);
            if more > 0 {
                left -= self.pop_chain(more);
            }
            self.drop_leaving();
            if self.pool.lacking(n, table) == 0 {
                return;
            }
        }
    }

    /// Takes one to `n` victims of the eviction policy out of the tree, to `leaving`. At least `n` blocks MUST be idle, with those
    /// leaving. Returns the number of blocks taken.
    fn pop_chain(&mut self, n: u32) -> u32 {
        let mut leaving = std::mem::take(&mut self.leaving);
        let at = leaving.len();
        self.pop_victim(n as usize, &mut leaving);
        assert!((1..=n as usize).contains(&(leaving.len() - at)), "if a block is idle, so is a leaf");
        if leaving.len() <= SHORT {
            leaving[at..].iter().for_each(|block| self.index.prefetch(self.nodes.fingerprint(*block)));
        }
        self.remove_chain(&leaving[at..]);
        let popped = (leaving.len() - at) as u32;
        self.leaving = leaving;
        popped
    }

    /// Takes the next victim of the eviction policy out of it, one to `n` blocks, and appends it to `out`: one that no floor keeps, unless
    /// all those tried are kept.
    pub(super) fn pop_victim(&mut self, n: usize, out: &mut Vec<u32>) {
        let at = out.len();
        for _ in 0..CHANCES {
            let is_policys = self.eviction.pops_from_policy();
            self.eviction.pop_chain(n, &self.nodes, out);
            let going = if is_policys { self.floors.lets_go(&out[at..]) } else { out.len() - at };
            self.put_back(&out[at + going..]);
            out.truncate(at + going);
            if going > 0 {
                return;
            }
        }
        self.eviction.pop_chain(n, &self.nodes, out);
    }

    /// Gives the policy blocks of a victim back, each the parent of the one before, as if a request had just used them with the blocks before
    /// them.
    fn put_back(&mut self, victim: &[u32]) {
        let Some(first) = victim.last() else { return };
        let mut path = self.idle_before(*first);
        if !path.is_empty() {
            self.eviction.read(&path, &self.nodes);
        }
        path.extend(victim.iter().rev().map(|block| self.pool.handle(*block)));
        self.eviction.idle(&path, &self.nodes);
    }

    /// Takes a leaf and ancestors, each the parent of the block before, out of the tree.
    pub(super) fn remove_chain(&mut self, chain: &[u32]) {
        self.eviction.left(chain, &self.nodes);
        self.floors.left(chain);
        self.leave_namespace(chain[chain.len() - 1]);
        if let Some(parent) = self.nodes.remove_chain(chain) {
            self.eviction.leaf(parent, &self.nodes);
        }
    }

    /// Counts a block that is about to leave the tree out of its namespace, if the block is the first of a prefix.
    pub(super) fn leave_namespace(&mut self, block: u32) {
        let parent = self.nodes.parents[block as usize];
        if is_namespace(parent) {
            self.namespaces.leave(parent);
        }
    }

    /// Frees the blocks in `leaving`.
    fn drop_leaving(&mut self) {
        self.evicted += self.leaving.len() as u64;
        if let Some(evictions) = &mut self.evictions {
            evictions.extend(self.leaving.iter().map(|block| self.nodes.fingerprint(*block)));
        }
        if let Some(changes) = &mut self.changes {
            changes.extend(self.leaving.iter().map(|block| (*block, Change::Left)));
        }
        if self.notes_left {
            self.left.extend_from_slice(&self.leaving);
        }
        if let Some(contents) = &mut self.contents {
            self.leaving.iter().for_each(|block| contents.remove(*block));
        }
        self.pool.evict(&self.leaving);
        if self.index.clear_if_all_leave(self.leaving.len()) {
            return self.leaving.clear();
        }
        self.index.remove_all(self.leaving.iter().map(|block| (self.nodes.fingerprint(*block), *block)));
        self.leaving.clear();
    }
}
