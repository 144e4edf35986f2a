//! Several workers behind one port, with one that fails, panics or ends while it serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use trunkline_cluster::{ClusterConfig, EngineConfig, EngineId, Role, router};
use trunkline_core::Config;
use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_server::Options;
use trunkline_server::proto::{EngineHealth, EngineRole, EngineState, FinishReason, GetServerInfoResponse};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{Answer, Client, Faulty, TestServer, collect, greedy, in_turn, panic_quietly};
use trunkline_worker::Worker;

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
/// The engine whose worker fails.
const FAULTY: EngineId = EngineId(1);
/// Step of the faulty worker that fails: in the middle of the answers.
const FAILS_AT: u64 = 6;

fn limits() -> Config {
    Config { device_blocks: 64, ..Config::default() }
}

fn healthy(_: EngineId, worker: Worker) -> Box<dyn StepRunner> {
    Box::new(worker)
}

fn prompts(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{} Branch {}, leaf {i}.", &TRUNK[..30 + 20 * (i % 4)], i % 7)).collect()
}

/// A worker that waits for the gate before step [`FAILS_AT`].
struct Waits {
    runner: Faulty,
    gate: Receiver<()>,
}

impl StepRunner for Waits {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        if step.id == FAILS_AT {
            // An error means that the gate is open.
            let _ = self.gate.recv();
        }
        self.runner.run(step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.runner.blocks()
    }

    fn reset(&mut self) {
        self.runner.reset();
    }
}

/// Sends all requests, one after another, and reads all answers.
async fn ask_all(client: &mut Client, prompts: &[String]) -> Vec<Answer> {
    ask_all_behind(None, client, prompts).await
}

/// The same, and the gate opens when the server has accepted all requests.
async fn ask_all_behind(gate: Option<mpsc::Sender<()>>, client: &mut Client, prompts: &[String]) -> Vec<Answer> {
    let mut streams = Vec::new();
    for prompt in prompts {
        streams.push(client.open(greedy(prompt, 24)).await.unwrap());
    }
    drop(gate);
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    client.settled().await;
    answers
}

async fn texts_of_one_worker(prompts: &[String]) -> Vec<String> {
    let server = TestServer::start(limits()).await;
    texts(&ask_all(&mut server.client().await, prompts).await)
}

fn texts(answers: &[Answer]) -> Vec<String> {
    answers.iter().map(|answer| answer.text.clone()).collect()
}

fn states(info: &GetServerInfoResponse) -> Vec<EngineState> {
    info.engines.iter().map(|engine| engine.state()).collect()
}

