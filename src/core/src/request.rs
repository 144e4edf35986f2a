//! What a client asks for and what it is told at the end.

use serde::{Deserialize, Serialize};

use crate::hash::{BlockHash, extend_hashes};
use crate::ids::{RequestId, Token};

/// A request as the core sees it. Text, channels and credentials stay with the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The driver's name for it.
    pub id: RequestId,
    /// The prompt. At least one token.
    pub prompt: Vec<Token>,
    /// Tokens generated before this submission, on another core that gave the request back
    /// ([`crate::Event::Withdraw`]). They count against `max_tokens`, are not emitted again, and sampling continues after
    /// them. Empty for a new request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generated: Vec<Token>,
    /// The hash of the empty prefix in the request's namespace: [`crate::hash::Namespace::root`].
    pub root: BlockHash,
    /// Chained hashes of the prompt's full blocks, made off the core's thread by [`Request::hash_prompt`].
    #[serde(skip)]
    pub hashes: Vec<BlockHash>,
    /// Upper bound on generated tokens. At least one.
    pub max_tokens: u32,
    /// Generated tokens before which no stop token ends the request.
    pub min_tokens: u32,
    /// Tokens that end the request: the model's EOS ids unless the client ignores them, and the client's own. The stop token
    /// is emitted.
    pub stop_token_ids: Vec<Token>,
    /// Whom fair policies count it for. Requests of one number share a share.
    #[serde(default)]
    pub tenant: u64,
    /// Lower is served first by policies that look at it.
    pub priority: i32,
    /// The time at which the request ends with [`FinishReason::Timeout`], on the clock of the events, nanoseconds.
    pub deadline_ns: Option<u64>,
    /// How the worker picks tokens.
    pub sampling: Sampling,
}

impl Request {
    /// A greedy request with no stop tokens, priority 0 and no deadline, unhashed.
    pub fn new(id: RequestId, root: BlockHash, prompt: Vec<Token>, max_tokens: u32) -> Self {
        Self {
            id,
            prompt,
            generated: Vec::new(),
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

    /// Fills in the prompt's block hashes for blocks of `block_size` tokens. The driver MUST call this before it submits.
    pub fn hash_prompt(&mut self, block_size: u32) {
        extend_hashes(&mut self.hashes, self.root, block_size, &self.prompt);
    }
}

/// Sampling parameters, passed through to the worker unread, except that a worker is sent the whole history of a sequence
/// only if [`Sampling::needs_history`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this share of the most likely one's probability; 0 drops none.
    pub min_p: f32,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by this; 1 is off.
    pub repetition_penalty: f32,
    /// The n-th token of a request is drawn from (seed, n) alone, so neither batching nor preemption changes it.
    pub seed: u64,
    /// How many most likely tokens to report with each token; `None` reports no log probabilities at all.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0, logprobs: None }
    }
}

impl Sampling {
    /// Whether the next token depends on tokens other than through the model.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}

/// Why a request that had been accepted ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token was generated, or the driver found a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The client gave up, or the server shut down.
    Abort,
    /// The deadline passed.
    Timeout,
    /// The worker failed on it too often, or cannot compute it at all.
    Error,
}

impl FinishReason {
    /// The name used on the wire and in reports.
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

/// What a request consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache when the request was first admitted.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Times the request was preempted.
    pub preemptions: u32,
}

/// Why a request was turned away at the door; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// `prompt` has no token.
    #[error("prompt is empty; send at least one token")]
    EmptyPrompt,
    /// `max_tokens` is zero.
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokensAsked,
    /// Prompt and output together exceed the model's context.
    #[error("prompt of {prompt_tokens} tokens plus max_tokens {max_tokens} exceeds the context of {context} tokens")]
    ContextTooLong {
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        max_tokens: u32,
        /// The limit.
        context: u32,
    },
    /// Even alone on the device it could not finish.
    #[error(
        "prompt of {prompt_tokens} tokens plus max_tokens {max_tokens} needs {needed} KV blocks, the device has {capacity}"
    )]
    NeverFits {
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        max_tokens: u32,
        /// Blocks it would need.
        needed: u32,
        /// Blocks there are.
        capacity: u32,
    },
    /// The waiting queue is full.
    #[error("the waiting queue is full ({limit} requests); try again later")]
    QueueFull {
        /// The limit.
        limit: u32,
    },
    /// The waiting queue holds as many tokens as it may.
    #[error("the waiting requests have {queued_tokens} tokens, with this one more than {limit}; try again later")]
    QueueTokensFull {
        /// Tokens waiting.
        queued_tokens: u64,
        /// The limit.
        limit: u64,
    },
    /// The core is draining.
    #[error("the server is draining and takes no new requests")]
    Draining,
    /// The id names a request that has not ended.
    #[error("a request with this id is still active")]
    DuplicateId,
}
