//! Keeps KV blocks on a disk and finds them again: `cargo run -p trunkline-store --example disk`.
//!
//! `docs/reference/disk-tier.md` specifies the files.

use std::sync::{Arc, Mutex, mpsc};

use trunkline_port::{BlockKey, CopyError, DeviceBlocks, KnownBlock, Place, Transfer};
use trunkline_store::{BlockLayout, Store, StoreError, StoreSettings, TierMedium};

const BLOCK: usize = 4096;

/// Memory of a device with four blocks.
struct Device(Mutex<[[u8; BLOCK]; 4]>);

impl DeviceBlocks for Device {
    fn block_bytes(&self) -> usize {
        BLOCK
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        bytes.copy_from_slice(&self.0.lock().expect("no copy panics")[block as usize]);
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.0.lock().expect("no copy panics")[block as usize].copy_from_slice(bytes);
        Ok(())
    }
}

/// Opens a store with a disk tier. Returns the blocks that are there from before.
fn open(folder: &std::path::Path) -> Result<(Store, Vec<KnownBlock>), StoreError> {
    let layout =
        BlockLayout { dtype: "f32".into(), shape: None, block_bytes: BLOCK, block_size: 16, frequencies: None };
    let mut settings = StoreSettings::new(layout, 1 << 20);
    settings.tiers = vec![TierMedium::Disk { path: folder.to_owned(), bytes: 16 << 20 }];
    let (store, mut known) = Store::open(settings)?;
    Ok((store, known.swap_remove(0)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let device = Arc::new(Device(Mutex::new([[1; BLOCK], [2; BLOCK], [3; BLOCK], [0; BLOCK]])));
    let copy = |store: &Store, from, to, pair, key, tokens: &[u32]| {
        let transfer =
            Transfer { id: 1, from, to, pairs: vec![pair], keys: vec![key], tokens: tokens.into(), is_urgent: true };
        let (send, report) = mpsc::channel();
        let done = Box::new(move |answer| _ = send.send(answer));
        store.begin(Arc::<Device>::clone(&device), transfer, done);
        report.recv()
    };

    // A block is known by a hash of its prefix; a core makes these keys.
    let (store, _) = open(folder.path())?;
    let key = BlockKey { root: 7, parent: 7, hash: 8, fingerprint: 8, first_token: 0, group: 0 };
    let report = copy(&store, Place::Device, Place::Tier(0), (1, 0), key, &[42; 16])?;
    println!("stored {} bytes, faults {:?}", report.stored_bytes, report.faults);
    drop(store);

    // Another process would find it like this.
    let (store, known) = open(folder.path())?;
    let found = known.first().ok_or("the block is gone")?;
    println!("found {} block, of tokens {:?}...", known.len(), &found.tokens[..2]);
    let report = copy(&store, Place::Tier(0), Place::Device, (found.block, 3), found.key, &found.tokens)?;
    let bytes = device.0.lock().map_err(|_| "a copy panicked")?[3];
    println!("loaded it, faults {:?}; it holds what block 1 held: {}", report.faults, bytes == [2; BLOCK]);
    Ok(())
}
