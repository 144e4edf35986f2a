//! Statistics of a trace: lengths, arrivals, and prefix hits of caches of any size.
//!
//! # Counting of hits
//!
//! Requests run one after another. A prompt is split into blocks of [`StatsOptions::block_tokens`], and a block is a hit if the
//! block *and every block before it in its prompt* are in the cache. After a prompt all its blocks are in the cache, including a
//! partial last block; the Mooncake paper counts this way. A serving cache holds whole blocks only, and so finds slightly less; it
//! also holds generated tokens, and so may find slightly more.
//!
//! Prompts of different namespaces ([`Terms::namespace`](super::Terms::namespace)) share no prefix.
//!
//! A cache of limited capacity never keeps a block without its prefix. Under *LRU*, a prompt uses its blocks from the last to the
//! first, so the least recently used block is never the prefix of a kept block. A block is then a hit in a cache of `c` blocks if
//! fewer than `c` other blocks were used since its last use, so one pass gives the hits of all capacities. *Belady* knows the
//! future and evicts the block with the latest next use, among equals the block farthest from the beginning of its prompt; no cache
//! of that size finds more.

use std::path::Path;

use serde::Serialize;

use self::cache::Uses;
use self::terms::TermCounts;
pub use self::terms::TermStats;
use super::blocks::{PrefixTree, blocks_of};
use super::convert::PROGRESS_EVERY;
use super::{Content, FileSource, Format, LeftOut, ReaderOptions, Selection, Source, TraceError, TraceRequest};
use crate::summary::{Histogram, Summary};
use trunkline_core::draw::mix;

mod cache;
mod terms;

/// Largest block size, tokens.
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;
/// Maximum number of capacities: each takes a pass.
pub const CAPACITIES_MAX: usize = 64;
/// Maximum number of blocks of all prompts together; each takes twelve bytes.
pub const USES_MAX: usize = 1 << 29;

/// Options of the statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsOptions {
    /// Block size in tokens; `None` for the size of the trace's own ids, or 16 without ids.
    pub block_tokens: Option<u32>,
    /// Cache capacities, blocks. Empty for 1, 2 and 5 times powers of ten from a thousand up to all blocks.
    pub capacities: Vec<u64>,
}

/// Failure to count statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// Trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Trace without a single request.
    #[error("the trace holds no request")]
    Empty,
    /// Block size out of range.
    #[error("block size is {0} tokens; it must be from 1 to {BLOCK_TOKENS_MAX}")]
    BlockTokens(u32),
    /// More capacities than [`CAPACITIES_MAX`].
    #[error("{0} capacities; give at most {CAPACITIES_MAX}, each at least 1 block")]
    Capacities(usize),
    /// Too many blocks for the memory.
    #[error(
        "the prompts have more than {USES_MAX} blocks of {block_tokens} tokens; take larger blocks or fewer requests"
    )]
    TooManyBlocks {
        /// Block size in tokens.
        block_tokens: u32,
    },
}

/// Statistics of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceStats {
    /// Format of the trace.
    pub format: String,
    /// Requests in the trace.
    pub requests: u64,
    /// Requests left out.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// What a user should know of the file: the unit of timestamps where it is not certain, and the numbers of names.
    pub remarks: Vec<String>,
    /// Distribution of prompt lengths.
    pub input_tokens: Lengths,
    /// Distribution of output lengths.
    pub output_tokens: Lengths,
    /// Statistics of the arrival times.
    pub arrivals: ArrivalStats,
    /// Tenants, priorities and deadlines; `None` if no request has any.
    pub terms: Option<TermStats>,
    /// Prefix sharing among prompts with known content; `None` if the format has no content.
    pub prefixes: Option<PrefixStats>,
}

impl TraceStats {
    /// Returns the statistics as one JSON object over several lines, without a newline at the end.
    pub fn to_json(&self) -> String {
        // All keys are strings and all values numbers, strings or null.
        serde_json::to_string_pretty(self).expect("statistics serialise")
    }
}

