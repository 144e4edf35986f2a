//! The prefix tree: which published block continues which, who reads it, and which goes first.
//!
//! The tree has no node objects. A published block *is* a node, and everything known of it stands in arrays indexed by
//! the block's index: its chained hash, its parent, its tokens, the number of its readers. One hash table finds a block by its
//! hash; it holds 4-byte indices only.
//!
//! **Matching.** A chained hash names a whole prefix, so no walk over children is needed. Blocks of a chain mostly lie next to
//! each other (see [`crate::block::BlockPool`]), so the block after `b` is first looked for at `b + 1`, by comparing one hash; only
//! when that fails is the table probed. Every block that is taken is verified: same parent, same tokens. Two prefixes of one
//! hash can therefore cost a hit, never contents.
//!
//! **Readers.** A reader of a block reads all its ancestors, so the ancestors of a held block are held, and the
//! descendants of an idle block are idle. Eviction takes idle leaves only; an idle block always has its parent in the tree.

use hashbrown::HashTable;

use crate::block::{BlockPool, BlockState};
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};
use crate::lru::IdleList;

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

/// Published blocks, and the pool they come from.
#[derive(Debug)]
pub struct PrefixTree {
    block_size: usize,
    pool: BlockPool,
    idle: IdleList,
    /// Indices of published blocks by hash. Never iterated.
    by_hash: HashTable<u32>,
    hashes: Vec<BlockHash>,
    parents: Vec<u32>,
    children: Vec<u32>,
    readers: Vec<u32>,
    /// `block_size` tokens per opened slot.
    tokens: Vec<Token>,
    evicted: u64,
    collisions: u64,
}

