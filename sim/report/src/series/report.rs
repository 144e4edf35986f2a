//! Report of a series: columns of equal length with one value per bucket.

use serde::Serialize;
use trunkline_sim_perf::link::{LINK_DIRECTIONS, direction_name};

use super::Series;
use super::buckets::{Bucket, Gauge, Sum};
use super::distribution::Distribution;
use crate::numbers::ratio;
use crate::report::Report;

/// A replay over time. Every column has one value per bucket, to six digits; `None` marks a division by zero.
///
/// JSON is flat: the fields of [`FlowSeries`], [`RequestSeries`], [`BlockSeries`], [`StepSeries`] and [`LatencyDistributions`] are
/// fields of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesReport {
    /// Width of a bucket, seconds. The last bucket is between half and one and a half times as wide.
    pub bucket_s: f64,
    /// Start of each bucket, seconds after the first arrival.
    pub begin_s: Vec<f64>,
    /// End of the last bucket, seconds after the first arrival.
    pub end_s: f64,
    /// Requests and tokens per second.
    #[serde(flatten)]
    pub flow: FlowSeries,
    /// Requests waiting, running, loading and swapped.
    #[serde(flatten)]
    pub requests: RequestSeries,
    /// Use of device blocks.
    #[serde(flatten)]
    pub blocks: BlockSeries,
    /// Tiers behind the device, nearest first.
    pub tiers: Vec<TierSeries>,
    /// Link directions with at least one copy.
    pub links: Vec<LinkSeries>,
    /// Duration and batch shape of steps.
    #[serde(flatten)]
    pub steps: StepSeries,
    /// Share of the replicas' time spent in steps, from 0 to 1.
    pub utilisation: Vec<f64>,
    /// Preemptions per second, over all replicas.
    pub preemptions_s: Vec<f64>,
    /// Mean TTFT of the requests that arrived in the bucket, seconds.
    pub ttft_mean_s: Vec<Option<f64>>,
    /// Ready replicas; left out if none starts, stops or fails.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadySeries>,
    /// Totals of each replica, in numerical order.
    pub replicas: Vec<ReplicaTotals>,
    /// Distributions of latencies over completed requests.
    #[serde(flatten)]
    pub latencies: LatencyDistributions,
}

/// Requests and tokens per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSeries {
    /// Arrivals per second, over all replicas.
    pub arrived_s: Vec<f64>,
    /// Completed requests per second.
    pub completed_s: Vec<f64>,
    /// Generated tokens per second.
    pub output_tokens_s: Vec<f64>,
    /// Prompt tokens not found in the cache at the first admission of the request, per second.
    pub uncached_tokens_s: Vec<f64>,
    /// Prompt tokens found in the cache at the first admission of the request, per second.
    pub cached_tokens_s: Vec<f64>,
    /// Share of prompt tokens found in the cache, of requests admitted for the first time.
    pub hit_ratio: Vec<Option<f64>>,
}

/// Requests by their state, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestSeries {
    /// Mean number of requests waiting for admission.
    pub waiting: Vec<f64>,
    /// Maximum number of requests waiting for admission.
    pub waiting_max: Vec<u64>,
    /// Mean number of requests in the batch.
    pub running: Vec<f64>,
    /// Maximum number of requests in the batch.
    pub running_max: Vec<u64>,
    /// Mean number of requests waiting for blocks from a tier.
    pub loading: Vec<f64>,
    /// Mean number of requests swapped out to the host.
    pub swapped: Vec<f64>,
    /// Maximum number of requests swapped out to the host.
    pub swapped_max: Vec<u64>,
}

/// Replicas that take new requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadySeries {
    /// Mean number of ready replicas.
    pub ready: Vec<f64>,
    /// Maximum number of ready replicas.
    pub ready_max: Vec<u64>,
}

/// Use of device blocks over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockSeries {
    /// Blocks on all devices.
    pub device_blocks: u64,
    /// Mean number of blocks in use by sequences and copies.
    pub blocks_in_use: Vec<f64>,
    /// Mean number of cached blocks that can be evicted.
    pub blocks_cached: Vec<f64>,
    /// Mean number of empty blocks.
    pub blocks_free: Vec<f64>,
}

