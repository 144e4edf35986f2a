//! Service-level objectives (SLOs) on latency, and evaluation.
//!
//! An SLO is `METRIC_STATISTIC=DURATION`, such as `ttft_p99=2s`: an upper limit of a statistic of the metric over all completed
//! requests. `METRIC=DURATION` limits each request. *Goodput* is the share of requests within all limits on single requests;
//! refused requests are never within them. For a metric without a limit on each request, the longest limit among its statistics
//! applies. ITL belongs to tokens rather than requests and is not part of goodput; a request of one token has no TPOT and meets any
//! limit of it.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use trunkline_quote::quoted;

use crate::figures::{Latency, Statistic};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::sample::{Interval, Sample};

const UNITS_S: [(&str, f64); 3] = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];

/// Service-level objective on a latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Latency metric under the limit.
    pub metric: Latency,
    /// Statistic over all requests; `None` for a limit on each request.
    pub statistic: Option<Statistic>,
    /// Upper limit of the value, seconds.
    pub limit_s: f64,
}

/// Invalid SLO, or an inconsistent set of SLOs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SloError {
    /// SLO without the sign `=`.
    #[error("SLO is {}; give METRIC_STATISTIC=DURATION, such as ttft_p99=2s", quoted(.0))]
    Form(String),
    /// Name of no known metric.
    #[error("SLO {spec}: there is no metric {metric}; there are: ttft, tpot, itl, e2e", spec = quoted(spec), metric = quoted(metric))]
    Metric {
        /// SLO as given on input.
        spec: String,
        /// Metric as given on input.
        metric: String,
    },
    /// Name of no known statistic.
    #[error("SLO {spec}: there is no statistic {statistic}; there are: mean, p50, p90, p95, p99, max", spec = quoted(spec), statistic = quoted(statistic))]
    Statistic {
        /// SLO as given on input.
        spec: String,
        /// Statistic as given on input.
        statistic: String,
    },
    /// Duration without a valid number or unit.
    #[error("SLO {spec}: {duration} is not a duration; give a number above 0 with s, ms or us, such as 50ms", spec = quoted(spec), duration = quoted(duration))]
    Duration {
        /// SLO as given on input.
        spec: String,
        /// Duration as given on input.
        duration: String,
    },
    /// Limit of ITL on each request; ITL belongs to tokens.
    #[error("SLO {}: itl is of tokens, not of requests; give a statistic, such as itl_p99", quoted(.0))]
    EachItl(String),
    /// Two limits for one metric and statistic.
    #[error("{0} is promised twice")]
    Twice(String),
    /// Goodput out of range.
    #[error("goodput is {0}; it must be above 0 and at most 1, such as 0.99")]
    Goodput(f64),
    /// Limit on each request without a goodput.
    #[error("{0} is a promise about each request; say what share of them is to keep it, as in --goodput 0.99")]
    NoGoodput(String),
    /// Goodput without a limit on requests.
    #[error("a goodput needs a promise about requests: ttft, tpot or e2e")]
    NothingPromised,
    /// Empty set of SLOs.
    #[error("there is no SLO; give one, such as ttft_p99=2s")]
    None,
}

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(spec: &str) -> Result<Self, SloError> {
        let (name, duration) = spec.split_once('=').ok_or_else(|| SloError::Form(spec.into()))?;
        let (metric, statistic) = match name.split_once('_') {
            Some((metric, statistic)) => (metric, Some(statistic)),
            None => (name, None),
        };
        let find_metric = Latency::ALL.into_iter().find(|latency| latency.name() == metric);
        let metric = find_metric.ok_or_else(|| SloError::Metric { spec: spec.into(), metric: metric.into() })?;
        let statistic = match statistic {
            None if metric == Latency::Itl => return Err(SloError::EachItl(spec.into())),
            None => None,
            Some(name) => {
                let found = Statistic::ALL.into_iter().find(|statistic| statistic.name() == name);
                let unknown = || SloError::Statistic { spec: spec.into(), statistic: name.into() };
                Some(found.ok_or_else(unknown)?)
            }
        };
        let limit_s =
            duration_s(duration).ok_or_else(|| SloError::Duration { spec: spec.into(), duration: duration.into() })?;
        Ok(Self { metric, statistic, limit_s })
    }
}

