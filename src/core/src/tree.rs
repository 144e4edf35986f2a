//! The prefix tree: which published block continues which, who reads it, and which goes first.
//!
//! The tree has no allocated nodes. A published block *is* a node, and everything known of it stands in arrays indexed by
//! the block's index: its chained hash, its tokens, and one small record with its parent and the number of its readers. One
//! hash table finds a block by its hash; it holds 4-byte indices only.
//!
//! **Matching.** A chained hash names a whole prefix, so no walk over children is needed. Blocks of a chain mostly lie next
//! to each other (see [`crate::block::BlockPool`]), so after a block is found in the table, the ones after it are looked for
//! right behind it, by comparing hashes in two arrays; the table is probed again only where such a run ends. Every block that
//! is taken is verified: same parent, same tokens. Two prefixes of one hash can therefore cost a hit, never contents.
//!
//! **Readers.** A reader of a block reads all its ancestors, so the ancestors of a held block are held, and the
//! descendants of an idle block are idle. Eviction takes idle leaves only; an idle block always has its parent in the tree.

use hashbrown::HashTable;

use crate::block::{BlockPool, BlockState};
use crate::eviction::{BlockView, Eviction};
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};

/// The parent of a first block, and the hash of no block.
const ROOT: u32 = u32::MAX;
const NO_HASH: BlockHash = BlockHash(0);

/// What became of a block that was to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is in the tree, and its owner reads it.
    New,
    /// An equal block was there. The owner reads that one now, and its own block was freed.
    Merged(BlockHandle),
    /// A different block has this hash. The block stays private, and so MUST all that follow it.
    Collided,
}

/// What the tree knows of a block beside its hash and its tokens: all that one look at a block needs, in one place.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The block before it, or [`ROOT`].
    parent: u32,
    /// Published blocks that continue it.
    children: u32,
    /// Sequences that read it.
    readers: u32,
    /// Blocks before it in its prefix.
    depth: u32,
    /// Times it was found since it was published.
    hits: u16,
}

/// Published blocks, and the pool they come from.
#[derive(Debug)]
pub struct PrefixTree {
    block_size: usize,
    pool: BlockPool,
    eviction: Box<dyn Eviction>,
    /// Indices of published blocks by hash. Never iterated.
    by_hash: HashTable<u32>,
    hashes: Vec<BlockHash>,
    nodes: Vec<Node>,
    /// `block_size` tokens per opened slot.
    tokens: Vec<Token>,
    evicted: u64,
    collisions: u64,
}

impl PrefixTree {
    /// An empty tree over `capacity` free blocks.
    pub fn new(block_size: u32, capacity: u32, eviction: Box<dyn Eviction>) -> Self {
        Self {
            block_size: block_size as usize,
            pool: BlockPool::new(capacity),
            eviction,
            by_hash: HashTable::new(),
            hashes: Vec::new(),
            nodes: Vec::new(),
            tokens: Vec::new(),
            evicted: 0,
            collisions: 0,
        }
    }

    /// The pool, to look at.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Blocks that [`Self::allocate`] can give: free and idle ones.
    pub fn usable(&self) -> u32 {
        self.pool.count(BlockState::Free) + self.pool.count(BlockState::Idle)
    }

    /// Blocks evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Hashes that were equal for different prefixes so far.
    pub fn collisions(&self) -> u64 {
        self.collisions
    }

    /// Finds the longest published prefix of `tokens`, whose blocks have the chained `hashes`, and puts its blocks into
    /// `found`. Pins nothing and changes nothing: whoever wants to keep them calls [`Self::hold`] before anything else.
    pub fn find(&mut self, hashes: &[BlockHash], tokens: &[Token], found: &mut Vec<u32>) {
        found.clear();
        let n = hashes.len().min(tokens.len() / self.block_size);
        let mut parent = ROOT;
        while found.len() < n {
            let at = found.len();
            let Some(first) = self.lookup(hashes[at]) else { break };
            // As many of the next blocks as lie right after it, by their hashes alone.
            let run = self.hashes[first as usize..].iter().zip(&hashes[at..n]).take_while(|(a, b)| a == b).count();
            let verified = self.verified(first, run, parent, &tokens[at * self.block_size..][..run * self.block_size]);
            found.extend(first..first + verified as u32);
            if verified < run {
                self.collisions += 1;
                break;
            }
            parent = first + run as u32 - 1;
        }
    }

