//! The state of scheduling, for a scheduling pass to read and change: sequences, queues and the KV cache.

use std::collections::BTreeSet;

use slab::Slab;

use crate::blocks::prefetch::prefetch;
use crate::cache::kv::Kv;
use crate::cache::transfer_table::Orphan;
use crate::config::{Config, ConfigError};
use crate::journal::Journal;
use crate::journal::digest::Decision;
use crate::names::ids::BlockHandle;
use crate::policy::RequestView;
use crate::policy::waiting::Waiting;
use crate::request::sequence::{Cold, Ending, Phase, Sequence, SequenceEvent};
use crate::schedule::answers::Answers;
use crate::schedule::background_queue::Background;
use crate::schedule::batch::Batch;
use crate::schedule::imitate::reserve::Reserve;
use crate::schedule::planners::Planners;
use crate::schedule::prefetch_queue::Prefetches;
use crate::schedule::rehit::RehitRate;
use crate::schedule::rereads::Rereads;
use crate::schedule::shared_work::SharedWork;
use crate::schedule::steps::Part;
use crate::schedule::suspects::Suspects;
use crate::schedule::swap_queue::SwapQueue;
use crate::schedule::victims::Victims;

/// Sequences from one that has its turn to the one requested from memory.
pub(crate) const AHEAD: usize = 16;
/// Sequences from one stage of a request for memory to the next: the lines of the stage before have arrived by then.
const STAGE: usize = 4;
/// Sequences of a batch from which on they are requested from memory: fewer stay in the caches of a processor core from step to step.
pub(crate) const REQUESTED_FROM: usize = 2048;

/// The sequences, the queues of the sequences, and the KV cache. Every sequence is in one slot and, by state, in one queue.
pub(crate) struct State {
    /// Limits of the core.
    pub config: Config,
    /// Maximum number of drafts of a sequence in one step: [`Config::max_drafts`], or fewer if the worker makes fewer.
    pub max_drafts: u32,
    /// All accepted requests that have not ended, by slot.
    pub sequences: Slab<Sequence>,
    /// Requests that wait for admission.
    pub waiting: Waiting,
    /// Running sequences, in the batch.
    pub batch: Batch,
    /// Sequences on the host, or on their way back.
    pub swaps: SwapQueue,
    /// Slots of sequences loading blocks from tiers, in the order of the loads' beginnings.
    pub loading: Vec<usize>,
    /// Sequences in the batch with a [`crate::request::sequence::Tail`], in the order of their admissions.
    pub tails: Vec<usize>,
    /// Requests that compute nothing. They are in no other queue.
    pub prefetches: Prefetches,
    /// Requests that serve nobody at once.
    pub background: Background,
    /// Blocks that prefills and loading sequences are about to publish. Requests that wait for them are parked in `waiting`.
    pub shared_work: SharedWork,
    /// The next running sequences to preempt.
    pub victims: Victims,
    /// Sequences that may be the cause of failed steps.
    pub suspects: Suspects,
    /// Eviction within sequences.
    pub planners: Planners,
    /// Prompts being read again for their planners.
    pub rereads: Rereads,
    /// Learned share of blocks that preempted sequences find again.
    pub rehit: RehitRate,
    /// Learned times of answers.
    pub answers: Answers,
    /// Room for output that admissions leave.
    pub reserve: Reserve,
    /// Blocks in all places, and transfers.
    pub kv: Kv,
    /// Sequences whose end was reported, and which steps in flight still run.
    pub reported: usize,
    /// Position of the next request in the order of arrival.
    pub next_arrival: u64,
    /// Digest and counters.
    pub journal: Journal,
}

