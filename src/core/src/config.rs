//! The limits a core works under, checked once.

use serde::{Deserialize, Serialize};

use crate::eviction::{self, Eviction};
use crate::policy::{self, Policy};
use crate::registry::{RegistryError, UnknownName, choose};
use crate::tiering::TIERS_MAX;

/// Tokens in a block unless the user says otherwise.
pub const BLOCK_SIZE_DEFAULT: u32 = 16;
const BLOCK_SIZE_MAX: u32 = 4096;
const TOKENS_MAX: u32 = 1 << 30;
const DRAFTS_MAX: u32 = 64;
const WATERMARK_MAX: u32 = 1024;

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
    /// Tokens at most that need KV when all waiting requests are admitted. A request alone in the queue may have more.
    pub max_queued_tokens: u64,
    /// Whether prefill chunks end at block boundaries, as far as they can. It saves blocks that are read while they are half
    /// full; engines that do not are imitated without.
    pub align_chunks: bool,
    /// Positions in one step that are sampled from at most: one for each sequence that samples, and one for each draft.
    pub max_step_logits: u32,
    /// Tokens a decode may draft at most, when few decodes run; 0 is off. See [`crate::step::StepSeq::n_drafts`].
    pub max_drafts: u32,
    /// While requests decode, prefill chunks are cut so that a step takes about this long, nanoseconds; 0 is off. It bounds
    /// the time between two tokens.
    pub target_step_ns: u64,
    /// Blocks that must stay usable for each running request when another is admitted.
    pub launch_watermark: f64,
    /// Blocks that must stay usable for each running request when one is swapped in.
    pub swap_in_watermark: f64,
    /// KV blocks in host memory, for requests that are swapped out; 0 is none.
    pub host_blocks: u32,
    /// The prefix cache beyond the device, nearest tier first; empty for none.
    pub tiers: Vec<TierConfig>,
    /// How a request is preempted.
    pub preemption: Preemption,
    /// What copying a block costs one way, nanoseconds. An estimate for [`Preemption::Cost`].
    pub swap_block_ns: u64,
    /// What computing the KV of a token costs in a prefill, nanoseconds. An estimate for [`Preemption::Cost`].
    pub recompute_token_ns: u64,
    /// Prompt and generated tokens of one request at most.
    pub max_context: u32,
    /// Order of waiting requests and choice of victims: a name in [`policy::REGISTRY`], with parameters if you like, as in
    /// `priority:ageing_ms=5000`; see [`crate::spec`].
    pub policy: String,
    /// Which idle block goes first: a name in [`eviction::REGISTRY`], with parameters if you like.
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
            max_queued_tokens: 1 << 40,
            align_chunks: true,
            max_step_logits: 1 << 16,
            max_drafts: 0,
            target_step_ns: 0,
            launch_watermark: 1.0,
            swap_in_watermark: 1.0,
            host_blocks: 0,
            tiers: Vec::new(),
            preemption: Preemption::Cost,
            // Llama-3.1-8B in 16 bits on PCIe 4: 2 MiB at 25 GB/s, and 10,000 tokens/s of prefill.
            swap_block_ns: 84_000,
            recompute_token_ns: 100_000,
            max_context: 1 << 20,
            policy: "fcfs".into(),
            eviction: "lru".into(),
        }
    }
}

/// What becomes of a running request whose blocks are needed by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// Its blocks are copied to the host, and back when there is room; recomputed if the host is full.
    Swap,
    /// Its blocks are given up and computed again.
    Recompute,
    /// Whichever is estimated to cost less.
    Cost,
}

impl Preemption {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("swap", Self::Swap), ("recompute", Self::Recompute), ("cost", Self::Cost)];
}

impl std::str::FromStr for Preemption {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        choose("preemption", &Self::ALL, text)
    }
}

/// When a tier takes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// When the request that computed it ends; behind the first tier: as soon as the tier before has it.
    Through,
    /// The same, but only what a request found before; behind the first tier: when it is found in the tier before.
    SecondUse,
    /// When the place before is about to evict it.
    Back,
}

impl Write {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("through", Self::Through), ("second_use", Self::SecondUse), ("back", Self::Back)];
}

impl std::str::FromStr for Write {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        choose("write mode", &Self::ALL, text)
    }
}

/// A tier of the prefix cache behind the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// What people call it: `host`, `disk`, `remote`.
    pub name: String,
    /// KV blocks it holds.
    pub blocks: u32,
    /// When it takes a block.
    pub write: Write,
    /// Which of its blocks goes first: a name in [`eviction::REGISTRY`], with parameters if you like.
    pub eviction: String,
}

