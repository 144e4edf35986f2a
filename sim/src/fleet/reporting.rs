//! What is reported of a fleet when all is over.

use trunkline_core::Stats;

use super::Fleet;
use crate::link::Links;
use crate::report::{Report, SettingsReport, TierReport, ratio};
use crate::trace::Source;

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
            settings: SettingsReport::new(self.source.format(), settings, self.cost.name()),
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

/// One digest of all replicas', in their order. That of a single replica is its own.
fn fold_digests(digests: impl Iterator<Item = u64>) -> u64 {
    digests
        .reduce(|folded, next| (folded.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .expect("at least one replica")
}
