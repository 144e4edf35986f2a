//! The sample behind a statistic of latencies, and the interval in which another sample of its kind would have it.
//!
//! Requests of one session are not independent: they share a prompt, a cache and a user. So whole sessions are drawn again, with replacement
//! (the cluster bootstrap, Davison and Hinkley 1997), and the middle 95 % of the statistics of `RESAMPLES` such samples are the interval. It says how far
//! another draw of sessions would move the figure. It does not know of other rates, other days, or errors of the step times, nor that queues of
//! neighbouring requests are one queue. A sample has at most [`REQUESTS_MAX`] requests, 2^20: of a longer replay the interval is that of the
//! first to end, and wider than that of all.

use serde::Serialize;
use trunkline_core::draw::mix;

use crate::figures::{Latency, Statistic};
use crate::outcome::Outcome;

/// Samples drawn for an interval.
const RESAMPLES: u64 = 200;
/// Part of them below the interval, and part above.
const TAIL: f64 = 0.025;
/// Requests of a sample, at most: of a longer replay, those that end first.
pub const REQUESTS_MAX: usize = 1 << 20;
/// Least number of requests above a percentile for it to be more than an anecdote.
pub const BEHIND_MIN: u64 = 10;

/// Interval of a statistic, in its own unit, and the sample behind it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Requests with a value, of the first [`REQUESTS_MAX`] to end.
    pub requests: u64,
    /// Sessions of these requests; a request without a session is one.
    pub sessions: u64,
    /// Requests at the statistic or above, which decide it; of a mean, all.
    pub behind: u64,
}

impl Interval {
    /// Returns `true` if so few requests decide the statistic that one more may change it.
    pub fn is_thin(&self) -> bool {
        self.behind < BEHIND_MIN
    }
}

/// Latencies of requests as they end, with their sessions.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Session, or request without one, and TTFT, TPOT and E2E.
    requests: Vec<(u64, [Option<u64>; 3])>,
}

/// Values of one metric, in order, with the indices of their sessions.
struct Sorted {
    values: Vec<(u64, u32)>,
    /// Number of values, and their sum, of each session.
    sessions: Vec<(u64, f64)>,
}

impl Sample {
    /// Takes in an outcome.
    pub fn see(&mut self, outcome: &Outcome) {
        if self.requests.len() < REQUESTS_MAX {
            // Sessions and requests are numbered from 0 each.
            let session = outcome.session.map_or(outcome.request << 1, |session| u64::from(session) << 1 | 1);
            self.requests.push((session, [outcome.ttft_ns, outcome.tpot_ns, outcome.e2e_ns]));
        }
    }

    /// Returns the interval of a statistic; `None` without values, and for ITL, which is of tokens.
    pub fn interval(&self, latency: Latency, statistic: Statistic) -> Option<Interval> {
        let of = match latency {
            Latency::Ttft => 0,
            Latency::Tpot => 1,
            Latency::E2e => 2,
            Latency::Itl => return None,
        };
        let sorted = self.sorted(of)?;
        let mut drawn: Vec<f64> = (0..RESAMPLES).map(|number| sorted.drawn(number, statistic)).collect();
        drawn.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| drawn[((share * RESAMPLES as f64) as usize).min(drawn.len() - 1)] / 1e9;
        let n = sorted.values.len() as u64;
        Some(Interval {
            low: at(TAIL),
            high: at(1.0 - TAIL),
            requests: n,
            sessions: sorted.sessions.len() as u64,
            behind: per_cent(statistic).map_or(n, |per_cent| n - (n * per_cent).div_ceil(100).clamp(1, n) + 1),
        })
    }

    fn sorted(&self, of: usize) -> Option<Sorted> {
        let mut values: Vec<(u64, u64)> =
            self.requests.iter().filter_map(|(session, values)| Some((*session, values[of]?))).collect();
        values.sort_unstable();
        let mut sessions: Vec<(u64, f64)> = Vec::new();
        let mut last = None;
        let mut indexed: Vec<(u64, u32)> = Vec::with_capacity(values.len());
        for (session, value) in values {
            if last.replace(session) != Some(session) {
                sessions.push((0, 0.0));
            }
            let at = sessions.len() - 1;
            sessions[at].0 += 1;
            sessions[at].1 += value as f64;
            indexed.push((value, at as u32));
        }
        indexed.sort_unstable();
        (!indexed.is_empty()).then_some(Sorted { values: indexed, sessions })
    }
}