/// Duration and batch shape of steps, as means per step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSeries {
    /// Mean step time, seconds.
    pub step_s: Vec<Option<f64>>,
    /// Sequences of the step in decode.
    pub decodes: Vec<Option<f64>>,
    /// Sequences in prefill with a chunk of more than one token.
    pub prefills: Vec<Option<f64>>,
    /// Tokens of decodes, drafts included.
    pub decode_tokens: Vec<Option<f64>>,
    /// Tokens of prefills in the step.
    pub prefill_tokens: Vec<Option<f64>>,
}

/// Distributions of latencies over completed requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyDistributions {
    /// TTFT: arrival to first token.
    pub ttft: Distribution,
    /// TPOT: (E2E - TTFT) / (output tokens - 1), of requests with more than one token.
    pub tpot: Distribution,
    /// E2E: arrival to end.
    pub e2e: Distribution,
    /// Queueing time: arrival to the first step.
    pub queue: Distribution,
}

/// Tier over time, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierSeries {
    /// Name of the tier.
    pub name: String,
    /// Capacity of the cache in blocks.
    pub capacity_blocks: u64,
    /// Mean number of blocks in the tier.
    pub blocks: Vec<f64>,
}

/// Link direction over time, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkSeries {
    /// Name of the direction, such as `to host` or `from disk`.
    pub name: String,
    /// Bytes per second, uncompressed. Failed copies are not counted.
    pub bytes_s: Vec<f64>,
}

/// Totals of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaTotals {
    /// Requests completed on the replica.
    pub completed: u64,
    /// Requests refused on the replica.
    pub refused: u64,
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Prompt tokens of completed requests found in the cache.
    pub cached_tokens: u64,
    /// Output tokens of completed requests.
    pub output_tokens: u64,
    /// Time in steps, nanoseconds.
    pub busy_ns: u64,
}

/// Buckets with the time that each covers, nanoseconds.
struct Columns {
    buckets: Vec<Bucket>,
    covered_ns: Vec<u64>,
}

impl Columns {
    fn column<T>(&self, value: impl Fn(&Bucket, u64) -> T) -> Vec<T> {
        self.buckets.iter().zip(&self.covered_ns).map(|(bucket, covered_ns)| value(bucket, *covered_ns)).collect()
    }

    /// Returns a sum per second of the time that each bucket covers.
    fn rate(&self, value: impl Fn(&Bucket) -> f64) -> Vec<f64> {
        self.column(|bucket, ns| rounded(ratio(value(bucket), ns as f64 / 1e9)))
    }

    fn mean(&self, gauge: usize) -> Vec<f64> {
        self.column(|bucket, ns| rounded(bucket.mean(gauge, ns)))
    }

    fn max(&self, gauge: Gauge) -> Vec<u64> {
        self.column(|bucket, _| bucket.max(gauge))
    }

    fn flow(&self) -> FlowSeries {
        FlowSeries {
            arrived_s: self.rate(|bucket| bucket.sum(Sum::Arrived)),
            completed_s: self.rate(|bucket| bucket.sum(Sum::Ended)),
            output_tokens_s: self.rate(|bucket| bucket.sum(Sum::OutputTokens)),
            uncached_tokens_s: self.rate(|bucket| bucket.sum(Sum::PromptTokens) - bucket.sum(Sum::CachedTokens)),
            cached_tokens_s: self.rate(|bucket| bucket.sum(Sum::CachedTokens)),
            hit_ratio: self.by(Sum::CachedTokens, Sum::PromptTokens, 1.0),
        }
    }

    fn requests(&self) -> RequestSeries {
        RequestSeries {
            waiting: self.mean(Gauge::Waiting as usize),
            waiting_max: self.max(Gauge::Waiting),
            running: self.mean(Gauge::Running as usize),
            running_max: self.max(Gauge::Running),
            loading: self.mean(Gauge::Loading as usize),
            swapped: self.mean(Gauge::Swapped as usize),
            swapped_max: self.max(Gauge::Swapped),
        }
    }

