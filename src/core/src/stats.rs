//! What a core counts.

use std::ops::AddAssign;

use crate::tier::TIERS_MAX;

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

impl AddAssign for TierStats {
    fn add_assign(&mut self, other: Self) {
        let Self { blocks, hit_blocks, stored_blocks, evicted_blocks } = other;
        self.blocks += blocks;
        self.hit_blocks += hit_blocks;
        self.stored_blocks += stored_blocks;
        self.evicted_blocks += evicted_blocks;
    }
}

impl AddAssign for Stats {
    /// Adds the gauges and counters of another core, tier by tier.
    fn add_assign(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.running += other.running;
        self.free_blocks += other.free_blocks;
        self.idle_blocks += other.idle_blocks;
        self.held_blocks += other.held_blocks;
        self.private_blocks += other.private_blocks;
        self.steps += other.steps;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.finished += other.finished;
        self.withdrawn += other.withdrawn;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generated_tokens += other.generated_tokens;
        self.loading += other.loading;
        self.swapped += other.swapped;
        self.moving_blocks += other.moving_blocks;
        self.free_host_blocks += other.free_host_blocks;
        self.swap_outs += other.swap_outs;
        self.swap_ins += other.swap_ins;
        self.swapped_out_blocks += other.swapped_out_blocks;
        self.swapped_in_blocks += other.swapped_in_blocks;
        self.failed_transfers += other.failed_transfers;
        self.draft_tokens += other.draft_tokens;
        self.accepted_draft_tokens += other.accepted_draft_tokens;
        self.preemptions += other.preemptions;
        self.published_blocks += other.published_blocks;
        self.merged_blocks += other.merged_blocks;
        self.evicted_blocks += other.evicted_blocks;
        for (sum, tier) in self.tiers.iter_mut().zip(other.tiers) {
            *sum += tier;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_sum_is_added() {
        // All fields are numbers, so 1 in each of them doubles to 2 in each of them.
        let tier = TierStats { blocks: 1, hit_blocks: 1, stored_blocks: 1, evicted_blocks: 1 };
        let ones = Stats {
            tiers: [tier; TIERS_MAX],
            waiting: 1,
            running: 1,
            free_blocks: 1,
            idle_blocks: 1,
            held_blocks: 1,
            private_blocks: 1,
            steps: 1,
            accepted: 1,
            refused: 1,
            finished: 1,
            withdrawn: 1,
            prompt_tokens: 1,
            cached_tokens: 1,
            generated_tokens: 1,
            loading: 1,
            swapped: 1,
            moving_blocks: 1,
            free_host_blocks: 1,
            swap_outs: 1,
            swap_ins: 1,
            swapped_out_blocks: 1,
            swapped_in_blocks: 1,
            failed_transfers: 1,
            draft_tokens: 1,
            accepted_draft_tokens: 1,
            preemptions: 1,
            published_blocks: 1,
            merged_blocks: 1,
            evicted_blocks: 1,
        };
        let mut sum = ones;
        sum += ones;
        assert_eq!(format!("{sum:?}"), format!("{ones:?}").replace(": 1", ": 2"));
    }
}
