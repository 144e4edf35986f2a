//! A recording in memory: its inputs in order, the decisions behind each, and what became of each request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

use serde::{Deserialize, Serialize};
use trunkline_cluster::{Cluster, ClusterConfig, EngineId, Input, Output};
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{FinishReason, Lookup, Refusal, Request, RequestId, Step, StepResult, Token};
use trunkline_sim_perf::cost::StepShape;
use trunkline_sim_perf::link;

use super::decisions::{mark, prompt_mark, step_mark};
use super::times::{Times, copy_mark};
use super::{Change, RerunError};
use crate::calibrate::Copies;
use crate::recorded::{self, News, RecordingError, Replayed, Shown, Watcher, replay_watched, request_of};

/// Recording in memory.
#[derive(Debug)]
pub struct Script {
    /// Settings of the recorded cluster.
    pub cluster: ClusterConfig,
    /// Comparison of the decisions.
    pub replayed: Replayed,
    /// Requests in the order of arrival.
    pub requests: Vec<Served>,
    pub(super) entries: Vec<Entry>,
    /// Mark of the decisions behind each input.
    pub(super) marks: Vec<u64>,
    pub(super) times: Times,
    /// Share of the drafts that were accepted.
    pub(super) acceptance: f64,
    /// Decisions behind each input, for people, if another version saved the recording.
    pub(super) texts: Vec<String>,
}

/// Request of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Number of the request.
    pub id: RequestId,
    /// Tenant.
    pub tenant: u64,
    /// Arrival, nanoseconds.
    pub at_ns: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// First token, nanoseconds.
    pub first_token_ns: Option<u64>,
    /// End and its reason; `None` if it was refused, or the recording ended before.
    pub end: Option<(u64, FinishReason)>,
    /// `true` for a prefetch, which has no answer.
    pub prefetch: bool,
    /// Mark of the prompt, to find the request in another recording.
    pub prompt_mark: u64,
    /// Tokens of the answer, with those before the submission.
    pub(super) output: Vec<Token>,
    /// Tokens among these that came with the request.
    pub(super) given: u32,
    /// Tokens at which the driver stopped it.
    pub(super) stop_at: Option<usize>,
    /// Token of an answer that is longer than recorded; it stops nothing.
    pub(super) filler: Token,
}

impl Served {
    fn new(at_ns: u64, request: &Request) -> Self {
        let stops = |token: &Token| request.stop_token_ids.contains(token);
        let filler = request.prompt.iter().copied().chain(0..).find(|token| !stops(token)).unwrap_or(0);
        Self {
            id: request.id,
            tenant: request.tenant,
            at_ns,
            prompt_tokens: request.prompt.len() as u32,
            first_token_ns: None,
            end: None,
            prefetch: request.prefetch,
            prompt_mark: prompt_mark(request),
            output: request.generated.clone(),
            given: request.generated.len() as u32,
            stop_at: None,
            filler,
        }
    }

    /// Returns `true` if the request ran to its own end, so that its time can be compared.
    pub fn completed(&self) -> bool {
        !self.prefetch && matches!(self.end, Some((_, FinishReason::Stop | FinishReason::Length)))
    }

    /// Returns `true` if arrival, first token and end follow each other.
    pub(super) fn is_in_order(&self) -> bool {
        let times = [Some(self.at_ns), self.first_token_ns, self.end.map(|(end_ns, _)| end_ns)];
        times.into_iter().flatten().is_sorted()
    }

    /// Returns TTFT, TPOT and E2E of the request, nanoseconds, with its tokens at these times.
    pub(crate) fn latencies_of(&self, first_ns: u64, end_ns: u64) -> [Option<u64>; 3] {
        let gaps = (self.output.len() as u64).saturating_sub(1);
        let tpot_ns = (end_ns - first_ns).checked_div(gaps);
        [Some(first_ns - self.at_ns), tpot_ns, Some(end_ns - self.at_ns)]
    }

    /// Returns TTFT, TPOT and E2E of the request as recorded, nanoseconds.
    pub(crate) fn latencies_ns(&self) -> [Option<u64>; 3] {
        match (self.first_token_ns, self.end) {
            (Some(first_ns), Some((end_ns, _))) => self.latencies_of(first_ns, end_ns),
            _ => [None; 3],
        }
    }

    /// Returns the time from arrival to end, nanoseconds.
    pub fn e2e_ns(&self) -> Option<u64> {
        self.end.map(|(end_ns, _)| end_ns - self.at_ns)
    }
}

/// Input of a recording.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub at_ns: u64,
    pub what: What,
}

