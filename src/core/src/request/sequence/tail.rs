//! The end of a prefix that is being loaded while the tokens before it are computed.

use super::{Load, Sequence};

/// Blocks of a sequence in the batch that transfers from tiers fill, behind tokens that are still to be computed.
#[derive(Debug)]
pub(crate) struct Tail {
    /// First entry of the block table that is loaded.
    pub first: usize,
    /// The load, as of a sequence that waits for it.
    pub load: Load,
    /// Leading entries that arrived, once no transfer is in flight.
    pub good: usize,
    /// `true` if what arrives counts as cached: not of a request that was admitted before.
    pub counts: bool,
    /// Time from which on the sequence has waited, because all before was computed, nanoseconds.
    pub waits_from_ns: Option<u64>,
}

impl Sequence {
    /// Returns the number of tokens that may be run before the tail; `u32::MAX` without one.
    pub fn before_tail(&self, block_size: u32) -> u32 {
        self.cold.tail.as_ref().map_or(u32::MAX, |tail| (tail.first as u32 * block_size).saturating_sub(self.planned()))
    }

    /// Returns the number of tokens with KV from which on the sequence has a block to publish, or reaches its tail.
    #[inline]
    pub fn next_stop(&self, block_size: u32) -> u32 {
        let full = (self.published + 1) * block_size;
        match self.is_prefill() {
            true => self.cold.tail.as_ref().map_or(full, |tail| full.min(tail.first as u32 * block_size)),
            false => full,
        }
    }

    /// Returns the entries of the block table that transfers fill.
    pub fn arriving(&self) -> std::ops::Range<usize> {
        let in_flight = self.cold.tail.as_ref().filter(|tail| tail.load.transfers > 0);
        in_flight.map_or(0..0, |tail| tail.first..tail.first + tail.load.filled.len())
    }
}
