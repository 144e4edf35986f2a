//! The end of transfers: one path for every purpose.

use crate::digest::Decision;
use crate::sequence::Phase;
use crate::state::State;
use crate::transfer_table::{InFlight, Purpose};
use crate::{loading, swap};

/// Ends a transfer, successfully if `ok`. An id that is not in flight is ignored.
pub(crate) fn end(state: &mut State, id: u64, ok: bool) {
    let Some(transfer) = state.kv.transfers.end(id) else { return };
    let decision = if ok { Decision::TransferFinished } else { Decision::TransferFailed };
    let subject = match transfer.purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => state.sequences[slot].id.0,
        _ => 0,
    };
    state.journal.decide(decision, subject, id);
    state.journal.stats.swaps.failed_transfers += u64::from(!ok);
    let InFlight { from, to, pairs, purpose, .. } = transfer;
    match purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => swap::end_transfer(state, slot, ok),
        Purpose::Orphaned(orphan) => state.kv.end_orphan(from, to, &pairs, orphan),
        purpose => loading::end_transfer(state, InFlight { id, from, to, pairs, purpose }, ok),
    }
}

/// Lets the transfers in flight for a sequence go on without it: the sequence is about to leave its state. The transfers keep the
/// blocks that they may still read or write, and free the blocks at their end. A sequence without such transfers stays as it is.
pub(crate) fn orphan(state: &mut State, slot: usize) {
    match state.sequences[slot].phase {
        Phase::Loading(_) => loading::orphan(state, slot),
        Phase::SwappingOut(_) | Phase::SwappingIn(_) => swap::orphan(state, slot),
        Phase::Waiting | Phase::Prefill | Phase::Decode | Phase::Swapped(_) => {}
    }
}

/// Gives up every transfer: the worker was lost, and none will be answered. Returns the sequences that were swapped out, swapping or
/// loading, in a fixed order, without any block or queue.
pub(crate) fn lose_all(state: &mut State) -> Vec<usize> {
    let (mut swaps, mut others) = (Vec::new(), Vec::new());
    for transfer in state.kv.transfers.lose() {
        let InFlight { from, to, pairs, purpose, .. } = transfer;
        match purpose {
            Purpose::Orphaned(orphan) => state.kv.end_orphan(from, to, &pairs, orphan),
            Purpose::SwapOut { .. } | Purpose::SwapIn { .. } => swaps.push(purpose),
            purpose => others.push(InFlight { pairs, purpose, ..transfer }),
        }
    }
    let mut slots = swap::lose(state, &swaps);
    slots.extend(loading::lose(state, others));
    slots
}
