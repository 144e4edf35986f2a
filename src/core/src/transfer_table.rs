//! The transfers in flight: ids, purposes, blocks, and the outbox of requested transfers.
//!
//! Every copy of KV blocks, between whichever places, is one entry of this table from its request to its answer. The purpose says
//! what happens at the end. A hand-over of blocks to another engine would be one more [`Purpose`].

use crate::digest::Digest;
use crate::ids::BlockHandle;
use crate::transfer::{Place, Transfer};

/// A block to copy: the number at the source and the number at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPair {
    /// Block in the place copied from.
    pub from: u32,
    /// Block in the place copied to.
    pub to: u32,
}

/// The reason for a transfer, with the data for the transfer's end.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// Takes the KV of the sequence in `slot` to host memory.
    SwapOut {
        /// Slot of the sequence.
        slot: usize,
    },
    /// Brings the KV of the sequence in `slot` back from host memory.
    SwapIn {
        /// Slot of the sequence.
        slot: usize,
    },
    /// Fills blocks of the sequence in `slot` from pinned blocks of a tier.
    Load {
        /// Slot of the sequence.
        slot: usize,
    },
    /// Copies published blocks of an ended request to a tier; the transfer reads the chain in place of the request.
    WriteThrough {
        /// Published blocks of the request, copied or not.
        chain: Vec<BlockHandle>,
    },
    /// Saves blocks about to be evicted; the sources are freed at the end.
    Demotion,
    /// Copies pinned blocks of a tier to another tier; the sources stay.
    Propagation,
    /// Began for a sequence that does not wait for the end any more: a swap or a load whose request ended. The transfer keeps the
    /// blocks.
    Orphaned(Orphan),
}

/// Blocks kept by an orphaned transfer, which may still read or write them. Freed when the transfer ends, well or not.
#[derive(Debug, Default)]
pub(crate) struct Orphan {
    /// Device blocks: published ones, which the transfer reads in place of the sequence, then moving ones.
    pub blocks: Vec<BlockHandle>,
    /// Number of published blocks.
    pub published: usize,
    /// Host blocks, held in place of the sequence.
    pub hosts: Vec<u32>,
}

impl Purpose {
    /// Returns the published device blocks that the transfer reads as a sequence would: with all blocks before, and findable.
    pub fn chain(&self) -> &[BlockHandle] {
        match self {
            Self::WriteThrough { chain } => chain,
            Self::Orphaned(orphan) => &orphan.blocks[..orphan.published],
            _ => &[],
        }
    }

    /// Returns the slot of the sequence that waits for the end, if one does.
    pub fn slot(&self) -> Option<usize> {
        match self {
            Self::SwapOut { slot } | Self::SwapIn { slot } | Self::Load { slot } => Some(*slot),
            Self::WriteThrough { .. } | Self::Demotion | Self::Propagation | Self::Orphaned(_) => None,
        }
    }
}

/// A transfer in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Unique number, counting up from 1.
    pub id: u64,
    /// Source of the blocks.
    pub from: Place,
    /// Destination of the blocks.
    pub to: Place,
    /// Blocks copied.
    pub pairs: Vec<BlockPair>,
    /// Reason, and work at the end.
    pub purpose: Purpose,
}

/// All transfers in flight, in the order of request.
#[derive(Debug)]
pub(crate) struct TransferTable {
    next_id: u64,
    in_flight: Vec<InFlight>,
    /// Transfers not yet handed to the driver.
    outbox: Vec<Transfer>,
}

