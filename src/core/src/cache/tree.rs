//! The prefix tree (a radix tree over KV blocks): links between published blocks, readers, and eviction.
//!
//! The tree allocates no nodes. A published block *is* a node, and arrays indexed by slot hold the links and counts
//! ([`crate::blocks::nodes`]). One hash table finds a block by its fingerprint (`block_index.rs`).
//!
//! **Matching.** A chained hash names a whole prefix, so matching walks no children. Every matched block is verified: same
//! parent, same tokens; the parent of a first block is its namespace. Two prefixes with one hash can therefore cost a hit, never
//! contents. Blocks of a chain mostly lie next
//! to each other (see [`crate::blocks::block::BlockPool`]), so after a block is found by its hash, the match continues with the next
//! slot: a block there whose parent is the block before and whose tokens are the next tokens is the next block, whatever its
//! hash. The index is read again only at the end of such a run. Several runs are compared at a time (`tree/matching.rs`).
//!
//! **Readers.** A reader of a block reads all ancestors of the block, so ancestors of a held block are held, and descendants of
//! an idle block are idle. Eviction takes idle leaves only, and an idle block always has its parent in the tree.
//!
//! ```
//! use trunkline_core::blocks::hash::{Namespace, extend_hashes};
//! use trunkline_core::eviction;
//! use trunkline_core::blocks::prefix::Prefix;
//! use trunkline_core::cache::tree::{Parent, PrefixTree, Published};
//!
//! let mut tree = PrefixTree::new(4, 8, eviction::REGISTRY.make("lru", 8).unwrap());
//! let tokens: Vec<u32> = (0..8).collect();
//! let mut hashes = Vec::new();
//! let root = Namespace::default().root();
//! extend_hashes(&mut hashes, root, 4, &tokens);
//!
//! // The first request computes both blocks, publishes them and ends.
//! let mut table = Vec::new();
//! assert!(tree.allocate(2, &mut table));
//! assert_eq!(tree.publish(table[0], Parent::Root(root), hashes[0], &tokens[..4]), Published::New);
//! assert_eq!(tree.publish(table[1], Parent::Block(table[0]), hashes[1], &tokens[4..]), Published::New);
//! tree.release(&mut table, 2);
//!
//! // The second finds the idle blocks and holds them.
//! let mut found = Prefix::default();
//! tree.find(root, &hashes, &tokens, &mut found);
//! assert_eq!((found.len(), tree.count_idle(&found)), (2, 2));
//! tree.hold(&found, &mut table);
//! assert_eq!(tree.usable(), 6);
//! ```

mod ahead;
mod changing;
mod contents;
mod demotion;
mod evicting;
mod hints;
mod matching;
mod runs;
mod striking;

use self::contents::Contents;
pub use self::runs::RunRule;
use crate::blocks::block::{BlockEvent, BlockPool, BlockState, ROOM_MAX};
use crate::blocks::block_index::BlockIndex;
use crate::blocks::hash::BlockHash;
use crate::blocks::namespaces::{Namespaces, is_namespace};
use crate::blocks::nodes::{Nodes, UNPUBLISHED, for_runs};
use crate::blocks::prefetch::prefetch;
use crate::blocks::prefix::Prefix;
use crate::cache::changes::Change;
use crate::cache::classes::Classes;
use crate::cache::floors::Floors;
use crate::eviction::Eviction;
use crate::names::ids::{BlockHandle, Token};

/// Maximum number of tokens for which memory is reserved from the beginning. Untouched memory costs nothing.
const ROOM_TOKENS_MAX: usize = 1 << 26;
/// Pieces of a prefix requested from memory ahead of the one that is held.
const PIECES_AHEAD: usize = 4;
/// Maximum number of blocks of such a piece: what is requested ahead stays in the nearest caches.
const PIECE: usize = 512;
/// Blocks of a chain whose data are requested from memory all at once, at most. Those of a longer chain are read ahead in order.
const SHORT: usize = 32;

/// The place in the tree after which a block is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The beginning of a prefix, in the namespace with this root.
    Root(BlockHash),
    /// A published block.
    Block(BlockHandle),
}

impl Parent {
    /// Returns the parent of the block after `table`, whose prefixes belong to the namespace of `root`.
    pub fn of(root: BlockHash, table: &[BlockHandle]) -> Self {
        table.last().map_or(Self::Root(root), |last| Self::Block(*last))
    }

