//! Writers of a disk tier: append records to the last segment, several at once, and empty segments when space is short.
//!
//! A place in a segment is taken under a lock, and the record is written without. So several writes are in flight all the time. A segment that
//! is full is completed by a thread of its own when the last write there has ended, while others write into the next one.

use std::io;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_files::{Aligned, PAGE, write_all};
use trunkline_port::BlockFault;

use crate::record::{Address, place};

use super::finishing::Unfinished;
use super::log::{Log, SEGMENTS_MAX};
use super::queue::{Write, WriteQueue};
use super::segment::{Location, Segment};

/// Bytes written in one go by one thread, unless a record is longer.
const BATCH: usize = 1 << 20;
/// Segments are emptied into another if at most this many sixteenths of the other become live; fuller disks take nothing new.
const LIVE_MAX_16THS: u64 = 15;

/// Maximum number of segments that one batch of records waits for.
const WAITS_MAX: u32 = 8;

/// Segment with writes under way. Dropped by the last of these, the segment goes to the [`Finisher`].
struct Writing {
    log: Arc<Log>,
    segment: Arc<Segment>,
    progress: Mutex<Progress>,
    unfinished: Option<Unfinished>,
    finisher: Sender<Ended>,
}

/// Segment without a write under way.
pub struct Ended {
    segment: Arc<Segment>,
    progress: Progress,
    unfinished: Option<Unfinished>,
}

/// Writes of a segment that have ended.
#[derive(Clone, Copy)]
struct Progress {
    records: u64,
    /// Offset after the last record written.
    end: u64,
    /// Lowest offset of a write that failed.
    failed_at: u64,
}

impl Writing {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `records` records up to `end` are written.
    fn wrote(&self, end: u64, records: u64) {
        let mut progress = self.progress();
        progress.records += records;
        progress.end = progress.end.max(end);
    }

    /// Counts a write at `begin` that failed. Returns the answer for its records.
    fn failed(&self, error: &io::Error, begin: u64) -> BlockFault {
        self.log.failed(&self.segment.path, "cannot write", error);
        let mut progress = self.progress();
        progress.failed_at = progress.failed_at.min(begin);
        fault_of(error)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let progress = *self.progress.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Without a finisher the segment has no end page, and the next start looks at every record.
        let unfinished = self.unfinished.take();
        drop(self.finisher.send(Ended { segment: Arc::clone(&self.segment), progress, unfinished }));
    }
}

/// Completes segments until the writers are gone: to wait for the medium takes as long as some writes.
pub struct Finisher {
    log: Arc<Log>,
    ended: Receiver<Ended>,
}

impl Finisher {
    /// Completes segments until there is no writer any more.
    pub fn run(self) {
        for Ended { segment, progress: Progress { records, end, failed_at }, unfinished } in self.ended {
            if records == 0 {
                self.log.delete(segment.number);
            } else if failed_at >= end
                && let Err(error) = segment.complete(end, records)
            {
                tracing::warn!("{}: cannot complete the segment: {error}", segment.path.display());
            }
            // Otherwise records stand behind a hole: without an end page the next start looks at each of them.
            segment.finished();
            drop(unfinished);
        }
    }
}

/// Segment with room for further records.
struct Open {
    writing: Arc<Writing>,
    at: u64,
}

/// Place of the next records.
struct Cursor {
    open: Option<Open>,
    next_segment: u64,
    finisher: Sender<Ended>,
}

/// Records with their places.
struct Batch {
    writing: Arc<Writing>,
    begin: u64,
    end: u64,
    writes: Vec<(Write, Address)>,
}

/// Segments that have no room any more, to be completed when no lock is held.
type Full = Vec<Arc<Writing>>;

/// Writer of a disk tier, for any number of threads.
pub struct Writer {
    log: Arc<Log>,
    queue: Arc<WriteQueue>,
    cursor: Mutex<Cursor>,
}

impl Writer {
    /// Creates a writer whose first segment will have number `next_segment`, and the finisher of its segments.
    pub fn new(log: &Arc<Log>, queue: &Arc<WriteQueue>, next_segment: u64) -> (Arc<Self>, Finisher) {
        let (finisher, ended) = channel();
        let cursor = Mutex::new(Cursor { open: None, next_segment, finisher });
        let writer = Self { log: Arc::clone(log), queue: Arc::clone(queue), cursor };
        (Arc::new(writer), Finisher { log: Arc::clone(log), ended })
    }

    /// Writes until the queue is closed and empty. Dropped by its last thread, the writer has the segment completed.
    pub fn run(&self) {
        loop {
            let writes = self.queue.take(BATCH);
            if writes.is_empty() {
                break;
            }
            let mut writes = writes.into_iter().peekable();
            let mut waits = 0;
            while let Some(first) = writes.peek() {
                let len = first.record.as_slice().len() as u64;
                let finished = self.log.finishing.finished();
                let mut full = Full::new();
                let placed = self.place(&mut writes, len, &mut full);
                drop(full);
                match placed {
                    Ok(batch) => self.write(batch),
                    // A segment that is being completed may have room once it can be emptied.
                    Err(BlockFault::Refused)
                        if waits < WAITS_MAX && self.log.finishing.wait(finished, self.n_open()) =>
                    {
                        waits += 1;
                    }
                    Err(fault) => {
                        let refused = writes.next();
                        refused.into_iter().for_each(|write| self.answer(write, Err(fault)));
                    }
                }
            }
        }
    }

