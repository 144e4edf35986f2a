//! Tests of the disk tier: recovery, space, and faults of files.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};

use tempfile::TempDir;
use trunkline_files::{BlockFile, SystemFiles};
use trunkline_port::BlockFault;

use super::segment::Segment;
use super::*;
use crate::held::Coding;
use crate::record::{Address, place, seal};

mod removed;
mod room;
mod search;

const PAYLOAD: usize = 20_000;
const LAYOUT: u64 = 77;
/// Bytes of a record on disk.
const RECORD: u64 = 20_480;

fn settings(folder: &TempDir, bytes: u64) -> DiskSettings {
    let record_max = record_max(PAYLOAD, 4);
    DiskSettings { path: folder.path().to_owned(), bytes, layout: LAYOUT, record_max, search_until: None }
}

fn open(settings: &DiskSettings) -> Result<(Disk, Vec<KnownBlock>), StoreError> {
    Disk::open(settings, &system_files)
}

fn key(seed: u32) -> BlockKey {
    let hash = u128::from(seed) << 70 | 1;
    BlockKey { root: 1, parent: 2, hash, fingerprint: u64::from(seed), first_token: 4 * seed, group: 0 }
}

fn tokens(seed: u32) -> Vec<Token> {
    (0..4).map(|at| seed * 4 + at).collect()
}

fn payload(seed: u32) -> Vec<u8> {
    (0..PAYLOAD as u32).map(|at| (at.wrapping_mul(seed + 1) >> 3) as u8).collect()
}

/// Queues the record of a block. The receiver gets the writer's answer.
fn start(disk: &Disk, slot: u32, seed: u32) -> mpsc::Receiver<Result<u64, BlockFault>> {
    let (send, receive) = mpsc::channel();
    let mut record = disk.buffer();
    record.resize(header_len(4));
    record.append(|out| out.extend(payload(seed)));
    seal(record.as_mut_slice(), LAYOUT, Coding::Raw, &key(seed), &tokens(seed));
    record.pad();
    let generation = disk.claim(slot);
    let done = Box::new(move |result| send.send(result).unwrap());
    let write = Write { record, n_tokens: 4, key: key(seed), slot, generation, done };
    disk.write(write);
    receive
}

fn write(disk: &Disk, slot: u32, seed: u32) -> Result<u64, BlockFault> {
    start(disk, slot, seed).recv().unwrap()
}

fn read(disk: &Disk, slot: u32, seed: u32) -> Result<(), Fault> {
    let mut record = Aligned::default();
    let header = disk.read(slot, &key(seed), &tokens(seed), &mut record)?;
    assert_eq!(record.as_slice()[header.payload_range()], payload(seed));
    Ok(())
}

/// Returns the seeds of known blocks in the order of their slots, and checks keys and tokens.
fn seeds(known: &[KnownBlock]) -> Vec<u32> {
    let seed = |(at, block): (usize, &KnownBlock)| {
        let seed = block.key.fingerprint as u32;
        assert_eq!((block.block as usize, block.key, &block.tokens), (at, key(seed), &tokens(seed)));
        seed
    };
    known.iter().enumerate().map(seed).collect()
}

fn folder_bytes(folder: &TempDir) -> u64 {
    bytes_in(folder.path())
}

