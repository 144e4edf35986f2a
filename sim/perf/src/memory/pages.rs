//! States of recurrent layers as pages of the pool of blocks, as vLLM keeps them (`HybridAttentionMambaModelConfig`, `get_kv_cache_groups`).
//!
//! Layers are divided into groups of as many, each of one sort, and a block has one page for each layer of a group. Pages of all sorts are as large:
//! blocks have so many tokens that the keys and values of a layer fill the page of a state. A running sequence has one block in each group of recurrent
//! layers, whatever its length.

use crate::cost::Parallel;
use crate::model::Model;

/// Tokens of a block are a multiple of this.
const STEP_TOKENS: u64 = 16;

/// Pages of a hybrid model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePages {
    /// Tokens of a block, at least.
    pub block_tokens: u32,
    /// Layers of a group, of which the last one of a sort may have fewer.
    pub layers: u32,
    /// Groups of layers with attention.
    pub attention_groups: u32,
    /// Groups of recurrent layers.
    pub state_groups: u32,
}

impl StatePages {
    /// Returns the pages of a model on the devices of a replica; `None` for a model without recurrent layers.
    pub fn of(model: &Model, parallel: Parallel) -> Option<Self> {
        let hybrid = model.hybrid?;
        let layer_bytes =
            (parallel.kv_bytes_per_token(model) / model.kv_layers().div_ceil(parallel.pipeline.into())).max(1);
        let state_bytes = hybrid.state_bytes().div_ceil(parallel.tensor.into());
        let block_tokens = state_bytes.div_ceil(layer_bytes).div_ceil(STEP_TOKENS).max(1) * STEP_TOKENS;
        let (attention, recurrent) = (model.kv_layers(), hybrid.recurrent_layers);
        let (fewer, more) = (attention.min(recurrent).max(1), attention.max(recurrent));
        // Sorts of nearly as many layers have a group each.
        let layers = if 4 * more < 5 * fewer { more } else { fewer };
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Some(Self {
            block_tokens: number(block_tokens),
            layers: number(layers),
            attention_groups: number(attention.div_ceil(layers)),
            state_groups: number(recurrent.div_ceil(layers)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Hybrid, by_name};

    #[test]
    fn pages_are_those_that_logs_of_vllm_name() {
        // Qwen3.6-27B: "Setting attention block size to 784 tokens".
        let hybrid = Hybrid {
            attention_layers: 16,
            recurrent_layers: 48,
            feed_forward_layers: 64,
            elements: 1,
            state_elements: 48 * 128 * 128,
            state_dtype_bytes: Some(4),
            convolution_bytes: (2 * 16 * 128 + 48 * 128) * 3 * 2,
        };
        let llama = by_name("llama-3.1-8b").unwrap();
        let model = Model { layers: 64, kv_heads: 4, head_dim: 256, hybrid: Some(hybrid), ..*llama };
        let pages = StatePages { block_tokens: 784, layers: 16, attention_groups: 1, state_groups: 3 };
        assert_eq!(StatePages::of(&model, Parallel::ONE), Some(pages));
        assert_eq!(StatePages::of(&model, Parallel::tensor(2)), Some(pages), "both are halved");
        let narrow = Model { kv_dtype_bytes: 1, ..model };
        assert_eq!(StatePages::of(&narrow, Parallel::ONE).unwrap().block_tokens, 1568);
        // As many layers of both sorts, side by side.
        let both = Hybrid { attention_layers: 44, recurrent_layers: 44, ..hybrid };
        let model = Model { layers: 44, hybrid: Some(both), ..model };
        let found = StatePages::of(&model, Parallel::ONE).unwrap();
        assert_eq!((found.layers, found.attention_groups, found.state_groups), (44, 1, 1));
        assert_eq!(StatePages::of(llama, Parallel::ONE), None);
    }
}
