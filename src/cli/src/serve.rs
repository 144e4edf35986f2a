//! `trunkline serve`: serves a model over gRPC and HTTP.

use std::f64::consts::TAU;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use tokio::net::TcpListener;
use tracing::{info, warn};
use trunkline_attach::Hello;
use trunkline_cluster::{Cluster, ListenToCaches};
use trunkline_core::Config;
use trunkline_core::config::StepTarget;
use trunkline_core::h2o::Mode;
use trunkline_http::KvEventSources;
use trunkline_port::ModelInfo;
use trunkline_server::{
    AttachOptions, Backend, DecideModel, EngineStore, FollowSteps, MakeWorker, Options, SamplingOffer, Server,
    SessionOptions, layout, listen,
};
use trunkline_store::BlockLayout;
use trunkline_text::Tokenizer;
use trunkline_vllm::ModelFiles;
use trunkline_worker::{Model, machine_memory};

use self::model_facts::{check_tokenizer, join_ends};
use self::open_files::raise_open_files;
use self::placement::check_weights;
use self::running::serve;
use self::simulation::{refuse_beside_simulation, simulated};
use self::steps_timeline::StepsTimeline;
use self::unused::unused;
use crate::h2o::head_loss::HeadLosses;
use crate::model::kernel::{revision_with, with_kernel};
use crate::model::model_source::{BUILT_IN, ModelSource, log_facts};
use crate::model::null_worker::{NullWorker, WorkerKind, null_backend};
use crate::model::simulated::clock::RealTime;
use crate::model::weights_settings::Placement;
use crate::serve::first_worker::limits_of_worker;
use crate::settings::engines::Engines;
use crate::settings::events_settings::Published;
use crate::settings::h2o_settings;
use crate::settings::log_settings::LogFormat;
use crate::settings::serve_settings::{POLICY_DEFAULT, Settings};
use crate::settings::simulate_settings::Simulation;

pub(crate) mod first_worker;
mod model_facts;
mod open_files;
mod placement;
mod running;
mod simulation;
mod steps_timeline;
mod unused;

const LISTEN_DEFAULT: &str = "127.0.0.1:50051";
/// Time after which a step may be taken for lost, seconds.
const STEP_TIMEOUT_S_DEFAULT: f64 = 60.0;
const STEP_TIMEOUT_S_MAX: f64 = 86_400.0;
/// KV cache on the device by default, bytes.
const KV_BYTES_DEFAULT: u64 = 1 << 30;
/// Tokens in the default KV cache, at least, however large each is.
const KV_TOKENS_DEFAULT_MIN: u64 = 8192;
const DEVICE_BLOCKS_DEFAULT_MAX: u64 = 16384;
/// Estimated speed of the embedded worker: bytes copied, and multiply-adds of one thread in a prefill. Estimates for an
/// ordinary machine, not measured, so that equal settings lead to equal decisions on every machine.
const COPY_BYTES_PER_S: u64 = 5_000_000_000;
const MULTIPLY_ADDS_PER_S: u64 = 10_000_000_000;

const EXAMPLES: &str = "\
Examples:
  The small model that is built in, to try the server out:
    trunkline serve

  A real model, a larger cache, and a recording to replay later:
    trunkline serve --model ./SmolLM2-135M --device-blocks 8192 --record run.jsonl.gz
    trunkline serve --model ./SmolLM2-135M-Instruct.Q4_1.gguf

  Settings from a file, one of them overridden:
    trunkline serve --config trunkline.toml --max-queue 64

  where trunkline.toml has names of flags as keys:
    listen = \"0.0.0.0:50051\"
    max-batch-tokens = 4096

  Cached blocks in host memory and on disk, found again after a restart:
    trunkline serve --model ./SmolLM2-135M --host-mem 4GiB --disk ./cache --disk-size 20GiB

  The times of a GPU without one, to test gateways and clients:
    trunkline serve --simulate h100-80g

  Metrics for Prometheus on http://127.0.0.1:9400/metrics:
    trunkline serve --metrics 127.0.0.1:9400

  For other machines: TLS, and a token for each client:
    trunkline serve --listen 0.0.0.0:50051 --tls-cert server.pem --tls-key server.key --token-file tokens

  where tokens has lines of token, role and name:
    4f9c21d8a07be5539b1cf6e2d4a80c17 generate alice
    d03b5e72c9f14a68805d2be91f7a6c34 admin operator

