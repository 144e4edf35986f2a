//! `trunkline worker`: the embedded worker as a process of its own, attached to a server, and the checks of other workers.

mod check;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tracing::{info, warn};
use trunkline_attach::worker::{self, Dial, Dialled, MakeRunner};
use trunkline_attach::{Abilities, Hello, KvRoom, Session};
use trunkline_core::names::registry;
use trunkline_grammar::Grammars;
use trunkline_port::{ModelInfo, StepRunner};
use trunkline_quote::quoted;
use trunkline_server::{ClientTls, StopSignals, authorization, connect_tls, on_hangup};
use trunkline_text::Tokenizer;
use trunkline_worker::{KvDtype, Worker, WorkerConfig};

use crate::h2o::choice::{self, Choice};
use crate::h2o::full_heads::FullHeads;
use crate::h2o::total;
use crate::model::kernel::{revision_with, with_kernel};
use crate::model::model_source::{ModelSource, log_facts};
use crate::model::null_worker::{NullWorker, duration};
use crate::model::repair::WeightsRepair;
use crate::model::weights_settings::Placement;
use crate::serve::{cores, device_blocks};
use crate::settings::h2o_settings::{self, divided_for_a_server};
use crate::settings::log_settings::LogFormat;
use crate::settings::sizes::parse_size;

/// Environment variable with the bearer token, for workers without a token file.
const TOKEN_VARIABLE: &str = "TRUNKLINE_TOKEN";
/// Maximum number of threads.
const THREADS_MAX: usize = 1024;
/// Sizes of a block announced by default, preferred first.
const BLOCK_SIZES: [u32; 5] = [16, 32, 64, 128, 8];
/// The same if the server is to drop tokens.
const BLOCK_SIZES_EVICTING: [u32; 5] = [h2o_settings::BLOCK_SIZE, 16, 32, 64, 128];
const BLOCK_SIZE_MAX: u32 = 4096;
/// Maximum number of KV blocks.
const BLOCKS_MAX: u32 = 1 << 30;
/// Bytes of the receive windows of a connection: a few blocks of a large model.
const WINDOW_BYTES: u32 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  A server without workers of its own, and a worker that attaches:
    trunkline serve --workers 0 --model ./SmolLM2-135M
    trunkline worker --connect 127.0.0.1:50051 --model ./SmolLM2-135M --kv-mem 4GiB

  Over an untrusted network: TLS, and a token with the role worker:
    trunkline worker --connect example.org:50051 --model ./SmolLM2-135M --tls-ca ca.pem --token-file my-token

  A server that drops tokens hardly read by attention, and a worker whose KV heads were looked at by trunkline h2o calibrate:
    trunkline serve --workers 0 --h2o on --model ./SmolLM2-135M
    trunkline worker --connect 127.0.0.1:50051 --model ./SmolLM2-135M --h2o on

  No model, steps of 5 ms, to measure everything around a model:
    trunkline worker --connect 127.0.0.1:50051 --null 5ms

  Check a worker of your own, which dials this address:
    trunkline worker check 127.0.0.1:50052

A worker that loses its server dials again and keeps its KV. SIGTERM or Ctrl-C ends the worker after the steps in flight. Files of tokens and TLS are read
for each connection; SIGHUP does nothing.";

/// Run a model for a server, or check a worker.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct WorkerArgs {
    #[command(subcommand)]
    command: Option<WorkerCommand>,

    #[command(flatten)]
    attach: AttachArgs,
}

#[derive(Subcommand)]
enum WorkerCommand {
    Check(check::CheckArgs),
}

/// Flags of a worker that attaches.
#[derive(Args, Default)]
struct AttachArgs {
    /// Address of the server.
    #[arg(long, value_name = "HOST:PORT", required = true)]
    connect: Option<String>,

    /// Name of the worker in logs and in GetServerInfo; a worker takes the place of another one of its name [default: the host's name
    /// and the number of the process].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Hugging Face folder or GGUF file of the model, or 'random' for random weights [default: small-world, which is built in].
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// Run no model: each step takes this time, as in 5ms; --model serves for its tokenizer alone.
    #[arg(long, value_name = "TIME")]
    null: Option<String>,

    /// Threads that compute the model, 1 to 1024 [default: one per core].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Element type of the KV cache: f32, f16, bf16, q8_0 or q4_0 [default: f32].
    #[arg(long, value_name = "TYPE")]
    kv_dtype: Option<String>,

