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
    /// Number of copies that bring each block to the storage.
    under_way: HashMap<u128, u32>,
    /// Look-ups on the way.
    asked: HashMap<Numbered, Vec<u128>>,
    /// Look-ups that wait for copies under way, in the order of asking.
    waiting: Vec<Numbered>,
}

impl SharedStorage {
    /// Notes a copy that began.
    pub(super) fn begin(&mut self, replica: usize, transfer: &Transfer) {
        let blocks: Vec<u128> = transfer.keys.iter().map(|key| key.hash).collect();
        blocks.iter().for_each(|block| *self.under_way.entry(*block).or_default() += 1);
        self.storing.insert((replica, transfer.id), blocks);
    }

    /// Takes in the blocks of a copy that ended. Copies to other places are ignored.
    pub(super) fn end(&mut self, replica: usize, id: u64) {
        let blocks = self.storing.remove(&(replica, id)).unwrap_or_default();
        self.settle(&blocks);
        self.blocks.extend(blocks);
    }

    /// Forgets the copies of a replica that failed.
    pub(super) fn lose(&mut self, replica: usize) {
        let lost: Vec<_> = self.storing.extract_if(|(other, _), _| *other == replica).collect();
        lost.iter().for_each(|(_, blocks)| self.settle(blocks));
    }

    /// Notes that one copy of each block is over.
    fn settle(&mut self, blocks: &[u128]) {
        for block in blocks {
            if let Some(copies) = self.under_way.get_mut(block) {
                *copies -= 1;
                if *copies == 0 {
                    self.under_way.remove(block);
                }
            }
        }
    }

    /// Returns `true` if a copy of a block that a look-up asks for is under way.
    fn is_awaited(&self, lookup: Numbered) -> bool {
        let asked = self.asked.get(&lookup).into_iter().flatten();
        asked.into_iter().any(|block| self.under_way.contains_key(block))
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

    /// Answers a look-up with what the storage has by now, or makes the look-up wait for copies under way to shared memory.
    pub(super) fn end_lookup(&mut self, replica: usize, lookup: u64) {
        if self.settings.shared_memory && self.shared.is_awaited((replica, lookup)) {
            return self.shared.waiting.push((replica, lookup));
        }
        let found = self.shared.answer(replica, lookup);
        self.tell(replica, Event::LookupEnded { lookup, found });
    }

    /// Schedules the answers of waiting look-ups whose copies are over, for this instant.
    pub(super) fn answer_settled_lookups(&mut self) {
        if self.shared.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.shared.waiting);
        let (awaited, settled): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|lookup| self.shared.is_awaited(*lookup));
        self.shared.waiting = awaited;
        for (replica, lookup) in settled {
            self.schedule(self.now_ns, SimEvent::LookupEnd { replica, lookup });
        }
    }
}
