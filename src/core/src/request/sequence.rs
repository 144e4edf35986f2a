//! A request inside the core.
//!
//! | state | holds | left by |
//! |---|---|---|
//! | waiting | no block | admission -> prefill, or loading |
//! | loading | all blocks for the tokens, some being filled from a tier | transfers ended, or failed -> prefill, a prefetch waiting; worker lost -> waiting |
//! | prefill | all blocks for the tokens, the last of a prefix perhaps being filled from a tier | last chunk sampled -> decode; preemption -> waiting, preempted or swapping out; worker lost -> waiting |
//! | decode | all blocks for the tokens, and one more now and then | last token -> ended; preemption -> waiting, preempted or swapping out; worker lost -> waiting |
//! | preempted | no block; still run by steps in flight | the last of these steps ended, worker lost -> waiting |
//! | swapping out | device blocks, and host blocks being filled | transfer ended -> swapped; transfer failed, worker lost -> waiting |
//! | swapped | host blocks, and device blocks with other readers | room on the device -> swapping in; nothing else can run, worker lost -> waiting |
//! | swapping in | device blocks being filled, and the host blocks copied from | all transfers ended -> prefill or decode; a transfer failed, worker lost -> waiting |
//!
//! [`TRANSITIONS`] lists the changes in code, and the core's phases carry the data of single states.
//!
//! **Ends.** A deadline, an abort, a stop or a shutdown ends a request in every state at once, with one [`crate::Action::Finish`]; no
//! token follows, and the usage counts the tokens delivered. Blocks that a step or a transfer in flight may still read or write MUST
//! stay as they are until its end:
//!
//! * The sequence of a request that steps in flight run stays, with its blocks and its slot on the worker, until the last of these
//!   steps ends. The sequence counts in [`crate::Config::max_batch_size`] and in no other limit; tokens of those steps are dropped.
//! * A transfer keeps the blocks of a request that ended, on both sides. Such a transfer counts in no limit.
//!
//! A request that is handed back ([`crate::Event::Withdraw`]) leaves at once too, behind the steps in flight, whose tokens are dropped.

mod arrival;
mod copied;
mod given_up;
mod history;
mod phase;
mod tail;
mod valued;

use std::mem::offset_of;
use std::num::NonZeroU32;
use std::ops::Range;

use trunkline_port::Dropped;

use crate::blocks::hash::{BlockHash, extend_hashes};
use crate::blocks::prefetch::{prefetch, prefetch_at};
use crate::blocks::transitions::lists;
use crate::h2o;
use crate::names::ids::{BlockHandle, RequestId, Token};
use crate::policy::RequestView;
use crate::request::retention::RetentionHint;
use crate::request::{FinishReason, Request, Reuse, Sampling, Usage};

use arrival::{saturated, view};
pub(crate) use copied::Copied;
pub(crate) use given_up::GivenUp;
pub(crate) use history::History;
pub(crate) use phase::{Load, Phase, SwapIn, SwapOut, Swapped};
pub use phase::{SequenceEvent, SequenceState, TRANSITIONS};
pub(crate) use tail::Tail;
pub(crate) use valued::Valued;

/// Maximum number of tokens with memory reserved ahead.
const RESERVED_TOKENS_MAX: u32 = 2048;

/// Ways for a sequence to leave the core, once no step in flight runs the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The request ends, with [`crate::Action::Finish`].
    Finish(FinishReason),
    /// The request is handed back, with [`crate::Action::Withdrawn`].
    Withdraw,
    /// The request waits for admission again: a step failed to compute blocks that the sequence reads.
    StartOver,
    /// The end was reported, for this reason, while steps in flight still run the sequence. Only its blocks and its slot on the
    /// worker are left here.
    Reported(FinishReason),
}

/// Work that steps in flight do on a sequence: its state ahead of the results reported so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Tokens that steps in flight run, without drafts.
    pub tokens: u32,
    /// Steps in flight that run the sequence.
    pub steps: u8,
    /// Tokens that steps in flight will sample, without accepted drafts.
    pub samples: u8,
    /// `true` while a step in flight drafts for the sequence: the number of tokens it samples is open.
    pub drafts: bool,
    /// Id of the last step that samples for the sequence, modulo 2^8. Of use while that step is in flight: far fewer are.
    pub sampled_in: u8,
}

