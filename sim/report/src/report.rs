//! Report of a replay.

use std::fmt;

use serde::ser::Error;
use serde::{Serialize, Serializer};
use trunkline_core::config::SETTINGS;
use trunkline_core::{Config, Stats, TierStats};
use trunkline_sim_perf::columns::Cell;
use trunkline_sim_perf::cost::{TimeRange, WeightReads};
use trunkline_sim_perf::hardware::Largest;
use trunkline_sim_perf::link::LinkReport;
use trunkline_sim_workload::summary::Summary;

use crate::counted;
use crate::numbers::ratio;
use crate::service::ServiceReport;

/// Result of a replay. Equal inputs give equal reports, except for [`Report::wall_s`].
///
/// Counts are sums over all replicas; latencies cover completed requests only. JSON is flat: the fields of [`TokenTotals`],
/// [`SwapReport`], [`BatchReport`], [`FleetReport`] and [`Latencies`] are fields of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Settings of the replay, as far as relevant to the result.
    pub settings: SettingsReport,
    /// Requests in the trace.
    pub requests: u64,
    /// Requests that received all tokens.
    pub completed: u64,
    /// Requests rejected on arrival because the device has too few KV blocks for them.
    pub refused: u64,
    /// Virtual time from the first arrival to the last end, seconds.
    pub duration_s: f64,
    /// Throughput in requests per second: `completed / duration_s`.
    pub requests_s: f64,
    /// Prompt and output tokens, and prefix hits.
    #[serde(flatten)]
    pub tokens: TokenTotals,
    /// Preemptions: returns of a running request to the queue.
    pub preemptions: u64,
    /// Swaps to and from the host, and the link that carried them.
    #[serde(flatten)]
    pub swaps: SwapReport,
    /// Tiers of the prefix cache behind the device, nearest first.
    pub tiers: Vec<TierReport>,
    /// Steps, mean sizes, and speculative decoding.
    #[serde(flatten)]
    pub batches: BatchReport,
    /// Counters of the cores, summed over all replicas. JSON has those of [`counted::COUNTED`].
    #[serde(flatten, serialize_with = "counters")]
    pub counters: Stats,
    /// Use of the replicas, starts, stops and failures.
    #[serde(flatten)]
    pub fleet: FleetReport,
    /// TTFT, TPOT, ITL and E2E.
    #[serde(flatten)]
    pub latencies: Latencies,
    /// Service per tenant; `None` for a trace of one tenant.
    pub fairness: Option<FairnessReport>,
    /// Waits by class, the most urgent first; left out for a trace of one class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassReport>,
    /// Replay with the settings of the recording; `None` unless the trace is a recording.
    pub baseline: Option<BaselineReport>,
    /// Offered load; `None` unless the load was set as a share of the capacity.
    pub load: Option<LoadReport>,
    /// Digest of every decision of every replica, 16 hex digits.
    pub digest: String,
    /// Wall-clock time of the replay, seconds, without reading the trace.
    pub wall_s: f64,
}

/// Token counts over all requests of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TokenTotals {
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Tokens generated over all requests.
    pub output_tokens: u64,
    /// Prompt tokens found in the prefix cache at the first admission of the request.
    pub prefix_hit_tokens: u64,
    /// Prefix hit ratio, from 0 to 1: `prefix_hit_tokens / prompt_tokens`.
    pub prefix_hit_ratio: f64,
    /// Prompt tokens whose KV was copied from other places in the cache at the first admission of the request (`--reuse-anywhere`).
    pub copied_tokens: u64,
    /// Share of prompt tokens copied, from 0 to 1: `copied_tokens / prompt_tokens`.
    pub copied_ratio: f64,
    /// Blocks of cached prefixes taken on the device, over all replicas.
    pub prefix_blocks: u64,
    /// Runs of neighbouring blocks in those prefixes.
    pub prefix_runs: u64,
    /// Mean length of these runs, blocks: `prefix_blocks / prefix_runs`. Long runs are found fast; 0 if no prefix was found.
    pub mean_prefix_run: f64,
    /// Requests longer than the model's context; `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_long: Option<TooLong>,
    /// Requests with retention hints and the others; left out for a trace without hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintsReport>,
}

