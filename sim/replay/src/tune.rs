//! Settings that suit a recording: searched on the first part of its requests, proved on the others.
//!
//! Every candidate is a set of [`Change`]s, and its score is the share of requests within the limits of the SLOs; of equal shares the lower mean
//! E2E wins. The search tries one setting after the other and keeps what improves the score on the first part. The proof runs the best candidate on
//! the whole recording, and compares the requests of the second part with those of a run without a change. Both take their steps' times from the fit,
//! so its error is on both sides.
//!
//! The range of the gain comes from drawing blocks of requests in a row again and again (a block bootstrap: Künsch, 1989), since requests that
//! wait together are slow together. A candidate whose range reaches zero is not recommended.

use serde::Serialize;
use trunkline_cluster::router;
use trunkline_core::config::setting;
use trunkline_core::draw::unit;
use trunkline_core::{eviction, policy};

use crate::rerun::{Change, Rerun, RerunError, Script, Served, Timing, Until, Value};
use crate::what_if::in_parallel;
use trunkline_sim_report::slo::Slos;

/// Share of the requests of each recording that the search sees.
const SEARCHED: f64 = 0.5;
/// Blocks of requests in a row of the held-out part of each recording.
const BLOCKS: usize = 20;
/// Drawings of blocks.
const DRAWS: u64 = 2000;
/// Ends of the range, as shares of the drawings: 95 of 100 are between them.
const RANGE: [f64; 2] = [0.025, 0.975];
/// Stream of draws of blocks; see [`trunkline_core::draw`].
const BLOCK_STREAM: u64 = 11;
/// A request is slower if it takes longer by this share.
const SLOWER: f64 = 0.1;

/// Candidate that was tried in the search.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Changes of the candidate.
    pub changes: Vec<Change>,
    /// Share of the requests within the limits; `None` if the settings are impossible.
    pub within: Option<f64>,
    /// Mean time to the end, seconds.
    pub e2e_mean_s: Option<f64>,
}

/// Comparison of the best candidate with the recorded settings, on requests that the search did not see.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proof {
    /// Held-out requests.
    pub requests: usize,
    /// Share within the limits with the recorded settings.
    pub within_before: f64,
    /// Share within the limits with the candidate.
    pub within_after: f64,
    /// Range of the gain of the share.
    pub gain: [f64; 2],
    /// Mean time to the end with the recorded settings, seconds.
    pub e2e_before_s: f64,
    /// Mean time to the end with the candidate, seconds.
    pub e2e_after_s: f64,
    /// Range of the relative change of that mean.
    pub e2e_change: [f64; 2],
    /// Share of the held-out requests that take longer by a tenth or more.
    pub slower: f64,
    /// `true` if the whole range is a gain: of the share, or, with equal shares, of the mean.
    pub confirmed: bool,
}

/// Result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// Best candidate of the search; empty if nothing is better than the recorded settings.
    pub best: Vec<Change>,
    /// Proof on the other requests; `None` without a candidate.
    pub proof: Option<Proof>,
    /// Share of the requests of the searched part within the limits, as recorded.
    pub recorded_within: f64,
    /// Candidates in the order of the search, the recorded settings first.
    pub tried: Vec<Tried>,
}

/// Recordings that cannot be tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A recording cannot run with changes.
    #[error(transparent)]
    Rerun(#[from] RerunError),
    /// Too few requests to prove anything.
    #[error("{found} requests completed, too few to search on one half and prove on the other; record at least {}", 4 * BLOCKS)]
    TooFew {
        /// Requests that completed.
        found: usize,
    },
    /// Too few requests in a half.
    #[error("{found} requests of the {half} half completed, too few to compare; record at least {BLOCKS} in each half")]
    TooFewInHalf {
        /// `first` or `second`.
        half: &'static str,
        /// Requests that completed there.
        found: usize,
    },
    /// Recordings of servers with different settings.
    #[error(
        "the recordings have different settings, so a change means something else in each; give recordings of one fleet"
    )]
    Settings,
}

/// Score of a candidate: share within the limits, and mean time to the end, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score {
    within: f64,
    e2e_ns: f64,
}

impl Score {
    fn is_better_than(self, other: Self) -> bool {
        self.within > other.within || (self.within == other.within && self.e2e_ns < other.e2e_ns)
    }
}

/// Outcome of a request: within the limits or not, and the time to its end, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Kept {
    within: bool,
    e2e_ns: f64,
}

