//! Tests of the store.

mod disk;
mod remote;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use proptest::prelude::*;
use trunkline_codec::Shape;
use trunkline_port::{BlockFault, BlockKey, CopyError, Token};

use super::*;
use crate::counters::Fault;
use crate::layout::BlockLayout;
use crate::settings::Compression;

const SHAPE: Shape = Shape { layers: 4, tokens: 16, heads: 4, head_dim: 64 };
const BLOCK: usize = 2 * 2 * 4 * 16 * 4 * 64;

fn layout() -> BlockLayout {
    BlockLayout { dtype: "bf16".to_owned(), shape: Some(SHAPE), block_bytes: BLOCK, block_size: 16, frequencies: None }
}

fn settings(blocks: u64, compression: Compression) -> StoreSettings {
    let mut settings = StoreSettings::new(layout(), blocks * BLOCK as u64);
    (settings.tiers, settings.compression) = (vec![TierMedium::Host], compression);
    settings
}

/// Returns the bytes of a block named `seed`: BF16 numbers of similar size, as keys and values are.
fn contents(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let element = |_| (((random() + random() + random()).to_bits() >> 16) as u16).to_le_bytes();
    (0..BLOCK / 2).flat_map(element).collect()
}

fn key(seed: u32) -> BlockKey {
    BlockKey {
        root: 7,
        parent: u128::from(seed),
        hash: u128::from(seed) << 64 | 1,
        fingerprint: u64::from(seed),
        first_token: seed * 16,
        group: 0,
    }
}

/// Device in memory, whose reads can be made to wait.
#[derive(Default)]
struct Device {
    blocks: Mutex<HashMap<u32, Vec<u8>>>,
    /// Block whose reads wait for a message.
    gate: Mutex<Option<(u32, Receiver<()>)>>,
}

impl Device {
    fn with(blocks: impl IntoIterator<Item = (u32, u32)>) -> Arc<Self> {
        let device = Self::default();
        device.blocks.lock().unwrap().extend(blocks.into_iter().map(|(block, seed)| (block, contents(seed))));
        Arc::new(device)
    }

    fn block(&self, block: u32) -> Option<Vec<u8>> {
        self.blocks.lock().unwrap().get(&block).cloned()
    }

    fn hold_reads_of(&self, block: u32) -> Sender<()> {
        let (send, receive) = mpsc::channel();
        *self.gate.lock().unwrap() = Some((block, receive));
        send
    }
}

impl DeviceBlocks for Device {
    fn block_bytes(&self) -> usize {
        BLOCK
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        let held = self.gate.lock().unwrap().take_if(|(held, _)| *held == block);
        if let Some((_, gate)) = held {
            gate.recv().map_err(CopyError::new)?;
        }
        bytes.copy_from_slice(&self.block(block).ok_or_else(|| CopyError::new("no block"))?);
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.blocks.lock().unwrap().insert(block, bytes.to_vec());
        Ok(())
    }
}

/// Starts a transfer of blocks (from, to, seed). Seeds name the contents if a tier takes part.
fn start(
    store: &Store,
    device: &Arc<Device>,
    from: Place,
    to: Place,
    blocks: &[(u32, u32, u32)],
    is_urgent: bool,
) -> Receiver<TransferReport> {
    let (send, report) = mpsc::channel();
    let has_keys = [from, to].iter().any(|place| matches!(place, Place::Tier(_)));
    let keyed = || blocks.iter().filter(|_| has_keys);
    let transfer = Transfer {
        id: 1,
        from,
        to,
        pairs: blocks.iter().map(|(from, to, _)| (*from, *to)).collect(),
        keys: keyed().map(|(.., seed)| key(*seed)).collect(),
        tokens: keyed().flat_map(|(.., seed)| (0..16).map(move |at| seed * 16 + at as Token)).collect(),
        is_urgent,
    };
    store.begin(Arc::<Device>::clone(device), transfer, Box::new(move |answer| send.send(answer).unwrap()));
    report
}

