//! Gauges and counters of a core.

use std::ops::AddAssign;

use crate::config::TIERS_MAX;

/// Gauges and counters of one tier of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TierStats {
    /// Blocks in the tier now.
    pub blocks: u32,
    /// Blocks found by requests in this tier and in no nearer place.
    pub hit_blocks: u64,
    /// Blocks copied to the tier.
    pub stored_blocks: u64,
    /// Blocks dropped from the tier to make room.
    pub evicted_blocks: u64,
    /// Blocks that the tier refused, or was too busy to be offered.
    pub skipped_blocks: u64,
    /// Blocks that the storage of a shared tier was asked for.
    pub looked_up_blocks: u64,
    /// Blocks of those that were there.
    pub found_blocks: u64,
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
    /// Returns of running requests to their beginning because the worker lost their KV. Preemptions are counted apart.
    pub restarted: u64,
}

/// Counts of prompt, cached and generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TokenCounters {
    /// Prompt tokens of requests when they were first admitted.
    pub prompt_tokens: u64,
    /// Prompt tokens at first admissions whose KV was found in the cache and not computed again.
    pub cached_tokens: u64,
    /// Prompt tokens at admissions whose KV was copied from other places in the cache, and not computed.
    pub copied_tokens: u64,
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
    /// Transfers that failed or did not end in time so far.
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

/// Counters of eviction within sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct H2oCounters {
    /// Plans made so far.
    pub h2o_plans: u64,
    /// Plans whose floors alone reached the target: nothing to drop.
    pub h2o_floor_plans: u64,
    /// Tokens that plans dropped so far, or in mode `probe` would have dropped.
    pub h2o_dropped_tokens: u64,
    /// Blocks that sequences dropped from their tables so far, without those behind a sliding window.
    pub h2o_dropped_blocks: u64,
    /// Tokens run to read prompts again, for scorers that need a second reading.
    pub h2o_reread_tokens: u64,
}

/// Gauge and counters of retention hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RetentionCounters {
    /// Cached device blocks above the default priority now.
    pub retained_blocks: u32,
    /// Blocks for which a hint above the default was ignored, because the tenant or all tenants together had the share.
    pub ignored_retained_blocks: u64,
    /// Blocks evicted above the default priority: no block of a lower priority was left.
    pub evicted_retained_blocks: u64,
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
    /// Counts of eviction within sequences (H2O).
    #[serde(flatten)]
    pub h2o: H2oCounters,
    /// Gauge and counts of retention hints.
    #[serde(flatten)]
    pub retention: RetentionCounters,
    /// Preemptions so far, swapped or recomputed.
    pub preemptions: u64,
    /// Device blocks published so far.
    pub published_blocks: u64,
    /// Duplicates of published blocks, freed instead of published.
    pub merged_blocks: u64,
    /// Published device blocks evicted so far.
    pub evicted_blocks: u64,
    /// Blocks of cached prefixes that requests took at their first admission, so far.
    pub prefix_blocks: u64,
    /// Runs of neighbouring blocks in those prefixes: `prefix_blocks / prefix_runs` is the mean length of a run. Long runs are found
    /// fast; a mean below 10 blocks says that the pool is fragmented.
    pub prefix_runs: u64,
}

impl AddAssign for TierStats {
    fn add_assign(&mut self, other: Self) {
        let Self { blocks, hit_blocks, stored_blocks, evicted_blocks, skipped_blocks, looked_up_blocks, found_blocks } =
            other;
        self.blocks += blocks;
        self.hit_blocks += hit_blocks;
        self.stored_blocks += stored_blocks;
        self.evicted_blocks += evicted_blocks;
        self.skipped_blocks += skipped_blocks;
        self.looked_up_blocks += looked_up_blocks;
        self.found_blocks += found_blocks;
    }
}

impl AddAssign for RequestCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { accepted, refused, finished, withdrawn, restarted } = other;
        self.accepted += accepted;
        self.refused += refused;
        self.finished += finished;
        self.withdrawn += withdrawn;
        self.restarted += restarted;
    }
}

impl AddAssign for TokenCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { prompt_tokens, cached_tokens, copied_tokens, generated_tokens } = other;
        self.prompt_tokens += prompt_tokens;
        self.cached_tokens += cached_tokens;
        self.copied_tokens += copied_tokens;
        self.generated_tokens += generated_tokens;
    }
}

impl AddAssign for SwapCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { swap_outs, swap_ins, swapped_out_blocks, swapped_in_blocks, failed_transfers } = other;
        self.swap_outs += swap_outs;
        self.swap_ins += swap_ins;
        self.swapped_out_blocks += swapped_out_blocks;
        self.swapped_in_blocks += swapped_in_blocks;
        self.failed_transfers += failed_transfers;
    }
}

