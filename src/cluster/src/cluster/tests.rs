//! Clusters of cores with workers that answer on command and compare the contents of every KV cell that they read.

use std::collections::BTreeMap;

use trunkline_core::{Config, Namespace, Stats, TierConfig, Token, Write};
use trunkline_driver::oracle::OracleWorker;

use super::*;

/// A cluster, the steps in flight on its engines, and everything that clients were sent.
struct Rig {
    cluster: Cluster,
    workers: Vec<OracleWorker>,
    now_ns: u64,
    steps: BTreeMap<EngineId, Box<Step>>,
    tokens: BTreeMap<u64, Vec<Token>>,
    ends: Vec<(u64, FinishReason, u32)>,
    cached_tokens: BTreeMap<u64, u32>,
    refusals: Vec<(u64, Refusal)>,
    moves: Vec<(u64, u32, u32, Move)>,
    emptied: Vec<u32>,
    drained: u32,
    resets: Vec<u32>,
    /// Look-ups asked of shared tiers.
    lookups: u32,
}

fn config() -> Config {
    Config {
        block_size: 4,
        device_blocks: 32,
        max_batch_tokens: 32,
        max_batch_size: 4,
        max_queue: 8,
        max_context: 128,
        ..Config::default()
    }
}

fn roles(roles: &[Role]) -> ClusterConfig {
    let engines = roles.iter().map(|role| EngineConfig { core: config(), role: *role, kv_class: 0 }).collect();
    ClusterConfig { engines, router: ROUTER_DEFAULT.into() }
}

/// The token that every worker samples after `n_generated` others of a request.
fn token(request: u64, n_generated: u32) -> Token {
    request as u32 * 100 + n_generated
}

impl Rig {
    fn new(config: &ClusterConfig) -> Self {
        let mut rig = Self {
            cluster: Cluster::new(config).unwrap(),
            workers: config.engines.iter().map(|engine| OracleWorker::new(&engine.core, 1)).collect(),
            now_ns: 0,
            steps: BTreeMap::new(),
            tokens: BTreeMap::new(),
            ends: Vec::new(),
            cached_tokens: BTreeMap::new(),
            refusals: Vec::new(),
            moves: Vec::new(),
            emptied: Vec::new(),
            lookups: 0,
            drained: 0,
            resets: Vec::new(),
        };
        for engine in 0..config.engines.len() as u32 {
            rig.engine(engine, Event::WorkerJoined);
        }
        rig
    }

    fn input(&mut self, input: Input) {
        self.now_ns += 1;
        let mut out = Vec::new();
        self.cluster.handle(self.now_ns, input, &mut out);
        self.cluster.check();
        for output in out {
            match output {
                Output::Engine(engine, Action::RunStep(step)) => {
                    self.workers[engine.0 as usize].begin_step(&step);
                    assert!(self.steps.insert(engine, step).is_none(), "one step at a time");
                }
                Output::Engine(engine, Action::ResetWorker) => {
                    self.forget_worker(engine.0);
                    self.resets.push(engine.0);
                }
                Output::Engine(_, action) | Output::Cluster(action) => self.client(action),
                Output::Placed { .. } => {}
                Output::Moved { request, from, to, why } => self.moves.push((request.0, from.0, to.0, why)),
                Output::Health { .. } => {}
                Output::Emptied(engine) => self.emptied.push(engine.0),
            }
        }
    }

    fn client(&mut self, action: Action) {
        match action {
            Action::Token { request, token } => self.tokens.entry(request.0).or_default().push(token),
            Action::Finish { request, reason, usage } => {
                self.ends.push((request.0, reason, usage.completion_tokens));
                self.cached_tokens.insert(request.0, usage.cached_tokens);
            }
            Action::Refuse { request, refusal } => self.refusals.push((request.0, refusal)),
            Action::Drained => self.drained += 1,
            Action::Flushed { .. } | Action::Transfer(_) | Action::Cancel { .. } => {}
            Action::Lookup(_) => self.lookups += 1,
            Action::Adopt { .. } | Action::Release { .. } => {}
            action => panic!("{action:?} is for no client"),
        }
    }

    fn client_event(&mut self, event: Event) {
        self.input(Input::Client(event));
    }

