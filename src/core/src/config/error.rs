//! Settings under which no core can work.

use crate::spec::SpecError;

/// A setting under which no core can work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number is outside its range.
    #[error("{name} is {value}; it must be between {min} and {max}")]
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
    /// A text that is no value of the setting's type.
    #[error("{name} is '{value}'; give {expected}")]
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
    /// No policy has that name.
    #[error("unknown policy '{name}'; there are: {known}")]
    UnknownPolicy {
        /// Name that was given.
        name: String,
        /// Names of all policies.
        known: String,
    },
    /// A parameter of the policy is not understood.
    #[error("policy {0}")]
    PolicyParameter(SpecError),
    /// More tiers than a core can have.
    #[error("there are {n} tiers; there can be at most {max}")]
    TooManyTiers {
        /// Tiers that were given.
        n: usize,
        /// Tiers allowed, at most.
        max: usize,
    },
    /// No write mode of a tier has that name.
    #[error("unknown write mode '{name}'; there are: {known}")]
    UnknownWrite {
        /// Name that was given.
        name: String,
        /// Names of all write modes.
        known: String,
    },
    /// No way to preempt has that name.
    #[error("unknown preemption '{name}'; there are: {known}")]
    UnknownPreemption {
        /// Name that was given.
        name: String,
        /// Names of all ways to preempt.
        known: String,
    },
    /// No eviction policy has that name.
    #[error("unknown eviction policy '{name}'; there are: {known}")]
    UnknownEviction {
        /// Name that was given.
        name: String,
        /// Names of all eviction policies.
        known: String,
    },
}
