//! A cluster whose workers answer on command and prove what they read.

use std::collections::BTreeMap;

use trunkline_cluster::{Cluster, ClusterConfig, EngineId, HealthEvent, Input, Move, Output};
use trunkline_core::{Action, Config, Event, FinishReason, Namespace, Request, RequestId, Step, Token};
use trunkline_driver::oracle::OracleWorker;

/// A cluster, workers that prove every KV cell that they read, and everything that clients were sent.
pub struct Rig {
    pub cluster: Cluster,
    pub workers: Vec<OracleWorker>,
    pub now_ns: u64,
    pub steps: BTreeMap<u32, Box<Step>>,
    /// Number of each look-up that waits for an answer, after the engine that asked.
    pub lookups: Vec<(u32, u64)>,
    pub tokens: BTreeMap<u64, Vec<Token>>,
    pub ends: BTreeMap<u64, FinishReason>,
    pub moves: Vec<(u64, Move)>,
    pub refused: Vec<u64>,
    /// Events that changed the health of an engine.
    pub doubts: Vec<HealthEvent>,
}

/// Limits of an engine: batches of 8, and room for all requests of a test.
pub fn config() -> Config {
    Config {
        block_size: 16,
        device_blocks: 400,
        max_batch_tokens: 512,
        max_batch_size: 8,
        max_queue: 64,
        max_context: 512,
        launch_watermark: 0.0,
        ..Config::default()
    }
}

/// Token that every worker samples after `n_generated` others of a request.
pub fn token(request: u64, n_generated: u32) -> Token {
    1_000_000 + request as u32 * 1_000 + n_generated
}

impl Rig {
    pub fn new(config: &ClusterConfig) -> Self {
        let mut rig = Self {
            cluster: Cluster::new(config).unwrap(),
            workers: config.engines.iter().map(|engine| OracleWorker::new(&engine.core, 1)).collect(),
            now_ns: 0,
            steps: BTreeMap::new(),
            lookups: Vec::new(),
            tokens: BTreeMap::new(),
            ends: BTreeMap::new(),
            moves: Vec::new(),
            refused: Vec::new(),
            doubts: Vec::new(),
        };
        for engine in 0..config.engines.len() as u32 {
            rig.engine(engine, Event::WorkerJoined);
        }
        rig
    }

    pub fn engine(&mut self, engine: u32, event: Event) {
        self.input(Input::Engine(EngineId(engine), event));
    }

    pub fn input(&mut self, input: Input) {
        self.now_ns += 1;
        let mut out = Vec::new();
        self.cluster.handle(self.now_ns, input, &mut out);
        self.cluster.check();
        for output in out {
            match output {
                Output::Engine(EngineId(engine), Action::RunStep(step)) => {
                    self.workers[engine as usize].begin_step(&step);
                    assert!(self.steps.insert(engine, step).is_none(), "one step at a time");
                }
                Output::Engine(EngineId(engine), Action::Lookup(lookup)) => self.lookups.push((engine, lookup.id)),
                Output::Engine(_, Action::Token { request, token }) => {
                    self.tokens.entry(request.0).or_default().push(token);
                }
                Output::Engine(_, Action::Finish { request, reason, .. }) => {
                    assert!(self.ends.insert(request.0, reason).is_none(), "a request ends once");
                }
                Output::Moved { request, why, .. } => self.moves.push((request.0, why)),
                Output::Health { why, .. } => self.doubts.push(why),
                Output::Engine(_, Action::Transfer(_)) | Output::Placed { .. } => {}
                Output::Engine(_, Action::Refuse { request, .. }) => self.refused.push(request.0),
                other => panic!("{other:?} is not expected here"),
            }
        }
    }

    pub fn submit(&mut self, id: u64, n_prompt: u32, max_tokens: u32) {
        self.submit_for(0, id, n_prompt, max_tokens);
    }

    /// Submits a request of a tenant.
    pub fn submit_for(&mut self, tenant: u64, id: u64, n_prompt: u32, max_tokens: u32) {
        let prompt = (0..n_prompt).map(|at| id as u32 * 1_000 + at).collect();
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
        request.tenant = tenant;
        request.hash_prompt(16);
        let generated = (0..max_tokens).map(|n| token(id, n)).collect();
        let whole = Request { generated, ..request.clone() };
        self.workers.iter_mut().for_each(|worker| worker.expect_dictated(&whole));
        self.input(Input::Client(Event::Submit(Box::new(request))));
    }

    pub fn answer(&mut self, engine: u32) {
        let step = self.steps.remove(&engine).expect("a step is in flight");
        let worker = &mut self.workers[engine as usize];
        let result = worker.end_step_with(&step, |seq| vec![token(seq.request.0, seq.n_generated)]);
        self.engine(engine, Event::StepFinished(result));
    }

    /// The step of an engine fails. Its worker is reset, and joins again.
    pub fn fail(&mut self, engine: u32) {
        self.lose(engine);
        self.engine(engine, Event::WorkerJoined);
    }

    /// The worker of an engine is lost, and expected back.
    pub fn lose(&mut self, engine: u32) {
        self.steps.remove(&engine);
        self.workers[engine as usize].reset();
        self.engine(engine, Event::WorkerLost);
    }

    pub fn run_all(&mut self) {
        while let Some(engine) = self.steps.keys().next().copied() {
            self.answer(engine);
        }
    }

    /// Requests of an engine in the batch, and those that wait.
    pub fn counts(&self, engine: u32) -> (u32, u32) {
        let stats = self.cluster.core(EngineId(engine)).stats();
        (stats.running, stats.waiting)
    }

    pub fn at(&self, request: u64) -> Option<u32> {
        self.cluster.engine_of(RequestId(request)).map(|engine| engine.0)
    }

    /// Lengths of the prompts on each engine, of requests with these numbers and lengths.
    pub fn groups(&self, prompts: &[(u64, u32)]) -> Vec<Vec<u32>> {
        let of = |engine| prompts.iter().filter(|(id, _)| self.at(*id) == Some(engine)).map(|(_, n)| *n).collect();
        (0..self.cluster.n_engines() as u32).map(of).collect()
    }

    /// Asserts that a request got each of `n` tokens once and in order, and ended by length.
    pub fn assert_whole(&self, request: u64, n: u32) {
        assert!(self.tokens[&request].iter().copied().eq((0..n).map(|at| token(request, at))), "{request}");
        assert_eq!(self.ends[&request], FinishReason::Length);
    }
}