    fn engine(&mut self, engine: u32, event: Event) {
        if event == Event::WorkerLost {
            self.forget_worker(engine);
        }
        self.input(Input::Engine(EngineId(engine), event));
    }

    fn forget_worker(&mut self, engine: u32) {
        self.steps.remove(&EngineId(engine));
        self.workers[engine as usize].reset();
    }

    /// Expects a request on every engine, for it may move, with all tokens that it is to generate.
    fn expect(&mut self, request: &Request) {
        let generated = (0..request.max_tokens).map(|n| token(request.id.0, n)).collect();
        let whole = Request { generated, ..request.clone() };
        self.workers.iter_mut().for_each(|worker| worker.expect_dictated(&whole));
    }

    fn retire(&mut self, engine: u32) {
        self.forget_worker(engine);
        self.input(Input::Retire(EngineId(engine)));
    }

    fn submit(&mut self, id: u64, tokens: u32, max_tokens: u32) {
        let prompt = (0..tokens).map(|at| id as u32 * 1_000 + at).collect();
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
        request.hash_prompt(4);
        if self.at(id).is_none() {
            self.expect(&request);
        }
        self.client_event(Event::Submit(Box::new(request)));
    }

    fn answer(&mut self, engine: u32) {
        let step = self.steps.remove(&EngineId(engine)).expect("a step is in flight");
        let worker = &mut self.workers[engine as usize];
        let result = worker.end_step_with(&step, |seq| vec![token(seq.request.0, seq.n_generated)]);
        self.engine(engine, Event::StepFinished(result));
    }

    fn run_all(&mut self) {
        while let Some(engine) = self.steps.keys().next().copied() {
            self.answer(engine.0);
        }
    }

    /// Runs all engines to the end but one, whose step hangs.
    fn run_others(&mut self, hanging: u32) {
        while let Some(engine) = self.steps.keys().map(|engine| engine.0).find(|engine| *engine != hanging) {
            self.answer(engine);
        }
    }

    fn at(&self, request: u64) -> Option<u32> {
        self.cluster.engine_of(RequestId(request)).map(|engine| engine.0)
    }

    fn stats(&self, engine: u32) -> Stats {
        self.cluster.core(EngineId(engine)).stats()
    }

    /// Asserts that a request got each token once and in order, and ended by length.
    fn assert_whole(&self, request: u64, n: u32) {
        let expected: Vec<_> = (0..n).map(|at| token(request, at)).collect();
        assert_eq!(self.tokens[&request], expected);
        let ends: Vec<_> = self.ends.iter().filter(|(id, ..)| *id == request).collect();
        assert_eq!(ends, [&(request, FinishReason::Length, n)]);
    }
}

#[test]
fn a_cluster_of_one_decides_as_its_core() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 1));
    let mut core = Core::new(config()).unwrap();
    let mut ignored = Vec::new();
    core.handle(1, Event::WorkerJoined, &mut ignored);
    for (id, tokens) in [(1, 9), (2, 200), (1, 5), (3, 0)] {
        rig.submit(id, tokens, 3);
        let prompt = (0..tokens).map(|at| id as u32 * 1_000 + at).collect();
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 3);
        request.hash_prompt(4);
        core.handle(rig.now_ns, Event::Submit(Box::new(request)), &mut ignored);
    }
    let refused: Vec<_> = rig.refusals.iter().map(|(id, _)| *id).collect();
    assert_eq!(refused, [2, 1, 3], "too long, a duplicate, empty");
    assert_eq!(rig.at(1), Some(0), "the refused duplicate leaves the first alone");
    rig.client_event(Event::Drain);
    core.handle(rig.now_ns, Event::Drain, &mut ignored);
    assert_eq!(rig.cluster.digest(), core.digest());
    rig.run_all();
    rig.assert_whole(1, 3);
    assert_eq!(rig.drained, 1);
}

#[test]
fn engines_take_turns_and_loads_follow() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 3));
    (0..4).for_each(|id| rig.submit(id, 8, 2));
    assert_eq!([0, 1, 2, 3].map(|id| rig.at(id)), [Some(0), Some(1), Some(2), Some(0)]);
    let load = rig.cluster.status(EngineId(0)).load;
    assert_eq!((load.requests, load.tokens, load.prefill_tokens), (2, 16, 16));
    rig.answer(0);
    let load = rig.cluster.status(EngineId(0)).load;
    assert_eq!((load.requests, load.tokens, load.prefill_tokens), (2, 17, 8), "one has its first token");
    rig.run_all();
    (0..4).for_each(|id| rig.assert_whole(id, 2));
    assert_eq!(rig.cluster.requests(), 0);
}

