//! Replicas in service over time: starts, stops, failures, replica-hours and cost.
//!
//! | term | meaning |
//! |---|---|
//! | ready | takes new requests |
//! | provisioned | from the order of a replica to the stop, or to a failure for good: starts, drains and repairs included, since they are paid for |
//! | replica-hours | time provisioned, over all replicas |
//!
//! Changes after the end of the last request do not count.

use serde::Serialize;

use crate::numbers::ratio;
use crate::observer::ReplicaChange;

/// Maximum number of failures listed one by one; all count.
const FAILURES_LISTED: usize = 1_000;
/// Shortest replay with a cost per day, seconds: a day in which the last requests end early.
const DAY_SPAN_MIN_S: f64 = 23.0 * 3600.0;
const DAY_S: f64 = 86_400.0;

/// Changes of all replicas in the order of time.
#[derive(Clone, Debug, Default)]
pub struct ServiceLog {
    changes: Vec<Logged>,
}

#[derive(Clone, Copy, Debug)]
struct Logged {
    at_ns: u64,
    replica: u32,
    change: ReplicaChange,
    /// Unfinished requests on the replica.
    requests: u32,
}

/// Replicas in service during a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceReport {
    /// Mean number of ready replicas over time.
    pub ready_mean: f64,
    /// Least number of ready replicas.
    pub ready_min: u32,
    /// Highest number of ready replicas.
    pub ready_max: u32,
    /// Time provisioned, over all replicas, hours.
    pub replica_hours: f64,
    /// Replicas ordered after the start, drains taken back included.
    pub starts: u64,
    /// Replicas taken out: drains begun, and orders cancelled.
    pub stops: u64,
    /// Failures of replicas.
    pub failures: u64,
    /// Failures one by one, the first 1,000.
    pub failed: Vec<FailureReport>,
    /// Price of all replica-hours, in the currency of the prices; `None` without prices.
    pub total_cost: Option<f64>,
    /// Price of 24 hours at the mean of the replay; `None` without prices, or for less than 23 hours.
    pub cost_per_day: Option<f64>,
}

/// Failure of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FailureReport {
    /// Number of the replica, from 0.
    pub replica: u32,
    /// Time of the failure, seconds after the first arrival.
    pub at_s: f64,
    /// Time of the return, seconds after the first arrival; `None` without a return before the last end.
    pub back_s: Option<f64>,
    /// Unfinished requests on the replica: computed again there or on other replicas.
    pub requests: u32,
}

/// State of a replica, as far as counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    provisioned: bool,
    ready: bool,
}

impl Counted {
    fn after(self, change: ReplicaChange) -> Self {
        match change {
            ReplicaChange::Ordered => Self { provisioned: true, ready: false },
            ReplicaChange::Started | ReplicaChange::Back | ReplicaChange::Reopened => {
                Self { provisioned: true, ready: true }
            }
            ReplicaChange::Failed | ReplicaChange::Draining => Self { ready: false, ..self },
            ReplicaChange::Lost | ReplicaChange::Stopped => Self::default(),
        }
    }
}

impl ServiceLog {
    /// Records a change of a replica with `requests` unfinished requests. Times MUST NOT go back.
    pub fn record(&mut self, at_ns: u64, replica: u32, change: ReplicaChange, requests: u32) {
        self.changes.push(Logged { at_ns, replica, change, requests });
    }

    /// Returns the report of a fleet of `replicas` replicas, the first `initial` of them ready at the start, from 0 to
    /// `duration_ns`. `prices` are those of each replica for an hour; empty without prices.
    pub fn report(&self, replicas: u32, initial: u32, duration_ns: u64, prices: &[f64]) -> ServiceReport {
        let initially = |replica| Counted { provisioned: replica < initial, ready: replica < initial };
        let mut states: Vec<Counted> = (0..replicas).map(initially).collect();
        let mut provisioned_ns = vec![0u64; replicas as usize];
        let mut ready = Ready { now: initial, min: u32::MAX, max: 0, area_ns: 0 };
        let mut now_ns = 0;
        let changes: Vec<Logged> = self.changes.iter().copied().filter(|it| it.at_ns < duration_ns).collect();
        let mut pass = |states: &[Counted], ready: &mut Ready, to_ns: u64| {
            let ns = to_ns - now_ns;
            now_ns = to_ns;
            ready.hold(ns);
            let held = states.iter().zip(&mut provisioned_ns).filter(|(state, _)| state.provisioned);
            held.for_each(|(_, total)| *total += ns);
        };
        for logged in &changes {
            pass(&states, &mut ready, logged.at_ns);
            let state = &mut states[logged.replica as usize];
            ready.now -= u32::from(state.ready);
            *state = state.after(logged.change);
            ready.now += u32::from(state.ready);
        }
        pass(&states, &mut ready, duration_ns);
        let count = |of: &[ReplicaChange]| changes.iter().filter(|it| of.contains(&it.change)).count() as u64;
        let hours: Vec<f64> = provisioned_ns.iter().map(|ns| *ns as f64 / 3.6e12).collect();
        let cost = hours.iter().zip(prices).map(|(hours, price)| hours * price).sum::<f64>();
        let cost = (!prices.is_empty()).then_some(cost);
        let duration_s = duration_ns as f64 / 1e9;
        ServiceReport {
            ready_mean: ratio(ready.area_ns as f64, duration_ns as f64),
            ready_min: ready.min.min(ready.max),
            ready_max: ready.max,
            replica_hours: hours.iter().sum(),
            starts: count(&[ReplicaChange::Ordered, ReplicaChange::Reopened]),
            stops: count(&[ReplicaChange::Draining]) + cancelled(&changes),
            failures: count(&[ReplicaChange::Failed, ReplicaChange::Lost]),
            failed: failed(&changes),
            total_cost: cost,
            cost_per_day: cost.filter(|_| duration_s >= DAY_SPAN_MIN_S).map(|cost| cost * DAY_S / duration_s),
        }
    }
}

