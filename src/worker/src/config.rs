//! The shape of a model: dimensions, constants, and parts of its layers.

pub(crate) mod families;
pub mod groups;

use std::fmt::Debug;
use std::path::Path;

use trunkline_quote::cut;
use trunkline_text::ModelFacts;

use crate::error::ModelError;

/// No dimension of a model may exceed this limit; products of a few dimensions stay far from overflow.
const DIMENSION_MAX: u32 = 1 << 24;

/// The shape and the constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Number of tokens known to the model, and of logits per row.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Width of the feed-forward layers.
    pub intermediate_size: u32,
    /// Number of transformer layers.
    pub n_layers: u32,
    /// Number of query heads per layer.
    pub n_heads: u32,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: u32,
    /// Width of one head; even.
    pub head_dim: u32,
    /// Positions the model was made for: prompt and output together.
    pub max_context: u32,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Stretching of the rotary frequencies beyond the original context.
    pub rope_scaling: Option<RopeScaling>,
    /// `true` if the output head is the embedding.
    pub tied_head: bool,
    /// Sliding window of each layer: positions read by a query, its own the last. Empty if no layer has a window.
    pub windows: Vec<Option<u32>>,
    /// Parts of the layers that some families have and others lack.
    pub parts: LayerParts,
    /// Tokens ending the model's output, ascending. May be empty.
    pub eos_token_ids: Vec<u32>,
}

/// Parts of every layer of a model beyond the plain Llama layer; `true` means present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerParts {
    /// Biases of the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias of the output projection of attention.
    pub output_bias: bool,
    /// Biases of the three feed-forward matrices.
    pub mlp_bias: bool,
    /// RMSNorm of every query and key head before its rotation.
    pub head_norm: bool,
}

/// Scaling of rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every frequency is divided by `factor` (`rope_type` "linear").
    Linear {
        /// Divisor of every frequency, above 0.
        factor: f64,
    },
    /// The scaling of Llama 3.1 (`rope_type` "llama3").
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths longer than the original context divided by this are scaled fully.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context divided by this are left alone.
        high_freq_factor: f64,
        /// The context before scaling, tokens.
        original_context: u32,
    },
    /// YaRN (`rope_type` "yarn"), <https://arxiv.org/abs/2309.00071>.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Multiplier of cosines and sines: attention scores grow by its square.
        attention_factor: f64,
        /// Turns within the original context above which a frequency is kept.
        beta_fast: f64,
        /// Turns within the original context below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// The context before scaling, tokens.
        original_context: u32,
        /// `true` rounds the range between the two betas outwards to whole dimensions.
        truncate: bool,
    },
    /// Divisors of the frequencies, one each, as files in the GGUF format carry them.
    Divisors(Vec<f32>),
}

impl RopeScaling {
    /// Returns the attention factor that the authors of YaRN recommend for a scaling by `factor`, with the multiplier `mscale`
    /// (1 in the paper) of the logarithm.
    pub(crate) fn yarn_attention_factor(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    }
}

impl ModelConfig {
    /// Refuses dimensions without a meaning for the arithmetic.
    pub(crate) fn check(&self, path: &Path) -> Result<(), ModelError> {
        let dimensions = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.n_layers),
            ("num_attention_heads", self.n_heads),
            ("num_key_value_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_context),
        ];
        for (field, value) in dimensions {
            if value == 0 || value > DIMENSION_MAX {
                return Err(invalid(path, field, value, "must be from 1 to 2^24"));
            }
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(invalid(path, "num_key_value_heads", self.n_kv_heads, "must divide num_attention_heads"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(invalid(path, "head_dim", self.head_dim, "must be even for rotary embeddings"));
        }
        if u64::from(self.n_heads) * u64::from(self.head_dim) > u64::from(DIMENSION_MAX) {
            return Err(invalid(path, "head_dim", self.head_dim, "times num_attention_heads must not exceed 2^24"));
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps.is_finite()) {
            return Err(invalid(path, "rms_norm_eps", self.rms_norm_eps, "must be a number of at least 0"));
        }
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite()) {
            return Err(invalid(path, "rope_theta", self.rope_theta, "must be above 0"));
        }
        Ok(())
    }

    /// Gives the layers for which `slides` returns `true` a window of attention. A window of `n` tokens covers a token and the `n - 1` tokens
    /// before; a window as long as the context is none.
    ///
    /// # Errors
    ///
    /// A window of 0 tokens.
    pub(crate) fn set_windows(
        &mut self,
        window: Option<u32>,
        slides: impl Fn(u32) -> bool,
        path: &Path,
    ) -> Result<(), ModelError> {
        if window == Some(0) {
            return Err(invalid(path, "sliding_window", 0, "must be at least 1, or null"));
        }
        let window = window.filter(|window| *window < self.max_context);
        let windows: Vec<Option<u32>> = (0..self.n_layers).map(|layer| window.filter(|_| slides(layer))).collect();
        self.windows = if windows.iter().all(Option::is_none) { Vec::new() } else { windows };
        Ok(())
    }

    /// Returns the window of every layer.
    pub(crate) fn layer_windows(&self) -> Vec<Option<u32>> {
        if self.windows.is_empty() { vec![None; self.n_layers as usize] } else { self.windows.clone() }
    }

    /// Takes the tokens that end the model's output from the facts about the model at `path`. Returns the facts.
    ///
    /// # Errors
    ///
    /// A file states a token that is not in the vocabulary.
    pub(crate) fn set_ends(&mut self, facts: ModelFacts, path: &Path) -> Result<ModelFacts, ModelError> {
        let facts = facts.within(self.vocab_size).map_err(|(end, source)| {
            let (field, path) = match source.strip_suffix(".json") {
                Some(_) => ("eos_token_id", &path.join(source)),
                None => (source, &path.to_owned()),
            };
            invalid(path, field, end, "must be below vocab_size and not below 0")
        })?;
        self.eos_token_ids = facts.end_ids();
        Ok(facts)
    }

    /// Number of query heads sharing one key and value head.
    pub(crate) fn group(&self) -> usize {
        (self.n_heads / self.n_kv_heads) as usize
    }

    /// Width of all query heads together.
    pub(crate) fn q_width(&self) -> usize {
        self.n_heads as usize * self.head_dim as usize
    }

    /// Width of all key heads, and of all value heads, together.
    pub(crate) fn kv_width(&self) -> usize {
        self.n_kv_heads as usize * self.head_dim as usize
    }
}

/// Refuses a value of `field`; `rule` completes the sentence "it ...".
pub(crate) fn invalid(path: &Path, field: &'static str, value: impl Debug, rule: &str) -> ModelError {
    ModelError::Config {
        path: path.to_owned(),
        field,
        problem: format!("is {}; it {rule}", cut(&format!("{value:?}"))),
    }
}

/// Refuses a feature of a sound model.
pub(crate) fn unsupported(path: &Path, found: String, supported: &'static str) -> ModelError {
    ModelError::Unsupported { path: path.to_owned(), found, supported }
}