impl Sorted {
    /// Returns the statistic of sample `number`, of as many sessions drawn with replacement.
    fn drawn(&self, number: u64, statistic: Statistic) -> f64 {
        let n = self.sessions.len();
        let mut times = vec![0u32; n];
        for draw in 0..n as u64 {
            // The high half of a product with 64 random bits is even, as far as matters.
            let hash = mix(mix(number) ^ draw);
            times[((u128::from(hash) * n as u128) >> 64) as usize] += 1;
        }
        let of_all = || self.sessions.iter().zip(&times);
        let count: u64 = of_all().map(|((values, _), times)| values * u64::from(*times)).sum();
        let Some(per_cent) = per_cent(statistic) else {
            return of_all().map(|((_, sum), times)| sum * f64::from(*times)).sum::<f64>() / count as f64;
        };
        let mut above = count - (count * per_cent).div_ceil(100).clamp(1, count);
        for (value, session) in self.values.iter().rev() {
            match u64::from(times[*session as usize]) {
                0 => {}
                times if times > above => return *value as f64,
                times => above -= times,
            }
        }
        unreachable!("every sample has values")
    }
}

/// Returns the percentile that a statistic is, if it is one.
fn per_cent(statistic: Statistic) -> Option<u64> {
    match statistic {
        Statistic::Mean => None,
        Statistic::P50 => Some(50),
        Statistic::P90 => Some(90),
        Statistic::P95 => Some(95),
        Statistic::P99 => Some(99),
        Statistic::Max => Some(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes of `n` requests with TTFTs of 1, 2, 3, ... ms, and so many to a session.
    fn sample(n: u64, to_a_session: Option<u64>) -> Sample {
        let mut sample = Sample::default();
        for request in 0..n {
            let session = to_a_session.map(|size| (request / size) as u32);
            let ttft_ns = Some((request + 1) * 1_000_000);
            sample.see(&Outcome { request, session, ttft_ns, e2e_ns: Some(7_000_000), ..Outcome::default() });
        }
        sample
    }

    #[test]
    fn the_interval_holds_the_statistic_and_narrows_with_requests() {
        for statistic in [Statistic::Mean, Statistic::P50, Statistic::P90] {
            let width = |n: u64| {
                let Interval { low, high, requests, sessions, .. } =
                    sample(n, None).interval(Latency::Ttft, statistic).unwrap();
                let share = per_cent(statistic).unwrap_or(50) as f64 / 100.0;
                let value = n as f64 * share / 1e3;
                assert!(low < value && value < high && (requests, sessions) == (n, n), "{low} {value} {high}");
                (high - low) / value
            };
            // Sixteen times the requests, a quarter of the width.
            let (few, many) = (width(200), width(3_200));
            assert!((2.5..6.0).contains(&(few / many)), "{statistic:?} {few} {many}");
        }
        // For 100 even values the standard error of the mean is 2.9 %; 95 % are 1.96 of them to both sides.
        let Interval { low, high, .. } = sample(100, None).interval(Latency::Ttft, Statistic::Mean).unwrap();
        assert!(((high - low) / 0.0505 / (2.0 * 1.96 * 0.0573) - 1.0).abs() < 0.15, "{low} {high}");
    }

    #[test]
    fn requests_of_a_session_are_drawn_together() {
        let width = |to_a_session| {
            let Interval { low, high, sessions, .. } =
                sample(1_000, to_a_session).interval(Latency::Ttft, Statistic::Mean).unwrap();
            assert_eq!(sessions, 1_000 / to_a_session.unwrap_or(1));
            high - low
        };
        assert!(width(Some(50)) > 4.0 * width(None), "twenty sessions know less than a thousand");
    }

    #[test]
    fn equal_values_have_no_width_and_no_values_no_interval() {
        let same = sample(50, Some(5)).interval(Latency::E2e, Statistic::P99).unwrap();
        assert_eq!((same.low, same.high, same.behind), (0.007, 0.007, 1));
        assert!(same.is_thin() && !sample(50, None).interval(Latency::E2e, Statistic::P50).unwrap().is_thin());
        assert_eq!(sample(50, None).interval(Latency::Tpot, Statistic::P50), None);
        assert_eq!(sample(50, None).interval(Latency::Itl, Statistic::P50), None);
    }
}
