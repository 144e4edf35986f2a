//! A seeded run of a cluster under pressure: several cores with tiny pools, one content oracle for each, and engines that lose
//! their workers, are retired, drained and opened again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_cluster::{
    Cluster, ClusterConfig, EngineConfig, EngineId, EngineState, Input, Move, Output, Role, router,
};
use trunkline_core::{
    Action, Config, Event, FinishReason, Refusal, Request, RequestId, Step, StepResult, Token, Transfer, Usage,
    WORKER_FAILURES_MAX,
};

use crate::limits::{limits, pick};
use crate::oracle::{OracleWorker, continuation};
use crate::pressure::{LENGTHS, request, stops};

trunkline_driver::outcome! {
    /// Counts of a run.
    pub struct Outcome {
        /// Requests that ran to their own end.
        pub completed: u64,
        /// Requests that were aborted, stopped by the driver, timed out or failed.
        pub interrupted: u64,
        /// Requests that no engine could take over; part of the interrupted ones.
        pub orphaned: u64,
        /// Requests refused.
        pub refused: u64,
        /// Requests refused because no engine was in service.
        pub refused_by_all: u64,
        /// Requests that moved because their engine was retired.
        pub moved_lost: u64,
        /// Requests that moved because they failed alone on their engine.
        pub moved_failed: u64,
        /// Requests that moved because the steps of their engine failed in a row.
        pub moved_suspected: u64,
        /// Requests that moved because their engine was drained.
        pub moved_drained: u64,
        /// Requests that moved from a prefill to a decode engine.
        pub handed_over: u64,
        /// Requests that moved and then ran to their own end.
        pub moved_and_completed: u64,
        /// Workers lost and expected back.
        pub lost: u64,
        /// Engines retired.
        pub retired: u64,
        /// Steps that ended with another in flight behind them.
        pub steps_ahead: u64,
        /// Steps that a worker answered with nonsense.
        pub nonsense: u64,
        /// Drained engines that reported to be empty.
        pub emptied: u64,
    }
}

/// A request as the driver remembers it.
struct Known {
    request: Request,
    text: Vec<Token>,
    end: Option<FinishReason>,
    refused: bool,
    moved: bool,
}

/// The worker of one engine.
struct Engine {
    worker: OracleWorker,
    joined: bool,
    /// Steps in flight, oldest first. The worker has begun the first.
    steps: VecDeque<Box<Step>>,
    transfers: Vec<Transfer>,
    /// Of a hundred chances to join, about this many are taken.
    returns: u32,
}

impl Engine {
    fn reset(&mut self) {
        self.worker.reset();
        self.joined = false;
        self.steps.clear();
        self.transfers.clear();
    }

    /// The worker begins the oldest step in flight.
    fn begin_front(&mut self) {
        if let Some(step) = self.steps.front() {
            self.worker.begin_step(step);
        }
    }
}

struct Run {
    rng: Pcg64Mcg,
    config: ClusterConfig,
    cluster: Cluster,
    engines: Vec<Engine>,
    known: BTreeMap<RequestId, Known>,
    /// Requests that have no answer yet.
    live: BTreeSet<RequestId>,
    now_ns: u64,
    drained: u32,
    outcome: Outcome,
    /// Every input and its time, for a replay.
    inputs: Vec<(u64, Input)>,
}

/// Runs `requests` requests through a cluster whose engines, roles, router and limits are drawn from `seed`, checks every text
/// against the oracle, and replays the inputs through a second cluster, which must decide the same.
///
/// # Panics
/// Panics at the first fault.
pub fn run(seed: u64, requests: u64) -> Outcome {
    Run::of(seed, requests).0
}

/// Runs as [`run`] does, and returns the recording: the settings, and every input with its time.
///
/// # Panics
/// Panics at the first fault.
pub fn recorded(seed: u64, requests: u64) -> (ClusterConfig, Vec<(u64, Input)>, u64) {
    let (outcome, run) = Run::of(seed, requests);
    (run.config, run.inputs, outcome.digest)
}