fn copy(store: &Store, device: &Arc<Device>, from: Place, to: Place, blocks: &[(u32, u32, u32)]) -> TransferReport {
    start(store, device, from, to, blocks, true).recv().unwrap()
}

/// Waits until no job waits or runs: an idle job comes after all others.
fn settle(store: &Store) {
    for _ in 0..store.settings.threads * 2 {
        let (send, receive) = mpsc::channel();
        store.pool.queue().push(Urgency::Idle, Box::new(move |_| send.send(()).unwrap()));
        receive.recv().unwrap();
    }
}

const TIER: Place = Place::Tier(0);

#[test]
fn blocks_come_back_as_they_left_with_any_compression() {
    use Compression::{Auto, Full, Off, Probe};
    for compression in [Off, Auto, Probe, Full, Compression::Store] {
        let (store, known) = Store::open(settings(64, compression)).unwrap();
        assert_eq!(known, [Vec::new()]);
        let device = Device::with((0..20).map(|at| (at, at)));
        let out: Vec<_> = (0..20).map(|at| (at, at + 3, at)).collect();
        let report = copy(&store, &device, Place::Device, TIER, &out);
        assert_eq!(report.faults, []);
        assert_eq!(copy(&store, &device, Place::Device, Place::Host, &out).faults, []);
        settle(&store);
        let [ratio, used] =
            [store.stats().codec.ratio(), store.stats().arena.used_bytes as f64 / (40.0 * BLOCK as f64)];
        let compresses = matches!(compression, Auto | Full | Compression::Store);
        assert_eq!(ratio > 1.2, compression != Off, "{compression:?}: {ratio}");
        assert_eq!(used < 0.85, compresses, "{compression:?}: {used}");
        for (from, first) in [(TIER, 100), (Place::Host, 200)] {
            let back: Vec<_> = (0..20).map(|at| (at + 3, first + at, at)).collect();
            let report = copy(&store, &device, from, Place::Device, &back);
            assert_eq!(report, TransferReport { stored_bytes: 20 * BLOCK as u64, ..TransferReport::default() });
            assert!((0..20).all(|at| device.block(first + at) == Some(contents(at))));
        }
        assert_eq!(store.stats().codec.mismatches, 0);
    }
}

#[test]
fn a_slot_with_another_block_or_none_is_bad_and_the_counters_say_so() {
    let (store, _) = Store::open(settings(8, Compression::Off)).unwrap();
    let device = Device::with([(0, 5), (1, 6)]);
    copy(&store, &device, Place::Device, TIER, &[(0, 0, 5), (1, 1, 6)]);
    let report = copy(&store, &device, TIER, Place::Device, &[(0, 10, 5), (1, 11, 5), (2, 12, 7)]);
    assert_eq!(report.faults, [(1, BlockFault::Bad), (2, BlockFault::Bad)]);
    assert_eq!((device.block(10), device.block(11), device.block(12)), (Some(contents(5)), None, None));
    let faults = store.stats().tiers[0].faults;
    assert_eq!((faults.of(Fault::Swapped), faults.of(Fault::Missing), faults.total()), (1, 1, 2));
    // A device that cannot be read says nothing about the block.
    let report = copy(&store, &device, Place::Device, TIER, &[(77, 3, 8)]);
    assert_eq!(report.faults, [(0, BlockFault::Interrupted)]);
}

#[test]
fn full_memory_refuses_and_released_or_rewritten_slots_make_room() {
    let (store, _) = Store::open(settings(2, Compression::Off)).unwrap();
    let device = Device::with((0..4).map(|at| (at, at)));
    let report = copy(&store, &device, Place::Device, TIER, &[(2, 2, 2), (1, 1, 1), (0, 0, 0)]);
    assert_eq!((report.faults, report.stored_bytes), (vec![(0, BlockFault::Refused)], 2 * BLOCK as u64));
    assert_eq!(copy(&store, &device, Place::Device, Place::Host, &[(3, 0, 0)]).faults, [(0, BlockFault::Refused)]);
    assert_eq!(copy(&store, &device, Place::Device, TIER, &[(3, 1, 3)]).faults, []);
    store.release(TIER, &[0]);
    assert_eq!(copy(&store, &device, Place::Device, Place::Host, &[(3, 0, 0)]).faults, []);
    let stats = store.stats();
    assert_eq!((stats.host.blocks, stats.tiers[0].blocks), (1, 1));
    assert_eq!(stats.tiers[0].mean_stored_bytes(), Some(BLOCK as f64));
    assert_eq!(stats.tiers[0].residency.lifetime.count, 2);
}

