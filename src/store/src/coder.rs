//! Compression of blocks: the one file that knows the codec.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use trunkline_codec::frame::{Block, Codec, FrameError, table_named_by};
use trunkline_codec::{Calibrator, Dtype, SideTable};
use trunkline_port::BlockKey;

use crate::counters::Fault;
use crate::layout::BlockLayout;

/// Tokens of a layer group seen before the group's statistics are frozen.
const CALIBRATION_TOKENS: u64 = 512;

/// Part of the model and of the text that a block is of, as far as the codec makes use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Position of the first token.
    pub position: u32,
    /// Layer group; 0 for the first.
    pub group: u8,
}

impl From<BlockKey> for Origin {
    fn from(key: BlockKey) -> Self {
        Self { position: key.first_token, group: key.group }
    }
}

/// Encoder and decoder of one thread, with buffers.
#[derive(Debug, Default)]
pub struct Engine(Codec);

/// Compression of all blocks of a store.
#[derive(Debug)]
pub struct Coder {
    layout: BlockLayout,
    dtype: Option<Dtype>,
    tables: RwLock<HashMap<u64, Arc<SideTable>>>,
    /// Tables that new frames are encoded against, by layer group.
    current: RwLock<BTreeMap<u8, Arc<SideTable>>>,
    calibrators: Mutex<Calibrators>,
    counters: Counters,
}

/// Collectors of statistics.
#[derive(Debug)]
struct Calibrators {
    /// Collector without a token; `None` for layouts of which the codec learns nothing.
    empty: Option<Calibrator>,
    /// Collectors by layer group; `None` for a group with a table.
    by_group: BTreeMap<u8, Option<Calibrator>>,
}

#[derive(Debug, Default)]
struct Counters {
    encoded_blocks: AtomicU64,
    encoded_bytes: AtomicU64,
    frame_bytes: AtomicU64,
    encode_ns: AtomicU64,
    decoded_blocks: AtomicU64,
    decode_ns: AtomicU64,
    mismatches: AtomicU64,
}

/// Work done by the codec since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecStats {
    /// Blocks encoded, kept or not.
    pub encoded_blocks: u64,
    /// Bytes of the encoded blocks before.
    pub encoded_bytes: u64,
    /// Bytes of the encoded blocks after.
    pub frame_bytes: u64,
    /// Time spent on encoding, nanoseconds of one thread.
    pub encode_ns: u64,
    /// Blocks decoded; blocks from the decode cache do not count.
    pub decoded_blocks: u64,
    /// Time spent on decoding, nanoseconds of one thread.
    pub decode_ns: u64,
    /// Blocks changed by encoding and decoding; counted with compression `full`.
    pub mismatches: u64,
}

impl CodecStats {
    /// Returns bytes before by bytes after, 1 without blocks.
    pub fn ratio(&self) -> f64 {
        if self.frame_bytes == 0 { 1.0 } else { self.encoded_bytes as f64 / self.frame_bytes as f64 }
    }
}

