//! Catalogue of figures: the name, title, unit, direction, meaning and value of every figure of a [`Report`], in one list.
//!
//! Texts, tables, pages, SLOs and sweeps read this catalogue. [`FIGURES`] are the figures of a whole report, [`COUNTED`] the counters of
//! the core among them, which need no field of the report, [`TIER_FIGURES`] those of each tier of the prefix cache in [`TIERS`], latencies are a [`Latency`] times a [`Statistic`], and waits one of [`CLASSES`] times a
//! [`Statistic`].
//!
//! [`columns`] and [`row`] turn the catalogue into typed columns, equal for every report, to join the rows of many replays. Columns are
//! named like the fields of the report: `requests_s`, `ttft_p99` (seconds), `tier_host_hit_blocks`. A figure that a report lacks, such as
//! one of an absent tier, is an empty cell.

use trunkline_sim_perf::columns::{Cell, Column, Kind};
use trunkline_sim_workload::summary::Summary;

use crate::report::{ClassReport, Latencies, Report, TierReport};

pub use crate::counted::{COUNTED, counted};
pub use crate::figure::{About, Direction, Figure, Unit, Value};
use crate::figure::{count, real, text};

use Direction::{Higher, Lower, Neither};
use Unit::{Count, PerSecond, Seconds, Share};