/// Requests whose prompt and answer together are longer than the model's context. Engines refuse them or cut their answers; a replay runs them
/// to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TooLong {
    /// Number of the requests.
    pub requests: u64,
    /// Tokens of the longest.
    pub longest: u64,
    /// Tokens of the model's context.
    pub max_context: u32,
}

impl TooLong {
    /// Adds a request of so many tokens to those found so far, if it is too long.
    pub fn add(found: &mut Option<Self>, tokens: u64, max_context: u32) {
        if tokens > max_context.into() {
            let found = found.get_or_insert(Self { requests: 0, longest: 0, max_context });
            found.requests += 1;
            found.longest = found.longest.max(tokens);
        }
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, longest, max_context } = self;
        write!(
            f,
            "{requests} requests are longer than the model's context of {max_context} tokens, up to {longest}; --max-context {max_context} shortens them"
        )
    }
}

/// Swaps between device and host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwapReport {
    /// Preemptions that began to swap the request out to the host.
    pub swap_outs: u64,
    /// Swapped requests admitted again from the host.
    pub swap_ins: u64,
    /// Copies of KV blocks to the host.
    pub link_out: LinkReport,
    /// Copies of KV blocks to the device.
    pub link_in: LinkReport,
}

/// Steps and mean sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BatchReport {
    /// Steps run by all replicas.
    pub steps: u64,
    /// Mean number of sequences per step.
    pub mean_batch: f64,
    /// Mean number of tokens per step, drafts included.
    pub mean_step_tokens: f64,
    /// Draft tokens that workers were allowed to propose.
    pub drafted_tokens: u64,
    /// Draft tokens that the model accepted.
    pub accepted_drafts: u64,
    /// Steps whose times are extrapolated; `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extrapolated: Option<Extrapolated>,
    /// Reads of streamed weights; `None` if all weights are resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsReport>,
}

/// Reads of streamed weights, as [`WeightReads`] defines them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightsReport {
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Time of the reads, seconds.
    pub reading_s: f64,
    /// Time for which steps waited for weights, seconds.
    pub exposed_s: f64,
    /// Time of the reads during which no step waited, seconds: time saved against reading without overlap.
    pub hidden_s: f64,
    /// Share of the time of the reads during which no step waited.
    pub hidden_share: f64,
    /// Share of the time without overlap that was saved.
    pub saved_share: f64,
}

impl WeightsReport {
    /// Reports the reads of all steps.
    pub fn of(reads: &WeightReads) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            read_bytes: reads.bytes,
            reading_s: seconds(reads.reading_ns),
            exposed_s: seconds(reads.exposed_ns),
            hidden_s: seconds(reads.hidden_ns()),
            hidden_share: reads.hidden_share().unwrap_or(0.0),
            saved_share: reads.saved_share().unwrap_or(0.0),
        }
    }
}

/// Steps larger than any that their times were measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extrapolated {
    /// Largest of them.
    pub largest: Largest,
    /// Largest measured ones.
    pub measured: Largest,
}

impl Extrapolated {
    /// Returns both together if they are beyond the same measurement, else the one further beyond its own.
    #[must_use]
    pub fn or_further(self, other: Self) -> Self {
        if self.measured == other.measured {
            return Self { largest: self.largest.or_larger(other.largest), ..self };
        }
        if other.factor() > self.factor() { other } else { self }
    }

    /// Returns how many times as large as measured the largest step is.
    fn factor(&self) -> f64 {
        let of = |step: u64, measured: u64| step as f64 / measured.max(1) as f64;
        let Self { largest, measured } = self;
        let context = largest.context.zip(measured.context).map_or(0.0, |(step, measured)| of(step, measured));
        of(largest.sequences, measured.sequences).max(of(largest.tokens, measured.tokens)).max(context)
    }
}

