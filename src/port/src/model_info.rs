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
    /// Memory of one token in the blocks of all layer groups, in bytes: keys and values of all layers, and what groups smaller than the
    /// largest leave unused.
    pub kv_bytes_per_token: u64,
    /// Layer groups. Empty for a model whose layers all keep every token: one group then.
    pub groups: Vec<LayerGroup>,
}

impl ModelInfo {
    /// Returns the number of layer groups, at least 1.
    pub fn n_groups(&self) -> u32 {
        self.groups.len().max(1) as u32
    }

    /// Returns the layers in the largest group, and the KV heads of each: every block has room for as many. If groups have single heads, each head
    /// counts as a layer of one head.
    pub fn block_shape(&self) -> (u32, u32) {
        let largest =
            |members: fn(&LayerGroup) -> &Vec<u32>| self.groups.iter().map(|group| members(group).len()).max();
        match largest(|group| &group.heads) {
            None => (self.n_layers, self.n_kv_heads),
            Some(0) => (largest(|group| &group.layers).unwrap_or_default() as u32, self.n_kv_heads),
            Some(heads) => (heads as u32, 1),
        }
    }

    /// Returns the size of a block of `block_size` tokens, in bytes.
    pub fn block_bytes(&self, block_size: u32) -> u64 {
        self.kv_bytes_per_token / u64::from(self.n_groups()) * u64::from(block_size)
    }
}

/// Maximum number of layer groups of a model: each has block tables of its own in each sequence.
pub const LAYER_GROUPS_MAX: usize = 256;

/// Layers, or single KV heads of layers, that share block tables. A block holds the KV of one group: [`crate::DeviceBlocks`] and
/// [`crate::Step::blocks`] number the blocks of all groups together, and each block fits any group. So a group smaller than the largest one
/// leaves a part of its blocks unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerGroup {
    /// Numbers of the layers, ascending. Each layer of the model is in exactly one group.
    pub layers: Vec<u32>,
    /// Numbers of the KV heads, ascending, `layer * n_kv_heads + head`, for a model whose layers are divided: all its groups have heads then, and no
    /// `layers`. Each head of the model is in exactly one group.
    pub heads: Vec<u32>,
    /// Positions that the layers keep.
    pub keeps: Keeps,
    /// Maximum number of tokens that a group of [`Keeps::Scored`] keeps beyond the first and last tokens, in thousandths of the mean over all such groups
    /// [`Self::WEIGHT_MAX`]. 0 in all groups: all keep the same share.
    pub weight: u32,
}

impl LayerGroup {
    /// Greatest weight.
    pub const WEIGHT_MAX: u32 = 64_000;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_layers_or_heads_of_the_largest_group() {
        let whole = ModelInfo { n_layers: 5, n_kv_heads: 2, kv_bytes_per_token: 500, ..ModelInfo::default() };
        assert_eq!((whole.n_groups(), whole.block_shape(), whole.block_bytes(16)), (1, (5, 2), 8000));
        let group = |layers: &[u32]| LayerGroup { layers: layers.to_vec(), ..LayerGroup::default() };
        // Two blocks of three layers each: 600 bytes for a token.
        let groups = vec![group(&[0, 2, 4]), group(&[1, 3])];
        let split = ModelInfo { groups, kv_bytes_per_token: 600, ..whole.clone() };
        assert_eq!((split.n_groups(), split.block_shape(), split.block_bytes(16)), (2, (3, 2), 4800));
        let group = |heads: &[u32]| LayerGroup { heads: heads.to_vec(), ..LayerGroup::default() };
        let groups = vec![group(&[0, 3, 4, 9]), group(&[1, 2, 5, 6]), group(&[7, 8])];
        let split = ModelInfo { groups, kv_bytes_per_token: 600, ..whole };
        assert_eq!((split.block_shape(), split.block_bytes(16)), ((4, 1), 3200));
    }
}
