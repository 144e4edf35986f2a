//! Limits of a server without embedded workers: the first worker to attach decides what no setting does.

use anyhow::{anyhow, ensure};
use trunkline_attach::Hello;
use trunkline_core::{Config, STEPS_IN_FLIGHT_MAX, WorkerFacts};

use crate::settings::core_settings::CoreSettings;
use crate::settings::serve_settings::ServeFlags;

/// KV blocks of one engine that follow from a Hello, at most: tables of more would take gigabytes, if a worker announces bytes for tokens.
const BLOCKS_MAX: u64 = 1 << 24;
/// Steps in flight for each stage of the worker unless set: the next step is at the worker before the worker has answered the first.
const STEPS_IN_FLIGHT: u32 = 2;

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
    config.h2o.weigh(&hello.model.groups);
    config.worker = WorkerFacts {
        groups: hello.model.groups.iter().map(|group| group.keeps).collect(),
        all_tokens: true,
        whole_block_hits: !can.partial_writes,
        in_step_hits: can.in_step_hits,
        reuse: config.worker.reuse,
        ..WorkerFacts::default()
    };
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
        let stages = if settings.has("pipeline_stages") { config.pipeline_stages } else { can.pipeline_stages };
        config.max_steps_in_flight = (STEPS_IN_FLIGHT * stages).min(can.steps_in_flight).min(STEPS_IN_FLIGHT_MAX);
    }
    if !settings.has("pipeline_stages") {
        // Fewer steps in flight than stages fill no pipeline.
        config.pipeline_stages = can.pipeline_stages.min(config.max_steps_in_flight);
    }
    config.validate()?;
    check_stages(&config)?;
    Ok(config)
}

/// Checks that the steps in flight fill the stages of the pipeline.
///
/// # Errors
/// If there are more stages than steps in flight.
pub fn check_stages(config: &Config) -> anyhow::Result<()> {
    let (stages, steps) = (config.pipeline_stages, config.max_steps_in_flight);
    ensure!(
        stages <= steps,
        "--pipeline-stages {stages} needs as many steps in flight or more; --max-steps-in-flight is {steps}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_attach::{Abilities, KvRoom};
    use trunkline_port::{Keeps, LayerGroup, ModelInfo};

    use super::*;
    use crate::serve::tests::given;

    fn hello() -> Hello {
        let model = ModelInfo { max_context: 4096, ..ModelInfo::default() };
        let kv = KvRoom { block_sizes: vec![32, 16], tokens: 1000, block_io: false };
        let abilities = Abilities { max_sequences: 64, max_tokens: 1024, steps_in_flight: 3, ..Abilities::default() };
        Hello { model, kv, abilities, ..Hello::default() }
    }

    #[test]
    fn the_stages_of_the_first_worker_fill_with_two_steps_each_unless_set() {
        let staged = |flags: &[&str], pipeline_stages, steps_in_flight| {
            let settings = given(flags);
            let mut config = Config::default();
            settings.core.apply(&mut config).unwrap();
            let abilities = Abilities { pipeline_stages, steps_in_flight, ..hello().abilities };
            let limits = limits_of_worker(&settings.core, config, &Hello { abilities, ..hello() });
            limits.map(|limits| (limits.pipeline_stages, limits.max_steps_in_flight)).map_err(|error| error.to_string())
        };
        assert_eq!(staged(&[], 3, 8), Ok((3, 6)));
        assert_eq!(staged(&[], 3, 4), Ok((3, 4)));
        assert_eq!(staged(&[], 60, 500), Ok((60, 64)));
        assert_eq!(staged(&["--max-steps-in-flight=2"], 3, 8), Ok((2, 2)));
        assert_eq!(staged(&["--pipeline-stages=1"], 3, 8), Ok((1, 2)));
        let line = "--pipeline-stages 3 needs as many steps in flight or more; --max-steps-in-flight is 2";
        assert_eq!(staged(&["--pipeline-stages=3", "--max-steps-in-flight=2"], 3, 8), Err(line.into()));
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
        let group = |keeps, weight| LayerGroup { keeps, weight, ..LayerGroup::default() };
        let groups = vec![group(Keeps::All, 0), group(Keeps::Scored, 1500), group(Keeps::Scored, 500)];
        let weighed = Hello { model: ModelInfo { groups, ..hello().model }, ..hello() };
        let weights = |h2o: &str| {
            let config = Config { h2o: h2o.parse().unwrap(), ..Config::default() };
            limits_of_worker(&given(&[]).core, config, &weighed).unwrap().h2o.weights
        };
        assert_eq!((weights("on"), weights("on:weights=1/2")), (vec![1.5, 0.5], vec![1.0, 2.0]), "a setting wins");
        let none = Hello { kv: KvRoom { tokens: 31, ..hello().kv }, ..hello() };
        let error = limits_of_worker(&given(&[]).core, Config::default(), &none).unwrap_err();
        assert_eq!(error.to_string(), "kv.tokens is 31; there is no room for a block");
    }
}
