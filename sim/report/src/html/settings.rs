//! Settings on a page, and the accuracy of the figures.

use trunkline_core::Config;
use trunkline_core::config::{Kind, SETTINGS, Setting};

use super::figures::{number, per_cent, short};
use super::{Run, escape};
use crate::numbers::grouped;
use crate::report::{CORE_UNREPORTED, GroupReport, Report, SettingsReport};
use crate::series::TierSeries;

/// Title and text of a setting.
type Row = (&'static str, fn(&Run<'_>) -> String);

/// Settings besides those of the core.
const ROWS: [Row; 12] = [
    ("Trace", |it| format!("{} ({})", it.report.settings.trace, it.report.settings.format)),
    ("Arrivals", |it| arrivals(it.report)),
    ("Hardware", |it| hardware(&it.report.settings)),
    ("Model", |it| it.report.settings.model.clone()),
    ("Replicas", |it| grouped(it.report.settings.replicas.into())),
    ("Autoscaling", |it| autoscaling(&it.report.settings)),
    ("Router", |it| it.report.settings.router.clone()),
    ("Failures", |it| list(&it.report.settings.failures)),
    ("Slow replicas", |it| list(&it.report.settings.slow)),
    ("KV blocks on each device", |it| device_blocks(&it.report.settings)),
    ("Tiers", tiers),
    ("Probability that a draft is accepted", |it| it.report.settings.draft_acceptance.to_string()),
];

/// Returns the settings of the core to show, each a row titled by its flag.
fn core_settings() -> impl Iterator<Item = &'static Setting> {
    let shown = |setting: &&Setting| setting.name != "device_blocks" && !CORE_UNREPORTED.contains(&setting.name);
    SETTINGS.iter().filter(shown)
}

/// Returns a setting of the core as text.
fn core_value(setting: &Setting, core: &Config) -> String {
    let text = (setting.get)(core);
    match (setting.kind, text.parse()) {
        (Kind::U32 | Kind::U64, Ok(number)) => grouped(number),
        _ => text,
    }
}

/// Describes each kind of replica.
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

/// Describes the policy for the number of replicas.
fn autoscaling(settings: &SettingsReport) -> String {
    let initial = settings.initial_replicas.map_or(String::new(), |initial| format!("; {initial} at the start"));
    settings.autoscale.clone().unwrap_or_else(|| "none".into()) + &initial
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

/// Describes the arrivals.
pub(super) fn arrivals(report: &Report) -> String {
    match (&report.load, report.settings.arrivals.speed) {
        (Some(load), _) => format!(
            "{} requests/s arrive, {} of the capacity of {} requests/s",
            number(load.arrival_requests_s),
            per_cent(load.fraction),
            number(load.capacity_requests_s)
        ),
        (None, Some(1.0)) => "they arrive as in the trace".into(),
        (None, Some(speed)) => format!("they arrive {} times as fast as in the trace", short(speed)),
        (None, None) => {
            report.settings.arrivals.closed_loop.map_or("one arrives after another".into(), |users| users.to_string())
        }
    }
}

/// Returns the tables of settings: those that differ between runs, then the common ones.
pub(super) fn tables(runs: &[Run<'_>]) -> String {
    let named =
        ROWS.iter().map(|(name, row)| (format!("<th scope=\"row\">{name}</th>"), runs.iter().map(row).collect()));
    let core = core_settings().map(|setting| {
        let (help, flag) = (escape(&setting.help()), setting.flag);
        let values = runs.iter().map(|run| core_value(setting, &run.report.settings.core)).collect();
        (format!("<th scope=\"row\" title=\"{help}\">{flag}</th>"), values)
    });
    let rows: Vec<(String, Vec<String>)> = named.chain(core).collect();
    let (mut same, mut differing) = (String::new(), String::new());
    for (head, values) in &rows {
        let cells = |values: &[String]| values.iter().map(|it| format!("<td>{}</td>", escape(it))).collect::<String>();
        match values.iter().all(|value| *value == values[0]) {
            true => same.push_str(&format!("<tr>{head}{}</tr>\n", cells(&values[..1]))),
            false => differing.push_str(&format!("<tr>{head}{}</tr>\n", cells(values))),
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

/// Returns the cost models' statements of their errors.
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
