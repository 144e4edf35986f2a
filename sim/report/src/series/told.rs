//! What is told of a replay over time: columns of equal length, one value a bucket.

use serde::Serialize;

use crate::numbers::ratio;
use crate::report::Report;
use trunkline_sim_perf::link::{LANES, lane_name};

use super::Series;
use super::buckets::{Bucket, Gauge, Sum};
use super::distribution::Distribution;

/// What a replay was like over time. Columns have a value for each bucket, to six digits; none where there is nothing to divide by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesReport {
    /// Width of a bucket, seconds. The last may be up to half as wide again, or as narrow as half of it.
    pub bucket_s: f64,
    /// When each begins, seconds after the first arrival.
    pub begin_s: Vec<f64>,
    /// When the last ends, seconds.
    pub end_s: f64,
    /// Requests that arrived per second.
    pub arrived_s: Vec<f64>,
    /// Requests completed per second.
    pub completed_s: Vec<f64>,
    /// Tokens generated per second.
    pub output_tokens_s: Vec<f64>,
    /// Prompt tokens of requests admitted for the first time and not found in the cache, per second.
    pub uncached_tokens_s: Vec<f64>,
    /// Those found in the cache, per second.
    pub cached_tokens_s: Vec<f64>,
    /// Tokens found in the cache over all prompt tokens, of requests admitted for the first time.
    pub hit_ratio: Vec<Option<f64>>,
    /// Requests that wait to be admitted, mean.
    pub waiting: Vec<f64>,
    /// The same, most at any time.
    pub waiting_max: Vec<u64>,
    /// Requests in the batch, mean.
    pub running: Vec<f64>,
    /// The same, most at any time.
    pub running_max: Vec<u64>,
    /// Requests that wait for blocks from a tier, mean.
    pub loading: Vec<f64>,
    /// Requests swapped out to the host, mean.
    pub swapped: Vec<f64>,
    /// The same, most at any time.
    pub swapped_max: Vec<u64>,
    /// Blocks on all devices.
    pub device_blocks: u64,
    /// Device blocks that sequences and copies use, mean.
    pub blocks_in_use: Vec<f64>,
    /// Device blocks that are cached and evictable, mean.
    pub blocks_cached: Vec<f64>,
    /// Device blocks that hold nothing, mean.
    pub blocks_free: Vec<f64>,
    /// The tiers behind the device, nearest first.
    pub tiers: Vec<TierSeries>,
    /// Directions of links over which something was copied.
    pub links: Vec<LinkSeries>,
    /// Time of a step, seconds, mean.
    pub step_s: Vec<Option<f64>>,
    /// Sequences in a step that decode, mean.
    pub decodes: Vec<Option<f64>>,
    /// Sequences in a step that prefill more than one token, mean.
    pub prefills: Vec<Option<f64>>,
    /// Tokens that decodes run in a step, drafts included, mean.
    pub decode_tokens: Vec<Option<f64>>,
    /// Tokens that prefills run in a step, mean.
    pub prefill_tokens: Vec<Option<f64>>,
    /// Time in which steps ran, over replicas times the time.
    pub utilisation: Vec<f64>,
    /// Requests put back to waiting, per second.
    pub preemptions_s: Vec<f64>,
    /// TTFT of requests by when they arrived, seconds, mean.
    pub ttft_mean_s: Vec<Option<f64>>,
    /// How the replicas fared, in their order.
    pub replicas: Vec<ReplicaTotals>,
    /// Arrival to first token.
    pub ttft: Distribution,
    /// (E2E - TTFT) / (output tokens - 1), of requests with more than one.
    pub tpot: Distribution,
    /// Arrival to end.
    pub e2e: Distribution,
    /// Arrival to the first step.
    pub queue: Distribution,
}

/// A tier over time, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierSeries {
    /// Its name.
    pub name: String,
    /// Blocks there is room for.
    pub capacity_blocks: u64,
    /// Blocks in it, mean.
    pub blocks: Vec<f64>,
}

/// One direction of a link over time, over all replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkSeries {
    /// `to host`, `from disk`.
    pub name: String,
    /// Bytes per second, each block as large as on the device. Copies that failed are not counted.
    pub bytes_s: Vec<f64>,
}

/// How one replica fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaTotals {
    /// Requests that got all their tokens there.
    pub completed: u64,
    /// Requests turned away there.
    pub refused: u64,
    /// Prompt tokens of those completed.
    pub prompt_tokens: u64,
    /// Those of them found in the cache.
    pub cached_tokens: u64,
    /// Tokens of those completed.
    pub output_tokens: u64,
    /// Time in which steps ran, nanoseconds.
    pub busy_ns: u64,
}

/// The buckets with how long each is.
struct Columns {
    buckets: Vec<Bucket>,
    covered_ns: Vec<u64>,
}

