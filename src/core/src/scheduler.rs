//! One scheduling pass: what runs in the next step.
//!
//! Order: decodes, then what was swapped out, then prefills under way, then the head of the waiting queue. The budget
//! counts tokens that are run; cached ones are free. A prefill takes what the decodes leave (split-fuse), in whole
//! blocks, and no more than keeps the step as short as it should be ([`crate::pace`]).
//!
//! **The head can always finish.** A request is admitted only when every block of the tokens it has now is there, and takes
//! them at once; so two prefills never hold halves of what both need. A decode that finds no block preempts the
//! least dear running request, itself at last, or waits for blocks that are on their way to the host; what is left runs
//! on. Nothing is admitted while a request that ran before is swapped out. If nothing at all can run, swapped requests give
//! up what they hold, the last first. A request that could not run alone was refused at the door.
//!
//! **Work is shared in flight.** A request whose next block a prefill in the batch is about to publish waits for it; those
//! behind it may pass.

use slab::Slab;

use crate::config::{Config, Preemption};
use crate::digest::Digest;
use crate::eviction::Eviction;
use crate::pace::Pace;
use crate::policy::Policy;
use crate::preemption::Rehit;
use crate::sequence::{Sequence, SequenceState};
use crate::stats::Stats;
use crate::step::{Step, StepSeq};
use crate::swap::Swap;
use crate::tiering::Tiering;
use crate::tree::{PrefixTree, Published};
use crate::waiting::Waiting;

/// Waiting requests that one pass looks at and leaves for later because another computes their prefix.
const LATER_MAX: usize = 16;
/// Decodes from which on none is drafted for: the batch keeps the device busy without.
const DRAFTS_BELOW: u32 = 16;

/// Kinds of decisions in the digest. The numbers are part of recordings: never reuse one.
pub(crate) mod decision {
    pub const ACCEPT: u64 = 1;
    pub const REFUSE: u64 = 2;
    pub const ADMIT: u64 = 3;
    pub const PREEMPT: u64 = 4;
    pub const RUN: u64 = 5;
    pub const STEP: u64 = 6;
    pub const FINISH: u64 = 7;
    pub const FLUSH: u64 = 8;
    pub const WORKER_LOST: u64 = 9;
    pub const SWAP_OUT: u64 = 10;
    pub const SWAP_IN: u64 = 11;
    pub const TRANSFER_FINISHED: u64 = 12;
    pub const TRANSFER_FAILED: u64 = 13;
    pub const GIVE_UP: u64 = 14;
    pub const COPY: u64 = 15;
    pub const LOAD: u64 = 16;
    pub const WITHDRAW: u64 = 17;
}

/// The part of the core that decides about steps: the sequences, their order, and the blocks.
pub(crate) struct Scheduler {
    pub block_size: u32,
    pub max_batch_tokens: u32,
    pub max_batch_size: u32,
    pub max_drafts: u32,
    /// Logits that drafts may take in a step: what the sequences themselves leave.
    draft_logits: u32,
    launch_watermark: f64,
    pub swap_in_watermark: f64,
    pub preemption: Preemption,
    pub swap_block_ns: u64,
    pub recompute_token_ns: u64,
    pub tree: PrefixTree,
    /// By slot.
    pub sequences: Slab<Sequence>,
    pub waiting: Waiting,
    /// Slots in the batch, in order of admission.
    pub running: Vec<usize>,
    /// Sequences on the host, and on their way.
    pub swap: Swap,
    /// The prefix cache beyond the device.
    pub tiering: Tiering,
    pub rehit: Rehit,
    pub pace: Pace,
    /// The sequences of the step being made, in its order.
    pub picked: Vec<usize>,
    align_chunks: bool,
    /// Whether steps carry the tokens of prefills.
    pub sends_tokens: bool,
    /// Prefill chunks never end elsewhere. Off if a step full of decodes could leave less than a block: prefills
    /// would starve.
    aligned: bool,
    /// Worker slots that are not taken, and the first that never was. So slots stay below the size of the batch.
    free_worker_slots: Vec<u32>,
    next_worker_slot: u32,
    pub stats: Stats,
    pub digest: Digest,
    pub found: Vec<u32>,
}

/// What became of an attempt to admit a request.
enum Admission {
    Admitted,
    /// It has its blocks, and copies from tiers are to fill some first.
    Loads,
    /// Another request computes what it needs; those behind it may go first.
    Later,
    /// There is no room.
    Full,
}

