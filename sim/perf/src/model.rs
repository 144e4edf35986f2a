//! Models: shapes that determine FLOPs and bytes.
//!
//! The numbers come from each model's published `config.json`, which [`from_config`] reads. Covered are decoders with grouped-query
//! or multi-head attention, or with a latent cache as in DeepSeek, and feed-forward networks of two or, with a gate, three matrices, dense or
//! with experts. Norms, biases, routers and rotary tables are ignored: below 0.1 % of the weights. The tower of a model that sees takes memory
//! and no time: requests are planned without images.
//!
//! Layers with a sliding window keep and read the window alone, where the blocks of a replica are divided into layer groups. Other
//! attention that reads a part of the context (chunks, sparse indexes) is planned as full attention, and [`Model::label`] says so. It also
//! names each field of a configuration that may change attention, routing or quantisation and that nothing here reads.
//!
//! Recurrent layers of hybrid models have no KV: each running sequence holds a state of fixed size in each. Steps read and write the states.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use trunkline_sim_workload::UnknownName;

mod config;
mod hybrid;
mod precision;

pub use config::{ModelError, from_config, parse_config};
pub use hybrid::Hybrid;
pub use precision::{Arithmetic, Bits, Precision};

/// Shapes of a decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name of the preset or folder.
    pub name: &'static str,
    /// Number of layers of the model.
    pub layers: u64,
    /// Width of the residual stream, elements.
    pub hidden: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key-value heads.
    pub kv_heads: u64,
    /// Width of a head, elements.
    pub head_dim: u64,
    /// Width of the feed-forward network of a dense layer, elements.
    pub intermediate: u64,
    /// `true` if feed-forward networks have three matrices, one of them a gate; otherwise they have two.
    pub gated: bool,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// `true` if the output matrix is the embedding (tied).
    pub tied: bool,
    /// Precision of the weights.
    pub precision: Precision,
    /// Bytes per element of the KV cache.
    pub kv_dtype_bytes: u64,
    /// Experts; `None` for a dense model.
    pub experts: Option<Experts>,
    /// Latent cache; `None` for ordinary attention.
    pub latent: Option<Latent>,
    /// Layers with a sliding window; `None` if every layer reads every token.
    pub windows: Option<Windows>,
    /// Layers by their sorts; `None` if every layer has attention and a feed-forward network.
    pub hybrid: Option<Hybrid>,
    /// Layers with attention, one after the other, that share the KV of the first of them (arXiv 2405.12981); 1 if each layer has its own.
    pub kv_share: u64,
    /// Layers whose attention reads an image instead of the text (Llama 3.2 Vision): tokens have no KV there; 0 for none.
    pub cross_layers: u64,
    /// Most tokens of prompt and answer together, as engines allow by default; `None` if that is not known.
    pub max_context: Option<u32>,
    /// What a configuration says beyond the shapes of a plain decoder.
    pub extras: Extras,
}

/// What a configuration says beyond the shapes of a plain decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Family, as in `model_type`; empty if that is not known.
    pub family: &'static str,
    /// Attention of the model that is planned as full attention over all tokens, which takes more KV and longer steps; `None` if the
    /// model has full attention.
    pub planned_as_full: Option<&'static str>,
    /// Fields that may change attention, routing or quantisation and are not read, with commas between; empty for none.
    pub unread: &'static str,
    /// `true` if a gate as wide as the queries multiplies the output of attention.
    pub output_gate: bool,
    /// Bytes of the weights that embed images, which engines load with the rest; 0 for none.
    pub tower_bytes: u64,
}

/// Layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens that such a layer reads, itself included.
    pub tokens: u32,
    /// Number of such layers, at least one.
    pub layers: u64,
}

/// Mixture of experts: a router chooses some feed-forward networks for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts per layer.
    pub count: u64,
    /// Number of experts used per token.
    pub active: u64,
    /// Width of an expert, elements.
    pub width: u64,
    /// Width of the shared experts used by every token, elements; 0 for none.
    pub shared_width: u64,
    /// Layers with a dense network instead of experts.
    pub dense_layers: u64,
    /// Width of the vectors that experts read and write, elements, if it is not that of the residual stream: two matrices for all experts
    /// of a layer lead there and back (LatentMoE of Nemotron 3).
    pub latent_width: Option<u64>,
}

/// Multi-head latent attention: keys and values of all heads derive from one short cached vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the query vector; 0 if queries come directly from the residual stream.
    pub query_rank: u64,
    /// Width of the vector for keys and values.
    pub kv_rank: u64,
    /// Width of the positional part of a key, shared by all heads.
    pub rope_dim: u64,
    /// Width of the rest of a key.
    pub nope_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
    /// Index that chooses which tokens attention reads; `None` without one.
    pub index: Option<Index>,
}

