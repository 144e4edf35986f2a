//! Explanations: where the time of a recorded request went, and who made it wait.
//!
//! The recorded inputs run through a cluster again, which notes the reasons behind its decisions. Between two inputs a followed request is in one
//! [`Part`], so the parts add up to the time between its arrival at the core and its end, to the nanosecond. At each wait those are named that hold
//! what the request waits for, and the time of the wait is divided among them:
//!
//! | wait | divided by |
//! |---|---|
//! | for blocks, or behind others that come back first | the device blocks that each request holds |
//! | for a seat in the batch | the requests in the batch, equally |
//! | for room in a step, for a step in flight, for steps of others | the tokens that each runs in the steps under way |
//! | for a prefix that another computes | the prompt tokens in the steps under way |
//!
//! In steps that run the request itself, each other prompt has the share of the step's tokens. Shared blocks count for each of their holders.
//!
//! [`explain`] reads a recording, for some requests or all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::Path;

use serde::Serialize;
use trunkline_cluster::{Cluster, EngineId, Input, Output};
use trunkline_core::core::event::Action;
use trunkline_core::{Lack, Preempted, RequestId};

use crate::recorded::{News, RecordingError, Replayed, Shown, Watcher, replay_watched, request_of};

mod engine;
mod follow;
mod part;

use engine::Engine;
use follow::Followed;
pub use part::{Part, Parts};

/// Requests to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// Every request.
    All,
    /// Requests of these numbers. A number that was used again stands for each of its requests.
    Requests(Vec<RequestId>),
    /// So many requests with the longest times.
    Slowest(usize),
}

/// Explanation of requests of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Comparison of the decisions with the recorded ones.
    pub replayed: Replayed,
    /// Requests in the order of arrival; the slowest first if they were asked for.
    pub requests: Vec<Explained>,
}

/// Cause for which a waiting request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The request itself lacks something.
    Lacks(Lack),
    /// Another one is before it in the queue, and lacks something.
    Behind(RequestId, Lack),
    /// Steps are in flight since it arrived, and nobody was admitted meanwhile.
    StepInFlight,
}

impl Why {
    fn lack(self) -> Option<Lack> {
        match self {
            Self::Lacks(lack) | Self::Behind(_, lack) => Some(lack),
            Self::StepInFlight => None,
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |lack| match lack {
            Lack::Blocks => "too few blocks are free",
            Lack::Seat => "the batch is full",
            Lack::Tokens => "the step has no room for its tokens",
            Lack::Prefix => "another request computes its next blocks",
            Lack::Lookup => "a shared tier is asked for its next blocks",
            Lack::Turn => "requests that ran before come first",
        };
        match self {
            Self::Lacks(lack) => f.write_str(text(*lack)),
            Self::Behind(request, lack) => write!(f, "behind request {request}: {}", text(*lack)),
            Self::StepInFlight => f.write_str("a step is in flight"),
        }
    }
}

impl Serialize for Why {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Interval in which a request waited for one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// Beginning on the recorded clock, nanoseconds.
    pub from_ns: u64,
    /// Length, nanoseconds.
    pub ns: u64,
    /// Engine of the request.
    pub engine: EngineId,
    /// Part of the request's time.
    pub part: Part,
    /// Cause of a wait in the queue.
    pub why: Option<Why>,
    /// Requests that held most of what this one waited for at the beginning, with their shares: blocks, seats or tokens.
    pub held_by: Vec<(RequestId, u64)>,
}

impl Wait {
    fn is_like(&self, engine: EngineId, part: Part, why: Option<Why>) -> bool {
        (self.engine, self.part, self.why) == (engine, part, why)
    }

    fn end_ns(&self) -> u64 {
        self.from_ns + self.ns
    }
}

/// Time of a request for which another one is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Blamed {
    /// The other request.
    pub request: RequestId,
    /// Time that this one waited for what the other held, nanoseconds.
    pub waited_ns: u64,
    /// Share of the other's prompt in steps that ran both, nanoseconds.
    pub shared_ns: u64,
}

impl Blamed {
    fn new(request: RequestId) -> Self {
        Self { request, waited_ns: 0, shared_ns: 0 }
    }

    fn add(&mut self, part: Part, ns: u64) {
        *(if part.is_work() { &mut self.shared_ns } else { &mut self.waited_ns }) += ns;
    }

    /// Returns the time in all.
    pub fn total_ns(&self) -> u64 {
        self.waited_ns + self.shared_ns
    }
}

