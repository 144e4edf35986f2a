//! How many replicas keep a set of promises on a trace, or how fast a trace may come for a fleet to keep them.
//!
//! Every probe replays the same trace with the same arrivals, so probes differ by what is asked and by nothing else. The answer is
//! bracketed by doubling and then narrowed by cutting the bracket in three: two probes at a time, which run beside each other if there
//! are two cores. Which probes are made does not depend on the machine.
//!
//! That is sound if more replicas, or a lower rate, never do worse. Near saturation that can fail by a little, and with
//! prefix caches by more (a request may find less in each of more caches), so the next larger fleet is
//! probed as well, and [`Answer::monotone`] says whether any probe contradicts the others.
//!
//! A probe stops as soon as a promise can no longer be kept ([`trunkline_sim_report::slo::Judge`]), because an overloaded fleet takes the longest to
//! replay; it has no figures then. If no probe meets the promises, the easiest one is replayed to its end.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;

use crate::capacity::{arrival_requests_s, capacity_requests_s};
use crate::fleet::{ReplayError, replay_watched};
use crate::settings::{Arrivals, Settings};
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::slo::{Figure, Judge, Slos};
use trunkline_sim_workload::trace::Trace;

/// Above this load tails of latency tell little: small errors of step times make large ones of waiting times.
pub const LOAD_RELIABLE_MAX: f64 = 0.85;
/// Steps of the search in which a rate doubles, so that it is found within 2.2 %.
const STEPS_PER_DOUBLING: i64 = 32;
/// How far from the trace's own rate is searched: by a factor of 2^20 up or down.
const DOUBLINGS_MAX: i64 = 20;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The least number of replicas.
    Replicas {
        /// The most that may be.
        max: u32,
    },
    /// The highest speed of the trace for the replicas of the settings.
    Rate,
}

/// A kind of fleet.
pub struct Candidate<'a> {
    /// What is replayed on. Its replicas are what is looked for, or its speed.
    pub settings: Settings,
    /// How long its steps take. Probes run beside each other and share it.
    pub cost: &'a (dyn CostModel + Sync),
    /// What a replica costs in an hour, in any currency; if there are several kinds, on average.
    pub price_hour: Option<f64>,
}

/// What was found for a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The device of each replica; if there are several kinds, how many of which.
    pub hardware: String,
    /// The probe that is the answer, if any met the promises.
    pub best: Option<Probe>,
    /// Rate of arrivals over capacity ([`crate::capacity`]) of the answer, if the trace has a rate. Utilisation does not tell how
    /// much more a fleet could take, because a replica that decodes a single request is in use as well.
    pub load: Option<f64>,
    /// All probes in the order of what was asked: replicas, or speed.
    pub probes: Vec<Probe>,
    /// Whether no probe failed where a harder one did not.
    pub monotone: bool,
    /// Whether [`Answer::best`] was as far as the search goes, so that there may be more.
    pub at_end: bool,
}

/// One replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// Replicas.
    pub replicas: u32,
    /// By how much the times of arrival were divided.
    pub speed: f64,
    /// Requests that arrived in a second on average, if they did not all come at one instant.
    pub arrival_requests_s: Option<f64>,
    /// What came of each promise; nothing if the probe was stopped.
    pub figures: Vec<Figure>,
    /// The promise for which it was stopped.
    pub stopped_by: Option<String>,
    /// Whether every promise was kept.
    pub met: bool,
    /// Requests that were refused as too large for the device, until it was stopped.
    pub refused: u64,
    /// Time in which steps ran, over replicas times duration; nothing if it was stopped.
    pub utilisation: Option<f64>,
    /// What the fleet costs for a million tokens, generated or of prompts.
    pub price_million_tokens: Option<f64>,
    /// The same for a million generated tokens.
    pub price_million_output_tokens: Option<f64>,
}

impl Answer {
    /// Whether the tails of the answer are not to be trusted.
    pub fn is_saturated(&self) -> bool {
        self.load.is_some_and(|load| load > LOAD_RELIABLE_MAX)
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Prompts do not fit, and more replicas or time do not help.
    #[error(
        "{refused} of {requests} requests are too large for {hardware}, more than the goodput allows; give it more blocks"
    )]
    TooLarge {
        /// The device.
        hardware: &'static str,
        /// Requests refused.
        refused: u64,
        /// Requests in all.
        requests: u64,
    },
    /// Which replica fails has no meaning while their number is looked for.
    #[error(
        "replicas that fail or are slow can be planned with only for a given number of replicas; look for the rate"
    )]
    Faults,
    /// No fleet has none.
    #[error("the most replicas is 0; it must be at least 1")]
    NoReplicas,
    /// How many of each kind would have to be said.
    #[error("a fleet of several kinds has its replicas; look for the rate")]
    Mixed,
    /// Not a price.
    #[error("price of {hardware} is {price}; it must be a number above 0")]
    Price {
        /// The device.
        hardware: &'static str,
        /// What it was set to.
        price: f64,
    },
}

/// How a search is made.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    /// What is to be kept.
    pub slos: &'a Slos,
    /// What is looked for.
    pub goal: Goal,
    /// Whether every probe is replayed to its end, so that it has figures.
    pub complete: bool,
}