impl TransferTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self { next_id: 1, in_flight: Vec::new(), outbox: Vec::new() }
    }

    /// Requests a transfer. Returns the transfer's id.
    pub fn begin(&mut self, from: Place, to: Place, pairs: Vec<BlockPair>, purpose: Purpose) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let numbers = pairs.iter().map(|pair| (pair.from, pair.to)).collect();
        self.outbox.push(Transfer { id, from, to, pairs: numbers });
        self.in_flight.push(InFlight { id, from, to, pairs, purpose });
        id
    }

    /// Removes an answered transfer. Returns `None` for an id of no transfer in flight.
    pub fn end(&mut self, id: u64) -> Option<InFlight> {
        let at = self.in_flight.binary_search_by_key(&id, |transfer| transfer.id).ok()?;
        Some(self.in_flight.remove(at))
    }

    /// Removes all transfers, in the order of request: the worker was lost and none will be answered.
    pub fn lose(&mut self) -> Vec<InFlight> {
        self.outbox.clear();
        std::mem::take(&mut self.in_flight)
    }

    /// Removes and returns the transfers to hand to the driver.
    pub fn take_outbox(&mut self) -> impl Iterator<Item = Transfer> {
        self.outbox.drain(..)
    }

    /// Returns `true` if no transfer is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the transfers in flight, in the order of request.
    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter()
    }

    /// Returns the transfers that the sequence in `slot` waits for.
    pub fn of(&self, slot: usize) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter().filter(move |transfer| transfer.purpose.slot() == Some(slot))
    }

    /// Returns the transfers that the sequence in `slot` waits for, to be changed.
    pub fn of_mut(&mut self, slot: usize) -> impl Iterator<Item = &mut InFlight> {
        self.in_flight.iter_mut().filter(move |transfer| transfer.purpose.slot() == Some(slot))
    }

    /// Returns the slots of the sequences being swapped out.
    pub fn swapping_out(&self) -> impl Iterator<Item = usize> {
        self.in_flight.iter().filter_map(|transfer| match transfer.purpose {
            Purpose::SwapOut { slot } => Some(slot),
            _ => None,
        })
    }

    /// Returns the number of device blocks read by demotions, which free them.
    pub fn demoted_device_blocks(&self) -> u32 {
        let demotes =
            |transfer: &&InFlight| transfer.from == Place::Device && matches!(transfer.purpose, Purpose::Demotion);
        self.in_flight.iter().filter(demotes).map(|transfer| transfer.pairs.len() as u32).sum()
    }
}

/// Folds the blocks of a transfer into the digest.
pub(crate) fn fold_pairs(digest: &mut Digest, pairs: &[BlockPair]) {
    pairs.iter().for_each(|pair| digest.fold(u64::from(pair.from) << 32 | u64::from(pair.to)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_ended_once_and_ids_count_up_over_losses() {
        let mut table = TransferTable::new();
        let pairs = vec![BlockPair { from: 3, to: 4 }];
        let out = table.begin(Place::Device, Place::Host, pairs.clone(), Purpose::SwapOut { slot: 7 });
        let load = table.begin(Place::Tier(0), Place::Device, pairs.clone(), Purpose::Load { slot: 8 });
        let demotion = table.begin(Place::Device, Place::Tier(0), pairs.clone(), Purpose::Demotion);
        assert_eq!((out, load, demotion), (1, 2, 3));
        assert_eq!(table.demoted_device_blocks(), 1);
        assert_eq!(table.swapping_out().collect::<Vec<_>>(), [7]);
        assert_eq!(table.take_outbox().map(|transfer| transfer.pairs).collect::<Vec<_>>(), vec![vec![(3, 4)]; 3]);
        table.of_mut(8).for_each(|transfer| transfer.purpose = Purpose::Orphaned(Orphan::default()));
        assert_eq!(table.of(8).count(), 0);
        assert_eq!(table.iter().map(|transfer| transfer.purpose.slot()).collect::<Vec<_>>(), [Some(7), None, None]);
        assert_eq!(table.end(load).map(|transfer| transfer.from), Some(Place::Tier(0)));
        assert!(table.end(load).is_none());
        assert_eq!(table.lose().iter().map(|transfer| transfer.id).collect::<Vec<_>>(), [1, 3]);
        assert!(table.is_empty() && table.end(demotion).is_none());
        assert_eq!(table.begin(Place::Host, Place::Device, pairs, Purpose::SwapIn { slot: 7 }), 4);
    }
}
