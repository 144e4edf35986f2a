//! Fleet, limits and policies of a replay: flags, and the settings made from them.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{ArgAction, Args, ValueEnum};
use trunkline_cluster::{ClusterConfig, ROUTER_DEFAULT, Role};
use trunkline_core::config::Setting;
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Keeps, Preemption};
use trunkline_port::LayerGroup;
use trunkline_sim_perf::cost::{BoxedCost, CostChoice, EngineOverhead, Parallel, Weights};
use trunkline_sim_perf::hardware::{self, Hardware, HardwareError};
use trunkline_sim_perf::memory::{MemoryUse, host_blocks};
use trunkline_sim_perf::model;
use trunkline_sim_perf::model::{LATENT_BLOCK_TOKENS, Model};
use trunkline_sim_replay::engine_memory::EngineMemory;
use trunkline_sim_replay::engines::Engine;
use trunkline_sim_replay::group::{FleetSpec, GroupSpec};
use trunkline_sim_replay::recorded;
use trunkline_sim_replay::settings::{DRAFT_ACCEPTANCE_DEFAULT, GivenSteps, STEPS_PER_STAGE};
use trunkline_sim_replay::{Arrivals, Routing, Settings, engines};
use trunkline_sim_workload::tenants::Shares;

use super::engine_log::EngineLog;
use super::pages;
use super::service::ServiceArgs;
use super::tiers::TierArgs;
use crate::h2o::choice::Choice;
use crate::h2o::full_heads::FullHeads;
use crate::h2o::total::{self, Heads};
use crate::settings::core_settings::{CoreFlags, CoreSettings};
use crate::settings::engines::roles as engines_roles;
use crate::settings::h2o_settings::spread_layers;

/// Token budget of a step that keeps a GPU busy.
pub(crate) const MAX_BATCH_TOKENS: u32 = 8192;
/// Largest memory of a host, GB: a petabyte.
const HOST_MEMORY_GB_MAX: f64 = 1e6;

/// Flags of `replay` and `plan` for settings of the core.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReplayFlags;

impl CoreFlags for ReplayFlags {
    // A replay measures queueing, so its queue has no limit.
    const OMITTED: &'static [&'static str] = &["max_queue", "max_queued_tokens"];
    const COMPARED: &'static [&'static str] = &["policy", "eviction", "preemption"];
    const IMITATES: bool = true;

    fn default_text(setting: &Setting) -> String {
        match setting.name {
            "device_blocks" => "as many as fit next to the weights".into(),
            "swap_block_ns" => "from the hardware's link".into(),
            "recompute_token_ns" => "from the cost model".into(),
            "max_batch_tokens" => format!("{MAX_BATCH_TOKENS} divided by the pipeline stages, or the engine's"),
            "pipeline_stages" => "those of --parallel; 1 with one step in flight".into(),
            "max_steps_in_flight" => "1; 2 for each pipeline stage; with `--engine`, as the preset says".into(),
            _ => {
                let default = (setting.get)(&limits_of(None));
                let differs = |engine| (setting.get)(&limits_of(Some(engine))) != default;
                let engines = if engines::PRESETS.entries().iter().map(|preset| (preset.make)(&[], ())).any(differs) {
                    ", or the engine's"
                } else {
                    ""
                };
                format!("{default}{engines}")
            }
        }
    }
}

/// Fleet, limits and policies.
#[derive(Clone, Debug, Args)]
pub(crate) struct SettingsArgs {
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    pub(crate) core: CoreSettings<ReplayFlags>,

    #[command(flatten)]
    pub(crate) routing: RoutingArgs,

    #[command(flatten)]
    pub(crate) service: ServiceArgs,

    #[command(flatten)]
    pub(crate) tiers: TierArgs,

    /// Settings of the recorded server, if the trace is a recording: defaults of the flags.
    #[arg(skip)]
    pub(crate) recorded: Option<Box<ClusterConfig>>,

    /// `true` to give a device the KV blocks that fit, even if a recorded server had others.
    #[arg(skip)]
    pub(crate) fit_blocks: bool,
}

