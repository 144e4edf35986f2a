//! Final report of a fleet.

use trunkline_cluster::Role;
use trunkline_core::{Stats, TierConfig};

use super::{Fleet, Totals, engine};
use crate::settings::{Arrivals, HostBytes, Settings};
use trunkline_sim_perf::cost::{CostModel, Parallel, TimeRange};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::link::Links;
use trunkline_sim_report::numbers::ratio;
use trunkline_sim_report::report::{
    ArrivalsReport, BatchReport, ClosedLoopReport, FleetReport, GroupReport, HostBytesReport, Latencies, Report,
    SettingsReport, SwapReport, TierReport, TokenTotals, WeightsReport,
};
use trunkline_sim_workload::trace::{ClosedLoop, Format, Source};

impl Fleet<'_> {
    pub(super) fn report(self) -> Report {
        let settings = self.settings;
        let status: Vec<_> = (0..self.replicas.len()).map(|replica| self.cluster.status(engine(replica))).collect();
        let stats: Vec<_> = status.iter().map(|status| status.stats).collect();
        self.assert_drained(&stats);
        let digest = self.cluster.digest();
        let [link_out, link_in] = Links::report(self.replicas.iter().map(|replica| &replica.links), 0);
        let tiers = self.tier_reports(&stats);
        let mut counters = Stats::default();
        stats.iter().for_each(|stats| counters += *stats);
        let duration_s = self.totals.last_end_ns as f64 / 1e9;
        let fleet = self.fleet_report();
        let hints = self.meters.hints(settings.hints);
        let (total, itl_s, fairness, classes) = self.meters.end();
        Report {
            settings: settings_report(self.pending.source.format(), settings, self.cost, self.totals.unlimited),
            requests: total.requests,
            completed: total.completed,
            refused: total.refused,
            duration_s,
            requests_s: ratio(total.completed as f64, duration_s),
            tokens: TokenTotals {
                prompt_tokens: total.prompt_tokens,
                output_tokens: total.output_tokens,
                prefix_hit_tokens: total.cached_tokens,
                prefix_hit_ratio: ratio(total.cached_tokens as f64, total.prompt_tokens as f64),
                copied_tokens: total.copied_tokens,
                copied_ratio: ratio(total.copied_tokens as f64, total.prompt_tokens as f64),
                prefix_blocks: counters.prefix_blocks,
                prefix_runs: counters.prefix_runs,
                mean_prefix_run: ratio(counters.prefix_blocks as f64, counters.prefix_runs as f64),
                too_long: self.totals.too_long,
                hints,
            },
            preemptions: counters.preemptions,
            swaps: SwapReport {
                swap_outs: counters.swaps.swap_outs,
                swap_ins: counters.swaps.swap_ins,
                link_out,
                link_in,
            },
            tiers,
            batches: self.totals.batches(&counters),
            counters,
            fleet,
            latencies: Latencies {
                ttft_s: total.ttft.summary(),
                tpot_s: total.tpot.summary(),
                itl_s,
                e2e_s: total.e2e.summary(),
                deadlines: total.deadlines.if_any(),
            },
            fairness,
            classes,
            load: None,
            baseline: None,
            digest: format!("{digest:016x}"),
            wall_s: 0.0,
        }
    }

    /// Returns a report of each tier over all replicas; of shared memory, its own counts.
    fn tier_reports(&self, stats: &[Stats]) -> Vec<TierReport> {
        let of = |(at, tier): (usize, &TierConfig)| {
            let links = Links::report(self.replicas.iter().map(|replica| &replica.links), at);
            let mut report = TierReport::new(&tier.name, stats.iter().map(|stats| stats.tiers[at]), links);
            if tier.shared {
                self.shared.count(&mut report);
            }
            report
        };
        self.settings.core.tiers.iter().enumerate().map(of).collect()
    }

    /// Returns the use of the replicas until the last end.
    fn fleet_report(&self) -> FleetReport {
        let duration_s = self.totals.last_end_ns as f64 / 1e9;
        let busy_s = self.replicas.iter().map(|replica| replica.pipeline.busy_ns as f64 / 1e9).sum::<f64>();
        let service = self.lifecycle.report(self.settings, self.totals.last_end_ns);
        let offered_s = match (&service, &self.settings.routing.autoscale) {
            // At least as long as busy: hours are rounded.
            (Some(service), Some(_)) => (service.replica_hours * 3600.0).max(busy_s),
            _ => duration_s * self.replicas.len() as f64,
        };
        FleetReport { utilisation: ratio(busy_s, offered_s), rerouted: self.lifecycle.rerouted, service }
    }

    /// Checks that no core, load or block still holds a request.
    fn assert_drained(&self, stats: &[Stats]) {
        for stats in stats {
            let requests = stats.waiting + stats.running + stats.swapped + stats.loading;
            let held = requests + stats.private_blocks;
            assert_eq!(held, 0, "nothing is held when all requests have ended: {stats:?}");
        }
        for load in (0..self.replicas.len()).map(|replica| self.cluster.status(engine(replica)).load) {
            assert_eq!((load.requests, load.tokens, load.prefill_tokens), (0, 0, 0), "no load is left");
        }
    }
}

