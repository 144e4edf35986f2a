//! Recordings of servers, which the replay of recordings reads.

use crate::trace::format::{Field, Format, Reading, Shares, TraceFormat};

/// Recording of a server, read by the replay of recordings.
pub const RECORDING: Format = Format(&TraceFormat {
    name: "recording",
    title: "recording",
    about: "a server's own, by `serve --record FILE`, with all tokens of answers: see [Recordings](#recordings)",
    shares: Shares::Tokens,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Refused {
        fields: &[Field::Required(&["trunkline_recording"])],
        why: "is the recording of a server; make a trace of it with `trunkline trace convert RECORDING OUT`",
    },
    writing: None,
});
