//! What a seeded run came to.

/// Declares the counts of a run, next to the digest of its decisions, and the sum of two runs.
#[macro_export]
macro_rules! outcome {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$about:meta])* pub $count:ident: u64,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            /// Digest of the decisions; 0 in sums.
            pub digest: u64,
            $($(#[$about])* pub $count: u64,)*
        }

        impl $name {
            /// Returns the sum of two runs, without a digest.
            #[must_use]
            pub fn plus(self, other: &Self) -> Self {
                Self { digest: 0, $($count: self.$count + other.$count,)* }
            }
        }
    };
}

outcome! {
    /// What a run came to.
    pub struct Outcome {
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
        /// Sequences that the worker failed while others went on.
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
        /// Tokens that prefetches loaded.
        pub prefetched_tokens: u64,
        /// Blocks in tiers computed while those behind them were loaded.
        pub head_blocks: u64,
        /// Tokens that pins held at the ends of their requests.
        pub pinned_tokens: u64,
        /// Blocks for which retention hints were ignored.
        pub ignored_retained: u64,
    }
}
