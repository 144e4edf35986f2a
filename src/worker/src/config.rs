//! The shape of a model, from `config.json` and `generation_config.json` of a Hugging Face folder.
//!
//! Defaults of absent keys are the defaults of `LlamaConfig` in Hugging Face transformers. A setting that would change the model's
//! arithmetic beyond the reach of this worker is refused, never ignored.

use std::fmt::Debug;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;

/// No dimension of a model may exceed this limit; products of a few dimensions stay far from overflow.
const DIMENSION_MAX: u32 = 1 << 24;

/// The shape and the constants of a Llama model.
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
    /// Tokens ending the model's output, ascending. May be empty.
    pub eos_token_ids: Vec<u32>,
}

/// The scaling of rotary frequencies introduced by Llama 3.1 (`rope_type` "llama3").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// Low frequencies are divided by this.
    pub factor: f64,
    /// Wavelengths longer than the original context divided by this are scaled fully.
    pub low_freq_factor: f64,
    /// Wavelengths shorter than the original context divided by this are left alone.
    pub high_freq_factor: f64,
    /// The context before scaling, tokens.
    pub original_context: u32,
}

/// The keys of `config.json` of interest to the worker.
#[derive(Deserialize)]
struct RawConfig {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    max_position_embeddings: Option<u32>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    /// Name of the key in transformers 4.
    rope_scaling: Option<RawRope>,
    /// transformers 5: holds `rope_theta` too.
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    quantization_config: Option<Value>,
}

#[derive(Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    /// The older name of `rope_type`.
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<u32>,
}

