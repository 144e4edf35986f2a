//! Prefetches: requests that bring what is cached of their prompt to the device, compute nothing, and end.
//!
//! A scheduling pass looks at prefetches behind all other requests, in the order of arrival. A prefetch takes a block only if the waiting
//! requests and the next blocks of the running ones leave it, and never one that is used or above the default priority; it has no seat in the
//! batch, is charged to no tenant, and preempts nobody. It loads the blocks that a request with its prompt would load, as far as they fit, and
//! waits until one does, unless no other request is there to make room. It waits, too, for an answer about a shared tier, and for blocks that
//! another request is about to publish.
//!
//! One tenant has [`TENANT_MAX`] prefetches at a time, and loads a [`SHARE`]th of the device at most. What has arrived is cached as any other
//! block, as just used, with the retention hints of the prefetch.

use crate::blocks::hash::BlockHash;
use crate::journal::digest::Decision;
use crate::request::Refusal;
use crate::request::sequence::{Load, Phase, SequenceEvent};
use crate::schedule::admission::awaited_block;
use crate::schedule::prefetch_queue::Prefetch;
use crate::schedule::state::State;

/// Prefetches of one tenant, at most.
const TENANT_MAX: u32 = 8;
/// Prefetches of all tenants, at most.
const ALL_MAX: u32 = 64;
/// Part of the device that the loads of a tenant's prefetches fill, at most.
const SHARE: u32 = 4;
/// Blocks left to each running request, at least: a load takes less time than the tokens of one.
const LEFT_TO_RUNNING: f64 = 2.0;

/// Returns the reason to refuse another prefetch of a tenant, if there is one.
pub(crate) fn refusal(state: &State, tenant: u64) -> Option<Refusal> {
    let of_tenant = state.prefetches.slots().filter(|slot| state.sequences[*slot].tenant == tenant).count() as u32;
    let limit = if of_tenant >= TENANT_MAX { TENANT_MAX } else { ALL_MAX };
    let is_full = of_tenant >= TENANT_MAX || state.prefetches.len() as u32 >= ALL_MAX;
    is_full.then_some(Refusal::PrefetchesFull { limit })
}

/// Returns the slots of the prefetches that load.
pub(crate) fn loading(state: &State) -> Vec<usize> {
    let loads = |slot: &usize| matches!(state.sequences[*slot].phase, Phase::Loading(_));
    state.prefetches.slots().filter(loads).collect()
}

/// Begins the loads for which there is room, and notes the prefetches that have nothing to load.
pub(crate) fn advance(state: &mut State) {
    for at in 0..state.prefetches.len() {
        // A step in flight may still write what a load would.
        if state.kv.copies_wait() {
            return;
        }
        let Prefetch { slot, awaits, is_done } = *state.prefetches.get_mut(at);
        let is_answered = awaits.is_none_or(|first| !state.kv.lookups.is_awaited(first));
        let waits = matches!(state.sequences[slot].phase, Phase::Waiting);
        if waits && is_answered && !is_done && awaited_block(state, slot).is_none() {
            let awaits = begin(state, slot);
            state.prefetches.get_mut(at).awaits = awaits;
        }
    }
}

/// Begins the load of a prefetch, or ends it if there is nothing to load. Returns the first block of a look-up to wait for.
fn begin(state: &mut State, slot: usize) -> Option<BlockHash> {
    let (spare, share) = (spare(state), share(state, slot));
    let entry_blocks = state.kv.entry_blocks();
    let is_alone = state.prefetches.len() == state.sequences.len() && loading(state).is_empty();
    if spare.min(share) < entry_blocks && !is_alone {
        return None;
    }
    let State { sequences, kv, journal, .. } = state;
    let seq = &mut sequences[slot];
    kv.find(seq);
    if let Some(first) = kv.look_up(seq, journal) {
        return Some(first);
    }
    let room = spare.saturating_sub(kv.count_idle_found().saturating_sub(kv.count_idle_above_found())).min(share);
    let lacks_room = room < entry_blocks && kv.plan_prefetch(seq, u32::MAX);
    if lacks_room && !is_alone {
        return None;
    }
    let loads = kv.plan_prefetch(seq, room);
    // The request that follows counts the hits.
    seq.cold.history.admissions = 1;
    kv.hold_found(seq);
    if !loads {
        end(state, slot);
        return None;
    }
    let allocated = kv.grow(seq, kv.planned());
    assert!(allocated, "usable blocks were counted a moment ago");
    seq.computed = seq.published * state.config.block_size;
    journal.decide(Decision::Load, seq.id.0, u64::from(seq.computed));
    let load = kv.begin_load(slot, seq, seq.published as usize, journal);
    seq.transition(SequenceEvent::LoadBegan, Phase::Loading(Box::new(load)));
    state.begin_shared_work(slot);
    None
}

/// Ends the load of a prefetch whose transfers ended: its `good` leading blocks arrived, and are published.
pub(crate) fn end_load(state: &mut State, slot: usize, load: &Load, good: u32) {
    let State { sequences, kv, config, .. } = state;
    let seq = &mut sequences[slot];
    let (before, size) = (seq.published, config.block_size);
    seq.computed = (before + good) * size;
    kv.drop_empty(seq, load, good as usize);
    state.publish(slot);
    state.end_shared_work(slot);
    let seq = &mut state.sequences[slot];
    seq.cold.history.loaded_tokens = (seq.published - before) * size;
    state.journal.stats.tokens.prefetched_tokens += u64::from(seq.cold.history.loaded_tokens);
    end(state, slot);
    state.sequences[slot].transition(SequenceEvent::LoadEnded, Phase::Waiting);
}

/// Lets a prefetch go from its blocks, which stay on the device. Its end is to be reported.
fn end(state: &mut State, slot: usize) {
    let State { sequences, kv, prefetches, config, .. } = state;
    let seq = &mut sequences[slot];
    seq.cold.history.cached_tokens = Some(seq.published * config.block_size);
    kv.pin(seq);
    kv.release(seq);
    seq.computed = 0;
    prefetches.note_done(slot);
}

/// Returns the blocks that nobody wants who is served, of those that are free, or idle and not above the default priority.
fn spare(state: &State) -> u32 {
    let State { kv, config, waiting, .. } = state;
    if state.is_under_memory_pressure() {
        return 0;
    }
    let of_running = state.watermark(config.launch_watermark.max(LEFT_TO_RUNNING));
    let of_waiting = waiting.tokens().div_ceil(config.block_size.into());
    let wanted = of_waiting.saturating_add(of_running.into()).saturating_mul(kv.entry_blocks().into());
    let usable = kv.usable().saturating_sub(kv.n_idle_above());
    usable.saturating_sub(u32::try_from(wanted).unwrap_or(u32::MAX))
}

/// Returns the blocks that the tenant of a prefetch may load alongside those being loaded.
fn share(state: &State, slot: usize) -> u32 {
    let tenant = state.sequences[slot].tenant;
    let all = (state.config.pool_blocks() / SHARE).max(state.kv.entry_blocks());
    let entries = |slot: usize| match &state.sequences[slot] {
        seq if seq.tenant != tenant => 0,
        seq => seq.phase.loaded_entries() as u32,
    };
    all.saturating_sub(state.prefetches.slots().map(entries).sum::<u32>().saturating_mul(state.kv.entry_blocks()))
}
