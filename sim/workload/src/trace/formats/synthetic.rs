//! Requests of a generator, in no file.

use crate::trace::format::{Format, Reading, Shares, TraceFormat};

/// No file: requests of a generator.
pub const SYNTHETIC: Format = Format(&TraceFormat {
    name: "synthetic",
    title: "synthetic",
    about: "requests of a generator",
    shares: Shares::Pieces,
    options: &[],
    loses: Some(
        "the loop is cut: answers take as long as the workload assumes, and prompts hold other answers than a replay gives",
    ),
    lookalikes: &[],
    reading: Reading::Refused { fields: &[], why: "has no file" },
    writing: None,
});
