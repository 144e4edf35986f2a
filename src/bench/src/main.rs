//! `trunkline-bench`: speed and memory of the core, and speed of the server, the embedded worker, the KV codec and the store, on this machine.
//!
//! No benchmark needs a model's files, and all but `serve`, `first-byte`, `events`, `wire`, `disk`, `swap` and `tiers` run on one thread, unless `worker` is given either. Every figure is the median of several runs, with minimum
//! and maximum next to it.

mod allocations;
mod codec;
mod cpu_time;
mod disk;
mod events;
mod evict;
mod first_byte;
mod h2o;
mod hits;
mod http_client;
mod measure;
mod null_server;
mod pair;
mod publish;
mod route;
mod sched;
mod serve;
mod tiers;
mod tree;
mod used_pool;
mod wire;
mod worker;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use trunkline::settings::log_settings::LogFormat;

use measure::Report;

use trunkline::model::weights_settings::Placement;

const EXAMPLES: &str = "\
Examples:
  Time of a prefix lookup, and the speed of memory:
    trunkline-bench tree

  Figures in JSON, to compare versions:
    trunkline-bench sched --json > sched.json

  A thousand streams at once through gRPC, a step every 5 ms:
    trunkline-bench serve --streams 1000 --step 5ms

  Hits of two eviction policies on synthetic traces:
    trunkline-bench hits --policies 'reuse;s3fifo:small_percent=20'

  A short test run:
    trunkline-bench evict --quick

  Lookups of today against those of a release:
    trunkline-bench pair v0.1.0 --case tree";

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Benchmark the core, the embedded worker, the server, the KV codec and the store on this machine.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Benchmark the prefix tree: hashing, lookups in large trees, storing blocks, conversations, memory per block.
    Tree(Options),
    /// Benchmark steps through the whole core: decodes, queues, admissions, preemptions, a lost worker, the end of all requests.
    Sched(Options),
    /// Benchmark routers: the choice of an engine of 256 and of 1,024.
    Route(Options),
    /// Benchmark every eviction policy: evict blocks and store others in their place.
    Evict(Options),
    /// Count the hits of eviction policies on synthetic traces, compared with LRU, S3-FIFO and Belady.
    Hits(hits::HitsOptions),
    /// Benchmark the embedded worker: prefill and decode, with random weights of every kind or with a model.
    Worker(WorkerOptions),
    /// Benchmark the server without a model: streams over gRPC or HTTP, processor time for each token, time to the first token.
    Serve(ServeOptions),
    /// Benchmark long chats over HTTP: the first byte, compared with what the tokenizer alone takes, and short chats meanwhile.
    FirstByte(FirstByteOptions),
    /// Benchmark cache events: steps of the core with subscribers that read, do not read or come late, compared with none.
    Events(Options),
    /// Benchmark the wire to an attached worker: round trip of a step, and time that the worker idles between steps.
    Wire(Options),
    /// Benchmark the KV codec: ratio, encode and decode on one core for every element type, compared with zstd.
    Codec(CodecOptions),
    /// Benchmark the disk tier: blocks of 1 MiB to a disk and back, compared with plain reads and writes.
    Disk(DiskOptions),
    /// Benchmark swapping: blocks of 1 MiB to host memory and back, compared with copies in memory.
    Swap(Options),
    /// Benchmark eviction within sequences: ratio, quality, recall and speed of every scorer, with gates; fails if a gate fails.
    H2o(h2o::H2oOptions),
    /// Benchmark serving while blocks move: steps and first tokens alongside swaps by slow copies, and alongside a remote store that is dead or silent.
    Tiers(Options),
    /// Compare two versions: run each case with both in turn, and report the ratios of their figures.
    Pair(PairOptions),
}

/// Options of `trunkline-bench pair`.
#[derive(Clone, Debug, Args)]
struct PairOptions {
    /// Old version: a `trunkline-bench`, or a revision of the repository in this folder, which is built in target/pair.
    #[arg(value_name = "OLD")]
    old: OsString,

    /// New version: a `trunkline-bench` [default: this one].
    #[arg(value_name = "NEW")]
    new: Option<PathBuf>,

    /// Cases of this benchmark alone, as in tree [default: all].
    #[arg(long, value_name = "NAME")]
    case: Option<String>,

