//! Facts about the model of a worker.

use serde::{Deserialize, Serialize};

use crate::ids::Token;

/// Name, limits and shape of a model, as a plain value: all facts for a front end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name of the model, for example the name of the model folder. Requests to models of different names share no KV.
    pub name: String,
    /// Revision of the weights, for example a commit; empty if the worker knows none.
    pub revision: String,
    /// Number of token ids: every token is below this number.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Tokens ending a text unless the client ignores such tokens.
    pub eos_token_ids: Vec<Token>,
    /// Number of transformer layers.
    pub n_layers: u32,
    /// Width of the residual stream, in elements.
    pub hidden_size: u32,
    /// Number of query heads in a layer.
    pub n_heads: u32,
    /// Number of key/value heads in a layer.
    pub n_kv_heads: u32,
    /// Width of one head, in elements.
    pub head_dim: u32,
    /// Element type of the KV cache, for example `f32`. KV of different types is never shared.
    pub kv_dtype: String,
    /// Size of one token's keys and values in all layers, in bytes.
    pub kv_bytes_per_token: u64,
    /// Layer groups. Empty for a model whose layers all keep every token: one group then.
    pub groups: Vec<LayerGroup>,
}

/// Layers that share block tables. A block holds the KV of one group: [`crate::DeviceBlocks`] and [`crate::Step::blocks`] number the
/// blocks of all groups together, and each block fits any group. So a group smaller than the largest one leaves a part of its
/// blocks unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerGroup {
    /// Numbers of the layers, ascending. Each layer of the model is in exactly one group.
    pub layers: Vec<u32>,
    /// Positions that the layers keep.
    pub keeps: Keeps,
}

/// Positions whose KV the layers of a group keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeps {
    /// All positions.
    #[default]
    All,
    /// The last so many positions: attention over a sliding window. A query reads its own position and `window - 1` before it.
    Window(u32),
    /// All positions, until the core drops blocks that attention hardly reads.
    Scored,
}