SIGTERM or Ctrl-C drains the server: running requests end, new ones are refused. A second signal stops at once. SIGHUP has the files of tokens and TLS
read again, and the file of requests opened again.";

/// Serve a model over gRPC and over HTTP, on one port.
///
/// Prints `listening on http://ADDRESS` when it accepts requests, with --metrics also `metrics on http://ADDRESS/metrics`, and `digest DIGEST`,
/// the digest of all scheduling decisions, when it has stopped.
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct ServeArgs {
    #[command(flatten)]
    settings: Box<Settings>,

    /// TOML file with settings; keys are the names of the flags. Flags override variables such as TRUNKLINE_MAX_QUEUE, and these the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ServeArgs {
    /// Returns the settings, as far as they are given.
    #[cfg(test)]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the form of the log; lines for people if a setting is wrong, which [`run`] reports.
    pub fn log_format(&self) -> LogFormat {
        self.settings.logs.format().unwrap_or_default()
    }
}

/// Serves until a signal stops the server.
///
/// # Errors
/// If a setting is wrong, or the server cannot start or fails.
pub fn run(args: ServeArgs) -> anyhow::Result<()> {
    let settings = *args.settings;
    if let Some(file) = args.config {
        info!("settings of {} that no flag and no variable overrides", file.display());
    }
    let Checked { engines, kind, simulation, mut options, unused } = check(&settings)?;
    let publisher = settings.logs.events.publisher()?;
    options.cache_listener = publisher.clone().map(|publisher| ListenToCaches(Arc::new(publisher)));
    unused.iter().for_each(|line| warn!("{line}"));
    let runtime = network_threads()?;
    let listener = runtime.block_on(listen(settings.listen.as_deref().unwrap_or(LISTEN_DEFAULT)))?;
    let scrapes = runtime.block_on(settings.network.metrics_listener())?;

    let (network, mut http) = (settings.network.clone(), settings.http.door(settings.model.as_deref())?);
    http.kv_event_sources =
        publisher.clone().map(|publisher| -> Arc<dyn KvEventSources> { Arc::new(Published(publisher)) });
    let mut vllm = settings.http.vllm(settings.model.as_deref());
    vllm.events = publisher;
    if settings.model.is_none() && (engines.embedded() == 0 || simulation.is_some() || kind != WorkerKind::Embedded) {
        // What runs is not the built-in model.
        vllm.files = ModelFiles::Missing;
    }
    raise_open_files(&settings, &engines, options.network.connections);
    let timeline = settings.logs.timeline.as_deref();
    let timeline = timeline.map(|path| StepsTimeline::create(path, engines.workers())).transpose()?.map(Arc::new);
    options.steps = timeline.clone().map(|timeline| -> Arc<dyn FollowSteps> { timeline });
    let result = runtime.block_on(async {
        options.tracer = settings.logs.tracer()?;
        let server = match engines.embedded() {
            0 => Server::of_first_worker(listener, first_worker(settings, engines)?, options).await?,
            _ => {
                let made = backend(&settings, &engines, simulation, kind)?;
                with_embedded(listener, &settings, &engines, made, options).await?
            }
        };
        let server = server.with_http(|front| trunkline_http::door(front, http));
        let server = server.with_guest(|front| trunkline_vllm::service(front, vllm)).await?;
        network.warn_if_open(server.local_addr());
        serve(server, scrapes, network.tls_cert.is_some()).await
    });
    // Tasks still running belong to clients that did not read to the end.
    runtime.shutdown_background();
    let written = timeline.map_or(Ok(()), |timeline| timeline.finish());
    result.and(written)
}

