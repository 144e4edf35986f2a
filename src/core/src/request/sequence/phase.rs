//! The state machine of a sequence, and the data of each state.

use crate::blocks::entries::Entries;
use crate::blocks::transitions::Transition;
use crate::names::ids::BlockHandle;
use crate::request::wait::Wait;

/// The state of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// In the waiting queue, with or without tokens generated before a preemption.
    Waiting,
    /// Admitted with all blocks; part of the prefix is being copied from a tier.
    Loading,
    /// In the batch; at least one prompt token has no KV.
    Prefill,
    /// In the batch; one token without KV, the last one generated.
    Decode,
    /// Out of the batch, without any block; steps in flight still run the sequence.
    Preempted,
    /// Out of the batch; the KV is being copied to the host.
    SwappingOut,
    /// Out of the batch; the KV is on the host, except for a prefix read by other sequences on the device.
    Swapped,
    /// Out of the batch; the KV is being copied back to the device.
    SwappingIn,
}

/// Causes of a change of [`SequenceState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceEvent {
    /// The scheduler admitted the request with all blocks.
    Admitted,
    /// The scheduler admitted the request, and a tier has more of the prefix than the device.
    LoadBegan,
    /// All transfers from tiers ended. A prefetch then has only to be reported.
    LoadEnded,
    /// The worker sampled the first token.
    FirstToken,
    /// The sequence left the batch to free blocks, and is recomputed later.
    Preempted,
    /// The last step in flight with the preempted sequence ended.
    StepsEnded,
    /// The sequence left the batch to free blocks, and the KV is copied to the host.
    SwapOutBegan,
    /// The KV is on the host.
    SwapOutEnded,
    /// The device has room again.
    SwapInBegan,
    /// The KV is back on the device.
    SwapInEnded,
    /// The sequence's own transfer failed, or the transfer joined.
    TransferFailed,
    /// The wait for a transfer is over (`request/wait.rs`), or the transfer does not end. The transfer keeps its blocks.
    TransferOverdue,
    /// The sequence released all blocks for another sequence.
    Released,
    /// All KV on the device and on the host was lost.
    WorkerLost,
    /// A step failed to compute blocks of another sequence, which this one reads.
    SourceFailed,
}

/// Every change of [`SequenceState`]. From every state a request may also end.
pub const TRANSITIONS: [Transition<SequenceEvent, SequenceState>; 33] = {
    use SequenceEvent::{
        Admitted, FirstToken, LoadBegan, LoadEnded, Preempted, Released, SourceFailed, StepsEnded, SwapInBegan,
        SwapInEnded, SwapOutBegan, SwapOutEnded, TransferFailed, TransferOverdue, WorkerLost,
    };
    use SequenceState::{Decode, Loading, Prefill, Swapped, SwappingIn, SwappingOut, Waiting};
    [
        (Admitted, Waiting, Prefill),
        (LoadBegan, Waiting, Loading),
        (LoadEnded, Loading, Prefill),
        (LoadEnded, Loading, Waiting),
        (FirstToken, Prefill, Decode),
        (Preempted, Prefill, Waiting),
        (Preempted, Decode, Waiting),
        (Preempted, Prefill, SequenceState::Preempted),
        (Preempted, Decode, SequenceState::Preempted),
        (StepsEnded, SequenceState::Preempted, Waiting),
        (SwapOutBegan, Prefill, SwappingOut),
        (SwapOutBegan, Decode, SwappingOut),
        (SwapOutEnded, SwappingOut, Swapped),
        (SwapInBegan, Swapped, SwappingIn),
        (SwapInEnded, SwappingIn, Prefill),
        (SwapInEnded, SwappingIn, Decode),
        (TransferFailed, SwappingOut, Waiting),
        (TransferFailed, SwappingIn, Waiting),
        (TransferOverdue, Loading, Waiting),
        (TransferOverdue, SwappingOut, Waiting),
        (TransferOverdue, SwappingIn, Waiting),
        (Released, Swapped, Waiting),
        (WorkerLost, Loading, Waiting),
        (WorkerLost, Prefill, Waiting),
        (WorkerLost, Decode, Waiting),
        (WorkerLost, SequenceState::Preempted, Waiting),
        (WorkerLost, SwappingOut, Waiting),
        (WorkerLost, Swapped, Waiting),
        (WorkerLost, SwappingIn, Waiting),
        (SourceFailed, Loading, Waiting),
        (SourceFailed, Prefill, Waiting),
        (SourceFailed, Decode, Waiting),
        (SourceFailed, SwappingIn, Waiting),
    ]
};

