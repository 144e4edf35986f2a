//! The cache as the events tell it: the source of snapshots.
//!
//! The index applies every batch before it is published, so it equals what a subscriber has who applied all batches up to the same number. It
//! keeps the block before a cached one also when that block is cached nowhere any more: a subscriber that computes hashes of its own can name a block
//! only behind the block before it.

use std::collections::HashMap;

use trunkline_core::{CacheEvent, Place, RemovedBlocks, StoredBlocks, Token};

/// Blocks by hash, with where they are.
#[derive(Debug, Default)]
pub struct Index {
    blocks: HashMap<u128, Block, ahash::RandomState>,
    /// Blocks in all places.
    live: usize,
    tokens: usize,
}

#[derive(Debug, Default)]
struct Block {
    root: u128,
    parent: Option<u128>,
    tokens: Box<[Token]>,
    /// Places and layer groups of the block; none if it is only kept for those behind.
    places: Vec<(Place, u8)>,
    /// Blocks of the index behind this one.
    children: u32,
}

impl Index {
    /// Returns the number of cached blocks, each counted in every place and layer group.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns `true` if no block is cached.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the tokens of all blocks together.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the root of each block's namespace.
    pub fn roots(&self) -> impl Iterator<Item = u128> + '_ {
        self.blocks.values().map(|block| block.root)
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &CacheEvent) {
        match event {
            CacheEvent::Stored(stored) => self.store(stored),
            CacheEvent::Removed(RemovedBlocks { place, group, hashes }) => {
                hashes.iter().for_each(|hash| self.remove(*hash, (*place, *group)));
            }
            CacheEvent::Cleared => self.clear_device(),
        }
    }

    fn store(&mut self, stored: &StoredBlocks) {
        let size = stored.tokens.len() / stored.hashes.len().max(1);
        let mut before = stored.parent;
        for (at, hash) in stored.hashes.iter().enumerate() {
            let block = self.blocks.entry(*hash).or_default();
            let is_new_here = !block.places.contains(&(stored.place, stored.group));
            if is_new_here {
                block.places.push((stored.place, stored.group));
                self.live += 1;
            }
            block.root = stored.root;
            if size > 0 && block.tokens.is_empty() {
                block.tokens = stored.tokens[at * size..][..size].into();
                self.tokens += size;
                block.parent = before;
                if let Some(before) = before {
                    self.blocks.entry(before).or_default().children += 1;
                }
            }
            before = (size > 0).then_some(*hash);
        }
    }

    fn remove(&mut self, hash: u128, from: (Place, u8)) {
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        if let Some(at) = block.places.iter().position(|place| *place == from) {
            block.places.swap_remove(at);
            self.live -= 1;
            self.forget(hash);
        }
    }

    /// Forgets a block that is cached nowhere and has none behind, then the blocks before it likewise.
    fn forget(&mut self, hash: u128) {
        let mut next = Some(hash);
        while let Some(hash) = next {
            let is_over = |block: &&Block| block.places.is_empty() && block.children == 0;
            if self.blocks.get(&hash).filter(is_over).is_none() {
                return;
            }
            let block = self.blocks.remove(&hash).unwrap_or_default();
            self.tokens -= block.tokens.len();
            next = block.parent;
            if let Some(parent) = next.and_then(|parent| self.blocks.get_mut(&parent)) {
                parent.children -= 1;
            }
        }
    }

    fn clear_device(&mut self) {
        let mut emptied = Vec::new();
        for (hash, block) in &mut self.blocks {
            let before = block.places.len();
            block.places.retain(|(place, _)| *place != Place::Device);
            self.live -= before - block.places.len();
            if block.places.is_empty() {
                emptied.push(*hash);
            }
        }
        emptied.into_iter().for_each(|hash| self.forget(hash));
    }

    /// Returns events that give this index to one who holds nothing, parents first: each block in one of its places with its tokens, then its other
    /// places, then the removal of those that are cached nowhere.
    pub fn snapshot(&self) -> Vec<CacheEvent> {
        let mut events = Listed::default();
        let order = self.in_order();
        let mut dead = Vec::new();
        for hash in &order {
            let block = &self.blocks[hash];
            // The block before a known one may never have been announced, as on a disk that kept the end of a prefix alone.
            if block.places.is_empty() && block.tokens.is_empty() {
                continue;
            }
            let first = block.places.first().copied().unwrap_or((Place::Device, 0));
            if block.places.is_empty() {
                dead.push(*hash);
            }
            events.store(*hash, block, first);
        }
        for hash in &order {
            let block = &self.blocks[hash];
            block.places.iter().skip(1).for_each(|place| events.store(*hash, block, *place));
        }
        dead.into_iter().rev().for_each(|hash| events.remove(hash));
        events.0
    }

    /// Returns the hashes, each behind that of the block before it.
    fn in_order(&self) -> Vec<u128> {
        let mut children: HashMap<u128, Vec<u128>, ahash::RandomState> = HashMap::default();
        let mut stack = Vec::new();
        for (hash, block) in &self.blocks {
            match block.parent.filter(|parent| self.blocks.contains_key(parent)) {
                Some(parent) => children.entry(parent).or_default().push(*hash),
                None => stack.push(*hash),
            }
        }
        let mut order = Vec::with_capacity(self.blocks.len());
        while let Some(hash) = stack.pop() {
            order.push(hash);
            stack.extend(children.remove(&hash).unwrap_or_default());
        }
        order
    }

    /// Returns the events that lead from this index to the cache that `cached` stores into nothing.
    pub fn changes_to(&self, cached: &[CacheEvent]) -> Vec<CacheEvent> {
        let mut to = Self::default();
        cached.iter().for_each(|event| to.apply(event));
        let mut events = Listed::default();
        for hash in self.in_order().iter().rev() {
            let is_gone = |place: &&(Place, u8)| to.blocks.get(hash).is_none_or(|block| !block.places.contains(place));
            self.blocks[hash].places.iter().filter(is_gone).for_each(|place| events.remove_from(*hash, *place));
        }
        for hash in to.in_order() {
            let is_new =
                |place: &&(Place, u8)| self.blocks.get(&hash).is_none_or(|block| !block.places.contains(place));
            let block = &to.blocks[&hash];
            block.places.iter().filter(is_new).for_each(|place| events.store(hash, block, *place));
        }
        events.0
    }

    /// Returns what is cached, in order: place, layer group and hash of each block. For tests and comparisons.
    pub fn cached(&self) -> Vec<(Place, u8, u128)> {
        let places = |(hash, block): (&u128, &Block)| {
            block.places.iter().map(|(place, group)| (*place, *group, *hash)).collect::<Vec<_>>()
        };
        let mut cached: Vec<_> = self.blocks.iter().flat_map(places).collect();
        cached.sort_unstable();
        cached
    }
}