/// Distribution of lengths, tokens. Percentiles are nearest-rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lengths {
    /// Sum of all lengths.
    pub total: u64,
    /// Arithmetic mean of the lengths, tokens.
    pub mean: f64,
    /// Median of the lengths, tokens.
    pub p50: u32,
    /// 90th percentile of the lengths, tokens.
    pub p90: u32,
    /// 99th percentile of the lengths, tokens.
    pub p99: u32,
    /// Greatest of the lengths, tokens.
    pub max: u32,
}

/// Statistics of arrival times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ArrivalStats {
    /// First to last arrival, seconds.
    pub duration_s: f64,
    /// Mean requests per second; 0 if all arrive at once.
    pub rate_requests_s: f64,
    /// Coefficient of variation of the gaps between arrivals: 1 for Poisson, higher for bursts.
    pub gap_cv: f64,
    /// Requests in the fullest minute, counting minutes from the first arrival.
    pub peak_minute_requests: u64,
    /// Number of that minute, from 0.
    pub peak_minute: u64,
}

impl ArrivalStats {
    /// Returns the rate in the fullest minute, requests per second; of a trace shorter than a minute the rate of the trace.
    pub fn peak_requests_s(&self) -> f64 {
        let minute_s = MINUTE_NS as f64 / 1e9;
        if self.duration_s < minute_s { self.rate_requests_s } else { self.peak_minute_requests as f64 / minute_s }
    }
}

/// Prefix sharing among prompts, by the rules of this module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefixStats {
    /// Block size in tokens.
    pub block_tokens: u32,
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Distinct blocks among them.
    pub distinct_blocks: u64,
    /// Share of blocks found by an unlimited cache.
    pub hit_ratio_blocks: f64,
    /// Share of prompt tokens found by an unlimited cache.
    pub hit_ratio_tokens: f64,
    /// Requests with at least one block found.
    pub requests_with_hits: u64,
    /// Reuse distance of the blocks found: other blocks used since the last use.
    pub reuse_blocks: ReuseBlocks,
    /// Reuse time of the blocks found, seconds since the last use; percentiles within 0.05 %.
    pub reuse_s: Summary,
    /// Hits by capacity, in ascending order.
    pub capacities: Vec<CapacityStats>,
}

/// Distribution of reuse distances, blocks. Percentiles are nearest-rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReuseBlocks {
    /// 10th percentile of the distances, blocks.
    pub p10: u64,
    /// First quartile (25th percentile), blocks.
    pub p25: u64,
    /// Median of the distances, blocks.
    pub p50: u64,
    /// Third quartile (75th percentile), blocks.
    pub p75: u64,
    /// 90th percentile of the distances, blocks.
    pub p90: u64,
    /// 99th percentile of the distances, blocks.
    pub p99: u64,
    /// Greatest of the distances, blocks.
    pub max: u64,
}

/// Hits of a cache of one capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CapacityStats {
    /// Capacity of the cache in blocks.
    pub blocks: u64,
    /// Share of blocks found under LRU.
    pub lru_blocks: f64,
    /// Share of tokens found under LRU.
    pub lru_tokens: f64,
    /// Share of blocks found by Belady's algorithm, with knowledge of the future.
    pub belady_blocks: f64,
    /// Share of tokens found by Belady's algorithm.
    pub belady_tokens: f64,
}

