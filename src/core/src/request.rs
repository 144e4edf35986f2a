//! Requests: the parameters a client sends, and the outcome it receives.

use serde::{Deserialize, Serialize};

use crate::hash::{BlockHash, extend_hashes};
use crate::ids::{RequestId, Token};

/// A request as the core sees it. Text, channels and credentials stay with the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Identifier chosen by the driver.
    pub id: RequestId,
    /// Prompt, at least one token.
    pub prompt: Vec<Token>,
    /// Hash of the empty prefix in the request's namespace: [`crate::hash::Namespace::root`].
    pub root: BlockHash,
    /// Chained hashes of the prompt's full blocks, computed off the core's thread by [`Request::hash_prompt`].
    #[serde(skip)]
    pub hashes: Vec<BlockHash>,
    /// Upper bound on generated tokens, at least one.
    pub max_tokens: u32,
    /// Number of generated tokens before which no stop token ends the request.
    pub min_tokens: u32,
    /// Tokens that end the request: the model's EOS ids unless the client ignores them, and the client's own. The stop token
    /// is emitted.
    pub stop_token_ids: Vec<Token>,
    /// Tenant whose share fair policies charge. Requests with the same number share one share.
    #[serde(default)]
    pub tenant: u64,
    /// Priority for policies that use it; lower is served first.
    pub priority: i32,
    /// Time at which the request ends with [`FinishReason::Timeout`], on the clock of the events, nanoseconds.
    pub deadline_ns: Option<u64>,
    /// Sampling parameters for the worker.
    pub sampling: Sampling,
}

impl Request {
    /// Creates a greedy request with no stop tokens, priority 0 and no deadline, unhashed.
    pub fn new(id: RequestId, root: BlockHash, prompt: Vec<Token>, max_tokens: u32) -> Self {
        Self {
            id,
            prompt,
            root,
            hashes: Vec::new(),
            max_tokens,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            tenant: 0,
            priority: 0,
            deadline_ns: None,
            sampling: Sampling::default(),
        }
    }

    /// Computes the chained hashes of the prompt's blocks of `block_size` tokens. The driver MUST call this before submitting.
    pub fn hash_prompt(&mut self, block_size: u32) {
        extend_hashes(&mut self.hashes, self.root, block_size, &self.prompt);
    }
}

/// Sampling parameters, passed through to the worker unread, except that a worker is sent the whole history of a sequence
/// only if [`Sampling::needs_history`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Temperature of the softmax; 0 is greedy.
    pub temperature: f32,
    /// Number of most likely tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// Probability mass of the smallest set of tokens to keep; 1 keeps all.
    pub top_p: f32,
    /// Share of the most likely token's probability below which tokens are dropped; 0 drops none.
    pub min_p: f32,
    /// Factor by which logits of tokens already in the sequence are divided (if positive) or multiplied (if negative); 1 is off.
    pub repetition_penalty: f32,
    /// Seed of the draws. The n-th token of a request is drawn from (seed, n) alone, so neither batching nor preemption changes
    /// the output.
    pub seed: u64,
    /// Number of most likely tokens to report with each token; `None` reports no log probabilities at all.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0, logprobs: None }
    }
}

impl Sampling {
    /// Returns `true` if sampling depends on earlier tokens other than through the model.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}

/// Reason for the end of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token was generated, or the driver found a stop string.
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The client aborted the request, or the server shut down.
    Abort,
    /// The deadline passed before the end.
    Timeout,
    /// The worker failed on the request too often, or cannot compute it at all.
    Error,
}

impl FinishReason {
    /// Returns the name used on the wire and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }
}

/// Resources a request consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of tokens in the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache when the request was first admitted.
    pub cached_tokens: u32,
    /// Number of tokens generated.
    pub completion_tokens: u32,
    /// Times the request was preempted.
    pub preemptions: u32,
}

/// Reason for refusing a request on submission. A refused request changes nothing in the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// `prompt` has no token.
    #[error("prompt is empty; send at least one token")]
    EmptyPrompt,
    /// `max_tokens` is 0: no token was asked for.
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokensAsked,
    /// Prompt and output together exceed the model's context.
    #[error("prompt of {prompt_tokens} tokens plus max_tokens {max_tokens} exceeds the context of {context} tokens")]
    ContextTooLong {
        /// Number of tokens in the prompt.
        prompt_tokens: u32,
        /// Output tokens asked for.
        max_tokens: u32,
        /// Most tokens a request may have.
        context: u32,
    },
    /// The request could not finish even alone on the device.
    #[error(
        "prompt of {prompt_tokens} tokens plus max_tokens {max_tokens} needs {needed} KV blocks, the device has {capacity}"
    )]
    NeverFits {
        /// Number of tokens in the prompt.
        prompt_tokens: u32,
        /// Output tokens asked for.
        max_tokens: u32,
        /// KV blocks the request would need.
        needed: u32,
        /// KV blocks of the device.
        capacity: u32,
    },
    /// The waiting queue is full.
    #[error("the waiting queue is full ({limit} requests); try again later")]
    QueueFull {
        /// Most requests that may wait.
        limit: u32,
    },
    /// The waiting queue has no room for the tokens of this request.
    #[error("the waiting requests have {queued_tokens} tokens, with this one more than {limit}; try again later")]
    QueueTokensFull {
        /// Tokens of the waiting requests.
        queued_tokens: u64,
        /// Most tokens that may wait.
        limit: u64,
    },
    /// The core is draining and accepts no more requests.
    #[error("the server is draining and takes no new requests")]
    Draining,
    /// Another request with this id has not ended.
    #[error("a request with this id is still active")]
    DuplicateId,
}