fn duration_s(text: &str) -> Option<f64> {
    let (number, unit_s) = UNITS_S.iter().find_map(|(unit, unit_s)| Some((text.strip_suffix(unit)?, unit_s)))?;
    let seconds = number.trim().parse::<f64>().ok()? * unit_s;
    (seconds > 0.0 && seconds.is_finite()).then_some(seconds)
}

impl fmt::Display for Slo {
    /// Writes the metric and statistic without the limit: `ttft_p99`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric.name())?;
        self.statistic.map_or(Ok(()), |statistic| write!(f, "_{}", statistic.name()))
    }
}

impl Slo {
    /// Returns the greatest number of values above the limit, of so many, with which a nearest-rank percentile is within; of a mean, of values
    /// without end.
    fn above_allowed(&self, values: u64) -> u64 {
        let per_cent = match self.statistic {
            Some(Statistic::P50) => 50,
            Some(Statistic::P90) => 90,
            Some(Statistic::P95) => 95,
            Some(Statistic::P99) => 99,
            Some(Statistic::Max | Statistic::Mean) => 100,
            None => 0,
        };
        values * (100 - per_cent) / 100
    }
}

/// Consistent set of SLOs.
#[derive(Clone, Debug, PartialEq)]
pub struct Slos {
    /// Limits on statistics over all requests.
    of_all: Vec<Slo>,
    /// Limits on TTFT, TPOT and E2E of each request, nanoseconds.
    of_each: [Option<f64>; 3],
    /// Required goodput, from 0 to 1.
    goodput: Option<f64>,
}

/// Result of an SLO.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SloResult {
    /// Name of the SLO: `ttft_p99`, or `goodput`.
    pub name: String,
    /// Limit: at most so many seconds; for goodput, at least this share.
    pub limit: f64,
    /// Measured value, in the unit of the limit.
    pub value: f64,
    /// `true` if the value is within the limit.
    pub met: bool,
    /// Relative distance to the limit: `1 - value / limit` for a latency; for goodput, the unused share of the permitted failures.
    /// Negative if not met.
    pub margin: f64,
    /// Requests behind the value, and the interval of other draws of their sessions; `None` for goodput and ITL, and unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Interval>,
}

impl Slos {
    /// Checks that the SLOs are consistent.
    ///
    /// # Errors
    ///
    /// [`SloError`] for an empty set, duplicates, or a goodput without a limit on requests and vice versa.
    pub fn new(slos: &[Slo], goodput: Option<f64>) -> Result<Self, SloError> {
        if slos.is_empty() {
            return Err(SloError::None);
        }
        for (at, slo) in slos.iter().enumerate() {
            if slos[..at].iter().any(|other| (other.metric, other.statistic) == (slo.metric, slo.statistic)) {
                return Err(SloError::Twice(slo.to_string()));
            }
        }
        if let Some(goodput) = goodput.filter(|goodput| !(*goodput > 0.0 && *goodput <= 1.0)) {
            return Err(SloError::Goodput(goodput));
        }
        let (each, of_all): (Vec<Slo>, Vec<Slo>) = slos.iter().partition(|slo| slo.statistic.is_none());
        if let (None, Some(slo)) = (goodput, each.first()) {
            return Err(SloError::NoGoodput(slo.to_string()));
        }
        let of_each = [Latency::Ttft, Latency::Tpot, Latency::E2e].map(|metric| {
            let limits = |slos: &[Slo]| {
                slos.iter().filter(|slo| slo.metric == metric).map(|slo| slo.limit_s * 1e9).reduce(f64::max)
            };
            limits(&each).or_else(|| limits(&of_all))
        });
        if goodput.is_some() && of_each == [None; 3] {
            return Err(SloError::NothingPromised);
        }
        Ok(Self { of_all, of_each, goodput })
    }

    /// Returns the number of requests, of so many, that may be refused, or end without a latency: they are above any limit.
    pub fn failures_allowed(&self, requests: u64) -> u64 {
        let of_all = self.of_all.iter().map(|slo| slo.above_allowed(requests));
        let of_each = self.goodput.map(|goodput| ((1.0 - goodput) * requests as f64 + 1e-9) as u64);
        of_all.chain(of_each).min().unwrap_or(requests)
    }