/// Figures of a whole report, in column order.
pub const FIGURES: &[Figure<Report>] = &[
    count("requests", "Requests", Neither, "Requests in the trace.", |r| Some(r.requests)),
    count("completed", "Completed", Higher, "Requests that received all their tokens.", |r| Some(r.completed)),
    count("refused", "Refused", Lower, "Requests rejected as too large for the device.", |r: &Report| Some(r.refused))
        .rare(),
    real("duration_s", "Duration", Seconds, Lower, "First arrival to last end.", |r| Some(r.duration_s)),
    real("requests_s", "Requests/s", PerSecond, Higher, "Requests completed per second.", |r| Some(r.requests_s)),
    count("prompt_tokens", "Prompt tokens", Neither, "Prompt tokens of completed requests.", |r| {
        Some(r.tokens.prompt_tokens)
    }),
    count("output_tokens", "Output tokens", Neither, "Tokens generated.", |r| Some(r.tokens.output_tokens)),
    count("prefix_hit_tokens", "Prefix hit tokens", Higher, "Prompt tokens found in the prefix cache.", |r| {
        Some(r.tokens.prefix_hit_tokens)
    }),
    real(
        "prefix_hit_ratio",
        "Prefix hits",
        Share,
        Higher,
        "Share of prompt tokens found in the prefix cache.",
        |r: &Report| Some(r.tokens.prefix_hit_ratio),
    )
    .column("hits"),
    count("copied_tokens", "Copied tokens", Neither, "Prompt tokens copied from other places in the cache.", |r| {
        Some(r.tokens.copied_tokens)
    }),
    real(
        "copied_ratio",
        "Copied",
        Share,
        Neither,
        "Share of prompt tokens copied from other places in the cache.",
        |r: &Report| Some(r.tokens.copied_ratio),
    )
    .column("copied")
    .rare(),
    count("prefix_blocks", "Prefix blocks", Neither, "Blocks of cached prefixes taken on the device.", |r| {
        Some(r.tokens.prefix_blocks)
    }),
    count("prefix_runs", "Prefix runs", Lower, "Runs of neighbouring blocks in those prefixes.", |r| {
        Some(r.tokens.prefix_runs)
    }),
    real(
        "mean_prefix_run",
        "Prefix run",
        Count,
        Higher,
        "Mean number of neighbouring blocks in cached prefixes.",
        |r| Some(r.tokens.mean_prefix_run),
    ),
    count("preemptions", "Preemptions", Lower, "Returns of a running request to the queue.", |r: &Report| {
        Some(r.preemptions)
    })
    .column("preemptions"),
    count("swap_outs", "Swap-outs", Neither, "Requests swapped out to the host.", |r: &Report| Some(r.swaps.swap_outs))
        .column("swaps"),
    count("swap_ins", "Swap-ins", Neither, "Requests swapped in from the host.", |r| Some(r.swaps.swap_ins)),
    count("link_out_transfers", "Copies to the host", Neither, "Copies of KV blocks to the host.", |r| {
        Some(r.swaps.link_out.transfers)
    }),
    count("link_out_blocks", "Blocks to the host", Neither, "KV blocks copied to the host.", |r| {
        Some(r.swaps.link_out.blocks)
    }),
    real(
        "link_out_busy_s",
        "Link busy, to the host",
        Seconds,
        Neither,
        "Time of bytes on the link to the host.",
        |r| Some(r.swaps.link_out.busy_s),
    ),
    count("link_in_transfers", "Copies to the device", Neither, "Copies of KV blocks to the device.", |r| {
        Some(r.swaps.link_in.transfers)
    }),
    count("link_in_blocks", "Blocks to the device", Neither, "KV blocks copied to the device.", |r| {
        Some(r.swaps.link_in.blocks)
    }),
    real(
        "link_in_busy_s",
        "Link busy, to the device",
        Seconds,
        Neither,
        "Time of bytes on the link to the device.",
        |r| Some(r.swaps.link_in.busy_s),
    ),
    count("steps", "Steps", Neither, "Steps run.", |r| Some(r.batches.steps)),
    real("mean_batch", "Batch", Count, Neither, "Mean number of sequences per step.", |r| Some(r.batches.mean_batch)),
    real("mean_step_tokens", "Step tokens", Count, Neither, "Mean number of tokens per step, drafts included.", |r| {
        Some(r.batches.mean_step_tokens)
    }),
    count("drafted_tokens", "Drafted tokens", Neither, "Draft tokens that workers were allowed to propose.", |r| {
        Some(r.batches.drafted_tokens)
    }),
    count("accepted_drafts", "Accepted drafts", Neither, "Draft tokens that the model accepted.", |r| {
        Some(r.batches.accepted_drafts)
    }),
    count("weights_read_bytes", "Weights read", Neither, "Bytes of streamed weights read from disks.", |r| {
        r.batches.weights.map(|weights| weights.read_bytes)
    }),
    real("weights_exposed_s", "Waits for weights", Seconds, Lower, "Time for which steps waited for weights.", |r| {
        r.batches.weights.map(|weights| weights.exposed_s)
    }),
    real(
        "weights_hidden_share",
        "Hidden reads",
        Share,
        Higher,
        "Share of the reads of weights behind computation.",
        |r| r.batches.weights.map(|weights| weights.hidden_share),
    ),
    real("utilisation", "Utilisation", Share, Neither, "Share of the replicas' time spent in steps.", |r| {
        Some(r.fleet.utilisation)
    }),
    count("rerouted", "Rerouted", Neither, "Requests moved to another replica after a failure.", |r: &Report| {
        Some(r.fleet.rerouted)
    })
    .rare(),
    real(
        "ready_mean",
        "Ready replicas",
        Count,
        Neither,
        "Mean number of replicas that take new requests.",
        |r: &Report| r.fleet.service.as_ref().map(|service| service.ready_mean),
    )
    .column("ready")
    .digits(2),
    count("ready_min", "Fewest ready", Neither, "Least number of ready replicas.", |r| {
        r.fleet.service.as_ref().map(|service| service.ready_min.into())
    }),
    count("ready_max", "Most ready", Neither, "Highest number of ready replicas.", |r| {
        r.fleet.service.as_ref().map(|service| service.ready_max.into())
    }),
    real(
        "replica_hours",
        "Replica-hours",
        Count,
        Lower,
        "Time from order to stop of all replicas, hours.",
        |r: &Report| r.fleet.service.as_ref().map(|service| service.replica_hours),
    )
    .column("replica-hours")
    .digits(3)
    .rare(),
    count("starts", "Starts", Neither, "Replicas ordered after the start.", |r| {
        r.fleet.service.as_ref().map(|service| service.starts)
    }),
    count("stops", "Stops", Neither, "Replicas taken out.", |r| r.fleet.service.as_ref().map(|service| service.stops)),
    count("failures", "Failures", Neither, "Failures of replicas.", |r| {
        r.fleet.service.as_ref().map(|service| service.failures)
    }),
    real("total_cost", "Cost", Count, Lower, "Price of all replica-hours.", |r: &Report| {
        r.fleet.service.as_ref().and_then(|service| service.total_cost)
    })
    .column("cost")
    .digits(2)
    .rare(),
    real("cost_per_day", "Cost per day", Count, Lower, "Price of 24 hours at the mean of the replay.", |r| {
        r.fleet.service.as_ref().and_then(|service| service.cost_per_day)
    }),
    count("device_blocks", "Device blocks", Neither, "KV blocks on each device.", |r| {
        Some(r.settings.core.device_blocks.into())
    }),
    count("host_blocks", "Host blocks", Neither, "KV blocks on each host for swapped requests.", |r| {
        Some(r.settings.core.host_blocks.into())
    }),
    real("speed", "Speed", Count, Neither, "Divisor of the arrival times of the trace.", |r| r.settings.arrivals.speed),
    count("concurrency", "Concurrency", Neither, "Users who each waited for their answers.", |r| {
        r.settings.arrivals.closed_loop.map(|users| users.concurrency.into())
    }),
    real(
        "capacity_requests_s",
        "Capacity",
        PerSecond,
        Higher,
        "Requests per second that the fleet can complete.",
        |r| r.load.map(|load| load.capacity_requests_s),
    ),
    real("arrival_requests_s", "Arrivals/s", PerSecond, Neither, "Mean rate of arrivals.", |r| {
        r.load.map(|load| load.arrival_requests_s)
    }),
    count(
        "service_gap_max",
        "Service gap",
        Lower,
        "Largest difference in service between two waiting tenants.",
        |r: &Report| r.fairness.as_ref().map(|fairness| fairness.service_gap_max),
    )
    .column("service gap"),
    count("deadlines_met", "Deadlines met", Higher, "Requests completed before their deadlines.", |r| {
        r.latencies.deadlines.map(|deadlines| deadlines.met)
    }),
    count("deadlines_missed", "Deadlines missed", Lower, "Requests ended at their deadlines, or refused.", |r| {
        r.latencies.deadlines.map(|deadlines| deadlines.missed)
    }),
    text("cost_model", "Cost model", "Cost model and its measured error.", |r| &r.settings.cost_model),
    text("weights", "Weights", "Placement of the weights, with all parameters.", |r| &r.settings.weights),
    text("digest", "Digest", "Digest of every decision of every replica.", |r| &r.digest),
    real("wall_s", "Wall time", Seconds, Neither, "Wall-clock time of the replay.", |r| Some(r.wall_s)),
];