    /// Products with BF16 weights: portable, amx-bf16 or auto, as with serve [default: auto, with the built-in model portable].
    #[arg(long, value_name = "NAME", conflicts_with = "null")]
    kernel: Option<String>,

    /// Placement of the weights: resident, or stream:memory_mib=N to keep N MiB of weights in memory and read the rest in every step from packed
    /// weights in dir=PATH, up to ahead=N groups ahead, reads=N at once, or prefill_ahead=N and prefill_reads=N in steps with prompts; compress=auto, on
    /// or off [default: resident].
    #[arg(long, value_name = "SPEC", conflicts_with = "null")]
    weights: Option<String>,

    /// Let the server drop tokens (serve --h2o on) in all KV heads but the ones that lose most as found by trunkline h2o calibrate.
    #[arg(long, value_name = "MODE", value_parser = ["off", "on"], conflicts_with = "null")]
    h2o: Option<String>,

    /// Layers, or single KV heads as LAYER.HEAD, that keep every token while the server drops tokens in the others [default: with --h2o
    /// on, the ones that lose most as found by trunkline h2o calibrate].
    #[arg(long, value_name = "LAYERS", conflicts_with = "null")]
    h2o_layers: Option<String>,

    /// Tokens of a sequence for each token kept, on average over all KV heads, says how many heads keep every token. Give the server the same
    /// --h2o-total for the share that the others drop [default: 2.5].
    #[arg(long, value_name = "RATIO", conflicts_with = "null")]
    h2o_total: Option<String>,

    /// Choice of the blocks to drop: own, by the scores of each KV head; or shared, by one score for all heads
    /// [default: own; shared for models of more than 256 KV heads].
    #[arg(long, value_name = "WHO", conflicts_with = "null")]
    h2o_choice: Option<String>,

    /// KV blocks of each layer group [default: 1 GiB of KV, but room for 8192 tokens and at most 16384 blocks].
    #[arg(long, value_name = "N", conflicts_with = "kv_mem")]
    device_blocks: Option<u32>,

    /// Memory for KV, as in 4GiB.
    #[arg(long, value_name = "SIZE")]
    kv_mem: Option<String>,

    /// Tokens of a block, 1 to 4096 [default: the server chooses 16, 32, 64, 128 or 8; with --h2o on 8, 16, 32, 64 or 128].
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,

    /// Connect by TLS: file of the authorities for the server's certificate, PEM [default: no TLS].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// File with a bearer token for the server, the first word [default: the variable TRUNKLINE_TOKEN, or no token].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// true or false: copy blocks through shared memory if the server runs on this machine with the same user [default: true].
    #[arg(long, value_name = "BOOL")]
    shared_memory: Option<bool>,

    /// Form of the log on standard error: text, or json for an object a line [default: text].
    #[arg(long, value_name = "FORM", default_value = "text", hide_default_value = true)]
    log_format: LogFormat,
}

impl WorkerArgs {
    /// Returns the form of the log.
    pub fn log_format(&self) -> LogFormat {
        self.attach.log_format
    }
}

/// Runs a worker until a signal stops it, or checks a worker.
///
/// # Errors
/// If a setting is wrong, the model cannot be loaded, the server refuses the worker, or a check fails.
pub fn run(args: WorkerArgs) -> anyhow::Result<()> {
    match args.command {
        Some(WorkerCommand::Check(args)) => check::run(&args),
        None => attach(&args.attach),
    }
}

fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    // Mistakes in settings are reported before a large model is read.
    let config = WorkerConfig { threads: threads(args)?, block_size: 0, device_blocks: 0, max_drafts: 0 };
    let dtype = kv_dtype(args)?;
    Placement::of(args.weights.as_deref())?;
    sizes(args, 1 << 10, 1)?;
    choice(args)?;
    let dial = dial(args)?;
    unused(args).iter().for_each(|line| warn!("{line}"));
    let (model, make) = match &args.null {
        Some(step) => null(args, step)?,
        None => embedded(args, dtype, config)?,
    };
    let hello = hello(args, model)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the threads of the network")?;
    info!(name = hello.name, model = hello.model.name, tokens = hello.kv.tokens, "dialling {}", address(args));
    let result = runtime.block_on(async {
        let stop = stop_on_signals().context("cannot listen for signals")?;
        worker::run(hello, make, dial, stop).await.with_context(|| address(args).to_owned())
    });
    runtime.shutdown_background();
    result
}

fn address(args: &AttachArgs) -> &str {
    args.connect.as_deref().unwrap_or_default()
}