#[test]
fn requests_of_an_engine_that_is_expected_back_wait_for_it() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    (0..3).for_each(|id| rig.submit(id, 8, 3));
    (0..2).for_each(|_| rig.answer(0));
    rig.engine(0, Event::WorkerLost);
    assert_eq!((rig.at(0), rig.at(2), rig.moves.len()), (Some(0), Some(0), 0));
    rig.submit(4, 8, 2);
    rig.submit(5, 8, 2);
    assert_eq!((rig.at(4), rig.at(5)), (Some(1), Some(1)), "new requests go to the engine that is up");
    rig.engine(0, Event::WorkerJoined);
    rig.run_all();
    (0..3).for_each(|id| rig.assert_whole(id, 3));
    rig.engine(0, Event::WorkerLost);
    rig.engine(1, Event::WorkerLost);
    rig.submit(3, 8, 2);
    assert!(rig.at(3).is_some() && rig.refusals.is_empty(), "both are expected back, so one of them takes it");
}

#[test]
fn requests_of_a_retired_engine_continue_elsewhere_with_their_tokens() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 3));
    (0..6).for_each(|id| rig.submit(id, 8, 4));
    rig.answer(0);
    rig.retire(0);
    assert_eq!(rig.moves, [(0, 0, 1, Move::Lost), (3, 0, 2, Move::Lost)], "in the order in which they came");
    assert_eq!(rig.cluster.status(EngineId(0)).state, EngineState::Gone);
    rig.run_all();
    (0..6).for_each(|id| rig.assert_whole(id, 4));
    assert_eq!(rig.stats(0).requests.withdrawn, 2);
    rig.retire(1);
    rig.retire(2);
    rig.submit(7, 8, 2);
    assert_eq!(rig.refusals, [(7, Refusal::NoEngine)]);
    rig.engine(2, Event::WorkerJoined);
    rig.submit(8, 8, 2);
    rig.run_all();
    rig.assert_whole(8, 2);
}

#[test]
fn a_request_taken_back_while_its_step_hangs_moves_when_the_step_ends_or_the_worker_is_lost() {
    // The step ends late, or never: the engine loses its worker, for a while or for good.
    for ending in ["late", "lost", "retired"] {
        let turns = ClusterConfig { router: "round_robin".into(), ..ClusterConfig::uniform(&config(), 2) };
        let mut rig = Rig::new(&turns);
        (0..3).for_each(|id| rig.submit(id, 8, 4));
        (0..2).for_each(|_| rig.answer(0));
        rig.client_event(Event::Withdraw(RequestId(0)));
        rig.run_others(0);
        assert_eq!((rig.at(0), rig.moves.len()), (Some(0), 0), "the step that hangs may still write its blocks");
        assert_eq!((rig.tokens[&0].len(), rig.ends.len()), (2, 1), "the request of the other engine has ended");
        rig.client_event(Event::Withdraw(RequestId(2)));
        rig.client_event(Event::Abort(RequestId(2)));
        assert_eq!(rig.ends.last(), Some(&(2, FinishReason::Abort, 1)), "at once, and it moves nowhere");
        match ending {
            "late" => rig.answer(0),
            "lost" => rig.engine(0, Event::WorkerLost),
            _ => rig.retire(0),
        }
        assert_eq!(rig.moves, [(0, 0, 1, Move::Lost)], "{ending}");
        assert_eq!(rig.tokens[&0].len(), 2, "{ending}: a token of the step that hung is dropped, and computed again");
        rig.run_all();
        rig.assert_whole(0, 4);
        assert_eq!((rig.stats(0).requests.withdrawn, rig.ends.len(), rig.cluster.requests()), (1, 3, 0));
        rig.engine(0, Event::WorkerJoined);
        let stats = rig.stats(0);
        assert_eq!((stats.private_blocks, stats.held_blocks, stats.moving_blocks), (0, 0, 0), "{ending}");
    }
}

