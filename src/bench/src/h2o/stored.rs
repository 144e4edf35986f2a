//! Bytes of the KV left by eviction: the store takes the cold blocks of thinned sequences out of the worker, compresses the blocks, and brings
//! all of them back.
//!
//! Blocks with the first 16 tokens and the last 256 are never compressed, since every step reads these blocks. Scopes say whose other blocks
//! are compressed: blocks of layers with every token (`front_n` of MNN, the first layers there), blocks kept by eviction (`h2o_kept`),
//! or both.

use std::iter::repeat_n;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;
use trunkline_port::{BlockKey, DeviceBlocks, Keeps, Place, Transfer, TransferReport};
use trunkline_store::{BlockLayout, Compression, Store, StoreSettings};
use trunkline_worker::Blocks;

use trunkline::h2o::rig::{Held, Rig, Seq};

/// First tokens, and last tokens, that are never compressed.
const HOT_SINK: usize = 16;
const HOT_RECENT: usize = 256;
/// Blocks of one transfer.
const BATCH: usize = 8;
/// Tokens of a layer group from whose blocks the statistics of the group follow.
const KNOWN: usize = 512;
/// Times that blocks are brought back: the second time the cache has them.
const READS: usize = 2;
/// Wait for the last block to be compressed, at most.
const PATIENCE: Duration = Duration::from_secs(60);
const TIER: Place = Place::Tier(0);

/// Ways to compress, as of `serve --compression`.
const MODES: [(&str, Compression); 3] =
    [("probe", Compression::Probe), ("full", Compression::Full), ("store", Compression::Store)];

/// Bytes of sequences, summed over texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bytes {
    /// Of every token in every layer, in memory.
    pub whole: u64,
    /// Of the tokens that eviction left.
    pub left: u64,
    /// Of the cold blocks of layers that keep every token, before and after compression.
    pub full: [u64; 2],
    /// Of the cold blocks of layers that evict, before and after.
    pub kept: [u64; 2],
}

impl Bytes {
    fn add(&mut self, other: Self) {
        self.whole += other.whole;
        self.left += other.left;
        for (sum, more) in self.full.iter_mut().zip(other.full).chain(self.kept.iter_mut().zip(other.kept)) {
            *sum += more;
        }
    }

    /// Returns all bytes by the bytes left with both scopes compressed, with the layers that keep every token compressed, and with the
    /// kept tokens of the others compressed.
    pub fn totals(&self) -> [f64; 3] {
        let saved = |of: [u64; 2]| of[0].saturating_sub(of[1]);
        let (full, kept) = (saved(self.full), saved(self.kept));
        [full + kept, full, kept].map(|saved| self.whole as f64 / (self.left - saved) as f64)
    }

    /// Returns bytes before compression by bytes after, of all compressed blocks.
    pub fn lossless(&self) -> f64 {
        (self.full[0] + self.kept[0]) as f64 / (self.full[1] + self.kept[1]).max(1) as f64
    }
}

/// Work of the store with one way to compress, summed over texts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Work {
    /// Way to compress, as of `serve --compression`.
    pub mode: String,
    /// Blocks taken out and brought back.
    pub blocks: u64,
    /// Bytes of the blocks on the device, and in the memory of the store once all are compressed.
    pub device_bytes: u64,
    pub stored_bytes: u64,
    /// Time of one thread for each block, microseconds.
    pub encode_us: f64,
    pub decode_us: f64,
    /// Mean time from the request for a block to its answer, microseconds.
    pub wait_out_us: f64,
    pub wait_in_us: f64,
    /// Most jobs that waited for a thread at once.
    pub queue_peak: u64,
    /// Blocks that the store refused, or kept as they are because the codec would have changed them.
    pub fallbacks: u64,
    /// Look-ups in the cache of decoded blocks.
    pub cache_hits: u64,
    pub cache_misses: u64,
}

/// Bytes and work of all texts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stored {
    pub bytes: Bytes,
    pub work: Vec<Work>,
}