/// The worker's mirror of a sequence in the batch: its slot, and the entries of the block table sent so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mirror {
    /// Slot on the worker, counted from 1, while the sequence is in the batch.
    slot: Option<NonZeroU32>,
    /// Leading entries of the block table known to the worker.
    pub table_sent: u32,
}

impl Mirror {
    /// Returns the slot on the worker, while the sequence is in the batch.
    pub fn slot(self) -> Option<u32> {
        self.slot.map(|slot| slot.get() - 1)
    }

    /// Gives the sequence a slot on the worker.
    pub fn enter(&mut self, slot: u32) {
        self.slot = NonZeroU32::new(slot + 1);
    }

    /// Takes the slot on the worker away. Returns the slot, if there was one.
    pub fn leave(&mut self) -> Option<u32> {
        let slot = self.slot();
        self.slot = None;
        slot
    }
}

/// Maximum number of tokens generated that [`Sequence`] holds itself: each step adds one, and the vector of all tokens is far away.
const RECENT_MAX: usize = 16;

/// An accepted request inside the core: three cache lines. A step plans from the second alone, from the length of `table` to `n_recent`,
/// and the result of a step changes the second and the third. Other facts are in the first line and in [`Cold`].
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Sequence {
    /// Tenant whose share the request counts against.
    pub tenant: u64,
    /// Facts that few steps read.
    pub cold: Box<Cold>,
    /// State, with data. Changed by [`Self::transition`].
    pub phase: Phase,
    /// `true` after a hash collision or a flush: further blocks are not published.
    pub unpublishable: bool,
    /// `true` if a worker named the sequence as the cause of a failed step, whatever the ending is.
    pub guilty: bool,
    /// Last step that was sent a part of the prompt; 0 before the first.
    pub chunk_step: u64,
    /// The block table of the first layer group. Of a swapped sequence, the leading blocks that stayed on the device.
    pub table: Vec<BlockHandle>,
    /// Id of the request.
    pub id: RequestId,
    /// Tokens at positions below this have KV.
    pub computed: u32,
    /// Leading blocks of `table` in the prefix tree.
    pub published: u32,
    /// Tokens of the prompt; the rest was generated.
    pub prompt_tokens: u32,
    /// The last token, of the prompt or generated.
    pub last_token: Token,
    /// Maximum number of tokens generated.
    pub max_tokens: u32,
    n_tokens: u32,
    /// The worker's mirror of this sequence.
    pub mirror: Mirror,
    /// Work of steps in flight.
    pub ahead: Ahead,
    /// State of `phase`.
    state: SequenceState,
    /// `true` if tokens may end the request.
    has_stop_tokens: bool,
    /// `true` if the mirror was begun for this sequence, not for an earlier one.
    pub on_worker: bool,
    /// Set once the sequence is to leave the core.
    pub ending: Option<Ending>,
    /// Steps since the last token that workers failed to finish with this sequence alone, or with all to blame; saturates.
    pub worker_failures: u8,
    /// Steps since the last token that workers failed to finish with this sequence and others; saturates.
    pub suspicion: u8,
    n_recent: u8,
    /// The last tokens generated, which are not in [`Cold::tokens`] yet.
    recent: [Token; RECENT_MAX],
}

