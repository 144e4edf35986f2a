//! What a trace is like: lengths, arrivals, and what a cache of any size could save.
//!
//! # How hits are counted
//!
//! Requests run one after another; a prompt is cut into blocks of [`StatsOptions::block_tokens`], and a block is found
//! if it *and every block before it in its prompt* is in the cache. All blocks of a prompt are in the cache after it,
//! the last and perhaps partial one too, which counts as a block like any other: that is how the figures of the
//! Mooncake paper are made. (A serving cache holds whole blocks only, so it finds a little less, and what it generated
//! besides, so it may find a little more.)
//!
//! A cache of limited capacity keeps the prefix of what it keeps. Under *LRU* a prompt uses its blocks from the last to
//! the first, so that the least recently used block is never before one that is kept; a block is then found in a cache
//! of `c` blocks if fewer than `c` others were used since its last use, so one pass gives the hits of all capacities.
//! *Belady* knows the future and drops the block that is used again last, of those the one farthest from the beginning
//! of its prompt; no cache of that size finds more.

use std::path::Path;

use serde::Serialize;

use self::cache::Uses;
use super::blocks::{PrefixTree, blocks_of};
use super::convert::PROGRESS_EVERY;
use super::{Content, FileSource, Format, ReaderOptions, Selection, Source, TraceError, TraceRequest};
use crate::summary::{Histogram, Summary};

mod cache;

/// The largest block, tokens.
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;
/// Capacities that are looked at, at most: each takes a pass.
pub const CAPACITIES_MAX: usize = 64;
/// Blocks of all prompts together at most; they take twelve bytes each.
pub const USES_MAX: usize = 1 << 29;

/// What is to be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsOptions {
    /// Tokens of a block; as the trace's own ids if this says none, 16 where it has none.
    pub block_tokens: Option<u32>,
    /// Capacities of the caches, blocks; 1, 2 and 5 thousands and so on up to all blocks if this says none.
    pub capacities: Vec<u64>,
}

/// Why a trace has no statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// It could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is nothing to count.
    #[error("the trace holds no request")]
    Empty,
    /// No block has so many tokens.
    #[error("block size is {0} tokens; it must be from 1 to {BLOCK_TOKENS_MAX}")]
    BlockTokens(u32),
    /// More passes than anybody waits for.
    #[error("{0} capacities; give at most {CAPACITIES_MAX}, each at least 1 block")]
    Capacities(usize),
    /// More than memory can be spent on.
    #[error(
        "the prompts have more than {USES_MAX} blocks of {block_tokens} tokens; take larger blocks or fewer requests"
    )]
    TooManyBlocks {
        /// Tokens of a block.
        block_tokens: u32,
    },
}

/// What a trace is like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceStats {
    /// How it was written.
    pub format: String,
    /// Requests.
    pub requests: u64,
    /// Requests that were logged as failed, and left out.
    pub failed_requests: u64,
    /// Tokens of prompts.
    pub input_tokens: Lengths,
    /// Tokens that were generated.
    pub output_tokens: Lengths,
    /// When they arrived.
    pub arrivals: ArrivalStats,
    /// What those share whose content is known; nothing if the format does not say.
    pub prefixes: Option<PrefixStats>,
}

impl TraceStats {
    /// The statistics as one JSON object over several lines, without a newline at the end.
    pub fn to_json(&self) -> String {
        // All keys are strings and all values numbers, strings or null.
        serde_json::to_string_pretty(self).expect("statistics serialise")
    }
}

/// A distribution of lengths, tokens. Percentiles are nearest-rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lengths {
    /// All together.
    pub total: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: u32,
    /// 90th percentile.
    pub p90: u32,
    /// 99th percentile.
    pub p99: u32,
    /// Greatest.
    pub max: u32,
}

/// When requests arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ArrivalStats {
    /// From the first to the last, seconds.
    pub duration_s: f64,
    /// Requests a second on average; 0 if all came at once.
    pub rate_requests_s: f64,
    /// Standard deviation over mean of the gaps between two arrivals: 1 for Poisson, more if they come in bursts.
    pub gap_cv: f64,
    /// Requests of the fullest minute, minutes being counted from the first arrival.
    pub peak_minute_requests: u64,
    /// That minute, from 0.
    pub peak_minute: u64,
}

/// What prompts share, by the rules of this module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefixStats {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Of them, those that differ.
    pub distinct_blocks: u64,
    /// Share of the blocks that a cache without limit finds.
    pub hit_ratio_blocks: f64,
    /// Share of the prompts' tokens that it finds.
    pub hit_ratio_tokens: f64,
    /// Requests that find at least a block.
    pub requests_with_hits: u64,
    /// Of the blocks that it finds: other blocks used since the last use.
    pub reuse_blocks: ReuseBlocks,
    /// Of the blocks that it finds: time since the last use, seconds; percentiles within 0.05 %.
    pub reuse_s: Summary,
    /// Hits by capacity.
    pub capacities: Vec<CapacityStats>,
}

/// A distribution of reuse distances, blocks. Percentiles are nearest-rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReuseBlocks {
    /// 10th percentile.
    pub p10: u64,
    /// First quartile.
    pub p25: u64,
    /// Median.
    pub p50: u64,
    /// Third quartile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Greatest.
    pub max: u64,
}

/// What a cache of one capacity finds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CapacityStats {
    /// Its capacity, blocks.
    pub blocks: u64,
    /// Share of the blocks that it finds under LRU.
    pub lru_blocks: f64,
    /// Share of the tokens that it finds under LRU.
    pub lru_tokens: f64,
    /// Share of the blocks that it finds if it knows the future.
    pub belady_blocks: f64,
    /// Share of the tokens that it finds if it knows the future.
    pub belady_tokens: f64,
}

/// Finds out what is selected of a file is like. `progress` is told now and then how many requests were read.
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
    Ok(TraceStats { failed_requests: source.failed_requests(), ..stats })
}

/// Finds out what `requests` are like, which were read as `format` and come in the order of arrival.
pub fn stats(
    requests: impl Iterator<Item = Result<TraceRequest, TraceError>>,
    format: Format,
    options: &StatsOptions,
) -> Result<TraceStats, StatsError> {
    let block_tokens = options.block_tokens.unwrap_or(if format == Format::Mooncake { 512 } else { 16 });
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
    for request in requests {
        let request = request?;
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
        failed_requests: 0,
        input_tokens: lengths(inputs),
        output_tokens: lengths(outputs),
        arrivals: gaps.stats(),
        prefixes: prefixes.any_known.then(|| prefixes.stats(&options.capacities)),
    })
}

fn lengths(mut lengths: Vec<u32>) -> Lengths {
    lengths.sort_unstable();
    let total = lengths.iter().map(|n| u64::from(*n)).sum();
    let at = |per_cent| lengths[rank(lengths.len() as u64, per_cent) as usize - 1];
    Lengths { total, mean: total as f64 / lengths.len() as f64, p50: at(50), p90: at(90), p99: at(99), max: at(100) }
}

/// The rank, from 1, of the p-th percentile of `n` values.
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

/// The blocks of all prompts, as they come.
struct Prefixes {
    block_tokens: u32,
    any_known: bool,
    tree: PrefixTree,
    uses: Uses,
    /// When each node was used last.
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

    /// A prompt of which nothing is known is left out: it can share nothing.
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
        blocks_of(request, self.block_tokens, |content, n_tokens| {
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

/// 1, 2 and 5 times powers of ten, from a thousand (fewer if there are few blocks) up to the first that holds all.
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
