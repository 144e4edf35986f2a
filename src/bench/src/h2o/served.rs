//! End to end: a server with and without eviction and compression, under more long requests than the device memory holds at once.
//!
//! Every way has a new server with equal device memory, and the same prompts twice: all at once, and again after the last answer, when
//! prefixes come back from host memory. Prompts differ within the first block, so that no request finds the prefix of another.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use trunkline_core::Config;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, GetServerInfoRequest, GetServerInfoResponse, Stopping, TokenIds};
use trunkline_server::{Backend, Options, Server, listen};

use super::quality::Case;
use crate::measure::quantile;
use trunkline::client::load::{Stream, read};
use trunkline::h2o::choice::Choice;
use trunkline::h2o::full_heads::FullHeads;
use trunkline::h2o::head_loss::HeadLosses;
use trunkline::serve::embedded_with;
use trunkline::settings::engines::Engines;
use trunkline::settings::serve_settings::Settings;

/// Whole sequences that device memory holds at once.
const FIT: usize = 4;
/// Messages of prompts in bytes, at most.
const MESSAGE_MAX: usize = 64 << 20;

/// Flags besides those of every server.
const WAYS: [(&str, &[&str]); 4] = [
    ("off", &[]),
    ("h2o", &["--h2o=on"]),
    ("h2o, full", &["--h2o=on", "--compression=full"]),
    ("h2o, store", &["--h2o=on", "--compression=store"]),
];

/// Load on each server.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    pub model: Option<&'a Path>,
    pub kv_dtype: &'a str,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Case whose settings the servers take.
    pub case: &'a Case,
    /// Heads that keep everything.
    pub full: &'a FullHeads,
    /// Choice of the blocks to drop.
    pub choice: Choice,
    /// Losses of the heads, by which the others share out.
    pub losses: Option<&'a HeadLosses>,
    pub threads: usize,
    /// Prompts, all equally long.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens of each answer.
    pub answer: u32,
}

/// Returns figures as a table.
pub fn render(all: &[Served]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "server",
        "tokens/s",
        "at once",
        "peak",
        "TTFT p50 ms",
        "TPOT p99 ms",
        "preempted",
        "dropped",
        "cached again",
        "lossless",
        "changed",
    ]);
    for served in all {
        table.add_row([
            served.way.clone(),
            format!("{:.1}", served.tokens_per_s),
            format!("{:.1}", served.mean),
            served.peak.to_string(),
            format!("{:.0}", served.ttft_p50_ms),
            format!("{:.1}", served.tpot_p99_ms),
            served.preemptions.to_string(),
            served.dropped_tokens.to_string(),
            format!("{:.0} %", served.cached_percent),
            format!("{:.2}", served.lossless),
            served.mismatches.to_string(),
        ]);
    }
    let n = all.first().map_or(0, |served| served.requests);
    format!("Server, {n} requests at once, device memory for {FIT} of them:\n{}", table.trim_fmt())
}

/// Figures of one way.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Served {
    pub way: String,
    pub requests: usize,
    /// Tokens of all answers by time, first round.
    pub tokens_per_s: f64,
    /// Requests between their first and last token: most at once, and mean over the time in which there were any.
    pub peak: usize,
    pub mean: f64,
    pub ttft_p50_ms: f64,
    pub tpot_p99_ms: f64,
    pub preemptions: u64,
    pub dropped_tokens: u64,
    /// Share of the prompts of the second round that was cached.
    pub cached_percent: f64,
    /// Bytes by bytes after compression; 1 without.
    pub lossless: f64,
    /// Blocks changed by compression.
    pub mismatches: u64,
}

/// One request: the time at which it was sent, seconds since the start of its round, and what its client saw.
#[derive(Clone, Copy, Debug)]
struct Answered {
    sent: f64,
    stream: Stream,
}

impl Answered {
    /// Returns the time of the first token, seconds since the start of the round.
    fn first(&self) -> f64 {
        self.sent + self.stream.ttft_ns as f64 / 1e9
    }

