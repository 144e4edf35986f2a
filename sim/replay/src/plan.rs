//! Capacity planning: the smallest fleet for a set of SLOs on a trace, or the highest rate for a fleet.
//!
//! Every probe replays one trace with equal arrivals, so probes differ only in the quantity sought. The answer is bracketed by
//! doubling, and the bracket is then cut in three by two probes at a time, which run in parallel on two cores. The set of probes
//! does not depend on the machine.
//!
//! The search is sound if more replicas, or a lower rate, never do worse. Near saturation this can fail slightly, and with prefix
//! caches more (a request may find less in each of more caches), so the next larger fleet is probed as well, and
//! [`Answer::monotone`] reports contradictions between probes.
//!
//! With a split, each probe looks for a division of its replicas into prefill and decode ones, guided by the SLOs that fail.
//!
//! If the cost model states its error for every kind of batch, or else a range of real step times, the search is repeated with all step times
//! shorter and longer by it, from the answer on: [`Answer::range`].
//!
//! [`plan_day`] repeats the search for each rate of a daily curve.
//!
//! A probe stops once an SLO can no longer be met ([`trunkline_sim_report::slo::Judge`]), because an overloaded fleet takes the
//! longest to replay; a stopped probe has no figures. If no probe meets the SLOs, the easiest one is replayed to the end.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;

use crate::capacity::{arrival_requests_s, capacity_requests_s};
use crate::fleet::{ReplayError, replay_watched};
use crate::settings::{Arrivals, Settings};
use trunkline_cluster::Role;
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::{Extrapolated, Report, TooLong};
use trunkline_sim_report::slo::{Judge, SloResult, Slos};
use trunkline_sim_workload::trace::Trace;

mod day;
mod range;

pub use day::{Day, DayAnswer, FleetDay, HourAnswer, plan_day};
pub use range::{Doubt, Range};

/// Highest load with reliable tails of latency: above, small errors of step times become large errors of waiting times.
pub const LOAD_RELIABLE_MAX: f64 = 0.85;
/// Search steps per doubling of the rate, for an answer within 2.2 %.
const STEPS_PER_DOUBLING: i64 = 32;
/// Range of the search: a factor of 2^20 above and below the rate of the trace.
const DOUBLINGS_MAX: i64 = 20;

/// Maximum number of blocks of the device on which requests run alone: each takes some fifty bytes.
const ALONE_BLOCKS_MAX: u64 = 1 << 24;

/// Quantity to find by the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Least number of replicas.
    Replicas {
        /// Maximum number of replicas.
        max: u32,
    },
    /// Highest speed of the trace for the replicas of the settings.
    Rate,
}

/// Candidate fleet with a cost model.
pub struct Candidate<'a> {
    /// Settings of the replays; the search varies the replicas or speed.
    pub settings: Settings,
    /// Cost model, shared by parallel probes.
    pub cost: &'a (dyn CostModel + Sync),
    /// Price of a replica per hour, in any currency; the mean over several kinds.
    pub price_hour: Option<f64>,
}

/// Answer for a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Price of a replica per hour, in any currency; the mean over several kinds.
    pub price_hour: Option<f64>,
    /// Device of each replica, or the number of replicas per device.
    pub hardware: String,
    /// Best probe within all SLOs, if any.
    pub best: Option<Probe>,
    /// Load of the answer: arrival rate over capacity ([`crate::capacity`]); `None` for a trace without a rate. Utilisation does
    /// not show the headroom of a fleet, since a replica with a single decode is busy too.
    pub load: Option<f64>,
    /// All probes, ordered by replicas or speed.
    pub probes: Vec<Probe>,
    /// `true` if no probe failed where a harder one succeeded.
    pub monotone: bool,
    /// Result of each SLO with one request at a time and all prefixes cached, if no number of replicas tried met them: what fails there, no
    /// number of replicas meets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<SloResult>,
    /// Cost model of the step times, with its error.
    pub cost_model: String,
    /// Answers with step times off by the error of the cost model, or at the ends of their range; `None` if it states neither.
    pub range: Option<Range>,
    /// `true` if [`Answer::best`] lies at the end of the search range, so a better answer may exist.
    pub at_end: bool,
}

