//! The worker's end of a connection against the server: texts are those of an embedded worker, whatever happens to the connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use trunkline_attach::check::{self, Verdict};
use trunkline_attach::worker::{self, Dialled, WorkerError};
use trunkline_attach::{Abilities, Hello, KvRoom, Session};
use trunkline_cluster::ClusterConfig;
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, H2oConfig, Preemption, WorkerFacts, Write};
use trunkline_port::{DeviceBlocks, Keeps, LayerGroup, ModelInfo, Step, StepError, StepOutput, StepRunner};
use trunkline_server::proto::{GetServerInfoResponse, Sampling};
use trunkline_server::{AttachOptions, EngineStore, Options, layout};
use trunkline_store::{StoreSettings, TierMedium};
use trunkline_tests::attached::{BLOCKS, Wire, hello};
use trunkline_tests::server::{Answer, Client, SEED, TestServer, collect, divided, greedy};
use trunkline_tests::tiered;
use trunkline_worker::{Model, Worker, WorkerConfig};

fn limits() -> Config {
    Config { device_blocks: BLOCKS, max_steps_in_flight: 2, ..Config::default() }
}

async fn start(core: Config, resume: Duration) -> TestServer {
    let attach = AttachOptions { engines: 1, resume, ..AttachOptions::default() };
    let options = Options { cluster: ClusterConfig::uniform(&core, 1), attach, ..Options::default() };
    TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.expect("the server starts")
}

/// A worker with the small model, in a runtime of its own that can be killed.
struct Running {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl Running {
    fn start(server: SocketAddr, name: &str) -> Self {
        Self::start_with(server, hello(name), Arc::new(Model::seeded(SEED)))
    }

    fn start_with(server: SocketAddr, hello: Hello, model: Arc<Model>) -> Self {
        Self::start_wrapped(server, hello, model, |worker| Box::new(worker))
    }

    /// Starts with workers that are wrapped whenever one is made.
    fn start_wrapped(
        server: SocketAddr,
        hello: Hello,
        model: Arc<Model>,
        mut wrap: impl FnMut(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopped) = watch::channel(false);
        let make = Box::new(move |session: &Session| {
            let config = WorkerConfig {
                block_size: session.block_size,
                device_blocks: session.blocks,
                max_drafts: session.max_drafts,
                threads: 1,
            };
            Ok(wrap(Worker::new(model.clone(), config)?))
        });
        let dial = Box::new(move || {
            let endpoint = Endpoint::from_shared(format!("http://{server}"));
            Box::pin(async move { Ok(Dialled { channel: endpoint?.connect().await?, authorization: None }) }) as _
        });
        let task = runtime.spawn(worker::run(hello, make, dial, stopped));
        Self { runtime: Some(runtime), stop, task }
    }

