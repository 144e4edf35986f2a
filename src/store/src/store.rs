//! The store of one engine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trunkline_port::{DeviceBlocks, KnownBlock, Lookup, Place, Transfer, TransferReport};

use crate::announced::Announced;
use crate::answer::{Answer, Pair};
use crate::copying::{Copying, Item, UnderWay};
use crate::disk::{Disk, DiskSettings, OpenFiles, record_max, system_files};
use crate::error::StoreError;
use crate::layout::BlockLayout;
use crate::places::{Places, Scratch, Tier};
use crate::pool::{Pool, Urgency};
use crate::remote::Remote;
use crate::settings::{StoreSettings, TierMedium};
use crate::stats::StoreStats;

/// Pairs copied by one thread in one go.
const BATCH: usize = 8;
/// Threads that read a disk: reads under way at once.
const DISK_THREADS: usize = 4;
/// Threads that wait for a remote store: calls under way at once.
const REMOTE_THREADS: usize = 8;
/// Deadline of calls to shared memory, which never waits.
const MEMORY_DEADLINE: Duration = Duration::from_secs(60);

/// Storage of an engine's blocks behind the device. Outlives the worker: the device comes with each transfer.
///
/// Dropped, the store ends the copies under way, answers those that wait as interrupted, and joins its threads.
pub struct Store {
    settings: StoreSettings,
    pool: Pool<Scratch>,
    /// Threads of each slow medium. Dropped before the places, so that nothing is written to a closed one.
    _tier_pools: Vec<Pool<Scratch>>,
    places: Arc<Places>,
    /// Transfers under way, by number.
    under_way: Arc<Mutex<HashMap<u64, Arc<UnderWay>>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn open_disk(
    settings: &StoreSettings,
    path: &Path,
    bytes: u64,
    files: OpenFiles<'_>,
) -> Result<(Disk, Vec<KnownBlock>), StoreError> {
    let (layout, search_until) = (&settings.layout, settings.search_until);
    let record_max = record_max(layout.block_bytes, layout.block_size);
    Disk::open(&DiskSettings { path: path.to_owned(), bytes, layout: layout.id(), record_max, search_until }, files)
}

impl Store {
    /// Opens a store. Returns the blocks found in each tier in time, oldest first, in slots 0, 1, 2, ....
    ///
    /// # Errors
    /// If a setting has no meaning, or a tier cannot be used.
    pub fn open(settings: StoreSettings) -> Result<(Self, Vec<Vec<KnownBlock>>), StoreError> {
        Self::open_on(settings, &system_files)
    }

    /// Opens a store as [`Self::open`] does, with disk tiers on the files of `files`.
    ///
    /// # Errors
    /// If a setting has no meaning, or a tier cannot be used.
    pub fn open_on(settings: StoreSettings, files: OpenFiles<'_>) -> Result<(Self, Vec<Vec<KnownBlock>>), StoreError> {
        settings.check()?;
        let pool = Pool::start("store", settings.threads).map_err(StoreError::Thread)?;
        let (mut tiers, mut known, mut tier_pools) = (Vec::new(), Vec::new(), Vec::new());
        for medium in &settings.tiers {
            let (tier, blocks) = match medium {
                TierMedium::Host => (Tier::Host(Box::default()), Vec::new()),
                TierMedium::Disk { path, bytes } => {
                    let (disk, blocks) = open_disk(&settings, path, *bytes, files)?;
                    let pool = Pool::start("store-disk", DISK_THREADS).map_err(StoreError::Thread)?;
                    let tier = Tier::Disk(Box::new(disk), Arc::clone(pool.queue()));
                    tier_pools.push(pool);
                    (tier, blocks)
                }
                TierMedium::Shared(memory) => {
                    let memory = Remote::new(Box::new(memory.clone()), MEMORY_DEADLINE, settings.layout.id());
                    (remote_tier(memory, &mut tier_pools)?, Vec::new())
                }
                TierMedium::Remote { url, deadline } => {
                    let remote = Remote::open(url, *deadline, settings.layout.id())?;
                    (remote_tier(remote, &mut tier_pools)?, Vec::new())
                }
            };
            tiers.push(tier);
            known.push(blocks);
        }
        let places = Arc::new(Places::new(&settings, tiers, Arc::clone(pool.queue())));
        places.load_tables();
        let under_way = Arc::default();
        Ok((Self { settings, pool, _tier_pools: tier_pools, places, under_way }, known))
    }

