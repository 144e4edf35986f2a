//! Disk tier: blocks in segment files of one folder, found again after a restart.
//!
//! `docs/reference/disk-tier.md` specifies the bytes and the steps of a recovery.

mod failures;
mod finishing;
mod folder;
mod log;
mod plain;
mod queue;
mod recovery;
mod scan;
mod search;
pub(crate) mod segment;
pub(crate) mod tables;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Instant;

use trunkline_files::{Aligned, Files, PAGE, SystemFiles};
use trunkline_port::{BlockKey, KnownBlock, Token};

use crate::counters::{Fault, FaultCounts};
use crate::error::StoreError;
use crate::record::{Header, header_len};
use crate::residency::Residency;

use folder::TierFolder;
pub use log::SEGMENTS_MAX;
use log::{Limits, Log};
use queue::WriteQueue;
use search::Search;
use writer::Writer;

pub use plain::plain_disk;
pub use queue::Write;
pub use recovery::{Checked, CheckedSegment, check};
pub use search::TakeFound;

/// Maker of the operations on the files of a folder, which is there: [`system_files`], or files that fail on purpose.
pub type OpenFiles<'a> = &'a dyn Fn(&Path) -> Arc<dyn Files>;

/// Most bytes of a segment, unless the tier has too many segments then.
const SEGMENT_MAX: u64 = 64 << 20;
/// Least bytes of a segment.
const SEGMENT_MIN: u64 = 256 << 10;
/// Minimum number of segments of a tier.
const SEGMENTS_MIN: u64 = 4;
/// Threads that write: writes in flight at once.
const WRITERS: usize = 4;
/// Maximum number of bytes of records waiting for the writers.
const QUEUE_BYTES: u64 = 64 << 20;

/// Work and state of a disk tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes written for transfers, with padding.
    pub written_bytes: u64,
    /// Bytes written again to empty segments; write amplification is 1 + this / `written_bytes`.
    pub rewritten_bytes: u64,
    /// Writes that the system refused.
    pub failed_writes: u64,
    /// Segments there are.
    pub segments: u64,
    /// Segments deleted since the store was opened.
    pub deleted_segments: u64,
    /// Bytes of records waiting to be written.
    pub queued_bytes: u64,
    /// Records dropped at the last start, by reason.
    pub dropped_at_start: FaultCounts,
    /// `true` if the page cache is bypassed.
    pub is_direct: bool,
}

/// Blocks on disk.
#[derive(Debug)]
pub struct Disk {
    log: Arc<Log>,
    queue: Arc<WriteQueue>,
    /// Writers, the finisher of their segments, and the search for those from before.
    threads: Vec<JoinHandle<()>>,
    search: Arc<Search>,
    is_direct: bool,
}

/// Size of a disk tier and of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Folder, for this tier alone.
    pub path: PathBuf,
    /// Size limit, bytes.
    pub bytes: u64,
    /// Layout of the blocks.
    pub layout: u64,
    /// Bytes of the longest record.
    pub record_max: usize,
    /// Latest time at which opening ends; blocks found later are offered ([`Disk::offer_to`]). `None`: all blocks are found first.
    pub search_until: Option<Instant>,
}

/// Returns the bytes of the longest record of blocks of `block_bytes` with `block_size` tokens.
pub fn record_max(block_bytes: usize, block_size: u32) -> usize {
    // A frame is never more than its header longer than the block.
    (header_len(block_size as usize) + block_bytes + 1024).next_multiple_of(PAGE)
}

/// Returns the files of the operating system, past the page cache where the filesystem of `folder` allows.
pub fn system_files(folder: &Path) -> Arc<dyn Files> {
    Arc::new(SystemFiles::new(folder))
}

/// Returns the bytes that the filesystem has for a tier in `folder`, with those of the files there; `None` if the system does not say.
fn room(folder: &Path, files: &dyn Files) -> Option<u64> {
    let own = files.list(folder).unwrap_or_default();
    let own: u64 = own.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
    Some(files.free_bytes(folder)?.saturating_add(own))
}

impl DiskSettings {
    /// Returns the limits of the log, with segments small enough for a filesystem that has `room` for the tier, bytes; `None` if nobody knows.
    fn limits(&self, room: Option<u64>) -> Result<Limits, StoreError> {
        let least = (4 * self.record_max as u64 + 2 * PAGE as u64).next_multiple_of(PAGE as u64);
        let fits = room.map_or(self.bytes, |room| room.min(self.bytes));
        let part = (fits / 32).clamp(SEGMENT_MIN, SEGMENT_MAX).max(fits / SEGMENTS_MAX);
        let segment_bytes = part.max(least) / PAGE as u64 * PAGE as u64;
        let segments = (self.bytes / segment_bytes).min(SEGMENTS_MAX);
        if fits < self.bytes {
            let (path, bytes) = (self.path.display(), self.bytes);
            if fits < SEGMENTS_MIN * segment_bytes {
                let needed = SEGMENTS_MIN * segment_bytes;
                let reason = format!(
                    "the filesystem of {path} has room for {fits} bytes, and blocks of this size need {needed} at least; free space there or name \
                     another folder"
                );
                return Err(StoreError::Setting { setting: "disk", reason });
            }
            tracing::warn!(
                "{path}: the disk tier may take {bytes} bytes, and the filesystem has room for {fits}; what does not fit is not kept"
            );
        }
        if segments < SEGMENTS_MIN {
            let least = SEGMENTS_MIN * segment_bytes;
            let reason = format!("{} bytes are too few for blocks of this size; {least} at least", self.bytes);
            return Err(StoreError::Setting { setting: "disk size", reason });
        }
        let bytes = segments * segment_bytes;
        Ok(Limits { folder: self.path.clone(), layout: self.layout, segment_bytes, bytes })
    }
}