impl Run {
    fn of(seed: u64, requests: u64) -> (Outcome, Self) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let config = settings(&mut rng);
        let engine = |engine: &EngineConfig, seed| Engine {
            worker: OracleWorker::new(&engine.core, seed),
            joined: false,
            steps: VecDeque::new(),
            transfers: Vec::new(),
            returns: 100,
        };
        let mut run = Run {
            engines: config.engines.iter().map(|config| engine(config, rng.next_u64())).collect(),
            cluster: Cluster::new(&config).expect("the settings are within their ranges"),
            config,
            rng,
            known: BTreeMap::new(),
            live: BTreeSet::new(),
            now_ns: 0,
            drained: 0,
            outcome: Outcome::default(),
            inputs: Vec::new(),
        };
        run.everything(requests);
        run.check_end();
        run.check_replay();
        (Outcome { digest: run.cluster.digest(), ..run.outcome }, run)
    }
}

fn settings(rng: &mut Pcg64Mcg) -> ClusterConfig {
    let core = limits(rng);
    let roles = pick(
        rng,
        &[
            &[Role::Both][..],
            &[Role::Both; 2],
            &[Role::Both; 3],
            &[Role::Both; 4],
            &[Role::Prefill, Role::Decode],
            &[Role::Prefill, Role::Decode, Role::Decode, Role::Prefill],
            &[Role::Both, Role::Prefill, Role::Decode],
        ],
    );
    let engines =
        roles.iter().map(|role| EngineConfig { core: one_of(rng, &core), role: *role, kv_class: 0 }).collect();
    let routers: Vec<_> = router::REGISTRY.names().collect();
    ClusterConfig { engines, router: pick(rng, &routers).into() }
}

/// Returns the limits of one engine: now and then with fewer blocks, so that not every request fits everywhere.
fn one_of(rng: &mut Pcg64Mcg, core: &Config) -> Config {
    let device_blocks = pick(rng, &[core.device_blocks, core.device_blocks, (core.device_blocks / 2).max(2)]);
    Config { device_blocks, ..core.clone() }
}

impl Run {
    fn everything(&mut self, requests: u64) {
        for n in 0..requests {
            for _ in 0..self.rng.random_range(0..12) {
                self.something();
            }
            self.submit(n);
        }
        let gentle = self.rng.random_range(0..4) > 0;
        self.input(Input::Client(if gentle { Event::Drain } else { Event::Shutdown }));
        self.engines.iter_mut().for_each(|engine| engine.returns = 100);
        for _ in 0..1_000_000 {
            if self.drained > 0 && self.engines.iter().all(|engine| engine.steps.is_empty()) {
                return;
            }
            self.now_ns += self.rng.random_range(0..1000);
            let engine = self.any_engine();
            self.advance(engine);
        }
        panic!("the cluster never drained: {} requests are left", self.cluster.requests());
    }

    fn any_engine(&mut self) -> EngineId {
        EngineId(self.rng.random_range(0..self.engines.len() as u32))
    }

    fn something(&mut self) {
        self.now_ns += self.rng.random_range(0..1000);
        let engine = self.any_engine();
        match self.rng.random_range(0..200) {
            0..3 => self.some_request(Event::Abort),
            3..5 => self.some_request(Event::Stop),
            5 => self.input(Input::Client(Event::Tick)),
            6 => {
                self.engines.iter_mut().for_each(|engine| engine.worker.flush());
                self.input(Input::Client(Event::FlushCache));
            }
            7 => self.lose(engine),
            8 => self.retire(engine),
            9 => self.input(Input::DrainEngine(engine)),
            10..13 => self.input(Input::OpenEngine(engine)),
            13 => self.answer_nonsense(engine),
            14 => self.answer_nothing(engine),
            15..30 => self.end_transfer(engine),
            _ => self.advance(engine),
        }
    }

    fn engine(&mut self, engine: EngineId) -> &mut Engine {
        &mut self.engines[engine.index()]
    }

    /// The worker of an engine makes progress: it joins, ends a copy, or ends its step.
    fn advance(&mut self, engine: EngineId) {
        let chance = self.rng.random_range(0..100);
        let worker = self.engine(engine);
        if worker.joined && (worker.steps.is_empty() || chance < 20) {
            self.end_transfer(engine);
        } else if worker.joined {
            self.end_step(engine, |_| ());
        } else if chance < worker.returns {
            worker.joined = true;
            worker.returns = 100;
            self.input(Input::Engine(engine, Event::WorkerJoined));
        }
    }

