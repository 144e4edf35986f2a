//! What a seeded run came to.

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The decision digest.
    pub digest: u64,
    /// Requests that ran to their own end.
    pub completed: u64,
    /// Requests that were aborted, stopped by the driver, timed out or failed.
    pub cut_short: u64,
    /// Times a request was taken back and submitted again with what it had generated.
    pub withdrawn: u64,
    /// Those of them that timed out.
    pub timed_out: u64,
    /// Requests refused.
    pub refused: u64,
    /// Those of them that were refused because too many prompt tokens waited.
    pub refused_by_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Events that preempted a request while a step ran it.
    pub preempted_in_steps: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Prompt tokens copied from other places in the cache, and read again after a swap.
    pub copied_tokens: u64,
    /// Blocks merged.
    pub merged_blocks: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Times the worker was lost.
    pub workers_lost: u64,
    /// Times the connection of the worker broke.
    pub workers_resumed: u64,
    /// Steps that ended with another in flight behind them.
    pub steps_ahead: u64,
    /// Steps that the worker answered with nonsense.
    pub nonsense: u64,
    /// Steps that failed because of a request in them, which the worker did not name.
    pub poisoned: u64,
    /// Sequences that the worker failed beside others.
    pub failed_alone: u64,
    /// Requests that started over because they read what another failed to compute.
    pub started_over: u64,
    /// Copies to the host that succeeded.
    pub swaps_out: u64,
    /// Blocks of those.
    pub blocks_out: u64,
    /// Copies to the device that succeeded.
    pub swaps_in: u64,
    /// Blocks of those.
    pub blocks_in: u64,
    /// Copies to the device that succeeded, of models with several layer groups.
    pub groups_in: u64,
    /// Copies from tiers to the device that succeeded, of models with several layer groups.
    pub groups_loaded: u64,
    /// Copies that failed.
    pub failed_transfers: u64,
    /// Copies from tiers to the device.
    pub loads: u64,
    /// Blocks so copied.
    pub blocks_loaded: u64,
    /// Copies to tiers, from the device or another.
    pub stores: u64,
    /// Blocks so copied.
    pub blocks_stored: u64,
    /// Copies that were in flight when the worker was lost.
    pub lost_transfers: u64,
    /// Tokens that the worker was allowed to draft.
    pub drafts_allowed: u64,
    /// Drafts accepted.
    pub drafts_accepted: u64,
    /// Requests with the id of one that had just ended.
    pub reused_ids: u64,
    /// Blocks found by look-ups in a shared tier.
    pub looked_up: u64,
    /// Blocks that sequences dropped from their tables.
    pub dropped_blocks: u64,
    /// Blocks evicted above the default priority.
    pub evicted_retained: u64,
    /// Blocks for which retention hints were ignored.
    pub ignored_retained: u64,
}

impl Outcome {
    /// The sum of two runs, but for the digest.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            digest: 0,
            completed: self.completed + other.completed,
            cut_short: self.cut_short + other.cut_short,
            withdrawn: self.withdrawn + other.withdrawn,
            timed_out: self.timed_out + other.timed_out,
            refused: self.refused + other.refused,
            refused_by_tokens: self.refused_by_tokens + other.refused_by_tokens,
            preemptions: self.preemptions + other.preemptions,
            preempted_in_steps: self.preempted_in_steps + other.preempted_in_steps,
            cached_tokens: self.cached_tokens + other.cached_tokens,
            copied_tokens: self.copied_tokens + other.copied_tokens,
            merged_blocks: self.merged_blocks + other.merged_blocks,
            evicted_blocks: self.evicted_blocks + other.evicted_blocks,
            workers_lost: self.workers_lost + other.workers_lost,
            workers_resumed: self.workers_resumed + other.workers_resumed,
            steps_ahead: self.steps_ahead + other.steps_ahead,
            nonsense: self.nonsense + other.nonsense,
            swaps_out: self.swaps_out + other.swaps_out,
            blocks_out: self.blocks_out + other.blocks_out,
            swaps_in: self.swaps_in + other.swaps_in,
            blocks_in: self.blocks_in + other.blocks_in,
            groups_in: self.groups_in + other.groups_in,
            groups_loaded: self.groups_loaded + other.groups_loaded,
            failed_transfers: self.failed_transfers + other.failed_transfers,
            loads: self.loads + other.loads,
            blocks_loaded: self.blocks_loaded + other.blocks_loaded,
            stores: self.stores + other.stores,
            blocks_stored: self.blocks_stored + other.blocks_stored,
            lost_transfers: self.lost_transfers + other.lost_transfers,
            drafts_allowed: self.drafts_allowed + other.drafts_allowed,
            drafts_accepted: self.drafts_accepted + other.drafts_accepted,
            reused_ids: self.reused_ids + other.reused_ids,
            looked_up: self.looked_up + other.looked_up,
            dropped_blocks: self.dropped_blocks + other.dropped_blocks,
            poisoned: self.poisoned + other.poisoned,
            failed_alone: self.failed_alone + other.failed_alone,
            started_over: self.started_over + other.started_over,
            evicted_retained: self.evicted_retained + other.evicted_retained,
            ignored_retained: self.ignored_retained + other.ignored_retained,
        }
    }
}