/// Kinds of inputs, by their part in a run with other decisions.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A request comes; its place among the requests.
    Submit(usize, Box<Input>),
    /// Comes at its recorded time, whatever is decided.
    Fixed(Box<Input>),
    /// The driver found a stop string: comes with the recorded number of tokens.
    Stop(Box<Input>),
    /// The end of a step; the answer itself if it does not follow from the recorded texts.
    Step { engine: EngineId, step: u64, odd: Option<Box<StepResult>> },
    /// An answer of a worker or a store, a deadline, or the end of the server: follows from the decisions.
    Follows(Box<Input>),
}

/// Step in flight.
struct Flight {
    id: u64,
    mark: u64,
    shape: StepShape,
    begun_ns: u64,
    /// Requests of the sequences, with the tokens generated before, if they sample; without drafts.
    regular: Option<Vec<(RequestId, Option<u32>)>>,
}

/// Worker of one engine.
#[derive(Default)]
struct Worker {
    steps: VecDeque<Flight>,
    ended_ns: u64,
    copies: Copies,
    under_way: BTreeMap<u64, (u64, usize, u64, u64)>,
    lookups: BTreeMap<u64, (u64, Lookup)>,
}

#[derive(Default)]
struct Loading {
    requests: Vec<Served>,
    open: HashMap<RequestId, usize>,
    entries: Vec<Entry>,
    marks: Vec<u64>,
    times: Times,
    workers: BTreeMap<EngineId, Worker>,
    /// Drafts, and those accepted.
    drafts: (u64, u64),
}

impl Script {
    /// Reads the recording at `path`.
    ///
    /// # Errors
    ///
    /// [`RecordingError`] if it cannot be read, or is damaged before the end.
    pub fn load(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Self, RecordingError> {
        let cluster = recorded::settings(path)?;
        let mut loading = Loading::default();
        let replayed = replay_watched(path, progress, &mut loading)?;
        let Loading { requests, entries, marks, mut times, drafts, .. } = loading;
        times.fit();
        let acceptance = drafts.1 as f64 / drafts.0.max(1) as f64;
        Ok(Self { cluster, replayed, requests, entries, marks, times, acceptance, texts: Vec::new() })
    }

    /// Returns the events that submit requests, in order.
    fn submissions(&self) -> impl Iterator<Item = &Event> {
        self.entries.iter().filter_map(|entry| match &entry.what {
            What::Submit(_, input) => match &**input {
                Input::Client(event) | Input::Engine(_, event) => Some(event),
                _ => None,
            },
            _ => None,
        })
    }

    /// Returns `true` if requests have retention hints, or prefetch.
    pub(crate) fn has_hints(&self) -> bool {
        self.submissions().any(|event| match event {
            Event::Submit(request) => request.prefetch || !request.retention.is_empty(),
            _ => false,
        })
    }

    /// Checks that what a change leaves out is there.
    pub(super) fn check(&self, change: &Change) -> Result<(), RerunError> {
        match change {
            Change::Without(id) if self.requests.iter().all(|request| request.id != *id) => {
                Err(RerunError::NoRequest(*id))
            }
            Change::WithoutHints if !self.has_hints() => Err(RerunError::NoHints),
            _ => Ok(()),
        }
    }
}

impl Watcher for Loading {
    fn hear(&mut self, at_ns: u64, input: &Input) {
        let what = self.what(at_ns, input);
        self.entries.push(Entry { at_ns, what });
    }

    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        self.marks.push(mark(shown.outputs));
        if let Some((engine, news)) = shown.news {
            self.end_work(engine, news, shown.at_ns);
        }
        for output in shown.outputs {
            match output {
                Output::Engine(engine, Action::RunStep(step)) => self.begin_step(*engine, step, shown.at_ns),
                Output::Engine(engine, Action::Transfer(transfer)) => {
                    let worker = self.workers.entry(*engine).or_default();
                    worker.copies.begin(shown.at_ns, transfer);
                    let direction = link::direction(transfer.from, transfer.to);
                    let blocks = transfer.pairs.len() as u64;
                    let copy = (copy_mark(engine.0, transfer), direction, blocks, shown.at_ns);
                    worker.under_way.insert(transfer.id, copy);
                }
                Output::Engine(engine, Action::Lookup(lookup)) => {
                    let worker = self.workers.entry(*engine).or_default();
                    worker.lookups.insert(lookup.id, (shown.at_ns, (**lookup).clone()));
                }
                Output::Engine(engine, Action::ResetWorker) => self.end_work(*engine, News::Lost, shown.at_ns),
                Output::Engine(_, action) | Output::Cluster(action) => self.answer(shown.at_ns, action),
                _ => {}
            }
        }
    }
}