/// Cause for which a block was not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissCause {
    /// The block left the device to make room, and no tier had it.
    Evicted {
        /// Time of the eviction, nanoseconds.
        at_ns: u64,
        /// Request that needed the room; `None` if room was made ahead of any need.
        by: Option<RequestId>,
    },
    /// Another engine had the block.
    Elsewhere {
        /// Engine with the longest prefix.
        engine: EngineId,
    },
    /// No engine had the block on its device.
    New,
}

/// First block of a prompt that was not in the cache at the first admission.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Miss {
    /// Number of the block, from 0.
    pub block: u32,
    /// Cause.
    pub cause: MissCause,
    /// Prompt tokens from there on that were evicted, or that the other engine had.
    pub tokens: u32,
    /// Time that these tokens would have saved: their share of the prefill, nanoseconds.
    pub saves_ns: u64,
}

/// Explanation of one request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Explained {
    /// Number of the request.
    pub id: RequestId,
    /// Tenant.
    pub tenant: u64,
    /// Arrival on the recorded clock, nanoseconds.
    pub submitted_ns: u64,
    /// First token, nanoseconds.
    pub first_token_ns: Option<u64>,
    /// End, nanoseconds.
    pub ended_ns: u64,
    /// Reason for the end; `unfinished` if the recording ended before.
    pub end: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache at the first admission.
    pub cached_tokens: u32,
    /// Tokens among these that were loaded from tiers.
    pub loaded_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Engines that had the request, in order.
    pub engines: Vec<EngineId>,
    /// Time by part: from arrival to end.
    pub parts: Parts,
    /// Time by part: from arrival to the first token.
    pub before_first_token: Parts,
    /// Waits in order, with their causes; of more than a thousand the longest.
    pub waits: Vec<Wait>,
    /// Waits left out.
    pub waits_left_out: usize,
    /// Requests to blame, the greatest part first.
    pub blamed: Vec<Blamed>,
    /// Preemptions with their times, nanoseconds.
    #[serde(serialize_with = "causes")]
    pub preemptions: Vec<(u64, Preempted)>,
    /// First block that was not in the cache; `None` if all were, or the request has not ended.
    pub miss: Option<Miss>,
}

fn causes<S: serde::Serializer>(all: &[(u64, Preempted)], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Cause {
        at_ns: u64,
        cause: &'static str,
        by: Option<RequestId>,
        swapped: bool,
    }
    let of = |(at_ns, it): &(u64, Preempted)| Cause {
        at_ns: *at_ns,
        cause: it.cause.name(),
        by: it.by,
        swapped: it.swapped,
    };
    serializer.collect_seq(all.iter().map(of))
}

impl Explained {
    /// Returns the time from arrival to end, nanoseconds.
    pub fn e2e_ns(&self) -> u64 {
        self.ended_ns - self.submitted_ns
    }

    /// Returns the time from arrival to the first token, nanoseconds.
    pub fn ttft_ns(&self) -> Option<u64> {
        self.first_token_ns.map(|ns| ns - self.submitted_ns)
    }

    fn keep_longest(&mut self, max: usize) {
        if self.waits.len() <= max {
            return;
        }
        self.waits_left_out = self.waits.len() - max;
        self.waits.sort_by_key(|wait| (Reverse(wait.ns), wait.from_ns));
        self.waits.truncate(max);
        self.waits.sort_by_key(|wait| wait.from_ns);
    }
}

/// Explains requests of the recording at `path`. Calls `progress` with the number of events now and then.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read, or is damaged before the end.
pub fn explain(path: &Path, of: &Of, progress: &mut dyn FnMut(u64)) -> Result<Explanation, RecordingError> {
    let wanted = match of {
        Of::All => None,
        Of::Requests(ids) => Some(ids.iter().copied().collect()),
        Of::Slowest(n) => {
            let mut ends = Ends { n: *n, ..Ends::default() };
            replay_watched(path, progress, &mut ends)?;
            Some(ends.slowest.into_iter().map(|Reverse((_, id))| id).collect())
        }
    };
    let mut following = Following { wanted, ..Following::default() };
    let replayed = replay_watched(path, progress, &mut following)?;
    let mut requests = following.into_requests();
    match of {
        Of::Slowest(n) => {
            requests.sort_by_key(|request| (Reverse(request.e2e_ns()), request.id));
            requests.truncate(*n);
        }
        _ => requests.sort_by_key(|request| (request.submitted_ns, request.id)),
    }
    Ok(Explanation { replayed, requests })
}

/// Finds the requests with the longest times.
#[derive(Default)]
struct Ends {
    n: usize,
    open: BTreeMap<RequestId, u64>,
    slowest: BinaryHeap<Reverse<(u64, RequestId)>>,
}