/// Type of the elements of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvType {
    Bf16,
    F16,
    #[value(aliases = ["fp8_e4m3", "fp8_e5m2"])]
    Fp8,
    F32,
}

impl KvType {
    /// Returns the bytes of an element.
    fn bytes(self) -> u64 {
        match self {
            Self::Fp8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Hardware and model.
#[derive(Clone, Debug, Args)]
pub(crate) struct FleetArgs {
    /// Devices of each replica: a preset, or a TOML file as `trunkline calibrate` writes (fields: docs/reference/cost-models.md); an unknown name lists all presets.
    #[arg(long, value_name = "NAME", default_value = "h100-80g")]
    pub(crate) hardware: String,

    /// Model to serve: a preset, a Hugging Face folder, or its config.json; an unknown name lists all presets.
    #[arg(long, value_name = "NAME", default_value = "llama-3.1-8b")]
    model: String,

    /// Type of the KV cache, which decides its size: bf16, f16, fp8 or f32 [default: as in the config.json, else of 16 bits].
    #[arg(long, value_name = "TYPE", value_enum)]
    kv_dtype: Option<KvType>,

    /// Let requests find the KV of others with the same prefix; false is `--no-enable-prefix-caching` of vLLM.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    prefix_caching: bool,

    /// Devices of one replica: tp2 for tensor parallel, pp2 for pipeline parallel, tp2pp2 for both. For a model with experts: ep with the
    /// number of all devices for whole experts on each device, as in tp2ep2 or dp4ep4, not slices; dp4 for groups of 4 replicas with separate
    /// requests, common experts, and all steps at the same time.
    #[arg(long, value_name = "SHAPE", default_value = "tp1")]
    parallel: Parallel,

    /// Cost model, for the time of a step: auto (fitted if the hardware file has this model, else roofline), roofline, fitted,
    /// or table:FOLDER with step times measured by LLMServingSim, Vidur or aiconfigurator.
    #[arg(long, value_name = "SPEC", default_value_t = CostChoice::Auto)]
    cost: CostChoice,

    /// Time of the engine around the kernels of each step, STEP_US or STEP_US:SEQUENCE_US: scheduling, sampling, sending tokens.
    /// `trunkline calibrate --kernels` finds it for an engine [default: 0].
    #[arg(long, value_name = "US", default_value = "0", hide_default_value = true)]
    engine_overhead: EngineOverhead,

    /// Placement of weights: resident on the device; stream, from disk through host memory, for a model larger than the device;
    /// or stream_first, which keeps the first layers on the device, not evenly spread ones. Parameters as in
    /// stream:device_layers=4,host_layers=50,disk_mb_s=3000; an unknown one lists all.
    #[arg(long, value_name = "SPEC", default_value_t = Weights::Resident)]
    weights: Weights,

    /// Share of each device's memory for weights and KV, as of vLLM: blocks fill it, unless --device-blocks says how many there are [default: 0.9; 0.92
    /// with --engine vllm-v1, by the device with sglang].
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    gpu_memory_utilization: Option<f64>,

    /// Layers, or single KV heads as LAYER.HEAD, that keep every token while --h2o is on and the others drop tokens, as in 7.2,17.1,18
    /// [default: each fourth layer].
    #[arg(long, value_name = "LAYERS")]
    h2o_layers: Option<String>,

    /// Tokens of a sequence for each token kept while --h2o is on, on average over all KV heads, 1.1 to 16: says how much the heads drop that
    /// --h2o-layers does not name, instead of a ratio [default: 2.5, as in a server].
    #[arg(long, value_name = "RATIO")]
    h2o_total: Option<String>,

    /// Number of replicas; with dp, of ranks [default: 1, with dp one group, or the number in the recording].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) replicas: Option<u32>,

    /// Fleet of several kinds of replicas, each as `HARDWARE[:SHAPE][*REPLICAS]`, such as h100-80g*2,a100-80g:tp2*4; numbered
    /// in this order.
    #[arg(long, value_name = "GROUPS", conflicts_with_all = ["hardware", "parallel", "replicas"])]
    pub(crate) fleet: Option<FleetSpec>,
}

impl FleetArgs {
    /// Returns the model as the engine keeps it, if one is imitated, with the KV cache of the type asked for.
    fn model(&self, engine: Option<Engine>) -> anyhow::Result<Model> {
        let mut model = model::find(&self.model)?;
        model.kv_dtype_bytes = self.kv_dtype.map_or(model.kv_dtype_bytes, KvType::bytes);
        Ok(engine.map_or(model, |engine| engine.keeps(model)))
    }

    /// Returns `true` if layers that keep every token are named.
    pub(super) fn has_h2o_layers(&self) -> bool {
        self.h2o_layers.is_some()
    }

    /// Returns the memory that is not for KV blocks: that of the engine, if one is imitated, with the share that is given.
    fn memory(&self, engine: Option<Engine>) -> anyhow::Result<EngineMemory> {
        let memory = engine.map_or(EngineMemory::Same(MemoryUse::DEFAULT), |engine| engine.memory);
        let Some(utilization) = self.gpu_memory_utilization else { return Ok(memory) };
        ensure!(
            utilization > 0.0 && utilization <= 1.0,
            "gpu-memory-utilization is {utilization}; it must be above 0 and at most 1"
        );
        Ok(memory.with_utilization(utilization))
    }
}

/// Limits other than the settings of the core.
#[derive(Clone, Debug, Args)]
struct LimitArgs {
    /// Schedule like an engine, as closely as the core can: vllm-v1, vllm-v0, sglang or sarathi; vllm-v1@0.11 divides memory as that release. Sets the
    /// defaults of the flags below.
    #[arg(long, value_name = "NAME", value_parser = engines::by_name)]
    engine: Option<Engine>,

    /// Take the number of KV blocks from the log of an engine of your own (vLLM or SGLang), instead of --device-blocks.
    #[arg(long, value_name = "FILE")]
    engine_log: Option<PathBuf>,

    /// Host memory of each replica for swapped requests, GB (10^9 bytes), instead of --host-blocks.
    #[arg(long, value_name = "X", conflicts_with = "host_blocks", allow_negative_numbers = true)]
    host_memory_gb: Option<f64>,

    /// Probability that a drafted token is accepted.
    #[arg(long, value_name = "P", default_value_t = DRAFT_ACCEPTANCE_DEFAULT, allow_negative_numbers = true)]
    draft_acceptance: f64,
}

/// Tenants, routing and faults.
#[derive(Clone, Debug, Args)]
pub(crate) struct RoutingArgs {
    /// Split the requests among tenants in these shares, such as 0.9,0.1, and report latency and service of each [default: the tenants of the
    /// trace, if it has any].
    #[arg(long, value_name = "SHARES", allow_hyphen_values = true)]
    pub(crate) tenants: Option<String>,

    /// Router, which assigns requests to replicas: round_robin, least_loaded, random2, prefix_affinity or added_time, with parameters as in
    /// prefix_affinity:stale_ms=500. Give more than one to compare [default: prefix_affinity, or as in the recording].
    #[arg(long, value_name = "SPEC")]
    router: Vec<String>,

    /// Follow the retention hints of requests (true) or leave them out (false). Give both to see what hints gain those who send them, and
    /// cost the others [default: true].
    #[arg(long, value_name = "BOOL", value_parser = clap::value_parser!(bool))]
    hints: Vec<bool>,

    /// Fail a replica, numbered from 0, at a time, and restore it at a later one if given. Its requests wait for it, or start
    /// over on others if it is not restored. May be given more than once.
    #[arg(long, value_name = "REPLICA@SECONDS[..SECONDS]")]
    fail: Vec<String>,

    /// Role of each replica, as for `serve`: prefill, decode or both, as in prefill*2,decode*4. Gives the number of replicas unless --replicas
    /// does. A prefill replica hands each request over with its first token; the blocks travel by --shared-mem or --remote-shared, or are
    /// computed again [default: both for each].
    #[arg(long, value_name = "ROLES")]
    pub(crate) roles: Option<String>,

    /// Multiply the step times of a replica, numbered from 0, by a factor. May be given more than once.
    #[arg(long, value_name = "REPLICA:FACTOR")]
    slow: Vec<String>,
}

impl RoutingArgs {
    /// Returns `true` if a router is named.
    pub(super) fn has_router(&self) -> bool {
        !self.router.is_empty()
    }
}

/// Settings of each run, and the cost model, made once for all runs.
pub(crate) struct Runs {
    pub(crate) settings: Vec<Settings>,
    pub(crate) cost: BoxedCost,
}

impl SettingsArgs {
    /// Takes the settings of the recorded server as defaults if the file at `path` is a recording.
    ///
    /// # Errors
    /// If the recording has no valid header.
    pub(crate) fn follow(&mut self, path: &Path) -> anyhow::Result<()> {
        if recorded::is_recording(path) {
            self.recorded = Some(Box::new(recorded::settings(path)?));
        }
        Ok(())
    }

    /// Returns the flags for a simulation of the recorded server itself: hardware, model and cost model as given, all else as recorded.
    pub(crate) fn as_recorded(&self) -> Self {
        let mut flags = Self { core: CoreSettings::default(), ..self.clone() };
        flags.fleet.replicas = None;
        flags.fleet.prefix_caching = true;
        flags.fleet.gpu_memory_utilization = None;
        flags.limits.engine = None;
        flags.routing = RoutingArgs {
            tenants: None,
            router: Vec::new(),
            hints: Vec::new(),
            fail: Vec::new(),
            roles: None,
            slow: Vec::new(),
        };
        flags.service = ServiceArgs::default();
        flags
    }

    /// Returns the probability that a draft is accepted.
    pub(super) fn draft_acceptance(&self) -> f64 {
        self.limits.draft_acceptance
    }

    /// Returns `true` if the host memory is given in GB.
    pub(super) fn has_host_memory(&self) -> bool {
        self.limits.host_memory_gb.is_some_and(|gb| gb > 0.0)
    }

    /// Returns `true` if an engine is imitated whose number of KV blocks nobody gave.
    pub(super) fn estimates_blocks(&self) -> bool {
        self.limits.engine.is_some() && !self.core.has("device_blocks") && self.limits.engine_log.is_none()
    }

    /// Returns the log of an engine that says the number of KV blocks, if one is given.
    pub(super) fn engine_log(&self) -> Option<&Path> {
        self.limits.engine_log.as_deref()
    }

    /// Counts requests by the tenants of the trace, unless shares are given.
    pub(crate) fn adopt_tenants(&self, settings: &mut Settings, tenants: u64) {
        if self.routing.tenants.is_none() {
            settings.tenants = Shares::traced(tenants);
        }
    }
}

/// Returns the settings of every run, checked: each policy with each eviction policy, each preemption, each router, with
/// and without hints, and each autoscaling policy.
///
/// # Errors
/// If a setting is unknown, malformed or outside its range, or the model does not fit the hardware.
pub(crate) fn runs(args: &SettingsArgs, arrivals: Arrivals) -> anyhow::Result<Runs> {
    let (base, cost) = base(args, arrivals)?;
    let mut runs = Vec::new();
    for core in args.core.combinations(&base.core)? {
        ensure!(
            core.preemption != Preemption::Swap || core.host_blocks > 0,
            "preemption is swap, but there is no host memory; give --host-memory-gb or --host-blocks"
        );
        let default = [args.recorded.as_ref().map_or(ROUTER_DEFAULT.into(), |recorded| recorded.router.clone())];
        let routers = if args.routing.router.is_empty() { &default[..] } else { &args.routing.router };
        let hints = if args.routing.hints.is_empty() { &[true][..] } else { &args.routing.hints };
        for (router, hints) in routers.iter().flat_map(|router| hints.iter().map(move |hints| (router, *hints))) {
            let mut settings = Settings { core: core.clone(), hints, ..base.clone() };
            settings.routing.router.clone_from(router);
            for settings in args.service.scaled(&settings, args.fleet.replicas)? {
                settings.validate()?;
                runs.push(settings);
            }
        }
    }
    Ok(Runs { settings: runs, cost })
}

/// Returns the settings of the first run, with the default router.
fn base(args: &SettingsArgs, arrivals: Arrivals) -> anyhow::Result<(Settings, BoxedCost)> {
    let SettingsArgs { fleet, routing, .. } = args;
    let roles = match (routing.roles.as_deref(), &args.recorded) {
        (Some(roles), _) => engines_roles(roles)?,
        (None, Some(recorded)) if fleet.replicas.is_none() && fleet.fleet.is_none() => recorded_roles(recorded),
        (None, _) => Vec::new(),
    };
    let known = if roles.is_empty() {
        args.recorded.as_ref().map(|recorded| recorded.engines.len())
    } else {
        Some(roles.len())
    };
    let replicas = fleet.replicas.filter(|replicas| roles.is_empty() || *replicas > 1);
    let replicas = replicas.unwrap_or(known.map_or(fleet.parallel.data, |known| known.max(1) as u32));
    let one = GroupSpec { hardware: fleet.hardware.clone(), parallel: fleet.parallel, replicas };
    let (first, others) = match &fleet.fleet {
        Some(FleetSpec(groups)) => (&groups[0], &groups[1..]),
        None => (&one, &[][..]),
    };
    let devices = devices(first, others)?;
    let mut settings = Settings {
        parallel: first.parallel,
        cost: fleet.cost.clone(),
        engine_overhead: fleet.engine_overhead,
        weights: fleet.weights,
        memory: fleet.memory(args.limits.engine)?,
        replicas: first.replicas,
        core: limits(args, &devices)?,
        arrivals,
        tenants: routing.tenants.as_deref().map_or(Ok(Shares::default()), str::parse)?,
        draft_acceptance: args.limits.draft_acceptance,
        shared_memory: args.tiers.has_shared_memory(),
        prefix_caching: fleet.prefix_caching,
        routing: Routing {
            router: ROUTER_DEFAULT.into(),
            roles,
            failures: routing.fail.iter().map(|spec| spec.parse()).collect::<Result<_, _>>()?,
            slow: routing.slow.iter().map(|spec| spec.parse()).collect::<Result<_, _>>()?,
            random_failures: args.service.random_failures(),
            autoscale: None,
        },
        ..Settings::new(devices[0], fleet.model(args.limits.engine)?)
    };
    let total = fleet.h2o_total.as_deref().map(|text| total::parse(total::SETTING, text)).transpose()?;
    divide_layers(&mut settings, fleet.h2o_layers.as_deref(), total)?;
    let is_latent = settings.model.latent.is_some();
    if is_latent && args.recorded.is_none() && !args.core.has("block_size") {
        settings.core.block_size = LATENT_BLOCK_TOKENS;
    }
    pages::divide(&mut settings, args.core.has("block_size"))?;
    // Numbers of blocks and estimates of their cost follow only from a block size within its range.
    settings.core.validate()?;
    let cost = size(&mut settings, others, args)?;
    settings.prices = args.service.prices_of(&settings)?;
    settings.validate()?;
    Ok((settings, cost))
}

/// Returns the device of each kind of replica.
fn devices(first: &GroupSpec, others: &[GroupSpec]) -> Result<Vec<Hardware>, HardwareError> {
    std::iter::once(first).chain(others).map(|group| hardware::find(&group.hardware)).collect()
}

/// Returns the limits of an engine, or those of a replay on a GPU.
fn limits_of(engine: Option<Engine>) -> Config {
    match engine {
        // The number of blocks is set once hardware and model are known.
        Some(engine) => engine.core(Config::default().device_blocks),
        None => Config { max_batch_tokens: MAX_BATCH_TOKENS, ..Settings::core() },
    }
}

/// Returns the limits of a recorded server for a replay, without queue limits and tiers.
fn recorded_limits(recorded: &ClusterConfig) -> Config {
    let Config { max_queue, max_queued_tokens, max_context, .. } = Settings::core();
    let core = recorded.engines[0].core.clone();
    Config { max_queue, max_queued_tokens, max_context, pipeline_stages: 1, tiers: Vec::new(), ..core }
}

/// Returns the roles of the recorded engines; none if all both prefill and decode.
fn recorded_roles(recorded: &ClusterConfig) -> Vec<Role> {
    let roles: Vec<_> = recorded.engines.iter().map(|engine| engine.role).collect();
    if roles.iter().all(|role| *role == Role::Both) { Vec::new() } else { roles }
}

/// Returns the limits on kinds of devices, with the settings that are given.
fn limits(args: &SettingsArgs, devices: &[Hardware]) -> anyhow::Result<Config> {
    let mut config = match &args.recorded {
        Some(recorded) if args.limits.engine.is_none() => recorded_limits(recorded),
        _ => limits_of(args.limits.engine.map(|engine| engine.on(devices))),
    };
    args.core.apply(&mut config)?;
    Ok(config)
}

/// Returns the sizes of so many groups that share the layers of a model evenly, or its KV heads, if it has fewer layers; `None` if it has fewer heads, too.
fn group_sizes(groups: u32, n_layers: u32, per_layer: u32) -> Option<Vec<u32>> {
    let members = if groups <= n_layers { n_layers } else { n_layers * per_layer };
    let size = |group: u32| (group + 1) * members / groups - group * members / groups;
    (groups <= members).then(|| (0..groups).map(size).collect())
}

/// Divides the layers into groups: layers with a sliding window, and with eviction within sequences layers that keep every token (`full`)
/// and layers that drop tokens, by the ratio that the `total` asks for. A replay needs the number of layers, not their positions. A recorded server has
/// the groups of the model; numbers of layers are not recorded, so the groups share all layers evenly.
fn divide_layers(settings: &mut Settings, full: Option<&str>, total: Option<f32>) -> anyhow::Result<()> {
    let n_layers = settings.model.layers as u32;
    let recorded = settings.core.worker.groups.len() as u32;
    if recorded > 0 {
        ensure!(full.is_none(), "h2o-layers does not go with a recording, whose layers are divided already");
        ensure!(
            total.is_none(),
            "h2o-total does not go with a recording, whose layers are divided already; give --h2o on:ratio=R"
        );
        // Groups of single heads, as of servers whose heads choose their blocks, share the heads.
        settings.group_sizes = group_sizes(recorded, n_layers, settings.model.kv_heads as u32).with_context(|| {
            format!("the recorded model has {recorded} layer groups, more than {} has KV heads", settings.model.name)
        })?;
        return Ok(());
    }
    let windows = settings.model.windows.map(|windows| LayerGroup {
        layers: (n_layers - windows.layers as u32..n_layers).collect(),
        keeps: Keeps::Window(windows.tokens),
        ..LayerGroup::default()
    });
    let n_unlimited = n_layers - windows.iter().map(|group| group.layers.len() as u32).sum::<u32>();
    let per_layer = settings.model.kv_heads as u32;
    let n_full = match full {
        Some(text) => FullHeads::parse("h2o-layers", text, n_layers, per_layer)?.len() as u32,
        None if settings.core.h2o.mode == Mode::Off => n_unlimited * per_layer,
        None => (spread_layers(n_unlimited).len() as u32).min(n_unlimited) * per_layer,
    };
    ensure!(
        n_full <= n_unlimited * per_layer,
        "h2o-layers names {n_full} KV heads, but {} heads of {} read every token",
        n_unlimited * per_layer,
        settings.model.name
    );
    let heads = Heads { whole: n_full, dropping: n_unlimited * per_layer - n_full };
    let drops = settings.core.h2o.mode != Mode::Off && heads.dropping > 0;
    ensure!(drops || total.is_none(), "h2o-total has no effect unless heads drop tokens; add --h2o on");
    if drops {
        total::set_ratio(total, heads, &mut settings.core)?;
    }
    let groups =
        FullHeads::new((0..n_full).collect(), n_layers, per_layer).groups(windows.as_slice(), Choice::Shared)?;
    if groups.iter().any(|group| group.keeps != Keeps::All) {
        settings.core.worker.groups = groups.iter().map(|group| group.keeps).collect();
        settings.group_sizes = groups.iter().map(|group| (group.layers.len() + group.heads.len()) as u32).collect();
    }
    Ok(())
}

/// Returns the stages, steps in flight and token budget that are given.
fn given_steps(args: &SettingsArgs, core: &Config) -> GivenSteps {
    let given = |name, value| args.core.has(name).then_some(value);
    GivenSteps {
        stages: given("pipeline_stages", core.pipeline_stages),
        steps: given("max_steps_in_flight", core.max_steps_in_flight),
        keeps_tokens: args.core.has("max_batch_tokens") || args.limits.engine.is_some() || args.recorded.is_some(),
        per_stage: if args.limits.engine.is_some() { 1 } else { STEPS_PER_STAGE },
    }
}

/// Adds the other kinds of replicas, and fills in numbers of blocks and costs that follow from hardware and model unless given.
fn size(settings: &mut Settings, others: &[GroupSpec], args: &SettingsArgs) -> anyhow::Result<BoxedCost> {
    let is_known =
        args.core.has("device_blocks") || (args.recorded.is_some() && args.limits.engine.is_none() && !args.fit_blocks);
    let log = args.engine_log().map(EngineLog::read).transpose()?;
    ensure!(
        !(is_known || log.is_some()) || args.fleet.gpu_memory_utilization.is_none(),
        "gpu-memory-utilization has no effect where the number of device blocks is given or recorded; leave one out"
    );
    ensure!(
        !is_known || log.is_none(),
        "device-blocks and engine-log both give the number of device blocks; leave one out"
    );
    ensure!(
        others.is_empty() || log.is_none(),
        "engine-log is of one kind of replica, and the fleet has several; leave it out"
    );
    let device_blocks = match &log {
        Some(log) => Some(log.device_blocks(settings)?),
        None => is_known.then_some(settings.core.device_blocks),
    };
    settings.core.device_blocks = match device_blocks {
        Some(blocks) => blocks,
        None => settings.fitting_device_blocks()?,
    };
    for GroupSpec { hardware, parallel, replicas } in others {
        settings.add_group(hardware::find(hardware)?, *parallel, *replicas, device_blocks)?;
    }
    settings.fill_pipelines(given_steps(args, &settings.core));
    if let Some(gb) = args.limits.host_memory_gb {
        ensure!(
            (0.0..=HOST_MEMORY_GB_MAX).contains(&gb),
            "host-memory-gb is {gb}; it must be between 0 and {HOST_MEMORY_GB_MAX}"
        );
        settings.core.host_blocks = host_blocks((gb * 1e9) as u64, settings.block_bytes());
    }
    let is_replaced = args.tiers.has_host() && args.limits.host_memory_gb.is_none() && !args.core.has("host_blocks");
    if args.recorded.is_some() && is_replaced {
        // The server's came from its own --host-mem.
        settings.core.host_blocks = 0;
    }
    let measured = args.tiers.measured()?;
    if let Some(gb_s) = measured.host_gb_s {
        settings.hardware.host_link_bytes_s = gb_s * 1e9;
        settings.others.iter_mut().for_each(|group| group.hardware.host_link_bytes_s = gb_s * 1e9);
    }
    (settings.core.tiers, settings.far_links) = args.tiers.tiers(settings, &measured)?;
    let cost = settings.cost_model()?;
    let Config { swap_block_ns, recompute_token_ns, .. } = settings.core;
    settings.estimate_costs(&*cost);
    // Estimates that are given replace those of the hardware, for all kinds of replicas.
    if args.core.has("swap_block_ns") {
        settings.core.swap_block_ns = swap_block_ns;
        settings.others.iter_mut().for_each(|group| group.swap_block_ns = swap_block_ns);
    }
    if args.core.has("recompute_token_ns") {
        settings.core.recompute_token_ns = recompute_token_ns;
        settings.others.iter_mut().for_each(|group| group.recompute_token_ns = recompute_token_ns);
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::group_sizes;

    #[test]
    fn groups_of_a_recorded_server_share_the_layers_or_the_heads() {
        let shared = |groups: u32| group_sizes(groups, 4, 3);
        assert_eq!([shared(3), shared(4)], [Some(vec![1, 1, 2]), Some(vec![1; 4])]);
        assert_eq!([shared(5), shared(12)], [Some(vec![2, 2, 3, 2, 3]), Some(vec![1; 12])]);
        assert_eq!(shared(13), None);
    }
}