/// Names of the tiers with columns, nearest first.
pub const TIERS: [&str; 3] = ["host", "disk", "remote"];

/// Figures of one tier, in column order.
pub const TIER_FIGURES: &[Figure<TierReport>] = &[
    count("blocks", "Blocks", Neither, "Blocks in the tier at the end.", |t| Some(t.blocks)),
    count("hit_blocks", "Hits", Higher, "Blocks found in the tier and in no nearer place.", |t| Some(t.hit_blocks)),
    count("stored_blocks", "Stored", Neither, "Blocks written through to the tier.", |t| Some(t.stored_blocks)),
    count("evicted_blocks", "Evicted", Neither, "Blocks evicted from the tier.", |t| Some(t.evicted_blocks)),
    real("out_busy_s", "Link busy, out", Seconds, Neither, "Time of bytes on the link, away from the device.", |t| {
        Some(t.link_out.busy_s)
    }),
    real("in_busy_s", "Link busy, in", Seconds, Neither, "Time of bytes on the link, towards the device.", |t| {
        Some(t.link_in.busy_s)
    }),
];

/// Place of a class in [`Report::classes`].
pub type ClassPlace = fn(&[ClassReport]) -> Option<&ClassReport>;

/// Classes with columns of waits, and the place of each in [`Report::classes`].
pub const CLASSES: [(&str, ClassPlace); 2] =
    [("most_urgent", <[ClassReport]>::first), ("least_urgent", <[ClassReport]>::last)];

/// Latency metric. Lower values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// TTFT: arrival to first token.
    Ttft,
    /// TPOT: mean time per token after the first, of a request.
    Tpot,
    /// ITL: every gap between two tokens.
    Itl,
    /// E2E: arrival to end.
    E2e,
}