impl Watcher for Ends {
    fn hear(&mut self, at_ns: u64, input: &Input) {
        if let Some(request) = request_of(input) {
            self.open.entry(request.id).or_insert(at_ns);
        }
    }

    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        for output in shown.outputs {
            match action(output) {
                Some(Action::Finish { request, .. }) => {
                    let Some(since_ns) = self.open.remove(request) else { continue };
                    self.slowest.push(Reverse((shown.at_ns - since_ns, *request)));
                    if self.slowest.len() > self.n {
                        self.slowest.pop();
                    }
                }
                Some(Action::Refuse { request, refusal }) if *refusal != trunkline_core::Refusal::DuplicateId => {
                    self.open.remove(request);
                }
                _ => {}
            }
        }
    }
}

fn action(output: &Output) -> Option<&Action> {
    match output {
        Output::Engine(_, action) | Output::Cluster(action) => Some(action),
        _ => None,
    }
}

/// Requests followed through a recording.
#[derive(Default)]
struct Following {
    /// `None` for all.
    wanted: Option<BTreeSet<RequestId>>,
    engines: Vec<Engine>,
    block_size: u32,
    open: BTreeMap<RequestId, Followed>,
    ended: Vec<Explained>,
    at_ns: u64,
}

impl Following {
    fn into_requests(mut self) -> Vec<Explained> {
        let at_ns = self.at_ns;
        let unfinished = self.open.into_values().map(|request| request.end(at_ns, "unfinished".into(), None));
        self.ended.extend(unfinished);
        self.ended
    }

    /// Ends followed requests, and notes their tokens.
    fn take_outputs(&mut self, shown: &Shown) {
        for output in shown.outputs {
            match action(output) {
                Some(Action::Token { request, .. }) => {
                    if let Some(followed) = self.open.get_mut(request) {
                        followed.token(shown.at_ns);
                    }
                }
                Some(Action::Finish { request, reason, usage }) => {
                    let followed = self.open.remove(request);
                    self.ended.extend(followed.map(|it| it.end(shown.at_ns, reason.as_str().into(), Some(usage))));
                }
                Some(Action::Refuse { request, refusal }) if *refusal != trunkline_core::Refusal::DuplicateId => {
                    let followed = self.open.remove(request);
                    self.ended.extend(followed.map(|it| it.end(shown.at_ns, format!("refused: {refusal}"), None)));
                }
                _ => {}
            }
        }
    }
}

impl Watcher for Following {
    fn begin(&mut self, cluster: &mut Cluster) {
        cluster.note_reasons();
        cluster.note_preempted();
        let engine = |at| {
            let stages = cluster.core(EngineId(at)).config().pipeline_stages as usize;
            Engine::new(stages)
        };
        self.engines = (0..cluster.n_engines() as u32).map(engine).collect();
        self.block_size = cluster.core(EngineId(0)).config().block_size;
    }

    fn hear(&mut self, at_ns: u64, input: &Input) {
        let Some(request) = request_of(input) else { return };
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&request.id));
        if is_wanted && !self.open.contains_key(&request.id) {
            self.open.insert(request.id, Followed::new(at_ns, request, self.block_size));
        }
    }

    fn see(&mut self, shown: &Shown, cluster: &mut Cluster) {
        self.at_ns = shown.at_ns;
        self.open.values_mut().for_each(|followed| followed.pass(shown.at_ns));
        if let Some((engine, News::StepEnded(step))) = shown.news {
            let engine = &self.engines[engine.index()];
            self.open.values_mut().for_each(|followed| followed.computed(engine, step));
        }
        self.take_outputs(shown);
        for preempted in cluster.take_preempted() {
            if let Some(followed) = self.open.get_mut(&preempted.request) {
                followed.preempted(shown.at_ns, &preempted);
            }
        }
        let mut touched: BTreeSet<EngineId> = match shown.engine {
            Some(engine) => [engine].into(),
            None => (0..self.engines.len() as u32).map(EngineId).collect(),
        };
        touched.extend(shown.outputs.iter().filter_map(|output| match output {
            Output::Engine(engine, _) | Output::Moved { to: engine, .. } => Some(*engine),
            _ => None,
        }));
        for engine in &touched {
            self.engines[engine.index()].see(*engine, shown, cluster);
        }
        for followed in self.open.values_mut() {
            if cluster.engine_of(followed.id()).is_none_or(|engine| touched.contains(&engine)) {
                followed.look(cluster, &self.engines);
            }
        }
    }
}
