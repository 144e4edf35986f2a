//! Remote tier: records as objects in storage shared by many servers.
//!
//! An object's name is `v1/LAYOUT/ROOT/HASH`, all in hexadecimal digits: who knows the key of a block knows the name. Side tables are
//! `v1/LAYOUT/tables/ID`. Objects are never deleted by a server; the store's own rules (as a bucket's lifecycle) let them expire, so a side table is
//! written again each hour while frames need it.

mod address;
mod breaker;
mod folder;
mod objects;
mod patience;
mod shared_memory;
mod stored;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline_port::{BlockKey, Token};

use crate::counters::Fault;
use crate::disk::tables;
use crate::error::StoreError;
use crate::record::{Address, Header};
use crate::slots::Slots;

use breaker::Breaker;
use objects::{Objects, Then, Unanswered};
pub use shared_memory::SharedMemory;

/// Longest side table read, bytes.
const TABLE_MAX: usize = 64 << 20;

/// Time after which a side table is written again: objects expire, and each frame needs a table that is as new.
const TABLE_AGAIN: Duration = Duration::from_secs(3600);
/// Part of the names of all side tables, and of no other object.
const TABLES: &str = "/tables/";

/// Blocks asked for at once by a look-up.
const PROBES: usize = 8;
/// Blocks asked for at once where every block is asked for.
const ASKED_AT_ONCE: usize = 64;

/// Returns positions from `low` to below `high`, both ends among them, evenly spread.
fn probes(low: usize, high: usize) -> Vec<usize> {
    let n = (high - low).min(PROBES);
    (0..n).map(|probe| low + probe * (high - low - 1) / (n - 1).max(1)).collect()
}

/// State of a remote tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// `true` if the store did not answer reads and look-ups lately: all but single tries fail at once.
    pub is_down: bool,
    /// `true` if the store took no writes lately: all but single tries are refused at once.
    pub takes_no_writes: bool,
    /// Tries of reads and writes while the store was down.
    pub tries_while_down: u64,
}

/// Blocks in remote storage.
#[derive(Debug)]
pub struct Remote {
    objects: Box<dyn Objects>,
    layout: u64,
    deadline: Duration,
    /// Circuit breaker of reads and look-ups.
    reads: Breaker,
    /// Circuit breaker of writes, apart from reads: a store may be full, or closed to writers.
    writes: Breaker,
    /// Times of the last writes of side tables.
    tables: Mutex<HashMap<u64, Instant>>,
    /// Bytes of the records written by this store, by slot. A record is read by its key, whatever the slot holds.
    slots: Slots<u64>,
    stored: AtomicU64,
}

/// Reason for no block from remote storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBlock {
    /// The object failed verification.
    Unproven(Fault),
    /// The store did not answer.
    Unanswered,
    /// The store took no object.
    Refused,
}

impl Remote {
    /// Opens the store at an address.
    ///
    /// # Errors
    /// If the address has no meaning.
    pub fn open(address: &str, deadline: Duration, layout: u64) -> Result<Self, StoreError> {
        Ok(Self::new(address::open(address)?, deadline, layout))
    }

    /// Creates a tier of objects.
    pub fn new(objects: Box<dyn Objects>, deadline: Duration, layout: u64) -> Self {
        let [reads, writes] = [Breaker::default(), Breaker::default()];
        let (tables, slots) = (Mutex::default(), Slots::default());
        Self { objects, layout, deadline, reads, writes, tables, slots, stored: AtomicU64::new(0) }
    }

    /// Returns the slots, for look-ups.
    pub fn slots(&self) -> &Slots<u64> {
        &self.slots
    }

    /// Claims a slot for a write.
    pub fn claim(&self, slot: u32) -> u64 {
        let (generation, old) = self.slots.claim(slot);
        self.stored.fetch_sub(old.unwrap_or(0), Relaxed);
        generation
    }