fn bytes_in(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

fn segments(folder: &TempDir) -> Vec<PathBuf> {
    SystemFiles::for_reading()
        .list(folder.path())
        .unwrap()
        .into_iter()
        .filter(|p| segment::number_of(p).is_some())
        .collect()
}

#[test]
fn blocks_are_found_after_a_restart_oldest_first() {
    let folder = TempDir::new().unwrap();
    let (disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    assert_eq!(known, []);
    for seed in 0..30 {
        assert_eq!(write(&disk, 100 - seed, seed), Ok(RECORD));
    }
    assert_eq!((read(&disk, 100, 0), read(&disk, 71, 29)), (Ok(()), Ok(())));
    assert_eq!((read(&disk, 99, 0), read(&disk, 5, 0)), (Err(Fault::Swapped), Err(Fault::Missing)));
    // The block in this slot is another one from now on; the old one may be found again.
    assert_eq!(write(&disk, 100, 40), Ok(RECORD));
    assert_eq!(read(&disk, 100, 0), Err(Fault::Swapped));
    drop(disk);
    let (disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    let expected: Vec<u32> = (0..30).chain([40]).collect();
    assert_eq!(seeds(&known), expected);
    assert!(expected.iter().enumerate().all(|(slot, seed)| read(&disk, slot as u32, *seed) == Ok(())));
    assert_eq!(disk.stats().dropped_at_start.total(), 0);
}

#[test]
fn a_folder_belongs_to_one_process_and_must_be_large_enough() {
    let folder = TempDir::new().unwrap();
    let disk = open(&settings(&folder, 4 << 20)).unwrap();
    let error = open(&settings(&folder, 4 << 20)).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    drop(disk);
    assert!(open(&settings(&folder, 4 << 20)).is_ok());
    let error = open(&settings(&folder, 100_000)).unwrap_err();
    assert!(matches!(error, StoreError::Setting { setting: "disk size", .. }), "{error}");
}

#[test]
fn the_size_is_limited_in_bytes_and_space_is_used_again() {
    let folder = TempDir::new().unwrap();
    let limit = 4 << 20;
    let (disk, _) = open(&settings(&folder, limit)).unwrap();
    let (.., capacity) = disk.usage();
    // Slots for all the room, rewritten in an order without a pattern.
    let slots = (capacity / RECORD) as u32;
    let mut held: Vec<Option<u32>> = vec![None; slots as usize];
    let mut random = 1u64;
    for seed in 0..1_000u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (random >> 33) as u32 % slots;
        assert!(write(&disk, slot, seed).is_ok(), "{seed}");
        held[slot as usize] = Some(seed);
        assert!(folder_bytes(&folder) <= limit, "{seed}");
    }
    for (slot, seed) in held.iter().enumerate() {
        assert!(seed.is_none_or(|seed| read(&disk, slot as u32, seed) == Ok(())));
    }
    let stats = disk.stats();
    let amplification = 1.0 + stats.rewritten_bytes as f64 / stats.written_bytes as f64;
    println!("write amplification {amplification:.2}, {} segments deleted", stats.deleted_segments);
    assert!(stats.rewritten_bytes > 0 && amplification < 5.0, "{amplification}");
    drop(disk);
    let (disk, known) = open(&settings(&folder, limit)).unwrap();
    let found: HashSet<u32> = seeds(&known).into_iter().collect();
    let oldest = found.iter().min().unwrap();
    assert!(held.iter().flatten().all(|seed| found.contains(seed) || seed < oldest), "what the slots held is found");
    assert!(disk.usage().1 <= disk.usage().2 && disk.usage().2 - disk.usage().1 < RECORD);
    assert!(known.iter().all(|block| read(&disk, block.block, block.key.fingerprint as u32) == Ok(())));
}

#[test]
fn another_limit_holds_for_segments_from_before() {
    let larger = 64 << 20;
    for limit in [2 << 20, 4 << 20, 128 << 20] {
        let folder = TempDir::new().unwrap();
        let (disk, _) = open(&settings(&folder, larger)).unwrap();
        assert!((0..260).all(|seed| write(&disk, seed, seed).is_ok()));
        drop(disk);
        assert_eq!(segments(&folder).len(), 3, "of 2 MiB");
        let (disk, known) = open(&settings(&folder, limit)).unwrap();
        assert!(folder_bytes(&folder) <= limit, "{} bytes of {limit}", folder_bytes(&folder));
        let found = seeds(&known);
        assert!(found.len() >= if limit < larger { 50 } else { 260 } && found.last() == Some(&259), "{found:?}");
        assert!(found.is_sorted_by(|a, b| a + 1 == *b), "the newest are found");
        assert!(known.iter().all(|block| read(&disk, block.block, block.key.fingerprint as u32) == Ok(())));
        // The blocks found make way for others.
        let slots = (disk.usage().2 / RECORD) as u32;
        let written = (1_000..1_300).filter(|seed| write(&disk, seed % slots, *seed).is_ok()).count();
        assert!(written > 200 && folder_bytes(&folder) <= limit, "{written} written, {} bytes", folder_bytes(&folder));
    }
}

#[test]
fn the_newest_blocks_of_a_full_tier_are_found_and_make_way_for_others() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 2 << 20)).unwrap();
    let taken = (0..120).take_while(|seed| write(&disk, *seed, *seed).is_ok()).count() as u32;
    drop(disk);
    let (disk, known) = open(&settings(&folder, 2 << 20)).unwrap();
    let fits = (disk.usage().2 / RECORD) as u32;
    assert!(fits < taken);
    assert_eq!(seeds(&known), (taken - fits..taken).collect::<Vec<_>>());
    assert!((0..60).all(|at| write(&disk, at % fits, 200 + at).is_ok()), "no block without a reader takes room");
}

