//! Tests of the store with a remote tier in a folder.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use trunkline_codec::rotary_frequencies;

use super::*;

fn with_remote(folder: &TempDir, compression: Compression, deadline_ms: u64) -> Store {
    let mut settings = settings(64, compression);
    settings.layout.frequencies = Some(vec![rotary_frequencies(64, 10_000.0); 4]);
    let url = format!("file://{}", folder.path().display());
    settings.tiers.push(TierMedium::Remote { url, deadline: Duration::from_millis(deadline_ms) });
    Store::open(settings).unwrap().0
}

const REMOTE: Place = Place::Tier(1);

fn lookup(store: &Store, tier: u8, seeds: impl Iterator<Item = u32>) -> u32 {
    let (send, found) = mpsc::channel();
    let lookup = Lookup { id: 1, tier, keys: seeds.map(key).collect() };
    store.lookup(lookup, Box::new(move |answer| send.send(answer).unwrap()));
    found.recv().unwrap()
}

/// Returns the path of the one object in a folder.
fn only_object(folder: &TempDir) -> PathBuf {
    let mut path = folder.path().to_owned();
    while path.is_dir() {
        path = std::fs::read_dir(&path).unwrap().next().unwrap().unwrap().path();
    }
    path
}

#[test]
fn two_servers_share_blocks_compressed_with_the_statistics_of_one() {
    let folder = TempDir::new().unwrap();
    let first = with_remote(&folder, Compression::Store, 60_000);
    let device = Device::with((0..40).map(|at| (at, at)));
    let blocks: Vec<_> = (0..40).map(|at| (at, at, at)).collect();
    assert_eq!(copy(&first, &device, Place::Device, REMOTE, &blocks).faults, []);
    drop(first);

    let second = with_remote(&folder, Compression::Store, 60_000);
    assert_eq!([35..45, 0..40, 40..60, 0..0].map(|seeds| lookup(&second, 1, seeds)), [5, 40, 0, 0]);
    assert_eq!((lookup(&second, 0, 0..2), lookup(&second, 9, 0..1)), (0, 0), "no remote tiers");
    // Slots are the core's: a block is read by its key, whatever its slot.
    let back: Vec<_> = (0..40).map(|at| (500 + at, 100 + at, at)).collect();
    assert_eq!(copy(&second, &device, REMOTE, Place::Device, &back).faults, []);
    assert!((0..40).all(|at| device.block(100 + at) == Some(contents(at))));
    let report = copy(&second, &device, REMOTE, TIER, &[(1, 0, 7), (2, 1, 77)]);
    assert_eq!(report.faults, [(1, BlockFault::Bad)]);
    assert_eq!(copy(&second, &device, TIER, Place::Device, &[(0, 200, 7)]).faults, []);
    assert_eq!(device.block(200), Some(contents(7)));
    assert_eq!(second.stats().tiers[1].faults.of(Fault::Missing), 1);
}

