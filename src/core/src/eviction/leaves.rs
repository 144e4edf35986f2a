//! Whole leaves of a radix tree, the one looked up least recently first: the cache of SGLang (`UnifiedRadixCache`, version 0.5, with
//! `--radix-eviction-policy lru`).
//!
//! A *node* is a run of blocks without a branch, divided where a look-up ended: SGLang looks up the prompt of each waiting request, and
//! puts a prompt into the tree when the prompt is computed, a chunk when the next step is made, and the output when the request ends.
//! Each of these is a visit ([`Eviction::visit`]): the nodes up to the end of the visit are used now, and so is the rest of a node that
//! the visit divides. A leaf without readers leaves as a whole, whatever the number of blocks needed.
//!
//! A visit takes time in the number of nodes of the path, logarithmic for each leaf, and in the number of blocks of the first part of a
//! divided node.

use std::collections::BTreeSet;

use super::Eviction;
use crate::blocks::nodes::{Nodes, ROOT};
use crate::eviction::parts::segments::Segments;
use crate::names::ids::BlockHandle;

const NONE: u32 = u32::MAX;
/// Time from one use to the next: more than a path has nodes.
const TICK: u64 = 1 << 32;

/// Blocks of a prefix without a branch, in the tree.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Last block.
    tail: u32,
    /// Node with the block before the first; [`NONE`] for none.
    above: u32,
    len: u32,
    /// Last blocks without readers.
    idle: u32,
    /// Time of the last use.
    used_at: u64,
    /// `true` until a visit ends here: blocks published after the tail belong to the node.
    is_open: bool,
    /// `true` for an idle leaf, which may be evicted.
    is_leaf: bool,
}

/// Node of a block.
#[derive(Clone, Copy, Debug)]
struct Slot {
    node: u32,
    is_idle: bool,
}

/// A radix tree over the published blocks, with the leaves in order of use.
#[derive(Debug)]
pub(super) struct Leaves {
    nodes: Segments<Node>,
    slots: Vec<Slot>,
    /// (time of the last use, node) of idle leaves.
    leaves: BTreeSet<(u64, u32)>,
    clock: u64,
}

impl Leaves {
    pub fn new(capacity: u32) -> Self {
        let slots = trunkline_pages::with_capacity(super::reserved_blocks(capacity));
        Self { nodes: Segments::new(), slots, leaves: BTreeSet::new(), clock: 0 }
    }

    /// Returns the node of a block.
    fn node_of(&self, block: u32) -> Option<u32> {
        self.slots.get(block as usize).map(|slot| slot.node).filter(|node| *node != NONE)
    }

    fn use_at(&mut self, node: u32, time: u64) {
        if self.nodes[node].is_leaf {
            self.leaves.remove(&(self.nodes[node].used_at, node));
            self.leaves.insert((time, node));
        }
        self.nodes[node].used_at = time;
    }

    fn set_leaf(&mut self, node: u32, is_leaf: bool) {
        if std::mem::replace(&mut self.nodes[node].is_leaf, is_leaf) == is_leaf {
            return;
        }
        let place = (self.nodes[node].used_at, node);
        if is_leaf {
            self.leaves.insert(place);
        } else {
            self.leaves.remove(&place);
        }
    }

    /// Counts an idle block out.
    fn wake(&mut self, block: u32, node: u32) {
        if std::mem::replace(&mut self.slots[block as usize].is_idle, false) {
            self.nodes[node].idle -= 1;
            if self.nodes[node].idle == 0 {
                self.set_leaf(node, false);
            }
        }
    }

    /// Takes a block out of its node, if the block is in one.
    fn detach(&mut self, block: u32, blocks: &Nodes) {
        let Some(node) = self.node_of(block) else { return };
        self.wake(block, node);
        self.slots[block as usize].node = NONE;
        let left = &mut self.nodes[node];
        left.len -= 1;
        if left.len == 0 {
            self.nodes.release(node);
        } else if left.tail == block {
            left.tail = blocks.parent(block).expect("a node has the blocks before its tail");
        }
    }

    /// Divides a node after a block, unless the node ends there. The second part is used now. Returns the first part.
    fn divide(&mut self, node: u32, block: u32, blocks: &Nodes) -> u32 {
        if self.nodes[node].tail == block {
            return node;
        }
        let first = Node { tail: block, len: 0, idle: 0, is_open: false, is_leaf: false, ..self.nodes[node] };
        let first = self.nodes.insert(first);
        let mut next = Some(block);
        while let Some(slot) = next.map(|block| &mut self.slots[block as usize]).filter(|slot| slot.node == node) {
            slot.node = first;
            self.nodes[first].len += 1;
            self.nodes[first].idle += u32::from(slot.is_idle);
            next = next.and_then(|block| blocks.parent(block));
        }
        let Node { len, idle, .. } = self.nodes[first];
        let rest = &mut self.nodes[node];
        (rest.len, rest.idle, rest.above) = (rest.len - len, rest.idle - idle, first);
        self.use_at(node, self.clock + 1);
        first
    }
}