impl Stored {
    /// Returns bytes and work as text.
    pub fn render(&self) -> String {
        let [both, full, kept] = self.bytes.totals();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "compression",
            "blocks",
            "MiB",
            "stored",
            "encode us",
            "decode us",
            "out us",
            "in us",
            "queue",
            "fallbacks",
            "cache hits",
        ]);
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        for work in &self.work {
            table.add_row([
                work.mode.clone(),
                work.blocks.to_string(),
                mib(work.device_bytes),
                mib(work.stored_bytes),
                format!("{:.0}", work.encode_us),
                format!("{:.0}", work.decode_us),
                format!("{:.0}", work.wait_out_us),
                format!("{:.0}", work.wait_in_us),
                work.queue_peak.to_string(),
                work.fallbacks.to_string(),
                format!("{} of {}", work.cache_hits, work.cache_hits + work.cache_misses),
            ]);
        }
        format!(
            "Bytes of every token in all layers by bytes left: {:.2}; with cold blocks compressed ({:.2} times smaller) {both:.2}, \
             only those of layers that keep everything {full:.2}, only those kept by eviction {kept:.2}\n\n{}",
            self.bytes.whole as f64 / self.bytes.left.max(1) as f64,
            self.bytes.lossless(),
            table.trim_fmt()
        )
    }

    /// Takes in a thinned sequence, at the end of its text. `prompt` holds all blocks of its prompt, from which the store learns.
    ///
    /// # Errors
    /// If the store fails or a block comes back changed.
    pub fn add(&mut self, rig: &Rig, layout: &BlockLayout, prompt: &Seq, seq: &Seq) -> anyhow::Result<()> {
        let block = rig.block() as usize;
        let whole = rig.held(seq).iter().map(|held| held.layers).max().unwrap_or(0);
        let cold: Vec<Held> =
            rig.held(seq).into_iter().filter(|held| is_cold(held.index, seq.computed, block)).collect();
        let layer_bytes = |layers: usize| (layout.block_bytes * layers / whole.max(1)) as u64;
        let mut bytes = Bytes { whole: rig.whole_blocks(seq).map(&layer_bytes).sum(), ..Bytes::default() };
        bytes.left = rig.held(seq).iter().map(|held| layer_bytes(held.layers)).sum();
        let known: Vec<Held> = rig.held(prompt).into_iter().filter(|held| held.index * block < KNOWN).collect();
        for (at, (name, mode)) in MODES.into_iter().enumerate() {
            for (of, blocks) in split(&cold) {
                let (work, frames) = run(rig.device(), layout, mode, &known, &blocks)?;
                if mode == Compression::Store {
                    let before = blocks.iter().map(|held| layer_bytes(held.layers)).sum();
                    *(if of == Keeps::All { &mut bytes.full } else { &mut bytes.kept }) = [before, frames];
                }
                if self.work.len() <= at {
                    self.work.push(Work { mode: name.to_owned(), ..Work::default() });
                }
                self.work[at].add(&work);
            }
        }
        self.bytes.add(bytes);
        Ok(())
    }
}

/// Returns `true` for a block of `block` tokens that no step is sure to read.
fn is_cold(index: usize, tokens: usize, block: usize) -> bool {
    index * block >= HOT_SINK && (index + 1) * block + HOT_RECENT <= tokens
}

/// Returns the blocks of layers that keep every token, and the others.
fn split(blocks: &[Held]) -> [(Keeps, Vec<Held>); 2] {
    let of = |all: bool| blocks.iter().filter(|held| (held.keeps == Keeps::All) == all).copied().collect();
    [(Keeps::All, of(true)), (Keeps::Scored, of(false))]
}

impl Work {
    fn add(&mut self, other: &Self) {
        let mean = |a: f64, b: f64| {
            (a * self.blocks as f64 + b * other.blocks as f64) / (self.blocks + other.blocks).max(1) as f64
        };
        *self = Self {
            mode: self.mode.clone(),
            blocks: self.blocks + other.blocks,
            device_bytes: self.device_bytes + other.device_bytes,
            stored_bytes: self.stored_bytes + other.stored_bytes,
            encode_us: mean(self.encode_us, other.encode_us),
            decode_us: mean(self.decode_us, other.decode_us),
            wait_out_us: mean(self.wait_out_us, other.wait_out_us),
            wait_in_us: mean(self.wait_in_us, other.wait_in_us),
            queue_peak: self.queue_peak.max(other.queue_peak),
            fallbacks: self.fallbacks + other.fallbacks,
            cache_hits: self.cache_hits + other.cache_hits,
            cache_misses: self.cache_misses + other.cache_misses,
        };
    }
}

/// Takes blocks out and brings them back twice. Returns the work, and the bytes of all frames.
fn run(
    device: Arc<Blocks>,
    layout: &BlockLayout,
    mode: Compression,
    known: &[Held],
    blocks: &[Held],
) -> anyhow::Result<(Work, u64)> {
    let room = (known.len() + 2 * blocks.len() + 8) as u64;
    let mut settings = StoreSettings::new(layout.clone(), room * layout.memory_bytes());
    settings.tiers = vec![trunkline_store::TierMedium::Host];
    settings.compression = mode;
    settings.decode_cache_bytes = blocks.len() as u64 * layout.memory_bytes();
    settings.background_blocks = room;
    let (store, _) = Store::open(settings)?;
    let mut peak = 0;
    copy((&store, &device, layout.block_size), (Place::Device, TIER), known, &mut peak)?;
    settle(&store)?;
    store.release(TIER, &(0..known.len() as u32).collect::<Vec<_>>());
    let before = store.stats();
    let digests = digests(&device, blocks);
    peak = 0;
    let wait_out_us = copy((&store, &device, layout.block_size), (Place::Device, TIER), blocks, &mut peak)?;
    settle(&store)?;
    let middle = store.stats();
    let mut wait_in_us = 0.0;
    for _ in 0..READS {
        wait_in_us +=
            copy((&store, &device, layout.block_size), (TIER, Place::Device), blocks, &mut peak)? / READS as f64;
    }
    let after = store.stats();
    let (encoded, decoded) = (
        middle.codec.encoded_blocks - before.codec.encoded_blocks,
        after.codec.decoded_blocks - middle.codec.decoded_blocks,
    );
    let changed = digests.iter().zip(self::digests(&device, blocks)).filter(|(a, b)| **a != *b).count() as u64;
    ensure!(changed == 0, "{changed} blocks came back changed");
    let frames = middle.codec.frame_bytes - before.codec.frame_bytes;
    let failed: u64 = after.links.iter().map(|link| link.refused + link.failed).sum();
    let per = |ns: u64, n: u64| ns as f64 / 1e3 / n.max(1) as f64;
    let work = Work {
        blocks: blocks.len() as u64,
        device_bytes: blocks.len() as u64 * layout.block_bytes as u64,
        stored_bytes: middle.tiers[0].stored_bytes,
        encode_us: per(middle.codec.encode_ns - before.codec.encode_ns, encoded),
        decode_us: per(after.codec.decode_ns - middle.codec.decode_ns, decoded),
        wait_out_us,
        wait_in_us,
        queue_peak: peak,
        fallbacks: failed + after.codec.mismatches,
        cache_hits: after.cache.hits,
        cache_misses: after.cache.misses,
        ..Work::default()
    };
    Ok((work, frames))
}

