//! Changes in which blocks are cached, and where, for an index outside of the core.
//!
//! Only what a request can find counts: published blocks of the device, and blocks present in a tier. Private blocks, as those of sequences
//! that evict (H2O), blocks on their way and blocks struck out do not. Applied in order to an empty index, the events since
//! [`crate::Core::listen_to_cache`] give what [`crate::Core::cached_blocks`] returns. A block is stored once before it is removed, on the device
//! after the block before it, and removed there before that one: a chain leaves tail first.

use std::collections::HashMap;

use trunkline_port::{BlockKey, Place};

use crate::blocks::content_key;
use crate::names::ids::{RequestId, Token};

/// A change in the blocks that requests can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks can be found in a place from now on.
    Stored(StoredBlocks),
    /// Blocks can be found in a place no longer.
    Removed(RemovedBlocks),
    /// The device holds no cached block any more, and the tiers hold none but for those whose removal follows in the events of the same
    /// input.
    Cleared,
}

/// Blocks that can be found in a place from now on: a part of one prefix, each the block before the next, or several blocks without tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Place of the blocks: the device or a tier.
    pub place: Place,
    /// Layer group of the blocks, from 0.
    pub group: u8,
    /// Hash of the namespace: [`crate::Namespace::root`].
    pub root: u128,
    /// Hash of the block before the first one; `None` for the first block of a prefix, or without tokens.
    pub parent: Option<u128>,
    /// Hash of each block in the first layer group: SHA-256 over the prefix up to the block, cut to 128 bits, equal in every process
    /// ([`BlockKey::hash`]).
    pub hashes: Vec<u128>,
    /// Tokens of the blocks, equally many for each. Blocks of a group after the first come without tokens from a tier, which knows them by
    /// their hashes alone.
    pub tokens: Vec<Token>,
    /// Request that computed the blocks, if it has just published them.
    pub request: Option<RequestId>,
}

/// Blocks that can be found in a place no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedBlocks {
    /// Place of the blocks: the device or a tier.
    pub place: Place,
    /// Layer group of the blocks, from 0.
    pub group: u8,
    /// Hash of each block, in the order in which the blocks left.
    pub hashes: Vec<u128>,
}

/// Direction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The block can be found from now on.
    Entered,
    /// The block can be found no longer.
    Left,
}

/// The changes of one place since the last time that they were taken.
#[derive(Debug)]
pub(crate) struct CacheChanges {
    place: Place,
    events: Vec<CacheEvent>,
}

impl CacheChanges {
    /// Creates an empty list for a place.
    pub fn new(place: Place) -> Self {
        Self { place, events: Vec::new() }
    }

    /// Notes a block of a group that entered the place. `key` is the block's in the first group, or, in a tier, in its own.
    pub fn entered(&mut self, key: &BlockKey, group: u8, tokens: &[Token], request: Option<RequestId>) {
        // In a tier, the key of a block of a group after the first names neither the block before nor its tokens' place in a prefix.
        let is_whole = key.group == 0;
        let parent = (is_whole && key.first_token > 0).then_some(key.parent);
        let tokens = if is_whole { tokens } else { &[] };
        let hash = content_key::in_first_group(key);
        if let Some(CacheEvent::Stored(last)) = self.events.last_mut()
            && (last.group, last.root, last.request) == (group, key.root, request)
            && (if is_whole { last.hashes.last().copied() == parent } else { last.tokens.is_empty() })
        {
            last.hashes.push(hash);
            return last.tokens.extend_from_slice(tokens);
        }
        let (place, root) = (self.place, key.root);
        let stored = StoredBlocks { place, group, root, parent, hashes: vec![hash], tokens: tokens.to_vec(), request };
        self.events.push(CacheEvent::Stored(stored));
    }

    /// Notes a block of a group that left the place, with its key as in [`Self::entered`].
    pub fn left(&mut self, key: &BlockKey, group: u8) {
        let hash = content_key::in_first_group(key);
        if let Some(CacheEvent::Removed(last)) = self.events.last_mut()
            && last.group == group
        {
            return last.hashes.push(hash);
        }
        self.events.push(CacheEvent::Removed(RemovedBlocks { place: self.place, group, hashes: vec![hash] }));
    }

    /// Notes that nothing is left anywhere. The changes so far need not be known any more.
    pub fn cleared(&mut self) {
        self.events.clear();
        self.events.push(CacheEvent::Cleared);
    }

    /// Returns the changes since the last call, and forgets them.
    pub fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the changes since the last call, and forgets them. Of blocks that entered without one leaving in between, each comes behind the one before
    /// it in its prefix: copies to a tier begin with the tail.
    pub fn take_in_order(&mut self) -> Vec<CacheEvent> {
        let mut ordered = Vec::with_capacity(self.events.len());
        let mut entered = Vec::new();
        for event in self.take() {
            match event {
                CacheEvent::Stored(stored) => entered.push(stored),
                other => {
                    put_in_order(&mut entered, &mut ordered);
                    ordered.push(other);
                }
            }
        }
        put_in_order(&mut entered, &mut ordered);
        ordered
    }
}

