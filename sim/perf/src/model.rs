//! Models: the shapes that decide FLOPs and bytes.
//!
//! The numbers are those of each model's published `config.json`; [`from_config`] reads one. Decoders with grouped-query or multi-head
//! attention, or with a latent cache as in DeepSeek, and gated feed-forward networks of three matrices, dense or of experts. Norms,
//! biases, routers and rotary tables are left out: they are below 0.1 % of the weights.

use std::path::Path;

use trunkline_sim_workload::UnknownName;

mod config;

pub use config::{ModelError, from_config, parse_config};

/// A decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The preset's name.
    pub name: &'static str,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream, elements.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head, elements.
    pub head_dim: u64,
    /// Width of the feed-forward network of a dense layer, elements.
    pub intermediate: u64,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Bytes of an element of the weights.
    pub dtype_bytes: u64,
    /// Bytes of an element of the KV.
    pub kv_dtype_bytes: u64,
    /// The experts, if it has any.
    pub experts: Option<Experts>,
    /// The shape of the latent cache, if it has one.
    pub latent: Option<Latent>,
}

/// Feed-forward networks of which a router chooses some for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts in a layer.
    pub count: u64,
    /// How many of them a token passes through.
    pub active: u64,
    /// Width of one, elements.
    pub width: u64,
    /// Width of what every token passes through beside them, elements; 0 is none.
    pub shared_width: u64,
    /// Layers that have a dense network instead.
    pub dense_layers: u64,
}

/// Multi-head latent attention: keys and values of all heads are made from one short vector, which alone is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector that queries are made from; 0 if they are made from the residual stream.
    pub query_rank: u64,
    /// Width of the vector that keys and values are made from.
    pub kv_rank: u64,
    /// Width of the part of a key that carries the position, shared by all heads.
    pub rope_dim: u64,
    /// Width of the rest of a key.
    pub nope_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
}

/// More than any model has, and so few that bytes of all weights can be counted.
const ELEMENTS_MAX: f64 = (1u64 << 58) as f64;

impl Model {
    /// Elements of the attention matrices of a layer.
    const fn attention_elements(&self) -> u64 {
        match self.latent {
            None => self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads),
            Some(Latent { query_rank, kv_rank, rope_dim, nope_dim, value_dim }) => {
                let query_dim = self.heads * (nope_dim + rope_dim);
                let query = match query_rank {
                    0 => self.hidden * query_dim,
                    rank => rank * (self.hidden + query_dim),
                };
                let key_value = self.hidden * (kv_rank + rope_dim) + kv_rank * self.heads * (nope_dim + value_dim);
                query + key_value + self.heads * value_dim * self.hidden
            }
        }
    }

    /// Elements of the feed-forward matrices of all layers when a layer's tokens pass through `experts` of its experts.
    fn feed_forward_elements(&self, experts: f64) -> f64 {
        let matrices = (3 * self.hidden) as f64;
        match self.experts {
            None => matrices * (self.layers * self.intermediate) as f64,
            Some(moe) => {
                let sparse = (self.layers - moe.dense_layers) as f64;
                let width = moe.shared_width as f64 + experts * moe.width as f64;
                matrices * (sparse * width + (moe.dense_layers * self.intermediate) as f64)
            }
        }
    }

    /// Elements of the matrices of all layers.
    pub fn layer_elements(&self) -> u64 {
        self.elements(self.experts.map_or(0.0, |moe| moe.count as f64)).min(ELEMENTS_MAX) as u64
    }

    /// Elements of the layers' matrices that one token is multiplied with.
    pub fn active_elements(&self) -> u64 {
        self.elements(self.experts.map_or(0.0, |moe| moe.active as f64)).min(ELEMENTS_MAX) as u64
    }

    fn elements(&self, experts: f64) -> f64 {
        (self.layers * self.attention_elements()) as f64 + self.feed_forward_elements(experts)
    }

    /// Elements of the layers' matrices that are read for a step of `tokens`: of a layer's experts only those that some token passes
    /// through. That many are expected if tokens choose independently and evenly.
    pub fn read_elements(&self, tokens: u64) -> f64 {
        let touched = self.experts.map_or(0.0, |moe| {
            let missed = (1.0 - moe.active as f64 / moe.count as f64).powf(tokens as f64);
            moe.count as f64 * (1.0 - missed)
        });
        self.elements(touched)
    }

    /// Elements of the output matrix: those every sampled position is multiplied with.
    pub const fn head_elements(&self) -> u64 {
        self.vocab * self.hidden
    }

    /// Bytes of all weights, the embedding included.
    pub fn weight_bytes(&self) -> u64 {
        let embedding = if self.tied { 0 } else { self.vocab * self.hidden };
        (self.layer_elements() + self.head_elements() + embedding) * self.dtype_bytes
    }

    /// Elements of KV that one token leaves in a layer.
    const fn kv_elements(&self) -> u64 {
        match self.latent {
            None => 2 * self.kv_heads * self.head_dim,
            Some(latent) => latent.kv_rank + latent.rope_dim,
        }
    }

    /// Bytes of KV that one token leaves in all layers.
    pub const fn kv_bytes_per_token(&self) -> u64 {
        self.layers * self.kv_elements() * self.kv_dtype_bytes
    }

    /// FLOPs of attention per pair (query token, key token), all layers: scores and weighted values, two FLOPs for each element, in
    /// every query head. A latent cache is counted at the width of its heads, the least that computes it.
    pub const fn pair_flops(&self) -> u64 {
        let width = match self.latent {
            None => 2 * self.head_dim,
            Some(latent) => latent.nope_dim + latent.rope_dim + latent.value_dim,
        };
        2 * self.layers * self.heads * width
    }
}