impl Scheduler {
    pub fn new(config: &Config, policy: Box<dyn Policy>, eviction: Box<dyn Eviction>, tiering: Tiering) -> Self {
        Self {
            tiering,
            block_size: config.block_size,
            max_batch_tokens: config.max_batch_tokens,
            max_batch_size: config.max_batch_size,
            max_drafts: config.max_drafts,
            draft_logits: config.max_step_logits - config.max_batch_size,
            launch_watermark: config.launch_watermark,
            swap_in_watermark: config.swap_in_watermark,
            preemption: config.preemption,
            swap_block_ns: config.swap_block_ns,
            recompute_token_ns: config.recompute_token_ns,
            swap: Swap::new(config.host_blocks),
            rehit: Rehit::default(),
            pace: Pace::new(config.target_step_ns, config.block_size, config.max_batch_tokens),
            tree: PrefixTree::new(config.block_size, config.device_blocks, eviction),
            sequences: Slab::new(),
            waiting: Waiting::new(policy),
            running: Vec::new(),
            picked: Vec::new(),
            align_chunks: config.align_chunks,
            sends_tokens: true,
            aligned: config.align_chunks
                && config.max_batch_tokens >= config.block_size.saturating_add(config.max_batch_size),
            free_worker_slots: Vec::new(),
            next_worker_slot: 0,
            stats: Stats::default(),
            digest: Digest::default(),
            found: Vec::new(),
        }
    }

    /// Fills `step` with what runs next. Leaves it empty if nothing can, which is only while a copy is under way.
    pub fn schedule(&mut self, step: &mut Step) {
        self.picked.clear();
        self.reserve_decode_blocks();
        if self.tiering.is_on() {
            self.write_back();
        }
        loop {
            while self.begin_swap_in() {}
            let mut budget = self.max_batch_tokens;
            self.run_decodes(&mut budget, step);
            if !step.seqs.is_empty() {
                budget = budget.min(self.pace.tokens());
            }
            self.run_prefills(&mut budget, step);
            self.admit_waiting(&mut budget, step);
            if !step.seqs.is_empty() || self.is_moving() || !self.give_up_last_swapped() {
                return;
            }
        }
    }

    /// Sees to it that every decode has a block for its token, or will have when a copy to the host ends.
    fn reserve_decode_blocks(&mut self) {
        let mut at = 0;
        let mut stalled = 0;
        while at < self.running.len() {
            let slot = self.running[at];
            let seq = &mut self.sequences[slot];
            let short = seq.state == SequenceState::Decode && seq.computed == seq.table.len() as u32 * self.block_size;
            if !short || self.tree.allocate(1, &mut seq.table) {
                at += 1;
            } else if stalled < self.swap.future_free() + self.tiering.future_free() {
                stalled += 1;
                at += 1;
            } else if self.running.len() > 1 || !self.give_up_kept_blocks() {
                self.preempt_one();
                // Those before this one moved up if the victim was among them.
                at = self.running.iter().position(|other| *other == slot).unwrap_or(at);
            }
        }
    }

    fn run_decodes(&mut self, budget: &mut u32, step: &mut Step) {
        let (mut limit, mut spare) = (0, 0);
        if self.max_drafts > 0 {
            let n_decodes = self.running.iter().filter(|slot| self.can_decode(**slot)).count() as u32;
            limit = self.drafts_by_load(n_decodes);
            spare = self.draft_logits.min(self.tokens_for_drafts(n_decodes));
        }
        for at in 0..self.running.len() {
            let slot = self.running[at];
            if self.can_decode(slot) {
                let n_drafts = if limit > 0 { self.reserve_drafts(slot, limit.min(spare)) } else { 0 };
                spare -= n_drafts;
                *budget -= 1 + n_drafts;
                self.run(slot, 1, n_drafts, step);
            }
        }
    }

    fn can_decode(&self, slot: usize) -> bool {
        let seq = &self.sequences[slot];
        seq.state == SequenceState::Decode && seq.computed < seq.table.len() as u32 * self.block_size
    }

    /// Tokens each of `n_decodes` may draft: fewer the more there are, because drafts pay only while the device has
    /// nothing better to do. 15, 7, 4, 3, 2, 1, 1, 1, then none: KsanaLLM's table.
    fn drafts_by_load(&self, n_decodes: u32) -> u32 {
        self.max_drafts.min(DRAFTS_BELOW.saturating_sub(n_decodes) / n_decodes.max(1))
    }

