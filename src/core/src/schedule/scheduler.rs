//! One scheduling pass: the content of the next step.
//!
//! Order: decodes, then swapped-out requests, then prefills under way, then the head of the waiting queue. The token budget
//! counts tokens that are run; cached tokens are free. A prefill takes what the decodes leave of the budget (chunked prefill), in whole
//! blocks, and no more than keeps the step within its target time ([`crate::schedule::prefill_budget`]).
//!
//! **Prompts take turns** where the target time cuts them (`scheduler/turns.rs`).
//!
//! **The head can always finish.** A request is admitted only when every block of its current tokens is available, and takes
//! all of them at once; so two prefills never hold halves of the blocks both need. A decode without a free block preempts the
//! victim among the running requests, itself at last, or waits for blocks that transfers are about to free; the rest runs
//! on. With sliding windows the blocks of later chunks are promised instead (`kv/promised.rs`), and a prompt without blocks for its chunk
//! gives its own up. Nothing is admitted while a request that ran before, and is not behind in the order, is swapped out. If nothing at all can run, swapped requests release
//! their blocks, the last first. A request that could not run alone was refused at submission. Prompts that take blocks together
//! ([`crate::config::Chunks::takes_together`]) have theirs promised until the last of them is admitted.
//!
//! With [`Config::prefill_first`] a step runs prompts alone, as long as some can run, and else decodes alone.
//!
//! **Drafts wait for results.** While the load lets decodes draft, no step is sent ahead of the result that the drafts follow (`drafts.rs`).
//!
//! **Work is shared in flight.** A request whose next block a prefill in the batch is about to publish is parked until that block,
//! and all that follow it in both prompts, are published, or the prefill stops; requests behind it may pass. With
//! [`crate::WorkerFacts::in_step_hits`] blocks are published when the step that computes them is made, so that the request can join this step.

mod admitting;
mod turns;

use std::ops::Range;

use crate::config::{Config, PipelineBatches};
use crate::journal::Journal;
use crate::policy::waiting::Waiting;
use crate::request::sequence::{Phase, Sequence};
use crate::schedule::imitate::queue_pass::QueuePasses;
use crate::schedule::planners::Planners;
use crate::schedule::preemption::{grew, preempt_one, preempt_prompt};
use crate::schedule::prefill_budget::{Limit, PrefillBudget};
use crate::schedule::state::State;
use crate::schedule::steps::{Part, Picked, ScoredPart, ValuedPart};
use crate::schedule::{background, drafts, imitate, readers, swap, tails, transfer_end};
use crate::{Dropped, PromptRows, Scored, SeqStart, Step, StepSeq};

/// The maker of steps. Keeps what outlives a pass and is not part of the [`State`].
pub(crate) struct Scheduler {
    /// Step-time controller of prefill chunks.
    pub prefill_budget: PrefillBudget,
    /// The sequences of the last step, in its order.
    pub picked: Picked,
    /// `false` if steps leave out the tokens of prefills.
    pub sends_tokens: bool,
    /// Logits that drafts may take in a step: what the sequences themselves leave.
    draft_logits: u32,
    /// Passes over the waiting queue so far.
    queue_passes: QueuePasses,
    /// Chunks of the step being made that take their blocks together, behind the admissions: slots and tokens.
    pub(super) together: Vec<(usize, u32)>,
    /// `true` if prefill chunks never end inside a block. Off if a step full of decodes could leave less than a block: prefills
    /// would starve.
    aligned: bool,
    /// Slots of the prompts under way, in their order in the step being made.
    prompts: Vec<usize>,
    /// Last step for which several prompts competed, and its number among such steps in a row.
    turn: (u64, u8),
}

