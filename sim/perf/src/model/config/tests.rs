//! Configurations of families, and configurations of none.

use super::*;
use crate::model;
use crate::model::{Arithmetic, Bits};

#[test]
fn a_dense_config_gives_the_preset() {
    let text = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
        "tie_word_embeddings": false, "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}"#;
    assert_eq!(parse_config("llama-3.1-8b", text).unwrap(), *model::by_name("llama-3.1-8b").unwrap());
}

#[test]
fn experts_go_by_several_names() {
    let mixtral = r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
        "max_position_embeddings": 32768}"#;
    assert_eq!(parse_config("mixtral-8x7b", mixtral).unwrap(), *model::by_name("mixtral-8x7b").unwrap());
    let qwen = r#"{"head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "torch_dtype": "bfloat16", "vocab_size": 151936,
        "max_position_embeddings": 40960}"#;
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
    let weights = model.layer_elements() + 2 * model.head_elements();
    assert!((weights as f64 / 671e9 - 1.0).abs() < 2e-3, "{weights}");
    assert_eq!(model.weight_bytes(), weights + 2 * model.head_elements(), "ends are of 16 bits");
    let active = model.active_elements() + model.head_elements();
    assert!((active as f64 / 37e9 - 1.0).abs() < 0.03, "{active}");
    assert_eq!(model.kv_bytes_per_token(), 61 * 576 * 2);
}

