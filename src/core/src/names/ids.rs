//! Names of tokens, requests and blocks.

pub use trunkline_port::ids::{RequestId, Token};

/// Handle of a KV block on the device. The pool refuses a stale handle: one whose `generation` is not that of the slot `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHandle {
    /// Number of the slot, below the capacity of the pool: what workers see in a block table.
    pub index: u32,
    /// Number of times that the slot was freed before this handle was made.
    pub generation: u32,
}

impl BlockHandle {
    /// Entry of a block table without a block: the sequence dropped these positions in the layer group.
    pub const NONE: Self = Self { index: trunkline_port::NO_BLOCK, generation: 0 };
}
