//! Readers of device blocks: running sequences, swapped sequences, and transfers.
//!
//! A reader of a block reads all blocks before it, so the blocks of a table with a certain kind of reader are its first ones. Only
//! running sequences need a block on the device for long: swapped ones have, or get, a copy on the host, and a transfer ends.

use crate::Place;
use crate::cache::kv::Kv;
use crate::cache::transfer_table::{InFlight, Purpose};
use crate::journal::digest::Decision;
use crate::names::ids::BlockHandle;
use crate::schedule::state::State;

/// Returns the number of leading blocks, of the first `n` of a sequence, that another running sequence reads. Such blocks are not
/// swapped out.
pub(crate) fn run_by_others(state: &State, slot: usize, n: usize) -> usize {
    let seq = &state.sequences[slot];
    // Private blocks follow the published ones, and have no other reader.
    let published = (seq.published as usize).min(n);
    (0..published).rev().find(|at| others(state, slot, *at) > 0).map_or(0, |at| at + 1)
}

/// Returns the number of running sequences reading the `at`-th block of the sequence in `slot`.
fn others(state: &State, slot: usize, at: usize) -> u32 {
    let block = state.sequences[slot].table[at];
    let others = state.kv.tree.readers(block) - 1;
    if others == 0 {
        return 0;
    }
    // Swapped sequences take over each other's copies in host memory, but not with several layer groups.
    let swapped = if state.kv.groups.n() > 0 { 0 } else { swapped_readers(state, slot, at, block) };
    others.saturating_sub(swapped + transfers_reading(&state.kv, at, block))
}

/// Returns the number of other sequences, swapped or being swapped out, with this device block as the `at`-th block.
fn swapped_readers(state: &State, slot: usize, at: usize, block: BlockHandle) -> u32 {
    let reads = |other: &usize| *other != slot && state.sequences[*other].table.get(at) == Some(&block);
    state.kv.transfers.swapping_out().chain(state.swaps.swapped_slots()).filter(reads).count() as u32
}

/// Returns the number of transfers in flight reading this device block as the `at`-th block of a prefix.
fn transfers_reading(kv: &Kv, at: usize, block: BlockHandle) -> u32 {
    kv.transfers.iter().map(|transfer| transfer.purpose.reads(at, block)).sum()
}

/// Returns the number of leading blocks, among published blocks of a sequence, that other sequences read.
pub(crate) fn shared(kv: &Kv, published: &[BlockHandle]) -> usize {
    if published.first().is_none_or(|first| kv.tree.readers(*first) == 1) {
        return 0;
    }
    let read = published.partition_point(|block| kv.tree.readers(*block) > 1);
    let is_shared = |at: &usize| {
        let block = published[*at];
        kv.tree.readers(block) > 1 + transfers_reading(kv, *at, block)
    };
    (0..read).rev().find(is_shared).map_or(0, |at| at + 1)
}

/// Returns the number of device blocks that become usable when all transfers in flight end, as the readers are now.
pub(crate) fn future_free(state: &State) -> u32 {
    state.kv.transfers.iter().map(|transfer| freed_by(state, transfer)).sum()
}

/// Returns the number of device blocks that the swap-outs in flight make usable.
pub(crate) fn freed_by_swaps(state: &State) -> u32 {
    let is_swap = |transfer: &&InFlight| matches!(transfer.purpose, Purpose::SwapOut { .. });
    state.kv.transfers.iter().filter(is_swap).map(|transfer| freed_by(state, transfer)).sum()
}

/// Returns the number of device blocks that the writes to tiers in flight make usable.
pub(crate) fn freed_by_writes(state: &State) -> u32 {
    state.kv.transfers.awaited_writes().map(|transfer| freed_by(state, transfer)).sum()
}

/// Returns the number of device blocks that become usable at the end of a transfer.
fn freed_by(state: &State, transfer: &InFlight) -> u32 {
    let kv = &state.kv;
    if transfer.is_overdue {
        // Nobody knows when it ends, if ever.
        return 0;
    }
    match &transfer.purpose {
        Purpose::SwapOut { slot } => {
            let seq = &state.sequences[*slot];
            let n = seq.table.len();
            let freed = seq.phase.hosts().len().min(n - run_by_others(state, *slot, n));
            freed as u32 + kv.freed_in_groups(seq, n - freed)
        }
        Purpose::Demotion { .. } if transfer.from == Place::Device => kv.freed_by_demotion(transfer),
        Purpose::WriteThrough { chain, .. } => {
            freed_chain(kv, transfer.id, chain) + kv.freed_read(transfer.purpose.reads_in_groups())
        }
        Purpose::Orphaned(orphan) => {
            let moving = (orphan.blocks.len() - orphan.published) as u32;
            let read = kv.freed_read(transfer.purpose.reads_in_groups());
            freed_chain(kv, transfer.id, transfer.purpose.chain()) + moving + read
        }
        _ => 0,
    }
}

/// Returns the number of last blocks of a chain, read by the transfer `id`, that only transfers read. Counted for the first of
/// several such transfers.
fn freed_chain(kv: &Kv, id: u64, chain: &[BlockHandle]) -> u32 {
    let falls_idle = |(at, block): &(usize, &BlockHandle)| {
        let readers = kv.tree.readers(**block);
        if readers == 1 {
            return true;
        }
        let mut reading = kv.transfers.iter().filter(|other| other.purpose.chain().get(*at) == Some(block));
        reading.next().is_some_and(|first| first.id == id) && 1 + reading.count() as u32 == readers
    };
    chain.iter().enumerate().rev().take_while(falls_idle).count() as u32
}

/// Takes note that a request lacks so many device blocks. Cancels the writes to tiers that hold them if a request was to wait no longer for these
/// ([`crate::request::wait`]). Returns `true` if one was cancelled: nobody counts on its end any more.
pub(crate) fn await_writes(state: &mut State, lacking: u32) -> bool {
    if !state.kv.transfers.await_writes() || freed_by_writes(state) < lacking {
        return false;
    }
    while let Some(id) = state.kv.transfers.take_late_write() {
        state.journal.decide(Decision::TransferOverdue, 0, id);
        state.journal.stats.swaps.failed_transfers += 1;
    }
    true
}
