//! Heads and tails: the beginning of a prefix is computed while the rest is loaded.
//!
//! A load takes the device's time for nothing, if nobody else has a prompt to compute. The first blocks of the prefix are
//! computed meanwhile, where the learned times say that all blocks are there sooner then ([`crate::cache::links::Links::head`]). Such a sequence is in
//! the batch, and runs its prompt up to the [`Tail`]. It goes on behind the tail once that has arrived, or computes what has not. (Jin et al., *Compute or load
//! KV cache? Why not both?*, 2024.)

use crate::request::sequence::Tail;
use crate::schedule::preemption::preempt_prompt;
use crate::schedule::state::State;

/// Returns `true` if the beginning of a waiting request's prefix may be computed while the rest is loaded: nobody else has a prompt, and no rule
/// of the sequence or the configuration says where a prompt begins, or what is kept of it.
pub(crate) fn suits(state: &State, slot: usize) -> bool {
    let State { sequences, batch, waiting, kv, config, .. } = state;
    let seq = &sequences[slot];
    let is_plain = !kv.tiers.is_empty() && config.reserve_prompts && !config.prefill_first.is_on();
    let is_plain = is_plain && config.pipeline_stages == 1;
    let is_plain = is_plain && kv.groups.n() == 0 && !kv.reuses() && !state.planners.is_used;
    let is_alone = waiting.len() == 1 && state.loading.is_empty() && state.tails.is_empty();
    let is_free = !state.suspects.is_narrowing() && seq.unvalued_from().is_none() && !seq.id.is_inner();
    is_plain && is_alone && is_free && batch.running.iter().all(|slot| sequences[*slot].decodes_next())
}

/// Begins to load the blocks behind the next `head` ones of a sequence that just entered the batch. They count as cached if `counts`.
pub(crate) fn begin(state: &mut State, slot: usize, head: usize, counts: bool) {
    let State { sequences, kv, journal, tails, .. } = state;
    let seq = &mut sequences[slot];
    let first = seq.published as usize + head;
    let load = kv.begin_load(slot, seq, first, journal);
    seq.cold.tail = Some(Box::new(Tail { first, load, good: 0, counts, waits_from_ns: None }));
    tails.push(slot);
    journal.stats.loads.head_blocks += head as u64;
}

/// Ends the load of a tail: the last of its transfers ended.
pub(crate) fn end(state: &mut State, slot: usize) {
    let State { sequences, kv, journal, .. } = state;
    let seq = &mut sequences[slot];
    let tail = seq.cold.tail.as_ref().expect("it loads");
    let (now_ns, good) = (kv.transfers.now_ns, kv.end_load(seq, tail.first, &tail.load));
    let waited_ns = tail.waits_from_ns.map_or(0, |from_ns| now_ns.saturating_sub(from_ns));
    let took_ns = now_ns.saturating_sub(tail.load.began_ns);
    journal.stats.loads.exposed_load_us += waited_ns / 1_000;
    journal.stats.loads.hidden_load_us += took_ns.saturating_sub(waited_ns) / 1_000;
    seq.cold.tail.as_mut().expect("it loads").good = good;
    join(state, slot);
}

/// Lets a sequence whose tokens before the tail are computed go on behind the tail, if that has arrived. Else the sequence waits from now on.
pub(crate) fn join(state: &mut State, slot: usize) {
    let State { sequences, kv, tails, config, journal, .. } = state;
    let seq = &mut sequences[slot];
    let size = config.block_size;
    let Some(tail) = &mut seq.cold.tail else { return };
    if seq.computed < tail.first as u32 * size || seq.ending.is_some() {
        return;
    }
    if tail.load.transfers > 0 {
        tail.waits_from_ns.get_or_insert(kv.transfers.now_ns);
        return;
    }
    let (good, counts) = (tail.good as u32, tail.counts);
    seq.cold.tail = None;
    tails.retain(|other| *other != slot);
    let before = seq.computed.min(seq.prompt_tokens);
    // The last token is run again even if its KV is there, because its logits are not.
    seq.computed = (seq.computed + good * size).min(seq.n_tokens() - 1);
    if counts {
        let cached = seq.computed.min(seq.prompt_tokens) - before;
        seq.cold.history.loaded_tokens = good * size;
        seq.cold.history.cached_tokens = seq.cold.history.cached_tokens.map(|tokens| tokens + cached);
        journal.stats.tokens.cached_tokens += u64::from(cached);
    }
    state.publish(slot);
}

/// Lets sequences that waited for their tails for long enough compute them: they give their blocks up, and find what they computed again. A
/// sequence in a step waits for its end.
pub(crate) fn give_up(state: &mut State) {
    let is_overdue = |slot: &usize| {
        let seq = &state.sequences[*slot];
        !seq.is_in_step() && seq.ending.is_none() && state.kv.transfers.of(*slot).any(|transfer| transfer.is_overdue)
    };
    let overdue: Vec<usize> = state.tails.iter().copied().filter(is_overdue).collect();
    overdue.into_iter().for_each(|slot| preempt_prompt(state, slot));
}
