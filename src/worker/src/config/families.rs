//! Model families: a table of the differences between the supported architectures, all of them variants of Llama.
//!
//! Defaults of absent keys are the defaults of each family's configuration class in Hugging Face transformers.

use Presence::{Always, Keyed, Never};

/// Rule for biases of linear layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// No model of the family has the biases.
    Never,
    /// Every model of the family has the biases.
    Always,
    /// Models with `true` under a key of `config.json` have the biases: `attention_bias` or `mlp_bias`.
    Keyed,
}

impl Presence {
    /// Returns `true` if a model whose key has value `key` has the biases.
    pub(crate) fn of(self, key: Option<bool>) -> bool {
        match self {
            Never => false,
            Always => true,
            Keyed => key == Some(true),
        }
    }
}

/// Rule for windows of attention, in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// No model of the family has a window; a key is without effect.
    Never,
    /// `sliding_window` counts for every layer. Contains the window of a configuration without the key.
    EveryLayer(u32),
    /// `sliding_window` counts if `use_sliding_window` is `true`, and then for the layers marked `sliding_attention` in
    /// `layer_types`; without `layer_types`, for the layers from `max_window_layers` on (contains the default).
    LastLayers(u32),
}

/// One family: names, differences from Llama, and defaults of absent keys of `config.json`.
#[derive(Debug)]
pub(crate) struct Family {
    /// Value of `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// Class of transformers under `architectures`; a model with another class has another head.
    pub(crate) class: &'static str,
    /// Biases of the query, key and value projections; the key is `attention_bias`.
    pub(crate) qkv_bias: Presence,
    /// Bias of the output projection of attention; the key is `attention_bias`.
    pub(crate) output_bias: Presence,
    /// Biases of the feed-forward layers; the key is `mlp_bias`.
    pub(crate) mlp_bias: Presence,
    /// `true` if every query and key head is normed before its rotation.
    pub(crate) head_norm: bool,
    /// Windows of attention.
    pub(crate) window: Window,
    /// `true` if GGUF files store the rows of query and key heads in the pairs of the rotation, first with second, instead of all
    /// first rows before all second rows.
    pub(crate) gguf_pairs_rows: bool,
    /// Number of key and value heads; `None` is the number of query heads.
    pub(crate) n_kv_heads: Option<u32>,
    /// Width of a head; `None` is `hidden_size / num_attention_heads`.
    pub(crate) head_dim: Option<u32>,
    /// Positions of the context.
    pub(crate) max_context: u32,
}

const LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    qkv_bias: Keyed,
    output_bias: Keyed,
    mlp_bias: Keyed,
    head_norm: false,
    window: Window::Never,
    gguf_pairs_rows: true,
    n_kv_heads: None,
    head_dim: None,
    max_context: 2048,
};

/// All families, by `model_type`.
pub(crate) static FAMILIES: [Family; 4] = [
    LLAMA,
    Family {
        model_type: "mistral",
        class: "MistralForCausalLM",
        qkv_bias: Never,
        output_bias: Never,
        mlp_bias: Never,
        window: Window::EveryLayer(4096),
        n_kv_heads: Some(8),
        max_context: 131_072,
        ..LLAMA
    },
    Family {
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        qkv_bias: Always,
        output_bias: Never,
        mlp_bias: Never,
        window: Window::LastLayers(28),
        gguf_pairs_rows: false,
        n_kv_heads: Some(32),
        max_context: 32_768,
        ..LLAMA
    },
    Family {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        mlp_bias: Never,
        head_norm: true,
        window: Window::LastLayers(28),
        gguf_pairs_rows: false,
        n_kv_heads: Some(32),
        head_dim: Some(128),
        max_context: 32_768,
        ..LLAMA
    },
];

/// Supported values of `model_type`, for error messages.
pub(crate) const SUPPORTED: &str =
    "this worker runs the model types llama, mistral, qwen2 and qwen3; others run in attached workers";

/// Model types of other kinds, for error messages.
const OTHERS: [(&str, &[&str]); 5] = [
    (
        "an encoder, which makes no text",
        &[
            "bert",
            "roberta",
            "xlm-roberta",
            "distilbert",
            "electra",
            "deberta-v2",
            "modernbert",
            "nomic_bert",
            "mpnet",
            "clip",
        ],
    ),
    ("an encoder with a decoder", &["t5", "mt5", "bart", "mbart", "marian", "pegasus", "whisper", "m2m_100"]),
    (
        "a mixture of experts",
        &[
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "deepseek_v2",
            "deepseek_v3",
            "gpt_oss",
            "granitemoe",
            "olmoe",
            "phimoe",
        ],
    ),
    (
        "a model of images or sound in addition to text",
        &[
            "llava",
            "llava_next",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
            "mllama",
            "gemma3",
            "mistral3",
            "idefics3",
            "smolvlm",
        ],
    ),
    ("a model with recurrent states", &["mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba2"]),
];

/// Returns the kind of a model of another kind.
pub(crate) fn other_kind(model_type: &str) -> Option<&'static str> {
    OTHERS.iter().find(|(_, types)| types.contains(&model_type)).map(|(kind, _)| *kind)
}

/// Returns the family with the `model_type` of a configuration.
pub(crate) fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_type == model_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_found_and_named_in_the_message() {
        for known in &FAMILIES {
            assert!(std::ptr::eq(family(known.model_type).unwrap(), known));
            assert!(SUPPORTED.contains(known.model_type));
        }
        assert!(family("gpt2").is_none());
        assert!(OTHERS.iter().all(|(_, types)| types.iter().all(|name| family(name).is_none())));
        assert_eq!((other_kind("bert"), other_kind("gpt2")), (Some("an encoder, which makes no text"), None));
    }
}
