//! Fields of a configuration that are numbers, and the lists that some families publish in their place.

use serde_json::{Map, Value};

use super::ModelError;

/// Fields that are numbers, under the first of their names.
const NUMBERS: [&str; 48] = [
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

/// Replaces a list with a number for each layer by the number, where all are equal.
///
/// # Errors
///
/// [`ModelError::Varies`] with a field whose numbers differ.
pub(super) fn settle_lists(name: &str, fields: &mut Map<String, Value>) -> Result<(), ModelError> {
    for field in NUMBERS {
        let Some(Value::Array(listed)) = fields.get(field) else { continue };
        let first = listed.first().cloned().unwrap_or(Value::Null);
        if let Some(other) = listed.iter().find(|value| **value != first) {
            let (first, other) = (first.to_string(), other.to_string());
            return Err(ModelError::Varies { name: name.into(), field, first, other });
        }
        if first.is_u64() {
            fields.insert(field.into(), first);
        }
    }
    Ok(())
}