#[test]
fn requests_are_computed_again_where_that_is_done_soonest() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&Config { recompute_token_ns: 100, ..config() }, 3));
    let again_ns = |rig: &Rig| rig.cluster.again_ns(EngineId(0));
    assert_eq!(again_ns(&rig), None, "there is nothing to compute");
    (0..2).for_each(|id| rig.submit(id, 8, 4));
    assert_eq!(again_ns(&rig), Some(800), "the third engine is idle, and nobody has measured anything");
    rig.input(Input::DrainEngine(EngineId(2)));
    assert_eq!(again_ns(&rig), Some(1600), "after the prompt of the second");
    rig.answer(0);
    let measured_ns = again_ns(&rig).unwrap();
    assert!(
        (1..1700).contains(&measured_ns),
        "17 tokens; the only prefill measured took some nanoseconds: {measured_ns}"
    );
    rig.retire(1);
    assert_eq!(again_ns(&rig), None, "no engine takes requests over");
}

#[test]
fn the_last_engine_keeps_its_requests_when_it_is_retired() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    rig.submit(0, 8, 3);
    rig.retire(1);
    rig.retire(0);
    assert_eq!((rig.at(0), rig.moves.len()), (Some(0), 0));
    rig.engine(0, Event::WorkerJoined);
    rig.run_all();
    rig.assert_whole(0, 3);
}

#[test]
fn a_drained_engine_finishes_what_runs_and_hands_back_what_waits() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&Config { max_batch_size: 1, ..config() }, 2));
    (0..4).for_each(|id| rig.submit(id, 8, 2));
    rig.input(Input::DrainEngine(EngineId(0)));
    assert_eq!(rig.moves, [(2, 0, 1, Move::Drained)], "the running one stays");
    rig.submit(4, 8, 2);
    assert_eq!((rig.at(0), rig.at(4)), (Some(0), Some(1)));
    assert!(rig.emptied.is_empty());
    rig.answer(0);
    rig.answer(0);
    assert_eq!(rig.emptied, [0]);
    rig.run_all();
    (0..5).for_each(|id| rig.assert_whole(id, 2));
    rig.input(Input::OpenEngine(EngineId(0)));
    rig.submit(5, 8, 2);
    assert_eq!(rig.at(5), Some(0));
}

#[test]
fn a_request_that_breaks_every_worker_does_not_travel_for_ever() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 4));
    rig.submit(0, 8, 3);
    for engine in 0..4 {
        assert_eq!(rig.at(0), Some(engine));
        rig.engine(engine, Event::WorkerLost);
        if engine < 3 {
            rig.retire(engine);
        }
    }
    assert_eq!(rig.ends, [(0, FinishReason::Error, 0)], "all of them failed, and none was known to be good");
    assert_eq!(rig.cluster.requests(), 0);
}

#[test]
fn a_moved_request_that_nobody_takes_ends_with_an_error() {
    let small = Config { device_blocks: 2, ..config() };
    let mut two = ClusterConfig::uniform(&config(), 2);
    two.engines[1].core = small;
    let mut rig = Rig::new(&two);
    rig.submit(0, 16, 4);
    rig.answer(0);
    rig.retire(0);
    assert_eq!(rig.ends, [(0, FinishReason::Error, 1)]);
    assert!(rig.refusals.is_empty(), "the client was accepted, so it gets an end");
    assert_eq!(rig.cluster.status(EngineId(1)).load.requests, 0);
}

#[test]
fn a_moved_request_that_one_engine_refuses_goes_to_the_next() {
    let small = Config { device_blocks: 2, ..config() };
    let mut three = ClusterConfig::uniform(&config(), 3);
    three.engines[1].core = small;
    let mut rig = Rig::new(&three);
    rig.submit(0, 16, 4);
    rig.answer(0);
    rig.retire(0);
    assert_eq!(rig.moves, [(0, 0, 2, Move::Lost)], "engine 1 would be next in turn, and is too small");
    assert!(rig.refusals.is_empty() && rig.cluster.status(EngineId(1)).load.requests == 0);
    rig.run_all();
    rig.assert_whole(0, 4);
}

