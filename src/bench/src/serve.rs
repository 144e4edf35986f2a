//! Serving without a model: the whole path of a token from the worker's answer to a client's stream, over gRPC or HTTP on the loopback.
//!
//! The server has the null worker, and threads of its own; the clients run on other threads of this process. Processor time is
//! counted for each thread and summed up by the thread's name, so clients do not count as server. For comparison, a server of axum alone sends the
//! bytes that the HTTP door sends.

mod axum_alone;
mod http;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Output, Stopping, TokenIds};
use trunkline_server::{Options as ServerOptions, Server, ServerHandle, listen};
use trunkline_text::Tokenizer;

use super::measure::{Report, quantile};
use trunkline::model::null_worker::{NullWorker, null_backend};

/// Tokens in a block of the server.
const BLOCK_SIZE: u32 = 16;
/// Clock ticks of `/proc` in a second, as Linux shows them on every machine.
const TICKS_PER_S: f64 = 100.0;
/// Names of the threads of the network and of the clients, as far as Linux shows a name.
const NETWORK: &str = "bench-network";
const CLIENTS: &str = "bench-clients";
/// Names of the server's own threads, and their parts.
const PARTS: [(&str, &str); 5] =
    [(NETWORK, "network"), ("core", "core"), ("steps-0", "worker"), ("copies-0", "worker"), (CLIENTS, "clients")];

/// What clients talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Door {
    /// `trunkline.v1.Inference` over HTTP/2.
    Grpc,
    /// `/v1/completions` as server-sent events over HTTP/1.1, a connection for each stream.
    Http,
    /// The bytes of `http` from axum alone: no requests, no cache, no texts.
    Axum,
}

/// Load of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// What clients talk to.
    pub door: Door,
    /// Streams at once.
    pub streams: u32,
    /// Tokens of each stream.
    pub tokens: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Connections that share the streams.
    pub connections: u32,
    /// Duration of a step of the worker.
    pub step: Duration,
    /// Log probabilities asked for with each token.
    pub logprobs: Option<u32>,
    /// Measurements, each with a server of its own.
    pub runs: u32,
}

/// Streams of one measurement, seen by the clients.
#[derive(Default)]
struct Seen {
    tokens: u64,
    messages: u64,
    /// Time from the request to the first token, of each stream, milliseconds.
    ttft_ms: Vec<f64>,
}

/// One measurement.
struct Run {
    seconds: f64,
    seen: Seen,
    /// Processor time by part, seconds.
    cpu_s: Vec<(&'static str, f64)>,
    /// Milliseconds of the worker without a step, for each step, by what it waited for; `None` without a worker.
    idle_ms: Option<[f64; 2]>,
}

/// Steps of the worker, and the time in which it had none though there were requests, as the server's metrics have it.
#[derive(Clone, Copy)]
struct Steps {
    steps: f64,
    scheduler_s: f64,
    blocks_s: f64,
}

impl Steps {
    /// Reads the metrics of a server.
    fn of(metrics: &str) -> anyhow::Result<Self> {
        let sum = |begins: &str| {
            let samples =
                metrics.lines().filter_map(|line| line.strip_prefix(begins)?.rsplit(' ').next()?.parse::<f64>().ok());
            samples
                .fold(None, |sum: Option<f64>, value| Some(sum.unwrap_or(0.0) + value))
                .with_context(|| format!("no metric {begins}"))
        };
        let idle = |cause: &str| sum(&format!("trunkline_idle_seconds_total{{engine=\"0\",cause=\"{cause}\"}}"));
        Ok(Self { steps: sum("trunkline_steps_total")?, scheduler_s: idle("scheduler")?, blocks_s: idle("blocks")? })
    }