#[test]
fn a_disk_full_of_live_blocks_refuses_until_some_are_dead() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 2 << 20)).unwrap();
    let answers: Vec<_> = (0..120).map(|seed| write(&disk, seed, seed)).collect();
    let taken = answers.iter().take_while(|answer| answer.is_ok()).count() as u32;
    assert!((60..90).contains(&taken), "{taken}");
    assert!(answers[taken as usize..].iter().all(|answer| *answer == Err(BlockFault::Refused)));
    (0..20).for_each(|slot| disk.release(slot));
    assert!(write(&disk, 0, 500).is_ok());
    assert!((20..taken).all(|seed| read(&disk, seed, seed) == Ok(())));
    assert!(folder_bytes(&folder) <= 2 << 20);
}

#[test]
fn the_newest_record_of_a_block_wins() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 4 << 20)).unwrap();
    for seed in [1, 2, 1, 3] {
        write(&disk, seed, seed).unwrap();
    }
    drop(disk);
    let (_, known) = open(&settings(&folder, 4 << 20)).unwrap();
    assert_eq!(seeds(&known), [2, 1, 3]);
}

/// Fault of one write.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// Error number of the system, after some bytes.
    After(usize, i32),
    /// Fewer bytes than asked for.
    Short(usize),
}

/// Files whose writes and reads fail on demand.
#[derive(Debug)]
struct FaultyFiles {
    system: SystemFiles,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    writes: VecDeque<Broken>,
    creates: VecDeque<i32>,
    reads: u32,
    removes: u32,
    /// `true` if no file can be created until one is removed.
    is_full: bool,
    /// Offset of a page that cannot be read.
    bad_page: Option<u64>,
    /// Bytes of the filesystem, with room for the files of the folder alone.
    room: Option<u64>,
}

#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn BlockFile>,
    faults: Arc<Mutex<Faults>>,
}

impl FaultyFiles {
    fn wrap(&self, file: Box<dyn BlockFile>) -> Box<dyn BlockFile> {
        Box::new(FaultyFile { file, faults: Arc::clone(&self.faults) })
    }
}