#[test]
fn a_block_in_two_host_places_takes_memory_once() {
    let (store, _) = Store::open(settings(2, Compression::Off)).unwrap();
    let device = Device::with([(0, 9)]);
    copy(&store, &device, Place::Device, TIER, &[(0, 0, 9)]);
    assert_eq!(copy(&store, &device, TIER, Place::Host, &[(0, 4, 9)]).faults, []);
    assert_eq!(store.stats().arena.used_bytes, BLOCK as u64);
    store.release(TIER, &[0]);
    assert_eq!(copy(&store, &device, Place::Host, Place::Device, &[(4, 1, 9)]).faults, []);
    assert_eq!(device.block(1), Some(contents(9)));
}

/// Copies a block of the device to host memory for a swapped-out request, by its name.
fn swap_out(store: &Store, device: &Arc<Device>, pair: (u32, u32), seed: u32) -> TransferReport {
    let (send, report) = mpsc::channel();
    let transfer = Transfer {
        from: Place::Device,
        to: Place::Host,
        pairs: vec![pair],
        keys: vec![key(seed)],
        ..Transfer::default()
    };
    store.begin(Arc::<Device>::clone(device), transfer, Box::new(move |answer| send.send(answer).unwrap()));
    report.recv().unwrap()
}

#[test]
fn what_the_tier_has_is_not_copied_for_a_swap_nor_the_other_way_round() {
    let (store, _) = Store::open(settings(2, Compression::Off)).unwrap();
    let device = Device::with([(0, 9), (1, 8)]);
    copy(&store, &device, Place::Device, TIER, &[(0, 0, 9)]);
    assert_eq!(swap_out(&store, &device, (0, 4), 9).faults, []);
    assert_eq!((store.stats().arena.used_bytes, store.stats().shared_blocks), (BLOCK as u64, 1));
    assert_eq!(swap_out(&store, &device, (1, 5), 8).faults, []);
    copy(&store, &device, Place::Device, TIER, &[(1, 1, 8)]);
    assert_eq!((store.stats().arena.used_bytes, store.stats().shared_blocks), (2 * BLOCK as u64, 2));
    // Each slot is as good as a copy.
    store.release(TIER, &[0, 1]);
    assert_eq!(copy(&store, &device, Place::Host, Place::Device, &[(4, 2, 9), (5, 3, 8)]).faults, []);
    assert_eq!((device.block(2), device.block(3)), (Some(contents(9)), Some(contents(8))));
    // A block that is gone everywhere is read from the device again.
    store.release(Place::Host, &[4, 5]);
    assert_eq!(swap_out(&store, &device, (0, 4), 9).faults, []);
    assert_eq!((store.stats().arena.used_bytes, store.stats().shared_blocks), (BLOCK as u64, 2));
    // After a flush the weights may be others: the same tokens have other contents.
    store.stop_sharing();
    device.blocks.lock().unwrap().insert(0, contents(77));
    copy(&store, &device, Place::Device, TIER, &[(0, 0, 9)]);
    copy(&store, &device, TIER, Place::Device, &[(0, 3, 9)]);
    assert_eq!((device.block(3), store.stats().shared_blocks), (Some(contents(77)), 2));
}