/// Counts the statistics of the selected part of a file. Calls `progress` with the number of requests read now and then.
///
/// # Errors
///
/// [`StatsError`] if the file cannot be read, is empty, or has too many blocks.
pub fn stats_of_file(
    path: &Path,
    reader: ReaderOptions,
    selection: &Selection,
    options: &StatsOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<TraceStats, StatsError> {
    let mut source = FileSource::open(path, reader, selection)?;
    let format = source.format();
    let mut n_read = 0u64;
    let requests = source.by_ref().inspect(|_| {
        n_read += 1;
        if n_read.is_multiple_of(PROGRESS_EVERY) {
            progress(n_read);
        }
    });
    let stats = stats(requests, format, options)?;
    Ok(TraceStats { left_out: source.left_out(), remarks: source.remarks(), ..stats })
}

/// Counts the statistics of `requests`, read as `format` and in the order of arrival.
///
/// # Errors
///
/// [`StatsError`] if there is no request, an option is out of range, or there are too many blocks.
pub fn stats(
    requests: impl Iterator<Item = Result<TraceRequest, TraceError>>,
    format: Format,
    options: &StatsOptions,
) -> Result<TraceStats, StatsError> {
    let block_tokens = options.block_tokens.or(format.block_tokens()).unwrap_or(16);
    if !(1..=BLOCK_TOKENS_MAX).contains(&block_tokens) {
        return Err(StatsError::BlockTokens(block_tokens));
    }
    if options.capacities.len() > CAPACITIES_MAX || options.capacities.contains(&0) {
        return Err(StatsError::Capacities(options.capacities.len()));
    }
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    let mut gaps = Gaps::default();
    let mut prefixes = Prefixes::new(block_tokens);
    let mut terms = TermCounts::default();
    for request in requests {
        let request = request?;
        terms.add(&request);
        inputs.push(request.input_tokens);
        outputs.push(request.output_tokens);
        gaps.arrive(request.arrival_ns);
        prefixes.add(&request)?;
    }
    if inputs.is_empty() {
        return Err(StatsError::Empty);
    }
    Ok(TraceStats {
        format: format.to_string(),
        requests: inputs.len() as u64,
        left_out: LeftOut::default(),
        remarks: Vec::new(),
        input_tokens: lengths(inputs),
        output_tokens: lengths(outputs),
        arrivals: gaps.stats(),
        terms: terms.stats(),
        prefixes: prefixes.any_known.then(|| prefixes.stats(&options.capacities)),
    })
}

fn lengths(mut lengths: Vec<u32>) -> Lengths {
    lengths.sort_unstable();
    let total = lengths.iter().map(|n| u64::from(*n)).sum();
    let at = |per_cent| lengths[rank(lengths.len() as u64, per_cent) as usize - 1];
    Lengths { total, mean: total as f64 / lengths.len() as f64, p50: at(50), p90: at(90), p99: at(99), max: at(100) }
}

/// Returns the rank, from 1, of the p-th percentile of `n` values.
fn rank(n: u64, per_cent: u64) -> u64 {
    (n * per_cent).div_ceil(100).clamp(1, n)
}

const MINUTE_NS: u64 = 60_000_000_000;

/// Gaps between arrivals, by Welford's method.
#[derive(Default)]
struct Gaps {
    last_ns: Option<u64>,
    n: u64,
    mean_s: f64,
    sum_squares: f64,
    minute: u64,
    minute_requests: u64,
    peak_minute: u64,
    peak_requests: u64,
}

impl Gaps {
    fn arrive(&mut self, at_ns: u64) {
        if let Some(last_ns) = self.last_ns.replace(at_ns) {
            let gap_s = at_ns.saturating_sub(last_ns) as f64 / 1e9;
            self.n += 1;
            let off = gap_s - self.mean_s;
            self.mean_s += off / self.n as f64;
            self.sum_squares += off * (gap_s - self.mean_s);
        }
        if at_ns / MINUTE_NS != self.minute {
            (self.minute, self.minute_requests) = (at_ns / MINUTE_NS, 0);
        }
        self.minute_requests += 1;
        if self.minute_requests > self.peak_requests {
            (self.peak_minute, self.peak_requests) = (self.minute, self.minute_requests);
        }
    }

    fn stats(&self) -> ArrivalStats {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let duration_s = self.mean_s * self.n as f64;
        ArrivalStats {
            duration_s,
            rate_requests_s: ratio(1.0, self.mean_s),
            gap_cv: ratio((ratio(self.sum_squares, self.n as f64)).sqrt(), self.mean_s),
            peak_minute_requests: self.peak_requests,
            peak_minute: self.peak_minute,
        }
    }
}

/// Blocks of all prompts, in the order of arrival.
struct Prefixes {
    block_tokens: u32,
    any_known: bool,
    tree: PrefixTree,
    uses: Uses,
    /// Time of the last use of each node.
    used_ns: Vec<u64>,
    reuse_ns: Histogram,
    hit_blocks: u64,
    hit_tokens: u64,
    requests_with_hits: u64,
}

impl Prefixes {
    fn new(block_tokens: u32) -> Self {
        Self {
            block_tokens,
            any_known: false,
            tree: PrefixTree::default(),
            uses: Uses::new(block_tokens),
            used_ns: Vec::new(),
            reuse_ns: Histogram::default(),
            hit_blocks: 0,
            hit_tokens: 0,
            requests_with_hits: 0,
        }
    }

    /// Adds the blocks of a prompt; skips prompts without known content, which share nothing.
    fn add(&mut self, request: &TraceRequest) -> Result<(), StatsError> {
        if matches!(request.content, Content::Unique(_)) {
            return Ok(());
        }
        self.any_known = true;
        let too_many = StatsError::TooManyBlocks { block_tokens: self.block_tokens };
        if self.uses.len() + request.input_tokens.div_ceil(self.block_tokens) as usize > USES_MAX {
            return Err(too_many);
        }
        let (mut parent, mut full, mut hits) = (None, false, 0);
        // Prompts of different namespaces share no prefix, as in a cache.
        let namespace = mix(request.terms.namespace.into());
        blocks_of(request, self.block_tokens, |content, n_tokens| {
            let content = if parent.is_none() { mix(content ^ namespace) } else { content };
            let Some((node, seen)) = self.tree.child(parent, content) else {
                full = true;
                return;
            };
            parent = Some(node);
            self.uses.push(node);
            if seen {
                hits += 1;
                self.hit_tokens += u64::from(n_tokens);
                self.reuse_ns.record(request.arrival_ns.saturating_sub(self.used_ns[node as usize]), 1);
                self.used_ns[node as usize] = request.arrival_ns;
            } else {
                self.used_ns.push(request.arrival_ns);
            }
        });
        self.hit_blocks += hits;
        self.requests_with_hits += u64::from(hits > 0);
        self.uses.end_request(request.input_tokens);
        if full { Err(too_many) } else { Ok(()) }
    }

    fn stats(self, capacities: &[u64]) -> PrefixStats {
        let (blocks, distinct) = (self.uses.len() as u64, u64::from(self.tree.len()));
        drop(self.tree);
        drop(self.used_ns);
        let tokens = self.uses.tokens();
        let lru = self.uses.distances(distinct as u32);
        let next = self.uses.next_uses(distinct as u32);
        let asked = if capacities.is_empty() { usual_capacities(distinct) } else { capacities.to_vec() };
        let of_capacity = |capacity: u64| {
            let lru = lru.hits(capacity);
            let belady = self.uses.belady(&next, distinct as u32, capacity);
            CapacityStats {
                blocks: capacity,
                lru_blocks: lru.blocks as f64 / blocks as f64,
                lru_tokens: lru.tokens as f64 / tokens as f64,
                belady_blocks: belady.blocks as f64 / blocks as f64,
                belady_tokens: belady.tokens as f64 / tokens as f64,
            }
        };
        PrefixStats {
            block_tokens: self.block_tokens,
            blocks,
            distinct_blocks: distinct,
            hit_ratio_blocks: self.hit_blocks as f64 / blocks as f64,
            hit_ratio_tokens: self.hit_tokens as f64 / tokens as f64,
            requests_with_hits: self.requests_with_hits,
            reuse_blocks: lru.reuse(),
            reuse_s: self.reuse_ns.summary(),
            capacities: asked.into_iter().map(of_capacity).collect(),
        }
    }
}

/// Returns 1, 2 and 5 times powers of ten, from a thousand (fewer for few blocks) up to the first that holds all blocks.
fn usual_capacities(distinct: u64) -> Vec<u64> {
    let first = if distinct > 5_000 { 1_000 } else { 10 };
    let mut capacities = Vec::new();
    let mut unit = first;
    loop {
        for times in [1, 2, 5] {
            capacities.push(unit * times);
            if unit * times >= distinct {
                return capacities;
            }
        }
        unit *= 10;
    }
}

#[cfg(test)]
mod tests;
