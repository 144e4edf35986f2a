//! What was set, and how far the figures are to be trusted.

use trunkline_core::Preemption;

use super::figures::{number, per_cent, short, short_seconds};
use super::{Run, escape};
use crate::numbers::grouped;
use crate::report::{GroupReport, Report, SettingsReport};
use crate::series::TierSeries;

/// What is set, and how it reads.
type Row = (&'static str, fn(&Run<'_>) -> String);

const ROWS: [Row; 24] = [
    ("Trace", |it| format!("{} ({})", it.report.settings.trace, it.report.settings.format)),
    ("Arrivals", |it| arrivals(it.report)),
    ("Hardware", |it| hardware(&it.report.settings)),
    ("Model", |it| it.report.settings.model.into()),
    ("Replicas", |it| grouped(it.report.settings.replicas.into())),
    ("Router", |it| it.report.settings.router.clone()),
    ("Failures", |it| list(&it.report.settings.failures)),
    ("Slow replicas", |it| list(&it.report.settings.slow)),
    ("Policy", |it| it.report.settings.policy.clone()),
    ("Eviction", |it| it.report.settings.eviction.clone()),
    ("Preemption", |it| preemption(it.report.settings.preemption).into()),
    ("KV blocks on each device", |it| device_blocks(&it.report.settings)),
    ("KV blocks on each host, for swaps", |it| grouped(it.report.settings.host_blocks.into())),
    ("Tiers", tiers),
    ("Tokens in a block", |it| grouped(it.report.settings.block_size.into())),
    ("Tokens in a step, most", |it| grouped(it.report.settings.max_batch_tokens.into())),
    ("Sequences in a step, most", |it| grouped(it.report.settings.max_batch_size.into())),
    ("Positions sampled in a step, most", |it| grouped(it.report.settings.max_step_logits.into())),
    ("Target time of a step", |it| target(&it.report.settings)),
    ("Drafts", |it| drafts(&it.report.settings)),
    ("Estimate: copying a block", |it| short_seconds(it.report.settings.swap_block_ns as f64 / 1e9)),
    ("Estimate: computing a token", |it| short_seconds(it.report.settings.recompute_token_ns as f64 / 1e9)),
    ("Watermark for admission", |it| {
        format!("{} blocks for each running request", it.report.settings.launch_watermark)
    }),
    ("Watermark for swapping in", |it| {
        format!("{} blocks for each running request", it.report.settings.swap_in_watermark)
    }),
];

/// Each kind of replica.
pub(super) fn hardware(settings: &SettingsReport) -> String {
    let shape = |parallel: &str| if parallel == "tp1pp1" { String::new() } else { format!(" {parallel}") };
    match &settings.groups[..] {
        [one] => format!("{}{}", one.hardware, shape(&one.parallel)),
        groups => {
            let group = |it: &GroupReport| format!("{} of {}{}", it.replicas, it.hardware, shape(&it.parallel));
            groups.iter().map(group).collect::<Vec<_>>().join(", ")
        }
    }
}

fn device_blocks(settings: &SettingsReport) -> String {
    settings.groups.iter().map(|it| grouped(it.device_blocks.into())).collect::<Vec<_>>().join("; ")
}

fn tiers(run: &Run<'_>) -> String {
    let tier = |tier: &TierSeries| format!("{} of {} blocks", tier.name, grouped(tier.capacity_blocks));
    let over = if run.report.settings.replicas == 1 { "" } else { ", over all replicas" };
    match &run.series.tiers[..] {
        [] => "none".into(),
        tiers => tiers.iter().map(tier).collect::<Vec<_>>().join(", ") + over,
    }
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

fn preemption(preemption: Preemption) -> &'static str {
    Preemption::ALL.iter().find(|(_, known)| *known == preemption).map_or("", |(name, _)| *name)
}

fn target(settings: &SettingsReport) -> String {
    match settings.target_step_ns {
        0 => "none".into(),
        ns => short_seconds(ns as f64 / 1e9),
    }
}

fn drafts(settings: &SettingsReport) -> String {
    match settings.max_drafts {
        0 => "none".into(),
        n => format!("up to {n}, right with probability {}", settings.draft_acceptance),
    }
}

/// When requests arrived.
pub(super) fn arrivals(report: &Report) -> String {
    match (&report.load, report.settings.speed) {
        (Some(load), _) => format!(
            "{} requests/s arrive, {} of the capacity of {} requests/s",
            number(load.arrival_requests_s),
            per_cent(load.fraction),
            number(load.capacity_requests_s)
        ),
        (None, Some(1.0)) => "they arrive as in the trace".into(),
        (None, Some(speed)) => format!("they arrive {} times as fast as in the trace", short(speed)),
        (None, None) => "one arrives after another".into(),
    }
}

/// What all runs have in common, and what differs between them.
pub(super) fn tables(runs: &[Run<'_>]) -> String {
    let values = |row: &fn(&Run<'_>) -> String| runs.iter().map(row).collect::<Vec<_>>();
    let (mut same, mut differing) = (String::new(), String::new());
    for (name, row) in &ROWS {
        let values = values(row);
        let cells = |values: &[String]| values.iter().map(|it| format!("<td>{}</td>", escape(it))).collect::<String>();
        match values.iter().all(|value| *value == values[0]) {
            true => same.push_str(&format!("<tr><th scope=\"row\">{name}</th>{}</tr>\n", cells(&values[..1]))),
            false => differing.push_str(&format!("<tr><th scope=\"row\">{name}</th>{}</tr>\n", cells(&values))),
        }
    }
    let table = |head: &str, rows: &str| {
        format!("<div class=\"scroll\"><table class=\"text\">{head}<tbody>\n{rows}</tbody></table></div>\n")
    };
    if differing.is_empty() {
        return table("", &same);
    }
    let head: String = runs.iter().map(|run| format!("<th scope=\"col\">{}</th>", escape(&run.label))).collect();
    let head = format!("<thead><tr><th scope=\"col\">differing</th>{head}</tr></thead>");
    let head_same = "<thead><tr><th scope=\"col\">the same in all runs</th><th></th></tr></thead>";
    table(&head, &differing) + &table(head_same, &same)
}

/// The cost models' statements of their errors.
pub(super) fn trust(runs: &[Run<'_>]) -> String {
    let mut models: Vec<&str> = runs.iter().map(|run| run.report.settings.cost_model.as_str()).collect();
    models.dedup();
    let models: String =
        models.iter().map(|model| format!("<p class=\"note\">Cost model: {}.</p>\n", escape(model))).collect();
    models
        + "<p class=\"note\">Scheduler, cache and policies are the server's own code; the clock, the time of steps and copies, and what the model \
           answers are modelled. Tokenising, transport and the time of the scheduler itself are not counted. Near saturation a small error of step times \
           is a large one of latencies.</p>"
}