    /// Tokens of a step that drafts may take: not those that a prefill would miss.
    fn tokens_for_drafts(&self, n_decodes: u32) -> u32 {
        let prefills = self.waiting.len() + self.running.len() > n_decodes as usize;
        let others = if prefills { self.block_size + self.max_batch_size } else { n_decodes };
        self.max_batch_tokens.saturating_sub(others.max(n_decodes))
    }

    /// Takes blocks for a decode's drafts, as far as blocks abound. Returns how many drafts there is room for.
    fn reserve_drafts(&mut self, slot: usize, limit: u32) -> u32 {
        let usable = self.tree.usable();
        let seq = &mut self.sequences[slot];
        let n = limit.min((seq.max_tokens - seq.generated()).saturating_sub(1));
        let blocks = (seq.computed + 1 + n).div_ceil(self.block_size);
        let more = blocks.saturating_sub(seq.table.len() as u32);
        if more > 0 && usable >= more + self.running.len() as u32 {
            let allocated = self.tree.allocate(more, &mut seq.table);
            debug_assert!(allocated);
        }
        n.min(seq.table.len() as u32 * self.block_size - seq.computed - 1)
    }

    fn run_prefills(&mut self, budget: &mut u32, step: &mut Step) {
        if step.seqs.len() == self.running.len() {
            return;
        }
        for at in 0..self.running.len() {
            let slot = self.running[at];
            if self.sequences[slot].state == SequenceState::Prefill {
                let chunk = self.chunk(slot, *budget, step.seqs.is_empty());
                if chunk == 0 {
                    // Those behind wait too, so that an earlier prefill is never overtaken by smaller ones.
                    *budget = 0;
                    return;
                }
                self.run(slot, chunk, 0, step);
                *budget -= chunk;
            }
        }
    }

    fn admit_waiting(&mut self, budget: &mut u32, step: &mut Step) {
        if self.waiting.is_empty() || self.swap.is_pressed() || self.batched() >= self.max_batch_size {
            return;
        }
        let (sequences, tree, size) = (&self.sequences, &self.tree, self.block_size);
        self.waiting.refresh(&mut |slot| tree.estimate(&sequences[slot].hashes) * size);
        let mut later = 0;
        while *budget > 0 && self.batched() < self.max_batch_size && later < LATER_MAX {
            let Some(slot) = self.waiting.first() else { break };
            match self.admit(slot, *budget, step.seqs.is_empty()) {
                Admission::Admitted => {
                    let chunk = self.chunk(slot, *budget, step.seqs.is_empty());
                    self.run(slot, chunk, 0, step);
                    *budget -= chunk;
                }
                Admission::Later => {
                    self.waiting.defer(slot);
                    later += 1;
                }
                Admission::Loads => self.begin_load(slot),
                Admission::Full => break,
            }
        }
        self.waiting.restore();
    }

    /// Sequences in the batch or about to come back to it.
    pub fn batched(&self) -> u32 {
        (self.running.len() + self.swap.arrivals.len() + self.tiering.loading.len()) as u32
    }

    /// Whether any copy is under way.
    pub fn is_moving(&self) -> bool {
        self.swap.is_moving() || self.tiering.is_moving()
    }

    /// Puts a sequence in its place among the waiting.
    pub fn wait(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        let cached = if self.waiting.needs_refresh() { self.tree.estimate(&seq.hashes) } else { 0 };
        self.waiting.push(slot, &seq.view(cached * self.block_size));
    }

    /// Takes a sequence out of the batch. It leaves its place on the worker to the next one.
    pub fn leave_batch(&mut self, slot: usize) {
        self.running.retain(|other| *other != slot);
        self.free_worker_slot(slot);
    }

    /// A sequence that leaves the batch leaves its place on the worker to the next one.
    pub fn free_worker_slot(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        seq.on_worker = false;
        self.free_worker_slots.extend(seq.worker_slot.take());
    }

    /// Puts a sequence that has its blocks into the batch.
    pub fn enter_batch(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        seq.worker_slot = self.free_worker_slots.pop().or_else(|| {
            self.next_worker_slot += 1;
            Some(self.next_worker_slot - 1)
        });
        debug_assert!(self.next_worker_slot <= self.max_batch_size, "as many slots as sequences in the batch");
        seq.generated_at_entry = seq.generated();
        seq.reserve(self.block_size);
        self.running.push(slot);
    }

