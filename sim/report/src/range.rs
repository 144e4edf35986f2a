//! Range of a report's times, by the range of its step times.

use trunkline_sim_perf::cost::TimeRange;

use crate::report::Report;

/// Least use of the replicas where nothing but steps takes time.
const BUSY: f64 = 0.95;

impl Report {
    /// Returns the factors between this report's times and those of a real run, the least and the greatest. `None` without a range of step times, and
    /// where times do not change as step times do: where replicas had pauses, or the clock, not an answer, said when requests arrived.
    pub fn time_factors(&self) -> Option<[f64; 2]> {
        let TimeRange { low, high, launches_s, .. } = self.settings.time_range?;
        let busy_s = self.fleet.utilisation * self.duration_s * f64::from(self.settings.replicas);
        let is_busy = self.fleet.utilisation >= BUSY && self.settings.autoscale.is_none();
        let arrivals = &self.settings.arrivals;
        let is_timed = arrivals.speed.is_some() || arrivals.closed_loop.is_some_and(|users| users.think_s > 0.0);
        (is_busy && !is_timed).then(|| [low, high + launches_s * self.batches.steps as f64 / busy_s])
    }
}
