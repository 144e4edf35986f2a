//! Settings of a server that have no effect beside the others.

use trunkline_cluster::{ClusterConfig, Role};
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Preemption};

use crate::config_file::Settings;
use crate::h2o_settings::H2oSettings;

/// Returns a line for each setting without effect, and for settings that make each other slow. `config` are the limits of each engine of `cluster`, with its tiers.
pub fn unused(settings: &Settings, config: &Config, cluster: &ClusterConfig) -> Vec<String> {
    let tiers = &settings.tiers;
    let mut lines = Vec::new();
    if config.h2o.mode == Mode::Off && settings.h2o != H2oSettings::default() && !may_drop(settings) {
        lines.push(
            "settings of --h2o-* have no effect without --h2o probe or --h2o on, or --h2o-layers for requests with h2o on"
                .into(),
        );
    }
    for (flag, given) in [
        ("compression", tiers.compression.is_some()),
        ("compression-layers", tiers.compression_layers.is_some()),
        ("tier-write", tiers.tier_write.is_some()),
        ("tier-eviction", tiers.tier_eviction.is_some()),
    ] {
        if given && config.tiers.is_empty() && config.host_capacity() == 0 {
            lines.push(format!("--{flag} has no effect without --host-mem, --disk, --shared-mem or --remote"));
        }
    }
    if config.preemption == Preemption::Swap && config.host_capacity() == 0 {
        lines.push("--preemption swap computes preempted requests again without --host-mem or --host-blocks".into());
    }
    if cluster.engines.iter().any(|engine| engine.role == Role::Prefill) && config.tiers.iter().all(|tier| !tier.shared)
    {
        lines.push("decode workers compute every prompt again without --shared-mem or --remote".into());
    }
    if config.worker.reuse.anywhere == 0 {
        let given = [
            ("reuse-recompute", config.worker.reuse.recompute > 0),
            ("reuse-on-request", config.worker.reuse.on_request),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        lines.extend(given.map(|(flag, _)| format!("--{flag} has no effect without --reuse-anywhere")));
    }
    let streams = settings.weights.as_deref().is_some_and(|place| place.split(':').next() == Some("stream"));
    if streams && config.worker.reuse.anywhere > 0 {
        lines.push(
            "--weights stream is slow with --reuse-anywhere: each part of a prompt between copied runs is a step of its own, which reads all streamed weights"
                .into(),
        );
    }
    lines
}

/// Returns `true` if a request with `h2o` on may drop tokens though the server's mode is off: heads are divided here, or perhaps by an attached
/// worker.
fn may_drop(settings: &Settings) -> bool {
    let computes =
        settings.worker.as_deref().is_none_or(|kind| kind == "embedded") && settings.simulate.simulate.is_none();
    let attached = settings.attach.attached_workers.unwrap_or(usize::from(settings.workers == Some(0)));
    attached > 0 || (computes && settings.h2o.h2o_layers.is_some())
}

#[cfg(test)]
mod tests {
    use trunkline_core::ReuseConfig;

    use super::*;

    #[test]
    fn settings_of_eviction_have_an_effect_on_requests_that_ask_for_it() {
        let named = |settings: &Settings| {
            let lines = unused(settings, &Config::default(), &ClusterConfig::uniform(&Config::default(), 1));
            lines.iter().any(|line| line.starts_with("settings of --h2o-*"))
        };
        let mut settings = Settings::default();
        settings.h2o.h2o_ratio = Some("6".into());
        assert!(named(&settings), "no layer group drops tokens");
        settings.h2o.h2o_layers = Some("0.1".into());
        assert!(!named(&settings), "the other heads drop tokens for requests with h2o on");
        settings.worker = Some("null".into());
        assert!(named(&settings), "a worker without a model has no heads");
        settings.attach.attached_workers = Some(1);
        assert!(!named(&settings), "an attached worker may have divided its heads");
    }

    #[test]
    fn settings_of_copies_without_copies_are_named() {
        let lines = |anywhere, recompute, on_request| {
            let mut config = Config::default();
            config.worker.reuse = ReuseConfig { anywhere, recompute, on_request };
            unused(&Settings::default(), &config, &ClusterConfig::uniform(&config, 1))
        };
        let [recompute, on_request] =
            ["recompute", "on-request"].map(|flag| format!("--reuse-{flag} has no effect without --reuse-anywhere"));
        assert_eq!(lines(0, 8, false).concat(), recompute);
        assert_eq!(lines(0, 0, true).concat(), on_request);
        assert_eq!(lines(0, 8, true), [recompute, on_request]);
        assert!(lines(64, 8, true).is_empty() && lines(0, 0, false).is_empty());
    }

    #[test]
    fn streamed_weights_beside_copies_are_named() {
        let named = |weights: Option<&str>, anywhere| {
            let settings = Settings { weights: weights.map(Into::into), ..Settings::default() };
            let mut config = Config::default();
            config.worker.reuse.anywhere = anywhere;
            let lines = unused(&settings, &config, &ClusterConfig::uniform(&config, 1));
            lines.iter().filter(|line| line.starts_with("--weights stream is slow with --reuse-anywhere")).count()
        };
        assert_eq!(named(Some("stream:memory_mib=64"), 32), 1);
        assert_eq!(named(Some("stream:memory_mib=64"), 0), 0);
        assert_eq!(named(Some("resident"), 32) + named(None, 32), 0);
    }

    #[test]
    fn settings_without_effect_are_named_and_others_are_not() {
        let mut settings = Settings::default();
        let lines = |settings: &Settings, config: &Config| {
            unused(settings, config, &ClusterConfig::uniform(&Config::default(), 1))
        };
        assert!(lines(&settings, &Config::default()).is_empty());
        settings.h2o.h2o_ratio = Some("3".into());
        settings.tiers.tier_write = Some("back".into());
        let swaps = Config { preemption: Preemption::Swap, ..Config::default() };
        let named = lines(&settings, &swaps);
        assert_eq!(named.len(), 3, "{named:?}");
        assert!(named[0].starts_with("settings of --h2o-*") && named[1].starts_with("--tier-write has no effect"));
        let mut used = Config { host_blocks: 8, ..swaps };
        used.h2o.mode = Mode::Probe;
        assert!(lines(&settings, &used).is_empty());
        let mut cluster = ClusterConfig::uniform(&Config::default(), 2);
        (cluster.engines[0].role, cluster.engines[1].role) = (Role::Prefill, Role::Decode);
        let apart = unused(&Settings::default(), &Config::default(), &cluster);
        assert!(apart[0].starts_with("decode workers compute every prompt again"), "{apart:?}");
    }
}
