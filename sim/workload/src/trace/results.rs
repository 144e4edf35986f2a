//! Results of benchmarks in the place of traces: reports of GuideLLM, and the details of `vllm bench serve` and of SGLang's `bench_serving`.
//!
//! A result is a JSON document with the requests of a run, in any order. A reader takes the whole document, and puts requests in the order of
//! starts. Clients know times and lengths, so every prompt is unique. Requests that failed, or that the end of the run cut off, are
//! counted and left out.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use trunkline_quote::of_parser;

use super::csv::{SECONDS, seconds_ns};
use super::row::{Row, length};
use super::{Format, TraceFault};
use crate::python_json::strict;

/// Fault in the result of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum ResultFault {
    /// Document of another shape.
    #[error("is no result of the {format} format ({why})", why = of_parser(why))]
    Malformed {
        /// Format of the result.
        format: Format,
        /// Message of the parser.
        why: String,
    },
    /// Several runs in a report of GuideLLM.
    #[error(
        "has {n} benchmarks, one after another; keep one of them, as `jq -c '.benchmarks |= [.[0]]'` does with the first"
    )]
    Benchmarks {
        /// Number of benchmarks in the report.
        n: usize,
    },
    /// Several runs in a file of SGLang.
    #[error("has {n} runs, a line each; keep one of them, as `tail -n 1` does with the last")]
    Runs {
        /// Number of runs in the file.
        n: usize,
    },
    /// Report with a part of the requests.
    #[error(
        "has {kept} of {of} successful requests, a sample; a trace needs all: run the benchmark without a sample size"
    )]
    Sample {
        /// Requests in the report.
        kept: usize,
        /// Successful requests of the run.
        of: usize,
    },
    /// Result without the starts of requests.
    #[error(
        "does not say when requests started; use a benchmark that writes start_times, or send all at once (request rate inf, no limit of \
         concurrency)"
    )]
    NoStarts,
    /// Lists of different lengths.
    #[error("{field} is of {found} requests, input_lens of {expected}")]
    Lengths {
        /// Name of the list.
        field: &'static str,
        /// Length of the list.
        found: usize,
        /// Number of requests.
        expected: usize,
    },
    /// Request with a fault.
    #[error("request {number} of the result: {fault}")]
    Request {
        /// Number of the request in the order of the result, from 0.
        number: usize,
        /// Fault of the request.
        fault: Box<TraceFault>,
    },
}

/// Requests of a result.
#[derive(Default)]
pub(super) struct Results {
    /// Requests in the order of the result.
    pub rows: Vec<Row>,
    /// Requests that failed or were cut off.
    pub n_failed: u64,
}

/// Reads the result of a benchmark, of the format `guidellm` or `bench-serve`.
pub(super) fn parse(format: Format, text: &[u8]) -> Result<Results, TraceFault> {
    let malformed = |why: String| ResultFault::Malformed { format, why };
    let text = std::str::from_utf8(text).map_err(|e| malformed(e.to_string()))?;
    match format {
        Format::GuideLlm => guidellm(documents(text).map_err(malformed)?),
        _ => bench_serve(documents(text).map_err(malformed)?),
    }
}

/// Parses the documents of a text, one after another.
fn documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let all = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<T>().collect::<Result<Vec<T>, _>>();
    all(text).or_else(|fault| all(&strict(text)).map_err(|_| fault.to_string()))
}

