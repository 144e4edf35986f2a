//! Copies of KV blocks, re-exported from `trunkline-port`.

pub use trunkline_port::transfer::{BlockFault, BlockKey, KnownBlock, Lookup, Place, Transfer, TransferReport};
