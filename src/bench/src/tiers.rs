//! Serving while blocks move: steps and first tokens alongside swaps with slow copies, and alongside a remote store that does not answer.
//!
//! The server is a real one, with the null worker, whose steps take a fixed time, and with a device of blocks whose copies can be slowed. A step
//! counts from its start to the start of the next one. Each case runs in every round, so that a machine that gets slower does so for all.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use trunkline_cluster::ClusterConfig;
use trunkline_core::{Config, Preemption, TierConfig, Write};
use trunkline_port::{CopyError, DeviceBlocks, ModelInfo, Step, StepError, StepOutput, StepRunner};
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Stopping, TokenIds};
use trunkline_server::{Backend, EngineStore, MakeWorker, Options, SamplingOffer, Server, layout, listen};
use trunkline_store::{StoreSettings, TierMedium};
use trunkline_text::Tokenizer;

use super::measure::{Report, quantile};
use trunkline::model::null_worker::NullWorker;

const BLOCK_SIZE: u32 = 16;
/// Duration of a step of the worker.
const STEP: Duration = Duration::from_millis(4);
/// Duration of a slow copy of eight blocks, which one thread copies one after another.
const SLOW_COPY: Duration = Duration::from_millis(50);
const BLOCKS_OF_A_COPY: u32 = 8;
/// Deadline of an answer from remote storage, as in `serve`.
const DEADLINE: Duration = Duration::from_secs(5);

/// State behind the device in one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// No host memory: preempted requests are recomputed.
    Recompute,
    /// Host memory: preempted requests are swapped out, by slow copies.
    Swap,
    /// No tier, and no preemption.
    Nothing,
    /// Remote storage that refuses connections.
    Dead,
    /// Remote storage that accepts connections and never answers.
    Silent,
}

impl Behind {
    fn name(self) -> &'static str {
        match self {
            Self::Recompute => "preempted, recomputed",
            Self::Swap => "preempted, swapped, copies of 50 ms",
            Self::Nothing => "no tier",
            Self::Dead => "dead remote",
            Self::Silent => "silent remote",
        }
    }

    fn is_preempted(self) -> bool {
        matches!(self, Self::Recompute | Self::Swap)
    }
}

/// Cases in the order of a round; each is compared with the reference before it.
const CASES: [(Behind, Behind); 5] = [
    (Behind::Recompute, Behind::Recompute),
    (Behind::Swap, Behind::Recompute),
    (Behind::Nothing, Behind::Nothing),
    (Behind::Dead, Behind::Nothing),
    (Behind::Silent, Behind::Nothing),
];

/// Load of one case: clients that send one request after another.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: u32,
    requests: u32,
    prompt_tokens: u32,
    tokens: u32,
}

impl Load {
    fn of(behind: Behind, quick: bool) -> Self {
        let requests = if quick { 2 } else { 60 };
        match behind.is_preempted() {
            true => Self { clients: 24, requests: requests.min(4), prompt_tokens: 64, tokens: 192 },
            false => Self { clients: 8, requests, prompt_tokens: 256, tokens: 8 },
        }
    }

    /// Returns the blocks of one request at its end.
    fn blocks(self) -> u32 {
        (self.prompt_tokens + self.tokens).div_ceil(BLOCK_SIZE) + 1
    }
}

/// The null worker, with the time of every step, and with blocks of a size.
struct TimedWorker {
    worker: NullWorker,
    starts: Arc<Mutex<Vec<Instant>>>,
    blocks: Arc<Blocks>,
}