/// Makes a row of the values of a request.
fn row(fields: [&'static str; 3], values: [&Value; 3]) -> Result<Row, TraceFault> {
    let [start, input, output] = values.map(|value| if value.is_null() { "null".into() } else { value.to_string() });
    let at_ns =
        seconds_ns(&start).ok_or(TraceFault::BadTimestamp { field: fields[0], value: start, expected: SECONDS })?;
    Ok(Row::without_content(at_ns, length(fields[1], &input)?, length(fields[2], &output)?))
}

/// Names the request of a fault.
fn of_request(number: usize) -> impl Fn(TraceFault) -> TraceFault {
    move |fault| ResultFault::Request { number, fault: Box::new(fault) }.into()
}

/// Report of GuideLLM.
#[derive(Deserialize)]
struct Report {
    benchmarks: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    requests: Requests,
    metrics: Option<Metrics>,
}

#[derive(Deserialize)]
struct Requests {
    successful: Vec<Request>,
    #[serde(default)]
    incomplete: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    errored: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Metrics {
    request_totals: Option<Totals>,
}

#[derive(Deserialize)]
struct Totals {
    successful: usize,
}

/// Request of a report; the releases before 0.4 and 0.3 have the start in other places.
#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    prompt_tokens: Value,
    #[serde(default)]
    output_tokens: Value,
    #[serde(default)]
    request_start_time: Value,
    #[serde(default)]
    start_time: Value,
    scheduler_info: Option<SchedulerInfo>,
}

#[derive(Deserialize)]
struct SchedulerInfo {
    request_timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    request_start: Value,
}

impl Request {
    fn start(&self) -> &Value {
        let timings = self.scheduler_info.as_ref().and_then(|info| info.request_timings.as_ref());
        let places = [Some(&self.request_start_time), Some(&self.start_time), timings.map(|it| &it.request_start)];
        places.into_iter().flatten().find(|start| !start.is_null()).unwrap_or(&Value::Null)
    }
}

fn guidellm(reports: Vec<Report>) -> Result<Results, TraceFault> {
    let mut runs: Vec<Run> = reports.into_iter().flat_map(|report| report.benchmarks).collect();
    let (n, Some(run)) = (runs.len(), runs.pop()) else { return Ok(Results::default()) };
    if n > 1 {
        return Err(ResultFault::Benchmarks { n }.into());
    }
    let kept = run.requests.successful.len();
    let of = run.metrics.and_then(|metrics| metrics.request_totals).map_or(kept, |totals| totals.successful);
    if kept < of {
        return Err(ResultFault::Sample { kept, of }.into());
    }
    let fields = ["request_start_time", "prompt_tokens", "output_tokens"];
    let answered = run.requests.successful.iter().enumerate().filter(|(_, request)| request.output_tokens != 0);
    let rows = answered.map(|(number, request)| {
        row(fields, [request.start(), &request.prompt_tokens, &request.output_tokens]).map_err(of_request(number))
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let count = |requests: Option<Vec<IgnoredAny>>| requests.map_or(0, |requests| requests.len());
    let n_failed = count(run.requests.incomplete) + count(run.requests.errored) + kept - rows.len();
    Ok(Results { rows, n_failed: n_failed as u64 })
}

/// Details of `vllm bench serve` and `bench_serving`.
#[derive(Deserialize)]
struct Details {
    input_lens: Vec<Value>,
    output_lens: Vec<Value>,
    start_times: Option<Vec<Value>>,
    errors: Option<Vec<Option<String>>>,
    request_rate: Option<Value>,
    max_concurrency: Option<Value>,
}

fn bench_serve(mut runs: Vec<Details>) -> Result<Results, TraceFault> {
    let (n, Some(run)) = (runs.len(), runs.pop()) else { return Ok(Results::default()) };
    if n > 1 {
        return Err(ResultFault::Runs { n }.into());
    }
    let expected = run.input_lens.len();
    let at_once = run.max_concurrency.is_none() && run.request_rate.as_ref().is_some_and(|rate| *rate == "inf");
    let starts = match run.start_times {
        Some(starts) => starts,
        None if at_once => vec![Value::from(0); expected],
        None => return Err(ResultFault::NoStarts.into()),
    };
    let errors = run.errors.unwrap_or_default();
    let errors_found = if errors.is_empty() { expected } else { errors.len() };
    let lists = [("output_lens", run.output_lens.len()), ("start_times", starts.len()), ("errors", errors_found)];
    if let Some((field, found)) = lists.into_iter().find(|(_, found)| *found != expected) {
        return Err(ResultFault::Lengths { field, found, expected }.into());
    }
    let fields = ["start_times", "input_lens", "output_lens"];
    let mut results = Results::default();
    for (number, input) in run.input_lens.iter().enumerate() {
        let output = &run.output_lens[number];
        let error = errors.get(number).and_then(Option::as_deref).unwrap_or_default();
        if !error.is_empty() || *output == 0 {
            results.n_failed += 1;
            continue;
        }
        results.rows.push(row(fields, [&starts[number], input, output]).map_err(of_request(number))?);
    }
    Ok(results)
}