/// Waits until the store has nothing more to compress.
fn settle(store: &Store) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut last = store.stats().codec.encoded_blocks;
    loop {
        thread::sleep(Duration::from_millis(2));
        let stats = store.stats();
        if stats.queued_jobs == 0 && stats.codec.encoded_blocks == last {
            return Ok(());
        }
        last = stats.codec.encoded_blocks;
        ensure!(begin.elapsed() < PATIENCE, "the store compresses for more than {PATIENCE:?}");
    }
}

/// Copies blocks, all transfers at once. Returns the mean time from the request for a block to its answer, microseconds.
fn copy(
    (store, device, block_size): (&Store, &Arc<Blocks>, u32),
    (from, to): (Place, Place),
    blocks: &[Held],
    peak: &mut u64,
) -> anyhow::Result<f64> {
    let (send, reports) = mpsc::channel();
    let numbered: Vec<(u32, &Held)> = (0..).zip(blocks).collect();
    for (id, batch) in (1..).zip(numbered.chunks(BATCH)) {
        let pair = |(slot, held): &(u32, &Held)| if from == TIER { (*slot, held.block) } else { (held.block, *slot) };
        let transfer = Transfer {
            id,
            from,
            to,
            pairs: batch.iter().map(pair).collect(),
            keys: batch.iter().map(|(slot, held)| key(*slot, held, block_size)).collect(),
            tokens: batch.iter().flat_map(|(slot, _)| repeat_n(*slot, block_size as usize)).collect(),
            is_urgent: from == TIER,
        };
        let (send, begin, n) = (send.clone(), Instant::now(), batch.len());
        let done = move |report: TransferReport| drop(send.send((report, begin.elapsed(), n)));
        store.begin(Arc::<Blocks>::clone(device), transfer, Box::new(done));
        *peak = (*peak).max(store.stats().queued_jobs);
    }
    drop(send);
    let mut waited = 0.0;
    for _ in 0..blocks.len().div_ceil(BATCH) {
        let (report, time, n) = reports.recv().context("the store ended")?;
        ensure!(report.faults.is_empty(), "the store copied not all blocks: {:?}", report.faults);
        waited += time.as_secs_f64() * 1e6 * n as f64;
    }
    Ok(waited / blocks.len().max(1) as f64)
}

fn key(slot: u32, held: &Held, block_size: u32) -> BlockKey {
    let hash = u128::from(slot) + 2;
    let first_token = held.index as u32 * block_size;
    BlockKey { root: 1, parent: 1, hash, fingerprint: hash as u64, first_token, group: held.group }
}

/// Returns a hash of each block on the device.
fn digests(device: &Blocks, blocks: &[Held]) -> Vec<u64> {
    let mut bytes = vec![0; device.block_bytes()];
    let digest = |held: &Held| {
        device.read(held.block, &mut bytes).expect("a block of the worker");
        xxhash_rust::xxh3::xxh3_64(&bytes)
    };
    blocks.iter().map(digest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_blocks_are_hot() {
        let cold: Vec<usize> = (0..20).filter(|index| is_cold(*index, 320, 16)).collect();
        assert_eq!(cold, [1, 2, 3], "256 of 320 tokens are the last, and the first 16 are the sink");
        assert!(!is_cold(4, 88, 16));
        assert_eq!((0..40).filter(|index| is_cold(*index, 320, 8)).count(), 6);
    }

    #[test]
    fn totals_count_all_bytes_and_each_scope_alone() {
        let bytes = Bytes { whole: 1200, left: 600, full: [300, 200], kept: [200, 100] };
        assert_eq!(bytes.totals(), [1200.0 / 400.0, 1200.0 / 500.0, 1200.0 / 500.0]);
        assert!((bytes.lossless() - 500.0 / 300.0).abs() < 1e-9);
        let mut sum = bytes;
        sum.add(bytes);
        assert_eq!((sum.totals(), sum.whole), (bytes.totals(), 2400));
    }
}
