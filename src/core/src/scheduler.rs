//! One scheduling pass: what runs in the next step.
//!
//! Order: decodes, then prefills under way, then the head of the waiting queue. The budget counts tokens that are run;
//! cached ones are free. A prefill takes what the decodes leave (split-fuse), in whole blocks.
//!
//! **The head can always finish.** A request is admitted only when every block of the tokens it has now is there, and takes
//! them at once; so two prefills never hold halves of what both need. A decode that finds no block preempts the
//! least dear running request, itself at last; what is left runs on. A request that could not run alone was refused
//! at the door.

use slab::Slab;

use crate::config::Config;
use crate::digest::Digest;
use crate::eviction::Eviction;
use crate::policy::Policy;
use crate::sequence::{Sequence, SequenceState};
use crate::stats::Stats;
use crate::step::{Step, StepSeq};
use crate::tree::PrefixTree;
use crate::waiting::Waiting;

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
}

/// The part of the core that decides about steps: the sequences, their order, and the blocks.
pub(crate) struct Scheduler {
    pub block_size: u32,
    pub max_batch_tokens: u32,
    pub max_batch_size: u32,
    pub tree: PrefixTree,
    /// By slot.
    pub sequences: Slab<Sequence>,
    /// Waiting sequences, and the policy that orders them.
    pub waiting: Waiting,
    /// Slots in the batch, in order of admission.
    pub running: Vec<usize>,
    /// The sequences of the step being made, in its order.
    pub picked: Vec<usize>,
    /// Prefill chunks end at block boundaries. Off if a step full of decodes could leave less than a block: prefills
    /// would starve.
    aligned: bool,
    /// Worker slots that are not taken, and the first that never was. So slots stay below the size of the batch.
    free_worker_slots: Vec<u32>,
    next_worker_slot: u32,
    pub stats: Stats,
    pub digest: Digest,
    found: Vec<u32>,
}

impl Scheduler {
    pub fn new(config: &Config, policy: Box<dyn Policy>, eviction: Box<dyn Eviction>) -> Self {
        Self {
            block_size: config.block_size,
            max_batch_tokens: config.max_batch_tokens,
            max_batch_size: config.max_batch_size,
            tree: PrefixTree::new(config.block_size, config.device_blocks, eviction),
            sequences: Slab::new(),
            waiting: Waiting::new(policy),
            running: Vec::new(),
            picked: Vec::new(),
            aligned: config.max_batch_tokens >= config.block_size.saturating_add(config.max_batch_size),
            free_worker_slots: Vec::new(),
            next_worker_slot: 0,
            stats: Stats::default(),
            digest: Digest::default(),
            found: Vec::new(),
        }
    }

    /// Fills `step` with what runs next. Leaves it empty if nothing can.
    pub fn schedule(&mut self, step: &mut Step) {
        self.picked.clear();
        self.reserve_decode_blocks();
        let mut budget = self.max_batch_tokens;
        for at in 0..self.running.len() {
            let slot = self.running[at];
            if self.sequences[slot].state == SequenceState::Decode {
                self.run(slot, 1, step);
                budget -= 1;
            }
        }
        for at in 0..self.running.len() {
            let slot = self.running[at];
            if self.sequences[slot].state == SequenceState::Prefill {
                let chunk = self.chunk(slot, budget, step.seqs.is_empty());
                if chunk == 0 {
                    // Those behind wait too, so that an earlier prefill is never overtaken by smaller ones.
                    budget = 0;
                    break;
                }
                self.run(slot, chunk, step);
                budget -= chunk;
            }
        }
        while budget > 0 && (self.running.len() as u32) < self.max_batch_size {
            let Some(slot) = self.waiting.first() else { break };
            if !self.admit(slot, budget, step.seqs.is_empty()) {
                break;
            }
            let chunk = self.chunk(slot, budget, step.seqs.is_empty());
            self.run(slot, chunk, step);
            budget -= chunk;
        }
    }

    /// Sees to it that every decode has a block for its token.
    fn reserve_decode_blocks(&mut self) {
        let mut at = 0;
        while at < self.running.len() {
            let slot = self.running[at];
            let seq = &mut self.sequences[slot];
            let short = seq.state == SequenceState::Decode && seq.computed == seq.table.len() as u32 * self.block_size;
            if !short || self.tree.allocate(1, &mut seq.table) {
                at += 1;
                continue;
            }
            let victim = self.victim();
            let victim_at = self.running.iter().position(|slot| *slot == victim).expect("the victim is running");
            self.preempt(victim);
            if victim_at < at {
                at -= 1;
            }
        }
    }

    /// The least dear running sequence, and of equals the last to arrive.
    fn victim(&self) -> usize {
        let dearness = |slot: &&usize| {
            let seq = &self.sequences[**slot];
            (self.waiting.keep(&seq.view), std::cmp::Reverse(seq.arrival))
        };
        *self.running.iter().min_by_key(dearness).expect("a sequence that needs a block is running")
    }

