//! Copies and steps that hang: clients are answered, and the blocks come back later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tonic::Code;
use trunkline_cluster::{ClusterConfig, EngineId};
use trunkline_core::{Config, Preemption};
use trunkline_port::{CopyError, DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_server::Options;
use trunkline_server::proto::{AbortRequest, FinishReason, GenerateRequest};
use trunkline_tests::server::{Client, TestServer, collect, gated, greedy};
use trunkline_worker::Worker;

/// A worker whose blocks are not read, or not written, until the gate's other end is dropped, and one of whose steps fails if the test wants.
struct Hanging {
    worker: Worker,
    blocks: Arc<HangingBlocks>,
    /// Set by a test whose next step fails.
    fails_next: Arc<AtomicBool>,
    stage: Stage,
    /// Takes the worker from one stage to the next; a test that drops its end wants no failure.
    signals: Receiver<()>,
}

/// Where a worker is on its way to the step that fails.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// The first step waits for a signal, so that the test says which requests the second finds.
    First,
    /// No step had two requests so far.
    Single,
    /// Two requests run. The step that has one of them left waits for a signal, and fails.
    Pair,
    Failed,
}

/// Direction of the copies that hang.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Read,
    Write,
}

struct HangingBlocks {
    blocks: Arc<dyn DeviceBlocks>,
    hanging: Direction,
    /// Notified when a copy begins to hang.
    hangs: Mutex<Sender<()>>,
    gate: Mutex<Receiver<()>>,
}

impl HangingBlocks {
    fn hang(&self, direction: Direction) {
        if direction == self.hanging {
            // A test that does not look has ended.
            let _ = self.hangs.lock().unwrap().send(());
            // An error means that the gate is open.
            let _ = self.gate.lock().unwrap().recv();
        }
    }
}

impl DeviceBlocks for HangingBlocks {
    fn block_bytes(&self) -> usize {
        self.blocks.block_bytes()
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.hang(Direction::Read);
        self.blocks.read(block, bytes)
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.hang(Direction::Write);
        self.blocks.write(block, bytes)
    }
}

