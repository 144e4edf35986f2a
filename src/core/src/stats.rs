//! Gauges and counters of a core.

use crate::tier::TIERS_MAX;

/// Gauges and counters of one tier of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TierStats {
    /// Blocks in the tier now.
    pub blocks: u32,
    /// Blocks found by requests in this tier and in no nearer place.
    pub hit_blocks: u64,
    /// Blocks whose transfer to the tier began.
    pub stored_blocks: u64,
    /// Blocks dropped from the tier to make room.
    pub evicted_blocks: u64,
}

/// Counts of requests, from acceptance to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RequestCounters {
    /// Requests accepted so far.
    pub accepted: u64,
    /// Requests refused so far.
    pub refused: u64,
    /// Requests ended so far.
    pub finished: u64,
    /// Requests taken back before their end, to run elsewhere.
    pub withdrawn: u64,
}

/// Counts of prompt, cached and generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TokenCounters {
    /// Prompt tokens of requests when they were first admitted.
    pub prompt_tokens: u64,
    /// Prompt tokens at first admissions whose KV was found in the cache and not computed again.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
}

/// Counts of swaps between device and host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SwapCounters {
    /// Swap-outs begun so far.
    pub swap_outs: u64,
    /// Swap-ins ended so far.
    pub swap_ins: u64,
    /// Blocks of swap-outs begun so far.
    pub swapped_out_blocks: u64,
    /// Blocks of swap-in transfers begun so far.
    pub swapped_in_blocks: u64,
    /// Transfers that failed so far.
    pub failed_transfers: u64,
}

/// Counts of draft tokens (speculative decoding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftCounters {
    /// Draft tokens allowed to workers so far (speculative decoding).
    pub draft_tokens: u64,
    /// Draft tokens accepted so far.
    pub accepted_draft_tokens: u64,
}

/// Gauges and counters of a core. Serialised as one flat map, with the fields of the nested counters in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Accepted requests in the waiting queue now.
    pub waiting: u32,
    /// Requests in the batch now.
    pub running: u32,
    /// Device blocks that hold nothing.
    pub free_blocks: u32,
    /// Published device blocks without a reader: cached, evictable.
    pub idle_blocks: u32,
    /// Published device blocks with a reader.
    pub held_blocks: u32,
    /// Device blocks of one sequence alone.
    pub private_blocks: u32,
    /// Steps begun so far.
    pub steps: u64,
    /// Counts of requests, from acceptance to end.
    #[serde(flatten)]
    pub requests: RequestCounters,
    /// Counts of prompt, cached and generated tokens.
    #[serde(flatten)]
    pub tokens: TokenCounters,
    /// Admitted requests waiting for blocks from a tier now.
    pub loading: u32,
    /// Requests with KV on the host, or on the way there or back, now.
    pub swapped: u32,
    /// Device blocks written, or read alone, by transfers in flight.
    pub moving_blocks: u32,
    /// Host blocks that hold nothing.
    pub free_host_blocks: u32,
    /// The tiers behind the device, nearest first.
    pub tiers: [TierStats; TIERS_MAX],
    /// Counts of swaps between device and host.
    #[serde(flatten)]
    pub swaps: SwapCounters,
    /// Counts of draft tokens (speculative decoding).
    #[serde(flatten)]
    pub drafts: DraftCounters,
    /// Preemptions so far, swapped or recomputed.
    pub preemptions: u64,
    /// Device blocks published so far.
    pub published_blocks: u64,
    /// Duplicates of published blocks, freed instead of published.
    pub merged_blocks: u64,
    /// Published device blocks evicted so far.
    pub evicted_blocks: u64,
}
