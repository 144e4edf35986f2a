//! What would have helped a recorded request: runs without the requests to blame, with other settings, another router, without hints.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;
use trunkline_cluster::router;
use trunkline_core::RequestId;
use trunkline_core::config::setting;
use trunkline_core::policy;

use crate::explain::Explained;
use crate::rerun::{Change, Difference, Rerun, RerunError, Script, Sources, Timing, Until, Value};

/// Requests to blame that are left out one by one, at most.
const BLAMED_MAX: usize = 3;

/// Run of one change, as far as one request is concerned.
#[derive(Debug, Serialize)]
pub struct Counterfactual {
    /// The change.
    pub change: Change,
    /// Time to the first token, nanoseconds.
    pub ttft_ns: Option<u64>,
    /// Time to the end, nanoseconds; `None` if it does not end.
    pub e2e_ns: Option<u64>,
    /// Time that the change saves to the first token, nanoseconds; below 0 if it costs time.
    pub ttft_saved_ns: Option<i64>,
    /// Time that the change saves to the end, nanoseconds.
    pub saved_ns: Option<i64>,
    /// First decision that differs.
    pub first_difference: Option<Difference>,
    /// Sources of the durations behind it.
    pub sources: Sources,
}

/// Answers about one request.
#[derive(Debug, Serialize)]
pub struct WhatIf {
    /// Number of the request.
    pub request: RequestId,
    /// Errors of the fit on recorded steps left out of it, median and 95th percentile by kind of batch; `None` without a fit.
    pub fit_error: Option<String>,
    /// Time to the end with the recorded decisions and fitted durations alone, nanoseconds: what the fit is off by.
    pub fitted_e2e_ns: Option<u64>,
    /// Runs that were possible.
    pub runs: Vec<Counterfactual>,
    /// Changes that are impossible, with the reason.
    pub impossible: Vec<(Change, String)>,
}

/// Returns the changes that are tried unless others are named: without each of those most to blame, twice the blocks, each other policy and
/// router, and without hints.
pub fn usual(script: &Script, explained: &Explained) -> Vec<Change> {
    let blamed = explained.blamed.iter().take(BLAMED_MAX).map(|blamed| Change::Without(blamed.request));
    let core = &script.cluster.engines[0].core;
    let set = |name: &str, value| {
        let name = setting(name).expect("the name is one of a setting").name;
        Change::Setting { name, value }
    };
    let mut changes: Vec<Change> = blamed.collect();
    changes.push(set("device_blocks", Value::Times(2.0)));
    changes.extend((core.host_blocks > 0).then(|| set("host_blocks", Value::Times(2.0))));
    let is_other = |name: &&str, recorded: &str| recorded.split(':').next() != Some(*name);
    let policies = policy::REGISTRY.names().filter(|name| is_other(name, &core.policy));
    changes.extend(policies.map(|name| set("policy", Value::Text(name.into()))));
    if script.cluster.engines.len() > 1 {
        let routers = router::REGISTRY.names().filter(|name| is_other(name, &script.cluster.router));
        changes.extend(routers.map(|name| Change::Router(name.into())));
    }
    changes.extend(script.has_hints().then_some(Change::WithoutHints));
    changes
}

/// Runs the recording with each of the changes, up to the end of the request at place `at` among the requests.
///
/// # Errors
///
/// [`RerunError`] if the recording lacks what every run needs.
pub fn what_if(script: &Script, at: usize, changes: &[Change]) -> Result<WhatIf, RerunError> {
    let served = &script.requests[at];
    let each = changes.iter().map(|change| (std::slice::from_ref(change), Timing::Recorded));
    let jobs: Vec<(&[Change], Timing)> = each.chain([(&[][..], Timing::Fitted)]).collect();
    let run = |(changes, timing): &(&[Change], Timing)| script.rerun(changes, *timing, Until::Request(at));
    let mut results = in_parallel(&jobs, run);
    let fitted = results.pop().expect("one for each job");
    let (mut runs, mut impossible) = (Vec::new(), Vec::new());
    for (change, result) in changes.iter().zip(results) {
        match result {
            Ok(rerun) => runs.push(counterfactual(script, at, change, rerun)),
            Err(error @ (RerunError::Scores | RerunError::TooFewSteps { .. } | RerunError::Damaged)) => {
                return Err(error);
            }
            Err(error) => impossible.push((change.clone(), error.to_string())),
        }
    }
    let mut differences: Vec<&mut Difference> =
        runs.iter_mut().filter_map(|run| run.first_difference.as_mut()).collect();
    script.add_recorded(&mut differences)?;
    runs.sort_by_key(|run| std::cmp::Reverse(run.saved_ns));
    Ok(WhatIf {
        request: served.id,
        fit_error: script.fit_errors().map(|errors| errors.to_string()),
        fitted_e2e_ns: fitted.ok().and_then(|run| Some(run.requests[at].end?.0 - served.at_ns)),
        runs,
        impossible,
    })
}

fn counterfactual(script: &Script, at: usize, change: &Change, rerun: Rerun) -> Counterfactual {
    let (served, ended) = (&script.requests[at], rerun.requests[at]);
    let saved = |recorded: Option<u64>, ns: Option<u64>| Some(recorded? as i64 - ns? as i64);
    let ttft_ns = ended.first_token_ns.map(|ns| ns - served.at_ns);
    let e2e_ns = ended.end.map(|(ns, _)| ns - served.at_ns);
    Counterfactual {
        change: change.clone(),
        ttft_ns,
        e2e_ns,
        ttft_saved_ns: saved(served.first_token_ns.map(|ns| ns - served.at_ns), ttft_ns),
        saved_ns: saved(served.e2e_ns(), e2e_ns),
        first_difference: rerun.first_difference,
        sources: rerun.sources,
    }
}

/// Does jobs on all processors, and returns the results in their order.
pub(crate) fn in_parallel<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((at, job)) = take(&next, jobs) {
            done.push((at, work(job)));
        }
        done
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(worker)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, J>(next: &AtomicUsize, jobs: &'a [J]) -> Option<(usize, &'a J)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(at).map(|job| (at, job))
}