/// Settings of a server, checked as far as possible without the network and without a model.
pub(crate) struct Checked {
    engines: Engines,
    kind: WorkerKind,
    simulation: Option<Simulation>,
    options: Options,
    /// Lines about settings without effect.
    unused: Vec<String>,
}

/// Checks settings before a large model is read.
///
/// # Errors
/// If a setting is wrong, whether or not it has an effect with the others.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<Checked> {
    let engines = Engines::of(settings, cores())?;
    let kind: WorkerKind = settings.worker.as_deref().unwrap_or("embedded").parse()?;
    let simulation = settings.simulate.simulation(settings.model.as_deref(), settings.weights.as_deref())?;
    if simulation.is_some() {
        refuse_beside_simulation(settings, &engines)?;
    }
    check_weights(settings, &engines, kind, simulation.is_some())?;
    let step_timeout = step_timeout(settings.step_timeout)?;
    let mut config = limits(settings, 1 << 10, Config::default().max_context)?;
    if let Some(tiers) = settings.tiers.tiers(1, engines.workers())? {
        if simulation.is_none() {
            settings.tiers.check_memory(machine_memory())?;
        }
        tiers.apply(&mut config);
    }
    let attach = AttachOptions { scores: config.h2o.mode != Mode::Off, ..settings.attach.options(engines.attached())? };
    let cluster = engines.cluster(std::slice::from_ref(&config));
    Cluster::new(&cluster)?;
    engines.check_reuse(&config)?;
    let unused = unused(settings, &config, &cluster, &engines);
    let share_cache = settings.share_cache.unwrap_or(false);
    let marks = settings.http.marks(settings.model.as_deref());
    let sessions = SessionOptions { marks, ..settings.sessions.options()? };
    let mut options = Options { share_cache, sessions, step_timeout, attach, ..Options::default() };
    settings.network.apply(&mut options)?;
    settings.logs.apply(&mut options)?;
    Ok(Checked { engines, kind, simulation, options, unused })
}

/// Makes the workers of this process, with the limits of each class.
fn backend(
    settings: &Settings,
    engines: &Engines,
    simulation: Option<Simulation>,
    kind: WorkerKind,
) -> anyhow::Result<(Vec<Config>, Backend)> {
    match (simulation, kind) {
        (Some(simulation), _) => simulated(settings, engines.workers(), simulation, Arc::new(RealTime::start())),
        (None, WorkerKind::Embedded) => embedded(settings, engines),
        (None, WorkerKind::Null { step }) => null(settings, engines.workers(), step),
    }
}

/// Starts the threads of the network.
fn network_threads() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Threads for long prompts: more than cores would only make each other slower.
    builder.enable_all().max_blocking_threads(cores().max(2));
    builder.build().context("cannot start the threads of the network")
}

/// Returns a server with embedded workers, and perhaps attached ones besides.
async fn with_embedded(
    listener: TcpListener,
    settings: &Settings,
    engines: &Engines,
    (cores, backend): (Vec<Config>, Backend),
    mut options: Options,
) -> anyhow::Result<Server> {
    let config = &cores[0];
    let stages = config.pipeline_stages;
    ensure!(
        stages == 1,
        "--pipeline-stages {stages}: an embedded or simulated worker has one stage; use --workers 0 with attached ones"
    );
    options.cluster = engines.cluster(&cores);
    let infos = std::iter::once(&backend.model).chain(&backend.further_kv).zip(&cores).enumerate();
    let kv_bytes = infos.map(|(class, (info, core))| {
        let workers = engines.workers_of_class(class).iter().filter(|worker| **worker < engines.embedded()).count();
        u64::from(core.pool_blocks()) * info.block_bytes(core.block_size) * workers as u64
    });
    let kv_bytes: u64 = kv_bytes.sum();
    let (name, kv_dtype) = (backend.model.name.clone(), backend.model.kv_dtype.clone());
    let server = Server::new(listener, backend, options).await?;
    if settings.model.is_none() && settings.worker.is_none() && settings.simulate.simulate.is_none() {
        // If standard error is closed, the note is lost.
        let _ =
            writeln!(io::stderr(), "no --model: serving {BUILT_IN}, a small model that tells stories of a small world");
    }
    info!(
        workers = engines.embedded(),
        attached_workers = engines.attached(),
        blocks = config.device_blocks,
        host_blocks = config.host_blocks,
        block_size = config.block_size,
        kv_bytes,
        kv_dtype,
        threads = engines.threads_each(),
        "serving {name}"
    );
    note_settings(config);
    cores.iter().take(1).for_each(note_drafts);
    Ok(server)
}

