//! Places of a store and their contents: what all threads share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_files::Aligned;
use trunkline_port::{BlockFault, Place};

use crate::arena::Arena;
use crate::cache::DecodeCache;
use crate::coder::{Coder, Engine, Origin};
use crate::counters::{Fault, FaultCounters};
use crate::disk::{Disk, record_max};
use crate::held::{Coding, Held, HostPlace};
use crate::links::Link;
use crate::named::NamedBlocks;
use crate::pool::{Queue, Urgency};
use crate::remote::{NoBlock, Remote};
use crate::settings::{Compression, StoreSettings};

/// Encoded blocks before compression `auto` judges the ratio.
const AUTO_BLOCKS: u64 = 64;
/// Least ratio for which compression `auto` continues.
const AUTO_RATIO: f64 = 1.02;

/// Most side tables read from other servers, for memory and for the folders of disks.
const FETCHED_TABLES_MAX: usize = 1 << 14;

/// Buffers of a thread, used again by each job.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Encoder and decoder.
    pub engine: Engine,
    /// Bytes of one block, uncompressed.
    pub raw: Vec<u8>,
    /// Bytes of one frame of the codec.
    pub frame: Vec<u8>,
    /// Bytes of one record.
    pub record: Aligned,
}

/// Reason for a block not to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The source failed verification.
    Unproven(Fault),
    /// The copy failed on the way.
    Interrupted,
    /// The destination took nothing.
    Refused,
}

impl From<Failure> for BlockFault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unproven(_) => Self::Bad,
            Failure::Interrupted => Self::Interrupted,
            Failure::Refused => Self::Refused,
        }
    }
}

/// Contents of a tier, by medium.
pub enum Tier {
    /// Blocks in host memory, one for each slot.
    Host(Box<HostPlace>),
    /// Blocks on disk, and the queue of the threads that read them.
    Disk(Box<Disk>, Arc<Queue<Scratch>>),
    /// Blocks in remote storage, and the queue of the threads that read and write them.
    Remote(Box<Remote>, Arc<Queue<Scratch>>),
}

/// Places of a store, and all that copies between places need.
pub struct Places {
    /// Host memory of all places.
    pub arena: Arc<Arena>,
    /// Blocks of swapped-out requests.
    pub host: HostPlace,
    /// Tiers behind the device, nearest first.
    pub tiers: Vec<Tier>,
    /// Compression of blocks, with the statistics of the model.
    pub coder: Coder,
    /// Decoded blocks, kept for the next use.
    pub cache: DecodeCache,
    /// Blocks in host memory, by content.
    pub named: NamedBlocks,
    /// Blocks that failed verification, by place: host first, then the tiers.
    pub faults: Vec<FaultCounters>,
    /// Jobs that copy and compress.
    pub queue: Arc<Queue<Scratch>>,
    /// Id of the layout of all blocks.
    pub layout: u64,
    /// Bytes of the longest record.
    pub record_max: usize,
    compression: Compression,
    compressed_groups: Option<Vec<u8>>,
    links: Mutex<HashMap<(Place, Place), Arc<Link>>>,
    /// Side tables read from remote storage since the store was opened.
    fetched_tables: AtomicUsize,
}

impl Places {
    /// Creates the places of a store, host memory empty.
    pub fn new(settings: &StoreSettings, tiers: Vec<Tier>, queue: Arc<Queue<Scratch>>) -> Self {
        Self {
            arena: Arena::new(settings.host_bytes),
            host: HostPlace::default(),
            coder: Coder::new(settings.layout.clone()),
            cache: DecodeCache::new(settings.decode_cache_bytes),
            named: NamedBlocks::default(),
            faults: (0..=tiers.len()).map(|_| FaultCounters::default()).collect(),
            tiers,
            queue,
            layout: settings.layout.id(),
            record_max: record_max(settings.layout.block_bytes, settings.layout.block_size),
            compression: settings.compression,
            compressed_groups: settings.compressed_groups.clone(),
            links: Mutex::default(),
            fetched_tables: AtomicUsize::new(0),
        }
    }

    fn save_table(&self, id: u64, bytes: &[u8]) {
        for tier in &self.tiers {
            if let Tier::Disk(disk, _) = tier {
                disk.save_table(id, bytes);
            }
        }
    }

    /// Reads the side tables that were kept with the tiers, and keeps them with all. New frames use the newest of the nearest tier.
    pub fn load_tables(&self) {
        let mut tables = Vec::new();
        for tier in &self.tiers {
            if let Tier::Disk(disk, _) = tier {
                tables.extend(disk.tables().into_iter().rev());
            }
        }
        for table in tables {
            match self.coder.add_table(&table) {
                Ok(id) => self.save_table(id, &table),
                Err(fault) => tracing::warn!("a side table is not used: {fault}"),
            }
        }
    }

