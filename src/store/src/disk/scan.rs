//! Search for the records of a segment, after a restart and for checks.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use trunkline_files::{Aligned, BlockFile, PAGE, read_full};

use crate::counters::{Fault, FaultCounts};
use crate::record::{Header, announced_len};

use super::segment::{End, Segment};

/// Unreadable records of a segment, at most, until the search ends: each read of a failing disk may take seconds.
const UNREADABLE_MAX: u32 = 16;
/// Bytes read at once when no record is known to begin.
const SEARCH: usize = 1 << 20;

/// Record found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Header, checked against the place.
    pub header: Header,
    /// Bytes of the record with padding.
    pub len: u64,
}

/// Records of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Records, in the order of the file.
    pub records: Vec<Found>,
    /// Records that are not whole, or do not belong where they are.
    pub faults: FaultCounts,
    /// Offset after the last record.
    pub end: u64,
    /// Offsets of broken records.
    pub broken: Vec<u64>,
    /// `true` if the segment has an end page.
    pub is_complete: bool,
}

/// Reader of a file's pages, with those read last.
struct Pages<'a> {
    file: &'a dyn BlockFile,
    buffer: Aligned,
    begin: u64,
}

impl<'a> Pages<'a> {
    fn new(file: &'a dyn BlockFile) -> Self {
        Self { file, buffer: Aligned::default(), begin: 0 }
    }

    /// Reads `len` bytes into the buffer; none after an error.
    fn read(&mut self, len: usize) -> io::Result<()> {
        self.buffer.resize(len.next_multiple_of(PAGE));
        let n = read_full(self.file, self.buffer.as_mut_slice(), self.begin);
        self.buffer.resize(*n.as_ref().unwrap_or(&0));
        n.map(drop)
    }

    /// Returns `len` bytes at `offset`, or fewer at the end of the file. Reads `ahead` bytes if a read is needed.
    fn at(&mut self, offset: u64, len: usize, ahead: usize) -> io::Result<&[u8]> {
        let held = self.buffer.as_slice().len() as u64;
        if offset < self.begin || offset + len as u64 > self.begin + held {
            self.begin = offset;
            let is_read = self.read(len.max(ahead));
            // The unreadable page may be one behind.
            if is_read.is_err() && ahead > len { self.read(len)? } else { is_read? }
        }
        let bytes = &self.buffer.as_slice()[(offset - self.begin) as usize..];
        Ok(&bytes[..bytes.len().min(len)])
    }
}

/// Reads the header of a record from `offset` to `limit` at the latest, and the payload if `checks_payload`.
fn read(
    pages: &mut Pages<'_>,
    segment: &Segment,
    offset: u64,
    limit: u64,
    ahead: usize,
    checks_payload: bool,
) -> io::Result<Result<Header, Fault>> {
    let page = pages.at(offset, PAGE, ahead)?;
    let len = match announced_len(page) {
        Some(len) => len,
        None => return Ok(Header::read(page)),
    };
    let header = match Header::read(pages.at(offset, len, ahead)?) {
        Ok(header) => header,
        Err(fault) => return Ok(Err(fault)),
    };
    if header.address.segment != segment.number || header.address.offset != offset {
        return Ok(Err(Fault::Swapped));
    }
    if offset + padded_len(&header) > limit {
        return Ok(Err(Fault::Short));
    }
    if checks_payload {
        let record = pages.at(offset, header.record_len(), ahead)?;
        if let Err(fault) = header.payload(record) {
            return Ok(Err(fault));
        }
    }
    Ok(Ok(header))
}

/// Returns the bytes of a record with padding.
fn padded_len(header: &Header) -> u64 {
    (header.record_len() as u64).next_multiple_of(PAGE as u64)
}

/// Returns the end page of a segment, if there is one, and the offset where records end at the latest.
fn end_and_limit(segment: &Segment, pages: &mut Pages<'_>, size: u64) -> (Option<End>, u64) {
    let last = size.saturating_sub(PAGE as u64) / PAGE as u64 * PAGE as u64;
    let end = pages.at(last, PAGE, PAGE).ok().and_then(|page| segment.end_of(page, last));
    (end, if end.is_some() { last } else { size })
}

/// Finds all records of a segment. Payloads are checked where the segment has no end page, and everywhere if `checks_all`.
///
/// # Errors
/// If the file cannot be read, or `is_stopped` becomes `true` meanwhile.
pub fn scan(segment: &Segment, layout: u64, checks_all: bool, is_stopped: &AtomicBool) -> io::Result<Scan> {
    let size = segment.file.size()?;
    let mut pages = Pages::new(segment.file.as_ref());
    let mut scan = Scan { end: PAGE as u64, ..Scan::default() };
    let (end, limit) = end_and_limit(segment, &mut pages, size);
    scan.is_complete = end.is_some();
    let checks_payload = checks_all || !scan.is_complete;
    // In a gap, a record may begin at any page; the gap counts as one fault.
    let (mut at, mut is_gap, mut empty_gaps, mut unreadable) = (PAGE as u64, false, 0, 0);
    while at < limit {
        if is_stopped.load(Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let ahead = if is_gap || checks_payload { SEARCH } else { PAGE };
        let ahead = ahead.min((limit - at) as usize);
        let page = pages.at(at, PAGE, ahead).ok();
        if page.is_some_and(|page| segment.end_of(page, at).is_some()) {
            break;
        }
        let is_empty = page.is_some_and(|page| page.iter().all(|byte| *byte == 0));
        let header = match read(&mut pages, segment, at, limit, ahead, checks_payload) {
            Err(_) if unreadable < UNREADABLE_MAX => {
                unreadable += 1;
                Err(Fault::Unreadable)
            }
            header => header?,
        };
        let fault = match header {
            Ok(header) => {
                let len = padded_len(&header);
                is_gap = false;
                match header.layout == layout {
                    true => scan.records.push(Found { header, len }),
                    false => scan.faults.add(Fault::Stale),
                }
                at += len;
                scan.end = at;
                continue;
            }
            // The header is whole or not there: the writer ended before the rest was written.
            Err(Fault::Flipped | Fault::Short) if !scan.is_complete => Fault::Torn,
            Err(fault) => fault,
        };
        // Space that was never written is not a record, unless records are missing.
        match (is_gap, is_empty) {
            (true, _) => {}
            (false, true) => empty_gaps += 1,
            (false, false) => {
                scan.faults.add(fault);
                scan.broken.push(at);
            }
        }
        is_gap = true;
        at += PAGE as u64;
    }
    if let Some(end) = end {
        scan.count_lost(end.records, empty_gaps);
    }
    Ok(scan)
}

impl Scan {
    /// Counts the records of the end page beyond the records found. A gap of zeros stands for one.
    fn count_lost(&mut self, records: u64, empty_gaps: u64) {
        let lost = records.saturating_sub(self.records.len() as u64 + self.faults.total());
        let zeroed = lost.min(empty_gaps);
        self.faults.add_n(Fault::Torn, zeroed);
        self.faults.add_n(Fault::Missing, lost - zeroed);
    }
}
