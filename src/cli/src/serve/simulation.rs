//! A server whose devices are simulated.

use std::sync::Arc;

use anyhow::{bail, ensure};
use tracing::warn;
use trunkline_core::Config;
use trunkline_core::h2o::Mode;
use trunkline_server::Backend;

use super::limits;
use crate::model::simulated;
use crate::model::simulated::clock::Clock;
use crate::replay::settings::MAX_BATCH_TOKENS;
use crate::settings::engines::Engines;
use crate::settings::serve_settings::Settings;
use crate::settings::simulate_settings::{self, Simulation};

/// Returns the limits of the core, and a backend of simulated workers.
pub(super) fn simulated(
    settings: &Settings,
    workers: usize,
    Simulation { mut fleet, text }: Simulation,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<(Vec<Config>, Backend)> {
    let max_context = simulated::max_context(&fleet.model);
    let partial = fleet.model.windows.map(|_| "sliding windows").or(fleet.model.extras.planned_as_full);
    if let Some(partial) = partial {
        warn!("the model has {partial}, simulated as full attention: KV and step times are upper bounds");
    }
    if !fleet.model.extras.unread.is_empty() {
        warn!("the model is simulated without {}, which is not read: full attention", fleet.model.extras.unread);
    }
    fleet.core = limits(settings, fleet.model.kv_bytes_per_token(), max_context)?;
    if !settings.core.has("device_blocks") {
        fleet.core.device_blocks = fleet.fitting_device_blocks()?;
    }
    if !settings.core.has("max_batch_tokens") {
        fleet.core.max_batch_tokens = MAX_BATCH_TOKENS;
    }
    let (tokenizer, ends) = simulate_settings::tokenizer(settings.model.as_deref())?;
    let mut backend = simulated::backend(&mut fleet, tokenizer, &ends, text, clock)?;
    let mut config = fleet.core;
    let (layout, block_bytes) =
        (simulated::stored_layout(config.block_size), backend.model.block_bytes(config.block_size));
    backend.stores = match settings.tiers.tiers(block_bytes, workers)? {
        Some(tiers) => {
            let tiers = tiers.without_contents(block_bytes, layout.memory_bytes())?;
            tiers.apply(&mut config);
            tiers.open(&layout, &config, &(0..workers).collect::<Vec<_>>())?
        }
        None => simulated::swap_stores(&config, workers)?,
    };
    config.validate()?;
    Ok((vec![config], backend))
}

/// Refuses settings that a simulated device cannot have.
pub(super) fn refuse_beside_simulation(settings: &Settings, engines: &Engines) -> anyhow::Result<()> {
    let kept = [
        ("worker", settings.worker.is_some(), "simulate names the workers"),
        ("threads", settings.threads.is_some(), "a simulated device computes nothing"),
        ("kv-dtype", settings.kv.kv_dtype.is_some(), "a model's preset or config.json has the type of its KV"),
        ("kv-resident", settings.kv.kv_resident.is_some(), "a simulated device has no KV"),
        ("kernel", settings.kv.kernel.is_some(), "a simulated device computes nothing"),
        ("attached-workers", engines.attached() > 0, "all workers are simulated"),
        ("disk", settings.tiers.disk.is_some(), "a disk keeps real KV; use host-mem or shared-mem"),
        ("remote", settings.tiers.remote.is_some(), "remote storage keeps real KV; use host-mem or shared-mem"),
        ("compression", settings.tiers.compression.is_some(), "a simulated device has no KV to compress"),
        ("compression-layers", settings.tiers.compression_layers.is_some(), "a simulated device has no KV to compress"),
    ];
    if let Some((flag, _, reason)) = kept.into_iter().find(|(_, given, _)| *given) {
        bail!("{flag} does not go with simulate: {reason}");
    }
    let core = limits(settings, 1 << 10, Config::default().max_context)?;
    ensure!(core.h2o.mode == Mode::Off, "h2o does not go with simulate: a simulated device has no attention scores");
    Ok(())
}
