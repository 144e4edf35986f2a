//! What a replay found.

use serde::Serialize;
use trunkline_core::{Preemption, TierStats};

use trunkline_sim_perf::link::LinkReport;
use trunkline_sim_workload::summary::Summary;

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
    /// `completed / duration_s`.
    pub requests_s: f64,
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
    /// Those of them that began to be swapped out to the host.
    pub swap_outs: u64,
    /// Times a request came back from there.
    pub swap_ins: u64,
    /// Copies of KV blocks to the host.
    pub link_out: LinkReport,
    /// Copies of KV blocks to the device.
    pub link_in: LinkReport,
    /// The tiers of the prefix cache behind the device, nearest first.
    pub tiers: Vec<TierReport>,
    /// Steps run.
    pub steps: u64,
    /// Sequences in a step, mean.
    pub mean_batch: f64,
    /// Tokens run in a step, drafts included, mean.
    pub mean_step_tokens: f64,
    /// Tokens that workers were allowed to draft.
    pub drafted_tokens: u64,
    /// Those of them that were right.
    pub accepted_drafts: u64,
    /// Cached blocks that gave way to others.
    pub evicted_blocks: u64,
    /// Time in which steps ran, over replicas times duration.
    pub utilisation: f64,
    /// Times a request was sent to another replica because its own was gone for good.
    pub rerouted: u64,
    /// Arrival to first token, seconds.
    pub ttft_s: Summary,
    /// Per request with more than one token: (E2E - TTFT) / (output tokens - 1), seconds.
    pub tpot_s: Summary,
    /// Every gap between two tokens of a request, seconds; percentiles within 0.05 %.
    pub itl_s: Summary,
    /// Arrival to end, seconds.
    pub e2e_s: Summary,
    /// How tenants fared, if the trace was split among several.
    pub fairness: Option<FairnessReport>,
    /// The load, if it was given as a share of the capacity.
    pub load: Option<LoadReport>,
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

/// A load and what it is a share of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Mean rate of arrivals over capacity.
    pub fraction: f64,
    /// Requests that the fleet can end in a second.
    pub capacity_requests_s: f64,
    /// Requests that arrive in a second on average.
    pub arrival_requests_s: f64,
    /// The speed of the trace at which so many arrive.
    pub speed: f64,
}

/// What a tier did, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// Its name.
    pub name: String,
    /// Blocks it had at the end.
    pub blocks: u64,
    /// Blocks that requests found there and not in a nearer place.
    pub hit_blocks: u64,
    /// Blocks whose copy to it was begun.
    pub stored_blocks: u64,
    /// Blocks dropped from it to make room.
    pub evicted_blocks: u64,
    /// Copies over its link away from the device. The first tier shares the link with swapped requests.
    pub link_out: LinkReport,
    /// Copies over its link towards the device.
    pub link_in: LinkReport,
}

impl TierReport {
    /// Sums up one tier over all replicas; `links` are its copies away from the device and towards it.
    pub fn new(name: &str, replicas: impl Iterator<Item = TierStats> + Clone, links: [LinkReport; 2]) -> Self {
        let sum = |count: fn(&TierStats) -> u64| replicas.clone().map(|stats| count(&stats)).sum();
        let [link_out, link_in] = links;
        Self {
            name: name.into(),
            blocks: sum(|stats| u64::from(stats.blocks)),
            hit_blocks: sum(|stats| stats.hit_blocks),
            stored_blocks: sum(|stats| stats.stored_blocks),
            evicted_blocks: sum(|stats| stats.evicted_blocks),
            link_out,
            link_in,
        }
    }
}

/// How evenly tenants were served. See [`crate::fairness`] for what is service and when tenants compete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairnessReport {
    /// The greatest difference between the services of two tenants over any time in which both waited at one replica, units.
    pub service_gap_max: u64,
    /// The tenants.
    pub tenants: Vec<TenantReport>,
}

/// How one tenant fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// Share of the requests that it was to send.
    pub share: f64,
    /// Requests it sent.
    pub requests: u64,
    /// Those that got all their tokens.
    pub completed: u64,
    /// Those that were turned away at the door.
    pub refused: u64,
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Prompt tokens found in the cache.
    pub prefix_hit_tokens: u64,
    /// Arrival to first token, seconds.
    pub ttft_s: Summary,
    /// As in [`Report::tpot_s`], seconds.
    pub tpot_s: Summary,
    /// Arrival to end, seconds.
    pub e2e_s: Summary,
    /// Time in which it and another tenant waited at one replica, seconds, summed over replicas.
    pub contended_s: f64,
    /// Units of service it was given per second of that time at one replica.
    pub contended_service_s: f64,
}

/// Replicas of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// The devices of each.
    pub hardware: &'static str,
    /// How each spreads the model over devices, as `tp2pp1`.
    pub parallel: String,
    /// Replicas.
    pub replicas: u32,
    /// KV blocks on each device.
    pub device_blocks: u32,
}

/// The settings of a replay, as far as they decide its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingsReport {
    /// The trace, as it was called on the command line; empty if it was no file.
    pub trace: String,
    /// Its format.
    pub format: &'static str,
    /// The device of each replica, of the first kind if there are several.
    pub hardware: &'static str,
    /// The model.
    pub model: &'static str,
    /// Replicas of all kinds.
    pub replicas: u32,
    /// Each kind of replica, in the order in which they are numbered.
    pub groups: Vec<GroupReport>,
    /// Which replica each request went to.
    pub router: String,
    /// Replicas that failed, as `REPLICA@SECONDS..SECONDS`.
    pub failures: Vec<String>,
    /// Replicas that were slow, as `REPLICA:FACTOR`.
    pub slow: Vec<String>,
    /// Tokens in a block.
    pub block_size: u32,
    /// KV blocks on each device, of the first kind.
    pub device_blocks: u32,
    /// Tokens in one step at most.
    pub max_batch_tokens: u32,
    /// Sequences in one step at most.
    pub max_batch_size: u32,
    /// Order of waiting requests and choice of victims.
    pub policy: String,
    /// Which idle cached block goes first.
    pub eviction: String,
    /// What becomes of a running request whose blocks are needed.
    pub preemption: Preemption,
    /// KV blocks in each host's memory.
    pub host_blocks: u32,
    /// What copying a block was said to cost, nanoseconds.
    pub swap_block_ns: u64,
    /// What computing a token again was said to cost, nanoseconds.
    pub recompute_token_ns: u64,
    /// Blocks that stayed usable for each running request when another was admitted.
    pub launch_watermark: f64,
    /// Blocks that stayed usable for each running request when one was swapped in.
    pub swap_in_watermark: f64,
    /// Positions sampled from in one step at most.
    pub max_step_logits: u32,
    /// How long steps with decodes were to take, nanoseconds; 0 is no matter.
    pub target_step_ns: u64,
    /// Tokens a decode drafted at most.
    pub max_drafts: u32,
    /// The probability that a draft was right.
    pub draft_acceptance: f64,
    /// Whether requests came one after another.
    pub serial: bool,
    /// By how much the trace's times of arrival were divided; nothing if they were not used.
    pub speed: Option<f64>,
    /// The cost model, and how far it is to be trusted.
    pub cost_model: String,
}