impl fmt::Display for Extrapolated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { largest, measured } = self;
        let counts = [
            (Some(largest.sequences), Some(measured.sequences), "sequences"),
            (Some(largest.tokens), Some(measured.tokens), "tokens"),
            (largest.context, measured.context, "tokens of context in decodes"),
        ];
        let beyond = counts.into_iter().filter_map(|(step, measured, what)| {
            let (step, measured) = step.zip(measured)?;
            (step > measured).then(|| format!("{step} {what} (measured: {measured})"))
        });
        write!(f, "extrapolated for steps of up to {}", beyond.collect::<Vec<_>>().join(", "))
    }
}

/// Use of the replicas, starts, stops and failures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetReport {
    /// Share of the replicas' time spent in steps, from 0 to 1: busy time / (replicas * duration), or busy time / replica-hours if the
    /// number of replicas changes by a policy.
    pub utilisation: f64,
    /// Requests moved to another replica, after a failure or from a draining replica.
    pub rerouted: u64,
    /// Replicas in service; `None` for a fleet without failures, autoscaling and prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReport>,
}

/// Latencies of completed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// TTFT: arrival to first token, seconds.
    pub ttft_s: Summary,
    /// TPOT of requests with more than one token: (E2E - TTFT) / (output tokens - 1), seconds.
    pub tpot_s: Summary,
    /// ITL: every gap between two consecutive tokens of a request, seconds; percentiles within 0.05 %.
    pub itl_s: Summary,
    /// E2E: arrival to end, seconds.
    pub e2e_s: Summary,
    /// Deadlines met and missed; `None` if no request has a deadline.
    pub deadlines: Option<DeadlineReport>,
}

/// Deadlines of requests, met and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeadlineReport {
    /// Requests completed before their deadlines.
    pub met: u64,
    /// Requests ended at their deadlines, or refused.
    pub missed: u64,
}

impl DeadlineReport {
    /// Returns the counts, or `None` without a deadline.
    pub fn if_any(self) -> Option<Self> {
        (self.met + self.missed > 0).then_some(self)
    }

    /// Returns the share of deadlines met, from 0 to 1.
    pub fn share_met(&self) -> f64 {
        ratio(self.met as f64, (self.met + self.missed) as f64)
    }
}

/// Comparison of a recorded server with a simulation under the settings of the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BaselineReport {
    /// Digest of the decisions of the recording, replayed, 16 hex digits.
    pub digest: String,
    /// `true` if the recorded digest is equal; `None` for a recording without a digest.
    pub digest_equal: Option<bool>,
    /// Latencies as the server measured them.
    pub measured: Latencies,
    /// Latencies in the simulation.
    pub simulated: Latencies,
    /// Recorded requests left out: refused, or ended without a token and without a deadline.
    pub left_out: u64,
    /// Requests cut short by clients, deadlines or the end of the recording; they ask for the tokens that they had.
    pub cut_short: u64,
}

impl Report {
    /// Returns `true` if text that is not a prefix may have been copied, or was.
    pub fn copies(&self) -> bool {
        self.settings.core.worker.reuse.anywhere > 0 || self.tokens.copied_tokens > 0
    }

    /// Returns the report as one JSON object over several lines, without a newline at the end.
    pub fn to_json(&self) -> String {
        // All keys are strings and all values numbers, strings, booleans or null.
        serde_json::to_string_pretty(self).expect("a report serialises")
    }
}

/// Load of a replay, relative to the capacity of its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Load: mean arrival rate over capacity.
    pub fraction: f64,
    /// Capacity in requests per second.
    pub capacity_requests_s: f64,
    /// Mean arrival rate in requests per second.
    pub arrival_requests_s: f64,
    /// Divisor of the arrival times of the trace for this load.
    pub speed: f64,
}

