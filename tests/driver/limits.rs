//! Limits of a core, drawn from a seed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_core::config::{PipelineBatches, PrefillFirst, StepTarget};
use trunkline_core::names::registry::Entry;
use trunkline_core::names::spec::Param;
use trunkline_core::request::retention::{PRIORITY_DEFAULT, PRIORITY_MAX, TO_END};
use trunkline_core::{
    Config, Keeps, Preemption, Request, RetentionHint, ReuseConfig, TierConfig, Write, eviction, h2o, policy,
};

/// Prompts first, with a reserve that falls within a few steps, and without sharing of work in flight.
const RESERVING: &str = "chunks:reserve_permille=900,least_permille=100,decay_steps=9,await_prefix=0";
/// Prompts first, whose chunks are found while steps in flight compute them.
const FINDING: &str = "chunks:await_prefix=0,find_chunks=1";
/// The same, and prompts of a step take blocks together.
const TOGETHER: &str = "chunks:await_prefix=0,find_chunks=1,take_together=1";
/// Ways to run prompts before decodes.
const PROMPTS_FIRST: [&str; 6] = ["true", "padded", "chunks", RESERVING, FINDING, TOGETHER];
/// Policies of SGLang, which [`imitate`] draws.
const SORTED: &str = "lpm_sorted";
const LEAVES: &str = "leaves";

/// Draws one of the choices.
pub fn pick<T: Copy>(rng: &mut Pcg64Mcg, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

/// Limits so tight that everything runs out.
pub fn limits(rng: &mut Pcg64Mcg) -> Config {
    let any_size = rng.random_range(1..=64);
    let block_size = pick(rng, &[1, 2, 4, 5, 16, any_size]);
    let max_batch_size = rng.random_range(1..12);
    let few_blocks = rng.random_range(2..8);
    let blocks = rng.random_range(100 / block_size..280 / block_size + 2).max(2);
    let config = Config {
        block_size,
        device_blocks: pick(rng, &[blocks, blocks, blocks, blocks, blocks, blocks, 10 * blocks, few_blocks]),
        max_batch_tokens: max_batch_size + rng.random_range(0..60),
        max_batch_size,
        max_queue: rng.random_range(1..30),
        max_context: 200,
        policy: any_of(rng, named(policy::REGISTRY.entries()).filter(|(name, _)| *name != SORTED)),
        eviction: any_eviction(rng),
        ..Config::default()
    };
    more_limits(rng, config)
}

/// Limits as those of [`limits`], of a core so small that a run takes a millisecond or two: a request fills most of the device, and copies of one
/// prompt merge often.
pub fn small_limits(rng: &mut Pcg64Mcg) -> Config {
    let config = limits(rng);
    let block_size = pick(rng, &[1, 2, 2, 3, 4]);
    let device_blocks = rng.random_range(12 / block_size..=48 / block_size);
    let mut tiers = config.tiers;
    tiers.iter_mut().for_each(|tier| tier.blocks = rng.random_range(1..2 * device_blocks + 2));
    let few_tokens = rng.random_range(0..24);
    let any_preemption = pick(rng, &Preemption::ALL).1;
    Config {
        block_size,
        device_blocks,
        tiers,
        host_blocks: pick(rng, &[0, 1, device_blocks / 2, 2 * device_blocks]),
        max_batch_tokens: config.max_batch_size + few_tokens,
        max_context: 60,
        max_steps_in_flight: pick(rng, &[1, 2, 2, 3, 5, 8]),
        preemption: pick(rng, &[Preemption::Cost, Preemption::Swap, any_preemption]),
        max_queued_tokens: pick(rng, &[50, 1 << 40, 1 << 40]),
        swap_block_ns: pick(rng, &[1, config.swap_block_ns]),
        launch_watermark: pick(rng, &[0.0, 0.0, 0.0, config.launch_watermark]),
        ..config
    }
}

/// Draws an entry of a registry, and at times values of its parameters: often the least or the greatest.
fn any_of<'a>(rng: &mut Pcg64Mcg, entries: impl Iterator<Item = (&'a str, &'a [Param])>) -> String {
    let entries: Vec<_> = entries.collect();
    let (name, params) = pick(rng, &entries);
    // Without it, the queue waits for seats as before: of less interest, and other seeds run as they did.
    let params: Vec<_> = params.iter().filter(|param| param.key != "take_seats").collect();
    if params.is_empty() || rng.random_range(0..2) == 0 {
        return name.into();
    }
    let values: Vec<String> = params
        .into_iter()
        .map(|Param { key, min, max, .. }| {
            let some = rng.random_range(*min..=*max);
            format!("{key}={}", pick(rng, &[*min, some, *max]))
        })
        .collect();
    format!("{name}:{}", values.join(","))
}

