//! The table of metrics against its rules and the docs; and a server that does not know its model.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::samples::Kind;
use super::table::{Metric, all, sections};
use super::*;
use crate::driver::queue::queue;
use crate::network::limits::NetworkLimits;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap()
}

const PAGE: &str = "docs/reference/metrics.md";

/// The row of a metric in the docs.
fn row(Metric { name, kind, labels, help, .. }: &Metric) -> String {
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "))
}

/// Returns the page with the table of each section after the section's heading; an older table goes.
fn with_tables(page: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = page.lines().peekable();
    let mut missing: Vec<_> = sections().into_iter().collect();
    while let Some(line) = lines.next() {
        out.push(line.to_owned());
        let Some(at) = missing.iter().position(|(name, _)| line == format!("### {name}")) else { continue };
        let (_, metrics) = missing.remove(at);
        while lines.next_if(|next| next.is_empty() || next.starts_with('|')).is_some() {}
        out.extend(["", "| name | type | labels | meaning |", "|---|---|---|---|"].map(str::to_owned));
        out.extend(metrics.iter().map(row));
        out.push(String::new());
    }
    assert!(
        missing.is_empty(),
        "{PAGE} has no heading for {:?}",
        missing.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    out.join("\n").trim_end().to_owned() + "\n"
}

/// All words of a text that begin like the name of a metric.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| {
        ["trunkline_", "process_"].iter().any(|start| word.len() > start.len() && word.starts_with(start))
    };
    words.filter(is_name).collect()
}

/// All names of samples.
fn samples() -> BTreeSet<String> {
    let ends = |kind| if kind == Kind::Histogram { &["_bucket", "_sum", "_count"][..] } else { &[""] };
    all().flat_map(|metric| ends(metric.kind).iter().map(|end| format!("{}{end}", metric.name))).collect()
}

#[test]
fn the_docs_have_the_row_of_every_metric() {
    let docs = read(PAGE);
    let expected = with_tables(&docs);
    if std::env::var_os("TRUNKLINE_WRITE_DOCS").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE), expected).unwrap();
        return;
    }
    assert!(
        docs == expected,
        "{PAGE} is not what the table says; run TRUNKLINE_WRITE_DOCS=1 cargo test row_of_every_metric"
    );
}

#[test]
fn names_in_the_docs_are_those_of_metrics() {
    let (samples, metrics) = (samples(), all().map(|metric| metric.name).collect::<BTreeSet<_>>());
    let docs = read("docs/reference/metrics.md");
    for name in names(&docs) {
        assert!(samples.contains(name) || metrics.contains(name), "docs/reference/metrics.md names {name}");
    }
}

#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut seen = BTreeSet::new();
    for Metric { name, kind, labels, help, .. } in all() {
        assert!(seen.insert(name), "{name} is there twice");
        let bare = name.strip_prefix("vllm:").or(name.strip_prefix("trunkline_")).or(name.strip_prefix("process_"));
        let bare = bare.unwrap_or_else(|| panic!("{name}"));
        assert!(bare.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'), "{name}");
        for of in [Kind::Counter, Kind::Info] {
            assert_eq!(name.ends_with(of.suffix()), *kind == of, "{name} is a {}", kind.name());
        }
        let is_own = |label: &&&str| ["le", "job", "instance", "quantile"].contains(*label);
        assert!(!labels.iter().any(|label| is_own(&label)), "{name}");
        assert!(help.ends_with('.') && !help.contains(['\n', '|', '\\']), "{name}: {help}");
    }
}

#[tokio::test]
async fn a_server_without_a_model_shows_itself_alone_in_both_formats() {
    let (driver, commands) = queue(4);
    let network = Network::new(NetworkLimits::default(), driver.clock());
    let metrics = Metrics::new(driver, network, MetricNames::Both);
    let text = metrics.text(Format::Prometheus).await.unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        text.contains(&format!("# TYPE trunkline_build_info gauge\ntrunkline_build_info{{version=\"{version}\"}} 1\n"))
    );
    assert!(text.contains("trunkline_connections_accepted_total 0\n"));
    assert!(text.contains("# TYPE trunkline_requests_refused_total counter\n"));
    assert!(text.contains("trunkline_requests_refused_total{reason=\"queue_full\"} 0\n"));
    assert!(!text.contains("engine=") && !text.contains("\ntrunkline_draining "), "{text}");
    let text = metrics.text(Format::OpenMetrics).await.unwrap();
    assert!(text.contains("# TYPE trunkline_requests_refused counter\n") && text.ends_with("\n# EOF\n"), "{text}");
    assert!(commands.is_empty(), "no thread answers yet");
}
