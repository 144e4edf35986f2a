//! Contents of a disk tier: the records by slot, and the segments.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use trunkline_files::{Aligned, Files, read_full};
use trunkline_port::{BlockKey, Token};

use crate::counters::Fault;
use crate::record::Header;
use crate::slots::Slots;

use super::failures::Failures;
use super::finishing::Finishing;
use super::folder::TierFolder;
use super::segment::{Location, Segment};

/// Maximum number of segments of a disk tier: each is an open file. A folder from before may have more; then each new segment takes the place of
/// one.
pub const SEGMENTS_MAX: u64 = 512;

/// Size and limits of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Folder of the segments.
    pub folder: PathBuf,
    /// Layout of the records.
    pub layout: u64,
    /// Bytes of a new segment.
    pub segment_bytes: u64,
    /// Maximum number of bytes of all segments. Those of one segment are kept for emptying others.
    pub bytes: u64,
}

/// Contents of a disk tier, shared by its writer and its readers.
#[derive(Debug)]
pub struct Log {
    /// Size and limits.
    pub limits: Limits,
    /// Operations on files.
    pub files: Arc<dyn Files>,
    /// Folder of the segments, locked.
    pub folder: TierFolder,
    /// Records by slot.
    pub slots: Slots<Arc<Location>>,
    /// Work done.
    pub counters: WriteCounters,
    /// Segments on their way to completion.
    pub finishing: Arc<Finishing>,
    /// Segments from before that were not searched yet.
    pub unsearched: Unsearched,
    /// Bytes of records for which the filesystem has space; not known if it has enough.
    room_of_filesystem: AtomicU64,
    segments: Mutex<BTreeMap<u64, Arc<Segment>>>,
}

/// Segments from before whose contents are not known yet. They take space, and none can be emptied or deleted.
#[derive(Debug, Default)]
pub struct Unsearched {
    bytes: AtomicU64,
    segments: AtomicU64,
}

impl Unsearched {
    /// Adds a segment of `bytes`.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.segments.fetch_add(1, Relaxed);
    }

    /// Removes a segment of `bytes`.
    pub fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.segments.fetch_sub(1, Relaxed);
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> u64 {
        self.segments.load(Relaxed)
    }
}

/// Work done by the writer of a disk tier.
#[derive(Debug, Default)]
pub struct WriteCounters {
    /// Bytes of records written for transfers, with padding.
    pub written: AtomicU64,
    /// Bytes of records written again to empty their segments.
    pub rewritten: AtomicU64,
    /// Writes that the system refused.
    pub failed: AtomicU64,
    /// Refused writes, for the log.
    pub failures: Failures,
    /// Segments deleted.
    pub deleted: AtomicU64,
    /// Number of the last write.
    pub sequence: AtomicU64,
}

impl Log {
    /// Creates the contents of an empty tier.
    pub fn new(limits: Limits, files: Arc<dyn Files>, folder: TierFolder) -> Self {
        Self {
            limits,
            files,
            folder,
            slots: Slots::default(),
            counters: WriteCounters::default(),
            finishing: Arc::default(),
            unsearched: Unsearched::default(),
            room_of_filesystem: AtomicU64::new(u64::MAX),
            segments: Mutex::default(),
        }
    }

    /// Counts a write that the system refused, and logs some of them.
    pub fn failed(&self, path: &Path, task: &str, error: &io::Error) {
        self.counters.failed.fetch_add(1, Relaxed);
        if let Some(failures) = self.counters.failures.failed(Instant::now()) {
            let more = "blocks are not kept until a write succeeds; further failures are counted, not logged";
            tracing::warn!(failures, "{}: {task}: {error}; {more}", path.display());
        }
    }

    /// Counts the bytes of records written.
    pub fn wrote(&self, bytes: u64) {
        self.counters.written.fetch_add(bytes, Relaxed);
        if self.counters.failures.succeeded() {
            tracing::info!("{}: writes succeed again", self.limits.folder.display());
        }
    }