    fn keeps_each(&self, outcome: &Outcome) -> bool {
        let values = [outcome.ttft_ns, outcome.tpot_ns, outcome.e2e_ns];
        !outcome.refused && outcome.deadline_met != Some(false) && self.keeps(values)
    }

    /// Returns `true` if TTFT, TPOT and E2E of a request, nanoseconds, are within the limits; one that it does not have is.
    pub fn keeps(&self, latencies_ns: [Option<u64>; 3]) -> bool {
        let kept = |(limit_ns, value_ns): (Option<f64>, Option<u64>)| match (limit_ns, value_ns) {
            (Some(limit_ns), Some(value_ns)) => value_ns as f64 <= limit_ns,
            _ => true,
        };
        self.of_each.into_iter().zip(latencies_ns).all(kept)
    }
}

/// Counter of violations as requests end.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    slos: &'a Slos,
    requests: u64,
    bad: u64,
    /// For each limit on a statistic: number of values above the limit, and the sum of all values, nanoseconds.
    counts: Vec<(u64, u128)>,
    /// Latencies of requests, if a limit is on a statistic of them.
    sample: Option<Sample>,
}

impl<'a> Judge<'a> {
    /// Returns a judge for a trace of `requests` requests.
    pub fn new(slos: &'a Slos, requests: u64) -> Self {
        let is_of_requests = slos.of_all.iter().any(|slo| slo.metric != Latency::Itl);
        let sample = is_of_requests.then(Sample::default);
        Self { slos, requests, bad: 0, counts: vec![(0, 0); slos.of_all.len()], sample }
    }

    /// Counts the outcome of a request. Returns an SLO that can no longer be met, if there is one.
    pub fn see(&mut self, outcome: &Outcome) -> Option<String> {
        let mut lost = None;
        let requests = self.requests;
        if let Some(sample) = &mut self.sample {
            sample.see(outcome);
        }
        for (slo, (above, sum_ns)) in self.slos.of_all.iter().zip(&mut self.counts) {
            let value_ns = match slo.metric {
                Latency::Ttft => outcome.ttft_ns,
                Latency::Tpot => outcome.tpot_ns,
                Latency::E2e => outcome.e2e_ns,
                Latency::Itl => None,
            };
            // A request that was refused, or has no such latency by its deadline, is above any limit.
            let failed = outcome.refused || outcome.timed_out();
            let Some(value_ns) = value_ns.or(failed.then_some(u64::MAX)) else { continue };
            *sum_ns += u128::from(value_ns);
            *above += u64::from(value_ns as f64 / 1e9 > slo.limit_s);
            let is_lost = match slo.statistic {
                // All to come would have to take no time.
                Some(Statistic::Mean) => *sum_ns as f64 / 1e9 / requests as f64 > slo.limit_s,
                Some(_) => *above > slo.above_allowed(requests),
                None => false,
            };
            // All are counted on: a replay to the end shows the figures of all.
            if is_lost && lost.is_none() {
                lost = Some(slo);
            }
        }
        self.bad += u64::from(!self.slos.keeps_each(outcome));
        let too_few = || self.slos.goodput.is_some_and(|goodput| self.best() < goodput).then(|| "goodput".into());
        lost.map(ToString::to_string).or_else(too_few)
    }

    /// Returns the goodput if all remaining requests are within their limits.
    fn best(&self) -> f64 {
        (self.requests - self.bad) as f64 / self.requests as f64
    }

    /// Returns the result of each SLO after the last request, without its sample.
    pub fn figures(&self, report: &Report) -> Vec<SloResult> {
        let of_all = self.slos.of_all.iter().map(|slo| {
            let summary = slo.metric.of(&report.latencies);
            let (value, limit) = (slo.statistic.map_or(0.0, |statistic| statistic.of(&summary)), slo.limit_s);
            let (met, margin) = (value <= limit, 1.0 - value / limit);
            SloResult { name: slo.to_string(), limit, value, met, margin, sample: None }
        });
        let goodput = self.slos.goodput.map(|limit| {
            let value = self.best();
            let margin = if limit < 1.0 { 1.0 - (1.0 - value) / (1.0 - limit) } else { value - limit };
            SloResult { name: "goodput".into(), limit, value, met: value >= limit, margin, sample: None }
        });
        of_all.chain(goodput).collect()
    }