    fn blocks(&self, device_blocks: u64) -> BlockSeries {
        BlockSeries {
            device_blocks,
            blocks_in_use: self.mean(Gauge::BlocksInUse as usize),
            blocks_cached: self.mean(Gauge::BlocksCached as usize),
            blocks_free: self.mean(Gauge::BlocksFree as usize),
        }
    }

    fn ready(&self) -> ReadySeries {
        ReadySeries { ready: self.mean(Gauge::Ready as usize), ready_max: self.max(Gauge::Ready) }
    }

    fn steps(&self) -> StepSeries {
        StepSeries {
            step_s: self.by(Sum::BusyNs, Sum::Steps, 1e-9),
            decodes: self.by(Sum::Decodes, Sum::Steps, 1.0),
            prefills: self.by(Sum::Prefills, Sum::Steps, 1.0),
            decode_tokens: self.by(Sum::DecodeTokens, Sum::Steps, 1.0),
            prefill_tokens: self.by(Sum::PrefillTokens, Sum::Steps, 1.0),
        }
    }

    /// Divides one sum by another; `None` where the divisor is 0.
    fn by(&self, part: Sum, whole: Sum, scale: f64) -> Vec<Option<f64>> {
        let by = |part: f64, whole: f64| (whole > 0.0).then(|| rounded(part / whole * scale));
        self.column(|bucket, _| by(bucket.sum(part), bucket.sum(whole)))
    }
}

impl SeriesReport {
    /// Closes the buckets at `duration_ns` and wake_ups the sums of `series` into columns.
    pub(super) fn from_series(series: Series, report: &Report, duration_ns: u64) -> Self {
        let width_ns = series.buckets.width_ns();
        let buckets = series.buckets.end(duration_ns);
        let last = buckets.len() as u64 - 1;
        let covered = |i: u64| if i == last { duration_ns - (i * width_ns).min(duration_ns) } else { width_ns };
        let columns = Columns { covered_ns: (0..=last).map(covered).collect(), buckets };
        let n_replicas = f64::from(report.settings.replicas);
        let latencies = series.latencies_ns;
        Self {
            bucket_s: width_ns as f64 / 1e9,
            begin_s: (0..=last).map(|i| (i * width_ns) as f64 / 1e9).collect(),
            end_s: duration_ns as f64 / 1e9,
            flow: columns.flow(),
            requests: columns.requests(),
            blocks: columns.blocks(series.device_blocks),
            tiers: tiers(&columns, &series.tiers),
            links: links(&columns, &series.tiers, series.block_bytes as f64),
            steps: columns.steps(),
            utilisation: columns.rate(|bucket| bucket.sum(Sum::BusyNs) / 1e9 / n_replicas),
            preemptions_s: columns.rate(|bucket| bucket.sum(Sum::Preemptions)),
            ttft_mean_s: columns.by(Sum::TtftNs, Sum::TtftRequests, 1e-9),
            ready: series.has_changes.then(|| columns.ready()),
            replicas: series.replicas,
            latencies: LatencyDistributions {
                ttft: Distribution::of(latencies.ttft),
                tpot: Distribution::of(latencies.tpot),
                e2e: Distribution::of(latencies.e2e),
                queue: Distribution::of(latencies.queue),
            },
        }
    }
}

fn tiers(columns: &Columns, tiers: &[(String, u64)]) -> Vec<TierSeries> {
    let tier = |(at, (name, blocks)): (usize, &(String, u64))| TierSeries {
        name: name.clone(),
        capacity_blocks: *blocks,
        blocks: columns.mean(Gauge::Tier as usize + at),
    };
    tiers.iter().enumerate().map(tier).collect()
}

fn links(columns: &Columns, tiers: &[(String, u64)], block_bytes: f64) -> Vec<LinkSeries> {
    let used = |direction: &usize| columns.buckets.iter().any(|bucket| bucket.copied(*direction) > 0.0);
    let link = |direction: usize| LinkSeries {
        name: direction_name(direction, tiers.iter().map(|(name, _)| name.as_str())),
        bytes_s: columns.rate(|bucket| bucket.copied(direction) * block_bytes),
    };
    (0..LINK_DIRECTIONS).filter(used).map(link).collect()
}

/// Rounds to six digits: more than a chart can show, few enough to keep its data small.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}