impl Scheduler {
    /// Creates the scheduler of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            prefill_budget: PrefillBudget::new(config),
            picked: Picked::default(),
            sends_tokens: true,
            queue_passes: QueuePasses::default(),
            together: Vec::new(),
            draft_logits: config.max_step_logits - config.max_batch_size,
            prompts: Vec::new(),
            turn: (0, 0),
            aligned: config.align_chunks
                && config.max_batch_tokens >= config.block_size.saturating_add(config.max_batch_size),
        }
    }

    /// Fills the step `step.id` with the sequences that run next. Leaves the step empty if none can, which is only while another
    /// step (`alone` is `false` then) or a transfer is in flight.
    pub fn schedule(&mut self, state: &mut State, alone: bool, step: &mut Step) {
        self.picked.clear();
        self.prefill_budget.begin_step(Limit::Off);
        state.kv.tree.begin_step(step.id);
        state.kv.transfers.await_none();
        tails::give_up(state);
        let runs_background_alone = background::begin_step(state);
        // The fewer sequences a failing step runs, the better it shows which one is to blame.
        let awaits_steps = runs_background_alone || state.suspects.is_narrowing();
        if !alone && (awaits_steps || drafts::await_results(state, self.draft_logits)) {
            return;
        }
        let mut plain = is_plain(state);
        if state.config.prefill_first.is_on() && self.run_prompts(state, step) {
            return;
        }
        // Prompts may have taken blocks, here and in each turn.
        plain &= !state.config.prefill_first.is_on() || is_plain(state);
        if !plain && !reserve_decode_blocks(state, alone, step.id) {
            return;
        }
        if !state.kv.tiers.is_empty() && !state.kv.copies_wait() {
            state.kv.write_back(state.batch.len(), &mut state.journal);
        }
        loop {
            while self.begin_in(state) {}
            let mut budget = state.config.max_batch_tokens;
            let leaves_out = !state.batch.leaving.is_empty();
            if self.run_suspects(state, &mut budget, step) {
                return;
            }
            if plain {
                self.run_plain_decodes(state, &mut budget, step);
            } else {
                self.run_decodes(state, &mut budget, step);
            }
            if !step.seqs.is_empty() {
                if state.config.prefill_first.is_on() {
                    state.reserve.decode_step();
                    return;
                }
                if self.prefill_budget.awaits_decodes() && !leaves_out {
                    return;
                }
                self.prefill_budget.begin_step(Limit::WithDecodes);
            } else if !state.config.prefill_first.is_on() {
                self.prefill_budget.begin_step(state.background.limit());
            }
            let gave_way = self.run_prefills_and_admit(state, &mut budget, step);
            // Decodes that waited for blocks may have them now, and those left out run if nothing else does.
            let may_run = step.seqs.is_empty() && (gave_way || alone && (leaves_out || state.background.release()));
            plain &= !may_run || is_plain(state);
            if may_run && (plain || reserve_decode_blocks(state, alone, step.id)) {
                continue;
            }
            if !step.seqs.is_empty() || !alone || state.kv.transfers.await_any() || !swap::release_last(state) {
                return;
            }
        }
    }

    /// Returns `true` if a prompt under way gave its blocks up.
    pub(super) fn run_prefills_and_admit(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) -> bool {
        if state.config.prefill_first.finds_chunks() && !state.suspects.is_narrowing() {
            state.publish_chunks();
        }
        state.journal.stats.requests.hopeless += state.waiting.give_up(state.kv.transfers.now_ns);
        let State { batch, sequences, reserve, .. } = state;
        let admits = reserve.begin_pass(batch.running.iter().map(|slot| &sequences[*slot]));
        self.queue_passes.begin(state, admits);
        let n_first = self.list_prompts(state, step);
        let whole = *budget;
        let mut gave_way = self.run_prefills(state, 0..n_first, budget, step);
        state.batch.leaving.clear();
        if admits {
            self.admit_waiting(state, budget, step);
        }
        if n_first < self.prompts.len() {
            gave_way |= self.run_prefills(state, n_first..self.prompts.len(), budget, step);
            if self.n_parts(step) == 0 {
                // A prompt that found no block ended the pass.
                *budget = whole;
                gave_way |= self.run_prefills(state, 0..self.prompts.len(), budget, step);
            }
        }
        self.run_together(state, step);
        gave_way
    }

    /// Begins to bring the first swapped sequence back, or takes the blocks that it lacks from a background request. Returns `false` if neither can be.
    pub(super) fn begin_in(&self, state: &mut State) -> bool {
        swap::begin_in(state) || background::awaited_by_swapped(state).is_some_and(|slot| self.take_blocks(state, slot))
    }

    fn run_decodes(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) {
        let (mut limit, mut spare) = (0, 0);
        if state.config.max_drafts > 0 {
            let decodes = |slot: &&usize| can_decode(&state.sequences[**slot], &state.config, step.id);
            // The stages of a pipeline have parts of the load.
            let n_decodes = match state.config.pipeline_stages {
                1 => state.batch.running.iter().filter(decodes).count(),
                _ => drafts::decodes(state).count(),
            } as u32;
            limit = drafts::by_load(state, n_decodes);
            spare = self.draft_logits.min(drafts::tokens(state, n_decodes));
        }
        // Of a pipeline, whose other stages have other sequences to run.
        let waits = state.config.pipeline_stages > 1 && limit.min(spare) > 0;
        let share = decode_share(state);
        for at in 0..state.batch.running.len() {
            let slot = state.batch.running[at];
            if step.seqs.len() == share {
                return;
            }
            let seq = &state.sequences[slot];
            let is_left_out = state.batch.leaving.contains(&slot) || state.background.holds(seq);
            if can_decode(seq, &state.config, step.id) && !(waits && seq.is_in_step()) && !is_left_out {
                let limit = if seq.is_in_step() { 0 } else { limit.min(spare) };
                let n_drafts = if limit > 0 { drafts::reserve(state, slot, limit) } else { 0 };
                spare -= n_drafts;
                *budget -= 1 + n_drafts;
                self.run(state, slot, 1, n_drafts, step);
            }
        }
    }

    /// Runs the decodes of a batch for which [`is_plain`] is `true`. Each takes its block on the way, which equals taking all blocks
    /// first, and reads each sequence once.
    fn run_plain_decodes(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) {
        let block_size = state.config.block_size;
        let is_bare = state.kv.groups.n() == 0 && !state.planners.is_used;
        for at in 0..state.batch.running.len() {
            let slot = state.batch.running[at];
            state.request_to_decode(at);
            let seq = &mut state.sequences[slot];
            if !seq.decodes_next() || !seq.may_run(step.id, 1) {
                continue;
            }
            if seq.planned() == seq.capacity(block_size) {
                let allocated = state.kv.grow(seq, 1);
                assert!(allocated, "a block is usable for each sequence");
            }
            *budget -= 1;
            if is_bare && seq.on_worker {
                self.add_decode(seq, slot, &mut state.journal, step);
            } else {
                self.run(state, slot, 1, 0, step);
            }
        }
    }

    /// Adds a decode that the worker knows to the step, without layer groups, drafts and scores. Equals [`Self::run`] for such a
    /// decode.
    #[inline(always)]
    fn add_decode(&mut self, seq: &mut Sequence, slot: usize, journal: &mut Journal, step: &mut Step) {
        let (planned, table_sent) = (seq.planned(), seq.mirror.table_sent);
        debug_assert!(seq.unplanned() == 1 && planned >= seq.prompt_tokens, "a decode runs one token, and samples");
        let n_blocks = seq.table.len() as u32 - table_sent;
        let part = StepSeq {
            request: seq.id,
            slot: seq.mirror.slot().expect("a sequence in the batch has a slot on the worker"),
            start: false,
            computed: planned,
            n_tokens: 1,
            n_history: 0,
            tokens_at: step.tokens.len() as u32,
            // Published blocks are full.
            kv_write_from: planned,
            table_keep: table_sent,
            blocks_at: step.blocks.len() as u32,
            n_blocks,
            sample: true,
            n_generated: seq.generated() + u32::from(seq.ahead.samples),
            n_drafts: 0,
            input_from_last: seq.awaits_token(),
        };
        step.tokens.push(seq.last_token);
        if n_blocks > 0 {
            let new = seq.table[table_sent as usize..].iter().map(|block| block.index);
            journal.run(&part, new.clone());
            step.blocks.extend(new);
            seq.mirror.table_sent = seq.table.len() as u32;
        } else {
            journal.run(&part, std::iter::empty());
        }
        step.seqs.push(part);
        seq.begin_step(step.id, 1, true, false);
        self.picked.parts.push(Part::new(slot, &part, 0, true));
    }

    /// Runs the next group of suspects, as far as it can run. Returns `false` if there are no suspects, or none can run now: then the
    /// others run, and make room in the end.
    fn run_suspects(&mut self, state: &mut State, budget: &mut u32, step: &mut Step) -> bool {
        if !state.suspects.is_narrowing() {
            return false;
        }
        let State { batch, sequences, reserve, .. } = state;
        reserve.begin_pass(batch.running.iter().map(|slot| &sequences[*slot]));
        let group = state.suspects.take_group(&state.sequences);
        for slot in group.iter().copied() {
            let seq = &state.sequences[slot];
            if can_decode(seq, &state.config, step.id) && seq.is_decode() && *budget > 0 {
                *budget -= 1;
                self.run(state, slot, 1, 0, step);
            }
        }
        for slot in group.iter().copied() {
            if *budget == 0 {
                break;
            }
            if matches!(state.sequences[slot].phase, Phase::Waiting) && !self.admit_suspect(state, slot, *budget, step)
            {
                continue;
            }
            if state.sequences[slot].is_prefill() {
                let chunk = self.chunk(state, slot, *budget, step.seqs.is_empty());
                if chunk > 0 && self.run_chunk(state, slot, chunk, step) {
                    *budget -= chunk;
                }
            }
        }
        state.suspects.put_back(group);
        !step.seqs.is_empty()
    }

    /// Runs chunks of some of the listed prompts. Returns `true` if one gave its blocks up.
    fn run_prefills(&mut self, state: &mut State, listed: Range<usize>, budget: &mut u32, step: &mut Step) -> bool {
        let mut gave_way = false;
        for at in listed {
            let slot = self.prompts[at];
            // Not if an admission took its seat.
            if !runs_prompt(state, slot) {
                continue;
            }
            let chunk = self.chunk(state, slot, *budget, self.n_parts(step) == 0);
            if chunk > 0 && self.run_chunk(state, slot, chunk, step) {
                *budget -= chunk;
                continue;
            }
            let gives_way = chunk > 0 && gives_way(state, slot, step);
            gave_way |= gives_way;
            if !gives_way || self.n_parts(step) > 0 {
                // Prefills behind this one wait too, so that an earlier prefill is never overtaken by smaller ones.
                *budget = 0;
                break;
            }
        }
        gave_way
    }

    /// Returns the number of tokens that a sequence runs within `budget`: all that remain, or whole blocks. Less than a block
    /// only if the step is otherwise empty, for then no later step would offer more.
    fn chunk(&self, state: &State, slot: usize, budget: u32, step_is_empty: bool) -> u32 {
        let (seq, config) = (&state.sequences[slot], &state.config);
        let planned = chunk_begin(state, slot);
        let unplanned = match &seq.cold.copied {
            Some(_) if state.kv.reuses() => seq.next_uncopied(),
            _ => seq.unplanned().min(seq.before_tail(config.block_size)),
        };
        let budget = budget.min(self.prefill_budget.left(planned));
        if unplanned <= budget {
            return unplanned;
        }
        if !config.align_chunks {
            return budget;
        }
        let end = (planned + budget) / config.block_size * config.block_size;
        match end.saturating_sub(planned) {
            0 if step_is_empty || !self.aligns(planned) => budget,
            aligned => aligned,
        }
    }

    /// Returns `true` if a chunk of the step being made from `position` on ends with a block, unless it is the first or ends a prompt. Where the target
    /// time leaves less than a block, it ends inside one.
    fn aligns(&self, position: u32) -> bool {
        self.aligned && !self.prefill_budget.is_fine(position)
    }

    /// Returns the number of sequences in the step, with those whose chunks take their blocks later.
    fn n_parts(&self, step: &Step) -> usize {
        step.seqs.len() + self.together.len()
    }

    /// Adds the next `n_tokens` of a prompt to the step, with their blocks: now, or behind the admissions. Returns `false`, and changes
    /// nothing, if too few blocks are usable.
    fn run_chunk(&mut self, state: &mut State, slot: usize, n_tokens: u32, step: &mut Step) -> bool {
        let is_together = imitate::takes_together(state);
        let begin = chunk_begin(state, slot);
        let State { sequences, kv, reserve, .. } = state;
        let seq = &mut sequences[slot];
        if !is_together && !kv.take_chunk(seq, seq.planned() + n_tokens) {
            return false;
        }
        self.prefill_budget.take(begin, n_tokens);
        let n_copied = if kv.reuses() { seq.next_copied() } else { 0 };
        if n_tokens + n_copied == seq.unplanned() {
            reserve.begin_output(seq);
        }
        match is_together {
            true => self.together.push((slot, n_tokens)),
            false => self.run_taken(state, slot, n_tokens, step),
        }
        true
    }

    /// Adds the next `n_tokens` of a prompt, which have their blocks, to the step.
    pub(super) fn run_taken(&mut self, state: &mut State, slot: usize, n_tokens: u32, step: &mut Step) {
        let narrows = state.suspects.is_narrowing();
        state.sequences[slot].chunk_step = step.id;
        self.run(state, slot, n_tokens, 0, step);
        if !narrows {
            state.publish_ahead(slot);
        }
    }

    /// Adds the next `n_tokens` of a sequence, and room for drafts, to the step.
    fn run(&mut self, state: &mut State, slot: usize, n_tokens: u32, n_drafts: u32, step: &mut Step) {
        let State { sequences, kv, journal, waiting, config, planners, background, .. } = state;
        let seq = &mut sequences[slot];
        let decodes = seq.decodes_next();
        let n_copied = if kv.reuses() { seq.next_copied() } else { 0 };
        seq.skip(n_copied);
        let (planned, awaits_token) = (seq.planned(), seq.awaits_token());
        debug_assert!(n_tokens > 0 && n_tokens <= seq.unplanned());
        let start = !seq.on_worker;
        let (n_history, n_ahead) = match start {
            true => begin(seq, n_tokens, config, step),
            false => (if sends_history(seq, config) { n_copied } else { 0 }, 0),
        };
        let tokens_at = step.tokens.len() as u32;
        let sample = n_tokens == seq.unplanned();
        if n_history + n_ahead == 0 && n_tokens == 1 && sample {
            // All decodes: spares the look into their long vectors. A token that is not known yet is replaced by the worker.
            step.tokens.push(seq.last_token);
        } else if self.sends_tokens {
            let range = (planned - n_history) as usize..(planned + n_tokens + n_ahead) as usize;
            seq.settle();
            step.tokens.extend_from_slice(&seq.tokens()[range]);
        }
        let (blocks_at, table_sent) = (step.blocks.len() as u32, seq.mirror.table_sent);
        debug_assert!(seq.table.iter().all(|block| kv.tree.pool().is_current(*block)));
        step.blocks.extend(seq.table[table_sent as usize..].iter().map(|block| block.index));
        if kv.groups.n() > 0 {
            add_groups(seq, start, step);
        }
        if planners.is_used {
            self.ask_for_scores(planners, seq, n_tokens, step);
        }
        if !decodes {
            self.ask_for_values(seq, n_tokens, step);
        }
        let in_background = background.has(seq);
        charge(waiting, seq, n_tokens, in_background);
        let part = StepSeq {
            request: seq.id,
            slot: seq.mirror.slot().expect("a sequence in the batch has a slot on the worker"),
            start,
            computed: planned,
            n_tokens,
            n_history,
            tokens_at,
            kv_write_from: planned.max(seq.published * config.block_size),
            table_keep: table_sent,
            blocks_at,
            n_blocks: seq.table.len() as u32 - table_sent,
            sample,
            n_generated: seq.generated() + u32::from(seq.ahead.samples),
            n_drafts,
            input_from_last: awaits_token,
        };
        journal.run(&part, step.blocks[blocks_at as usize..].iter().copied());
        step.seqs.push(part);
        seq.mirror.table_sent = seq.table.len() as u32;
        seq.begin_step(step.id, n_tokens, sample, n_drafts > 0);
        self.picked.parts.push(Part::new(slot, &part, n_copied, decodes));
    }

    /// Asks for the scores that the planner of a sequence needs, before the sequence is added to the step.
    fn ask_for_scores(&mut self, planners: &Planners, seq: &mut Sequence, n_tokens: u32, step: &mut Step) {
        let (at, rows) = (step.seqs.len() as u32, planners.begin_step(seq, n_tokens));
        if rows > 0 {
            step.scored.push(Scored { seq: at, rows });
            step.score_kind = planners.scorer.needs().kind;
            step.score_lists = if planners.by_group { planners.n_lists() as u32 } else { 0 };
            self.picked.scored.push(ScoredPart { part: at, n_scores: planners.n_scores(seq, n_tokens), rows });
        }
    }

    /// Asks for the log probabilities of prompt tokens behind the next `n_tokens` that were not reported yet, before the sequence is added to the step.
    fn ask_for_values(&mut self, seq: &mut Sequence, n_tokens: u32, step: &mut Step) {
        let (Some(n_top), Some(unvalued)) = (seq.cold.valued.n_top, seq.unvalued_from()) else { return };
        let (at, begin) = (step.seqs.len() as u32, seq.planned());
        let (from, end) = (begin.max(unvalued), (begin + n_tokens).min(seq.prompt_tokens - 1));
        if from < end {
            seq.settle();
            let (rows, next) = (end - from, seq.tokens()[end as usize]);
            step.prompt_rows.push(PromptRows { seq: at, first: from - begin, rows, next, n_top });
            self.picked.valued.push(ValuedPart { part: at, from, rows });
        }
    }
}