    /// How many of its tokens a sequence runs within `budget`: all that remain, or whole blocks. Less than a block
    /// only if the step is otherwise empty, for then no later step would offer more.
    fn chunk(&self, slot: usize, budget: u32, step_is_empty: bool) -> u32 {
        let seq = &self.sequences[slot];
        if seq.remaining() <= budget {
            return seq.remaining();
        }
        if !self.align_chunks {
            return budget;
        }
        let end = (seq.computed + budget) / self.block_size * self.block_size;
        match end.saturating_sub(seq.computed) {
            0 if step_is_empty || !self.aligned => budget,
            aligned => aligned,
        }
    }

    /// Moves a waiting request into the batch, with its prefix hit and every block its tokens need, if they are there.
    fn admit(&mut self, slot: usize, budget: u32, step_is_empty: bool) -> Admission {
        let seq = &self.sequences[slot];
        self.tree.find(&seq.hashes, &seq.tokens, &mut self.found);
        if self.is_computed_by_another(slot, self.found.len()) {
            return Admission::Later;
        }
        let seq = &self.sequences[slot];
        self.tiering.make_plan(seq, &self.found, self.block_size);
        let loads = !self.tiering.plan.is_empty();
        let total = seq.tokens.len() as u32;
        let hit = self.found.len() as u32 * self.block_size;
        // The last token is run again even if its KV is there, because its logits are not.
        let computed = hit.min(total - 1);
        let misaligned = budget < (total - computed).min(self.block_size);
        if misaligned && self.aligned && !step_is_empty && !loads {
            return Admission::Full;
        }
        let needed = total.div_ceil(self.block_size) - self.found.len() as u32;
        let usable = self.tree.usable() - self.tree.count_idle(&self.found);
        // Some blocks for each running sequence are left, so that admission does not cause the next preemption.
        let watermark = (f64::from(self.running.len() as u32) * self.launch_watermark).ceil() as u32;
        if usable < needed.saturating_add(watermark) {
            if loads && !std::mem::replace(&mut self.sequences[slot].prefetched, true) {
                self.prefetch();
            }
            return Admission::Full;
        }
        let seq = &mut self.sequences[slot];
        self.tree.hold(&self.found, &mut seq.table);
        let allocated = self.tree.allocate(needed, &mut seq.table);
        assert!(allocated, "usable blocks were counted a moment ago");
        seq.published = self.found.len() as u32;
        seq.computed = computed;
        self.rehit.observe(seq.published.saturating_sub(seq.left_shared), seq.left_cached);
        (seq.left_shared, seq.left_cached) = (0, 0);
        let kind = if loads { decision::LOAD } else { decision::ADMIT };
        self.digest.decide(kind, seq.id.0, u64::from(computed));
        self.waiting.remove(slot);
        if loads {
            return Admission::Loads;
        }
        seq.set_state(SequenceState::Prefill);
        self.count_cached(slot);
        self.enter_batch(slot);
        Admission::Admitted
    }

    /// Notes what a sequence that enters the batch found in the cache, the first time.
    pub fn count_cached(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        if seq.cached_tokens.is_none() {
            let cached = seq.computed.min(seq.prompt_tokens);
            seq.cached_tokens = Some(cached);
            self.stats.prompt_tokens += u64::from(seq.prompt_tokens);
            self.stats.cached_tokens += u64::from(cached);
        }
    }

    /// Whether a prefill in the batch is about to publish the `at`-th block of a waiting request.
    fn is_computed_by_another(&self, slot: usize, at: usize) -> bool {
        // The chained hash of a block names all before it too.
        let Some(hash) = self.sequences[slot].hashes.get(at) else { return false };
        let others = self.running.iter().chain(&self.tiering.loading);
        others.map(|other| &self.sequences[*other]).any(|other| {
            matches!(other.state, SequenceState::Prefill | SequenceState::Loading)
                && !other.unpublishable
                && other.ending.is_none()
                && other.published <= at as u32
                && other.hashes.get(at) == Some(hash)
        })
    }

