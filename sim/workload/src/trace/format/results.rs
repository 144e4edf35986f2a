//! Results of benchmarks in the place of traces.
//!
//! A result is a JSON document with the requests of a run, in any order. A reader takes the whole document, and puts requests in the order of
//! starts. Clients know times and lengths, so every prompt is unique. Requests that failed, or that the end of the run cut off, are
//! counted and left out.

use serde::de::DeserializeOwned;
use serde_json::Value;
use trunkline_quote::of_parser;

use super::Format;
use super::clock::Clock;
use super::row::{Row, length};
use crate::python_json::strict;
use crate::trace::TraceFault;

/// Fault in the result of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum ResultFault {
    /// Document of another shape.
    #[error("is not a result of the {format} format ({why})", why = of_parser(why))]
    Malformed {
        /// Format of the result.
        format: Format,
        /// Message of the parser.
        why: String,
    },
    /// Several runs in a report.
    #[error(
        "has {n} benchmarks, one after another; keep one of them, as `jq -c '.benchmarks |= [.[0]]'` does with the first"
    )]
    Benchmarks {
        /// Number of benchmarks in the report.
        n: usize,
    },
    /// Several runs in a file, a line each.
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
pub(in crate::trace) struct Results {
    /// Requests in the order of the result.
    pub rows: Vec<Row>,
    /// Requests that failed or were cut off.
    pub n_failed: u64,
    /// Unit of the starts, if any was read.
    pub clock: Option<Clock>,
}

/// Parses the documents of a result of `format`, one after another.
pub(in crate::trace) fn documents<T: DeserializeOwned>(text: &[u8], format: Format) -> Result<Vec<T>, ResultFault> {
    let malformed = |why: String| ResultFault::Malformed { format, why };
    let text = std::str::from_utf8(text).map_err(|e| malformed(e.to_string()))?;
    let all = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<T>().collect::<Result<Vec<T>, _>>();
    all(text).or_else(|fault| all(&strict(text)).map_err(|_| malformed(fault.to_string())))
}

/// Makes a row of the values of a request.
pub(in crate::trace) fn row(
    clock: &mut Clock,
    fields: [&'static str; 3],
    values: [&Value; 3],
) -> Result<Row, TraceFault> {
    let [start, input, output] = values.map(|value| if value.is_null() { "null".into() } else { value.to_string() });
    let at_ns = clock.ns(&start);
    let at_ns =
        at_ns.ok_or(TraceFault::BadTimestamp { field: fields[0], value: start, expected: clock.unit().expected() })?;
    Ok(Row::without_content(at_ns, length(fields[1], &input)?, length(fields[2], &output)?))
}

/// Names the request of a fault.
pub(in crate::trace) fn of_request(number: usize) -> impl Fn(TraceFault) -> TraceFault {
    move |fault| ResultFault::Request { number, fault: Box::new(fault) }.into()
}
