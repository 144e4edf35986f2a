//! Differences between two runs: the first decision that differs, and the effect on every request.
//!
//! Two runs are a recording and the same with changes ([`with_changes`]), or two recordings ([`of_recordings`]). Requests of two recordings are the same
//! if their prompts are, in the order of arrival. Their decisions are compared engine by engine, without times and numbers of requests and blocks:
//! the first step that runs other tokens of other prompts is the first difference.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use trunkline_cluster::{Cluster, EngineId, Input, Output};
use trunkline_core::RequestId;
use trunkline_core::core::event::Action;

use crate::recorded::{RecordingError, Shown, Watcher, replay_watched, request_of};
use crate::rerun::{Change, RerunError, Script, Served, Sources, Timing, Until, decisions_text, fold, prompt_mark};
use trunkline_sim_workload::summary::{Kept, Summary};

/// Times of a request that completed, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Arrival to first token.
    pub ttft_ns: u64,
    /// Arrival to end.
    pub e2e_ns: u64,
}

impl Times {
    fn of(served: &Served) -> Option<Self> {
        let (first_ns, e2e_ns) = (served.first_token_ns?, served.e2e_ns()?);
        served.completed().then(|| Self { ttft_ns: first_ns - served.at_ns, e2e_ns })
    }
}

/// Request in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Number of the request in the first run.
    pub id: RequestId,
    /// Number in the second.
    pub other_id: RequestId,
    /// Times in the first run.
    pub before: Times,
    /// Times in the second.
    pub after: Times,
}

impl Pair {
    /// Returns the time that the second run takes longer, nanoseconds.
    pub fn slower_ns(&self) -> i64 {
        self.after.e2e_ns as i64 - self.before.e2e_ns as i64
    }
}

/// First decision that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    /// Times in both runs, nanoseconds.
    pub at_ns: [u64; 2],
    /// Decisions in both runs.
    pub decisions: [String; 2],
}

/// Differences between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// First difference; `None` if all decisions are equal.
    pub first: Option<FirstDifference>,
    /// Figures of both runs over the requests that completed in both.
    pub figures: Vec<Figure>,
    /// Requests that completed in both runs, in order of arrival.
    pub pairs: Vec<Pair>,
    /// Requests that completed in one run alone: the first, the second.
    pub alone: [usize; 2],
    /// Sources of durations, of a run with changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Sources>,
}

/// Latency of both runs, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name: `ttft_p99`.
    pub name: &'static str,
    /// Value in the first run.
    pub before_s: f64,
    /// Value in the second.
    pub after_s: f64,
}

impl Figure {
    /// Returns the change as a share of the first value.
    pub fn change(&self) -> f64 {
        if self.before_s == 0.0 { 0.0 } else { self.after_s / self.before_s - 1.0 }
    }
}

/// Names of the figures.
pub const FIGURES: [&str; 6] = ["ttft_mean", "ttft_p50", "ttft_p99", "e2e_mean", "e2e_p50", "e2e_p99"];

/// Returns the figures of both runs.
pub(crate) fn figures(pairs: &[Pair]) -> Vec<Figure> {
    let summary = |of: &dyn Fn(&Pair) -> u64| -> Summary {
        let mut kept = Kept::default();
        pairs.iter().for_each(|pair| kept.record(of(pair)));
        kept.summary()
    };
    let ttft = [summary(&|pair| pair.before.ttft_ns), summary(&|pair| pair.after.ttft_ns)];
    let e2e = [summary(&|pair| pair.before.e2e_ns), summary(&|pair| pair.after.e2e_ns)];
    let values = [ttft, e2e]
        .into_iter()
        .flat_map(|[before, after]| [(before.mean, after.mean), (before.p50, after.p50), (before.p99, after.p99)]);
    FIGURES.into_iter().zip(values).map(|(name, (before_s, after_s))| Figure { name, before_s, after_s }).collect()
}

/// Compares a recording with its run with all of the changes.
///
/// # Errors
///
/// [`RerunError`] if a change is impossible, or the recording lacks what the run needs.
pub fn with_changes(script: &Script, changes: &[Change]) -> Result<Diff, RerunError> {
    let mut run = script.rerun(changes, Timing::Recorded, Until::End)?;
    if let Some(difference) = &mut run.first_difference {
        script.add_recorded(&mut [difference])?;
    }
    let first = run.first_difference.map(|difference| FirstDifference {
        at_ns: [difference.at_ns; 2],
        decisions: [difference.recorded.unwrap_or_default(), difference.decisions],
    });
    let (mut pairs, mut alone) = (Vec::new(), 0);
    for (served, ended) in script.requests.iter().zip(&run.requests) {
        let Some(before) = Times::of(served) else { continue };
        let after = ended.end.filter(|(_, reason)| served.end.is_some_and(|(_, recorded)| recorded == *reason));
        match (ended.first_token_ns, after) {
            (Some(first_ns), Some((end_ns, _))) => {
                let after = Times { ttft_ns: first_ns - served.at_ns, e2e_ns: end_ns - served.at_ns };
                pairs.push(Pair { id: served.id, other_id: served.id, before, after });
            }
            _ => alone += 1,
        }
    }
    Ok(Diff { first, figures: figures(&pairs), pairs, alone: [alone, 0], sources: Some(run.sources) })
}

