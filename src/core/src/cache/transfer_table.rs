//! The transfers in flight: ids, purposes, blocks, and the outbox of requested transfers.
//!
//! Every copy of KV blocks, between whichever places, is one entry of this table from its request to its answer. The purpose says
//! what happens at the end. A hand-over of blocks to another engine would be one more [`Purpose`].

use std::collections::BTreeSet;

use trunkline_port::{BlockFault, BlockKey};

use crate::cache::group_blocks::Placed;
use crate::cache::links::Links;
use crate::cache::pause::CopyPauses;
use crate::journal::digest::Digest;
use crate::names::ids::{BlockHandle, Token};
use crate::request::wait::Wait;
use crate::{Place, Transfer};

/// A block to copy: the number at the source and the number at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPair {
    /// Block in the place copied from.
    pub from: u32,
    /// Block in the place copied to.
    pub to: u32,
}

/// Device blocks to be copied to a tier, in any layer group.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The copies.
    pub pairs: Vec<BlockPair>,
    /// Where the source of each copy is cached.
    pub places: Vec<Placed>,
}

impl Sources {
    /// Adds a block.
    pub fn push(&mut self, placed: Placed, pair: BlockPair) {
        self.pairs.push(pair);
        self.places.push(placed);
    }

    /// Puts the last copy first.
    pub fn reversed(mut self) -> Self {
        self.pairs.reverse();
        self.places.reverse();
        self
    }
}

/// Returns the places in the groups after the first: a transfer reads the blocks there one by one.
pub(crate) fn in_groups(places: &[Placed]) -> impl Iterator<Item = Placed> + '_ {
    places.iter().copied().filter(|placed| placed.group > 0)
}

/// Returns the places of [`in_groups`] in the order of the sources of `pairs`.
pub(crate) fn read_in_groups(pairs: &[BlockPair], places: &[Placed]) -> Vec<Placed> {
    let read = pairs.iter().zip(places).filter(|(_, placed)| placed.group > 0);
    let mut read: Vec<_> = read.map(|(pair, placed)| (pair.from, *placed)).collect();
    read.sort_unstable_by_key(|(block, _)| *block);
    read.into_iter().map(|(_, placed)| placed).collect()
}

/// A device prefix that ends with sources of a demotion found meanwhile. The transfer reads it as a sequence would, so that the sources
/// stay as they are until the transfer's end.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Blocks of the prefix.
    pub chain: Vec<BlockHandle>,
    /// Sources in the chain.
    pub sources: u32,
    /// Sources read in the layer groups after the first.
    pub reads: Vec<Placed>,
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
    /// Copies published blocks of a request to a tier; the transfer reads the chain instead of a request that ended, or along with one that runs.
    WriteThrough {
        /// Published blocks of the request, copied or not.
        chain: Vec<BlockHandle>,
        /// Where the copied blocks are; the transfer reads those of the groups after the first too.
        places: Vec<Placed>,
        /// `true` if another core continues the request, and looks for these blocks.
        is_awaited: bool,
    },
    /// Saves blocks about to be evicted; the sources are freed at the end.
    Demotion {
        /// Prefixes found meanwhile.
        kept: Vec<Kept>,
        /// Where the sources were; unknown for those in a tier.
        places: Vec<Placed>,
    },
    /// Copies pinned blocks of a tier to another tier; the sources stay.
    Propagation,
    /// Began for a sequence that does not wait for the end any more: a swap or a load whose request ended. The transfer keeps the
    /// blocks.
    Orphaned(Orphan),
}

/// Blocks kept by an orphaned transfer, which may still read or write them. Freed when the transfer ends, well or not.
#[derive(Debug, Default)]
pub(crate) struct Orphan {
    /// Device blocks: published ones, which the transfer reads instead of the sequence, then moving ones of all layer groups.
    pub blocks: Vec<BlockHandle>,
    /// Number of published blocks.
    pub published: usize,
    /// Cached blocks of the layer groups after the first, which the transfer reads instead of the sequence.
    pub reads: Vec<Placed>,
    /// Host blocks, held instead of the sequence.
    pub hosts: Vec<u32>,
}

