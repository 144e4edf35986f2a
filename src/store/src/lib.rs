//! Storage of KV blocks behind the device: host memory, disk and remote storage, with the threads for copies.
//!
//! A [`Store`] takes the transfers of one engine's core ([`Store::begin`]) and answers each, block by block. Places are numbered
//! slots; a slot of a tier holds a block with its [`trunkline_port::BlockKey`].
//!
//! **Boundary:** this crate knows blocks as bytes with a [`trunkline_port::BlockKey`], and nothing of requests or schedules. The core
//! decides about places. The store copies, compresses, and proves every block before the block is used.

mod announced;
mod answer;
mod arena;
mod cache;
mod coder;
mod copying;
mod counters;
mod disk;
mod error;
mod held;
mod layout;
mod links;
mod named;
mod places;
mod pool;
mod record;
mod remote;
mod residency;
mod settings;
mod slots;
mod stats;
mod store;

pub use trunkline_codec::{Shape, rotary_frequencies};

pub use crate::announced::Announced;
pub use crate::arena::ArenaStats;
pub use crate::cache::CacheStats;
pub use crate::coder::CodecStats;
pub use crate::counters::{Fault, FaultCounts};
pub use crate::disk::{
    Checked, CheckedSegment, DiskStats, OpenFiles, SEGMENTS_MAX, check as check_disk, plain_disk, system_files,
};
pub use crate::error::StoreError;
pub use crate::layout::BlockLayout;
pub use crate::links::LinkStats;
pub use crate::remote::{RemoteStats, SharedMemory};
pub use crate::residency::{Residency, Spread};
pub use crate::settings::{Compression, StoreSettings, TierMedium};
pub use crate::stats::{PlaceStats, StoreStats};
pub use crate::store::Store;
pub use trunkline_files::{BlockFile, Files};
