//! What a core counts.

use crate::tiering::TIERS_MAX;

/// What a tier of the prefix cache counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TierStats {
    /// Blocks it has.
    pub blocks: u32,
    /// Blocks that requests found there and not in a nearer place.
    pub hit_blocks: u64,
    /// Blocks whose copy to it was begun.
    pub stored_blocks: u64,
    /// Blocks dropped from it to make room.
    pub evicted_blocks: u64,
}

/// Gauges and counters of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Requests accepted and not in the batch.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
    /// Published blocks that no sequence reads: cached, evictable.
    pub idle_blocks: u32,
    /// Published blocks that some sequence reads.
    pub held_blocks: u32,
    /// Blocks of one sequence alone.
    pub private_blocks: u32,
    /// Steps begun.
    pub steps: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests ended.
    pub finished: u64,
    /// Requests taken back before their end, to run elsewhere.
    pub withdrawn: u64,
    /// Prompt tokens of requests when they were first admitted.
    pub prompt_tokens: u64,
    /// Those of them whose KV was found in the cache and not computed again.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that were admitted and wait for blocks from a tier.
    pub loading: u32,
    /// Requests whose KV is on the host, or on its way there or back.
    pub swapped: u32,
    /// Device blocks that copies under way write, or read alone.
    pub moving_blocks: u32,
    /// Host blocks that hold nothing.
    pub free_host_blocks: u32,
    /// The tiers behind the device, nearest first.
    pub tiers: [TierStats; TIERS_MAX],
    /// Swap-outs begun.
    pub swap_outs: u64,
    /// Swap-ins ended.
    pub swap_ins: u64,
    /// Blocks copied to the host, or begun to be.
    pub swapped_out_blocks: u64,
    /// Blocks copied to the device, or begun to be.
    pub swapped_in_blocks: u64,
    /// Copies that failed.
    pub failed_transfers: u64,
    /// Drafts that workers were allowed.
    pub draft_tokens: u64,
    /// Drafts that were right.
    pub accepted_draft_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks published.
    pub published_blocks: u64,
    /// Blocks found to be duplicates of published ones, and freed.
    pub merged_blocks: u64,
    /// Published blocks evicted.
    pub evicted_blocks: u64,
}