/// The state of a sequence, with the data of that state alone. Rare states are boxed, which keeps a phase at two words.
#[derive(Debug)]
pub(crate) enum Phase {
    /// In the waiting queue, see [`SequenceState::Waiting`].
    Waiting,
    /// Waits for tiers, see [`SequenceState::Loading`].
    Loading(Box<Load>),
    /// Runs its prompt, see [`SequenceState::Prefill`].
    Prefill,
    /// Runs one token per step, see [`SequenceState::Decode`].
    Decode,
    /// Waits for steps in flight, see [`SequenceState::Preempted`].
    Preempted,
    /// Leaves for the host, see [`SequenceState::SwappingOut`].
    SwappingOut(Box<SwapOut>),
    /// Rests on the host, see [`SequenceState::Swapped`].
    Swapped(Box<Swapped>),
    /// Comes back from the host, see [`SequenceState::SwappingIn`].
    SwappingIn(Box<SwapIn>),
}

/// Data of a sequence in state [`SequenceState::Loading`].
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Begin, nanoseconds.
    pub began_ns: u64,
    /// Transfers in flight.
    pub transfers: u32,
    /// `true` for each block being filled, or filled, of the entries after the published ones.
    pub filled: Entries<bool>,
}

impl Load {
    /// Returns the number of leading entries whose blocks of the first group no failed transfer was to fill.
    pub fn good(&self) -> usize {
        self.filled.first.iter().take_while(|filled| **filled).count()
    }
}

/// Data of a sequence in state [`SequenceState::SwappingOut`].
#[derive(Debug)]
pub(crate) struct SwapOut {
    /// Id of the transfer to the host.
    pub transfer: u64,
    /// Host blocks being filled with the last blocks that have KV, as in [`Swapped::hosts`].
    pub hosts: Entries<u32>,
}

/// Data of a sequence in state [`SequenceState::Swapped`].
#[derive(Debug)]
pub(crate) struct Swapped {
    /// Host blocks with the KV that follows the block table.
    pub hosts: Entries<u32>,
    /// Number of blocks that were published at the swap-out.
    pub published: u32,
    /// The policy's rank at the swap-out; the highest comes back first.
    pub preemption_rank: i128,
}

/// Data of a sequence in state [`SequenceState::SwappingIn`].
#[derive(Debug)]
pub(crate) struct SwapIn {
    /// Id of the sequence's own transfer, while in flight. `None` if the sequence joined the transfers of others for all blocks.
    pub transfer: Option<u64>,
    /// The wait for the blocks, of the own transfer and of others.
    pub wait: Wait,
    /// Host blocks with the KV that follows the block table: first those that transfers of others bring, then `copied` ones of the
    /// sequence's own transfer.
    pub hosts: Entries<u32>,
    /// Device blocks taken for the swap-in: those of `copied` entries for the own transfer, then private blocks for tokens without KV.
    pub arriving: Entries<BlockHandle>,
    /// Entries of the sequence's own transfer.
    pub copied: u32,
}

impl SwapIn {
    /// Returns the host blocks that the sequence's own transfer reads.
    pub fn copied_hosts(&self) -> impl Iterator<Item = u32> {
        self.hosts.part(self.hosts.len() - self.copied as usize..self.hosts.len())
    }

    /// Returns `true` if no transfer is in flight for any block.
    pub fn is_complete(&self) -> bool {
        self.transfer.is_none() && self.hosts.len() == self.copied as usize
    }
}

