//! Model presets: the shapes that decide FLOPs and bytes.
//!
//! The numbers are those of each model's published `config.json`. All are dense decoders with grouped-query attention and a
//! gated feed-forward network of three matrices; norms, biases and rotary tables are left out, they are below 0.01 % of the weights.

use crate::UnknownName;

/// A dense decoder-only transformer.
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
    /// Width of the feed-forward network, elements.
    pub intermediate: u64,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Bytes of an element of weights and KV.
    pub dtype_bytes: u64,
}

impl Model {
    /// Elements of the matrices of all layers: those every token is multiplied with.
    pub const fn layer_elements(&self) -> u64 {
        let attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads);
        self.layers * (attention + 3 * self.hidden * self.intermediate)
    }

    /// Elements of the output matrix: those every sampled position is multiplied with.
    pub const fn head_elements(&self) -> u64 {
        self.vocab * self.hidden
    }

    /// Bytes of all weights, the embedding included.
    pub const fn weight_bytes(&self) -> u64 {
        let embedding = if self.tied { 0 } else { self.vocab * self.hidden };
        (self.layer_elements() + self.head_elements() + embedding) * self.dtype_bytes
    }

    /// Bytes of KV that one token leaves in all layers.
    pub const fn kv_bytes_per_token(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes
    }
}

const BF16_BYTES: u64 = 2;

/// All presets, all in BF16.
pub const PRESETS: &[Model] = &[
    Model {
        name: "llama-3.1-8b",
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 14_336,
        vocab: 128_256,
        tied: false,
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "llama-3.1-70b",
        layers: 80,
        hidden: 8192,
        heads: 64,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 28_672,
        vocab: 128_256,
        tied: false,
        dtype_bytes: BF16_BYTES,
    },
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
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "llama-3.2-3b",
        layers: 28,
        hidden: 3072,
        heads: 24,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 8192,
        vocab: 128_256,
        tied: true,
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "qwen3-4b",
        layers: 36,
        hidden: 2560,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 9728,
        vocab: 151_936,
        tied: true,
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "qwen3-8b",
        layers: 36,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 12_288,
        vocab: 151_936,
        tied: false,
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "qwen3-14b",
        layers: 40,
        hidden: 5120,
        heads: 40,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 17_408,
        vocab: 151_936,
        tied: false,
        dtype_bytes: BF16_BYTES,
    },
    Model {
        name: "qwen3-32b",
        layers: 64,
        hidden: 5120,
        heads: 64,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 25_600,
        vocab: 151_936,
        tied: false,
        dtype_bytes: BF16_BYTES,
    },
];

/// The preset called `name`.
pub fn by_name(name: &str) -> Result<&'static Model, UnknownName> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "model",
        name: name.into(),
        known: PRESETS.iter().map(|preset| preset.name).collect(),
    })
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
        ] {
            let model = by_name(name).unwrap();
            let found = (model.weight_bytes() / model.dtype_bytes) as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 1e-3, "{name}: {found}");
        }
        assert_eq!(PRESETS.len(), 8, "every preset is checked above");
    }

    #[test]
    fn kv_of_a_token() {
        assert_eq!(by_name("llama-3.1-8b").unwrap().kv_bytes_per_token(), 131_072);
        assert_eq!(by_name("llama-3.1-70b").unwrap().kv_bytes_per_token(), 327_680);
        assert_eq!(by_name("qwen3-8b").unwrap().kv_bytes_per_token(), 147_456);
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("gpt").unwrap_err().to_string();
        assert!(message.starts_with("unknown model 'gpt'; there are: llama-3.1-8b, "), "{message}");
    }
}
