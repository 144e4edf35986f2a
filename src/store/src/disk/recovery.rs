//! Recovery of a disk tier after a restart, and the check of one at rest.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use trunkline_port::{BlockKey, KnownBlock};

use crate::counters::{Fault, FaultCounts};

use super::log::Log;
use super::scan::{Found, Scan, scan};
use super::segment::{Location, Segment, number_of};
use trunkline_files::{Files, SystemFiles};

/// Contents of a tier after a restart.
pub struct Recovered {
    /// Blocks by slot, oldest first.
    pub blocks: Vec<KnownBlock>,
    /// Records dropped, by reason.
    pub faults: FaultCounts,
    /// Segments of another layout, which are left out.
    pub other_layouts: u64,
    /// Number for the next segment.
    pub next_segment: u64,
}

impl Recovered {
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

/// Finds the blocks of a tier.
///
/// # Errors
/// If the folder cannot be read.
pub fn recover(log: &Log) -> io::Result<Recovered> {
    let mut faults = FaultCounts::default();
    let mut other_layouts = 0;
    let mut newest: HashMap<BlockKey, (Arc<Segment>, Found)> = HashMap::new();
    let mut next_segment = 1;
    for (number, path) in segment_paths(log.files.as_ref(), &log.limits.folder)? {
        next_segment = next_segment.max(number + 1);
        let found = recover_segment(log, &path, number, &mut faults);
        let (segment, records) = match found {
            Ok(Contents::Records(segment, records)) => (segment, records),
            Ok(Contents::OtherLayout(segment)) => {
                log.segments().insert(number, segment);
                other_layouts += 1;
                continue;
            }
            Ok(Contents::Nothing) => continue,
            Err(error) => {
                // The rest of the tier is good; the file stays, and counts as one record.
                tracing::warn!("{}: cannot read the segment: {error}", path.display());
                faults.add(Fault::Unreadable);
                continue;
            }
        };
        log.segments().insert(number, Arc::clone(&segment));
        for found in records {
            let rank = |found: &Found| (found.header.address.sequence, found.header.address.segment);
            let is_newer = newest.get(&found.header.key).is_none_or(|(_, other)| rank(&found) > rank(other));
            if is_newer {
                newest.insert(found.header.key, (Arc::clone(&segment), found));
            }
        }
    }
    let mut records: Vec<_> = newest.into_values().collect();
    records.sort_unstable_by_key(|(_, found)| (found.header.address.sequence, found.header.address.segment));
    if let Some((_, found)) = records.last() {
        log.counters.sequence.store(found.header.address.sequence, Relaxed);
    }
    drop_oldest(&mut records, log.room_bytes());
    let dropped = make_fit(log, &records);
    let mut blocks = Vec::new();
    for (segment, found) in records.into_iter().filter(|(segment, _)| !dropped.contains(&segment.number)) {
        let slot = blocks.len() as u32;
        let Found { header, len } = found;
        let location = Location::new(&segment, header.address, len, header.key);
        let (generation, _) = log.slots.claim(slot);
        drop(log.slots.fill(slot, generation, location));
        blocks.push(KnownBlock { block: slot, key: header.key, tokens: header.tokens });
    }
    Ok(Recovered { blocks, faults, other_layouts, next_segment })
}

/// Contents of a segment at the start.
enum Contents {
    /// No record; the segment was deleted.
    Nothing,
    /// Records of another model or layout, of no use here.
    OtherLayout(Arc<Segment>),
    Records(Arc<Segment>, Vec<Found>),
}

/// Opens a segment and finds its records. An unfinished segment is completed behind its last whole record; one without a record is deleted. A broken
/// header is written again for the records found.
fn recover_segment(log: &Log, path: &Path, number: u64, faults: &mut FaultCounts) -> io::Result<Contents> {
    let (mut segment, layout) = Segment::open(log.files.as_ref(), path, number)?;
    match layout {
        Ok(layout) if layout == log.limits.layout => {}
        // Records of another model or layout make way as soon as no space is left.
        Ok(_) | Err(Fault::Stale) => return Ok(Contents::OtherLayout(Arc::new(segment))),
        Err(fault @ (Fault::Flipped | Fault::Swapped)) => faults.add(fault),
        // A writer that ended before the header was written leaves an empty file.
        Err(_) => {}
    }
    let scan = scan(&segment, log.limits.layout, false)?;
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
fn drop_oldest(records: &mut Vec<(Arc<Segment>, Found)>, room: u64) {
    let mut sum = 0;
    let newest = records.iter().rev().take_while(|(_, found)| {
        sum += found.len;
        sum <= room
    });
    let surplus = records.len() - newest.count();
    records.drain(..surplus);
}

/// Deletes the segments with the fewest live bytes, until a new one fits. Returns the numbers of the deleted ones.
fn make_fit(log: &Log, records: &[(Arc<Segment>, Found)]) -> HashSet<u64> {
    let mut live: HashMap<u64, u64> = log.segments().keys().map(|number| (*number, 0)).collect();
    for (segment, found) in records {
        *live.entry(segment.number).or_default() += found.len;
    }
    let mut by_use: Vec<(u64, u64)> = live.into_iter().map(|(number, bytes)| (bytes, number)).collect();
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
            let scan = scan(&segment, layout, checks_payloads)?;
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
