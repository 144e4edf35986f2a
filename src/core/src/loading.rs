//! Sequences waiting for part of the prefix to be loaded from tiers.

use crate::ids::BlockHandle;
use crate::sequence::{Load, Phase, SequenceEvent};
use crate::state::State;
use crate::transfer_table::{BlockPair, InFlight, Orphan, Purpose, TransferEnd};

/// Begins the planned load of a sequence that was just admitted with room for all its tokens.
pub(crate) fn begin(state: &mut State, slot: usize) {
    let State { sequences, kv, journal, loading, .. } = state;
    let seq = &mut sequences[slot];
    let load = kv.begin_load(slot, seq, journal);
    seq.transition(SequenceEvent::LoadBegan, Phase::Loading(load));
    loading.push(slot);
    state.begin_shared_work(slot);
}

/// Ends a transfer from or to a tier.
pub(crate) fn end_transfer(state: &mut State, transfer: InFlight, end: &TransferEnd) {
    if let Purpose::Load { slot } = transfer.purpose {
        let State { sequences, .. } = state;
        let seq = &mut sequences[slot];
        let Phase::Loading(load) = &mut seq.phase else { unreachable!("a transfer for {} was in flight", seq.id) };
        load.transfers -= 1;
        // Pairs come tail first: the last that failed is the first block missing.
        let failed = (0..transfer.pairs.len()).rev().find(|pair| end.fault(*pair).is_some());
        if let Some(pair) = failed {
            load.good = load.good.min(place_of(transfer.pairs[pair].to, &seq.table[seq.published as usize..]));
        }
        if load.transfers == 0 {
            end_load(state, slot);
        }
    }
    state.kv.end_tier_copy(transfer, end, &mut state.journal);
}

/// Returns the number of blocks of `loaded` before a block.
fn place_of(block: u32, loaded: &[BlockHandle]) -> u32 {
    loaded.iter().position(|loaded| loaded.index == block).expect("the sequence has the block") as u32
}

/// Returns the number of blocks of `loaded` before the first block that a transfer fills.
fn first_filled(loaded: &[BlockHandle], pairs: &[BlockPair]) -> u32 {
    // Pairs come tail first.
    place_of(pairs.last().expect("a transfer copies a block").to, loaded)
}

/// Ends the load of a sequence: the last of its transfers ended, and the sequence joins the batch. The leading blocks that arrived
/// are computed; the rest is recomputed.
fn end_load(state: &mut State, slot: usize) {
    let State { sequences, kv, loading, config, .. } = state;
    let seq = &mut sequences[slot];
    let Phase::Loading(load) = &mut seq.phase else { unreachable!("{} was loading", seq.id) };
    let Load { blocks, good, .. } = std::mem::take(load);
    loading.retain(|other| *other != slot);
    let first = seq.published;
    for block in &seq.table[first as usize..(first + blocks) as usize] {
        kv.tree.end_move(*block);
    }
    seq.transition(SequenceEvent::LoadEnded, Phase::Prefill);
    if good > 0 {
        // The last token is run again even if its KV is there, because its logits are not.
        seq.computed = ((first + good) * config.block_size).min(seq.n_tokens() - 1);
    }
    state.publish(slot);
    state.count_cached(slot);
    state.enter_batch(slot);
}

/// Lets the transfers of a loading sequence continue without the sequence, which is about to release its blocks. The transfers keep
/// the blocks they fill. Leading blocks that arrived are published.
pub(crate) fn orphan(state: &mut State, slot: usize) {
    let State { sequences, kv, loading, config, .. } = state;
    let seq = &mut sequences[slot];
    let Phase::Loading(load) = &mut seq.phase else { unreachable!("{} is loading", seq.id) };
    let Load { blocks, mut good, .. } = std::mem::take(load);
    loading.retain(|other| *other != slot);
    let first = seq.published as usize;
    let mut loaded: Vec<BlockHandle> = seq.table.drain(first..first + blocks as usize).collect();
    for pairs in kv.transfers.of(slot).map(|transfer| &transfer.pairs) {
        good = good.min(first_filled(&loaded, pairs));
    }
    kv.transfers.orphan(slot, |pairs| {
        let mut pairs = pairs.iter().rev().peekable();
        let is_filled = |block: &BlockHandle| pairs.next_if(|pair| pair.to == block.index).is_some();
        let (filled, rest) = std::mem::take(&mut loaded).into_iter().partition(is_filled);
        loaded = rest;
        Orphan { blocks: filled, ..Orphan::default() }
    });
    loaded.iter().for_each(|block| kv.tree.end_move(*block));
    seq.table.splice(first..first, loaded);
    if good > 0 {
        seq.computed = (first as u32 + good) * config.block_size;
        state.publish(slot);
    }
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
