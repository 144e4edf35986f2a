//! The configuration of a Hugging Face folder: `config.json`, and the facts in its other files.
//!
//! Defaults of absent keys are the defaults of the family's class in Hugging Face transformers. A setting that would change the
//! model's arithmetic beyond the reach of this worker is refused, never ignored.

use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use trunkline_text::{Files, Lacks, Mistake, ModelFacts, context_of};

use crate::config::families::{Family, SUPPORTED, Window, family, other_kind};
use crate::config::{LayerParts, ModelConfig, RopeScaling, invalid, unsupported};
use crate::error::ModelError;
use crate::error::misfits::UNQUANTISED;

const CONFIG: &str = "config.json";

/// Names of the activation `x * sigmoid(x)`.
const ACTIVATIONS: [&str; 2] = ["silu", "swish"];

/// Kinds of layers: attention to all positions, and to a window.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The keys of `config.json` that the worker reads.
#[derive(Deserialize)]
struct RawConfig {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    #[serde(flatten)]
    dimensions: RawDimensions,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    /// Name of the key in transformers 4.
    rope_scaling: Option<RawRope>,
    /// transformers 5: holds `rope_theta` too.
    rope_parameters: Option<RawRope>,
    /// Some models state the original context here, next to `rope_scaling`.
    original_max_position_embeddings: Option<u32>,
    partial_rotary_factor: Option<f64>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    #[serde(flatten)]
    window: RawWindow,
    tie_word_embeddings: Option<bool>,
    quantization_config: Option<Value>,
    /// The key of MLX.
    quantization: Option<Value>,
}

#[derive(Deserialize)]
struct RawDimensions {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    /// Inner `None`: the key is there with the value null.
    #[serde(default, deserialize_with = "present")]
    num_key_value_heads: Option<Option<u32>>,
    head_dim: Option<u32>,
    max_position_embeddings: Option<u32>,
}

#[derive(Deserialize)]
struct RawWindow {
    /// Inner `None`: the key is there with the value null.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<u32>>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<u32>,
    layer_types: Option<Vec<String>>,
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
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
}

/// Reads a key that may be absent, null, or a value.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(source: D) -> Result<Option<T>, D::Error> {
    T::deserialize(source).map(Some)
}

/// Reads `config.json` of folder `dir`, and the facts in the other files.
///
/// # Errors
///
/// A file is missing, is not JSON, has an impossible value, or describes a model of another kind.
pub(crate) fn load(dir: &Path) -> Result<(ModelConfig, ModelFacts), ModelError> {
    let path = dir.join(CONFIG);
    if !path.exists() {
        let hint =
            "give the folder of a Hugging Face model (config.json, *.safetensors, tokenizer.json), or a GGUF file";
        let missing = ModelError::MissingFile { path, hint };
        return Err(Mistake::of_folder(dir, Lacks::Config).map_or(missing, ModelError::from));
    }
    parse(&read(&path)?, dir, Files::Folder(dir))
}

/// Reads the text of `config.json`; messages name the folder `dir` of the `files`.
///
/// # Errors
///
/// As [`load`], but for the missing file.
pub(crate) fn parse(text: &[u8], dir: &Path, files: Files<'_>) -> Result<(ModelConfig, ModelFacts), ModelError> {
    let path = dir.join(CONFIG);
    let raw: RawConfig = from_json(text, &path)?;
    let family = family_of(&raw, &path)?;
    refuse_other_arithmetic(&raw, &path)?;
    let mut facts = ModelFacts::of_files(files)?;
    if facts.context.is_none() {
        facts.context = context_of(&from_json(text, &path)?, Some(family.max_context)).0;
    }
    let context = facts.context.as_ref().map_or(family.max_context, |context| context.tokens);
    let mut config = model_config(raw, family, context, &path)?;
    let facts = config.set_ends(facts, dir)?;
    Ok((config, facts))
}