impl StepRunner for TimedWorker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        self.worker.run(step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::<Blocks>::clone(&self.blocks)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

/// Blocks of synthetic BF16, whose copies take a while.
struct Blocks {
    contents: Vec<u8>,
    copy: Duration,
}

impl Blocks {
    fn new(bytes: usize, copy: Duration) -> Self {
        // Exponents of numbers around 1, mantissas without a pattern: what compression takes a usual time for.
        let element = |at: u32| (0x3f80 ^ (at.wrapping_mul(2_654_435_761) >> 20 & 0x81ff) as u16).to_le_bytes();
        Self { contents: (0..bytes as u32 / 2).flat_map(element).collect(), copy }
    }

    fn wait(&self) {
        if !self.copy.is_zero() {
            thread::sleep(self.copy);
        }
    }
}

impl DeviceBlocks for Blocks {
    fn block_bytes(&self) -> usize {
        self.contents.len()
    }

    fn read(&self, _: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.wait();
        bytes.copy_from_slice(&self.contents);
        Ok(())
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        self.wait();
        Ok(())
    }
}

/// Returns facts of a model with blocks of 64 KiB.
fn model(vocab_size: u32) -> ModelInfo {
    let (n_layers, n_kv_heads, head_dim) = (4, 4, 64);
    let kv_bytes_per_token = u64::from(2 * n_layers * n_kv_heads * head_dim * 2);
    ModelInfo {
        n_layers,
        n_kv_heads,
        head_dim,
        kv_bytes_per_token,
        kv_dtype: "bf16".into(),
        ..NullWorker::info(vocab_size)
    }
}

/// Limits of the server: blocks for half of the clients if requests are to be preempted, else for all and for a cache.
fn core(behind: Behind, load: Load) -> Config {
    let all = load.blocks() * load.clients;
    let (name, eviction) = ("remote".into(), "lru".into());
    let remote = TierConfig { name, blocks: 1 << 20, write: Write::Through, eviction, shared: true };
    Config {
        block_size: BLOCK_SIZE,
        device_blocks: if behind.is_preempted() { all / 2 } else { 4 * all },
        host_blocks: if behind == Behind::Swap { all } else { 0 },
        preemption: if behind == Behind::Swap { Preemption::Swap } else { Preemption::Recompute },
        launch_watermark: 0.0,
        tiers: if matches!(behind, Behind::Dead | Behind::Silent) { vec![remote] } else { Vec::new() },
        ..Config::default()
    }
}

/// Opens the store of a case; `remote` is the address of storage that does not answer.
fn store(behind: Behind, model: &ModelInfo, core: &Config, remote: &str) -> anyhow::Result<EngineStore> {
    let mut settings = StoreSettings::new(layout(model, BLOCK_SIZE), 0);
    settings.host_bytes = u64::from(core.host_blocks) * settings.layout.memory_bytes();
    settings.background_blocks = 4096;
    settings.remote_blocks = u64::from(core.device_blocks) / 8;
    if matches!(behind, Behind::Dead | Behind::Silent) {
        let url = format!("s3://bench/kv?endpoint=http://{remote}&region=none&skip_signature=true");
        settings.tiers = vec![TierMedium::Remote { url, deadline: DEADLINE }];
    }
    Ok(EngineStore::open(settings)?)
}

/// Latencies of one case, milliseconds, sorted.
struct Run {
    steps: Vec<f64>,
    ttfts: Vec<f64>,
}

/// Figure of a [`Run`].
struct Figure {
    what: &'static str,
    quantile: f64,
    values: fn(&Run) -> &[f64],
}

const FIGURES: [Figure; 4] = [
    Figure { what: "step p50", quantile: 0.5, values: |run| &run.steps },
    Figure { what: "step p99", quantile: 0.99, values: |run| &run.steps },
    Figure { what: "TTFT p50", quantile: 0.5, values: |run| &run.ttfts },
    Figure { what: "TTFT p99", quantile: 0.99, values: |run| &run.ttfts },
];

/// Returns a backend whose worker notes the starts of its steps.
fn backend(
    behind: Behind,
    core: &Config,
    remote: &str,
    step: Duration,
    starts: &Arc<Mutex<Vec<Instant>>>,
) -> anyhow::Result<Backend> {
    let tokenizer = Tokenizer::bytes();
    let vocab_size = tokenizer.vocab_size();
    let model = model(vocab_size);
    let stores = vec![store(behind, &model, core, remote)?];
    let copy = if behind == Behind::Swap { SLOW_COPY / BLOCKS_OF_A_COPY } else { Duration::ZERO };
    let blocks = Arc::new(Blocks::new(stores[0].store.layout().block_bytes, copy));
    let starts = Arc::clone(starts);
    let workers: MakeWorker = Arc::new(move |_| {
        let (starts, blocks) = (Arc::clone(&starts), Arc::clone(&blocks));
        Ok(Box::new(TimedWorker { worker: NullWorker::new(step, vocab_size), starts, blocks }))
    });
    Ok(Backend { model, further_kv: Vec::new(), tokenizer, workers, stores, offer: SamplingOffer::default() })
}

/// Runs one case with a server of its own.
fn measure(behind: Behind, quick: bool) -> anyhow::Result<Run> {
    let load = Load::of(behind, quick);
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on the loopback")?;
    let remote = listener.local_addr()?.to_string();
    let silent = (behind == Behind::Silent).then(|| thread::spawn(move || hold(&listener)));
    let network = runtime("bench-network")?;
    let core = core(behind, load);
    core.validate()?;
    let starts = Arc::<Mutex<Vec<Instant>>>::default();
    let step = if quick { Duration::ZERO } else { STEP };
    let backend = backend(behind, &core, &remote, step, &starts)?;
    let options = Options { cluster: ClusterConfig::uniform(&core, 1), ..Options::default() };
    let options = Options { queue_per_client: Some(core.max_queue), ..options };
    let server = network.block_on(async { Server::new(listen("127.0.0.1:0").await?, backend, options).await })?;
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = network.spawn(server.run());
    let clients = runtime("bench-clients")?;
    let ttfts = clients.block_on(ask_all(load, &address));
    network.block_on(async {
        handle.drain().await;
        serving.await
    })??;
    if let Some(silent) = silent {
        // The thread ends with the first connection after the last call of the store.
        drop(TcpStream::connect(&remote));
        drop(silent.join());
    }
    let starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
    let mut steps: Vec<f64> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect();
    let mut ttfts = ttfts?;
    steps.sort_by(f64::total_cmp);
    ttfts.sort_by(f64::total_cmp);
    Ok(Run { steps, ttfts })
}

fn runtime(name: &str) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().thread_name(name).build().context("cannot start threads")
}