    /// Returns the time of the last token, seconds since the start of the round.
    fn last(&self) -> f64 {
        self.sent + self.stream.e2e_ns as f64 / 1e9
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Settings,
}

/// Runs the load on a server for each way.
///
/// # Errors
/// If a server does not start, or a request fails.
pub fn measure(load: &Load<'_>) -> anyhow::Result<Vec<Served>> {
    let runtime = Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let ways = WAYS.iter().filter(|(_, flags)| flags.is_empty() || !load.full.is_empty());
    ways.map(|(way, flags)| runtime.block_on(served(load, way, flags))).collect()
}

/// Returns the settings of a server.
fn settings(load: &Load<'_>, flags: &[&str]) -> anyhow::Result<Settings> {
    let tokens = load.prompts.iter().map(Vec::len).max().unwrap_or(0) + load.answer as usize;
    let blocks = FIT * tokens.div_ceil(load.block_size as usize);
    let mut line = vec![
        "serve".to_owned(),
        format!("--device-blocks={blocks}"),
        format!("--block-size={}", load.block_size),
        format!("--kv-dtype={}", load.kv_dtype),
        "--host-mem=1GiB".to_owned(),
    ];
    if load.threads > 0 {
        line.push(format!("--threads={}", load.threads));
    }
    if let Some(model) = load.model {
        line.push(format!("--model={}", model.display()));
    }
    if !flags.is_empty() {
        let case = &load.case.settings[0];
        line.push(format!("--h2o-ratio={}", load.case.ratio()));
        line.push(format!("--h2o-choice={}", load.choice.name()));
        line.push(format!("--h2o-sink={}", case.sink_tokens));
        line.push(format!("--h2o-recent={}", case.recent_tokens));
        line.push(format!("--h2o-block={}", case.block_tokens));
        line.push(format!("--h2o-score-interval={}", case.score_interval));
        line.extend((!load.full.is_empty()).then(|| format!("--h2o-layers={}", load.full)));
    }
    line.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Ok(Line::try_parse_from(line)?.settings)
}

/// Returns the engines of a server, the limits of their cores, and their workers.
fn engines(load: &Load<'_>, flags: &[&str]) -> anyhow::Result<(Engines, Vec<Config>, Backend)> {
    let settings = settings(load, flags)?;
    let engines = Engines::of(&settings, trunkline::serve::cores())?;
    let (cores, backend) = embedded_with(&settings, &engines, load.losses)?;
    Ok((engines, cores, backend))
}

async fn served(load: &Load<'_>, way: &str, flags: &[&str]) -> anyhow::Result<Served> {
    let (engines, cores, backend) = engines(load, flags)?;
    let options =
        Options { cluster: engines.cluster(&cores), queue_per_client: Some(cores[0].max_queue), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await?, backend, options).await?;
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let channel = Endpoint::from_shared(address)?.connect().await.context("cannot connect")?;
    let client = InferenceClient::new(channel).max_encoding_message_size(MESSAGE_MAX);
    let first = round(load, &client).await?;
    let second = round(load, &client).await?;
    let info = client.clone().get_server_info(GetServerInfoRequest {}).await?.into_inner();
    drop(client);
    handle.drain().await;
    serving.await??;
    Ok(figures(load, way, &first, &second, &info))
}

/// Sends all prompts at once, and reads the answers to the end.
async fn round(load: &Load<'_>, client: &InferenceClient<Channel>) -> anyhow::Result<Vec<Answered>> {
    let begin = Instant::now();
    let mut streams = JoinSet::new();
    for prompt in &load.prompts {
        let request = GenerateRequest {
            prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt.clone() })),
            stopping: Some(Stopping { max_tokens: Some(load.answer), ignore_eos: true, ..Stopping::default() }),
            ..GenerateRequest::default()
        };
        let client = client.clone();
        streams.spawn(async move {
            let sent = begin.elapsed().as_secs_f64();
            anyhow::Ok(Answered { sent, stream: read(client, request).await? })
        });
    }
    let mut answered = Vec::new();
    while let Some(stream) = streams.join_next().await {
        answered.push(stream??);
    }
    let tokens = tokens_of(&answered);
    ensure!(tokens == load.prompts.len() as u64 * u64::from(load.answer), "{tokens} tokens arrived");
    Ok(answered)
}

