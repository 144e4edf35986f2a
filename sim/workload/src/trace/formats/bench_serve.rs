//! Details of `vllm bench serve` and of SGLang's `bench_serving`: a JSON document each.

use serde::Deserialize;
use serde_json::Value;

use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::results::{ResultFault, Results, documents, of_request, row};
use crate::trace::format::{Field, Format, FormatOption, Lookalike, Reading, Shares, TraceFormat};
use crate::trace::{ReaderOptions, TraceFault};

/// JSON document without content, as the serving benchmarks of vLLM and SGLang write it.
pub const BENCH_SERVE: Format = Format(&TraceFormat {
    name: "bench-serve",
    title: "the serving benchmarks of vLLM and SGLang",
    about: "one document: `vllm bench serve --save-result --save-detailed`, or a line of SGLang's `bench_serving --output-details`: \
            `start_times` (s), `input_lens`, `output_lens`. Requests that failed are left out and counted",
    shares: Shares::Nothing,
    options: &[FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[Lookalike {
        begins: &[],
        fields: &["request_throughput", "total_input_tokens"],
        is: "the summary of a benchmark, without its requests; run it with --save-detailed (vLLM) or --output-details (SGLang)",
    }],
    reading: Reading::Document {
        fields: &[
            Field::Required(&["input_lens"]),
            Field::Optional(&["output_lens"]),
            Field::Optional(&["start_times"]),
        ],
        read,
    },
    writing: None,
});

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

fn read(text: &[u8], options: &ReaderOptions) -> Result<Results, TraceFault> {
    let mut runs: Vec<Details> = documents(text, BENCH_SERVE)?;
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
    let mut clock = Clock::new(TimeUnit::Seconds, options.time_unit);
    for (number, input) in run.input_lens.iter().enumerate() {
        let output = &run.output_lens[number];
        let error = errors.get(number).and_then(Option::as_deref).unwrap_or_default();
        if !error.is_empty() {
            results.n_failed += 1;
            continue;
        }
        let values = [&starts[number], input, output];
        results.rows.push(row(&mut clock, fields, values).map_err(of_request(number))?);
    }
    Ok(Results { clock: Some(clock), ..results })
}
