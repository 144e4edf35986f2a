//! The end of transfers: one path for every purpose.

use crate::digest::Decision;
use crate::state::State;
use crate::transfer_table::{InFlight, Purpose};
use crate::{loading, swap};

/// Ends a transfer, successfully if `ok`. An id that is not in flight is ignored. Returns the slot of a sequence that leaves the core
/// now.
pub(crate) fn end(state: &mut State, id: u64, ok: bool) -> Option<usize> {
    let transfer = state.kv.transfers.end(id)?;
    let decision = if ok { Decision::TransferFinished } else { Decision::TransferFailed };
    let subject = match transfer.purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => state.sequences[slot].id.0,
        _ => 0,
    };
    state.journal.decide(decision, subject, id);
    state.journal.stats.swaps.failed_transfers += u64::from(!ok);
    match transfer.purpose {
        Purpose::SwapOut { slot } | Purpose::SwapIn { slot } => swap::end_transfer(state, slot, ok),
        _ => loading::end_transfer(state, transfer, ok),
    }
}

/// Gives up every transfer: the worker was lost, and none will be answered. Returns the sequences that were swapped out, swapping or
/// loading, in a fixed order, without any block or queue.
pub(crate) fn lose_all(state: &mut State) -> Vec<usize> {
    let in_flight = state.kv.transfers.lose();
    let (swaps, others): (Vec<InFlight>, Vec<InFlight>) =
        in_flight.into_iter().partition(|transfer| transfer.purpose.is_swap());
    let mut slots = swap::lose(state, swaps);
    slots.extend(loading::lose(state, others));
    slots
}