impl PrefixTree {
    /// An empty tree over `capacity` free blocks.
    pub fn new(block_size: u32, capacity: u32) -> Self {
        Self {
            block_size: block_size as usize,
            pool: BlockPool::new(capacity),
            idle: IdleList::default(),
            by_hash: HashTable::new(),
            hashes: Vec::new(),
            parents: Vec::new(),
            children: Vec::new(),
            readers: Vec::new(),
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
        let mut parent = ROOT;
        for (hash, block) in hashes.iter().zip(tokens.chunks_exact(self.block_size)) {
            // ROOT + 1 wraps to 0: the guess for a first block is merely a guess as well.
            let guess = parent.wrapping_add(1);
            let index = match self.hashes.get(guess as usize) {
                Some(known) if known == hash => guess,
                _ => match self.lookup(*hash) {
                    Some(index) => index,
                    None => break,
                },
            };
            if self.parents[index as usize] != parent || self.tokens_of(index) != block {
                self.collisions += 1;
                break;
            }
            found.push(index);
            parent = index;
        }
    }

    /// How many of these blocks are idle, that is, would stop being usable if they were held.
    pub fn count_idle(&self, blocks: &[u32]) -> u32 {
        // Readers of a block read its ancestors: idle blocks are a suffix.
        blocks.iter().rev().take_while(|index| self.readers[**index as usize] == 0).count() as u32
    }

    /// Adds a reader to each block of a prefix just found and appends their handles to `table`.
    pub fn hold(&mut self, blocks: &[u32], table: &mut Vec<BlockHandle>) {
        table.reserve(blocks.len());
        for index in blocks {
            self.add_reader(*index);
            table.push(self.pool.handle(*index));
        }
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
            parent.is_none_or(|parent| self.pool.is_current(parent) && self.readers[parent.index as usize] > 0)
        );
        debug_assert_eq!(tokens.len(), self.block_size);
        let parent = parent.map_or(ROOT, |parent| parent.index);
        if let Some(twin) = self.lookup(hash) {
            if self.parents[twin as usize] != parent || self.tokens_of(twin) != tokens {
                self.collisions += 1;
                return Published::Collided;
            }
            self.add_reader(twin);
            self.pool.set(block.index, BlockState::Free);
            return Published::Merged(self.pool.handle(twin));
        }
        let at = block.index as usize;
        self.hashes[at] = hash;
        self.parents[at] = parent;
        self.readers[at] = 1;
        self.tokens[at * self.block_size..][..self.block_size].copy_from_slice(tokens);
        if parent != ROOT {
            self.children[parent as usize] += 1;
        }
        let hashes = &self.hashes;
        self.by_hash.insert_unique(table_hash(hash), block.index, |index| table_hash(hashes[*index as usize]));
        self.pool.set(block.index, BlockState::Held);
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
            let readers = &mut self.readers[index as usize];
            *readers -= 1;
            if *readers == 0 {
                self.pool.set(index, BlockState::Idle);
                self.idle.push_back(index);
            }
        }
    }

    /// Evicts every idle block. Returns how many there were.
    pub fn flush(&mut self) -> u32 {
        let n = self.idle.len();
        while !self.idle.is_empty() {
            self.evict_one();
        }
        n
    }

    fn evict_one(&mut self) {
        let index = self.idle.front().expect("the caller counted idle blocks");
        let at = index as usize;
        debug_assert_eq!(self.children[at], 0, "the front of the idle list is a leaf");
        self.idle.remove(index);
        let hashes = &self.hashes;
        self.by_hash
            .find_entry(table_hash(hashes[at]), |other| *other == index)
            .expect("a published block is in the table")
            .remove();
        if self.parents[at] != ROOT {
            self.children[self.parents[at] as usize] -= 1;
        }
        self.hashes[at] = NO_HASH;
        self.pool.set(index, BlockState::Free);
        self.evicted += 1;
    }

    fn add_reader(&mut self, index: u32) {
        let readers = &mut self.readers[index as usize];
        *readers += 1;
        if *readers == 1 {
            self.idle.remove(index);
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
            self.parents.resize(at + 1, ROOT);
            self.children.resize(at + 1, 0);
            self.readers.resize(at + 1, 0);
            self.tokens.resize((at + 1) * self.block_size, 0);
        }
    }

    /// Panics unless every count and link is what the others say. O(blocks).
    pub fn check(&self) {
        self.pool.check();
        assert_eq!(self.idle.len(), self.pool.count(BlockState::Idle), "idle list and idle blocks differ");
        let mut seen_idle = vec![false; self.hashes.len()];
        for index in self.idle.iter() {
            assert_eq!(self.pool.state(index), BlockState::Idle, "a block in the idle list is not idle");
            let parent = self.parents[index as usize];
            assert!(parent == ROOT || !seen_idle[parent as usize], "block {index} would be evicted after its parent");
            seen_idle[index as usize] = true;
        }
        let mut children = vec![0u32; self.hashes.len()];
        let mut published = 0;
        for index in 0..self.pool.opened() {
            let at = index as usize;
            match self.pool.state(index) {
                BlockState::Free | BlockState::Private => {
                    assert_eq!(self.hashes[at], NO_HASH, "block {index} has a hash and is not published");
                    continue;
                }
                BlockState::Held => assert!(self.readers[at] > 0, "block {index} is held by nobody"),
                BlockState::Idle => assert_eq!(self.readers[at], 0, "block {index} is idle and read"),
            }
            published += 1;
            assert_eq!(self.lookup(self.hashes[at]), Some(index), "block {index} cannot be found");
            let parent = self.parents[at];
            if parent != ROOT {
                children[parent as usize] += 1;
                assert_ne!(self.hashes[parent as usize], NO_HASH, "block {index} outlived its parent");
                assert!(
                    self.readers[parent as usize] >= self.readers[at],
                    "a reader of {index} does not read its parent"
                );
            }
        }
        assert_eq!(published, self.by_hash.len(), "the table holds blocks that are not published");
        assert_eq!(children, self.children, "child counts drifted");
    }
}

/// The part of a block hash the table uses. The chained hash is mixed well already.
fn table_hash(hash: BlockHash) -> u64 {
    hash.0 as u64
}
