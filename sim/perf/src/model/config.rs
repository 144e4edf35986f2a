//! Reader of a model's shapes from the `config.json` published with its weights.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Experts, Latent, Model};
use trunkline_sim_workload::UnknownName;

/// Failure to load a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Name of no known preset.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// File cannot be read.
    #[error("{}: cannot be read: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        fault: std::io::Error,
    },
    /// Not a configuration of a decoder.
    #[error("{name}: not the config.json of a decoder that is known here: {fault}")]
    Malformed {
        /// Name of the model.
        name: String,
        /// Error of the parser.
        fault: serde_json::Error,
    },
    /// Number out of range.
    #[error("{name}: {field} is {value}; it must be {expected}")]
    OutOfRange {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value as found in the input.
        value: u64,
        /// Permitted values, in words.
        expected: &'static str,
    },
    /// Weights of a type with unknown size or speed.
    #[error("{name}: weights of type '{dtype}' are not known here; there are: bfloat16, float16, float32, fp8")]
    UnknownDtype {
        /// Name of the model.
        name: String,
        /// Type as found in the file.
        dtype: String,
    },
}

/// Relevant fields, under all their names.
#[derive(Deserialize)]
struct Config {
    #[serde(alias = "n_layer")]
    num_hidden_layers: u64,
    #[serde(alias = "n_embd")]
    hidden_size: u64,
    #[serde(alias = "n_head")]
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    intermediate_size: u64,
    vocab_size: u64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(alias = "dtype")]
    torch_dtype: Option<String>,
    quantization_config: Option<Quantization>,
    #[serde(alias = "num_local_experts", alias = "n_routed_experts")]
    num_experts: Option<u64>,
    num_experts_per_tok: Option<u64>,
    moe_intermediate_size: Option<u64>,
    shared_expert_intermediate_size: Option<u64>,
    n_shared_experts: Option<u64>,
    #[serde(default)]
    first_k_dense_replace: u64,
    #[serde(flatten)]
    latent: LatentConfig,
}

/// Fields of multi-head latent attention.
#[derive(Clone, Copy, Deserialize)]
struct LatentConfig {
    q_lora_rank: Option<u64>,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    qk_nope_head_dim: Option<u64>,
    v_head_dim: Option<u64>,
}

#[derive(Deserialize)]
struct Quantization {
    quant_method: String,
}

/// Greatest width of any matrix, elements.
const WIDTH_MAX: u64 = 1 << 20;
/// Greatest number of layers, heads or experts, and greatest head width. Products of these and two widths fit in 64 bits.
const COUNT_MAX: u64 = 1 << 12;

/// Reads the file at `path` and names the model after the folder of the file.
///
/// # Errors
///
/// [`ModelError`] if the file cannot be read or is invalid.
pub fn from_config(path: &Path) -> Result<Model, ModelError> {
    let text = std::fs::read_to_string(path).map_err(|fault| ModelError::Unreadable { path: path.into(), fault })?;
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    parse_config(&folder.unwrap_or_else(|| path.display().to_string()), &text)
}

/// Parses the text of a `config.json`. `name` stays in memory for the life of the program.
///
/// # Errors
///
/// [`ModelError`] if the text is invalid.
pub fn parse_config(name: &str, text: &str) -> Result<Model, ModelError> {
    let config: Config =
        serde_json::from_str(text).map_err(|fault| ModelError::Malformed { name: name.into(), fault })?;
    config.check(name)?;
    let dtype_bytes = config.dtype_bytes(name)?;
    let heads = config.num_attention_heads;
    Ok(Model {
        name: name.to_owned().leak(),
        layers: config.num_hidden_layers,
        hidden: config.hidden_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim: config.head_dim.unwrap_or(config.hidden_size / heads),
        intermediate: config.intermediate_size,
        vocab: config.vocab_size,
        tied: config.tie_word_embeddings,
        dtype_bytes,
        // Engines keep the KV in 16 bits unless told otherwise.
        kv_dtype_bytes: dtype_bytes.max(2),
        experts: config.experts(),
        latent: config.latent(),
    })
}

impl Config {
    fn check(&self, name: &str) -> Result<(), ModelError> {
        let fail = |field, value, expected| Err(ModelError::OutOfRange { name: name.into(), field, value, expected });
        for (field, value) in [
            ("num_hidden_layers", Some(self.num_hidden_layers)),
            ("num_attention_heads", Some(self.num_attention_heads)),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
            ("qk_rope_head_dim", self.latent.qk_rope_head_dim),
            ("qk_nope_head_dim", self.latent.qk_nope_head_dim),
            ("v_head_dim", self.latent.v_head_dim),
        ] {
            if let Some(value) = value.filter(|value| !(1..=COUNT_MAX).contains(value)) {
                return fail(field, value, "between 1 and 4096");
            }
        }
        for (field, value) in [
            ("hidden_size", Some(self.hidden_size)),
            ("intermediate_size", Some(self.intermediate_size)),
            ("vocab_size", Some(self.vocab_size)),
            ("moe_intermediate_size", self.moe_intermediate_size),
            ("kv_lora_rank", self.latent.kv_lora_rank),
        ] {
            if let Some(value) = value.filter(|value| !(1..=WIDTH_MAX).contains(value)) {
                return fail(field, value, "between 1 and 1048576");
            }
        }
        for (field, value, max, expected) in [
            ("q_lora_rank", self.latent.q_lora_rank, WIDTH_MAX, "at most 1048576"),
            ("shared_expert_intermediate_size", self.shared_expert_intermediate_size, WIDTH_MAX, "at most 1048576"),
            ("n_shared_experts", self.n_shared_experts, COUNT_MAX, "at most 4096"),
        ] {
            if let Some(value) = value.filter(|value| *value > max) {
                return fail(field, value, expected);
            }
        }
        match (self.num_experts, self.num_experts_per_tok) {
            (Some(count), Some(active)) if active > count => {
                fail("num_experts_per_tok", active, "at most the number of experts")
            }
            _ if self.first_k_dense_replace > self.num_hidden_layers => {
                fail("first_k_dense_replace", self.first_k_dense_replace, "at most num_hidden_layers")
            }
            _ => Ok(()),
        }
    }