impl Columns {
    fn column<T>(&self, value: impl Fn(&Bucket, u64) -> T) -> Vec<T> {
        self.buckets.iter().zip(&self.covered_ns).map(|(bucket, covered_ns)| value(bucket, *covered_ns)).collect()
    }

    /// Per second, times a factor.
    fn rate(&self, value: impl Fn(&Bucket) -> f64) -> Vec<f64> {
        self.column(|bucket, ns| rounded(ratio(value(bucket), ns as f64 / 1e9)))
    }

    fn mean(&self, gauge: usize) -> Vec<f64> {
        self.column(|bucket, ns| rounded(bucket.mean(gauge, ns)))
    }

    fn max(&self, gauge: Gauge) -> Vec<u64> {
        self.column(|bucket, _| bucket.max(gauge))
    }

    /// One sum by another, where that is not 0.
    fn by(&self, part: Sum, whole: Sum, scale: f64) -> Vec<Option<f64>> {
        let by = |part: f64, whole: f64| (whole > 0.0).then(|| rounded(part / whole * scale));
        self.column(|bucket, _| by(bucket.sum(part), bucket.sum(whole)))
    }
}

pub(super) fn told(series: Series, report: &Report, duration_ns: u64) -> SeriesReport {
    let width_ns = series.buckets.width_ns();
    let buckets = series.buckets.end(duration_ns);
    let last = buckets.len() as u64 - 1;
    let covered = |i: u64| if i == last { duration_ns - (i * width_ns).min(duration_ns) } else { width_ns };
    let columns = Columns { covered_ns: (0..=last).map(covered).collect(), buckets };
    let n_replicas = f64::from(report.settings.replicas);
    let latencies = series.latencies_ns;
    SeriesReport {
        bucket_s: width_ns as f64 / 1e9,
        begin_s: (0..=last).map(|i| (i * width_ns) as f64 / 1e9).collect(),
        end_s: duration_ns as f64 / 1e9,
        arrived_s: columns.rate(|bucket| bucket.sum(Sum::Arrived)),
        completed_s: columns.rate(|bucket| bucket.sum(Sum::Ended)),
        output_tokens_s: columns.rate(|bucket| bucket.sum(Sum::OutputTokens)),
        uncached_tokens_s: columns.rate(|bucket| bucket.sum(Sum::PromptTokens) - bucket.sum(Sum::CachedTokens)),
        cached_tokens_s: columns.rate(|bucket| bucket.sum(Sum::CachedTokens)),
        hit_ratio: columns.by(Sum::CachedTokens, Sum::PromptTokens, 1.0),
        waiting: columns.mean(Gauge::Waiting as usize),
        waiting_max: columns.max(Gauge::Waiting),
        running: columns.mean(Gauge::Running as usize),
        running_max: columns.max(Gauge::Running),
        loading: columns.mean(Gauge::Loading as usize),
        swapped: columns.mean(Gauge::Swapped as usize),
        swapped_max: columns.max(Gauge::Swapped),
        device_blocks: series.device_blocks,
        blocks_in_use: columns.mean(Gauge::BlocksInUse as usize),
        blocks_cached: columns.mean(Gauge::BlocksCached as usize),
        blocks_free: columns.mean(Gauge::BlocksFree as usize),
        tiers: tiers(&columns, &series.tiers),
        links: links(&columns, &series.tiers, series.block_bytes as f64),
        step_s: columns.by(Sum::BusyNs, Sum::Steps, 1e-9),
        decodes: columns.by(Sum::Decodes, Sum::Steps, 1.0),
        prefills: columns.by(Sum::Prefills, Sum::Steps, 1.0),
        decode_tokens: columns.by(Sum::DecodeTokens, Sum::Steps, 1.0),
        prefill_tokens: columns.by(Sum::PrefillTokens, Sum::Steps, 1.0),
        utilisation: columns.rate(|bucket| bucket.sum(Sum::BusyNs) / 1e9 / n_replicas),
        preemptions_s: columns.rate(|bucket| bucket.sum(Sum::Preemptions)),
        ttft_mean_s: columns.by(Sum::TtftNs, Sum::TtftRequests, 1e-9),
        replicas: series.replicas,
        ttft: Distribution::of(latencies.ttft),
        tpot: Distribution::of(latencies.tpot),
        e2e: Distribution::of(latencies.e2e),
        queue: Distribution::of(latencies.queue),
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
    let used = |lane: &usize| columns.buckets.iter().any(|bucket| bucket.copied(*lane) > 0.0);
    let link = |lane: usize| LinkSeries {
        name: lane_name(lane, tiers.iter().map(|(name, _)| name.as_str())),
        bytes_s: columns.rate(|bucket| bucket.copied(lane) * block_bytes),
    };
    (0..LANES).filter(used).map(link).collect()
}

/// Six digits are more than a chart can show, and keep its data small.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}
