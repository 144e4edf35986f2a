//! Tests of the longest context. The command line's tests compare with the simulator, which plans with the same rule.

use serde_json::json;

use super::*;

#[test]
fn the_context_follows_from_the_scaling_as_in_vllm() {
    let yarn = |factor: f64, original: u32| json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original});
    for (positions, scaling, expected, is_noted) in [
        (4096, json!(null), 4096, false),
        (4096, json!({"rope_type": "default"}), 4096, false),
        // Qwen2.5 as published: the positions are those before YaRN.
        (32_768, yarn(4.0, 32_768), 131_072, false),
        // Qwen3: somewhat more than those before.
        (40_960, yarn(4.0, 32_768), 131_072, false),
        // DeepSeek, gpt-oss: the positions are those behind YaRN.
        (131_072, yarn(32.0, 4096), 131_072, false),
        (512, yarn(4.0, 64), 256, true),
        (4096, json!({"type": "yarn", "factor": 2.0}), 8192, false),
        (4096, json!({"type": "yarn", "original_max_position_embeddings": 1024}), 4096, false),
        (4096, json!({"type": "linear", "factor": 2.5}), 10_240, false),
        (4096, json!({"type": "dynamic", "factor": 4.0}), 16_384, false),
        (
            131_072,
            json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}),
            131_072,
            false,
        ),
        (
            131_072,
            json!({"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}),
            131_072,
            false,
        ),
        (131_072, json!({"type": "su", "factor": 32.0}), 131_072, false),
        (4096, json!({"type": "video_rope", "factor": 4.0}), 4096, true),
        (4096, json!({"type": "linear", "factor": 0.0}), 4096, false),
        (4096, json!({"type": "linear", "factor": 1e300}), u32::MAX, false),
    ] {
        for key in SCALINGS {
            let config = json!({"max_position_embeddings": positions, key: scaling});
            let (context, note) = context_of(&config, None);
            assert_eq!((context.unwrap().tokens, note.is_some()), (expected, is_noted), "{config}: {note:?}");
        }
    }
    assert_eq!(context_of(&json!({}), None), (None, None));
    let (context, _) = context_of(&json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), Some(2048));
    assert_eq!(context.unwrap().tokens, 4096, "the default of the family");
    let config = json!({"max_position_embeddings": 64, "original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": 4.0}});
    assert_eq!(context_of(&config, None).0.unwrap().source, "yarn: 4 times original_max_position_embeddings, 32");
}

#[test]
fn gguf_files_have_the_context_of_llama_cpp_but_for_yarn_that_counts_nowhere_else() {
    assert_eq!(context_of_gguf(512, "", 1.0, None).tokens, 512);
    assert_eq!(context_of_gguf(512, "linear", 4.0, None).tokens, 512);
    assert_eq!(context_of_gguf(512, "yarn", 4.0, Some(64)).tokens, 512);
    assert_eq!(context_of_gguf(512, "yarn", 4.0, None).tokens, 512);
    assert_eq!(context_of_gguf(32_768, "yarn", 4.0, Some(32_768)).tokens, 131_072);
}
