//! A request on its way through the core.
//!
//! | state | holds | left by | timeout, abort, stop, shutdown |
//! |---|---|---|---|
//! | waiting | no block | admission -> prefill, or loading | ends at once |
//! | loading | all blocks of its tokens, some being filled from a tier | copies ended, or failed -> prefill; worker lost -> waiting | ends when the copies end |
//! | prefill | all blocks of its tokens | last chunk sampled -> decode; preemption -> waiting or swapping out; worker lost -> waiting | ends at once; while a step runs it, when that step ends |
//! | decode | the same, and one more now and then | last token -> ended; preemption -> waiting or swapping out; worker lost -> waiting | ends at once; while a step runs it, when that step ends |
//! | swapping out | its blocks, and host blocks being filled | copy ended -> swapped; copy failed, worker lost -> waiting | ends when the copy ends |
//! | swapped | host blocks, and device blocks that others read | room on the device -> swapping in; no other way on, worker lost -> waiting | ends at once |
//! | swapping in | device blocks being filled, and the host blocks they come from | all copies ended -> prefill or decode; a copy failed, worker lost -> waiting | ends at once; while its own copy runs, when that copy ends |
//!
//! [`TRANSITIONS`] is the same in code. An ended request is gone: it left its blocks and its one
//! [`crate::Action::Finish`] behind. A request that ends while a step or a copy works on it must wait for that, because
//! its blocks are still being written or read; its tokens of that step are dropped.

use crate::hash::{BlockHash, extend_hashes};
use crate::ids::{BlockHandle, RequestId, Token};
use crate::policy::RequestView;
use crate::request::{FinishReason, Request, Sampling, Usage};

/// Tokens for which room is made ahead.
const RESERVED_TOKENS_MAX: u32 = 2048;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// In the waiting queue, with or without tokens generated before a preemption.
    Waiting,
    /// In the batch; not all of its tokens have KV.
    Prefill,
    /// In the batch; one token without KV, the last one generated.
    Decode,
    /// Admitted with all its blocks; part of its prefix is being copied from a tier.
    Loading,
    /// Out of the batch; its KV is being copied to the host.
    SwappingOut,
    /// Out of the batch; its KV is on the host, but for a prefix that others read on the device.
    Swapped,
    /// Out of the batch; its KV is being copied back.
    SwappingIn,
}

/// Every change of state there is, with the occasion. From every state a request may also end.
pub const TRANSITIONS: [(SequenceState, SequenceState, &str); 16] = {
    use SequenceState::{Decode, Loading, Prefill, Swapped, SwappingIn, SwappingOut, Waiting};
    [
        (Waiting, Prefill, "admitted"),
        (Waiting, Loading, "admitted, and a tier has more of its prefix than the device"),
        (Loading, Prefill, "the copies ended"),
        (Loading, Waiting, "the worker was lost"),
        (Prefill, Decode, "its first token was sampled"),
        (Prefill, Waiting, "preempted, or the worker was lost"),
        (Decode, Waiting, "preempted, or the worker was lost"),
        (Prefill, SwappingOut, "preempted"),
        (Decode, SwappingOut, "preempted"),
        (SwappingOut, Swapped, "the copy ended"),
        (SwappingOut, Waiting, "the copy failed, or the worker was lost"),
        (Swapped, SwappingIn, "there is room on the device"),
        (Swapped, Waiting, "gave up its blocks so that another can run, or the worker was lost"),
        (SwappingIn, Prefill, "the copy ended, and part of the prompt has no KV yet"),
        (SwappingIn, Decode, "the copy ended"),
        (SwappingIn, Waiting, "the copy failed, or the worker was lost"),
    ]
};

