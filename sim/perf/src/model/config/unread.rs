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
const ELSEWHERE: [&str; 14] = [
    "moe_layer_freq",
    "rope_scaling",
    "rope_parameters",
    "attn_type_list",
    "multi_query",
    "new_decoder_architecture",
    "use_mixed_mlp_moe",
    "is_decoder",
    "is_encoder_decoder",
    "indexer_types",
    "linear_attn_config",
    "conv_L_cache",
    "architectures",
    "vision_config",
];

/// Fields with a telling name that change neither memory nor time, by more than a thousandth.
const HARMLESS: [&str; 103] = [
    // Biases, norms, dropout and scales.
    "attention_bias",
    "attention_out_bias",
    "attn_qkv_bias",
    "use_attention_bias",
    "add_bias_linear",
    "attention_dropout",
    "attention_dropout_prob",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "attn_dropout",
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
    "use_qk_norm",
    "qk_layernorm",
    "query_pre_attn_scalar",
    "lm_head_multiplier",
    "key_multiplier",
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
    "time_step_limit",
    "time_step_rank",
    "num_logits_to_keep",
    "swiglu_limit",
    "linear_bias",
    "rope_local_base_freq",
    "rope_ratio",
    "local_rope_theta",
    "global_rope_theta",
    "swa_rope_theta",
    "partial_rotary_factor",
    "no_rope_layers",
    "no_rope_layer_interval",
    "use_rotary_embeddings",
    // How a router scores and balances; it chooses as many experts.
    "n_group",
    "topk_group",
    "topk_method",
    "moe_router_activation_func",
    "moe_router_enable_expert_bias",
    "moe_router_use_sigmoid",
    "use_routing_bias",
    "router_bias",
    "router_aux_loss_coef",
    "router_aux_loss_factor",
    "router_jitter_noise",
    "router_z_loss_coef",
    "output_router_logits",
    "norm_topk_prob",
    "norm_expert_weight",
    "scoring_func",
    "routed_scaling_factor",
    "moe_router_scaling_factor",
    "ep_size",
    "moe_use_aux_free",
    "moe_gate",
    "moe_drop_tokens",
    "moe_random_routing_dropped_token",
    "group_limited_greedy",
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
    "attn_config",
    "cache_implementation",
    "use_cache",
    "head_dtype",
    "image_token_index",
    "video_token_index",
    "audio_token_index",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index_list",
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "layerwise_loss",
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

/// Returns the names of such fields, with commas between, and of a quantisation of the KV that is not known; empty for none.
pub(super) fn names(fields: &Map<String, Value>, unread_kv: Option<&'static str>) -> String {
    let is_telling = |name: &str| {
        let has = |part: &&str| name.contains(*part);
        let is_known = types::is_read(name) || published::says_what_differs(name) || ELSEWHERE.contains(&name);
        !is_known && !HARMLESS.contains(&name) && TELLING.iter().any(has) && !NOT_ATTENTION.iter().any(has)
    };
    let unread = fields.iter().filter(|(name, value)| is_telling(name) && says_something(value));
    let mut names: Vec<&str> = unread.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.extend(unread_kv);
    names.join(", ")
}

/// Returns `true` unless a value stands for nothing.
fn says_something(value: &Value) -> bool {
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
        names(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap(), None)
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
        assert_eq!(names(&Map::new(), Some("kv_cache_scheme")), "kv_cache_scheme");
    }

    #[test]
    fn no_field_is_in_two_lists() {
        for field in HARMLESS.iter().chain(&ELSEWHERE) {
            let lists = [HARMLESS.contains(field), ELSEWHERE.contains(field), types::is_read(field)];
            assert_eq!(lists.iter().filter(|is_in| **is_in).count(), 1, "{field}");
        }
    }
}
