//! A copy of KV blocks from one place to another: what the core asks of whoever moves bytes.

use serde::{Deserialize, Serialize};

/// Where blocks can be. Each place numbers its own from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The device: the blocks that steps read and write.
    Device,
    /// Host memory for requests that are swapped out ([`crate::Config::host_blocks`]).
    Host,
    /// A tier of the prefix cache behind the device ([`crate::Config::tiers`]), 0 is the nearest.
    Tier(u8),
}

/// Blocks to copy, asynchronously. It is answered once, with [`crate::Event::TransferFinished`] or
/// [`crate::Event::TransferFailed`]; several may be under way, between any places, and end in any order.
///
/// From the action to the answer nobody writes the sources, and nobody but the copy reads or writes the destinations.
/// Published sources may be read by steps and other copies meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// Where from.
    pub from: Place,
    /// Where to. Never the same place.
    pub to: Place,
    /// (block in `from`, block in `to`).
    pub pairs: Vec<(u32, u32)>,
}
