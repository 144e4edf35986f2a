//! Tests of reading `config.json` and `generation_config.json`.

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
    load(dir.path()).map(|(config, _)| config)
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
    let expected =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64 };
    assert_eq!(old.rope_scaling, Some(expected));
}

#[test]
fn eos_ids_of_both_files_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": 7,
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), json!({"eos_token_id": [9, 7, 3]}).to_string()).unwrap();
    let (config, facts) = load(dir.path()).unwrap();
    assert_eq!((config.eos_token_ids.as_slice(), facts.end_ids()), (&[3, 7, 9][..], vec![3, 7, 9]));
}

/// A configuration of `model_type` with nothing beyond what every family needs, after `change`.
fn of_family(model_type: &str, change: impl FnOnce(&mut Value)) -> Result<ModelConfig, ModelError> {
    parse(|config| {
        config["model_type"] = json!(model_type);
        config.as_object_mut().unwrap().remove("architectures");
        config["num_key_value_heads"] = json!(2);
        change(config);
    })
}

#[test]
fn absent_keys_take_the_defaults_of_the_family() {
    let config = of_family("mistral", |config| config["sliding_window"] = json!(null)).unwrap();
    assert_eq!((config.max_context, config.head_dim, config.parts), (131_072, 8, LayerParts::default()));
    let config = of_family("qwen2", |_| {}).unwrap();
    let parts = LayerParts { qkv_bias: true, ..LayerParts::default() };
    assert_eq!((config.max_context, config.head_dim, config.parts), (32_768, 8, parts));
    let config = of_family("qwen3", |_| {}).unwrap();
    let parts = LayerParts { head_norm: true, ..LayerParts::default() };
    assert_eq!((config.max_context, config.head_dim, config.parts), (32_768, 128, parts));
    // Key and value heads: absent is the family's number, null the number of query heads.
    let heads = |model_type, heads: Option<Value>| {
        let config = of_family(model_type, |config| {
            config["num_attention_heads"] = json!(32);
            config["sliding_window"] = json!(null);
            config.as_object_mut().unwrap().remove("num_key_value_heads");
            if let Some(heads) = heads {
                config["num_key_value_heads"] = heads;
            }
            config["head_dim"] = json!(8);
        });
        config.unwrap().n_kv_heads
    };
    assert_eq!(heads("mistral", None), 8);
    assert_eq!(heads("mistral", Some(json!(null))), 32);
    assert_eq!(heads("llama", None), 32);
}

#[test]
fn biases_follow_the_keys_that_the_family_knows() {
    let parts = |model_type| {
        let config = of_family(model_type, |config| {
            config["attention_bias"] = json!(true);
            config["mlp_bias"] = json!(true);
            config["sliding_window"] = json!(null);
        });
        let parts = config.unwrap().parts;
        (parts.qkv_bias, parts.output_bias, parts.mlp_bias)
    };
    assert_eq!(parts("llama"), (true, true, true));
    assert_eq!(parts("mistral"), (false, false, false));
    assert_eq!(parts("qwen2"), (true, false, false));
    assert_eq!(parts("qwen3"), (true, true, false));
}

#[test]
fn layers_have_the_windows_that_transformers_gives_them() {
    let windowed = |model_type, changes: Value| {
        of_family(model_type, |config| {
            config["max_position_embeddings"] = json!(100);
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        })
    };
    let windows = |model_type, changes| windowed(model_type, changes).unwrap().windows;
    let refused = |model_type, changes| windowed(model_type, changes).unwrap_err().to_string();
    // A window as long as the context is none.
    assert_eq!(windows("mistral", json!({"sliding_window": 100})), []);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), []);
    assert_eq!(windows("mistral", json!({})), []);
    assert_eq!(windows("mistral", json!({"sliding_window": 99})), [Some(99); 2]);
    assert_eq!(windows("mistral", json!({"max_position_embeddings": 8192})), [Some(4096); 2]);
    assert_eq!(windows("llama", json!({"sliding_window": 99})), []);
    assert_eq!(windows("qwen2", json!({"sliding_window": 99})), []);
    let last = |n: u32| json!({"sliding_window": 99, "use_sliding_window": true, "max_window_layers": n});
    assert_eq!(windows("qwen2", last(2)), []);
    assert_eq!(windows("qwen2", last(1)), [None, Some(99)]);
    assert_eq!(windows("qwen2", last(0)), [Some(99); 2]);
    let types = |kinds: &[&str]| json!({"sliding_window": 99, "use_sliding_window": true, "layer_types": kinds});
    assert_eq!(windows("qwen3", types(&["full_attention", "full_attention"])), []);
    assert_eq!(windows("qwen3", types(&["sliding_attention", "full_attention"])), [Some(99), None]);
    let message = refused("qwen3", types(&["full_attention", "linear_attention"]));
    assert!(message.contains("layer type \"linear_attention\""), "{message}");
    let message = refused("qwen3", types(&["full_attention"]));
    assert!(message.contains("layer_types is 1; it must have a type for each layer"), "{message}");
    let message = refused("mistral", json!({"sliding_window": 0}));
    assert!(message.contains("sliding_window is 0; it must be at least 1"), "{message}");
}