/// Facts about a sequence that most steps neither read nor change. The first cache line has what is read to publish a block.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cold {
    /// The prompt, then the generated tokens, except for the recent ones.
    tokens: Vec<Token>,
    /// Hashes of the full blocks of the tokens, as far as they were needed.
    pub hashes: Vec<BlockHash>,
    /// Hash of the empty prefix in the request's namespace.
    pub root: BlockHash,
    /// Sampling parameters for the worker.
    pub sampling: Sampling,
    /// Tokens generated before a stop token counts.
    min_tokens: u32,
    /// Tokens that end the request.
    stop_token_ids: Box<[Token]>,
    /// The policy's view of the request at its arrival. [`Sequence::view`] is up to date.
    pub view: RequestView,
    /// Facts about the past.
    pub history: History,
    /// Block tables of the layer groups after the first, each as long as the first group's. Entries that the sequence dropped, or never
    /// needed, are [`BlockHandle::NONE`]; entries before [`Sequence::published`] are cached with the first group's block.
    pub tables: Vec<Vec<BlockHandle>>,
    /// Entries dropped that the worker has still in its tables.
    pub drops: Vec<Dropped>,
    /// Last step that ran the sequence; unknown without several layer groups.
    pub last_step: u64,
    /// Class of the engines that may serve the request, for when it is handed back.
    kv_class: u8,
    /// `true` if another core continues the request after its end here.
    pub continues: bool,
    /// Eviction within the sequence, as the request asks; `None` for the core's mode.
    pub h2o: Option<h2o::Mode>,
    /// Priorities of the tokens in the prefix cache.
    pub retention: Box<[RetentionHint]>,
    /// Reuse of text that is not a prefix, as the request asks; `None` for the core's rule.
    pub reuse: Option<Reuse>,
    /// `true` if several tenants share the cache of the namespace.
    pub shares_cache: bool,
    /// Copied runs of the sequence, while it has KV with some.
    pub copied: Option<Box<Copied>>,
    /// Blocks being loaded behind tokens to be computed.
    pub tail: Option<Box<Tail>>,
    /// Of an inner request, which reads a prompt again: the position from which on attention is scored.
    pub reread_from: Option<u32>,
    /// Log probabilities of the prompt.
    pub valued: Valued,
    /// Blocks promised to the sequence, for tokens of its prompt that its tables have no entries for.
    pub promised: u32,
    /// `true` if the cache was flushed since the sequence got its KV. Blocks found now were computed later, and do not go with the KV.
    pub is_stale: bool,
    /// Planner of eviction within the sequence, while the sequence has KV and its mode is not `off`.
    pub planner: Option<Box<Planner>>,
    /// Of a sequence preempted at once: what the steps in flight read and compute of it, if others may have found that.
    pub given_up: Option<Box<GivenUp>>,
}

/// Eviction within one sequence.
#[derive(Debug)]
pub(crate) struct Planner {
    /// Mode of the sequence: `probe` or `on`.
    pub mode: h2o::Mode,
    /// Scores and dropped positions.
    pub state: h2o::State,
    /// Tokens dropped so far, or in mode `probe` counted as dropped.
    pub dropped_tokens: u32,
}

/// Bytes of a cache line.
const LINE: usize = 64;

const _: () = assert!(size_of::<Sequence>() == 3 * LINE && offset_of!(Sequence, table) + 16 == LINE);
const _: () = assert!(offset_of!(Sequence, recent) == 2 * LINE && offset_of!(Cold, root) + 16 == LINE);

impl Sequence {
    /// Creates a waiting sequence.
    pub fn new(mut request: Request, arrival: u64, now_ns: u64) -> Self {
        let view = view(&request, arrival, now_ns);
        let prompt_tokens = request.prompt.len() as u32;
        let [worker_failures, suspicion] = [request.worker_failures, request.suspicion].map(saturated);
        let imported_failures = u32::from(worker_failures) + u32::from(suspicion);
        let imported_tokens = request.generated.len() as u32;
        request.prompt.extend_from_slice(&request.generated);
        Self {
            tenant: request.tenant,
            phase: Phase::Waiting,
            unpublishable: false,
            guilty: false,
            chunk_step: 0,
            table: Vec::new(),
            id: request.id,
            computed: 0,
            published: 0,
            prompt_tokens,
            last_token: request.prompt.last().copied().unwrap_or_default(),
            max_tokens: request.asked_tokens(),
            n_tokens: request.prompt.len() as u32,
            mirror: Mirror::default(),
            ahead: Ahead::default(),
            state: SequenceState::Waiting,
            has_stop_tokens: !request.stop_token_ids.is_empty(),
            on_worker: false,
            ending: None,
            worker_failures,
            suspicion,
            n_recent: 0,
            recent: [0; RECENT_MAX],
            cold: Box::new(Cold {
                tokens: request.prompt,
                hashes: request.hashes,
                root: request.root,
                sampling: request.sampling,
                min_tokens: request.min_tokens,
                stop_token_ids: request.stop_token_ids.into_boxed_slice(),
                view,
                history: History { imported_failures, imported_tokens, ..History::default() },
                tables: Vec::new(),
                drops: Vec::new(),
                last_step: 0,
                kv_class: request.kv_class,
                continues: request.continues,
                h2o: request.h2o,
                retention: request.retention.into_boxed_slice(),
                reuse: request.reuse,
                shares_cache: request.shares_cache,
                copied: None,
                tail: None,
                reread_from: None,
                valued: Valued::new(request.prompt_logprobs, prompt_tokens, imported_tokens),
                promised: 0,
                is_stale: false,
                planner: None,
                given_up: None,
            }),
        }
    }