impl Purpose {
    /// Returns the published device blocks that the transfer reads as a sequence would: with all blocks before, and findable. Blocks
    /// kept by a demotion come on top.
    pub fn chain(&self) -> &[BlockHandle] {
        match self {
            Self::WriteThrough { chain, .. } => chain,
            Self::Orphaned(orphan) => &orphan.blocks[..orphan.published],
            _ => &[],
        }
    }

    /// Returns the number of times that the transfer reads this device block as the `at`-th block of a prefix.
    pub fn reads(&self, at: usize, block: BlockHandle) -> u32 {
        let is_there = |chain: &[BlockHandle]| u32::from(chain.get(at) == Some(&block));
        is_there(self.chain()) + self.kept().iter().map(|kept| is_there(&kept.chain)).sum::<u32>()
    }

    /// Returns the prefixes that a demotion reads.
    pub fn kept(&self) -> &[Kept] {
        if let Self::Demotion { kept, .. } = self { kept } else { &[] }
    }

    /// Returns where the sources of a copy from the device to a tier are, or were, cached.
    pub fn places(&self) -> &[Placed] {
        match self {
            Self::WriteThrough { places, .. } | Self::Demotion { places, .. } => places,
            _ => &[],
        }
    }

    /// Returns the blocks that the transfer reads in the layer groups after the first, as a sequence would.
    pub fn reads_in_groups(&self) -> impl Iterator<Item = Placed> + '_ {
        let own = match self {
            Self::WriteThrough { places, .. } => places,
            Self::Orphaned(orphan) => &orphan.reads[..],
            _ => &[],
        };
        in_groups(own).chain(self.kept().iter().flat_map(|kept| kept.reads.iter().copied()))
    }

    /// Returns `true` if a request waits for the end.
    pub fn is_urgent(&self) -> bool {
        self.slot().is_some() || matches!(self, Self::WriteThrough { is_awaited: true, .. })
    }

    /// Returns the slot of the sequence that waits for the end, if one does.
    pub fn slot(&self) -> Option<usize> {
        match self {
            Self::SwapOut { slot } | Self::SwapIn { slot } | Self::Load { slot } => Some(*slot),
            Self::WriteThrough { .. } | Self::Demotion { .. } | Self::Propagation | Self::Orphaned(_) => None,
        }
    }
}

/// End of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    /// The destinations hold the contents of the sources.
    Finished,
    /// The transfer failed, perhaps because of bad sources.
    Failed,
    /// The transfer failed on the way; the sources are good.
    Interrupted,
    /// Some blocks failed: the faults by index of the pair, ascending.
    Partial(Vec<(u32, BlockFault)>),
}

impl TransferEnd {
    /// Returns the end of a transfer with these faults, of which those of pairs beyond `pairs` are ignored.
    pub fn of(mut faults: Vec<(u32, BlockFault)>, pairs: usize) -> Self {
        faults.retain(|(pair, _)| (*pair as usize) < pairs);
        faults.sort_unstable_by_key(|(pair, _)| *pair);
        faults.dedup_by_key(|(pair, _)| *pair);
        if faults.is_empty() { Self::Finished } else { Self::Partial(faults) }
    }

    /// Returns the reason for a block not to have arrived. `None` if the block arrived.
    pub fn fault(&self, pair: usize) -> Option<BlockFault> {
        match self {
            Self::Finished => None,
            Self::Failed => Some(BlockFault::Bad),
            Self::Interrupted => Some(BlockFault::Interrupted),
            Self::Partial(faults) => {
                let at = faults.binary_search_by_key(&(pair as u32), |(pair, _)| *pair).ok()?;
                Some(faults[at].1)
            }
        }
    }

    /// Returns `true` if every block that did not arrive was interrupted.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Finished | Self::Failed => false,
            Self::Interrupted => true,
            Self::Partial(faults) => faults.iter().all(|(_, fault)| *fault == BlockFault::Interrupted),
        }
    }

    /// Returns `true` if one of so many blocks arrived, or the source says that it has none of them: it works.
    pub fn is_answer(&self, pairs: usize) -> bool {
        let works = |fault: Option<BlockFault>| fault.is_none_or(|fault| fault == BlockFault::Bad);
        *self != Self::Failed && (0..pairs).any(|pair| works(self.fault(pair)))
    }

    /// Returns the number of blocks that the destination refused.
    pub fn refused(&self) -> usize {
        let Self::Partial(faults) = self else { return 0 };
        faults.iter().filter(|(_, fault)| *fault == BlockFault::Refused).count()
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
    /// The wait of a request for the end.
    pub wait: Wait,
    /// Time at which the transfer is overdue, nanoseconds: if a sequence waits for it, the end of the wait at the latest.
    pub due_ns: u64,
    /// `true` once the transfer is overdue.
    pub is_overdue: bool,
}