    /// Publishes the full, computed blocks of a sequence, and swaps those that exist already for the published ones.
    pub fn publish(&mut self, slot: usize) {
        let size = self.block_size;
        let seq = &mut self.sequences[slot];
        let (from, to) = (seq.published as usize, (seq.computed / size) as usize);
        if to > from + 1 && !seq.unpublishable {
            seq.hash_of_block(to - 1, size);
        }
        for at in from..to {
            if seq.unpublishable {
                return;
            }
            let parent = at.checked_sub(1).map(|before| seq.table[before]);
            if to > at + 1 && !self.tree.is_continued(parent) {
                return self.publish_rest(slot, to);
            }
            let hash = seq.hash_of_block(at, size);
            let tokens = &seq.tokens[at * size as usize..][..size as usize];
            match self.tree.publish(seq.table[at], parent, hash, tokens) {
                Published::New => {
                    self.stats.published_blocks += 1;
                    self.tiering.published(
                        seq.root,
                        seq.table[at].index,
                        parent.map(|parent| parent.index),
                        hash,
                        tokens,
                    );
                }
                Published::Merged(twin) => {
                    seq.table[at] = twin;
                    seq.table_sent = seq.table_sent.min(at as u32);
                    self.stats.merged_blocks += 1;
                }
                Published::Collided => {
                    seq.unpublishable = true;
                    return;
                }
            }
            seq.published += 1;
        }
    }

    /// Publishes the blocks of a sequence up to the `to`-th, none of which can have a twin, because no block continues the one before them.
    fn publish_rest(&mut self, slot: usize, to: usize) {
        let size = self.block_size as usize;
        let seq = &mut self.sequences[slot];
        let at = seq.published as usize;
        let parent = at.checked_sub(1).map(|before| seq.table[before]);
        let (chain, hashes, tokens) = (&seq.table[at..to], &seq.hashes[at..to], &seq.tokens[at * size..to * size]);
        self.tree.publish_chain(chain, parent, hashes, tokens);
        if self.tiering.is_on() {
            let mut parent = parent.map(|parent| parent.index);
            for ((block, hash), tokens) in chain.iter().zip(hashes).zip(tokens.chunks_exact(size)) {
                self.tiering.published(seq.root, block.index, parent, *hash, tokens);
                parent = Some(block.index);
            }
        }
        self.stats.published_blocks += (to - at) as u64;
        seq.published = to as u32;
    }

    /// Adds the next `n_tokens` of a sequence, and room for drafts, to the step.
    fn run(&mut self, slot: usize, n_tokens: u32, n_drafts: u32, step: &mut Step) {
        let seq = &mut self.sequences[slot];
        debug_assert!(!seq.in_step && n_tokens > 0 && n_tokens <= seq.remaining());
        let start = !seq.on_worker;
        if start {
            seq.on_worker = true;
            seq.table_sent = 0;
            step.sampling.push(seq.sampling);
        }
        let n_history = if start && (seq.sampling.needs_history() || self.max_drafts > 0) { seq.computed } else { 0 };
        let tokens_at = step.tokens.len() as u32;
        if n_history == 0 && n_tokens == 1 && seq.remaining() == 1 {
            // All decodes: spares the look into their long vectors.
            step.tokens.push(seq.last_token);
        } else if self.sends_tokens {
            let range = (seq.computed - n_history) as usize..(seq.computed + n_tokens) as usize;
            step.tokens.extend_from_slice(&seq.tokens[range]);
        }
        let blocks_at = step.blocks.len() as u32;
        for handle in &seq.table[seq.table_sent as usize..] {
            debug_assert!(self.tree.pool().is_current(*handle));
            step.blocks.push(handle.index);
        }
        // A tenant pays for its prompt once, whatever preemptions make of it, and not for what was cached.
        let end = (seq.computed + n_tokens).min(seq.prompt_tokens);
        if seq.computed < seq.prompt_tokens && end > seq.charged {
            self.waiting.served(seq.view.tenant, end - seq.computed.max(seq.charged), 0);
            seq.charged = end;
        }
        self.digest.decide(decision::RUN, seq.id.0, u64::from(seq.computed) << 32 | u64::from(n_tokens + n_drafts));
        for block in &step.blocks[blocks_at as usize..] {
            self.digest.fold(u64::from(*block));
        }
        step.seqs.push(StepSeq {
            request: seq.id,
            slot: seq.worker_slot.expect("a sequence in the batch has a place on the worker"),
            start,
            computed: seq.computed,
            n_tokens,
            n_history,
            tokens_at,
            input_from_last: false,
            kv_write_from: seq.computed.max(seq.published * self.block_size),
            table_keep: seq.table_sent,
            blocks_at,
            n_blocks: seq.table.len() as u32 - seq.table_sent,
            sample: n_tokens == seq.remaining(),
            n_generated: seq.generated(),
            n_drafts,
        });
        seq.table_sent = seq.table.len() as u32;
        seq.in_step = true;
        self.picked.push(slot);
    }
}
