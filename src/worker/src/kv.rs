//! The paged KV cache: blocks of keys and values, allocated once, shared by steps and copies.
//!
//! A block holds, for each layer of one layer group and for each KV head, first the keys as `[dim][token]` and then the values as `[token][dim]`.
//! So the score of sixteen tokens against one query, and sixteen elements of a weighted sum of values, are each a run of
//! neighbouring elements for [`crate::kernels::kernel::accumulate`]. All layers of a block lie together, so a copy is one `memcpy`.
//!
//! # Sharing
//!
//! Steps and copies run on different threads. Each block has a lock: a step locks the blocks of the step's sequences for one
//! forward pass (see [`LockedBlocks`]), for writing only the blocks written by rows of the step; a copy locks one block at
//! a time. The core's contract: nobody writes the sources of a copy and nobody but the copy touches the destinations (see
//! [`trunkline_port::Transfer`]), so no lock is ever waited for. A core in breach of the contract makes one side wait for the
//! other: wrong data at worst, no undefined behaviour. A step and a copy cannot deadlock: a copy holds a single block and waits for
//! nothing.

mod arena;
pub(crate) mod block_tables;
pub(crate) mod blocks;
mod cells;
mod moved;
pub(crate) mod rope;
pub(crate) mod table;

use std::ops::Range;
use std::sync::Arc;

use crate::config::ModelConfig;
use crate::config::groups::Place;
use crate::error::WorkerError;
use crate::kernels::quantised_cells::{Bits, UNIT};
use crate::memory;

use self::arena::{Arena, BlockRead, BlockWrite};
use self::cells::{Cells, CellsMut, Layout};

/// Element type of the KV cache. Sums are in F32 with every type; keys and values are rounded once, when they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Four bytes, exact.
    #[default]
    F32,
    /// Two bytes, 11 significant bits. Values beyond ±65504 are stored as ±65504.
    F16,
    /// Two bytes, 8 significant bits, the range of F32.
    Bf16,
    /// 34 bytes for 32 elements of a head: integers of 8 bits with a common scale. Heads MUST be a multiple of 32 elements wide.
    Q8_0,
    /// 18 bytes for 32 elements of a head: integers of 4 bits with a common scale. Heads MUST be a multiple of 32 elements wide.
    Q4_0,
}

impl KvDtype {
    /// Every type.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// Returns the name of the type, for the namespace of block hashes and for settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Returns the size of `elements` elements of a head, in bytes.
    pub fn bytes_of(self, elements: u64) -> u64 {
        match self {
            Self::F32 => 4 * elements,
            Self::F16 | Self::Bf16 => 2 * elements,
            Self::Q8_0 | Self::Q4_0 => elements.div_ceil(UNIT as u64) * self.bits().unit_bytes() as u64,
        }
    }

    /// Returns `true` if elements are floats, each stored by itself.
    pub fn is_float(self) -> bool {
        self.unit() == 1
    }

    /// Returns the width of the codes of a type with units; eight bits for any other.
    fn bits(self) -> Bits {
        if self == Self::Q4_0 { Bits::Four } else { Bits::Eight }
    }

    /// Returns the number of neighbouring elements that are stored together.
    fn unit(self) -> u32 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 => UNIT as u32,
        }
    }
}

/// Keys and values of all blocks. Shared by the step thread and the copying threads.
pub(crate) struct KvMemory {
    layout: Layout,
    dtype: KvDtype,
    blocks: Arena,
}

impl KvMemory {
    /// Allocates `n_blocks` blocks of `block_size` tokens with the KV of so many layers, and KV heads in each: those of the largest layer group.
    pub(crate) fn new(
        config: &ModelConfig,
        (n_layers, n_kv_heads): (u32, u32),
        dtype: KvDtype,
        block_size: u32,
        n_blocks: u32,
    ) -> Result<Self, WorkerError> {
        if !config.head_dim.is_multiple_of(dtype.unit()) {
            return Err(WorkerError::HeadDim { dtype: dtype.name(), unit: dtype.unit(), head_dim: config.head_dim });
        }
        let heads = 2 * u128::from(n_kv_heads) * u128::from(n_layers) * u128::from(block_size);
        let block_bytes = u128::from(dtype.bytes_of(config.head_dim.into())) * heads;
        // Each block begins with a line of the cache.
        let bytes = block_bytes.next_multiple_of(arena::LINE as u128) * u128::from(n_blocks);
        let available = memory::available();
        let refused = || WorkerError::KvMemory {
            blocks: n_blocks,
            block_size,
            bytes,
            available: available.map_or_else(|| "less".to_owned(), |available| format!("about {available}")),
        };
        if available.is_some_and(|available| bytes > u128::from(available)) {
            return Err(refused());
        }
        let block_bytes = usize::try_from(block_bytes).map_err(|_| refused())?;
        let layout = Layout {
            n_layers: n_layers as usize,
            block_size: block_size as usize,
            n_kv_heads: n_kv_heads as usize,
            head_dim: config.head_dim as usize,
        };
        let blocks = Arena::zeroed(block_bytes, n_blocks).ok_or_else(refused)?;
        Ok(Self { layout, dtype, blocks })
    }