impl InFlight {
    /// Returns `true` for a write to a tier of blocks on the device.
    fn holds_device_blocks(&self) -> bool {
        self.from == Place::Device && matches!(self.to, Place::Tier(_))
    }
}

/// All transfers in flight, in the order of request.
#[derive(Debug)]
pub(crate) struct TransferTable {
    next_id: u64,
    in_flight: Vec<InFlight>,
    /// (due time, id) of the transfers that may become overdue.
    due: BTreeSet<(u64, u64)>,
    /// Overdue transfers in flight.
    n_overdue: u32,
    /// Time of the event being handled, nanoseconds.
    pub now_ns: u64,
    /// Durations of transfers between two places.
    pub links: Links,
    /// Transfers not yet handed to the driver.
    outbox: Vec<Transfer>,
    /// Orphaned transfers that the driver does not know of yet.
    cancelled: Vec<u64>,
    pauses: CopyPauses,
    /// End of the next wait for a transfer without a sequence of its own, if the last scheduling pass found a request to wait.
    room_due_ns: Option<u64>,
}

impl TransferTable {
    /// Creates an empty table.
    pub fn new(links: Links) -> Self {
        Self {
            next_id: 1,
            in_flight: Vec::new(),
            due: BTreeSet::new(),
            n_overdue: 0,
            now_ns: 0,
            links,
            outbox: Vec::new(),
            cancelled: Vec::new(),
            pauses: CopyPauses::default(),
            room_due_ns: None,
        }
    }

    /// Returns `true` while no copy from one place to the other is to begin, because the last ones failed or were late.
    pub fn pauses(&self, from: Place, to: Place) -> bool {
        self.pauses.is_on(from, to, self.now_ns)
    }

    /// Requests a transfer, instead of which the tokens of `computed` blocks would be computed. `keys` and `tokens` name the contents of blocks of
    /// tiers. Returns the transfer's id.
    pub fn begin(
        &mut self,
        from: Place,
        to: Place,
        pairs: Vec<BlockPair>,
        purpose: Purpose,
        computed: usize,
        (keys, tokens): (Vec<BlockKey>, Vec<Token>),
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let numbers = pairs.iter().map(|pair| (pair.from, pair.to)).collect();
        let is_urgent = purpose.is_urgent();
        self.outbox.push(Transfer { id, from, to, pairs: numbers, keys, tokens, is_urgent });
        let wait = self.links.wait(self.now_ns, from, to, pairs.len(), computed);
        let latest_ns = self.now_ns.saturating_add(self.links.patience_ns(from, to, pairs.len()));
        let due_ns = if purpose.slot().is_some() { wait.end_ns.min(latest_ns) } else { latest_ns };
        if due_ns < u64::MAX {
            self.due.insert((due_ns, id));
        }
        self.in_flight.push(InFlight { id, from, to, pairs, purpose, wait, due_ns, is_overdue: false });
        id
    }

    /// Removes an answered transfer, and learns from its duration if it succeeded. Returns `None` for an id of no transfer in flight.
    pub fn end(&mut self, id: u64, end: &TransferEnd) -> Option<InFlight> {
        let at = self.in_flight.binary_search_by_key(&id, |transfer| transfer.id).ok()?;
        let transfer = self.in_flight.remove(at);
        self.due.remove(&(transfer.due_ns, id));
        self.n_overdue -= u32::from(transfer.is_overdue);
        let (now_ns, took_ns) = (self.now_ns, self.now_ns - transfer.wait.begun_ns);
        if *end == TransferEnd::Finished {
            self.links.observe(transfer.from, transfer.to, transfer.pairs.len(), took_ns);
        }
        // One that was overdue counted then, and of a cancelled one nobody knows.
        if !transfer.is_overdue
            && !matches!(transfer.purpose, Purpose::Orphaned(_))
            && let Some(pause) = self.pauses.of(transfer.from, transfer.to)
        {
            if end.is_answer(transfer.pairs.len()) { pause.succeeded() } else { pause.failed(now_ns, took_ns) }
        }
        Some(transfer)
    }

