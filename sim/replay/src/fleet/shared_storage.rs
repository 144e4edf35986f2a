//! Storage that all replicas share behind their own tiers: what one replica stored, the others find.

use std::collections::{BTreeMap, HashMap};

use trunkline_core::core::event::Event;
use trunkline_core::{BlockFault, Lookup, Place, Transfer};

use super::{Fleet, SimEvent};
use crate::settings::Settings;
use trunkline_sim_report::report::TierReport;

/// Look-up or copy of a replica: the number of the replica, and the id there.
type Numbered = (usize, u64);

/// Blocks in shared storage, by content. Each core knows as many blocks as its tier has room for. Remote storage drops nothing; shared memory has room for
/// as many blocks as the tier of one core, and drops the block read or written longest ago, as a server's does: a core may know a block that
/// is gone, and the copy then brings nothing.
#[derive(Default)]
pub(super) struct SharedStorage {
    /// Blocks that fit; `None` for all.
    capacity: Option<usize>,
    /// Blocks, with the number of their last use.
    blocks: HashMap<u128, u64>,
    /// Blocks by the number of their last use; of storage that drops blocks.
    by_use: BTreeMap<u64, u128>,
    uses: u64,
    /// Blocks taken in that were not there, and blocks dropped.
    counts: (u64, u64),
    /// Blocks on the way to the storage.
    storing: HashMap<Numbered, Vec<u128>>,
    /// Pairs of copies from the storage whose blocks were gone, by copy.
    gone: HashMap<Numbered, Vec<(u32, BlockFault)>>,
    /// Number of copies that bring each block to the storage.
    under_way: HashMap<u128, u32>,
    /// Look-ups on the way.
    asked: HashMap<Numbered, Vec<u128>>,
    /// Look-ups that wait for copies under way, in the order of asking.
    waiting: Vec<Numbered>,
}

impl SharedStorage {
    pub(super) fn new(settings: &Settings) -> Self {
        let tier = settings.core.tiers.iter().find(|tier| tier.shared && settings.shared_memory);
        Self { capacity: tier.map(|tier| tier.blocks as usize), ..Self::default() }
    }

    /// Sets the blocks of a tier's report, those stored and those evicted, to those of shared memory instead of what each core knows of it.
    pub(super) fn count(&self, report: &mut TierReport) {
        if self.capacity.is_some() {
            report.blocks = self.blocks.len() as u64;
            (report.stored_blocks, report.evicted_blocks) = self.counts;
        }
    }

    /// Notes a copy from the storage that began.
    fn read(&mut self, replica: usize, transfer: &Transfer) {
        let mut gone = Vec::new();
        for (at, key) in (0..).zip(&transfer.keys) {
            if self.blocks.contains_key(&key.hash) {
                self.put(key.hash);
            } else {
                gone.push((at, BlockFault::Bad));
            }
        }
        if !gone.is_empty() {
            self.gone.insert((replica, transfer.id), gone);
        }
    }

    /// Takes in a block, or makes it the one used last.
    fn put(&mut self, block: u128) {
        let Some(capacity) = self.capacity else {
            self.blocks.insert(block, 0);
            return;
        };
        self.uses += 1;
        match self.blocks.insert(block, self.uses) {
            Some(last) => _ = self.by_use.remove(&last),
            None => self.counts.0 += 1,
        }
        self.by_use.insert(self.uses, block);
        if self.blocks.len() > capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.blocks.remove(&oldest);
            self.counts.1 += 1;
        }
    }

    /// Notes a copy to the storage that began.
    fn write(&mut self, replica: usize, transfer: &Transfer) {
        let blocks: Vec<u128> = transfer.keys.iter().map(|key| key.hash).collect();
        blocks.iter().for_each(|block| *self.under_way.entry(*block).or_default() += 1);
        self.storing.insert((replica, transfer.id), blocks);
    }

    /// Takes in the blocks of a copy that ended, and returns how the copy ended for the core.
    pub(super) fn end(&mut self, replica: usize, id: u64) -> Event {
        let blocks = self.storing.remove(&(replica, id)).unwrap_or_default();
        self.settle(&blocks);
        blocks.into_iter().for_each(|block| self.put(block));
        match self.gone.remove(&(replica, id)) {
            Some(faults) => Event::TransferPartial { transfer: id, faults },
            None => Event::TransferFinished(id),
        }
    }

    /// Forgets the copies of a replica that failed.
    pub(super) fn lose(&mut self, replica: usize) {
        let lost: Vec<_> = self.storing.extract_if(|(other, _), _| *other == replica).collect();
        lost.iter().for_each(|(_, blocks)| self.settle(blocks));
        self.gone.retain(|(other, _), _| *other != replica);
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
        keys.iter().take_while(|key| self.blocks.contains_key(key)).count() as u32
    }
}

impl Fleet<'_> {
    /// Notes a copy that began, if it is to or from the shared tier.
    pub(super) fn note_shared(&mut self, replica: usize, transfer: &Transfer) {
        let tiers = &self.settings.core.tiers;
        let is_shared = |place| matches!(place, Place::Tier(tier) if tiers[tier as usize].shared);
        if is_shared(transfer.to) {
            self.shared.write(replica, transfer);
        } else if is_shared(transfer.from) {
            self.shared.read(replica, transfer);
        }
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