    /// Pairs of runs of each case.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Write JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Options of `trunkline-bench disk`.
#[derive(Clone, Debug, Args)]
struct DiskOptions {
    /// Folder on the disk, which needs 2 GiB [default: the folder for temporary files].
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// Options of `trunkline-bench codec`.
#[derive(Clone, Debug, Args)]
struct CodecOptions {
    /// Folder of KV: NumPy files of 16-bit integers, by keys and values, layer, token, head and element, keys rotated, named *_bf16_*.npy or
    /// *_f16_*.npy [default: synthetic KV].
    #[arg(long, value_name = "FOLDER")]
    kv: Option<PathBuf>,

    /// Base of the rotary embeddings of the model that made the files.
    #[arg(long, value_name = "BASE", default_value_t = 10_000.0, requires = "kv")]
    rope_theta: f64,

    #[command(flatten)]
    options: Options,
}

/// Options of `trunkline-bench worker`.
#[derive(Clone, Debug, Args)]
struct WorkerOptions {
    /// Model: a Hugging Face folder or a GGUF file [default: random weights of every kind].
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// Threads that compute, at most 1024; 0 is one per core.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// Placement of the weights, as for `serve`; packed weights go to a temporary folder, removed at the end, unless dir=PATH is given
    /// [default: resident].
    #[arg(long, value_name = "SPEC")]
    weights: Option<String>,

    /// Kind of the random weights, as in F32 or Q8_0 [default: every kind].
    #[arg(long, value_name = "KIND", conflicts_with = "model")]
    kind: Option<String>,

    #[command(flatten)]
    options: Options,
}

/// Options of `trunkline-bench serve`.
#[derive(Clone, Debug, Args)]
struct ServeOptions {
    /// What clients talk to: gRPC, HTTP, or axum alone with the bytes of HTTP.
    #[arg(long, value_name = "DOOR", value_enum, default_value_t = serve::Door::Grpc)]
    door: serve::Door,

    /// Streams at once.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=65536))]
    streams: u32,

    /// Tokens of each stream.
    #[arg(long, value_name = "M", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,

    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompt_tokens: u32,

    /// Duration of a step of the worker, as in 10ms; 0s answers at once.
    #[arg(long, value_name = "STEP", default_value = "5ms", value_parser = trunkline::model::null_worker::duration)]
    step: Duration,

    /// Connections that share the streams over gRPC; over HTTP each stream has its own.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,

    /// Log probabilities of each token and of this many alternatives [default: none].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20))]
    logprobs: Option<u32>,

    /// Runs, each with a server of its own.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    #[command(flatten)]
    options: Options,
}

impl ServeOptions {
    /// Returns the load to measure; a quick run has at most 8 streams of 8 tokens.
    fn load(&self) -> serve::Load {
        let most = if self.options.quick { 8 } else { u32::MAX };
        serve::Load {
            door: self.door,
            streams: self.streams.min(most),
            tokens: self.tokens.min(most),
            prompt_tokens: self.prompt_tokens,
            connections: self.connections.min(self.streams).min(most),
            step: self.step,
            logprobs: self.logprobs,
            runs: self.runs,
        }
    }
}

/// Options of `trunkline-bench first-byte`.
#[derive(Clone, Debug, Args)]
struct FirstByteOptions {
    /// Tokenizer: a tokenizer.json with the files next to it, a Hugging Face folder or a GGUF file [default: that of the model that is built in].
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,

    /// Chat template (Jinja) [default: that of the model with the tokenizer, or the text of all messages].
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,

    /// Tokens of a long chat, about.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=120_000))]
    tokens: u32,