/// The end tokens, in `config.json` and in `generation_config.json`.
#[derive(Deserialize)]
struct RawEndTokens {
    eos_token_id: Option<TokenIds>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl ModelConfig {
    /// Reads `config.json` and, if present, `generation_config.json` of folder `dir`.
    ///
    /// # Errors
    ///
    /// A file is missing, is not JSON, has an impossible value, or describes a model of another kind.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        if !path.exists() {
            let hint = "give the folder of a Hugging Face model (config.json, *.safetensors, tokenizer.json)";
            return Err(ModelError::MissingFile { path, hint });
        }
        let raw: RawConfig = read_json(&path)?;
        let mut config = Self::from_raw(raw, &path)?;
        for path in [path, dir.join("generation_config.json")] {
            if path.exists() {
                let raw: RawEndTokens = read_json(&path)?;
                config.add_eos(raw.eos_token_id, &path)?;
            }
        }
        Ok(config)
    }

    fn from_raw(raw: RawConfig, path: &Path) -> Result<Self, ModelError> {
        refuse_other_models(&raw, path)?;
        let head_dim = raw.head_dim.unwrap_or_else(|| raw.hidden_size / raw.num_attention_heads.max(1));
        let mut config = Self {
            vocab_size: raw.vocab_size,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            n_layers: raw.num_hidden_layers,
            n_heads: raw.num_attention_heads,
            n_kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim,
            max_context: raw.max_position_embeddings.unwrap_or(2048),
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope_theta: 10_000.0,
            rope_scaling: None,
            tied_head: raw.tie_word_embeddings.unwrap_or(false),
            eos_token_ids: Vec::new(),
        };
        let theta_below = raw.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
        config.rope_theta = theta_below.or(raw.rope_theta).unwrap_or(config.rope_theta);
        if let Some(rope) = raw.rope_parameters.or(raw.rope_scaling) {
            config.rope_scaling = rope.scaling(path)?;
        }
        config.check(path)?;
        Ok(config)
    }

    /// Refuses dimensions without a meaning for the arithmetic.
    fn check(&self, path: &Path) -> Result<(), ModelError> {
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

    fn add_eos(&mut self, ids: Option<TokenIds>, path: &Path) -> Result<(), ModelError> {
        let ids = match ids {
            None => return Ok(()),
            Some(TokenIds::One(id)) => vec![id],
            Some(TokenIds::Many(ids)) => ids,
        };
        if let Some(id) = ids.iter().find(|id| **id >= self.vocab_size) {
            return Err(invalid(path, "eos_token_id", id, "must be below vocab_size"));
        }
        self.eos_token_ids.extend(ids);
        self.eos_token_ids.sort_unstable();
        self.eos_token_ids.dedup();
        Ok(())
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

impl RawRope {
    fn scaling(&self, path: &Path) -> Result<Option<RopeScaling>, ModelError> {
        refuse_partial_rotary(self.partial_rotary_factor, path)?;
        match self.rope_type.as_deref().or(self.kind.as_deref()) {
            None | Some("default") => return Ok(None),
            Some("llama3") => {}
            Some(other) => {
                let supported = "the rope types are \"default\" and \"llama3\"";
                return Err(unsupported(path, format!("rope type {other:?}"), supported));
            }
        }
        let number = |field: &'static str, value: Option<f64>| match value {
            Some(value) if value > 0.0 && value.is_finite() => Ok(value),
            other => Err(invalid(path, field, other, "must be given and above 0 for rope type llama3")),
        };
        let scaling = RopeScaling {
            factor: number("factor", self.factor)?,
            low_freq_factor: number("low_freq_factor", self.low_freq_factor)?,
            high_freq_factor: number("high_freq_factor", self.high_freq_factor)?,
            original_context: number(
                "original_max_position_embeddings",
                self.original_max_position_embeddings.map(f64::from),
            )? as u32,
        };
        if scaling.high_freq_factor <= scaling.low_freq_factor {
            return Err(invalid(path, "high_freq_factor", scaling.high_freq_factor, "must exceed low_freq_factor"));
        }
        Ok(Some(scaling))
    }
}

fn refuse_other_models(raw: &RawConfig, path: &Path) -> Result<(), ModelError> {
    if raw.model_type.as_deref() != Some("llama") {
        let found = format!("model_type {:?}", raw.model_type.as_deref().unwrap_or("(absent)"));
        return Err(unsupported(path, found, "this worker runs model_type \"llama\""));
    }
    let architectures = raw.architectures.as_deref().unwrap_or_default();
    if let Some(other) = architectures.iter().find(|name| *name != "LlamaForCausalLM") {
        return Err(unsupported(path, format!("architecture {other:?}"), "this worker runs \"LlamaForCausalLM\""));
    }
    if let Some(other) = raw.hidden_act.as_deref().filter(|name| *name != "silu") {
        return Err(unsupported(path, format!("hidden_act {other:?}"), "the activation is \"silu\""));
    }
    for (name, bias) in [("attention_bias", raw.attention_bias), ("mlp_bias", raw.mlp_bias)] {
        if bias == Some(true) {
            return Err(unsupported(path, format!("{name} true"), "linear layers have no bias"));
        }
    }
    if raw.quantization_config.is_some() {
        let supported = "take the model in F32, F16 or BF16";
        return Err(unsupported(path, "a quantised model (quantization_config)".to_owned(), supported));
    }
    refuse_partial_rotary(raw.partial_rotary_factor, path)
}

fn refuse_partial_rotary(factor: Option<f64>, path: &Path) -> Result<(), ModelError> {
    match factor {
        Some(factor) if factor != 1.0 => {
            Err(unsupported(path, format!("partial_rotary_factor {factor}"), "whole heads are rotated"))
        }
        _ => Ok(()),
    }
}

fn invalid(path: &Path, field: &'static str, value: impl Debug, rule: &str) -> ModelError {
    ModelError::Config { path: path.to_owned(), field, problem: format!("is {value:?}; it {rule}") }
}

fn unsupported(path: &Path, found: String, supported: &'static str) -> ModelError {
    ModelError::Unsupported { path: path.to_owned(), found, supported }
}

/// Reads one JSON file.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ModelError> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, ModelError> {
        let mut value = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        });
        change(&mut value);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), value.to_string()).unwrap();
        ModelConfig::load(dir.path())
    }

    #[test]
    fn absent_keys_take_the_defaults_of_llama() {
        let config = parse(|_| {}).unwrap();
        assert_eq!((config.n_kv_heads, config.head_dim, config.max_context), (4, 8, 2048));
        assert_eq!((config.rms_norm_eps, config.rope_theta, config.tied_head), (1e-6, 10_000.0, false));
        assert_eq!(config.rope_scaling, None);
        assert!(config.eos_token_ids.is_empty());
    }

    #[test]
    fn both_generations_of_rope_keys_are_read() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        });
        let old = parse(|config| {
            config["rope_theta"] = json!(500000.0);
            config["rope_scaling"] = scaling.clone();
        })
        .unwrap();
        let new = parse(|config| {
            config["rope_parameters"] = scaling.clone();
            config["rope_parameters"]["rope_theta"] = json!(500000.0);
        })
        .unwrap();
        assert_eq!(old, new);
        assert_eq!(old.rope_theta, 500_000.0);
        assert_eq!(old.rope_scaling.unwrap().original_context, 64);
    }

    #[test]
    fn eos_ids_of_both_files_are_joined() {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({
            "model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": 7,
        });
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        std::fs::write(dir.path().join("generation_config.json"), json!({"eos_token_id": [9, 7, 3]}).to_string())
            .unwrap();
        assert_eq!(ModelConfig::load(dir.path()).unwrap().eos_token_ids, [3, 7, 9]);
    }

    #[test]
    fn what_the_worker_does_not_compute_is_refused_by_name() {
        let cases: [(&str, Value, &str); 10] = [
            ("model_type", json!("qwen3"), "model_type \"qwen3\""),
            ("model_type", json!(null), "(absent)"),
            ("architectures", json!(["MistralForCausalLM"]), "MistralForCausalLM"),
            ("hidden_act", json!("gelu"), "hidden_act \"gelu\""),
            ("attention_bias", json!(true), "attention_bias"),
            ("mlp_bias", json!(true), "mlp_bias"),
            ("quantization_config", json!({"bits": 4}), "quantised"),
            ("rope_scaling", json!({"type": "yarn", "factor": 2.0}), "rope type \"yarn\""),
            ("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary"),
            ("partial_rotary_factor", json!(0.25), "partial_rotary"),
        ];
        for (key, value, expected) in cases {
            let error = parse(|config| config[key] = value).unwrap_err();
            assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let cases: [(&str, Value); 9] = [
            ("vocab_size", json!(0)),
            ("num_hidden_layers", json!(4_000_000_000u32)),
            ("num_attention_heads", json!(0)),
            ("num_key_value_heads", json!(3)),
            ("head_dim", json!(7)),
            ("head_dim", json!(1 << 24)),
            ("rms_norm_eps", json!(-1.0)),
            ("rope_theta", json!(0.0)),
            ("eos_token_id", json!(320)),
        ];
        for (key, value) in cases {
            let error = parse(|config| config[key] = value.clone()).unwrap_err();
            assert!(matches!(error, ModelError::Config { field, .. } if field == key), "{key} {value}: {error}");
        }
        let error = parse(|config| config["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0})).unwrap_err();
        assert!(error.to_string().contains("low_freq_factor"), "{error}");
        let error = parse(|config| config["vocab_size"] = json!("many")).unwrap_err();
        assert!(matches!(error, ModelError::Json { .. }), "{error}");
    }

    #[test]
    fn a_folder_without_config_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = ModelConfig::load(dir.path()).unwrap_err();
        assert!(matches!(&error, ModelError::MissingFile { path, .. } if path.ends_with("config.json")), "{error}");
    }
}
