//! What a replay found.

use serde::Serialize;

use crate::fleet::Settings;
use crate::latency::Summary;
use crate::trace::Format;

/// The result of a replay. All of it but [`Report::wall_s`] is the same each time the same is replayed.
///
/// Counts are over all replicas. Latencies are of completed requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was replayed, on what.
    pub settings: SettingsReport,
    /// Requests of the trace.
    pub requests: u64,
    /// Those that got all their tokens.
    pub completed: u64,
    /// Those that were turned away at the door: too large for the device.
    pub refused: u64,
    /// From the first arrival to the last end, seconds of virtual time.
    pub duration_s: f64,
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Prompt tokens found in the cache when their request was first admitted.
    pub prefix_hit_tokens: u64,
    /// `prefix_hit_tokens / prompt_tokens`.
    pub prefix_hit_ratio: f64,
    /// Times a running request was put back to waiting.
    pub preemptions: u64,
    /// Steps run.
    pub steps: u64,
    /// Cached blocks that gave way to others.
    pub evicted_blocks: u64,
    /// Arrival to first token, seconds.
    pub ttft_s: Summary,
    /// Per request with more than one token: (E2E - TTFT) / (output tokens - 1), seconds.
    pub tpot_s: Summary,
    /// Every gap between two tokens of a request, seconds; percentiles within 0.05 %.
    pub itl_s: Summary,
    /// Arrival to end, seconds.
    pub e2e_s: Summary,
    /// Digest of every decision of every replica, 16 hex digits.
    pub digest: String,
    /// What the replay took on the machine it ran on, seconds, reading the trace not counted.
    pub wall_s: f64,
}

impl Report {
    /// The report as one JSON object over several lines, without a newline at the end.
    pub fn to_json(&self) -> String {
        // All keys are strings and all values numbers, strings, booleans or null.
        serde_json::to_string_pretty(self).expect("a report serialises")
    }
}

/// The settings of a replay, as far as they decide its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingsReport {
    /// The trace, as it was called on the command line; empty if it was no file.
    pub trace: String,
    /// Its format.
    pub format: &'static str,
    /// The device of each replica.
    pub hardware: &'static str,
    /// The model.
    pub model: &'static str,
    /// Replicas.
    pub replicas: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// KV blocks on each device.
    pub device_blocks: u32,
    /// Tokens in one step at most.
    pub max_batch_tokens: u32,
    /// Sequences in one step at most.
    pub max_batch_size: u32,
    /// Order of waiting requests and choice of victims.
    pub policy: String,
    /// Which idle cached block goes first.
    pub eviction: String,
    /// Whether requests came one after another.
    pub serial: bool,
    /// The cost model, and how far it is to be trusted.
    pub cost_model: String,
}

impl SettingsReport {
    pub(crate) fn new(format: Format, settings: &Settings, cost_model: &str) -> Self {
        let core = &settings.core;
        Self {
            trace: String::new(),
            format: format.as_str(),
            hardware: settings.hardware.name,
            model: settings.model.name,
            replicas: settings.replicas,
            block_size: core.block_size,
            device_blocks: core.device_blocks,
            max_batch_tokens: core.max_batch_tokens,
            max_batch_size: core.max_batch_size,
            policy: core.policy.clone(),
            eviction: core.eviction.clone(),
            serial: settings.serial,
            cost_model: cost_model.into(),
        }
    }
}
