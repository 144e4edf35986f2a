//! Layers with a recurrent state instead of attention: Mamba, Mamba 2, gated delta nets.

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
    /// Bytes of an element of the state, if the configuration says so; else as many as the engine takes.
    pub state_dtype_bytes: Option<u64>,
    /// Bytes of the last inputs of the layer's convolution, which a sequence keeps too.
    pub convolution_bytes: u64,
}

/// FLOPs for each element of the state and token: decay, update, and the product with the query, two each.
const STATE_FLOPS: u64 = 6;
/// Bytes of an element of a state, if neither the configuration nor the engine says.
const STATE_BYTES: u64 = 2;

impl Hybrid {
    /// Returns the layers with `bytes` for each element of a state, unless the configuration says how many.
    #[must_use]
    pub fn with_states_of(self, bytes: u64) -> Self {
        Self { state_dtype_bytes: self.state_dtype_bytes.or(Some(bytes)), ..self }
    }

    /// Returns the bytes that a sequence keeps in one layer: its state, of 16 bits an element if nobody says otherwise, and inputs of the convolution.
    pub fn state_bytes(&self) -> u64 {
        self.state_elements * self.state_dtype_bytes.unwrap_or(STATE_BYTES) + self.convolution_bytes
    }

    /// Returns the bytes of the states of one sequence in all layers.
    pub fn sequence_bytes(&self) -> u64 {
        self.recurrent_layers * self.state_bytes()
    }

    /// Returns the FLOPs of the states of all layers for each token, without the matrices.
    pub const fn token_flops(&self) -> u64 {
        STATE_FLOPS * self.recurrent_layers * self.state_elements
    }
}