    fn answer(&self, write: Write, result: Result<u64, BlockFault>) {
        let Write { record, done, .. } = write;
        self.queue.written(vec![record]);
        // The other records of the batch are answered all the same, and the thread writes on.
        if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
            tracing::error!("the receiver of an answer to a write panicked");
        }
    }

    /// Takes places for the next records, as many as the open segment has room for. The first has `len` bytes.
    fn place(
        &self,
        writes: &mut Peekable<impl Iterator<Item = Write>>,
        len: u64,
        full: &mut Full,
    ) -> Result<Batch, BlockFault> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        cursor.make_room(&self.log, len, full)?;
        let room = cursor.room(&self.log);
        let Some(open) = &mut cursor.open else { return Err(BlockFault::Interrupted) };
        let (begin, writing) = (open.at, Arc::clone(&open.writing));
        let mut placed = Vec::new();
        let fits = |write: &Write, at: u64| at - begin + write.record.as_slice().len() as u64 <= room;
        while let Some(write) = writes.next_if(|write| fits(write, open.at)) {
            let sequence = self.log.counters.sequence.fetch_add(1, Relaxed) + 1;
            let address = Address { sequence, segment: writing.segment.number, offset: open.at };
            open.at += write.record.as_slice().len() as u64;
            placed.push((write, address));
        }
        Ok(Batch { writing, begin, end: open.at, writes: placed })
    }

    /// Writes records to their places, and answers.
    fn write(&self, batch: Batch) {
        let Batch { writing, begin, end, mut writes } = batch;
        for (write, address) in &mut writes {
            place(write.record.as_mut_slice(), write.n_tokens, *address);
        }
        let parts: Vec<&[u8]> = writes.iter().map(|(write, _)| write.record.as_slice()).collect();
        let fault = match write_all(writing.segment.file.as_ref(), &parts, begin) {
            Ok(()) => {
                writing.wrote(end, writes.len() as u64);
                self.log.wrote(end - begin);
                if !writing.segment.file.is_linked() {
                    self.leave_removed(&writing.segment);
                }
                None
            }
            Err(error) => {
                self.give_up(&writing.segment);
                Some(writing.failed(&error, begin))
            }
        };
        for (write, address) in writes {
            let len = write.record.as_slice().len() as u64;
            if fault.is_none() {
                let location = Location::new(&writing.segment, address, len, write.key);
                // A later claim owns the slot: the record is dead.
                drop(self.log.slots.fill(write.slot, write.generation, location));
            }
            self.answer(write, fault.map_or(Ok(len), Err));
        }
    }

    /// Returns the number of segments with room, 0 or 1.
    fn n_open(&self) -> u64 {
        let cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        u64::from(cursor.open.is_some())
    }

    /// Closes a segment whose file somebody removed: later records go to another one, which the next start finds.
    fn leave_removed(&self, segment: &Arc<Segment>) {
        self.give_up(segment);
        if let Err(error) = self.log.find_removed() {
            self.log.failed(&self.log.limits.folder, "cannot make the folder again", &error);
        }
    }

    /// Closes a segment after a failed write: later records go to another one.
    fn give_up(&self, segment: &Arc<Segment>) {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let open = cursor.open.take_if(|open| open.writing.segment.number == segment.number);
        drop(cursor);
        drop(open);
    }
}

impl Cursor {
    /// Returns the bytes that the open segment has left, without its end page.
    fn room(&self, log: &Log) -> u64 {
        let limit = log.limits.segment_bytes - PAGE as u64;
        self.open.as_ref().map_or(0, |open| limit.saturating_sub(open.at))
    }

    /// Closes the open segment, if any.
    fn close(&mut self, full: &mut Full) {
        full.extend(self.open.take().map(|open| open.writing));
    }

    /// Opens a segment with room for `len` bytes; empties others if there must be no more.
    fn make_room(&mut self, log: &Arc<Log>, len: u64, full: &mut Full) -> Result<(), BlockFault> {
        let capacity = log.limits.segment_bytes - 2 * PAGE as u64;
        if len > capacity {
            return Err(BlockFault::Refused);
        }
        while self.room(log) < len {
            self.close(full);
            delete_dead(log);
            let victims = victims(log, capacity * LIVE_MAX_16THS / 16)?;
            self.create(log)?;
            for victim in victims {
                self.empty(log, &victim, full)?;
            }
        }
        Ok(())
    }

