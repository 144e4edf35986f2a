//! Changes of the cache for a listener: see [`crate::cache::changes`].
//!
//! The tree and the table of the other groups note slots alone, which costs little while a block comes or goes. A slot keeps its identity and its
//! tokens until the next block is published there, so the changes are given names before and after each publication, and when they are taken.

use super::Kv;
use crate::Place;
use crate::cache::changes::{CacheChanges, CacheEvent, Change};
use crate::journal::reasons::Evicted;
use crate::names::ids::RequestId;

impl Kv {
    /// Notes changes from now on, for [`Self::take_changes`]. MUST be called on an empty cache.
    pub fn listen(&mut self) {
        assert!(self.tree.pool().opened() == 0 && self.tiers.have_none(), "the cache is in use");
        self.changes = Some(Box::new(CacheChanges::new(Place::Device)));
        self.tree.listen();
        self.groups.listen();
        self.tiers.listen();
    }

    /// Notes evictions from now on, for [`Self::take_evicted`].
    pub fn note_evictions(&mut self) {
        self.tree.note_evictions();
        self.evicted.get_or_insert_default();
    }

    /// Returns the evictions since the last call.
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        self.name_evictions(None);
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Names the request that the blocks evicted since the last call made room for.
    #[inline]
    pub fn name_evictions(&mut self, by: Option<RequestId>) {
        if let Some(evicted) = &mut self.evicted {
            let fingerprints = self.tree.take_evictions();
            evicted.extend((!fingerprints.is_empty()).then_some(Evicted { fingerprints, by }));
        }
    }

    /// Returns the changes since the last call: those of the device, then those of each tier.
    pub fn take_changes(&mut self) -> Vec<CacheEvent> {
        self.name_changes(None);
        let mut events = self.changes.as_mut().map_or(Vec::new(), |changes| changes.take());
        self.tiers.take_changes(&mut events);
        events
    }

    /// Names the blocks of the changes noted so far, of which those that entered were published by a request.
    #[inline]
    pub(super) fn name_changes(&mut self, request: Option<RequestId>) {
        if self.changes.is_some() {
            self.name_noted(request);
        }
    }

    fn name_noted(&mut self, request: Option<RequestId>) {
        let Some(changes) = &mut self.changes else { return };
        let noted = self.tree.take_changes();
        for (block, change) in noted.iter().copied() {
            let key = self.tiers.key_of(block);
            match change {
                Change::Entered => changes.entered(key, 0, self.tree.tokens_at(block), request),
                Change::Left => changes.left(key, 0),
            }
        }
        self.tree.reuse_changes(noted);
        for (node, group, change) in self.groups.take_changes() {
            let key = self.tiers.key_of(node);
            match change {
                Change::Entered => changes.entered(key, group as u8, self.tree.tokens_at(node), request),
                Change::Left => changes.left(key, group as u8),
            }
        }
    }

    /// Notes that a flush left nothing on the device.
    pub(super) fn note_flush(&mut self) {
        if let Some(changes) = &mut self.changes {
            self.tree.take_changes();
            self.groups.take_changes();
            self.groups.hide_all();
            changes.cleared();
        }
    }

    /// Notes that the device is about to lose all blocks.
    pub(super) fn note_clear(&mut self) {
        self.name_changes(None);
        let have_none = self.tiers.have_none();
        let Some(changes) = &mut self.changes else { return };
        if have_none {
            return changes.cleared();
        }
        let blocks = self.tree.findable_by_depth();
        for block in blocks.iter().rev().copied() {
            let key = self.tiers.key_of(block);
            self.groups.found_at(block).for_each(|group| changes.left(key, group as u8));
        }
        blocks.iter().rev().for_each(|block| changes.left(self.tiers.key_of(*block), 0));
    }

    /// Returns all blocks that can be found, as if they came now. Empty unless changes are noted.
    pub fn cached(&self) -> Vec<CacheEvent> {
        if self.changes.is_none() {
            return Vec::new();
        }
        let mut changes = CacheChanges::new(Place::Device);
        let blocks = self.tree.findable_by_depth();
        for block in blocks.iter().copied() {
            changes.entered(self.tiers.key_of(block), 0, self.tree.tokens_at(block), None);
        }
        for group in self.groups.numbers() {
            for block in blocks.iter().copied().filter(|block| self.groups.found_at(*block).any(|at| at == group)) {
                changes.entered(self.tiers.key_of(block), group as u8, self.tree.tokens_at(block), None);
            }
        }
        let mut events = changes.take();
        self.tiers.present(&mut events);
        events
    }
}