impl AddAssign for DraftCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { draft_tokens, accepted_draft_tokens } = other;
        self.draft_tokens += draft_tokens;
        self.accepted_draft_tokens += accepted_draft_tokens;
    }
}

impl AddAssign for H2oCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { h2o_plans, h2o_floor_plans, h2o_dropped_tokens, h2o_dropped_blocks, h2o_reread_tokens } = other;
        self.h2o_plans += h2o_plans;
        self.h2o_floor_plans += h2o_floor_plans;
        self.h2o_dropped_tokens += h2o_dropped_tokens;
        self.h2o_dropped_blocks += h2o_dropped_blocks;
        self.h2o_reread_tokens += h2o_reread_tokens;
    }
}

impl AddAssign for RetentionCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { retained_blocks, ignored_retained_blocks, evicted_retained_blocks } = other;
        self.retained_blocks += retained_blocks;
        self.ignored_retained_blocks += ignored_retained_blocks;
        self.evicted_retained_blocks += evicted_retained_blocks;
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
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.loading += other.loading;
        self.swapped += other.swapped;
        self.moving_blocks += other.moving_blocks;
        self.free_host_blocks += other.free_host_blocks;
        self.swaps += other.swaps;
        self.drafts += other.drafts;
        self.h2o += other.h2o;
        self.retention += other.retention;
        self.preemptions += other.preemptions;
        self.published_blocks += other.published_blocks;
        self.merged_blocks += other.merged_blocks;
        self.evicted_blocks += other.evicted_blocks;
        self.prefix_blocks += other.prefix_blocks;
        self.prefix_runs += other.prefix_runs;
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
        let tier = TierStats {
            blocks: 1,
            hit_blocks: 1,
            stored_blocks: 1,
            evicted_blocks: 1,
            skipped_blocks: 1,
            looked_up_blocks: 1,
            found_blocks: 1,
        };
        let ones = Stats {
            tiers: [tier; TIERS_MAX],
            waiting: 1,
            running: 1,
            free_blocks: 1,
            idle_blocks: 1,
            held_blocks: 1,
            private_blocks: 1,
            steps: 1,
            requests: RequestCounters { accepted: 1, refused: 1, finished: 1, withdrawn: 1, restarted: 1 },
            tokens: TokenCounters { prompt_tokens: 1, cached_tokens: 1, copied_tokens: 1, generated_tokens: 1 },
            loading: 1,
            swapped: 1,
            moving_blocks: 1,
            free_host_blocks: 1,
            swaps: SwapCounters {
                swap_outs: 1,
                swap_ins: 1,
                swapped_out_blocks: 1,
                swapped_in_blocks: 1,
                failed_transfers: 1,
            },
            drafts: DraftCounters { draft_tokens: 1, accepted_draft_tokens: 1 },
            h2o: H2oCounters {
                h2o_plans: 1,
                h2o_floor_plans: 1,
                h2o_dropped_tokens: 1,
                h2o_dropped_blocks: 1,
                h2o_reread_tokens: 1,
            },
            retention: RetentionCounters { retained_blocks: 1, ignored_retained_blocks: 1, evicted_retained_blocks: 1 },
            preemptions: 1,
            published_blocks: 1,
            merged_blocks: 1,
            evicted_blocks: 1,
            prefix_blocks: 1,
            prefix_runs: 1,
        };
        let mut sum = ones;
        sum += ones;
        assert_eq!(format!("{sum:?}"), format!("{ones:?}").replace(": 1", ": 2"));
    }

    #[test]
    fn nested_counters_are_serialised_flat_and_in_order() {
        let json = serde_json::to_string(&Stats::default()).unwrap();
        let tier = concat!(
            r#"{"blocks":0,"hit_blocks":0,"stored_blocks":0,"evicted_blocks":0,"skipped_blocks":0,"#,
            r#""looked_up_blocks":0,"found_blocks":0}"#
        );
        let keys = json.replace(tier, "").replace(":0", "");
        let expected = [
            r#"{"waiting","running","free_blocks","idle_blocks","held_blocks","private_blocks","steps","#,
            r#""accepted","refused","finished","withdrawn","restarted","prompt_tokens","cached_tokens","copied_tokens","generated_tokens","#,
            r#""loading","swapped","moving_blocks","free_host_blocks","tiers":["#,
            &",".repeat(TIERS_MAX - 1),
            r#"],"swap_outs","swap_ins","swapped_out_blocks","swapped_in_blocks","failed_transfers","#,
            r#""draft_tokens","accepted_draft_tokens","#,
            r#""h2o_plans","h2o_floor_plans","h2o_dropped_tokens","h2o_dropped_blocks","h2o_reread_tokens","retained_blocks","ignored_retained_blocks","evicted_retained_blocks","preemptions","published_blocks","merged_blocks","evicted_blocks","#,
            r#""prefix_blocks","prefix_runs"}"#,
        ];
        assert_eq!(keys, expected.concat());
    }
}