    fn create(&mut self, log: &Arc<Log>) -> Result<(), BlockFault> {
        let limits = &log.limits;
        let number = self.next_segment;
        self.next_segment += 1;
        let create = || {
            log.find_removed()?;
            Segment::create(log.files.as_ref(), &limits.folder, number, limits.segment_bytes, limits.layout)
        };
        let is_full = |error: &io::Error| fault_of(error) == BlockFault::Refused;
        let segment = match create() {
            Err(error) if is_full(&error) && delete_others(log) => create(),
            created => created,
        };
        let segment = segment.map_err(|error| {
            log.failed(&limits.folder, "cannot create a segment", &error);
            if is_full(&error) {
                log.filesystem_is_full();
            }
            fault_of(&error)
        })?;
        log.filesystem_has_space();
        log.segments().insert(number, Arc::clone(&segment));
        let progress = Mutex::new(Progress { records: 0, end: PAGE as u64, failed_at: u64::MAX });
        let (log, unfinished, finisher) = (Arc::clone(log), Some(log.finishing.begin()), self.finisher.clone());
        let writing = Arc::new(Writing { log, segment, progress, unfinished, finisher });
        self.open = Some(Open { writing, at: PAGE as u64 });
        Ok(())
    }

    /// Writes the live records of a segment again, into the open one, and deletes the segment.
    fn empty(&mut self, log: &Log, victim: &Arc<Segment>, full: &mut Full) -> Result<(), BlockFault> {
        let mut live = log.slots.collect(|location| location.segment.number == victim.number);
        live.sort_unstable_by_key(|(.., location)| location.address.offset);
        let mut record = Aligned::default();
        for (slot, generation, location) in live {
            // A record that fails verification stays in its slot: the next read of the slot gets the fault.
            let Ok(header) = log.read(&location, &mut record) else { continue };
            let Some(Open { writing, at }) = &mut self.open else { return Err(BlockFault::Interrupted) };
            let segment = &writing.segment;
            let address = Address { segment: segment.number, offset: *at, ..location.address };
            place(record.as_mut_slice(), header.tokens.len(), address);
            if let Err(error) = write_all(segment.file.as_ref(), &[record.as_slice()], *at) {
                let fault = writing.failed(&error, *at);
                self.close(full);
                return Err(fault);
            }
            *at += location.len;
            writing.wrote(*at, 1);
            let moved = Location::new(segment, address, location.len, location.key);
            drop(log.slots.replace(slot, generation, moved));
            log.counters.rewritten.fetch_add(location.len, Relaxed);
        }
        log.delete(victim.number);
        Ok(())
    }
}

/// Deletes segments without live records: all of the own layout, and of other layouts for want of space.
fn delete_dead(log: &Log) {
    let segments = log.segments();
    let dead = segments.values().filter(|segment| segment.live_bytes() == 0 && !segment.is_being_written());
    let (own, others): (Vec<_>, Vec<_>) = dead.cloned().partition(|dead| dead.layout == Some(log.limits.layout));
    drop(segments);
    own.iter().for_each(|dead| log.delete(dead.number));
    for dead in others {
        if excess_bytes(log) == 0 {
            return;
        }
        log.delete(dead.number);
    }
}

/// Deletes all segments of other layouts, on a full filesystem. Returns `false` if there is none.
fn delete_others(log: &Log) -> bool {
    let segments = log.segments();
    let others = segments.values().filter(|segment| segment.layout != Some(log.limits.layout));
    let others: Vec<u64> = others.map(|segment| segment.number).collect();
    drop(segments);
    others.iter().for_each(|number| log.delete(*number));
    !others.is_empty()
}

/// Returns the bytes to be deleted so that a segment can be created and another stays free; at least 1 if there are as many as there may be.
fn excess_bytes(log: &Log) -> u64 {
    let is_last = log.segments().len() as u64 + log.unsearched.segments() + 2 > SEGMENTS_MAX;
    log.excess_bytes(2).max(u64::from(is_last))
}

/// Returns the segments with the fewest live bytes, `live_max` in all, to be emptied into the next one so that a segment stays free.
fn victims(log: &Log, live_max: u64) -> Result<Vec<Arc<Segment>>, BlockFault> {
    let mut excess = excess_bytes(log);
    let segments = log.segments();
    let written = segments.values().filter(|segment| !segment.is_being_written());
    // A dead one is a segment whose file could not be deleted.
    let written = written.map(|segment| (segment.live_bytes(), segment)).filter(|(live, _)| *live > 0);
    let mut written: Vec<_> = written.collect();
    written.sort_unstable_by_key(|(live, segment)| (*live, segment.number));
    let (mut victims, mut sum) = (Vec::new(), 0);
    for (live, segment) in written {
        sum += live;
        if excess == 0 || sum > live_max {
            break;
        }
        excess = excess.saturating_sub(segment.bytes);
        victims.push(Arc::clone(segment));
    }
    if excess == 0 { Ok(victims) } else { Err(BlockFault::Refused) }
}

/// Returns the answer for a failed write: a full disk takes nothing now, any other fault is one of the way.
fn fault_of(error: &io::Error) -> BlockFault {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BlockFault::Refused,
        _ => BlockFault::Interrupted,
    }
}