    /// Returns the milliseconds without a step for each step since `before`, while the worker waited for the scheduler and for blocks.
    fn idle_ms(self, before: Self) -> [f64; 2] {
        let steps = (self.steps - before.steps).max(1.0);
        [self.scheduler_s - before.scheduler_s, self.blocks_s - before.blocks_s].map(|s| s * 1e3 / steps)
    }
}

/// Measures the load, as often as the load says.
///
/// # Errors
/// If the server cannot start, or a stream fails.
pub fn run(load: &Load, quick: bool) -> anyhow::Result<Report> {
    let notes = vec![
        "One server with the null worker, clients on the loopback, all on this machine.",
        "CPU is the processor time of the threads named; the clients have threads of their own.",
    ];
    let mut report = Report::new("serve", quick, notes);
    let runs = (0..load.runs).map(|_| measure(load)).collect::<anyhow::Result<Vec<Run>>>()?;
    let Load { door, streams, tokens, step, .. } = load;
    let case = format!("{door:?}, {streams} streams x {tokens} tokens, step {step:?}").to_lowercase();
    let tokens = |run: &Run| run.seen.tokens as f64;
    let mut add = |what: &str, unit, value: &dyn Fn(&Run) -> f64| {
        report.add(what, case.clone(), unit, runs.iter().map(value).collect());
    };
    add("throughput", "tokens/s", &|run| tokens(run) / run.seconds);
    add("message size", "tokens", &|run| tokens(run) / run.seen.messages as f64);
    let us = |run: &Run, of: &dyn Fn(&str) -> bool| {
        let cpu_s: f64 = run.cpu_s.iter().filter(|(part, _)| of(part)).map(|(_, s)| s).sum();
        cpu_s * 1e6 / tokens(run)
    };
    add("CPU of the server", "us/token", &|run| us(run, &|part| part != "clients"));
    for part in ["network", "core", "worker", "clients"] {
        add(&format!("CPU of the {part}"), "us/token", &|run| us(run, &|of| of == part));
    }
    for (at, what) in ["worker idle, scheduler", "worker idle, blocks"].into_iter().enumerate() {
        if runs.iter().all(|run| run.idle_ms.is_some()) {
            add(what, "ms/step", &|run| run.idle_ms.map_or(0.0, |of| of[at]));
        }
    }
    for (what, q) in [("TTFT p50", 0.5), ("TTFT p99", 0.99)] {
        add(what, "ms", &|run| quantile(&run.seen.ttft_ms, q));
    }
    Ok(report)
}

/// Starts a server, sends the load, and stops the server.
fn measure(load: &Load) -> anyhow::Result<Run> {
    let (network, clients) = (runtime(NETWORK)?, runtime(CLIENTS)?);
    if load.door == Door::Axum {
        let address = network.block_on(axum_alone::start(load))?;
        return clients.block_on(measured(load, &address));
    }
    let (address, handle, serving) = start(&network, load)?;
    let run = clients.block_on(measured(load, &address));
    network.block_on(async {
        handle.drain().await;
        serving.await
    })??;
    run
}

fn runtime(name: &str) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().thread_name(name).build().context("cannot start threads")
}

type Serving = tokio::task::JoinHandle<anyhow::Result<()>>;

/// Starts a server with room for the whole load.
fn start(network: &Runtime, load: &Load) -> anyhow::Result<(String, ServerHandle, Serving)> {
    let tokenizer = Tokenizer::bytes();
    let info = NullWorker::info(tokenizer.vocab_size());
    let blocks_each = (load.prompt_tokens + load.tokens).div_ceil(BLOCK_SIZE) + 1;
    let core = Config {
        block_size: BLOCK_SIZE,
        device_blocks: blocks_each.saturating_mul(load.streams),
        max_batch_size: load.streams,
        max_batch_tokens: load.streams.max(Config::default().max_batch_tokens),
        max_queue: load.streams.max(Config::default().max_queue),
        max_context: info.max_context,
        ..Config::default()
    };
    core.validate()?;
    let backend = null_backend(info, tokenizer, load.step);
    let options = ServerOptions { cluster: ClusterConfig::uniform(&core, 1), ..ServerOptions::default() };
    let options = ServerOptions { queue_per_client: Some(core.max_queue), ..options };
    let server = network.block_on(async { Server::new(listen("127.0.0.1:0").await?, backend, options).await })?;
    let server = server.with_http(|front| trunkline_http::door(front, trunkline_http::Settings::default()));
    let (address, handle) = (server.local_addr().to_string(), server.handle());
    let serving = network.spawn(async { server.run().await.map(drop).map_err(anyhow::Error::from) });
    Ok((address, handle, serving))
}

