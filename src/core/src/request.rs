//! Requests: the parameters a client sends, and the outcome it receives.

pub(crate) mod remains;
pub mod retention;
pub mod sequence;
pub(crate) mod wait;

use serde::{Deserialize, Serialize};
pub use trunkline_port::Sampling;
use trunkline_port::SeqFault;

use crate::blocks::hash::{BlockHash, extend_hashes};
use crate::h2o::Mode;
use crate::names::ids::{RequestId, Token};
use crate::request::retention::{RetentionError, RetentionHint};

/// A request as the core sees it. Text, channels and credentials stay with the driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Identifier chosen by the driver, below 2^63.
    pub id: RequestId,
    /// Prompt, at least one token.
    pub prompt: Vec<Token>,
    /// Tokens generated before this submission, on another core that gave the request back ([`crate::Event::Withdraw`]). These count
    /// against `max_tokens` and are not emitted again; sampling continues after them. Empty for a new request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generated: Vec<Token>,
    /// Steps of this request alone that workers failed to finish before this submission, on other cores, since the request's last token.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub worker_failures: u32,
    /// Steps of this request alongside others that workers failed to finish, likewise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suspicion: u32,
    /// `true` if another core accepted the request before and lost it with its worker: the limits of the queue are for new requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accepted: bool,
    /// Hash of the empty prefix in the request's namespace: [`crate::blocks::hash::Namespace::root`].
    pub root: BlockHash,
    /// Chained hashes of the prompt's full blocks, computed off the core's thread by [`Request::hash_prompt`].
    #[serde(skip)]
    pub hashes: Vec<BlockHash>,
    /// Upper bound on generated tokens, at least one.
    pub max_tokens: u32,
    /// Limit of the client as policies see it, if `max_tokens` is where the answer is known to end, as in a replay; else `max_tokens` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_limit: Option<u32>,
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
    /// `true` if the request serves nobody at once, as a summary written alongside a chat: it ranks behind all others, and gives way to them
    /// ([`BACKGROUND_NS`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Time at which the request ends with [`FinishReason::Timeout`], on the clock of the events, nanoseconds.
    pub deadline_ns: Option<u64>,
    /// Sampling parameters for the worker.
    pub sampling: Sampling,
    /// Number of most likely tokens to report with the log probability of each token of the prompt but the first; `None` reports none. Such a
    /// request computes every position whose value is wanted, also if it is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<u32>,
    /// Eviction within the request's sequence; `None` for [`crate::Config::h2o`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub h2o: Option<Mode>,
    /// Reuse of cached text that is not a prefix; `None` for the core's rule. Without effect while [`crate::config::ReuseConfig::anywhere`] is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
    /// `true` if several tenants share the cache of the request's namespace: runs are copied in whole blocks, and show a tenant nothing finer of the
    /// others' prompts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_cache: bool,
    /// Priorities of ranges of tokens in the prefix cache, in the order of the ranges: see [`crate::request::retention`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retention: Vec<RetentionHint>,
    /// `true` to bring what is cached of the prompt to the device, and to compute nothing: `max_tokens` does not count, and the request ends with
    /// [`FinishReason::Length`]. Such a request ranks behind all others, and loads no more than they leave room for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefetch: bool,
    /// Class of the engines that may serve the request, by the type of their KV; 0 for the first. For clusters: a core has one type.
    #[serde(default, skip_serializing_if = "is_first")]
    pub kv_class: u8,
    /// `true` if another core continues the request after its end here, and looks for its blocks in a shared tier: copies there are urgent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// Time from its acceptance on after which a background request ranks as any other, nanoseconds: it waits for others, but not for ever.
pub const BACKGROUND_NS: u64 = 60_000_000_000;

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_first(class: &u8) -> bool {
    *class == 0
}

impl Request {
    /// Creates a greedy request with no stop tokens, priority 0 and no deadline, unhashed.
    pub fn new(id: RequestId, root: BlockHash, prompt: Vec<Token>, max_tokens: u32) -> Self {
        Self { id, root, prompt, max_tokens, ..Self::default() }
    }

    /// Returns the tokens asked for: none for a prefetch.
    pub fn asked_tokens(&self) -> u32 {
        if self.prefetch { 0 } else { self.max_tokens }
    }

    /// Computes the chained hashes of the prompt's blocks of `block_size` tokens. The driver MUST call this before submitting.
    pub fn hash_prompt(&mut self, block_size: u32) {
        extend_hashes(&mut self.hashes, self.root, block_size, &self.prompt);
    }
}

/// Cached text that a request may take KV from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// The longest cached prefix alone: exact.
    Prefix,
    /// Also runs of tokens after the prefix that are cached at other places: approximate.
    Anywhere,
}

impl Reuse {
    /// All kinds, with the names users write.
    pub const ALL: [(&'static str, Self); 2] = [("prefix", Self::Prefix), ("anywhere", Self::Anywhere)];
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
    /// The model computed NaN or infinity for the request.
    NotFinite,
    /// The worker cannot honour a parameter of the request.
    Unsupported,
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
            Self::NotFinite => "not_finite",
            Self::Unsupported => "unsupported",
        }
    }

    /// Returns `true` if the worker failed the request alone, in a step that it computed for others.
    pub fn is_fault(self) -> bool {
        matches!(self, Self::NotFinite | Self::Unsupported)
    }
}

impl From<SeqFault> for FinishReason {
    fn from(fault: SeqFault) -> Self {
        match fault {
            SeqFault::NotFinite => Self::NotFinite,
            SeqFault::Unsupported => Self::Unsupported,
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
    /// Prompt tokens whose KV was then copied from other places in the cache, after the prefix.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copied_tokens: u32,
    /// Prompt tokens among `cached_tokens` that were then loaded from tiers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub loaded_tokens: u32,
    /// Tokens from the first on that pins of the request hold at its end: fewer than asked for beyond the bound of the tenant.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pinned_tokens: u32,
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
    /// Every engine of the cluster is out of service.
    #[error("no engine is in service; try again later")]
    NoEngine,
    /// Another request with this id has not ended.
    #[error("a request with this id is still active")]
    DuplicateId,
    /// The id is reserved: the core gives such ids to requests of its own.
    #[error("ids of requests are below 2^63")]
    ReservedId,
    /// The tenant, or all together, have as many prefetches under way as the limit allows.
    #[error("{limit} prefetches are under way; wait for one to end")]
    PrefetchesFull {
        /// Most prefetches at a time.
        limit: u32,
    },
    /// A retention hint is malformed.
    #[error(transparent)]
    Retention(RetentionError),
}

impl Refusal {
    /// Returns the number of the reason in the decisions digest, from 1. The numbers are part of recordings: never reuse a number.
    pub fn number(&self) -> u64 {
        match self {
            Self::EmptyPrompt => 1,
            Self::NoTokensAsked => 2,
            Self::ContextTooLong { .. } => 3,
            Self::NeverFits { .. } => 4,
            Self::QueueFull { .. } => 5,
            Self::QueueTokensFull { .. } => 6,
            Self::Draining => 7,
            Self::NoEngine => 8,
            Self::DuplicateId => 9,
            Self::ReservedId => 10,
            Self::Retention(_) => 11,
            Self::PrefetchesFull { .. } => 12,
        }
    }
}