#[test]
fn prefill_engines_hand_over_after_the_first_token() {
    let mut rig = Rig::new(&roles(&[Role::Prefill, Role::Decode, Role::Decode]));
    (0..2).for_each(|id| rig.submit(id, 8, 3));
    assert_eq!((rig.at(0), rig.at(1)), (Some(0), Some(0)));
    rig.answer(0);
    rig.answer(0);
    assert_eq!(rig.moves, [(0, 0, 1, Move::HandedOver), (1, 0, 2, Move::HandedOver)]);
    assert!(rig.ends.is_empty() && rig.tokens[&0].len() == 1);
    rig.run_all();
    (0..2).for_each(|id| rig.assert_whole(id, 3));
    rig.submit(2, 8, 1);
    rig.answer(0);
    rig.assert_whole(2, 1);
    assert_eq!(rig.moves.len(), 2, "one token is prefill only");

    // Tokens seen so far stay right when the decode engine goes too: prefill and hand-over begin again behind them.
    rig.submit(3, 8, 4);
    rig.answer(0);
    let decode = rig.at(3).unwrap();
    rig.answer(decode);
    rig.retire(decode);
    assert_eq!(rig.at(3), Some(0));
    rig.run_all();
    rig.assert_whole(3, 4);
    // A prefill engine that goes in the middle of a prefill leaves the request whole.
    rig.submit(4, 8, 4);
    rig.retire(0);
    assert_eq!(rig.at(4), Some(0), "nobody else prefills");
    rig.engine(0, Event::WorkerJoined);
    rig.run_all();
    rig.assert_whole(4, 4);
}

#[test]
fn a_request_stays_on_its_prefill_engine_while_no_decode_engine_is_up() {
    let mut rig = Rig::new(&roles(&[Role::Prefill, Role::Decode]));
    rig.engine(1, Event::WorkerLost);
    assert_eq!(rig.cluster.status(EngineId(1)).state, EngineState::Absent);
    rig.submit(0, 8, 4);
    rig.run_all();
    rig.assert_whole(0, 4);
    assert_eq!(rig.moves, [], "it does not wait for a worker that may never come");
    rig.engine(1, Event::WorkerJoined);
    rig.submit(1, 8, 4);
    rig.run_all();
    rig.assert_whole(1, 4);
    assert_eq!(rig.moves, [(1, 0, 1, Move::HandedOver)]);
}

#[test]
fn an_untrusted_worker_is_absent_until_it_joins_again() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    rig.submit(0, 8, 3);
    let id = rig.steps.remove(&EngineId(0)).unwrap().id;
    rig.engine(0, Event::StepFinished(StepResult { step: id, ..StepResult::default() }));
    assert_eq!(rig.resets, [0]);
    assert_eq!(rig.cluster.status(EngineId(0)).state, EngineState::Absent);
    rig.submit(1, 8, 3);
    rig.submit(2, 8, 3);
    assert_eq!((rig.at(1), rig.at(2)), (Some(1), Some(1)));
    rig.engine(0, Event::WorkerJoined);
    rig.run_all();
    (0..3).for_each(|id| rig.assert_whole(id, 3));
}

#[test]
fn aborts_and_duplicates_find_their_engine_and_draining_ends_everywhere() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    (0..4).for_each(|id| rig.submit(id, 8, 2));
    rig.submit(1, 8, 2);
    assert_eq!(rig.refusals, [(1, Refusal::DuplicateId)]);
    rig.client_event(Event::Abort(RequestId(3)));
    rig.client_event(Event::Abort(RequestId(99)));
    rig.client_event(Event::Drain);
    rig.submit(5, 8, 2);
    assert_eq!(rig.refusals[1..], [(5, Refusal::Draining)]);
    assert_eq!(rig.drained, 0);
    rig.retire(0);
    assert!(!rig.moves.is_empty(), "requests still move while the cluster drains");
    rig.run_all();
    (0..3).for_each(|id| rig.assert_whole(id, 2));
    assert_eq!((rig.ends.len(), rig.drained), (4, 1));
}