/// Replay at one point of the search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// Number of replicas, at least one.
    pub replicas: u32,
    /// Number of replicas that only prefill, the others only decode; `None` without a split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<u32>,
    /// Divisor of the arrival times.
    pub speed: f64,
    /// Mean arrival rate in requests per second; `None` if all requests arrive at once.
    pub arrival_requests_s: Option<f64>,
    /// Result of each SLO; empty for a stopped probe.
    pub figures: Vec<SloResult>,
    /// SLO that stopped the probe.
    pub stopped_by: Option<String>,
    /// `true` if every SLO was met.
    pub met: bool,
    /// Requests refused as too large for the device, until the stop.
    pub refused: u64,
    /// Requests longer than the model's context; `None` if there are none, and for a stopped probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_long: Option<TooLong>,
    /// Steps whose times are extrapolated; `None` if there are none, and for a stopped probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extrapolated: Option<Extrapolated>,
    /// Share of the replicas' time spent in steps; `None` for a stopped probe.
    pub utilisation: Option<f64>,
    /// Price per million tokens of prompts and outputs.
    pub price_million_tokens: Option<f64>,
    /// Price per million generated tokens.
    pub price_million_output_tokens: Option<f64>,
}

impl Answer {
    /// Returns `true` if the load is too high for reliable tails.
    pub fn is_saturated(&self) -> bool {
        self.load.is_some_and(|load| load > LOAD_RELIABLE_MAX)
    }
}

/// Failure to find an answer.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Replay that failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Requests too large for the device, whatever the fleet or rate; of a probe that stopped, those so far.
    #[error(
        "at least {refused} of {requests} requests are too large for {hardware}, more than the SLOs allow whatever the number of replicas; give it more \
         blocks, or shorten them with --max-context"
    )]
    TooLarge {
        /// Name of the device.
        hardware: &'static str,
        /// Number of requests refused.
        refused: u64,
        /// Number of requests in all.
        requests: u64,
    },
    /// Numbered faults with an unknown number of replicas.
    #[error(
        "replicas that fail or are slow can be planned with only for a given number of replicas; look for the rate"
    )]
    Faults,
    /// Autoscaling with an unknown number of replicas.
    #[error("an autoscaled fleet finds the number of replicas itself; look for the rate")]
    Autoscale,
    /// Daily curve for a rate.
    #[error("a daily curve gives the rates; leave out the search for the highest rate")]
    DayRate,
    /// Start delay out of range.
    #[error("start delay is {0}; it must be from 0 to 3600 seconds")]
    StartDelay(f64),
    /// Search over zero replicas.
    #[error("the most replicas is 0; it must be at least 1")]
    NoReplicas,
    /// Search over replicas with roles.
    #[error("roles are those of a given number of replicas; look for the rate, or for the split with --split")]
    Roles,
    /// Split of too few replicas.
    #[error("a split needs at least 2 replicas, one to prefill and one to decode")]
    SplitOfOne,
    /// Split for a rate.
    #[error("a split is found for the least number of replicas; for a rate, give the roles")]
    SplitRate,
    /// Search over replicas of several kinds.
    #[error("a fleet of several kinds has its replicas; look for the rate")]
    Mixed,
    /// Search over replicas in lock step.
    #[error("replicas with dp are ranks of a group in lock step; give their number and look for the rate")]
    LockStep,
    /// Price out of range.
    #[error("price of {hardware} is {price}; it must be a number above 0")]
    Price {
        /// Name of the device.
        hardware: &'static str,
        /// Price as given on input.
        price: f64,
    },
}