/// Opens all streams at once and reads them to the end.
async fn measured(load: &Load, address: &str) -> anyhow::Result<Run> {
    let client = Arc::new(Client::connect(load, address).await?);
    // Every thread has run once.
    client.read(load, load.streams).await?;
    let has_worker = load.door != Door::Axum;
    let steps_before = if has_worker { Some(Steps::of(&http::metrics(address).await?)?) } else { None };
    let before = cpu_s()?;
    let begin = Instant::now();
    let mut streams = JoinSet::new();
    for at in 0..load.streams {
        let (client, load) = (Arc::clone(&client), *load);
        streams.spawn(async move { client.read(&load, at).await });
    }
    let mut seen = Seen::default();
    while let Some(stream) = streams.join_next().await {
        let stream = stream??;
        seen.tokens += stream.tokens;
        seen.messages += stream.messages;
        seen.ttft_ms.extend(stream.ttft_ms);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_s = cpu_s()?.into_iter().zip(before).map(|((part, after), (_, before))| (part, after - before)).collect();
    let idle_ms = match steps_before {
        Some(before) => Some(Steps::of(&http::metrics(address).await?)?.idle_ms(before)),
        None => None,
    };
    seen.ttft_ms.sort_by(f64::total_cmp);
    ensure!(seen.tokens == u64::from(load.streams) * u64::from(load.tokens), "{} tokens arrived", seen.tokens);
    Ok(Run { seconds, seen, cpu_s, idle_ms })
}

/// Returns the prompt of stream number `at`, its own.
fn prompt(load: &Load, at: u32) -> Vec<u32> {
    (0..load.prompt_tokens).map(|i| (at.wrapping_mul(31) ^ (at >> 8).wrapping_add(i)) % 256).collect()
}

/// Clients of a server.
enum Client {
    /// Connections that share the streams.
    Grpc(Vec<InferenceClient<Channel>>),
    /// Address for a connection of each stream.
    Http(String),
}

impl Client {
    async fn connect(load: &Load, address: &str) -> anyhow::Result<Self> {
        if load.door != Door::Grpc {
            return Ok(Self::Http(address.to_owned()));
        }
        let mut connections = Vec::new();
        for _ in 0..load.connections {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
            connections.push(InferenceClient::new(endpoint.connect().await.context("cannot connect")?));
        }
        Ok(Self::Grpc(connections))
    }

    /// Reads stream number `at` to its end.
    async fn read(&self, load: &Load, at: u32) -> anyhow::Result<Seen> {
        match self {
            Self::Grpc(connections) => {
                let client = connections[at as usize % connections.len()].clone();
                read_grpc(client, load, at).await
            }
            Self::Http(address) => http::read(address, load, at).await,
        }
    }
}

async fn read_grpc(mut client: InferenceClient<Channel>, load: &Load, at: u32) -> anyhow::Result<Seen> {
    let request = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt(load, at) })),
        stopping: Some(Stopping { max_tokens: Some(load.tokens), ignore_eos: true, ..Stopping::default() }),
        output: Some(Output { logprobs: load.logprobs, ..Output::default() }),
        ..GenerateRequest::default()
    };
    let begin = Instant::now();
    let mut seen = Seen::default();
    let mut stream = client.generate(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if let Some(Event::Chunk(chunk)) = message.event {
            if seen.messages == 0 {
                seen.ttft_ms.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            seen.messages += 1;
            seen.tokens += chunk.token_ids.len() as u64;
        }
    }
    Ok(seen)
}

/// Returns the processor time of this process's threads so far, seconds, by part.
fn cpu_s() -> anyhow::Result<Vec<(&'static str, f64)>> {
    let mut parts: Vec<(&'static str, f64)> = PARTS.iter().map(|(_, part)| (*part, 0.0)).collect();
    let tasks = fs::read_dir("/proc/self/task").context("processor times are read from /proc, as Linux has it")?;
    for task in tasks {
        // A thread may end meanwhile.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { continue };
        let Some(at) = PARTS.iter().position(|(of, _)| *of == name) else { continue };
        // User and system time are fields 14 and 15 of the line, the name being field 2.
        let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
        parts[at].1 += ticks.sum::<f64>() / TICKS_PER_S;
    }
    Ok(parts)
}
