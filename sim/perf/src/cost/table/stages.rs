//! Stages of a pipeline, from the time of all layers.
//!
//! ```text
//! stage      = share of the layers * time of all layers + sending
//! last stage = share of the layers * time of all layers + head
//! ```
//!
//! A stage has as many layers as the largest. Sending takes the time of the table if it was measured, else that of the peer link.

use super::Series;
use crate::cost::Parallel;
use crate::cost::roofline::RESIDUAL_BYTES;
use crate::hardware::Hardware;
use crate::model::Model;

/// Sending of the tokens of a step from one stage to the next.
#[derive(Clone, Debug)]
enum Sending {
    Measured(Series),
    PeerLink { parallel: Parallel, hardware: Box<Hardware>, token_bytes: f64 },
}

/// Stages of a pipeline.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    /// Number of stages, above 1.
    n: f64,
    /// Share of the layers in the largest stage.
    layer_share: f64,
    sending: Sending,
}

impl Stages {
    /// Returns the stages with sending over the peer link; `None` for a single stage.
    pub fn over_peer_link(hardware: &Hardware, model: &Model, parallel: Parallel) -> Option<Self> {
        let token_bytes = RESIDUAL_BYTES * model.hidden as f64;
        Self::new(model, parallel, Sending::PeerLink { parallel, hardware: Box::new(*hardware), token_bytes })
    }

    /// Returns the stages with a measured time of sending by tokens; `None` for a single stage.
    pub fn measured(model: &Model, parallel: Parallel, sending: Series) -> Option<Self> {
        Self::new(model, parallel, Sending::Measured(sending))
    }

    fn new(model: &Model, parallel: Parallel, sending: Sending) -> Option<Self> {
        let layer_share = parallel.stage_layers(model) as f64 / model.layers as f64;
        (parallel.pipeline > 1).then_some(Self { n: f64::from(parallel.pipeline), layer_share, sending })
    }

    /// Returns the time to send `tokens` to the next stage, seconds.
    fn send_s(&self, tokens: u64) -> f64 {
        match &self.sending {
            Sending::Measured(series) => series.at(tokens),
            Sending::PeerLink { parallel, hardware, token_bytes } => {
                parallel.send_s(hardware, tokens as f64, *token_bytes)
            }
        }
    }

    /// Returns the time in each stage but the last and in the last, of a step whose layers take `layers_s` in all, seconds.
    pub fn split_s(&self, layers_s: f64, head_s: f64, tokens: u64) -> (f64, f64) {
        let stage_s = self.layer_share * layers_s;
        (stage_s + self.send_s(tokens), stage_s + head_s)
    }

    /// Returns the time of a step that passes through all stages one after another, seconds.
    pub fn whole_s(&self, layers_s: f64, head_s: f64, tokens: u64) -> f64 {
        let (stage_s, last_s) = self.split_s(layers_s, head_s, tokens);
        (self.n - 1.0) * stage_s + last_s
    }
}