    /// Takes the memory of all blocks from the system now. Nothing may be in them.
    pub(crate) fn touch(&self) {
        self.blocks.touch();
    }

    /// Returns the number of blocks.
    pub(crate) fn n_blocks(&self) -> u32 {
        self.blocks.n_blocks()
    }

    /// Returns the size of a block, in bytes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.blocks.block_bytes()
    }

    /// Writes a block to `bytes` as `[layer][keys, values][token][head][dim]`, little-endian.
    ///
    /// # Panics
    /// If there is no such block, or `bytes` is not as long as a block.
    pub(crate) fn export(&self, block: u32, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.block_bytes(), "bytes of a block");
        Cells::new(self.dtype, &self.blocks.read(block)).export(self.layout, bytes);
    }

    /// Takes a block from `bytes`, as [`Self::export`] writes them.
    ///
    /// # Panics
    /// If there is no such block, or `bytes` is not as long as a block.
    pub(crate) fn import(&self, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_bytes(), "bytes of a block");
        CellsMut::new(self.dtype, &mut self.blocks.write(block)).import(self.layout, bytes);
    }
}

/// The device's KV memory, for the step thread.
pub(crate) struct KvCache {
    memory: Arc<KvMemory>,
    /// Place of each block among the locked blocks of the last batch. Entries of other blocks are left over from earlier batches
    /// and mean nothing.
    index: Vec<u32>,
}

impl KvCache {
    /// Wraps the memory of the device.
    pub(crate) fn new(memory: Arc<KvMemory>) -> Self {
        Self { index: vec![0; memory.n_blocks() as usize], memory }
    }

    /// Returns the memory, to be shared with copies.
    pub(crate) fn memory(&self) -> &Arc<KvMemory> {
        &self.memory
    }

    /// Returns the number of tokens in a block.
    pub(crate) fn block_size(&self) -> usize {
        self.memory.layout.block_size
    }

    /// Locks the blocks of one batch: `written` for writing, the rest of `read` for reading. Blocks MAY be named more than
    /// once, and `read` MAY name blocks of `written`.
    pub(crate) fn lock(
        &mut self,
        written: impl Iterator<Item = u32>,
        read: impl Iterator<Item = u32>,
    ) -> LockedBlocks<'_> {
        let mut locked: Vec<Locked<'_>> = Vec::new();
        let uses = written.map(|block| (block, true)).chain(read.map(|block| (block, false)));
        for (block, write) in uses {
            let at = &mut self.index[block as usize];
            if locked.get(*at as usize).is_some_and(|other| other.block == block) {
                continue;
            }
            *at = locked.len() as u32;
            let bytes = match write {
                true => Guard::Write(self.memory.blocks.write(block)),
                false => Guard::Read(self.memory.blocks.read(block)),
            };
            locked.push(Locked { block, bytes });
        }
        LockedBlocks { layout: self.memory.layout, dtype: self.memory.dtype, index: &self.index, locked }
    }
}

struct Locked<'a> {
    block: u32,
    bytes: Guard<'a>,
}

enum Guard<'a> {
    Read(BlockRead<'a>),
    Write(BlockWrite<'a>),
}

/// The blocks of one batch, locked until this value is dropped.
pub(crate) struct LockedBlocks<'a> {
    layout: Layout,
    dtype: KvDtype,
    index: &'a [u32],
    locked: Vec<Locked<'a>>,
}