    /// Returns the block, unless the parent is a root.
    pub fn block(self) -> Option<BlockHandle> {
        match self {
            Self::Root(_) => None,
            Self::Block(block) => Some(block),
        }
    }
}

/// Outcome of publishing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The block is in the tree, and the owner reads the block.
    New,
    /// A duplicate was in the tree. The owner reads the duplicate now, and the block itself was freed.
    Merged(BlockHandle),
    /// A different block has this hash. The block stays private, and so MUST all blocks behind.
    Collided,
}

/// The published blocks, and the pool of all blocks.
#[derive(Debug)]
pub struct PrefixTree {
    block_size: usize,
    pool: BlockPool,
    /// Order of eviction.
    eviction: Classes,
    /// Blocks that tenants keep.
    floors: Floors,
    /// Published blocks by fingerprint.
    index: BlockIndex,
    nodes: Nodes,
    /// Published blocks by their tokens alone, if somebody asks for them.
    contents: Option<Box<Contents>>,
    /// Namespaces with published blocks.
    namespaces: Namespaces,
    /// `true` if hits of blocks are counted, because somebody asks for them.
    counts_hits: bool,
    /// Tokens of published blocks: `block_size` per opened slot.
    tokens: Vec<Token>,
    /// Blocks being evicted; empty between calls, kept to reuse the allocation.
    leaving: Vec<u32>,
    /// `true` if `left` is kept.
    notes_left: bool,
    /// Slots of published blocks freed since [`Self::take_left`].
    left: Vec<u32>,
    /// Blocks that entered the tree or left it since [`Self::take_changes`], if somebody asks for them.
    changes: Option<Vec<(u32, Change)>>,
    /// Fingerprints of the blocks evicted since [`Self::take_evictions`], if somebody asks for them.
    evictions: Option<Vec<u64>>,
    evicted: u64,
    collisions: u64,
    /// Blocks of prefixes held, and the runs they formed.
    taken: (u64, u64),
    /// Times a block got a second reader, or lost the second of two.
    sharing_changes: u64,
}

impl PrefixTree {
    /// Creates an empty tree over `capacity` free blocks of `block_size` tokens.
    pub fn new(block_size: u32, capacity: u32, eviction: Box<dyn Eviction>) -> Self {
        let room = capacity.min(ROOM_MAX) as usize;
        Self {
            block_size: block_size as usize,
            pool: BlockPool::new(capacity),
            floors: Floors::default(),
            counts_hits: eviction.reads_hits(),
            eviction: Classes::new(eviction),
            index: BlockIndex::new(capacity),
            nodes: Nodes::with_capacity(room),
            contents: None,
            namespaces: Namespaces::default(),
            tokens: trunkline_pages::with_capacity((room * block_size as usize).min(ROOM_TOKENS_MAX)),
            leaving: Vec::new(),
            notes_left: false,
            left: Vec::new(),
            changes: None,
            evictions: None,
            evicted: 0,
            collisions: 0,
            taken: (0, 0),
            sharing_changes: 0,
        }
    }

    /// Returns the pool of all blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Returns the number of blocks that [`Self::allocate`] can hand out: free and idle blocks.
    pub fn usable(&self) -> u32 {
        self.pool.count(BlockState::Free) + self.pool.count(BlockState::Idle)
    }

    /// Returns the number of blocks evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns a number that grows whenever a block gets a second reader, or loses the second of two.
    pub fn sharing_changes(&self) -> u64 {
        self.sharing_changes
    }

    /// Returns the number of hash collisions between different prefixes so far.
    pub fn collisions(&self) -> u64 {
        self.collisions
    }

    /// Returns the number of blocks of prefixes taken by [`Self::hold`] so far, and the number of runs of neighbouring slots that
    /// those blocks formed.
    pub fn taken(&self) -> (u64, u64) {
        self.taken
    }

    /// Counts hits of blocks from now on, also if the eviction policy does not read them.
    pub fn count_hits(&mut self) {
        self.counts_hits = true;
    }

    /// Notes the slots of published blocks that are freed from now on, for [`Self::take_left`].
    pub fn note_left(&mut self) {
        self.notes_left = true;
    }