/// Adds what a worker gets once of a sequence that runs `n_tokens` tokens first. Returns the number of tokens that the step sends before
/// these, and behind.
fn begin(seq: &mut Sequence, n_tokens: u32, config: &Config, step: &mut Step) -> (u32, u32) {
    seq.on_worker = true;
    seq.mirror.table_sent = 0;
    let (planned, all) = (seq.planned(), config.worker.all_tokens);
    let n_ahead = if all { seq.unplanned() - n_tokens } else { 0 };
    step.starts.push(SeqStart { sampling: seq.cold.sampling.clone(), n_prompt: seq.prompt_tokens, n_ahead });
    (if sends_history(seq, config) { planned } else { 0 }, n_ahead)
}

/// Returns `true` if the worker gets the tokens of a sequence that it does not run.
fn sends_history(seq: &Sequence, config: &Config) -> bool {
    config.worker.all_tokens || seq.cold.sampling.needs_history() || config.max_drafts > 0
}

/// Charges the tenant of a sequence for the part of the prompt that a step runs: once, preempted or not, and neither for cached tokens nor in the
/// background.
#[inline(always)]
fn charge(waiting: &mut Waiting, seq: &mut Sequence, n_tokens: u32, in_background: bool) {
    let planned = seq.planned();
    let end = (planned + n_tokens).min(seq.prompt_tokens);
    if planned < seq.prompt_tokens && end > seq.cold.history.charged_tokens {
        if !in_background {
            waiting.served(seq.tenant, end - planned.max(seq.cold.history.charged_tokens), 0);
        }
        seq.cold.history.charged_tokens = end;
    }
}