/// Searches settings for recordings of one fleet. Calls `progress` with the number of candidates tried; tries `runs_max` at most.
///
/// # Errors
///
/// [`TuneError`] if there are too few requests, the recordings have different settings, or one cannot run with changes.
pub fn tune(
    scripts: &[Script],
    slos: &Slos,
    runs_max: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Tuned, TuneError> {
    check(scripts)?;
    let mut search = Search { scripts, slos, tried: Vec::new() };
    let before = search.score(&[Vec::new()])?[0].unwrap_or(Score { within: 0.0, e2e_ns: f64::INFINITY });
    let (mut best, mut score) = (Vec::new(), before);
    let settings = candidates(&scripts[0]);
    let mut rounds = 0;
    // The second round sees what the settings of the first make of others.
    while rounds < 2 && search.candidates() < runs_max {
        let at_start = score;
        for values in &settings {
            let left = runs_max.saturating_sub(search.candidates());
            let with = |change: &Change| with(&best, change);
            let tries: Vec<Vec<Change>> = values.iter().take(left).map(with).filter(|it| *it != best).collect();
            for (changes, found) in tries.iter().zip(search.score(&tries)?) {
                if let Some(found) = found.filter(|found| found.is_better_than(score)) {
                    (best, score) = (changes.clone(), found);
                }
            }
            progress(search.candidates());
        }
        rounds += 1;
        if score == at_start {
            break;
        }
    }
    let proof = if best.is_empty() { None } else { Some(search.prove(&best)?) };
    let recorded_within = search.recorded_within();
    Ok(Tuned { best, proof, recorded_within, tried: search.tried })
}

/// Checks that there is enough to search and to prove on, of one kind of server.
fn check(scripts: &[Script]) -> Result<(), TuneError> {
    let halves = completed_by_half(scripts);
    let found: usize = halves.iter().sum();
    if found < 4 * BLOCKS {
        return Err(TuneError::TooFew { found });
    }
    for (half, found) in ["first", "second"].into_iter().zip(halves) {
        if found < BLOCKS {
            return Err(TuneError::TooFewInHalf { half, found });
        }
    }
    if scripts.iter().any(|script| script.cluster != scripts[0].cluster) {
        return Err(TuneError::Settings);
    }
    Ok(())
}

/// Returns changes with one of them for its setting.
fn with(changes: &[Change], change: &Change) -> Vec<Change> {
    let is_same = |other: &&Change| match (other, change) {
        (Change::Router(_), Change::Router(_)) => true,
        (Change::Setting { name, .. }, Change::Setting { name: other, .. }) => name == other,
        _ => false,
    };
    let mut all: Vec<Change> = changes.iter().filter(|other| !is_same(other)).cloned().collect();
    all.push(change.clone());
    all
}

/// Returns the values to try of each setting, all but the recorded one: names from their registries, and half and twice the limits of a step.
fn candidates(script: &Script) -> Vec<Vec<Change>> {
    let core = &script.cluster.engines[0].core;
    let set = |name: &str, value: Value| {
        let name = setting(name).expect("the name is one of a setting").name;
        Change::Setting { name, value }
    };
    let names = |name: &str, recorded: &str, all: Vec<&str>| -> Vec<Change> {
        let others = all.into_iter().filter(|other| recorded.split(':').next() != Some(*other));
        others.map(|other| set(name, Value::Text(other.into()))).collect()
    };
    let mut all = vec![
        names("policy", &core.policy, policy::REGISTRY.names().collect()),
        names("eviction", &core.eviction, eviction::REGISTRY.names().collect()),
        ["0", "2x", "3x"].map(|target| set("target_step_ns", Value::Text(target.into()))).to_vec(),
        [0.5, 2.0].map(|times| set("max_batch_tokens", Value::Times(times))).to_vec(),
        [0.5, 2.0].map(|times| set("max_batch_size", Value::Times(times))).to_vec(),
    ];
    if script.cluster.engines.len() > 1 {
        let routers = router::REGISTRY.names().filter(|name| script.cluster.router.split(':').next() != Some(*name));
        all.insert(1, routers.map(|name| Change::Router(name.into())).collect());
    }
    let is_other = |change: &Change| {
        let mut cluster = script.cluster.clone();
        change.apply(&mut cluster).is_err() || cluster != script.cluster
    };
    all.iter_mut().for_each(|values| values.retain(is_other));
    all
}

struct Search<'a> {
    scripts: &'a [Script],
    slos: &'a Slos,
    tried: Vec<Tried>,
}