/// Notes the policies and tiers of an engine, in the log.
fn note_settings(config: &Config) {
    let Config { policy, eviction, preemption, .. } = config;
    let tiers: Vec<_> = config.tiers.iter().map(|tier| format!("{} {}", tier.name, tier.blocks)).collect();
    let tiers = if tiers.is_empty() { "none".into() } else { tiers.join(", ") };
    info!(policy, eviction, preemption = preemption.name(), h2o = config.h2o.mode.name(), tiers, "settings");
}

/// Notes that steps wait for drafts, in the log.
fn note_drafts(config: &Config) {
    let Config { max_drafts, max_steps_in_flight: steps, pipeline_stages: stages, .. } = *config;
    if max_drafts > 0 && steps > stages {
        info!(
            "while requests draft up to {max_drafts} tokens, their steps wait for results; others have {steps} steps in flight"
        );
    }
}

/// Returns the decision about the first worker of a server without embedded ones: the worker's model, with the tokenizer of the
/// settings.
fn first_worker(settings: Settings, engines: Engines) -> anyhow::Result<DecideModel> {
    let source = settings.model.as_deref().map(|path| ModelSource::of(Some(path)));
    let given = source.map(|source| Ok::<_, anyhow::Error>((source.tokenizer()?, source.facts()?))).transpose()?;
    let (given, facts) = given.unzip();
    Ok(Box::new(move |hello| {
        let built_in = given.is_none() && hello.model.name == BUILT_IN;
        let tokenizer = match &given {
            Some(tokenizer) => tokenizer.clone(),
            None if built_in => ModelSource::BuiltIn.tokenizer()?,
            None => Tokenizer::bytes(),
        };
        let config = limits(&settings, hello.model.block_bytes(1), hello.model.max_context)?;
        let mut config = limits_of_worker(&settings.core, config, hello)?;
        settings.h2o.set_ratio(&hello.model, &mut config)?;
        settings.h2o.set_choice(hello, &mut config)?;
        config.validate()?;
        check_tokenizer(&tokenizer, hello.model.vocab_size)?;
        let name =
            |path: &PathBuf| if path.is_dir() { path.file_name() } else { path.file_stem() }.map(ToOwned::to_owned);
        let folder = settings.model.as_ref().and_then(name).map(|name| name.to_string_lossy().into_owned());
        let Hello { name: worker, mut model, abilities, .. } = hello.clone();
        facts.iter().for_each(|facts| join_ends(&mut model, facts));
        match folder {
            Some(folder) if folder.trim_end_matches(".gguf") != model.name => {
                warn!("worker {worker} runs {}, and the tokenizer is of {folder}", model.name);
            }
            Some(_) => {}
            None if built_in => {}
            None => warn!("no --model: text is cut into bytes; give the folder of {} for its tokenizer", model.name),
        }
        let all: Vec<usize> = (0..engines.workers()).collect();
        let stores = stores(&settings, &mut config, &model, (all.len(), &all), None)?;
        let Config { device_blocks: blocks, block_size, max_steps_in_flight: steps_in_flight, .. } = config;
        info!(
            attached_workers = engines.attached(),
            blocks,
            block_size,
            kv_dtype = model.kv_dtype,
            steps_in_flight,
            "serving {}",
            model.name
        );
        note_settings(&config);
        note_drafts(&config);
        let offer = SamplingOffer::within(&abilities);
        let offer = offer.fitting(&config);
        let workers: MakeWorker = Arc::new(|_| Err("the server has no embedded workers".into()));
        let backend = Backend { model, further_kv: Vec::new(), tokenizer: tokenizer.clone(), workers, stores, offer };
        Ok((backend, engines.cluster(&[config])))
    }))
}

