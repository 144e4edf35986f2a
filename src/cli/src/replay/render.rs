//! Reports of replays as tables of text.

use comfy_table::Table;
use trunkline_core::Keeps;
use trunkline_core::h2o::Mode;
use trunkline_sim_perf::columns::Cell;
use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_replay::recorded::Replayed;
use trunkline_sim_report::Report;
use trunkline_sim_report::figures::{self, About, Latency, Statistic, Unit};
use trunkline_sim_report::report::{
    BaselineReport, DeadlineReport, FairnessReport, HostBytesReport, SettingsReport, WeightsReport,
};
use trunkline_sim_report::service::ServiceReport;
use trunkline_sim_workload::summary::Summary;

use crate::output::{align_right, grouped, per_cent, seconds, table};

/// Maximum number of failures shown one by one.
const FAILURES_SHOWN: usize = 4;

/// Returns one report in full.
pub(super) fn report(report: &Report) -> String {
    let mut facts = facts(std::slice::from_ref(report), &[]);
    results(&mut facts, report);
    let mut latencies = table();
    latencies.set_header(["seconds"].into_iter().chain(Statistic::ALL.map(Statistic::name)));
    for latency in Latency::ALL {
        add_summary(&mut latencies, latency.title(), latency.of(&report.latencies));
    }
    let mut tables = vec![facts];
    if let Some(fairness) = &report.fairness {
        for (number, tenant) in fairness.tenants.iter().enumerate() {
            let all =
                [("TTFT", tenant.ttft_s), ("TPOT", tenant.tpot_s), ("E2E", tenant.e2e_s), ("queue", tenant.queue_s)];
            all.into_iter()
                .for_each(|(name, it)| add_summary(&mut latencies, &format!("{name} of tenant {number}"), it));
        }
        tables.push(tenants(fairness));
    }
    for class in &report.classes {
        add_summary(&mut latencies, &format!("queue of {class}"), class.queue_s);
    }
    align_right(&mut latencies, 1);
    let mut tables: Vec<String> = tables.iter().map(Table::trim_fmt).collect();
    tables.push(match report.completed {
        0 => "No request completed, so there are no latencies.".into(),
        _ => latencies.trim_fmt(),
    });
    let tables = tables.join("\n\n");
    report.baseline.as_ref().map_or(String::new(), baseline) + &tables
}

/// Returns the lines about a recording, above the report of the replay.
pub(super) fn baseline(baseline: &BaselineReport) -> String {
    let BaselineReport { digest, digest_equal, measured, simulated, left_out, cut_short } = baseline;
    let decisions = match digest_equal {
        Some(true) => "the recorded decisions replay equal",
        Some(false) => "the recorded decisions DIFFER when replayed; another version made them",
        None => "the recording has no digest to compare",
    };
    let error = |latency: Latency, statistic: Statistic| {
        let [measured, simulated] = [measured, simulated].map(|all| statistic.of(&latency.of(all)));
        let error = if measured > 0.0 { format!("{:+.1} %", (simulated / measured - 1.0) * 100.0) } else { "-".into() };
        format!("{} {} {error}", latency.title(), statistic.name())
    };
    let errors = [Latency::Ttft, Latency::Tpot, Latency::E2e]
        .map(|latency| [Statistic::Mean, Statistic::P99].map(|statistic| error(latency, statistic)).join(", "));
    let mut text = format!(
        "baseline: {decisions} (digest {digest}); simulated with the server's settings, against its own clock: {}\n",
        errors.join(", ")
    );
    if left_out + cut_short > 0 {
        text.push_str(&format!(
            "{} requests without a token are left out; {} were cut short, and ask for the tokens they had\n",
            grouped(*left_out),
            grouped(*cut_short)
        ));
    }
    text.push('\n');
    text
}

