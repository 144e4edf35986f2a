//! Types of the fields of a configuration, checked so that an error names the field, and lists that some families publish instead of a
//! number.

use serde_json::{Map, Value};

use super::ModelError;

/// Fields that are numbers, under the first of their names.
const NUMBERS: [&str; 51] = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_latent_size",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "expert_layer_period",
    "intermediate_size_mlp",
    "sliding_window",
    "sliding_window_pattern",
    "max_window_layers",
    "attention_chunk_size",
    "index_topk",
    "max_position_embeddings",
    "cla_share_factor",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "index_n_heads",
    "attn_layer_period",
    "attn_layer_offset",
    "full_attention_interval",
    "mamba_n_heads",
    "mamba_num_heads",
    "mamba_d_head",
    "mamba_head_dim",
    "mamba_d_state",
    "mamba_n_groups",
    "n_groups",
    "mamba_d_conv",
    "conv_kernel",
    "linear_conv_kernel_dim",
    "mamba_expand",
    "expand",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
];

/// Sorts of values.
#[derive(Clone, Copy)]
enum Sort {
    Number,
    Flag,
    Text,
    Numbers,
    Texts,
}

/// Other fields, with the sorts of their values.
const OTHERS: [(&str, Sort); 16] = [
    ("attn_output_gate", Sort::Flag),
    ("tie_word_embeddings", Sort::Flag),
    ("use_sliding_window", Sort::Flag),
    ("use_cla", Sort::Flag),
    ("gated", Sort::Flag),
    ("torch_dtype", Sort::Text),
    ("model_type", Sort::Text),
    ("hybrid_override_pattern", Sort::Text),
    ("mamba_ssm_dtype", Sort::Text),
    ("mamba_ssm_cache_dtype", Sort::Text),
    ("mlp_only_layers", Sort::Numbers),
    ("attn_layer_indices", Sort::Numbers),
    ("cross_attention_layers", Sort::Numbers),
    ("layer_types", Sort::Texts),
    ("mlp_layer_types", Sort::Texts),
    ("mamba_dt_rank", Sort::Number),
];

/// Returns `true` for a field that is read here.
pub(super) fn is_read(field: &str) -> bool {
    NUMBERS.contains(&field) || OTHERS.iter().any(|(name, _)| *name == field)
}

/// Longest value that an error repeats, characters.
const SHOWN: usize = 40;

impl Sort {
    fn holds(self, value: &Value) -> bool {
        let all = |is: fn(&Value) -> bool| value.as_array().is_some_and(|listed| listed.iter().all(is));
        match self {
            Self::Number => value.is_u64(),
            Self::Flag => value.is_boolean(),
            Self::Text => value.is_string(),
            Self::Numbers => all(Value::is_u64),
            Self::Texts => all(Value::is_string),
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Number => "a whole number",
            Self::Flag => "true or false",
            Self::Text => "text",
            Self::Numbers => "a list of whole numbers",
            Self::Texts => "a list of text",
        }
    }
}

/// Replaces a list with a number for each layer by the number, where all are equal, and checks the types of all fields.
///
/// # Errors
///
/// [`ModelError::Varies`] with a field whose numbers differ, [`ModelError::Mistyped`] with a field of another type.
pub(super) fn settle(name: &str, fields: &mut Map<String, Value>) -> Result<(), ModelError> {
    for field in NUMBERS {
        if let Some(number) = settled(name, field, fields.get(field))? {
            fields.insert(field.into(), number);
        }
    }
    for (field, sort) in NUMBERS.into_iter().map(|field| (field, Sort::Number)).chain(OTHERS) {
        if let Some(value) = fields.get(field).filter(|value| !sort.holds(value)) {
            let (name, mut value) = (name.into(), value.to_string());
            if let Some((end, _)) = value.char_indices().nth(SHOWN) {
                value.replace_range(end.., "...");
            }
            return Err(ModelError::Mistyped { name, field, value, expected: sort.describe() });
        }
    }
    Ok(())
}

/// Returns the number that a list repeats; `None` for no list of numbers.
fn settled(name: &str, field: &'static str, value: Option<&Value>) -> Result<Option<Value>, ModelError> {
    let Some([first, others @ ..]) = value.and_then(Value::as_array).map(Vec::as_slice) else { return Ok(None) };
    if !first.is_u64() {
        return Ok(None);
    }
    match others.iter().find(|other| *other != first) {
        None => Ok(Some(first.clone())),
        Some(other) => {
            let (first, other) = (first.to_string(), other.to_string());
            Err(ModelError::Varies { name: name.into(), field, first, other })
        }
    }
}
