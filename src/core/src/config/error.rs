//! Settings under which no core can work.

use trunkline_quote::{cut, quoted};

use crate::h2o::SettingsError;
use crate::names::registry::{RegistryError, UnknownName};

/// A setting under which no core can work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number is outside its range.
    #[error("{name} is {value}; it must be between {min} and {max}", value = cut(value))]
    OutOfRange {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting, as text.
        value: String,
        /// Least value allowed.
        min: String,
        /// Greatest value allowed.
        max: String,
    },
    /// A text that is not a value of the setting's type.
    #[error("{name} is {value}; give {expected}", value = quoted(value))]
    Malformed {
        /// Name of the setting.
        name: &'static str,
        /// Text that was given.
        value: String,
        /// Description of the texts allowed: `a whole number`.
        expected: &'static str,
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
    /// Fewer logits than sequences in a step.
    #[error(
        "max_step_logits is {logits}; it must be at least max_batch_size, which is {size}: every decode is sampled from"
    )]
    StepLogitsBelowSize {
        /// Logits in a step.
        logits: u32,
        /// Sequences in a step.
        size: u32,
    },
    /// A policy or an eviction policy has no such name, or no such parameter.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A choice without parameters, such as a way to preempt, has no such name.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// A setting of eviction within a sequence is outside its range, or its block is not a multiple of the KV block.
    #[error(transparent)]
    H2o(#[from] SettingsError),
    /// A value of `h2o` that is not a number.
    #[error("h2o {key} is {value}; give a number", value = quoted(value))]
    MalformedH2o {
        /// Key of the value.
        key: String,
        /// Text that was given.
        value: String,
    },
    /// Weights of `h2o` for more or fewer layer groups than evict.
    #[error("h2o weights has {weights} numbers for {groups} layer groups that drop tokens; give one for each")]
    H2oWeights {
        /// Number of weights.
        weights: usize,
        /// Number of layer groups that evict.
        groups: usize,
    },
    /// A key of `h2o` that does not exist.
    #[error("unknown h2o setting {key}; there are: {keys}", key = quoted(key))]
    UnknownH2o {
        /// Key that was given.
        key: String,
        /// All keys.
        keys: String,
    },
    /// More tiers than a core can have.
    #[error("there are {n} tiers; there can be at most {max}")]
    TooManyTiers {
        /// Tiers that were given.
        n: usize,
        /// Maximum number of tiers allowed.
        max: usize,
    },
    /// More device blocks than can be numbered, with the blocks of all layer groups.
    #[error("device_blocks is {blocks}; with {n} layer groups it can be {max} at most")]
    GroupBlocks {
        /// Layer groups.
        n: usize,
        /// Blocks that were given.
        blocks: u32,
        /// Maximum number of blocks of one group.
        max: u32,
    },
    /// More layer groups than a core can have.
    #[error(
        "there are {n} layer groups, and there can be at most {max}; let other KV heads keep every token (--h2o-layers), more of them or whole layers"
    )]
    TooManyGroups {
        /// Groups that were given.
        n: usize,
        /// Maximum number of groups allowed.
        max: usize,
    },
    /// A setting that reuse of text that is not a prefix does not go with.
    #[error("--reuse-anywhere does not go with {setting}: {reason}; leave out one of the two")]
    ReuseAnywhere {
        /// The setting, as written by users.
        setting: &'static str,
        /// Why copies would be wrong or impossible.
        reason: &'static str,
    },
    /// A layer group with a sliding window of no token.
    #[error("a layer group has a window of 0 tokens; give at least 1")]
    EmptyWindow,
}