#[test]
fn a_remote_that_hangs_costs_its_own_copies_and_no_others() {
    let folder = TempDir::new().unwrap();
    let store = with_remote(&folder, Compression::Off, 50);
    let device = Device::with((0..40).map(|at| (at, at)));
    copy(&store, &device, Place::Device, REMOTE, &[(0, 0, 0)]);
    // A reader of a pipe without a writer waits for ever.
    let object = only_object(&folder);
    std::fs::remove_file(&object).unwrap();
    mknodat(CWD, &object, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let hanging: Vec<_> =
        (0..20).map(|at| start(&store, &device, REMOTE, Place::Device, &[(0, 50 + at, 0)], true)).collect();
    let blocks: Vec<_> = (0..20).map(|at| (at, at, at)).collect();
    assert_eq!(copy(&store, &device, Place::Device, TIER, &blocks).faults, []);
    assert_eq!(copy(&store, &device, TIER, Place::Device, &blocks).faults, []);
    for report in hanging {
        assert_eq!(report.recv().unwrap().faults, [(0, BlockFault::Interrupted)]);
    }
    assert!(store.stats().tiers[1].remote.unwrap().is_down);
    assert_eq!(lookup(&store, 1, 0..1), 0, "nobody waits for storage that is down");
}

#[test]
fn a_remote_that_takes_no_writes_is_read_and_no_block_is_read_for_it() {
    let folder = TempDir::new().unwrap();
    let store = with_remote(&folder, Compression::Off, 60_000);
    let device = Device::with((0..4).map(|at| (at, at)));
    copy(&store, &device, Place::Device, REMOTE, &[(0, 0, 0)]);
    let object = only_object(&folder);
    for at in 1..4 {
        // No file takes the place of a folder.
        let taken = object.with_file_name(format!("{:032x}", key(at).hash)).join("taken");
        std::fs::create_dir_all(taken).unwrap();
        let report = copy(&store, &device, Place::Device, REMOTE, &[(at, at, at)]);
        assert_eq!(report.faults, [(0, BlockFault::Refused)]);
    }
    let remote = store.stats().tiers[1].remote.unwrap();
    assert_eq!((remote.is_down, remote.takes_no_writes), (false, true));
    assert_eq!(
        (lookup(&store, 1, 0..1), copy(&store, &device, REMOTE, Place::Device, &[(0, 7, 0)]).faults),
        (1, vec![])
    );
    assert_eq!(device.block(7), Some(contents(0)));
    // The device has no such block: nothing is read, let alone compressed, for a store that takes no writes.
    assert_eq!(copy(&store, &device, Place::Device, REMOTE, &[(99, 1, 5)]).faults, [(0, BlockFault::Refused)]);
}

#[test]
fn addresses_without_a_meaning_are_refused_with_one_line() {
    for url in ["nonsense", "gopher://x/y", "file://host/x", "s3://"] {
        let mut settings = settings(8, Compression::Off);
        settings.tiers.push(TierMedium::Remote { url: url.to_owned(), deadline: Duration::from_secs(1) });
        let error = Store::open(settings).unwrap_err().to_string();
        assert!(error.starts_with(url) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn copies_to_a_remote_hold_few_blocks_of_the_device() {
    let folder = TempDir::new().unwrap();
    let mut settings = settings(64, Compression::Off);
    let url = format!("file://{}", folder.path().display());
    settings.tiers.push(TierMedium::Remote { url, deadline: Duration::from_secs(60) });
    settings.remote_blocks = 4;
    let (store, _) = Store::open(settings).unwrap();
    let device = Device::with((0..10).map(|at| (at, at)));
    // A chain, tail first: what is taken is of use without the rest.
    let blocks: Vec<_> = (0..10).rev().map(|at| (at, at, at)).collect();
    let report = start(&store, &device, Place::Device, REMOTE, &blocks, false).recv().unwrap();
    assert_eq!(report.faults, (0..6).map(|at| (at, BlockFault::Refused)).collect::<Vec<_>>());
    assert_eq!(lookup(&store, 1, 0..10), 4);
    assert_eq!(start(&store, &device, Place::Device, TIER, &blocks, false).recv().unwrap().faults, []);
}

#[test]
fn a_look_up_in_shared_memory_waits_for_the_copies_of_the_other_engine() {
    let memory = crate::SharedMemory::new(1 << 30);
    let open = || {
        let mut settings = settings(64, Compression::Off);
        settings.tiers.push(TierMedium::Shared(memory.clone()));
        Store::open(settings).unwrap().0
    };
    let (prefill, decode) = (open(), open());
    let device = Device::with((0..3).map(|at| (at, at)));
    let gate = device.hold_reads_of(1);
    let pairs: Vec<_> = (0..3).map(|at| (at, at, at)).collect();
    let copied = start(&prefill, &device, Place::Device, REMOTE, &pairs, false);
    // All three are announced, and the second cannot be read yet.
    let (send, found) = mpsc::channel();
    let lookup = Lookup { id: 1, tier: 1, keys: (0..4).map(key).collect() };
    decode.lookup(lookup, Box::new(move |answer| send.send(answer).unwrap()));
    assert!(found.try_recv().is_err(), "the look-up waits");
    gate.send(()).unwrap();
    assert_eq!(found.recv().unwrap(), 3);
    assert_eq!(copied.recv().unwrap().faults, []);
    let device = Device::with([]);
    let back: Vec<_> = (0..3).map(|at| (7 + at, at, at)).collect();
    assert_eq!(copy(&decode, &device, REMOTE, Place::Device, &back).faults, []);
    assert!((0..3).all(|at| device.block(at) == Some(contents(at))));
}
