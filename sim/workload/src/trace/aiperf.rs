//! Lines of AIPerf's `profile_export.jsonl`: JSON objects, a request each.
//!
//! Lines are in the order in which requests ended, so a file is read whole and put in the order of the starts. Failed, cancelled and
//! warm-up requests are counted and left out. Lines say nothing of shared prefixes, so prompts are unique.

use serde::Deserialize;
use serde_json::Value;

use super::mooncake::present;
use super::row::{Row, length, nanoseconds};
use super::{Format, TraceFault};

const FIELDS: &str = "metadata.request_start_ns, and metrics.input_sequence_length and metrics.output_sequence_length";

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    metrics: Metrics,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Metadata {
    request_start_ns: Option<Value>,
    benchmark_phase: Option<Value>,
    #[serde(default)]
    was_cancelled: bool,
}

#[derive(Deserialize)]
struct Metrics {
    input_sequence_length: Option<Metric>,
    output_sequence_length: Option<Metric>,
}

#[derive(Deserialize)]
struct Metric {
    value: Value,
}

/// Parses a line; `None` for a request that failed, was cancelled, got no token, or was of a warm-up.
pub(super) fn parse(line: &[u8]) -> Result<Option<Row>, TraceFault> {
    let Object { metadata, metrics, error } = serde_json::from_slice(line)
        .map_err(|e| TraceFault::Malformed { format: Format::Aiperf, why: e.to_string() })?;
    let is_warm_up = metadata.benchmark_phase.is_some_and(|phase| phase == "warmup");
    let is_empty = metrics.output_sequence_length.as_ref().is_some_and(|metric| metric.value == 0);
    if error.is_some() || metadata.was_cancelled || is_warm_up || is_empty {
        return Ok(None);
    }
    let start = present(FIELDS, "metadata.request_start_ns", metadata.request_start_ns)?;
    let at_ns = nanoseconds("request_start_ns", &start)?;
    let tokens =
        |field: &'static str, metric: Option<Metric>| length(field, &present(FIELDS, field, metric)?.value.to_string());
    let input_tokens = tokens("metrics.input_sequence_length", metrics.input_sequence_length)?;
    let output_tokens = tokens("metrics.output_sequence_length", metrics.output_sequence_length)?;
    Ok(Some(Row::without_content(at_ns, input_tokens, output_tokens)))
}
