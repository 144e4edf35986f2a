//! The prefix tree: which published block continues which, who reads it, and which goes first.
//!
//! The tree has no allocated nodes. A published block *is* a node, and everything known of it stands in arrays indexed by
//! the block's slot (`tree/nodes.rs`). One hash table finds a block by its hash (`tree/index.rs`).
//!
//! **Matching.** A chained hash names a whole prefix, so no walk over children is needed. Every block that is taken is
//! verified: same parent, same tokens. Two prefixes of one hash can therefore cost a hit, never contents. Blocks of a chain
//! mostly lie next to each other (see [`crate::block::BlockPool`]), so after a block is found by its hash, the ones after it
//! are looked for right behind it: a block there whose parent is the one before it and whose tokens are the next ones is the
//! next one, whatever its hash. The index is asked again only where such a run ends.
//!
//! **Readers.** A reader of a block reads all its ancestors, so the ancestors of a held block are held, and the
//! descendants of an idle block are idle. Eviction takes idle leaves only; an idle block always has its parent in the tree.

pub(crate) mod index;
mod nodes;

use crate::block::{BlockEvent, BlockPool, BlockState, ROOM_MAX};
use crate::eviction::Eviction;
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};

use index::Index;
use nodes::{ROOT, UNPUBLISHED, ascending, name};

pub use nodes::Nodes;

/// Tokens for which there is room from the beginning. Memory that is never touched costs nothing.
const ROOM_TOKENS_MAX: usize = 1 << 26;
/// Tokens compared at one go.
const COMPARED_TOKENS: usize = 2048;
/// Blocks that the index takes in or gives up at one go.
const INDEXED_AT_ONCE: usize = 16;

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
    eviction: Box<dyn Eviction>,
    /// Published blocks by hash.
    index: Index,
    nodes: Nodes,
    /// `block_size` tokens per opened slot.
    tokens: Vec<Token>,
    /// Blocks that are being evicted; empty between calls but for its memory.
    leaving: Vec<u32>,
    evicted: u64,
    collisions: u64,
}

impl PrefixTree {
    /// An empty tree over `capacity` free blocks.
    pub fn new(block_size: u32, capacity: u32, eviction: Box<dyn Eviction>) -> Self {
        let room = capacity.min(ROOM_MAX) as usize;
        Self {
            block_size: block_size as usize,
            pool: BlockPool::new(capacity),
            eviction,
            index: Index::new(capacity),
            nodes: Nodes::with_room(room),
            tokens: Vec::with_capacity((room * block_size as usize).min(ROOM_TOKENS_MAX)),
            leaving: Vec::new(),
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
            let run = self.verified(first, parent, &tokens[at * self.block_size..n * self.block_size]);
            if run == 0 {
                self.collisions += 1;
                break;
            }
            parent = first + run as u32 - 1;
            found.extend(first..=parent);
        }
    }

    /// How many blocks from slot `first` on continue each other, beginning after `parent`, and hold these tokens.
    fn verified(&self, first: u32, parent: u32, tokens: &[Token]) -> usize {
        let at = first as usize;
        if self.nodes.parents[at] != parent {
            return 0;
        }
        let n = (tokens.len() / self.block_size).min(self.nodes.len() - at);
        let parents = &self.nodes.parents[at + 1..at + n];
        let there = &self.tokens[at * self.block_size..];
        let stride = (COMPARED_TOKENS / self.block_size).max(1);
        let mut run = 0;
        while run < n {
            // The first is linked: it was compared above, or with the last of the stride before.
            let linked = 1 + ascending(stride.min(n - 1 - run), first + run as u32, |i| parents[run + i]);
            let len = linked.min(stride);
            let range = run * self.block_size..(run + len) * self.block_size;
            if there[range.clone()] != tokens[range.clone()] {
                return run + alike(&there[range.clone()], &tokens[range], self.block_size);
            }
            run += len;
            if linked <= stride {
                break;
            }
        }
        run
    }

    /// How many of these blocks are idle, that is, would stop being usable if they were held.
    pub fn count_idle(&self, blocks: &[u32]) -> u32 {
        // Readers of a block read its ancestors: idle blocks are a suffix.
        (blocks.len() - blocks.partition_point(|index| self.nodes.readers[*index as usize] > 0)) as u32
    }

