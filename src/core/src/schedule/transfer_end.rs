//! The end of transfers: one path for every purpose.

use trunkline_port::BlockFault;

use crate::cache::transfer_table::{InFlight, Purpose, TransferEnd};
use crate::journal::digest::Decision;
use crate::request::sequence::{Phase, SequenceEvent};
use crate::schedule::state::State;
use crate::{schedule::loading, schedule::readers, schedule::swap};

/// Ends a transfer. An id that is not in flight is ignored.
pub(crate) fn end(state: &mut State, id: u64, end: TransferEnd) {
    let ok = end == TransferEnd::Finished;
    let Some(transfer) = state.kv.transfers.end(id, &end) else { return };
    let decision = match end {
        TransferEnd::Finished => Decision::TransferFinished,
        TransferEnd::Failed => Decision::TransferFailed,
        TransferEnd::Interrupted => Decision::TransferInterrupted,
        TransferEnd::Partial(_) => Decision::TransferPartial,
    };
    let subject = match transfer.purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => state.sequences[slot].id.0,
        _ => 0,
    };
    state.journal.decide(decision, subject, id);
    if let TransferEnd::Partial(faults) = &end {
        faults.iter().for_each(|(pair, fault)| state.journal.digest.fold(u64::from(*pair) << 8 | *fault as u64));
    }
    // A transfer that nobody waits for was cancelled.
    let is_cancelled = matches!(transfer.purpose, Purpose::Orphaned(_)) && end.is_interrupted();
    state.journal.stats.swaps.failed_transfers += u64::from(!ok && !transfer.is_overdue && !is_cancelled);
    let InFlight { from, to, pairs, purpose, .. } = transfer;
    match purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => swap::end_transfer(state, slot, ok),
        Purpose::Orphaned(orphan) => state.kv.end_orphan(from, to, &pairs, orphan, &end),
        purpose => loading::end_transfer(state, InFlight { pairs, purpose, ..transfer }, &end),
    }
}

/// Ends a transfer some of whose blocks may not have arrived.
pub(crate) fn end_partly(state: &mut State, id: u64, faults: Vec<(u32, BlockFault)>) {
    if let Some(pairs) = state.kv.transfers.pairs_of(id) {
        end(state, id, TransferEnd::of(faults, pairs));
    }
}

/// Gives up waiting for the transfers that are overdue by now. A sequence that waits for such a transfer is recomputed, in other blocks;
/// the transfer keeps the blocks that it may still read or write. Transfers without a waiting sequence continue.
pub(crate) fn give_up_overdue(state: &mut State) {
    while let Some(transfer) = state.kv.transfers.take_overdue() {
        let (id, slot) = (transfer.id, transfer.purpose.slot());
        let request = slot.map_or(0, |slot| state.sequences[slot].id.0);
        state.journal.decide(Decision::TransferOverdue, request, id);
        state.journal.stats.swaps.failed_transfers += 1;
        if let Some(slot) = slot.filter(|slot| state.sequences[*slot].cold.tail.is_none()) {
            give_up(state, slot);
        }
    }
    while let Some(slot) = swap::first_overdue(state) {
        state.journal.decide(Decision::TransferOverdue, state.sequences[slot].id.0, 0);
        give_up(state, slot);
    }
}

/// Takes note that a request can go on only when a transfer ends. Returns `false` if no end is worth a wait any more.
pub(crate) fn await_any(state: &mut State) -> bool {
    readers::await_writes(state, 1);
    state.kv.transfers.await_any()
}

/// Lets a sequence start over that waited for a transfer for long enough.
fn give_up(state: &mut State, slot: usize) {
    orphan(state, slot);
    state.end_shared_work(slot);
    swap::leave_queue(state, slot);
    state.release(slot);
    state.start_over(slot, SequenceEvent::TransferOverdue);
    swap::resume_arrived(state);
}

/// Lets the transfers in flight for a sequence go on without it: the sequence is about to leave its state. The transfers keep the
/// blocks that they may still read or write, and free the blocks at their end. A sequence without such transfers stays as it is.
pub(crate) fn orphan(state: &mut State, slot: usize) {
    match state.sequences[slot].phase {
        Phase::Loading(_) => loading::orphan(state, slot),
        Phase::SwappingOut(_) | Phase::SwappingIn(_) => swap::orphan(state, slot),
        Phase::Waiting | Phase::Prefill | Phase::Decode | Phase::Preempted | Phase::Swapped(_) => {}
    }
}

/// Gives up every transfer: the worker was lost, and none will be answered. Returns the sequences that were swapped out, swapping or
/// loading, in a fixed order, without any block or queue.
pub(crate) fn lose_all(state: &mut State) -> Vec<usize> {
    let (mut swaps, mut others) = (Vec::new(), Vec::new());
    for transfer in state.kv.transfers.lose() {
        let InFlight { from, to, pairs, purpose, .. } = transfer;
        match purpose {
            Purpose::Orphaned(orphan) => {
                state.kv.end_orphan(from, to, &pairs, orphan, &TransferEnd::Interrupted);
            }
            Purpose::SwapOut { .. } | Purpose::SwapIn { .. } => swaps.push(purpose),
            purpose => others.push(InFlight { pairs, purpose, ..transfer }),
        }
    }
    let mut slots = swap::lose(state, &swaps);
    slots.extend(loading::lose(state, others));
    slots
}
