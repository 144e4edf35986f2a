//! Reports of GuideLLM: a JSON document each.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::results::{ResultFault, Results, documents, of_request, row};
use crate::trace::format::{Field, Format, FormatOption, Lookalike, Reading, Shares, TraceFormat};
use crate::trace::{ReaderOptions, TraceFault};

/// JSON report without content, as GuideLLM writes it.
pub const GUIDELLM: Format = Format(&TraceFormat {
    name: "guidellm",
    title: "GuideLLM",
    about: "one document: GuideLLM's report in JSON, `benchmarks.json`. Requests that failed or were incomplete are left out and counted",
    shares: Shares::Nothing,
    options: &[FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[Lookalike {
        // Keys of YAML are sorted.
        begins: &["args:", "benchmarks:", "Run Info,"],
        fields: &[],
        is: "a report of GuideLLM in YAML or CSV; write it as JSON, which has the requests",
    }],
    reading: Reading::Document {
        fields: &[Field::Required(&["benchmarks"]), Field::Optional(&["metadata"]), Field::Optional(&["args"])],
        read,
    },
    writing: None,
});

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

fn read(text: &[u8], options: &ReaderOptions) -> Result<Results, TraceFault> {
    let reports: Vec<Report> = documents(text, GUIDELLM)?;
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
    let mut clock = Clock::new(TimeUnit::Seconds, options.time_unit);
    let rows = run.requests.successful.iter().enumerate().map(|(number, request)| {
        let values = [request.start(), &request.prompt_tokens, &request.output_tokens];
        row(&mut clock, fields, values).map_err(of_request(number))
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let count = |requests: Option<Vec<IgnoredAny>>| requests.map_or(0, |requests| requests.len());
    let n_failed = count(run.requests.incomplete) + count(run.requests.errored);
    Ok(Results { rows, n_failed: n_failed as u64, clock: Some(clock) })
}