/// Number of ready replicas over time.
struct Ready {
    now: u32,
    min: u32,
    max: u32,
    area_ns: u128,
}

impl Ready {
    /// Counts the present number for `ns`; an instant does not count.
    fn hold(&mut self, ns: u64) {
        if ns > 0 {
            (self.min, self.max) = (self.min.min(self.now), self.max.max(self.now));
            self.area_ns += u128::from(self.now) * u128::from(ns);
        }
    }
}

/// Returns the number of stops without a drain before: orders cancelled, and failed replicas taken out.
fn cancelled(changes: &[Logged]) -> u64 {
    let before = |at: usize| changes[..at].iter().rev().find(|it| it.replica == changes[at].replica);
    let stops = (0..changes.len()).filter(|at| changes[*at].change == ReplicaChange::Stopped);
    stops.filter(|at| before(*at).is_none_or(|it| it.change != ReplicaChange::Draining)).count() as u64
}

/// Returns the failures with their returns.
fn failed(changes: &[Logged]) -> Vec<FailureReport> {
    let is_failure = |it: &Logged| matches!(it.change, ReplicaChange::Failed | ReplicaChange::Lost);
    let failures = (0..changes.len()).filter(|at| is_failure(&changes[*at])).take(FAILURES_LISTED);
    let report = |at: usize| {
        let failure = changes[at];
        let next = changes[at + 1..].iter().find(|it| it.replica == failure.replica);
        let back = next.filter(|it| it.change == ReplicaChange::Back);
        FailureReport {
            replica: failure.replica,
            at_s: failure.at_ns as f64 / 1e9,
            back_s: back.map(|it| it.at_ns as f64 / 1e9),
            requests: failure.requests,
        }
    };
    failures.map(report).collect()
}

#[cfg(test)]
mod tests {
    use ReplicaChange::{Back, Draining, Failed, Lost, Ordered, Reopened, Started, Stopped};

    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn report(changes: &[(u64, u32, ReplicaChange)], hours: u64, prices: &[f64]) -> ServiceReport {
        let mut log = ServiceLog::default();
        changes.iter().for_each(|(hour, replica, change)| log.record(hour * HOUR_NS, *replica, *change, 3));
        log.report(4, 1, hours * HOUR_NS, prices)
    }

    #[test]
    fn a_replica_is_paid_for_from_its_order_to_its_stop() {
        let changes =
            [(1, 1, Ordered), (2, 1, Started), (5, 1, Draining), (6, 1, Stopped), (7, 2, Ordered), (8, 2, Stopped)];
        let report = report(&changes, 10, &[2.0; 4]);
        assert_eq!(
            (report.replica_hours, report.total_cost, report.cost_per_day),
            (10.0 + 5.0 + 1.0, Some(32.0), None)
        );
        assert_eq!((report.ready_mean, report.ready_min, report.ready_max), (1.3, 1, 2));
        assert_eq!((report.starts, report.stops, report.failures), (2, 2, 0), "a cancelled order is a stop");
    }

    #[test]
    fn repairs_are_paid_for_and_losses_are_not() {
        let changes = [(1, 0, Failed), (2, 0, Back), (3, 1, Ordered), (3, 1, Started), (4, 1, Lost), (30, 0, Lost)];
        let report = report(&changes, 24, &[1.0, 10.0, 1.0, 1.0]);
        assert_eq!((report.replica_hours, report.total_cost), (25.0, Some(34.0)));
        assert_eq!(report.cost_per_day, Some(34.0));
        assert_eq!((report.failures, report.ready_min, report.ready_max), (2, 0, 2));
        let listed: Vec<_> = report.failed.iter().map(|it| (it.replica, it.at_s, it.back_s, it.requests)).collect();
        assert_eq!(listed, [(0, 3_600.0, Some(7_200.0), 3), (1, 14_400.0, None, 3)]);
    }

    #[test]
    fn a_drain_taken_back_is_a_stop_and_a_start() {
        let report = report(&[(1, 0, Draining), (1, 0, Reopened)], 2, &[]);
        assert_eq!((report.starts, report.stops, report.ready_min, report.total_cost), (1, 1, 1, None));
    }
}
