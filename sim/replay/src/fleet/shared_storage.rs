//! Storage that all replicas share behind their own tiers: what one replica stored, the others find.

use std::collections::{HashMap, HashSet};

use trunkline_core::event::Event;
use trunkline_core::transfer::{Lookup, Place, Transfer};

use super::{Fleet, SimEvent};

/// Look-up or copy of a replica: the number of the replica, and the id there.
type Numbered = (usize, u64);

/// Blocks in shared storage, by content. Nothing is dropped there; each core knows as many blocks as its tier has room for.
#[derive(Default)]
pub(super) struct SharedStorage {
    blocks: HashSet<u128>,
    /// Blocks on the way to the storage.
    storing: HashMap<Numbered, Vec<u128>>,
    /// Look-ups on the way.
    asked: HashMap<Numbered, Vec<u128>>,
}

impl SharedStorage {
    /// Notes a copy that began.
    pub(super) fn begin(&mut self, replica: usize, transfer: &Transfer) {
        self.storing.insert((replica, transfer.id), transfer.keys.iter().map(|key| key.hash).collect());
    }

    /// Takes in the blocks of a copy that ended. Copies to other places are ignored.
    pub(super) fn end(&mut self, replica: usize, id: u64) {
        self.blocks.extend(self.storing.remove(&(replica, id)).into_iter().flatten());
    }

    /// Forgets the copies of a replica that failed.
    pub(super) fn lose(&mut self, replica: usize) {
        self.storing.retain(|(other, _), _| *other != replica);
    }

    /// Returns the leading blocks of a look-up in the storage.
    fn answer(&mut self, replica: usize, lookup: u64) -> u32 {
        let keys = self.asked.remove(&(replica, lookup)).unwrap_or_default();
        keys.iter().take_while(|key| self.blocks.contains(key)).count() as u32
    }
}

impl Fleet<'_> {
    /// Returns `true` for the place of the shared tier.
    pub(super) fn is_shared(&self, place: Place) -> bool {
        matches!(place, Place::Tier(tier) if self.settings.core.tiers[tier as usize].shared)
    }

    /// Begins a look-up, answered after the latency of the link to the storage.
    pub(super) fn look_up(&mut self, at_ns: u64, replica: usize, lookup: &Lookup) {
        let link = usize::from(lookup.tier).checked_sub(1).and_then(|link| self.settings.far_links.get(link));
        let latency_s = link.map_or(self.settings.hardware_of(replica).host_link_latency_s, |link| link.latency_s);
        self.shared.asked.insert((replica, lookup.id), lookup.keys.iter().map(|key| key.hash).collect());
        let answer = SimEvent::LookupEnd { replica, lookup: lookup.id };
        self.schedule(at_ns.saturating_add((latency_s * 1e9).round() as u64), answer);
    }

    /// Answers a look-up with what the storage has by now.
    pub(super) fn end_lookup(&mut self, replica: usize, lookup: u64) {
        let found = self.shared.answer(replica, lookup);
        self.tell(replica, Event::LookupEnded { lookup, found });
    }
}