#[test]
fn a_sparse_index_keeps_keys_beside_a_latent_cache() {
    let latent = r#", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128"#;
    let of = |more: &str| small(&format!("{latent}{more}")).unwrap();
    assert_eq!(of("").kv_bytes_per_token(), 26 * 576 * 2);
    let indexed = of(r#", "index_topk": 2048, "index_head_dim": 128"#);
    assert_eq!(indexed.kv_bytes_per_token(), 26 * (576 * 2 + 128 + 4));
    assert_eq!(indexed.label(), "m (sparse attention planned as full attention: step times are upper bounds)");
    let chunked = small(r#", "attention_chunk_size": 8192"#).unwrap().label();
    assert!(chunked.ends_with("step times are upper bounds, and so is the KV)"), "{chunked}");
}

#[test]
fn experts_behind_a_latent_width_have_the_matrices_there_and_back() {
    let experts =
        r#", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 100, "n_shared_experts": 1"#;
    let of = |more: &str| small(&format!("{experts}{more}")).unwrap();
    let (wide, latent) = (of(""), of(r#", "moe_latent_size": 16"#));
    let routed = |input: u64, experts: u64| 26 * 3 * input * experts * 100;
    assert_eq!(wide.layer_elements() - routed(64, 8), latent.layer_elements() - routed(16, 8) - 26 * 2 * 64 * 16);
    assert_eq!(wide.active_elements() - routed(64, 2), latent.active_elements() - routed(16, 2) - 26 * 2 * 64 * 16);
    assert_eq!(
        latent.layer_elements() - latent.common_elements(),
        routed(16, 8),
        "the two matrices are of every token"
    );
}

#[test]
fn experts_and_latent_caches_under_unknown_names_are_refused() {
    let refused = |more: &str| small(more).unwrap_err().to_string();
    for (more, field, lacks) in [
        (r#", "moe_intermediate_size": 128"#, "moe_intermediate_size", "num_experts"),
        (r#", "count_of_experts": 64"#, "count_of_experts", "num_experts"),
        (r#", "num_experts_per_tok": 4"#, "num_experts_per_tok", "num_experts"),
        (r#", "my_kv_lora_rank": 512"#, "my_kv_lora_rank", "kv_lora_rank"),
    ] {
        let expected =
            format!("m: has {field}, but not {lacks}, or not under a name known here; add {lacks} to the file");
        assert_eq!(refused(more), expected);
    }
    // A dense model of a family with experts says so.
    let dense = r#", "n_routed_experts": null, "moe_intermediate_size": 128, "num_experts_per_tok": 4"#;
    assert_eq!(small(dense).unwrap().experts, None);
    let other = r#", "num_experts": null, "num_local_experts": 8, "num_experts_per_tok": 2"#;
    assert_eq!(small(other).unwrap().experts.unwrap().count, 8);
    let pangu = r#", "num_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "attention_kv_lora_dim": 16,
        "attention_q_lora_dim": 24, "attention_qk_dim": 12, "attention_qk_rope_dim": 4, "attention_v_dim": 8"#;
    let pangu = small(pangu).unwrap();
    let latent = Latent { query_rank: 24, kv_rank: 16, rope_dim: 4, nope_dim: 12, value_dim: 8, index: None };
    assert_eq!((pangu.latent, pangu.experts.unwrap().count), (Some(latent), 8));
}

/// A model of 26 layers and 32,768 tokens of context, with further fields.
fn small(more: &str) -> Result<Model, ModelError> {
    let text = format!(
        r#"{{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 26, "vocab_size": 9,
        "max_position_embeddings": 32768{more}}}"#
    );
    parse_config("m", &text)
}

#[test]
fn a_model_is_named_after_its_file_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    let own_name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    let text = include_str!("published/gemma-3-4b.json");
    for (file, name) in
        [("qwen/config.json", "qwen"), ("qwen/gemma-3-4b.json", "gemma-3-4b"), ("qwen/../config.json", &own_name)]
    {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        assert_eq!(from_config(&path).unwrap().name, name);
    }
}

#[test]
fn quantisation_is_read_beside_a_config_json() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("published/starcoder2-15b.json");
    let quantisation =
        r#"{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}}"#;
    std::fs::write(folder.path().join("hf_quant_config.json"), quantisation).unwrap();
    let plain = parse_config("m", text).unwrap();
    let precision_in = |file: &str| {
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        from_config(&path).unwrap().precision
    };
    assert_eq!(precision_in("starcoder.json"), plain.precision, "of another model, perhaps");
    let quantised = precision_in("config.json");
    // The model has no experts to quantise.
    let experts = Bits::each(16);
    assert_eq!(quantised, Precision { experts, ..Precision::quantised(Bits::each(8), Arithmetic::Float8) });
}

#[test]
fn states_have_the_type_that_the_configuration_says() {
    let published = include_str!("published/qwen3-next-80b.json");
    let typed = |more: &str| {
        let config = published.replacen('{', &format!("{{{more}"), 1);
        let hybrid = parse_config("m", &config).unwrap().hybrid.unwrap();
        (hybrid.state_dtype_bytes, hybrid.state_bytes() - hybrid.convolution_bytes)
    };
    let elements = 32 * 128 * 128;
    assert_eq!(typed(""), (None, 2 * elements));
    assert_eq!(typed(r#""mamba_ssm_dtype": "float32","#), (Some(4), 4 * elements));
    assert_eq!(typed(r#""mamba_ssm_cache_dtype": "bfloat16","#), (Some(2), 2 * elements));
    assert_eq!(typed(r#""mamba_ssm_cache_dtype": "auto","#), (None, 2 * elements), "left to the engine");
}

/// Parameters of published models, and the bytes of their checkpoints and of the KV of a token, by their model cards and files.
#[test]
fn published_models_have_the_parameters_of_their_cards() {
    for (name, billions, gigabytes, kv_bytes) in [
        ("gpt-oss-20b", 20.9, 13.8, 24 * 2 * 8 * 64 * 2),
        ("gemma-3-4b", 3.88, 7.76, 34 * 2 * 4 * 256 * 2),
        ("llama-4-scout", 107.8, 215.5, 48 * 2 * 8 * 128 * 2),
        ("qwen3-next-80b", 79.5, 159.0, 12 * 2 * 2 * 256 * 2),
        ("nemotron-h-8b", 8.1, 16.2, 4 * 2 * 8 * 128 * 2),
        ("jamba-1.5-mini", 51.5, 103.0, 4 * 2 * 8 * 128 * 2),
        ("granite-4-h-small", 32.2, 64.4, 4 * 2 * 8 * 128 * 2),
        ("bamba-9b", 9.78, 19.6, 3 * 2 * 8 * 128 * 2),
        ("falcon-7b", 6.92, 13.8, 32 * 2 * 64 * 2),
        ("starcoder2-15b", 15.7, 31.3, 40 * 2 * 4 * 128 * 2),
        ("qwen2.5-7b-awq", 7.62, 5.6, 28 * 2 * 4 * 128 * 2),
        ("dbrx", 131.6, 263.1, 40 * 2 * 8 * 128 * 2),
        ("ernie-4.5-21b-a3b", 21.8, 43.6, 28 * 2 * 4 * 128 * 2),
        ("llama-3.2-11b-vision", 9.78, 19.55, 32 * 2 * 8 * 128 * 2),
        ("minicpm-2b", 2.72, 5.45, 40 * 2 * 36 * 64 * 2),
        ("minicpm3-4b", 4.07, 8.15, 62 * 288 * 2),
        ("hunyuan-large", 389.0, 778.0, 32 * 2 * 8 * 80 * 2),
        ("hunyuan-a13b", 80.4, 160.8, 32 * 2 * 8 * 128 * 2),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/model/config/published");
        let model = parse_config(name, &std::fs::read_to_string(path.join(format!("{name}.json"))).unwrap()).unwrap();
        let embedding = if model.tied { 0 } else { model.head_elements() };
        let weights = (model.layer_elements() + model.head_elements() + embedding) as f64 / 1e9;
        assert!((weights / billions - 1.0).abs() < 0.01, "{name}: {weights}");
        let bytes = (model.weight_bytes() - model.extras.tower_bytes) as f64 / 1e9;
        assert!((bytes / gigabytes - 1.0).abs() < 0.015, "{name}: {bytes}");
        assert_eq!(model.kv_bytes_per_token(), kv_bytes, "{name}");
    }
}

#[test]
fn windows_are_those_of_the_families() {
    let windows = |more: &str| small(more).unwrap().windows.map(|windows| (windows.tokens, windows.layers));
    let types = |sorts: [&str; 2]| format!("{:?}", sorts.repeat(13));
    for (more, expected) in [
        // Mistral 0.1 and 0.2, Phi-3, and Qwen2 without and with windows.
        (r#", "sliding_window": 4096"#.into(), Some((4096, 26))),
        (r#", "sliding_window": null"#.into(), None),
        (r#", "sliding_window": 2047"#.into(), Some((2047, 26))),
        (r#", "sliding_window": 4096, "use_sliding_window": false"#.into(), None),
        (r#", "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 20"#.into(), Some((4096, 6))),
        (r#", "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 26"#.into(), None),
        // Gemma 2 and 3, gpt-oss; a window as long as any context.
        (r#", "sliding_window": 4096, "model_type": "gemma2""#.into(), Some((4096, 13))),
        (r#", "sliding_window": 512, "sliding_window_pattern": 6"#.into(), Some((512, 22))),
        (
            format!(r#", "sliding_window": 128, "layer_types": {}"#, types(["sliding_attention", "full_attention"])),
            Some((128, 13)),
        ),
        (format!(r#", "sliding_window": 128, "layer_types": {}"#, types(["full_attention"; 2])), None),
        (r#", "sliding_window": 32768"#.into(), None),
    ] {
        assert_eq!(windows(&more), expected, "{more}");
    }
}

#[test]
fn attention_that_is_planned_as_full_is_named_and_unknown_layers_are_refused() {
    let parse = |more: &str| small(more).map(|model| model.extras.planned_as_full).map_err(|error| error.to_string());
    for (more, what) in [
        // Mistral, Llama 4, DeepSeek 3.2; chunks as long as any context.
        (r#", "sliding_window": 4096"#, None),
        (r#", "attention_chunk_size": 8192"#, Some("chunked attention")),
        (r#", "index_topk": 2048"#, Some("sparse attention")),
        (r#", "attention_chunk_size": 32768"#, None),
    ] {
        assert_eq!(parse(more), Ok(what), "{more}");
    }
    for (more, field) in [
        // LFM2, RecurrentGemma, Zamba2, and recurrent layers without sizes.
        (r#", "layer_types": ["conv", "full_attention"]"#, "layer_types"),
        (r#", "layers_block_type": ["mamba", "hybrid"]"#, "layer_types"),
        (r#", "layer_types": ["linear_attention", "full_attention"]"#, "layer_types"),
        (r#", "hybrid_override_pattern": "M-*?""#, "hybrid_override_pattern"),
        (r#", "block_types": ["recurrent", "attention"]"#, "layer_types"),
        (r#", "attn_layer_period": 8"#, "attn_layer_period"),
        // MiniMax, Kimi Linear, Phi-4 flash.
        (r#", "attn_type_list": [0, 0, 1]"#, "attn_type_list"),
        (r#", "linear_attn_config": {"kda_layers": [1]}"#, "linear_attn_config"),
        (r#", "mamba_d_state": 16, "mb_per_layer": 2"#, "mamba_d_state"),
        // LFM2 without a list of sorts, an index without a number of tokens, and networks with attention alone.
        (r#", "full_attn_idxs": [2, 5], "conv_L_cache": 3"#, "conv_L_cache"),
        (r#", "layer_types": ["indexed_attention"]"#, "layer_types"),
        (r#", "layer_types": ["full_attention", "mlp"]"#, "layer_types"),
    ] {
        let error = "names layers that are not attention, and no recurrent ones known here; there are: Mamba, Mamba 2, and gated delta nets";
        assert_eq!(parse(more), Err(format!("m: {field} {error}")));
    }
    let pure = parse(r#", "model_type": "mamba", "state_size": 16, "expand": 2, "conv_kernel": 4"#);
    assert_eq!(pure, Err("m: by mamba_d_state no layer has attention, so there is no KV to plan".into()));
    // Without the fields of attention, as published.
    let mamba = r#"{"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 9, "state_size": 16, "expand": 2}"#;
    let pure = parse_config("m", mamba).unwrap_err().to_string();
    assert_eq!(pure, "m: by mamba_d_state no layer has attention, so there is no KV to plan");
}

#[test]
fn layers_that_differ_are_refused_as_version_5_of_transformers_writes_them() {
    let latent = r#", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_topk": 2048"#;
    for (more, field) in [
        // Gemma 4, MiMo-V2, HY 4, MiniMax-M3, HRM, JetMoE.
        (r#", "per_layer_config": {"05": {"head_dim": 512}}"#.into(), "per_layer_config"),
        (r#", "global_head_dim": 512"#.into(), "global_head_dim"),
        (r#", "head_dim": 192, "v_head_dim": 128"#.into(), "v_head_dim"),
        (format!(r#"{latent}, "indexer_types": ["full", "shared"]"#), "indexer_types"),
        (r#", "index_head_dim": 128, "index_topk_blocks": 16"#.into(), "index_topk_blocks"),
        (r#", "H_cycles": 2"#.into(), "H_cycles"),
        (r#", "model_type": "jetmoe""#.into(), "model_type"),
    ] {
        let error = small(&more).unwrap_err().to_string();
        assert_eq!(error, format!("m: {field} says that layers differ in a way that is not modelled"));
    }
    assert_eq!(small(r#", "per_layer_config": {}, "head_dim": 16, "v_head_dim": 16"#).unwrap().attention_layers(), 26);
    // DeepSeek 3.2 and GLM-5 have an index of its own in each layer.
    let sorts = vec!["indexed_attention"; 26];
    let indexed = small(&format!(r#"{latent}, "layer_types": {sorts:?}, "indexer_types": ["full"]"#)).unwrap();
    assert_eq!(indexed.kv_bytes_per_token(), 26 * (576 * 2 + 132));
    assert_eq!(indexed.extras.planned_as_full, Some("sparse attention"));
}

#[test]
fn a_pattern_of_nemotron_h_may_be_a_list() {
    let sizes = r#""model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "intermediate_size": 96,
        "vocab_size": 9, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "conv_kernel": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "time_step_limit": [0.0, Infinity]"#;
    let text = |pattern: &str| format!("{{{sizes}, {pattern}}}");
    let pattern = parse_config("m", &text(r#""num_hidden_layers": 7, "hybrid_override_pattern": "MEM*-ME""#)).unwrap();
    let list = r#""layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "mlp", "linear_attention", "moe"]"#;
    assert_eq!(parse_config("m", &text(list)).unwrap(), pattern);
    let hybrid = pattern.hybrid.unwrap();
    assert_eq!((hybrid.attention_layers, hybrid.recurrent_layers, hybrid.feed_forward_layers), (1, 3, 3));
    assert_eq!((pattern.expert_layers(), pattern.kv_bytes_per_token()), (2, 2 * 4 * 16 * 2));
}

#[test]
fn what_says_too_little_or_too_much_is_refused() {
    let error = |more: &str| small(more).unwrap_err().to_string();
    assert_eq!(
        error(r#", "num_experts": 8"#),
        "m: num_experts_per_tok is missing; it says how many of the experts a token uses"
    );
    for field in ["hybrid_layer_pattern", "num_global_key_value_heads", "residual_moe", "num_kv_shared_layers"] {
        let expected = format!("m: {field} says that layers differ in a way that is not modelled");
        assert_eq!(error(&format!(r#", "{field}": [0, 1]"#)), expected);
        assert!(small(&format!(r#", "{field}": false"#)).is_ok());
    }
    let narrow = r#"{"hidden_size": 2, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9}"#;
    assert_eq!(
        parse_config("m", narrow).unwrap_err().to_string(),
        "m: hidden_size is 2; it must be at least num_attention_heads, without head_dim"
    );
    let huge = r#", "linear_num_value_heads": 4096, "linear_value_head_dim": 1048576, "linear_num_key_heads": 4096,
        "linear_key_head_dim": 4096, "full_attention_interval": 2"#;
    assert!(error(huge).starts_with("m: full_attention_interval names layers that are not attention"));
}

#[test]
fn deepseek_v4_is_refused_and_not_taken_for_a_model_of_short_windows() {
    let with = |more: &str| small(&format!(r#", "model_type": "deepseek_v4", "sliding_window": 128{more}"#));
    let refused = |field| Err(format!("m: {field} says that layers differ in a way that is not modelled"));
    for (more, field) in [
        (r#", "compress_ratios": [0, 0, 4, 128, 0], "expert_dtype": "fp4""#, "compress_ratios"),
        (r#", "expert_dtype": "fp4""#, "expert_dtype"),
        (r#", "num_attention_heads_per_layer": [48, 64]"#, "num_attention_heads_per_layer"),
    ] {
        assert_eq!(with(more).map_err(|error| error.to_string()), refused(field));
    }
}

#[test]
fn fields_of_families_are_understood() {
    // MiniMax M2 has attention in all layers; the first Qwen counts gate and input together; MiMo lists its dense layers.
    assert_eq!(small(r#", "attn_type_list": [1, 1]"#).unwrap().hybrid, None);
    assert_eq!(small(r#", "model_type": "qwen""#).unwrap().intermediate, 32);
    let experts = |more: &str| small(&format!(r#", "num_experts": 8{more}"#)).unwrap().experts.unwrap();
    assert_eq!(experts(r#", "top_k_experts": 2, "moe_layer_freq": [0, 1, 1, 0]"#).dense_layers, 2);
    assert_eq!(experts(r#", "moe_k": 2, "num_dense_layers": 3"#).dense_layers, 3);
    assert_eq!(experts(r#", "num_experts_per_tok": 2, "decoder_sparse_step": 2"#).dense_layers, 13);
    let sorts =
        |sorts: [&str; 3]| format!(r#", "num_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": {sorts:?}"#);
    let dense = small(&sorts(["dense", "sparse", "dense"])).unwrap().experts.unwrap();
    assert_eq!(dense.dense_layers, 2);
    let error = small(&sorts(["dense", "sparse", "odd"])).unwrap_err().to_string();
    assert_eq!(error, "m: mlp_layer_types says that layers differ in a way that is not modelled");
    // A null does not hide what is around the configuration of the text model.
    let nested = r#"{"quantization_config": {"quant_method": "fp8"}, "text_config": {"hidden_size": 64, "intermediate_size": 64,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9, "quantization_config": null}}"#;
    assert_ne!(parse_config("m", nested).unwrap().precision, Precision::BITS_16);
}

#[test]
fn layers_that_share_their_kv_read_it_each() {
    let text = include_str!("published/hunyuan-large.json");
    let shared = parse_config("hunyuan-large", text).unwrap();
    let apart = parse_config("hunyuan-large", &text.replace(r#""use_cla": true"#, r#""use_cla": false"#)).unwrap();
    assert_eq!((shared.kv_share, shared.kv_layers(), apart.kv_share, apart.kv_layers()), (2, 32, 1, 64));
    assert_eq!(2 * shared.kv_bytes_per_token(), apart.kv_bytes_per_token());
    assert_eq!(shared.kv_read_bytes_per_token(), apart.kv_read_bytes_per_token());
    // Every second layer has no matrices of keys and values.
    assert_eq!(apart.mixer_elements() - shared.mixer_elements(), 32 * 2 * 6400 * 8 * 80);
    let fields = |more: &str| small(&format!(r#", "use_cla": true, "cla_share_factor": {more}"#));
    assert_eq!(fields("0").unwrap_err().to_string(), "m: cla_share_factor is 0; it must be between 1 and 4096");
    let windows = fields(r#"2, "sliding_window": 64"#).unwrap();
    assert_eq!((windows.windows, windows.extras.planned_as_full), (None, Some("sliding windows")));
}

#[test]
fn layers_that_read_an_image_have_no_kv_of_the_text() {
    let text = include_str!("published/llama-3.2-11b-vision.json");
    let model = parse_config("m", text).unwrap();
    let llama = model::by_name("llama-3.1-8b").unwrap();
    assert_eq!((model.layers, model.cross_layers, model.kv_layers()), (40, 8, 32));
    assert_eq!(
        (model.kv_bytes_per_token(), model.kv_read_bytes_per_token(), model.pair_flops()),
        (llama.kv_bytes_per_token(), llama.kv_bytes_per_token(), llama.pair_flops())
    );
    assert_eq!(model.mixer_elements() * 32, llama.mixer_elements() * 40, "matrices are in all layers");
    assert_eq!(
        model.label(),
        "m (requests without images; the tower's weights count) (requests without images: layers of cross-attention have no KV)"
    );
    let error = |listed: &str| {
        let fields = format!(r#", "cross_attention_layers": {listed}"#);
        small(&fields).unwrap_err().to_string()
    };
    assert_eq!(error("[3, 26]"), "m: cross_attention_layers is 26; it must be the number of a layer, from 0");
    let all: Vec<u64> = (0..26).collect();
    let none = "m: by cross_attention_layers no layer has attention, so there is no KV to plan";
    assert_eq!(error(&format!("{all:?}")), none);
    let hybrid =
        r#", "layers_block_type": ["mamba"], "mamba_expand": 2, "mamba_d_state": 16, "cross_attention_layers": [1]"#;
    assert!(small(hybrid).unwrap_err().to_string().starts_with("m: cross_attention_layers says that layers differ"));
    assert_eq!(small(r#", "cross_attention_layers": []"#).unwrap().cross_layers, 0);
}

#[test]
fn experts_of_hunyuan_are_those_of_its_class() {
    let experts = |more: &str| small(&format!(r#", "moe_topk": 1, "num_shared_expert": 2{more}"#)).unwrap().experts;
    let shared = |more: &str| experts(more).map(|experts| (experts.count, experts.shared_width, experts.dense_layers));
    assert_eq!(shared(r#", "num_experts": 4, "use_mixed_mlp_moe": true"#), Some((4, 128, 0)));
    assert_eq!(shared(r#", "num_experts": 4, "use_mixed_mlp_moe": false"#), Some((4, 0, 0)));
    assert_eq!(shared(r#", "num_experts": 1, "use_mixed_mlp_moe": false"#), None, "dense");
    assert_eq!(shared(r#", "num_experts": 4, "moe_layer_num_skipped": 1"#), Some((4, 128, 1)));
}

#[test]
fn numbers_by_layer_are_taken_if_equal() {
    let experts = |topk: &str| small(&format!(r#", "num_experts": 8, "moe_topk": {topk}"#));
    assert_eq!(experts("[2, 2, 2]").unwrap().experts, experts("2").unwrap().experts);
    assert_eq!(
        experts("[2, 2, 4]").unwrap_err().to_string(),
        "m: num_experts_per_tok is a list of different numbers, such as 2 and 4; models whose layers differ in it are not modelled"
    );
}

#[test]
fn a_value_of_another_type_is_named() {
    let error = |more: &str| small(more).unwrap_err().to_string();
    for (more, what) in [
        (r#", "head_dim": "64""#, r#"head_dim is "64"; it must be a whole number"#),
        (r#", "sliding_window": -1"#, "sliding_window is -1; it must be a whole number"),
        (
            r#", "num_key_value_heads": [4, 2, "many"]"#,
            "num_key_value_heads is a list of different numbers, such as 4 and 2; ",
        ),
        (r#", "moe_num_experts": []"#, "num_experts is []; it must be a whole number"),
        (r#", "linear_key_head_dim": {"a": 1}"#, r#"linear_key_head_dim is {"a":1}; it must be a whole number"#),
        (r#", "tie_word_embeddings": "yes""#, r#"tie_word_embeddings is "yes"; it must be true or false"#),
        (r#", "dtype": 16"#, "torch_dtype is 16; it must be text"),
        (r#", "layer_types": [1, 2]"#, "layer_types is [1,2]; it must be a list of text"),
        (r#", "mlp_only_layers": 3"#, "mlp_only_layers is 3; it must be a list of whole numbers"),
        (r#", "quantization_config": 4"#, "quantization_config is not understood: invalid type: integer `4`"),
    ] {
        let found = error(more);
        assert!(found.starts_with(&format!("m: {what}")), "{found}");
    }
    let long = format!(r#", "layer_types": [{}]"#, ["9"; 99].join(", "));
    assert!(error(&long).contains(",9,9...; it must be"), "{}", error(&long));
    // Gemma 3n lists the equal widths of its networks; ERNIE 4.5 VL the widths of experts for text and for images.
    let widths = |listed: &str| small(&format!(r#", "num_experts": 4, "moe_k": 2, "moe_intermediate_size": {listed}"#));
    assert_eq!(widths("[512, 512]").unwrap().experts.unwrap().width, 512);
    assert!(
        widths("[1536, 512]").unwrap_err().to_string().starts_with("m: moe_intermediate_size is a list of different")
    );
    // The width of the step of a Mamba layer follows from the width of the model.
    let jamba = include_str!("published/jamba-1.5-mini.json");
    let derived = jamba.replace(r#""mamba_dt_rank": 256"#, r#""mamba_dt_rank": "auto""#);
    assert_eq!(parse_config("m", &derived).unwrap(), parse_config("m", jamba).unwrap());
}

#[test]
fn encoders_are_refused() {
    for (more, field) in [
        (r#", "model_type": "bert""#, "model_type 'bert'"),
        (r#", "model_type": "xlm-roberta", "is_decoder": false"#, "model_type 'xlm-roberta'"),
        (r#", "architectures": ["NomicForMaskedLM"]"#, "the class 'NomicForMaskedLM'"),
        (r#", "model_type": "t5", "is_encoder_decoder": true"#, "is_encoder_decoder"),
    ] {
        let expected = "this is not a decoder; only decoders, which answer prompts token by token, are planned";
        assert_eq!(small(more).unwrap_err().to_string(), format!("m: by {field} {expected}"));
    }
    assert!(small(r#", "model_type": "bert", "is_decoder": true"#).is_ok());
    assert!(small(r#", "is_encoder_decoder": false, "architectures": ["LlamaForCausalLM"]"#).is_ok());
}

#[test]
fn the_label_names_what_is_not_read() {
    let label = |more: &str| small(more).unwrap().label();
    let one = label(r#", "kv_compress": 4"#);
    assert_eq!(one, "m (planned without kv_compress, which is not read: no error is known)");
    let two = label(r#", "kv_compress": 4, "quantization_config": {"quant_method": "fp8", "layers_of_4_bits": [1]}"#);
    assert_eq!(two, "m (planned without kv_compress, layers_of_4_bits, which are not read: no error is known)");
}

#[test]
fn query_heads_are_shared_out_among_kv_heads() {
    for (kv_heads, fits) in [(1, true), (2, true), (4, true), (3, false), (8, false)] {
        let model = small(&format!(r#", "num_key_value_heads": {kv_heads}"#)).map_err(|error| error.to_string());
        let expected = format!("m: num_key_value_heads is {kv_heads}; it must be a divisor of num_attention_heads");
        assert_eq!(model.map(|_| ()), if fits { Ok(()) } else { Err(expected) });
    }
    let latent = r#", "num_key_value_heads": 3, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8"#;
    assert!(small(latent).is_ok(), "a latent cache has no KV heads");
}

#[test]
fn the_largest_numbers_can_be_counted_with() {
    let text = r#"{"hidden_size": 1048576, "intermediate_size": 1048576, "num_attention_heads": 4096, "head_dim": 4096,
        "num_hidden_layers": 4096, "num_experts": 4096, "num_experts_per_tok": 4096, "vocab_size": 1048576,
        "num_key_value_heads": 4096}"#;
    let model = parse_config("m", text).unwrap();
    assert!(model.weight_bytes() > 1 << 58 && model.kv_bytes_per_token() > 1 << 36 && model.pair_flops() > 1 << 36);
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
        error(&with(r#", "dtype": "int8""#)),
        "m: weights of type 'int8' are not known here; there are: bfloat16, float16, float32"
    );
}
