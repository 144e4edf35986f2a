//! Reports as one HTML page: charts of one replay, or of several side by side.
//!
//! The page is self-contained: it includes styles, the chart script and the data, and loads nothing from a network. Tables are
//! plain HTML, readable without the script. Equal replays give equal pages, byte for byte; wall-clock times are left out.

use serde::Serialize;

use crate::numbers::grouped;
use crate::report::Report;
use crate::series::{Distribution, LatencyDistributions, SeriesReport};

mod axis;
mod figures;
mod settings;
mod tables;

use axis::LogAxis;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/charts.js");

/// Replay shown on a page.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Label to distinguish the run, such as `fcfs, lru`.
    pub label: String,
    /// Report of the replay.
    pub report: &'a Report,
    /// Series of the replay.
    pub series: &'a SeriesReport,
}

/// Data of a run for the script.
#[derive(Serialize)]
struct Data<'a> {
    label: &'a str,
    report: serde_json::Value,
    series: &'a SeriesReport,
}

/// Returns the page of several runs of one trace; empty without runs.
pub fn page(runs: &[Run<'_>]) -> String {
    let Some(first) = runs.first() else { return String::new() };
    let several = runs.len() > 1;
    let settings = &first.report.settings;
    let trace = if settings.trace.is_empty() { "a trace" } else { &settings.trace };
    let heading = escape(file_name(trace));
    let replicas = runs.iter().any(|run| run.report.settings.replicas > 1);
    let max_note = if several { ", mean" } else { ": the mean, and the most at any time" };
    let arrived_note = if several { "" } else { ", and those that arrived" };
    fill(
        PAGE,
        &[
            ("count", if several { "several" } else { "one" }.into()),
            ("title", format!("{heading} - Trunkline replay")),
            ("style", STYLE.into()),
            ("heading", heading),
            ("lede", lede(runs)),
            ("runs", tables::legend(runs)),
            ("summary", if several { tables::comparison(runs) } else { tables::cards(first) }),
            ("percentiles", tables::percentiles(runs)),
            ("buckets", buckets(runs)),
            ("arrived_note", arrived_note.into()),
            ("max_note", max_note.into()),
            ("replicas_link", if replicas { r##"<a href="#replicas">Replicas</a>"##.into() } else { String::new() }),
            ("replicas", if replicas { replicas_section(runs) } else { String::new() }),
            ("settings", settings::tables(runs)),
            ("trust", settings::trust(runs)),
            ("footer", footer(runs)),
            ("data", data(runs)),
            ("script", SCRIPT.into()),
        ],
    )
}

/// Section on replicas, shown for fleets.
const REPLICAS: &str = r#"<section id="replicas">
  <h2>Replicas</h2>
  <div class="charts">
{{ready}}    <figure data-chart="busy" class="stack"><h3>Utilisation</h3><figcaption>Time in which each replica ran steps (%), of the whole replay.</figcaption></figure>
    <figure data-chart="shares" class="stack"><h3>Requests</h3><figcaption>Requests that ended at each replica.</figcaption></figure>
  </div>
</section>"#;

/// Chart of the ready replicas, shown if their number changes in every run.
const READY: &str = r#"    <figure data-chart="ready" class="wide"><h3>Ready replicas</h3><figcaption>Replicas that take new requests: started, not draining and not failed.</figcaption></figure>
"#;

/// Returns the section on replicas.
fn replicas_section(runs: &[Run<'_>]) -> String {
    let ready = if runs.iter().all(|run| run.series.ready.is_some()) { READY } else { "" };
    fill(REPLICAS, &[("ready", ready.into())])
}

/// Returns one or two sentences on the trace and the fleet.
fn lede(runs: &[Run<'_>]) -> String {
    let report = runs[0].report;
    let settings = &report.settings;
    let replicas = match (settings.replicas, settings.groups.len()) {
        (1, _) => format!("one replica of {}", settings::hardware(settings)),
        (n, 1) => format!("{} replicas of {}", grouped(n.into()), settings::hardware(settings)),
        (n, _) => format!("{} replicas ({})", grouped(n.into()), settings::hardware(settings)),
    };
    let requests = if report.requests == 1 { "request" } else { "requests" };
    let runs = match runs.len() {
        1 => String::new(),
        n => format!("{n} runs of "),
    };
    escape(&format!(
        "{runs}{} {requests} on {replicas} serving {}, under a virtual clock; {}.",
        grouped(report.requests),
        settings.model,
        settings::arrivals(report)
    ))
}

fn buckets(runs: &[Run<'_>]) -> String {
    let mut widths: Vec<f64> = runs.iter().map(|run| run.series.bucket_s).collect();
    widths.dedup();
    let widths: Vec<String> = widths.into_iter().map(figures::short_seconds).collect();
    format!(
        "Charts over time have a value for every {}. Steps and copies are counted evenly over the time they take.",
        widths.join(" or ")
    )
}

fn footer(runs: &[Run<'_>]) -> String {
    let digests: Vec<String> = runs.iter().map(|run| format!("<code>{}</code>", escape(&run.report.digest))).collect();
    format!(
        "Digest of every decision: {}. The same trace and settings give the same digest, and this same page.",
        digests.join(", ")
    )
}

/// Returns the runs as JSON for a script element. Every `<` is escaped, so no data can end the element.
fn data(runs: &[Run<'_>]) -> String {
    let axis =
        |of: fn(&LatencyDistributions) -> &Distribution| LogAxis::of(runs.iter().map(|run| of(&run.series.latencies)));
    let axes = serde_json::json!({
        "ttft": axis(|of| &of.ttft), "tpot": axis(|of| &of.tpot), "e2e": axis(|of| &of.e2e), "queue": axis(|of| &of.queue)
    });
    let runs: Vec<Data<'_>> =
        runs.iter().map(|run| Data { label: &run.label, report: lasting(run.report), series: run.series }).collect();
    // All keys are strings and all values numbers, strings, booleans or null.
    let json = serde_json::to_string(&serde_json::json!({ "axes": axes, "runs": runs })).expect("runs serialise");
    json.replace('<', "\\u003c")
}

/// Returns a report without figures that differ from machine to machine.
fn lasting(report: &Report) -> serde_json::Value {
    let mut value = serde_json::to_value(report).expect("a report serialises");
    if let Some(fields) = value.as_object_mut() {
        fields.remove("wall_s");
    }
    value
}

/// Replaces each `{{name}}` by its value in one pass; values are not searched again.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut parts = template.split("{{");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once("}}").expect("the template is ours: each name ends");
        let (_, value) =
            values.iter().find(|(known, _)| *known == name).expect("the template is ours: names are known");
        out.push_str(value);
        out.push_str(rest);
    }
    out
}

/// Escapes text for use between tags and in attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
