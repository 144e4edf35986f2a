//! Capacity of a fleet, and the trace speed for a given load.
//!
//! The *capacity* of a fleet for a trace is the completion rate with all requests present from the beginning, routed as the settings say,
//! first come first served: nine tenths of the requests divided by the completion time. The last tenth is ignored, because a fleet that runs empty
//! is below its capacity. The *load* of a replay is the mean arrival rate over the capacity.

use crate::fleet::{ReplayError, replay};
use crate::settings::{Arrivals, Routing, Settings, SettingsError};
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_report::report::LoadReport;
use trunkline_sim_workload::tenants::Shares;
use trunkline_sim_workload::trace::Trace;

/// Share of the requests for the completion time, as in [`trunkline_sim_workload::summary::Summary::p90`].
const MEASURED_SHARE: f64 = 0.9;

/// Measures the capacity with one replay of the whole trace, and returns the speed for arrivals at `fraction` of the capacity.
///
/// The measurement uses `fcfs` and no faults under all settings.
///
/// # Errors
///
/// [`ReplayError`] if `fraction` is not above 0, the trace has no rate or the fleet no capacity, as one with roles, or the replay fails.
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

/// Returns the capacity in requests per second.
pub(crate) fn capacity_requests_s(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    progress: &mut dyn FnMut(u64),
) -> Result<f64, ReplayError> {
    if !settings.routing.roles.is_empty() {
        return Err(SettingsError::RolesAtOnce.into());
    }
    let mut saturated = settings.clone();
    saturated.arrivals = Arrivals::AtOnce;
    saturated.tenants = Shares::default();
    saturated.routing = Routing { router: settings.routing.router.clone(), ..Routing::default() };
    saturated.core.policy = "fcfs".into();
    let report = replay(trace, &saturated, cost, progress)?;
    if report.completed == 0 {
        return Err(ReplayError::NoCapacity);
    }
    // All arrive at time 0, so the 90th percentile of E2E is when nine tenths have ended. Those refused cost nothing.
    Ok(MEASURED_SHARE * report.requests as f64 / report.latencies.e2e_s.p90)
}

/// Returns the mean arrival rate of a trace in requests per second; `None` if all requests arrive at once, or when others have ended.
pub(crate) fn arrival_requests_s(trace: &Trace) -> Option<f64> {
    if trace.requests.iter().any(|request| request.turn.is_some()) {
        return None;
    }
    let last_ns = trace.requests.last()?.arrival_ns;
    (last_ns > 0).then(|| (trace.requests.len() - 1) as f64 / (last_ns as f64 / 1e9))
}
