//! The table of all metrics: name, kind, labels, help, and the figure that each shows.
//!
//! A metric is added by a line here and a line in `docs/metrics.md`; a test compares the two. Names follow the rules of Prometheus: base units,
//! `_total` at the end of counters. A name of vLLM stands for the same figure as there. Values of labels come from short fixed lists, from the numbers
//! of the engines or from the settings, never from clients.

mod cache;
mod edge;
mod engines;
mod requests;

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

type Read = fn(&Scrape, &mut Samples<'_>);

/// The label of metrics by engine.
const ENGINE: &[&str] = &["engine"];
/// The labels of metrics by tier.
const TIER: &[&str] = &["engine", "tier"];

/// Metrics by subject.
pub(super) const SECTIONS: [&[Metric]; 4] = [requests::METRICS, engines::METRICS, cache::METRICS, edge::METRICS];

/// Returns all metrics, in the order of the output.
pub(super) fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.into_iter().flatten()
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help, read }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help, read }
}

const fn info(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Info, labels, help, read }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, help, read }
}