impl State {
    /// Creates the state of a core without requests.
    ///
    /// # Errors
    /// If a policy or an eviction policy is unknown.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self {
            max_drafts: config.max_drafts,
            sequences: Slab::new(),
            waiting: Waiting::new(config.make_policy()?),
            batch: Batch::default(),
            swaps: SwapQueue::default(),
            loading: Vec::new(),
            tails: Vec::new(),
            prefetches: Prefetches::default(),
            background: Background::default(),
            shared_work: SharedWork::default(),
            victims: Victims::default(),
            suspects: Suspects::default(),
            planners: Planners::new(&config)?,
            rereads: Rereads::default(),
            rehit: RehitRate::default(),
            answers: Answers::default(),
            reserve: Reserve::new(config.prefill_first.reserve()),
            kv: Kv::new(&config)?,
            reported: 0,
            next_arrival: 0,
            journal: Journal::default(),
            config,
        })
    }

    /// Returns the number of sequences in the batch, about to come back, or with a worker slot still used by steps in flight.
    pub fn batched(&self) -> u32 {
        (self.batch.running.len() + self.swaps.arriving.len() + self.loading.len() + self.reported) as u32
    }

    /// Returns `true` if the batch has room for another sequence.
    pub fn has_seat(&self) -> bool {
        self.batched() < self.config.max_batch_size
    }

    /// Returns `true` if a request that ran is out of the batch for lack of blocks, swapped out or still in steps in flight. No other
    /// request is admitted then.
    pub fn is_under_memory_pressure(&self) -> bool {
        let swaps = !self.swaps.swapped.is_empty() || self.kv.transfers.swapping_out().next().is_some();
        swaps || self.kv.preemptions_wait()
    }

    /// Sets the drafts that the worker makes for a sequence in one step, at most.
    pub fn limit_drafts(&mut self, n: u32) {
        self.max_drafts = n.min(self.config.max_drafts);
        self.journal.decide(Decision::DraftsLimited, 0, self.max_drafts.into());
    }

    /// Returns the number of blocks that must stay usable: `per_sequence` for each running sequence.
    pub fn watermark(&self, per_sequence: f64) -> u32 {
        (f64::from(self.batch.len()) * per_sequence).ceil() as u32
    }

    /// Inserts a sequence into the waiting queue. A prefetch waits in its own.
    pub fn wait(&mut self, slot: usize) {
        if self.sequences[slot].is_prefetch() {
            return;
        }
        self.expect_service(slot);
        let seq = &self.sequences[slot];
        if !self.waiting.ranks_by_cache() {
            return self.waiting.push(slot, &seq.view(0));
        }
        let prefix = self.kv.cached_prefix(seq);
        self.waiting.push(slot, &seq.view(prefix.tokens));
        self.waiting.watch(slot, prefix.next, self.kv.tree.evicted());
    }

    /// Notes the service that a request about to wait is expected to take, if its rank depends on that.
    fn expect_service(&mut self, slot: usize) {
        if !self.waiting.weighs_service() {
            return;
        }
        let seq = &self.sequences[slot];
        let uncached = seq.view(0).tokens.saturating_sub(self.kv.cached_prefix(seq).tokens);
        let prefill_ns = self.kv.transfers.links.recompute_ns(uncached.into());
        let answer_ns = self.answers.expected_ns(seq.cold.view.max_tokens.saturating_sub(seq.generated()));
        let service_ns = prefill_ns.saturating_add(answer_ns);
        let Cold { view, history, .. } = &mut *self.sequences[slot].cold;
        if history.admissions == 0 {
            (view.uncached_tokens, view.service_ns) = (uncached, service_ns);
        }
        // Of a request that gave its seat away the rank must not fall: it would take the seat back.
        view.service_ns = view.service_ns.min(service_ns);
    }

    /// Inserts sequences, with their views, into the waiting queue, as [`Self::wait`] does for each. Faster for many.
    pub fn wait_all(&mut self, mut slots: Vec<(usize, RequestView)>) {
        slots.retain(|(slot, _)| !self.sequences[*slot].is_prefetch());
        if self.waiting.ranks_by_cache() {
            slots.into_iter().for_each(|(slot, _)| self.wait(slot));
        } else {
            self.waiting.push_all(slots.into_iter());
        }
    }

    /// Inserts a sequence that has its blocks into the batch.
    pub fn enter_batch(&mut self, slot: usize) {
        let worker_slot = self.batch.enter(slot);
        debug_assert!(worker_slot < self.config.max_batch_size, "as many worker slots as sequences in the batch");
        let seq = &mut self.sequences[slot];
        seq.mirror.enter(worker_slot);
        seq.cold.history.generated_at_entry = seq.generated();
        self.planners.begin(seq);
        seq.reserve(self.config.block_size);
        self.victims.enter(slot, seq);
    }

    /// Takes a sequence out of the batch, and frees its slot on the worker.
    pub fn leave_batch(&mut self, slot: usize) {
        self.orphan_tail(slot);
        self.end_shared_work(slot);
        self.batch.leave(slot);
        self.free_worker_slot(slot);
    }

    /// Lets the transfers of a tail go on without its sequence, which is about to leave the batch. They keep the blocks that they fill.
    pub fn orphan_tail(&mut self, slot: usize) {
        let Self { sequences, kv, tails, .. } = self;
        let seq = &mut sequences[slot];
        let Some(tail) = seq.cold.tail.take() else { return };
        tails.retain(|other| *other != slot);
        if tail.load.transfers == 0 {
            return;
        }
        let (first, blocks) = (tail.first, tail.load.filled.len());
        let mut loaded: Vec<BlockHandle> = seq.table.drain(first..first + blocks).collect();
        kv.transfers.orphan(slot, |pairs| {
            let filled: BTreeSet<u32> = pairs.iter().map(|pair| pair.to).collect();
            let blocks = loaded.extract_if(.., |block| filled.contains(&block.index)).collect();
            Orphan { blocks, ..Orphan::default() }
        });
        loaded.iter().for_each(|block| kv.tree.end_move(*block));
        seq.table.splice(first..first, loaded);
    }

    /// Frees the worker slot of a sequence that leaves the batch, if the sequence has one.
    pub fn free_worker_slot(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        seq.settle();
        seq.on_worker = false;
        if let Some(worker_slot) = seq.mirror.leave() {
            self.batch.free_worker_slot(worker_slot);
        }
    }

    /// Requests the sequence in a slot `next` of a batch from memory, [`AHEAD`] sequences ahead of its turn, while the one in `slot` has its
    /// turn.
    #[inline]
    pub fn request(&self, slot: usize, next: usize) {
        // Even the question of what is in a slot reads the slot. Addresses can be computed: the slots are neighbours.
        Sequence::request_to_apply(self.address(slot, next));
    }

    /// Returns the address at which the sequence in slot `other` lies, if there is one, from the one of the sequence in `slot`.
    #[inline]
    fn address(&self, slot: usize, other: usize) -> *const Sequence {
        let here: *const Sequence = &self.sequences[slot];
        here.wrapping_offset(other as isize - slot as isize)
    }

    /// Requests the data of a decode from memory for running sequences behind the `at`-th. MUST be called for each in turn.
    #[inline]
    pub fn request_to_decode(&self, at: usize) {
        let running = &self.batch.running;
        if running.len() < REQUESTED_FROM {
            return;
        }
        if let Some(next) = running.get(at + AHEAD) {
            Sequence::request_to_plan(self.address(running[at], *next));
        }
        let Some(slot) = running.get(at + STAGE) else { return };
        let seq = &self.sequences[*slot];
        if seq.planned() == seq.capacity(self.config.block_size) {
            prefetch(&seq.table[seq.table.len().saturating_sub(1)..]);
        }
    }

    /// Loads the next [`AHEAD`] of some sequences, with the facts that most steps do not read, into the processor's caches.
    pub fn load_cold_ahead(&self, slots: &[usize]) {
        let slots = &slots[..slots.len().min(AHEAD)];
        let sum = slots.iter().fold(0, |sum, slot| sum ^ self.sequences[*slot].load());
        std::hint::black_box(sum);
        let sum = slots.iter().fold(0, |sum, slot| sum ^ self.sequences[*slot].load_cold());
        std::hint::black_box(sum);
    }

    /// Requests the ends of the vectors of the next [`AHEAD`] of some sequences from memory.
    pub fn request_tails(&self, slots: &[usize]) {
        slots.iter().take(AHEAD).for_each(|slot| self.sequences[*slot].request_tails());
    }

    /// Requests the data of [`Self::publish`] from memory for the sequences behind the `at`-th of `slots`. MUST be called for
    /// each in turn, from the first on.
    #[inline]
    pub fn request_to_publish(&mut self, slots: &[usize], at: usize) {
        // Each line shows the way to others, so the way is taken in stages, each for a later sequence.
        let [third, second, first] = [1, 2, 3].map(|stage| slots.get(at + stage * STAGE).copied());
        if let Some(slot) = first {
            self.sequences[slot].request_cold();
        }
        if let Some(slot) = second {
            self.sequences[slot].request_tails();
        }
        if let Some(slot) = third {
            self.request_block(slot);
        }
    }

    /// Requests the data of [`Self::publish`] from memory for the next block of a sequence, if the block is full.
    #[inline]
    pub fn request_block(&mut self, slot: usize) {
        let size = self.config.block_size;
        let seq = &mut self.sequences[slot];
        let (from, full) = (seq.published as usize, (seq.exact(seq.computed) / size) as usize);
        if full > from && !seq.unpublishable {
            seq.hash_of_block(full - 1, size);
            let parent = seq.table[..from].last().copied();
            self.kv.tree.request_to_publish(parent, seq.table[from], seq.cold.hashes[from]);
        }
    }

    /// Publishes the full, computed blocks of a sequence.
    pub fn publish(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        let (from, was_unpublishable) = (seq.published, seq.unpublishable);
        let exact = seq.exact(seq.computed);
        let is_inexact = exact < seq.computed;
        self.kv.publish(&mut self.sequences[slot], exact, self.journal.stats.steps, &mut self.journal);
        self.announce(slot, from);
        self.sequences[slot].unpublishable |= is_inexact;
        if self.sequences[slot].unpublishable && !was_unpublishable {
            self.disown(slot);
        }
    }

    /// Publishes the blocks of a prefill that steps in flight will have computed, the step being made included, if the worker can read them
    /// in these steps. Duplicates of published blocks are merged when they are computed.
    pub fn publish_ahead(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        let next = seq.cold.hashes.get(seq.published as usize);
        if self.config.worker.in_step_hits && next.is_some_and(|next| !self.kv.is_published(*next)) {
            self.publish_planned(slot);
        }
    }

    /// Publishes the chunks of all prompts under way, and merges duplicates, while steps in flight compute them: the next step runs after
    /// these. For [`crate::config::Chunks::finds_chunks`].
    pub fn publish_chunks(&mut self) {
        for at in 0..self.batch.running.len() {
            let slot = self.batch.running[at];
            let seq = &self.sequences[slot];
            if seq.is_prefill() && seq.is_in_step() && !seq.decodes_next() && seq.ending.is_none() {
                self.publish_planned(slot);
                self.kv.visit_end(&self.sequences[slot]);
            }
        }
    }

    /// Reports the ends of the prompts and answers that a step just finished, and published, to the eviction policy.
    pub fn visit_ends(&mut self, parts: &[Part]) {
        if !self.kv.tree.notes_visits() {
            return;
        }
        for part in parts {
            let seq = &self.sequences[part.slot()];
            let ends = match seq.ending {
                None => part.sample && !part.decodes,
                Some(ending) => matches!(ending, Ending::Finish(reason) if !reason.is_fault()),
            };
            if ends {
                self.kv.visit_end(seq);
            }
        }
    }

    fn publish_planned(&mut self, slot: usize) {
        let Self { config, kv, sequences, journal, .. } = self;
        let (seq, size) = (&mut sequences[slot], config.block_size);
        let from = seq.published;
        // The others wait for blocks with hashes alone.
        let end = (seq.exact(seq.planned()) / size).min(seq.cold.hashes.len() as u32);
        let is_plain = kv.groups.n() == 0 && seq.cold.planner.is_none() && !seq.unpublishable;
        if !is_plain || end <= from {
            return;
        }
        kv.publish(seq, end * size, journal.stats.steps, journal);
        self.announce(slot, from);
        if self.sequences[slot].unpublishable {
            self.disown(slot);
        }
    }

    /// Returns `true` if sequences may find blocks that steps in flight compute.
    pub fn publishes_ahead(&self) -> bool {
        self.config.publishes_ahead()
    }

    /// Returns `true` if a sequence has published blocks that steps in flight compute, or run again for the last token of a prompt.
    pub fn has_published_ahead(&self, slot: usize) -> bool {
        let seq = &self.sequences[slot];
        self.publishes_ahead() && seq.published * self.config.block_size > seq.computed
    }

    /// Wakes the requests that wait for the blocks just published by a sequence, from the `from`-th on.
    fn announce(&mut self, slot: usize, from: u32) {
        let Self { sequences, waiting, shared_work, .. } = self;
        if waiting.is_empty() && shared_work.is_empty() {
            return;
        }
        let (hashes, published) = sequences[slot].prompt_rest();
        let is_owner = shared_work.has(slot);
        shared_work.publish(slot, from as usize, (hashes, published));
        for (at, hash) in hashes.iter().enumerate().take(published).skip(from as usize) {
            waiting.published(*hash);
            let is_awaited =
                || is_owner || shared_work.owner(hashes, at, |slot| sequences[slot].prompt_rest()).is_some();
            if waiting.parks() && is_awaited() {
                waiting.wake(*hash);
            }
        }
    }

    /// Makes a prefill, or a sequence that loads, the owner of the blocks of its prompt that it is about to publish.
    pub fn begin_shared_work(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        if !seq.unpublishable {
            self.shared_work.begin(slot, seq.prompt_rest());
        }
    }

    /// Lets a sequence compute the runs not known to be copied: the step with the copies was lost.
    pub fn drop_copied(&mut self, slot: usize) {
        if self.sequences[slot].cold.copied.is_none() {
            return;
        }
        let owns = self.shared_work.has(slot);
        self.end_shared_work(slot);
        let seq = &mut self.sequences[slot];
        seq.cut_copied();
        if owns || (seq.is_prefill() && seq.ending.is_none()) {
            self.begin_shared_work(slot);
        }
    }

    /// Ends the ownership of blocks by a prefill or a sequence that loads, which will not publish the blocks: the requests that wait
    /// for them look again. Does nothing in other phases.
    pub fn end_shared_work(&mut self, slot: usize) {
        if matches!(self.sequences[slot].phase, Phase::Prefill | Phase::Loading(_)) {
            self.disown(slot);
        }
    }

    fn disown(&mut self, slot: usize) {
        let Self { sequences, waiting, shared_work, .. } = self;
        let (hashes, published) = sequences[slot].prompt_rest();
        if shared_work.end(slot, (hashes, published)) && waiting.parks() {
            hashes[published..].iter().for_each(|hash| waiting.wake(*hash));
        }
    }

    /// Releases every block of a sequence, in every place.
    pub fn release(&mut self, slot: usize) {
        self.kv.release(&mut self.sequences[slot]);
    }

    /// Lets a sequence out of the batch, without any block, wait to be recomputed.
    pub fn start_over(&mut self, slot: usize, event: SequenceEvent) {
        self.rewind(slot, event);
        self.wait(slot);
    }

    /// Takes a sequence out of the batch, without any block, back to its beginning. The caller lets the sequence wait.
    pub fn rewind(&mut self, slot: usize, event: SequenceEvent) {
        let seq = &mut self.sequences[slot];
        self.journal.decide(Decision::StartOver, seq.id.0, u64::from(seq.computed));
        seq.rewind(event);
    }

    /// Counts the cached prompt tokens of a sequence that enters the batch for the first time.
    pub fn count_cached(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        if seq.cold.history.cached_tokens.is_none() {
            let cached = seq.computed.min(seq.prompt_tokens);
            seq.cold.history.cached_tokens = Some(cached);
            if seq.cold.reread_from.is_some() {
                return;
            }
            self.journal.stats.tokens.prompt_tokens += u64::from(seq.prompt_tokens);
            self.journal.stats.tokens.cached_tokens += u64::from(cached);
        }
    }
}
