//! Layers with a recurrent state in place of attention: Mamba, Mamba 2, gated delta nets.

/// Layers of a hybrid model by their sorts. A layer with attention or a recurrent state may have a feed-forward network or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// Layers with attention.
    pub attention_layers: u64,
    /// Layers with a recurrent state.
    pub recurrent_layers: u64,
    /// Layers with a feed-forward network, dense or of experts.
    pub feed_forward_layers: u64,
    /// Elements of the matrices of a recurrent layer.
    pub elements: u64,
    /// Elements of the state of a sequence in a recurrent layer, updated with each token.
    pub state_elements: u64,
    /// Bytes of that state, and of the last inputs of its convolution.
    pub state_bytes: u64,
}

/// FLOPs for each element of the state and token: decay, update, and the product with the query, two each.
const STATE_FLOPS: u64 = 6;

impl Hybrid {
    /// Returns the bytes of the states of one sequence in all layers.
    pub const fn sequence_bytes(&self) -> u64 {
        self.recurrent_layers * self.state_bytes
    }

    /// Returns the FLOPs of the states of all layers for each token, beside the matrices.
    pub const fn token_flops(&self) -> u64 {
        STATE_FLOPS * self.recurrent_layers * self.state_elements
    }
}
