//! Tests of the store with a disk tier.

use tempfile::TempDir;
use trunkline_codec::rotary_frequencies;

use super::*;

const DISK: Place = Place::Tier(1);

fn with_disk(folder: &TempDir, compression: Compression, disk_bytes: u64) -> StoreSettings {
    let mut settings = settings(64, compression);
    settings.layout.frequencies = Some(vec![rotary_frequencies(64, 10_000.0); 4]);
    settings.tiers.push(TierMedium::Disk { path: folder.path().to_owned(), bytes: disk_bytes });
    settings
}

#[test]
fn blocks_take_every_way_to_the_disk_and_are_found_after_a_restart() {
    for compression in [Compression::Off, Compression::Full, Compression::Store] {
        let folder = TempDir::new().unwrap();
        let settings = with_disk(&folder, compression, 64 << 20);
        let (store, known) = Store::open(settings.clone()).unwrap();
        assert_eq!(known, [Vec::new(), Vec::new()]);
        let device = Device::with((0..40).map(|at| (at, at)));
        // From the device; then through the host, where 40 blocks complete the statistics of the model.
        let direct: Vec<_> = (0..20).map(|at| (at, at, at)).collect();
        assert_eq!(copy(&store, &device, Place::Device, DISK, &direct).faults, []);
        let near: Vec<_> = (20..40).map(|at| (at, at - 20, at)).collect();
        assert_eq!(copy(&store, &device, Place::Device, TIER, &near).faults, []);
        settle(&store);
        let far: Vec<_> = (20..40).map(|at| (at - 20, at, at)).collect();
        let report = copy(&store, &device, TIER, DISK, &far);
        assert_eq!(report.faults, []);
        let raw = 20 * (BLOCK as u64 + 4096);
        assert_eq!(report.stored_bytes == raw, compression == Compression::Off, "{}", report.stored_bytes);
        assert!(report.stored_bytes <= raw);
        drop(store);

        let (store, known) = Store::open(settings).unwrap();
        let mut found: Vec<u32> = known[1].iter().map(|block| block.key.fingerprint as u32).collect();
        assert_eq!(known[0], []);
        // Threads work side by side: the order of the writes is not that of the transfers.
        let slots: Vec<_> =
            known[1].iter().map(|block| (block.block, 100 + block.block, block.key.fingerprint as u32)).collect();
        found.sort_unstable();
        assert_eq!(found, (0..40).collect::<Vec<_>>());
        assert_eq!(copy(&store, &device, DISK, Place::Device, &slots).faults, []);
        assert!(slots.iter().all(|(_, to, seed)| device.block(*to) == Some(contents(*seed))));
        let promoted: Vec<_> = slots.iter().map(|(from, _, seed)| (*from, *from, *seed)).collect();
        assert_eq!(copy(&store, &device, DISK, TIER, &promoted).faults, []);
        let back: Vec<_> = slots.iter().map(|(from, to, seed)| (*from, to + 100, *seed)).collect();
        assert_eq!(copy(&store, &device, TIER, Place::Device, &back).faults, []);
        assert!(slots.iter().all(|(_, to, seed)| device.block(to + 100) == Some(contents(*seed))));
        let stats = store.stats();
        assert_eq!((stats.tiers[1].faults.total(), stats.codec.mismatches), (0, 0));
        assert_eq!(stats.tiers[1].blocks, 40);
    }
}

#[test]
fn a_read_of_another_block_is_bad_and_counted() {
    let folder = TempDir::new().unwrap();
    let (store, _) = Store::open(with_disk(&folder, Compression::Off, 64 << 20)).unwrap();
    let device = Device::with([(0, 5)]);
    copy(&store, &device, Place::Device, DISK, &[(0, 3, 5)]);
    let report = copy(&store, &device, DISK, Place::Device, &[(3, 8, 6), (4, 9, 5)]);
    assert_eq!(report.faults, [(0, BlockFault::Bad), (1, BlockFault::Bad)]);
    store.release(DISK, &[3]);
    assert_eq!(copy(&store, &device, DISK, Place::Device, &[(3, 8, 5)]).faults, [(0, BlockFault::Bad)]);
    let faults = store.stats().tiers[1].faults;
    assert_eq!((faults.of(Fault::Swapped), faults.of(Fault::Missing)), (1, 2));
    assert_eq!(device.block(8), None);
}

#[test]
fn a_dropped_store_has_written_what_was_queued() {
    let folder = TempDir::new().unwrap();
    let settings = with_disk(&folder, Compression::Off, 64 << 20);
    let (store, _) = Store::open(settings.clone()).unwrap();
    let device = Device::with((0..60).map(|at| (at, at)));
    let reports: Vec<_> =
        (0..60).map(|at| start(&store, &device, Place::Device, DISK, &[(at, at, at)], true)).collect();
    drop(store);
    let arrived = reports.into_iter().filter(|report| report.recv().unwrap().faults.is_empty()).count();
    let (_, known) = Store::open(settings).unwrap();
    assert_eq!(known[1].len(), arrived);
}