/// A dense model with grouped-query attention.
const DENSE: Model = Model {
    name: "",
    layers: 0,
    hidden: 0,
    heads: 0,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 0,
    vocab: 0,
    tied: false,
    dtype_bytes: BF16_BYTES,
    kv_dtype_bytes: BF16_BYTES,
    experts: None,
    latent: None,
};

const BF16_BYTES: u64 = 2;

/// All presets, all in BF16.
pub const PRESETS: &[Model] = &[
    Model { name: "llama-3.1-8b", layers: 32, hidden: 4096, heads: 32, intermediate: 14_336, vocab: 128_256, ..DENSE },
    Model { name: "llama-3.1-70b", layers: 80, hidden: 8192, heads: 64, intermediate: 28_672, vocab: 128_256, ..DENSE },
    Model {
        name: "llama-3.2-1b",
        layers: 16,
        hidden: 2048,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        intermediate: 8192,
        vocab: 128_256,
        tied: true,
        ..DENSE
    },
    Model {
        name: "llama-3.2-3b",
        layers: 28,
        hidden: 3072,
        heads: 24,
        intermediate: 8192,
        vocab: 128_256,
        tied: true,
        ..DENSE
    },
    Model {
        name: "qwen3-30b-a3b",
        layers: 48,
        hidden: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        intermediate: 6144,
        vocab: 151_936,
        experts: Some(Experts { count: 128, active: 8, width: 768, shared_width: 0, dense_layers: 0 }),
        ..DENSE
    },
    Model {
        name: "mixtral-8x7b",
        layers: 32,
        hidden: 4096,
        heads: 32,
        intermediate: 14_336,
        vocab: 32_000,
        experts: Some(Experts { count: 8, active: 2, width: 14_336, shared_width: 0, dense_layers: 0 }),
        ..DENSE
    },
    Model {
        name: "qwen3-4b",
        layers: 36,
        hidden: 2560,
        heads: 32,
        intermediate: 9728,
        vocab: 151_936,
        tied: true,
        ..DENSE
    },
    Model { name: "qwen3-8b", layers: 36, hidden: 4096, heads: 32, intermediate: 12_288, vocab: 151_936, ..DENSE },
    Model { name: "qwen3-14b", layers: 40, hidden: 5120, heads: 40, intermediate: 17_408, vocab: 151_936, ..DENSE },
    Model { name: "qwen3-32b", layers: 64, hidden: 5120, heads: 64, intermediate: 25_600, vocab: 151_936, ..DENSE },
];

/// The preset called `name`.
pub fn by_name(name: &str) -> Result<&'static Model, UnknownName> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "model",
        name: name.into(),
        known: PRESETS.iter().map(|preset| preset.name).collect(),
    })
}

/// The preset called `text`, or what the `config.json` file `text` says.
pub fn find(text: &str) -> Result<Model, ModelError> {
    if text.ends_with(".json") {
        return from_config(Path::new(text));
    }
    Ok(*by_name(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_as_many_as_the_model_cards_say() {
        for (name, billions) in [
            ("llama-3.1-8b", 8.03),
            ("llama-3.1-70b", 70.55),
            ("llama-3.2-1b", 1.236),
            ("llama-3.2-3b", 3.213),
            ("qwen3-4b", 4.022),
            ("qwen3-8b", 8.19),
            ("qwen3-14b", 14.77),
            ("qwen3-32b", 32.76),
            ("qwen3-30b-a3b", 30.53),
            ("mixtral-8x7b", 46.70),
        ] {
            let model = by_name(name).unwrap();
            let found = (model.weight_bytes() / model.dtype_bytes) as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 1e-3, "{name}: {found}");
        }
        assert_eq!(PRESETS.len(), 10, "every preset is checked above");
    }

    #[test]
    fn kv_of_a_token() {
        assert_eq!(by_name("llama-3.1-8b").unwrap().kv_bytes_per_token(), 131_072);
        assert_eq!(by_name("llama-3.1-70b").unwrap().kv_bytes_per_token(), 327_680);
        assert_eq!(by_name("qwen3-8b").unwrap().kv_bytes_per_token(), 147_456);
    }

    #[test]
    fn a_step_reads_the_experts_its_tokens_choose() {
        let mixtral = by_name("mixtral-8x7b").unwrap();
        assert_eq!(mixtral.active_elements() as f64 / 1e9, 12.616466432);
        assert_eq!(mixtral.read_elements(1), mixtral.active_elements() as f64);
        let all = mixtral.layer_elements() as f64;
        assert!(mixtral.read_elements(4) < 0.8 * all && mixtral.read_elements(64) > 0.999 * all);
        let dense = by_name("qwen3-4b").unwrap();
        assert_eq!(dense.read_elements(1), dense.layer_elements() as f64);
        assert_eq!(dense.active_elements(), dense.layer_elements());
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("gpt").unwrap_err().to_string();
        assert!(message.starts_with("unknown model 'gpt'; there are: llama-3.1-8b, "), "{message}");
        assert_eq!(find("gpt").unwrap_err().to_string(), message);
        assert_eq!(find("qwen3-4b").unwrap(), *by_name("qwen3-4b").unwrap());
        assert!(find("no/config.json").unwrap_err().to_string().starts_with("no/config.json: cannot be read: "));
    }
}