/// Sparse index of a latent cache (DeepSeek-V3.2): heads of their own score all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Number of the index's query heads.
    pub heads: u64,
    /// Width of a key, which all heads share.
    pub dim: u64,
}

impl Index {
    /// Returns the bytes of a token in the key cache: 8 bits an element, and a scale of 32, as vLLM and SGLang keep them.
    const fn token_bytes(self) -> u64 {
        self.dim + 4
    }
}

impl Latent {
    /// Returns the bytes of a token in a layer with so many bytes for each element. Engines keep the positional part of an 8-bit cache in 16 bits if there
    /// is an index, and a scale of 32 bits for each 128 elements of the rest (`fp8_ds_mla` of vLLM: 656 bytes of a DeepSeek, 788 with its index).
    const fn token_bytes(self, element_bytes: u64) -> u64 {
        match self.index {
            Some(index) if element_bytes == 1 => {
                self.kv_rank + 4 * self.kv_rank.div_ceil(SCALED_ELEMENTS) + 2 * self.rope_dim + index.token_bytes()
            }
            Some(index) => (self.kv_rank + self.rope_dim) * element_bytes + index.token_bytes(),
            None => (self.kv_rank + self.rope_dim) * element_bytes,
        }
    }
}

/// Elements of a latent vector of 8 bits with a common scale.
const SCALED_ELEMENTS: u64 = 128;

/// Tokens in a KV block by default for a latent cache, as the kernels for such caches want them.
pub const LATENT_BLOCK_TOKENS: u32 = 64;

/// Maximum number of elements in a matrix: beyond any model, and few enough to count the bytes of all weights.
const ELEMENTS_MAX: f64 = (1u64 << 58) as f64;

impl Model {
    /// Returns the name for reports, with what the model is planned as if that is something else.
    pub fn label(&self) -> String {
        let mut label = self.name.to_owned();
        if let Some(what) = self.extras.planned_as_full {
            // The keys of an index are part of the KV.
            let kv = if self.latent.is_some_and(|latent| latent.index.is_some()) { "" } else { ", and so is the KV" };
            label += &format!(" ({what} planned as full attention: step times are upper bounds{kv})");
        }
        if !self.extras.unread.is_empty() {
            let are = if self.extras.unread.contains(", ") { "are" } else { "is" };
            label += &format!(" (planned without {}, which {are} not read: no error is known)", self.extras.unread);
        }
        if self.extras.tower_bytes > 0 {
            label += " (requests without images; the tower's weights count)";
        }
        if self.cross_layers > 0 {
            label += " (requests without images: layers of cross-attention have no KV)";
        }
        if self.kv_dtype_bytes != 2 {
            label += &format!(" (KV of {} bits)", 8 * self.kv_dtype_bytes);
        }
        if self.hybrid.is_some() {
            label += " (recurrent layers: prefix hits as if their states were kept at the end of every block, an upper bound)";
        }
        label
    }

    /// Returns `true` if `other` has the same shapes and precisions: names and longest contexts may differ.
    pub fn is_like(&self, other: &Self) -> bool {
        let extras = Extras { family: other.extras.family, ..self.extras };
        Self { name: other.name, max_context: other.max_context, extras, ..*self } == *other
    }

    /// Returns the number of layers with attention.
    pub const fn attention_layers(&self) -> u64 {
        match self.hybrid {
            None => self.layers,
            Some(hybrid) => hybrid.attention_layers,
        }
    }

    /// Returns the number of layers with a KV of their own.
    pub const fn kv_layers(&self) -> u64 {
        self.self_attention_layers().div_ceil(self.kv_share)
    }

    /// Returns the number of layers whose attention reads the tokens before.
    const fn self_attention_layers(&self) -> u64 {
        self.attention_layers() - self.cross_layers
    }

    /// Returns the number of layers with a feed-forward network.
    fn feed_forward_layers(&self) -> u64 {
        self.hybrid.map_or(self.layers, |hybrid| hybrid.feed_forward_layers)
    }

