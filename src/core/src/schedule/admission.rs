//! Admission: a waiting request finds the cached prefix of its prompt, takes every block needed for the tokens or is promised the rest
//! ([`crate::cache::kv`], `promised`), and enters the batch.

use crate::blocks::hash::BlockHash;
use crate::cache::kv::Kv;
use crate::journal::digest::Decision;
use crate::journal::reasons::Lack;
use crate::request::sequence::{Phase, Sequence, SequenceEvent};
use crate::schedule::readers;
use crate::schedule::state::State;
use crate::schedule::tails;

/// The outcome of an attempt to admit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The request is in the batch.
    Admitted,
    /// The request has its blocks, and transfers from tiers are to fill some first.
    Loads,
    /// Blocks of the prompt are about to be known: another request publishes blocks, this one as the last of them, or a shared tier is
    /// asked for blocks, for this one as the first of them. Requests behind this one may pass.
    Deferred(BlockHash),
    /// There is no room in the step.
    Full,
    /// There are too few blocks.
    NoBlocks,
    /// There is room for all but one more sequence in the batch. Nothing was changed.
    NoSeat,
}

/// Moves a waiting request into the batch, with the prefix hit and every block needed for the tokens, if there is room.
///
/// `fits` says whether the step has room for the first chunk, given where it begins and the tokens from there on. A request without room is not admitted,
/// unless it loads blocks first.
pub(crate) fn admit(state: &mut State, slot: usize, fits: &dyn Fn(u32, u32) -> bool) -> Admission {
    let admission = try_to_admit(state, slot, fits);
    if state.journal.not_admitted.is_some() {
        let lack = match admission {
            Admission::Admitted | Admission::Loads => return admission,
            Admission::Deferred(_) if awaited_block(state, slot).is_some() => Lack::Prefix,
            Admission::Deferred(_) => Lack::Lookup,
            Admission::Full => Lack::Tokens,
            Admission::NoBlocks => Lack::Blocks,
            Admission::NoSeat => Lack::Seat,
        };
        state.journal.note_lack(state.sequences[slot].id, lack);
    }
    admission
}

fn try_to_admit(state: &mut State, slot: usize, fits: &dyn Fn(u32, u32) -> bool) -> Admission {
    let size = state.config.block_size;
    if let Some(last) = awaited_block(state, slot) {
        return Admission::Deferred(last);
    }
    let (has_seat, suits_head) = (state.has_seat(), tails::suits(state, slot));
    // Some blocks for each running sequence are left, so that admission does not cause the next preemption.
    let watermark = state.watermark(state.config.launch_watermark).saturating_mul(state.kv.entry_blocks());
    let State { sequences, kv, journal, reserve, .. } = state;
    let seq = &mut sequences[slot];
    kv.find(seq);
    if let Some(first) = kv.look_up(seq, journal) {
        kv.remember(seq);
        return Admission::Deferred(first);
    }
    let total = seq.n_tokens();
    let hit = kv.hit() as u32;
    let needed = total.div_ceil(size) - hit;
    let usable = kv.usable().saturating_sub(kv.count_idle_found());
    let wanted = kv.blocks_for(hit, 0, needed).saturating_add(watermark);
    let has_room =
        usable >= wanted && reserve.has_room(seq, tokens_of(needed, size), tokens_of(usable / kv.entry_blocks(), size));
    // The last token is run again even if its KV is there, because its logits are not.
    let computed = (hit * size).min(total - 1);
    let head = if has_room && has_seat && suits_head { kv.plan_head(seq) } else { 0 };
    if head > 0 && fits(computed, head as u32 * size) {
        return admit_with_tail(state, slot, head, computed, needed);
    }
    let fits_all = |kv: &Kv| usable >= kv.blocks_for(hit, kv.planned(), needed).saturating_add(watermark);
    let loads = plans_load(kv, seq, has_room, fits_all);
    let needs_budget = !loads && !fits(computed, total - computed);
    if needs_budget || !has_room {
        if !needs_budget && loads && !std::mem::replace(&mut seq.cold.history.prefetched, true) {
            kv.prefetch(&mut state.journal);
        }
        kv.remember(seq);
        if !has_room {
            lack_blocks(state, wanted.saturating_sub(usable));
        }
        return if has_room || needs_budget { Admission::Full } else { Admission::NoBlocks };
    }
    if !has_seat {
        kv.remember(seq);
        return Admission::NoSeat;
    }
    kv.admitted();
    let load = if loads { kv.planned() } else { 0 };
    let at_once = if kv.takes_chunks() { load } else { needed };
    let reuses = kv.reuses() && !loads && !state.suspects.is_narrowing();
    take_blocks(state, slot, at_once, computed, reuses.then(|| needed.saturating_add(watermark)));
    let State { sequences, journal, waiting, .. } = state;
    let seq = &sequences[slot];
    let decision = if loads { Decision::Load } else { Decision::Admit };
    journal.decide(decision, seq.id.0, u64::from(computed));
    waiting.remove(slot);
    if loads {
        return Admission::Loads;
    }
    enter(state, slot)
}

