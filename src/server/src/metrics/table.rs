//! The table of all metrics: name, kind, labels, help, and the figure that each shows.
//!
//! Figures of the core's own have their metrics from [`Stats::metrics`]; any other is a line here. `docs/reference/metrics.md` follows from the table. Names follow the rules of Prometheus: base units,
//! `_total` at the end of counters. A name of vLLM stands for the same figure as there. Values of labels come from short fixed lists, from the numbers
//! of the engines or from the settings, never from clients.

mod cache;
mod edge;
mod engines;
mod requests;
mod vllm;

use std::sync::LazyLock;

use trunkline_core::{Figure, FigureKind, Stats};

use crate::metrics::samples::{Kind, Samples};
use crate::metrics::scrape::Scrape;

/// A metric.
pub(super) struct Metric {
    /// Name of the samples in queries; those of a histogram have `_bucket`, `_sum` or `_count` behind.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
    /// Adds the samples.
    pub(super) read: Read,
}

type Scraped = fn(&Scrape, &mut Samples<'_>);

/// Where the samples of a metric come from.
pub(super) enum Read {
    /// Anything of a scrape.
    Scrape(Scraped),
    /// A figure of each engine's core.
    Figure(fn(&Stats) -> u64),
}

impl Read {
    /// Adds the samples.
    pub(super) fn add(&self, scrape: &Scrape, out: &mut Samples<'_>) {
        match self {
            Self::Scrape(read) => read(scrape, out),
            Self::Figure(read) => scrape.each(out, |engine| read(&engine.status.stats)),
        }
    }
}

/// The label of metrics by engine.
const ENGINE: &[&str] = &["engine"];
/// The labels of metrics by tier.
const TIER: &[&str] = &["engine", "tier"];

/// Metrics of the figures that each core counts.
static FIGURES: LazyLock<Vec<Metric>> = LazyLock::new(|| Stats::metrics().map(of_figure).collect());

/// Returns all metrics by subject, with the heading that the docs have.
pub(super) fn sections() -> [(&'static str, &'static [Metric]); 6] {
    [
        ("Figures of each engine's core", &FIGURES),
        ("Requests", requests::METRICS),
        ("Engines and workers", engines::METRICS),
        ("Blocks, tiers and copies", cache::METRICS),
        ("Server and process", edge::METRICS),
        ("Names of vLLM", vllm::METRICS),
    ]
}

/// Returns all metrics, in the order of the output.
pub(super) fn all() -> impl Iterator<Item = &'static Metric> {
    sections().into_iter().flat_map(|(_, metrics)| metrics)
}

impl Metric {
    /// Returns `true` for a figure under a name of vLLM, which is there under one of ours too.
    pub(super) fn is_of_vllm(&self) -> bool {
        self.name.starts_with(vllm::PREFIX)
    }
}

fn of_figure(figure: &'static Figure) -> Metric {
    let Figure { metric: name, help, kind, read } = *figure;
    let kind = match kind {
        FigureKind::Gauge => Kind::Gauge,
        FigureKind::Counter => Kind::Counter,
    };
    Metric { name, kind, labels: ENGINE, help, read: Read::Figure(read) }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Scraped) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help, read: Read::Scrape(read) }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Scraped) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help, read: Read::Scrape(read) }
}

const fn info(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Scraped) -> Metric {
    Metric { name, kind: Kind::Info, labels, help, read: Read::Scrape(read) }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Scraped) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, help, read: Read::Scrape(read) }
}