fn accepted(info: &GetServerInfoResponse) -> Vec<u64> {
    info.engines.iter().map(|engine| engine.counters.unwrap().accepted).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_serve_behind_one_port() {
    let prompts = prompts(8);
    let server = TestServer::start_cluster(in_turn(&limits(), 2), None, healthy).await;
    let mut client = server.client().await;
    client.until(|info| states(info) == [EngineState::Up, EngineState::Up]).await;
    let answers = ask_all(&mut client, &prompts).await;
    assert_eq!(texts(&answers), texts_of_one_worker(&prompts).await);

    let info = client.info().await;
    assert_eq!(accepted(&info), [4, 4], "in turn");
    let (total, engines) = (info.counters.unwrap(), &info.engines);
    assert_eq!(total.generated_tokens, 8 * 24);
    let sum = |field: fn(&trunkline_server::proto::EngineInfo) -> u64| engines.iter().map(field).sum::<u64>();
    assert_eq!(total.steps, sum(|engine| engine.counters.unwrap().steps));
    assert_eq!(u64::from(info.blocks.unwrap().free), sum(|engine| engine.blocks.unwrap().free.into()));
    for (at, engine) in engines.iter().enumerate() {
        assert_eq!((engine.number, engine.role()), (at as u32, EngineRole::Both));
        assert_eq!((engine.requests, engine.tokens), (0, 0), "all have ended");
    }
    assert_eq!(server.drain().await.stats.requests.finished, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_hands_over_to_a_decode_worker() {
    let prompts = prompts(6);
    let engine = |role| EngineConfig { core: limits(), role, kv_class: 0 };
    let cluster = ClusterConfig {
        engines: vec![engine(Role::Prefill), engine(Role::Decode)],
        ..ClusterConfig::uniform(&limits(), 1)
    };
    let server = TestServer::start_cluster(cluster, None, healthy).await;
    let mut client = server.client().await;
    let answers = ask_all(&mut client, &prompts).await;
    assert_eq!(texts(&answers), texts_of_one_worker(&prompts).await);
    let info = client.info().await;
    let roles: Vec<EngineRole> = info.engines.iter().map(|engine| engine.role()).collect();
    assert_eq!((roles, accepted(&info)), (vec![EngineRole::Prefill, EngineRole::Decode], vec![6, 6]));
    assert_eq!(info.engines[0].counters.unwrap().generated_tokens, 6, "the first token of each");
    server.drain().await;
}

/// Fault of a worker in its first life.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails,
    Panics,
    /// It fails and panics when it is reset, so that its threads end.
    Ends,
    /// It ends, and the first attempt to make another panics too.
    EndsTwice,
}

/// Runs requests on two engines, one of which has the fault, and returns the server and its client.
async fn run_with(fault: Fault, record: PathBuf, prompts: &[String]) -> (TestServer, Client, Vec<Answer>) {
    let made = AtomicU32::new(0);
    let (gate, waits) = mpsc::channel();
    let waits = Mutex::new(Some(waits));
    let wrap = move |engine, worker| -> Box<dyn StepRunner> {
        if engine != FAULTY {
            return Box::new(worker);
        }
        let first = match (made.fetch_add(1, Ordering::Relaxed), fault) {
            (1, Fault::EndsTwice) => panic_quietly(),
            (n, _) => n == 0,
        };
        let at = |faulty: bool| if first && faulty { vec![FAILS_AT] } else { Vec::new() };
        let ends = matches!(fault, Fault::Ends | Fault::EndsTwice);
        let faulty = Faulty {
            worker,
            fails_at: at(fault != Fault::Panics),
            panics_at: at(fault == Fault::Panics),
            panics_at_reset: first && ends,
        };
        match waits.lock().unwrap().take() {
            Some(gate) => Box::new(Waits { runner: faulty, gate }),
            None => Box::new(faulty),
        }
    };
    let server = TestServer::start_cluster(in_turn(&limits(), 2), Some(record), wrap).await;
    let mut client = server.client().await;
    client.until(|info| states(info) == [EngineState::Up, EngineState::Up]).await;
    let answers = ask_all_behind(Some(gate), &mut client, prompts).await;
    (server, client, answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_lost_costs_no_text_and_no_other_engine_and_serves_again() {
    let prompts = prompts(6);
    let expected = texts_of_one_worker(&prompts).await;
    let dir = tempfile::tempdir().unwrap();
    for fault in [Fault::Fails, Fault::Panics, Fault::Ends, Fault::EndsTwice] {
        let path = dir.path().join(format!("{fault:?}.jsonl.gz"));
        let (server, mut client, answers) = run_with(fault, path.clone(), &prompts).await;
        assert_eq!(texts(&answers), expected, "{fault:?}");
        for answer in answers.iter().step_by(2) {
            assert_eq!((answer.reason, answer.usage.preemptions), (FinishReason::Length, 0), "engine 0 lost nothing");
        }
        // The requests of a worker that is only reset stay on its engine, but for one that was alone in the step that failed; those of one that
        // ended move.
        let moves = matches!(fault, Fault::Ends | Fault::EndsTwice);
        let expected_there: &[[u64; 2]] = if moves { &[[6, 3]] } else { &[[3, 3], [4, 3]] };
        let accepted_there = accepted(&client.info().await);
        assert!(expected_there.iter().any(|expected| accepted_there == *expected), "{fault:?}: {accepted_there:?}");

        let before = client.until(|info| states(info) == [EngineState::Up, EngineState::Up]).await;
        assert_eq!(texts(&ask_all(&mut client, &prompts).await), expected, "{fault:?}, after the worker is back");
        let served = accepted(&client.info().await)[FAULTY.index()] - accepted(&before)[FAULTY.index()];
        assert_eq!(served, 3, "{fault:?}: the worker that was lost serves again");

        let outcome = server.drain().await;
        assert_eq!(outcome.failure, None);
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.digest, replayed.matches), (format!("{:016x}", outcome.digest), Some(true)), "{fault:?}");
        assert_eq!(replayed.requests, 12);
    }
}

/// A worker that never ends step [`FAILS_AT`] as long as the test runs.
struct Hangs {
    worker: Worker,
    gate: Option<Receiver<()>>,
}

impl StepRunner for Hangs {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        if let Some(gate) = self.gate.as_ref().filter(|_| step.id == FAILS_AT) {
            // An error means that the test is over.
            let _ = gate.recv();
        }
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_never_ends_costs_a_worker_and_no_text_and_late_answers_are_ignored() {
    let prompts = prompts(6);
    let expected = texts_of_one_worker(&prompts).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl.gz");
    for engines in [1, 2] {
        let (end, gate) = mpsc::channel();
        let gate = Mutex::new(Some(gate));
        let wrap = move |engine: EngineId, worker| -> Box<dyn StepRunner> {
            let is_last = engine.index() + 1 == engines;
            let gate = if is_last { gate.lock().unwrap().take() } else { None };
            Box::new(Hangs { worker, gate })
        };
        let options = Options {
            cluster: in_turn(&limits(), engines),
            record: Some(path.clone()),
            step_timeout: Duration::from_secs(1),
            ..Options::default()
        };
        let server = TestServer::launch(options, wrap).await.expect("the server starts");
        let mut client = server.client().await;
        client.until(|info| states(info).iter().all(|state| *state == EngineState::Up)).await;
        assert_eq!(texts(&ask_all(&mut client, &prompts).await), expected, "{engines} engines");
        let info = client.until(|info| states(info).iter().all(|state| *state == EngineState::Up)).await;
        assert_eq!(info.engines[engines - 1].abandoned_workers, 1);

        // The step ends after all, and the worker left behind with it.
        drop(end);
        client.until(|info| info.engines[engines - 1].abandoned_workers == 0).await;
        assert_eq!(texts(&ask_all(&mut client, &prompts).await), expected, "{engines} engines, afterwards");
        let outcome = server.drain().await;
        assert_eq!(outcome.failure, None);
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.digest, replayed.matches), (format!("{:016x}", outcome.digest), Some(true)));
    }
}

/// A worker that fails the steps chosen.
struct Fails {
    worker: Worker,
    chosen: fn(&Step) -> bool,
}

impl StepRunner for Fails {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        match (self.chosen)(step) {
            true => Err(StepError::new("a failure that the test wants")),
            false => StepRunner::run(&mut self.worker, step),
        }
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_every_step_costs_no_request_and_gets_none_under_each_router() {
    let prompts = prompts(9);
    let expected = texts_of_one_worker(&prompts).await;
    let dir = tempfile::tempdir().unwrap();
    for router in router::REGISTRY.names() {
        let path = dir.path().join(format!("{router}.jsonl.gz"));
        let wrap = |engine, worker| -> Box<dyn StepRunner> {
            match engine {
                FAULTY => Box::new(Fails { worker, chosen: |_| true }),
                _ => Box::new(worker),
            }
        };
        let cluster = ClusterConfig { router: router.into(), ..ClusterConfig::uniform(&limits(), 3) };
        let server = TestServer::start_cluster(cluster, Some(path.clone()), wrap).await;
        let mut client = server.client().await;
        client.until(|info| states(info) == [EngineState::Up; 3]).await;
        for _ in 0..4 {
            assert_eq!(texts(&ask_all(&mut client, &prompts).await), expected, "{router}");
        }
        let info = client.info().await;
        let healths: Vec<EngineHealth> = info.engines.iter().map(|engine| engine.health()).collect();
        assert_eq!([healths[0], healths[2]], [EngineHealth::Open; 2], "{router}");
        assert_ne!(healths[FAULTY.index()], EngineHealth::Open, "{router}");
        let finished = info.engines[FAULTY.index()].counters.unwrap().finished;
        assert_eq!(finished, 0, "{router}: it cannot end a request");
        let outcome = server.drain().await;
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.digest, replayed.matches), (format!("{:016x}", outcome.digest), Some(true)), "{router}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_on_every_worker_ends_alone_and_the_status_says_on_how_many() {
    let prompts = prompts(6);
    let expected = texts_of_one_worker(&prompts).await;
    let poison = "x".repeat(400);
    for (engines, says) in [(1, "failed on the only worker"), (2, "failed alone on more than one worker")] {
        let wrap = |_, worker| -> Box<dyn StepRunner> {
            Box::new(Fails { worker, chosen: |step| step.seqs.iter().any(|seq| seq.n_tokens >= 300) })
        };
        let server = TestServer::start_cluster(in_turn(&limits(), engines), None, wrap).await;
        let mut client = server.client().await;
        let mut asks = server.client().await;
        let (answers, ended) = tokio::join!(ask_all(&mut client, &prompts), async {
            let stream = asks.open(greedy(&poison, 4)).await.unwrap();
            collect(stream).await
        });
        assert_eq!(texts(&answers), expected);
        let status = ended.unwrap_err();
        assert!(status.code() == tonic::Code::Internal && status.message().contains(says), "{status:?}");
        server.drain().await;
    }
}
