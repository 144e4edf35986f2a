//! Changes of the cache for a listener: see [`crate::cache::changes`].
//!
//! The tree and the table of the other groups note slots alone, which costs little while a block comes or goes. A slot keeps its identity and its
//! tokens until the next block is published there, so the changes are given names when they are taken, when the next step is under way, or
//! before a publication that might take the slot of a block that left.

use super::Kv;
use crate::Place;
use crate::cache::changes::{CacheChanges, CacheEvent, Change};
use crate::journal::reasons::Evicted;
use crate::names::ids::RequestId;

/// Changes of the device's cached blocks.
#[derive(Debug)]
pub(super) struct DeviceChanges {
    /// Changes with names.
    named: CacheChanges,
    /// Requests that published blocks since, each with the number of changes in the tree and in the other groups then.
    publications: Vec<((usize, usize), RequestId)>,
}

impl Kv {
    /// Notes changes from now on, for [`Self::take_changes`]. MUST be called on an empty cache.
    pub fn listen(&mut self) {
        assert!(self.tree.pool().opened() == 0 && self.tiers.have_none(), "the cache is in use");
        self.changes =
            Some(Box::new(DeviceChanges { named: CacheChanges::new(Place::Device), publications: Vec::new() }));
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
        self.name_changes();
        let mut events = self.changes.as_mut().map_or(Vec::new(), |changes| changes.named.take());
        self.tiers.take_changes(&mut events);
        events
    }

    /// Names the changes noted so far if some are not of a publication: blocks left, and the next one published may take their slots.
    #[inline]
    pub(super) fn name_unpublished(&mut self) {
        let Some(changes) = &self.changes else { return };
        if self.noted() != changes.publications.last().map_or((0, 0), |(end, _)| *end) {
            self.name_changes();
        }
    }

    /// Notes that a request has published the blocks that entered since the last call.
    #[inline]
    pub(super) fn note_publication(&mut self, request: RequestId) {
        let noted = self.noted();
        if let Some(changes) = &mut self.changes {
            changes.publications.push((noted, request));
        }
    }

    /// Returns the number of changes in the tree and in the other groups that have no names yet.
    fn noted(&self) -> (usize, usize) {
        (self.tree.n_changes(), self.groups.n_changes())
    }

    /// Names the blocks of the changes noted so far.
    fn name_changes(&mut self) {
        let Some(changes) = &mut self.changes else { return };
        self.tiers.identify_late(&self.tree);
        let (of_tree, of_groups) = (self.tree.take_changes(), self.groups.take_changes());
        let publications = changes.publications.drain(..).map(|(end, request)| (end, Some(request)));
        let mut from = (0, 0);
        for (to, request) in publications.chain([((of_tree.len(), of_groups.len()), None)]) {
            let blocks = of_tree[from.0..to.0].iter().map(|(block, change)| (*block, 0, *change));
            let of_others = of_groups[from.1..to.1].iter().copied();
            for (node, group, change) in blocks.chain(of_others) {
                let key = self.tiers.key_of(node);
                match change {
                    Change::Entered => changes.named.entered(key, group as u8, self.tree.tokens_at(node), request),
                    Change::Left => changes.named.left(key, group as u8),
                }
            }
            from = to;
        }
        self.tree.reuse_changes(of_tree);
    }

    /// Notes that a flush left nothing on the device.
    pub(super) fn note_flush(&mut self) {
        if let Some(changes) = &mut self.changes {
            self.tiers.identify_late(&self.tree);
            self.tree.take_changes();
            self.groups.take_changes();
            changes.publications.clear();
            self.groups.hide_all();
            changes.named.cleared();
        }
    }

    /// Notes that the device is about to lose all blocks.
    pub(super) fn note_clear(&mut self) {
        self.name_changes();
        let have_none = self.tiers.have_none();
        let Some(changes) = &mut self.changes else { return };
        if have_none {
            return changes.named.cleared();
        }
        let blocks = self.tree.findable_by_depth();
        for block in blocks.iter().rev().copied() {
            let key = self.tiers.key_of(block);
            self.groups.found_at(block).for_each(|group| changes.named.left(key, group as u8));
        }
        blocks.iter().rev().for_each(|block| changes.named.left(self.tiers.key_of(*block), 0));
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