    /// Returns the elements of the attention matrices of a layer.
    const fn attention_elements(&self) -> u64 {
        match self.latent {
            None => {
                let queries = if self.extras.output_gate { 3 } else { 2 } * self.heads;
                self.hidden * self.head_dim * (queries + 2 * self.kv_heads)
            }
            Some(Latent { query_rank, kv_rank, rope_dim, nope_dim, value_dim, index }) => {
                let query_dim = self.heads * (nope_dim + rope_dim);
                let query = match query_rank {
                    0 => self.hidden * query_dim,
                    rank => rank * (self.hidden + query_dim),
                };
                let key_value = self.hidden * (kv_rank + rope_dim) + kv_rank * self.heads * (nope_dim + value_dim);
                let index = match index {
                    None => 0,
                    // Queries from the query vector, one key, and a weight for each head.
                    Some(Index { heads, dim }) => {
                        let from = if query_rank == 0 { self.hidden } else { query_rank };
                        from * heads * dim + self.hidden * (dim + heads)
                    }
                };
                query + key_value + self.heads * value_dim * self.hidden + index
            }
        }
    }

    /// Returns the elements of the matrices that make the KV of a layer, which layers with the KV of another lack.
    const fn key_value_elements(&self) -> u64 {
        match self.latent {
            None => 2 * self.hidden * self.head_dim * self.kv_heads,
            Some(_) => 0,
        }
    }

    /// Returns the number of layers with experts.
    pub fn expert_layers(&self) -> u64 {
        self.experts.map_or(0, |moe| self.feed_forward_layers().saturating_sub(moe.dense_layers))
    }

    /// Returns the elements of the matrices of all layers that every token passes through: all but those of the experts.
    pub fn common_elements(&self) -> u64 {
        self.elements(0.0).min(ELEMENTS_MAX) as u64
    }

    /// Returns the elements of the feed-forward matrices of all layers if the tokens of a layer use `experts` of its experts.
    fn feed_forward_elements(&self, experts: f64) -> f64 {
        let matrices = (self.feed_forward_matrices() * self.hidden) as f64;
        match self.experts {
            None => matrices * (self.feed_forward_layers() * self.intermediate) as f64,
            Some(moe) => {
                let sparse = self.expert_layers() as f64;
                let input = moe.latent_width.unwrap_or(self.hidden) as f64;
                let ways = moe.latent_width.map_or(0, |width| 2 * self.hidden * width) as f64;
                let routed = self.feed_forward_matrices() as f64 * input * experts * moe.width as f64;
                let dense = sparse * moe.shared_width as f64 + (moe.dense_layers * self.intermediate) as f64;
                matrices * dense + sparse * (routed + ways)
            }
        }
    }

    /// Returns the number of matrices of a feed-forward network.
    pub(crate) const fn feed_forward_matrices(&self) -> u64 {
        if self.gated { 3 } else { 2 }
    }

    /// Returns the elements of the matrices of all layers.
    pub fn layer_elements(&self) -> u64 {
        self.elements(self.experts.map_or(0.0, |moe| moe.count as f64)).min(ELEMENTS_MAX) as u64
    }

    /// Returns the elements of the layers' matrices multiplied with one token.
    pub fn active_elements(&self) -> u64 {
        self.elements(self.experts.map_or(0.0, |moe| moe.active as f64)).min(ELEMENTS_MAX) as u64
    }

    fn elements(&self, experts: f64) -> f64 {
        self.mixer_elements() as f64 + self.feed_forward_elements(experts)
    }

    /// Returns the elements of the matrices of attention and of recurrent layers.
    pub(crate) fn mixer_elements(&self) -> u64 {
        let lacking = (self.self_attention_layers() - self.kv_layers()) * self.key_value_elements();
        self.attention_layers() * self.attention_elements() - lacking + self.recurrent_elements()
    }

    /// Returns the elements of the matrices of recurrent layers.
    pub(crate) fn recurrent_elements(&self) -> u64 {
        self.hybrid.map_or(0, |hybrid| hybrid.recurrent_layers * hybrid.elements)
    }

    /// Returns the elements of the layers' matrices read in a step of `tokens`. Of a layer's experts only used ones are read; the
    /// number is the expectation for tokens that choose independently and evenly.
    pub fn read_elements(&self, tokens: u64) -> f64 {
        let touched = self.experts.map_or(0.0, |moe| {
            let missed = (1.0 - moe.active as f64 / moe.count as f64).powf(tokens as f64);
            moe.count as f64 * (1.0 - missed)
        });
        self.elements(touched)
    }

    /// Returns the elements of the output matrix, multiplied with every sampled position.
    pub const fn head_elements(&self) -> u64 {
        self.vocab * self.hidden
    }

    /// Returns the bytes of the matrices of all layers that every token passes through.
    pub fn common_bytes(&self) -> u64 {
        let others = self.common_elements().saturating_sub(self.mixer_elements());
        self.mixer_bytes() + self.precision.feed_forward.bytes(others)
    }

