//! Counters of the core that reports have: one line each, and nothing else for JSON, texts, pages, sweeps and files.

use trunkline_core::Stats;
use trunkline_sim_perf::columns::Cell;

use crate::figure::{About, Direction, Figure, count};

/// Figures of the counters of all replicas, in column order.
pub const COUNTED: &[Figure<Stats>] = &[
    count(
        "evicted_blocks",
        "Evicted blocks",
        Direction::Neither,
        "Cached blocks evicted from devices.",
        |s: &Stats| Some(s.evicted_blocks),
    ),
    count("dropped_blocks", "Dropped blocks", Direction::Neither, "Blocks dropped by sequences (H2O).", |s: &Stats| {
        Some(s.h2o.h2o_dropped_blocks)
    })
    .rare(),
    count(
        "hopeless_requests",
        "Hopeless requests",
        Direction::Neither,
        "Requests that waited beyond the last moment to meet their deadline (edf).",
        |s: &Stats| Some(s.requests.hopeless),
    )
    .rare(),
    count(
        "swap_in_found_blocks",
        "Blocks found at swap-in",
        Direction::Neither,
        "Blocks of swapped-out requests found on the device, and not copied back.",
        |s: &Stats| Some(s.swaps.found_blocks),
    )
    .rare(),
    count(
        "swap_in_joined_blocks",
        "Blocks joined at swap-in",
        Direction::Neither,
        "Blocks of swapped-out requests that came back with the transfer of another.",
        |s: &Stats| Some(s.swaps.joined_blocks),
    )
    .rare(),
    count(
        "swap_in_merged_blocks",
        "Blocks merged at swap-in",
        Direction::Neither,
        "Blocks copied back that were on the device by then, and merged.",
        |s: &Stats| Some(s.swaps.merged_blocks),
    )
    .rare(),
    count(
        "load_head_blocks",
        "Blocks computed during loads",
        Direction::Neither,
        "Blocks in tiers computed while those behind them were loaded.",
        |s: &Stats| Some(s.loads.head_blocks),
    )
    .rare(),
    count(
        "load_hidden_us",
        "Hidden time of loads, us",
        Direction::Neither,
        "Time of loads during which their requests were computed, microseconds.",
        |s: &Stats| Some(s.loads.hidden_load_us),
    )
    .rare(),
    count(
        "load_exposed_us",
        "Exposed time of loads, us",
        Direction::Lower,
        "Time of loads for which their requests waited, microseconds.",
        |s: &Stats| Some(s.loads.exposed_load_us),
    )
    .rare(),
];

/// Returns the figures of [`COUNTED`], with their values.
pub fn counted(counters: &Stats) -> impl Iterator<Item = (&'static About, Cell)> + '_ {
    COUNTED.iter().map(|figure| (&figure.about, figure.cell(counters)))
}
