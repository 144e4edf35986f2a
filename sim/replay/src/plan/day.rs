//! Plan for a day: the least number of replicas in each hour of a daily curve, and the replica-hours of two fleets.
//!
//! Each distinct rate of the curve is one search at that speed of the trace, so an hour is planned as if the rate lasted: queues
//! built up in one hour are not carried into the next. The highest rate is searched as a plan without a curve; each lower rate
//! begins at the answer for the next higher one. An hour without arrivals needs no replica. The fixed fleet has the replicas of the hour with the most; the fleet that follows
//! the curve has the replicas of each hour at the beginning of the hour, ordered the start delay before, and stops the rest at the end.

use serde::Serialize;

use super::{Answer, Candidate, Goal, News, PlanError, Probe, Prober, Search, plan, range};
use crate::fleet::ReplayError;
use crate::settings::Arrivals;
use trunkline_sim_workload::daily::{DailyCurve, HOURS};
use trunkline_sim_workload::trace::Trace;

/// Longest start delay, seconds: an hour, as replicas are ordered at most an hour ahead.
const START_DELAY_S_MAX: f64 = 3600.0;

/// A day to plan for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Day {
    /// Rate of each hour, as a factor on the rate of the trace.
    pub curve: DailyCurve,
    /// Time from the order of a replica to its first step, seconds; 0 to 3600. Replicas are paid for from the order on.
    pub start_delay_s: f64,
}

/// Answer for a day.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DayAnswer {
    /// Device of each replica.
    pub hardware: String,
    /// Hours from midnight on.
    pub hours: Vec<HourAnswer>,
    /// Answer for the hour with the highest rate.
    pub peak: Answer,
    /// Fleet with the replicas of the hour with the most, all day; `None` if an hour has no answer.
    pub fixed: Option<FleetDay>,
    /// Fleet with the replicas of each hour; `None` if an hour has no answer.
    pub following: Option<FleetDay>,
}

/// Answer for an hour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HourAnswer {
    /// Hour of the day, from 0 to 23.
    pub hour: usize,
    /// Rate as a factor on the rate of the trace.
    pub rate: f64,
    /// Mean arrival rate, requests per second.
    pub arrival_requests_s: f64,
    /// Best probe within all SLOs; `None` if no number of replicas tried meets them, or without arrivals.
    pub best: Option<Probe>,
}

impl HourAnswer {
    /// Returns the replicas that the hour needs, 0 without arrivals; `None` if no number tried meets the SLOs.
    pub fn replicas(&self) -> Option<u32> {
        if self.rate == 0.0 { Some(0) } else { self.best.as_ref().map(|probe| probe.replicas) }
    }
}

/// A fleet over a day.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FleetDay {
    /// Least number of replicas.
    pub replicas_min: u32,
    /// Highest number of replicas.
    pub replicas_max: u32,
    /// Replicas ordered in the day.
    pub starts: u32,
    /// Time from order to stop of all replicas, hours.
    pub replica_hours: f64,
    /// Price of the replica-hours; `None` without a price.
    pub cost: Option<f64>,
}