    /// Returns the bytes of the matrices of attention and of recurrent layers.
    pub(crate) fn mixer_bytes(&self) -> u64 {
        let of_states = self.recurrent_elements();
        self.precision.attention.bytes(self.mixer_elements() - of_states) + self.precision.recurrent.bytes(of_states)
    }

    /// Returns the bytes of the matrices of all layers.
    pub fn layer_bytes(&self) -> u64 {
        let experts = self.layer_elements().saturating_sub(self.common_elements());
        self.common_bytes() + self.precision.experts.bytes(experts)
    }

    /// Returns the bytes of all weights, the embedding included.
    pub fn weight_bytes(&self) -> u64 {
        let embedding = if self.tied { 0 } else { self.vocab * self.hidden };
        self.layer_bytes() + self.precision.ends.bytes(self.head_elements() + embedding) + self.extras.tower_bytes
    }

    /// Returns the KV bytes of one token in one layer.
    const fn layer_kv_bytes(&self) -> u64 {
        match self.latent {
            None => 2 * self.kv_heads * self.head_dim * self.kv_dtype_bytes,
            Some(latent) => latent.token_bytes(self.kv_dtype_bytes),
        }
    }

    /// Returns the KV bytes of one token in all layers.
    pub const fn kv_bytes_per_token(&self) -> u64 {
        self.kv_layers() * self.layer_kv_bytes()
    }

    /// Returns the bytes of the weights, and of the KV of a token in 16 bits: by these a model is known under any name, and with any KV type.
    pub fn size(&self) -> [u64; 2] {
        [self.weight_bytes(), Self { kv_dtype_bytes: 2, ..*self }.kv_bytes_per_token()]
    }

    /// Returns the KV bytes of one token that attention reads for a query in all layers. A KV that layers share is read in each of them.
    pub const fn kv_read_bytes_per_token(&self) -> u64 {
        self.self_attention_layers() * self.layer_kv_bytes()
    }

    /// Returns the FLOPs of attention per (query, key) pair of a prefill over all layers: scores and weighted values, two FLOPs for each
    /// element, in every query head. The keys and values of a latent cache are computed for a prefill, and have the width of its heads.
    pub const fn pair_flops(&self) -> u64 {
        let width = match self.latent {
            None => 2 * self.head_dim,
            Some(latent) => latent.nope_dim + latent.rope_dim + latent.value_dim,
        };
        2 * self.self_attention_layers() * self.heads * width
    }

    /// Returns the FLOPs of attention per (query, key) pair of a decode over all layers. The heads of a latent cache multiply with the
    /// cached vector itself, which is wider than their keys and values (the absorbed form of DeepSeek-V2, arXiv 2405.04434).
    pub const fn decode_pair_flops(&self) -> u64 {
        match self.latent {
            None => self.pair_flops(),
            Some(latent) => 2 * self.self_attention_layers() * self.heads * (2 * latent.kv_rank + latent.rope_dim),
        }
    }
}

/// Dense model with grouped-query attention, as a base for presets.
const DENSE: Model = Model {
    name: "",
    layers: 0,
    hidden: 0,
    heads: 0,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 0,
    gated: true,
    vocab: 0,
    tied: false,
    precision: Precision::BITS_16,
    kv_dtype_bytes: 2,
    experts: None,
    latent: None,
    windows: None,
    hybrid: None,
    kv_share: 1,
    cross_layers: 0,
    max_context: None,
    extras: Extras { family: "", planned_as_full: None, unread: "", output_gate: false, tower_bytes: 0 },
};

/// All presets, in BF16.
pub const PRESETS: &[Model] = &[
    Model {
        name: "llama-3.1-8b",
        layers: 32,
        hidden: 4096,
        heads: 32,
        intermediate: 14_336,
        vocab: 128_256,
        max_context: Some(131_072),
        ..DENSE
    },
    Model {
        name: "llama-3.1-70b",
        layers: 80,
        hidden: 8192,
        heads: 64,
        intermediate: 28_672,
        vocab: 128_256,
        max_context: Some(131_072),
        ..DENSE
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
        max_context: Some(131_072),
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
        max_context: Some(131_072),
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
        experts: Some(Experts {
            count: 128,
            active: 8,
            width: 768,
            shared_width: 0,
            dense_layers: 0,
            latent_width: None,
        }),
        max_context: Some(40_960),
        ..DENSE
    },
    Model {
        name: "mixtral-8x7b",
        layers: 32,
        hidden: 4096,
        heads: 32,
        intermediate: 14_336,
        vocab: 32_000,
        experts: Some(Experts {
            count: 8,
            active: 2,
            width: 14_336,
            shared_width: 0,
            dense_layers: 0,
            latent_width: None,
        }),
        max_context: Some(32_768),
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
        max_context: Some(40_960),
        ..DENSE
    },
    Model {
        name: "qwen3-8b",
        layers: 36,
        hidden: 4096,
        heads: 32,
        intermediate: 12_288,
        vocab: 151_936,
        max_context: Some(40_960),
        ..DENSE
    },
    Model {
        name: "qwen3-14b",
        layers: 40,
        hidden: 5120,
        heads: 40,
        intermediate: 17_408,
        vocab: 151_936,
        max_context: Some(40_960),
        ..DENSE
    },
    Model {
        name: "qwen3-32b",
        layers: 64,
        hidden: 5120,
        heads: 64,
        intermediate: 25_600,
        vocab: 151_936,
        max_context: Some(40_960),
        ..DENSE
    },
];

