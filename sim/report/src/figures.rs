//! The figures of a [`Report`] as columns, the same ones for every report, so that rows of many replays can be joined.
//!
//! Names are those of the report; percentiles are `ttft_p99` and so on, seconds; tiers are `tier_host_hit_blocks` and so on. A figure that a
//! report does not have (of a tier that is not there, of a load that was not given) is an empty cell.

use crate::report::{Report, TierReport};
use trunkline_sim_perf::columns::{Cell, Column, Kind};
use trunkline_sim_workload::summary::Summary;

/// Which values of a figure are to be wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Small ones.
    Lower,
    /// Great ones.
    Higher,
    /// Neither: it says what happened, not how well.
    Neither,
}

/// The names of tiers, nearest first.
pub const TIERS: [&str; 3] = ["host", "disk", "remote"];

type Metric = (&'static str, fn(&Report) -> Summary);
type Statistic = (&'static str, fn(Summary) -> f64);
type Figure<T> = (&'static str, Kind, Better, fn(&T) -> Cell);

/// Figures of a whole report.
const OF_REPORT: &[Figure<Report>] = &[
    ("requests", Kind::Int, Better::Neither, |it| Cell::count(it.requests)),
    ("completed", Kind::Int, Better::Higher, |it| Cell::count(it.completed)),
    ("refused", Kind::Int, Better::Lower, |it| Cell::count(it.refused)),
    ("duration_s", Kind::Real, Better::Lower, |it| Cell::Real(it.duration_s)),
    ("requests_s", Kind::Real, Better::Higher, |it| Cell::Real(it.requests_s)),
    ("prompt_tokens", Kind::Int, Better::Neither, |it| Cell::count(it.prompt_tokens)),
    ("output_tokens", Kind::Int, Better::Neither, |it| Cell::count(it.output_tokens)),
    ("prefix_hit_tokens", Kind::Int, Better::Higher, |it| Cell::count(it.prefix_hit_tokens)),
    ("prefix_hit_ratio", Kind::Real, Better::Higher, |it| Cell::Real(it.prefix_hit_ratio)),
    ("preemptions", Kind::Int, Better::Lower, |it| Cell::count(it.preemptions)),
    ("swap_outs", Kind::Int, Better::Neither, |it| Cell::count(it.swap_outs)),
    ("swap_ins", Kind::Int, Better::Neither, |it| Cell::count(it.swap_ins)),
    ("link_out_transfers", Kind::Int, Better::Neither, |it| Cell::count(it.link_out.transfers)),
    ("link_out_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.link_out.blocks)),
    ("link_out_busy_s", Kind::Real, Better::Neither, |it| Cell::Real(it.link_out.busy_s)),
    ("link_in_transfers", Kind::Int, Better::Neither, |it| Cell::count(it.link_in.transfers)),
    ("link_in_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.link_in.blocks)),
    ("link_in_busy_s", Kind::Real, Better::Neither, |it| Cell::Real(it.link_in.busy_s)),
    ("steps", Kind::Int, Better::Neither, |it| Cell::count(it.steps)),
    ("mean_batch", Kind::Real, Better::Neither, |it| Cell::Real(it.mean_batch)),
    ("mean_step_tokens", Kind::Real, Better::Neither, |it| Cell::Real(it.mean_step_tokens)),
    ("drafted_tokens", Kind::Int, Better::Neither, |it| Cell::count(it.drafted_tokens)),
    ("accepted_drafts", Kind::Int, Better::Neither, |it| Cell::count(it.accepted_drafts)),
    ("evicted_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.evicted_blocks)),
    ("utilisation", Kind::Real, Better::Neither, |it| Cell::Real(it.utilisation)),
    ("rerouted", Kind::Int, Better::Neither, |it| Cell::count(it.rerouted)),
    ("device_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.settings.device_blocks.into())),
    ("host_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.settings.host_blocks.into())),
    ("speed", Kind::Real, Better::Neither, |it| it.settings.speed.map_or(Cell::None, Cell::Real)),
    ("capacity_requests_s", Kind::Real, Better::Higher, |it| {
        it.load.map_or(Cell::None, |load| Cell::Real(load.capacity_requests_s))
    }),
    ("arrival_requests_s", Kind::Real, Better::Neither, |it| {
        it.load.map_or(Cell::None, |load| Cell::Real(load.arrival_requests_s))
    }),
    ("service_gap_max", Kind::Int, Better::Lower, |it| {
        it.fairness.as_ref().map_or(Cell::None, |fairness| Cell::count(fairness.service_gap_max))
    }),
    ("cost_model", Kind::Text, Better::Neither, |it| Cell::Text(it.settings.cost_model.clone())),
    ("digest", Kind::Text, Better::Neither, |it| Cell::Text(it.digest.clone())),
    ("wall_s", Kind::Real, Better::Neither, |it| Cell::Real(it.wall_s)),
];

/// Figures of each of [`TIERS`].
const OF_TIER: &[Figure<TierReport>] = &[
    ("blocks", Kind::Int, Better::Neither, |it| Cell::count(it.blocks)),
    ("hit_blocks", Kind::Int, Better::Higher, |it| Cell::count(it.hit_blocks)),
    ("stored_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.stored_blocks)),
    ("evicted_blocks", Kind::Int, Better::Neither, |it| Cell::count(it.evicted_blocks)),
    ("out_busy_s", Kind::Real, Better::Neither, |it| Cell::Real(it.link_out.busy_s)),
    ("in_busy_s", Kind::Real, Better::Neither, |it| Cell::Real(it.link_in.busy_s)),
];

const LATENCIES: [Metric; 4] =
    [("ttft", |it| it.ttft_s), ("tpot", |it| it.tpot_s), ("itl", |it| it.itl_s), ("e2e", |it| it.e2e_s)];

const OF_LATENCY: [Statistic; 6] = [
    ("mean", |it| it.mean),
    ("p50", |it| it.p50),
    ("p90", |it| it.p90),
    ("p95", |it| it.p95),
    ("p99", |it| it.p99),
    ("max", |it| it.max),
];

/// Every column and which of its values are better. A replay that failed has none of them, so all may be empty.
pub fn columns() -> Vec<(Column, Better)> {
    let whole = OF_REPORT.iter().map(|(name, kind, better, _)| (name.to_string(), *kind, *better));
    let latencies = LATENCIES.iter().flat_map(|(metric, _)| {
        OF_LATENCY.iter().map(move |(statistic, _)| (format!("{metric}_{statistic}"), Kind::Real, Better::Lower))
    });
    let tiers = TIERS.iter().flat_map(|tier| {
        OF_TIER.iter().map(move |(name, kind, better, _)| (format!("tier_{tier}_{name}"), *kind, *better))
    });
    whole.chain(latencies).chain(tiers).map(|(name, kind, better)| (Column::optional(name, kind), better)).collect()
}

/// A cell for each of [`columns`], in their order.
pub fn row(report: &Report) -> Vec<Cell> {
    let whole = OF_REPORT.iter().map(|(_, _, _, of)| of(report));
    let latencies = LATENCIES.iter().flat_map(|(_, summary)| {
        let summary = summary(report);
        OF_LATENCY.iter().map(move |(_, of)| Cell::Real(of(summary)))
    });
    let tiers = TIERS.iter().flat_map(|name| {
        let tier = report.tiers.iter().find(|tier| tier.name == *name);
        OF_TIER.iter().map(move |(_, _, _, of)| tier.map_or(Cell::None, of))
    });
    whole.chain(latencies).chain(tiers).collect()
}