fn figures(
    load: &Load<'_>,
    way: &str,
    first: &[Answered],
    second: &[Answered],
    info: &GetServerInfoResponse,
) -> Served {
    let (counters, stores) =
        (info.counters.unwrap_or_default(), info.engines.iter().filter_map(|engine| engine.store.as_ref()));
    let (peak, mean) = at_once(first);
    let end = first.iter().map(Answered::last).fold(0.0, f64::max);
    let sorted = |of: &dyn Fn(&Answered) -> f64| {
        let mut all: Vec<f64> = first.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let tpot_s =
        |one: &Answered| (one.last() - one.first()) / f64::from(one.stream.output_tokens.saturating_sub(1).max(1));
    let (mut before, mut after, mut mismatches) = (0, 0, 0);
    for store in stores {
        before += store.encoded_bytes;
        after += store.frame_bytes;
        mismatches += store.mismatches;
    }
    let cached: u64 = second.iter().map(|one| u64::from(one.stream.cached_tokens)).sum();
    let prompts: usize = load.prompts.iter().map(Vec::len).sum();
    Served {
        way: way.to_owned(),
        requests: first.len(),
        tokens_per_s: tokens_of(first) as f64 / end,
        peak,
        mean,
        ttft_p50_ms: quantile(&sorted(&|one| one.stream.ttft_ns as f64 / 1e6), 0.5),
        tpot_p99_ms: 1e3 * quantile(&sorted(&tpot_s), 0.99),
        preemptions: counters.preemptions,
        dropped_tokens: counters.h2o_dropped_tokens,
        cached_percent: 100.0 * cached as f64 / prompts.max(1) as f64,
        lossless: if after == 0 { 1.0 } else { before as f64 / after as f64 },
        mismatches,
    }
}

fn tokens_of(answered: &[Answered]) -> u64 {
    answered.iter().map(|one| u64::from(one.stream.output_tokens)).sum()
}

/// Returns how many requests were between their first and last token: most at once, and the mean while there were any.
fn at_once(answered: &[Answered]) -> (usize, f64) {
    let mut events: Vec<(f64, i32)> = answered.iter().flat_map(|one| [(one.first(), 1), (one.last(), -1)]).collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut peak, mut busy, mut area, mut since) = (0, 0, 0.0, 0.0, 0.0);
    for (at, change) in events {
        if now > 0 {
            busy += at - since;
            area += (at - since) * f64::from(now);
        }
        since = at;
        now += change;
        peak = peak.max(now);
    }
    (peak as usize, if busy > 0.0 { area / busy } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use trunkline_core::H2oConfig;
    use trunkline_core::h2o::{Settings, Target};
    use trunkline_worker::Model;

    use super::*;

    #[test]
    fn a_server_has_the_settings_the_heads_and_the_weights_of_the_case() {
        let model = Model::seeded(0);
        let info = model.info();
        let n = (info.n_layers * info.n_kv_heads) as usize;
        let rest: Vec<f64> = (0..n).map(|head| (head + 1) as f64 / 100.0).collect();
        let losses = HeadLosses { repeated: rest.clone(), rest, keep: None };
        let full = losses.join(FullHeads::new(vec![1], info.n_layers, info.n_kv_heads));
        for choice in [Choice::Own, Choice::Shared] {
            let groups = full.groups(&[], choice).unwrap();
            let settings = |weight: &f32| Settings {
                sink_tokens: 48,
                recent_tokens: 96,
                block_tokens: 32,
                target: Target::Adaptive { lossy_ratio: 3.25 },
                weight: *weight,
                ..Settings::default()
            };
            let weights = H2oConfig::weights_of(&groups);
            let case = Case { scorer: "h2o".into(), settings: weights.iter().map(settings).collect() };
            let load = Load {
                model: Some(Path::new("random")),
                kv_dtype: "bf16",
                block_size: 16,
                case: &case,
                full: &full,
                choice,
                losses: Some(&losses),
                threads: 1,
                prompts: vec![vec![7; 640]],
                answer: 32,
            };
            let (_, cores, backend) = engines(&load, &["--h2o=on"]).unwrap();
            assert!(case.settings.len() > 1 && cores[0].h2o.group_settings(load.block_size) == case.settings);
            assert_eq!((cores[0].h2o.by_group, backend.model.groups), (choice == Choice::Own, groups));
        }
    }

    #[test]
    fn requests_at_once_are_counted_between_first_and_last_tokens() {
        let one = |ttft_s: u64, e2e_s: u64| {
            let stream = Stream { ttft_ns: ttft_s * 1_000_000_000, e2e_ns: e2e_s * 1_000_000_000, ..Stream::default() };
            Answered { sent: 1.0, stream }
        };
        assert_eq!(at_once(&[one(0, 2), one(1, 3), one(5, 6)]), (2, 5.0 / 4.0));
        assert_eq!(at_once(&[]), (0, 0.0));
    }
}