    /// Adds a reader to each block of a prefix just found and appends their handles to `table`.
    pub fn hold(&mut self, blocks: &[u32], table: &mut Vec<BlockHandle>) {
        let idle = self.count_idle(blocks) as usize;
        table.reserve(blocks.len());
        let mut at = 0;
        while at < blocks.len() {
            let first = blocks[at];
            let len = ascending(blocks.len() - at, first, |i| blocks[at + i]);
            self.nodes.hit(first, len);
            self.pool.handles(first, len, table);
            at += len;
        }
        let begin = table.len() - idle;
        self.wake(&table[begin..]);
    }

    /// Idle blocks of one prefix, first to last, have a reader now.
    fn wake(&mut self, chain: &[BlockHandle]) {
        if chain.is_empty() {
            return;
        }
        self.eviction.read(chain, &self.nodes);
        for_runs(chain, |first, len| self.pool.apply_run(first, len, BlockEvent::Found));
    }

    /// Adds a reader to one published block: the owner of the table that `block` stands in lets another read it too.
    pub fn share(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.add_reader(block);
    }

    /// How many read a published block.
    pub fn readers(&self, block: BlockHandle) -> u32 {
        self.nodes.readers[block.index as usize]
    }

    /// Marks a private block as part of a copy: no step may touch it until [`Self::end_move`].
    pub fn begin_move(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.pool.apply(block.index, BlockEvent::CopyBegan);
    }

    /// Ends the copy of a moving block: its sequence owns the block again.
    pub fn end_move(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.pool.apply(block.index, BlockEvent::CopyEnded);
    }

    /// Frees a block whose demotion ended or was given up.
    pub fn end_demotion(&mut self, block: u32) {
        debug_assert_eq!(self.pool.state(block), BlockState::Moving);
        self.pool.apply(block, BlockEvent::Released);
    }

