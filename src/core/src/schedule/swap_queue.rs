//! The order in which swapped sequences come back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Place of a swapped sequence: the highest preemption rank comes back first, then the first to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SwapPlace {
    rank: Reverse<i128>,
    arrival: u64,
    /// Slot of the sequence.
    pub slot: usize,
}

impl SwapPlace {
    /// Returns the place of the sequence in `slot`.
    pub fn new(preemption_rank: i128, arrival: u64, slot: usize) -> Self {
        Self { rank: Reverse(preemption_rank), arrival, slot }
    }
}

/// Sequences out of the batch whose KV is on the host, or on its way back.
#[derive(Debug, Default)]
pub(crate) struct SwapQueue {
    /// Swapped sequences, in the order of return.
    pub swapped: BTreeSet<SwapPlace>,
    /// Slots of sequences being swapped in, in the order of the swap-ins' beginnings.
    pub arriving: Vec<usize>,
}

impl SwapQueue {
    /// Returns the slots of all sequences in the queue: the swapped ones in order, then the arriving ones.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.swapped_slots().chain(self.arriving.iter().copied())
    }

    /// Returns the slots of the swapped sequences, in the order of return.
    pub fn swapped_slots(&self) -> impl Iterator<Item = usize> {
        self.swapped.iter().map(|place| place.slot)
    }

    /// Removes a sequence that is no longer being swapped in.
    pub fn remove_arriving(&mut self, slot: usize) {
        self.arriving.retain(|other| *other != slot);
    }
}