impl Disk {
    /// Opens a disk tier on the files of `files`, and creates its folder if need be. Returns the blocks found in time, oldest first, in slots 0, 1, 2, ....
    ///
    /// # Errors
    /// If the folder cannot be used, or another process uses it.
    pub fn open(settings: &DiskSettings, files: OpenFiles<'_>) -> Result<(Self, Vec<KnownBlock>), StoreError> {
        let folder = TierFolder::open(&settings.path, settings.layout)?;
        let files = files(&settings.path);
        folder.close_to_others(&*files);
        let is_direct = files.is_direct();
        let room = room(&settings.path, &*files);
        let log = Arc::new(Log::new(settings.limits(room)?, files, folder));
        let failed = |source| StoreError::Disk { path: settings.path.clone(), task: "read the segments", source };
        let (old, next_segment) = recovery::old_segments(&log).map_err(failed)?;
        if !old.is_empty() {
            // Behind all writes from before, which are not known yet: a segment has fewer records than this.
            let before = next_segment.saturating_mul(1 << 32).min(u64::MAX >> 1);
            log.counters.sequence.fetch_max(before, Relaxed);
        }
        let (queue, search) = (Arc::new(WriteQueue::new(QUEUE_BYTES)), Arc::<Search>::default());
        let (writer, finisher) = Writer::new(&log, &queue, next_segment);
        let threads = Vec::new();
        let mut disk = Self { log, queue, threads, search, is_direct };
        let start = |name: String, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name).spawn(run).map_err(StoreError::Thread)
        };
        let (search, log) = (Arc::clone(&disk.search), Arc::clone(&disk.log));
        disk.threads.push(start("store-search".to_owned(), Box::new(move || search.run(&log, old)))?);
        let (found, is_all) = disk.search.take_at_start(settings.search_until);
        let blocks = recovery::settle(&disk.log, found, is_all);
        if !is_all {
            let (path, n) = (settings.path.display(), blocks.len());
            tracing::info!("{path}: {n} blocks are found so far; others are found while requests are served");
        }
        for at in 0..WRITERS {
            let writer = Arc::clone(&writer);
            disk.threads.push(start(format!("store-write-{at}"), Box::new(move || writer.run()))?);
        }
        disk.threads.push(start("store-finish".to_owned(), Box::new(move || finisher.run()))?);
        Ok((disk, blocks))
    }

    /// Offers the blocks found from now on to `take`, a batch after another. [`Self::decide`] MUST answer each.
    pub fn offer_to(&self, take: TakeFound) {
        self.search.offer_to(take);
    }

    /// Puts offered blocks into slots, by their numbers, and gives up those without a slot.
    pub fn decide(&self, blocks: &[(u32, Option<u32>)]) {
        self.search.decide(&self.log, blocks);
    }

    /// Returns a buffer for [`Write::record`].
    pub fn buffer(&self) -> Aligned {
        self.queue.buffer()
    }

    /// Returns `true` if the writer's queue takes another record.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.queue.has_room(bytes as u64)
    }

    /// Queues a record for the writer, which answers. A full queue answers at once that the record is refused.
    pub fn write(&self, write: Write) {
        self.queue.push(write);
    }

    /// Reads the record of a slot into `record`, if the slot holds the block.
    ///
    /// # Errors
    /// If the slot is empty, or holds another block, or its record fails verification.
    pub fn read(&self, slot: u32, key: &BlockKey, tokens: &[Token], record: &mut Aligned) -> Result<Header, Fault> {
        self.log.find(slot, key, tokens, record)
    }

    /// Claims a slot for a write. The record there is dead.
    pub fn claim(&self, slot: u32) -> u64 {
        self.log.slots.claim(slot).0
    }

    /// Empties a slot. The record there is dead, but may be found after a restart.
    pub fn release(&self, slot: u32) {
        drop(self.log.slots.release(slot));
    }

    /// Returns the generation of a slot.
    pub fn generation(&self, slot: u32) -> u64 {
        self.log.slots.generation(slot)
    }

    /// Returns the number of blocks, the bytes of the records, and the bytes of records for which there is room without emptying segments
    /// all the time.
    pub fn usage(&self) -> (u64, u64, u64) {
        (self.log.slots.filled(), self.log.live_bytes(), self.log.room_bytes())
    }

    /// Returns the times that blocks spent in the tier.
    pub fn residency(&self) -> Residency {
        self.log.slots.residency()
    }

    /// Keeps a side table for the frames of the tier.
    pub fn save_table(&self, id: u64, table: &[u8]) {
        self.log.folder.save_table(id, table);
    }

    /// Returns the side tables of the tier, the newest last.
    pub fn tables(&self) -> Vec<Vec<u8>> {
        self.log.folder.tables()
    }

    /// Returns the work done.
    pub fn stats(&self) -> DiskStats {
        let counters = &self.log.counters;
        DiskStats {
            written_bytes: counters.written.load(Relaxed),
            rewritten_bytes: counters.rewritten.load(Relaxed),
            failed_writes: counters.failed.load(Relaxed),
            segments: self.log.segments().len() as u64 + self.log.unsearched.segments(),
            deleted_segments: counters.deleted.load(Relaxed),
            queued_bytes: self.queue.queued_bytes(),
            dropped_at_start: self.search.dropped(),
            is_direct: self.is_direct,
        }
    }
}

impl Drop for Disk {
    /// Writes all records in the queue, completes the segment, ends the search, and waits for the threads.
    fn drop(&mut self) {
        self.search.stop();
        self.queue.close();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != own) {
            if thread.join().is_err() {
                tracing::error!("a writer of a disk tier panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests;
