//! Reasons for a replay to fail.

use trunkline_sim_workload::trace::TraceError;

use super::TIME_MAX_NS;
use crate::settings::SettingsError;

const YEAR_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// Failed replay of a trace.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Settings that cannot be replayed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Requests cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Load out of range.
    #[error("load is {0}; it must be above 0, such as 0.8 for 80 % of the capacity")]
    LoadFraction(f64),
    /// Arrivals at a single instant, or that follow answers, without a rate to scale.
    #[error(
        "all requests of the trace arrive at one instant, or after answers, so it has no rate to multiply; --load and --find-rate need \
         arrivals at times of their own"
    )]
    NoRate,
    /// Closed loop over sessions that are made as their answers come.
    #[error(
        "the sessions of a workload have users of their own; write it down with `trunkline trace generate`, and give --concurrency with the trace"
    )]
    OwnUsers,
    /// Every request refused, so no capacity exists.
    #[error("every request is too large for the device, so there is no capacity; give it more blocks")]
    NoCapacity,
    /// No event left, but unfinished requests: a fault of the core.
    #[error("deadlock at {at_s} s: {unfinished} requests unfinished and no event due; please report it")]
    Stalled {
        /// Time of the last event, seconds after the first arrival.
        at_s: f64,
        /// Number of unfinished requests.
        unfinished: u64,
    },
    /// Arrival, step or copy beyond the time that a replay can count.
    #[error(
        "an arrival, a step or a copy ends after more than {} years; check the trace, --speed, --slow and the hardware file",
        TIME_MAX_NS / YEAR_NS
    )]
    EndOfTime,
    /// Stopped by an observer.
    #[error("the replay was stopped")]
    Stopped,
}
