//! Limits a core works under, checked once, and the table of settings from which commands make flags and keys.

mod device_eviction;
mod error;
mod h2o;
mod imitations;
mod pipeline_batches;
mod prefill_first;
mod reuse;
mod step_target;
mod table;
mod worker;

use serde::{Deserialize, Serialize};
use trunkline_port::{Keeps, LAYER_GROUPS_MAX};

pub use self::error::ConfigError;
pub use self::h2o::H2oConfig;
pub use self::imitations::imitated;
pub use self::pipeline_batches::PipelineBatches;
pub use self::prefill_first::{Chunks, OutputReserve, PrefillFirst};
pub use self::reuse::ReuseConfig;
pub use self::step_target::StepTarget;
pub use self::table::{Kind, Setting};
use self::table::{Milliseconds, Notation, Plain, check, dashed, read, settings};
pub use self::worker::WorkerFacts;
use crate::eviction::{self, Eviction};
use crate::names::registry::{UnknownName, choose};
use crate::policy::{self, Policy};
use crate::request::retention::RetainedBlocks;

/// Name of a first tier that is host memory, and shares its blocks with swapped-out requests.
pub const HOST_TIER: &str = "host";
/// Tokens in a block by default.
pub const BLOCK_SIZE_DEFAULT: u32 = 16;
/// Maximum number of tiers behind the device.
pub const TIERS_MAX: usize = 3;
const BLOCK_SIZE_MAX: u32 = 4096;
const TOKENS_MAX: u32 = 1 << 30;
const DRAFTS_MAX: u32 = 64;
/// Maximum number of steps in flight, and stages of a pipeline.
pub const STEPS_IN_FLIGHT_MAX: u32 = 64;
const WATERMARK_MAX: f64 = 1024.0;

