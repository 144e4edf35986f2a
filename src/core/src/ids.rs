//! Names for the things the core counts: tokens, requests, blocks.

use serde::{Deserialize, Serialize};

/// A token id of the model's vocabulary.
pub type Token = u32;

/// A request as its driver names it. The driver MUST NOT use an id again while the core still knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A block of KV on the device, named so that a stale name is noticed: `generation` counts how often the slot
/// `index` has been freed, and the pool refuses a handle whose generation is not the slot's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHandle {
    /// The slot, below the pool's capacity. This is the number that workers see in a block table.
    pub index: u32,
    /// How often the slot had been freed when this handle was made.
    pub generation: u32,
}
