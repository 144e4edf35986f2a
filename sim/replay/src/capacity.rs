//! How much a fleet can take, and at which speed a trace is a given share of that.
//!
//! The *capacity* of a fleet for a trace is the rate at which it ends the trace's requests when all are there from the beginning, first
//! come first served: nine tenths of them, by the time at which so many have ended. The last tenth is left out because a fleet that runs
//! empty is not at its capacity. The *load* of a replay is the mean rate of arrivals over the capacity.

use crate::fleet::{ReplayError, replay};
use crate::settings::{Arrivals, Routing, Settings};
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_report::report::LoadReport;
use trunkline_sim_workload::tenants::Shares;
use trunkline_sim_workload::trace::Trace;

/// The share of the requests after whose end the rate is taken; that of [`trunkline_sim_workload::summary::Summary::p90`].
const MEASURED_SHARE: f64 = 0.9;

/// Measures the capacity with one replay of the whole trace, and finds the speed at which arrivals are `fraction` of it.
///
/// It is measured under `fcfs`, with requests in turn and all replicas well, whatever policy, router and faults the settings name, so that
/// those compared at one load see the same arrivals.
pub fn load(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    fraction: f64,
    progress: &mut dyn FnMut(u64),
) -> Result<LoadReport, ReplayError> {
    if !(fraction > 0.0 && fraction.is_finite()) {
        return Err(ReplayError::LoadFraction(fraction));
    }
    let traced_requests_s = arrival_requests_s(trace).ok_or(ReplayError::NoRate)?;
    let capacity_requests_s = capacity_requests_s(trace, settings, cost, progress)?;
    let arrival_requests_s = fraction * capacity_requests_s;
    Ok(LoadReport { fraction, capacity_requests_s, arrival_requests_s, speed: arrival_requests_s / traced_requests_s })
}

/// Requests that the fleet can end in a second.
pub(crate) fn capacity_requests_s(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    progress: &mut dyn FnMut(u64),
) -> Result<f64, ReplayError> {
    let mut saturated = settings.clone();
    saturated.arrivals = Arrivals::AtOnce;
    saturated.tenants = Shares::default();
    saturated.routing = Routing::default();
    saturated.core.policy = "fcfs".into();
    let report = replay(trace, &saturated, cost, progress)?;
    if report.completed == 0 {
        return Err(ReplayError::NoCapacity);
    }
    // All arrive at time 0, so the 90th percentile of E2E is when nine tenths have ended. Those refused cost nothing.
    Ok(MEASURED_SHARE * report.requests as f64 / report.e2e_s.p90)
}

/// The mean rate of a trace's arrivals, if they do not all come at one instant.
pub(crate) fn arrival_requests_s(trace: &Trace) -> Option<f64> {
    let last_ns = trace.requests.last()?.arrival_ns;
    (last_ns > 0).then(|| (trace.requests.len() - 1) as f64 / (last_ns as f64 / 1e9))
}
