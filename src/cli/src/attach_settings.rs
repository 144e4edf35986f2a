//! Settings of attached workers of `serve`, and the limits of a server whose first worker decides about the model.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Args;
use serde::de::MapAccess;
use trunkline_attach::Hello;
use trunkline_core::Config;
use trunkline_server::AttachOptions;

use crate::config_file::ServeFlags;
use crate::core_settings::CoreSettings;

/// Keys of the settings, which are also the names of the flags.
pub const ATTACH_KEYS: [&str; 4] = ["attached-workers", "worker-silence", "worker-resume", "worker-wait"];
/// Longest time that a setting may have, seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// KV blocks of one engine, at most.
const BLOCKS_MAX: u64 = 1 << 30;
/// Steps in flight unless set: the next step is at the worker before the worker has answered the first.
const STEPS_IN_FLIGHT: u32 = 2;

/// Settings of attached workers; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct AttachSettings {
    /// Engines for workers that attach over gRPC (`trunkline worker --connect`, `trunkline-worker`), besides --workers. With no embedded
    /// worker the first one to attach decides about the model, and --model serves for its tokenizer alone [default: 0, or 1 with
    /// --workers 0].
    #[arg(long, value_name = "N")]
    pub attached_workers: Option<usize>,

    /// Seconds without a message after which the connection of an attached worker counts as broken [default: 10].
    #[arg(long, value_name = "SECONDS")]
    pub worker_silence: Option<f64>,

    /// Seconds for which an attached worker with a broken connection may come back with its KV; then other workers continue its requests
    /// [default: 10].
    #[arg(long, value_name = "SECONDS")]
    pub worker_resume: Option<f64>,

    /// Seconds for which requests wait for a worker if none is left; then they end with an error, and new ones are refused until a
    /// worker attaches [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub worker_wait: Option<f64>,
}

impl AttachSettings {
    /// Returns the settings, with values of `other` in place of missing ones.
    pub fn or(self, other: Self) -> Self {
        Self {
            attached_workers: self.attached_workers.or(other.attached_workers),
            worker_silence: self.worker_silence.or(other.worker_silence),
            worker_resume: self.worker_resume.or(other.worker_resume),
            worker_wait: self.worker_wait.or(other.worker_wait),
        }
    }

    /// Reads the value of one of [`ATTACH_KEYS`] from a file.
    ///
    /// # Errors
    /// If the value is of another type.
    pub fn read<'de, M: MapAccess<'de>>(&mut self, key: &str, file: &mut M) -> Result<(), M::Error> {
        match key {
            "attached-workers" => self.attached_workers = Some(file.next_value()?),
            "worker-silence" => self.worker_silence = Some(file.next_value()?),
            "worker-resume" => self.worker_resume = Some(file.next_value()?),
            _ => self.worker_wait = Some(file.next_value()?),
        }
        Ok(())
    }

    /// Returns the options of a server with so many engines for attached workers.
    ///
    /// # Errors
    /// If a time is out of range.
    pub fn options(&self, engines: usize) -> anyhow::Result<AttachOptions> {
        let default = AttachOptions::default();
        Ok(AttachOptions {
            engines,
            silence: seconds("worker-silence", self.worker_silence, 0.1, default.silence)?,
            resume: seconds("worker-resume", self.worker_resume, 0.0, default.resume)?,
            wait: seconds("worker-wait", self.worker_wait, 0.0, default.wait)?,
        })
    }
}

fn seconds(name: &str, value: Option<f64>, min: f64, default: Duration) -> anyhow::Result<Duration> {
    let Some(seconds) = value else { return Ok(default) };
    ensure!(
        (min..=SECONDS_MAX).contains(&seconds),
        "{name} is {seconds}; it must be between {min} and {SECONDS_MAX} seconds"
    );
    Ok(Duration::from_secs_f64(seconds))
}