impl Search<'_> {
    /// Returns the number of candidates tried: the recorded settings, which come first, are none.
    fn candidates(&self) -> usize {
        self.tried.len().saturating_sub(1)
    }

    /// Scores candidates on the searched part, and notes them.
    fn score(&mut self, candidates: &[Vec<Change>]) -> Result<Vec<Option<Score>>, RerunError> {
        let jobs: Vec<(&Vec<Change>, &Script)> =
            candidates.iter().flat_map(|changes| self.scripts.iter().map(move |script| (changes, script))).collect();
        let slos = self.slos;
        let results = in_parallel(&jobs, |(changes, script)| {
            let n = searched(script);
            let run = script.rerun(changes, Timing::Fitted, Until::First(n))?;
            Ok(outcomes(script, &run, slos, 0..n))
        });
        let mut scores = Vec::new();
        let mut results = results.into_iter();
        for changes in candidates {
            let score = pooled(results.by_ref().take(self.scripts.len()).collect())?;
            let (within, e2e_mean_s) = (score.map(|it| it.within), score.map(|it| it.e2e_ns / 1e9));
            self.tried.push(Tried { changes: changes.clone(), within, e2e_mean_s });
            scores.push(score);
        }
        Ok(scores)
    }

    /// Returns the share of the searched requests within the limits, as recorded.
    fn recorded_within(&self) -> f64 {
        let of = |script: &Script| {
            let served = script.requests[..searched(script)].iter().filter(|served| served.completed());
            served.map(|served| self.slos.keeps(served.latencies_ns())).collect::<Vec<_>>()
        };
        let all: Vec<bool> = self.scripts.iter().flat_map(of).collect();
        all.iter().filter(|within| **within).count() as f64 / all.len().max(1) as f64
    }

    /// Compares a candidate with the recorded settings on the held-out requests.
    fn prove(&self, changes: &[Change]) -> Result<Proof, RerunError> {
        let jobs: Vec<(&[Change], &Script)> =
            self.scripts.iter().flat_map(|script| [(&[][..], script), (changes, script)]).collect();
        let results = in_parallel(&jobs, |(changes, script)| {
            let run = script.rerun(changes, Timing::Fitted, Until::End)?;
            Ok::<_, RerunError>(outcomes(script, &run, self.slos, searched(script)..script.requests.len()))
        });
        let mut blocks: Vec<Vec<(Kept, Kept)>> = Vec::new();
        let mut results = results.into_iter();
        while let (Some(before), Some(after)) = (results.next(), results.next()) {
            let pairs: Vec<(Kept, Kept)> = before?.into_iter().zip(after?).collect();
            blocks.extend(pairs.chunks(pairs.len().div_ceil(BLOCKS).max(1)).map(<[_]>::to_vec));
        }
        Ok(proof(&blocks))
    }
}

/// Returns the score of a candidate over all recordings; `None` if its settings are impossible.
fn pooled(results: Vec<Result<Vec<Kept>, RerunError>>) -> Result<Option<Score>, RerunError> {
    let mut all = Vec::new();
    for result in results {
        match result {
            Ok(kept) => all.extend(kept),
            Err(error @ (RerunError::Scores | RerunError::TooFewSteps { .. } | RerunError::Damaged)) => {
                return Err(error);
            }
            Err(RerunError::Config(_) | RerunError::Cluster(_) | RerunError::NoRequest(_) | RerunError::NoHints) => {
                return Ok(None);
            }
        }
    }
    let n = all.len().max(1) as f64;
    let within = all.iter().filter(|kept| kept.within).count() as f64 / n;
    Ok(Some(Score { within, e2e_ns: all.iter().map(|kept| kept.e2e_ns).sum::<f64>() / n }))
}

/// Returns the numbers of requests that completed among those that the search sees, and among the others.
fn completed_by_half(scripts: &[Script]) -> [usize; 2] {
    scripts.iter().fold([0; 2], |[first, second], script| {
        let halves = script.requests.split_at(searched(script));
        let completed = |half: &[Served]| half.iter().filter(|served| served.completed()).count();
        [first + completed(halves.0), second + completed(halves.1)]
    })
}

/// Returns the number of requests of a recording that the search sees: the first ones.
fn searched(script: &Script) -> usize {
    (script.requests.len() as f64 * SEARCHED) as usize
}

