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
    /// `true` if the configuration says the type of the state's elements; else they have 16 bits, or as many as the engine takes.
    pub states_are_typed: bool,
}

/// FLOPs for each element of the state and token: decay, update, and the product with the query, two each.
const STATE_FLOPS: u64 = 6;

impl Hybrid {
    /// Returns the layers with states of 32 bits, unless the configuration says their type.
    #[must_use]
    pub const fn with_wide_states(self) -> Self {
        let wider = if self.states_are_typed { 0 } else { 2 * self.state_elements };
        Self { state_bytes: self.state_bytes + wider, states_are_typed: true, ..self }
    }

    /// Returns the bytes of the states of one sequence in all layers.
    pub const fn sequence_bytes(&self) -> u64 {
        self.recurrent_layers * self.state_bytes
    }

    /// Returns the FLOPs of the states of all layers for each token, beside the matrices.
    pub const fn token_flops(&self) -> u64 {
        STATE_FLOPS * self.recurrent_layers * self.state_elements
    }
}