    /// Adds the samples to the results of [`Judge::figures`]. An interval takes as long as sorting all latencies some ten times.
    pub fn add_samples(&self, results: &mut [SloResult]) {
        let Some(sample) = &self.sample else { return };
        for (slo, result) in self.slos.of_all.iter().zip(results) {
            result.sample = slo.statistic.and_then(|statistic| sample.interval(slo.metric, statistic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slos(specs: &[&str], goodput: Option<f64>) -> Result<Slos, SloError> {
        Slos::new(&specs.iter().map(|spec| spec.parse().unwrap()).collect::<Vec<_>>(), goodput)
    }

    #[test]
    fn promises_are_read() {
        let slo = |metric, statistic, limit_s| Slo { metric, statistic, limit_s };
        let cases = [
            ("ttft_p99=2s", slo(Latency::Ttft, Some(Statistic::P99), 2.0)),
            ("tpot_p95=50ms", slo(Latency::Tpot, Some(Statistic::P95), 0.05)),
            ("itl_mean=1500us", slo(Latency::Itl, Some(Statistic::Mean), 0.0015)),
            ("e2e_max=.5s", slo(Latency::E2e, Some(Statistic::Max), 0.5)),
            ("ttft=1e3ms", slo(Latency::Ttft, None, 1.0)),
        ];
        for (spec, expected) in cases {
            let read: Slo = spec.parse().unwrap();
            assert_eq!((read.metric, read.statistic), (expected.metric, expected.statistic));
            assert!((read.limit_s / expected.limit_s - 1.0).abs() < 1e-12, "{spec}");
            assert_eq!(read.to_string(), spec.split_once('=').unwrap().0);
        }
    }

    #[test]
    fn what_is_no_promise_is_told() {
        let duration = "is not a duration; give a number above 0 with s, ms or us, such as 50ms";
        let cases = [
            ("ttft_p99", "SLO is 'ttft_p99'; give METRIC_STATISTIC=DURATION, such as ttft_p99=2s".to_string()),
            ("x_p99=2s", "SLO 'x_p99=2s': there is no metric 'x'; there are: ttft, tpot, itl, e2e".into()),
            (
                "ttft_p98=2s",
                "SLO 'ttft_p98=2s': there is no statistic 'p98'; there are: mean, p50, p90, p95, p99, max".into(),
            ),
            ("itl=2s", "SLO 'itl=2s': itl is of tokens, not of requests; give a statistic, such as itl_p99".into()),
            ("ttft_p99=2", format!("SLO 'ttft_p99=2': '2' {duration}")),
            ("ttft_p99=0s", format!("SLO 'ttft_p99=0s': '0s' {duration}")),
            ("ttft_p99=-1ms", format!("SLO 'ttft_p99=-1ms': '-1ms' {duration}")),
            ("ttft_p99=nans", format!("SLO 'ttft_p99=nans': 'nans' {duration}")),
        ];
        for (spec, expected) in cases {
            assert_eq!(spec.parse::<Slo>().unwrap_err().to_string(), expected);
        }
        let told = |specs: &[&str], goodput| slos(specs, goodput).unwrap_err().to_string();
        assert_eq!(told(&[], None), "there is no SLO; give one, such as ttft_p99=2s");
        assert_eq!(told(&["ttft_p99=2s", "ttft_p99=3s"], None), "ttft_p99 is promised twice");
        assert_eq!(told(&["e2e_max=1s"], Some(1.5)), "goodput is 1.5; it must be above 0 and at most 1, such as 0.99");
        assert_eq!(
            told(&["ttft=2s"], None),
            "ttft is a promise about each request; say what share of them is to keep it, as in --goodput 0.99"
        );
        assert_eq!(told(&["itl_p99=2s"], Some(0.9)), "a goodput needs a promise about requests: ttft, tpot or e2e");
    }

    #[test]
    fn goodput_is_counted_on_after_another_promise_is_lost() {
        let both = slos(&["ttft_max=1s", "ttft=1s"], Some(0.1)).unwrap();
        let mut judge = Judge::new(&both, 4);
        assert_eq!(judge.see(&outcome(2.0, 2.0)), Some("ttft_max".into()));
        assert_eq!(judge.see(&outcome(2.0, 2.0)), Some("ttft_max".into()));
        assert_eq!(judge.best(), 0.5);
    }

    #[test]
    fn samples_are_kept_for_statistics_of_requests_alone() {
        let result =
            |name: &str| SloResult { name: name.into(), limit: 1.0, value: 0.5, met: true, margin: 0.5, sample: None };
        for (specs, goodput, kept) in [
            (&["itl_p99=1s"][..], None, [false, false]),
            (&["ttft=1s"], Some(0.5), [false, false]),
            (&["itl_p99=1s", "ttft_p50=1s", "e2e=1s"], Some(0.5), [false, true]),
        ] {
            let slos = slos(specs, goodput).unwrap();
            let mut judge = Judge::new(&slos, 4);
            (0..4).for_each(|_| drop(judge.see(&outcome(0.5, 0.5))));
            assert_eq!(judge.sample.is_some(), kept[1], "{specs:?}");
            let mut results = [result("itl_p99"), result("ttft_p50")];
            judge.add_samples(&mut results);
            assert_eq!(results.map(|result| result.sample.is_some()), kept, "{specs:?}");
        }
    }

    fn outcome(ttft_s: f64, e2e_s: f64) -> Outcome {
        let [ttft_ns, e2e_ns] = [ttft_s, e2e_s].map(|s| Some((s * 1e9) as u64));
        Outcome { prompt_tokens: 1, output_tokens: 1, queue_ns: Some(0), ttft_ns, e2e_ns, ..Outcome::default() }
    }

    #[test]
    fn a_refused_request_is_above_any_limit() {
        let refused = Outcome { refused: true, ttft_ns: None, e2e_ns: None, ..outcome(0.0, 0.0) };
        for (specs, goodput, allowed) in [
            (&["ttft_p99=1s"][..], None, 1),
            (&["ttft_p90=1s", "tpot_p50=1s"], None, 19),
            (&["ttft_p90=1s", "ttft=1s"], Some(0.95), 9),
            (&["e2e_mean=9s"], None, 0),
            (&["e2e_max=9s"], None, 0),
        ] {
            let slos = slos(specs, goodput).unwrap();
            assert_eq!(slos.failures_allowed(199), allowed, "{specs:?}");
            let mut judge = Judge::new(&slos, 199);
            let kept = (0..199).take_while(|_| judge.see(&refused).is_none()).count();
            assert_eq!(kept as u64, allowed, "{specs:?}");
        }
    }

    #[test]
    fn a_promise_is_lost_when_no_rest_can_save_it() {
        // The 90th percentile of 20 is above 1 s as soon as three are.
        let p90 = slos(&["ttft_p90=1s"], None).unwrap();
        let mut judge = Judge::new(&p90, 20);
        assert_eq!([2.0, 1.0, 2.0].map(|s| judge.see(&outcome(s, s))), [None, None, None]);
        assert_eq!(judge.see(&outcome(2.0, 2.0)), Some("ttft_p90".into()));
        // A mean of 1 s over 4 is lost with the sum above 4 s.
        let mean = slos(&["e2e_mean=1s"], None).unwrap();
        let mut judge = Judge::new(&mean, 4);
        assert_eq!([3.0, 1.0].map(|s| judge.see(&outcome(0.0, s))), [None, None]);
        assert_eq!(judge.see(&outcome(0.0, 0.1)), Some("e2e_mean".into()));
        // Half of 4 are to be good, in both ways; the longest promise of a metric counts, and that of each before it.
        let both = slos(&["ttft_p50=1s", "ttft_p99=2s", "e2e=5s", "e2e_max=100s"], Some(0.5)).unwrap();
        let mut judge = Judge::new(&both, 4);
        let refused = Outcome { refused: true, ttft_ns: None, e2e_ns: None, ..outcome(0.0, 0.0) };
        assert_eq!([outcome(2.0, 5.0), outcome(0.1, 6.0)].map(|it| judge.see(&it)), [None, None]);
        assert_eq!(judge.see(&refused), Some("ttft_p99".into()));
        let share = slos(&["ttft=2s", "e2e=5s"], Some(0.5)).unwrap();
        let mut judge = Judge::new(&share, 4);
        assert_eq!([outcome(2.0, 5.0), outcome(0.1, 6.0), refused].map(|it| judge.see(&it)), [None, None, None]);
        assert_eq!(judge.see(&outcome(0.2, 7.0)), Some("goodput".into()));
    }
}