fn threads(args: &AttachArgs) -> anyhow::Result<usize> {
    let threads = args.threads.unwrap_or_else(cores);
    ensure!((1..=THREADS_MAX).contains(&threads), "threads is {threads}; it must be between 1 and {THREADS_MAX}");
    Ok(threads)
}

fn kv_dtype(args: &AttachArgs) -> anyhow::Result<KvDtype> {
    let types = KvDtype::ALL.map(|dtype| (dtype.name(), dtype));
    let name = args.kv_dtype.as_deref();
    Ok(name.map(|name| registry::choose("kv-dtype", &types, name)).transpose()?.unwrap_or_default())
}

/// Returns the sizes of a block to announce, and the room for KV in tokens. A token takes `token_bytes` in the blocks of all
/// `n_groups` layer groups, which are one pool.
fn sizes(args: &AttachArgs, token_bytes: u64, n_groups: u32) -> anyhow::Result<KvRoom> {
    let block_sizes = match args.block_size {
        Some(size) => vec![size],
        None if divides(args) => BLOCK_SIZES_EVICTING.to_vec(),
        None => BLOCK_SIZES.to_vec(),
    };
    let preferred = block_sizes[0];
    ensure!(
        (1..=BLOCK_SIZE_MAX).contains(&preferred),
        "block_size is {preferred}; it must be between 1 and {BLOCK_SIZE_MAX}"
    );
    let blocks = match (args.device_blocks, &args.kv_mem) {
        (Some(blocks), _) => {
            ensure!(
                (1..=BLOCKS_MAX).contains(&blocks),
                "device_blocks is {blocks}; it must be between 1 and {BLOCKS_MAX}"
            );
            blocks
        }
        (None, Some(text)) => {
            let blocks = parse_size("kv-mem", text)? / (u64::from(preferred) * token_bytes.max(1)) as f64;
            ensure!(blocks >= 1.0, "kv-mem is {text}, less than one block of {preferred} tokens");
            blocks.min(f64::from(BLOCKS_MAX)) as u32
        }
        (None, None) => device_blocks(preferred, token_bytes),
    };
    let tokens = u64::from(blocks) * u64::from(preferred);
    let block_sizes = block_sizes.into_iter().filter(|size| tokens >= u64::from(*size)).collect();
    Ok(KvRoom { block_sizes, tokens: tokens * u64::from(n_groups), block_io: args.null.is_none() })
}

/// Returns whether some KV heads are to drop tokens.
fn divides(args: &AttachArgs) -> bool {
    args.h2o.as_deref().map_or(args.h2o_layers.is_some(), |mode| mode == "on")
}

/// Returns a line for each flag that has no effect with the others.
fn unused(args: &AttachArgs) -> Vec<String> {
    let (null, drops) = (args.null.is_some(), divides(args));
    let lines = [
        ("threads", args.threads.is_some() && null, "with --null"),
        ("kv-dtype", args.kv_dtype.is_some() && null, "with --null"),
        ("h2o-layers", args.h2o_layers.is_some() && !drops, "with --h2o off"),
        ("h2o-total", args.h2o_total.is_some() && !drops, "without --h2o on or --h2o-layers"),
        ("h2o-choice", args.h2o_choice.is_some() && !drops, "without --h2o on or --h2o-layers"),
    ];
    let lines = lines.into_iter().filter(|(_, is_given, _)| *is_given);
    lines.map(|(flag, _, why)| format!("--{flag} has no effect {why}")).collect()
}

/// Returns the choice of the blocks to drop.
fn choice(args: &AttachArgs) -> anyhow::Result<Choice> {
    let given = args.h2o_choice.as_deref().map(|text| Choice::parse(choice::SETTING, text));
    Ok(given.transpose()?.unwrap_or_default())
}

