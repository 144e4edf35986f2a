//! A request on its way through the core.
//!
//! | state | holds | left by | timeout, abort, stop, shutdown |
//! |---|---|---|---|
//! | waiting | no block | admission -> prefill | ends at once |
//! | prefill | all blocks of its tokens | last chunk sampled -> decode; preemption, worker lost -> waiting | ends at once; while a step runs it, when that step ends |
//! | decode | the same, one more now and then | last token -> ended; preemption, worker lost -> waiting | ends at once; while a step runs it, when that step ends |
//!
//! An ended request is gone: it left its blocks and its one [`crate::Action::Finish`] behind. A request that ends while
//! a step runs it must wait for that step, because the worker is still writing its blocks; its tokens of that step are
//! dropped.

use crate::hash::{BlockHash, extend_hashes};
use crate::ids::{BlockHandle, RequestId, Token};
use crate::policy::RequestView;
use crate::request::{FinishReason, Request, Sampling, Usage};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// In the waiting queue, with or without tokens generated before a preemption.
    Waiting,
    /// In the batch; not all of its tokens have KV.
    Prefill,
    /// In the batch; one token without KV, the last one generated.
    Decode,
}

/// A request and everything the core knows of it.
#[derive(Debug)]
pub struct Sequence {
    /// The request's id.
    pub id: RequestId,
    /// Where it stands.
    pub state: SequenceState,
    /// The step in flight runs it.
    pub in_step: bool,
    /// It ends as soon as no step runs it.
    pub ending: Option<FinishReason>,
    /// Where the worker keeps its mirror, while the sequence is in the batch.
    pub worker_slot: Option<u32>,
    /// The worker's mirror of this sequence is this sequence.
    pub on_worker: bool,
    /// It met a hash collision: its blocks are no longer published.
    pub unpublishable: bool,
    /// Tokens at positions below this have KV.
    pub computed: u32,
    /// Tokens of the prompt; the rest of `tokens` was generated.
    pub prompt_tokens: u32,
    /// Leading blocks of `table` that are in the tree.
    pub published: u32,
    /// Leading entries of `table` that the worker's mirror has.
    pub table_sent: u32,
    /// The prompt, then what was generated.
    pub tokens: Vec<Token>,
    /// The block table.
    pub table: Vec<BlockHandle>,
    /// Hashes of the full blocks of `tokens`, as far as they were needed.
    pub hashes: Vec<BlockHash>,
    /// Hash of the empty prefix.
    pub root: BlockHash,
    /// Tokens it may generate.
    pub max_tokens: u32,
    /// Tokens before which no stop token counts.
    pub min_tokens: u32,
    /// Tokens that end it.
    pub stop_token_ids: Vec<Token>,
    /// Passed to the worker.
    pub sampling: Sampling,
    /// Place in the order of arrival; unique.
    pub arrival: u64,
    /// What the policy sees of it.
    pub view: RequestView,
    /// Prompt tokens found in the cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Steps of it that a worker failed to finish.
    pub worker_failures: u32,
}

impl Sequence {
    /// A waiting sequence.
    pub fn new(request: Request, arrival: u64, now_ns: u64) -> Self {
        Self {
            view: view(&request, arrival, now_ns),
            id: request.id,
            state: SequenceState::Waiting,
            in_step: false,
            ending: None,
            worker_slot: None,
            on_worker: false,
            unpublishable: false,
            computed: 0,
            prompt_tokens: request.prompt.len() as u32,
            published: 0,
            table_sent: 0,
            tokens: request.prompt,
            table: Vec::new(),
            hashes: request.hashes,
            root: request.root,
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            stop_token_ids: request.stop_token_ids,
            sampling: request.sampling,
            arrival,
            cached_tokens: None,
            preemptions: 0,
            worker_failures: 0,
        }
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_tokens
    }

    /// Tokens that still have no KV.
    pub fn remaining(&self) -> u32 {
        self.tokens.len() as u32 - self.computed
    }

    /// Whether and why the request ends with its last token.
    pub fn finished(&self) -> Option<FinishReason> {
        let last = self.tokens.last()?;
        if self.generated() >= self.min_tokens.max(1) && self.stop_token_ids.contains(last) {
            Some(FinishReason::Stop)
        } else if self.generated() >= self.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// The hash of the `index`-th full block of the tokens.
    pub fn hash_of_block(&mut self, index: usize, block_size: u32) -> BlockHash {
        if self.hashes.len() <= index {
            let end = (index + 1) * block_size as usize;
            extend_hashes(&mut self.hashes, self.root, block_size, &self.tokens[..end]);
        }
        self.hashes[index]
    }

    /// Back to the waiting queue, with all its tokens and none of its blocks.
    pub fn rewind(&mut self) {
        debug_assert!(self.table.is_empty(), "the blocks are released first");
        self.state = SequenceState::Waiting;
        self.on_worker = false;
        self.computed = 0;
        self.published = 0;
        self.table_sent = 0;
        self.view.tokens = self.tokens.len() as u32;
    }

    /// What the client is told at the end.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.generated(),
            preemptions: self.preemptions,
        }
    }
}

/// What a policy sees of a request.
fn view(request: &Request, arrival: u64, now_ns: u64) -> RequestView {
    RequestView {
        arrival,
        arrival_ns: now_ns,
        tenant: request.tenant,
        priority: request.priority,
        deadline_ns: request.deadline_ns,
        prompt_tokens: request.prompt.len() as u32,
        max_tokens: request.max_tokens,
        tokens: request.prompt.len() as u32,
        cached_tokens: 0,
    }
}
