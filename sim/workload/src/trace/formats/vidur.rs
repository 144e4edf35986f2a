//! Rows of a trace for the Vidur simulator: CSV.

use crate::trace::blocks::PrefixTree;
use crate::trace::format::clock::TimeUnit;
use crate::trace::format::csv::{Dialect, Times};
use crate::trace::format::{Format, FormatOption, Reading, Shares, TraceFormat, Writing};
use crate::trace::write::decimal;
use crate::trace::{TraceRequest, WriteFault};

const NS_PER_S: u64 = 1_000_000_000;

/// CSV without content, as read by the Vidur simulator.
pub const VIDUR: Format = Format(&TraceFormat {
    name: "vidur",
    title: "Vidur",
    about: "CSV: `arrived_at` (s), `num_prefill_tokens`, `num_decode_tokens`",
    shares: Shares::Nothing,
    options: &[FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[],
    reading: Reading::Csv(Dialect {
        time: "arrived_at",
        input: "num_prefill_tokens",
        output: "num_decode_tokens",
        times: Times::In(TimeUnit::Seconds),
    }),
    writing: Some(Writing {
        suffixes: &["csv"],
        header: "arrived_at,num_prefill_tokens,num_decode_tokens\n",
        is_private: false,
        has_terms: false,
        line: write,
    }),
});

fn write(request: &TraceRequest, _: &mut PrefixTree, line: &mut String) -> Result<(), WriteFault> {
    let at_s = decimal(request.arrival_ns, NS_PER_S);
    line.push_str(&format!("{at_s},{},{}\n", request.input_tokens, request.output_tokens));
    Ok(())
}