#[test]
fn settings_that_cannot_work_are_named() {
    let error = |config: ClusterConfig| Cluster::new(&config).err().unwrap();
    let uniform = |n| ClusterConfig::uniform(&config(), n);
    assert_eq!(error(uniform(0)), ClusterError::EngineCount(0));
    let mut sizes = uniform(2);
    sizes.engines[1].core.block_size = 8;
    assert_eq!(error(sizes), ClusterError::BlockSizes { engine: EngineId(1), size: 8, first: 4 });
    let mut bad = uniform(2);
    bad.engines[1].core.device_blocks = 0;
    let bad = error(bad);
    let is_blocks = |error: &ConfigError| matches!(error, ConfigError::OutOfRange { name: "device_blocks", .. });
    assert!(matches!(&bad, ClusterError::Core { engine: EngineId(1), error } if is_blocks(error)), "{bad:?}");
    let router = error(ClusterConfig { router: "nearest".into(), ..uniform(2) });
    let is_unknown =
        |error: &RegistryError| matches!(error, RegistryError::UnknownName(error) if error.name == "nearest");
    assert!(matches!(&router, ClusterError::Router(error) if is_unknown(error)), "{router:?}");
    assert!(matches!(error(roles(&[Role::Prefill, Role::Prefill])), ClusterError::Roles { role: "decode", .. }));
    assert!(matches!(error(roles(&[Role::Decode])), ClusterError::Roles { role: "prefill", .. }));
}

#[test]
fn draining_the_only_decode_engine_lets_its_requests_end_there() {
    let mut config = roles(&[Role::Prefill, Role::Decode]);
    config.engines[1].core.max_batch_size = 1;
    let mut rig = Rig::new(&config);
    (0..2).for_each(|id| rig.submit(id, 8, 3));
    rig.answer(0);
    rig.answer(0);
    assert_eq!((rig.at(0), rig.at(1)), (Some(1), Some(1)), "one runs, one waits");
    rig.input(Input::DrainEngine(EngineId(1)));
    rig.run_all();
    (0..2).for_each(|id| rig.assert_whole(id, 3));
    assert_eq!(rig.emptied, [1]);
}

#[test]
fn without_a_decode_engine_requests_decode_on_their_prefill_engine() {
    let mut rig = Rig::new(&roles(&[Role::Prefill, Role::Decode]));
    rig.submit(0, 8, 3);
    rig.answer(0);
    rig.answer(1);
    rig.retire(1);
    assert_eq!(rig.moves[1..], [(0, 1, 0, Move::Lost)]);
    rig.submit(1, 8, 3);
    rig.run_all();
    (0..2).for_each(|id| rig.assert_whole(id, 3));
    assert_eq!(rig.moves.len(), 2, "nobody takes over what is prefilled now");
    rig.engine(1, Event::WorkerJoined);
    rig.submit(2, 8, 3);
    rig.answer(0);
    assert_eq!(rig.at(2), Some(1));
    rig.run_all();
    rig.assert_whole(2, 3);
}

#[test]
fn a_drained_engine_stays_out_of_service_when_its_worker_returns() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    rig.input(Input::DrainEngine(EngineId(0)));
    for lost in [Event::WorkerLost, Event::WorkerJoined] {
        rig.engine(0, lost);
        (0..2).for_each(|id| rig.submit(id, 8, 1));
        assert_eq!((rig.at(0), rig.at(1)), (Some(1), Some(1)));
        rig.run_all();
    }
    rig.retire(0);
    rig.engine(0, Event::WorkerJoined);
    assert_eq!(rig.cluster.status(EngineId(0)).state, EngineState::Draining);
    rig.input(Input::OpenEngine(EngineId(0)));
    assert_eq!(rig.cluster.status(EngineId(0)).state, EngineState::Up);
    (2..4).for_each(|id| rig.submit(id, 8, 1));
    assert!([rig.at(2), rig.at(3)].contains(&Some(0)));
}

#[test]
fn an_untrusted_worker_of_a_draining_engine_does_not_reopen_the_engine() {
    let mut rig = Rig::new(&ClusterConfig::uniform(&config(), 2));
    rig.submit(0, 8, 3);
    rig.input(Input::DrainEngine(EngineId(0)));
    let id = rig.steps.remove(&EngineId(0)).unwrap().id;
    rig.engine(0, Event::StepFinished(StepResult { step: id, ..StepResult::default() }));
    assert_eq!(rig.resets, [0]);
    assert_eq!(rig.cluster.status(EngineId(0)).state, EngineState::Closed);
    assert_eq!((rig.moves.as_slice(), rig.emptied.as_slice()), ([(0, 0, 1, Move::Lost)].as_slice(), [0].as_slice()));
    rig.run_all();
    rig.assert_whole(0, 3);
}

