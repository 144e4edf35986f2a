//! Settings of a server that have no effect with the others.

use trunkline_cluster::{ClusterConfig, Role};
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Preemption};

use crate::settings::engines::Engines;
use crate::settings::h2o_settings::H2oSettings;
use crate::settings::serve_settings::Settings;

/// Returns a line for each setting without effect, and for settings that make each other slow. `config` are the limits of each engine of `cluster`, with its tiers.
pub fn unused(settings: &Settings, config: &Config, cluster: &ClusterConfig, engines: &Engines) -> Vec<String> {
    let mut lines = Vec::new();
    if config.h2o.mode == Mode::Off && settings.h2o != H2oSettings::default() && !may_drop(settings) {
        lines.push(
            "settings of --h2o-* have no effect without --h2o probe or --h2o on, or --h2o-layers for requests with h2o on"
                .into(),
        );
    }
    let missing = of_workers(settings, engines)
        .into_iter()
        .chain(of_copies(settings, config))
        .chain(of_access(settings))
        .chain(of_reuse(config));
    lines.extend(missing.filter(|(_, given, _)| *given).map(|(flag, _, why)| format!("--{flag} has no effect {why}")));
    if config.preemption == Preemption::Swap && config.host_capacity() == 0 {
        lines.push("--preemption swap computes preempted requests again without --host-mem or --host-blocks".into());
    }
    if cluster.engines.iter().any(|engine| engine.role == Role::Prefill) && config.tiers.iter().all(|tier| !tier.shared)
    {
        lines.push("decode workers compute every prompt again without --shared-mem or --remote".into());
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

/// Flag, `true` if the flag is given without effect, and what the flag needs.
type Unused = (&'static str, bool, &'static str);

/// Returns the flags about workers that the server does not have.
fn of_workers(settings: &Settings, engines: &Engines) -> Vec<Unused> {
    let attach = &settings.attach;
    let computes = settings.worker.as_deref().is_none_or(|kind| kind == "embedded");
    let (no_embedded, no_attached) = (engines.embedded() == 0, engines.attached() == 0);
    let without_model = "without an embedded worker that computes a model";
    let without_attached = "without attached workers; give --attached-workers";
    vec![
        ("worker", settings.worker.is_some() && no_embedded, "without embedded workers; give --workers"),
        ("threads", settings.threads.is_some() && (no_embedded || !computes), without_model),
        ("kv-resident", settings.kv.kv_resident.is_some() && (no_embedded || !computes), without_model),
        ("kv-dtype", settings.kv.kv_dtype.is_some() && (no_embedded || !computes), without_model),
        ("kernel", settings.kv.kernel.is_some() && (no_embedded || !computes), without_model),
        ("h2o", settings.core.has("h2o") && !computes && no_attached, without_model),
        ("router", settings.router.is_some() && engines.workers() == 1, "with one worker"),
        ("worker-silence", attach.worker_silence.is_some() && no_attached, without_attached),
        ("worker-resume", attach.worker_resume.is_some() && no_attached, without_attached),
        ("worker-wait", attach.worker_wait.is_some() && no_attached, without_attached),
        ("worker-shared-memory", attach.worker_shared_memory.is_some() && no_attached, without_attached),
    ]
}

/// Returns the flags about copies of blocks that the server does not make.
fn of_copies(settings: &Settings, config: &Config) -> Vec<Unused> {
    let (tiers, core) = (&settings.tiers, &settings.core);
    let has_host = config.host_capacity() > 0;
    let has_tiers = !config.tiers.is_empty();
    let swaps = has_host && matches!(config.preemption, Preemption::Swap | Preemption::Cost);
    let without_tiers = "without --host-mem, --disk, --shared-mem or --remote";
    let without_swap = "without --host-mem or --host-blocks, and --preemption swap or cost";
    let off = tiers.compression.as_deref() == Some("off");
    vec![
        ("compression", tiers.compression.is_some() && !has_tiers && !has_host, without_tiers),
        ("compression-layers", tiers.compression_layers.is_some() && !has_tiers && !has_host, without_tiers),
        (
            "compression-layers",
            tiers.compression_layers.is_some() && (has_tiers || has_host) && off,
            "with --compression off",
        ),
        ("tier-write", tiers.tier_write.is_some() && !has_tiers, without_tiers),
        ("tier-eviction", tiers.tier_eviction.is_some() && !has_tiers, without_tiers),
        ("copy-timeout-ms", core.has("copy_timeout_ns") && !has_tiers && !has_host, without_tiers),
        ("host-blocks", core.has("host_blocks") && config.host_blocks > 0 && !swaps, without_swap),
        ("swap-in-watermark", core.has("swap_in_watermark") && !swaps, without_swap),
    ]
}

/// Returns the flags about callers and their sessions that others make void.
fn of_access(settings: &Settings) -> Vec<Unused> {
    let (network, sessions) = (&settings.network, &settings.sessions);
    let none = sessions.max_sessions == Some(0);
    let refused = "with --max-sessions 0";
    vec![
        ("admin", network.admin.is_some() && network.token_file.is_some(), "with --token-file: the roles decide"),
        ("max-sessions-per-client", sessions.max_sessions_per_client.is_some() && none, refused),
        ("session-bytes", sessions.session_bytes.is_some() && none, refused),
        ("session-ttl", sessions.session_ttl.is_some() && none, refused),
    ]
}

/// Returns the flags about copied runs without such runs.
fn of_reuse(config: &Config) -> Vec<Unused> {
    let (reuse, without) = (&config.worker.reuse, "without --reuse-anywhere");
    vec![
        ("reuse-recompute", reuse.anywhere == 0 && reuse.recompute > 0, without),
        ("reuse-on-request", reuse.anywhere == 0 && reuse.on_request, without),
    ]
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
    use crate::serve::tests::given;

    fn engines(settings: &Settings) -> Engines {
        Engines::of(settings, 1).unwrap()
    }

    #[test]
    fn each_flag_is_named_where_it_has_no_effect_and_nowhere_else() {
        let named = |flags: &[&str]| {
            let settings = given(flags);
            let mut config = crate::serve::limits(&settings, 1 << 10, 512).unwrap();
            if let Some(tiers) = settings.tiers.tiers(1, 1).unwrap() {
                tiers.apply(&mut config);
            }
            let cluster = ClusterConfig::uniform(&config, 1);
            unused(&settings, &config, &cluster, &engines(&settings))
        };
        let attached = "--attached-workers=1";
        // Settings under which a flag has no effect, and under which it has one.
        for (flag, without, with) in [
            ("--worker=null", attached, "--workers=2"),
            ("--threads=1", "--worker=null", "--workers=2"),
            ("--kv-dtype=f16", attached, "--workers=2"),
            ("--kernel=portable", attached, "--workers=2"),
            ("--router=random2", "--workers=1", "--workers=2"),
            ("--worker-silence=3", "--workers=1", attached),
            ("--worker-resume=3", "--workers=1", attached),
            ("--worker-wait=3", "--workers=1", attached),
            ("--worker-shared-memory=false", "--workers=1", attached),
            ("--compression=store", "--workers=1", "--host-mem=1MiB"),
            ("--compression-layers=full", "--workers=1", "--host-mem=1MiB"),
            ("--tier-write=back", "--host-blocks=9", "--host-mem=1MiB"),
            ("--tier-eviction=lfu", "--host-blocks=9", "--host-mem=1MiB"),
            ("--copy-timeout-ms=5", "--workers=1", "--host-blocks=9"),
            ("--host-blocks=9", "--preemption=recompute", "--preemption=cost"),
            ("--swap-in-watermark=2", "--workers=1", "--host-mem=1MiB"),
            ("--admin=true", "--token-file=t", "--workers=1"),
            ("--max-sessions-per-client=1", "--max-sessions=0", "--max-sessions=2"),
            ("--session-bytes=5000", "--max-sessions=0", "--max-sessions=2"),
            ("--session-ttl=5", "--max-sessions=0", "--max-sessions=2"),
            ("--reuse-recompute=8", "--workers=1", "--reuse-anywhere=16"),
            ("--reuse-on-request=true", "--workers=1", "--reuse-anywhere=16"),
        ] {
            let name = flag.split('=').next().unwrap();
            let lines = named(&[flag, without]);
            assert!(
                lines.iter().any(|line| line.starts_with(&format!("{name} has no effect w"))),
                "{flag} {without}: {lines:?}"
            );
            let lines = named(&[flag, with]);
            assert!(!lines.iter().any(|line| line.starts_with(&format!("{name} has no"))), "{flag} {with}: {lines:?}");
        }
        let off = named(&["--compression-layers=full", "--compression=off", "--host-mem=1MiB"]);
        assert_eq!(off, ["--compression-layers has no effect with --compression off"]);
    }

    #[test]
    fn settings_of_eviction_have_an_effect_on_requests_that_ask_for_it() {
        let named = |settings: &Settings| {
            let lines = unused(
                settings,
                &Config::default(),
                &ClusterConfig::uniform(&Config::default(), 1),
                &engines(settings),
            );
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
            unused(&Settings::default(), &config, &ClusterConfig::uniform(&config, 1), &engines(&Settings::default()))
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
            let lines = unused(&settings, &config, &ClusterConfig::uniform(&config, 1), &engines(&settings));
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
            unused(settings, config, &ClusterConfig::uniform(&Config::default(), 1), &engines(settings))
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
        assert_eq!(lines(&settings, &used).len(), 1, "swapped-out requests are in no tier");
        settings.tiers.host_mem = Some("1MiB".into());
        settings.tiers.tiers(1, 1).unwrap().unwrap().apply(&mut used);
        assert!(lines(&settings, &used).is_empty());
        let mut cluster = ClusterConfig::uniform(&Config::default(), 2);
        (cluster.engines[0].role, cluster.engines[1].role) = (Role::Prefill, Role::Decode);
        let apart = unused(&Settings::default(), &Config::default(), &cluster, &engines(&Settings::default()));
        assert!(apart[0].starts_with("decode workers compute every prompt again"), "{apart:?}");
    }
}