/// Returns the settings common to all reports, without the settings of `differing`.
pub(super) fn facts(reports: &[Report], differing: &[&str]) -> Table {
    let report = &reports[0];
    let settings = &report.settings;
    let mut rows = vec![
        ["trace", &format!("{} ({})", settings.trace, settings.format)],
        ["replicas", &format!("{}, {}", replicas(settings, differing), settings.model)],
        ["KV blocks", &blocks(settings)],
        [
            "batch",
            &format!(
                "{} tokens, {} sequences",
                grouped(settings.core.max_batch_tokens.into()),
                settings.core.max_batch_size
            ),
        ],
        ["arrivals", &arrivals(report)],
        ["autoscale", &autoscale(settings)],
        ["router", &settings.router],
        ["policy", &settings.core.policy],
        ["eviction", &settings.core.eviction],
        ["preemption", &preempted(settings)],
        ["cost model", &settings.cost_model],
    ]
    .into_iter()
    .map(|row| row.map(String::from))
    .filter(|[name, _]| !differing.contains(&name.as_str()))
    .filter(|[name, _]| name != "autoscale" || settings.autoscale.is_some())
    .collect::<Vec<_>>();
    rows.extend(settings.time_range.map(|range| ["real steps".into(), range.to_string()]));
    if settings.weights != "resident" {
        rows.push(["weights".into(), weights(settings)]);
    }
    if settings.core.h2o.mode != Mode::Off {
        rows.push(["h2o".into(), settings.core.h2o.to_string()]);
    }
    for (name, faults) in [("failures", &settings.failures), ("slow", &settings.slow)] {
        if !faults.is_empty() {
            rows.push([name.into(), faults.join(", ")]);
        }
    }
    if !settings.oracles.is_empty() {
        rows.push(["oracle".into(), settings.oracles.join("; ")]);
    }
    if settings.core.max_drafts > 0 {
        let drafts =
            format!("up to {}, right with probability {}", settings.core.max_drafts, settings.draft_acceptance);
        rows.push(["drafts".into(), drafts]);
    }
    if reports.len() > 1 {
        rows.push(["requests".into(), grouped(report.requests)]);
        let refused = reports.iter().map(|report| report.refused).max().unwrap_or(0);
        if refused > 0 {
            rows.push(["refused".into(), format!("{} as too large for the device", grouped(refused))]);
        }
    }
    let mut facts = table();
    facts.add_rows(rows);
    facts
}

/// Returns the kinds of replicas; without numbers if the runs differ in autoscaling.
fn replicas(settings: &SettingsReport, differing: &[&str]) -> String {
    if differing.contains(&"autoscale") { settings.hardware.into() } else { devices(settings) }
}

/// Returns the policy for the number of replicas, or the number.
pub(super) fn autoscale(settings: &SettingsReport) -> String {
    match (&settings.autoscale, settings.initial_replicas) {
        (Some(policy), Some(initial)) => format!("{policy}, {initial} at the start"),
        _ => format!("none, {} replicas", settings.replicas),
    }
}