/// Returns the limits of the cores by class of KV, and a backend of embedded workers with the model of the settings.
///
/// # Errors
/// If a setting is wrong, or the model cannot be loaded.
pub(crate) fn embedded(settings: &Settings, engines: &Engines) -> anyhow::Result<(Vec<Config>, Backend)> {
    embedded_with(settings, engines, None)
}

/// Does the same as `embedded`, with `losses` of the model's heads instead of the ones in the model's file.
///
/// # Errors
/// Fails as `embedded` does.
pub fn embedded_with(
    settings: &Settings,
    engines: &Engines,
    losses: Option<&HeadLosses>,
) -> anyhow::Result<(Vec<Config>, Backend)> {
    let source = ModelSource::of(settings.model.as_deref());
    // The tokenizer is the quicker one to fail.
    let tokenizer = source.tokenizer()?;
    let (revision, placement) = (source.revision()?, Placement::of(settings.weights.as_deref())?);
    let model = source.placed(&placement, &revision, engines.embedded())?.with_kv_dtype(engines.kv_types()[0]);
    let model = with_kernel(model, source, settings.kv.kernel.as_deref())?;
    let named = revision_with(&revision, &model);
    let found = losses.map_or_else(|| source.head_losses(&revision), |losses| Ok(Some(losses.clone())))?;
    let (model, config) = divided(settings, model, found.as_ref())?;
    check_tokenizer(&tokenizer, model.config().vocab_size)?;
    log_facts(model.name(), model.facts());
    ensure!(
        engines.kv_types().len() == 1 || settings.tiers.shared_mem.is_none(),
        "shared-mem holds blocks of one type; give kv-dtype one type, or leave shared-mem out"
    );
    let (mut cores, mut opened) = (Vec::new(), Vec::new());
    for (class, dtype) in engines.kv_types().iter().enumerate() {
        let (info, workers) = (model.info_with(*dtype), engines.workers_of_class(class));
        let mut core = of_class(settings, &config, &model, &info, engines.threads_each())?;
        let stores = stores(settings, &mut core, &info, (engines.workers(), &workers), Some(rotation(&model)))?;
        opened.extend(workers.into_iter().zip(stores));
        cores.push(core);
    }
    opened.sort_by_key(|(worker, _)| *worker);
    let repair =
        crate::model::repair::WeightsRepair::new(settings.model.clone(), placement, &revision, engines.embedded());
    let mut backend = engines.backend(model, tokenizer, &cores, repair);
    backend.stores = opened.into_iter().map(|(_, store)| store).collect();
    backend.model.revision = named;
    Ok((cores, backend))
}

/// Returns the limits of cores whose workers have the KV of `info`.
fn of_class(
    settings: &Settings,
    config: &Config,
    model: &Model,
    info: &ModelInfo,
    threads: usize,
) -> anyhow::Result<Config> {
    let mut core = with_estimates(config.clone(), model, info, threads);
    if !settings.core.has("device_blocks") {
        core.device_blocks = device_blocks(core.block_size, info.kv_bytes_per_token);
    }
    core.validate()?;
    Ok(core)
}

