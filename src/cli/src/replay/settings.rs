//! What a trace is replayed on: flags, and the settings they make.

use anyhow::{bail, ensure};
use clap::Args;

use super::tiers::TierArgs;
use trunkline_cluster::ROUTER_DEFAULT;
use trunkline_core::{Config, Preemption};
use trunkline_sim_perf::cost::{BoxedCost, CostChoice, Parallel, Weights};
use trunkline_sim_perf::memory::host_blocks;
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::engines::Engine;
use trunkline_sim_replay::group::{FleetSpec, GroupSpec};
use trunkline_sim_replay::settings::DRAFT_ACCEPTANCE_DEFAULT;
use trunkline_sim_replay::{Arrivals, Routing, Settings, engines};

/// Tokens in a step of a GPU that is to be used well.
const MAX_BATCH_TOKENS: u32 = 8192;
/// The longest step that can be aimed at, milliseconds: an hour.
const TARGET_STEP_MS_MAX: f64 = 3.6e6;
/// The most memory of a host, GB: none has a petabyte.
const HOST_MEMORY_GB_MAX: f64 = 1e6;

/// Fleet, limits and policies.
#[derive(Clone, Debug, Args)]
pub(crate) struct SettingsArgs {
    /// The devices of each replica: a preset, of which an unknown name lists all, or a TOML file, such as `trunkline calibrate`
    /// writes.
    #[arg(long, value_name = "NAME", default_value = "h100-80g")]
    pub(crate) hardware: String,

    /// The model they serve: a preset, of which an unknown name lists all, or a config.json of Hugging Face.
    #[arg(long, value_name = "NAME", default_value = "llama-3.1-8b")]
    model: String,

    /// How one replica spreads the model over devices: tp2 for tensor parallel, pp2 for pipeline parallel, tp2pp2 for both.
    #[arg(long, value_name = "SHAPE", default_value = "tp1")]
    parallel: Parallel,

    /// How long steps take: auto (what the hardware's file says of this model, else its roofline), roofline, fitted, or table:FOLDER with
    /// measured times as LLMServingSim, Vidur or aiconfigurator have them.
    #[arg(long, value_name = "SPEC", default_value_t = CostChoice::Auto)]
    cost: CostChoice,

    /// Where weights lie: resident on the device, or stream, from the disk through the host's memory, for a model that does not fit;
    /// stream_first if the first layers stay and not some evenly between the others. Parameters as in
    /// stream:device_layers=4,host_layers=50,disk_mb_s=3000; an unknown one lists all.
    #[arg(long, value_name = "SPEC", default_value_t = Weights::Resident)]
    weights: Weights,

    /// Schedule as near as can be to an engine: vllm-v1 or sarathi. Sets what is said of it below, unless that is given as well.
    #[arg(long, value_name = "NAME", value_parser = engines::by_name)]
    engine: Option<Engine>,

    /// Replicas.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) replicas: u32,

    /// Replicas of several kinds, each as `HARDWARE[:SHAPE][*REPLICAS]`, such as h100-80g*2,a100-80g:tp2*4; they are numbered in this order.
    #[arg(long, value_name = "GROUPS", conflicts_with_all = ["hardware", "parallel", "replicas"])]
    pub(crate) fleet: Option<FleetSpec>,

    /// Tokens in a KV block [default: 16, or the engine's].
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,

    /// KV blocks on each device [default: what the model leaves of its memory].
    #[arg(long, value_name = "N")]
    device_blocks: Option<u32>,

    /// KV blocks in each replica's host memory, for requests that are swapped out [default: 0].
    #[arg(long, value_name = "N")]
    host_blocks: Option<u32>,

    /// The same in GB (10^9 bytes).
    #[arg(long, value_name = "X", conflicts_with = "host_blocks", allow_negative_numbers = true)]
    host_memory_gb: Option<f64>,

    /// Tokens run in one step at most [default: 8192, or the engine's].
    #[arg(long, value_name = "N")]
    max_batch_tokens: Option<u32>,

    /// Sequences in one step at most [default: 256, or the engine's].
    #[arg(long, value_name = "N")]
    max_batch_size: Option<u32>,

    /// Let prefill chunks end at whole blocks [default: true, or the engine's].
    #[arg(long, value_name = "BOOL")]
    align_chunks: Option<bool>,

    /// Positions sampled from in one step at most, drafts included.
    #[arg(long, value_name = "N", default_value_t = Config::default().max_step_logits)]
    max_step_logits: u32,