impl StepRunner for Hanging {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        self.stage = match (self.stage, step.seqs.len()) {
            (Stage::First, _) => {
                // An error means that the test wants no failure; so below.
                let _ = self.signals.recv();
                Stage::Single
            }
            (Stage::Single, 2) => Stage::Pair,
            (Stage::Pair, 1) if self.signals.recv().is_ok() => Stage::Failed,
            (stage, _) => stage,
        };
        if self.stage == Stage::Failed || self.fails_next.swap(false, Ordering::Relaxed) {
            return Err(StepError::new("a failure that the test wants"));
        }
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.blocks.clone()
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

/// Blocks for one of two long requests, so that the other is swapped out.
fn config() -> Config {
    Config {
        device_blocks: 12,
        host_blocks: 64,
        preemption: Preemption::Swap,
        launch_watermark: 0.0,
        // Copies are not overdue by themselves.
        copy_timeout_ns: 0,
        ..Config::default()
    }
}

/// A server with a hanging worker first and whole ones later, and what its test holds of the worker.
struct Hung {
    server: TestServer,
    /// Copies that hang.
    hanging: Receiver<()>,
    /// Lets all copies pass when dropped.
    gate: Sender<()>,
    signal: Sender<()>,
    fails_next: Arc<AtomicBool>,
}

async fn serve(direction: Direction, step_timeout: Duration) -> Hung {
    let (hangs, hanging) = channel();
    let (gate, closed) = channel();
    let (signal, signals) = channel();
    let fails_next = Arc::new(AtomicBool::new(false));
    let first = Mutex::new(Some((hangs, closed, signals, Arc::clone(&fails_next))));
    let wrap = move |_: EngineId, mut worker: Worker| -> Box<dyn StepRunner> {
        let Some((hangs, gate, signals, fails_next)) = first.lock().unwrap().take() else { return Box::new(worker) };
        let (hangs, gate) = (Mutex::new(hangs), Mutex::new(gate));
        let blocks = StepRunner::blocks(&mut worker);
        let blocks = Arc::new(HangingBlocks { blocks, hanging: direction, hangs, gate });
        Box::new(Hanging { worker, blocks, fails_next, stage: Stage::First, signals })
    };
    let options = Options { cluster: ClusterConfig::uniform(&config(), 1), step_timeout, ..Options::default() };
    let server = TestServer::launch(options, wrap).await.unwrap();
    Hung { server, hanging, gate, signal, fails_next }
}

fn long(id: &str) -> GenerateRequest {
    GenerateRequest { request_id: id.into(), ..greedy(&format!("a long request called {id}"), 120) }
}

async fn abort(client: &mut Client, id: &str) {
    let found = client.0.abort(AbortRequest { request_ids: vec![id.into()] }).await.unwrap().into_inner().found;
    assert_eq!(found, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_copy_hangs_are_answered_and_the_blocks_come_back_with_the_copy() {
    let Hung { server, hanging, gate, signal, .. } = serve(Direction::Read, Duration::ZERO).await;
    drop(signal);
    let mut client = server.client().await;
    let first = client.open(long("first")).await.unwrap();
    let second = client.open(long("second")).await.unwrap();
    hanging.recv().unwrap();
    // One of the two is being swapped out; both are answered at once.
    for (id, stream) in [("first", first), ("second", second)] {
        abort(&mut client, id).await;
        assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Abort);
    }
    client.ask(greedy("short", 4)).await.unwrap();
    drop(gate);
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_does_not_wait_for_a_copy_that_hangs() {
    let Hung { server, hanging, gate, signal, .. } = serve(Direction::Read, Duration::ZERO).await;
    drop(signal);
    let mut client = server.client().await;
    let mut late = 0;
    // On a slow machine the first deadlines pass before a copy begins.
    for timeout_ms in [500, 2000, 8000, 32_000] {
        let timed = |id: &str| GenerateRequest { timeout_ms, ..long(&format!("{id} {timeout_ms}")) };
        let streams = [client.open(timed("first")).await.unwrap(), client.open(timed("second")).await.unwrap()];
        for stream in streams {
            // The request that is not swapped out may be done in time.
            late += u32::from(collect(stream).await.is_err_and(|status| status.code() == Code::DeadlineExceeded));
        }
        if hanging.try_recv().is_ok() {
            break;
        }
        late = 0;
    }
    assert!(late >= 1, "a copy hangs beyond the deadline");
    drop(gate);
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_while_a_copy_hangs_costs_the_worker_and_no_request() {
    // Long enough for the steps that wait for this test; the reset of the worker takes all of it.
    let Hung { server, hanging, gate, signal, .. } = serve(Direction::Read, Duration::from_secs(2)).await;
    let mut client = server.client().await;
    let first = client.open(long("first")).await.unwrap();
    let second = client.open(long("second")).await.unwrap();
    client.until(|info| info.load.unwrap().waiting == 1).await;
    signal.send(()).unwrap();
    hanging.recv().unwrap();
    let more = client.open(long("third")).await.unwrap();
    signal.send(()).unwrap();
    client.until(|info| info.engines[0].abandoned_workers == 1).await;
    // The new worker computes all of them, while the copy of the old one still hangs.
    let whole = TestServer::start(config()).await;
    let alone = whole.client().await.ask(greedy("a long request called first", 120)).await.unwrap().text;
    assert_eq!(collect(first).await.unwrap().text, alone);
    for stream in [second, more] {
        assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Length);
    }
    drop(gate);
    client.until(|info| info.engines[0].abandoned_workers == 0).await;
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_lost_while_a_block_is_written_to_it_costs_no_request() {
    // The reset of the worker takes all of the timeout.
    let Hung { server, hanging, gate, signal, fails_next } = serve(Direction::Write, Duration::from_secs(2)).await;
    drop(signal);
    let mut client = server.client().await;
    let streams = [client.open(long("first")).await.unwrap(), client.open(long("second")).await.unwrap()];
    // One was swapped out, the other is done, and the block written back hangs: the lost worker's host blocks are released meanwhile.
    hanging.recv().unwrap();
    fails_next.store(true, Ordering::Relaxed);
    let third = client.open(greedy("short", 4)).await.unwrap();
    client.until(|info| info.engines[0].abandoned_workers == 1).await;
    let whole = TestServer::start(config()).await;
    for (id, stream) in ["first", "second"].into_iter().zip(streams) {
        let alone = whole.client().await.ask(greedy(&format!("a long request called {id}"), 120)).await.unwrap().text;
        assert_eq!(collect(stream).await.unwrap().text, alone);
    }
    assert_eq!(collect(third).await.unwrap().reason, FinishReason::Length);
    drop(gate);
    client.until(|info| info.engines[0].abandoned_workers == 0).await;
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_step_hangs_are_answered_and_the_blocks_come_back_with_the_step() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |_| {}, wrap).await;
    let mut client = server.client().await;
    let stream = client.open(long("first")).await.unwrap();
    client.until(|info| info.counters.unwrap().steps == 1).await;
    abort(&mut client, "first").await;
    assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Abort);
    let blocks = client.info().await.blocks.unwrap();
    assert!(blocks.private > 0, "the step still writes them");
    drop(gate);
    client.settled().await;
}
