//! Flags of a replay or a plan that have no effect with the others.

use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Preemption};
use trunkline_sim_replay::Settings;
use trunkline_sim_replay::settings::DRAFT_ACCEPTANCE_DEFAULT;

use super::settings::SettingsArgs;

/// Returns a line for each flag without effect in all of `runs`.
pub(crate) fn unused(args: &SettingsArgs, runs: &[Settings]) -> Vec<String> {
    let core = |holds: &dyn Fn(&Config) -> bool| runs.iter().any(|run| holds(&run.core));
    let swaps =
        core(&|core| core.host_capacity() > 0 && matches!(core.preemption, Preemption::Swap | Preemption::Cost));
    let copies = core(&|core| core.host_capacity() > 0 || !core.tiers.is_empty());
    let is_alone = runs.iter().all(|run| run.n_replicas() == 1);
    let drops = core(&|core| core.h2o.mode != Mode::Off);
    let reuses = core(&|core| core.worker.reuse.anywhere > 0);
    let caches = runs.iter().any(|run| run.prefix_caching);
    let given = |name: &str| args.core.has(name);
    let without_swap = "without host memory, and --preemption swap or cost";
    let lines = [
        (
            "draft-acceptance",
            args.draft_acceptance() != DRAFT_ACCEPTANCE_DEFAULT && !core(&|core| core.max_drafts > 0),
            "without --max-drafts",
        ),
        ("host-memory-gb", args.has_host_memory() && !swaps, "without --preemption swap or cost"),
        (
            "host-blocks",
            given("host_blocks") && core(&|core| core.host_blocks > 0) && !swaps,
            "without --preemption swap or cost",
        ),
        ("swap-in-watermark", given("swap_in_watermark") && !swaps, without_swap),
        ("swap-block-ns", given("swap_block_ns") && !swaps, without_swap),
        ("copy-timeout-ms", given("copy_timeout_ns") && !copies, "without host memory and tiers"),
        ("router", args.routing.has_router() && is_alone, "with one replica"),
        ("h2o-layers", args.fleet.has_h2o_layers() && !drops, "without --h2o on or --h2o probe"),
        ("reuse-recompute", given("reuse_recompute") && !reuses, "without --reuse-anywhere"),
        ("reuse-on-request", given("reuse_on_request") && !reuses, "without --reuse-anywhere"),
        (
            "reuse-anywhere",
            reuses
                && args.recorded.is_none()
                && !core(&|core| core.worker.reuse.anywhere > 0 && !core.worker.reuse.on_request),
            "with --reuse-on-request: no request of a trace asks",
        ),
        ("eviction", given("eviction") && !caches, "with --prefix-caching false"),
    ];
    let lines = lines.into_iter().filter(|(_, is_given, _)| *is_given);
    lines.map(|(flag, _, why)| format!("--{flag} has no effect {why}")).collect()
}