    fn dtype_bytes(&self, name: &str) -> Result<u64, ModelError> {
        let quantized = self.quantization_config.as_ref().map(|quantization| quantization.quant_method.as_str());
        match quantized.or(self.torch_dtype.as_deref()).unwrap_or("bfloat16") {
            "fp8" => Ok(1),
            "bfloat16" | "float16" => Ok(2),
            "float32" => Ok(4),
            other => Err(ModelError::UnknownDtype { name: name.into(), dtype: other.into() }),
        }
    }

    fn experts(&self) -> Option<Experts> {
        let count = self.num_experts?;
        let width = self.moe_intermediate_size.unwrap_or(self.intermediate_size);
        let shared = self.shared_expert_intermediate_size.unwrap_or(self.n_shared_experts.unwrap_or(0) * width);
        Some(Experts {
            count,
            active: self.num_experts_per_tok.unwrap_or(count),
            width,
            shared_width: shared,
            dense_layers: self.first_k_dense_replace,
        })
    }

    fn latent(&self) -> Option<Latent> {
        Some(Latent {
            query_rank: self.latent.q_lora_rank.unwrap_or(0),
            kv_rank: self.latent.kv_lora_rank?,
            rope_dim: self.latent.qk_rope_head_dim?,
            nope_dim: self.latent.qk_nope_head_dim?,
            value_dim: self.latent.v_head_dim?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn a_dense_config_gives_the_preset() {
        let text = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "vocab_size": 128256, "rope_theta": 500000.0}"#;
        assert_eq!(parse_config("llama-3.1-8b", text).unwrap(), *model::by_name("llama-3.1-8b").unwrap());
    }

    #[test]
    fn experts_go_by_several_names() {
        let mixtral = r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}"#;
        assert_eq!(parse_config("mixtral-8x7b", mixtral).unwrap(), *model::by_name("mixtral-8x7b").unwrap());
        let qwen = r#"{"head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
            "num_key_value_heads": 4, "torch_dtype": "bfloat16", "vocab_size": 151936}"#;
        assert_eq!(parse_config("qwen3-30b-a3b", qwen).unwrap(), *model::by_name("qwen3-30b-a3b").unwrap());
    }

    #[test]
    fn deepseek_v3_has_as_many_weights_and_as_little_kv_as_its_report_says() {
        let text = r#"{"first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
            "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {"quant_method": "fp8"},
            "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280}"#;
        let model = parse_config("deepseek-v3", text).unwrap();
        assert!((model.weight_bytes() as f64 / 671e9 - 1.0).abs() < 2e-3, "{}", model.weight_bytes());
        let active = model.active_elements() + model.head_elements();
        assert!((active as f64 / 37e9 - 1.0).abs() < 0.03, "{active}");
        assert_eq!(model.kv_bytes_per_token(), 61 * 576 * 2);
    }

    #[test]
    fn the_largest_numbers_can_be_counted_with() {
        let text = r#"{"hidden_size": 1048576, "intermediate_size": 1048576, "num_attention_heads": 4096, "head_dim": 4096,
            "num_hidden_layers": 4096, "num_experts": 4096, "num_experts_per_tok": 4096, "vocab_size": 1048576,
            "torch_dtype": "float32"}"#;
        let model = parse_config("m", text).unwrap();
        assert!(model.weight_bytes() > 1 << 60 && model.kv_bytes_per_token() > 1 << 36 && model.pair_flops() > 1 << 36);
    }

    #[test]
    fn what_is_no_model_is_refused_in_one_line() {
        let error = |text: &str| parse_config("m", text).unwrap_err().to_string();
        assert!(error("{}").starts_with("m: not the config.json of a decoder that is known here: missing field"));
        let with = |more: &str| {
            format!(
                r#"{{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9{more}}}"#
            )
        };
        assert!(parse_config("m", &with("")).is_ok());
        assert_eq!(error(&with(r#", "head_dim": 0"#)), "m: head_dim is 0; it must be between 1 and 4096");
        assert_eq!(
            error(&with(r#", "num_experts": 2, "num_experts_per_tok": 3"#)),
            "m: num_experts_per_tok is 3; it must be at most the number of experts"
        );
        assert_eq!(
            error(&with(r#", "quantization_config": {"quant_method": "awq"}"#)),
            "m: weights of type 'awq' are not known here; there are: bfloat16, float16, float32, fp8"
        );
    }
}