    /// How many of the `run` blocks from `first` on continue each other, beginning after `parent`, and hold these tokens.
    fn verified(&self, first: u32, run: usize, parent: u32, tokens: &[Token]) -> usize {
        let at = first as usize;
        let mut links = self.nodes[at + 1..at + run].iter().zip(first..);
        let linked = self.nodes[at].parent == parent && links.all(|(node, before)| node.parent == before);
        if linked && self.tokens[at * self.block_size..][..tokens.len()] == *tokens {
            return run;
        }
        // Rare: a collision somewhere in the run. Find out where.
        let mut before = parent;
        for (i, block) in tokens.chunks_exact(self.block_size).enumerate() {
            let index = first + i as u32;
            if self.nodes[index as usize].parent != before || self.tokens_of(index) != block {
                return i;
            }
            before = index;
        }
        run
    }

    /// How many of these blocks are idle, that is, would stop being usable if they were held.
    pub fn count_idle(&self, blocks: &[u32]) -> u32 {
        // Readers of a block read its ancestors: idle blocks are a suffix.
        blocks.iter().rev().take_while(|index| self.nodes[**index as usize].readers == 0).count() as u32
    }

    /// Adds a reader to each block of a prefix just found and appends their handles to `table`.
    pub fn hold(&mut self, blocks: &[u32], table: &mut Vec<BlockHandle>) {
        table.reserve(blocks.len());
        for index in blocks {
            self.add_reader(*index);
            let hits = &mut self.nodes[*index as usize].hits;
            *hits = hits.saturating_add(1);
            table.push(self.pool.handle(*index));
        }
    }

    /// Adds a reader to one published block: the owner of the table that `block` stands in lets another read it too.
    pub fn share(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.add_reader(block.index);
    }

    /// How many read a published block.
    pub fn readers(&self, block: BlockHandle) -> u32 {
        self.nodes[block.index as usize].readers
    }

    /// Marks a private block as part of a copy: no step may touch it until [`Self::end_move`].
    pub fn begin_move(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.pool.set(block.index, BlockState::Moving);
    }

    /// Ends that: the block is private again, or free.
    pub fn end_move(&mut self, block: BlockHandle, to: BlockState) {
        debug_assert!(self.pool.is_current(block) && self.pool.state(block.index) == BlockState::Moving);
        self.pool.set(block.index, to);
    }

    /// About how many leading blocks of a prompt are published: by their hashes alone, without looking at tokens, in
    /// O(log blocks). For ranking requests; [`Self::find`] knows.
    pub fn estimate(&self, hashes: &[BlockHash]) -> u32 {
        // Ancestors of a published block are published, so what is there is a prefix. Most are short: gallop, then halve.
        let has = |at: usize| self.lookup(hashes[at]).is_some();
        let mut low = 0;
        let mut high = 1;
        while high <= hashes.len() && has(high - 1) {
            low = high;
            high *= 2;
        }
        high = high.min(hashes.len() + 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if has(middle - 1) { low = middle } else { high = middle }
        }
        low as u32
    }

    /// Appends `n` private blocks to `table`, evicting idle blocks if too few are free. Returns `false`, and changes
    /// nothing, if fewer than `n` are usable.
    #[must_use]
    pub fn allocate(&mut self, n: u32, table: &mut Vec<BlockHandle>) -> bool {
        if self.usable() < n {
            return false;
        }
        while self.pool.count(BlockState::Free) < n {
            self.evict_one();
        }
        for _ in 0..n {
            let index = self.pool.allocate().expect("as many are free as were counted");
            self.open(index);
            table.push(self.pool.handle(index));
        }
        true
    }