/// Returns the configuration of a model with a context of `max_context` tokens.
fn model_config(raw: RawConfig, family: &Family, max_context: u32, path: &Path) -> Result<ModelConfig, ModelError> {
    let dimensions = &raw.dimensions;
    let n_heads = dimensions.num_attention_heads;
    let positions = dimensions.max_position_embeddings.unwrap_or(family.max_context);
    let parts = LayerParts {
        qkv_bias: family.qkv_bias.of(raw.attention_bias),
        output_bias: family.output_bias.of(raw.attention_bias),
        mlp_bias: family.mlp_bias.of(raw.mlp_bias),
        head_norm: family.head_norm,
    };
    let mut config = ModelConfig {
        vocab_size: dimensions.vocab_size,
        hidden_size: dimensions.hidden_size,
        intermediate_size: dimensions.intermediate_size,
        n_layers: dimensions.num_hidden_layers,
        n_heads,
        n_kv_heads: dimensions.num_key_value_heads.unwrap_or(family.n_kv_heads).unwrap_or(n_heads),
        head_dim: dimensions.head_dim.or(family.head_dim).unwrap_or_else(|| dimensions.hidden_size / n_heads.max(1)),
        max_context,
        rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied_head: raw.tie_word_embeddings.unwrap_or(false),
        windows: Vec::new(),
        parts,
        eos_token_ids: Vec::new(),
    };
    let theta_below = raw.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
    config.rope_theta = theta_below.or(raw.rope_theta).unwrap_or(config.rope_theta);
    if let Some(rope) = raw.rope_parameters.or(raw.rope_scaling) {
        config.rope_scaling = rope.scaling(raw.original_max_position_embeddings, positions, path)?;
    }
    config.check(path)?;
    set_windows(&raw.window, family, &mut config, path)?;
    Ok(config)
}

fn family_of(raw: &RawConfig, path: &Path) -> Result<&'static Family, ModelError> {
    let model_type = raw.model_type.as_deref().unwrap_or("(absent)");
    let Some(family) = family(model_type) else {
        let kind = other_kind(model_type).map_or_else(String::new, |kind| format!(" ({kind})"));
        return Err(unsupported(path, format!("model_type {model_type:?}{kind}"), SUPPORTED));
    };
    let architectures = raw.architectures.as_deref().unwrap_or_default();
    match architectures.iter().find(|name| *name != family.class) {
        Some(other) => Err(unsupported(path, format!("architecture {other:?}"), "models end in a language-model head")),
        None => Ok(family),
    }
}

fn refuse_other_arithmetic(raw: &RawConfig, path: &Path) -> Result<(), ModelError> {
    if let Some(other) = raw.hidden_act.as_deref().filter(|name| !ACTIVATIONS.contains(name)) {
        return Err(unsupported(
            path,
            format!("hidden_act {other:?}"),
            "the activation is \"silu\", also called \"swish\"",
        ));
    }
    if let Some((key, method)) = quantised(raw) {
        return Err(unsupported(path, format!("a model quantised with {method} ({key})"), UNQUANTISED));
    }
    refuse_partial_rotary(raw.partial_rotary_factor, path)
}

/// Returns the key and the method of quantised weights. MLX has its key to itself.
fn quantised(raw: &RawConfig) -> Option<(&'static str, String)> {
    if let Some(config) = &raw.quantization_config {
        let method = config.get("quant_method").and_then(Value::as_str).unwrap_or("an unknown method");
        return Some(("quantization_config", method.to_owned()));
    }
    raw.quantization.as_ref().map(|_| ("quantization", "MLX".to_owned()))
}

fn refuse_partial_rotary(factor: Option<f64>, path: &Path) -> Result<(), ModelError> {
    match factor {
        Some(factor) if factor != 1.0 => {
            Err(unsupported(path, format!("partial_rotary_factor {factor}"), "whole heads are rotated"))
        }
        _ => Ok(()),
    }
}

/// Gives each layer the window that the family's class in transformers gives it.
fn set_windows(raw: &RawWindow, family: &Family, config: &mut ModelConfig, path: &Path) -> Result<(), ModelError> {
    let (window, first) = match family.window {
        Window::Never => return Ok(()),
        Window::EveryLayer(default) => (raw.sliding_window.unwrap_or(Some(default)), 0),
        Window::LastLayers(default) => {
            let window = raw.sliding_window.unwrap_or(Some(4096)).filter(|_| raw.use_sliding_window == Some(true));
            (window, raw.max_window_layers.unwrap_or(default))
        }
    };
    // Mistral's class knows no types of layers.
    let types = raw.layer_types.as_ref().filter(|_| matches!(family.window, Window::LastLayers(_)));
    let Some(types) = types else { return config.set_windows(window, |layer| layer >= first, path) };
    if let Some(other) = types.iter().find(|layer| !LAYER_TYPES.contains(&layer.as_str())) {
        let supported = "the layer types are \"full_attention\" and \"sliding_attention\"";
        return Err(unsupported(path, format!("layer type {other:?}"), supported));
    }
    if types.len() != config.n_layers as usize {
        return Err(invalid(path, "layer_types", types.len(), "must have a type for each layer"));
    }
    config.set_windows(window, |layer| types[layer as usize] == LAYER_TYPES[1], path)
}

