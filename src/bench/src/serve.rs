//! Serving without a model: the whole path of a token from the worker's answer to a client's stream, over gRPC or HTTP on the loopback.
//!
//! The server has the null worker, and threads of its own; the clients run on other threads of this process. Processor time is
//! counted for each thread and summed up by the thread's name, so clients do not count as server. For comparison, a server of axum alone sends the
//! bytes that the HTTP door sends.

mod axum_alone;
mod http;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use trunkline_core::Config;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Output, Stopping, TokenIds};
use trunkline_text::Tokenizer;

use super::cpu_time::cpu_s;
use super::measure::{Report, quantile};
use super::null_server::{NETWORK, NullServer, runtime};

/// Tokens in a block of the server.
const BLOCK_SIZE: u32 = 16;
/// Name of the threads of the clients, as far as Linux shows a name.
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
    let clients = runtime(CLIENTS)?;
    if load.door == Door::Axum {
        let network = runtime(NETWORK)?;
        let address = network.block_on(axum_alone::start(load))?;
        return clients.block_on(measured(load, &address));
    }
    let core = room_for(load);
    let server = NullServer::start(core, Tokenizer::bytes(), load.step, trunkline_http::Settings::default(), |_| {})?;
    let run = clients.block_on(measured(load, &server.address));
    server.stop()?;
    run
}

/// Returns limits with room for the whole load.
fn room_for(load: &Load) -> Config {
    let blocks_each = (load.prompt_tokens + load.tokens).div_ceil(BLOCK_SIZE) + 1;
    Config {
        block_size: BLOCK_SIZE,
        device_blocks: blocks_each.saturating_mul(load.streams),
        max_batch_size: load.streams,
        max_batch_tokens: load.streams.max(Config::default().max_batch_tokens),
        max_queue: load.streams.max(Config::default().max_queue),
        ..Config::default()
    }
}

/// Opens all streams at once and reads them to the end.
async fn measured(load: &Load, address: &str) -> anyhow::Result<Run> {
    let client = Arc::new(Client::connect(load, address).await?);
    // Every thread has run once.
    client.read(load, load.streams).await?;
    let has_worker = load.door != Door::Axum;
    let steps_before = if has_worker { Some(Steps::of(&http::metrics(address).await?)?) } else { None };
    let before = cpu_s(PARTS.map(|(name, _)| name))?;
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
    let after = cpu_s(PARTS.map(|(name, _)| name))?;
    let cpu_s = PARTS.iter().zip(after.iter().zip(before)).map(|((_, part), (after, before))| (*part, after - before));
    let cpu_s = cpu_s.collect();
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
