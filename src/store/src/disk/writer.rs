//! Writer of a disk tier: appends records to the last segment, and empties segments when space is short.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use trunkline_port::BlockFault;

use crate::aligned::{Aligned, PAGE};
use crate::record::{Address, place};

use super::files::{write_all, write_side_by_side};
use super::log::Log;
use super::queue::{Write, WriteQueue};
use super::segment::{Location, Segment};

/// Bytes written in one go.
const BATCH: usize = 8 << 20;
/// Requests in flight for a batch, at most, and bytes of each, at least.
const WRITES: usize = 4;
const WRITE_MIN: usize = 1 << 20;
/// A segment is emptied if at most this many sixteenths are live; fuller disks take nothing new.
const LIVE_MAX_16THS: u64 = 15;

/// Segment being written.
struct Open {
    segment: Arc<Segment>,
    at: u64,
    records: u64,
}

/// Writer of a disk tier.
pub struct Writer {
    log: Arc<Log>,
    queue: Arc<WriteQueue>,
    open: Option<Open>,
    next_segment: u64,
}

impl Writer {
    /// Creates a writer whose first segment will have number `next_segment`.
    pub fn new(log: Arc<Log>, queue: Arc<WriteQueue>, next_segment: u64) -> Self {
        Self { log, queue, open: None, next_segment }
    }

    /// Writes until the queue is closed and empty; then completes the segment.
    pub fn run(mut self) {
        loop {
            let writes = self.queue.take(BATCH);
            if writes.is_empty() {
                break;
            }
            self.write(writes);
        }
        self.complete();
    }

    /// Completes the open segment, if any.
    fn complete(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.records == 0 {
            self.log.delete(open.segment.number);
        } else if let Err(error) = open.segment.complete(open.at, open.records) {
            tracing::warn!("{}: cannot complete the segment: {error}", open.segment.path.display());
        }
    }

    /// Writes records, in as many batches as segments are needed.
    fn write(&mut self, writes: Vec<Write>) {
        let mut batch: Vec<Write> = Vec::new();
        let mut batch_bytes = 0;
        for write in writes {
            let len = write.record.as_slice().len() as u64;
            if self.room() < batch_bytes + len {
                self.write_batch(std::mem::take(&mut batch));
                batch_bytes = 0;
                if let Err(fault) = self.make_room(len) {
                    self.answer(write, Err(fault));
                    continue;
                }
            }
            batch_bytes += len;
            batch.push(write);
        }
        self.write_batch(batch);
    }

    fn answer(&self, write: Write, result: Result<u64, BlockFault>) {
        let Write { record, done, .. } = write;
        self.queue.written(vec![record]);
        done(result);
    }

    /// Returns the bytes that the open segment has left, without its end page.
    fn room(&self) -> u64 {
        let limit = self.log.limits.segment_bytes - PAGE as u64;
        self.open.as_ref().map_or(0, |open| limit.saturating_sub(open.at))
    }

    /// Writes records into the open segment, which has room for them.
    fn write_batch(&mut self, mut writes: Vec<Write>) {
        let Some(open) = self.open.as_mut().filter(|_| !writes.is_empty()) else {
            debug_assert!(writes.is_empty(), "records have a segment");
            return;
        };
        let begin = open.at;
        let mut addresses = Vec::with_capacity(writes.len());
        for write in &mut writes {
            let sequence = self.log.counters.sequence.fetch_add(1, Relaxed) + 1;
            let address = Address { sequence, segment: open.segment.number, offset: open.at };
            place(write.record.as_mut_slice(), write.n_tokens, address);
            open.at += write.record.as_slice().len() as u64;
            addresses.push(address);
        }
        let parts: Vec<&[u8]> = writes.iter().map(|write| write.record.as_slice()).collect();
        let result = write_side_by_side(open.segment.file.as_ref(), &parts, begin, WRITES, WRITE_MIN);
        let segment = Arc::clone(&open.segment);
        if result.is_ok() {
            open.records += writes.len() as u64;
            self.log.counters.written.fetch_add(open.at - begin, Relaxed);
        }
        let fault = result.err().map(|error| self.failed(&error, begin));
        for (write, address) in writes.into_iter().zip(addresses) {
            let len = write.record.as_slice().len() as u64;
            if fault.is_none() {
                let location = Location::new(&segment, address, len, write.key);
                // A later claim owns the slot: the record is dead.
                drop(self.log.slots.fill(write.slot, write.generation, location));
            }
            self.answer(write, fault.map_or(Ok(len), Err));
        }
    }

