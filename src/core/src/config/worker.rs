//! Facts about the workers of a core, which decide about the steps that are sent.

use serde::{Deserialize, Serialize};
use trunkline_port::Keeps;

use super::{PipelineBatches, ReuseConfig};

/// Layer groups of the model, and needs of the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerFacts {
    /// Layer groups of the model, and the positions that each keeps; empty for a model without groups.
    ///
    /// The first group keeps every position, whatever is said of it here. A device then has [`super::Config::device_blocks`] blocks for
    /// each group, in one pool.
    pub groups: Vec<Keeps>,
    /// `true` for workers that plan with all tokens of a sequence: the tokens are sent when it starts, in
    /// [`crate::SeqStart::n_ahead`].
    pub all_tokens: bool,
    /// `true` for workers that write KV for every token they run, as vLLM does: a cached prefix ends below the last token of the prompt. A
    /// prompt that is cached to its end runs its last block again, into a block of its own. Else the last token alone runs, and its KV is
    /// not written.
    pub whole_block_hits: bool,
    /// `true` for workers that write the KV of all sequences of a step, layer by layer, before attention reads any: a prompt may find
    /// blocks that the same step computes for a prompt before it, or a step in flight. Else it waits until that step has ended. Without
    /// effect with layer groups, and for prompts thinned by eviction within the sequence.
    pub in_step_hits: bool,
    /// Requests that a step takes alongside those of the steps in other stages, if the worker is a pipeline of [`super::Config::pipeline_stages`].
    /// Other divisions than the default imitate the schedulers of other engines.
    pub pipeline_batches: PipelineBatches,
    /// Copies of KV that steps ask workers for, to reuse cached text that is not a prefix.
    #[serde(skip_serializing_if = "ReuseConfig::is_default")]
    pub reuse: ReuseConfig,
}

impl std::fmt::Display for WorkerFacts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let groups = self.groups.iter().map(|keeps| format!("{keeps:?}").to_lowercase());
        let flags = [
            ("all_tokens", self.all_tokens),
            ("whole_block_hits", self.whole_block_hits),
            ("in_step_hits", self.in_step_hits),
        ];
        let flags = flags.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned());
        let batches = Some(self.pipeline_batches).filter(|batches| *batches != PipelineBatches::Even);
        let batches = batches.map(|batches| format!("pipeline_batches={}", batches.name()));
        let reuse = Some(self.reuse).filter(|reuse| reuse.anywhere > 0);
        let reuse = reuse.map(|reuse| format!("reuse_anywhere={}", reuse.anywhere));
        out.write_str(&groups.chain(flags).chain(batches).chain(reuse).collect::<Vec<_>>().join(", "))
    }
}
