//! The limits a core works under, checked once.

use serde::{Deserialize, Serialize};

use crate::eviction::{self, Eviction};
use crate::policy::{self, Policy};

/// Tokens in a block unless the user says otherwise.
pub const BLOCK_SIZE_DEFAULT: u32 = 16;
const BLOCK_SIZE_MAX: u32 = 4096;
const TOKENS_MAX: u32 = 1 << 30;

/// The limits a core works under. A recording carries its own, so that a replay is under the same ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Tokens in a block.
    pub block_size: u32,
    /// KV blocks on the device.
    pub device_blocks: u32,
    /// Tokens run in one step at most. Cached tokens do not count.
    pub max_batch_tokens: u32,
    /// Sequences in one step at most.
    pub max_batch_size: u32,
    /// Requests waiting to be admitted at most.
    pub max_queue: u32,
    /// Prompt and generated tokens of one request at most.
    pub max_context: u32,
    /// Order of waiting requests and choice of victims: a name in [`policy::names`].
    pub policy: String,
    /// Which idle block goes first: a name in [`eviction::names`].
    pub eviction: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_size: BLOCK_SIZE_DEFAULT,
            device_blocks: 4096,
            max_batch_tokens: 2048,
            max_batch_size: 256,
            max_queue: 1024,
            max_context: 1 << 20,
            policy: "fcfs".into(),
            eviction: "lru".into(),
        }
    }
}

/// A setting no core can work under.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number is outside its range.
    #[error("{name} is {value}; it must be between {min} and {max}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: u32,
        /// The least allowed.
        min: u32,
        /// The most allowed.
        max: u32,
    },
    /// Fewer tokens than sequences in a step.
    #[error(
        "max_batch_tokens is {tokens}; it must be at least max_batch_size, which is {size}: every decode takes a token"
    )]
    BatchTokensBelowSize {
        /// Tokens in a step.
        tokens: u32,
        /// Sequences in a step.
        size: u32,
    },
    /// No policy has that name.
    #[error("unknown policy '{name}'; there are: {known}")]
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// No eviction policy has that name.
    #[error("unknown eviction policy '{name}'; there are: {known}")]
    UnknownEviction {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

impl Config {
    /// Checks every field against its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let ranges = [
            ("block_size", self.block_size, 1, BLOCK_SIZE_MAX),
            ("device_blocks", self.device_blocks, 1, TOKENS_MAX),
            ("max_batch_tokens", self.max_batch_tokens, 1, TOKENS_MAX),
            ("max_batch_size", self.max_batch_size, 1, 1 << 20),
            ("max_queue", self.max_queue, 1, TOKENS_MAX),
            ("max_context", self.max_context, 2, TOKENS_MAX),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfRange { name, value, min, max });
            }
        }
        // A step that could not hold one token of every running sequence would starve the ones at its end.
        if self.max_batch_tokens < self.max_batch_size {
            return Err(ConfigError::BatchTokensBelowSize { tokens: self.max_batch_tokens, size: self.max_batch_size });
        }
        self.make_policy()?;
        self.make_eviction().map(|_| ())
    }

    /// The policy that `policy` names.
    pub fn make_policy(&self) -> Result<Box<dyn Policy>, ConfigError> {
        let unknown = || ConfigError::UnknownPolicy { name: self.policy.clone(), known: list(policy::names()) };
        policy::by_name(&self.policy).ok_or_else(unknown)
    }

    /// The eviction policy that `eviction` names, for as many blocks as there are.
    pub fn make_eviction(&self) -> Result<Box<dyn Eviction>, ConfigError> {
        let unknown = || ConfigError::UnknownEviction { name: self.eviction.clone(), known: list(eviction::names()) };
        eviction::by_name(&self.eviction, self.device_blocks).ok_or_else(unknown)
    }
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