fn any_eviction(rng: &mut Pcg64Mcg) -> String {
    any_of(rng, named(eviction::REGISTRY.entries()).filter(|(name, _)| *name != LEAVES))
}

/// Returns the names and parameters of entries.
fn named<T, C>(entries: &'static [Entry<T, C>]) -> impl Iterator<Item = (&'static str, &'static [Param])> {
    entries.iter().map(|entry| (entry.name, entry.params))
}

fn tier(rng: &mut Pcg64Mcg, device_blocks: u32) -> TierConfig {
    TierConfig {
        // A first tier of this name shares its memory with swapped requests.
        name: pick(rng, &["host", "tier"]).into(),
        blocks: rng.random_range(1..3 * device_blocks + 2),
        write: pick(rng, &Write::ALL).1,
        eviction: any_eviction(rng),
        shared: false,
    }
}

/// Makes a tier a shared one, at times, and mostly a small one, whose storage has more than the core knows of. Never one whose memory
/// swapped requests use.
pub(crate) fn share_a_tier(rng: &mut Pcg64Mcg, config: &mut Config) {
    let first = usize::from(config.host_blocks > 0);
    let tiers = config.tiers.len();
    if tiers > first && rng.random_range(0..2) == 0 {
        let tier = &mut config.tiers[rng.random_range(first..tiers)];
        tier.shared = true;
        tier.blocks = pick(rng, &[1, 4, 16, tier.blocks]);
        tier.write = pick(rng, &[Write::Through, Write::Through, tier.write]);
    }
}

/// Changes what the worker wants to be sent, for some seeds. Returns `true` if its connection breaks now and then. Draws nothing from the
/// run's own generator, so that other seeds run as they did.
pub(crate) fn suit_worker(seed: u64, config: &mut Config) -> bool {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.rotate_left(32));
    config.worker.whole_block_hits = rng.random_range(0..8) == 0;
    config.worker.all_tokens = rng.random_range(0..8) == 0;
    let breaks = rng.random_range(0..4) == 0;
    config.worker.in_step_hits = rng.random_range(0..4) == 0;
    config.reserve_prompts = rng.random_range(0..4) > 0;
    breaks
}

/// Runs prompts before decodes, retracts requests, and divides them among stages in other ways, for some seeds. Draws nothing from the run's own generator, so that other seeds run
/// as they did.
pub(crate) fn run_prompts_first(seed: u64, config: &mut Config) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.rotate_left(16));
    if rng.random_range(0..4) == 0 {
        config.prefill_first = pick(&mut rng, &["true", "padded", "chunks", RESERVING]).parse().expect("a mode");
    }
    if rng.random_range(0..8) == 0 {
        config.preemption = Preemption::Retract;
    }
    if config.pipeline_stages > 1 && rng.random_range(0..2) == 0 {
        config.worker.pipeline_batches = pick(&mut rng, &PipelineBatches::ALL);
    }
}

/// Draws a way to run prompts before decodes.
pub(crate) fn any_prefill_first(rng: &mut Pcg64Mcg) -> PrefillFirst {
    pick(rng, &PROMPTS_FIRST).parse().expect("a mode")
}

/// Lets requests leave while steps in flight run them, for some of the seeds that recompute or retract. Draws nothing from the run's own
/// generator, so that other seeds run as they did.
pub(crate) fn preempt_at_once(seed: u64, config: &mut Config) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.rotate_left(8));
    if rng.random_range(0..2) == 0 {
        config.preemption = match config.preemption {
            Preemption::Recompute => Preemption::RecomputeAtOnce,
            Preemption::Retract => Preemption::RetractAtOnce,
            other => other,
        };
    }
}