    /// Makes this the sequence of an inner request: attention is scored from position `from` on, and nothing is published or counted as a hit.
    pub fn read_again(&mut self, from: u32) {
        self.cold.reread_from = Some(from);
        self.cold.history.admissions = 1;
        self.unpublishable = true;
    }

    /// Returns the state, without its data.
    pub fn state(&self) -> SequenceState {
        debug_assert_eq!(self.state, self.phase.state());
        self.state
    }

    /// Returns `true` while a step in flight runs the sequence.
    pub fn is_in_step(&self) -> bool {
        self.ahead.steps > 0
    }

    /// Returns `true` for a sequence in the batch that decodes, as far as the results so far say.
    pub fn is_decode(&self) -> bool {
        self.state() == SequenceState::Decode
    }

    /// Returns the hashes of the blocks that may be published, and the number of published ones.
    pub fn prompt_rest(&self) -> (&[BlockHash], usize) {
        let (hashes, published) = (&self.cold.hashes[..], self.published as usize);
        match &self.cold.copied {
            None => (hashes, published),
            Some(copied) => (&hashes[..hashes.len().min(published.max(copied.exact_blocks() as usize))], published),
        }
    }

    /// Returns `true` for a sequence in the batch whose prompt is being computed, as far as the results so far say.
    pub fn is_prefill(&self) -> bool {
        self.state() == SequenceState::Prefill
    }

    /// Returns `true` for a sequence preempted at once and still run by steps in flight.
    pub fn is_preempted(&self) -> bool {
        self.state() == SequenceState::Preempted
    }

    /// Returns `true` if the next token to run is one that was sampled, or that a step in flight samples.
    pub fn decodes_next(&self) -> bool {
        self.is_decode() || (self.ahead.samples > 0 && self.is_prefill())
    }

    /// Returns the number of leading tokens with KV, now or after the steps in flight.
    pub fn planned(&self) -> u32 {
        self.computed + self.ahead.tokens
    }

    /// Returns the number of tokens known or being sampled that no step has run yet.
    pub fn unplanned(&self) -> u32 {
        self.n_tokens + u32::from(self.ahead.samples) - self.planned()
    }

    /// Returns `true` if the next token to run is not known yet: a step in flight samples it.
    pub fn awaits_token(&self) -> bool {
        self.planned() >= self.n_tokens
    }

    /// Returns `true` if step `step` may run the sequence. Tokens not known yet can be run by the step `stages` after the sampling
    /// step, unless drafts leave the number of tokens open, or the tokens may be past the last token.
    pub fn may_run(&self, step: u64, stages: u32) -> bool {
        if self.ending.is_some() || self.ahead.drafts {
            return false;
        }
        let distance = (step as u8).wrapping_sub(self.ahead.sampled_in);
        let planned = self.generated() + u32::from(self.ahead.samples);
        !self.awaits_token() || (u32::from(distance) >= stages && planned < self.max_tokens)
    }