settings! {
    /// Limits a core works under. A recording carries its own, so that a replay runs under equal ones.
    ///
    /// This list is the one place where a setting is written; [`Default`], [`Config::validate`], the header of recordings, the
    /// flags and keys of the commands, and [`SETTINGS`] follow from it. To add a setting, add one entry: `config/table.rs`
    /// lists the parts of an entry. A setting younger than the format of recordings says `recorded: unless_default`, so that
    /// the headers of earlier recordings keep their bytes and can still be read:
    ///
    /// ```text
    /// /// Steps that may be sent to the worker before the result of the first is reported.
    /// max_steps_in_flight: u32 { default: 1, range: 1..=64, value: "STEPS", recorded: unless_default }
    /// ```
    pub struct Config {
        /// Tokens in a KV block.
        block_size: u32 { default: BLOCK_SIZE_DEFAULT, range: 1..=BLOCK_SIZE_MAX, value: "TOKENS" }

        /// KV blocks on each device.
        device_blocks: u32 { default: 4096, range: 1..=TOKENS_MAX, value: "N" }

        /// Token budget of a step (`max_num_batched_tokens` of vLLM): the most prompt and decode tokens that one step computes; cached
        /// tokens do not count.
        max_batch_tokens: u32 { default: 2048, range: 1..=TOKENS_MAX, value: "N" }

        /// Maximum number of sequences in one step (`max_num_seqs` of vLLM).
        ///
        /// A request that ended early counts until the steps in flight that run it end.
        max_batch_size: u32 { default: 256, range: 1..=1 << 20, value: "N" }

        /// Requests that may wait to be admitted; more are refused.
        ///
        /// A request that ended does not count, whatever steps and transfers in flight still do with its blocks.
        max_queue: u32 { default: 1024, range: 1..=TOKENS_MAX, value: "N" }

        /// Tokens needing KV that all waiting requests may have together; a request beyond is refused unless the queue is empty.
        max_queued_tokens: u64 { default: 1 << 40, value: "N" }

        /// Asynchronous scheduling: the most steps sent to the worker before the result of the first is known; 1 waits for each
        /// result.
        ///
        /// With 2 the worker never waits for the core. A request that turns out to have ended costs one row of each step in flight
        /// that runs it. A pipeline needs at least as many as it has stages.
        max_steps_in_flight: u32 {
            default: 1, range: 1..=STEPS_IN_FLIGHT_MAX, value: "STEPS", recorded: unless_default
        }

        /// Stages of the worker's pipeline: a sampled token reaches the first stage so many steps later, and decodes are divided
        /// among as many steps.
        pipeline_stages: u32 { default: 1, range: 1..=STEPS_IN_FLIGHT_MAX, value: "STAGES", recorded: unless_default }

        /// End prefill chunks at block boundaries where possible.
        ///
        /// Avoids attending to half-filled blocks. Set to `false` to reproduce engines that do not align chunks.
        align_chunks: bool { default: true, value: "BOOL" }

        /// Prefills before decodes, never alongside them: with `true`, a step runs whole prompts alone while a waiting request can be
        /// admitted, else all decodes; with `padded`, each prompt counts as the longest of the step; with `chunks`, the last prompt of a
        /// step may continue in the next.
        ///
        /// Imitates engines without a mixed batch. With `true`, a prompt longer than the token budget of a step runs in chunks, too.
        /// `chunks` takes parameters, as in `chunks:reserve_permille=700,least_permille=98`: [`PrefillFirst`].
        prefill_first: PrefillFirst { default: PrefillFirst::Off, value: "MODE", recorded: unless_default }

        /// Maximum number of positions sampled from in one step: one for each sequence that samples, and one for each draft.
        max_step_logits: u32 { default: 1 << 16, range: 1..=TOKENS_MAX, value: "N" }

        /// Speculative decoding: the most tokens drafted for a decoding request while few requests run; their steps wait for results, and a worker
        /// that drafts less is asked for less. The output does not change, except under `--h2o on`; 0 is off.
        ///
        /// See [`crate::StepSeq::n_drafts`].
        max_drafts: u32 { default: 0, range: 0..=DRAFTS_MAX, value: "N" }

        /// Longest time of a step while requests decode, in milliseconds, or as a multiple of what the same decodes take alone, as in `3x`:
        /// prefill chunks shrink to meet it, which bounds the time between two tokens; 0 is off.
        ///
        /// [`StepTarget::SERVED`] is the default of `serve`; replays of traces and imitated engines have none. As a multiple it also bounds steps
        /// without decodes, to three times the time, and lets prompts take turns.
        target_step_ns: StepTarget { default: StepTarget::Off, value: "MS", flag: "target-step-ms" }

        /// Blocks that must stay usable for each running request when another is admitted.
        launch_watermark: f64 { default: 1.0, range: 0.0..=WATERMARK_MAX, value: "BLOCKS" }

        /// Keep blocks free for a prompt from its admission on, as many as it takes at most; with `false`, a prompt is admitted if it fits, takes
        /// blocks chunk by chunk, and is preempted if they run out meanwhile, as in vLLM.
        reserve_prompts: bool { default: true, value: "BOOL", recorded: unless_default }

        /// Blocks that must stay usable for each running request when one is swapped in.
        swap_in_watermark: f64 { default: 1.0, range: 0.0..=WATERMARK_MAX, value: "BLOCKS" }

        /// KV blocks in host memory for requests that are swapped out; 0 is none.
        ///
        /// A first tier called `host` is the same memory: the tier and the swapped-out requests then share the blocks of both.
        host_blocks: u32 { default: 0, range: 0..=TOKENS_MAX, value: "N" }

        /// Time after which a copy of KV blocks is overdue: requests that wait for the copy are recomputed, in other blocks, and the
        /// place behind the copy is left alone until the copy ends; 0 is never.
        ///
        /// In nanoseconds here; users write milliseconds. Once copies between two places were measured, a copy that takes sixteen
        /// times as long as expected, and a second at least, is overdue too. A load from a tier is overdue once it has taken as long as
        /// expected and as long again as computing its blocks takes. The default is long for a slow disk and short for a client.
        copy_timeout_ns: u64 {
            default: 30_000_000_000, value: "MS", flag: "copy-timeout-ms", notation: Milliseconds, recorded: unless_default
        }

        /// Tiers of the prefix cache beyond the device, nearest first; empty for none.
        tiers: Vec<TierConfig> { default: Vec::new() }

        /// Preemption of a running request when others need its blocks: `swap` to the host, `recompute`, `cost` for the
        /// cheaper of the two by estimate, or `retract`, which recomputes the request with the least output behind all that wait.
        /// `recompute_at_once` and `retract_at_once` do not wait for the steps in flight, as in vLLM and SGLang.
        preemption: Preemption { default: Preemption::Cost, value: "NAME" }

        /// Estimated time to copy a block one way between device and host, nanoseconds, for `--preemption cost` until copies were
        /// measured.
        // Llama-3.1-8B in 16 bits on PCIe 4: 2 MiB at 25 GB/s.
        swap_block_ns: u64 { default: 84_000, value: "NS" }

        /// Estimated time to compute the KV of a token in a prefill, nanoseconds, for `--preemption cost` until prefills were measured.
        // 10,000 tokens/s of prefill.
        recompute_token_ns: u64 { default: 100_000, value: "NS" }

        /// Layer groups of the model, and needs of the workers.
        worker: WorkerFacts { default: WorkerFacts::default(), recorded: unless_default }

        /// Eviction within a sequence (H2O): `off`, `probe` to plan and count alone, or `on` to drop blocks hardly read by attention in
        /// the layer groups that evict, with settings as in `on:ratio=4,recent=128`.
        ///
        /// A request may ask for another mode: [`crate::Request::h2o`].
        h2o: H2oConfig { default: H2oConfig::default(), value: "MODE", recorded: unless_default }

        /// Prompt and generated tokens of one request, at most.
        max_context: u32 { default: 1 << 20, range: 2..=TOKENS_MAX }

        /// Order of waiting requests and choice of preemption victims, with parameters as in `priority:ageing_ms=5000`; an
        /// unknown name lists all.
        ///
        /// A name in [`policy::REGISTRY`]; for parameters see [`crate::names::spec`].
        policy: String { default: "fcfs".into(), value: "SPEC" }

        /// Eviction policy: the order in which idle cached blocks are evicted; an unknown name lists all. With any policy,
        /// `retain_percent`, as in `lru:retain_percent=25`, bounds the blocks that retention hints of one tenant keep, and
        /// `floor_percent` sets the blocks of the device and of each tier that all tenants keep together whatever one of them sends (50 with a
        /// policy that orders tenants, else 0).
        ///
        /// A name in [`eviction::REGISTRY`]; for parameters see [`crate::names::spec`]. [`Config::retained_blocks`] has the bounds in blocks.
        eviction: String { default: "lru".into(), value: "NAME" }
    }

    /// Settings that are fields of [`Config`], in their order.
    pub static FIELDS;
}