/// Moves blocks to the end of a list of events, each behind the one before it.
fn put_in_order(entered: &mut Vec<StoredBlocks>, ordered: &mut Vec<CacheEvent>) {
    let ends: HashMap<(u8, u128), usize, ahash::RandomState> = entered
        .iter()
        .enumerate()
        .filter_map(|(at, stored)| Some(((stored.group, *stored.hashes.last()?), at)))
        .collect();
    let mut entered: Vec<Option<StoredBlocks>> = entered.drain(..).map(Some).collect();
    let mut path = Vec::new();
    for first in 0..entered.len() {
        let mut next = Some(first);
        while let Some(stored) = next.and_then(|at| entered[at].take()) {
            next = stored.parent.and_then(|parent| ends.get(&(stored.group, parent)).copied());
            path.push(stored);
        }
        while let Some(stored) = path.pop() {
            match ordered.last_mut() {
                Some(CacheEvent::Stored(last)) if last.is_continued_by(&stored) => {
                    last.hashes.extend(stored.hashes);
                    last.tokens.extend(stored.tokens);
                }
                _ => ordered.push(CacheEvent::Stored(stored)),
            }
        }
    }
}

impl StoredBlocks {
    /// Returns `true` if blocks of the same place and kind come right behind these.
    fn is_continued_by(&self, next: &Self) -> bool {
        let is_like =
            (self.place, self.group, self.root, self.request) == (next.place, next.group, next.root, next.request);
        is_like && !next.tokens.is_empty() && self.hashes.last().copied() == next.parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::hash::BlockHash;

    #[test]
    fn a_chain_is_one_event_and_another_prefix_another() {
        let root = BlockHash(7);
        let first = content_key::after(root, None, BlockHash(5), &[1, 2]);
        let second = content_key::after(root, Some(&first), BlockHash(6), &[3, 4]);
        let mut changes = CacheChanges::new(Place::Device);
        let by = Some(RequestId(1));
        changes.entered(&first, 0, &[1, 2], by);
        changes.entered(&second, 0, &[3, 4], by);
        changes.entered(&first, 0, &[1, 2], by);
        let chain = StoredBlocks {
            place: Place::Device,
            group: 0,
            root: 7,
            parent: None,
            hashes: vec![first.hash, second.hash],
            tokens: vec![1, 2, 3, 4],
            request: by,
        };
        let again = StoredBlocks { hashes: vec![first.hash], tokens: vec![1, 2], ..chain.clone() };
        assert_eq!(changes.take(), [CacheEvent::Stored(chain), CacheEvent::Stored(again)]);
        changes.left(&second, 0);
        changes.left(&first, 0);
        changes.left(&first, 1);
        let removed = |group, hashes| CacheEvent::Removed(RemovedBlocks { place: Place::Device, group, hashes });
        assert_eq!(changes.take(), [removed(0, vec![second.hash, first.hash]), removed(1, vec![first.hash])]);
        assert!(changes.take().is_empty());
    }

    #[test]
    fn what_entered_a_tier_tail_first_is_put_in_order() {
        let root = BlockHash(7);
        let mut keys = vec![content_key::after(root, None, BlockHash(5), &[0, 0])];
        for at in 1..4 {
            keys.push(content_key::after(root, keys.last(), BlockHash(5), &[at, at]));
        }
        let branch = content_key::after(root, Some(&keys[0]), BlockHash(5), &[9, 9]);
        let mut changes = CacheChanges::new(Place::Tier(0));
        for at in [3, 2, 1] {
            changes.entered(&keys[at], 0, &[at as u32; 2], None);
            changes.entered(&content_key::in_group(&keys[at], 1), 1, &[at as u32; 2], None);
        }
        changes.entered(&branch, 0, &[9, 9], None);
        changes.entered(&keys[0], 0, &[0, 0], None);
        changes.left(&keys[3], 0);
        changes.entered(&keys[3], 0, &[3, 3], None);
        let line = |event: &CacheEvent| match event {
            CacheEvent::Stored(StoredBlocks { group, tokens, hashes, .. }) => (*group, hashes.len(), tokens.clone()),
            _ => (9, 0, vec![]),
        };
        let lines: Vec<_> = changes.take_in_order().iter().map(line).collect();
        let ones = (1, 1, vec![]);
        let whole = (0, 4, vec![0, 0, 1, 1, 2, 2, 3, 3]);
        let [branch, left, again] = [(0, 1, vec![9, 9]), (9, 0, vec![]), (0, 1, vec![3, 3])];
        assert_eq!(lines, [whole, ones.clone(), ones.clone(), ones, branch, left, again]);
    }

    #[test]
    fn blocks_of_other_groups_have_the_hash_of_the_first_and_no_tokens_in_a_tier() {
        let keys = [1, 2].map(|token| content_key::after(BlockHash(7), None, BlockHash(5), &[token, token]));
        let mut changes = CacheChanges::new(Place::Tier(1));
        keys.iter().for_each(|key| changes.entered(&content_key::in_group(key, 3), 3, &[9, 9], None));
        changes.entered(&keys[0], 0, &[1, 1], None);
        let stored = |group, hashes, tokens| {
            let (place, root) = (Place::Tier(1), 7);
            CacheEvent::Stored(StoredBlocks { place, group, root, parent: None, hashes, tokens, request: None })
        };
        let hashes = keys.map(|key| key.hash);
        assert_eq!(changes.take(), [stored(3, hashes.to_vec(), vec![]), stored(0, vec![hashes[0]], vec![1, 1])]);
    }
}