impl RawRope {
    /// Returns the scaling. Original contexts fall back from `outer`, the key next to this object, to the context of the model.
    fn scaling(&self, outer: Option<u32>, max_context: u32, path: &Path) -> Result<Option<RopeScaling>, ModelError> {
        refuse_partial_rotary(self.partial_rotary_factor, path)?;
        let original_context = outer.or(self.original_max_position_embeddings).unwrap_or(max_context);
        if original_context == 0 {
            return Err(invalid(path, "original_max_position_embeddings", 0, "must be at least 1"));
        }
        match self.rope_type.as_deref().or(self.kind.as_deref()) {
            None | Some("default") => Ok(None),
            Some("linear") => Ok(Some(RopeScaling::Linear { factor: positive("factor", self.factor, path)? })),
            Some("llama3") => self.llama3(original_context, path).map(Some),
            Some("yarn") => self.yarn(original_context, max_context, path).map(Some),
            Some(other) => {
                let supported = "the rope types are \"default\", \"linear\", \"llama3\" and \"yarn\"";
                Err(unsupported(path, format!("rope type {other:?}"), supported))
            }
        }
    }

    fn llama3(&self, original_context: u32, path: &Path) -> Result<RopeScaling, ModelError> {
        let low_freq_factor = positive("low_freq_factor", self.low_freq_factor, path)?;
        let high_freq_factor = positive("high_freq_factor", self.high_freq_factor, path)?;
        if high_freq_factor <= low_freq_factor {
            return Err(invalid(path, "high_freq_factor", high_freq_factor, "must exceed low_freq_factor"));
        }
        let factor = positive("factor", self.factor, path)?;
        Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
    }

    /// Follows `_compute_yarn_parameters` of transformers in its defaults.
    fn yarn(&self, original_context: u32, max_context: u32, path: &Path) -> Result<RopeScaling, ModelError> {
        let default_factor = f64::from(max_context) / f64::from(original_context);
        let factor = positive("factor", Some(self.factor.unwrap_or(default_factor)), path)?;
        let attention_factor = match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
                let of = |mscale| RopeScaling::yarn_attention_factor(factor, mscale);
                of(mscale) / of(all_dim)
            }
            _ => RopeScaling::yarn_attention_factor(factor, 1.0),
        };
        let beta = |value: Option<f64>, default| value.filter(|value| *value != 0.0).unwrap_or(default);
        Ok(RopeScaling::Yarn {
            factor,
            attention_factor: positive("attention_factor", Some(attention_factor), path)?,
            beta_fast: positive("beta_fast", Some(beta(self.beta_fast, 32.0)), path)?,
            beta_slow: positive("beta_slow", Some(beta(self.beta_slow, 1.0)), path)?,
            original_context,
            truncate: self.truncate.unwrap_or(true),
        })
    }
}

fn positive(field: &'static str, value: Option<f64>, path: &Path) -> Result<f64, ModelError> {
    match value {
        Some(value) if value > 0.0 && value.is_finite() => Ok(value),
        None => Err(invalid(path, field, "absent", "must be there for this rope type")),
        Some(other) => Err(invalid(path, field, other, "must be above 0")),
    }
}

/// Reads one JSON file.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ModelError> {
    from_json(&read(path)?, path)
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })
}

fn from_json<T: for<'de> Deserialize<'de>>(text: &[u8], path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(text).map_err(|source| {
        let json = ModelError::Json { path: path.to_owned(), source };
        Mistake::of_file(path).map_or(json, ModelError::from)
    })
}

#[cfg(test)]
#[path = "hugging_face_tests.rs"]
mod tests;