/// Returns the kinds of replicas and the number of each.
fn devices(settings: &SettingsReport) -> String {
    let one_device = Parallel::ONE.to_string();
    let kinds = settings.groups.iter().map(|group| {
        let shape = if group.parallel == one_device { String::new() } else { format!(" {}", group.parallel) };
        format!("{} x {}{shape}", group.replicas, group.hardware)
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Positions that layers with recurrent states keep: a state stands for all tokens before it.
const STATES: Keeps = Keeps::Window(1);

/// Returns the KV blocks of a replica, of each kind if the kinds differ.
fn blocks(settings: &SettingsReport) -> String {
    let each = if settings.replicas == 1 { "" } else { " each" };
    let mut blocks: Vec<_> = settings.groups.iter().map(|group| grouped(group.device_blocks.into())).collect();
    blocks.dedup();
    let keeps = &settings.core.worker.groups;
    let states = keeps.iter().filter(|keeps| **keeps == STATES).count();
    let groups = match keeps.len() {
        0 | 1 => String::new(),
        n if states > 0 => {
            let pools = settings.groups.iter().map(|group| grouped(u64::from(group.device_blocks) * n as u64));
            blocks = pools.collect();
            blocks.dedup();
            format!(", shared by {n} layer groups: a running sequence has its states in one block of {states} of them")
        }
        n => format!(", in each of {n} layer groups"),
    };
    format!("{} of {} tokens{each}{groups}", blocks.join(" or "), settings.core.block_size)
}

/// Describes the reads of streamed weights.
fn weights_read(weights: &WeightsReport) -> String {
    format!(
        "{:.1} GB in {:.1} s, of which {:.1} s exposed: {:.1} % hidden, {:.1} % of the time without overlap saved",
        weights.read_bytes as f64 / 1e9,
        weights.reading_s,
        weights.exposed_s,
        100.0 * weights.hidden_share,
        100.0 * weights.saved_share
    )
}

/// Returns the placement of the weights, and the memory of the host that they take in addition to KV.
fn weights(settings: &SettingsReport) -> String {
    let HostBytesReport { weights, kv, memory } = settings.host_bytes;
    let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let of = memory.map_or(String::new(), |memory| format!(" of {}", gb(memory)));
    format!("{}; in the memory of the host {}, and {} of KV{of}", settings.weights, gb(weights), gb(kv))
}

fn arrivals(report: &Report) -> String {
    match (&report.load, report.settings.arrivals.speed) {
        (Some(load), _) => format!(
            "{:.3} requests/s = {} of the capacity of {:.3} requests/s; {:.3} times as fast as in the trace",
            load.arrival_requests_s,
            per_cent(load.fraction),
            load.capacity_requests_s,
            load.speed
        ),
        (None, Some(1.0)) => "as in the trace".into(),
        (None, Some(speed)) => format!("{speed} times as fast as in the trace"),
        (None, None) => {
            report.settings.arrivals.closed_loop.map_or("one after another".into(), |users| users.to_string())
        }
    }
}

fn preempted(settings: &SettingsReport) -> String {
    let host = match settings.core.host_blocks {
        0 => "no host memory".into(),
        blocks => format!("{} blocks of host memory", grouped(blocks.into())),
    };
    format!("{}, {host}", settings.core.preemption.name())
}

fn hits(facts: &mut Table, report: &Report) {
    let tokens = report.tokens;
    let (found, ratio) = (grouped(tokens.prefix_hit_tokens), per_cent(tokens.prefix_hit_ratio));
    let found = format!("{found} tokens, {ratio}, in runs of {:.1} blocks", tokens.mean_prefix_run);
    facts.add_row(["prefix hits", &found]);
    if report.copies() {
        let (copied, ratio) = (grouped(tokens.copied_tokens), per_cent(tokens.copied_ratio));
        facts.add_row(["copied", &format!("{copied} tokens, {ratio}")]);
    }
}

/// Returns the ranges of the main figures, if real times differ from these as those of the steps do.
fn ranges(report: &Report) -> Option<String> {
    let [low, high] = report.time_factors()?;
    let times = |s: f64, digits: usize| format!("{:.digits$} to {:.digits$}", s * low, s * high);
    let tokens_s = report.tokens.output_tokens as f64 / report.duration_s;
    Some(format!(
        "duration {} s, {:.0} to {:.0} output tokens/s; means of TTFT {} s, of TPOT {} ms",
        times(report.duration_s, 1),
        tokens_s / high,
        tokens_s / low,
        times(report.latencies.ttft_s.mean, 3),
        times(report.latencies.tpot_s.mean * 1e3, 1),
    ))
}

fn results(facts: &mut Table, report: &Report) {
    facts.add_rows([
        ["requests", &outcome(report)],
        ["duration", &format!("{:.1} s, {:.3} requests/s", report.duration_s, report.requests_s)],
        ["prompt tokens", &grouped(report.tokens.prompt_tokens)],
    ]);
    if let Some(range) = ranges(report) {
        facts.add_row(["range", &range]);
    }
    hits(facts, report);
    facts.add_rows([
        ["output tokens", &grouped(report.tokens.output_tokens)],
        [
            "steps",
            &format!(
                "{} of {:.1} sequences, {:.1} tokens on average",
                grouped(report.batches.steps),
                report.batches.mean_batch,
                report.batches.mean_step_tokens
            ),
        ],
        ["utilisation", &per_cent(report.fleet.utilisation)],
        ["preemptions", &grouped(report.preemptions)],
    ]);
    facts.add_rows(report.tokens.too_long.map(|requests| ["too long".into(), requests.to_string()]));
    facts.add_rows(report.batches.extrapolated.map(|steps| ["step times".into(), steps.to_string()]));
    facts.add_rows(in_fleet(report));
    let links = [
        ("swapped out", report.swaps.swap_outs, report.swaps.link_out),
        ("swapped in", report.swaps.swap_ins, report.swaps.link_in),
    ];
    for (name, swaps, link) in links.into_iter().filter(|_| report.settings.core.host_blocks > 0) {
        let (blocks, copies) = (grouped(link.blocks), grouped(link.transfers));
        let text = format!("{} times; {blocks} blocks in {copies} copies, {:.3} s", grouped(swaps), link.busy_s);
        facts.add_row([name, &text]);
    }
    tiers(facts, report);
    facts.add_rows(report.batches.weights.map(|weights| ["weights read".into(), weights_read(&weights)]));
    if report.batches.drafted_tokens > 0 {
        let (accepted, drafted) = (grouped(report.batches.accepted_drafts), grouped(report.batches.drafted_tokens));
        facts.add_row(["accepted drafts", &format!("{accepted} of {drafted}")]);
    }
    if let Some(deadlines) = report.latencies.deadlines {
        facts.add_row(["deadlines met", &met(&deadlines)]);
    }
    let counted = figures::counted(&report.counters).filter(|(about, cell)| !about.is_rare || has(cell));
    facts.add_rows(counted.map(|(about, cell)| [about.title.to_lowercase(), shown(about, &cell)]));
    facts.add_rows([["digest", &report.digest], ["wall time", &format!("{:.2} s", report.wall_s)]]);
    if let Some(fairness) = &report.fairness {
        facts.add_row(["service gap", &format!("{} units at most", grouped(fairness.service_gap_max))]);
    }
}

/// Returns `true` if a replay has a figure, and the figure is not 0.
pub(super) fn has(cell: &Cell) -> bool {
    cell.number().is_some_and(|value| value != 0.0)
}

/// Returns the value of a figure; empty if the replay lacks the figure.
pub(super) fn shown(about: &About, cell: &Cell) -> String {
    match (about.unit, cell) {
        (_, Cell::None) => String::new(),
        (Unit::Share, Cell::Real(share)) => per_cent(*share),
        (_, Cell::Real(value)) => format!("{value:.*}", about.digits),
        (_, Cell::Int(count)) => grouped(count.unsigned_abs()),
        (_, cell) => cell.to_text(),
    }
}

/// Returns the rows about replicas: those in service, and requests moved between them.
fn in_fleet(report: &Report) -> Vec<[String; 2]> {
    let rerouted = report.fleet.rerouted;
    let rerouted = (rerouted > 0).then(|| ["rerouted".into(), format!("{} times", grouped(rerouted))]);
    report.fleet.service.iter().flat_map(in_service).chain(rerouted).collect()
}

/// Returns rows about the replicas in service.
fn in_service(service: &ServiceReport) -> Vec<[String; 2]> {
    let (mean, least, most) = (service.ready_mean, service.ready_min, service.ready_max);
    let (starts, stops) = (grouped(service.starts), grouped(service.stops));
    let mut rows = vec![
        ["ready replicas".into(), format!("{mean:.2} on average, {least} to {most}; {starts} starts, {stops} stops")],
        ["replica-hours".into(), format!("{:.3}", service.replica_hours)],
    ];
    if let Some(cost) = service.total_cost {
        let day = service.cost_per_day.map_or(String::new(), |cost| format!(", {cost:.2} per day"));
        let hour = Some(cost / service.replica_hours).filter(|hour| hour.is_finite());
        let hour = hour.map_or(String::new(), |hour| format!(", at {hour:.2} an hour for a replica"));
        rows.push(["cost".into(), format!("{cost:.2}{day}{hour}")]);
    }
    if service.failures > 0 {
        let listed = service.failed.iter().take(FAILURES_SHOWN).map(|failure| {
            let back = failure.back_s.map_or(String::new(), |back_s| format!("..{back_s:.1}"));
            format!("{}@{:.1}{back} ({} requests)", failure.replica, failure.at_s, failure.requests)
        });
        let more = if service.failures > FAILURES_SHOWN as u64 { ", and more" } else { "" };
        let listed = listed.collect::<Vec<_>>().join(", ");
        rows.push(["failed".into(), format!("{} times: {listed}{more}", grouped(service.failures))]);
    }
    rows
}

/// Adds a row for each tier behind the device.
fn tiers(facts: &mut Table, report: &Report) {
    for tier in &report.tiers {
        let (hits, stored, evicted) =
            (grouped(tier.hit_blocks), grouped(tier.stored_blocks), grouped(tier.evicted_blocks));
        let busy = format!("link {:.1} s out, {:.1} s in", tier.link_out.busy_s, tier.link_in.busy_s);
        facts.add_row([tier.name.as_str(), &format!("{hits} blocks hit, {stored} stored, {evicted} evicted; {busy}")]);
    }
}

/// Returns the deadlines met, of all, and as a share.
pub(super) fn met(deadlines: &DeadlineReport) -> String {
    let DeadlineReport { met, missed } = *deadlines;
    format!("{} of {}, {}", grouped(met), grouped(met + missed), per_cent(deadlines.share_met()))
}

fn tenants(fairness: &FairnessReport) -> Table {
    let mut table = table();
    table.set_header([
        "tenant",
        "share",
        "requests",
        "prompt tokens",
        "hits",
        "output tokens",
        "contended s",
        "service/s",
    ]);
    for (number, tenant) in fairness.tenants.iter().enumerate() {
        table.add_row([
            number.to_string(),
            format!("{:.3}", tenant.share),
            grouped(tenant.requests),
            grouped(tenant.prompt_tokens),
            grouped(tenant.prefix_hit_tokens),
            grouped(tenant.output_tokens),
            format!("{:.1}", tenant.contended_s),
            grouped(tenant.contended_service_s.round() as u64),
        ]);
    }
    align_right(&mut table, 1);
    table
}

fn add_summary(table: &mut Table, name: &str, summary: Summary) {
    let statistics = Statistic::ALL.map(|statistic| seconds(statistic.of(&summary)));
    table.add_row([name.to_string()].into_iter().chain(statistics));
}

fn outcome(report: &Report) -> String {
    let refused = match report.refused {
        0 => String::new(),
        n => format!(", {} refused as too large for the device", grouped(n)),
    };
    format!("{} of {} completed{refused}", grouped(report.completed), grouped(report.requests))
}

/// Returns the result of a replayed recording.
pub(super) fn recorded(replayed: &Replayed) -> String {
    let mut facts = table();
    facts.add_rows([
        ["events", &grouped(replayed.events)],
        ["requests", &grouped(replayed.requests)],
        ["digest", &replayed.digest],
        ["recorded digest", replayed.recorded_digest.as_deref().unwrap_or("none")],
        [
            "inputs",
            replayed.inputs_match.map_or("without a digest", |same| if same { "as recorded" } else { "CHANGED" }),
        ],
        ["match", replayed.matches.map_or("nothing to compare", |matches| if matches { "yes" } else { "NO" })],
    ]);
    facts.trim_fmt()
}
