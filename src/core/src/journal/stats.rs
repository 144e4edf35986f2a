//! Gauges and counters of a core, each written once: the field, its sum over engines, and its metric.
//!
//! To add one, add a line to a `figures!` below, and count where it happens. With `=> counter("name_total", "Help.")` the server has a
//! metric of it. For reports of replays, add a line to `COUNTED` in `sim/report/src/counted.rs`; for the API, the field to `Counters` in
//! `proto/trunkline/v1/inference.proto`.

use std::ops::AddAssign;

use crate::config::TIERS_MAX;

/// A figure of one engine that has a metric.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name of the metric.
    pub metric: &'static str,
    /// Help of the metric.
    pub help: &'static str,
    /// Rises and falls, or only rises.
    pub kind: FigureKind,
    /// Reads the figure.
    pub read: fn(&Stats) -> u64,
}

/// Kind of a [`Figure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// A number that rises and falls.
    Gauge,
    /// A sum since the start.
    Counter,
}

/// Sums over engines.
trait Fold {
    fn fold(&mut self, other: Self);
}

/// One number of a figure.
trait Whole: Copy {
    fn whole(self) -> u64;
}

impl Whole for u32 {
    fn whole(self) -> u64 {
        self.into()
    }
}

impl Whole for u64 {
    fn whole(self) -> u64 {
        self
    }
}

impl Fold for u32 {
    fn fold(&mut self, other: Self) {
        // A gauge of very many engines.
        *self = self.saturating_add(other);
    }
}

impl Fold for u64 {
    fn fold(&mut self, other: Self) {
        *self += other;
    }
}

impl<T: Fold, const N: usize> Fold for [T; N] {
    fn fold(&mut self, other: Self) {
        self.iter_mut().zip(other).for_each(|(sum, one)| sum.fold(one));
    }
}