    /// Empties a slot. The object stays.
    pub fn release(&self, slot: u32) {
        self.stored.fetch_sub(self.slots.release(slot).unwrap_or(0), Relaxed);
    }

    /// Fills a slot, unless a later claim owns the slot: the object stays all the same, and is found by its key.
    pub fn fill(&self, slot: u32, generation: u64, bytes: u64) {
        self.stored.fetch_add(bytes, Relaxed);
        if let Err(bytes) = self.slots.fill(slot, generation, bytes) {
            self.stored.fetch_sub(bytes, Relaxed);
        }
    }

    /// Returns the bytes of the objects in all slots.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.load(Relaxed)
    }

    /// Returns `true` if the store takes no writes for now: a write would fail at once.
    pub fn is_left_alone(&self) -> bool {
        self.writes.is_open(Instant::now())
    }

    fn name(&self, key: &BlockKey) -> String {
        format!("v1/{:016x}/{:032x}/{:032x}", self.layout, key.root, key.hash)
    }

    fn table_name(&self, id: u64) -> String {
        format!("v1/{:016x}{TABLES}{id:016x}", self.layout)
    }

    /// Makes a call, judged by `breaker`. Fails without a reason if the store is left alone. `task` is a verb with its object, for the log.
    fn call<T>(
        &self,
        breaker: &Breaker,
        task: (&str, &str),
        call: impl FnOnce(Instant) -> Result<T, Unanswered>,
    ) -> Result<T, Option<Unanswered>> {
        let ((verb, object), now) = (task, Instant::now());
        let allowed = breaker.allows(now).ok_or(None)?;
        let result = call(now + self.deadline);
        match &result {
            Ok(_) if breaker.answered() => tracing::info!("the remote store {verb} {object} again"),
            Ok(_) => {}
            Err(error) if breaker.failed(allowed, Instant::now()) => {
                tracing::warn!(
                    "the remote store {verb} no {object}; it is marked down, retrying one call at a time: {error}"
                );
            }
            Err(_) => {}
        }
        result.map_err(Some)
    }

    fn read<T>(&self, call: impl FnOnce(Instant) -> Result<T, Unanswered>) -> Result<T, NoBlock> {
        self.call(&self.reads, ("answers", "reads"), call).map_err(|_| NoBlock::Unanswered)
    }

    fn write(&self, name: &str, bytes: Vec<u8>) -> Result<(), NoBlock> {
        let put = |deadline| self.objects.put(name, bytes, deadline);
        self.call(&self.writes, ("takes", "writes"), put).map_err(|reason| match reason {
            Some(Unanswered::Deadline) => NoBlock::Unanswered,
            Some(Unanswered::Failed(_)) | None => NoBlock::Refused,
        })
    }

    /// Notes that the record of a block is about to be written. [`Self::settle`] MUST follow.
    pub fn announce(&self, key: &BlockKey) {
        self.objects.announce(self.name(key));
    }

    /// Notes the end of a write that was announced.
    pub fn settle(&self, key: &BlockKey) {
        self.objects.settle(&self.name(key));
    }

    /// Calls `then` when no record of these blocks is on the way, as far as this process knows.
    pub fn when_settled(&self, keys: &[BlockKey], then: Then) {
        let names: Vec<String> = keys.iter().map(|key| self.name(key)).collect();
        self.objects.when_settled(&names, then);
    }

    /// Writes a record. Returns its bytes.
    ///
    /// # Errors
    /// If the store did not answer, or took no object.
    pub fn put(&self, key: &BlockKey, record: Vec<u8>) -> Result<u64, NoBlock> {
        let len = record.len() as u64;
        self.write(&self.name(key), record)?;
        Ok(len)
    }

    /// Reads the record of a block.
    ///
    /// # Errors
    /// If there is none, the record fails verification, or the store did not answer.
    pub fn get(&self, key: &BlockKey, tokens: &[Token], record_max: usize) -> Result<(Header, Vec<u8>), NoBlock> {
        let record = self.read(|deadline| self.objects.get(&self.name(key), record_max, deadline))?;
        let record = record.ok_or(NoBlock::Unproven(Fault::Missing))?;
        let check = || {
            let header = Header::read(&record)?;
            if header.address != Address::default() {
                return Err(Fault::Swapped);
            }
            header.payload(&record)?;
            header.prove(self.layout, key, tokens)?;
            Ok(header)
        };
        let header = check().map_err(NoBlock::Unproven)?;
        Ok((header, record))
    }

    /// Returns the number of leading blocks with objects; 0 without an answer. Of a chain, asks for a few blocks at a time, so some blocks
    /// before the last one found may be missing all the same: writers write whole chains, but objects expire. Of blocks of windows, which
    /// are written as far as they are known, asks for all.
    pub fn leading(&self, keys: &[BlockKey]) -> usize {
        if keys.iter().all(|key| key.parent == key.hash) {
            return self.leading_one_by_one(keys);
        }
        // Objects are there below `low`, and not from `high` on.
        let (mut low, mut high) = (0, keys.len());
        while low < high {
            let probes = probes(low, high);
            let names: Vec<String> = probes.iter().map(|at| self.name(&keys[*at])).collect();
            let Ok(found) = self.read(|deadline| self.objects.has(&names, deadline)) else { return 0 };
            for (at, found) in probes.into_iter().zip(found) {
                if found {
                    low = low.max(at + 1);
                } else {
                    high = high.min(at);
                }
            }
        }
        high
    }

    /// Returns the number of leading blocks with objects, and asks for each.
    fn leading_one_by_one(&self, keys: &[BlockKey]) -> usize {
        let mut there = 0;
        for keys in keys.chunks(ASKED_AT_ONCE) {
            let names: Vec<String> = keys.iter().map(|key| self.name(key)).collect();
            let Ok(found) = self.read(|deadline| self.objects.has(&names, deadline)) else { return 0 };
            there += found.iter().take_while(|found| **found).count();
            if found.contains(&false) {
                break;
            }
        }
        there
    }

    /// Asks for a block, so that a store is noticed that answers again.
    pub fn try_again(&self, key: &BlockKey) {
        let _ = self.read(|deadline| self.objects.has(&[self.name(key)], deadline));
    }

    /// Writes the side table returned by `table`, unless the table was written a short time before `now`.
    ///
    /// # Errors
    /// If the store did not answer, or took no object.
    pub fn put_table(&self, id: u64, now: Instant, table: impl FnOnce() -> Option<Vec<u8>>) -> Result<(), NoBlock> {
        let is_new = |written: &Instant| now.saturating_duration_since(*written) < TABLE_AGAIN;
        if self.tables.lock().unwrap_or_else(PoisonError::into_inner).get(&id).is_some_and(is_new) {
            return Ok(());
        }
        let Some(table) = table() else { return Ok(()) };
        self.write(&self.table_name(id), tables::wrap(self.layout, &table))?;
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).insert(id, now);
        Ok(())
    }

    /// Reads a side table.
    ///
    /// # Errors
    /// If there is none, the table is damaged, or the store did not answer.
    pub fn table(&self, id: u64) -> Result<Vec<u8>, NoBlock> {
        let bytes = self.read(|deadline| self.objects.get(&self.table_name(id), TABLE_MAX, deadline))?;
        let bytes = bytes.ok_or(NoBlock::Unproven(Fault::Stale))?;
        let table = tables::unwrap(self.layout, &bytes).map_err(NoBlock::Unproven)?;
        Ok(table.to_vec())
    }

    /// Returns the state of the store.
    pub fn stats(&self) -> RemoteStats {
        let ((is_down, tried_reads), (takes_no_writes, tried_writes)) = (self.reads.stats(), self.writes.stats());
        RemoteStats { is_down, takes_no_writes, tries_while_down: tried_reads + tried_writes }
    }
}

#[cfg(test)]
mod tests;