    /// About how many leading blocks of a prompt are published: by their hashes alone, without looking at tokens, in
    /// O(log blocks). For ranking requests; [`Self::find`] knows.
    pub fn estimate(&self, hashes: &[BlockHash]) -> u32 {
        // Ancestors of a published block are published, so what is there is a prefix. Often it is none of a prompt or all.
        let has = |n: usize| self.lookup(hashes[n - 1]).is_some();
        if hashes.is_empty() || !has(1) {
            return 0;
        }
        if has(hashes.len()) {
            return hashes.len() as u32;
        }
        // Gallop, then halve. The probes of a gallop are known from the beginning.
        self.index.touch(
            std::iter::successors(Some(2), |n| Some(n * 2))
                .map_while(|n: usize| hashes.get(n - 1))
                .map(|hash| name(*hash)),
        );
        let mut low = 1;
        let mut high = 2;
        while high < hashes.len() && has(high) {
            low = high;
            high *= 2;
        }
        high = high.min(hashes.len());
        while low + 1 < high {
            let middle = low.midpoint(high);
            let next = [low.midpoint(middle), middle, middle.midpoint(high)];
            self.index.touch(next.iter().map(|n| name(hashes[n - 1])));
            if has(middle) { low = middle } else { high = middle }
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
        self.evict(n.saturating_sub(self.pool.count(BlockState::Free)));
        let allocated = self.pool.allocate(n, table);
        assert!(allocated, "as many are free as were counted");
        self.open(self.pool.opened());
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
        debug_assert!(parent.is_none_or(|parent| self.pool.is_current(parent) && self.readers(parent) > 0));
        debug_assert_eq!(tokens.len(), self.block_size);
        let parent = parent.map_or(ROOT, |parent| parent.index);
        // A twin would continue the same block. Where nothing does, at most another prefix has this hash, and verifying tells them
        // apart when it is found.
        let twin = if self.nodes.is_continued(parent) { self.lookup(hash) } else { None };
        if let Some(twin) = twin {
            if self.nodes.parents[twin as usize] != parent || self.tokens_of(twin) != tokens {
                self.collisions += 1;
                return Published::Collided;
            }
            let twin = self.pool.handle(twin);
            self.add_reader(twin);
            self.pool.apply(block.index, BlockEvent::Merged);
            return Published::Merged(twin);
        }
        self.add_chain(&[block], parent, &[hash], tokens);
        Published::New
    }

    /// Whether a published block may continue this one. If none does, [`Self::publish_chain`] is the quicker way to publish what follows.
    pub fn is_continued(&self, block: Option<BlockHandle>) -> bool {
        self.nodes.is_continued(block.map_or(ROOT, |block| block.index))
    }

    /// Publishes private blocks that follow a block that no other continues, so that none of them can have a twin. Else as
    /// [`Self::publish`] for each.
    pub fn publish_chain(
        &mut self,
        chain: &[BlockHandle],
        parent: Option<BlockHandle>,
        hashes: &[BlockHash],
        tokens: &[Token],
    ) {
        assert!(!self.is_continued(parent), "the first may have a twin");
        debug_assert!(chain.iter().all(|block| self.pool.is_current(*block)));
        debug_assert!(parent.is_none_or(|parent| self.pool.is_current(parent) && self.readers(parent) > 0));
        debug_assert_eq!((hashes.len(), tokens.len()), (chain.len(), chain.len() * self.block_size));
        self.add_chain(chain, parent.map_or(ROOT, |parent| parent.index), hashes, tokens);
    }

    fn add_chain(&mut self, chain: &[BlockHandle], mut parent: u32, hashes: &[BlockHash], tokens: &[Token]) {
        let mut at = 0;
        for_runs(chain, |first, len| {
            self.nodes.publish(first, parent, &hashes[at..at + len]);
            let from = &tokens[at * self.block_size..(at + len) * self.block_size];
            self.tokens[first as usize * self.block_size..][..from.len()].copy_from_slice(from);
            self.pool.apply_run(first, len, BlockEvent::Published);
            parent = first + len as u32 - 1;
            at += len;
        });
        for (blocks, hashes) in chain.chunks(INDEXED_AT_ONCE).zip(hashes.chunks(INDEXED_AT_ONCE)) {
            // Where the index has room for them is all over the memory: bring it here at once.
            if blocks.len() > 1 {
                self.index.touch(hashes.iter().map(|hash| name(*hash)));
            }
            for (block, hash) in blocks.iter().zip(hashes) {
                self.index.insert(name(*hash), block.index, |index| self.nodes.hash(index));
            }
        }
        self.eviction.published(chain, &self.nodes);
    }

    /// Takes back a whole block table, of which the first `n_published` blocks were found or published and the rest are
    /// private, and empties it.
    pub fn release(&mut self, table: &mut Vec<BlockHandle>, n_published: usize) {
        debug_assert!(
            table.iter().all(|handle| self.pool.is_current(*handle)),
            "a stale handle stood in a block table"
        );
        let (published, private) = table.split_at(n_published.min(table.len()));
        for handle in private.iter().rev() {
            self.pool.apply(handle.index, BlockEvent::Released);
        }
        for_runs(published, |first, len| self.nodes.leave(first, len));
        // Readers of a block read its ancestors: those that nobody reads now are the last ones.
        let read = published.partition_point(|handle| self.nodes.readers[handle.index as usize] > 0);
        let chain = &published[read..];
        if !chain.is_empty() {
            for_runs(chain, |first, len| self.pool.apply_run(first, len, BlockEvent::ReadersLeft));
            self.eviction.idle(chain, &self.nodes);
        }
        table.clear();
    }

    /// Evicts every idle block. Returns how many there were.
    pub fn flush(&mut self) -> u32 {
        let n = self.pool.count(BlockState::Idle);
        self.evict(n);
        n
    }

    /// Evicts `n` blocks, which are there.
    fn evict(&mut self, n: u32) {
        self.evicted += u64::from(n);
        let mut leaving = std::mem::take(&mut self.leaving);
        while leaving.len() < n as usize {
            let at = leaving.len();
            self.eviction.pop_chain(n as usize - at, &self.nodes, &mut leaving);
            assert!((at + 1..=n as usize).contains(&leaving.len()), "some block is idle, so some leaf is");
            if let Some(parent) = self.nodes.remove_chain(&leaving[at..]) {
                self.eviction.leaf(parent, &self.nodes);
            }
        }
        self.pool.evict(&leaving);
        for blocks in leaving.chunks(INDEXED_AT_ONCE) {
            // Where the index has them is all over the memory: bring it here at once, then strike them out.
            self.index.touch(blocks.iter().map(|block| self.nodes.hash(*block)));
            for block in blocks {
                self.index.remove(self.nodes.hash(*block), *block);
            }
        }
        leaving.clear();
        self.leaving = leaving;
    }

    /// Takes the idle leaf that the policy names out of the tree, to be copied elsewhere and then freed with
    /// [`Self::end_demotion`]. `None` if nothing is idle.
    pub fn begin_demotion(&mut self) -> Option<BlockHandle> {
        if self.pool.count(BlockState::Idle) == 0 {
            return None;
        }
        let block = self.eviction.pop(&self.nodes).expect("some block is idle, so some leaf is");
        if let Some(parent) = self.nodes.remove_chain(&[block]) {
            self.eviction.leaf(parent, &self.nodes);
        }
        self.index.remove(self.nodes.hash(block), block);
        self.pool.apply(block, BlockEvent::DemotionBegan);
        self.evicted += 1;
        Some(self.pool.handle(block))
    }

    /// Part of the hash and the tokens of a block that is published, or was when its demotion began.
    pub fn contents(&self, block: BlockHandle) -> (u64, &[Token]) {
        debug_assert!(self.pool.is_current(block));
        (self.nodes.hash(block.index), self.tokens_of(block.index))
    }

    /// Times a published block was found.
    pub fn hits(&self, block: BlockHandle) -> u32 {
        self.nodes.hits(block.index)
    }

    /// The part of a hash that blocks are found by in tiers.
    pub fn name(hash: BlockHash) -> u64 {
        name(hash)
    }

    fn add_reader(&mut self, block: BlockHandle) {
        let readers = &mut self.nodes.readers[block.index as usize];
        *readers += 1;
        if *readers == 1 {
            self.wake(&[block]);
        }
    }

    fn lookup(&self, hash: BlockHash) -> Option<u32> {
        self.index.find(name(hash), |index| self.nodes.hash(index))
    }

    fn tokens_of(&self, index: u32) -> &[Token] {
        &self.tokens[index as usize * self.block_size..][..self.block_size]
    }

    /// Makes room in the arrays for slots that are used for the first time.
    fn open(&mut self, slots: u32) {
        let len = slots as usize;
        if self.nodes.len() < len {
            self.nodes.open(len);
            self.tokens.resize(len * self.block_size, 0);
        }
    }

    /// Panics unless every count and link is what the others say. O(blocks).
    pub fn check(&self) {
        self.pool.check();
        let nodes = &self.nodes;
        let mut children = vec![0u32; nodes.len()];
        let mut published = 0;
        for index in 0..self.pool.opened() {
            let at = index as usize;
            match self.pool.state(index) {
                BlockState::Free | BlockState::Private | BlockState::Moving => {
                    assert_eq!(nodes.parents[at], UNPUBLISHED, "block {index} has a parent and is not published");
                    continue;
                }
                BlockState::Held => assert!(nodes.readers[at] > 0, "block {index} is held by nobody"),
                BlockState::Idle => assert_eq!(nodes.readers[at], 0, "block {index} is idle and read"),
            }
            published += 1;
            assert_ne!(nodes.parents[at], UNPUBLISHED, "block {index} is published without a parent");
            let found = self.index.find(nodes.hash(index), |index| nodes.hash(index));
            let same = found.is_some_and(|found| found == index || nodes.parents[found as usize] != nodes.parents[at]);
            assert!(same, "block {index} is lost: its hash finds {found:?}");
            if let Some(parent) = nodes.parent(index) {
                children[parent as usize] += 1;
                assert_ne!(nodes.parents[parent as usize], UNPUBLISHED, "block {index} outlived its parent");
                assert!(
                    nodes.readers[parent as usize] >= nodes.readers[at],
                    "a reader of {index} does not read its parent"
                );
            }
        }
        assert_eq!(published, self.index.len(), "the index holds blocks that are not published");
        assert!(nodes.children.iter().eq(&children), "child counts drifted");
    }
}

/// Calls `each` for every stretch of blocks that lie one after another: with the first, and how many they are.
fn for_runs(chain: &[BlockHandle], mut each: impl FnMut(u32, usize)) {
    let mut rest = chain;
    while let Some(first) = rest.first() {
        let len = ascending(rest.len(), first.index, |i| rest[i].index);
        each(first.index, len);
        rest = &rest[len..];
    }
}

/// How many leading blocks of two stretches of tokens, which differ, are the same.
fn alike(a: &[Token], b: &[Token], block_size: usize) -> usize {
    a.chunks_exact(block_size).zip(b.chunks_exact(block_size)).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
