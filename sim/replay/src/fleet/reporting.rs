//! What is reported of a fleet when all is over.

use trunkline_core::Stats;

use super::Fleet;
use crate::settings::{Arrivals, Settings};
use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::link::Links;
use trunkline_sim_report::numbers::ratio;
use trunkline_sim_report::report::{GroupReport, Report, SettingsReport, TierReport};
use trunkline_sim_workload::trace::{Format, Source};

impl Fleet<'_> {
    pub(super) fn report(self) -> Report {
        let settings = self.settings;
        let stats: Vec<_> = self.replicas.iter().map(|replica| replica.core.stats()).collect();
        for stats in &stats {
            let requests = stats.waiting + stats.running + stats.swapped + stats.loading;
            let held = requests + stats.private_blocks;
            assert_eq!(held, 0, "nothing is held when all requests have ended: {stats:?}");
        }
        for load in &self.loads {
            assert_eq!((load.requests, load.tokens, load.prefill_tokens), (0, 0, 0), "no load is left");
        }
        let digest = fold_digests(self.replicas.iter().map(|replica| replica.core.digest()));
        let links = |at| Links::report(self.replicas.iter().map(|replica| &replica.links), at);
        let [link_out, link_in] = links(0);
        let tiers = settings.core.tiers.iter().enumerate();
        let tiers =
            tiers.map(|(at, tier)| TierReport::new(&tier.name, stats.iter().map(|stats| stats.tiers[at]), links(at)));
        let sum = |count: fn(&Stats) -> u64| stats.iter().map(count).sum::<u64>();
        let steps = sum(|stats| stats.steps);
        let duration_s = self.last_end_ns as f64 / 1e9;
        let busy_s = self.replicas.iter().map(|replica| replica.busy_ns as f64 / 1e9).sum::<f64>();
        let (total, itl_s, fairness) = self.meters.end();
        Report {
            settings: settings_report(self.source.format(), settings, self.cost.name()),
            requests: total.requests,
            completed: total.completed,
            refused: total.refused,
            duration_s,
            requests_s: ratio(total.completed as f64, duration_s),
            prompt_tokens: total.prompt_tokens,
            output_tokens: total.output_tokens,
            prefix_hit_tokens: total.cached_tokens,
            prefix_hit_ratio: ratio(total.cached_tokens as f64, total.prompt_tokens as f64),
            preemptions: sum(|stats| stats.preemptions),
            swap_outs: sum(|stats| stats.swap_outs),
            swap_ins: sum(|stats| stats.swap_ins),
            link_out,
            link_in,
            tiers: tiers.collect(),
            steps,
            mean_batch: ratio(self.seqs_run as f64, steps as f64),
            mean_step_tokens: ratio(self.tokens_run as f64, steps as f64),
            drafted_tokens: sum(|stats| stats.draft_tokens),
            accepted_drafts: sum(|stats| stats.accepted_draft_tokens),
            evicted_blocks: sum(|stats| stats.evicted_blocks),
            utilisation: ratio(busy_s, duration_s * self.replicas.len() as f64),
            rerouted: self.rerouted,
            ttft_s: total.ttft.summary(),
            tpot_s: total.tpot.summary(),
            itl_s,
            e2e_s: total.e2e.summary(),
            fairness,
            load: None,
            digest: format!("{digest:016x}"),
            wall_s: 0.0,
        }
    }
}

fn group_report((replicas, hardware, parallel, device_blocks): (u32, &Hardware, Parallel, u32)) -> GroupReport {
    GroupReport { hardware: hardware.name, parallel: parallel.to_string(), replicas, device_blocks }
}

fn settings_report(format: Format, settings: &Settings, cost_model: &str) -> SettingsReport {
    let core = &settings.core;
    SettingsReport {
        trace: String::new(),
        format: format.as_str(),
        hardware: settings.hardware.name,
        model: settings.model.name,
        replicas: settings.n_replicas(),
        groups: settings.kinds().map(group_report).collect(),
        router: settings.routing.router.clone(),
        failures: settings.routing.failures.iter().map(ToString::to_string).collect(),
        slow: settings.routing.slow.iter().map(ToString::to_string).collect(),
        block_size: core.block_size,
        device_blocks: core.device_blocks,
        max_batch_tokens: core.max_batch_tokens,
        max_batch_size: core.max_batch_size,
        policy: core.policy.clone(),
        eviction: core.eviction.clone(),
        preemption: core.preemption,
        host_blocks: core.host_blocks,
        swap_block_ns: core.swap_block_ns,
        recompute_token_ns: core.recompute_token_ns,
        launch_watermark: core.launch_watermark,
        swap_in_watermark: core.swap_in_watermark,
        max_step_logits: core.max_step_logits,
        target_step_ns: core.target_step_ns,
        max_drafts: core.max_drafts,
        draft_acceptance: settings.draft_acceptance,
        serial: settings.arrivals == Arrivals::Serial,
        speed: match settings.arrivals {
            Arrivals::Traced { speed } => Some(speed),
            Arrivals::Serial | Arrivals::AtOnce => None,
        },
        cost_model: cost_model.into(),
    }
}

/// One digest of all replicas', in their order. That of a single replica is its own.
fn fold_digests(digests: impl Iterator<Item = u64>) -> u64 {
    digests
        .reduce(|folded, next| (folded.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .expect("at least one replica")
}