    /// Cut prefill chunks so that a step with decodes takes about this long, milliseconds; 0 is off.
    #[arg(long, value_name = "MS", default_value_t = 0.0, allow_negative_numbers = true)]
    target_step_ms: f64,

    /// Blocks that stay usable for each running request when another is admitted [default: 1, or the engine's].
    #[arg(long, value_name = "BLOCKS", allow_negative_numbers = true)]
    launch_watermark: Option<f64>,

    /// Blocks that stay usable for each running request when one is swapped in [default: 1, or the engine's].
    #[arg(long, value_name = "BLOCKS", allow_negative_numbers = true)]
    swap_in_watermark: Option<f64>,

    /// Tokens a decode drafts at most; 0 is off.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_drafts: u32,

    /// The probability that a drafted token is right.
    #[arg(long, value_name = "P", default_value_t = DRAFT_ACCEPTANCE_DEFAULT, allow_negative_numbers = true)]
    draft_acceptance: f64,

    /// Split the requests among tenants with these shares, such as 0.9,0.1, and report how each fares.
    #[arg(long, value_name = "SHARES", default_value = "1", allow_hyphen_values = true)]
    tenants: String,

    /// Order of waiting requests and choice of victims; an unknown name lists those there are. Give it more than once to
    /// compare.
    #[arg(long, value_name = "SPEC", default_values_t = [Config::default().policy])]
    policy: Vec<String>,

    /// Which idle cached block goes first; an unknown name lists those there are. Give it more than once to compare.
    #[arg(long, value_name = "NAME", default_values_t = [Config::default().eviction])]
    eviction: Vec<String>,

    /// What becomes of a running request whose blocks are needed: swap, recompute, or cost for whichever is estimated to
    /// cost less [default: cost, or the engine's]. Give it more than once to compare.
    #[arg(long, value_name = "NAME")]
    preemption: Vec<String>,

    /// Which replica a request goes to: round_robin, least_loaded, random2 or prefix_affinity, perhaps with parameters as in
    /// prefix_affinity:stale_ms=500. Give it more than once to compare.
    #[arg(long, value_name = "SPEC", default_values_t = [ROUTER_DEFAULT.to_string()])]
    router: Vec<String>,

    /// A replica, from 0, is lost at a time and perhaps back at a later one. Its requests wait for it, or start over elsewhere if it
    /// does not come back. May be given more than once.
    #[arg(long, value_name = "REPLICA@SECONDS[..SECONDS]")]
    fail: Vec<String>,

    /// A replica, from 0, takes so many times as long for every step. May be given more than once.
    #[arg(long, value_name = "REPLICA:FACTOR")]
    slow: Vec<String>,

    /// What copying a block to or from the host is estimated to cost, for `--preemption cost` [default: what the hardware's
    /// link takes].
    #[arg(long, value_name = "NS")]
    swap_block_ns: Option<u64>,

    /// What computing a token again is estimated to cost, for `--preemption cost` [default: what the cost model says].
    #[arg(long, value_name = "NS")]
    recompute_token_ns: Option<u64>,
}

/// What is to be replayed, and how long its steps take: the cost model is the same for all and made once.
pub(crate) struct Runs {
    pub(crate) settings: Vec<Settings>,
    pub(crate) cost: BoxedCost,
}

/// The settings of every run: each policy with each eviction policy, each preemption and each router, all of them checked.
pub(crate) fn runs(args: &SettingsArgs, tiers: &TierArgs, arrivals: Arrivals) -> anyhow::Result<Runs> {
    let (base, cost) = base(args, tiers, arrivals)?;
    let preemptions: Vec<Preemption> = match &args.preemption[..] {
        [] => vec![base.core.preemption],
        given => given.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
    };
    let mut runs = Vec::new();
    for policy in &args.policy {
        for eviction in &args.eviction {
            for preemption in &preemptions {
                let mut settings = base.clone();
                settings.core.policy.clone_from(policy);
                settings.core.eviction.clone_from(eviction);
                settings.core.preemption = *preemption;
                if settings.core.preemption == Preemption::Swap && settings.core.host_blocks == 0 {
                    bail!("preemption is swap, but there is no host memory; give --host-memory-gb or --host-blocks");
                }
                for router in &args.router {
                    settings.routing.router.clone_from(router);
                    settings.validate()?;
                    runs.push(settings.clone());
                }
            }
        }
    }
    Ok(Runs { settings: runs, cost })
}

