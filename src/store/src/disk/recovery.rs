//! Recovery of a disk tier after a restart, and the check of one at rest.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use trunkline_port::{BlockKey, KnownBlock, Token};

use crate::counters::{Fault, FaultCounts};

use super::log::Log;
use super::scan::{Found, Scan, scan};
use super::segment::{Location, Segment, number_of};
use trunkline_files::{Files, SystemFiles};

/// Segment from before, not searched yet.
#[derive(Clone, Debug)]
pub struct Old {
    number: u64,
    path: PathBuf,
    /// Bytes of the file.
    bytes: u64,
}

/// Block found on the disk.
#[derive(Clone, Debug)]
pub struct FoundBlock {
    /// Place of the record.
    pub location: Arc<Location>,
    /// Tokens of the block.
    pub tokens: Vec<Token>,
}

/// Records and segments that a search left out.
#[derive(Clone, Debug, Default)]
pub struct Searched {
    /// Records dropped, by reason.
    faults: FaultCounts,
    /// Segments of another layout.
    other_layouts: u64,
}

impl Searched {
    /// Returns lines for the log: a change of the model or of its KV leaves every segment out, and damages none.
    pub fn lines(&self) -> Vec<String> {
        let damaged = format!("{} damaged records are dropped ({})", self.faults.total(), self.faults);
        let others = format!(
            "{} segments of another model, KV type or block size are not read, and make way first",
            self.other_layouts
        );
        let lines = [(self.faults.total() > 0, damaged), (self.other_layouts > 0, others)];
        lines.into_iter().filter_map(|(is_due, line)| is_due.then_some(line)).collect()
    }

    /// Returns what was dropped or left out, by reason. A segment of another layout counts as a stale record.
    pub fn dropped(&self) -> FaultCounts {
        let mut dropped = self.faults;
        dropped.add_n(Fault::Stale, self.other_layouts);
        dropped
    }
}