/// Number of all settings.
const SETTINGS_N: usize = FIELDS.len() + reuse::SETTINGS.len();

/// All settings: the fields of [`Config`] in their order, then those of [`ReuseConfig`].
pub static SETTINGS: &[Setting] = &{
    let mut all = [FIELDS[0]; SETTINGS_N];
    let mut at = 0;
    while at < SETTINGS_N {
        all[at] = if at < FIELDS.len() { FIELDS[at] } else { reuse::SETTINGS[at - FIELDS.len()] };
        at += 1;
    }
    all
};

/// Returns the setting of that name, if there is one.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Way to preempt a running request when others need its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// Copies the blocks to the host, and back once there is room; recomputes them if the host is full.
    Swap,
    /// Releases the blocks and computes their tokens again.
    Recompute,
    /// Swaps or recomputes, as the learned costs say, which start with [`Config::swap_block_ns`] and [`Config::recompute_token_ns`].
    Cost,
    /// As [`Self::Recompute`], but the request with the least output goes, of equals the one with the longest prompt, and then
    /// waits behind all other requests of equal rank: SGLang's retraction. Cached blocks are evicted at once until 20 tokens of each
    /// decode left have room, first the output of the request, as nothing else is idle then.
    Retract,
    /// As [`Self::Recompute`], but a request is preempted, and later steps get the blocks, while steps in flight still run the
    /// request; tokens sampled there count, and nothing is admitted until the steps have ended: vLLM's asynchronous scheduling.
    RecomputeAtOnce,
    /// As [`Self::Retract`], but while steps in flight still run the request; tokens sampled there are dropped: SGLang's overlap. While a
    /// step in flight samples the last token of some request, no decode runs without a block, and none is retracted. Later steps also get the
    /// blocks of a request that ended, and duplicates of cached blocks, while steps in flight still use them.
    RetractAtOnce,
}

