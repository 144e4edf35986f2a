//! The configuration of a model from the metadata of its GGUF file.
//!
//! Keys and defaults are those of llama.cpp.

use std::path::Path;

use gguf_rs_lib::prelude::Metadata;
use gguf_rs_lib::tensor::TensorInfo;
use trunkline_text::ModelFacts;

use crate::config::families::{Family, Presence, family};
use crate::config::{LayerParts, ModelConfig, RopeScaling, unsupported};
use crate::error::ModelError;
use crate::files::gguf::metadata::Facts;

/// Architectures of GGUF files, which are the `model_type` of their families; Mistral is "llama" there.
const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Returns the configuration and the family of the model.
///
/// # Errors
///
/// Metadata is missing or wrong, or the model is of an unsupported kind.
pub(super) fn config(
    path: &Path,
    metadata: &Metadata,
    tensors: &[&TensorInfo],
    words: &ModelFacts,
) -> Result<(ModelConfig, &'static Family), ModelError> {
    let facts = Facts { path, metadata, architecture: "" };
    let architecture = facts.text("general.architecture")?.unwrap_or("(absent)");
    let supported = ARCHITECTURES.iter().find(|known| **known == architecture).and_then(|known| family(known));
    let Some(family) = supported else {
        let supported = "this worker runs the architectures llama (which includes Mistral), qwen2 and qwen3";
        return Err(unsupported(path, format!("architecture {architecture:?}"), supported));
    };
    let facts = Facts { architecture, ..facts };
    let hidden_size = facts.required(".embedding_length")?;
    let n_heads = facts.required(".attention.head_count")?;
    let named = |name: &str| tensors.iter().find(|tensor| tensor.name() == name);
    let has = |name: &str| named(name).is_some();
    let vocabulary = named("token_embd.weight").and_then(|tensor| tensor.shape().dim(1));
    let Some(vocab_size) = vocabulary.and_then(|size| u32::try_from(size).ok()) else {
        let present = tensors.iter().map(|tensor| tensor.name());
        return Err(ModelError::missing_tensor("token_embd.weight", path, present, "the file holds no whole model"));
    };
    let mut config = ModelConfig {
        vocab_size,
        hidden_size,
        intermediate_size: facts.required(".feed_forward_length")?,
        n_layers: facts.required(".block_count")?,
        n_heads,
        n_kv_heads: facts.count(".attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim: facts.count(".attention.key_length")?.unwrap_or(hidden_size / n_heads.max(1)),
        max_context: match (facts.required(".context_length")?, &words.context) {
            (_, Some(context)) => context.tokens,
            (written, None) => written,
        },
        rms_norm_eps: match facts.real(".attention.layer_norm_rms_epsilon")? {
            Some(eps) => eps as f32,
            None => return Err(facts.wrong(format!("{architecture}.attention.layer_norm_rms_epsilon is missing"))),
        },
        rope_theta: facts.real(".rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: rope_scaling(&facts)?,
        tied_head: !has("output.weight"),
        // As in llama.cpp, a model has the biases that its file has.
        parts: LayerParts {
            qkv_bias: family.qkv_bias == Presence::Always || has("blk.0.attn_q.bias"),
            output_bias: has("blk.0.attn_output.bias"),
            mlp_bias: has("blk.0.ffn_gate.bias"),
            head_norm: family.head_norm,
        },
        windows: Vec::new(),
        eos_token_ids: Vec::new(),
    };
    refuse_other_arithmetic(&facts, &config)?;
    config.check(path)?;
    set_windows(&facts, &mut config)?;
    Ok((config, family))
}

/// Refuses features that would change the arithmetic.
fn refuse_other_arithmetic(facts: &Facts<'_>, config: &ModelConfig) -> Result<(), ModelError> {
    let refuse = |found: String, supported| Err(unsupported(facts.path, found, supported));
    if facts.count(".expert_count")?.unwrap_or(0) > 0 {
        return refuse("a mixture of experts".to_owned(), "every layer has one feed-forward part");
    }
    if let Some(width) = facts.count(".rope.dimension_count")?.filter(|width| *width != config.head_dim) {
        return refuse(
            format!("rotation of {width} of {} elements of a head", config.head_dim),
            "whole heads are rotated",
        );
    }
    if let Some(width) = facts.count(".attention.value_length")?.filter(|width| *width != config.head_dim) {
        return refuse(format!("value heads of width {width}"), "value heads are as wide as key heads");
    }
    Ok(())
}

/// Reads the windows of attention. With a pattern of `n` the last of each `n` layers reaches over the whole context, as in llama.cpp; without
/// one, every layer has the window.
fn set_windows(facts: &Facts<'_>, config: &mut ModelConfig) -> Result<(), ModelError> {
    let window = facts.count(".attention.sliding_window")?.filter(|window| *window > 0);
    let pattern = facts.count(".attention.sliding_window_pattern")?.unwrap_or(0);
    config.set_windows(window, |layer| pattern == 0 || layer % pattern < pattern - 1, facts.path)
}

/// Returns a number that is neither NaN nor infinite, or the default.
fn finite(facts: &Facts<'_>, key: &str, default: f64) -> Result<f64, ModelError> {
    match facts.real(key)?.unwrap_or(default) {
        value if value.is_finite() => Ok(value),
        value => Err(facts.wrong(format!("{key} is {value}"))),
    }
}

fn rope_scaling(facts: &Facts<'_>) -> Result<Option<RopeScaling>, ModelError> {
    // llama.cpp takes a factor without a type as linear, and a factor of 0 as none.
    let factor = facts.real(".rope.scaling.factor")?.filter(|factor| *factor != 0.0);
    if let Some(factor) = factor.filter(|factor| !(*factor > 0.0 && factor.is_finite())) {
        return Err(facts.wrong(format!("rope.scaling.factor is {factor}")));
    }
    match (facts.text(".rope.scaling.type")?.unwrap_or("linear"), factor) {
        ("none", _) | ("linear", None) => Ok(None),
        ("linear", Some(factor)) => Ok(Some(RopeScaling::Linear { factor })),
        ("yarn", factor) => {
            let factor = factor.unwrap_or(1.0);
            let multiplier = finite(facts, ".rope.scaling.attn_factor", 1.0)?;
            Ok(Some(RopeScaling::Yarn {
                factor,
                attention_factor: multiplier * RopeScaling::yarn_attention_factor(factor, 1.0),
                beta_fast: finite(facts, ".rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: finite(facts, ".rope.scaling.yarn_beta_slow", 1.0)?,
                original_context: match facts.count(".rope.scaling.original_context_length")? {
                    Some(context) if context > 0 => context,
                    _ => facts.required(".context_length")?,
                },
                truncate: true,
            }))
        }
        (other, _) => {
            let supported = "the rope types are \"none\", \"linear\" and \"yarn\"";
            Err(unsupported(facts.path, format!("rope type {other:?}"), supported))
        }
    }
}