/// News of a search, for progress displays. Comes from several threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum News {
    /// A probe begins, of all requests of the trace.
    Begun,
    /// A request of a probe ended.
    Request,
    /// A probe ended, or stopped.
    Ended {
        /// Number of replicas.
        replicas: u32,
        /// Divisor of the arrival times.
        speed: f64,
        /// Requests that ended.
        requests: u64,
        /// `true` if every SLO was met.
        met: bool,
    },
}

/// Parameters of a search.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    /// SLOs that the answer must meet.
    pub slos: &'a Slos,
    /// Quantity to find by the search.
    pub goal: Goal,
    /// `true` to replay every probe to the end, for its figures.
    pub complete: bool,
    /// `true` to divide the replicas of each probe into prefill and decode ones.
    pub split: bool,
}

/// Finds the answer for a candidate. Calls `progress` with the news, from several threads.
///
/// # Errors
///
/// [`PlanError`] if a replay fails, prompts do not fit the device, or the candidate does not suit the goal.
pub fn plan(
    trace: &Trace,
    candidate: &Candidate<'_>,
    search: &Search<'_>,
    progress: &(dyn Fn(News) + Sync),
) -> Result<Answer, PlanError> {
    let hardware = candidate.settings.hardware.name;
    if let Some(price) = candidate.price_hour.filter(|price| !(*price > 0.0 && price.is_finite())) {
        return Err(PlanError::Price { hardware, price });
    }
    let routing = &candidate.settings.routing;
    if search.goal != Goal::Rate && !(routing.failures.is_empty() && routing.slow.is_empty()) {
        return Err(PlanError::Faults);
    }
    if search.goal != Goal::Rate && routing.autoscale.is_some() {
        return Err(PlanError::Autoscale);
    }
    if search.goal != Goal::Rate && !candidate.settings.others.is_empty() {
        return Err(PlanError::Mixed);
    }
    // Probes are numbered so that a greater number is easier to meet.
    let (first, last) = range(trace, candidate, search)?;
    let mut prober = Prober { trace, candidate, search, progress, done: Vec::new() };
    let found = match search.goal {
        Goal::Replicas { .. } => prober.least_replicas(first, last)?,
        Goal::Rate => prober.least_ease(first, last)?,
    };
    if let Some(found) = found.filter(|found| *found < last) {
        prober.probe(&[found + 1])?;
    }
    prober.done.sort_by_key(|(number, _)| *number);
    if let (None, Some((number, probe))) = (found, prober.done.last())
        && probe.stopped_by.is_some()
    {
        // By how much the easiest one fails says whether to promise less or to look further.
        let (number, probe) = (*number, prober.run(*number, true)?);
        prober.done.pop();
        prober.done.push((number, probe));
    }
    let alone = match (found, search.goal) {
        (None, Goal::Replicas { .. }) => prober.alone()?,
        _ => Vec::new(),
    };
    let easiest_missed = prober.done.iter().rev().find(|(_, probe)| !probe.met).map(|(number, _)| *number);
    let probes = prober.done;
    let best =
        found.and_then(|found| probes.iter().find(|(number, _)| *number == found)).map(|(_, probe)| probe.clone());
    Ok(Answer {
        cost_model: candidate.cost.name().into(),
        range: range::of(trace, candidate, search, progress, (first, found, last))?,
        hardware: candidate.settings.devices(),
        price_hour: candidate.price_hour,
        monotone: found.is_none_or(|found| easiest_missed.is_none_or(|missed| missed < found)),
        alone,
        at_end: found == Some(first),
        load: best.as_ref().map_or(Ok(None), |best| load_of(trace, candidate, best))?,
        best,
        probes: probes.into_iter().map(|(_, probe)| probe).collect(),
    })
}