impl Latency {
    /// All metrics, in column order.
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2e];

    /// Returns the name in columns and SLOs, such as `ttft`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2e => "e2e",
        }
    }

    /// Returns the title in tables and on pages, such as `TTFT`.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Tpot => "TPOT",
            Self::Itl => "ITL",
            Self::E2e => "E2E",
        }
    }

    /// Returns the meaning, in one sentence.
    pub fn help(self) -> &'static str {
        match self {
            Self::Ttft => "Arrival to first token.",
            Self::Tpot => "Mean time per token after the first.",
            Self::Itl => "Gap between two consecutive tokens.",
            Self::E2e => "Arrival to end.",
        }
    }

    /// Returns the distribution of this metric over completed requests, seconds.
    pub fn of(self, latencies: &Latencies) -> Summary {
        match self {
            Self::Ttft => latencies.ttft_s,
            Self::Tpot => latencies.tpot_s,
            Self::Itl => latencies.itl_s,
            Self::E2e => latencies.e2e_s,
        }
    }
}

/// Statistic of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Arithmetic mean of the values.
    Mean,
    /// Median, the 50th percentile.
    P50,
    /// 90th percentile of the values.
    P90,
    /// 95th percentile of the values.
    P95,
    /// 99th percentile of the values.
    P99,
    /// Greatest value of the range.
    Max,
}

impl Statistic {
    /// All statistics, in column order.
    pub const ALL: [Self; 6] = [Self::Mean, Self::P50, Self::P90, Self::P95, Self::P99, Self::Max];

    /// Returns the name in columns, tables and SLOs, such as `p99`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Max => "max",
        }
    }

    /// Returns this statistic of a distribution, seconds.
    pub fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::Mean => summary.mean,
            Self::P50 => summary.p50,
            Self::P90 => summary.p90,
            Self::P95 => summary.p95,
            Self::P99 => summary.p99,
            Self::Max => summary.max,
        }
    }
}

/// Returns the figure of a whole report called `name`.
///
/// ```
/// use trunkline_sim_report::figures::{Direction, figure};
///
/// assert_eq!(figure("requests_s").unwrap().direction, Direction::Higher);
/// ```
pub fn figure(name: &str) -> Option<&'static Figure<Report>> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// Returns the figures of a whole report, with their values.
pub fn whole(report: &Report) -> impl Iterator<Item = (&'static About, Cell)> + '_ {
    let figures = FIGURES.iter().map(|figure| (&figure.about, figure.cell(report)));
    figures.chain(counted(&report.counters))
}

/// Returns every column and its preferred direction. All columns are optional, since a failed replay has no figures.
pub fn columns() -> Vec<(Column, Direction)> {
    let whole = FIGURES.iter().map(|figure| (figure.name.to_string(), figure.kind(), figure.direction));
    let counted = COUNTED.iter().map(|figure| (figure.name.to_string(), figure.kind(), figure.direction));
    let latencies = Latency::ALL.into_iter().flat_map(|latency| {
        let name = move |statistic: Statistic| format!("{}_{}", latency.name(), statistic.name());
        Statistic::ALL.map(|statistic| (name(statistic), Kind::Real, Lower))
    });
    let waits = CLASSES.iter().flat_map(|(class, _)| {
        let name = move |statistic: Statistic| format!("queue_{class}_{}", statistic.name());
        Statistic::ALL.map(|statistic| (name(statistic), Kind::Real, Lower))
    });
    let tiers = TIERS.iter().flat_map(|tier| {
        let name = move |figure: &Figure<TierReport>| format!("tier_{tier}_{}", figure.name);
        TIER_FIGURES.iter().map(move |figure| (name(figure), figure.kind(), figure.direction))
    });
    whole
        .chain(counted)
        .chain(latencies)
        .chain(waits)
        .chain(tiers)
        .map(|(name, kind, direction)| (Column::optional(name, kind), direction))
        .collect()
}

/// Returns one cell for each of [`columns`], in order.
pub fn row(report: &Report) -> Vec<Cell> {
    let whole = whole(report).map(|(_, cell)| cell);
    let latencies = Latency::ALL.into_iter().flat_map(|latency| {
        let summary = latency.of(&report.latencies);
        Statistic::ALL.map(|statistic| Cell::Real(statistic.of(&summary)))
    });
    let waits = CLASSES.iter().flat_map(|(_, of)| {
        let class = of(&report.classes);
        Statistic::ALL.map(|statistic| class.map_or(Cell::None, |class| Cell::Real(statistic.of(&class.queue_s))))
    });
    let tiers = TIERS.iter().flat_map(|name| {
        let tier = report.tiers.iter().find(|tier| tier.name == *name);
        TIER_FIGURES.iter().map(move |figure| tier.map_or(Cell::None, |tier| figure.cell(tier)))
    });
    whole.chain(latencies).chain(waits).chain(tiers).collect()
}