#[test]
fn a_later_write_wins_over_one_that_ends_later() {
    let (store, _) = Store::open(settings(8, Compression::Off)).unwrap();
    let (lost, new) = (Device::with([(0, 1)]), Device::with([(0, 2)]));
    let release = lost.hold_reads_of(0);
    let first = start(&store, &lost, Place::Device, Place::Host, &[(0, 0, 1)], true);
    assert_eq!(copy(&store, &new, Place::Device, Place::Host, &[(0, 0, 2)]).faults, []);
    release.send(()).unwrap();
    assert_eq!(first.recv().unwrap().faults, [(0, BlockFault::Interrupted)]);
    assert_eq!(copy(&store, &new, Place::Host, Place::Device, &[(0, 1, 2)]).faults, []);
    assert_eq!(new.block(1), Some(contents(2)));
}

#[test]
fn copies_to_a_tier_beyond_the_limit_are_refused_at_once_however_urgent_and_swaps_are_not() {
    let mut settings = settings(64, Compression::Off);
    settings.background_blocks = 10;
    let (store, _) = Store::open(settings).unwrap();
    let device = Device::with((0..20).map(|at| (at, at)));
    let release = device.hold_reads_of(5);
    let blocks: Vec<_> = (0..6).map(|at| (at, at, at)).collect();
    let first = start(&store, &device, Place::Device, TIER, &blocks, false);
    let blocks: Vec<_> = (6..14).map(|at| (at, at, at)).collect();
    // The first block to be copied waits for the device, and six credits with it.
    let second = start(&store, &device, Place::Device, TIER, &blocks, false);
    assert_eq!(copy(&store, &device, Place::Device, TIER, &[(15, 15, 15)]).faults, [(0, BlockFault::Refused)]);
    assert_eq!(copy(&store, &device, Place::Device, Place::Host, &[(15, 15, 15)]).faults, []);
    release.send(()).unwrap();
    assert_eq!(first.recv().unwrap().faults, []);
    // The first pairs, which are the tail of a chain.
    let refused = [0, 1, 2, 3].map(|at| (at, BlockFault::Refused));
    assert_eq!(second.recv().unwrap().faults, refused);
    let links = store.stats().links;
    let link = links.iter().find(|link| link.to == TIER).unwrap();
    assert_eq!((link.queued_blocks, link.blocks, link.refused, link.waits.count), (0, 10, 5, 10));
}

#[test]
fn a_cancelled_transfer_ends_with_the_block_under_way() {
    let (store, _) = Store::open(StoreSettings { threads: 1, ..settings(64, Compression::Off) }).unwrap();
    let device = Device::with((0..20).map(|at| (at, at)));
    // The last pair is copied first.
    let release = device.hold_reads_of(19);
    let blocks: Vec<_> = (0..20).map(|at| (at, at, at)).collect();
    let report = start(&store, &device, Place::Device, TIER, &blocks, true);
    while device.gate.lock().unwrap().is_some() {
        std::thread::yield_now();
    }
    store.cancel(2);
    store.cancel(1);
    release.send(()).unwrap();
    let interrupted: Vec<_> = (0..19).map(|at| (at, BlockFault::Interrupted)).collect();
    let report = report.recv().unwrap();
    assert_eq!((report.faults, report.is_cancelled), (interrupted, true));
    let link = &store.stats().links[0];
    assert_eq!((link.queued_blocks, link.cancelled, link.failed), (0, 19, 0));
    // The transfer is over, and its number serves again.
    store.cancel(1);
    assert_eq!(copy(&store, &device, Place::Device, TIER, &blocks).faults, []);
}

#[test]
fn a_dropped_store_answers_everything() {
    let (store, _) = Store::open(settings(64, Compression::Off)).unwrap();
    let device = Device::with((0..64).map(|at| (at, at)));
    let gate = device.hold_reads_of(0);
    let blocks: Vec<_> = (0..64).map(|at| (at, at, at)).collect();
    let reports: Vec<_> = (0..4).map(|_| start(&store, &device, Place::Device, TIER, &blocks, false)).collect();
    // The read fails when nobody can release it any more.
    drop(gate);
    drop(store);
    let faults: Vec<_> = reports.into_iter().map(|report| report.recv().unwrap().faults).collect();
    assert!(faults.iter().flatten().all(|(_, fault)| *fault == BlockFault::Interrupted), "{faults:?}");
}

