//! A plan for a day: flags of the daily curve, and its answer as text.

use clap::Args;
use trunkline_sim_replay::plan::{Day, DayAnswer, FleetDay, Goal};
use trunkline_sim_workload::daily::DailyCurve;

use super::conclusion;
use crate::output::{align_right, per_cent, table};

/// Rates over a day.
#[derive(Clone, Debug, Args)]
pub(super) struct DayArgs {
    /// Rates of a day: a file with 24 lines HOUR,RATE, factors on the rate of the trace (examples/curves), or PEAK:TROUGH of a sinusoidal day, such
    /// as 1.5:0.4. Finds the replicas for each hour, and the replica-hours of a fixed fleet and a following one.
    #[arg(long, value_name = "CURVE", conflicts_with_all = ["find_rate", "concurrency"])]
    daily_curve: Option<String>,

    /// Time from the order of a replica to its first step, seconds, up to 3600: time paid for by a following fleet.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120.0,
        requires = "daily_curve",
        allow_negative_numbers = true
    )]
    start_delay: f64,
}

impl DayArgs {
    /// Returns the day to plan for, if there is one.
    ///
    /// # Errors
    /// If the file of the curve cannot be read, or a rate is out of range.
    pub(super) fn day(&self) -> anyhow::Result<Option<Day>> {
        let Some(spec) = &self.daily_curve else { return Ok(None) };
        Ok(Some(Day { curve: DailyCurve::find(spec)?, start_delay_s: self.start_delay }))
    }
}

/// Returns the table of hours, the conclusion for the peak, and the two fleets.
pub(super) fn render(answer: &DayAnswer, goal: Goal) -> String {
    let mut hours = table();
    hours.set_header(["hour", "rate", "requests/s", "replicas", "busy"]);
    for hour in &answer.hours {
        let best = hour.best.as_ref();
        hours.add_row([
            format!("{:02}", hour.hour),
            format!("{:.3}", hour.rate),
            format!("{:.3}", hour.arrival_requests_s),
            hour.replicas().map_or("not met".into(), |replicas| replicas.to_string()),
            best.and_then(|probe| probe.utilisation).map_or("-".into(), per_cent),
        ]);
    }
    align_right(&mut hours, 0);
    let peak = conclusion(&answer.peak, goal).join("\n");
    let fleets = match (&answer.fixed, &answer.following) {
        (Some(fixed), Some(following)) => {
            let saved = per_cent(1.0 - following.replica_hours / fixed.replica_hours);
            format!("fixed fleet: {}\nfleet that follows the curve: {}\nsaves {saved}", day(fixed), day(following))
        }
        _ => "no answer for the day: an hour is not met; give more replicas, or promise less".into(),
    };
    format!("{}\n\n{}\n\nat the peak: {peak}\n\n{fleets}", answer.hardware, hours.trim_fmt())
}

/// Describes a fleet over a day.
fn day(fleet: &FleetDay) -> String {
    let replicas = match (fleet.replicas_min, fleet.replicas_max) {
        (min, max) if min == max => format!("{max} replicas"),
        (min, max) => format!("{min} to {max} replicas, {} starts", fleet.starts),
    };
    let cost = fleet.cost.map_or(String::new(), |cost| format!(", costs {cost:.2} per day"));
    format!("{replicas}, {:.1} replica-hours per day{cost}", fleet.replica_hours)
}