    /// Returns the link between two places.
    pub fn link(&self, from: Place, to: Place) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(links.entry((from, to)).or_insert_with(|| Arc::new(Link::new(from, to))))
    }

    /// Returns all links used so far, in the order of their places.
    pub fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sorted: Vec<_> = links.iter().collect();
        sorted.sort_unstable_by_key(|(places, _)| **places);
        sorted.into_iter().map(|(_, link)| Arc::clone(link)).collect()
    }

    /// Returns the tier of a place; `None` for the device, host, and tiers that the store does not have.
    pub fn tier(&self, place: Place) -> Option<&Tier> {
        match place {
            Place::Tier(tier) => self.tiers.get(usize::from(tier)),
            Place::Device | Place::Host => None,
        }
    }

    /// Returns `true` if the store has the place.
    pub fn has(&self, place: Place) -> bool {
        matches!(place, Place::Device | Place::Host) || self.tier(place).is_some()
    }

    /// Returns a place in host memory.
    pub fn host_place(&self, place: Place) -> Option<&HostPlace> {
        match (place, self.tier(place)) {
            (Place::Host, _) => Some(&self.host),
            (_, Some(Tier::Host(tier))) => Some(tier),
            _ => None,
        }
    }

    /// Counts a block of a place that failed verification.
    pub fn count_fault(&self, place: Place, fault: Fault) {
        let at = match place {
            Place::Tier(tier) => usize::from(tier) + 1,
            Place::Device | Place::Host => 0,
        };
        if let Some(counters) = self.faults.get(at) {
            counters.add(fault);
        }
    }

    /// Claims a slot for a write. Returns the generation of the claim; 0 for the device.
    pub fn claim(&self, place: Place, slot: u32) -> u64 {
        match (self.host_place(place), self.tier(place)) {
            (Some(host), _) => host.slots().claim(slot).0,
            (_, Some(Tier::Disk(disk, _))) => disk.claim(slot),
            (_, Some(Tier::Remote(remote, _))) => remote.claim(slot),
            _ => 0,
        }
    }

    /// Returns the generation of a slot; 0 for the device.
    pub fn generation(&self, place: Place, slot: u32) -> u64 {
        match (self.host_place(place), self.tier(place)) {
            (Some(host), _) => host.slots().generation(slot),
            (_, Some(Tier::Disk(disk, _))) => disk.generation(slot),
            (_, Some(Tier::Remote(remote, _))) => remote.slots().generation(slot),
            _ => 0,
        }
    }

    /// Empties a slot, so that the memory is free.
    pub fn release(&self, place: Place, slot: u32) {
        match (self.host_place(place), self.tier(place)) {
            (Some(host), _) => drop(host.slots().release(slot)),
            (_, Some(Tier::Disk(disk, _))) => disk.release(slot),
            (_, Some(Tier::Remote(remote, _))) => remote.release(slot),
            _ => {}
        }
    }

    /// Returns `true` if a place is remote storage.
    pub fn is_remote(&self, place: Place) -> bool {
        matches!(self.tier(place), Some(Tier::Remote(..)))
    }

    /// Returns `true` if a place takes nothing for now: a remote store whose last writes failed. No block is read or compressed for such a place.
    pub fn is_left_alone(&self, place: Place) -> bool {
        matches!(self.tier(place), Some(Tier::Remote(remote, _)) if remote.is_left_alone())
    }

    /// Returns the queue of the threads for copies between two places: a slow medium keeps only its own threads busy.
    pub fn queue_for(&self, from: Place, to: Place) -> &Arc<Queue<Scratch>> {
        match (self.tier(from), self.tier(to)) {
            (Some(Tier::Remote(_, queue)), _) | (_, Some(Tier::Remote(_, queue))) => queue,
            (Some(Tier::Disk(_, queue)), _) => queue,
            _ => &self.queue,
        }
    }

    /// Makes sure that a frame from remote storage can be decoded: reads its side table if need be, and keeps the table on the disks.
    pub fn fetch_table(&self, remote: &Remote, frame: &[u8]) -> Result<(), NoBlock> {
        let Some(id) = self.coder.table_of(frame).filter(|id| !self.coder.has_table(*id)) else { return Ok(()) };
        if self.fetched_tables.load(Relaxed) >= FETCHED_TABLES_MAX {
            return Err(NoBlock::Unproven(Fault::Stale));
        }
        let table = remote.table(id)?;
        self.coder.add_table_named(id, &table).map_err(NoBlock::Unproven)?;
        if self.fetched_tables.fetch_add(1, Relaxed) + 1 == FETCHED_TABLES_MAX {
            tracing::warn!(
                "{FETCHED_TABLES_MAX} side tables were read from remote storage: blocks that need others are computed until a restart"
            );
        }
        self.save_table(id, &table);
        Ok(())
    }

    /// Appends the frame of a block to `out`, if blocks are to be compressed. With compression `full` the frame is decoded and compared.
    pub fn encode(&self, engine: &mut Engine, raw: &[u8], origin: Option<Origin>, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if !self.compresses() || !self.is_compressed(origin) || !self.coder.encode(engine, raw, origin, out) {
            return false;
        }
        if self.compression == Compression::Full {
            let mut decoded = Vec::with_capacity(raw.len());
            if self.coder.decode(engine, &out[begin..], &mut decoded).is_err() || decoded != raw {
                self.coder.mismatched();
                out.truncate(begin);
                return false;
            }
        }
        true
    }

    /// Copies bytes into host memory; decoded blocks make room if they must.
    pub fn hold(&self, bytes: &[u8], coding: Coding) -> Option<Arc<Held>> {
        loop {
            if let Some(held) = Held::new(&self.arena, bytes, coding) {
                return Some(held);
            }
            if !self.cache.shrink() {
                return None;
            }
        }
    }

    /// Returns `true` if blocks are to be compressed on their way to a slower place.
    pub fn compresses(&self) -> bool {
        match self.compression {
            Compression::Off | Compression::Probe => false,
            Compression::Full | Compression::Store => self.coder.can_encode(),
            Compression::Auto => {
                let stats = self.coder.stats();
                self.coder.can_encode() && (stats.encoded_blocks < AUTO_BLOCKS || stats.ratio() >= AUTO_RATIO)
            }
        }
    }

    /// Returns `true` if blocks of this origin are among those to compress.
    fn is_compressed(&self, origin: Option<Origin>) -> bool {
        let group = origin.map_or(0, |origin| origin.group);
        self.compressed_groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Returns `true` if blocks go to records as they are, and are not looked at on the way.
    pub fn stores_unchanged(&self) -> bool {
        match self.compression {
            Compression::Off => true,
            Compression::Auto => !self.compresses(),
            Compression::Probe | Compression::Full | Compression::Store => false,
        }
    }

    /// Takes in a block for the statistics of the block's layer group, which make later frames smaller.
    pub fn learn(&self, raw: &[u8], origin: Option<Origin>) {
        if let (Some(origin), true) = (origin, self.compression != Compression::Off) {
            self.coder.observe(raw, origin, |id, table| {
                let (group, bytes) = (origin.group, table.len());
                tracing::debug!("statistics of layer group {group} are complete: side table {id:016x}, {bytes} bytes");
                self.save_table(id, table);
            });
        }
    }

    /// Copies an uncompressed block into host memory, compressed at once with compression `full`.
    pub fn hold_block(&self, scratch: &mut Scratch, origin: Option<Origin>) -> Option<Arc<Held>> {
        let Scratch { engine, raw, frame, .. } = scratch;
        frame.clear();
        if self.compression == Compression::Full && self.encode(engine, raw, origin, frame) {
            return self.hold(frame, Coding::Frame);
        }
        self.hold(raw, Coding::Raw)
    }

    /// Compresses a block in host memory when a thread has nothing else to do, if blocks are to be compressed.
    pub fn compress_later(self: &Arc<Self>, held: &Arc<Held>, origin: Option<Origin>) {
        let only_measures = self.compression == Compression::Probe;
        let encodes = self.compresses() || only_measures && self.coder.can_encode();
        if !encodes || !self.is_compressed(origin) || held.body().coding() == Coding::Frame {
            return;
        }
        // A block that is gone by then needs no compression.
        let (places, held) = (Arc::downgrade(self), Arc::downgrade(held));
        let job = move |scratch: &mut Scratch| {
            let (Some(places), Some(held)) = (places.upgrade(), held.upgrade()) else { return };
            scratch.frame.clear();
            let body = held.body();
            let is_encoded = body.coding() == Coding::Raw
                && places.coder.encode(&mut scratch.engine, body.bytes(), origin, &mut scratch.frame);
            drop(body);
            if is_encoded && !only_measures {
                held.compress(&places.arena, &scratch.frame);
            }
        };
        self.queue.push(Urgency::Idle, Box::new(job));
    }
}

#[cfg(test)]
mod tests;
