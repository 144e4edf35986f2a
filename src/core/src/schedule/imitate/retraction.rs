//! Retraction while a step in flight still runs the victim: [`Preemption::RetractAtOnce`], SGLang's overlap.

use crate::config::Preemption;
use crate::request::sequence::Sequence;
use crate::schedule::scheduler::may_decode;
use crate::schedule::state::State;

/// Returns `true` if blocks run out while a step in flight samples the last token of some request: the blocks of that request are free
/// when the step ends, so no decode runs before, and none is retracted (`update_running_batch`, SGLang 0.5.23).
pub(in crate::schedule) fn puts_off_retraction(state: &mut State, step: u64) -> bool {
    if state.config.preemption != Preemption::RetractAtOnce {
        return false;
    }
    let State { batch, sequences, kv, config, .. } = state;
    let seqs = || batch.running.iter().map(|slot| &sequences[*slot]);
    let is_last = |seq: &Sequence| {
        let samples = u32::from(seq.ahead.samples);
        samples > 0 && seq.ending.is_none() && seq.generated() + samples >= seq.max_tokens
    };
    let is_short = |seq: &&Sequence| seq.planned() == seq.capacity(config.block_size) && may_decode(seq, config, step);
    let needed = seqs().filter(is_short).count() as u32 * kv.entry_blocks();
    let puts_off = needed > kv.usable() && seqs().any(is_last);
    if puts_off {
        kv.evict_until_free(needed);
    }
    puts_off
}