#[test]
fn a_request_that_times_out_in_its_hand_over_reports_what_the_prefill_found_cached() {
    let mut rig = Rig::new(&roles(&[Role::Prefill, Role::Decode]));
    rig.submit(0, 9, 3);
    rig.run_all();
    let prompt = (0..9).collect();
    let mut request = Request::new(RequestId(1), Namespace::default().root(), prompt, 3);
    request.hash_prompt(4);
    // Passes with the first token.
    request.deadline_ns = Some(rig.now_ns + 2);
    rig.client_event(Event::Submit(Box::new(request)));
    rig.answer(0);
    assert_eq!(rig.ends[1..], [(1, FinishReason::Timeout, 1)]);
    assert_eq!(rig.cached_tokens[&1], 8);
}

#[test]
fn tiers_outlive_the_worker_of_a_retired_engine_and_serve_the_next() {
    let tier = |name: &str, shared| {
        let (name, eviction) = (name.into(), "lru".into());
        TierConfig { name, blocks: 8, write: Write::Through, eviction, shared }
    };
    let mut rig = Rig::new(&ClusterConfig::uniform(&Config { tiers: vec![tier("host", false)], ..config() }, 1));
    rig.submit(0, 8, 2);
    rig.run_all();
    rig.engine(0, Event::TransferFinished(1));
    let blocks = |rig: &Rig| rig.stats(0).tiers[0].blocks;
    assert_eq!(blocks(&rig), 2, "the prompt is in the tier");
    rig.engine(0, Event::WorkerLost);
    rig.retire(0);
    assert_eq!(blocks(&rig), 2, "the store is the server's");

    let mut rig = Rig::new(&ClusterConfig::uniform(&Config { tiers: vec![tier("remote", true)], ..config() }, 1));
    rig.submit(0, 8, 2);
    assert_eq!(rig.lookups, 1);
    rig.retire(0);
    rig.engine(0, Event::WorkerJoined);
    rig.submit(1, 12, 2);
    assert_eq!(rig.lookups, 2, "the next worker's requests are looked up too");
}

/// Two engines of KV class 0 and one of class 1.
fn classes() -> ClusterConfig {
    let engine = |kv_class| EngineConfig { core: config(), role: Role::Both, kv_class };
    ClusterConfig { engines: [0, 1, 0].map(engine).to_vec(), router: ROUTER_DEFAULT.into() }
}

fn submit_of_class(rig: &mut Rig, id: u64, kv_class: u8) {
    let prompt = (0..8).map(|at| id as u32 * 1_000 + at).collect();
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 3);
    request.hash_prompt(4);
    request.kv_class = kv_class;
    rig.expect(&request);
    rig.client_event(Event::Submit(Box::new(request)));
}

#[test]
fn a_request_runs_on_engines_of_its_kv_class_alone() {
    let mut rig = Rig::new(&classes());
    (0..4).for_each(|id| submit_of_class(&mut rig, id, 1));
    (4..8).for_each(|id| submit_of_class(&mut rig, id, 0));
    let places: Vec<Option<u32>> = (0..8).map(|id| rig.at(id)).collect();
    assert_eq!(places[..4], [Some(1); 4], "however many there are already");
    assert!(places[4..].iter().all(|at| [Some(0), Some(2)].contains(at)), "{places:?}");
    // What an engine leaves behind goes to one of the class; where there is none, it waits for the worker.
    rig.retire(0);
    assert!((4..8).all(|id| rig.at(id) == Some(2)));
    rig.retire(1);
    assert!((0..4).all(|id| rig.at(id) == Some(1)), "{:?}", rig.moves);
    submit_of_class(&mut rig, 8, 1);
    assert_eq!(rig.refusals, [(8, Refusal::NoEngine)]);
    rig.engine(1, Event::WorkerJoined);
    rig.run_all();
    (0..8).for_each(|id| rig.assert_whole(id, 3));
}

#[test]
fn every_kv_class_has_both_roles() {
    let mut config = classes();
    config.engines[1].role = Role::Prefill;
    let error = Cluster::new(&config).err().unwrap().to_string();
    assert_eq!(
        error,
        "no engine takes over what others prefilled; give at least one engine the role 'decode' or 'both'"
    );
}