impl Preemption {
    /// All ways, with the names users write.
    pub const ALL: [(&'static str, Self); 6] = [
        ("swap", Self::Swap),
        ("recompute", Self::Recompute),
        ("cost", Self::Cost),
        ("retract", Self::Retract),
        ("recompute_at_once", Self::RecomputeAtOnce),
        ("retract_at_once", Self::RetractAtOnce),
    ];

    /// Returns the name users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swap => "swap",
            Self::Recompute => "recompute",
            Self::Cost => "cost",
            Self::Retract => "retract",
            Self::RecomputeAtOnce => "recompute_at_once",
            Self::RetractAtOnce => "retract_at_once",
        }
    }

    /// Returns `true` if the request with the least output goes, and waits behind all others.
    pub fn retracts(self) -> bool {
        matches!(self, Self::Retract | Self::RetractAtOnce)
    }

    /// Returns `true` if a request is preempted while steps in flight run the request.
    pub fn is_at_once(self) -> bool {
        matches!(self, Self::RecomputeAtOnce | Self::RetractAtOnce)
    }
}

impl std::str::FromStr for Preemption {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        choose("preemption", &Self::ALL, text)
    }
}

/// Moment at which a tier takes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// At the end of the request that computed the block; behind the first tier: as soon as the tier before holds the block.
    Through,
    /// The blocks of a prompt when all of the prompt is computed, and the rest as [`Write::Through`].
    Prefill,
    /// As [`Write::Through`], but only blocks that a request has found in the cache; behind the first tier: blocks found in
    /// the tier before.
    SecondUse,
    /// Just before the place in front evicts the block.
    Back,
}

