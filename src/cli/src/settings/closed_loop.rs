//! Arrivals of a closed loop: flags of the commands that replay a trace.

use clap::Args;
use trunkline_sim_workload::trace::ClosedLoop;

/// Users who each wait for their answers.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoopArgs {
    /// Let N users send the requests, each the next one at the end of the one before, as benchmarks do. The trace gives the order, not the times; a
    /// user sends all turns of a session.
    #[arg(long, value_name = "N", conflicts_with = "speed")]
    pub(crate) concurrency: Option<u32>,

    /// Pause of a user between the end of a request and the next, seconds. Where a turn of the trace has a delay, that one counts.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0.0,
        requires = "concurrency",
        allow_negative_numbers = true
    )]
    think_time: f64,

    /// Time over which the users begin, one after another, seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0.0,
        requires = "concurrency",
        allow_negative_numbers = true
    )]
    ramp: f64,
}

impl LoopArgs {
    /// Returns the closed loop, if there is one.
    pub(crate) fn shape(&self) -> Option<ClosedLoop> {
        let (think_s, ramp_s) = (self.think_time, self.ramp);
        self.concurrency.map(|users| ClosedLoop { users, think_s, ramp_s })
    }
}