    /// Returns the earliest time at which a transfer in flight is overdue, or a request gives up waiting for the end of one.
    pub fn next_due_ns(&self) -> Option<u64> {
        let due_ns = self.due.first().map(|(due_ns, _)| *due_ns);
        due_ns.into_iter().chain(self.room_due_ns).min()
    }

    /// Marks the first transfer overdue by now, and returns it. `None` if all of them are marked.
    pub fn take_overdue(&mut self) -> Option<&InFlight> {
        self.room_due_ns = self.room_due_ns.filter(|due_ns| *due_ns > self.now_ns);
        let (due_ns, id) = *self.due.first()?;
        if due_ns > self.now_ns {
            return None;
        }
        Some(self.mark_overdue(id))
    }

    fn mark_overdue(&mut self, id: u64) -> &InFlight {
        let at = self.in_flight.binary_search_by_key(&id, |transfer| transfer.id).expect("it did not end");
        let transfer = &mut self.in_flight[at];
        self.due.remove(&(transfer.due_ns, id));
        transfer.is_overdue = true;
        self.n_overdue += 1;
        if let Some(pause) = self.pauses.of(transfer.from, transfer.to) {
            pause.failed(self.now_ns, self.now_ns - transfer.wait.begun_ns);
        }
        transfer
    }

    /// Returns the writes to tiers in flight that hold device blocks, and are not overdue.
    pub fn awaited_writes(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter().filter(|transfer| transfer.holds_device_blocks() && !transfer.is_overdue)
    }

    /// Takes note that a request lacks device blocks which writes in flight hold. Returns `true` if the wait for one of these is over.
    pub fn await_writes(&mut self) -> bool {
        let (_, is_over) = self.await_ends(InFlight::holds_device_blocks);
        is_over
    }

    /// Takes note that nothing can run before a transfer ends. Returns `false` if no end is worth a wait any more.
    pub fn await_any(&mut self) -> bool {
        let (goes_on, _) = self.await_ends(|_| true);
        goes_on
    }

    /// Takes note that a request waits for transfers that are not overdue. Returns `true` if one of these waits goes on, and `true` if one is over.
    fn await_ends(&mut self, is_awaited: impl Fn(&InFlight) -> bool) -> (bool, bool) {
        let (mut goes_on, mut is_over) = (false, false);
        for transfer in self.in_flight.iter().filter(|transfer| !transfer.is_overdue && is_awaited(transfer)) {
            if transfer.wait.is_over(self.now_ns) {
                is_over = true;
                continue;
            }
            goes_on = true;
            let end_ns = Some(transfer.wait.end_ns).filter(|end_ns| *end_ns < u64::MAX);
            self.room_due_ns = end_ns.into_iter().chain(self.room_due_ns).min();
        }
        (goes_on, is_over)
    }

    /// Forgets that a request was found to wait for the end of a transfer that nothing else makes known.
    pub fn await_none(&mut self) {
        self.room_due_ns = None;
    }

    /// Cancels a write whose wait is over, marks it overdue, and returns its id. `None` if there is none.
    pub fn take_late_write(&mut self) -> Option<u64> {
        let id = self.awaited_writes().find(|transfer| transfer.wait.is_over(self.now_ns))?.id;
        self.mark_overdue(id);
        self.cancelled.push(id);
        Some(id)
    }

    /// Returns `true` if a transfer from or to a place is overdue. No other transfer should begin there.
    pub fn is_stuck(&self, place: Place) -> bool {
        let is_stuck = |transfer: &InFlight| transfer.is_overdue && (transfer.from == place || transfer.to == place);
        self.n_overdue > 0 && self.in_flight.iter().any(is_stuck)
    }

    /// Returns `true` if a transfer reads a prefix on the device as a sequence would: the prefix of another reader is then shared or not
    /// without a change of the block's number of readers.
    pub fn read_prefixes(&self) -> bool {
        let reads = |purpose: &Purpose| !purpose.chain().is_empty() || !purpose.kept().is_empty();
        self.in_flight.iter().any(|transfer| reads(&transfer.purpose))
    }

    /// Returns `true` if blocks are being copied to a tier, in time so far.
    pub fn is_storing(&self) -> bool {
        self.in_flight.iter().any(|transfer| matches!(transfer.to, Place::Tier(_)) && !transfer.is_overdue)
    }