    /// Announces the writes of a transfer that begins soon: look-ups of other stores in shared memory wait for these writes from now on. To be
    /// kept until [`Self::begin`] has returned.
    pub fn announce(&self, transfer: &Transfer) -> Vec<Announced> {
        if !self.places.is_remote(transfer.to) {
            return Vec::new();
        }
        (0..transfer.pairs.len()).filter_map(|pair| Announced::of(&self.places, transfer, pair)).collect()
    }

    /// Starts a transfer, and returns at once. `done` is called once, when no block is read or written for the transfer any more: from a thread of
    /// the store, or at once if there are no blocks.
    ///
    /// Each write takes the old contents of the slot out at once. If an earlier write to the slot is still under way, that write changes nothing
    /// any more.
    pub fn begin(
        &self,
        device: Arc<dyn DeviceBlocks>,
        transfer: Transfer,
        done: Box<dyn FnOnce(TransferReport) + Send>,
    ) {
        let under_way = Arc::new(UnderWay::new(transfer));
        let transfer = &under_way.transfer;
        lock(&self.under_way).insert(transfer.id, Arc::clone(&under_way));
        let (from, to, is_urgent) = (transfer.from, transfer.to, transfer.is_urgent);
        let link = self.places.link(from, to);
        let n = u32::try_from(transfer.pairs.len()).unwrap_or(u32::MAX);
        let (id, all, ended) = (transfer.id, Arc::clone(&self.under_way), Arc::downgrade(&under_way));
        let done = Box::new(move |report| {
            let mut all = lock(&all);
            // Another transfer may have begun under the number meanwhile.
            if all.get(&id).is_some_and(|latest| std::ptr::eq(Arc::as_ptr(latest), ended.as_ptr())) {
                all.remove(&id);
            }
            drop(all);
            done(report);
        });
        let pairs = Answer::pairs(n, &link, self.settings.layout.block_bytes as u64, done);
        let is_known = self.places.has(from) && self.places.has(to) && from != to;
        let is_tier = |place| matches!(place, Place::Tier(_));
        let has_keys = transfer.keys.len() == transfer.pairs.len()
            && transfer.tokens.len().checked_rem(transfer.keys.len()).is_none_or(|rest| rest == 0);
        let is_whole = is_known && (has_keys || !is_tier(from) && !is_tier(to)) && !self.places.is_left_alone(to);
        // Requests wait for loads, and swapped-out requests have their room; both are few. An urgent copy to a tier serves a request
        // on another core, which computes what is not there.
        let is_few = is_urgent && to == Place::Device || to == Place::Host || from == Place::Host;
        let limit = match (is_whole, is_few) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) if self.places.is_remote(to) => {
                self.settings.background_blocks.min(self.settings.remote_blocks)
            }
            (true, false) => self.settings.background_blocks,
        };
        let credits = link.take(n.into(), limit);
        let (items, refused) = self.claim(transfer, pairs, credits);
        let urgency = if is_urgent { Urgency::Urgent } else { Urgency::Background };
        let queue = self.places.queue_for(from, to);
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let items = items.by_ref().take(BATCH).collect();
            let (places, device) = (Arc::clone(&self.places), Arc::clone(&device));
            let copying = Copying { places, device, under_way: Arc::clone(&under_way), items };
            queue.push(urgency, Box::new(move |scratch| copying.run(scratch)));
        }
        self.pool.queue().push(Urgency::Urgent, Box::new(move |_| drop(refused)));
    }

    /// Interrupts a transfer without a reader: no thread begins another of its blocks. The number of an ended transfer is ignored.
    pub fn cancel(&self, transfer: u64) {
        if let Some(under_way) = lock(&self.under_way).get(&transfer) {
            under_way.cancel();
        }
    }

    /// Claims the destinations of all pairs. Returns the pairs with a credit, and those without. A chain comes tail first and is copied
    /// head first: blocks without the blocks before are of no use, so the tail is refused.
    fn claim(&self, transfer: &Transfer, pairs: Vec<Pair>, credits: u64) -> (Vec<Item>, Vec<Pair>) {
        let (mut items, mut refused) = (Vec::new(), Vec::new());
        let first = pairs.len() as u64 - credits.min(pairs.len() as u64);
        for (mut pair, (from, to)) in pairs.into_iter().zip(&transfer.pairs) {
            let source_generation = self.places.generation(transfer.from, *from);
            let generation = self.places.claim(transfer.to, *to);
            if pair.index() as u64 >= first {
                let announced = Announced::of(&self.places, transfer, pair.index());
                items.push(Item { pair, source_generation, generation, announced });
            } else {
                pair.refuse_without_credit();
                refused.push(pair);
            }
        }
        items.reverse();
        (items, refused)
    }

    /// Offers the blocks that a search of disks finds from now on to `take`, with the number of their tier. [`Self::decide`] MUST answer each batch before the next one
    /// of the tier comes.
    pub fn offer_to(&self, take: impl Fn(u8, Vec<KnownBlock>) + Clone + Send + 'static) {
        for (at, tier) in (0..).zip(&self.places.tiers) {
            if let Tier::Disk(disk, _) = tier {
                let take = take.clone();
                disk.offer_to(Box::new(move |blocks| take(at, blocks)));
            }
        }
    }

    /// Puts blocks that a search offered into slots of their tier, and gives up those without a slot.
    pub fn decide(&self, tier: u8, blocks: &[(u32, Option<u32>)]) {
        if let Some(Tier::Disk(disk, _)) = self.places.tier(Place::Tier(tier)) {
            disk.decide(blocks);
        }
    }

    /// Returns the layout of the blocks.
    pub fn layout(&self) -> &BlockLayout {
        &self.settings.layout
    }

    /// Empties slots that hold nothing of use any more, so that the memory is free. Copies under way to the slots change nothing any more.
    pub fn release(&self, place: Place, slots: &[u32]) {
        slots.iter().for_each(|slot| self.places.release(place, *slot));
    }

    /// Asks a remote tier for a chain of blocks, and returns at once. `done` is called once, from a thread of the store, with the number
    /// of leading blocks found: 0 without an answer, at once if the storage is down, and for any other tier, whose blocks the core knows.
    pub fn lookup(&self, lookup: Lookup, done: Box<dyn FnOnce(u32) + Send>) {
        let place = Place::Tier(lookup.tier);
        let answer = Found { found: 0, done: Some(done) };
        let nothing = |answer: Found| self.pool.queue().push(Urgency::Urgent, Box::new(move |_| drop(answer)));
        let Some(Tier::Remote(remote, queue)) = self.places.tier(place) else { return nothing(answer) };
        let places = Arc::clone(&self.places);
        if remote.stats().is_down {
            nothing(answer);
            let ask = move |_: &mut Scratch| {
                if let (Some(Tier::Remote(remote, _)), Some(key)) = (places.tier(place), lookup.keys.first()) {
                    remote.try_again(key);
                }
            };
            return queue.push(Urgency::Background, Box::new(ask));
        }
        let (queue, keys) = (Arc::clone(queue), lookup.keys.clone());
        let ask = move |_: &mut Scratch| {
            if let Some(Tier::Remote(remote, _)) = places.tier(place) {
                answer.send(remote.leading(&lookup.keys));
            }
        };
        remote.when_settled(&keys, Box::new(move || queue.push(Urgency::Urgent, Box::new(ask))));
    }

    /// Copies every block from now on, also one that host memory has by the same key. To be called before the cache is flushed: blocks of
    /// requests from before may have been computed with other weights.
    pub fn stop_sharing(&self) {
        self.places.named.close();
    }

    /// Returns the state of all places and links.
    pub fn stats(&self) -> StoreStats {
        StoreStats::of(&self.places)
    }
}

/// Locks state whose changes are whole even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads of a remote tier.
fn remote_tier(remote: Remote, pools: &mut Vec<Pool<Scratch>>) -> Result<Tier, StoreError> {
    let pool = Pool::start("store-remote", REMOTE_THREADS).map_err(StoreError::Thread)?;
    let tier = Tier::Remote(Box::new(remote), Arc::clone(pool.queue()));
    pools.push(pool);
    Ok(tier)
}

/// Answer to a look-up, sent when dropped.
struct Found {
    found: u32,
    done: Option<Box<dyn FnOnce(u32) + Send>>,
}

impl Found {
    fn send(mut self, found: usize) {
        self.found = u32::try_from(found).unwrap_or(u32::MAX);
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(self.found);
        }
    }
}

#[cfg(test)]
mod tests;