impl Eviction for Leaves {
    fn reads_hits(&self) -> bool {
        false
    }

    fn evicts_whole(&self) -> bool {
        true
    }

    fn notes_visits(&self) -> bool {
        true
    }

    fn visit(&mut self, block: u32, blocks: &Nodes) {
        let Some(node) = self.node_of(block) else { return };
        let node = self.divide(node, block, blocks);
        self.nodes[node].is_open = false;
        self.clock += TICK;
        // The deepest node is used last.
        let path = std::iter::successors(Some(node), |node| Some(self.nodes[*node].above).filter(|node| *node != NONE));
        for (before, node) in path.collect::<Vec<_>>().into_iter().enumerate() {
            self.use_at(node, self.clock - before as u64);
        }
    }

    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        let first = chain.first().expect("a chain has a block").index;
        // A cache without a tree does not say which blocks leave.
        chain.iter().for_each(|block| self.detach(block.index, blocks));
        let most = chain.iter().map(|block| block.index as usize + 1).max().expect("a chain has a block");
        if self.slots.len() < most {
            self.slots.resize(most, Slot { node: NONE, is_idle: false });
        }
        let parent = blocks.parent(first);
        let above = parent.and_then(|parent| Some((self.node_of(parent)?, parent)));
        let above = above.map(|(node, parent)| self.divide(node, parent, blocks));
        let is_alone = parent.is_some_and(|parent| blocks.n_children(parent) == 1);
        self.clock += TICK;
        let grown = above.filter(|above| is_alone && self.nodes[*above].is_open);
        let node = grown.unwrap_or_else(|| {
            let above = above.unwrap_or(NONE);
            let (is_open, is_leaf) = (true, false);
            self.nodes.insert(Node { tail: first, above, len: 0, idle: 0, used_at: self.clock, is_open, is_leaf })
        });
        for block in chain {
            self.slots[block.index as usize] = Slot { node, is_idle: false };
        }
        self.nodes[node].tail = super::last(chain);
        self.nodes[node].len += chain.len() as u32;
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        if self.node_of(chain[0].index).is_none() {
            // A tier takes a block back after choosing the block to leave.
            self.published(chain, blocks);
        }
        for block in chain {
            let slot = &mut self.slots[block.index as usize];
            slot.is_idle = true;
            self.nodes[slot.node].idle += 1;
        }
        let last = super::last(chain);
        if blocks.parents[last as usize] == ROOT {
            // A tier: each block is alone, and was used until now.
            self.clock += TICK;
            self.use_at(self.slots[last as usize].node, self.clock);
        }
        if blocks.is_leaf(last) {
            self.leaf(last, blocks);
        }
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        if let Some(node) = self.node_of(block) {
            self.set_leaf(node, true);
        }
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        let mut before = NONE;
        self.clock += TICK;
        for (at, block) in chain.iter().enumerate() {
            let node = self.slots[block.index as usize].node;
            if node != before {
                self.use_at(node, self.clock + at as u64);
            }
            self.wake(block.index, node);
            before = node;
        }
        self.clock += TICK;
    }

    fn left(&mut self, chain: &[u32], blocks: &Nodes) {
        chain.iter().for_each(|block| self.detach(*block, blocks));
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.slots.clear();
        self.leaves.clear();
    }

    fn likely_next(&self) -> Option<u32> {
        self.leaves.first().map(|(_, node)| self.nodes[*node].tail)
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let mut popped = Vec::with_capacity(1);
        self.pop_chain(1, blocks, &mut popped);
        popped.pop()
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let Some((_, node)) = self.leaves.first().copied() else { return };
        let n = n.min(self.nodes[node].idle as usize);
        for _ in 0..n {
            let tail = self.nodes[node].tail;
            out.push(tail);
            self.detach(tail, blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::hash::{Namespace, extend_hashes};
    use crate::blocks::prefix::Prefix;
    use crate::cache::tree::{Parent, PrefixTree};
    use crate::eviction::REGISTRY;
    use crate::names::ids::{BlockHandle, Token};

    /// A cache of 30 blocks of one token.
    struct Cache(PrefixTree);

    impl Cache {
        fn new() -> Self {
            Self(PrefixTree::new(1, 30, REGISTRY.make("leaves", 30).unwrap()))
        }

        /// Returns the cached blocks at the beginning of a prompt, after a look-up.
        fn look_up(&mut self, prompt: &[Token]) -> Prefix {
            let (root, mut hashes, mut found) = (Namespace::default().root(), Vec::new(), Prefix::default());
            extend_hashes(&mut hashes, root, 1, prompt);
            self.0.find(root, &hashes, prompt, &mut found);
            if let Some(last) = found.last() {
                self.0.visit(last);
            }
            found
        }

        /// Returns the number of cached blocks at the beginning of a prompt, without a look-up.
        fn has(&self, prompt: &[Token]) -> u32 {
            let mut hashes = Vec::new();
            extend_hashes(&mut hashes, Namespace::default().root(), 1, prompt);
            self.0.estimate(&hashes)
        }

        /// Begins a request: looks its prompt up, and computes what is not found.
        fn begin(&mut self, prompt: &[Token]) -> Vec<BlockHandle> {
            let found = self.look_up(prompt);
            let mut table = Vec::new();
            self.0.hold(&found, &mut table);
            self.extend(&mut table, prompt);
            self.0.visit(table[table.len() - 1].index);
            table
        }

        /// Publishes the blocks of `tokens` that a table lacks.
        fn extend(&mut self, table: &mut Vec<BlockHandle>, tokens: &[Token]) {
            let (root, mut hashes) = (Namespace::default().root(), Vec::new());
            extend_hashes(&mut hashes, root, 1, tokens);
            for at in table.len()..tokens.len() {
                assert!(self.0.allocate(1, table));
                let parent = Parent::of(root, &table[..at]);
                let _ = self.0.publish(table[at], parent, hashes[at], &tokens[at..=at]);
            }
        }

        fn end(&mut self, mut table: Vec<BlockHandle>) {
            self.0.visit(table[table.len() - 1].index);
            let n = table.len();
            self.0.release(&mut table, n);
        }

        /// Takes `n` blocks for a moment, and evicts what has to leave.
        fn take(&mut self, n: u32) {
            let mut table = Vec::new();
            assert!(self.0.allocate(n, &mut table));
            self.0.release(&mut table, 0);
            self.0.check();
        }
    }

    fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
        range.collect()
    }

    #[test]
    fn the_leaf_looked_up_least_recently_leaves_whole() {
        let mut cache = Cache::new();
        let prompts = [tokens(0..10), tokens(100..110), tokens(200..210)];
        for prompt in &prompts {
            let table = cache.begin(prompt);
            cache.end(table);
        }
        cache.look_up(&prompts[0]);
        cache.take(1);
        assert_eq!(prompts.each_ref().map(|prompt| cache.has(prompt)), [10, 0, 10], "one block was needed");
        cache.take(11);
        assert_eq!(prompts.each_ref().map(|prompt| cache.has(prompt)), [10, 0, 0]);
    }

    #[test]
    fn a_look_up_divides_a_leaf_and_the_part_not_found_leaves_first() {
        let mut cache = Cache::new();
        let (long, other) = (tokens(0..12), tokens(100..110));
        for prompt in [&long, &other] {
            let table = cache.begin(prompt);
            cache.end(table);
        }
        cache.look_up(&long[..5]);
        // Both parts are used after the other prompt.
        cache.take(9);
        assert_eq!((cache.has(&long), cache.has(&other)), (12, 0));
        cache.take(19);
        assert_eq!(cache.has(&long), 5, "seven of twelve blocks");
        cache.take(26);
        assert_eq!(cache.has(&long), 0);
    }

    #[test]
    fn a_branch_divides_a_leaf_and_what_branches_share_leaves_last() {
        let mut cache = Cache::new();
        let (one, other) = (tokens(0..10), [tokens(0..4), tokens(50..58)].concat());
        let first = cache.begin(&one);
        let second = cache.begin(&other);
        cache.end(second);
        cache.end(first);
        cache.take(13);
        assert_eq!((cache.has(&one), cache.has(&other)), (10, 4), "the other one ended before");
        cache.take(21);
        assert_eq!((cache.has(&one), cache.has(&other)), (4, 4));
        cache.take(27);
        assert_eq!(cache.has(&one), 0);
    }

    #[test]
    fn the_output_is_a_leaf_behind_the_prompt() {
        let mut cache = Cache::new();
        let all = tokens(0..16);
        let mut table = cache.begin(&all[..10]);
        for n in 11..=16 {
            cache.extend(&mut table, &all[..n]);
        }
        cache.end(table);
        cache.take(15);
        assert_eq!(cache.has(&all), 10);
        cache.take(21);
        assert_eq!(cache.has(&all), 0);
    }

    #[test]
    fn what_is_read_stays() {
        let mut cache = Cache::new();
        let all = tokens(0..20);
        let table = cache.begin(&all);
        cache.end(table);
        let half = cache.look_up(&all[..8]);
        let mut table = Vec::new();
        cache.0.hold(&half, &mut table);
        cache.take(11);
        assert_eq!(cache.has(&all), 8);
        let mut most = Vec::new();
        assert!(!cache.0.allocate(23, &mut most) && cache.0.allocate(22, &mut most));
        cache.0.release(&mut most, 0);
        cache.0.release(&mut table, 8);
        cache.take(30);
        assert_eq!(cache.has(&all), 0);
    }
}
