//! A copy of KV blocks from one place to another, requested by the core.

use serde::{Deserialize, Serialize};

/// Memory for KV blocks. Each place numbers the place's blocks from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The device: the blocks read and written by steps.
    Device,
    /// Host memory for swapped-out requests (`host_blocks` of the core's configuration).
    Host,
    /// A tier of the prefix cache behind the device (`tiers` of the core's configuration); 0 is the nearest.
    Tier(u8),
}

/// Blocks to copy, asynchronously. The driver answers once, with the event `TransferFinished`, `TransferFailed` (the
/// sources may be bad) or `TransferInterrupted` (the sources are good) of the core; several copies may run at once, between any places, and end in any order.
///
/// From the action to the answer nobody writes the sources, and nobody but the copy reads or writes the destinations.
/// Steps and other copies may read published sources meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Number of the copy; counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// Place of the sources.
    pub from: Place,
    /// Place of the destinations; never equal to `from`.
    pub to: Place,
    /// Pairs (block in `from`, block in `to`).
    pub pairs: Vec<(u32, u32)>,
}