/// Loads the model, and returns its facts and the maker of its workers.
fn embedded(args: &AttachArgs, dtype: KvDtype, config: WorkerConfig) -> anyhow::Result<(ModelInfo, MakeRunner)> {
    let source = ModelSource::of(args.model.as_deref());
    let revision = source.revision()?;
    let placement = Placement::of(args.weights.as_deref())?;
    let model = source.placed(&placement, &revision, 1)?.with_kv_dtype(dtype);
    let mut model = with_kernel(model, source, args.kernel.as_deref())?;
    log_facts(model.name(), model.facts());
    let total = args.h2o_total.as_deref().map(|text| total::parse(total::SETTING, text)).transpose()?;
    let layers = args.h2o_layers.as_deref();
    if let Some(layers) = layers {
        let info = model.info();
        FullHeads::parse("h2o-layers", layers, info.n_layers, info.n_kv_heads)?;
    }
    if divides(args) {
        let losses = source.head_losses(&revision)?;
        model = divided_for_a_server(model, layers, losses.as_ref(), total, choice(args)?)?;
    }
    let model = Arc::new(model);
    let repair = WeightsRepair::new(args.model.clone(), placement, &revision, 1);
    let info = ModelInfo { revision: revision_with(&revision, &model), ..model.info() };
    let of_model = |tokenizer| Grammars::new(tokenizer, info.vocab_size, info.eos_token_ids.clone());
    let grammars = tokenizer(args).map(of_model).map(Arc::new);
    let make: MakeRunner = Box::new(move |session: &Session| {
        repair.run(&model)?;
        let config = WorkerConfig {
            block_size: session.block_size,
            device_blocks: session.blocks,
            max_drafts: session.max_drafts,
            ..config
        };
        let mut worker = Worker::new(Arc::clone(&model), config)?;
        if let Some(grammars) = &grammars {
            worker = worker.with_grammars(Arc::clone(grammars));
        }
        let worker: Box<dyn StepRunner> = Box::new(worker);
        Ok(worker)
    });
    Ok((info, make))
}

/// Returns the tokenizer of the model, which says what the tokens of an answer spell. The server has it, and a worker may have the weights alone.
fn tokenizer(args: &AttachArgs) -> Option<Tokenizer> {
    let source = ModelSource::of(args.model.as_deref());
    if args.null.is_none() { source.tokenizer().ok() } else { None }
}

/// Returns facts and maker of workers without a model whose steps take the time `step`.
fn null(args: &AttachArgs, step: &str) -> anyhow::Result<(ModelInfo, MakeRunner)> {
    let step = duration(step)?;
    let vocab_size = match &args.model {
        Some(path) => ModelSource::of(Some(path)).tokenizer()?.vocab_size(),
        None => Tokenizer::bytes().vocab_size(),
    };
    // The protocol has no models without layers: one, of a byte for each token.
    let info = ModelInfo { n_layers: 1, kv_bytes_per_token: 1, ..NullWorker::info(vocab_size) };
    let make: MakeRunner = Box::new(move |_: &Session| {
        let worker: Box<dyn StepRunner> = Box::new(NullWorker::new(step, vocab_size));
        Ok(worker)
    });
    Ok((info, make))
}

fn hello(args: &AttachArgs, model: ModelInfo) -> anyhow::Result<Hello> {
    let kv = sizes(args, model.kv_bytes_per_token, model.n_groups())?;
    let abilities = Abilities {
        max_sequences: 4096,
        max_tokens: 1 << 16,
        steps_in_flight: 8,
        max_drafts: if args.null.is_some() { 0 } else { 64 },
        max_logprobs: 1024,
        partial_writes: true,
        scores: args.null.is_none(),
        scores_by_group: args.null.is_none(),
        seeded_sampling: args.null.is_none(),
        penalties: args.null.is_none(),
        grammars: cfg!(feature = "structured-output") && tokenizer(args).is_some(),
        prompt_logprobs: args.null.is_none(),
        pipeline_stages: 1,
        in_step_hits: true,
        shared_memory: args.shared_memory.unwrap_or(true),
    };
    let name = args.name.clone().unwrap_or_else(|| format!("{}-{}", host(), std::process::id()));
    let program = format!("trunkline-worker {}", env!("CARGO_PKG_VERSION"));
    let hello = Hello { name, program, model, kv, abilities, resume: None, lock_step: None };
    // The server checks the announcement too; here a mistake has the name of its flag.
    Ok(Hello::decode(hello.encode())?)
}

/// Returns the name of this machine, as far as the system shows it in a file.
fn host() -> String {
    let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    match name.trim() {
        "" => "worker".into(),
        name => name.into(),
    }
}