    /// Gives up the open segment after a failed write at `begin`: nothing is written behind a hole.
    fn failed(&mut self, error: &io::Error, begin: u64) -> BlockFault {
        self.log.counters.failed.fetch_add(1, Relaxed);
        if let Some(open) = &mut self.open {
            tracing::warn!("{}: cannot write: {error}", open.segment.path.display());
            open.at = begin;
        }
        self.complete();
        fault_of(error)
    }

    /// Opens a segment with room for `len` bytes; empties others if there must be no more.
    fn make_room(&mut self, len: u64) -> Result<(), BlockFault> {
        let capacity = self.log.limits.segment_bytes - 2 * PAGE as u64;
        if len > capacity {
            return Err(BlockFault::Refused);
        }
        self.complete();
        while self.room() < len {
            self.complete();
            self.delete_dead();
            let (count, max) = (self.log.segments().len(), self.log.limits.segments_max);
            if count + 1 < max {
                self.create()?;
            } else {
                let victim = self.victim().ok_or(BlockFault::Refused)?;
                if victim.live_bytes() > capacity * LIVE_MAX_16THS / 16 {
                    return Err(BlockFault::Refused);
                }
                self.create()?;
                self.empty(&victim)?;
            }
        }
        Ok(())
    }

    fn create(&mut self) -> Result<(), BlockFault> {
        let limits = &self.log.limits;
        let number = self.next_segment;
        self.next_segment += 1;
        let segment =
            Segment::create(self.log.files.as_ref(), &limits.folder, number, limits.segment_bytes, limits.layout);
        let segment = segment.map_err(|error| {
            self.log.counters.failed.fetch_add(1, Relaxed);
            tracing::warn!("{}: cannot create a segment: {error}", limits.folder.display());
            fault_of(&error)
        })?;
        self.log.segments().insert(number, Arc::clone(&segment));
        self.open = Some(Open { segment, at: PAGE as u64, records: 0 });
        Ok(())
    }

    fn delete_dead(&self) {
        let dead: Vec<u64> =
            self.log.segments().values().filter(|segment| segment.live_bytes() == 0).map(|s| s.number).collect();
        dead.into_iter().for_each(|number| self.log.delete(number));
    }

    /// Returns the complete segment with the fewest live bytes.
    fn victim(&self) -> Option<Arc<Segment>> {
        let segments = self.log.segments();
        segments.values().min_by_key(|segment| (segment.live_bytes(), segment.number)).cloned()
    }

    /// Writes the live records of a segment again, into the open one, and deletes the segment.
    fn empty(&mut self, victim: &Arc<Segment>) -> Result<(), BlockFault> {
        let mut live = self.log.slots.collect(|location| location.segment.number == victim.number);
        live.sort_unstable_by_key(|(.., location)| location.address.offset);
        let mut record = Aligned::default();
        for (slot, generation, location) in live {
            // A record that fails verification stays in its slot: whoever reads the slot next gets the fault.
            let Ok(header) = self.log.read(&location, &mut record) else { continue };
            let Some(open) = &mut self.open else { return Err(BlockFault::Interrupted) };
            let address = Address { segment: open.segment.number, offset: open.at, ..location.address };
            place(record.as_mut_slice(), header.tokens.len(), address);
            if let Err(error) = write_all(open.segment.file.as_ref(), &[record.as_slice()], open.at) {
                let begin = open.at;
                return Err(self.failed(&error, begin));
            }
            open.at += location.len;
            open.records += 1;
            let moved = Location::new(&open.segment, address, location.len, location.key);
            drop(self.log.slots.replace(slot, generation, moved));
            self.log.counters.rewritten.fetch_add(location.len, Relaxed);
        }
        self.log.delete(victim.number);
        Ok(())
    }
}

/// Returns the answer for a failed write: a full disk takes nothing now, any other fault is one of the way.
fn fault_of(error: &io::Error) -> BlockFault {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BlockFault::Refused,
        _ => BlockFault::Interrupted,
    }
}
