//! Folders of disk tiers of earlier programs are still read, bit for bit: version 1 of segments, records and side tables.

#[path = "../../../tests/harness/fixtures.rs"]
mod fixtures;
#[path = "../../../tests/harness/made_device.rs"]
mod made_device;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};

use trunkline_port::{BlockKey, KnownBlock, Place, Token, Transfer};
use trunkline_store::{
    BlockLayout, Compression, Shape, Store, StoreSettings, TierMedium, check_disk, rotary_frequencies,
};

use made_device::Device;

/// A block has as many tokens as the codec needs for its side table.
const SHAPE: Shape = Shape { layers: 1, tokens: 512, heads: 1, head_dim: 2 };
const BLOCK: usize = 2 * 512 * 2 * 2;
const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Bytes of a block: numbers of BF16 with few exponents, made by additions and multiplications; of block 1 all but the first are 0.
fn contents(block: u32) -> Vec<u8> {
    let mut state = u64::from(block) * 2 + 1;
    let mut element = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (0x3f80 | (state >> 60 << 3) as u16 | (state >> 40 & 1 << 15) as u16).to_le_bytes()
    };
    (0..BLOCK / 2).flat_map(|at| if block == 1 && at >= 32 { [0; 2] } else { element() }).collect()
}

fn key(block: u32) -> BlockKey {
    let hash = u128::from(block) << 66 | 3;
    BlockKey { root: 1, parent: 2, hash, fingerprint: block.into(), first_token: 512 * block, group: 0 }
}

fn tokens(block: u32) -> Vec<Token> {
    vec![7 + block; 512]
}

fn open(folder: &Path, compression: Compression) -> (Store, Vec<KnownBlock>) {
    let layout = BlockLayout {
        dtype: "bf16".to_owned(),
        shape: Some(SHAPE),
        block_bytes: BLOCK,
        block_size: 512,
        frequencies: Some(vec![rotary_frequencies(2, 10_000.0)]),
    };
    let mut settings = StoreSettings::new(layout, 1 << 20);
    settings.tiers = vec![TierMedium::Disk { path: folder.to_owned(), bytes: 4 << 20 }];
    settings.compression = compression;
    let (store, mut known) = Store::open(settings).unwrap();
    (store, known.swap_remove(0))
}

/// Copies a block between the device and the slot of its number on the disk.
fn copy(store: &Store, device: &Arc<Device>, from: Place, to: Place, (slot, block): (u32, u32)) {
    let pair = if from == Place::Device { (block, slot) } else { (slot, block) };
    let keys = vec![key(block)];
    let transfer = Transfer { id: 1, from, to, pairs: vec![pair], keys, tokens: tokens(block), is_urgent: true };
    let (send, report) = mpsc::channel();
    store.begin(Arc::<Device>::clone(device), transfer, Box::new(move |answer| send.send(answer).unwrap()));
    assert_eq!(report.recv().unwrap().faults, [], "block {block}");
}

/// Files with records or tables, by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let named = files.filter(|path| path.extension().is_some_and(|extension| extension == "tkv" || extension == "tkt"));
    named.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

/// Writes blocks to a folder, compares the files with the kept ones, and reads these: `frames` of the records are frames.
fn check(file: &str, compression: Compression, blocks: &[u32], frames: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (store, known) = open(folder.path(), compression);
    assert!(known.is_empty());
    let device = Arc::new(Device::new(contents, BLOCK));
    blocks.iter().for_each(|block| copy(&store, &device, Place::Device, Place::Tier(0), (*block, *block)));
    drop(store);
    let written = files(folder.path());
    let made: Vec<_> = written.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();

    let old = tempfile::tempdir().unwrap();
    for (name, bytes) in fixtures::kept(FOLDER, file, &made) {
        fs::write(old.path().join(name), bytes).unwrap();
    }
    let checked = check_disk(old.path(), true).unwrap();
    assert_eq!((checked.blocks, checked.frames, checked.faults().total()), (blocks.len() as u64, frames, 0));
    let (store, known) = open(old.path(), compression);
    assert_eq!(store.stats().tiers[0].disk.as_ref().unwrap().dropped_at_start.total(), 0);
    let read = Arc::new(Device::new(contents, BLOCK));
    for (block, known) in blocks.iter().copied().zip(&known) {
        assert_eq!((known.key, &known.tokens), (key(block), &tokens(block)));
        copy(&store, &read, Place::Tier(0), Place::Device, (known.block, block));
        assert_eq!(read.written.lock().unwrap()[&block], contents(block));
    }
    assert_eq!(known.len(), blocks.len());
}

#[test]
fn a_folder_of_version_1_is_read_as_it_was_written() {
    check("v1/plain.txt", Compression::Off, &[1], 0);
    check("v1/frames.txt", Compression::Store, &[0, 1], 2);
}