/// Divides the layers of the model into groups. Returns the model, and the limits of the core.
fn divided(settings: &Settings, model: Model, losses: Option<&HeadLosses>) -> anyhow::Result<(Model, Config)> {
    let max_context = model.config().max_context;
    let mut config = limits(settings, model.info().kv_bytes_per_token, max_context)?;
    let model = settings.h2o.divide(model, losses, &mut config)?;
    if !settings.core.has("device_blocks") {
        config.device_blocks = device_blocks(config.block_size, model.info().kv_bytes_per_token);
    }
    config.validate()?;
    Ok((model, config))
}

/// Opens the stores of some of `all` workers, and puts the tiers into the limits of the core. Returns no store if no tier is asked for.
fn stores(
    settings: &Settings,
    config: &mut Config,
    model: &ModelInfo,
    (all, workers): (usize, &[usize]),
    frequencies: Option<Vec<Vec<u64>>>,
) -> anyhow::Result<Vec<EngineStore>> {
    let layout = BlockLayout { frequencies, ..layout(model, config.block_size) };
    let Some(tiers) = settings.tiers.tiers(layout.block_bytes as u64, all)? else { return Ok(Vec::new()) };
    tiers.apply(config);
    config.validate()?;
    tiers.open(&layout, config, workers)
}

/// Returns the rotation of a model's keys in each layer of a block, in units of 2^-64 turns for each position.
pub fn rotation(model: &Model) -> Vec<Vec<u64>> {
    let turns = |radians: &f32| (f64::from(*radians) / TAU * 2f64.powi(64)) as u64;
    let layer: Vec<u64> = model.rotary_frequencies().iter().map(turns).collect();
    vec![layer; model.info().block_shape().0 as usize]
}

/// Returns the limits of the core, and a backend of null workers. A model folder serves for its tokenizer alone.
fn null(settings: &Settings, workers: usize, step: Duration) -> anyhow::Result<(Vec<Config>, Backend)> {
    let path = settings.model.as_deref();
    let tokenizer = path.map_or_else(|| Ok(Tokenizer::bytes()), |path| ModelSource::of(Some(path)).tokenizer())?;
    let model = NullWorker::info(tokenizer.vocab_size());
    let mut config = limits(settings, model.block_bytes(1), model.max_context)?;
    let all: Vec<usize> = (0..workers).collect();
    let stores = stores(settings, &mut config, &model, (workers, &all), None)?;
    Ok((vec![config], Backend { stores, ..null_backend(model, tokenizer, step) }))
}

