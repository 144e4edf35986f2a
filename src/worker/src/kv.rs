//! The paged KV cache: blocks of keys and values, allocated once.
//!
//! A block of a layer holds, for each KV head, first the keys as `[dim][token]` and then the values as `[token][dim]`.
//! So the score of sixteen tokens against one query, and sixteen elements of a weighted sum of values, are each a run of
//! neighbouring floats for [`crate::kernel::accumulate`].

use crate::config::ModelConfig;
use crate::error::WorkerError;

/// The keys and values of every layer and block, F32.
pub(crate) struct KvCache {
    data: Vec<f32>,
    n_layers: usize,
    block_size: usize,
    n_blocks: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl KvCache {
    /// Allocates `n_blocks` blocks of `block_size` tokens.
    pub(crate) fn new(config: &ModelConfig, block_size: u32, n_blocks: u32) -> Result<Self, WorkerError> {
        let floats =
            2 * config.kv_width() as u128 * u128::from(config.n_layers) * u128::from(block_size) * u128::from(n_blocks);
        let bytes = 4 * floats;
        let available = available_bytes();
        let refused = || WorkerError::KvMemory {
            blocks: n_blocks,
            block_size,
            bytes,
            available: available.map_or_else(|| "less".to_owned(), |available| format!("about {available}")),
        };
        if available.is_some_and(|available| bytes > u128::from(available)) {
            return Err(refused());
        }
        let floats = usize::try_from(floats).map_err(|_| refused())?;
        let mut data = Vec::new();
        data.try_reserve_exact(floats).map_err(|_| refused())?;
        // Touches every page: memory that is promised but not there is missed now, not in the middle of a request.
        data.resize(floats, 0.0);
        Ok(Self {
            data,
            n_layers: config.n_layers as usize,
            block_size: block_size as usize,
            n_blocks: n_blocks as usize,
            n_kv_heads: config.n_kv_heads as usize,
            head_dim: config.head_dim as usize,
        })
    }

    /// Blocks there are.
    pub(crate) fn n_blocks(&self) -> u32 {
        self.n_blocks as u32
    }

    /// Tokens in a block.
    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    /// Floats of the keys, or of the values, of one head in one block.
    fn half(&self) -> usize {
        self.block_size * self.head_dim
    }

    fn head_at(&self, layer: usize, block: u32, head: usize) -> usize {
        ((layer * self.n_blocks + block as usize) * self.n_kv_heads + head) * 2 * self.half()
    }

    /// Copies a block of another cache, which MUST be of the same model and block size, into a block of this one: all
    /// layers.
    pub(crate) fn copy_block(&mut self, to: u32, other: &Self, from: u32) {
        let floats = self.n_kv_heads * 2 * self.half();
        for layer in 0..self.n_layers {
            let (to, from) = (self.head_at(layer, to, 0), other.head_at(layer, from, 0));
            self.data[to..to + floats].copy_from_slice(&other.data[from..from + floats]);
        }
    }

    /// Keys of one head in one block, `[dim][token]`.
    #[inline]
    pub(crate) fn keys(&self, layer: usize, block: u32, head: usize) -> &[f32] {
        &self.data[self.head_at(layer, block, head)..][..self.half()]
    }

    /// Values of one head in one block, `[token][dim]`.
    #[inline]
    pub(crate) fn values(&self, layer: usize, block: u32, head: usize) -> &[f32] {
        &self.data[self.head_at(layer, block, head) + self.half()..][..self.half()]
    }

    /// Stores the keys and values (`[head][dim]` each) of the `offset`-th token of a block.
    pub(crate) fn write(&mut self, layer: usize, block: u32, offset: usize, keys: &[f32], values: &[f32]) {
        let (half, dim) = (self.half(), self.head_dim);
        for (head, (keys, values)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            let at = self.head_at(layer, block, head);
            let (key_store, value_store) = self.data[at..at + 2 * half].split_at_mut(half);
            for (slot, key) in key_store.iter_mut().skip(offset).step_by(self.block_size).zip(keys) {
                *slot = *key;
            }
            value_store[offset * dim..(offset + 1) * dim].copy_from_slice(values);
        }
    }
}

/// What the kernel believes it can still hand out, bytes; `None` where it does not say.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn what_is_written_is_read_and_nothing_else_changes() {
        let model = Model::seeded(0);
        let config = model.config();
        let mut kv = KvCache::new(config, 4, 3).unwrap();
        let (dim, heads) = (config.head_dim as usize, config.n_kv_heads as usize);
        let keys: Vec<f32> = (1..=heads * dim).map(|i| i as f32).collect();
        let values: Vec<f32> = keys.iter().map(|key| -key).collect();
        kv.write(1, 2, 3, &keys, &values);
        for head in 0..heads {
            for d in 0..dim {
                assert_eq!(kv.keys(1, 2, head)[d * 4 + 3], keys[head * dim + d]);
                assert_eq!(kv.values(1, 2, head)[3 * dim + d], values[head * dim + d]);
            }
        }
        assert_eq!(kv.data.iter().filter(|value| **value != 0.0).count(), 2 * heads * dim);
        assert_eq!(kv.data.len() as u64 * 4, model.kv_bytes_per_token() * 12);
    }

    #[test]
    fn a_copied_block_has_all_layers_and_its_neighbours_nothing() {
        let model = Model::seeded(0);
        let config = model.config();
        let (mut device, mut host) = (KvCache::new(config, 4, 3).unwrap(), KvCache::new(config, 4, 5).unwrap());
        for (i, value) in device.data.iter_mut().enumerate() {
            *value = 1.0 + i as f32;
        }
        host.copy_block(4, &device, 1);
        for layer in 0..config.n_layers as usize {
            for head in 0..config.n_kv_heads as usize {
                assert_eq!(host.keys(layer, 4, head), device.keys(layer, 1, head));
                assert_eq!(host.values(layer, 4, head), device.values(layer, 1, head));
            }
        }
        let copied = host.data.iter().filter(|value| **value != 0.0).count();
        assert_eq!(copied * 3, device.data.len());
        assert!(KvCache::new(config, 4, 0).unwrap().data.is_empty());
    }

    #[test]
    fn a_cache_that_cannot_be_had_is_refused_with_numbers() {
        let model = Model::seeded(0);
        let Err(error) = KvCache::new(model.config(), u32::MAX, u32::MAX) else { panic!("allocated") };
        let bytes = u128::from(u32::MAX).pow(2) * u128::from(model.kv_bytes_per_token());
        assert!(matches!(error, WorkerError::KvMemory { bytes: b, .. } if b == bytes), "{error}");
    }
}