/// Events under construction: neighbours become one.
#[derive(Default)]
struct Listed(Vec<CacheEvent>);

impl Listed {
    fn store(&mut self, hash: u128, block: &Block, (place, group): (Place, u8)) {
        let has_tokens = !block.tokens.is_empty();
        if let Some(CacheEvent::Stored(last)) = self.0.last_mut()
            && (last.place, last.group, last.root) == (place, group, block.root)
            && last.tokens.is_empty() != has_tokens
            && (!has_tokens || last.hashes.last().copied() == block.parent)
        {
            last.hashes.push(hash);
            return last.tokens.extend_from_slice(&block.tokens);
        }
        self.0.push(CacheEvent::Stored(StoredBlocks {
            place,
            group,
            root: block.root,
            parent: block.parent,
            hashes: vec![hash],
            tokens: block.tokens.to_vec(),
            request: None,
        }));
    }

    fn remove(&mut self, hash: u128) {
        self.remove_from(hash, (Place::Device, 0));
    }

    fn remove_from(&mut self, hash: u128, (place, group): (Place, u8)) {
        match self.0.last_mut() {
            Some(CacheEvent::Removed(last)) if (last.place, last.group) == (place, group) => last.hashes.push(hash),
            _ => self.0.push(CacheEvent::Removed(RemovedBlocks { place, group, hashes: vec![hash] })),
        }
    }
}
