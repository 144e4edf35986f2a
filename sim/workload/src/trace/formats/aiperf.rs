//! Lines of AIPerf's `profile_export.jsonl`: JSON objects, a request each.
//!
//! Lines are in the order in which requests ended, so a file is read whole and put in the order of the starts. Failed, cancelled and
//! warm-up requests are counted and left out. Lines say nothing of shared prefixes, so prompts are unique.

use serde::Deserialize;
use serde_json::Value;

use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::row::{Row, length, object, present};
use crate::trace::format::{
    Field, FileFacts, Format, FormatOption, LineParser, Lookalike, Opened, Order, Parsed, Reading, Shares, TraceFormat,
};
use crate::trace::{ReaderOptions, TraceFault};

const FIELDS: &str = "metadata.request_start_ns, and metrics.input_sequence_length and metrics.output_sequence_length";

/// JSON lines without content, as AIPerf exports the requests of a benchmark.
pub const AIPERF: Format = Format(&TraceFormat {
    name: "aiperf",
    title: "AIPerf",
    about: "JSON of AIPerf's `profile_export.jsonl`: `metadata.request_start_ns`, `metrics.input_sequence_length`, \
            `metrics.output_sequence_length`. Requests that failed, were cancelled, or are of a warm-up are left out and counted",
    shares: Shares::Nothing,
    options: &[FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[Lookalike {
        begins: &[],
        fields: &["input_config"],
        is: "the summary of a benchmark, without its requests; of AIPerf take profile_export.jsonl",
    }],
    reading: Reading::Lines {
        fields: &[Field::Required(&["metadata"]), Field::Required(&["metrics"])],
        open: |_: &[u8], options: &ReaderOptions| Opened { parser: Box::new(Parser::new(options)), order: Order::Any },
    },
    writing: None,
});

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

struct Parser(FileFacts);

impl Parser {
    fn new(options: &ReaderOptions) -> Self {
        let clock = Some(Clock::new(TimeUnit::Nanoseconds, options.time_unit));
        Self(FileFacts { clock, ..FileFacts::default() })
    }
}

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let Object { metadata, metrics, error } = object(line, AIPERF)?;
        let is_warm_up = metadata.benchmark_phase.is_some_and(|phase| phase == "warmup");
        if error.is_some() || metadata.was_cancelled || is_warm_up {
            return Ok(Parsed::LeftOut);
        }
        let start = present(FIELDS, "metadata.request_start_ns", metadata.request_start_ns)?;
        let at_ns = self.0.time_ns("request_start_ns", &start)?;
        let tokens = |field: &'static str, metric: Option<Metric>| {
            length(field, &present(FIELDS, field, metric)?.value.to_string())
        };
        let input_tokens = tokens("metrics.input_sequence_length", metrics.input_sequence_length)?;
        let output_tokens = tokens("metrics.output_sequence_length", metrics.output_sequence_length)?;
        Ok(Parsed::Request(Row::without_content(at_ns, input_tokens, output_tokens)))
    }

    fn facts(&self) -> Option<&FileFacts> {
        Some(&self.0)
    }
}
