//! Rows of a BurstGPT trace: CSV.

use crate::trace::format::clock::TimeUnit;
use crate::trace::format::csv::{Dialect, Times};
use crate::trace::format::{Format, FormatOption, Reading, Shares, TraceFormat};

/// CSV without content, as published with BurstGPT.
pub const BURSTGPT: Format = Format(&TraceFormat {
    name: "burstgpt",
    title: "BurstGPT",
    about: "CSV: `Timestamp` (s), `Request tokens`, `Response tokens`; both releases",
    shares: Shares::Nothing,
    options: &[FormatOption::TimeUnit],
    loses: Some("requests that failed, models, log types and sessions are left out"),
    lookalikes: &[],
    reading: Reading::Csv(Dialect {
        time: "Timestamp",
        input: "Request tokens",
        output: "Response tokens",
        times: Times::In(TimeUnit::Seconds),
    }),
    writing: None,
});
