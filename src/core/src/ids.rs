//! Names of tokens, requests and blocks.

pub use trunkline_port::ids::{RequestId, Token};

/// A block of KV on the device, named so that a stale name is noticed: `generation` counts how often the slot
/// `index` has been freed, and the pool refuses a handle whose generation is not the slot's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHandle {
    /// The slot, below the pool's capacity. This is the number that workers see in a block table.
    pub index: u32,
    /// How often the slot had been freed when this handle was made.
    pub generation: u32,
}

impl BlockHandle {
    /// Entry of a block table without a block: the sequence dropped these positions in the layer group.
    pub const NONE: Self = Self { index: trunkline_port::NO_BLOCK, generation: 0 };
}