/// Adds the new entries of a sequence's block tables in the layer groups after the first, and the entries dropped since the last step.
fn add_groups(seq: &mut Sequence, start: bool, step: &mut Step) {
    seq.cold.last_step = step.id;
    // There may be hundreds of groups, with tables as long as the first one's.
    debug_assert!(seq.cold.tables.iter().all(|table| table.len() == seq.table.len()));
    let grew = seq.table.len() > seq.mirror.table_sent as usize;
    for table in seq.cold.tables.iter().filter(|_| grew) {
        step.blocks.extend(table[seq.mirror.table_sent as usize..].iter().map(|handle| handle.index));
    }
    if start {
        // The worker gets whole tables, without these entries.
        seq.cold.drops.clear();
    }
    let at = step.seqs.len() as u32;
    step.drops.extend(seq.cold.drops.drain(..).map(|drop| Dropped { seq: at, ..drop }));
}

/// Returns `true` if every decode can take a block and run, whatever the others do: nothing drafts or waits to come back, and blocks
/// abound.
fn is_plain(state: &mut State) -> bool {
    state.victims.clear();
    let config = &state.config;
    config.max_drafts == 0
        && !state.background.is_any()
        && !state.suspects.is_narrowing()
        && config.pipeline_stages == 1
        && state.kv.tiers.is_empty()
        && state.swaps.swapped.is_empty()
        && state.batch.leaving.is_empty()
        && state.kv.usable() >= state.batch.len() * state.kv.entry_blocks()
}

