//! Samples of one metric on the way to the encoder.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::requests::histogram::Histogram;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A sum since the server started, which never falls.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Facts as labels, with the value 1.
    Info,
    /// Counts of values in buckets, and their sum.
    Histogram,
}

impl Kind {
    /// Returns the name in docs.
    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }

    /// Returns the end of the name, which encoders add by themselves.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }

    fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Info => MetricType::Info,
            Self::Histogram => MetricType::Histogram,
        }
    }
}

/// Names and values of labels.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// Value of a counter or a gauge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Takes the samples of one metric. An error is kept, and later samples are left out.
pub(super) struct Samples<'a> {
    kind: Kind,
    /// Names of the labels of each sample.
    labels: &'static [&'static str],
    encoder: MetricEncoder<'a>,
    pub(super) result: fmt::Result,
}

impl<'a> Samples<'a> {
    /// Writes the name, the help and the kind of a metric whose samples have `labels`.
    pub(super) fn begin(
        encoder: &'a mut DescriptorEncoder<'_>,
        (kind, name, help): (Kind, &'a str, &str),
        labels: &'static [&'static str],
    ) -> Result<Self, fmt::Error> {
        let name = name.strip_suffix(kind.suffix()).unwrap_or(name);
        let encoder = encoder.encode_descriptor(name, help, None, kind.metric_type())?;
        Ok(Self { kind, labels, encoder, result: Ok(()) })
    }

    /// Adds the value of a counter or a gauge.
    pub(super) fn add(&mut self, labels: Labels<'_>, value: impl Into<Value>) {
        let (kind, value) = (self.kind, value.into());
        self.encode(labels, |mut encoder| match (kind, value) {
            (Kind::Counter, Value::Whole(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (Kind::Counter, Value::Real(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (Kind::Gauge, Value::Whole(value)) => encoder.encode_gauge(&value),
            (Kind::Gauge, Value::Real(value)) => encoder.encode_gauge(&value),
            (Kind::Info | Kind::Histogram, _) => Err(fmt::Error),
        });
    }

    /// Adds facts as labels.
    pub(super) fn info(&mut self, labels: Labels<'_>) {
        self.check(labels);
        if self.result.is_ok() {
            self.result = self.encoder.encode_info(&labels);
        }
    }

    /// Adds a histogram.
    pub(super) fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        let buckets = histogram.buckets();
        self.encode(labels, |mut encoder| {
            encoder.encode_histogram::<NoLabelSet>(histogram.sum(), histogram.count(), &buckets, None)
        });
    }

    fn check(&self, labels: Labels<'_>) {
        debug_assert!(labels.iter().map(|(name, _)| name).eq(self.labels), "{labels:?} are not {:?}", self.labels);
    }

    fn encode(&mut self, labels: Labels<'_>, encode: impl FnOnce(MetricEncoder<'_>) -> fmt::Result) {
        self.check(labels);
        if self.result.is_ok() {
            self.result = self.encoder.encode_family(&labels).and_then(encode);
        }
    }
}