impl TierConfig {
    /// The eviction policy that `eviction` names, for as many blocks as there are.
    pub fn make_eviction(&self) -> Result<Box<dyn Eviction>, ConfigError> {
        Ok(eviction::REGISTRY.make(&self.eviction, self.blocks)?)
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
    /// A number of blocks for each running request that makes no sense.
    #[error("{name} is {value}; it must be between 0 and {max}")]
    Watermark {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// The most allowed.
        max: u32,
    },
    /// More tiers than there can be.
    #[error("there are {n} tiers; there can be at most {max}")]
    TooManyTiers {
        /// How many were asked for.
        n: usize,
        /// The most allowed.
        max: usize,
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
            ("max_step_logits", self.max_step_logits, 1, TOKENS_MAX),
            ("max_drafts", self.max_drafts, 0, DRAFTS_MAX),
            ("host_blocks", self.host_blocks, 0, TOKENS_MAX),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfRange { name, value, min, max });
            }
        }
        for (name, value) in
            [("launch_watermark", self.launch_watermark), ("swap_in_watermark", self.swap_in_watermark)]
        {
            if !(0.0..=f64::from(WATERMARK_MAX)).contains(&value) {
                return Err(ConfigError::Watermark { name, value: value.to_string(), max: WATERMARK_MAX });
            }
        }
        // A step that could not hold one token of every running sequence would starve the ones at its end.
        if self.max_batch_tokens < self.max_batch_size {
            return Err(ConfigError::BatchTokensBelowSize { tokens: self.max_batch_tokens, size: self.max_batch_size });
        }
        if self.tiers.len() > TIERS_MAX {
            return Err(ConfigError::TooManyTiers { n: self.tiers.len(), max: TIERS_MAX });
        }
        for tier in &self.tiers {
            if !(1..=TOKENS_MAX).contains(&tier.blocks) {
                return Err(ConfigError::OutOfRange {
                    name: "blocks of a tier",
                    value: tier.blocks,
                    min: 1,
                    max: TOKENS_MAX,
                });
            }
            tier.make_eviction()?;
        }
        if self.max_step_logits < self.max_batch_size {
            let (logits, size) = (self.max_step_logits, self.max_batch_size);
            return Err(ConfigError::StepLogitsBelowSize { logits, size });
        }
        self.make_policy()?;
        self.make_eviction().map(|_| ())
    }

    /// The policy that `policy` names, with its parameters.
    pub fn make_policy(&self) -> Result<Box<dyn Policy>, ConfigError> {
        Ok(policy::REGISTRY.make(&self.policy, ())?)
    }

    /// The eviction policy that `eviction` names, for as many blocks as there are.
    pub fn make_eviction(&self) -> Result<Box<dyn Eviction>, ConfigError> {
        Ok(eviction::REGISTRY.make(&self.eviction, self.device_blocks)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Param;

    fn error(policy: &str) -> String {
        Config { policy: policy.into(), ..Config::default() }.validate().unwrap_err().to_string()
    }

    #[test]
    fn a_policy_that_is_not_understood_is_told_in_one_line() {
        let known = "there are: fcfs, priority, sjf, lpm, edf, vtc";
        assert_eq!(error("fifo"), format!("unknown policy 'fifo'; {known}"));
        assert_eq!(error("fifo:ageing_ms=1"), format!("unknown policy 'fifo'; {known}"));
        assert_eq!(error(""), format!("unknown policy ''; {known}"));
        assert_eq!(error("fcfs:ageing_ms=1"), "policy 'fcfs' has no parameter 'ageing_ms'; it has: none");
        assert_eq!(
            error("vtc:weight=1"),
            "policy 'vtc' has no parameter 'weight'; it has: prompt_weight, output_weight"
        );
        assert_eq!(
            error("vtc:output_weight=1001"),
            "policy 'vtc': output_weight is '1001'; it must be a whole number between 0 and 1000"
        );
        assert_eq!(
            error("priority:ageing_ms=5s"),
            "policy 'priority': ageing_ms is '5s'; it must be a whole number between 0 and 86400000"
        );
        assert_eq!(error("priority:ageing_ms=1,ageing_ms=2"), "policy 'priority': ageing_ms is given twice");
        assert_eq!(
            error("sjf:fast"),
            "policy 'sjf': 'fast' is not of the form key=value; the keys are: ageing_us_per_token"
        );
    }

    #[test]
    fn an_eviction_policy_takes_parameters_as_a_policy_does() {
        let error = |eviction: &str| {
            Config { eviction: eviction.into(), ..Config::default() }.validate().err().map(|error| error.to_string())
        };
        assert_eq!(error("s3fifo:small_percent=90"), None);
        assert_eq!(
            error("fifo:small_percent=90").unwrap(),
            "unknown eviction policy 'fifo'; there are: lru, lfu, s3fifo, reuse, cost"
        );
        assert_eq!(
            error("s3fifo:small_percent=0").unwrap(),
            "eviction policy 's3fifo': small_percent is '0'; it must be a whole number between 1 and 90"
        );
        assert_eq!(error("lru:age=1").unwrap(), "eviction policy 'lru' has no parameter 'age'; it has: none");
    }

    #[test]
    fn every_policy_is_made_from_its_name_and_from_its_parameters() {
        for entry in policy::REGISTRY.entries() {
            let with = |param: &Param| format!("{}:{}={}", entry.name, param.key, param.max);
            for policy in std::iter::once(entry.name.to_owned()).chain(entry.params.iter().map(with)) {
                assert!(Config { policy, ..Config::default() }.make_policy().is_ok());
            }
        }
    }
}