fn segment_paths(files: &dyn Files, folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let paths = files.list(folder)?;
    let mut segments: Vec<_> = paths.into_iter().filter_map(|path| Some((number_of(&path)?, path))).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// Returns the segments from before, oldest first, and the number for the next one. Their bytes count as used until they are searched.
///
/// # Errors
/// If the folder cannot be read.
pub fn old_segments(log: &Log) -> io::Result<(Vec<Old>, u64)> {
    let paths = segment_paths(log.files.as_ref(), &log.limits.folder)?;
    let next = paths.last().map_or(1, |(number, _)| number + 1);
    let old = paths.into_iter().map(|(number, path)| {
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        Old { number, path, bytes }
    });
    let old: Vec<Old> = old.collect();
    old.iter().for_each(|segment| log.unsearched.add(segment.bytes));
    Ok((old, next))
}

/// Searches segments, and passes on the blocks of each, the oldest segment first. The newest is searched before all, and its blocks are left in `newest`,
/// also by a panic.
pub fn search(
    log: &Log,
    mut old: Vec<Old>,
    is_stopped: &AtomicBool,
    newest: &mut Vec<FoundBlock>,
    mut found: impl FnMut(Vec<FoundBlock>),
) -> Searched {
    let mut searched = Searched::default();
    let mut one = |old: Old| search_segment(log, &old, is_stopped, &mut searched);
    // The newest segment has the number of the last write, from which further writes are numbered.
    *newest = old.pop().map(&mut one).unwrap_or_default();
    for old in old {
        found(one(old));
    }
    searched
}

/// Returns the blocks of a segment, whose records count as live.
fn search_segment(log: &Log, old: &Old, is_stopped: &AtomicBool, searched: &mut Searched) -> Vec<FoundBlock> {
    if is_stopped.load(Relaxed) {
        return Vec::new();
    }
    let contents = recover_segment(log, &old.path, old.number, is_stopped, &mut searched.faults);
    let mut blocks = Vec::new();
    match contents {
        Ok(Contents::Records(segment, records)) => {
            for Found { header, len } in records {
                log.counters.sequence.fetch_max(header.address.sequence, Relaxed);
                let location = Location::new(&segment, header.address, len, header.key);
                blocks.push(FoundBlock { location, tokens: header.tokens });
            }
            log.segments().insert(old.number, segment);
        }
        Ok(Contents::OtherLayout(segment)) => {
            log.segments().insert(old.number, segment);
            searched.other_layouts += 1;
        }
        Ok(Contents::Nothing) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return blocks,
        Err(error) => {
            // The rest of the tier is good; the file stays, and counts as one record.
            tracing::warn!("{}: cannot read the segment: {error}", old.path.display());
            searched.faults.add(Fault::Unreadable);
        }
    }
    log.unsearched.remove(old.bytes);
    blocks
}

/// Puts blocks found at the start into the slots 0, 1, 2, ..., oldest first, and returns them. Once all segments were searched, makes room for a new one.
pub fn settle(log: &Log, found: Vec<FoundBlock>, is_all: bool) -> Vec<KnownBlock> {
    let rank = |block: &FoundBlock| (block.location.address.sequence, block.location.address.segment);
    let mut newest: HashMap<BlockKey, FoundBlock> = HashMap::new();
    for block in found {
        if newest.get(&block.location.key).is_none_or(|other| rank(&block) > rank(other)) {
            newest.insert(block.location.key, block);
        }
    }
    let mut blocks: Vec<_> = newest.into_values().collect();
    blocks.sort_unstable_by_key(rank);
    drop_oldest(&mut blocks, log.room_bytes());
    let dropped = if is_all { make_fit(log) } else { HashSet::new() };
    blocks.retain(|block| !dropped.contains(&block.location.segment.number));
    let known = blocks.into_iter().zip(0..).map(|(FoundBlock { location, tokens }, slot)| {
        let key = location.key;
        log.put(slot, location);
        KnownBlock { block: slot, key, tokens }
    });
    known.collect()
}

/// Contents of a segment at the start.
enum Contents {
    /// No record; the segment was deleted.
    Nothing,
    /// Records of another model or layout, of no use here.
    OtherLayout(Arc<Segment>),
    Records(Arc<Segment>, Vec<Found>),
}

/// Opens a segment and finds its records. An unfinished segment is completed after its last whole record; one without a record is deleted. A broken
/// header is written again for the records found.
///
/// # Errors
/// If the file cannot be read, or the search is stopped.
fn recover_segment(
    log: &Log,
    path: &Path,
    number: u64,
    is_stopped: &AtomicBool,
    faults: &mut FaultCounts,
) -> io::Result<Contents> {
    let (mut segment, layout) = Segment::open(log.files.as_ref(), path, number)?;
    match layout {
        Ok(layout) if layout == log.limits.layout => {}
        // Records of another model or layout make way as soon as no space is left.
        Ok(_) | Err(Fault::Stale) => return Ok(Contents::OtherLayout(Arc::new(segment))),
        Err(fault @ (Fault::Flipped | Fault::Swapped)) => faults.add(fault),
        // A writer that ended before the header was written leaves an empty file.
        Err(_) => {}
    }
    let scan = scan(&segment, log.limits.layout, false, is_stopped)?;
    if layout.is_ok() || !scan.records.is_empty() {
        scan.faults.each().for_each(|(fault, n)| faults.add_n(fault, n));
    }
    if scan.records.is_empty() {
        log.files.remove(path)?;
        return Ok(Contents::Nothing);
    }
    if let Err(error) = repair(&mut segment, log.limits.layout, &scan) {
        tracing::warn!("{}: cannot repair the segment, only read it: {error}", path.display());
    }
    Ok(Contents::Records(Arc::new(segment), scan.records))
}

/// Writes the header and the end of a segment with records, where missing.
fn repair(segment: &mut Segment, layout: u64, scan: &Scan) -> io::Result<()> {
    if segment.layout.is_none() {
        segment.write_header(layout)?;
    }
    if scan.is_complete {
        return Ok(());
    }
    // Several records are written at once: some behind a broken one may be whole.
    for offset in scan.broken.iter().filter(|offset| **offset < scan.end) {
        segment.erase(*offset)?;
    }
    segment.complete(scan.end, scan.records.len() as u64)
}

/// Drops the oldest records, so that the others take at most `room` bytes: segments may hold dead records besides, and blocks
/// without room in the core would be of no use, and keep segments from being deleted.
fn drop_oldest(blocks: &mut Vec<FoundBlock>, room: u64) {
    let mut sum = 0;
    let newest = blocks.iter().rev().take_while(|block| {
        sum += block.location.len;
        sum <= room
    });
    let surplus = blocks.len() - newest.count();
    blocks.drain(..surplus);
}

/// Deletes the segments with the fewest live bytes, until a new one fits. Returns the numbers of the deleted ones.
fn make_fit(log: &Log) -> HashSet<u64> {
    let live = |(number, segment): (&u64, &Arc<Segment>)| (segment.live_bytes(), *number);
    let mut by_use: Vec<(u64, u64)> = log.segments().iter().map(live).collect();
    by_use.sort_unstable();
    let mut dropped = HashSet::new();
    for (_, number) in by_use {
        if log.excess_bytes(1) == 0 {
            break;
        }
        log.delete(number);
        dropped.insert(number);
    }
    dropped
}

/// Segment of a tier at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedSegment {
    /// File of the segment.
    pub path: PathBuf,
    /// Layout of the records; `None` if the header is not whole.
    pub layout: Option<u64>,
    /// `true` if the segment has an end page.
    pub is_complete: bool,
    /// Whole records.
    pub records: u64,
    /// Bytes of the whole records, with padding.
    pub record_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Records that failed verification, by reason.
    pub faults: FaultCounts,
}