    /// Publishes the private `block` holding `tokens` after `parent` (`None`: at the root) under the chained `hash`.
    /// The owner MUST read `parent`, and the KV of the block MUST have been computed over the whole unmodified prefix.
    pub fn publish(
        &mut self,
        block: BlockHandle,
        parent: Option<BlockHandle>,
        hash: BlockHash,
        tokens: &[Token],
    ) -> Published {
        debug_assert!(self.pool.is_current(block) && self.pool.state(block.index) == BlockState::Private);
        debug_assert!(
            parent.is_none_or(|parent| self.pool.is_current(parent) && self.nodes[parent.index as usize].readers > 0)
        );
        debug_assert_eq!(tokens.len(), self.block_size);
        let parent = parent.map_or(ROOT, |parent| parent.index);
        if let Some(twin) = self.lookup(hash) {
            if self.nodes[twin as usize].parent != parent || self.tokens_of(twin) != tokens {
                self.collisions += 1;
                return Published::Collided;
            }
            self.add_reader(twin);
            self.pool.set(block.index, BlockState::Free);
            return Published::Merged(self.pool.handle(twin));
        }
        let at = block.index as usize;
        self.hashes[at] = hash;
        let mut depth = 0;
        if parent != ROOT {
            let parent = &mut self.nodes[parent as usize];
            parent.children += 1;
            depth = parent.depth + 1;
        }
        self.nodes[at] = Node { parent, children: 0, readers: 1, depth, hits: 0 };
        self.tokens[at * self.block_size..][..self.block_size].copy_from_slice(tokens);
        let hashes = &self.hashes;
        self.by_hash.insert_unique(table_hash(hash), block.index, |index| table_hash(hashes[*index as usize]));
        self.pool.set(block.index, BlockState::Held);
        self.eviction.published(&self.view(block.index));
        Published::New
    }

    /// Takes back a whole block table, of which the first `n_published` blocks were found or published and the rest are
    /// private, and empties it.
    pub fn release(&mut self, table: &mut Vec<BlockHandle>, n_published: usize) {
        while let Some(handle) = table.pop() {
            debug_assert!(self.pool.is_current(handle), "a stale handle {handle:?} stood in a block table");
            let index = handle.index;
            if table.len() >= n_published {
                self.pool.set(index, BlockState::Free);
                continue;
            }
            let readers = &mut self.nodes[index as usize].readers;
            *readers -= 1;
            if *readers == 0 {
                self.pool.set(index, BlockState::Idle);
                let view = self.view(index);
                self.eviction.idle(&view);
                if self.nodes[index as usize].children == 0 {
                    self.eviction.leaf(&view);
                }
            }
        }
    }

    /// Evicts every idle block. Returns how many there were.
    pub fn flush(&mut self) -> u32 {
        let n = self.pool.count(BlockState::Idle);
        while self.pool.count(BlockState::Idle) > 0 {
            self.evict_one();
        }
        n
    }

    fn evict_one(&mut self) {
        let index = self.eviction.pop().expect("some block is idle, so some leaf is");
        let at = index as usize;
        assert!(
            self.nodes[at].children == 0 && self.nodes[at].readers == 0,
            "the policy evicts block {index}, which is no idle leaf"
        );
        let hashes = &self.hashes;
        self.by_hash
            .find_entry(table_hash(hashes[at]), |other| *other == index)
            .expect("a published block is in the table")
            .remove();
        self.hashes[at] = NO_HASH;
        self.pool.set(index, BlockState::Free);
        self.evicted += 1;
        let parent = self.nodes[at].parent;
        if parent != ROOT {
            self.nodes[parent as usize].children -= 1;
            if self.nodes[parent as usize].children == 0 && self.nodes[parent as usize].readers == 0 {
                self.eviction.leaf(&self.view(parent));
            }
        }
    }