    /// Returns the slots of published blocks freed since the last call. Some may be in use again.
    pub fn take_left(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.left)
    }

    /// Returns `true` if a block has the hash, published and not evicted since. The tokens are not compared.
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.lookup(hash).is_some()
    }

    /// Returns `true` if a block is published, and was not freed since the handle was made.
    pub fn is_published(&self, block: BlockHandle) -> bool {
        self.pool.is_current(block) && matches!(self.pool.state(block.index), BlockState::Held | BlockState::Idle)
    }

    /// Returns the number of idle blocks of a prefix just found: the decrease of [`Self::usable`] once held.
    pub fn count_idle(&self, found: &Prefix) -> u32 {
        // Readers of a block read its ancestors: idle blocks are a suffix.
        (found.len() - found.count_first(|block| self.nodes.readers[block as usize] > 0)) as u32
    }

    /// Adds a reader and a hit to each block of a prefix just found and appends the handles to `table`.
    pub fn hold(&mut self, found: &Prefix, table: &mut Vec<BlockHandle>) {
        self.hold_prefix(found, 0, self.counts_hits, table);
        self.taken.0 += found.len() as u64;
        self.taken.1 += found.runs(0).count() as u64;
    }

    /// Adds a reader to each block of a prefix just found after the blocks that `table` has already, and appends the handles. For a
    /// request that held the blocks before and was preempted: the blocks are not used once more, so no hit is counted.
    pub fn hold_again(&mut self, found: &Prefix, table: &mut Vec<BlockHandle>) {
        self.hold_prefix(found, table.len(), false, table);
    }

    fn hold_prefix(&mut self, found: &Prefix, skipped: usize, is_hit: bool, table: &mut Vec<BlockHandle>) {
        let read = found.count_first(|block| self.nodes.readers[block as usize] > 0).max(skipped.min(found.len()));
        if read > skipped && found.get(read - 1).is_some_and(|block| self.nodes.readers[block as usize] == 1) {
            self.sharing_changes += 1;
        }
        table.reserve(found.len().saturating_sub(skipped));
        let pieces = || found.runs(skipped).flat_map(|(first, len)| pieces(first, len));
        let mut ahead = pieces();
        ahead.by_ref().take(PIECES_AHEAD).for_each(|(first, len)| self.prefetch_run(first, len));
        for (first, len) in pieces() {
            if let Some((first, len)) = ahead.next() {
                self.prefetch_run(first, len);
            }
            self.nodes.enter(first, len);
            if is_hit {
                self.nodes.hit(first, len);
            }
            self.pool.handles(first, len, table);
        }
        if let Some(last) = table.last().filter(|_| is_hit) {
            self.floors.found(last.index);
        }
        let idle = found.len() - read;
        if idle > 0 {
            self.eviction.read(&table[table.len() - idle..], &self.nodes);
            found.runs(read).for_each(|(first, len)| self.pool.apply_run(first, len, BlockEvent::Found));
        }
    }

    /// Requests what [`Self::hold`] reads and writes of some neighbours.
    #[inline]
    fn prefetch_run(&self, first: u32, len: usize) {
        let range = first as usize..first as usize + len;
        prefetch(&self.nodes.readers[range]);
        self.pool.prefetch(first, len);
    }

    /// Adds a reader to one published block. The caller MUST read the block itself.
    pub fn share(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.add_reader(block);
    }

    /// Returns the number of sequences reading a published block.
    pub fn readers(&self, block: BlockHandle) -> u32 {
        self.nodes.readers[block.index as usize]
    }

    /// Marks a private block as part of a copy: no step may touch the block until [`Self::end_move`].
    pub fn begin_move(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.pool.apply(block.index, BlockEvent::CopyBegan);
    }

    /// Ends the copy of a moving block: its sequence owns the block again.
    pub fn end_move(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block));
        self.pool.apply(block.index, BlockEvent::CopyEnded);
    }

    /// Returns `true` if a published block can be found: it was not read during a flush, nor struck out.
    pub fn is_findable(&self, block: BlockHandle) -> bool {
        self.pool.state(block.index) != BlockState::Stale
    }

    /// Estimates the number of leading blocks of a prompt that are published, by hashes alone and without comparing tokens, in
    /// O(log blocks). For ranking requests; [`Self::find`] returns the exact number.
    pub fn estimate(&self, hashes: &[BlockHash]) -> u32 {
        // Ancestors of a published block are published, so what is there is a prefix. Often that is nothing of a prompt, or all.
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
                .map(|hash| hash.fingerprint()),
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
            self.index.touch(next.iter().map(|n| hashes[n - 1].fingerprint()));
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
        let evicted = self.evicted;
        self.evict(n.saturating_sub(self.pool.count(BlockState::Free)));
        self.evict_ahead(n, table);
        let allocated = self.pool.allocate(n, table);
        assert!(allocated, "the blocks counted as usable are free");
        if evicted < self.evicted {
            self.request_victims();
        }
        self.open(self.pool.opened());
        true
    }

    /// Publishes the private `block` holding `tokens` after `parent` under the chained `hash`.
    /// The owner MUST read `parent`, and the KV of the block MUST have been computed over the whole unmodified prefix.
    pub fn publish(&mut self, block: BlockHandle, parent: Parent, hash: BlockHash, tokens: &[Token]) -> Published {
        debug_assert!(self.pool.is_current(block) && self.pool.state(block.index) == BlockState::Private);
        debug_assert!(self.is_read(parent));
        debug_assert_eq!(tokens.len(), self.block_size);
        // A duplicate would have the same parent. If the parent has no child, at most another prefix has this hash, and verifying
        // tells the two apart when one of them is found.
        if parent.block().is_none() {
            self.request_to_publish(None, block, hash);
        }
        let duplicate = if self.is_continued(parent) { self.lookup(hash) } else { None };
        if let Some(duplicate) = duplicate {
            let there = match parent {
                Parent::Root(root) => self.namespaces.parent(root),
                Parent::Block(block) => Some(block.index),
            };
            if Some(self.nodes.parents[duplicate as usize]) != there || self.tokens_of(duplicate) != tokens {
                self.collisions += 1;
                return Published::Collided;
            }
            let duplicate = self.pool.handle(duplicate);
            self.add_reader(duplicate);
            return Published::Merged(duplicate);
        }
        let parent = self.enter(parent);
        self.add(block, parent, hash, tokens);
        Published::New
    }

    /// Returns the number of a place, as the parent of a block that enters the tree there.
    fn enter(&mut self, parent: Parent) -> u32 {
        match parent {
            Parent::Root(root) => self.namespaces.enter(root),
            Parent::Block(block) => block.index,
        }
    }

    fn is_read(&self, parent: Parent) -> bool {
        parent.block().is_none_or(|block| self.pool.is_current(block) && self.readers(block) > 0)
    }

    /// Frees a private block whose duplicate was found by [`Self::publish`].
    pub fn free_duplicate(&mut self, block: BlockHandle) {
        debug_assert!(self.pool.is_current(block), "a retired block stays as it is");
        self.pool.apply(block.index, BlockEvent::Merged);
    }

    /// Returns `true` if a published block may continue this place. If none does, [`Self::publish_chain`] is the faster way to publish
    /// the blocks after it. Always `true` for a root.
    pub fn is_continued(&self, parent: Parent) -> bool {
        parent.block().is_none_or(|block| self.nodes.is_continued(block.index))
    }

    /// Publishes private blocks after a block without children, so that none can have a duplicate. Otherwise equal to
    /// [`Self::publish`] for each block.
    ///
    /// # Panics
    /// Panics if [`Self::is_continued`] is `true` for the parent.
    pub fn publish_chain(&mut self, chain: &[BlockHandle], parent: Parent, hashes: &[BlockHash], tokens: &[Token]) {
        let parent = parent.block().filter(|block| !self.nodes.is_continued(block.index));
        let parent = parent.expect("the first block may have a duplicate");
        debug_assert!(chain.iter().all(|block| self.pool.is_current(*block)));
        debug_assert!(self.is_read(Parent::Block(parent)));
        debug_assert_eq!((hashes.len(), tokens.len()), (chain.len(), chain.len() * self.block_size));
        self.add_chain(chain, parent.index, hashes, tokens);
    }

    /// Adds a block after `parent`, with one reader.
    fn add(&mut self, block: BlockHandle, parent: u32, hash: BlockHash, tokens: &[Token]) {
        self.nodes.publish_one(block.index, parent, hash);
        self.tokens[block.index as usize * self.block_size..][..self.block_size].copy_from_slice(tokens);
        self.pool.apply(block.index, BlockEvent::Published);
        self.index.insert(hash.fingerprint(), block.index, |index| self.nodes.fingerprint(index));
        self.enter_contents(&[block]);
        self.note_changes(Change::Entered, [block.index]);
        self.floors.published(&[block]);
        self.eviction.published(&[block], &self.nodes);
    }

    /// Adds neighbours in prefix order, as [`Self::add`] does for each.
    fn add_chain(&mut self, chain: &[BlockHandle], mut parent: u32, hashes: &[BlockHash], tokens: &[Token]) {
        let mut at = 0;
        if (2..=SHORT).contains(&chain.len()) {
            self.request_to_add(chain, hashes);
        }
        for_runs(chain, |first, len| {
            self.nodes.publish(first, parent, &hashes[at..at + len]);
            let from = &tokens[at * self.block_size..(at + len) * self.block_size];
            self.tokens[first as usize * self.block_size..][..from.len()].copy_from_slice(from);
            self.pool.apply_run(first, len, BlockEvent::Published);
            parent = first + len as u32 - 1;
            at += len;
        });
        let named = hashes.iter().zip(chain).map(|(hash, block)| (hash.fingerprint(), block.index));
        self.index.insert_all(named, |index| self.nodes.fingerprint(index));
        self.enter_contents(chain);
        self.note_changes(Change::Entered, chain.iter().map(|block| block.index));
        self.floors.published(chain);
        self.eviction.published(chain, &self.nodes);
    }

    /// Releases all blocks of a table and empties it. The first `n_published` blocks were found or published; the rest are
    /// private.
    pub fn release(&mut self, table: &mut Vec<BlockHandle>, n_published: usize) {
        debug_assert!(
            table.iter().all(|handle| self.pool.is_current(*handle)),
            "a stale handle stood in a block table"
        );
        let (published, private) = table.split_at(n_published.min(table.len()));
        for handle in private.iter().rev() {
            self.pool.apply(handle.index, BlockEvent::Released);
        }
        if let Some(last) = published.last() {
            self.pool.end_reservation(*last);
        }
        for_runs(published, |first, len| self.nodes.leave(first, len));
        // Readers of a block read its ancestors: the blocks without readers are the last ones.
        let read = published.partition_point(|handle| self.nodes.readers[handle.index as usize] > 0);
        if published[..read].last().is_some_and(|handle| self.nodes.readers[handle.index as usize] == 1) {
            self.sharing_changes += 1;
        }
        let (chain, stale) = published[read..].split_at(self.n_findable(&published[read..]));
        self.drop_stale(stale);
        if !chain.is_empty() {
            for_runs(chain, |first, len| self.pool.apply_run(first, len, BlockEvent::ReadersLeft));
            self.eviction.idle(chain, &self.nodes);
        }
        table.clear();
    }

    /// Frees all blocks and forgets what they held, with readers or without: the contents are lost. The caller MUST empty all tables,
    /// without [`Self::release`]. Returns the number of blocks that could be found.
    pub fn clear(&mut self) -> u32 {
        let lost = self.pool.count(BlockState::Held) + self.pool.count(BlockState::Idle);
        self.evicted += u64::from(lost);
        self.sharing_changes += 1;
        self.pool.clear();
        self.nodes.clear();
        self.index.clear();
        self.contents.iter_mut().for_each(|contents| contents.clear());
        self.namespaces.clear();
        self.eviction.clear();
        self.floors.clear();
        self.left.clear();
        lost
    }

    /// Gives tenants floors of `blocks` blocks together; 0 for none. The tree MUST be empty.
    pub fn set_floors(&mut self, blocks: u32) {
        self.floors.set(blocks);
    }

    /// Sets the tenant of the blocks that are published next, for a request of it.
    pub fn publish_for(&mut self, tenant: u64) {
        self.floors.publish_for(tenant);
        self.floors.see(tenant);
    }

    /// Returns the tenant of a block that is published, or was when its demotion began.
    pub fn owner(&self, block: BlockHandle) -> u64 {
        self.floors.owner(block.index)
    }

    /// Returns the fingerprint and the tokens of a block that is published, or was when its demotion began.
    pub fn contents(&self, block: BlockHandle) -> (u64, &[Token]) {
        debug_assert!(self.pool.is_current(block));
        (self.nodes.fingerprint(block.index), self.tokens_of(block.index))
    }

    /// Returns the number of times a published block was found.
    pub fn hits(&self, block: BlockHandle) -> u32 {
        self.nodes.hits(block.index)
    }

    fn add_reader(&mut self, block: BlockHandle) {
        let readers = &mut self.nodes.readers[block.index as usize];
        *readers += 1;
        self.sharing_changes += u64::from(*readers == 2);
        if *readers == 1 {
            self.eviction.read(&[block], &self.nodes);
            self.pool.apply(block.index, BlockEvent::Found);
        }
    }

    fn lookup(&self, hash: BlockHash) -> Option<u32> {
        self.index.find(hash.fingerprint(), |index| self.nodes.fingerprint(index))
    }

    fn tokens_of(&self, index: u32) -> &[Token] {
        &self.tokens[index as usize * self.block_size..][..self.block_size]
    }

    /// Grows the arrays for slots used for the first time.
    fn open(&mut self, slots: u32) {
        let len = slots as usize;
        if self.nodes.len() < len {
            self.nodes.open(len);
            // Longer after a loss of all blocks.
            let tokens = self.tokens.len().max(len * self.block_size);
            self.tokens.resize(tokens, 0);
        }
    }

    /// Checks every count and link against the others. O(blocks).
    ///
    /// # Panics
    /// Panics on any contradiction.
    pub fn check(&self) {
        self.pool.check();
        self.eviction.check(self.pool.count(BlockState::Idle), &self.nodes);
        self.check_contents();
        let nodes = &self.nodes;
        let mut children = vec![0u32; nodes.len()];
        let mut published = 0;
        for index in 0..self.pool.opened() {
            let at = index as usize;
            match self.pool.state(index) {
                BlockState::Free | BlockState::Private | BlockState::Moving => {
                    assert_eq!(nodes.parents[at], UNPUBLISHED, "block {index} has a parent and is not published");
                    assert!(!nodes.follows(index), "block {index} is in a run and is not published");
                    continue;
                }
                BlockState::Held | BlockState::Stale => {
                    assert!(nodes.readers[at] > 0, "block {index} is held by nobody")
                }
                BlockState::Idle => assert_eq!(nodes.readers[at], 0, "block {index} is idle and read"),
            }
            assert_ne!(nodes.parents[at], UNPUBLISHED, "block {index} is published without a parent");
            let is_findable = self.pool.state(index) != BlockState::Stale;
            published += usize::from(is_findable);
            let found = self.index.find(nodes.fingerprint(index), |index| nodes.fingerprint(index));
            let same = found.is_some_and(|found| found == index || nodes.parents[found as usize] != nodes.parents[at]);
            assert!(same || !is_findable, "block {index} is lost: its hash finds {found:?}");
            let before = nodes.parent(index);
            let is_neighbour = before.is_some_and(|parent| parent + 1 == index);
            let is_struck = before.is_some_and(|parent| !is_findable && self.pool.state(parent) != BlockState::Stale);
            assert!(!is_findable || nodes.follows(index) == is_neighbour, "the run of block {index}");
            assert!(!is_struck || !nodes.follows(index), "block {index} is stale and would be found as a neighbour");
            if let Some(parent) = before {
                let is_lost = is_findable && self.pool.state(parent) == BlockState::Stale;
                assert!(!is_lost, "block {index} can be found, and the one before it cannot");
                children[parent as usize] += 1;
                assert_ne!(nodes.parents[parent as usize], UNPUBLISHED, "block {index} outlived its parent");
                assert!(
                    nodes.readers[parent as usize] >= nodes.readers[at],
                    "a reader of {index} does not read its parent"
                );
            }
        }
        self.floors.check(
            (0..self.pool.opened())
                .filter(|block| matches!(self.pool.state(*block), BlockState::Held | BlockState::Idle)),
        );
        assert_eq!(published, self.index.len(), "the index holds blocks that are not published");
        let first = nodes.parents.iter().copied().filter(|parent| is_namespace(*parent) && *parent != UNPUBLISHED);
        self.namespaces.check(first);
        assert!(nodes.children.iter().eq(&children), "child counts drifted");
    }
}

/// Returns a run of neighbouring slots in pieces: first slot and length of each.
fn pieces(first: u32, len: usize) -> impl Iterator<Item = (u32, usize)> {
    (0..len).step_by(PIECE).map(move |at| (first + at as u32, PIECE.min(len - at)))
}

#[cfg(test)]
mod evict_tests;
#[cfg(test)]
mod tests;