    /// Removes all transfers, in the order of request: the worker was lost and none will be answered.
    pub fn lose(&mut self) -> Vec<InFlight> {
        self.outbox.clear();
        self.cancelled.clear();
        self.due.clear();
        (self.n_overdue, self.room_due_ns) = (0, None);
        std::mem::take(&mut self.in_flight)
    }

    /// Removes and returns the transfers to hand to the driver.
    pub fn take_outbox(&mut self) -> impl Iterator<Item = Transfer> {
        self.outbox.drain(..)
    }

    /// Removes and returns the transfers to be cancelled by the driver.
    pub fn take_cancelled(&mut self) -> impl Iterator<Item = u64> {
        self.cancelled.drain(..)
    }

    /// Lets a transfer continue without the sequence in `slot`, and cancels what is not copied yet. `orphan` returns the blocks kept by the
    /// transfer, given the pairs.
    pub fn orphan(&mut self, slot: usize, mut orphan: impl FnMut(&[BlockPair]) -> Orphan) {
        for transfer in self.in_flight.iter_mut().filter(|transfer| transfer.purpose.slot() == Some(slot)) {
            transfer.purpose = Purpose::Orphaned(orphan(&transfer.pairs));
            self.cancelled.push(transfer.id);
        }
    }

    /// Returns a transfer in flight.
    pub fn get(&self, id: u64) -> Option<&InFlight> {
        let at = self.in_flight.binary_search_by_key(&id, |transfer| transfer.id).ok()?;
        Some(&self.in_flight[at])
    }

    /// Returns the number of blocks of a transfer in flight. `None` for an id of no transfer in flight.
    pub fn pairs_of(&self, id: u64) -> Option<usize> {
        self.get(id).map(|transfer| transfer.pairs.len())
    }

