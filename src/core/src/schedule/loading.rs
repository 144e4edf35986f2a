//! Sequences waiting for part of the prefix to be loaded from tiers.

use std::collections::BTreeSet;

use crate::cache::transfer_table::{BlockPair, InFlight, Orphan, Purpose, TransferEnd};
use crate::names::ids::BlockHandle;
use crate::request::sequence::{Load, Phase, Sequence, SequenceEvent};
use crate::schedule::prefetches;
use crate::schedule::state::State;
use crate::schedule::tails;

/// Begins the planned load of a sequence just admitted with room for all its tokens.
pub(crate) fn begin(state: &mut State, slot: usize) {
    let State { sequences, kv, journal, loading, .. } = state;
    let seq = &mut sequences[slot];
    let load = kv.begin_load(slot, seq, seq.published as usize, journal);
    seq.transition(SequenceEvent::LoadBegan, Phase::Loading(Box::new(load)));
    loading.push(slot);
    state.begin_shared_work(slot);
}

/// Ends a transfer from or to a tier.
pub(crate) fn end_transfer(state: &mut State, transfer: InFlight, end: &TransferEnd) {
    if let Purpose::Load { slot } = transfer.purpose {
        let seq = &mut state.sequences[slot];
        let pairs = transfer.pairs.iter().enumerate();
        let lost: BTreeSet<u32> = pairs.filter(|(at, _)| end.fault(*at).is_some()).map(|(_, pair)| pair.to).collect();
        let (first, load) = match &mut seq.phase {
            Phase::Loading(load) => (seq.published as usize, load.as_mut()),
            _ => seq.cold.tail.as_mut().map(|tail| (tail.first, &mut tail.load)).expect("it has a tail"),
        };
        load.transfers -= 1;
        let is_last = load.transfers == 0;
        let tables = std::iter::once(&seq.table).chain(&seq.cold.tables);
        note_lost(tables, first, load, &lost);
        match (is_last, &seq.phase) {
            (true, Phase::Loading(_)) => end_load(state, slot),
            (true, _) => tails::end(state, slot),
            (false, _) => {}
        }
    }
    state.kv.end_tier_copy(transfer, end, &mut state.journal);
}

/// Takes the data of a loading sequence, without a change of state.
fn take_load(seq: &mut Sequence) -> Box<Load> {
    let Phase::Loading(load) = &mut seq.phase else { unreachable!("{} is loading", seq.id) };
    std::mem::take(load)
}

/// Notes which of the blocks of a load, from the entry `first` of the tables on, did not arrive.
fn note_lost<'a>(
    tables: impl Iterator<Item = &'a Vec<BlockHandle>>,
    first: usize,
    load: &mut Load,
    lost: &BTreeSet<u32>,
) {
    if lost.is_empty() {
        return;
    }
    for (group, table) in tables.enumerate() {
        for (at, block) in table[first..].iter().take(load.filled.len()).enumerate() {
            if lost.contains(&block.index) {
                load.filled.set(at, group, false);
            }
        }
    }
}

/// Returns the number of blocks of `loaded` before the first block that a transfer fills.
fn first_filled(loaded: &[BlockHandle], pairs: &[BlockPair]) -> usize {
    // Pairs come tail first.
    let first = pairs.last().expect("a transfer copies a block").to;
    loaded.iter().position(|loaded| loaded.index == first).expect("the sequence has the block")
}

/// Ends the load of a sequence: the last of its transfers ended, and the sequence joins the batch. The leading blocks that arrived
/// are computed; the rest is recomputed.
fn end_load(state: &mut State, slot: usize) {
    let State { sequences, kv, loading, config, journal, .. } = state;
    let seq = &mut sequences[slot];
    let load = take_load(seq);
    loading.retain(|other| *other != slot);
    let good = kv.end_load(seq, seq.published as usize, &load) as u32;
    if seq.is_prefetch() {
        return prefetches::end_load(state, slot, &load, good);
    }
    journal.stats.loads.exposed_load_us += kv.transfers.now_ns.saturating_sub(load.began_ns) / 1_000;
    seq.transition(SequenceEvent::LoadEnded, Phase::Prefill);
    if good > 0 {
        if seq.cold.history.cached_tokens.is_none() {
            seq.cold.history.loaded_tokens = good * config.block_size;
        }
        // The last token is run again even if its KV is there, because its logits are not.
        seq.computed = ((seq.published + good) * config.block_size).min(seq.n_tokens() - 1);
        kv.drop_empty(seq, &load, good as usize);
    }
    state.publish(slot);
    let State { sequences, kv, .. } = state;
    kv.drop_behind_windows(&mut sequences[slot]);
    state.count_cached(slot);
    state.enter_batch(slot);
}

/// Lets the transfers of a loading sequence continue without the sequence, which is about to release its blocks. The transfers keep
/// the blocks they fill. Leading blocks that arrived are published, if the model has no layer groups.
pub(crate) fn orphan(state: &mut State, slot: usize) {
    let State { sequences, kv, loading, config, .. } = state;
    let seq = &mut sequences[slot];
    let load = take_load(seq);
    let (blocks, mut good) = (load.filled.len(), load.good());
    loading.retain(|other| *other != slot);
    let has_groups = !seq.cold.tables.is_empty();
    let filled: BTreeSet<u32> =
        kv.transfers.of(slot).flat_map(|transfer| &transfer.pairs).map(|pair| pair.to).collect();
    let mut in_groups = kv.orphan_in_groups(seq, blocks, |block| filled.contains(&block));
    let first = seq.published as usize;
    let mut loaded: Vec<BlockHandle> = seq.table.drain(first..first + blocks).collect();
    for pairs in kv.transfers.of(slot).map(|transfer| &transfer.pairs).filter(|_| !has_groups) {
        good = good.min(first_filled(&loaded, pairs));
    }
    kv.transfers.orphan(slot, |pairs| {
        let filled: BTreeSet<u32> = pairs.iter().map(|pair| pair.to).collect();
        let take_filled = |from: &mut Vec<BlockHandle>| {
            from.extract_if(.., |block| filled.contains(&block.index)).collect::<Vec<_>>()
        };
        let blocks = [take_filled(&mut loaded), take_filled(&mut in_groups)].concat();
        Orphan { blocks, ..Orphan::default() }
    });
    loaded.iter().for_each(|block| kv.tree.end_move(*block));
    seq.table.splice(first..first, loaded);
    if good > 0 && !has_groups {
        seq.computed = (first + good) as u32 * config.block_size;
        state.publish(slot);
    }
}

/// Gives up all transfers from and to tiers: the worker was lost. Blocks in tiers stay. Returns the sequences that were loading, in a
/// fixed order, without any block or queue.
pub(crate) fn lose(state: &mut State, in_flight: Vec<InFlight>) -> Vec<usize> {
    in_flight.into_iter().for_each(|transfer| state.kv.lose_tier_copy(transfer));
    state.tails.clear();
    let mut slots = std::mem::take(&mut state.loading);
    slots.extend(prefetches::loading(state));
    for slot in &slots {
        state.end_shared_work(*slot);
        state.release(*slot);
    }
    slots
}
