//! Resident memory of a process with a store. One test alone, because memory belongs to the whole process.

use std::sync::{Arc, mpsc};

use trunkline_port::{CopyError, DeviceBlocks, Place, Transfer, TransferReport};
use trunkline_store::{BlockLayout, Compression, Shape, Store, StoreSettings};

const SHAPE: Shape = Shape { layers: 8, tokens: 16, heads: 8, head_dim: 64 };
const BLOCK: usize = 2 * 2 * 8 * 16 * 8 * 64;
const BLOCKS: u32 = 400;
const MIB: u64 = 1 << 20;

/// Device with a block of BF16 numbers of similar size, whatever the number of the block, that checks what is written.
struct Device(Vec<u8>);

impl DeviceBlocks for Device {
    fn block_bytes(&self) -> usize {
        BLOCK
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        bytes.copy_from_slice(&self.0);
        bytes[..4].copy_from_slice(&block.to_le_bytes());
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        assert_eq!((&bytes[..4], &bytes[4..]), (&block.to_le_bytes()[..], &self.0[4..]));
        Ok(())
    }
}

/// Returns the memory of this process that is in RAM, bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn copy(store: &Store, device: &Arc<Device>, from: Place, to: Place, blocks: impl Iterator<Item = u32>) {
    let (send, report) = mpsc::channel();
    let pairs = blocks.map(|block| (block, block)).collect();
    let transfer = Transfer { id: 1, from, to, pairs, is_urgent: true, ..Transfer::default() };
    store.begin(Arc::<Device>::clone(device), transfer, Box::new(move |answer| send.send(answer).unwrap()));
    assert_eq!(TransferReport { stored_bytes: 0, ..report.recv().unwrap() }, TransferReport::default());
}

#[test]
fn compressed_and_released_blocks_give_their_memory_back_to_the_system() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let element = |_| (((random() + random() + random()).to_bits() >> 16) as u16).to_le_bytes();
    let device = Arc::new(Device((0..BLOCK / 2).flat_map(element).collect()));
    let layout = BlockLayout {
        dtype: "bf16".to_owned(),
        shape: Some(SHAPE),
        block_bytes: BLOCK,
        block_size: 16,
        frequencies: None,
    };
    let mut settings = StoreSettings::new(layout, u64::from(BLOCKS) * BLOCK as u64);
    settings.compression = Compression::Store;
    let before = resident_bytes();
    let (store, _) = Store::open(settings).unwrap();
    assert!(resident_bytes() < before + 20 * MIB, "no block, no memory");

    copy(&store, &device, Place::Device, Place::Host, 0..BLOCKS);
    while store.stats().codec.encoded_blocks < BLOCKS.into() || store.stats().queued_jobs > 0 {
        std::thread::yield_now();
    }
    // The answer to another copy says that the last frame is in its place.
    copy(&store, &device, Place::Host, Place::Device, 0..BLOCKS);
    let (raw, taken) = (u64::from(BLOCKS) * BLOCK as u64, resident_bytes() - before);
    println!("{} MiB of blocks take {} MiB", raw / MIB, taken / MIB);
    assert!(taken < raw * 4 / 5, "{raw} bytes of blocks take {taken}");
    let stats = store.stats();
    assert!(stats.arena.used_bytes < raw * 3 / 4 && stats.arena.idle_bytes <= stats.arena.used_bytes / 9, "{stats:?}");

    // Every second block goes: the others stay where they are, and the memory is free all the same.
    store.release(Place::Host, &(0..BLOCKS).step_by(2).collect::<Vec<_>>());
    let half = resident_bytes() - before;
    println!("every second one {} MiB", half / MIB);
    assert!(half < taken * 7 / 10, "{taken} to {half}");
    copy(&store, &device, Place::Host, Place::Device, (1..BLOCKS).step_by(2));
    store.release(Place::Host, &(0..BLOCKS).collect::<Vec<_>>());
    drop(store);
    let left = resident_bytes() - before;
    println!("none {} MiB", left / MIB);
    assert!(left < 20 * MIB, "{left} bytes are left");
}