/// Finds the answer for a candidate. `progress` is told of each request that ended, from several threads.
pub fn plan(
    trace: &Trace,
    candidate: &Candidate<'_>,
    search: &Search<'_>,
    progress: &(dyn Fn() + Sync),
) -> Result<Answer, PlanError> {
    let hardware = candidate.settings.hardware.name;
    if let Some(price) = candidate.price_hour.filter(|price| !(*price > 0.0 && price.is_finite())) {
        return Err(PlanError::Price { hardware, price });
    }
    let routing = &candidate.settings.routing;
    if search.goal != Goal::Rate && !(routing.failures.is_empty() && routing.slow.is_empty()) {
        return Err(PlanError::Faults);
    }
    if search.goal != Goal::Rate && !candidate.settings.others.is_empty() {
        return Err(PlanError::Mixed);
    }
    // Probes are numbered so that a greater number is easier to meet.
    let (first, last) = match search.goal {
        Goal::Replicas { max: 0 } => return Err(PlanError::NoReplicas),
        Goal::Replicas { max } => (1, i64::from(max)),
        Goal::Rate => {
            arrival_requests_s(trace).ok_or(ReplayError::NoRate)?;
            (-DOUBLINGS_MAX * STEPS_PER_DOUBLING, DOUBLINGS_MAX * STEPS_PER_DOUBLING)
        }
    };
    let mut prober = Prober { trace, candidate, search, progress, done: Vec::new() };
    let found = match search.goal {
        Goal::Replicas { .. } => prober.least_replicas(last)?,
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
    let easiest_missed = prober.done.iter().rev().find(|(_, probe)| !probe.met).map(|(number, _)| *number);
    let probes = prober.done;
    let best =
        found.and_then(|found| probes.iter().find(|(number, _)| *number == found)).map(|(_, probe)| probe.clone());
    Ok(Answer {
        hardware: candidate.settings.devices(),
        monotone: found.is_none_or(|found| easiest_missed.is_none_or(|missed| missed < found)),
        at_end: found == Some(first),
        load: best.as_ref().map_or(Ok(None), |best| load_of(trace, candidate, best))?,
        best,
        probes: probes.into_iter().map(|(_, probe)| probe).collect(),
    })
}

/// What share of what a probe's fleet could take it was given.
fn load_of(trace: &Trace, candidate: &Candidate<'_>, probe: &Probe) -> Result<Option<f64>, ReplayError> {
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
    progress: &'a (dyn Fn() + Sync),
    done: Vec<(i64, Probe)>,
}

impl Prober<'_> {
    /// Probes 1, 2, 4, ..., `last` until one meets, and then between.
    fn least_replicas(&mut self, last: i64) -> Result<Option<i64>, PlanError> {
        let (mut missed, mut next) = (0, 1);
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

    /// Probes the trace's own rate, and doubles or halves until one meets and another does not; then between.
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

    /// The least number above `missed` that meets; `met` does.
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

    /// Whether each of `numbers` meets. Runs those not run before, beside each other.
    fn probe(&mut self, numbers: &[i64]) -> Result<Vec<bool>, PlanError> {
        let known = |done: &[(i64, Probe)], number| done.iter().find(|(other, _)| *other == number).map(|(_, p)| p.met);
        let new: Vec<i64> = numbers.iter().copied().filter(|number| known(&self.done, *number).is_none()).collect();
        let probed = in_parallel(&new, |number| self.run(*number, self.search.complete));
        for (number, probe) in new.iter().zip(probed) {
            self.done.push((*number, probe?));
        }
        Ok(numbers.iter().map(|number| known(&self.done, *number).expect("it was probed")).collect())
    }

    /// Replays a probe, to its end if it is to be `complete`.
    fn run(&self, number: i64, complete: bool) -> Result<Probe, PlanError> {
        let mut settings = self.candidate.settings.clone();
        match self.search.goal {
            Goal::Replicas { .. } => settings.replicas = number as u32,
            Goal::Rate => {
                let speed = (-number as f64 / STEPS_PER_DOUBLING as f64).exp2();
                settings.arrivals = Arrivals::Traced { speed };
            }
        }
        let speed = match settings.arrivals {
            Arrivals::Traced { speed } => speed,
            Arrivals::Serial | Arrivals::AtOnce => 1.0,
        };
        let requests = self.trace.requests.len() as u64;
        let mut judge = Judge::new(self.search.slos, requests);
        let (mut stopped_by, mut refused) = (None, 0);
        let result = replay_watched(self.trace, &settings, self.candidate.cost, &mut |outcome: &Outcome| {
            (self.progress)();
            refused += u64::from(outcome.refused);
            let lost = judge.see(outcome);
            if lost.is_some() && !complete {
                stopped_by = lost;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let allowed = self.search.slos.goodput().map(|goodput| (1.0 - goodput) * requests as f64);
        if allowed.is_some_and(|allowed| refused as f64 > allowed) {
            return Err(PlanError::TooLarge { hardware: settings.hardware.name, refused, requests });
        }
        let mut probe = Probe {
            replicas: settings.n_replicas(),
            speed,
            arrival_requests_s: arrival_requests_s(self.trace).map(|rate| rate * speed),
            figures: Vec::new(),
            stopped_by,
            met: false,
            refused,
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
        probe.met = report.completed > 0 && probe.figures.iter().all(|figure| figure.met);
        probe.utilisation = Some(report.utilisation);
        if let Some(price_hour) = self.candidate.price_hour {
            let price = price_hour * f64::from(settings.n_replicas()) * report.duration_s / 3600.0;
            let million = |tokens: u64| (tokens > 0).then(|| price / (tokens as f64 / 1e6));
            probe.price_million_tokens = million(report.prompt_tokens + report.output_tokens);
            probe.price_million_output_tokens = million(report.output_tokens);
        }
        Ok(probe)
    }
}

/// Does `work` for every item, as many at a time as there are cores. Results come in the order of the items.
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