#[test]
fn transfers_without_a_meaning_are_refused() {
    let (store, _) = Store::open(settings(8, Compression::Off)).unwrap();
    let device = Device::with([(0, 1)]);
    for to in [Place::Tier(1), Place::Tier(255), Place::Device] {
        assert_eq!(copy(&store, &device, Place::Device, to, &[(0, 0, 1)]).faults, [(0, BlockFault::Refused)]);
    }
    assert_eq!(copy(&store, &device, Place::Device, TIER, &[]), TransferReport::default());
    let (send, report) = mpsc::channel();
    let transfer = Transfer { from: Place::Device, to: TIER, pairs: vec![(0, 0)], ..Transfer::default() };
    store.begin(Arc::<Device>::clone(&device), transfer, Box::new(move |answer| send.send(answer).unwrap()));
    assert_eq!(report.recv().unwrap().faults, [(0, BlockFault::Refused)], "a tier takes no block without a key");
}

#[test]
fn decoded_blocks_are_kept_for_the_next_requester() {
    let mut settings = settings(64, Compression::Full);
    settings.decode_cache_bytes = 4 * BLOCK as u64;
    let (store, _) = Store::open(settings).unwrap();
    let device = Device::with([(0, 3)]);
    copy(&store, &device, Place::Device, TIER, &[(0, 0, 3)]);
    for at in 1..4 {
        copy(&store, &device, TIER, Place::Device, &[(0, at, 3)]);
        assert_eq!(device.block(at), Some(contents(3)));
    }
    let cache = store.stats().cache;
    assert_eq!((cache.hits, cache.misses, cache.blocks), (2, 1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_store_holds_what_a_map_holds(
        operations in prop::collection::vec((0u8..5, 0u32..6, 0u32..6, 0u32..1000), 1..60),
        compression in prop::sample::select(vec![Compression::Off, Compression::Full, Compression::Store]),
    ) {
        let (store, _) = Store::open(settings(5, compression)).unwrap();
        let device = Device::with([]);
        let mut model: HashMap<(Place, u32), u32> = HashMap::new();
        for (operation, from, to, seed) in operations {
            let places = [(Place::Device, TIER), (Place::Device, Place::Host), (TIER, Place::Host), (TIER, Place::Device), (Place::Host, Place::Device)];
            let (source, target) = places[usize::from(operation)];
            let held = if source == Place::Device {
                device.write(from, &contents(seed)).unwrap();
                Some(seed)
            } else {
                model.get(&(source, from)).copied()
            };
            let faults = copy(&store, &device, source, target, &[(from, to + 100 * u32::from(target == Place::Device), held.unwrap_or(seed))]).faults;
            if target == Place::Device {
                prop_assert_eq!(faults.is_empty(), held.is_some());
                if let Some(seed) = held {
                    prop_assert_eq!(device.block(to + 100), Some(contents(seed)));
                }
            } else {
                model.remove(&(target, to));
                match (held, faults.as_slice()) {
                    (Some(seed), []) => drop(model.insert((target, to), seed)),
                    (Some(_), [(0, BlockFault::Refused)]) => prop_assert!(model.len() >= 4 || compression != Compression::Off),
                    (None, [(0, BlockFault::Bad)]) => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            let stats = store.stats();
            prop_assert_eq!(stats.host.blocks + stats.tiers[0].blocks, model.len() as u64);
        }
        store.release(TIER, &[0, 1, 2, 3, 4, 5]);
        store.release(Place::Host, &[0, 1, 2, 3, 4, 5]);
        settle(&store);
        let stats = store.stats();
        prop_assert_eq!((stats.host.stored_bytes, stats.tiers[0].stored_bytes), (0, 0));
        prop_assert_eq!(stats.arena.used_bytes, stats.cache.bytes);
    }
}