/// Ensures that every decode has a block for the next token, or will have one when transfers end. Returns `false` if a sequence has
/// to be preempted and a step is in flight: the sequences of the step cannot leave, so no other step begins before the end of the
/// step, unless [`crate::Preemption::is_at_once`].
fn reserve_decode_blocks(state: &mut State, alone: bool, step: u64) -> bool {
    state.victims.clear();
    if imitate::puts_off_retraction(state, step) {
        return false;
    }
    while let Some(stalled) = try_reserve_decode_blocks(state, alone, step) {
        // The device does not idle for transfers that may take long: blocks are taken from one of several decodes instead. A swap-out
        // was begun for such a block, and is waited for.
        let all_stall = stalled > 1 && stalled == state.batch.running.len();
        if !all_stall || !alone || readers::freed_by_swaps(state) > 0 {
            return true;
        }
        preempt_one(state, None);
    }
    false
}

/// Takes a block for every decode that needs one. Returns the number of decodes that wait for transfers, or `None` if a sequence has
/// to be preempted and a step is in flight. The last sequence of the batch is never preempted then: what the steps in flight sample for it
/// would be lost, and with the same blocks missing it would begin again for ever.
fn try_reserve_decode_blocks(state: &mut State, alone: bool, step: u64) -> Option<usize> {
    let mut at = 0;
    let mut stalled = 0;
    // Blocks that transfers will free; counted when first needed, and again after a preemption.
    let mut future_free = None;
    while at < state.batch.running.len() {
        let slot = state.batch.running[at];
        let State { sequences, kv, config, background, .. } = &mut *state;
        let seq = &mut sequences[slot];
        let is_full = seq.planned() == seq.capacity(config.block_size);
        let short = is_full && may_decode(seq, config, step) && !background.holds(seq);
        if !short {
            at += 1;
            continue;
        }
        if kv.grow(seq, 1) {
            grew(state, slot);
            at += 1;
            continue;
        }
        let entry_blocks = kv.entry_blocks() as usize;
        let future = future_free.get_or_insert_with(|| {
            readers::await_writes(state, 1);
            readers::future_free(state)
        });
        if (stalled + 1) * entry_blocks <= *future as usize {
            stalled += 1;
            at += 1;
        } else if !alone && (!state.config.preemption.is_at_once() || state.batch.len() == 1) {
            return None;
        } else if state.batch.len() > 1 || !swap::release_last_pinned(state) {
            preempt_one(state, Some(slot));
            // The victim may be one that waits for a transfer.
            (at, stalled, future_free) = (0, 0, None);
        } else {
            // A swapped sequence released its blocks instead.
            state.victims.clear();
        }
    }
    Some(stalled)
}