    /// Returns `true` if a transfer to a place is in flight.
    pub fn is_writing(&self, place: Place) -> bool {
        self.in_flight.iter().any(|transfer| transfer.to == place)
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

    /// Returns the slots of the sequences being swapped out.
    pub fn swapping_out(&self) -> impl Iterator<Item = usize> {
        self.in_flight.iter().filter_map(|transfer| match transfer.purpose {
            Purpose::SwapOut { slot } => Some(slot),
            _ => None,
        })
    }

    /// Returns the demotions of device blocks in flight.
    pub fn device_demotions(&self) -> impl Iterator<Item = &InFlight> {
        let demotes = |purpose: &Purpose| matches!(purpose, Purpose::Demotion { .. });
        self.in_flight.iter().filter(move |transfer| transfer.from == Place::Device && demotes(&transfer.purpose))
    }

    /// Returns the id of the next transfer.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Lets a demotion read a prefix of device blocks until its end.
    pub fn keep(&mut self, id: u64, prefix: Kept) {
        let at = self.in_flight.binary_search_by_key(&id, |transfer| transfer.id).expect("the demotion is in flight");
        match &mut self.in_flight[at].purpose {
            Purpose::Demotion { kept, .. } => kept.push(prefix),
            purpose => unreachable!("{purpose:?} keeps no prefix"),
        }
    }
}

/// Folds the blocks of a transfer into the digest.
pub(crate) fn fold_pairs(digest: &mut Digest, pairs: &[BlockPair]) {
    pairs.iter().for_each(|pair| digest.fold(u64::from(pair.from) << 32 | u64::from(pair.to)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_digest_tells_which_blocks_a_transfer_copies_and_where() {
        let digest = |pairs: &[(u32, u32)]| {
            let mut digest = Digest::default();
            let pairs: Vec<BlockPair> = pairs.iter().map(|(from, to)| BlockPair { from: *from, to: *to }).collect();
            fold_pairs(&mut digest, &pairs);
            digest.value()
        };
        let mut digests = [&[][..], &[(1, 2)], &[(2, 1)], &[(1, 3)], &[(1, 2), (1, 3)], &[(1, 3), (1, 2)]].map(digest);
        digests.sort_unstable();
        assert!(digests.windows(2).all(|two| two[0] != two[1]), "{digests:?}");
    }

    #[test]
    fn the_places_of_sources_follow_the_copies_and_are_read_in_the_order_of_the_sources() {
        let placed = |node, group| Placed { node: BlockHandle { index: node, generation: 0 }, group };
        let mut sources = Sources::default();
        for (from, place) in [(9, (9, 0)), (4, (9, 1)), (7, (9, 3)), (1, (1, 0)), (3, (1, 1)), (2, (2, 0))] {
            sources.push(placed(place.0, place.1), BlockPair { from, to: 0 });
        }
        let places = sources.places.clone();
        let Sources { pairs, places: reversed } = sources.reversed();
        assert!(pairs.iter().map(|pair| pair.from).eq([2, 3, 1, 7, 4, 9]) && reversed.iter().rev().eq(&places));
        assert!(in_groups(&places).eq([placed(9, 1), placed(9, 3), placed(1, 1)]));
        assert_eq!(read_in_groups(&pairs, &reversed), [placed(1, 1), placed(9, 1), placed(9, 3)]);
    }

    #[test]
    fn a_transfer_is_ended_once_and_ids_count_up_over_losses() {
        let mut table = TransferTable::new(Links::new(&Config::default()));
        let pairs = vec![BlockPair { from: 3, to: 4 }];
        let out =
            table.begin(Place::Device, Place::Host, pairs.clone(), Purpose::SwapOut { slot: 7 }, 1, Default::default());
        let load =
            table.begin(Place::Tier(0), Place::Device, pairs.clone(), Purpose::Load { slot: 8 }, 1, Default::default());
        let demotion = table.begin(
            Place::Device,
            Place::Tier(0),
            pairs.clone(),
            Purpose::Demotion { kept: Vec::new(), places: Vec::new() },
            1,
            Default::default(),
        );
        assert_eq!((out, load, demotion), (1, 2, 3));
        assert_eq!(table.device_demotions().count(), 1);
        assert_eq!(table.swapping_out().collect::<Vec<_>>(), [7]);
        assert_eq!(table.take_outbox().map(|transfer| transfer.pairs).collect::<Vec<_>>(), vec![vec![(3, 4)]; 3]);
        table.orphan(8, |_| Orphan::default());
        assert_eq!(table.of(8).count(), 0);
        assert_eq!(table.iter().map(|transfer| transfer.purpose.slot()).collect::<Vec<_>>(), [Some(7), None, None]);
        assert_eq!(table.end(load, &TransferEnd::Finished).map(|transfer| transfer.from), Some(Place::Tier(0)));
        assert!(table.end(load, &TransferEnd::Finished).is_none());
        assert_eq!(table.lose().iter().map(|transfer| transfer.id).collect::<Vec<_>>(), [1, 3]);
        assert!(table.is_empty() && table.end(demotion, &TransferEnd::Finished).is_none());
        assert_eq!(
            table.begin(Place::Host, Place::Device, pairs, Purpose::SwapIn { slot: 7 }, 1, Default::default()),
            4
        );
    }

    #[test]
    fn a_transfer_that_takes_too_long_is_overdue_once_and_its_place_is_stuck_until_it_ends() {
        let config = Config { copy_timeout_ns: 100, ..Config::default() };
        let mut table = TransferTable::new(Links::new(&config));
        let pairs = vec![BlockPair { from: 3, to: 4 }];
        let first =
            table.begin(Place::Tier(1), Place::Device, pairs.clone(), Purpose::Load { slot: 1 }, 1, Default::default());
        table.now_ns = 50;
        let second = table.begin(Place::Device, Place::Tier(0), pairs, Purpose::Propagation, 1, Default::default());
        assert_eq!((table.next_due_ns(), table.is_storing()), (Some(100), true));
        assert!(table.take_overdue().is_none());
        table.now_ns = 100;
        assert_eq!(table.take_overdue().map(|transfer| transfer.id), Some(first));
        assert!(table.take_overdue().is_none());
        assert_eq!((table.is_stuck(Place::Tier(1)), table.is_stuck(Place::Tier(0))), (true, false));
        assert_eq!(table.next_due_ns(), Some(150));
        assert!(table.end(second, &TransferEnd::Finished).is_some_and(|transfer| !transfer.is_overdue));
        assert!(table.end(first, &TransferEnd::Finished).is_some_and(|transfer| transfer.is_overdue));
        assert!(!table.is_stuck(Place::Tier(1)) && table.next_due_ns().is_none());
    }
}
