//! What is taken of a trace's file: flags that every command has that reads one.

use clap::Args;
use trunkline_sim_workload::Format;
use trunkline_sim_workload::trace::{ReaderOptions, Selection, Slice};

/// What is taken of a trace.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectionArgs {
    /// Format of the trace: mooncake, azure, burstgpt, bailian, vidur or tokens [default: found from its content].
    #[arg(long, value_name = "NAME")]
    pub(crate) format: Option<Format>,

    /// Read N requests ahead to put them in the order of their times; without it a step back is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    reorder: usize,

    /// Take a part only: 100..200 in numbers of requests from 0, or 60s..120s in seconds from the first; either end may
    /// be left out.
    #[arg(long, value_name = "BEGIN..END", default_value = "..")]
    slice: Slice,

    /// Take only the first N requests, of the slice if there is one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Cut prompts so that none has more than N tokens together with its answer, as engines do that have a longest context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_context: Option<u32>,
}

impl SelectionArgs {
    pub(crate) fn options(&self) -> ReaderOptions {
        ReaderOptions { format: self.format, reorder_requests: self.reorder }
    }

    /// The selection; times of arrival are left as they are.
    pub(crate) fn selection(&self) -> Selection {
        let limit = self.limit.unwrap_or(u64::MAX);
        Selection { slice: self.slice, limit, max_context: self.max_context, ..Selection::default() }
    }
}
