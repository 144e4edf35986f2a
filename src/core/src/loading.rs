//! Sequences waiting for part of the prefix to be loaded from tiers.

use crate::sequence::{Load, Phase, SequenceEvent};
use crate::state::State;
use crate::transfer_table::{InFlight, Purpose};

/// Begins the planned load of a sequence that was just admitted with room for all its tokens.
pub(crate) fn begin(state: &mut State, slot: usize) {
    let State { sequences, kv, journal, loading, .. } = state;
    let seq = &mut sequences[slot];
    let load = kv.begin_load(slot, seq, journal);
    seq.transition(SequenceEvent::LoadBegan, Phase::Loading(load));
    loading.push(slot);
    state.begin_shared_work(slot);
}

/// Ends a transfer from or to a tier. Returns the slot of a sequence that leaves the core now.
pub(crate) fn end_transfer(state: &mut State, transfer: InFlight, ok: bool) -> Option<usize> {
    let loaded = if let Purpose::Load { slot } = transfer.purpose { Some(slot) } else { None };
    state.kv.end_tier_copy(transfer, ok, &mut state.journal);
    end_load(state, loaded?, ok)
}

/// Ends one of the transfers of a loading sequence. After the last one the sequence joins the batch, or leaves the core: then returns
/// its slot.
fn end_load(state: &mut State, slot: usize, ok: bool) -> Option<usize> {
    let State { sequences, kv, loading, config, .. } = state;
    let seq = &mut sequences[slot];
    let Phase::Loading(load) = &mut seq.phase else { unreachable!("a transfer for {} was in flight", seq.id) };
    load.transfers -= 1;
    load.failed |= !ok;
    if load.transfers > 0 {
        return None;
    }
    let Load { blocks, failed, .. } = std::mem::take(load);
    loading.retain(|other| *other != slot);
    let first = seq.published;
    for block in &seq.table[first as usize..(first + blocks) as usize] {
        kv.tree.end_move(*block);
    }
    if seq.ending.is_some() {
        return Some(slot);
    }
    seq.transition(SequenceEvent::LoadEnded, Phase::Prefill);
    if !failed {
        // The last token is run again even if its KV is there, because its logits are not.
        seq.computed = ((first + blocks) * config.block_size).min(seq.tokens.len() as u32 - 1);
    }
    state.publish(slot);
    state.count_cached(slot);
    state.enter_batch(slot);
    None
}

/// Gives up all transfers from and to tiers: the worker was lost. Blocks in tiers stay. Returns the sequences that were loading, in a
/// fixed order, without any block or queue.
pub(crate) fn lose(state: &mut State, in_flight: Vec<InFlight>) -> Vec<usize> {
    in_flight.into_iter().for_each(|transfer| state.kv.lose_tier_copy(transfer));
    let slots = std::mem::take(&mut state.loading);
    for slot in &slots {
        state.end_shared_work(*slot);
        state.release(*slot);
    }
    slots
}