    /// Changes the phase on an event that [`TRANSITIONS`] lists. Returns the phase left.
    pub fn transition(&mut self, event: SequenceEvent, to: Phase) -> Phase {
        let change = (event, self.state(), to.state());
        assert!(
            lists(&TRANSITIONS, change),
            "{}: {event:?} cannot lead from {:?} to {:?}",
            self.id,
            change.1,
            change.2
        );
        self.state = to.state();
        std::mem::replace(&mut self.phase, to)
    }

    /// Returns the number of tokens: the prompt and those generated so far.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    /// Returns the prompt, then the generated tokens. The tokens MUST be settled since the last one was generated.
    pub fn tokens(&self) -> &[Token] {
        assert_eq!(self.n_recent, 0, "{} has tokens to settle", self.id);
        &self.cold.tokens
    }

    /// Appends the recent tokens to the others, for [`Self::tokens`].
    pub fn settle(&mut self) {
        self.cold.tokens.extend_from_slice(&self.recent[..self.n_recent as usize]);
        self.n_recent = 0;
    }

    /// Returns `true` if tokens other than the last one allowed may end the request.
    pub fn has_stop_tokens(&self) -> bool {
        self.has_stop_tokens
    }

    /// Reads a number of each line of the sequence itself, to load them into the processor's caches.
    pub fn load(&self) -> u32 {
        self.computed ^ self.tenant as u32 ^ self.recent[0]
    }

    /// Reads a number of each line needed to find the ends of the sequence's vectors.
    pub fn load_cold(&self) -> u32 {
        let last = self.table.get(self.published as usize).map_or(0, |block| block.index);
        last ^ self.cold.tokens.len() as u32 ^ self.cold.hashes.len() as u32 ^ self.cold.root.0 as u32
    }

    /// Requests from memory what leads to the ends of the sequence's vectors.
    #[inline]
    pub fn request_cold(&self) {
        let published = self.published as usize;
        prefetch(self.table.get(published..=published).unwrap_or_default());
        prefetch_at((&raw const *self.cold).cast::<[u8; LINE]>());
    }

    /// Requests the first line from memory, which steps do not read, for [`Self::request_cold`].
    #[inline]
    pub fn request_first(&self) {
        prefetch_at((&raw const *self).cast::<[u8; LINE]>());
    }

    /// Requests from memory what the plan of a step reads of the sequence at an address, if there is one.
    #[inline]
    pub fn request_to_plan(at: *const Self) {
        prefetch_at(at.wrapping_byte_add(LINE).cast::<[u8; LINE]>());
    }

    /// Requests from memory what the result of a step changes in the sequence at an address, if there is one.
    #[inline]
    pub fn request_to_apply(at: *const Self) {
        prefetch_at(at.wrapping_byte_add(LINE).cast::<[u8; 2 * LINE]>());
    }

    /// Requests the ends of the sequence's vectors from memory: the last hash, and the place of the recent tokens.
    #[inline]
    pub fn request_tails(&self) {
        prefetch(&self.cold.hashes[self.cold.hashes.len().saturating_sub(1)..]);
        let end = self.cold.tokens.as_ptr_range().end;
        prefetch_at(end.cast::<[Token; RECENT_MAX]>());
    }

    /// Returns the number of steps since the last token that workers failed to finish with this sequence.
    pub fn failures(&self) -> u32 {
        u32::from(self.worker_failures) + u32::from(self.suspicion)
    }

    /// Returns the number of those steps that failed on this core: steps on other cores say nothing about the worker of this one.
    pub fn failures_here(&self) -> u32 {
        let history = &self.cold.history;
        let imported = if self.generated() == history.imported_tokens { history.imported_failures } else { 0 };
        self.failures().saturating_sub(imported)
    }

    /// Returns `true` if the request asks for no token.
    pub fn is_prefetch(&self) -> bool {
        self.max_tokens == 0
    }