    fn view(&self, index: u32) -> BlockView {
        let at = index as usize;
        let parent = (self.nodes[at].parent != ROOT).then_some(self.nodes[at].parent);
        BlockView {
            index,
            parent,
            parent_hits: parent.map_or(0, |parent| u32::from(self.nodes[parent as usize].hits)),
            depth: self.nodes[at].depth,
            hash: table_hash(self.hashes[at]),
            hits: u32::from(self.nodes[at].hits),
        }
    }

    fn add_reader(&mut self, index: u32) {
        let readers = &mut self.nodes[index as usize].readers;
        *readers += 1;
        if *readers == 1 {
            self.eviction.read(&self.view(index));
            self.pool.set(index, BlockState::Held);
        }
    }

    fn lookup(&self, hash: BlockHash) -> Option<u32> {
        self.by_hash.find(table_hash(hash), |index| self.hashes[*index as usize] == hash).copied()
    }

    fn tokens_of(&self, index: u32) -> &[Token] {
        &self.tokens[index as usize * self.block_size..][..self.block_size]
    }

    /// Makes room in the arrays for a slot that is used for the first time.
    fn open(&mut self, index: u32) {
        let at = index as usize;
        if self.hashes.len() <= at {
            self.hashes.resize(at + 1, NO_HASH);
            self.nodes.resize(at + 1, Node { parent: ROOT, children: 0, readers: 0, depth: 0, hits: 0 });
            self.tokens.resize((at + 1) * self.block_size, 0);
        }
    }

    /// Panics unless every count and link is what the others say. O(blocks).
    pub fn check(&self) {
        self.pool.check();
        let mut children = vec![0u32; self.hashes.len()];
        let mut published = 0;
        for index in 0..self.pool.opened() {
            let at = index as usize;
            match self.pool.state(index) {
                BlockState::Free | BlockState::Private | BlockState::Moving => {
                    assert_eq!(self.hashes[at], NO_HASH, "block {index} has a hash and is not published");
                    continue;
                }
                BlockState::Held => assert!(self.nodes[at].readers > 0, "block {index} is held by nobody"),
                BlockState::Idle => assert_eq!(self.nodes[at].readers, 0, "block {index} is idle and read"),
            }
            published += 1;
            assert_eq!(self.lookup(self.hashes[at]), Some(index), "block {index} cannot be found");
            let parent = self.nodes[at].parent;
            if parent != ROOT {
                children[parent as usize] += 1;
                assert_ne!(self.hashes[parent as usize], NO_HASH, "block {index} outlived its parent");
                assert!(
                    self.nodes[parent as usize].readers >= self.nodes[at].readers,
                    "a reader of {index} does not read its parent"
                );
            }
        }
        assert_eq!(published, self.by_hash.len(), "the table holds blocks that are not published");
        let counted = self.nodes.iter().map(|node| node.children);
        assert!(counted.eq(children), "child counts drifted");
    }
}

