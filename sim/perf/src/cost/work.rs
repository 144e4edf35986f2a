//! Work of a step: FLOPs and bytes.

use super::{Parallel, StepShape};
use crate::model::Model;

/// FLOPs and bytes of one part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    pub flops: f64,
    pub bytes: f64,
}

impl Work {
    /// Returns the time at `flops_s` and `bytes_s`: that of the bottleneck, seconds.
    pub fn time_s(self, flops_s: f64, bytes_s: f64) -> f64 {
        (self.flops / flops_s).max(self.bytes / bytes_s)
    }

    /// Returns the time of real kernels, smooth where neither rate is the only bottleneck: the fourth root of the sum of fourth
    /// powers. Fits measured matrix products (best power 3.6) and is cheap to compute.
    pub fn blended_s(self, flops_s: f64, bytes_s: f64) -> f64 {
        let (a, b) = (self.flops / flops_s, self.bytes / bytes_s);
        (a * a * a * a + b * b * b * b).sqrt().sqrt()
    }

    pub fn plus(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }

    pub fn times(self, share: f64) -> Self {
        Self { flops: self.flops * share, bytes: self.bytes * share }
    }
}

/// Parts of a step without experts, over all devices of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Matrices of the layers that every token passes through, and writing of KV.
    pub layers: Work,
    /// States of recurrent layers, read and written once for each sequence.
    pub recurrent: Work,
    /// Output matrix, for sampled positions only.
    pub head: Work,
    /// Attention of prefill chunks.
    pub prefill: Work,
    /// Attention of decodes, reading the KV.
    pub decode: Work,
}

impl Parts {
    pub fn total(&self) -> Work {
        self.layers.plus(self.recurrent).plus(self.head).plus(self.prefill).plus(self.decode)
    }
}

/// Work of a model as a function of the batch shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    common_flops: f64,
    head_elements: f64,
    head_bytes: f64,
    /// FLOPs of attention for each (query, key) pair, of a prefill and of a decode.
    prefill_pair_flops: f64,
    decode_pair_flops: f64,
    /// KV bytes of a token that are written. A token that several devices hold counts once for each.
    kv_token_bytes: f64,
    /// KV bytes of a token that a query reads in all layers, on all devices that do.
    kv_read_bytes: f64,
    /// FLOPs of the states for each token, and bytes of the states of a sequence.
    state_flops: f64,
    state_bytes: f64,
    /// Bytes of the matrices that every token passes through, all read in every step.
    layer_bytes: f64,
}

impl Demand {
    /// Returns the work of `model` on all devices of a rank of `parallel` together.
    pub fn new(model: &Model, parallel: Parallel) -> Self {
        let kv_copies = f64::from(parallel.tensor) / parallel.kv_shares(model) as f64;
        Self {
            common_flops: 2.0 * model.common_elements() as f64,
            head_elements: model.head_elements() as f64,
            head_bytes: model.precision.ends.bytes(model.head_elements()) as f64,
            prefill_pair_flops: model.pair_flops() as f64,
            decode_pair_flops: model.decode_pair_flops() as f64,
            kv_token_bytes: model.kv_bytes_per_token() as f64 * kv_copies,
            kv_read_bytes: model.kv_read_bytes_per_token() as f64 * kv_copies,
            state_flops: model.hybrid.map_or(0.0, |hybrid| hybrid.token_flops() as f64),
            state_bytes: model.hybrid.map_or(0.0, |hybrid| hybrid.sequence_bytes() as f64),
            layer_bytes: model.common_bytes() as f64,
        }
    }

    pub fn parts(&self, shape: &StepShape) -> Parts {
        let tokens = shape.tokens as f64;
        let head_bytes = if shape.sampled > 0 { self.head_bytes } else { 0.0 };
        Parts {
            layers: Work { flops: self.common_flops * tokens, bytes: self.layer_bytes + self.kv_token_bytes * tokens },
            recurrent: Work {
                flops: self.state_flops * tokens,
                bytes: 2.0 * self.state_bytes * (shape.decodes + shape.prefills) as f64,
            },
            head: Work { flops: 2.0 * self.head_elements * shape.sampled as f64, bytes: head_bytes },
            prefill: Work {
                flops: self.prefill_pair_flops * shape.prefill_pairs as f64,
                bytes: self.kv_read_bytes * shape.prefill_kv_tokens as f64,
            },
            decode: self.decode(shape),
        }
    }

    /// Returns the KV of some tokens, bytes.
    pub fn kv_bytes(&self, tokens: u64) -> f64 {
        self.kv_token_bytes * tokens as f64
    }

    /// Returns the attention of decodes.
    pub fn decode(&self, shape: &StepShape) -> Work {
        Work {
            flops: self.decode_pair_flops * shape.decode_pairs as f64,
            bytes: self.kv_read_bytes * shape.decode_kv_tokens as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn a_kv_that_layers_share_is_written_once_and_read_by_each() {
        let llama = *model::by_name("llama-3.1-8b").unwrap();
        let parts = |model: &Model| {
            let shape =
                StepShape { tokens: 1, decodes: 1, decode_pairs: 900, decode_kv_tokens: 900, ..StepShape::default() };
            Demand::new(model, Parallel::ONE).parts(&shape)
        };
        let (apart, shared) = (parts(&llama), parts(&Model { kv_share: 2, ..llama }));
        assert_eq!(shared.decode.bytes, apart.decode.bytes);
        // 16 of 32 layers write no KV, of 4,096 bytes, and have no matrices for it.
        let matrices = 16 * 2 * 4096 * 1024 * 2;
        assert_eq!(apart.layers.bytes - shared.layers.bytes, f64::from(16 * 4096 + matrices));
    }
}
