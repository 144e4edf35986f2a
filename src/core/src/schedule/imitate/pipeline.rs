//! Steps of a pipeline that share no request: [`PipelineBatches::Apart`], as Sarathi-Serve makes them.

use crate::config::{Config, PipelineBatches};
use crate::request::sequence::Sequence;

/// Returns the number of sequences in one step, at most, in addition to [`Config::max_batch_size`], which counts those of all steps.
pub(in crate::schedule) fn step_share(config: &Config) -> usize {
    match (config.pipeline_stages, config.worker.pipeline_batches) {
        (stages @ 2.., PipelineBatches::Apart) => (config.max_batch_size / stages).max(1) as usize,
        _ => usize::MAX,
    }
}

/// Returns `true` if a step in flight keeps the sequence from being in another one.
pub(in crate::schedule) fn is_kept_apart(seq: &Sequence, config: &Config) -> bool {
    config.pipeline_stages > 1 && config.worker.pipeline_batches == PipelineBatches::Apart && seq.is_in_step()
}