/// Plans the load of a request if it can begin, or be prepared once. What fits chunk by chunk may not fit with all that would be loaded, as `fits` says.
fn plans_load(kv: &mut Kv, seq: &Sequence, has_room: bool, fits: impl Fn(&Kv) -> bool) -> bool {
    let may_load = has_room || (kv.can_prefetch() && !seq.cold.history.prefetched);
    may_load && kv.plan_load(seq) && (!has_room || fits(kv))
}

/// Admits a request whose first `head` planned blocks are computed while the others are loaded.
fn admit_with_tail(state: &mut State, slot: usize, head: usize, computed: u32, needed: u32) -> Admission {
    take_blocks(state, slot, needed, computed, None);
    let State { sequences, kv, journal, waiting, .. } = state;
    let id = sequences[slot].id.0;
    kv.leave_out(head);
    journal.decide(Decision::Load, id, (head as u64) << 32 | u64::from(computed));
    waiting.remove(slot);
    let counts = sequences[slot].cold.history.cached_tokens.is_none();
    let admission = enter(state, slot);
    tails::begin(state, slot, head, counts);
    admission
}

/// Takes note that a request was not admitted for want of so many device blocks, or of room for its output.
fn lack_blocks(state: &mut State, lacking: u32) {
    state.reserve.found_full(state.batch.len());
    if state.has_seat() {
        readers::await_writes(state, lacking.max(1));
    }
}

/// Moves a request with its blocks into the batch.
fn enter(state: &mut State, slot: usize) -> Admission {
    state.sequences[slot].transition(SequenceEvent::Admitted, Phase::Prefill);
    state.begin_shared_work(slot);
    state.count_cached(slot);
    state.enter_batch(slot);
    Admission::Admitted
}

/// Returns the number of tokens that blocks hold.
fn tokens_of(blocks: u32, block_size: u32) -> u64 {
    u64::from(blocks) * u64::from(block_size)
}

/// Gives a sequence its prefix hit and `at_once` entries with private blocks. The rest of its tokens are promised theirs. Plans what
/// is to be copied after the hit, if so many blocks are usable as `reuses` says.
fn take_blocks(state: &mut State, slot: usize, at_once: u32, computed: u32, reuses: Option<u32>) {
    let State { sequences, kv, rehit, config, journal, .. } = state;
    let seq = &mut sequences[slot];
    // The tables are made as long as they will be.
    seq.reserve(config.block_size);
    let is_first = seq.cold.history.admissions == 0;
    kv.hold_found(seq);
    let copied = reuses.map_or(0, |needed| kv.hold_runs(seq, journal.stats.steps + 1, needed));
    if is_first {
        seq.cold.history.copied_tokens = copied;
    }
    let allocated = kv.grow(seq, at_once);
    assert!(allocated, "usable blocks were counted a moment ago");
    kv.promise(seq);
    seq.computed = computed;
    let found = seq.published.saturating_sub(seq.cold.history.shared_at_preemption);
    rehit.observe(found, seq.cold.history.cached_at_preemption);
    (seq.cold.history.shared_at_preemption, seq.cold.history.cached_at_preemption) = (0, 0);
    if copied > 0 {
        kv.plan_copies(seq, journal);
    }
}

/// Returns the last of the blocks of a waiting request that another request is about to publish, if the block after the cached
/// prefix is one of them.
pub(crate) fn awaited_block(state: &State, slot: usize) -> Option<BlockHash> {
    if state.shared_work.is_empty() || !state.config.prefill_first.awaits_prefix() {
        return None;
    }
    if state.sequences[slot].unvalued_from().is_some() {
        // It would compute the block again.
        return None;
    }
    let hashes = &state.sequences[slot].cold.hashes;
    // Counting by hashes is enough: this is no hit yet.
    let at = state.kv.estimate(&state.sequences[slot]);
    if at >= hashes.len() {
        return None;
    }
    let is_background = state.background.has(&state.sequences[slot]);
    let rest = |owner: usize| match &state.sequences[owner] {
        // Nobody who is served waits for what runs behind all others.
        seq if !is_background && seq.is_prefill() && state.background.has(seq) => Default::default(),
        seq => seq.prompt_rest(),
    };
    let owner = state.shared_work.owner(hashes, at, rest)?;
    let (others, _) = state.sequences[owner].prompt_rest();
    // The chained hash of a block names all blocks before it too: equal hashes are a prefix.
    let (mut shared, mut differs) = (at, hashes.len().min(others.len()));
    while shared + 1 < differs {
        let middle = shared.midpoint(differs);
        if hashes[middle] == others[middle] { shared = middle } else { differs = middle }
    }
    Some(hashes[shared])
}