/// Returns the preset called `name`.
///
/// # Errors
///
/// [`UnknownName`] with the known presets.
pub fn by_name(name: &str) -> Result<&'static Model, UnknownName> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "model",
        name: name.into(),
        known: PRESETS.iter().map(|preset| preset.name).collect(),
    })
}

/// Returns the preset called `text`, or reads the `config.json` at the path `text`, which may be its folder.
///
/// # Errors
///
/// [`ModelError`] for an unknown preset, or an unreadable or invalid file.
pub fn find(text: &str) -> Result<Model, ModelError> {
    if text.ends_with(".json") {
        return from_config(Path::new(text));
    }
    let path = Path::new(text);
    match by_name(text) {
        Err(_) if path.is_dir() => {
            let config = path.join("config.json");
            // A folder of GGUF files, as people download them, is the usual mistake.
            match gguf_in(path).filter(|_| !config.exists()) {
                Some(path) => Err(ModelError::Gguf { path }),
                None => from_config(&config),
            }
        }
        Err(_) if path.is_file() && is_gguf(path) => Err(ModelError::Gguf { path: path.into() }),
        preset => Ok(*preset?),
    }
}

/// Returns `true` for a name or a beginning of a GGUF file.
fn is_gguf(path: &Path) -> bool {
    let is_named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let mut magic = [0; 4];
    is_named || File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *b"GGUF")
}

/// Returns the first GGUF file in a folder by name.
fn gguf_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file() && is_gguf(path)).min()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A model with 36 gated delta nets and 12 layers of attention.
    pub(crate) fn qwen3_next() -> Model {
        parse_config("qwen3-next", include_str!("model/config/published/qwen3-next-80b.json")).unwrap()
    }

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
            let found = (model.weight_bytes() / 2) as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 1e-3, "{name}: {found}");
        }
        assert_eq!(PRESETS.len(), 10, "every preset is checked above");
    }

    #[test]
    fn a_hybrid_says_what_its_hits_assume() {
        let label = qwen3_next().label();
        assert_eq!(
            label,
            "qwen3-next (recurrent layers: prefix hits as if their states were kept at the end of every block, an upper bound)"
        );
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
    fn a_folder_stands_for_its_config() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("falcon-7b");
        let find = || find(path.to_str().unwrap());
        fs::create_dir(&path).unwrap();
        let error = find().unwrap_err().to_string();
        assert!(error.contains("falcon-7b/config.json: cannot be read: "), "{error}");
        let gguf = path.join("falcon.gguf");
        fs::write(&gguf, "GGUF and more").unwrap();
        let line = format!(
            "{}: a GGUF file has no config.json; give a preset, or the folder or the config.json of the model that the file was made from",
            gguf.display()
        );
        assert_eq!(find().unwrap_err().to_string(), line, "a folder of such files");
        assert_eq!(super::find(gguf.to_str().unwrap()).unwrap_err().to_string(), line, "the file itself");
        let unnamed = path.join("blob");
        fs::rename(&gguf, &unnamed).unwrap();
        assert!(super::find(unnamed.to_str().unwrap()).unwrap_err().to_string().contains("blob: a GGUF file has"));
        let text = include_str!("model/config/published/falcon-7b.json");
        fs::write(path.join("config.json"), text).unwrap();
        assert_eq!(find().unwrap(), parse_config("falcon-7b", text).unwrap());
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("gpt").unwrap_err().to_string();
        assert!(message.starts_with("unknown model 'gpt'; there are: llama-3.1-8b, "), "{message}");
        let found = find("gpt").unwrap_err().to_string();
        assert_eq!(found, message + "; or give the path of a config.json, or of its folder");
        assert_eq!(find("qwen3-4b").unwrap(), *by_name("qwen3-4b").unwrap());
        assert!(find("no/config.json").unwrap_err().to_string().starts_with("no/config.json: cannot be read: "));
    }
}