impl Write {
    /// All moments, with the names users write.
    pub const ALL: [(&'static str, Self); 4] =
        [("through", Self::Through), ("prefill", Self::Prefill), ("second_use", Self::SecondUse), ("back", Self::Back)];
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
    /// Name for people: `host`, `disk`, `remote`.
    pub name: String,
    /// Capacity, KV blocks.
    pub blocks: u32,
    /// Moment at which the tier takes a block.
    pub write: Write,
    /// Order in which the tier evicts blocks: a name in [`eviction::REGISTRY`], with parameters if needed.
    pub eviction: String,
    /// `true` if other cores fill the tier's storage too: blocks of a prompt are looked up there. Of several such tiers, the nearest
    /// is asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl TierConfig {
    /// Makes the eviction policy named by `eviction`, for the tier's number of blocks.
    ///
    /// # Errors
    ///
    /// If no eviction policy has the name, or a parameter is unknown or outside its range.
    pub fn make_eviction(&self) -> Result<Box<dyn Eviction>, ConfigError> {
        Ok(eviction::REGISTRY.make(&self.eviction, self.blocks)?)
    }
}

impl Config {
    /// Checks every number against its range, and names and relations between settings.
    ///
    /// # Errors
    /// If a number is outside its range, a name is unknown, or two settings contradict each other; the first such fault.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_ranges()?;
        // A step that could not hold one token of every running sequence would starve the ones at its end.
        if self.max_batch_tokens < self.max_batch_size {
            return Err(ConfigError::BatchTokensBelowSize { tokens: self.max_batch_tokens, size: self.max_batch_size });
        }
        if self.tiers.len() > TIERS_MAX {
            return Err(ConfigError::TooManyTiers { n: self.tiers.len(), max: TIERS_MAX });
        }
        for tier in &self.tiers {
            check("blocks of a tier", &tier.blocks, &(1..=TOKENS_MAX))?;
            eviction::REGISTRY.parse(&tier.eviction)?;
        }
        check("host_blocks with the blocks of the tier", &self.host_capacity(), &(0..=TOKENS_MAX))?;
        self.check_groups()?;
        if self.max_step_logits < self.max_batch_size {
            let (logits, size) = (self.max_step_logits, self.max_batch_size);
            return Err(ConfigError::StepLogitsBelowSize { logits, size });
        }
        self.h2o.validate(self.block_size)?;
        self.worker.reuse.validate(self)?;
        self.make_policy()?;
        // Parsed and not made: a policy of a large cache has much memory.
        eviction::REGISTRY.parse(&device_eviction::split(&self.eviction)?.0).map_err(device_eviction::with_own_key)?;
        Ok(())
    }

    fn check_groups(&self) -> Result<(), ConfigError> {
        if self.worker.groups.len() > LAYER_GROUPS_MAX {
            return Err(ConfigError::TooManyGroups { n: self.worker.groups.len(), max: LAYER_GROUPS_MAX });
        }
        if self.worker.groups.contains(&Keeps::Window(0)) {
            return Err(ConfigError::EmptyWindow);
        }
        let groups = self.worker.groups.iter().skip(1).filter(|keeps| **keeps == Keeps::Scored).count();
        let weights = self.h2o.weights.len();
        // Without groups nothing is dropped, and a server reads its settings before it divides its model.
        if weights > 0 && !self.worker.groups.is_empty() && weights != groups {
            return Err(ConfigError::H2oWeights { weights, groups });
        }
        if u64::from(self.device_blocks) * u64::from(self.n_groups()) > u64::from(TOKENS_MAX) {
            return Err(ConfigError::GroupBlocks {
                n: self.worker.groups.len(),
                blocks: self.device_blocks,
                max: TOKENS_MAX / self.n_groups(),
            });
        }
        Ok(())
    }

    /// Returns `true` if requests may find blocks that steps in flight compute.
    pub fn publishes_ahead(&self) -> bool {
        self.worker.in_step_hits || self.prefill_first.finds_chunks()
    }

    /// Returns the number of layer groups, at least 1.
    pub fn n_groups(&self) -> u32 {
        self.worker.groups.len().max(1) as u32
    }

    /// Returns the number of blocks of the device, of all layer groups together.
    pub fn pool_blocks(&self) -> u32 {
        self.device_blocks * self.n_groups()
    }

    /// Returns the number of host blocks that swapped-out requests may take, at most.
    pub fn host_capacity(&self) -> u32 {
        self.host_blocks + self.shared_host().map_or(0, |tier| tier.blocks)
    }

    /// Returns the number of blocks that a tier may hold, at most; the number of the nearest tier is 0.
    pub fn tier_capacity(&self, tier: usize) -> u32 {
        if tier == 0 && self.shared_host().is_some() { self.host_capacity() } else { self.tiers[tier].blocks }
    }

    /// Returns the first tier if it shares host memory with swapped-out requests.
    pub(crate) fn shared_host(&self) -> Option<&TierConfig> {
        self.tiers.first().filter(|tier| self.host_blocks > 0 && tier.name == HOST_TIER)
    }

    /// Makes the scheduling policy named by `policy`, with the policy's parameters.
    ///
    /// # Errors
    ///
    /// If no policy has the name, or a parameter is unknown or outside its range.
    pub fn make_policy(&self) -> Result<Box<dyn Policy>, ConfigError> {
        Ok(policy::REGISTRY.make(&self.policy, ())?)
    }

    /// Makes the eviction policy named by `eviction`, for the device's number of blocks.
    ///
    /// # Errors
    ///
    /// If no eviction policy has the name, or a parameter is unknown or outside its range.
    pub fn make_eviction(&self) -> Result<Box<dyn Eviction>, ConfigError> {
        let (policy, _) = device_eviction::split(&self.eviction)?;
        eviction::REGISTRY
            .make(&policy, self.device_blocks)
            .map_err(|error| device_eviction::with_own_key(error).into())
    }

    /// Returns the number of blocks that retention hints may keep above the default priority, at most.
    pub fn retained_blocks(&self) -> RetainedBlocks {
        self.retained_of(self.device_blocks)
    }

    /// Returns the same of a place with so many blocks: of a tier, pins alone keep them.
    pub(crate) fn retained_of(&self, blocks: u32) -> RetainedBlocks {
        let percent = device_eviction::split(&self.eviction).map_or(0, |(_, own)| own.retain_percent);
        device_eviction::bounds(blocks, percent)
    }

    /// Returns the number of cached blocks of all layer groups that the tenants keep together whatever one of them sends: on the device, and in each
    /// tier. 0 by default for a scheduling policy that does not order tenants.
    ///
    /// # Errors
    /// If a policy or a parameter is unknown.
    pub fn tenant_floors(&self) -> Result<(u32, Vec<u32>), ConfigError> {
        let (_, own) = device_eviction::split(&self.eviction)?;
        let orders_tenants = self.make_policy()?.by_tenant();
        let floors = |blocks| device_eviction::floors(blocks, own.floor_percent, orders_tenants);
        Ok((floors(self.device_blocks), (0..self.tiers.len()).map(|at| floors(self.tier_capacity(at))).collect()))
    }
}

#[cfg(test)]
mod tests;