fn elapsed(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the codec's type of a name.
fn dtype_of(name: &str) -> Option<Dtype> {
    match name.to_ascii_lowercase().as_str() {
        "bf16" | "bfloat16" => Some(Dtype::Bf16),
        "f16" | "fp16" | "float16" | "half" => Some(Dtype::F16),
        "f32" | "fp32" | "float32" | "float" => Some(Dtype::F32),
        "e4m3" | "fp8_e4m3" | "float8_e4m3fn" => Some(Dtype::E4m3),
        "e5m2" | "fp8_e5m2" | "float8_e5m2" => Some(Dtype::E5m2),
        "q8_0" => Some(Dtype::Q8_0),
        "q4_0" => Some(Dtype::Q4_0),
        _ => None,
    }
}

impl Coder {
    /// Creates a coder for blocks of a layout.
    pub fn new(layout: BlockLayout) -> Self {
        let fits = |dtype: &Dtype| {
            let len = layout.shape.and_then(|shape| dtype.block_len(&shape));
            len.is_some_and(|len| len > 0 && len == layout.block_bytes)
        };
        let dtype = dtype_of(&layout.dtype).filter(fits);
        let empty = dtype.and(layout.shape).zip(layout.frequencies.clone()).and_then(|(shape, frequencies)| {
            let head_dim = usize::from(shape.head_dim);
            let is_whole = frequencies.len() == usize::from(shape.layers)
                && frequencies.iter().all(|layer| layer.is_empty() || 2 * layer.len() == head_dim);
            is_whole.then(|| Calibrator::new(shape, frequencies))
        });
        Self {
            layout,
            dtype,
            tables: RwLock::default(),
            current: RwLock::default(),
            calibrators: Mutex::new(Calibrators { empty, by_group: BTreeMap::new() }),
            counters: Counters::default(),
        }
    }

    /// Returns `true` if the codec can encode blocks of the layout.
    pub fn can_encode(&self) -> bool {
        self.dtype.is_some()
    }

    /// Takes in a block for the statistics of the block's layer group. When this block completes the statistics, `keep` gets id and bytes of the
    /// table before any frame is encoded against the table.
    pub fn observe(&self, bytes: &[u8], origin: Origin, keep: impl FnOnce(u64, &[u8])) {
        if let Some(table) = self.observed(bytes, origin) {
            keep(table.id(), &table.to_bytes());
            self.adopt(table);
        }
    }

    fn observed(&self, bytes: &[u8], Origin { position, group }: Origin) -> Option<SideTable> {
        let dtype = self.dtype?;
        // A thread that finds another one at work need not wait: any block will do.
        let mut calibrators = self.calibrators.try_lock().ok()?;
        let Calibrators { empty, by_group } = &mut *calibrators;
        let calibrator = by_group.entry(group).or_insert_with(|| empty.clone());
        let collector = calibrator.as_mut()?;
        collector.add(dtype, position, bytes);
        if collector.tokens() < CALIBRATION_TOKENS {
            return None;
        }
        let table = collector.finish().labelled(group);
        *calibrator = None;
        Some(table)
    }

    /// Adds a kept table. New frames of its layer group use the first table added or learned.
    ///
    /// # Errors
    /// If the bytes are not a table, or of another model's shape.
    pub fn add_table(&self, bytes: &[u8]) -> Result<u64, Fault> {
        let table = self.read_table(bytes)?;
        let id = table.id();
        self.add(table);
        Ok(id)
    }

    /// Adds the table with an id, as [`Self::add_table`] does.
    ///
    /// # Errors
    /// If the bytes are not a table, or another one.
    pub fn add_table_named(&self, id: u64, bytes: &[u8]) -> Result<(), Fault> {
        let table = self.read_table(bytes)?;
        if table.id() != id {
            return Err(Fault::Swapped);
        }
        self.add(table);
        Ok(())
    }

    fn read_table(&self, bytes: &[u8]) -> Result<SideTable, Fault> {
        let shape = self.layout.shape.ok_or(Fault::Stale)?;
        SideTable::from_bytes(bytes, &shape).ok_or(Fault::Flipped)
    }

    fn add(&self, table: SideTable) {
        let mut calibrators = self.calibrators.lock().unwrap_or_else(PoisonError::into_inner);
        calibrators.by_group.insert(table.label(), None);
        drop(calibrators);
        self.adopt(table);
    }

    fn adopt(&self, table: SideTable) {
        let table = Arc::new(table);
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.insert(table.id(), Arc::clone(&table));
        self.current.write().unwrap_or_else(PoisonError::into_inner).entry(table.label()).or_insert(table);
    }

    /// Returns the id of the table named by a frame. Whether the frame is whole shows when it is decoded.
    pub fn table_of(&self, frame: &[u8]) -> Option<u64> {
        table_named_by(frame)
    }

    /// Returns `true` if a table is known.
    pub fn has_table(&self, id: u64) -> bool {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Returns the bytes of a table, if the table is known.
    pub fn table(&self, id: u64) -> Option<Vec<u8>> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.get(&id).map(|table| table.to_bytes())
    }

    /// Appends the frame of a block to `out`; a block of unknown origin uses the table of the first layer group. Returns `false` if blocks of the
    /// layout have no frames, or elements are quantised without statistics: frames would hold blocks unchanged. `out` is unchanged then.
    pub fn encode(&self, engine: &mut Engine, bytes: &[u8], origin: Option<Origin>, out: &mut Vec<u8>) -> bool {
        let (Some(dtype), Some(shape)) = (self.dtype, self.layout.shape) else { return false };
        let begin = Instant::now();
        let group = origin.map_or(0, |origin| origin.group);
        let table = self.current.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        let is_usable = |table: &Arc<SideTable>| origin.is_some() || !table.rotates();
        if dtype.is_quantised() && !table.as_ref().is_some_and(is_usable) {
            return false;
        }
        let before = out.len();
        let block = Block { dtype, shape, position: origin.map(|origin| origin.position), bytes };
        if engine.0.encode(&block, table.as_deref(), out).is_err() {
            return false;
        }
        self.counters.encoded_blocks.fetch_add(1, Relaxed);
        self.counters.encoded_bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.counters.frame_bytes.fetch_add((out.len() - before) as u64, Relaxed);
        self.counters.encode_ns.fetch_add(elapsed(begin), Relaxed);
        true
    }

    /// Replaces `out` by the block of a frame.
    ///
    /// # Errors
    /// If the frame is damaged, is of another layout, or needs a table that is not known.
    pub fn decode(&self, engine: &mut Engine, frame: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let begin = Instant::now();
        out.clear();
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let limit = self.layout.block_bytes;
        let info = engine.0.decode(frame, |id| tables.get(&id).map(Arc::as_ref), limit, out);
        drop(tables);
        let info = info.map_err(|error| match error {
            FrameError::OtherVersion { .. } | FrameError::NoTable { .. } | FrameError::TooLong { .. } => Fault::Stale,
            _ => Fault::Flipped,
        })?;
        if Some(info.dtype) != self.dtype || Some(info.shape) != self.layout.shape {
            return Err(Fault::Stale);
        }
        self.counters.decoded_blocks.fetch_add(1, Relaxed);
        self.counters.decode_ns.fetch_add(elapsed(begin), Relaxed);
        Ok(())
    }

    /// Counts a block that was another one after encoding and decoding.
    pub fn mismatched(&self) {
        self.counters.mismatches.fetch_add(1, Relaxed);
    }

    /// Returns the work done since the store was opened.
    pub fn stats(&self) -> CodecStats {
        let Counters { encoded_blocks, encoded_bytes, frame_bytes, encode_ns, decoded_blocks, decode_ns, mismatches } =
            &self.counters;
        CodecStats {
            encoded_blocks: encoded_blocks.load(Relaxed),
            encoded_bytes: encoded_bytes.load(Relaxed),
            frame_bytes: frame_bytes.load(Relaxed),
            encode_ns: encode_ns.load(Relaxed),
            decoded_blocks: decoded_blocks.load(Relaxed),
            decode_ns: decode_ns.load(Relaxed),
            mismatches: mismatches.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests;