impl Phase {
    /// Returns the state, without its data.
    pub fn state(&self) -> SequenceState {
        match self {
            Self::Waiting => SequenceState::Waiting,
            Self::Loading(_) => SequenceState::Loading,
            Self::Prefill => SequenceState::Prefill,
            Self::Decode => SequenceState::Decode,
            Self::Preempted => SequenceState::Preempted,
            Self::SwappingOut(_) => SequenceState::SwappingOut,
            Self::Swapped(_) => SequenceState::Swapped,
            Self::SwappingIn(_) => SequenceState::SwappingIn,
        }
    }

    /// Returns the number of entries that a sequence loads from tiers.
    pub fn loaded_entries(&self) -> usize {
        if let Self::Loading(load) = self { load.filled.len() } else { 0 }
    }

    /// Returns the host blocks the sequence holds.
    pub fn hosts(&self) -> &Entries<u32> {
        static NONE: Entries<u32> = Entries::EMPTY;
        match self {
            Self::SwappingOut(swap_out) => &swap_out.hosts,
            Self::Swapped(swapped) => &swapped.hosts,
            Self::SwappingIn(swap_in) => &swap_in.hosts,
            Self::Waiting | Self::Loading(_) | Self::Prefill | Self::Decode | Self::Preempted => &NONE,
        }
    }

    /// Removes and returns the host blocks the sequence holds.
    pub fn take_hosts(&mut self) -> Entries<u32> {
        match self {
            Self::SwappingOut(swap_out) => std::mem::take(&mut swap_out.hosts),
            Self::Swapped(swapped) => std::mem::take(&mut swapped.hosts),
            Self::SwappingIn(swap_in) => std::mem::take(&mut swap_in.hosts),
            Self::Waiting | Self::Loading(_) | Self::Prefill | Self::Decode | Self::Preempted => Entries::EMPTY,
        }
    }

    /// Removes and returns the first host block if it is `host`, the sequence is swapped out, and its own transfer does not read
    /// the block.
    pub fn take_first_host(&mut self, host: u32) -> Option<u32> {
        let (hosts, copied) = match self {
            Self::Swapped(swapped) => (&mut swapped.hosts, 0),
            Self::SwappingIn(swap_in) => (&mut swap_in.hosts, swap_in.copied as usize),
            _ => return None,
        };
        (hosts.len() > copied && hosts.first[0] == host).then(|| hosts.first.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let reviewed = "\
Admitted: Waiting -> Prefill
LoadBegan: Waiting -> Loading
LoadEnded: Loading -> Prefill
LoadEnded: Loading -> Waiting
FirstToken: Prefill -> Decode
Preempted: Prefill -> Waiting
Preempted: Decode -> Waiting
Preempted: Prefill -> Preempted
Preempted: Decode -> Preempted
StepsEnded: Preempted -> Waiting
SwapOutBegan: Prefill -> SwappingOut
SwapOutBegan: Decode -> SwappingOut
SwapOutEnded: SwappingOut -> Swapped
SwapInBegan: Swapped -> SwappingIn
SwapInEnded: SwappingIn -> Prefill
SwapInEnded: SwappingIn -> Decode
TransferFailed: SwappingOut -> Waiting
TransferFailed: SwappingIn -> Waiting
TransferOverdue: Loading -> Waiting
TransferOverdue: SwappingOut -> Waiting
TransferOverdue: SwappingIn -> Waiting
Released: Swapped -> Waiting
WorkerLost: Loading -> Waiting
WorkerLost: Prefill -> Waiting
WorkerLost: Decode -> Waiting
WorkerLost: Preempted -> Waiting
WorkerLost: SwappingOut -> Waiting
WorkerLost: Swapped -> Waiting
WorkerLost: SwappingIn -> Waiting
SourceFailed: Loading -> Waiting
SourceFailed: Prefill -> Waiting
SourceFailed: Decode -> Waiting
SourceFailed: SwappingIn -> Waiting
";
        assert_eq!(crate::blocks::transitions::text(&TRANSITIONS), reviewed);
    }
}
