//! Tensor and pipeline parallelism.

use std::fmt;
use std::str::FromStr;

use crate::hardware::Hardware;
use crate::model::Model;

/// Devices that hold one copy of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor parallelism: devices that each hold a share of every matrix, with two all-reduces per layer.
    pub tensor: u32,
    /// Pipeline parallelism: stages that each hold a share of the layers. Tokens pass through the stages in turn.
    pub pipeline: u32,
}

/// Devices of a replica, at most.
const DEVICES_MAX: u32 = 1024;

/// Impossible way to spread a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParallelError {
    /// Text of another form.
    #[error("parallel is '{0}'; it must be of the form tp2, pp2 or tp2pp2, with numbers from 1 to {DEVICES_MAX}")]
    Malformed(String),
    /// Heads not divisible by the devices.
    #[error("tp{tensor} does not divide the {heads} query heads of {model}")]
    Heads {
        /// Number of devices of a stage.
        tensor: u32,
        /// Number of query heads.
        heads: u64,
        /// Name of the model.
        model: &'static str,
    },
    /// More stages than layers.
    #[error("pp{pipeline} is more stages than {model} has layers, which is {layers}")]
    Layers {
        /// Number of stages of the pipeline.
        pipeline: u32,
        /// Number of layers of the model.
        layers: u64,
        /// Name of the model.
        model: &'static str,
    },
}

impl Parallel {
    /// Single device, without any parallelism.
    pub const ONE: Self = Self { tensor: 1, pipeline: 1 };

    /// Returns the total number of devices.
    pub fn devices(self) -> u32 {
        self.tensor * self.pipeline
    }

    /// Checks that `model` can be spread like this.
    ///
    /// # Errors
    ///
    /// [`ParallelError`] if the heads are not divisible or a stage would have no layer.
    pub fn check(self, model: &Model) -> Result<(), ParallelError> {
        let (tensor, pipeline, model_name) = (self.tensor, self.pipeline, model.name);
        if tensor == 0 || !model.heads.is_multiple_of(u64::from(tensor)) {
            return Err(ParallelError::Heads { tensor, heads: model.heads, model: model_name });
        }
        if pipeline == 0 || u64::from(pipeline) > model.layers {
            return Err(ParallelError::Layers { pipeline, layers: model.layers, model: model_name });
        }
        Ok(())
    }

    /// Returns the KV bytes of one token on the fullest device. With fewer KV heads than devices, several devices hold a copy of a
    /// head.
    pub fn kv_bytes_per_token(self, model: &Model) -> u64 {
        let (tensor, pipeline) = (u64::from(self.tensor), u64::from(self.pipeline));
        let layers = model.layers.div_ceil(pipeline);
        let layer_bytes = model.kv_bytes_per_token() / model.layers;
        // A latent cache has no heads to share out.
        let share = if model.latent.is_some() { 1 } else { tensor.min(model.kv_heads) };
        layers * layer_bytes.div_ceil(share)
    }

    /// Returns the time of an all-reduce of `tokens` tokens with `token_bytes` bytes each, not overlapped with anything, seconds:
    /// `latency + 2 (n - 1) / n * bytes / bandwidth` of the peer link for `n` devices, 0 for one.
    pub(super) fn all_reduce_s(self, hardware: &Hardware, tokens: f64, token_bytes: f64) -> f64 {
        if self.tensor == 1 {
            return 0.0;
        }
        let n = f64::from(self.tensor);
        let bytes = 2.0 * (n - 1.0) / n * tokens * token_bytes;
        hardware.peer_link_latency_s + bytes / hardware.peer_link_bytes_s
    }

    /// Returns the bytes of weights on the fullest device.
    pub fn weight_bytes(self, model: &Model) -> u64 {
        let (tensor, pipeline) = (u64::from(self.tensor), u64::from(self.pipeline));
        let layers = model.layers.div_ceil(pipeline) * (model.layer_elements() / model.layers);
        let head = model.head_elements();
        // Embedding and output matrix are on the first and the last stage.
        let ends = if pipeline == 1 && !model.tied { 2 * head } else { head };
        (layers + ends).div_ceil(tensor) * model.dtype_bytes
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tp{}pp{}", self.tensor, self.pipeline)
    }
}

impl FromStr for Parallel {
    type Err = ParallelError;

    fn from_str(text: &str) -> Result<Self, ParallelError> {
        let fault = || ParallelError::Malformed(text.into());
        let number = |digits: &str| match digits.parse() {
            Ok(n @ 1..=DEVICES_MAX) => Ok(n),
            _ => Err(fault()),
        };
        let (tensor, pipeline) = match text.split_once("pp") {
            Some((tensor, pipeline)) => (tensor, number(pipeline)?),
            None => (text, 1),
        };
        match tensor.strip_prefix("tp") {
            Some(digits) => Ok(Self { tensor: number(digits)?, pipeline }),
            None if tensor.is_empty() && !text.is_empty() => Ok(Self { tensor: 1, pipeline }),
            None => Err(fault()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn written_and_read() {
        for (text, tensor, pipeline) in [("tp2", 2, 1), ("pp4", 1, 4), ("tp8pp2", 8, 2)] {
            let parallel: Parallel = text.parse().unwrap();
            assert_eq!(parallel, Parallel { tensor, pipeline });
            assert_eq!(parallel.to_string().parse(), Ok(parallel));
        }
        for text in ["", "2", "tp", "tp0", "pp0", "tp2pp", "tp-1", "tp2pp2pp2", "tp9999", "xtp2"] {
            assert_eq!(text.parse::<Parallel>(), Err(ParallelError::Malformed(text.into())), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        assert_eq!(Parallel { tensor: 32, pipeline: 32 }.check(llama), Ok(()));
        let error = |text: &str| text.parse::<Parallel>().unwrap().check(llama).unwrap_err().to_string();
        assert_eq!(error("tp3"), "tp3 does not divide the 32 query heads of llama-3.1-8b");
        assert_eq!(error("pp33"), "pp33 is more stages than llama-3.1-8b has layers, which is 32");
    }

    #[test]
    fn an_all_reduce_takes_the_latency_and_the_bytes_of_the_peer_link() {
        let device = Hardware {
            peer_link_bytes_s: 1e9,
            peer_link_latency_s: 1e-6,
            ..*crate::hardware::by_name("h100-80g").unwrap()
        };
        let s = |tensor| Parallel { tensor, pipeline: 1 }.all_reduce_s(&device, 1000.0, 8192.0);
        assert_eq!(s(1), 0.0);
        // 1,000 tokens of 8,192 bytes; each of two devices sends and receives half of them twice.
        assert!((s(2) - (1e-6 + 8.192e-3)).abs() < 1e-12, "{}", s(2));
        assert!((s(4) - (1e-6 + 1.5 * 8.192e-3)).abs() < 1e-12, "{}", s(4));
    }

    #[test]
    fn each_device_holds_its_share() {
        let llama = model::by_name("llama-3.1-70b").unwrap();
        let of = |tensor, pipeline| {
            let parallel = Parallel { tensor, pipeline };
            (parallel.weight_bytes(llama), parallel.kv_bytes_per_token(llama))
        };
        assert_eq!(of(1, 1), (llama.weight_bytes(), 327_680));
        assert_eq!(of(2, 1), (llama.weight_bytes() / 2, 163_840));
        assert_eq!(of(16, 1).1, 40_960, "eight heads cannot be shared out to sixteen");
        assert_eq!(of(1, 3).1, 27 * 4096);
        assert!(of(1, 2).0 < llama.weight_bytes() * 52 / 100);
    }
}