    /// Returns the segments by number.
    pub fn segments(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of records in use.
    pub fn live_bytes(&self) -> u64 {
        self.segments().values().map(|segment| segment.live_bytes()).sum()
    }

    /// Returns the maximum number of bytes that records can take.
    pub fn capacity_bytes(&self) -> u64 {
        self.limits.bytes - self.limits.segment_bytes
    }

    /// Returns the bytes for live records, so that segments are not emptied all the time. After [`Self::filesystem_is_full`] fewer than
    /// the live bytes, so that blocks leave and segments can be deleted.
    pub fn room_bytes(&self) -> u64 {
        (self.capacity_bytes() / 8 * 7).min(self.room_of_filesystem.load(Relaxed))
    }

    /// Notes that the filesystem has no space for another segment, though the limit is not reached. A record has room all the same: its write
    /// tries again.
    pub fn filesystem_is_full(&self) {
        let room = (self.live_bytes() / 8 * 7).max(self.limits.segment_bytes / 4);
        self.room_of_filesystem.fetch_min(room, Relaxed);
    }

    /// Notes that the filesystem had space for another segment.
    pub fn filesystem_has_space(&self) {
        self.room_of_filesystem.store(u64::MAX, Relaxed);
    }

    /// Returns the bytes to be deleted before `n` more segments are within the limit.
    pub fn excess_bytes(&self, n: u64) -> u64 {
        let used: u64 = self.segments().values().map(|segment| segment.bytes).sum();
        let used = used + self.unsearched.bytes.load(Relaxed);
        (used + n * self.limits.segment_bytes).saturating_sub(self.limits.bytes)
    }

    /// Puts a record found on the disk into a slot.
    pub fn put(&self, slot: u32, location: Arc<Location>) {
        let (generation, _) = self.slots.claim(slot);
        drop(self.slots.fill(slot, generation, location));
    }

    /// Looks for segments whose files somebody removed, and makes the folder again if it is gone. There is one line in the log for all that is found at
    /// once. Blocks of removed segments are found as long as the server runs.
    ///
    /// # Errors
    /// If the folder cannot be made again.
    pub fn find_removed(&self) -> io::Result<()> {
        let is_new = self.folder.restore();
        let removed = self.segments().values().filter(|segment| segment.is_newly_removed()).count();
        let folder = match is_new {
            Ok(true) => "the folder was removed under the running server, and is made again",
            Ok(false) => "the folder is there",
            Err(_) => "the folder was removed under the running server",
        };
        // A folder that cannot be made again is in the log with the writes that fail.
        if removed > 0 || matches!(is_new, Ok(true)) {
            let path = self.limits.folder.display();
            tracing::warn!(
                "{path}: {folder}; {removed} segments were removed: their blocks are found until the server ends, and not after"
            );
        }
        is_new.map(|_| ())
    }

    /// Deletes a segment. Records that a reader has in hand stay readable. A segment whose file cannot be deleted takes space as before.
    pub fn delete(&self, number: u64) {
        let Some(segment) = self.segments().get(&number).cloned() else { return };
        match self.files.remove(&segment.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{}: cannot delete the segment: {error}", segment.path.display());
            }
            _ => {
                self.segments().remove(&number);
                self.counters.deleted.fetch_add(1, Relaxed);
            }
        }
    }

    /// Reads a record into `record`, whole, and proves that the record is the one of a slot.
    ///
    /// # Errors
    /// If the record is not whole, or another one.
    pub fn read(&self, location: &Location, record: &mut Aligned) -> Result<Header, Fault> {
        record.resize(location.len as usize);
        let n = read_full(location.segment.file.as_ref(), record.as_mut_slice(), location.address.offset);
        if n.map_err(|_| Fault::Unreadable)? < record.as_slice().len() {
            return Err(Fault::Short);
        }
        let header = Header::read(record.as_slice())?;
        if header.address.segment != location.address.segment || header.address.offset != location.address.offset {
            return Err(Fault::Swapped);
        }
        if header.address.sequence != location.address.sequence {
            return Err(Fault::Stale);
        }
        header.payload(record.as_slice())?;
        Ok(header)
    }

    /// Reads the record of a slot, if the slot holds the block.
    ///
    /// # Errors
    /// If the slot is empty, or holds another block, or its record fails verification.
    pub fn find(&self, slot: u32, key: &BlockKey, tokens: &[Token], record: &mut Aligned) -> Result<Header, Fault> {
        let (_, location) = self.slots.get(slot).ok_or(Fault::Missing)?;
        if location.key != *key {
            return Err(Fault::Swapped);
        }
        let header = self.read(&location, record)?;
        header.prove(self.limits.layout, key, tokens)?;
        Ok(header)
    }
}