/// Everything but policies.
fn base(args: &SettingsArgs, tiers: &TierArgs, arrivals: Arrivals) -> anyhow::Result<(Settings, BoxedCost)> {
    ensure!(
        (0.0..=TARGET_STEP_MS_MAX).contains(&args.target_step_ms),
        "target-step-ms is {}; it must be between 0 and {TARGET_STEP_MS_MAX}",
        args.target_step_ms
    );
    let one = GroupSpec { hardware: args.hardware.clone(), parallel: args.parallel, replicas: args.replicas };
    let (first, others) = match &args.fleet {
        Some(FleetSpec(groups)) => (&groups[0], &groups[1..]),
        None => (&one, &[][..]),
    };
    let mut settings = Settings {
        hardware: hardware::find(&first.hardware)?,
        model: model::find(&args.model)?,
        parallel: first.parallel,
        cost: args.cost.clone(),
        weights: args.weights,
        replicas: first.replicas,
        others: Vec::new(),
        core: limits(args),
        arrivals,
        tenants: args.tenants.parse()?,
        draft_acceptance: args.draft_acceptance,
        far_links: Vec::new(),
        routing: Routing {
            router: ROUTER_DEFAULT.into(),
            failures: args.fail.iter().map(|spec| spec.parse()).collect::<Result<_, _>>()?,
            slow: args.slow.iter().map(|spec| spec.parse()).collect::<Result<_, _>>()?,
        },
    };
    // Numbers of blocks, and what they cost, can be had only for a block size that is possible.
    settings.core.validate()?;
    let cost = size(&mut settings, others, args, tiers)?;
    settings.validate()?;
    Ok((settings, cost))
}

/// The engine's limits, or those of a replay on a GPU, and what was given instead.
fn limits(args: &SettingsArgs) -> Config {
    let base = match args.engine {
        // The number of blocks follows when hardware and model are known.
        Some(engine) => engine.core(Config::default().device_blocks),
        None => Config { max_batch_tokens: MAX_BATCH_TOKENS, ..Settings::core() },
    };
    Config {
        block_size: args.block_size.unwrap_or(base.block_size),
        max_batch_tokens: args.max_batch_tokens.unwrap_or(base.max_batch_tokens),
        max_batch_size: args.max_batch_size.unwrap_or(base.max_batch_size),
        align_chunks: args.align_chunks.unwrap_or(base.align_chunks),
        launch_watermark: args.launch_watermark.unwrap_or(base.launch_watermark),
        swap_in_watermark: args.swap_in_watermark.unwrap_or(base.swap_in_watermark),
        host_blocks: args.host_blocks.unwrap_or(base.host_blocks),
        max_step_logits: args.max_step_logits,
        max_drafts: args.max_drafts,
        target_step_ns: (args.target_step_ms * 1e6).round() as u64,
        ..base
    }
}

/// Adds the other kinds of replicas, and fills in what follows from hardware and model, unless it was given.
fn size(
    settings: &mut Settings,
    others: &[GroupSpec],
    args: &SettingsArgs,
    tiers: &TierArgs,
) -> anyhow::Result<BoxedCost> {
    let block_size = settings.core.block_size;
    settings.core.device_blocks = match args.device_blocks {
        Some(blocks) => blocks,
        None => settings.fitting_device_blocks()?,
    };
    for GroupSpec { hardware, parallel, replicas } in others {
        settings.add_group(hardware::find(hardware)?, *parallel, *replicas, args.device_blocks)?;
    }
    if let Some(gb) = args.host_memory_gb {
        ensure!(
            (0.0..=HOST_MEMORY_GB_MAX).contains(&gb),
            "host-memory-gb is {gb}; it must be between 0 and {HOST_MEMORY_GB_MAX}"
        );
        settings.core.host_blocks = host_blocks((gb * 1e9) as u64, &settings.model, block_size);
    }
    (settings.core.tiers, settings.far_links) = tiers.tiers(&settings.model, block_size)?;
    let cost = settings.cost_model()?;
    settings.estimate_costs(&*cost);
    let core = &mut settings.core;
    let first = (&mut core.swap_block_ns, &mut core.recompute_token_ns);
    let others = settings.others.iter_mut().map(|group| (&mut group.swap_block_ns, &mut group.recompute_token_ns));
    for (swap_block_ns, recompute_token_ns) in std::iter::once(first).chain(others) {
        *swap_block_ns = args.swap_block_ns.unwrap_or(*swap_block_ns);
        *recompute_token_ns = args.recompute_token_ns.unwrap_or(*recompute_token_ns);
    }
    Ok(cost)
}