impl LockedBlocks<'_> {
    /// Returns the number of tokens in a block.
    pub(crate) fn block_size(&self) -> usize {
        self.layout.block_size
    }

    /// Returns the blocks for reading, each by a plain slice: attention looks blocks up all the time.
    pub(crate) fn view(&self) -> BlockView<'_> {
        let bytes = self.locked.iter().map(|locked| match &locked.bytes {
            Guard::Read(bytes) => &**bytes,
            Guard::Write(bytes) => &**bytes,
        });
        BlockView { layout: self.layout, dtype: self.dtype, index: self.index, bytes: bytes.collect() }
    }

    /// Stores the key and the value (`[dim]` each) of the `offset`-th token of a block, for one head of the block's group.
    ///
    /// # Panics
    /// If the block is not locked for writing.
    pub(crate) fn write(&mut self, place: &Place, block: u32, offset: usize, key: &[f32], value: &[f32]) {
        let layout = self.layout;
        let at = layout.keys_at(place.index, place.head);
        let mut cells = self.cells_mut(block);
        cells.store(at + offset, layout.block_size, key);
        cells.store(at + layout.half() + offset * layout.head_dim, 1, value);
    }

    /// Zeroes a block after the last head of its group: bytes that another group left there.
    ///
    /// # Panics
    /// If the block is not locked for writing.
    pub(crate) fn clear_behind(&mut self, place: &Place, block: u32) {
        let at = self.layout.keys_at(place.index, place.head) + 2 * self.layout.half();
        self.cells_mut(block).clear_from(at);
    }

    fn cells_mut(&mut self, block: u32) -> CellsMut<'_> {
        match &mut self.locked[self.index[block as usize] as usize].bytes {
            Guard::Write(bytes) => CellsMut::new(self.dtype, bytes),
            Guard::Read(_) => panic!("block {block} is locked for reading only"),
        }
    }
}

/// The blocks of one batch, for reading.
pub(crate) struct BlockView<'a> {
    layout: Layout,
    dtype: KvDtype,
    index: &'a [u32],
    bytes: Vec<&'a [u8]>,
}