/// Returns the outcomes of a range of requests that completed in the recording.
fn outcomes(script: &Script, run: &Rerun, slos: &Slos, range: std::ops::Range<usize>) -> Vec<Kept> {
    let completed = range.filter(|at| script.requests[*at].completed());
    let kept = |at: usize| {
        let (served, ended) = (&script.requests[at], &run.requests[at]);
        let Some((end_ns, reason)) = ended.end else { return Kept { within: false, e2e_ns: f64::INFINITY } };
        let first_ns = ended.first_token_ns.unwrap_or(end_ns);
        let latencies_ns = served.latencies_of(first_ns, end_ns);
        let is_whole = served.end.is_some_and(|(_, recorded)| recorded == reason);
        Kept { within: is_whole && slos.keeps(latencies_ns), e2e_ns: (end_ns - served.at_ns) as f64 }
    };
    completed.map(kept).collect()
}

/// Compares pairs of outcomes, which come in blocks.
fn proof(blocks: &[Vec<(Kept, Kept)>]) -> Proof {
    let all = || blocks.iter().flatten();
    let n = all().count().max(1) as f64;
    let share = |of: fn(&(Kept, Kept)) -> bool| all().filter(|pair| of(pair)).count() as f64 / n;
    let mean = |of: fn(&(Kept, Kept)) -> f64| all().map(of).sum::<f64>() / n / 1e9;
    let (within_before, within_after) = (share(|(before, _)| before.within), share(|(_, after)| after.within));
    let (e2e_before_s, e2e_after_s) = (mean(|(before, _)| before.e2e_ns), mean(|(_, after)| after.e2e_ns));
    let mut draws: Vec<(f64, f64)> = (0..DRAWS).map(|draw| drawn(blocks, draw)).collect();
    let mut range = |of: fn(&(f64, f64)) -> f64| {
        draws.sort_by(|one, other| of(one).total_cmp(&of(other)));
        RANGE.map(|share| of(&draws[((draws.len() - 1) as f64 * share).round() as usize]))
    };
    let (gain, e2e_change) = (range(|draw| draw.0), range(|draw| draw.1));
    let is_equal = within_before == within_after && gain == [0.0; 2];
    let slower = share(|(before, after)| after.e2e_ns > before.e2e_ns * (1.0 + SLOWER));
    let confirmed = gain[0] > 0.0 || (is_equal && e2e_change[1] < 0.0);
    Proof {
        requests: all().count(),
        within_before,
        within_after,
        gain,
        e2e_before_s,
        e2e_after_s,
        e2e_change,
        slower,
        confirmed,
    }
}

/// Returns the gain of the share within the limits, and the relative change of the mean time, of blocks drawn with replacement.
fn drawn(blocks: &[Vec<(Kept, Kept)>], draw: u64) -> (f64, f64) {
    let (mut n, mut gained, mut before_ns, mut after_ns) = (0.0, 0.0, 0.0, 0.0);
    for place in 0..blocks.len() {
        let at = (unit(BLOCK_STREAM, draw, place as u64) * blocks.len() as f64) as usize;
        for (before, after) in &blocks[at.min(blocks.len() - 1)] {
            n += 1.0;
            gained += f64::from(u8::from(after.within)) - f64::from(u8::from(before.within));
            before_ns += before.e2e_ns;
            after_ns += after.e2e_ns;
        }
    }
    (gained / n, after_ns / before_ns - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_reaches_zero_confirms_nothing() {
        let kept = |within: bool, e2e_ns: f64| Kept { within, e2e_ns };
        let block = |before: bool, after: bool| vec![(kept(before, 2e9), kept(after, 2e9)); 10];
        let gains = |n: usize| [vec![block(false, true); n], vec![block(true, true); BLOCKS - n]].concat();
        assert!(!proof(&gains(1)).confirmed, "one block of twenty is missed by every third drawing");
        let half = proof(&gains(10));
        assert!(half.confirmed && half.within_before == 0.5 && half.within_after == 1.0, "{half:?}");
        assert!(half.gain[0] > 0.2 && half.gain[1] < 0.8, "{half:?}");
        let worse = proof(&vec![block(true, false); BLOCKS]);
        assert!(!worse.confirmed && worse.gain == [-1.0; 2]);
        // With all within the limits either way, the mean time decides.
        let faster = proof(&vec![vec![(kept(true, 2e9), kept(true, 1e9)); 5]; BLOCKS]);
        assert!(faster.confirmed && faster.e2e_change == [-0.5; 2] && faster.slower == 0.0);
        let equal = proof(&vec![vec![(kept(true, 2e9), kept(true, 2e9)); 5]; BLOCKS]);
        assert!(!equal.confirmed);
    }
}
