//! Facts about the model of a worker.

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
}