/// Recordings that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// This version decides otherwise than the server did.
    #[error("{} does not replay to its decisions, so nothing is known of the server's; use the version that made it", .0.display())]
    Decisions(PathBuf),
}

/// Reads a recording that replays to its decisions.
///
/// # Errors
///
/// [`DiffError`] if the recording cannot be read, or this version decides otherwise.
pub fn load(path: &Path) -> Result<Script, DiffError> {
    let script = Script::load(path, &mut |_| {})?;
    if script.replayed.matches == Some(false) {
        return Err(DiffError::Decisions(path.into()));
    }
    Ok(script)
}

/// Compares two recordings.
///
/// # Errors
///
/// [`DiffError`] if a recording cannot be read, is damaged before the end, or does not replay to its decisions.
pub fn of_recordings(before: &Path, after: &Path) -> Result<Diff, DiffError> {
    let scripts = [load(before)?, load(after)?];
    let first = first_difference([before, after])?;
    let mut others: HashMap<(u64, u32), &Served> = HashMap::new();
    let mut seen: HashMap<u64, u32> = HashMap::new();
    for served in &scripts[1].requests {
        let n = seen.entry(served.prompt_mark).or_default();
        others.insert((served.prompt_mark, *n), served);
        *n += 1;
    }
    seen.clear();
    let mut pairs = Vec::new();
    for served in &scripts[0].requests {
        let n = seen.entry(served.prompt_mark).or_default();
        let other = others.get(&(served.prompt_mark, *n)).copied();
        *n += 1;
        if let (Some(before), Some((other, after))) =
            (Times::of(served), other.and_then(|it| Some((it, Times::of(it)?))))
        {
            pairs.push(Pair { id: served.id, other_id: other.id, before, after });
        }
    }
    let completed = |script: &Script| script.requests.iter().filter(|served| Times::of(served).is_some()).count();
    let alone = [completed(&scripts[0]) - pairs.len(), completed(&scripts[1]) - pairs.len()];
    Ok(Diff { first, figures: figures(&pairs), pairs, alone, sources: None })
}

/// Step of an engine: its mark, the number of the input behind which it began, and the time after the first arrival.
type Began = (u64, usize, u64);

/// Steps of each engine of a recording.
#[derive(Default)]
struct Steps {
    prompts: HashMap<RequestId, u64>,
    inputs: usize,
    first_ns: Option<u64>,
    engines: BTreeMap<EngineId, Vec<Began>>,
}

impl Watcher for Steps {
    fn hear(&mut self, at_ns: u64, input: &Input) {
        if let Some(request) = request_of(input) {
            self.first_ns.get_or_insert(at_ns);
            self.prompts.insert(request.id, prompt_mark(request));
        }
    }

    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        let number = self.inputs;
        self.inputs += 1;
        for output in shown.outputs {
            let Output::Engine(engine, Action::RunStep(step)) = output else { continue };
            let mark = step.seqs.iter().fold(0, |mark, seq| {
                let prompt = self.prompts.get(&seq.request).copied().unwrap_or_default();
                fold(fold(mark, prompt), u64::from(seq.computed) << 32 | u64::from(seq.n_tokens))
            });
            let after_ns = shown.at_ns - self.first_ns.unwrap_or(shown.at_ns);
            self.engines.entry(*engine).or_default().push((mark, number, after_ns));
        }
    }
}

/// Finds the decisions of one input.
struct At {
    input: usize,
    inputs: usize,
    found: Option<(u64, String)>,
}

impl Watcher for At {
    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        if self.inputs == self.input {
            self.found = Some((shown.at_ns, decisions_text(shown.outputs)));
        }
        self.inputs += 1;
    }
}

fn first_difference(paths: [&Path; 2]) -> Result<Option<FirstDifference>, RecordingError> {
    let mut steps = [Steps::default(), Steps::default()];
    for (path, steps) in paths.iter().zip(&mut steps) {
        replay_watched(path, &mut |_| {}, steps)?;
    }
    let [before, after] = &steps;
    let engines: std::collections::BTreeSet<EngineId> =
        before.engines.keys().chain(after.engines.keys()).copied().collect();
    let firsts = engines.iter().filter_map(|engine| {
        let of = |steps: &Steps| steps.engines.get(engine).cloned().unwrap_or_default();
        let (before, after) = (of(before), of(after));
        let same = before.iter().zip(&after).take_while(|(one, other)| one.0 == other.0).count();
        let next = (before.get(same).copied(), after.get(same).copied());
        (next != (None, None)).then_some(next)
    });
    let time = |(one, other): &(Option<Began>, Option<Began>)| one.or(*other).map_or(u64::MAX, |(.., at_ns)| at_ns);
    let Some((one, other)) = firsts.min_by_key(time) else { return Ok(None) };
    let mut first = FirstDifference { at_ns: [0; 2], decisions: [const { String::new() }; 2] };
    for (at, (path, began)) in paths.into_iter().zip([one, other]).enumerate() {
        let Some((_, input, _)) = began else {
            first.decisions[at] = "no further step".into();
            continue;
        };
        let mut finding = At { input, inputs: 0, found: None };
        replay_watched(path, &mut |_| {}, &mut finding)?;
        (first.at_ns[at], first.decisions[at]) = finding.found.unwrap_or_default();
    }
    Ok(Some(first))
}
