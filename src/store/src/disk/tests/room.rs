//! Tests of the segments of a tier, by its size and by the room of the filesystem.

use super::*;

#[test]
fn a_filesystem_smaller_than_the_tier_holds_blocks_in_segments_that_fit() {
    let folder = TempDir::new().unwrap();
    let faults = Arc::new(Mutex::new(Faults { room: Some(6 << 20), ..Faults::default() }));
    let files = |folder: &Path| -> Arc<dyn Files> {
        Arc::new(FaultyFiles { system: SystemFiles::new(folder), faults: Arc::clone(&faults) })
    };
    let large = settings(&folder, 200 << 20);
    let taken = |seeds: std::ops::Range<u32>| {
        let (disk, known) = Disk::open(&large, &files).unwrap();
        (known.len(), seeds.filter(|seed| write(&disk, *seed, *seed).is_ok()).count())
    };
    let (_, first) = taken(0..200);
    assert!(first > 150, "{first} blocks of {RECORD} bytes in 6 MiB");
    let (found, _) = taken(0..0);
    assert!(found > 150, "{found} are found again, in segments of the same size");
    faults.lock().unwrap().room = Some(100_000);
    let folder = TempDir::new().unwrap();
    let line = Disk::open(&settings(&folder, 200 << 20), &files).map(drop).unwrap_err().to_string();
    let place = folder.path().display();
    let expected = format!(
        "disk: the filesystem of {place} has room for 100000 bytes, and blocks of this size need 1048576 at least; free space there or name another folder"
    );
    assert_eq!(line, expected);
}

#[test]
fn a_tier_has_few_open_files_whatever_its_size() {
    let folder = TempDir::new().unwrap();
    for bytes in [4 << 20, 100 << 20, 5 << 30, 100 << 30, 3 << 40] {
        let limits = settings(&folder, bytes).limits(None).unwrap();
        assert!(limits.bytes <= bytes && limits.bytes / limits.segment_bytes <= SEGMENTS_MAX, "{limits:?}");
    }
    // Many small segments, as after many short runs.
    let files = SystemFiles::new(folder.path());
    (1..=SEGMENTS_MAX + 20).for_each(|number| drop(Segment::create(&files, folder.path(), number, 8192, 78).unwrap()));
    let (disk, _) = open(&settings(&folder, 64 << 20)).unwrap();
    assert_eq!(disk.stats().segments, SEGMENTS_MAX + 20, "none is lost at the start");
    write(&disk, 0, 0).unwrap();
    assert_eq!(disk.stats().segments, SEGMENTS_MAX - 1, "one is kept free");
}

#[test]
fn a_segment_cut_anywhere_gives_the_whole_records_before_the_cut() {
    let source = TempDir::new().unwrap();
    let bytes = fs::read(ten_blocks(&source)).unwrap();
    for cut in (0..bytes.len()).step_by(6_144) {
        for zeros in [0, 1 << 16] {
            let folder = TempDir::new().unwrap();
            let mut cut_bytes = bytes[..cut].to_vec();
            cut_bytes.resize(cut + zeros, 0);
            fs::write(folder.path().join(segment::file_name(1)), &cut_bytes).unwrap();
            let whole = (cut as u64).saturating_sub(4096) / RECORD;
            let (disk, found, dropped) = reopen(&folder);
            assert_eq!(found, (0..whole.min(10) as u32).collect::<Vec<_>>(), "cut at {cut}, {zeros} zeros");
            assert!(found.iter().all(|seed| read(&disk, *seed, *seed) == Ok(())));
            assert!(
                dropped.total() <= 1 && dropped.of(Fault::Torn) + dropped.of(Fault::Short) == dropped.total(),
                "{dropped:?}"
            );
            drop(disk);
            // The tail is gone: a second start finds the same, and nothing to drop.
            let (_, again, dropped) = reopen(&folder);
            assert_eq!((again, dropped.total()), (found, 0), "cut at {cut}");
        }
    }
}