/// Returns the way to the server: TLS and token files are read for each connection, so they may change.
fn dial(args: &AttachArgs) -> anyhow::Result<Dial> {
    let scheme = if args.tls_ca.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", address(args)));
    let endpoint = endpoint.with_context(|| format!("{} is not an address; give HOST:PORT", quoted(address(args))))?;
    ensure!(endpoint.uri().port().is_some(), "{} has no port; give HOST:PORT", quoted(address(args)));
    let endpoint = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES);
    let tls = args.tls_ca.clone().map(|ca| ClientTls { ca, identity: None });
    let file = args.token_file.clone();
    let variable = std::env::var(TOKEN_VARIABLE).ok();
    let variable = variable.map(|token| format!("Bearer {token}").parse());
    let variable = variable.transpose().with_context(|| format!("{TOKEN_VARIABLE} has no token"))?;
    // A file with a mistake is reported at once, not in the log of attempts.
    file.as_deref().map(authorization).transpose()?;
    Ok(Box::new(move || {
        let (endpoint, tls, file, variable) = (endpoint.clone(), tls.clone(), file.clone(), variable.clone());
        Box::pin(async move {
            let authorization = file.as_deref().map(authorization).transpose()?.or(variable);
            let channel = match &tls {
                Some(tls) => connect_tls(endpoint, tls).await?,
                None => endpoint.connect().await?,
            };
            Ok(Dialled { channel, authorization })
        })
    }))
}

