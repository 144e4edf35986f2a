//! State of the stores, as clients see it.

use std::collections::HashMap;

use trunkline_core::TierStats;
use trunkline_port::Place;
use trunkline_store::{FaultCounts, LinkStats, PlaceStats, Spread, StoreStats};

use crate::proto;

/// Returns the state of an engine's store. `tiers` has the name of each tier, with the core's counters.
pub(crate) fn store_info(stats: &StoreStats, tiers: &[(String, TierStats)]) -> proto::Store {
    let name = |place: Place| place_name(place, |tier| tiers.get(tier).map(|(name, _)| name.clone()));
    let swap = place(name(Place::Host), &stats.host, &TierStats::default());
    let tier = |(stats, (name, counters)): (&PlaceStats, &(String, TierStats))| place(name.clone(), stats, counters);
    proto::Store {
        places: std::iter::once(swap).chain(stats.tiers.iter().zip(tiers).map(tier)).collect(),
        links: stats.links.iter().map(|stats| link(name(stats.from), name(stats.to), stats)).collect(),
        host_used_bytes: stats.arena.used_bytes,
        host_idle_bytes: stats.arena.idle_bytes,
        host_limit_bytes: stats.arena.limit_bytes,
        queued_jobs: stats.queued_jobs,
        encoded_blocks: stats.codec.encoded_blocks,
        encoded_bytes: stats.codec.encoded_bytes,
        frame_bytes: stats.codec.frame_bytes,
        encode_s: seconds(stats.codec.encode_ns),
        decoded_blocks: stats.codec.decoded_blocks,
        decode_s: seconds(stats.codec.decode_ns),
        mismatches: stats.codec.mismatches,
        decode_cache_hits: stats.cache.hits,
        decode_cache_misses: stats.cache.misses,
        shared_blocks: stats.shared_blocks,
    }
}

/// Returns the name of a place, given the names of the tiers by number.
pub(crate) fn place_name(place: Place, tier_name: impl Fn(usize) -> Option<String>) -> String {
    match place {
        Place::Device => "device".to_owned(),
        Place::Host => "swap".to_owned(),
        Place::Tier(tier) => tier_name(tier.into()).unwrap_or_else(|| tier.to_string()),
    }
}

fn place(name: String, stats: &PlaceStats, counters: &TierStats) -> proto::StorePlace {
    proto::StorePlace {
        name,
        blocks: stats.blocks,
        stored_bytes: stats.stored_bytes,
        limit_bytes: stats.limit_bytes,
        faults: faults(stats.faults),
        dropped_at_start: stats.disk.as_ref().map(|disk| faults(disk.dropped_at_start)).unwrap_or_default(),
        hit_blocks: counters.hit_blocks,
        stored_blocks: counters.stored_blocks,
        evicted_blocks: counters.evicted_blocks,
        skipped_blocks: counters.skipped_blocks,
        looked_up_blocks: counters.looked_up_blocks,
        found_blocks: counters.found_blocks,
        lifetime: Some(durations(&stats.residency.lifetime)),
        idle_before_end: Some(durations(&stats.residency.idle_before_end)),
        gap: Some(durations(&stats.residency.gap)),
    }
}

/// Returns the numbers above 0 by the name of the reason.
fn faults(counts: FaultCounts) -> HashMap<String, u64> {
    counts.each().filter(|(_, n)| *n > 0).map(|(fault, n)| (fault.name().to_owned(), n)).collect()
}

fn link(from: String, to: String, stats: &LinkStats) -> proto::StoreLink {
    proto::StoreLink {
        from,
        to,
        queued_blocks: stats.queued_blocks,
        blocks: stats.blocks,
        block_bytes: stats.block_bytes,
        stored_bytes: stats.stored_bytes,
        refused: stats.refused,
        failed: stats.failed,
        cancelled: stats.cancelled,
        waits: Some(durations(&stats.waits)),
    }
}

fn durations(spread: &Spread) -> proto::Durations {
    proto::Durations {
        count: spread.count,
        mean_s: seconds(spread.mean_ns()),
        p50_s: seconds(spread.quantile_ns(0.5)),
        p99_s: seconds(spread.quantile_ns(0.99)),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}