/// Sorts the queue, evicts leaves, and finds chunks as SGLang does, for some seeds. Draws nothing from the run's own generator, so that
/// other seeds run as they did.
pub(crate) fn imitate(seed: u64, config: &mut Config) {
    let mut rng = Pcg64Mcg::seed_from_u64(!seed.rotate_left(40));
    if rng.random_range(0..6) == 0 {
        config.policy = any_of(&mut rng, named(policy::REGISTRY.entries()).filter(|(name, _)| *name == SORTED));
    }
    if rng.random_range(0..6) == 0 {
        config.eviction = LEAVES.into();
        config.tiers.iter_mut().for_each(|tier| tier.eviction = pick(&mut rng, &[LEAVES, "lru"]).into());
    }
    if rng.random_range(0..8) == 0 {
        config.prefill_first = pick(&mut rng, &[FINDING, TOGETHER]).parse().expect("a mode");
    }
}

/// Bounds the blocks that retention hints keep, for some seeds. Returns the generator of the hints if requests have some. Draws nothing
/// from the run's own generator, so that other seeds run as they did.
pub(crate) fn retain(seed: u64, config: &mut Config) -> Option<Pcg64Mcg> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.rotate_left(48));
    if rng.random_range(0..4) > 0 {
        return None;
    }
    let begin = if config.eviction.contains(':') { ',' } else { ':' };
    let percent = pick(&mut rng, &[0, 1, 10, 25, 60, 100]);
    config.eviction += &format!("{begin}retain_percent={percent}");
    Some(rng)
}

/// Reuses text that is not a prefix, for some seeds for which nothing speaks against it. Returns the generator of edits of prompts if so. Draws nothing
/// from the run's own generator, so that other seeds run as they did.
pub(crate) fn reuse_anywhere(seed: u64, config: &mut Config) -> Option<Pcg64Mcg> {
    let mut rng = Pcg64Mcg::seed_from_u64(!seed.rotate_left(56));
    if rng.random_range(0..2) > 0 {
        return None;
    }
    let size = config.block_size;
    let least = pick(&mut rng, &[1, 2, 5, size, 2 * size + 1]);
    let recomputed = pick(&mut rng, &[0, 0, 0, 1, 4]);
    let on_request = rng.random_range(0..4) == 0;
    let mut reusing = config.clone();
    reusing.worker.reuse = ReuseConfig { anywhere: least, recompute: recomputed, on_request };
    reusing.validate().ok()?;
    *config = reusing;
    Some(rng)
}

/// Returns the generator of sequences that the worker fails alongside others, with their number in a thousand steps, for some seeds. Draws nothing
/// from the run's own generator, so that other seeds run as they did.
pub(crate) fn fail_sequences(seed: u64) -> Option<(Pcg64Mcg, u32)> {
    let mut rng = Pcg64Mcg::seed_from_u64(!seed.rotate_left(24));
    let rate = pick(&mut rng, &[0, 0, 0, 3, 10, 30]);
    (rate > 0).then_some((rng, rate))
}

/// Draws retention hints for a prompt of `tokens` tokens, at times none.
pub(crate) fn hints(rng: &mut Pcg64Mcg, tokens: u32) -> Vec<RetentionHint> {
    let mut begin = 0;
    let mut hints = Vec::new();
    for _ in 0..rng.random_range(0..4) {
        let from = begin + pick(rng, &[0, 0, 1, 9]);
        let some = rng.random_range(1..=tokens);
        let to = pick(rng, &[from + some, tokens.max(from + 1), TO_END]);
        let priority = pick(rng, &[0, 20, PRIORITY_DEFAULT, 36, 60, 80, PRIORITY_MAX]);
        let ttl_ns = pick(rng, &[0, 1, 700, 4_000, 30_000, 200_000]);
        let ttl_ns = if priority < PRIORITY_DEFAULT { 0 } else { ttl_ns };
        // Drawn with the priority, so that the other draws of a seed stay.
        let pin = priority == PRIORITY_MAX && ttl_ns > 1;
        hints.push(RetentionHint { from, to, priority, ttl_ns, demote: priority == 20, pin });
        if to == TO_END {
            break;
        }
        begin = to;
    }
    hints
}

/// Makes a request a prefetch, at times.
pub(crate) fn prefetch(rng: &mut Pcg64Mcg, request: &mut Request) {
    if rng.random_range(0..10) == 0 {
        (request.prefetch, request.max_tokens) = (true, 0);
    }
}