    /// A worker ends its step; its answer passes through `spoil`.
    fn end_step(&mut self, engine: EngineId, spoil: fn(&mut StepResult)) {
        let worker = self.engine(engine);
        let Some(step) = worker.steps.pop_front() else { return };
        let mut result = worker.worker.end_step(&step);
        let next = worker.steps.front().map(|step| step.id);
        self.cluster.recycle(engine, step);
        spoil(&mut result);
        self.outcome.steps_ahead += u64::from(next.is_some());
        // The worker begins the next step before the core has the answer to the last one, or after.
        let at_once = self.rng.random_range(0..2) == 0;
        if at_once {
            self.engine(engine).begin_front();
        }
        self.input(Input::Engine(engine, Event::StepFinished(result)));
        let worker = self.engine(engine);
        if !at_once && next.is_some() && worker.steps.front().map(|step| step.id) == next {
            worker.begin_front();
        }
    }

    /// A worker runs its step, but the answer lacks a sequence.
    fn answer_nonsense(&mut self, engine: EngineId) {
        self.outcome.nonsense += u64::from(!self.engine(engine).steps.is_empty());
        self.end_step(engine, |result| {
            result.ends.pop();
        });
    }

    /// An answer that no core waits for, as of a worker that was declared lost, must not matter.
    fn answer_nothing(&mut self, engine: EngineId) {
        let transfer = self.rng.random_range(0..1000);
        if self.engine(engine).transfers.iter().all(|other| other.id != transfer) {
            self.input(Input::Engine(engine, Event::TransferFinished(transfer)));
        }
        if self.engine(engine).steps.is_empty() {
            let result = StepResult { step: self.cluster.core(engine).stats().steps, ..StepResult::default() };
            self.input(Input::Engine(engine, Event::StepFinished(result)));
        }
    }

    /// Ends any one of the copies in flight on an engine; one in eight fails.
    fn end_transfer(&mut self, engine: EngineId) {
        let n = self.engine(engine).transfers.len();
        if n == 0 {
            return;
        }
        let (at, ok) = (self.rng.random_range(0..n), self.rng.random_range(0..8) > 0);
        let worker = self.engine(engine);
        let id = worker.transfers.swap_remove(at).id;
        worker.worker.end_transfer(id, ok);
        let event = if ok { Event::TransferFinished(id) } else { Event::TransferFailed(id) };
        self.input(Input::Engine(engine, event));
    }

    /// The worker of an engine is lost and expected back.
    fn lose(&mut self, engine: EngineId) {
        if self.engine(engine).joined {
            self.engine(engine).reset();
            self.outcome.lost += 1;
            self.input(Input::Engine(engine, Event::WorkerLost));
        }
    }

    /// The worker of an engine is lost for good; another may join after a while.
    fn retire(&mut self, engine: EngineId) {
        self.engine(engine).reset();
        self.engine(engine).returns = 10;
        self.outcome.retired += 1;
        self.input(Input::Retire(engine));
    }

    fn some_request(&mut self, event: fn(RequestId) -> Event) {
        // Mostly one that lives, at times one that ended or never was.
        let id = match self.live.len() {
            n if n > 0 && self.rng.random_range(0..8) > 0 => {
                *self.live.iter().nth(self.rng.random_range(0..n)).expect("there are as many")
            }
            _ => RequestId(self.rng.random_range(0..self.known.len() as u64 + 10)),
        };
        self.input(Input::Client(event(id)));
    }

    fn submit(&mut self, n: u64) {
        let previous = n.checked_sub(1).map(|before| &self.known[&RequestId(before)].request.prompt[..]);
        let block_size = self.config.engines[0].core.block_size;
        let mut request = request(&mut self.rng, n, previous, LENGTHS, (self.now_ns, block_size));
        if n % 8 == 5 {
            (request.prefetch, request.max_tokens) = (true, 0);
        }
        self.engines.iter_mut().for_each(|engine| engine.worker.expect(&request));
        let known = Known { request: request.clone(), text: Vec::new(), end: None, refused: false, moved: false };
        assert!(self.known.insert(request.id, known).is_none() && self.live.insert(request.id));
        // Now and then an operator places the request by hand.
        let by_hand = self.rng.random_range(0..20) == 0;
        let engine = self.any_engine();
        let takes =
            self.cluster.status(engine).role != Role::Decode && self.cluster.status(engine).state == EngineState::Up;
        let event = Event::Submit(Box::new(request));
        self.input(if by_hand && takes { Input::Engine(engine, event) } else { Input::Client(event) });
    }