/// Tier of the prefix cache, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// Name of the tier.
    pub name: String,
    /// Blocks in the tier at the end.
    pub blocks: u64,
    /// Blocks found in the tier and in no nearer place.
    pub hit_blocks: u64,
    /// Blocks written through to the tier, including copies under way.
    pub stored_blocks: u64,
    /// Blocks evicted from the tier to make room.
    pub evicted_blocks: u64,
    /// Copies on the tier's link away from the device. The first tier shares the link with swapped requests.
    pub link_out: LinkReport,
    /// Copies on the tier's link towards the device.
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

/// Fairness among tenants. [`crate::fairness`] defines service and waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairnessReport {
    /// Greatest gap between two tenants that both wait at one replica, units of service.
    pub service_gap_max: u64,
    /// Tenants in numerical order.
    pub tenants: Vec<TenantReport>,
}

/// Totals of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// Configured share of the requests.
    pub share: f64,
    /// Requests sent by the tenant.
    pub requests: u64,
    /// Requests that received all tokens.
    pub completed: u64,
    /// Requests rejected on arrival.
    pub refused: u64,
    /// Deadlines met and missed; `None` if no request has a deadline.
    pub deadlines: Option<DeadlineReport>,
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Tokens generated for the tenant.
    pub output_tokens: u64,
    /// Prompt tokens found in the cache.
    pub prefix_hit_tokens: u64,
    /// TTFT: arrival to first token, seconds.
    pub ttft_s: Summary,
    /// TPOT as in [`Latencies::tpot_s`], seconds.
    pub tpot_s: Summary,
    /// E2E: arrival to end, seconds.
    pub e2e_s: Summary,
    /// Wait as in [`ClassReport::queue_s`], seconds.
    pub queue_s: Summary,
    /// Time waiting together with another tenant at one replica, seconds, summed over replicas.
    pub contended_s: f64,
    /// Units of service received per second of that time at one replica.
    pub contended_service_s: f64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What retention hints do for those who send them, and to the others: compare two replays of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HintsReport {
    /// `false` if the hints were left out.
    pub followed: bool,
    /// Completed requests with hints.
    pub hinted: HintedReport,
    /// Those without.
    pub others: HintedReport,
    /// Prefetches of the trace. They are no requests in other figures.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefetches: u64,
    /// Tokens that they loaded from tiers.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefetched_tokens: u64,
}

/// Requests with hints, or those without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HintedReport {
    /// Requests that received all tokens.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub prefix_hit_tokens: u64,
    /// TTFT: arrival to first token, seconds; percentiles within 0.05 %.
    pub ttft_s: Summary,
}

/// Waits of the requests of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassReport {
    /// Priority of the requests; lower is more urgent.
    pub priority: i32,
    /// `true` if the requests have deadlines.
    pub deadline: bool,
    /// Requests that ended, at their deadlines or before.
    pub requests: u64,
    /// Arrival to the first step, or to the end of a request that never ran, seconds.
    pub queue_s: Summary,
}

impl fmt::Display for ClassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "priority {}{}", self.priority, if self.deadline { ", with a deadline" } else { "" })
    }
}

/// Replicas of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// Devices of each replica.
    pub hardware: &'static str,
    /// Parallelism of each replica, such as `tp2pp1`.
    pub parallel: String,
    /// Number of replicas, at least one.
    pub replicas: u32,
    /// KV blocks on each device.
    pub device_blocks: u32,
}