impl Totals {
    /// Returns the means over all steps of the replicas.
    fn batches(&self, counters: &Stats) -> BatchReport {
        let steps = counters.steps;
        BatchReport {
            steps,
            mean_batch: ratio(self.seqs_run as f64, steps as f64),
            mean_step_tokens: ratio(self.tokens_run as f64, steps as f64),
            drafted_tokens: counters.drafts.draft_tokens,
            accepted_drafts: counters.drafts.accepted_draft_tokens,
            extrapolated: self.extrapolated,
            weights: (self.weights.steps > 0).then(|| WeightsReport::of(&self.weights)),
        }
    }
}

fn group_report((replicas, hardware, parallel, device_blocks): (u32, &Hardware, Parallel, u32)) -> GroupReport {
    GroupReport { hardware: hardware.name, parallel: parallel.to_string(), replicas, device_blocks }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Both => "both",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

/// Returns the failures of the settings, those at random last.
fn failures(settings: &Settings) -> Vec<String> {
    let given = settings.routing.failures.iter().map(ToString::to_string);
    given.chain(settings.routing.random_failures.iter().map(ToString::to_string)).collect()
}

/// Returns the inputs that only a replay has, and decisions with these settings took into account.
fn oracles(settings: &Settings, unlimited: u64) -> Vec<&'static str> {
    let is_policy = |name: &str| settings.core.policy.split(':').next() == Some(name);
    let used = [
        (unlimited > 0 && is_policy("edf"), "edf expects answers of max_tokens, which is their true length here"),
        (
            settings.core.prefill_first.reserve().is_some(),
            "room for output is reserved for max_tokens, which is its true length here",
        ),
    ];
    used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, what)| what).collect()
}

fn settings_report(format: Format, settings: &Settings, cost: &dyn CostModel, unlimited: u64) -> SettingsReport {
    let HostBytes { weights, kv } = settings.host_bytes();
    SettingsReport {
        trace: String::new(),
        format: format.as_str(),
        hardware: settings.hardware.name,
        model: match settings.prefix_caching {
            true => settings.model.label(),
            false => format!("{}, without prefix caching", settings.model.label()),
        },
        replicas: settings.n_replicas(),
        groups: settings.kinds().map(group_report).collect(),
        router: settings.routing.router.clone(),
        roles: settings.routing.roles.iter().map(|role| role_name(*role)).collect(),
        failures: failures(settings),
        slow: settings.routing.slow.iter().map(ToString::to_string).collect(),
        autoscale: settings.routing.autoscale.as_ref().map(|autoscale| autoscale.policy.clone()),
        initial_replicas: settings.routing.autoscale.as_ref().map(|autoscale| autoscale.initial),
        core: settings.core.clone(),
        draft_acceptance: settings.draft_acceptance,
        arrivals: ArrivalsReport {
            serial: settings.arrivals == Arrivals::Serial,
            speed: settings.arrivals.speed(),
            closed_loop: settings.arrivals.closed().map(|ClosedLoop { users, think_s, ramp_s }| ClosedLoopReport {
                concurrency: users,
                think_s,
                ramp_s,
            }),
        },
        oracles: oracles(settings, unlimited),
        cost_model: cost.name().into(),
        time_range: TimeRange::widest((0..settings.n_replicas() as usize).map(|replica| cost.range(replica))),
        weights: settings.weights.to_string(),
        host_bytes: HostBytesReport { weights, kv, memory: settings.hardware.memory.host_bytes },
    }
}
