//! Benchmarks of the store: a disk tier compared with plain reads and writes, and host memory compared with copies in memory.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::Context;
use trunkline_port::{BlockKey, CopyError, DeviceBlocks, Place, Transfer};
use trunkline_store::{BlockLayout, Compression, Store, StoreSettings, TierMedium, plain_disk};

use super::measure::Report;

/// Bytes of a record on disk: a block and the page with its header.
const RECORD: usize = 1 << 20;
/// Bytes of a block.
const BLOCK: usize = RECORD - 4096;
const BLOCK_SIZE: u32 = 16;
/// Blocks of a transfer.
const BATCH: u32 = 8;
/// Transfers under way at once: fewer bytes than the queue of a disk holds.
const UNDER_WAY: usize = 5;
/// Plain reads or writes under way at once: as many as a disk tier has reading threads.
const DEPTH: usize = 4;

/// Device of equal blocks; what is written is looked at, and dropped.
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

    fn write(&self, _: u32, bytes: &[u8]) -> Result<(), CopyError> {
        black_box(bytes.iter().step_by(64).fold(0u8, |sum, byte| sum ^ byte));
        Ok(())
    }
}

/// Copies `n` blocks, some transfers at once. Returns MB/s.
fn copy(store: &Store, device: &Arc<Device>, from: Place, to: Place, n: u32) -> anyhow::Result<f64> {
    let key = |block: u32| BlockKey {
        root: 1,
        parent: 1,
        hash: block.into(),
        fingerprint: block.into(),
        ..BlockKey::default()
    };
    let is_keyed = [from, to].iter().any(|place| matches!(place, Place::Tier(_)));
    let begin = Instant::now();
    let mut reports: VecDeque<mpsc::Receiver<_>> = VecDeque::new();
    let mut first = 0;
    while first < n || !reports.is_empty() {
        if first < n && reports.len() < UNDER_WAY {
            let blocks = first..(first + BATCH).min(n);
            first = blocks.end;
            let keyed = || blocks.clone().filter(|_| is_keyed);
            let transfer = Transfer {
                id: 1,
                from,
                to,
                pairs: blocks.clone().map(|block| (block, block)).collect(),
                keys: keyed().map(key).collect(),
                tokens: keyed().flat_map(|block| [block; BLOCK_SIZE as usize]).collect(),
                is_urgent: true,
            };
            let (send, report) = mpsc::channel();
            let done = Box::new(move |answer| drop(send.send(answer)));
            store.begin(Arc::<Device>::clone(device), transfer, done);
            reports.push_back(report);
        } else if let Some(report) = reports.pop_front() {
            let report: trunkline_port::TransferReport = report.recv().context("the store ended")?;
            anyhow::ensure!(report.faults.is_empty(), "the store copied not all blocks: {:?}", report.faults);
        }
    }
    Ok(f64::from(n) * BLOCK as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

fn settings(blocks: u32) -> StoreSettings {
    let layout =
        BlockLayout { dtype: "bytes".to_owned(), block_bytes: BLOCK, block_size: BLOCK_SIZE, ..BlockLayout::default() };
    let mut settings = StoreSettings::new(layout, u64::from(blocks) * RECORD as u64);
    settings.compression = Compression::Off;
    settings
}

fn device() -> Arc<Device> {
    Arc::new(Device((0..BLOCK as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()))
}

/// Compares a disk tier in `folder` with plain reads and writes there.
///
/// # Errors
/// If the folder cannot be used.
pub fn run(folder: &Path, quick: bool) -> anyhow::Result<Report> {
    let notes = vec![
        "MB/s of blocks of 1 MiB without their headers; plain: pwrite and pread of 1 MiB past the page cache, 4 at once",
        "ratio: the disk tier's bandwidth by the plain one, run by run",
    ];
    let mut report = Report::new("disk", quick, notes);
    let (runs, blocks) = if quick { (1, 16) } else { (7, 384) };
    let folder = folder.join(format!("trunkline-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut columns: [Vec<f64>; 6] = Default::default();
    for _ in 0..runs {
        let (write, read) = plain_disk(&folder, RECORD, blocks.into(), DEPTH).context("cannot measure the disk")?;
        let plain = [write, read].map(|time| f64::from(blocks) * BLOCK as f64 / 1e6 / time.as_secs_f64());
        let path = folder.join("tier");
        let mut settings = settings(1);
        settings.tiers =
            vec![TierMedium::Disk { path: path.clone(), bytes: u64::from(blocks) * 2 * RECORD as u64 + (64 << 20) }];
        let (store, _) = Store::open(settings)?;
        let device = device();
        let tier = [
            copy(&store, &device, Place::Device, Place::Tier(0), blocks)?,
            copy(&store, &device, Place::Tier(0), Place::Device, blocks)?,
        ];
        drop(store);
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot delete {}", path.display()))?;
        let row = [plain[0], tier[0], tier[0] / plain[0], plain[1], tier[1], tier[1] / plain[1]];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot delete {}", folder.display()))?;
    let names = [
        ("plain", "write", "MB/s"),
        ("tier", "write", "MB/s"),
        ("ratio", "write", ""),
        ("plain", "read", "MB/s"),
        ("tier", "read", "MB/s"),
        ("ratio", "read", ""),
    ];
    for ((what, case, unit), values) in names.into_iter().zip(columns) {
        report.add(what, case, unit, values);
    }
    Ok(report)
}

/// Measures copies between the device and host memory, compared with copies in memory.
///
/// # Errors
/// If the system starts no thread.
pub fn run_swap(quick: bool) -> anyhow::Result<Report> {
    let notes = vec!["MB/s of blocks of 1 MiB on two threads; memory: copies of such blocks by one thread"];
    let mut report = Report::new("swap", quick, notes);
    let (runs, blocks) = if quick { (1, 16) } else { (9, 256) };
    let (device, mut target) = (device(), vec![0; BLOCK]);
    let (store, _) = Store::open(settings(blocks + 8))?;
    let mut columns: [Vec<f64>; 4] = Default::default();
    for _ in 0..runs {
        let begin = Instant::now();
        (0..blocks).for_each(|_| black_box(&mut target).copy_from_slice(black_box(&device.0)));
        let memory = f64::from(blocks) * BLOCK as f64 / 1e6 / begin.elapsed().as_secs_f64();
        let out = copy(&store, &device, Place::Device, Place::Host, blocks)?;
        let again = copy(&store, &device, Place::Device, Place::Host, blocks)?;
        let back = copy(&store, &device, Place::Host, Place::Device, blocks)?;
        store.release(Place::Host, &(0..blocks).collect::<Vec<_>>());
        columns.iter_mut().zip([memory, out, again, back]).for_each(|(column, value)| column.push(value));
    }
    let names = [("memory", "copy"), ("swap out", "new memory"), ("swap out", "used memory"), ("swap in", "")];
    for ((what, case), values) in names.into_iter().zip(columns) {
        report.add(what, case, "MB/s", values);
    }
    Ok(report)
}