/// Settings of a replay, as far as relevant to the result. JSON is flat: the settings of the core are fields of the settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingsReport {
    /// Path of the trace as given on the command line; empty for a trace without a file.
    pub trace: String,
    /// Format of the trace.
    pub format: &'static str,
    /// Device of each replica; of the first kind in a fleet of several.
    pub hardware: &'static str,
    /// Name of the model served, with what it is planned as if that is something else.
    pub model: String,
    /// Number of replicas of all kinds.
    pub replicas: u32,
    /// Kinds of replica, in numerical order.
    pub groups: Vec<GroupReport>,
    /// Router with all parameters.
    pub router: String,
    /// Role of each replica; left out if all both prefill and decode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<&'static str>,
    /// Failures as `REPLICA@SECONDS..SECONDS`.
    pub failures: Vec<String>,
    /// Slow replicas as `REPLICA:FACTOR`.
    pub slow: Vec<String>,
    /// Autoscaling policy with the parameters given; left out for a fleet of a fixed size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<String>,
    /// Replicas at the start of an autoscaled fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_replicas: Option<u32>,
    /// Limits and policies of the cores; of the first kind in a fleet of several.
    #[serde(flatten, serialize_with = "core_settings")]
    pub core: Config,
    /// Probability that a draft token is accepted.
    pub draft_acceptance: f64,
    /// Arrivals of the requests.
    #[serde(flatten)]
    pub arrivals: ArrivalsReport,
    /// Inputs that a replay knows and a server does not, which decisions took into account; left out if there were none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oracles: Vec<&'static str>,
    /// Cost model and measured error.
    pub cost_model: String,
    /// Times of real steps over these; of several kinds of replica the widest, and left out if one has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_range: Option<TimeRange>,
    /// Placement of the weights with all parameters.
    pub weights: String,
    /// Bytes in the memory of a replica's host.
    pub host_bytes: HostBytesReport,
}

/// Arrivals of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArrivalsReport {
    /// `true` if each request arrived at the end of the one before.
    pub serial: bool,
    /// Divisor of the arrival times of the trace; `None` if those times were not used.
    pub speed: Option<f64>,
    /// Users who each waited for their answers; left out if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_loop: Option<ClosedLoopReport>,
}

/// Users who each wait for their answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClosedLoopReport {
    /// Number of users, so the highest number of requests at a time.
    pub concurrency: u32,
    /// Time from the end of an answer to the next request of the user, seconds.
    pub think_s: f64,
    /// Time over which the users begin, seconds.
    pub ramp_s: f64,
}

impl fmt::Display for ClosedLoopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at a time, each at the end of another", self.concurrency)?;
        for (seconds, what) in [(self.think_s, "after the end"), (self.ramp_s, "until all have begun")] {
            if seconds > 0.0 {
                write!(f, "; {seconds} s {what}")?;
            }
        }
        Ok(())
    }
}

/// Bytes in the memory of a replica's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostBytesReport {
    /// Streamed weights.
    pub weights: u64,
    /// KV of swapped-out requests and of the first tier.
    pub kv: u64,
    /// Memory of the host; `None` if the file of the hardware does not say.
    pub memory: Option<u64>,
}

/// Settings of the core without a place in a report: a replay sets or reports them otherwise.
pub(crate) const CORE_UNREPORTED: [&str; 5] =
    ["max_queue", "max_queued_tokens", "align_chunks", "tiers", "max_context"];

/// Serialises the settings of the core, all but [`CORE_UNREPORTED`], with their names in [`Config`].
fn core_settings<S: Serializer>(core: &Config, serializer: S) -> Result<S::Ok, S::Error> {
    let json = serde_json::to_value(core).map_err(S::Error::custom)?;
    let reported = SETTINGS.iter().filter(|setting| !CORE_UNREPORTED.contains(&setting.name));
    serializer.collect_map(reported.filter_map(|setting| Some((setting.name, json.get(setting.name)?))))
}

/// Serialises the counters of [`counted::COUNTED`].
fn counters<S: Serializer>(counters: &Stats, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = |cell| if let Cell::Int(count) = cell { count } else { 0 };
    serializer.collect_map(counted::counted(counters).map(|(about, cell)| (about.name, whole(cell))))
}