    fn input(&mut self, input: Input) {
        self.inputs.push((self.now_ns, input.clone()));
        let mut outputs = Vec::new();
        self.cluster.handle(self.now_ns, input, &mut outputs);
        self.cluster.check();
        for output in outputs {
            self.perform(output);
        }
        self.check_progress();
    }

    /// Every unanswered request is on an engine, and no engine with a worker leaves its requests waiting for nothing.
    fn check_progress(&self) {
        assert_eq!(
            self.cluster.requests(),
            self.live.len(),
            "the cluster has other requests than those without an answer"
        );
        for id in &self.live {
            let at = self.cluster.engine_of(*id).expect("every unanswered request is on an engine");
            let engine = &self.engines[at.index()];
            let is_under_way = !engine.steps.is_empty() || !engine.transfers.is_empty();
            assert!(!engine.joined || is_under_way, "request {id} waits on {at}, which waits for nothing");
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Engine(engine, Action::RunStep(step)) => self.begin_step(engine, step),
            Output::Engine(engine, Action::ResetWorker) => self.engine(engine).reset(),
            Output::Engine(engine, Action::Transfer(transfer)) => {
                let worker = self.engine(engine);
                assert!(worker.joined, "transfer {} is for a worker that is not there", transfer.id);
                worker.worker.begin_transfer(&transfer);
                worker.transfers.push(*transfer);
            }
            Output::Engine(engine, Action::Cancel { transfer }) => {
                let is_under_way = self.engine(engine).transfers.iter().any(|other| other.id == transfer);
                assert!(is_under_way, "transfer {transfer} was answered");
            }
            Output::Engine(engine, Action::Release { place, blocks }) => {
                self.engine(engine).worker.release(place, &blocks);
            }
            Output::Engine(_, action) => self.answer(action),
            Output::Cluster(action) => {
                self.outcome.orphaned +=
                    u64::from(matches!(action, Action::Finish { reason: FinishReason::Error, .. }));
                self.answer(action);
            }
            Output::Placed { request, engine } => {
                assert!(self.live.contains(&request) && engine.index() < self.engines.len());
            }
            Output::Moved { request, from, to, why } => {
                let known = self.known.get_mut(&request).expect("a known request moves");
                assert!(
                    known.end.is_none() && !known.refused && from != to,
                    "request {request} moves from {from} to {to}"
                );
                known.moved = true;
                match why {
                    Move::Lost => self.outcome.moved_lost += 1,
                    Move::Failed => self.outcome.moved_failed += 1,
                    Move::Suspected => self.outcome.moved_suspected += 1,
                    Move::Drained => self.outcome.moved_drained += 1,
                    Move::HandedOver => self.outcome.handed_over += 1,
                }
            }
            Output::Health { .. } => {}
            Output::Emptied(engine) => {
                assert_eq!(self.cluster.status(engine).load.requests, 0);
                self.outcome.emptied += 1;
            }
        }
    }

    fn begin_step(&mut self, engine: EngineId, step: Box<Step>) {
        let ahead = |request| {
            let parts = self.engines[engine.index()].steps.iter().flat_map(|step| &step.seqs);
            parts.filter(|part| part.request == request && part.sample).count()
        };
        for seq in &step.seqs {
            assert!(self.live.contains(&seq.request), "request {} runs after its end", seq.request);
            let text = &self.known[&seq.request].text;
            assert_eq!(
                seq.n_generated as usize,
                text.len() + ahead(seq.request),
                "request {} lost count on its way to {engine}",
                seq.request
            );
        }
        let max = self.config.engines[engine.index()].core.max_steps_in_flight as usize;
        let worker = self.engine(engine);
        assert!(worker.joined && worker.steps.len() < max, "so many steps in flight, on a worker that is there");
        worker.worker.send_step(&step);
        worker.steps.push_back(step);
        if worker.steps.len() == 1 {
            worker.begin_front();
        }
    }