/// Divides the layers of the model into groups, for some seeds. Draws nothing from the run's own generator, so that other seeds run as
/// they did.
pub(crate) fn divide_layers(seed: u64, config: &mut Config) {
    let mut rng = Pcg64Mcg::seed_from_u64(!seed);
    if rng.random_range(0..4) > 0 {
        return;
    }
    let windows = [1, config.block_size, 3 * config.block_size + 1, 50].map(Keeps::Window);
    let kinds = [Keeps::Scored, Keeps::All, windows[0], windows[1], windows[2], windows[3]];
    config.worker.groups = (0..rng.random_range(2..5)).map(|_| pick(&mut rng, &kinds)).collect();
    // Each group takes blocks of its own, on the host and in tiers too.
    config.host_blocks *= pick(&mut rng, &[1, 4, 20]);
    let times = pick(&mut rng, &[1, 4, 20]);
    config.tiers.iter_mut().for_each(|tier| tier.blocks *= times);
    let size = config.block_size;
    config.h2o.mode = pick(&mut rng, &[h2o::Mode::Off, h2o::Mode::Probe, h2o::Mode::On, h2o::Mode::On]);
    config.h2o.scorer = any_of(&mut rng, h2o::REGISTRY.entries().iter().map(|entry| (entry.name, entry.params)));
    config.h2o.ratio = Some(pick(&mut rng, &[1.0, 1.5, 3.0, 64.0]));
    config.h2o.sink = pick(&mut rng, &[0, 1, size]);
    config.h2o.recent = pick(&mut rng, &[0, 1, 2 * size]);
    config.h2o.block = pick(&mut rng, &[0, size, 3 * size]);
    config.h2o.trigger = pick(&mut rng, &[0, 1, 30]);
    config.h2o.interval = pick(&mut rng, &[1, 3, 16]);
    config.h2o.score_interval = pick(&mut rng, &[1, 2, 4, 16]);
    if rng.random_range(0..2) == 0 {
        let scored = config.worker.groups.iter().skip(1).filter(|keeps| **keeps == Keeps::Scored);
        config.h2o.weights = scored.map(|_| pick(&mut rng, &[0.0, 0.4, 1.0, 2.5])).collect();
    }
    config.h2o.by_group = rng.random_range(0..2) == 0;
}

fn more_limits(rng: &mut Pcg64Mcg, config: Config) -> Config {
    let few_blocks = rng.random_range(1..=60 / config.block_size + 1);
    let few_logits = config.max_batch_size + rng.random_range(0..8);
    let few_tokens = rng.random_range(20..400);
    let few_token_ns = rng.random_range(0..400);
    let n_tiers = pick(rng, &[0, 0, 1, 1, 2, 3]);
    let high = pick(rng, &[1.0, 9.0, 1000.0]);
    Config {
        tiers: (0..n_tiers).map(|_| tier(rng, config.device_blocks)).collect(),
        host_blocks: pick(rng, &[0, few_blocks, few_blocks, 4 * config.device_blocks]),
        preemption: pick(rng, &[Preemption::Swap, Preemption::Swap, Preemption::Recompute, Preemption::Cost]),
        max_steps_in_flight: pick(rng, &[1, 1, 2, 2, 3, 5]),
        pipeline_stages: pick(rng, &[1, 1, 1, 2, 3]),
        launch_watermark: pick(rng, &[0.0, 0.0, 0.0, 0.5, 1.0, 2.0, high]),
        swap_in_watermark: pick(rng, &[0.0, 0.0, 0.0, 0.5, 1.0, 2.0, high]),
        align_chunks: rng.random_range(0..4) > 0,
        max_step_logits: pick(rng, &[few_logits, 1 << 16]),
        max_queued_tokens: pick(rng, &[few_tokens, 1 << 40, 1 << 40]),
        copy_timeout_ns: pick(rng, &[0, 3_000, 20_000, 30_000_000_000]),
        max_drafts: pick(rng, &[0, 1, 3, 8]),
        target_step_ns: pick(rng, &[StepTarget::Off, StepTarget::Ns(200), StepTarget::Ns(700), StepTarget::SERVED]),
        // A block is up to sixteen tokens, so each way is at times the cheaper one.
        swap_block_ns: rng.random_range(0..2000),
        // Copies take many steps here, so loading seldom pays, except where computing is said to take forever.
        recompute_token_ns: pick(rng, &[few_token_ns, 1 << 40]),
        ..config
    }
}