/// Returns the first and the last number of a probe.
fn range(trace: &Trace, candidate: &Candidate<'_>, search: &Search<'_>) -> Result<(i64, i64), PlanError> {
    let has_roles = !candidate.settings.routing.roles.is_empty();
    match (search.goal, search.split) {
        (Goal::Rate, true) => Err(PlanError::SplitRate),
        (Goal::Replicas { .. }, _) if has_roles => Err(PlanError::Roles),
        (Goal::Replicas { .. }, _) if candidate.settings.parallel.data > 1 => Err(PlanError::LockStep),
        (Goal::Replicas { max: 0 }, _) => Err(PlanError::NoReplicas),
        (Goal::Replicas { max: 1 }, true) => Err(PlanError::SplitOfOne),
        (Goal::Replicas { max }, split) => Ok((1 + i64::from(split), i64::from(max))),
        (Goal::Rate, false) => {
            candidate.settings.arrivals.speed().ok_or(ReplayError::NoRate)?;
            arrival_requests_s(trace).ok_or(ReplayError::NoRate)?;
            Ok((-DOUBLINGS_MAX * STEPS_PER_DOUBLING, DOUBLINGS_MAX * STEPS_PER_DOUBLING))
        }
    }
}

/// Returns the load of a probe; `None` with roles, since requests that arrive at once do not measure the capacity of two kinds.
fn load_of(trace: &Trace, candidate: &Candidate<'_>, probe: &Probe) -> Result<Option<f64>, ReplayError> {
    if probe.prefill.is_some() || !candidate.settings.routing.roles.is_empty() {
        return Ok(None);
    }
    let Some(arrival_requests_s) = probe.arrival_requests_s else { return Ok(None) };
    let mut settings = candidate.settings.clone();
    if settings.others.is_empty() {
        settings.replicas = probe.replicas;
    }
    let capacity_requests_s = capacity_requests_s(trace, &settings, candidate.cost, &mut |_| {})?;
    Ok(Some(arrival_requests_s / capacity_requests_s))
}

struct Prober<'a> {
    trace: &'a Trace,
    candidate: &'a Candidate<'a>,
    search: &'a Search<'a>,
    progress: &'a (dyn Fn(News) + Sync),
    done: Vec<(i64, Probe)>,
}