impl Loading {
    fn what(&mut self, at_ns: u64, input: &Input) -> What {
        if let Some(request) = request_of(input)
            && !self.open.contains_key(&request.id)
        {
            let at = self.requests.len();
            self.open.insert(request.id, at);
            self.requests.push(Served::new(at_ns, request));
            return What::Submit(at, Box::new(input.clone()));
        }
        let (Input::Client(event) | Input::Engine(_, event)) = input else {
            return What::Fixed(Box::new(input.clone()));
        };
        match (input, event) {
            (Input::Engine(engine, _), Event::StepFinished(result)) => self.step_ends(*engine, result),
            (_, Event::Stop(id)) => {
                if let Some(at) = self.open.get(id) {
                    self.requests[*at].stop_at = Some(self.requests[*at].output.len());
                }
                What::Stop(Box::new(input.clone()))
            }
            (Input::Engine(engine, _), Event::LookupEnded { lookup, found }) => {
                let worker = self.workers.entry(*engine).or_default();
                if let Some((begun_ns, question)) = worker.lookups.remove(lookup) {
                    self.times.lookup(&question, *found, at_ns - begun_ns);
                }
                What::Follows(Box::new(input.clone()))
            }
            (
                _,
                Event::TransferFinished(_)
                | Event::TransferFailed(_)
                | Event::TransferInterrupted(_)
                | Event::TransferPartial { .. }
                | Event::Tick
                | Event::Drain
                | Event::Shutdown,
            ) => What::Follows(Box::new(input.clone())),
            _ => What::Fixed(Box::new(input.clone())),
        }
    }

    /// Returns the entry of a step's end: without the answer if that follows from the texts.
    fn step_ends(&mut self, engine: EngineId, result: &StepResult) -> What {
        let worker = self.workers.entry(engine).or_default();
        let flight = worker.steps.front().filter(|flight| flight.id == result.step);
        let regular = flight.and_then(|flight| flight.regular.as_ref());
        let is_regular = regular.is_some_and(|seqs| {
            let texts = |(at, (request, n)): (usize, &(RequestId, Option<u32>))| match n {
                None => result.of(at).is_empty(),
                Some(n) => {
                    let text = self.open.get(request).map(|at| self.requests[*at].output.len());
                    result.of(at).len() == 1 && text == Some(*n as usize)
                }
            };
            let is_plain = result.failed.is_empty() && result.scores.is_empty();
            is_plain && result.ends.len() == seqs.len() && seqs.iter().enumerate().all(texts)
        });
        What::Step { engine, step: result.step, odd: (!is_regular).then(|| Box::new(result.clone())) }
    }

    fn begin_step(&mut self, engine: EngineId, step: &Step, at_ns: u64) {
        let drafts: u64 = step.seqs.iter().map(|seq| u64::from(seq.n_drafts)).sum();
        let plain = |seq: &trunkline_core::StepSeq| (seq.request, seq.sample.then_some(seq.n_generated));
        let flight = Flight {
            id: step.id,
            mark: step_mark(engine.0, step),
            shape: StepShape::of(step),
            begun_ns: at_ns,
            regular: (drafts == 0).then(|| step.seqs.iter().map(plain).collect()),
        };
        self.drafts.0 += drafts;
        self.workers.entry(engine).or_default().steps.push_back(flight);
    }

    fn end_work(&mut self, engine: EngineId, news: News, at_ns: u64) {
        let worker = self.workers.entry(engine).or_default();
        match news {
            News::StepEnded(id) => {
                if let Some(flight) = worker.steps.pop_front_if(|flight| flight.id == id) {
                    let begun_ns = flight.begun_ns.max(std::mem::replace(&mut worker.ended_ns, at_ns));
                    self.times.step(flight.mark, flight.shape, at_ns - begun_ns);
                    if flight.regular.is_none()
                        && let Some(Entry { what: What::Step { odd: Some(result), .. }, .. }) = self.entries.last()
                    {
                        let more = result.tokens.len().saturating_sub(flight.shape.sequences() as usize);
                        self.drafts.1 += more as u64;
                    }
                }
            }
            News::CopyEnded { id, is_whole } => {
                if let Some(period) = worker.copies.end(at_ns, id, is_whole) {
                    self.times.period(period);
                }
                if let Some((mark, direction, blocks, begun_ns)) = worker.under_way.remove(&id)
                    && is_whole
                {
                    self.times.copy(mark, direction, blocks, at_ns - begun_ns);
                }
            }
            News::Resumed => worker.steps.clear(),
            News::Lost | News::Joined => *worker = Worker { ended_ns: worker.ended_ns, ..Worker::default() },
        }
    }

    fn answer(&mut self, at_ns: u64, action: &Action) {
        match action {
            Action::Token { request, token } => {
                let Some(at) = self.open.get(request) else { return };
                let served = &mut self.requests[*at];
                served.first_token_ns.get_or_insert(at_ns);
                served.output.push(*token);
            }
            Action::Finish { request, reason, .. } => {
                if let Some(at) = self.open.remove(request) {
                    self.requests[at].end = Some((at_ns, *reason));
                }
            }
            Action::Refuse { request, refusal } if *refusal != Refusal::DuplicateId => {
                self.open.remove(request);
            }
            _ => {}
        }
    }
}
