//! Settings of a store.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::layout::BlockLayout;
use crate::record::header_len;
use crate::remote::SharedMemory;

/// Medium of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierMedium {
    /// Host memory, within [`StoreSettings::host_bytes`].
    Host,
    /// A folder of a local filesystem.
    Disk {
        /// Folder, for this store alone.
        path: PathBuf,
        /// Size limit of the folder, bytes.
        bytes: u64,
    },
    /// Host memory that several stores of this process share, outside of [`StoreSettings::host_bytes`].
    Shared(SharedMemory),
    /// A store that other servers share.
    Remote {
        /// Address: `file:///folder` or `s3://bucket/prefix`.
        url: String,
        /// Longest wait for one answer.
        deadline: Duration,
    },
}

/// Blocks to compress, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Blocks stay as they are.
    Off,
    /// Like `Store`, for as long as blocks get at least a fiftieth smaller.
    #[default]
    Auto,
    /// Blocks stay as they are, but are encoded to measure the ratio.
    Probe,
    /// Blocks on the way to host memory, before the answer, and compared with the decoded bytes. For tests.
    Full,
    /// Blocks in host memory after the answer; blocks on the way to disk and remote storage.
    Store,
}

/// Settings of a store, fixed while the store is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Layout of the bytes of a block.
    pub layout: BlockLayout,
    /// Most bytes of host memory for blocks of swapped-out requests, of host tiers, and of the decode cache together.
    pub host_bytes: u64,
    /// Medium of each tier, in the order of [`trunkline_port::Place::Tier`].
    pub tiers: Vec<TierMedium>,
    /// Blocks to compress.
    pub compression: Compression,
    /// Layer groups whose blocks are compressed, by [`trunkline_port::BlockKey::group`]; all if `None`. A block of unknown group counts to the
    /// first.
    pub compressed_groups: Option<Vec<u8>>,
    /// Threads for copies between device and host, and for compression; at least 1. Disks and remotes have threads of their own.
    pub threads: usize,
    /// Most bytes of decoded blocks kept for the next use, within `host_bytes`; 0 by default, because a decoded block is on the device,
    /// and has left a small cache long before the device evicts the block.
    pub decode_cache_bytes: u64,
    /// Most blocks on the way from one place to a tier; further blocks are refused.
    pub background_blocks: u64,
    /// Most blocks on the way to a remote tier: few of the device's blocks, because the device keeps a block until the
    /// copy has ended, and a silent remote store holds copies up until the deadline.
    pub remote_blocks: u64,
    /// Latest time at which opening a store ends; blocks of disks found later are offered ([`crate::Store::offer_to`]). `None`: all blocks are found first.
    pub search_until: Option<Instant>,
}

impl StoreSettings {
    /// Creates settings for host memory alone.
    pub fn new(layout: BlockLayout, host_bytes: u64) -> Self {
        Self {
            layout,
            host_bytes,
            tiers: Vec::new(),
            compression: Compression::Auto,
            compressed_groups: None,
            threads: 2,
            decode_cache_bytes: 0,
            background_blocks: 256,
            remote_blocks: 64,
            search_until: None,
        }
    }

    /// Returns the number of uncompressed blocks for which host memory suffices.
    pub fn host_blocks(&self) -> u32 {
        u32::try_from(self.host_bytes / self.layout.memory_bytes()).unwrap_or(u32::MAX)
    }
}

impl StoreSettings {
    /// Checks all settings against their ranges.
    ///
    /// # Errors
    /// If a setting has no meaning.
    pub fn check(&self) -> Result<(), StoreError> {
        let refuse = |setting, reason: &str| Err(StoreError::Setting { setting, reason: reason.to_owned() });
        let record_bytes = (header_len(self.layout.block_size as usize) + self.layout.block_bytes) as u64;
        if self.layout.block_bytes == 0 || self.layout.block_bytes > 1 << 30 {
            return refuse("block bytes", "blocks have 1 byte to 1 GiB");
        }
        if self.layout.block_size == 0 || self.layout.block_size > 1 << 16 {
            return refuse("block size", "blocks have 1 to 65,536 tokens");
        }
        if self.threads == 0 || self.threads > 256 {
            return refuse("threads", "copies need 1 to 256 threads");
        }
        if self.tiers.len() > 16 {
            return refuse("tiers", "there can be 16 tiers at most");
        }
        for medium in &self.tiers {
            if let TierMedium::Shared(memory) = medium
                && memory.limit_bytes() < record_bytes
            {
                let limit = memory.limit_bytes();
                let reason = format!("{limit} bytes are too few for a block and its header; {record_bytes} at least");
                return refuse("shared memory", &reason);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_a_meaning_are_refused_with_one_line() {
        let layout = BlockLayout { block_bytes: 100_000, block_size: 16, ..BlockLayout::default() };
        let good = StoreSettings::new(layout, 1_000_000);
        let shared =
            |bytes| StoreSettings { tiers: vec![TierMedium::Shared(SharedMemory::new(bytes))], ..good.clone() };
        assert!(good.check().is_ok() && shared(100_192).check().is_ok());
        assert_eq!(good.host_blocks(), 9, "blocks take whole pages");
        let bad = [
            StoreSettings { layout: BlockLayout { block_bytes: 0, ..good.layout.clone() }, ..good.clone() },
            StoreSettings { layout: BlockLayout { block_size: 0, ..good.layout.clone() }, ..good.clone() },
            StoreSettings { threads: 0, ..good.clone() },
            StoreSettings { tiers: vec![TierMedium::Host; 17], ..good.clone() },
            shared(100_191),
        ];
        for settings in bad {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(": ") && !error.contains('\n'), "{error}");
        }
    }
}
