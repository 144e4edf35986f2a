//! Drafts for speculative decoding: how many a decode may have, and which steps wait for the results that drafts follow.
//!
//! A worker drafts after the tokens that it has, so a decode with drafts is never sent ahead of its own last result, however many steps may
//! be in flight. On one device half of the decodes in one step and half in the next would cost twice the passes; so, while decodes draft,
//! all of them run in one step, and no other step is sent meanwhile. The stages of a pipeline work on different sequences: there each
//! sequence waits for its own result alone, and others fill the stages. A batch too large for drafts runs ahead as without drafts.

use crate::request::sequence::Sequence;
use crate::schedule::state::State;

/// Decodes from which on drafts are off: the batch keeps the device busy without drafts.
const DRAFTS_BELOW: u32 = 16;

/// Returns `true` if the next step waits for the steps in flight, because decodes of these steps may draft in the next. `draft_logits` are
/// the logits that drafts may take.
pub(crate) fn await_results(state: &State, draft_logits: u32) -> bool {
    if state.max_drafts == 0 || state.config.pipeline_stages > 1 {
        return false;
    }
    let (mut n_decodes, mut any_in_step) = (0, false);
    for seq in decodes(state) {
        n_decodes += 1;
        if n_decodes >= DRAFTS_BELOW {
            return false;
        }
        // A draft needs room for the token behind it.
        any_in_step |= seq.is_in_step() && to_come(seq) > 1;
    }
    any_in_step && by_load(state, n_decodes).min(draft_logits).min(tokens(state, n_decodes)) > 0
}

/// Returns the sequences that decode next, after the steps in flight.
pub(crate) fn decodes(state: &State) -> impl Iterator<Item = &Sequence> {
    let running = state.batch.running.iter().map(|slot| &state.sequences[*slot]);
    running.filter(|seq| seq.decodes_next() && seq.ending.is_none() && to_come(seq) > 0)
}

/// Returns the number of tokens that a sequence may generate after the steps in flight.
fn to_come(seq: &Sequence) -> u32 {
    seq.max_tokens.saturating_sub(seq.generated() + u32::from(seq.ahead.samples))
}

/// Returns the number of tokens that each of `n_decodes` may draft: fewer the more decodes run, because drafts pay only while the
/// device is not busy. 15, 7, 4, 3, 2, 1, 1, 1, then none: KsanaLLM's table.
pub(crate) fn by_load(state: &State, n_decodes: u32) -> u32 {
    state.max_drafts.min(DRAFTS_BELOW.saturating_sub(n_decodes) / n_decodes.max(1))
}

/// Returns the number of tokens of a step that drafts may take without cutting a prefill.
pub(crate) fn tokens(state: &State, n_decodes: u32) -> u32 {
    let config = &state.config;
    let prefills = state.waiting.len() + state.batch.running.len() > n_decodes as usize;
    let others = if prefills { config.block_size + config.max_batch_size } else { n_decodes };
    config.max_batch_tokens.saturating_sub(others.max(n_decodes))
}

/// Allocates blocks for a decode's drafts, as far as blocks abound. Returns the number of drafts that fit.
pub(crate) fn reserve(state: &mut State, slot: usize, limit: u32) -> u32 {
    let running = state.batch.len();
    let State { sequences, kv, config, .. } = state;
    let seq = &mut sequences[slot];
    let n = limit.min((seq.max_tokens - seq.generated()).saturating_sub(1));
    let blocks = (seq.planned() + 1 + n).div_ceil(config.block_size);
    let more = blocks.saturating_sub(seq.table.len() as u32);
    if more > 0 && kv.usable() >= (more + running) * kv.entry_blocks() {
        let allocated = kv.grow(seq, more);
        debug_assert!(allocated);
    }
    n.min(seq.capacity(config.block_size) - seq.planned() - 1)
}
