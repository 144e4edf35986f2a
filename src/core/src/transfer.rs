//! A copy of KV blocks between device and host: what the core asks of whoever moves bytes.

use serde::{Deserialize, Serialize};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Device to host: a swap-out.
    Out,
    /// Host to device: a swap-in.
    In,
}

/// Blocks to copy, asynchronously. It is answered once, with [`crate::Event::TransferFinished`] or
/// [`crate::Event::TransferFailed`]; several may be under way, in both directions, and end in any order.
///
/// From the action to the answer nobody writes the sources, and nobody but the copy reads or writes the destinations.
/// Published sources may be read by steps meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// Which way.
    pub direction: Direction,
    /// (block on the device, block on the host).
    pub pairs: Vec<(u32, u32)>,
}