/// Finds the least number of replicas for each hour of a day. Calls `progress` with the news, from several threads.
///
/// # Errors
///
/// [`PlanError`] if the goal is a rate, the trace has no rate, the delay is out of range, or a search fails.
pub fn plan_day(
    trace: &Trace,
    candidate: &Candidate<'_>,
    search: &Search<'_>,
    day: &Day,
    progress: &(dyn Fn(News) + Sync),
) -> Result<DayAnswer, PlanError> {
    if search.goal == Goal::Rate {
        return Err(PlanError::DayRate);
    }
    if !(0.0..=START_DELAY_S_MAX).contains(&day.start_delay_s) {
        return Err(PlanError::StartDelay(day.start_delay_s));
    }
    let traced_requests_s = crate::capacity::arrival_requests_s(trace).ok_or(ReplayError::NoRate)?;
    let speed = candidate.settings.arrivals.speed().ok_or(ReplayError::NoRate)?;
    let at = |rate: f64| {
        let mut settings = candidate.settings.clone();
        settings.arrivals = Arrivals::Traced { speed: speed * rate };
        Candidate { settings, cost: candidate.cost, price_hour: candidate.price_hour }
    };
    let mut rates = day.curve.rates().to_vec();
    rates.sort_by(|a, b| b.total_cmp(a));
    rates.dedup();
    let peak = plan(trace, &at(rates[0]), search, progress)?;
    let (first, last) = range(trace, candidate, search)?;
    let mut found = vec![(rates[0], peak.best.clone())];
    for rate in rates[1..].iter().filter(|rate| **rate > 0.0) {
        let above = found[found.len() - 1].1.as_ref().map_or(last, |probe| i64::from(probe.replicas));
        let candidate = at(*rate);
        let mut prober = Prober { trace, candidate: &candidate, search, progress, done: Vec::new() };
        let number = prober.from(above, first, last)?;
        found.push((*rate, number.and_then(|number| prober.into_probe(number))));
    }
    let hour = |(hour, rate): (usize, &f64)| HourAnswer {
        hour,
        rate: *rate,
        arrival_requests_s: traced_requests_s * speed * rate,
        best: found.iter().find(|(known, _)| known == rate).and_then(|(_, probe)| probe.clone()),
    };
    let hours: Vec<HourAnswer> = day.curve.rates().iter().enumerate().map(hour).collect();
    let replicas: Option<Vec<u32>> = hours.iter().map(HourAnswer::replicas).collect();
    let fleets = replicas.map(|replicas| fleets(&replicas, day.start_delay_s, candidate.price_hour));
    let hardware = candidate.settings.devices();
    Ok(DayAnswer { hardware, hours, peak, fixed: fleets.map(|it| it.0), following: fleets.map(|it| it.1) })
}

/// Returns the fixed fleet, and the one with the replicas of each hour. Days follow each other.
fn fleets(replicas: &[u32], start_delay_s: f64, price_hour: Option<f64>) -> (FleetDay, FleetDay) {
    let (min, max) = (*replicas.iter().min().unwrap_or(&0), *replicas.iter().max().unwrap_or(&0));
    let of = |replicas_min, starts: u32, replica_hours: f64| FleetDay {
        replicas_min,
        replicas_max: max,
        starts,
        replica_hours,
        cost: price_hour.map(|price| price * replica_hours),
    };
    let before = |hour: usize| replicas[(hour + replicas.len() - 1) % replicas.len()];
    let starts = (0..replicas.len()).map(|hour| replicas[hour].saturating_sub(before(hour))).sum::<u32>();
    let serving: f64 = replicas.iter().map(|n| f64::from(*n)).sum();
    let starting = f64::from(starts) * start_delay_s / 3600.0;
    (of(max, 0, f64::from(max) * HOURS as f64), of(min, starts, serving + starting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_that_follows_is_paid_for_from_each_order() {
        let mut replicas = [2; 24];
        replicas[8..20].fill(5);
        replicas[12] = 7;
        let (fixed, following) = fleets(&replicas, 600.0, Some(2.0));
        assert_eq!((fixed.replica_hours, fixed.cost, fixed.starts, fixed.replicas_min), (168.0, Some(336.0), 0, 7));
        let hours = 12.0 * 2.0 + 11.0 * 5.0 + 7.0;
        assert_eq!((following.replicas_min, following.replicas_max, following.starts), (2, 7, 5));
        assert!((following.replica_hours - (hours + 5.0 / 6.0)).abs() < 1e-9);
        let (_, wrapped) = fleets(&[&[3; 1][..], &[1; 23]].concat(), 3600.0, None);
        assert_eq!((wrapped.starts, wrapped.replica_hours, wrapped.cost), (2, 28.0, None), "midnight is a rise too");
    }
}