    /// Takes a sequence out of the batch and puts it back in its place among the waiting.
    pub fn preempt(&mut self, slot: usize) {
        self.running.retain(|other| *other != slot);
        self.free_worker_slot(slot);
        let seq = &mut self.sequences[slot];
        assert!(!seq.in_step, "a worker may still write the blocks of {}", seq.id);
        self.digest.decide(decision::PREEMPT, seq.id.0, u64::from(seq.computed));
        self.tree.release(&mut seq.table, seq.published as usize);
        seq.rewind();
        seq.preemptions += 1;
        self.stats.preemptions += 1;
        self.waiting.push(slot, &seq.view);
    }

    /// A sequence that leaves the batch leaves its place on the worker to the next one.
    pub fn free_worker_slot(&mut self, slot: usize) {
        self.free_worker_slots.extend(self.sequences[slot].worker_slot.take());
    }

    /// How many of its tokens a sequence runs within `budget`: all that remain, or whole blocks. Less than a block
    /// only if the step is otherwise empty, for then no later step would offer more.
    fn chunk(&self, slot: usize, budget: u32, step_is_empty: bool) -> u32 {
        let seq = &self.sequences[slot];
        if seq.remaining() <= budget {
            return seq.remaining();
        }
        let end = (seq.computed + budget) / self.block_size * self.block_size;
        match end.saturating_sub(seq.computed) {
            0 if step_is_empty || !self.aligned => budget,
            aligned => aligned,
        }
    }

    /// Moves the head of the queue into the batch, with its prefix hit and every block its tokens need, if they are there.
    fn admit(&mut self, slot: usize, budget: u32, step_is_empty: bool) -> bool {
        let seq = &mut self.sequences[slot];
        self.tree.find(&seq.hashes, &seq.tokens, &mut self.found);
        let total = seq.tokens.len() as u32;
        let hit = self.found.len() as u32 * self.block_size;
        // The last token is run again even if its KV is there, because its logits are not.
        let computed = hit.min(total - 1);
        let misaligned = budget < (total - computed).min(self.block_size);
        if misaligned && self.aligned && !step_is_empty {
            return false;
        }
        let needed = total.div_ceil(self.block_size) - self.found.len() as u32;
        let usable = self.tree.usable() - self.tree.count_idle(&self.found);
        // One block for each running sequence is left, so that admission does not cause the next preemption.
        let watermark = self.running.len() as u32;
        if usable < needed + watermark {
            return false;
        }
        self.tree.hold(&self.found, &mut seq.table);
        let allocated = self.tree.allocate(needed, &mut seq.table);
        assert!(allocated, "usable blocks were counted a moment ago");
        seq.published = self.found.len() as u32;
        seq.computed = computed;
        seq.state = SequenceState::Prefill;
        seq.worker_slot = self.free_worker_slots.pop().or_else(|| {
            self.next_worker_slot += 1;
            Some(self.next_worker_slot - 1)
        });
        debug_assert!(self.next_worker_slot <= self.max_batch_size, "as many slots as sequences in the batch");
        if seq.cached_tokens.is_none() {
            let cached = computed.min(seq.prompt_tokens);
            seq.cached_tokens = Some(cached);
            self.stats.prompt_tokens += u64::from(seq.prompt_tokens);
            self.stats.cached_tokens += u64::from(cached);
        }
        self.digest.decide(decision::ADMIT, seq.id.0, u64::from(computed));
        self.waiting.remove(slot);
        self.running.push(slot);
        true
    }

    /// Adds the next `n_tokens` of a sequence to the step.
    fn run(&mut self, slot: usize, n_tokens: u32, step: &mut Step) {
        let seq = &mut self.sequences[slot];
        debug_assert!(!seq.in_step && n_tokens > 0 && n_tokens <= seq.remaining());
        let start = !seq.on_worker;
        if start {
            seq.on_worker = true;
            seq.table_sent = 0;
            step.sampling.push(seq.sampling);
        }
        if seq.preemptions == 0 {
            self.waiting.served(seq.view.tenant, seq.prompt_tokens.saturating_sub(seq.computed).min(n_tokens), 0);
        }
        let n_history = if start && seq.sampling.needs_history() { seq.computed } else { 0 };
        let tokens_at = step.tokens.len() as u32;
        let range = (seq.computed - n_history) as usize..(seq.computed + n_tokens) as usize;
        step.tokens.extend_from_slice(&seq.tokens[range]);
        let blocks_at = step.blocks.len() as u32;
        for handle in &seq.table[seq.table_sent as usize..] {
            debug_assert!(self.tree.pool().is_current(*handle));
            step.blocks.push(handle.index);
        }
        self.digest.decide(decision::RUN, seq.id.0, u64::from(seq.computed) << 32 | u64::from(n_tokens));
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
            kv_write_from: seq.computed.max(seq.published * self.block_size),
            table_keep: seq.table_sent,
            blocks_at,
            n_blocks: seq.table.len() as u32 - seq.table_sent,
            sample: n_tokens == seq.remaining(),
            n_generated: seq.generated(),
            n_drafts: 0,
        });
        seq.table_sent = seq.table.len() as u32;
        seq.in_step = true;
        self.picked.push(slot);
    }
}
