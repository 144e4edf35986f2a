//! Rows of a BurstGPT trace: CSV.

use crate::trace::format::csv::{Dialect, SECONDS, seconds_ns};
use crate::trace::format::{Format, Reading, Shares, TraceFormat};

/// CSV without content, as published with BurstGPT.
pub const BURSTGPT: Format = Format(&TraceFormat {
    name: "burstgpt",
    title: "BurstGPT",
    about: "CSV: `Timestamp` (s), `Request tokens`, `Response tokens`; both releases. Requests that failed, with no response, are left \
            out and counted",
    shares: Shares::Nothing,
    options: &[],
    loses: Some("requests that failed, models, log types and sessions are left out"),
    lookalikes: &[],
    reading: Reading::Csv(Dialect {
        time: "Timestamp",
        input: "Request tokens",
        output: "Response tokens",
        time_ns: seconds_ns,
        expected: SECONDS,
        has_failures: true,
    }),
    writing: None,
});