    /// Performs an action that is for clients.
    fn answer(&mut self, action: Action) {
        match action {
            Action::Token { request, token } => {
                let known = self.known.get_mut(&request).expect("a token for a known request");
                assert!(known.end.is_none() && !known.refused, "request {request} continues after its end");
                known.text.push(token);
            }
            Action::Finish { request, reason, usage } => self.finish(request, reason, usage),
            Action::Refuse { request, refusal } => {
                let known = self.known.get_mut(&request).expect("the refusal of a known request");
                assert!(known.end.is_none() && !known.refused && known.text.is_empty() && !known.moved);
                known.refused = true;
                self.outcome.refused += 1;
                self.outcome.refused_by_all += u64::from(refusal == Refusal::NoEngine);
                self.answered(request);
            }
            Action::Flushed { .. } => {}
            Action::Drained => {
                assert!(self.live.is_empty(), "drained, and {:?} are not answered", self.live);
                self.drained += 1;
            }
            action => panic!("{action:?} is of no client"),
        }
    }

    fn finish(&mut self, request: RequestId, reason: FinishReason, usage: Usage) {
        let known = self.known.get_mut(&request).expect("the end of a known request");
        assert!(known.end.replace(reason).is_none() && !known.refused, "request {request} ended twice");
        assert_eq!(usage.prompt_tokens as usize, known.request.prompt.len());
        assert_eq!(usage.completion_tokens as usize, known.text.len(), "request {request} says {reason:?}");
        assert!(usage.cached_tokens <= usage.prompt_tokens);
        let outcome = &mut self.outcome;
        match reason {
            FinishReason::Timeout => assert!(known.request.deadline_ns.is_some_and(|deadline| deadline <= self.now_ns)),
            FinishReason::Error => {
                let failures = outcome.lost + outcome.retired + outcome.nonsense;
                assert!(outcome.orphaned > 0 || failures >= u64::from(WORKER_FAILURES_MAX));
            }
            _ => {}
        }
        let own_end = reason == FinishReason::Length || known.text.last().is_some_and(|token| stops(*token));
        outcome.completed += u64::from(own_end);
        outcome.moved_and_completed += u64::from(own_end && known.moved);
        outcome.interrupted += u64::from(!own_end);
        self.answered(request);
    }

    fn answered(&mut self, request: RequestId) {
        assert!(self.live.remove(&request));
        self.engines.iter_mut().for_each(|engine| engine.worker.forget(request));
    }

    /// Every request has exactly one answer, and the text it would have alone, or a beginning of that text.
    fn check_end(&mut self) {
        assert_eq!(self.drained, 1);
        for (id, Known { request, text, end, refused, .. }) in &self.known {
            assert!(*refused != end.is_some(), "request {id} has no answer, or two");
            let mut alone = continuation(request.root, &request.prompt, request.max_tokens as usize);
            let first = request.min_tokens.max(1) as usize - 1;
            if let Some(stop) = alone.iter().skip(first).position(|token| stops(*token)) {
                alone.truncate(first + stop + 1);
            }
            assert!(alone.starts_with(text), "request {id} says {text:?}, alone it says {alone:?}");
            if *end == Some(FinishReason::Length) {
                assert_eq!(text.len(), request.max_tokens as usize, "request {id}");
            }
        }
        for at in 0..self.engines.len() {
            while !self.engines[at].transfers.is_empty() {
                self.end_transfer(EngineId(at as u32));
            }
        }
        self.input(Input::Client(Event::FlushCache));
        for (at, EngineConfig { core, .. }) in self.config.engines.iter().enumerate() {
            let stats = self.cluster.core(EngineId(at as u32)).stats();
            assert_eq!(stats.free_blocks, core.device_blocks, "a block leaked on engine {at}: {stats:?}");
            assert_eq!(stats.free_host_blocks, core.host_capacity(), "a host block leaked on engine {at}: {stats:?}");
        }
    }

    fn check_replay(&self) {
        let mut second = Cluster::new(&self.config).expect("the same settings");
        for (at_ns, input) in &self.inputs {
            second.handle(*at_ns, input.clone(), &mut Vec::new());
        }
        assert_eq!(second.digest(), self.cluster.digest(), "the replay decided differently");
        for at in 0..self.engines.len() as u32 {
            let (first, second) = (self.cluster.status(EngineId(at)), second.status(EngineId(at)));
            assert_eq!((first.state, first.stats), (second.state, second.stats), "the replay counted differently");
        }
    }
}