    /// Ends the worker at once, without a word to the server.
    fn kill(mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// Stops the worker in order.
    async fn stop(mut self) {
        self.stop.send_replace(true);
        (&mut self.task).await.unwrap().unwrap();
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

fn prompts() -> Vec<String> {
    let shared = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
    (0..8).map(|i| format!("{} Branch {}, leaf {i}.", &shared[..30 + 20 * (i % 4)], i % 3)).collect()
}

/// Asks all prompts at once; every third answer is drawn, the others are greedy.
async fn ask_all(mut client: Client) -> Vec<Answer> {
    let mut streams = Vec::new();
    for (i, prompt) in prompts().iter().enumerate() {
        let mut request = greedy(prompt, 100);
        if i % 3 == 2 {
            request.sampling = Some(Sampling { temperature: Some(0.9), seed: Some(i as u64), ..Sampling::default() });
        }
        streams.push(client.open(request).await.unwrap());
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    answers
}

/// Compares texts with those of an embedded worker.
async fn check(answers: &[Answer]) {
    let server = TestServer::start(limits()).await;
    let expected = ask_all(server.client().await).await;
    let texts = |answers: &[Answer]| answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(answers), texts(&expected));
}

fn steps(info: &GetServerInfoResponse) -> u64 {
    info.engines[0].worker.as_ref().map_or(0, |worker| worker.steps)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_texts_are_those_of_an_embedded_worker_and_the_worker_stops_in_order() {
    let server = start(limits(), Duration::from_secs(10)).await;
    let worker = Running::start(server.addr(), "a");
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    check(&ask_all(client.clone()).await).await;
    client.settled().await;
    worker.stop().await;
    client.until(|info| info.engines[0].worker.is_none()).await;
    server.drain().await;
}

/// A worker that is unfit from a step on.
struct Unfit {
    worker: Worker,
    from: u64,
}

impl StepRunner for Unfit {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        if step.id >= self.from {
            return Err(StepError::new("no weights").of_unfit_worker());
        }
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        StepRunner::reset(&mut self.worker);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_is_made_in_the_place_of_one_that_is_unfit() {
    let server = start(limits(), Duration::from_secs(10)).await;
    let made = Arc::new(AtomicU64::new(0));
    let counted = made.clone();
    let worker = Running::start_wrapped(server.addr(), hello("a"), Arc::new(Model::seeded(SEED)), move |worker| {
        let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        Box::new(Unfit { worker, from: if is_first { 20 } else { u64::MAX } })
    });
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    check(&ask_all(client.clone()).await).await;
    client.settled().await;
    worker.stop().await;
    assert_eq!(made.load(Ordering::Relaxed), 2);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_swapped_through_the_worker() {
    let core =
        Config { device_blocks: 14, host_blocks: 64, preemption: Preemption::Swap, launch_watermark: 0.0, ..limits() };
    let server = start(core, Duration::from_secs(10)).await;
    let worker = Running::start(server.addr(), "a");
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    check(&ask_all(client.clone()).await).await;
    let info = client.settled().await;
    assert!(info.counters.unwrap().preemptions > 0, "nothing was swapped out");
    worker.stop().await;
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_costs_no_kv() {
    let server = start(limits(), Duration::from_secs(30)).await;
    let wire = Wire::to(server.addr()).await;
    let worker = Running::start(wire.addr, "a");
    let mut client = server.client().await;
    let first = client.until(|info| info.engines[0].worker.is_some()).await;
    let answers = tokio::spawn(ask_all(client.clone()));
    let info = client.until(|info| steps(info) >= 3).await;
    assert!(info.load.unwrap().running > 0, "the answers ended before the cut");
    wire.cut();
    check(&answers.await.unwrap()).await;
    let last = client.settled().await;
    let life = |info: &GetServerInfoResponse| info.engines[0].worker.as_ref().map(|worker| worker.life);
    assert_eq!(life(&last), life(&first), "the KV was kept");
    worker.stop().await;
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_answers_loses_no_request() {
    let server = start(limits(), Duration::ZERO).await;
    let mut client = server.client().await;
    let answers = tokio::spawn(ask_all(client.clone()));
    for n in [2, 5, 9] {
        let worker = Running::start(server.addr(), "a");
        client.until(|info| steps(info) >= n).await;
        worker.kill();
        client.until(|info| info.engines[0].worker.is_none()).await;
    }
    let last = Running::start(server.addr(), "a");
    check(&answers.await.unwrap()).await;
    client.settled().await;
    last.stop().await;
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_passes_every_check_with_layer_groups_too() {
    let plain = Model::seeded(SEED);
    let n_layers = plain.info().n_layers;
    let group = |layers, keeps| LayerGroup { layers, keeps, ..LayerGroup::default() };
    let split = |keeps| vec![group(vec![0], Keeps::All), group((1..n_layers).collect(), keeps)];
    for (groups, drops) in [(Vec::new(), false), (split(Keeps::Scored), true), (split(Keeps::Window(16)), true)] {
        let model = Model::seeded(SEED).with_groups(groups).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hello = hello("checked");
        let abilities = Abilities { shared_memory: true, ..hello.abilities };
        let hello = Hello { model: model.info(), abilities, ..hello };
        let worker = Running::start_with(listener.local_addr().unwrap(), hello, Arc::new(model));
        let rows = check::run(listener, Duration::from_secs(60), |_| ()).await;
        for row in rows {
            let offered = row.name != "idle steps" && (drops || row.name != "dropped blocks");
            let passed = matches!((&row.verdict, offered), (Verdict::Pass, true) | (Verdict::NotOffered(_), false));
            assert!(passed, "{}: {:?}", row.name, row.verdict);
        }
        worker.stop().await;
    }
}

/// A Hello of a worker with room for the blocks of a configuration.
fn hello_for(core: &Config, model: &Model) -> Hello {
    let hello = hello("a");
    let tokens = u64::from(core.block_size) * u64::from(core.pool_blocks());
    let kv = KvRoom { block_sizes: vec![core.block_size], tokens, ..hello.kv };
    let abilities = Abilities { scores: true, scores_by_group: true, ..hello.abilities };
    Hello { model: model.info(), kv, abilities, ..hello }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_go_to_a_tier_and_come_back_through_the_connection() {
    let texts = tiered::plain_texts().await;
    let core = tiered::config(&[("host", Write::Through)]);
    let cluster = ClusterConfig::uniform(&core, 1);
    let attach = AttachOptions { engines: 1, ..AttachOptions::default() };
    let options = Options { cluster, attach, ..Options::default() };
    let stores = |model: &ModelInfo| {
        let mut settings = StoreSettings::new(layout(model, tiered::BLOCK_SIZE), 1 << 30);
        settings.tiers = vec![TierMedium::Host];
        vec![EngineStore::open(settings).unwrap()]
    };
    let server = TestServer::launch_stored(options, stores, |_, _| unreachable!("no embedded worker")).await.unwrap();
    let model = Arc::new(Model::seeded(SEED));
    let worker = Running::start_with(server.addr(), hello_for(&core, &model), model);
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    let first = tiered::ask_all(&mut client).await.0;
    client.settled().await;
    assert_eq!(first, texts);
    // Copies that took long on a busy machine are tried again after a while.
    let mut cached = Vec::new();
    while cached.iter().sum::<u32>() == 0 {
        assert!(cached.len() < 20 * texts.len(), "nothing was ever loaded");
        let (again, found) = tiered::ask_all(&mut client).await;
        assert_eq!(again, texts);
        cached.extend(found);
    }
    worker.stop().await;
    let stats = server.drain().await.stats.tiers[0];
    assert!(stats.stored_blocks > 0 && stats.hit_blocks > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_layer_groups_drops_what_an_embedded_one_drops() {
    let h2o = H2oConfig {
        mode: Mode::On,
        ratio: Some(4.0),
        sink: 4,
        recent: 8,
        trigger: 32,
        interval: 4,
        ..H2oConfig::default()
    };
    let core = Config {
        block_size: 4,
        device_blocks: 256,
        max_context: 512,
        max_batch_tokens: 64,
        max_batch_size: 8,
        max_steps_in_flight: 2,
        worker: WorkerFacts { groups: vec![Keeps::All, Keeps::Scored], ..WorkerFacts::default() },
        h2o,
        ..Config::default()
    };
    drops_what_an_embedded_one_drops(&core).await;
    let groups = vec![Keeps::All, Keeps::All, Keeps::Scored, Keeps::Scored];
    let worker = WorkerFacts { groups, ..WorkerFacts::default() };
    drops_what_an_embedded_one_drops(&Config { worker, h2o: H2oConfig { by_group: true, ..core.h2o }, ..core }).await;
}

async fn drops_what_an_embedded_one_drops(core: &Config) {
    let request = || greedy(&"a long prompt is read once and hardly ever again, ".repeat(4), 60);
    let embedded = TestServer::start(core.clone()).await;
    let expected = embedded.client().await.ask(request()).await.unwrap();
    embedded.drain().await;

    let server = start(core.clone(), Duration::from_secs(30)).await;
    let model = Arc::new(divided(core));
    let worker = Running::start_with(server.addr(), hello_for(core, &model), model);
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    let answer = client.ask(request()).await.unwrap();
    assert_eq!(answer.text, expected.text);
    let counters = client.info().await.counters.unwrap();
    assert!(counters.h2o_dropped_blocks > 20 && counters.h2o_plans > 5, "{counters:?}");
    worker.stop().await;
    server.drain().await;
}