impl BlockView<'_> {
    /// Returns the number of tokens in a block.
    pub(crate) fn block_size(&self) -> usize {
        self.layout.block_size
    }

    #[inline(always)]
    fn cells(&self, block: u32) -> Cells<'_> {
        Cells::new(self.dtype, self.bytes[self.index[block as usize] as usize])
    }

    /// Asks the processor for the keys of one head in one block, which are read soon.
    #[inline(always)]
    pub(crate) fn request_keys(&self, place: &Place, block: u32) {
        let at = self.layout.keys_at(place.index, place.head);
        self.cells(block).request(at..at + self.layout.half());
    }

    /// Asks the processor for the values of one head in one block, which are read soon.
    #[inline(always)]
    pub(crate) fn request_values(&self, place: &Place, block: u32) {
        let at = self.layout.keys_at(place.index, place.head) + self.layout.half();
        self.cells(block).request(at..at + self.layout.half());
    }

    /// Returns the keys of one head in one block, `[dim][token]`; `buffer` is memory for keys other than F32.
    #[inline(always)]
    pub(crate) fn keys<'a>(&'a self, place: &Place, block: u32, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        let at = self.layout.keys_at(place.index, place.head);
        self.cells(block).read(at..at + self.layout.half(), self.layout.block_size, buffer)
    }

    /// Returns the values of one head in one block, `[token][dim]`, of the tokens at `tokens`; `buffer` is memory for values other
    /// than F32.
    #[inline(always)]
    pub(crate) fn values<'a>(
        &'a self,
        place: &Place,
        block: u32,
        tokens: Range<usize>,
        buffer: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let keys_at = self.layout.keys_at(place.index, place.head);
        let (at, dim) = (keys_at + self.layout.half(), self.layout.head_dim);
        self.cells(block).read(at + tokens.start * dim..at + tokens.end * dim, 1, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::iter::empty;

    use half::{bf16, f16};

    use super::*;
    use crate::model::seeded::tiny_config;

    const FLOATS: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];

    fn memory(n_blocks: u32) -> Arc<KvMemory> {
        memory_of(KvDtype::F32, n_blocks)
    }

    fn memory_of(dtype: KvDtype, n_blocks: u32) -> Arc<KvMemory> {
        Arc::new(
            KvMemory::new(&tiny_config(), (tiny_config().n_layers, tiny_config().n_kv_heads), dtype, 4, n_blocks)
                .unwrap(),
        )
    }

    fn place(index: usize, head: usize) -> Place {
        Place { group: 0, index, head, window: None, score_weight: 1.0, score_list: Some(0), unused_behind: false }
    }

    fn write(locked: &mut LockedBlocks<'_>, layer: usize, block: u32, offset: usize, keys: &[f32], values: &[f32]) {
        let dim = locked.layout.head_dim;
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            locked.write(&place(layer, head), block, offset, key, value);
        }
    }

    fn all(memory: &KvMemory, block: u32) -> Vec<f32> {
        Cells::new(memory.dtype, &memory.blocks.read(block))
            .read(0..memory.layout.floats(), 1, &mut Vec::new())
            .to_vec()
    }

    fn non_zero(memory: &KvMemory) -> usize {
        (0..memory.n_blocks()).map(|block| all(memory, block).iter().filter(|value| **value != 0.0).count()).sum()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_changes() {
        let config = tiny_config();
        for dtype in FLOATS {
            let mut kv = KvCache::new(memory_of(dtype, 3));
            let buffer = &mut Vec::new();
            let (dim, heads) = (config.head_dim as usize, config.n_kv_heads as usize);
            let keys: Vec<f32> = (1..=heads * dim).map(|i| i as f32).collect();
            let values: Vec<f32> = keys.iter().map(|key| -key).collect();
            let mut locked = kv.lock([2].into_iter(), [0, 2].into_iter());
            write(&mut locked, 1, 2, 3, &keys, &values);
            for head in 0..heads {
                for d in 0..dim {
                    assert_eq!(locked.view().keys(&place(1, head), 2, buffer)[d * 4 + 3], keys[head * dim + d]);
                    assert_eq!(locked.view().values(&place(1, head), 2, 3..4, buffer)[d], values[head * dim + d]);
                }
            }
            assert_eq!(locked.view().keys(&place(1, 0), 0, buffer), vec![0.0; 4 * dim]);
            drop(locked);
            assert_eq!(non_zero(&kv.memory), 2 * heads * dim);
            let bytes = 2 * 4 * u64::from(config.n_layers) * config.kv_width() as u64 * 12;
            assert_eq!(kv.memory.layout.floats() as u64 * 4 * 3, bytes);
        }
    }

    #[test]
    fn elements_are_rounded_to_their_type_once() {
        let width = tiny_config().kv_width();
        let (exact, tiny, huge) = (1.0 + 1.0 / 128.0, 1.0 + 1.0 / 1024.0, 1e6);
        for (dtype, expected) in [
            (KvDtype::F32, [exact, tiny, huge, -huge]),
            (KvDtype::F16, [exact, tiny, 65504.0, -65504.0]),
            (KvDtype::Bf16, [exact, 1.0, 999_424.0, -999_424.0]),
        ] {
            let mut kv = KvCache::new(memory_of(dtype, 1));
            let mut row = vec![0.0; width];
            row[..4].copy_from_slice(&[exact, tiny, huge, -huge]);
            let mut locked = kv.lock([0].into_iter(), empty());
            write(&mut locked, 0, 0, 2, &row, &row);
            assert_eq!(locked.view().values(&place(0, 0), 0, 2..3, &mut Vec::new())[..4], expected, "{}", dtype.name());
        }
    }

    #[test]
    fn the_bytes_of_a_block_are_its_rows_in_order_and_come_back_as_they_were() {
        let config = tiny_config();
        for dtype in FLOATS {
            let memory = memory_of(dtype, 3);
            let Layout { n_layers, block_size, n_kv_heads, head_dim } = memory.layout;
            let mut kv = KvCache::new(memory.clone());
            let mut locked = kv.lock([1].into_iter(), empty());
            // Every element is its own place, rounded as the cache rounds.
            let row = |at: usize| (at..at + config.kv_width()).map(|at| at as f32).collect::<Vec<_>>();
            let width = config.kv_width();
            for layer in 0..n_layers {
                for token in 0..block_size {
                    let [keys, values] = [0, 1].map(|side| row(((layer * 2 + side) * block_size + token) * width));
                    write(&mut locked, layer, 1, token, &keys, &values);
                }
            }
            drop(locked);
            let mut bytes = vec![0; memory.block_bytes()];
            memory.export(1, &mut bytes);
            let n = dtype.bytes_of(1) as usize;
            assert_eq!(bytes.len() / n, n_layers * 2 * block_size * n_kv_heads * head_dim);
            for (at, bytes) in bytes.chunks_exact(n).enumerate() {
                let expected = match dtype {
                    KvDtype::F32 => (at as f32).to_le_bytes().to_vec(),
                    KvDtype::F16 => f16::from_f32(at as f32).to_le_bytes().to_vec(),
                    _ => bf16::from_f32(at as f32).to_le_bytes().to_vec(),
                };
                assert_eq!(bytes, expected, "element {at} of {}", dtype.name());
            }
            memory.import(2, &bytes);
            assert_eq!(all(&memory, 2), all(&memory, 1));
            assert!(all(&memory, 0).iter().all(|cell| *cell == 0.0), "a neighbour has nothing");
        }
    }

    #[test]
    fn a_copy_reads_a_block_that_a_batch_reads_and_fills_one_that_it_does_not_have() {
        let device = memory(3);
        let mut kv = KvCache::new(device.clone());
        CellsMut::new(KvDtype::F32, &mut device.blocks.write(0)).store(7, 1, &[5.0]);
        // Were one lock too many, this thread would wait for itself.
        let locked = kv.lock([1].into_iter(), [0, 0, 1].into_iter());
        let mut bytes = vec![0; device.block_bytes()];
        device.export(0, &mut bytes);
        device.import(2, &bytes);
        assert_eq!(all(&device, 2)[7], 5.0);
        assert!(!device.blocks.is_free(1, false) && !device.blocks.is_free(0, true));
        drop(locked);
        assert!(device.blocks.is_free(1, true) && device.blocks.is_free(0, true));
    }

    #[test]
    fn locks_of_an_earlier_batch_are_not_taken_for_those_of_this_one() {
        let mut kv = KvCache::new(memory(4));
        drop(kv.lock([3, 1].into_iter(), [2].into_iter()));
        // Block 3 was the first then, block 1 the second.
        let locked = kv.lock(empty(), [1, 3, 0].into_iter());
        let blocks: Vec<u32> = locked.locked.iter().map(|locked| locked.block).collect();
        assert_eq!(blocks, [1, 3, 0]);
    }

    #[test]
    #[should_panic(expected = "block 1 is locked for reading only")]
    fn a_block_locked_for_reading_is_not_written() {
        let mut kv = KvCache::new(memory(2));
        write(&mut kv.lock(empty(), [1].into_iter()), 0, 1, 0, &[1.0; 32], &[1.0; 32]);
    }

    #[test]
    fn a_cache_that_cannot_be_had_is_refused_with_numbers() {
        let config = tiny_config();
        let Err(error) = KvMemory::new(&config, (config.n_layers, config.n_kv_heads), KvDtype::F32, u32::MAX, u32::MAX)
        else {
            panic!("allocated")
        };
        let token_bytes = 2 * 4 * u128::from(config.n_layers) * config.kv_width() as u128;
        let bytes = u128::from(u32::MAX).pow(2) * token_bytes;
        assert!(matches!(error, WorkerError::KvMemory { bytes: b, .. } if b == bytes), "{error}");
    }

    #[test]
    fn quantised_blocks_have_units_of_one_head_and_come_back_as_they_were() {
        let config = ModelConfig { head_dim: 64, n_heads: 2, n_kv_heads: 1, ..tiny_config() };
        for (dtype, token_bytes) in [(KvDtype::Q8_0, 34 * 2), (KvDtype::Q4_0, 18 * 2)] {
            let memory = Arc::new(KvMemory::new(&config, (3, 1), dtype, 5, 2).unwrap());
            assert_eq!(memory.block_bytes(), 3 * 2 * 5 * token_bytes);
            let mut kv = KvCache::new(memory.clone());
            let mut locked = kv.lock([0].into_iter(), empty());
            let row: Vec<f32> = (0..64).map(|d| (d as f32 * 0.3).sin()).collect();
            let other: Vec<f32> = row.iter().map(|value| value * -2.0).collect();
            write(&mut locked, 2, 0, 4, &row, &other);
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let view = locked.view();
            let keys = view.keys(&place(2, 0), 0, &mut keys);
            let values = view.values(&place(2, 0), 0, 4..5, &mut values);
            for (d, expected) in row.iter().enumerate() {
                assert!((keys[d * 5 + 4] - expected).abs() < 0.13 && keys[d * 5 + 3] == 0.0);
                assert!((values[d] + 2.0 * expected).abs() < 0.26);
            }
            drop(view);
            drop(locked);
            let mut bytes = vec![0; memory.block_bytes()];
            memory.export(0, &mut bytes);
            assert!(bytes[..2 * 2 * 5 * token_bytes].iter().all(|byte| *byte == 0));
            assert!(bytes[(2 * 2 * 5 + 4) * token_bytes..][..2].iter().any(|byte| *byte != 0));
            memory.import(1, &bytes);
            assert_eq!(all(&memory, 1), all(&memory, 0));
            let narrow = ModelConfig { head_dim: 48, ..config.clone() };
            let Err(error) = KvMemory::new(&narrow, (3, 1), dtype, 5, 2) else { panic!("allocated") };
            let expected = WorkerError::HeadDim { dtype: dtype.name(), unit: 32, head_dim: 48 };
            assert_eq!(error, expected);
        }
    }
}
