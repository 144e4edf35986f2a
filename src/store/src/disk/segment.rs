//! Segments: the files of a disk tier, each written once from start to end.
//!
//! A segment is a header page, records padded to whole pages, and an end page. The end page is written when all records are on the medium; a
//! segment without an end page was being written when its writer stopped.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use trunkline_files::{Aligned, BlockFile, Files, PAGE, read_full, write_all};
use trunkline_port::BlockKey;
use xxhash_rust::xxh3::xxh3_64;

use crate::counters::Fault;
use crate::record::Address;

const HEADER_MAGIC: [u8; 4] = *b"TKVS";
const END_MAGIC: [u8; 4] = *b"TKVE";
const VERSION: u32 = 1;

/// File of a disk tier.
#[derive(Debug)]
pub struct Segment {
    /// Number of the segment, rising from 1.
    pub number: u64,
    /// Path of the file.
    pub path: PathBuf,
    /// File, open.
    pub file: Box<dyn BlockFile>,
    /// Layout of the records; `None` if the header is not whole.
    pub layout: Option<u64>,
    /// Bytes of the file when it was created or opened.
    pub bytes: u64,
    live: AtomicU64,
    /// `true` until the last write of the segment has ended.
    is_being_written: AtomicBool,
    /// `true` once somebody else was seen to have removed the file.
    is_removed: AtomicBool,
}

/// Place of a record that a slot holds. While the location lives, its bytes count as live in the segment.
#[derive(Debug)]
pub struct Location {
    /// Segment of the record.
    pub segment: Arc<Segment>,
    /// Address by which the record names itself.
    pub address: Address,
    /// Bytes of the record with padding.
    pub len: u64,
    /// Identity of the block.
    pub key: BlockKey,
}

impl Location {
    /// Creates the location of a record.
    pub fn new(segment: &Arc<Segment>, address: Address, len: u64, key: BlockKey) -> Arc<Self> {
        segment.live.fetch_add(len, Relaxed);
        Arc::new(Self { segment: Arc::clone(segment), address, len, key })
    }
}

impl Drop for Location {
    fn drop(&mut self) {
        self.segment.live.fetch_sub(self.len, Relaxed);
    }
}

/// Last page of a segment that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Records written.
    pub records: u64,
}

/// Returns the name of a segment's file.
pub fn file_name(number: u64) -> String {
    format!("segment-{number:016x}.tkv")
}

/// Highest number of a segment; files with a higher one are left alone.
const NUMBER_MAX: u64 = u64::MAX >> 1;

/// Returns the number of the segment with a file name.
pub fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let number = u64::from_str_radix(name.strip_prefix("segment-")?.strip_suffix(".tkv")?, 16).ok()?;
    (number <= NUMBER_MAX && file_name(number) == name).then_some(number)
}

/// Makes a page: magic, version, and three numbers, with a checksum behind.
fn page(magic: [u8; 4], numbers: [u64; 3]) -> Aligned {
    let mut page = Aligned::with_capacity(PAGE);
    page.resize(PAGE);
    let bytes = page.as_mut_slice();
    bytes[..4].copy_from_slice(&magic);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    for (at, number) in numbers.iter().enumerate() {
        bytes[8 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
    }
    let checksum = xxh3_64(&bytes[..32]);
    bytes[32..40].copy_from_slice(&checksum.to_le_bytes());
    page
}

/// Reads the numbers of a page made by [`page`].
fn numbers(magic: [u8; 4], bytes: &[u8]) -> Result<[u64; 3], Fault> {
    let Some(fields) = bytes.first_chunk::<40>() else { return Err(Fault::Short) };
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fields[at + i]));
    if fields.iter().all(|byte| *byte == 0) {
        return Err(Fault::Torn);
    }
    if fields[..4] != magic || xxh3_64(&fields[..32]) != long(32) {
        return Err(Fault::Flipped);
    }
    if fields[4..8] != VERSION.to_le_bytes() {
        return Err(Fault::Stale);
    }
    Ok([long(8), long(16), long(24)])
}

impl Segment {
    /// Creates a segment of a file that is there, without a layout.
    fn new(number: u64, path: PathBuf, file: Box<dyn BlockFile>, bytes: u64) -> Self {
        let (is_being_written, is_removed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { number, path, file, layout: None, bytes, live: AtomicU64::new(0), is_being_written, is_removed }
    }

    /// Creates the file of a segment of `bytes`, and writes its header.
    ///
    /// # Errors
    /// If the system refuses; no file is left then.
    pub fn create(files: &dyn Files, folder: &Path, number: u64, bytes: u64, layout: u64) -> io::Result<Arc<Self>> {
        let path = folder.join(file_name(number));
        let file = files.create(&path, bytes)?;
        let mut segment = Self::new(number, path, file, bytes);
        segment.is_being_written = AtomicBool::new(true);
        if let Err(error) = segment.write_header(layout) {
            drop(files.remove(&segment.path));
            return Err(error);
        }
        Ok(Arc::new(segment))
    }

    /// Writes the header, for records of a layout.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn write_header(&mut self, layout: u64) -> io::Result<()> {
        write_all(self.file.as_ref(), &[page(HEADER_MAGIC, [self.number, layout, 0]).as_slice()], 0)?;
        self.layout = Some(layout);
        Ok(())
    }

    /// Opens the file of a segment. Returns the layout of its records, if the header is whole.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open(files: &dyn Files, path: &Path, number: u64) -> io::Result<(Self, Result<u64, Fault>)> {
        let file = files.open(path)?;
        let bytes = file.size()?;
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        let n = read_full(file.as_ref(), page.as_mut_slice(), 0)?;
        let layout = numbers(HEADER_MAGIC, &page.as_slice()[..n]);
        let layout = layout.and_then(|[own, layout, _]| if own == number { Ok(layout) } else { Err(Fault::Swapped) });
        let mut segment = Self::new(number, path.to_owned(), file, bytes);
        segment.layout = layout.ok();
        Ok((segment, layout))
    }

    /// Returns the bytes of records in use.
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Relaxed)
    }

    /// Returns `true` until [`Self::finished`] is called, for segments created by this process.
    pub fn is_being_written(&self) -> bool {
        self.is_being_written.load(Relaxed)
    }

    /// Notes that no write of the segment is under way, and none will follow.
    pub fn finished(&self) {
        self.is_being_written.store(false, Relaxed);
    }

    /// Returns `true` once if somebody else removed the file.
    pub fn is_newly_removed(&self) -> bool {
        !self.file.is_linked() && !self.is_removed.swap(true, Relaxed)
    }

    /// Overwrites the page at `offset`, the first page of a broken record, with zeros.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn erase(&self, offset: u64) -> io::Result<()> {
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        write_all(self.file.as_ref(), &[page.as_slice()], offset)
    }

    /// Completes the segment at `end`: all records are on the medium before the end page says so.
    ///
    /// # Errors
    /// If the system refuses; the segment is one without an end then.
    pub fn complete(&self, end: u64, records: u64) -> io::Result<()> {
        self.file.truncate(end)?;
        self.file.sync()?;
        write_all(self.file.as_ref(), &[page(END_MAGIC, [self.number, end, records]).as_slice()], end)
    }

    /// Reads the end page at `offset` from its bytes.
    pub fn end_of(&self, bytes: &[u8], offset: u64) -> Option<End> {
        let [number, end, records] = numbers(END_MAGIC, bytes).ok()?;
        (number == self.number && end == offset).then_some(End { records })
    }
}