/// A request and everything the core knows of it. What every step looks at comes first, so that a large batch touches few
/// cache lines of each.
#[derive(Debug)]
#[repr(C)]
pub struct Sequence {
    /// The request's id.
    pub id: RequestId,
    /// Where the worker keeps its mirror, while the sequence is in the batch.
    pub worker_slot: Option<u32>,
    /// Tokens at positions below this have KV.
    pub computed: u32,
    /// Leading blocks of `table` that are in the tree.
    pub published: u32,
    /// Leading entries of `table` that the worker's mirror has.
    pub table_sent: u32,
    /// Tokens of the prompt; the rest of `tokens` was generated.
    pub prompt_tokens: u32,
    /// The last of `tokens`.
    pub last_token: Token,
    /// Tokens it may generate.
    pub max_tokens: u32,
    /// Tokens before which no stop token counts.
    pub min_tokens: u32,
    /// Where it stands.
    pub state: SequenceState,
    /// The step in flight runs it.
    pub in_step: bool,
    /// It ends as soon as no step and no copy works on it.
    pub ending: Option<FinishReason>,
    /// It is to be handed back as soon as no step and no copy works on it; `ending` is then set, so that all stops.
    pub withdrawing: bool,
    /// The worker's mirror of this sequence is this sequence.
    pub on_worker: bool,
    /// It met a hash collision: its blocks are no longer published.
    pub unpublishable: bool,
    /// The prompt, then what was generated.
    pub tokens: Vec<Token>,
    /// The block table. Of a swapped sequence, the leading blocks that stayed on the device.
    pub table: Vec<BlockHandle>,
    /// Tokens that end it.
    pub stop_token_ids: Vec<Token>,
    /// Hashes of the full blocks of `tokens`, as far as they were needed.
    pub hashes: Vec<BlockHash>,
    /// Passed to the worker.
    pub sampling: Sampling,
    /// Hash of the empty prefix.
    pub root: BlockHash,
    /// Host blocks: while swapping out, of the last blocks with KV; while swapped or swapping in, of the blocks with KV
    /// that follow `table`.
    pub host: Vec<u32>,
    /// Device blocks taken for a swap-in: those of the last blocks with KV, to which `host` is being copied, then
    /// private ones for tokens without KV.
    pub arriving: Vec<BlockHandle>,
    /// Leading blocks of `arriving` that are copied; the same number of last blocks of `host` are where from.
    pub copied: u32,
    /// While loading: blocks after the published ones that copies fill, the copies under way, and whether one failed.
    pub loading: u32,
    /// See `loading`.
    pub loads: u32,
    /// See `loading`.
    pub load_failed: bool,
    /// What far tiers have of it was brought nearer already.
    pub prefetched: bool,
    /// The copy under way that was begun for this sequence.
    pub transfer: Option<u64>,
    /// Place in the order of arrival; unique.
    pub arrival: u64,
    /// What a policy sees of it, when it arrived. [`Self::view`] is up to date.
    pub view: RequestView,
    /// Where it stands among the swapped: the policy's [`crate::policy::Policy::preemption_rank`] when it was swapped out.
    pub keep: i128,
    /// Leading prompt tokens that its tenant was charged for.
    pub charged: u32,
    /// Prompt tokens found in the cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Tokens it had generated when it last joined the batch: until it has more, it made no progress.
    pub generated_at_entry: u32,
    /// When it was last preempted to be recomputed: its leading blocks that others read, and its published ones after
    /// those.
    pub left_shared: u32,
    /// See `left_shared`.
    pub left_cached: u32,
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
            withdrawing: false,
            worker_slot: None,
            on_worker: false,
            unpublishable: false,
            computed: 0,
            prompt_tokens: request.prompt.len() as u32,
            last_token: request.generated.last().or(request.prompt.last()).copied().unwrap_or_default(),
            published: 0,
            table_sent: 0,
            tokens: {
                let mut tokens = request.prompt;
                tokens.extend_from_slice(&request.generated);
                tokens
            },
            table: Vec::new(),
            host: Vec::new(),
            arriving: Vec::new(),
            copied: 0,
            loading: 0,
            loads: 0,
            load_failed: false,
            prefetched: false,
            transfer: None,
            hashes: request.hashes,
            root: request.root,
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            stop_token_ids: request.stop_token_ids,
            sampling: request.sampling,
            arrival,
            keep: 0,
            charged: 0,
            cached_tokens: None,
            preemptions: 0,
            generated_at_entry: 0,
            left_shared: 0,
            left_cached: 0,
            worker_failures: request.worker_failures,
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