#[test]
fn yarn_takes_the_defaults_of_transformers() {
    let yarn = |changes: Value| {
        let config = parse(|config| {
            config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
            config["rope_scaling"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        });
        match config.unwrap().rope_scaling {
            Some(RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_context, truncate }) => {
                ([factor, attention_factor, beta_fast, beta_slow], original_context, truncate)
            }
            other => panic!("{other:?}"),
        }
    };
    let recommended = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(yarn(json!({})), ([4.0, recommended, 32.0, 1.0], 2048, true));
    let given = json!({
        "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0, "original_max_position_embeddings": 512,
        "truncate": false,
    });
    assert_eq!(yarn(given), ([4.0, 1.5, 16.0, 2.0], 512, false));
    let (numbers, _, _) = yarn(json!({"mscale": 2.0, "mscale_all_dim": 1.0}));
    assert_eq!(numbers[1], (0.2 * 4f64.ln() + 1.0) / recommended);
    let (numbers, _, _) = yarn(json!({"factor": null, "original_max_position_embeddings": 256}));
    assert_eq!(numbers[0], 8.0);
}

#[test]
fn what_the_worker_does_not_compute_is_refused_by_name() {
    let cases: [(&str, Value, &str); 13] = [
        ("model_type", json!("phi3"), "model_type \"phi3\""),
        ("model_type", json!("bert"), "(an encoder, which makes no text)"),
        ("model_type", json!("mixtral"), "(a mixture of experts)"),
        ("quantization_config", json!({"quant_method": "awq"}), "quantised with awq (quantization_config)"),
        ("quantization", json!({"group_size": 64, "bits": 4}), "quantised with MLX (quantization)"),
        ("model_type", json!(null), "(absent)"),
        ("architectures", json!(["LlamaForSequenceClassification"]), "LlamaForSequenceClassification"),
        ("hidden_act", json!("gelu"), "hidden_act \"gelu\""),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "rope type \"dynamic\""),
        ("rope_scaling", json!({"type": "longrope", "short_factor": [1.0]}), "rope type \"longrope\""),
        ("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary"),
        ("partial_rotary_factor", json!(0.25), "partial_rotary"),
    ];
    for (key, value, expected) in cases {
        let error = parse(|config| config[key] = value).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(expected) && !error.to_string().contains('\n'), "{error}");
    }
    parse(|config| config["hidden_act"] = json!("swish")).unwrap();
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
    for (rope, expected) in [
        (json!({"rope_type": "llama3", "factor": 8.0}), "low_freq_factor"),
        (json!({"rope_type": "linear"}), "factor"),
        (json!({"rope_type": "linear", "factor": 0.0}), "factor"),
        (json!({"rope_type": "yarn", "factor": -1.0}), "factor"),
        (json!({"rope_type": "yarn", "original_max_position_embeddings": 0}), "original_max_position_embeddings"),
    ] {
        let error = parse(|config| config["rope_scaling"] = rope).unwrap_err();
        assert!(matches!(&error, ModelError::Config { field, .. } if *field == expected), "{error}");
    }
    let error = parse(|config| config["eos_token_id"] = json!(-1)).unwrap_err().to_string();
    assert!(error.contains("config.json: eos_token_id is -1; it must be a token id"), "{error}");
    let error = parse(|config| config["vocab_size"] = json!("many")).unwrap_err();
    assert!(matches!(error, ModelError::Json { .. }), "{error}");
}

#[test]
fn a_folder_without_config_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "").unwrap();
    let error = load(dir.path()).unwrap_err();
    assert!(matches!(&error, ModelError::MissingFile { path, .. } if path.ends_with("config.json")), "{error}");
}