impl Prober<'_> {
    /// Probes `first`, 2, 4, ..., `last` until one succeeds, then between.
    fn least_replicas(&mut self, first: i64, last: i64) -> Result<Option<i64>, PlanError> {
        let (mut missed, mut next) = (first - 1, first);
        loop {
            let pair = if next == last { vec![last] } else { vec![next, last.min(2 * next)] };
            let met = self.probe(&pair)?;
            if let Some(at) = met.iter().position(|met| *met) {
                let missed = if at == 0 { missed } else { pair[0] };
                return self.narrow(missed, pair[at]).map(Some);
            }
            missed = pair[pair.len() - 1];
            if missed == last {
                return Ok(None);
            }
            next = last.min(2 * missed);
        }
    }

    /// Probes the rate of the trace, doubles or halves the rate until one probe succeeds and another fails, then searches between.
    fn least_ease(&mut self, first: i64, last: i64) -> Result<Option<i64>, PlanError> {
        let one = STEPS_PER_DOUBLING;
        // At the trace's own rate and at twice that.
        let met = self.probe(&[0, -one])?;
        if met[0] && !met[1] {
            return self.narrow(-one, 0).map(Some);
        }
        let harder = met[0];
        let mut reached = if harder { -one } else { 0 };
        loop {
            let step = if harder { -one } else { one };
            let pair = [reached + step, reached + 2 * step].map(|number| number.clamp(first, last));
            if pair[0] == reached {
                return Ok(harder.then_some(reached));
            }
            let met = self.probe(&pair[..if pair[1] == pair[0] { 1 } else { 2 }])?;
            // Outwards until the answer changes.
            match met.iter().position(|met| *met != harder) {
                Some(at) => {
                    let before = if at == 0 { reached } else { pair[0] };
                    let (missed, met) = if harder { (pair[at], before) } else { (before, pair[at]) };
                    return self.narrow(missed, met).map(Some);
                }
                None => reached = pair[1],
            }
        }
    }

    /// Returns the least successful number above `missed`, where `met` succeeds.
    fn narrow(&mut self, mut missed: i64, mut met: i64) -> Result<i64, PlanError> {
        while met - missed > 1 {
            let third = ((met - missed) / 3).max(1);
            let (low, high) = (missed + third, met - third);
            let inner = if low >= high { vec![missed + (met - missed) / 2] } else { vec![low, high] };
            let results = self.probe(&inner)?;
            match results.iter().position(|met| *met) {
                Some(at) => {
                    met = inner[at];
                    missed = if at == 0 { missed } else { inner[0] };
                }
                None => missed = inner[inner.len() - 1],
            }
        }
        Ok(met)
    }

    /// Runs the missing probes of `numbers` in parallel, and returns the success of each.
    fn probe(&mut self, numbers: &[i64]) -> Result<Vec<bool>, PlanError> {
        let known = |done: &[(i64, Probe)], number| done.iter().find(|(other, _)| *other == number).map(|(_, p)| p.met);
        let new: Vec<i64> = numbers.iter().copied().filter(|number| known(&self.done, *number).is_none()).collect();
        let probed = in_parallel(&new, |number| self.run(*number, self.search.complete));
        for (number, probe) in new.iter().zip(probed) {
            self.done.push((*number, probe?));
        }
        Ok(numbers.iter().map(|number| known(&self.done, *number).expect("it was probed")).collect())
    }

    /// Replays a probe, to the end if `complete`.
    fn run(&self, number: i64, complete: bool) -> Result<Probe, PlanError> {
        if self.search.split {
            return self.best_split(number as u32, complete);
        }
        let mut settings = self.candidate.settings.clone();
        match self.search.goal {
            Goal::Replicas { .. } => settings.replicas = number as u32,
            Goal::Rate => {
                let speed = (-number as f64 / STEPS_PER_DOUBLING as f64).exp2();
                settings.arrivals = Arrivals::Traced { speed };
            }
        }
        self.replay(settings, complete)
    }

    /// Replays one request at a time, on a device with room for all of them, and returns the figures.
    fn alone(&self) -> Result<Vec<SloResult>, PlanError> {
        let mut settings = self.candidate.settings.clone();
        (settings.replicas, settings.arrivals) = (1, Arrivals::Serial);
        settings.routing.random_failures = None;
        let blocks = |tokens: u32| u64::from(tokens.div_ceil(settings.core.block_size));
        let of_all = self.trace.requests.iter().map(|request| blocks(request.input_tokens + request.output_tokens));
        let room = of_all.sum::<u64>().min(ALONE_BLOCKS_MAX) as u32;
        settings.core.device_blocks = settings.core.device_blocks.max(room);
        Ok(self.replay(settings, true)?.figures)
    }

    /// Looks for a division of `replicas` that meets the SLOs. Returns the probe of the first one found, else the last probe.
    ///
    /// More prefill replicas shorten the time to the first token, and more decode replicas the time of each further one, so an SLO that fails
    /// says on which side to look on. An SLO on both, such as one on E2E, says nothing: then every division left is tried.
    fn best_split(&self, replicas: u32, complete: bool) -> Result<Probe, PlanError> {
        let mut left: Vec<u32> = (1..replicas).collect();
        loop {
            let prefill = left.remove(left.len() / 2);
            let mut settings = self.candidate.settings.clone();
            settings.replicas = replicas;
            let role = |number| if number < prefill { Role::Prefill } else { Role::Decode };
            settings.routing.roles = (0..replicas).map(role).collect();
            let probe = Probe { prefill: Some(prefill), ..self.replay(settings, complete)? };
            if probe.met {
                return Ok(probe);
            }
            let failed = probe.figures.iter().filter(|figure| !figure.met).map(|figure| figure.name.as_str());
            for name in failed.chain(probe.stopped_by.as_deref()) {
                left.retain(|other| match side(name) {
                    Some(Role::Prefill) => *other > prefill,
                    Some(_) => *other < prefill,
                    None => true,
                });
            }
            if left.is_empty() {
                return Ok(probe);
            }
        }
    }

    /// Replays one fleet, to the end if `complete`, and reports it to the progress.
    fn replay(&self, settings: Settings, complete: bool) -> Result<Probe, PlanError> {
        let mut requests = 0;
        (self.progress)(News::Begun);
        let probe = self.replay_counted(settings, complete, &mut requests);
        let of = |probe: &Probe| (probe.replicas, probe.speed, probe.met);
        let (replicas, speed, met) = probe.as_ref().map_or((0, 1.0, false), of);
        (self.progress)(News::Ended { replicas, speed, requests, met });
        probe
    }

    fn replay_counted(&self, settings: Settings, complete: bool, ended: &mut u64) -> Result<Probe, PlanError> {
        let speed = settings.arrivals.speed().unwrap_or(1.0);
        let requests = self.trace.requests.len() as u64;
        let mut judge = Judge::new(self.search.slos, requests);
        let (mut stopped_by, mut refused, mut is_kept) = (None, 0, true);
        let result = replay_watched(self.trace, &settings, self.candidate.cost, &mut |outcome: &Outcome| {
            (self.progress)(News::Request);
            *ended += 1;
            refused += u64::from(outcome.refused);
            let lost = judge.see(outcome);
            is_kept &= lost.is_none();
            if lost.is_some() && !complete {
                stopped_by = lost;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        // A request too large for one kind of replica may fit on another.
        if settings.others.is_empty() && refused > self.search.slos.failures_allowed(requests) {
            return Err(PlanError::TooLarge { hardware: settings.hardware.name, refused, requests });
        }
        let mut probe = Probe {
            replicas: settings.n_replicas(),
            prefill: None,
            speed,
            arrival_requests_s: match settings.arrivals {
                Arrivals::Closed(_) => None,
                _ => arrival_requests_s(self.trace).map(|rate| rate * speed),
            },
            figures: Vec::new(),
            stopped_by,
            met: false,
            refused,
            too_long: None,
            extrapolated: None,
            utilisation: None,
            price_million_tokens: None,
            price_million_output_tokens: None,
        };
        let report = match result {
            Err(ReplayError::Stopped) => return Ok(probe),
            result => result?,
        };
        probe.figures = judge.figures(&report);
        // A figure of nothing is 0, but a fleet that completes nothing keeps no promise.
        // Percentiles leave out requests that ended at their deadlines; the judge does not.
        probe.met = report.completed > 0 && is_kept && probe.figures.iter().all(|figure| figure.met);
        // What no fleet takes, and a device alone, are not shown with their samples.
        if probe.met && !matches!(settings.arrivals, Arrivals::Serial) {
            judge.add_samples(&mut probe.figures);
        }
        probe.too_long = report.tokens.too_long;
        probe.extrapolated = report.batches.extrapolated;
        probe.utilisation = Some(report.fleet.utilisation);
        self.add_prices(&mut probe, &report);
        Ok(probe)
    }

    /// Adds the prices of tokens, if that of a replica is known.
    fn add_prices(&self, probe: &mut Probe, report: &Report) {
        let Some(price_hour) = self.candidate.price_hour else { return };
        let fixed_hours = f64::from(probe.replicas) * report.duration_s / 3600.0;
        let service = report.fleet.service.as_ref();
        let price = price_hour * service.map_or(fixed_hours, |service| service.replica_hours);
        let million = |tokens: u64| (tokens > 0).then(|| price / (tokens as f64 / 1e6));
        probe.price_million_tokens = million(report.tokens.prompt_tokens + report.tokens.output_tokens);
        probe.price_million_output_tokens = million(report.tokens.output_tokens);
    }
}

/// Returns the role whose replicas an SLO needs more of if it fails; `None` if either may help.
fn side(slo: &str) -> Option<Role> {
    match slo.split('_').next() {
        Some("ttft") => Some(Role::Prefill),
        Some("tpot" | "itl") => Some(Role::Decode),
        _ => None,
    }
}

/// Applies `work` to every item on all cores. Results are in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let share = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(share)).collect();
        threads.into_iter().flat_map(|it| it.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