    /// Adds a token that was generated.
    pub fn push(&mut self, token: Token) {
        self.tokens.push(token);
        self.last_token = token;
    }

    /// Makes room for what it will generate, as far as that is certain not to be a waste, so that steps need not.
    pub fn reserve(&mut self, block_size: u32) {
        let more = (self.max_tokens - self.generated()).min(RESERVED_TOKENS_MAX);
        self.tokens.reserve(more as usize);
        let blocks = more.div_ceil(block_size) as usize;
        self.table.reserve(blocks);
        self.hashes.reserve(blocks);
    }

    /// Whether and why the request ends with its last token, which was generated.
    pub fn finished(&self) -> Option<FinishReason> {
        if self.generated() >= self.min_tokens.max(1) && self.stop_token_ids.contains(&self.last_token) {
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

    /// Changes the state, as [`TRANSITIONS`] allows.
    pub fn set_state(&mut self, to: SequenceState) {
        let listed = TRANSITIONS.iter().any(|(a, b, _)| (*a, *b) == (self.state, to));
        assert!(listed, "{} cannot go from {:?} to {to:?}", self.id, self.state);
        self.state = to;
    }

    /// Blocks that hold KV of it.
    pub fn computed_blocks(&self, block_size: u32) -> usize {
        self.computed.div_ceil(block_size) as usize
    }

    /// Back to the waiting queue, with all its tokens and none of its blocks.
    pub fn rewind(&mut self) {
        debug_assert!(
            self.table.is_empty() && self.host.is_empty() && self.arriving.is_empty() && self.transfer.is_none(),
            "the blocks are released first"
        );
        self.set_state(SequenceState::Waiting);
        self.on_worker = false;
        self.computed = 0;
        self.published = 0;
        self.table_sent = 0;
    }

    /// What a policy sees of it when it joins or leaves the queue, if it would find so many tokens in the cache.
    pub fn view(&self, cached_tokens: u32) -> RequestView {
        RequestView { tokens: self.tokens.len() as u32, cached_tokens, ..self.view }
    }

    /// The request as another core would take it, with the tokens generated so far.
    pub fn into_request(mut self, block_size: u32) -> Request {
        let generated = self.tokens.split_off(self.prompt_tokens as usize);
        self.hashes.truncate((self.prompt_tokens / block_size) as usize);
        Request {
            id: self.id,
            prompt: self.tokens,
            generated,
            worker_failures: self.worker_failures,
            root: self.root,
            hashes: self.hashes,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_token_ids: self.stop_token_ids,
            tenant: self.view.tenant,
            priority: self.view.priority,
            deadline_ns: self.view.deadline_ns,
            sampling: self.sampling,
        }
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
        tokens: (request.prompt.len() + request.generated.len()) as u32,
        cached_tokens: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SequenceState::{Decode, Loading, Prefill, Swapped, SwappingIn, SwappingOut, Waiting};

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        const ALL: [SequenceState; 7] = [Waiting, Loading, Prefill, Decode, SwappingOut, Swapped, SwappingIn];
        let mut table = String::new();
        for from in ALL {
            for to in ALL {
                table.push(if TRANSITIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to)) { 'x' } else { '.' });
            }
            table.push('\n');
        }
        //                 W L P D O S I
        let reviewed = ".xx....\nx.x....\nx..xx..\nx...x..\nx....x.\nx.....x\nx.xx...\n";
        assert_eq!(table, reviewed, "rows: from; columns: to; order: that of `ALL`");
    }
}