/// Preempts a prompt without blocks for its next chunk. Returns `false` if the prompt waits instead: for its own step in flight, unless it
/// may leave at once and others run, or for a transfer, if others run or the prompt is alone.
fn gives_way(state: &mut State, slot: usize, step: &Step) -> bool {
    let waits = (!step.seqs.is_empty() || state.batch.len() == 1) && transfer_end::await_any(state);
    let is_kept = !state.config.preemption.is_at_once() || state.batch.len() == 1;
    if waits || (is_kept && state.sequences[slot].is_in_step()) {
        return false;
    }
    preempt_prompt(state, slot);
    true
}

fn can_decode(seq: &Sequence, config: &Config, step: u64) -> bool {
    may_decode(seq, config, step) && seq.planned() < seq.capacity(config.block_size)
}

/// Returns `true` if step `step` may run the sequence as a decode, with or without a block for the token.
pub(super) fn may_decode(seq: &Sequence, config: &Config, step: u64) -> bool {
    seq.decodes_next() && seq.may_run(step, config.pipeline_stages) && !imitate::is_kept_apart(seq, config)
}

/// Returns the number of decodes in one step, at most: the stages of a pipeline work on different sequences, so each step takes an
/// equal share of the decodes.
fn decode_share(state: &State) -> usize {
    let stages = state.config.pipeline_stages;
    if stages == 1 || state.config.worker.pipeline_batches != PipelineBatches::Even {
        return imitate::step_share(&state.config);
    }
    let decodes = |slot: &&usize| state.sequences[**slot].decodes_next();
    state.batch.running.iter().filter(decodes).count().div_ceil(stages as usize)
}

/// Returns `true` if a sequence of the batch may run the next chunk of its prompt.
fn runs_prompt(state: &State, slot: usize) -> bool {
    let seq = &state.sequences[slot];
    let is_left_out = imitate::is_kept_apart(seq, &state.config) || state.batch.leaving.contains(&slot);
    let is_left_out = is_left_out || state.background.holds(seq);
    let runs = seq.is_prefill() && !seq.decodes_next() && seq.ending.is_none() && !is_left_out;
    runs && seq.before_tail(state.config.block_size) > 0
}

/// Returns the position where the next chunk of a prompt begins: behind what is copied.
fn chunk_begin(state: &State, slot: usize) -> u32 {
    let seq = &state.sequences[slot];
    let copies = seq.cold.copied.is_some() && state.kv.reuses();
    seq.planned() + if copies { seq.next_copied() } else { 0 }
}
