//! An index outside of the core that follows the events of its cache, and equals the cache after every input.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use trunkline_core::{CacheEvent, Config, Core, Event, Place, Token};

use crate::Driver;

/// Blocks of a cache up to which the index is compared after every event; with more it is now and then.
const COMPARED_MAX: u32 = 1024;

/// Creates a core that notes changes of its cache.
pub(crate) fn core(config: Config) -> Core {
    let mut core = Core::new(config).expect("the limits are within their ranges");
    core.listen_to_cache();
    core
}

/// A cached block as events tell it.
#[derive(Debug, PartialEq, Eq)]
struct Cached {
    root: u128,
    parent: Option<u128>,
    tokens: Vec<Token>,
    copies: u32,
}

/// The index: blocks by place, layer group and hash.
#[derive(Default)]
pub(crate) struct Index {
    blocks: BTreeMap<(Place, u8, u128), Cached>,
    /// Blocks of the device's first group behind each.
    children: BTreeMap<u128, u32>,
    inputs: u64,
    /// `true` if a run weakens the hashes of prompts, so that a block has another hash in an answer, and is published once more.
    pub may_repeat: bool,
    /// Events since the last [`Driver::forget_cache_log`], while few.
    log: Vec<CacheEvent>,
    follower: Option<Follower>,
}

/// Gets the events of each input, with the core behind it.
pub type Follower = Box<dyn FnMut(&[CacheEvent], &Core)>;

/// Events that a log keeps, at most.
const LOG_MAX: usize = 256;

impl Index {
    /// Applies the events of one input.
    ///
    /// # Panics
    /// If a block is stored twice, or removed without being there, or leaves the device before one behind it.
    fn apply(&mut self, events: &[CacheEvent], block_size: usize) {
        for event in events {
            match event {
                CacheEvent::Stored(stored) => {
                    let mut parent = stored.parent;
                    let mut tokens = stored.tokens.chunks_exact(block_size);
                    let has_tokens = stored.tokens.len() == stored.hashes.len() * block_size;
                    let has_none = stored.tokens.is_empty() && stored.group > 0 && stored.place != Place::Device;
                    assert!(has_tokens || has_none, "{stored:?}");
                    for hash in &stored.hashes {
                        let tokens = tokens.next().unwrap_or_default().to_vec();
                        let cached = Cached { root: stored.root, parent, tokens, copies: 1 };
                        if (stored.place, stored.group) == (Place::Device, 0)
                            && let Some(parent) = parent
                        {
                            let before = self.blocks.get(&(Place::Device, 0, parent));
                            assert_eq!(
                                before.map(|before| before.root),
                                Some(stored.root),
                                "{hash:x} has no block before"
                            );
                            *self.children.entry(parent).or_default() += 1;
                        }
                        match self.blocks.entry((stored.place, stored.group, *hash)) {
                            Entry::Vacant(entry) => _ = entry.insert(cached),
                            Entry::Occupied(mut entry) => {
                                assert!(self.may_repeat, "{hash:x} is stored twice: {stored:?}");
                                entry.get_mut().copies += 1;
                            }
                        }
                        parent = has_tokens.then_some(*hash);
                    }
                }
                CacheEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        let at = (removed.place, removed.group, *hash);
                        let cached = self.blocks.get_mut(&at);
                        let cached = cached.unwrap_or_else(|| panic!("{hash:x} is removed and not there: {removed:?}"));
                        cached.copies -= 1;
                        let (copies, parent) = (cached.copies, cached.parent);
                        if copies == 0 {
                            self.blocks.remove(&at);
                        }
                        if (removed.place, removed.group) == (Place::Device, 0) {
                            let may_leave = copies > 0 || !self.children.contains_key(hash);
                            assert!(may_leave, "{hash:x} is removed before a block behind it");
                            parent.into_iter().for_each(|parent| self.leave(parent));
                        }
                    }
                }
                CacheEvent::Cleared => {
                    self.blocks.retain(|(place, ..), _| *place != Place::Device);
                    self.children.clear();
                }
            }
        }
        let has_cleared = events.contains(&CacheEvent::Cleared);
        let is_in_tier = |(place, ..): &(Place, u8, u128)| *place != Place::Device;
        assert!(!has_cleared || !self.blocks.keys().any(is_in_tier), "cleared, and a tier holds blocks");
    }

    fn leave(&mut self, parent: u128) {
        let children = self.children.get_mut(&parent).expect("the block before is there");
        *children -= 1;
        if *children == 0 {
            self.children.remove(&parent);
        }
    }
}

impl Driver {
    /// Has the index follow the cache's events, and compares it with the cache.
    pub(crate) fn follow_cache(&mut self) {
        let events = self.core.take_cache_events();
        let config = self.core.config();
        let (size, blocks) = (config.block_size as usize, config.device_blocks);
        self.index.apply(&events, size);
        self.index.inputs += 1;
        if let Some(follow) = &mut self.index.follower {
            follow(&events, &self.core);
        }
        let room = LOG_MAX.saturating_sub(self.index.log.len());
        self.index.log.extend(events.into_iter().take(room));
        if blocks <= COMPARED_MAX || self.index.inputs.is_multiple_of(256) {
            let mut now = Index { may_repeat: self.index.may_repeat, ..Index::default() };
            now.apply(&self.core.cached_blocks(), size);
            assert_eq!(self.index.blocks, now.blocks, "the index is not the cache");
        }
    }

    /// Hands the events of each input to a follower.
    pub fn followed_by(&mut self, follower: Follower) {
        self.index.follower = Some(follower);
    }

    /// Returns the events of the cache since the last [`Self::forget_cache_log`], the first 256.
    pub fn cache_log(&self) -> &[CacheEvent] {
        &self.index.log
    }

    /// Empties the log of events.
    pub fn forget_cache_log(&mut self) {
        self.index.log.clear();
    }

    /// Returns the hashes of the first layer group's blocks in a place, as the index has them.
    pub fn indexed(&self, place: Place) -> Vec<u128> {
        self.index.blocks.keys().filter(|(at, group, _)| (*at, *group) == (place, 0)).map(|(.., hash)| *hash).collect()
    }

    /// Evicts all idle blocks of the device. Blocks that are read stay in the cache.
    pub fn evict_idle(&mut self) {
        let blocks = self.core.evict_idle();
        self.flushed.push(blocks);
        self.found.forget_evicted(&self.core.stats());
    }

    /// Flushes the cache: nothing computed so far is found any more.
    pub fn flush(&mut self) {
        self.event(Event::FlushCache);
    }
}