/// The part of a block hash the table uses. The chained hash is mixed well already.
fn table_hash(hash: BlockHash) -> u64 {
    hash.0 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::by_name;
    use crate::hash::{Namespace, chain, extend_hashes};
    use proptest::prelude::*;

    const SIZE: u32 = 4;

    /// The contract, as literally as possible: published prefixes with readers and the time they were last left.
    #[derive(Default)]
    struct Model {
        /// (prefix in tokens, readers, left at); `left at` orders idle prefixes.
        published: Vec<(Vec<Token>, u32, u64)>,
        private: u32,
        clock: u64,
    }

    impl Model {
        fn longest(&self, tokens: &[Token]) -> usize {
            let has = |n: usize| self.published.iter().any(|(prefix, ..)| prefix == &tokens[..n * SIZE as usize]);
            (1..=tokens.len() / SIZE as usize).take_while(|n| has(*n)).count()
        }

        fn evict(&mut self) {
            let oldest = self
                .published
                .iter()
                .enumerate()
                .filter(|(_, (_, readers, _))| *readers == 0)
                .min_by_key(|(_, (_, _, left))| *left)
                .map(|(at, _)| at)
                .expect("something is idle");
            let (gone, ..) = self.published.remove(oldest);
            assert!(
                !self.published.iter().any(|(prefix, ..)| prefix.len() > gone.len() && prefix.starts_with(&gone)),
                "least recently used must be a leaf"
            );
        }
    }

    /// A sequence that has taken blocks for its tokens.
    struct Reader {
        tokens: Vec<Token>,
        hashes: Vec<BlockHash>,
        table: Vec<BlockHandle>,
        published: usize,
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// Admit a sequence: a family of prefixes, a branch of it, and a length.
        Admit(u32, u32, usize),
        /// Publish one more block of the n-th reader.
        Publish(usize),
        /// The n-th reader leaves.
        Leave(usize),
        Flush,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0u32..3, 0u32..3, 1usize..28).prop_map(|(family, branch, len)| Op::Admit(family, branch, len)),
            8 => (0usize..8).prop_map(Op::Publish),
            3 => (0usize..8).prop_map(Op::Leave),
            1 => Just(Op::Flush),
        ];
        prop::collection::vec(op, 1..120)
    }

    fn prompt(family: u32, branch: u32, len: usize) -> Vec<Token> {
        (0..len as u32).map(|at| if at < 10 { family * 100 + at } else { 1000 + branch * 100 + at }).collect()
    }

    proptest! {
        #[test]
        fn the_tree_does_what_the_model_does(ops in ops(), capacity in 4u32..40) {
            let root = Namespace::default().root();
            let mut tree = PrefixTree::new(SIZE, capacity, by_name("lru", capacity).unwrap());
            let mut model = Model::default();
            let mut readers: Vec<Reader> = Vec::new();
            for op in ops {
                match op {
                    Op::Admit(family, branch, len) => {
                        let tokens = prompt(family, branch, len);
                        let mut hashes = Vec::new();
                        extend_hashes(&mut hashes, root, SIZE, &tokens);
                        let mut found = Vec::new();
                        tree.find(&hashes, &tokens, &mut found);
                        let expected = model.longest(&tokens);
                        prop_assert_eq!(found.len(), expected);
                        prop_assert_eq!(tree.estimate(&hashes) as usize, expected);
                        let held_idle = tree.count_idle(&found);
                        let model_idle = (1..=expected)
                            .filter(|n| model.published.iter().any(|(p, r, _)| p == &tokens[..n * SIZE as usize] && *r == 0))
                            .count();
                        prop_assert_eq!(held_idle as usize, model_idle);
                        let needed = len.div_ceil(SIZE as usize) - expected;
                        let idle = model.published.iter().filter(|(_, r, _)| *r == 0).count();
                        let free = capacity as usize - model.private as usize - model.published.len();
                        prop_assert_eq!(tree.usable() as usize, idle + free);
                        let mut table = Vec::new();
                        if idle + free - model_idle < needed {
                            // Not enough: nothing may change.
                            prop_assert!(tree.usable() - held_idle < needed as u32);
                            continue;
                        }
                        tree.hold(&found, &mut table);
                        prop_assert!(tree.allocate(needed as u32, &mut table));
                        for (prefix, r, _) in &mut model.published {
                            *r += u32::from(tokens[..expected * SIZE as usize].starts_with(prefix));
                        }
                        for _ in free..needed {
                            model.evict();
                        }
                        model.private += needed as u32;
                        readers.push(Reader { tokens, hashes, table, published: expected });
                    }
                    Op::Publish(n) => {
                        let Some(reader) = readers.get_mut(n) else { continue };
                        let at = reader.published;
                        if at == reader.hashes.len() {
                            continue;
                        }
                        let tokens = &reader.tokens[at * SIZE as usize..][..SIZE as usize];
                        let parent = at.checked_sub(1).map(|at| reader.table[at]);
                        let prefix = &reader.tokens[..(at + 1) * SIZE as usize];
                        let twin = model.published.iter_mut().find(|(p, ..)| p == prefix);
                        match tree.publish(reader.table[at], parent, reader.hashes[at], tokens) {
                            Published::New => {
                                prop_assert!(twin.is_none());
                                model.published.push((prefix.to_vec(), 1, 0));
                            }
                            Published::Merged(handle) => {
                                prop_assert!(tree.pool().is_current(handle));
                                twin.expect("merged with a published block").1 += 1;
                                reader.table[at] = handle;
                            }
                            Published::Collided => prop_assert!(false, "no collision can happen here"),
                        }
                        model.private -= 1;
                        reader.published += 1;
                    }
                    Op::Leave(n) => {
                        if n >= readers.len() {
                            continue;
                        }
                        let mut reader = readers.remove(n);
                        model.private -= (reader.table.len() - reader.published) as u32;
                        tree.release(&mut reader.table, reader.published);
                        for blocks in (1..=reader.published).rev() {
                            let prefix = &reader.tokens[..blocks * SIZE as usize];
                            let entry = model.published.iter_mut().find(|(p, ..)| p == prefix).expect("still there");
                            entry.1 -= 1;
                            model.clock += 1;
                            entry.2 = model.clock;
                        }
                    }
                    Op::Flush => {
                        let idle = model.published.iter().filter(|(_, r, _)| *r == 0).count();
                        prop_assert_eq!(tree.flush() as usize, idle);
                        model.published.retain(|(_, r, _)| *r > 0);
                    }
                }
                tree.check();
                for reader in &readers {
                    prop_assert!(reader.table.iter().all(|handle| tree.pool().is_current(*handle)));
                }
            }
        }
    }

    #[test]
    fn every_policy_gives_back_every_idle_block_leaf_first() {
        let root = Namespace::default().root();
        for name in crate::eviction::names() {
            let mut tree = PrefixTree::new(SIZE, 60, by_name(name, 60).unwrap());
            for round in 0..40u32 {
                let tokens = prompt(round % 3, round % 5, 8 + (round as usize * 7) % 33);
                let mut hashes = Vec::new();
                extend_hashes(&mut hashes, root, SIZE, &tokens);
                let (mut found, mut table) = (Vec::new(), Vec::new());
                tree.find(&hashes, &tokens, &mut found);
                tree.hold(&found, &mut table);
                assert!(tree.allocate((hashes.len() - found.len()) as u32, &mut table), "{name}: all others are idle");
                for at in found.len()..hashes.len() {
                    let block = &tokens[at * SIZE as usize..][..SIZE as usize];
                    let parent = at.checked_sub(1).map(|at| table[at]);
                    assert_eq!(tree.publish(table[at], parent, hashes[at], block), Published::New);
                }
                tree.release(&mut table, hashes.len());
                // Evicting asserts that the policy names an idle leaf.
                tree.check();
            }
            assert!(tree.evicted() > 0, "{name} was not asked");
            let idle = tree.usable() - tree.pool().count(BlockState::Free);
            assert_eq!(tree.flush(), idle);
            tree.check();
        }
    }

    #[test]
    fn a_hash_of_another_prefix_is_a_miss_and_cannot_be_published_over() {
        let root = Namespace::default().root();
        let tokens: Vec<Token> = (0..SIZE).collect();
        let forged = chain(root, &tokens);
        let mut tree = PrefixTree::new(SIZE, 4, by_name("lru", 4).unwrap());
        let mut table = Vec::new();
        assert!(tree.allocate(2, &mut table));
        assert_eq!(tree.publish(table[0], None, forged, &tokens), Published::New);
        let other = vec![9; SIZE as usize];
        let mut found = Vec::new();
        tree.find(&[forged], &other, &mut found);
        assert!(found.is_empty(), "the hash is there, the tokens are not");
        assert_eq!(tree.publish(table[1], None, forged, &other), Published::Collided);
        assert_eq!(tree.publish(table[1], Some(table[0]), forged, &tokens), Published::Collided, "other parent");
        assert_eq!(tree.collisions(), 3);
        tree.release(&mut table, 1);
        tree.check();
    }
}
