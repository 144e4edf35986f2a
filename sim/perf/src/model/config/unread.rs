//! Fields of a configuration that nothing here reads, though they may change attention, routing or quantisation.
//!
//! Families appear faster than a planner learns them. So what is read is a list ([`types::is_read`], [`published::says_what_differs`] and [`ELSEWHERE`]), what changes neither memory nor
//! time is another ([`HARMLESS`]), and any other field with a telling name is named in the model's label.

use serde_json::{Map, Value};

use super::{published, types};

/// Parts of the names of fields that may change what is planned.
const TELLING: [&str; 41] = [
    "gate",
    "hash",
    "lora",
    "hyper",
    "residual",
    "attention",
    "attn",
    "sparse",
    "sparsity",
    "window",
    "swa",
    "chunk",
    "index",
    "pattern",
    "compress",
    "route",
    "share",
    "skip",
    "kv_",
    "_kv",
    "global",
    "local",
    "block",
    "freq",
    "ratio",
    "quant",
    "expert",
    "moe",
    "topk",
    "top_k",
    "mamba",
    "ssm",
    "linear",
    "conv",
    "state",
    "head",
    "layer_types",
    "layers_",
    "recurrent",
    "loop",
    "memory",
];

/// Fields that are read, but not as numbers, flags or texts of the language model.
const ELSEWHERE: [&str; 6] =
    ["moe_layer_freq", "attn_type_list", "use_mixed_mlp_moe", "indexer_types", "linear_attn_config", "conv_L_cache"];

/// Fields with a telling name that change neither memory nor time, by more than a thousandth.
const HARMLESS: [&str; 70] = [
    // Biases, norms, dropout and scales.
    "attention_bias",
    "attention_out_bias",
    "attn_qkv_bias",
    "use_attention_bias",
    "add_bias_linear",
    "attn_pdrop",
    "attention_multiplier",
    "attention_scale",
    "attention_value_scale",
    "attn_scale",
    "attn_temperature_tuning",
    "attn_logit_softcapping",
    "attn_logit_softcap",
    "attn_softmax_bf16",
    "attention_softmax_in_fp32",
    "attention_layernorm",
    "attention_qk_norm",
    "query_pre_attn_scalar",
    "lm_head_multiplier",
    "ssm_multipliers",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
    "attention_in_multiplier",
    "attention_out_multiplier",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "use_conv_bias",
    "use_mamba_kernels",
    "mamba_rms_norm",
    "mamba_norm_before_gate",
    "mamba_use_mlp",
    "mamba_hidden_act",
    "mamba_chunk_size",
    "mamba_inner_layernorms",
    "chunk_size",
    "linear_bias",
    "rope_local_base_freq",
    "rope_ratio",
    "local_rope_theta",
    "global_rope_theta",
    "swa_rope_theta",
    // How a router scores and balances; it chooses as many experts.
    "topk_group",
    "topk_method",
    "moe_router_activation_func",
    "moe_router_enable_expert_bias",
    "moe_router_use_sigmoid",
    "router_bias",
    "router_jitter_noise",
    "output_router_logits",
    "norm_topk_prob",
    "norm_expert_weight",
    "routed_scaling_factor",
    "moe_router_scaling_factor",
    "moe_use_aux_free",
    "moe_gate",
    "moe_drop_tokens",
    "moe_random_routing_dropped_token",
    "topk_scaling_factor",
    "moe_use_hard_router",
    "shared_moe_mode",
    "use_expert_bias",
    "moe_expert_capacity",
    // What serving sets itself, or does not use.
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attention_type",
    "head_dtype",
    "generation_config",
    "boi_token_index",
    "eoi_token_index",
];

/// Parts of the names of fields of other modalities, of tokenizers and of training.
const NOT_ATTENTION: [&str; 16] = [
    "vision",
    "image",
    "video",
    "audio",
    "speech",
    "mm_",
    "token_id",
    "tokenizer",
    "projector",
    "dropout",
    "loss",
    "initializer",
    "pretraining",
    "auto_map",
    "language_model_only",
    "talker",
];

/// Returns the names of such fields, with commas between, and of those of the quantisation that are not read; empty for none.
pub(super) fn names(fields: &Map<String, Value>, of_quantisation: &[String]) -> String {
    let is_listed = |name: &str| ELSEWHERE.contains(&name) || HARMLESS.contains(&name);
    let unread = fields.iter().filter(|(name, value)| is_telling(name) && !is_listed(name) && says_something(value));
    let mut names: Vec<&str> = unread.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.extend(of_quantisation.iter().map(String::as_str));
    names.join(", ")
}

/// Returns `true` for a field that would be named unless a list here has it.
fn is_telling(name: &str) -> bool {
    let has = |part: &&str| name.contains(*part);
    let is_read = types::is_read(name) || published::says_what_differs(name);
    !is_read && TELLING.iter().any(has) && !NOT_ATTENTION.iter().any(has)
}

/// Returns `true` unless a value stands for nothing.
pub(super) fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !["", "none", "auto", "default"].contains(&text.to_ascii_lowercase().as_str()),
        Value::Array(list) => list.iter().any(says_something),
        Value::Object(fields) => fields.values().any(says_something),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> String {
        names(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap(), &[])
    }

    #[test]
    fn what_may_change_the_plan_is_named() {
        let config = r#"{"hidden_size": 1, "sparse_attention_config": {"use_sparse_attention": true}, "swa_head_dim": 64, "kv_compress": 4,
            "attention_bias": true, "router_aux_loss_coef": 0.1, "rope_scaling": {"type": "yarn"}, "initializer_range": 0.02}"#;
        assert_eq!(of(config), "kv_compress, sparse_attention_config, swa_head_dim");
    }

    #[test]
    fn what_says_nothing_is_not() {
        let config = r#"{"sparse_a": null, "sparse_b": false, "sparse_c": {}, "sparse_d": {"on": false, "n": 0}, "sparse_e": [], "sparse_f": 0,
            "kv_quant": "none", "vision_chunk": 5, "image_window": 3}"#;
        assert_eq!(of(config), "");
        assert_eq!(names(&Map::new(), &["kv_cache_scheme".into()]), "kv_cache_scheme");
    }

    #[test]
    fn no_field_is_in_two_lists() {
        for field in HARMLESS.iter().chain(&ELSEWHERE) {
            let lists = [HARMLESS.contains(field), ELSEWHERE.contains(field), types::is_read(field)];
            assert_eq!(lists.iter().filter(|is_in| **is_in).count(), 1, "{field}");
        }
    }

    #[test]
    fn every_field_of_a_list_would_be_named_without_it() {
        for field in HARMLESS.iter().chain(&ELSEWHERE) {
            assert!(is_telling(field), "{field}");
            let published = Map::from_iter([((*field).to_owned(), Value::from(7))]);
            assert!(published::fields(published).contains_key(*field), "{field} has another name, or is no field");
        }
        assert_eq!(of(r#"{"generation_config": {"top_p": 0.9}}"#), "");
    }
}