    /// Runs, each with another text.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    #[command(flatten)]
    options: Options,
}

impl FirstByteOptions {
    /// Returns the chats to measure; a quick run has one of 4,000 tokens at most.
    fn load(&self) -> first_byte::Load {
        let (tokens, runs) = if self.options.quick { (4000, 1) } else { (u32::MAX, u32::MAX) };
        first_byte::Load {
            model: self.tokenizer.clone(),
            template: self.chat_template.clone(),
            tokens: self.tokens.min(tokens),
            runs: self.runs.min(runs),
        }
    }
}

/// Options of all benchmarks.
#[derive(Clone, Debug, Args)]
struct Options {
    /// Write JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Make fewer and smaller runs: takes seconds, for a test; the figures are not meaningful.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    // Warnings alone: what stores and servers report would tear the tables.
    let started = trunkline::start_logging("warn", LogFormat::Text).map_err(anyhow::Error::msg);
    match started.and_then(|()| run(Cli::parse().what)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => trunkline::fail(&err),
    }
}

fn run(what: What) -> anyhow::Result<()> {
    let (options, report): (Options, Report) = match what {
        What::Tree(options) => (options.clone(), tree::run(options.quick)),
        What::Sched(options) => (options.clone(), sched::run(options.quick)),
        What::Route(options) => (options.clone(), route::run(options.quick)),
        What::Evict(options) => (options.clone(), evict::run(options.quick)),
        What::Worker(options) => {
            let placement = Placement::of(options.weights.as_deref())?;
            let kind = options.kind.as_deref();
            let report =
                worker::run(options.model.as_deref(), kind, options.threads, &placement, options.options.quick)?;
            (options.options, report)
        }
        What::Serve(serving) => {
            let report = serve::run(&serving.load(), serving.options.quick)?;
            (serving.options, report)
        }
        What::FirstByte(chats) => {
            let report = first_byte::run(&chats.load(), chats.options.quick)?;
            (chats.options, report)
        }
        What::Events(options) => (options.clone(), events::run(options.quick)?),
        What::Wire(options) => (options.clone(), wire::run(options.quick)?),
        What::Codec(codec) => {
            let report = codec::run(codec.kv.as_deref(), codec.rope_theta, codec.options.quick)?;
            (codec.options, report)
        }
        What::Disk(disk) => {
            let folder = disk.path.unwrap_or_else(std::env::temp_dir);
            (disk.options.clone(), disk::run(&folder, disk.options.quick)?)
        }
        What::Swap(options) => (options.clone(), disk::run_swap(options.quick)?),
        What::Tiers(options) => (options.clone(), tiers::run(options.quick)?),
        What::Pair(PairOptions { old, new, case, runs, json }) => {
            (Options { json, quick: false }, pair::run(&old, new.as_deref(), case.as_deref(), runs)?)
        }
        What::H2o(options) => return h2o::run(&options),
        What::Hits(options) => return hits::run(&options),
    };
    let text = if options.json { serde_json::to_string_pretty(&report)? } else { report.render() };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_benchmark_runs_and_reports_figures() {
        let load = |door| serve::Load {
            door,
            streams: 3,
            tokens: 5,
            prompt_tokens: 20,
            connections: 2,
            step: Duration::ZERO,
            logprobs: Some(1),
            runs: 1,
        };
        let [grpc, http, axum] = serve::Door::value_variants() else { panic!("doors") };
        let [grpc, http, axum] = [grpc, http, axum].map(|door| serve::run(&load(*door), true).unwrap());
        let chats = first_byte::Load { model: None, template: None, tokens: 4000, runs: 2 };
        let folder = tempfile::tempdir().unwrap();
        let streamed = format!("stream:memory_mib=36,dir={}", folder.path().display()).parse().unwrap();
        for report in [
            tree::run(true),
            sched::run(true),
            route::run(true),
            evict::run(true),
            worker::run(None, None, 1, &Placement::Resident, true).unwrap(),
            worker::run(None, Some("Q8_0"), 1, &streamed, true).unwrap(),
            codec::run(None, 1e4, true).unwrap(),
            disk::run(tempfile::tempdir().unwrap().path(), true).unwrap(),
            disk::run_swap(true).unwrap(),
            tiers::run(true).unwrap(),
            first_byte::run(&chats, true).unwrap(),
            events::run(true).unwrap(),
            grpc,
            http,
            axum,
        ] {
            let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
            let rows = json["rows"].as_array().unwrap();
            assert!(!rows.is_empty());
            for row in rows {
                let (min, median, max) = (&row["min"], &row["median"], &row["max"]);
                assert!(min.as_f64() <= median.as_f64() && median.as_f64() <= max.as_f64(), "{row}");
            }
            assert!(report.render().contains("median"));
        }
    }
}