/// Declares a struct of figures with their sum, and with `of [stats.FIELD]` the metrics of its fields.
macro_rules! figures {
    (@kind gauge) => { FigureKind::Gauge };
    (@kind counter) => { FigureKind::Counter };
    (@read [$stats:ident $(.$part:ident)?] $field:ident) => { |$stats| $stats$(.$part)?.$field.whole() };
    (
        $(#[$doc:meta])* pub struct $name:ident $(of $path:tt)? {
            $($(#[$about:meta])* $field:ident: $type:ty $(=> $kind:ident($metric:literal, $help:literal))?,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl Fold for $name {
            fn fold(&mut self, other: Self) {
                $(self.$field.fold(other.$field);)*
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.fold(other);
            }
        }

        figures! { @metrics $name $($path)?; $($(($field $kind $metric $help))?)* }
    };
    (@metrics $name:ident; ) => {};
    (@metrics $name:ident $path:tt; $(($field:ident $kind:ident $metric:literal $help:literal))*) => {
        impl $name {
            const METRICS: &[Figure] = &[$(Figure {
                metric: $metric,
                help: $help,
                kind: figures!(@kind $kind),
                read: figures!(@read $path $field),
            },)*];
        }
    };
}

figures! {
    /// Gauges and counters of one tier of the prefix cache.
    pub struct TierStats {
        /// Blocks in the tier now.
        blocks: u32,
        /// Blocks found by requests in this tier and in no nearer place.
        hit_blocks: u64,
        /// Blocks copied to the tier.
        stored_blocks: u64,
        /// Blocks dropped from the tier to make room.
        evicted_blocks: u64,
        /// Blocks that the tier refused, or was too busy to be offered.
        skipped_blocks: u64,
        /// Blocks that the storage of a shared tier was asked for.
        looked_up_blocks: u64,
        /// Blocks of those that were there.
        found_blocks: u64,
    }
}

figures! {
    /// Counts of requests, from acceptance to end.
    pub struct RequestCounters of [stats.requests] {
        /// Requests accepted so far.
        accepted: u64 => counter("trunkline_requests_accepted_total", "Requests accepted, and moved here from other engines."),
        /// Requests refused so far.
        refused: u64,
        /// Requests ended so far.
        finished: u64,
        /// Requests taken back before their end, to run elsewhere.
        withdrawn: u64 => counter("trunkline_requests_withdrawn_total", "Requests moved to other engines."),
        /// Returns of running requests to their beginning because the worker lost their KV. Preemptions are counted apart.
        restarted: u64 => counter("trunkline_requests_restarted_total", "Running requests computed again because the worker lost their KV."),
        /// Requests so far that waited beyond the last moment to meet their deadline.
        hopeless: u64 => counter("trunkline_hopeless_requests_total", "Requests that waited beyond the last moment to meet their deadline (--policy edf)."),
    }
}

figures! {
    /// Counts of prompt, cached and generated tokens.
    pub struct TokenCounters of [stats.tokens] {
        /// Prompt tokens of requests when they were first admitted.
        prompt_tokens: u64 => counter("trunkline_prompt_tokens_total", "Prompt tokens of requests at their first admission."),
        /// Prompt tokens at first admissions whose KV was found in the cache and not computed again.
        cached_tokens: u64 => counter("trunkline_prefix_cache_hits_total", "Prompt tokens found in the prefix cache, on the device or in a tier."),
        /// Prompt tokens at admissions whose KV was copied from other places in the cache, and not computed.
        copied_tokens: u64 => counter("trunkline_copied_prompt_tokens_total", "Prompt tokens copied from other places in the cache (--reuse-anywhere)."),
        /// Tokens that prefetches brought from tiers to the device.
        prefetched_tokens: u64 => counter("trunkline_prefetched_tokens_total", "Tokens loaded from tiers by prefetches."),
        /// Tokens generated so far.
        generated_tokens: u64 => counter("trunkline_generation_tokens_total", "Tokens generated."),
    }
}

figures! {
    /// Counts of swaps between device and host.
    pub struct SwapCounters of [stats.swaps] {
        /// Swap-outs begun so far.
        swap_outs: u64 => counter("trunkline_swap_outs_total", "Swap-outs begun."),
        /// Swap-ins ended so far.
        swap_ins: u64 => counter("trunkline_swap_ins_total", "Swap-ins ended."),
        /// Blocks of swap-outs begun so far.
        swapped_out_blocks: u64 => counter("trunkline_swapped_out_blocks_total", "Blocks of swap-outs begun."),
        /// Blocks of swap-in transfers begun so far.
        swapped_in_blocks: u64 => counter("trunkline_swapped_in_blocks_total", "Blocks of swap-in transfers begun."),
        /// Blocks of swapped-out requests found on the device, and not copied back, so far.
        found_blocks: u64 => counter("trunkline_swap_in_found_blocks_total", "Blocks of swapped-out requests found on the device, and not copied back."),
        /// Blocks of swapped-out requests that came back with the transfer of another request so far.
        joined_blocks: u64 => counter("trunkline_swap_in_joined_blocks_total", "Blocks of swapped-out requests that came back with the transfer of another."),
        /// Blocks copied back that were on the device by then, and merged, so far.
        merged_blocks: u64 => counter("trunkline_swap_in_merged_blocks_total", "Blocks copied back that were on the device by then, and merged."),
        /// Transfers that failed or did not end in time so far.
        failed_transfers: u64 => counter("trunkline_failed_transfers_total", "Transfers that failed or were overdue."),
    }
}

figures! {
    /// Counts of loads from tiers, for requests that were admitted.
    pub struct LoadCounters of [stats.loads] {
        /// Blocks in tiers that were computed while those behind them were loaded.
        head_blocks: u64 => counter("trunkline_load_head_blocks_total", "Blocks in tiers computed while those behind them were loaded."),
        /// Time of loads during which their requests were computed, microseconds.
        hidden_load_us: u64 => counter("trunkline_load_hidden_microseconds_total", "Time of loads during which their requests were computed."),
        /// Time of loads for which their requests waited, microseconds.
        exposed_load_us: u64 => counter("trunkline_load_exposed_microseconds_total", "Time of loads for which their requests waited."),
    }
}

figures! {
    /// Counts of draft tokens (speculative decoding).
    pub struct DraftCounters of [stats.drafts] {
        /// Draft tokens allowed to workers so far (speculative decoding).
        draft_tokens: u64,
        /// Draft tokens accepted so far.
        accepted_draft_tokens: u64,
    }
}

figures! {
    /// Counters of eviction within sequences.
    pub struct H2oCounters of [stats.h2o] {
        /// Plans made so far.
        h2o_plans: u64 => counter("trunkline_h2o_plans_total", "Plans of eviction within sequences."),
        /// Plans whose floors alone reached the target: nothing to drop.
        h2o_floor_plans: u64,
        /// Tokens that plans dropped so far, or in mode `probe` would have dropped.
        h2o_dropped_tokens: u64 => counter("trunkline_h2o_dropped_tokens_total", "Tokens dropped within sequences, or counted in mode probe."),
        /// Blocks that sequences dropped from their tables so far, without those behind a sliding window.
        h2o_dropped_blocks: u64 => counter("trunkline_h2o_dropped_blocks_total", "Blocks dropped within sequences."),
        /// Tokens run to read prompts again, for scorers that need a second reading.
        h2o_reread_tokens: u64 => counter("trunkline_h2o_reread_tokens_total", "Tokens run to read prompts again for scores."),
    }
}

figures! {
    /// Gauge and counters of retention hints.
    pub struct RetentionCounters of [stats.retention] {
        /// Cached device blocks above the default priority now.
        retained_blocks: u32 => gauge("trunkline_retained_blocks", "Cached blocks kept by a retention hint."),
        /// Blocks for which a hint above the default was ignored, because the tenant or all tenants together had the share.
        ignored_retained_blocks: u64 => counter("trunkline_ignored_retained_blocks_total", "Blocks whose retention hint was beyond a share."),
        /// Blocks evicted above the default priority: no block of a lower priority was left.
        evicted_retained_blocks: u64 => counter("trunkline_evicted_retained_blocks_total", "Blocks evicted in spite of a retention hint."),
    }
}

figures! {
    /// Gauges and counters of a core. Serialised as one flat map, with the fields of the nested counters in place.
    pub struct Stats of [stats] {
        /// Accepted requests in the waiting queue now.
        waiting: u32 => gauge("trunkline_num_requests_waiting", "Accepted requests without a place in the batch."),
        /// Requests in the batch now.
        running: u32 => gauge("trunkline_num_requests_running", "Requests in the running batch."),
        /// Device blocks that hold nothing.
        free_blocks: u32,
        /// Published device blocks without a reader: cached, evictable.
        idle_blocks: u32,
        /// Published device blocks with a reader.
        held_blocks: u32,
        /// Device blocks of one sequence alone.
        private_blocks: u32,
        /// Steps begun so far.
        steps: u64 => counter("trunkline_steps_total", "Steps begun."),
        /// Counts of requests, from acceptance to end.
        #[serde(flatten)]
        requests: RequestCounters,
        /// Counts of prompt, cached and generated tokens.
        #[serde(flatten)]
        tokens: TokenCounters,
        /// Counts of loads from tiers.
        #[serde(flatten)]
        loads: LoadCounters,
        /// Admitted requests waiting for blocks from a tier now.
        loading: u32 => gauge("trunkline_num_requests_loading", "Admitted requests that wait for blocks from a tier."),
        /// Requests with KV on the host, or on the way there or back, now.
        swapped: u32 => gauge("trunkline_num_requests_swapped", "Preempted requests with KV in host memory."),
        /// Device blocks written, or read alone, by transfers in flight.
        moving_blocks: u32,
        /// Host blocks that hold nothing.
        free_host_blocks: u32 => gauge("trunkline_free_host_blocks", "Host blocks for swapped-out requests that hold nothing."),
        /// The tiers behind the device, nearest first.
        tiers: [TierStats; TIERS_MAX],
        /// Counts of swaps between device and host.
        #[serde(flatten)]
        swaps: SwapCounters,
        /// Counts of draft tokens (speculative decoding).
        #[serde(flatten)]
        drafts: DraftCounters,
        /// Counts of eviction within sequences (H2O).
        #[serde(flatten)]
        h2o: H2oCounters,
        /// Gauge and counts of retention hints.
        #[serde(flatten)]
        retention: RetentionCounters,
        /// Preemptions so far, swapped or recomputed.
        preemptions: u64 => counter("trunkline_num_preemptions_total", "Running requests that gave up their blocks to others."),
        /// Device blocks published so far.
        published_blocks: u64 => counter("trunkline_published_blocks_total", "Blocks put into the prefix cache."),
        /// Duplicates of published blocks, freed instead of published.
        merged_blocks: u64 => counter("trunkline_merged_blocks_total", "Duplicates of cached blocks, merged."),
        /// Published device blocks evicted so far.
        evicted_blocks: u64 => counter("trunkline_evicted_blocks_total", "Blocks evicted from the prefix cache."),
        /// Blocks of cached prefixes that requests took at their first admission, so far.
        prefix_blocks: u64 => counter("trunkline_prefix_blocks_total", "Blocks of cached prefixes taken at first admissions."),
        /// Runs of neighbouring blocks in those prefixes: `prefix_blocks / prefix_runs` is the mean length of a run. Long runs are found
        /// fast; a mean below 10 blocks says that the pool is fragmented.
        prefix_runs: u64 => counter("trunkline_prefix_runs_total", "Runs of neighbouring blocks in those prefixes."),
    }
}

impl Stats {
    /// Returns the figures that have metrics, in the order of the fields.
    pub fn metrics() -> impl Iterator<Item = &'static Figure> {
        let nested = [
            RequestCounters::METRICS,
            TokenCounters::METRICS,
            Self::METRICS,
            SwapCounters::METRICS,
            LoadCounters::METRICS,
            DraftCounters::METRICS,
            H2oCounters::METRICS,
            RetentionCounters::METRICS,
        ];
        nested.into_iter().flatten()
    }

    /// Returns the device blocks in use by requests and copies; cached blocks without readers are not in use.
    pub fn blocks_in_use(&self) -> u32 {
        self.held_blocks + self.private_blocks + self.moving_blocks
    }

    /// Returns the share of the device blocks in use, 0 to 1, as vLLM counts it.
    pub fn kv_usage(&self) -> f64 {
        let used = self.blocks_in_use();
        f64::from(used) / f64::from((used + self.free_blocks + self.idle_blocks).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_every_field_also_of_nested_ones_and_of_tiers() {
        let mut one = Stats { waiting: 1, ..Stats::default() };
        one.requests.accepted = 2;
        one.tiers[1].hit_blocks = 3;
        let mut sum = one;
        sum += one;
        assert_eq!((sum.waiting, sum.requests.accepted, sum.tiers[1].hit_blocks), (2, 4, 6));
    }

    #[test]
    fn a_metric_reads_its_own_field() {
        let metrics: Vec<_> = Stats::metrics().collect();
        let mut stats = Stats::default();
        stats.retention.evicted_retained_blocks = 5;
        stats.steps = 7;
        let read = |name: &str| {
            let figure = metrics.iter().find(|figure| figure.metric == name).expect(name);
            (figure.read)(&stats)
        };
        assert_eq!((read("trunkline_evicted_retained_blocks_total"), read("trunkline_steps_total")), (5, 7));
        assert_eq!(metrics.iter().map(|figure| (figure.read)(&stats)).sum::<u64>(), 12);
        for figure in metrics {
            assert_eq!(figure.metric.ends_with("_total"), figure.kind == FigureKind::Counter, "{}", figure.metric);
        }
    }

    #[test]
    fn nested_counters_are_serialised_flat() {
        let serde_json::Value::Object(mut figures) = serde_json::to_value(Stats::default()).unwrap() else {
            panic!("one map")
        };
        let tiers = figures.remove("tiers").unwrap();
        assert_eq!(tiers.as_array().map(Vec::len), Some(TIERS_MAX));
        assert!(figures.values().all(serde_json::Value::is_u64), "{figures:?}");
        let fields = Stats::metrics().count();
        assert!(
            figures.len() > fields && figures.contains_key("evicted_retained_blocks"),
            "{} of {fields}",
            figures.len()
        );
    }
}