/// Accepts connections and answers nothing. Ends at a connection that its client closes at once.
fn hold(listener: &TcpListener) {
    let mut held = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        let is_closed =
            stream.set_read_timeout(Some(Duration::from_millis(50))).is_ok() && matches!(stream.peek(&mut [0]), Ok(0));
        if is_closed {
            break;
        }
        held.push(stream);
    }
}

/// Sends the whole load. Returns the time to the first token of each request, milliseconds.
async fn ask_all(load: Load, address: &str) -> anyhow::Result<Vec<f64>> {
    let channel = Endpoint::from_shared(address.to_owned())?.connect().await.context("cannot connect")?;
    let mut clients = JoinSet::new();
    for client in 0..load.clients {
        let channel = InferenceClient::new(channel.clone());
        clients.spawn(async move {
            let mut ttfts = Vec::new();
            for request in 0..load.requests {
                ttfts.push(ask(channel.clone(), load, client * load.requests + request).await?);
            }
            anyhow::Ok(ttfts)
        });
    }
    let mut all = Vec::new();
    while let Some(ttfts) = clients.join_next().await {
        all.extend(ttfts??);
    }
    Ok(all)
}

/// Sends request number `at`, whose prompt no other request has, and reads the answer. Returns the time to the first token, milliseconds.
async fn ask(mut client: InferenceClient<Channel>, load: Load, at: u32) -> anyhow::Result<f64> {
    let ids = (0..load.prompt_tokens).map(|i| if i < 4 { at >> (8 * i) & 0xff } else { i % 256 }).collect();
    let request = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids })),
        stopping: Some(Stopping { max_tokens: Some(load.tokens), ignore_eos: true, ..Stopping::default() }),
        ..GenerateRequest::default()
    };
    let begin = Instant::now();
    let mut stream = client.generate(request).await?.into_inner();
    let mut ttft = None;
    while let Some(message) = stream.message().await? {
        if let Some(Event::Chunk(_)) = message.event {
            ttft.get_or_insert_with(|| begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    ttft.context("an answer without a token")
}

/// Measures all cases in rounds.
///
/// # Errors
/// If a server cannot start, or a request fails.
pub fn run(quick: bool) -> anyhow::Result<Report> {
    let notes = vec![
        "One server with the null worker, steps of 4 ms, blocks of 64 KiB; a step lasts until the next one starts.",
        "Ratios are to the case without swaps, or without a remote, of the same round.",
    ];
    let mut report = Report::new("tiers", quick, notes);
    let rounds = if quick { 1 } else { 7 };
    let mut runs: Vec<[Option<Run>; CASES.len()]> = Vec::new();
    for round in 0..rounds {
        let mut row: [Option<Run>; CASES.len()] = Default::default();
        for at in 0..CASES.len() {
            // Every other round in reverse order: no case profits from its place.
            let at = if round % 2 == 0 { at } else { CASES.len() - 1 - at };
            row[at] = Some(measure(CASES[at].0, quick)?);
        }
        runs.push(row);
    }
    for (at, (behind, reference)) in CASES.iter().enumerate() {
        let reference_at = CASES.iter().position(|(case, _)| case == reference).unwrap_or(at);
        for Figure { what, quantile: q, values } in FIGURES {
            let value = |row: &[Option<Run>; CASES.len()], at: usize| {
                row[at].as_ref().map_or(f64::NAN, |run| quantile(values(run), q))
            };
            report.add(what, behind.name(), "ms", runs.iter().map(|row| value(row, at)).collect());
            if at != reference_at {
                let ratio = |row: &[Option<Run>; CASES.len()]| value(row, at) / value(row, reference_at);
                report.add(&format!("{what}, ratio"), behind.name(), "", runs.iter().map(ratio).collect());
            }
        }
    }
    Ok(report)
}
