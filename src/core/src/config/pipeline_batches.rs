//! Division of the running requests among the steps of a pipeline.

use serde::{Deserialize, Serialize};

/// Requests that a step of a pipeline takes while other steps are in other stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineBatches {
    /// An equal share of all decodes, and prompts whose chunks follow one another without waiting.
    #[default]
    Even,
    /// Every decode that is in no other step, and prompts as in [`Self::Even`]: vLLM.
    Ready,
    /// Every request that is in no other step, so that a chunk of a prompt waits for the one before it, and a share of the greatest
    /// number of sequences for each stage: Sarathi-Serve, and Vidur's model of it.
    Apart,
}

impl PipelineBatches {
    /// All divisions.
    pub const ALL: [Self; 3] = [Self::Even, Self::Ready, Self::Apart];

    /// Returns the name in recordings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Ready => "ready",
            Self::Apart => "apart",
        }
    }
}