/// Contents of a tier at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Segments, oldest first.
    pub segments: Vec<CheckedSegment>,
    /// Different blocks found.
    pub blocks: u64,
    /// Tokens of the different blocks.
    pub tokens: u64,
    /// Blocks that begin a prefix.
    pub first_blocks: u64,
    /// Different namespaces: model, revision, adapter, tenant, and so on.
    pub namespaces: u64,
    /// Records with a compressed payload.
    pub frames: u64,
    /// Bytes of all payloads.
    pub payload_bytes: u64,
}

impl Checked {
    /// Returns the records that failed verification, by reason.
    pub fn faults(&self) -> FaultCounts {
        let mut sum = FaultCounts::default();
        for segment in &self.segments {
            segment.faults.each().for_each(|(fault, n)| sum.add_n(fault, n));
        }
        sum
    }
}

/// Reads the segment of the path in `result`, and fills in the other fields. Returns the records found.
fn check_segment(
    files: &dyn Files,
    number: u64,
    checks_payloads: bool,
    result: &mut CheckedSegment,
) -> io::Result<Vec<Found>> {
    let (segment, layout) = Segment::open(files, &result.path, number)?;
    (result.file_bytes, result.layout) = (segment.bytes, segment.layout);
    match layout {
        Ok(layout) => {
            let scan = scan(&segment, layout, checks_payloads, &AtomicBool::new(false))?;
            result.is_complete = scan.is_complete;
            result.records = scan.records.len() as u64;
            result.record_bytes = scan.records.iter().map(|found| found.len).sum();
            result.faults = scan.faults;
            return Ok(scan.records);
        }
        Err(Fault::Torn | Fault::Short) => {}
        Err(fault) => result.faults.add(fault),
    }
    Ok(Vec::new())
}

/// Reads a disk tier at rest, and changes nothing. All payloads are read and checked if `checks_payloads`. An
/// unreadable segment counts as one unreadable record.
///
/// # Errors
/// If the folder cannot be read.
pub fn check(folder: &Path, checks_payloads: bool) -> io::Result<Checked> {
    let files = SystemFiles::for_reading();
    let mut checked = Checked::default();
    let mut keys = HashMap::new();
    let mut roots = HashSet::new();
    for (number, path) in segment_paths(&files, folder)? {
        let mut result = CheckedSegment { path, ..CheckedSegment::default() };
        match check_segment(&files, number, checks_payloads, &mut result) {
            Ok(records) => {
                for Found { header, .. } in records {
                    checked.frames += u64::from(header.coding == crate::held::Coding::Frame);
                    checked.payload_bytes += header.payload_len as u64;
                    roots.insert(header.key.root);
                    keys.insert(header.key, header.tokens.len() as u64);
                }
            }
            Err(error) => {
                tracing::warn!("{}: cannot read the segment: {error}", result.path.display());
                result.faults.add(Fault::Unreadable);
            }
        }
        checked.segments.push(result);
    }
    checked.blocks = keys.len() as u64;
    checked.tokens = keys.values().sum();
    checked.first_blocks = keys.keys().filter(|key| key.first_token == 0).count() as u64;
    checked.namespaces = roots.len() as u64;
    Ok(checked)
}