/// Fills in the limits that no setting has from the first worker's Hello: its block size and blocks, its layer groups, and no more tokens,
/// sequences and steps at once than the worker takes.
///
/// # Errors
/// If the worker has no room for a block.
pub fn limits_of_worker(
    settings: &CoreSettings<ServeFlags>,
    mut config: Config,
    hello: &Hello,
) -> anyhow::Result<Config> {
    let can = &hello.abilities;
    config.max_context = hello.model.max_context;
    config.groups = hello.model.groups.iter().map(|group| group.keeps).collect();
    if !settings.has("block_size") {
        let first = hello.kv.block_sizes.first();
        config.block_size = *first.ok_or_else(|| anyhow!("kv.block_sizes is empty"))?;
    }
    if !settings.has("device_blocks") {
        let group_tokens = u64::from(config.block_size) * u64::from(hello.model.n_groups());
        let blocks = (hello.kv.tokens / group_tokens).min(BLOCKS_MAX);
        ensure!(blocks > 0, "kv.tokens is {}; there is no room for a block", hello.kv.tokens);
        config.device_blocks = blocks as u32;
    }
    if !settings.has("max_batch_tokens") {
        config.max_batch_tokens = config.max_batch_tokens.min(can.max_tokens);
    }
    if !settings.has("max_batch_size") {
        config.max_batch_size = config.max_batch_size.min(can.max_sequences).min(config.max_batch_tokens);
    }
    if !settings.has("max_steps_in_flight") {
        config.max_steps_in_flight = STEPS_IN_FLIGHT.min(can.steps_in_flight);
    }
    config.validate()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use trunkline_attach::{Abilities, KvRoom};
    use trunkline_port::ModelInfo;

    use super::*;
    use crate::serve::tests::given;

    fn hello() -> Hello {
        let model = ModelInfo { max_context: 4096, ..ModelInfo::default() };
        let kv = KvRoom { block_sizes: vec![32, 16], tokens: 1000, block_io: false };
        let abilities = Abilities { max_sequences: 64, max_tokens: 1024, steps_in_flight: 3, ..Abilities::default() };
        Hello { model, kv, abilities, ..Hello::default() }
    }

    #[test]
    fn the_first_worker_decides_what_no_setting_does() {
        let of = |flags: &[&str]| {
            let settings = given(flags);
            let mut config = Config::default();
            settings.core.apply(&mut config).unwrap();
            let limits = limits_of_worker(&settings.core, config, &hello()).unwrap();
            let blocks = (limits.block_size, limits.device_blocks);
            (blocks, limits.max_batch_tokens, limits.max_batch_size, limits.max_steps_in_flight, limits.max_context)
        };
        assert_eq!(of(&[]), ((32, 31), 1024, 64, 2, 4096));
        assert_eq!(of(&["--block-size=16"]), ((16, 62), 1024, 64, 2, 4096));
        let flags = ["--device-blocks=7", "--max-batch-tokens=512", "--max-batch-size=8", "--max-steps-in-flight=1"];
        assert_eq!(of(&flags), ((32, 7), 512, 8, 1, 4096));
        let none = Hello { kv: KvRoom { tokens: 31, ..hello().kv }, ..hello() };
        let error = limits_of_worker(&given(&[]).core, Config::default(), &none).unwrap_err();
        assert_eq!(error.to_string(), "kv.tokens is 31; there is no room for a block");
    }

    #[test]
    fn times_are_within_their_range() {
        let options = given(&["--worker-silence=2.5", "--worker-resume=0"]).attach.options(3).unwrap();
        assert_eq!((options.engines, options.silence), (3, Duration::from_millis(2500)));
        assert_eq!((options.resume, options.wait), (Duration::ZERO, AttachOptions::default().wait));
        let error = given(&["--worker-silence=0"]).attach.options(1).unwrap_err();
        assert_eq!(error.to_string(), "worker-silence is 0; it must be between 0.1 and 86400 seconds");
    }
}