/// Returns the time after which a step may be taken for lost.
pub(crate) fn step_timeout(seconds: Option<f64>) -> anyhow::Result<Duration> {
    let seconds = seconds.unwrap_or(STEP_TIMEOUT_S_DEFAULT);
    ensure!(
        (0.0..=STEP_TIMEOUT_S_MAX).contains(&seconds),
        "step-timeout is {seconds}; it must be between 0 and {STEP_TIMEOUT_S_MAX} seconds"
    );
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns the number of processors that the process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the core's limits, checked. A token takes `token_bytes` in a block.
///
/// # Errors
/// If a setting is malformed or outside its range.
pub(crate) fn limits(settings: &Settings, token_bytes: u64, max_context: u32) -> anyhow::Result<Config> {
    let served = Config { policy: POLICY_DEFAULT.into(), target_step_ns: StepTarget::SERVED, ..Config::default() };
    let mut config = Config { max_context, ..served };
    settings.core.apply(&mut config)?;
    settings.h2o.apply(&mut config)?;
    if config.h2o.mode == Mode::On && !settings.core.has("block_size") {
        config.block_size = h2o_settings::BLOCK_SIZE;
    }
    if settings.core.has("max_batch_tokens") && !settings.core.has("max_batch_size") {
        // A step has a token for each of its sequences.
        config.max_batch_size = config.max_batch_size.min(config.max_batch_tokens).max(1);
    }
    // A number of blocks follows only from a block size within its range.
    config.validate()?;
    if !settings.core.has("device_blocks") {
        config.device_blocks = device_blocks(config.block_size, token_bytes);
        config.validate()?;
    }
    Ok(config)
}

/// Fills in the estimated costs of swapping and recomputing on the embedded worker; the scheduler only compares the two.
fn with_estimates(config: Config, model: &Model, info: &ModelInfo, threads: usize) -> Config {
    let block_bytes = info.block_bytes(config.block_size);
    let shape = model.config();
    let (hidden, head_dim) = (u64::from(shape.hidden_size), u64::from(shape.head_dim));
    let heads = 2 * u64::from(shape.n_heads) + 2 * u64::from(shape.n_kv_heads);
    // Every weight of a layer is used once for each token; attention itself is left out.
    let layer = hidden * (heads * head_dim + 3 * u64::from(shape.intermediate_size));
    let multiply_adds = u64::from(shape.n_layers) * layer;
    let per_s = MULTIPLY_ADDS_PER_S * threads as u64;
    let ns = |amount: u64, per_s: u64| (u128::from(amount) * 1_000_000_000 / u128::from(per_s)).max(1) as u64;
    Config { swap_block_ns: ns(block_bytes, COPY_BYTES_PER_S), recompute_token_ns: ns(multiply_adds, per_s), ..config }
}

/// Returns the default number of KV blocks, in which a token takes `token_bytes`.
pub(crate) fn device_blocks(block_size: u32, token_bytes: u64) -> u32 {
    let block_size = u64::from(block_size);
    let blocks = KV_BYTES_DEFAULT / (block_size * token_bytes).max(1);
    blocks.min(DEVICE_BLOCKS_DEFAULT_MAX).max(KV_TOKENS_DEFAULT_MIN.div_ceil(block_size)) as u32
}

#[cfg(test)]
mod kv_dtype_tests;
#[cfg(test)]
mod simulated_tests;
#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;
    use trunkline_core::Preemption;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Settings,
    }

    /// Settings from flags.
    pub(crate) fn given(flags: &[&str]) -> Settings {
        Cli::try_parse_from([&["serve"], flags].concat()).unwrap().settings
    }

    #[test]
    fn blocks_fill_a_gibibyte_within_bounds() {
        assert_eq!(device_blocks(16, 64), 16384);
        assert_eq!(device_blocks(16, 1 << 14), 4096);
        assert_eq!(device_blocks(16, 1 << 26), 512);
        assert_eq!(device_blocks(4096, 1 << 26), 2);
    }

    #[test]
    fn settings_not_given_have_the_cores_defaults_but_for_blocks_and_fair_shares() {
        let config = limits(&Settings::default(), 1 << 14, 512).unwrap();
        let policy = POLICY_DEFAULT.into();
        let target_step_ns = StepTarget::SERVED;
        let expected = Config { device_blocks: 4096, max_context: 512, policy, target_step_ns, ..Config::default() };
        assert_eq!(config, expected);
        let size = |flags: &[&str]| limits(&given(flags), 1 << 14, 512).unwrap().block_size;
        assert_eq!([size(&["--h2o=probe"]), size(&["--h2o=on"]), size(&["--h2o=on", "--block-size=32"])], [16, 8, 32]);
    }

    #[test]
    fn wrong_settings_are_reported_by_name() {
        let wrong = |flag: &str| format!("{:#}", limits(&given(&[flag]), 1 << 14, 512).unwrap_err());
        assert_eq!(wrong("--block-size=0"), "block_size is 0; it must be between 1 and 4096");
        let message = wrong("--policy=magic");
        assert!(message.starts_with("unknown policy 'magic'; there are: fcfs"), "{message}");
        let message = wrong("--device-blocks=0");
        assert!(message.starts_with("device_blocks is 0"), "{message}");
        let message = wrong("--preemption=magic");
        assert_eq!(
            message,
            "unknown preemption 'magic'; there are: swap, recompute, cost, retract, recompute_at_once, retract_at_once"
        );
        assert_eq!(wrong("--max-drafts=65"), "max_drafts is 65; it must be between 0 and 64");
        let message = wrong("--launch-watermark=-1");
        assert!(message.starts_with("launch_watermark is -1"), "{message}");
        for ms in ["-1", "nan", "inf", "3600001", "0.5x"] {
            let message = wrong(&format!("--target-step-ms={ms}"));
            assert!(message.starts_with("target_step_ms is"), "{message}");
        }
    }

    #[test]
    fn values_that_only_imitate_another_engine_are_refused() {
        let refused =
            ["--eviction=leaves", "--eviction=leaves:floor_percent=1", "--policy=lpm_sorted", "--preemption=retract"];
        for flag in refused {
            let error = Cli::try_parse_from(["serve", flag]).err().expect(flag).to_string();
            assert!(error.contains("it imitates SGLang, for `trunkline replay`"), "{error}");
        }
    }

    #[test]
    fn a_null_worker_needs_no_model() {
        let (config, backend) = null(&given(&["--block-size=32"]), 1, Duration::ZERO).unwrap();
        assert_eq!((config[0].block_size, config[0].device_blocks), (32, DEVICE_BLOCKS_DEFAULT_MAX as u32));
        assert_eq!(backend.model.vocab_size, Tokenizer::bytes().vocab_size());
        assert!((backend.workers)(trunkline_cluster::EngineId(0)).is_ok());
        assert!(
            null(&given(&["--model=/nowhere"]), 1, Duration::ZERO).is_err(),
            "the tokenizer of a model that is missing"
        );
    }

    #[test]
    fn a_small_token_budget_bounds_the_batch_by_itself() {
        let config = limits(&given(&["--max-batch-tokens=7"]), 1 << 14, 512).unwrap();
        assert_eq!((config.max_batch_tokens, config.max_batch_size), (7, 7));
        let both = limits(&given(&["--max-batch-tokens=7", "--max-batch-size=8"]), 1 << 14, 512);
        assert!(both.is_err(), "both were asked for");
        assert_eq!(limits(&given(&["--max-batch-tokens=512"]), 1 << 14, 512).unwrap().max_batch_size, 256);
    }

    #[test]
    fn a_step_timeout_is_a_number_of_seconds() {
        assert_eq!(step_timeout(None).unwrap(), Duration::from_secs(60));
        assert_eq!(step_timeout(Some(0.0)).unwrap(), Duration::ZERO);
        for bad in [-1.0, f64::NAN, 86_401.0] {
            assert!(step_timeout(Some(bad)).unwrap_err().to_string().starts_with("step-timeout is"), "{bad}");
        }
    }

    #[test]
    fn settings_reach_the_core() {
        let settings = given(&[
            "--max-queued-tokens=8589934592",
            "--max-step-logits=300",
            "--target-step-ms=2.5",
            "--max-drafts=10",
            "--host-blocks=11",
            "--preemption=swap",
            "--launch-watermark=0.5",
            "--swap-in-watermark=12",
        ]);
        let expected = Config {
            max_queued_tokens: 1 << 33,
            max_step_logits: 300,
            target_step_ns: StepTarget::Ns(2_500_000),
            max_drafts: 10,
            host_blocks: 11,
            preemption: Preemption::Swap,
            launch_watermark: 0.5,
            swap_in_watermark: 12.0,
            device_blocks: 4096,
            max_context: 512,
            policy: POLICY_DEFAULT.into(),
            ..Config::default()
        };
        assert_eq!(limits(&settings, 1 << 14, 512).unwrap(), expected);
    }

    #[test]
    fn estimates_follow_the_size_of_blocks_and_of_the_model() {
        let model = Model::seeded(0);
        let estimated = |block_size, threads| {
            let config = with_estimates(Config { block_size, ..Config::default() }, &model, &model.info(), threads);
            (config.swap_block_ns, config.recompute_token_ns)
        };
        // Blocks of 16 times 512 bytes; two layers of 64 by 192 and 3 by 64 by 128.
        assert_eq!(estimated(16, 1), (1638, 7372));
        assert_eq!(estimated(32, 4), (3276, 1843));
    }
}
