//! Part of a trace file to read: flags of every command that reads one.

use std::num::NonZeroU32;

use clap::Args;
use trunkline_sim_workload::Format;
use trunkline_sim_workload::trace::{FormatOption, ReaderOptions, Selection, Slice, TimeUnit, formats};

/// Requests to take from a trace, and the speed at which they arrive.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectionArgs {
    #[arg(long, value_name = "NAME")]
    #[arg(help = format!("Format of the trace: {} [default: detected from the content]", formats::names(formats::read())))]
    pub(crate) format: Option<Format>,

    /// Read N requests ahead to sort them by arrival time; at 0, an arrival before the previous one is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    reorder: usize,

    #[arg(long, value_name = "N")]
    #[arg(help = format!("Tokens per id in hash_ids, for {} traces [default: 512]", formats::with(FormatOption::BlockTokens)))]
    trace_block_size: Option<NonZeroU32>,

    /// Unit of timestamps that are numbers: s, ms, us or ns [default: the format's, or that in which the first is a date].
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,

    #[arg(long, help = format!(
        "Begin a chat's next prompt with the answer before, kept in the cache as engines do; for {} traces, whose ids name prompts alone",
        formats::with(FormatOption::ReuseAnswers)
    ))]
    reuse_answers: bool,

    /// Take a part only: 100..200 in request numbers from 0, or 60s..120s in seconds from the first arrival; either end may
    /// be left out.
    #[arg(long, value_name = "BEGIN..END", default_value = "..")]
    slice: Slice,

    /// Take only the first N requests, of the slice if there is one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Truncate prompts so that prompt and answer together have at most N tokens, as engines with a maximum context do.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_context: Option<u32>,

    /// Divide arrival times by X: 2 is twice the load.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) speed: f64,
}

impl SelectionArgs {
    /// Returns the options of the reader.
    pub(crate) fn options(&self) -> ReaderOptions {
        ReaderOptions {
            format: self.format,
            reorder_requests: self.reorder,
            reuse_answers: self.reuse_answers,
            block_tokens: self.trace_block_size,
            time_unit: self.time_unit,
        }
    }

    /// Returns the selection with arrival times as in the file; a replay applies the speed itself.
    pub(crate) fn selection(&self) -> Selection {
        let limit = self.limit.unwrap_or(u64::MAX);
        Selection { slice: self.slice, limit, max_context: self.max_context, ..Selection::default() }
    }

    /// Returns the selection with arrival times divided by the speed.
    ///
    /// # Errors
    /// If the speed is not above 0.
    pub(crate) fn selection_at_speed(&self) -> anyhow::Result<Selection> {
        Ok(Selection { speed: self.speed, ..self.selection() }.checked()?)
    }
}