fn stop_on_signals() -> std::io::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let mut stops = StopSignals::listen()?;
    on_hangup(|| info!("there are no files to read again: those of tokens and TLS are read for each connection"))?;
    tokio::spawn(async move {
        stops.next().await;
        info!("stopping after the steps in flight");
        stop.send_replace(true);
        // Without a sender, nobody would wait for the signal any more.
        stop.closed().await;
    });
    Ok(stopped)
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;
    use trunkline_port::Keeps;

    use trunkline_worker::Kernel;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: AttachArgs,
    }

    /// Shows the announcement of a worker with these flags.
    pub(crate) fn announced(flags: &[&str]) -> String {
        let args =
            Cli::try_parse_from([&["worker", "--connect=127.0.0.1:1", "--threads=1"], flags].concat()).unwrap().args;
        let config = WorkerConfig { threads: 1, block_size: 0, device_blocks: 0, max_drafts: 0 };
        let model = match &args.null {
            Some(step) => null(&args, step).unwrap().0,
            None => embedded(&args, kv_dtype(&args).unwrap(), config).unwrap().0,
        };
        format!("{:?}", hello(&args, model).unwrap())
    }

    fn given(edit: impl Fn(&mut AttachArgs)) -> AttachArgs {
        let mut args = AttachArgs { connect: Some("127.0.0.1:1".into()), ..AttachArgs::default() };
        edit(&mut args);
        args
    }

    #[test]
    fn memory_and_blocks_decide_about_the_room() {
        let room = |edit: fn(&mut AttachArgs)| sizes(&given(edit), 1 << 10, 1).unwrap();
        let default = room(|_| ());
        assert_eq!((default.block_sizes, default.tokens), (BLOCK_SIZES.to_vec(), 16384 * 16));
        let evicting = room(|args| args.h2o = Some("on".into()));
        assert_eq!((evicting.block_sizes, evicting.tokens), (vec![8, 16, 32, 64, 128], 16384 * 8));
        let mem = room(|args| args.kv_mem = Some("64MiB".into()));
        assert_eq!(mem.tokens, 64 << 10);
        let blocks = room(|args| (args.device_blocks, args.block_size) = (Some(3), Some(24)));
        assert_eq!((blocks.block_sizes, blocks.tokens), (vec![24], 72));
        let few = room(|args| args.device_blocks = Some(2));
        assert_eq!(few.block_sizes, [16, 32, 8], "a size needs one block");
        let grouped = sizes(&given(|args| args.device_blocks = Some(2)), 1 << 10, 90).unwrap();
        assert_eq!((grouped.block_sizes, grouped.tokens), (few.block_sizes, 90 * few.tokens), "blocks of each group");
    }

    #[test]
    fn wrong_settings_are_reported_by_name() {
        let wrong = |edit: fn(&mut AttachArgs)| attach(&given(edit)).unwrap_err().to_string();
        assert_eq!(wrong(|args| args.threads = Some(0)), "threads is 0; it must be between 1 and 1024");
        assert_eq!(wrong(|args| args.block_size = Some(0)), "block_size is 0; it must be between 1 and 4096");
        assert!(wrong(|args| args.kv_mem = Some("4".into())).starts_with("kv-mem is '4'"));
        assert!(
            wrong(|args| args.kv_mem = Some("0.001MB".into())).starts_with("kv-mem is 0.001MB, less than one block")
        );
        assert!(wrong(|args| args.kv_dtype = Some("f8".into())).starts_with("unknown kv-dtype 'f8'"));
        assert!(wrong(|args| args.kernel = Some("sse".into())).starts_with("unknown kernel 'sse'"));
        assert!(wrong(|args| args.null = Some("5".into())).starts_with("'5' has no unit"));
        assert!(wrong(|args| args.connect = Some("a b".into())).starts_with("'a b' is not an address"));
        assert_eq!(wrong(|args| args.connect = Some("nonsense".into())), "'nonsense' has no port; give HOST:PORT");
        assert!(wrong(|args| args.model = Some("/nowhere".into())).contains("there is no such folder or file"));
        assert!(wrong(|args| args.token_file = Some("/nowhere".into())).contains("/nowhere"));
        assert!(wrong(|args| args.name = Some("a\nb".into())).contains("name must have"));
    }

    #[test]
    fn flags_without_effect_are_named() {
        let args = given(|args| {
            args.null = Some("5ms".into());
            (args.threads, args.kv_dtype) = (Some(1), Some("f16".into()));
            (args.h2o, args.h2o_layers) = (Some("off".into()), Some("1".into()));
            (args.h2o_total, args.h2o_choice) = (Some("3".into()), Some("own".into()));
        });
        let lines = unused(&args);
        let named: Vec<_> = lines.iter().filter_map(|line| line.split(" has no effect").next()).collect();
        assert_eq!(named, ["--threads", "--kv-dtype", "--h2o-layers", "--h2o-total", "--h2o-choice"]);
        let args = AttachArgs { null: None, h2o: Some("on".into()), ..args };
        assert_eq!(unused(&args), [] as [String; 0]);
        let wrong = given(|args| (args.h2o, args.h2o_layers) = (Some("off".into()), Some("99".into())));
        let config = WorkerConfig { threads: 1, block_size: 0, device_blocks: 0, max_drafts: 0 };
        let Err(error) = embedded(&wrong, KvDtype::default(), config) else { panic!("there is no such layer") };
        assert!(error.to_string().starts_with("h2o-layers names layer 99"), "{error}");
    }

    #[test]
    fn the_announcement_is_that_of_the_model() {
        let args = given(|args| args.name = Some("w".into()));
        let config = WorkerConfig { threads: 1, block_size: 0, device_blocks: 0, max_drafts: 0 };
        let (info, mut make) = embedded(&args, KvDtype::default(), config).unwrap();
        let hello = hello(&args, info).unwrap();
        assert_eq!((hello.name.as_str(), hello.model.kv_dtype.as_str()), ("w", "f32"));
        let revision = |kernel: &str| {
            let args = given(|args| args.kernel = Some(kernel.into()));
            embedded(&args, KvDtype::default(), config).unwrap().0.revision
        };
        let tiled = revision("auto") == format!("{}+amx-bf16", hello.model.revision);
        assert_eq!(
            (revision("portable"), tiled),
            (hello.model.revision.clone(), Kernel::of_machine() != Kernel::Portable)
        );
        let session = Session { block_size: 8, blocks: 4, ..Session::default() };
        let bytes = make(&session).unwrap().blocks().block_bytes();
        assert_eq!(bytes as u64, hello.model.block_bytes(8));
        let keeps = |args: &AttachArgs| -> Vec<Keeps> {
            embedded(args, KvDtype::default(), config).unwrap().0.groups.iter().map(|group| group.keeps).collect()
        };
        assert_eq!(keeps(&args), [], "all layers keep every token");
        let args = given(|args| args.h2o_layers = Some("0,1,2,3".into()));
        let mut kinds = keeps(&args);
        kinds.dedup();
        assert_eq!(kinds, [Keeps::All, Keeps::Scored], "some keep every token, the others drop tokens");
        let off = AttachArgs { h2o: Some("off".into()), ..args };
        assert_eq!(keeps(&off), [], "off is off, whatever the layers");
        let (info, _) = embedded(&given(|args| args.h2o = Some("on".into())), KvDtype::default(), config).unwrap();
        let scored = info.groups.iter().filter(|group| group.keeps == Keeps::Scored);
        let weights: Vec<u32> = scored.map(|group| group.weight).collect();
        assert!(weights.is_sorted_by(|a, b| a >= b) && weights[0] > 1000, "as calibrated: {weights:?}");
        let args = given(|args| (args.h2o, args.model) = (Some("on".into()), Some("random".into())));
        let Err(error) = embedded(&args, KvDtype::default(), config) else { panic!("no heads are known") };
        assert!(error.to_string().ends_with("or name some with --h2o-layers"), "{error}");
        let args = given(|args| args.null = Some("0ms".into()));
        let (info, _) = null(&args, "0ms").unwrap();
        assert!(!self::hello(&args, info).unwrap().kv.block_io);
    }
}