impl Files for FaultyFiles {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn BlockFile>> {
        let mut faults = self.faults.lock().unwrap();
        let fits = faults.room.is_none_or(|room| bytes_in(path.parent().unwrap()) + bytes <= room);
        let error = if faults.is_full || !fits { Some(28) } else { faults.creates.pop_front() };
        drop(faults);
        match error {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => Ok(self.wrap(self.system.create(path, bytes)?)),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn BlockFile>> {
        Ok(self.wrap(self.system.open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut faults = self.faults.lock().unwrap();
        if faults.removes > 0 {
            faults.removes -= 1;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        faults.is_full = false;
        drop(faults);
        self.system.remove(path)
    }

    fn is_direct(&self) -> bool {
        self.system.is_direct()
    }

    fn free_bytes(&self, folder: &Path) -> Option<u64> {
        Some(self.faults.lock().unwrap().room?.saturating_sub(bytes_in(folder)))
    }
}

impl BlockFile for FaultyFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let mut some = Aligned::default();
        let mut write = |len: usize| {
            some.resize(len.min(all.len()));
            let len = some.as_slice().len();
            some.as_mut_slice().copy_from_slice(&all[..len]);
            self.file.write_at(&[IoSlice::new(some.as_slice())], offset)
        };
        match self.faults.lock().unwrap().writes.pop_front() {
            Some(Broken::After(len, number)) => {
                if len > 0 {
                    write(len)?;
                }
                Err(io::Error::from_raw_os_error(number))
            }
            Some(Broken::Short(len)) => write(len),
            None => self.file.write_at(parts, offset),
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut faults = self.faults.lock().unwrap();
        if faults.reads > 0 {
            faults.reads -= 1;
            return Err(io::Error::from_raw_os_error(5));
        }
        let is_bad = faults.bad_page.is_some_and(|page| (offset..offset + bytes.len() as u64).contains(&page));
        drop(faults);
        if is_bad { Err(io::Error::from_raw_os_error(5)) } else { self.file.read_at(bytes, offset) }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.truncate(bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn is_linked(&self) -> bool {
        self.file.is_linked()
    }
}

fn open_faulty(folder: &TempDir) -> (Disk, Arc<Mutex<Faults>>) {
    let faults = Arc::<Mutex<Faults>>::default();
    (open_faulty_with(folder, &faults).0, faults)
}

fn open_faulty_with(folder: &TempDir, faults: &Arc<Mutex<Faults>>) -> (Disk, Vec<KnownBlock>) {
    let files = |folder: &Path| -> Arc<dyn Files> {
        Arc::new(FaultyFiles { system: SystemFiles::new(folder), faults: Arc::clone(faults) })
    };
    Disk::open(&settings(folder, 4 << 20), &files).unwrap()
}

#[test]
fn errors_of_the_system_cost_the_records_they_hit_and_no_others() {
    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    for (at, broken) in
        [Broken::After(0, EIO), Broken::After(8192, EIO), Broken::After(16384, ENOSPC)].into_iter().enumerate()
    {
        let folder = TempDir::new().unwrap();
        let (disk, faults) = open_faulty(&folder);
        for seed in 0..5 {
            write(&disk, seed, seed).unwrap();
        }
        faults.lock().unwrap().writes.push_back(broken);
        let expected = if at == 2 { BlockFault::Refused } else { BlockFault::Interrupted };
        assert_eq!(write(&disk, 5, 5), Err(expected));
        assert_eq!(read(&disk, 5, 5), Err(Fault::Missing));
        for seed in 6..9 {
            write(&disk, seed, seed).unwrap();
        }
        assert!([0, 1, 2, 3, 4, 6, 7, 8].iter().all(|seed| read(&disk, *seed, *seed) == Ok(())));
        assert_eq!(disk.stats().failed_writes, 1);
        drop(disk);
        let (_, known) = open(&settings(&folder, 4 << 20)).unwrap();
        assert_eq!(seeds(&known), [0, 1, 2, 3, 4, 6, 7, 8]);
    }
}

#[test]
fn short_writes_are_continued_and_a_full_disk_refuses() {
    let folder = TempDir::new().unwrap();
    let (disk, faults) = open_faulty(&folder);
    faults.lock().unwrap().creates.push_back(28);
    assert_eq!(write(&disk, 0, 0), Err(BlockFault::Refused));
    write(&disk, 1, 1).unwrap();
    faults.lock().unwrap().writes.extend([Broken::Short(4096), Broken::Short(8192)]);
    write(&disk, 2, 2).unwrap();
    faults.lock().unwrap().writes.push_back(Broken::Short(100));
    assert_eq!(write(&disk, 3, 3), Err(BlockFault::Interrupted), "part of a page is no progress");
    assert_eq!((read(&disk, 1, 1), read(&disk, 2, 2)), (Ok(()), Ok(())));
    faults.lock().unwrap().reads = 1;
    assert_eq!(read(&disk, 2, 2), Err(Fault::Unreadable));
    assert_eq!(read(&disk, 2, 2), Ok(()));
}

/// Writes ten blocks and returns the path of the one segment.
fn ten_blocks(folder: &TempDir) -> PathBuf {
    let (disk, _) = open(&settings(folder, 16 << 20)).unwrap();
    assert!((0..10).all(|seed| write(&disk, seed, seed) == Ok(RECORD)));
    drop(disk);
    let paths = segments(folder);
    assert_eq!(paths.len(), 1);
    paths[0].clone()
}

fn reopen(folder: &TempDir) -> (Disk, Vec<u32>, FaultCounts) {
    let (disk, known) = open(&settings(folder, 16 << 20)).unwrap();
    let dropped = disk.stats().dropped_at_start;
    (disk, seeds(&known), dropped)
}

#[test]
fn flipped_bits_are_found_at_the_start_or_when_read() {
    let folder = TempDir::new().unwrap();
    let path = ten_blocks(&folder);
    let flip = |at: u64| {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 8], at).unwrap();
    };
    let record = |n: u64| 4096 + n * RECORD;
    flip(record(3) + 5000);
    flip(record(6) + 60);
    let checked = check(folder.path(), true).unwrap();
    assert_eq!((checked.faults().of(Fault::Flipped), checked.blocks), (2, 8));
    assert_eq!(check(folder.path(), false).unwrap().blocks, 9, "payloads are left unread");
    let (disk, found, dropped) = reopen(&folder);
    assert_eq!(found, [0, 1, 2, 3, 4, 5, 7, 8, 9]);
    assert_eq!((dropped.of(Fault::Flipped), dropped.total()), (1, 1));
    assert_eq!((read(&disk, 2, 2), read(&disk, 3, 3), read(&disk, 4, 4)), (Ok(()), Err(Fault::Flipped), Ok(())));
    // The place of a record can go bad later, too.
    flip(record(4) + 16);
    assert_eq!(read(&disk, 4, 4), Err(Fault::Flipped));
}

#[test]
fn swapped_and_stale_records_are_found_at_the_start_and_when_read() {
    let folder = TempDir::new().unwrap();
    let path = ten_blocks(&folder);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let record = |n: u64| {
        let mut bytes = vec![0; RECORD as usize];
        file.read_exact_at(&mut bytes, 4096 + n * RECORD).unwrap();
        bytes
    };
    let (two, five) = (record(2), record(5));
    let (disk, ..) = reopen(&folder);
    file.write_all_at(&five, 4096 + 2 * RECORD).unwrap();
    file.write_all_at(&two, 4096 + 5 * RECORD).unwrap();
    assert_eq!((read(&disk, 2, 2), read(&disk, 5, 5)), (Err(Fault::Swapped), Err(Fault::Swapped)));
    drop(disk);
    let (disk, found, dropped) = reopen(&folder);
    assert_eq!(found, [0, 1, 3, 4, 6, 7, 8, 9]);
    assert_eq!((dropped.of(Fault::Swapped), dropped.total()), (2, 2));
    // An older record in the place of a newer one: whole, and of the same block.
    let mut old = record(9);
    place(&mut old, 4, Address { sequence: 1, segment: segment::number_of(&path).unwrap(), offset: 4096 + 9 * RECORD });
    file.write_all_at(&old, 4096 + 9 * RECORD).unwrap();
    assert_eq!(read(&disk, 7, 9), Err(Fault::Stale));
    drop(disk);
}

#[test]
fn segments_of_another_layout_stay_until_their_space_is_needed() {
    let folder = TempDir::new().unwrap();
    let limit = 4 << 20;
    let (disk, _) = open(&settings(&folder, limit)).unwrap();
    assert!((0..48).all(|seed| write(&disk, seed, seed).is_ok()));
    drop(disk);
    let n = segments(&folder).len();
    let other = DiskSettings { layout: 78, ..settings(&folder, limit) };
    let locked = TierFolder::open(folder.path(), 78).unwrap();
    let log = Log::new(other.limits(None).unwrap(), system_files(folder.path()), locked);
    let line = format!("{n} segments of another model, KV type or block size are not read, and make way first");
    let (old, _) = recovery::old_segments(&log).unwrap();
    let searched = recovery::search(&log, old, &AtomicBool::new(false), &mut Vec::new(), drop);
    assert_eq!(searched.lines(), [line], "none is called damaged");
    drop(log);
    let (disk, known) = open(&other).unwrap();
    assert_eq!((known, disk.stats().dropped_at_start.of(Fault::Stale)), (Vec::new(), n as u64));
    assert!((0..20).all(|seed| write(&disk, seed, 100 + seed).is_ok()));
    drop(disk);
    let (disk, known) = open(&settings(&folder, limit)).unwrap();
    assert_eq!(seeds(&known), (0..48).collect::<Vec<_>>());
    drop(disk);
    let (disk, _) = open(&other).unwrap();
    assert!((0..150).all(|seed| write(&disk, seed, 200 + seed).is_ok()), "all space is for the layout in use");
    assert!(folder_bytes(&folder) <= limit);
}

#[test]
fn a_bad_page_costs_one_record_and_a_bad_header_none() {
    let folder = TempDir::new().unwrap();
    let path = ten_blocks(&folder);
    let file = File::options().write(true).open(&path).unwrap();
    for bytes in [[0; 4096], [7; 4096]] {
        file.write_all_at(&bytes, 0).unwrap();
        let (disk, found, dropped) = reopen(&folder);
        assert_eq!((found, dropped.total()), ((0..10).collect(), u64::from(bytes[0]) / 7));
        assert!((0..10).all(|seed| read(&disk, seed, seed) == Ok(())));
        drop(disk);
        assert_eq!(reopen(&folder).2.total(), 0, "the header is written again");
    }
    for is_complete in [true, false] {
        if !is_complete {
            file.set_len(4096 + 10 * RECORD).unwrap();
        }
        let faults = Arc::<Mutex<Faults>>::default();
        faults.lock().unwrap().bad_page = Some(4096 + 3 * RECORD);
        let (disk, known) = open_faulty_with(&folder, &faults);
        assert_eq!(seeds(&known), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        assert_eq!(disk.stats().dropped_at_start.of(Fault::Unreadable), 1);
    }
}

#[test]
fn a_filesystem_that_is_full_below_the_limit_lowers_the_room_until_blocks_leave() {
    let folder = TempDir::new().unwrap();
    let (disk, faults) = open_faulty(&folder);
    let (.., room) = disk.usage();
    assert!((0..30).all(|seed| write(&disk, seed, seed).is_ok()));
    faults.lock().unwrap().is_full = true;
    assert!((30..36).all(|seed| write(&disk, seed, seed).is_ok()), "the open segment has room");
    for live in [36, 30] {
        assert_eq!(write(&disk, 40, 40), Err(BlockFault::Refused));
        assert_eq!((disk.usage().1, disk.usage().2), (live * RECORD, live * RECORD / 8 * 7));
        // The core has the blocks beyond the room leave.
        (36 - live as u32..42 - live as u32).for_each(|slot| disk.release(slot));
    }
    assert_eq!(write(&disk, 40, 40), Ok(RECORD));
    assert_eq!((disk.usage().2, disk.stats().segments), (room, 3), "one segment of three was dead, and made way");
}

#[test]
fn a_full_filesystem_needs_the_space_of_other_layouts() {
    let folder = TempDir::new().unwrap();
    let other = DiskSettings { layout: 78, ..settings(&folder, 4 << 20) };
    let (disk, _) = open(&other).unwrap();
    assert!((0..20).all(|seed| write(&disk, seed, seed).is_ok()));
    drop(disk);
    let (disk, faults) = open_faulty(&folder);
    faults.lock().unwrap().creates.push_back(28);
    assert_eq!((write(&disk, 0, 0), disk.stats().segments), (Ok(RECORD), 1));
}

#[test]
fn a_receiver_that_panics_costs_no_other_record() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 4 << 20)).unwrap();
    // The receiver is gone, and sending to it panics: as often as there are threads, and once more.
    (0..=WRITERS as u32).for_each(|seed| drop(start(&disk, seed, seed)));
    assert_eq!(write(&disk, 9, 9), Ok(RECORD));
    drop(disk);
    let (disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    assert_eq!((known.len(), disk.stats().queued_bytes), (WRITERS + 2, 0));
}

#[test]
fn the_last_number_is_no_segment() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("segment-ffffffffffffffff.tkv");
    fs::write(&path, "no segment").unwrap();
    let (disk, _) = open(&settings(&folder, 4 << 20)).unwrap();
    assert_eq!((write(&disk, 0, 0), fs::read(path).unwrap()), (Ok(RECORD), b"no segment".to_vec()));
}

#[test]
fn a_segment_that_cannot_be_deleted_counts_until_it_is() {
    let folder = TempDir::new().unwrap();
    let (disk, faults) = open_faulty(&folder);
    assert!((0..20).all(|seed| write(&disk, seed, seed).is_ok()));
    (0..12).for_each(|slot| disk.release(slot));
    // The first segment is deleted once it is complete, and others are created meanwhile.
    faults.lock().unwrap().removes = u32::MAX;
    assert!((20..60).all(|seed| write(&disk, seed, seed).is_ok()));
    assert_eq!((disk.stats().segments, disk.stats().deleted_segments), (segments(&folder).len() as u64, 0));
    faults.lock().unwrap().removes = 0;
    let is_deleted = |seed| write(&disk, 20 + seed % 100, seed).is_ok() && disk.stats().deleted_segments > 0;
    assert!((60..200).any(is_deleted));
    assert_eq!(disk.stats().segments, segments(&folder).len() as u64);
}

#[test]
fn a_segment_that_cannot_be_read_is_named_and_the_others_are_checked() {
    let folder = TempDir::new().unwrap();
    ten_blocks(&folder);
    let path = folder.path().join(segment::file_name(0));
    fs::create_dir(&path).unwrap();
    for checks_payloads in [false, true] {
        let checked = check(folder.path(), checks_payloads).unwrap();
        assert_eq!((checked.blocks, checked.segments.len()), (10, 2));
        assert_eq!((&checked.segments[0].path, checked.segments[0].faults.of(Fault::Unreadable)), (&path, 1));
    }
    assert_eq!(reopen(&folder).1, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_record_that_announces_more_bytes_than_there_are_is_dropped() {
    for payload_len in [u64::MAX, u64::MAX - 4_300, 1 << 62, 1 << 30, 200_000] {
        for is_complete in [true, false] {
            let folder = TempDir::new().unwrap();
            let path = ten_blocks(&folder);
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let (offset, mut bytes) = (4096 + 3 * RECORD, vec![0; 4096]);
            file.read_exact_at(&mut bytes, offset).unwrap();
            bytes[104..112].copy_from_slice(&payload_len.to_le_bytes());
            place(&mut bytes, 4, Address { sequence: 4, segment: 1, offset });
            file.write_all_at(&bytes, offset).unwrap();
            if !is_complete {
                file.set_len(4096 + 10 * RECORD).unwrap();
            }
            assert_eq!(check(folder.path(), true).unwrap().faults().total(), 1);
            let (_, found, dropped) = reopen(&folder);
            assert_eq!((found, dropped.total()), (vec![0, 1, 2, 4, 5, 6, 7, 8, 9], 1), "{payload_len} bytes");
        }
    }
}

#[test]
fn records_behind_a_hole_are_found_and_the_hole_is_dropped_once() {
    let folder = TempDir::new().unwrap();
    let path = ten_blocks(&folder);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // Without its end page the segment is one whose writer was killed, with several writes under way.
    file.set_len(4096 + 10 * RECORD).unwrap();
    let zeros = vec![0; RECORD as usize];
    file.write_all_at(&zeros, 4096 + 3 * RECORD).unwrap();
    file.write_all_at(&zeros[..8192], 4096 + 7 * RECORD - 8192).unwrap();
    let expected = [0, 1, 2, 4, 5, 7, 8, 9];
    let (disk, found, dropped) = reopen(&folder);
    assert_eq!((found.as_slice(), dropped.of(Fault::Torn), dropped.total()), (&expected[..], 1, 1));
    assert!((0..).zip(expected).all(|(slot, seed)| read(&disk, slot, seed) == Ok(())));
    drop(disk);
    let (_, again, dropped) = reopen(&folder);
    assert_eq!((again.as_slice(), dropped.total()), (&expected[..], 0));
    assert_eq!(check(folder.path(), true).unwrap().faults().total(), 0);
    // A record that was whole when the segment was completed is missed.
    file.write_all_at(&zeros, 4096 + RECORD).unwrap();
    assert_eq!(check(folder.path(), true).unwrap().faults().of(Fault::Torn), 1);
}

#[test]
fn an_error_among_many_writes_costs_few_records_and_the_others_are_found_again() {
    for round in 0..20 {
        let folder = TempDir::new().unwrap();
        let (disk, faults) = open_faulty(&folder);
        write(&disk, 0, 0).unwrap();
        faults.lock().unwrap().writes.push_back(Broken::After(0, 5));
        let answers: Vec<_> = (1..40).map(|seed| (seed, start(&disk, seed, seed))).collect();
        let arrived = |(seed, answer): &(u32, mpsc::Receiver<Result<u64, BlockFault>>)| {
            answer.recv().unwrap().is_ok().then_some(*seed)
        };
        let written: Vec<u32> = [0].into_iter().chain(answers.iter().filter_map(arrived)).collect();
        assert!((1..40).contains(&written.len()), "round {round}: {written:?}");
        assert!(written.iter().all(|seed| read(&disk, *seed, *seed) == Ok(())));
        drop(disk);
        let (_, known) = open(&settings(&folder, 4 << 20)).unwrap();
        let mut found = seeds(&known);
        found.sort_unstable();
        assert_eq!(found, written, "round {round}");
    }
}