    /// Returns the number of tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.n_tokens - self.prompt_tokens
    }

    /// Returns the number of tokens that fit into the blocks of the table.
    pub fn capacity(&self, block_size: u32) -> u32 {
        self.table.len() as u32 * block_size
    }

    /// Returns the last step that samples for the sequence, if one is in flight; `last` is the last step of all.
    pub fn last_step(&self, last: u64) -> Option<u64> {
        (self.ahead.samples > 0).then(|| last - u64::from((last as u8).wrapping_sub(self.ahead.sampled_in)))
    }

    /// Appends a generated token. Failures of workers before the token no longer count: the sequence got further than it was then.
    pub fn push(&mut self, token: Token) {
        if self.n_recent as usize == RECENT_MAX {
            self.settle();
        }
        self.recent[self.n_recent as usize] = token;
        self.n_recent += 1;
        self.n_tokens += 1;
        self.last_token = token;
        (self.worker_failures, self.suspicion) = (0, 0);
    }

    /// Appends generated tokens, which `write` appends to the others.
    pub fn push_all(&mut self, write: impl FnOnce(&mut Vec<Token>)) {
        self.settle();
        write(&mut self.cold.tokens);
        self.n_tokens = self.cold.tokens.len() as u32;
        self.last_token = self.cold.tokens.last().copied().unwrap_or_default();
        (self.worker_failures, self.suspicion) = (0, 0);
    }

    /// Reserves memory for the tokens to be generated, up to a limit, so that steps need not.
    pub fn reserve(&mut self, block_size: u32) {
        let tokens = self.n_tokens + (self.max_tokens - self.generated()).min(RESERVED_TOKENS_MAX);
        let lacking = |there: usize, all: u32| (all as usize).saturating_sub(there);
        self.cold.tokens.reserve(lacking(self.cold.tokens.len(), tokens));
        let blocks = tokens.div_ceil(block_size);
        self.table.reserve(lacking(self.table.len(), blocks));
        self.cold.tables.iter_mut().for_each(|table| table.reserve(lacking(table.len(), blocks)));
        self.cold.hashes.reserve(lacking(self.cold.hashes.len(), tokens / block_size));
    }

    /// Returns the reason of the end if the request ends with the last token generated.
    #[inline]
    pub fn finished(&self) -> Option<FinishReason> {
        let stops =
            || self.generated() >= self.cold.min_tokens.max(1) && self.cold.stop_token_ids.contains(&self.last_token);
        if self.has_stop_tokens && stops() {
            Some(FinishReason::Stop)
        } else if self.generated() >= self.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Returns the hash of the `index`-th full block of the tokens.
    pub fn hash_of_block(&mut self, index: usize, block_size: u32) -> BlockHash {
        self.settle();
        let cold = &mut *self.cold;
        if cold.hashes.len() <= index {
            let end = (index + 1) * block_size as usize;
            extend_hashes(&mut cold.hashes, cold.root, block_size, &cold.tokens[..end]);
        }
        cold.hashes[index]
    }

    /// Returns the number of blocks with KV of the sequence.
    pub fn computed_blocks(&self, block_size: u32) -> usize {
        self.computed.div_ceil(block_size) as usize
    }

    /// Returns the number of last entries with a block in the table of a layer group after the first.
    pub fn last_held(&self, group: usize) -> u32 {
        let table = self.cold.tables.get(group - 1).map_or(&[][..], Vec::as_slice);
        table.iter().rev().take_while(|block| **block != BlockHandle::NONE).count() as u32
    }

    /// Returns the number of blocks at some entries of the block tables, in all layer groups.
    pub fn blocks_at(&self, entries: Range<usize>) -> usize {
        let held = |table: &Vec<BlockHandle>| {
            table[entries.clone()].iter().filter(|block| **block != BlockHandle::NONE).count()
        };
        entries.len() + self.cold.tables.iter().map(held).sum::<usize>()
    }

    /// Notes that step `step` runs the next `n_tokens`, samples if `sample`, and drafts if `drafts`.
    pub fn begin_step(&mut self, step: u64, n_tokens: u32, sample: bool, drafts: bool) {
        let ahead = &mut self.ahead;
        ahead.tokens += n_tokens;
        ahead.steps += 1;
        ahead.drafts = drafts;
        if sample {
            ahead.samples += 1;
            ahead.sampled_in = step as u8;
        }
    }

    /// Notes the end of the sequence's oldest step in flight: the step ran `n_tokens`, and sampled if `sample`.
    pub fn end_step(&mut self, n_tokens: u32, sample: bool) {
        let ahead = &mut self.ahead;
        ahead.tokens -= n_tokens;
        ahead.steps -= 1;
        ahead.samples -= u8::from(sample);
        ahead.drafts = false;
    }

    /// Goes back to waiting, with all tokens and no block, or first waits for the steps in flight with the sequence.
    pub fn rewind(&mut self, event: SequenceEvent) {
        let next = if self.is_in_step() { Phase::Preempted } else { Phase::Waiting };
        let left = self.transition(event, next);
        self.settle();
        debug_assert!(self.table.is_empty() && left.hosts().is_empty(), "the blocks are released first");
        debug_assert!(self.cold.tables.iter().all(Vec::is_empty), "so are those of all groups");
        self.cold.drops.clear();
        self.cold.planner = None;
        self.cold.copied = None;
        self.cold.tail = None;
        self.cold.given_up = None;
        self.cold.promised = 0;
        self.cold.is_stale = false;
        self.on_worker = false;
        self.unpublishable = self.cold.reread_from.is_some();
        self.computed = 0;
        self.published = 0;
        self.mirror.table_sent = 0;
    }

    /// Decodes from now on: the first token came, or came again.
    pub fn begin_answer(&mut self, now_ns: u64) {
        self.transition(SequenceEvent::FirstToken, Phase::Decode);
        let first_ns = &mut self.cold.history.first_token_ns;
        *first_ns = if *first_ns == 0 { now_ns } else { *first_ns };
    }

    /// Returns the policy's view of the request when it joins or leaves the queue, with `cached_tokens` expected in the cache.
    pub fn view(&self, cached_tokens: u32) -> RequestView {
        let arrival = self.cold.history.queued_as.unwrap_or(self.cold.view.arrival);
        RequestView { tokens: self.n_tokens, cached_tokens, arrival, ..self.cold.view }
    }

    /// Returns the request for submission to another core, with the tokens generated so far.
    pub fn into_request(mut self, block_size: u32) -> Request {
        self.settle();
        let mut cold = *self.cold;
        let generated = cold.tokens.split_off(self.prompt_tokens as usize);
        cold.hashes.truncate((self.prompt_tokens / block_size) as usize);
        Request {
            id: self.id,
            prompt: cold.tokens,
            generated,
            root: cold.root,
            hashes: cold.hashes,
            max_tokens: self.max_tokens,
            client_limit: Some(cold.view.max_tokens).filter(|limit| ![0, self.max_tokens].contains(limit)),
            prefetch: self.max_tokens == 0,
            min_tokens: cold.min_tokens,
            stop_token_ids: cold.stop_token_ids.into_vec(),
            tenant: cold.view.tenant,
            priority: cold.view.priority,
            background: cold.view.is_background,
            deadline_ns: cold.view.deadline_ns,
            sampling: cold.sampling,
            // Another core would read the prompt again.
            h2o: if cold.history.reread_failed { Some(h2o::Mode::Off) } else { cold.h2o },
            retention: cold.retention.into_vec(),
            reuse: cold.reuse,
            prompt_logprobs: cold.valued.n_top,
            shares_cache: cold.shares_cache,
            kv_class: cold.kv_class,
            continues: cold.continues,
            worker_failures: u32::from(self.worker_failures),
            suspicion: u32::from(self.suspicion),
            is_accepted: false,
        }
    }

    /// Returns the usage reported to the client at the end.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cold.history.cached_tokens.unwrap_or(0),
            copied_tokens: self.cold.history.copied_tokens,
            loaded_tokens: self.cold.history.loaded_tokens,
            pinned_tokens: self.cold.history.pinned_tokens.unwrap_or(0),
            completion_tokens: self.generated(),
            preemptions: self.cold.history.preemptions,
        }
    }
}
