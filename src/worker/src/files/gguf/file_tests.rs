//! Tests of GGUF files, good and bad.

use gguf_rs_lib::prelude::{GGUFBuilder, GGUFTensorType, MetadataValue};

use super::*;
use crate::config::RopeScaling;
use crate::files::weights::InMemory;

/// A file in parts: metadata, and tensors as name, dimensions and bytes of F32.
#[derive(Clone)]
struct Parts {
    metadata: Vec<(String, MetadataValue)>,
    tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
}

impl Parts {
    /// A model of the architecture with 20 tokens, a width of 8 and one layer.
    fn sound(architecture: &str) -> Self {
        let number = |key: &str, value: u32| (format!("{architecture}.{key}"), MetadataValue::U32(value));
        let metadata = vec![
            ("general.architecture".to_owned(), MetadataValue::String(architecture.to_owned())),
            number("context_length", 64),
            number("embedding_length", 8),
            number("block_count", 1),
            number("feed_forward_length", 12),
            number("attention.head_count", 2),
            number("attention.head_count_kv", 1),
            (format!("{architecture}.attention.layer_norm_rms_epsilon"), MetadataValue::F32(1e-5)),
            ("tokenizer.ggml.eos_token_id".to_owned(), MetadataValue::U32(3)),
        ];
        let tensors = [
            ("token_embd.weight", vec![8, 20]),
            ("blk.0.attn_norm.weight", vec![8]),
            ("blk.0.attn_q.weight", vec![8, 8]),
            ("blk.0.attn_k.weight", vec![8, 4]),
            ("blk.0.attn_v.weight", vec![8, 4]),
            ("blk.0.attn_output.weight", vec![8, 8]),
            ("blk.0.ffn_norm.weight", vec![8]),
            ("blk.0.ffn_gate.weight", vec![8, 12]),
            ("blk.0.ffn_up.weight", vec![8, 12]),
            ("blk.0.ffn_down.weight", vec![12, 8]),
            ("output_norm.weight", vec![8]),
        ];
        let mut parts = Self { metadata, tensors: Vec::new() };
        tensors.into_iter().for_each(|(name, dims)| parts.add(name, &dims));
        parts
    }

    fn add(&mut self, name: &str, dims: &[u64]) {
        let values = (0..dims.iter().product()).map(|i| i as f32 * 0.01).collect();
        self.tensors.push((name.to_owned(), dims.to_vec(), values));
    }

    fn set(&mut self, key: &str, value: MetadataValue) {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_owned(), value));
    }

    fn without(mut self, name: &str) -> Self {
        self.metadata.retain(|(known, _)| known != name);
        self.tensors.retain(|(known, _, _)| known != name);
        self
    }

    fn bytes(self) -> Vec<u8> {
        let builder =
            self.metadata.into_iter().fold(GGUFBuilder::new(), |file, (key, value)| file.add_metadata(key, value));
        let file = self.tensors.into_iter().fold(builder, |file, (name, dims, values)| {
            let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
            file.add_tensor(name, dims, GGUFTensorType::F32, bytes).unwrap()
        });
        file.build_to_bytes().unwrap().0
    }
}

fn read(bytes: &[u8]) -> Result<(ModelConfig, Weights), ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    load(&path, &mut InMemory).map(|(config, _, weights)| (config, weights))
}

fn config(parts: Parts) -> ModelConfig {
    read(&parts.bytes()).unwrap().0
}

/// The message for a file, which MUST be one line.
fn refused(parts: Parts) -> String {
    let Err(error) = read(&parts.bytes()) else { panic!("accepted") };
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn a_sound_file_is_read_with_the_defaults_of_llama_cpp() {
    let config = config(Parts::sound("llama"));
    assert_eq!((config.vocab_size, config.head_dim, config.max_context, config.rope_theta), (20, 4, 64, 10_000.0));
    assert!(config.tied_head && config.rope_scaling.is_none());
    assert_eq!(config.eos_token_ids, [3]);
}

#[test]
fn tensors_decide_about_biases_and_the_head() {
    let mut parts = Parts::sound("llama");
    parts.add("output.weight", &[8, 20]);
    for (name, len) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4), ("attn_output", 8)] {
        parts.add(&format!("blk.0.{name}.bias"), &[len]);
    }
    let (config, weights) = read(&parts.bytes()).unwrap();
    assert!(config.parts.qkv_bias && config.parts.output_bias && !config.parts.mlp_bias && !config.tied_head);
    // The pairs of rows of the two query heads and the key head are brought in order; values stay.
    let bias = weights.layers[0].qkv_bias.as_ref().unwrap();
    let ordered = [0, 2, 1, 3, 4, 6, 5, 7, 0, 2, 1, 3, 0, 1, 2, 3].map(|i| i as f32 * 0.01);
    assert_eq!(bias[..], ordered);
    let message = refused(Parts::sound("qwen2"));
    assert!(message.contains("tensor blk.0.attn_q.bias is missing"), "{message}");
    let message = refused(Parts::sound("qwen3"));
    assert!(message.contains("tensor blk.0.attn_q_norm.weight is missing"), "{message}");
}

#[test]
fn rotations_are_read_from_keys_and_from_divisors() {
    let scaling = |changes: &[(&str, MetadataValue)]| {
        let mut parts = Parts::sound("llama");
        changes.iter().for_each(|(key, value)| parts.set(&format!("llama.rope.scaling.{key}"), value.clone()));
        config(parts).rope_scaling
    };
    let text = |text: &str| MetadataValue::String(text.to_owned());
    let linear = Some(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaling(&[("factor", MetadataValue::F32(4.0))]), linear);
    assert_eq!(scaling(&[("factor", MetadataValue::F32(4.0)), ("type", text("linear"))]), linear);
    assert_eq!(scaling(&[("factor", MetadataValue::F32(0.0))]), None);
    assert_eq!(scaling(&[("factor", MetadataValue::F32(4.0)), ("type", text("none"))]), None);
    let yarn = scaling(&[
        ("factor", MetadataValue::F32(4.0)),
        ("type", text("yarn")),
        ("original_context_length", MetadataValue::U32(32)),
    ]);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 32,
        truncate: true,
    };
    assert_eq!(yarn, Some(expected));
    let mut parts = Parts::sound("llama");
    parts.add("rope_freqs.weight", &[2]);
    assert_eq!(config(parts.clone()).rope_scaling, Some(RopeScaling::Divisors(vec![0.0, 0.01])));
    parts.add("rope_factors_long.weight", &[2]);
    assert!(refused(parts).contains("rope_factors_long"));
}

#[test]
fn windows_of_attention_and_their_pattern_are_read() {
    let mut parts = Parts::sound("llama");
    assert_eq!(config(parts.clone()).windows, []);
    parts.set("llama.attention.sliding_window", MetadataValue::U32(32));
    assert_eq!(config(parts.clone()).windows, [Some(32)]);
    // The last of each two layers sees everything, then each.
    parts.set("llama.attention.sliding_window_pattern", MetadataValue::U32(2));
    assert_eq!(config(parts.clone()).windows, [Some(32)]);
    parts.set("llama.attention.sliding_window_pattern", MetadataValue::U32(1));
    assert_eq!(config(parts.clone()).windows, []);
    parts.set("llama.attention.sliding_window_pattern", MetadataValue::U32(0));
    parts.set("llama.attention.sliding_window", MetadataValue::U32(0));
    assert_eq!(config(parts).windows, []);
}

#[test]
fn what_the_worker_does_not_compute_is_refused_by_name() {
    let cases: [(&str, MetadataValue, &str); 8] = [
        ("general.architecture", MetadataValue::String("gemma2".to_owned()), "architecture \"gemma2\""),
        ("llama.rope.scaling.type", MetadataValue::String("longrope".to_owned()), "rope type \"longrope\""),
        ("llama.rope.dimension_count", MetadataValue::U32(2), "rotation of 2 of 4"),
        ("llama.attention.value_length", MetadataValue::U32(2), "value heads of width 2"),
        ("llama.expert_count", MetadataValue::U32(8), "mixture of experts"),
        ("llama.attention.head_count", MetadataValue::F32(2.0), "is not a whole number"),
        ("llama.block_count", MetadataValue::I32(-1), "llama.block_count is -1"),
        ("tokenizer.ggml.eos_token_id", MetadataValue::U32(20), "tokenizer.ggml.eos_token_id is 20"),
    ];
    for (key, value, expected) in cases {
        let mut parts = Parts::sound("llama");
        parts.set(key, value);
        let message = refused(parts);
        assert!(message.contains(expected), "{message}");
    }
    for key in ["llama.context_length", "llama.attention.layer_norm_rms_epsilon"] {
        let message = refused(Parts::sound("llama").without(key));
        assert!(message.contains(&format!("{key} is missing")), "{message}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let message = refused(Parts::sound("llama").without("blk.0.ffn_up.weight"));
    assert!(message.contains("tensor blk.0.ffn_up.weight is missing"), "{message}");
    let message = refused(Parts::sound("llama").without("token_embd.weight"));
    assert!(message.contains("tensor token_embd.weight is missing"), "{message}");
    let mut parts = Parts::sound("llama").without("blk.0.ffn_up.weight");
    parts.add("blk.0.ffn_up.weight", &[12, 8]);
    let message = refused(parts);
    assert!(message.contains("shape [8, 12]") && message.contains("[12, 8]"), "{message}");
    let mut parts = Parts::sound("llama");
    parts.add("blk.0.ffn_gate_inp.weight", &[8, 2]);
    let message = refused(parts);
    assert!(message.contains("blk.0.ffn_gate_inp.weight"), "{message}");
    // More layers than the file has are noticed at the first missing tensor, not after memory for all of them.
    let mut parts = Parts::sound("llama");
    parts.set("llama.block_count", MetadataValue::U32(1 << 24));
    let message = refused(parts);
    assert!(message.contains("tensor blk.1.attn_norm.weight is missing"), "{message}");
}

#[test]
fn types_without_a_kernel_are_refused_by_name() {
    let parts = Parts::sound("llama").without("blk.0.ffn_down.weight");
    let bytes = vec![0; 8 * 84];
    let mut file =
        parts.metadata.into_iter().fold(GGUFBuilder::new(), |file, (key, value)| file.add_metadata(key, value));
    for (name, dims, values) in parts.tensors {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        file = file.add_tensor(name, dims, GGUFTensorType::F32, bytes).unwrap();
    }
    file = file.add_metadata("llama.feed_forward_length", MetadataValue::U32(256));
    file = file.add_tensor("blk.0.ffn_down.weight", vec![256, 8], GGUFTensorType::Q2_K, bytes).unwrap();
    for name in ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"] {
        file = file.remove_tensor(name).add_tensor(name, vec![8, 256], GGUFTensorType::F16, vec![0; 4096]).unwrap();
    }
    let Err(error) = read(&file.build_to_bytes().unwrap().0) else { panic!("accepted") };
    assert!(matches!(&error, ModelError::Dtype { found, .. } if found == "Q2_K"), "{error}");
}

#[test]
fn weights_and_constants_that_are_no_numbers_are_refused_by_place() {
    let mut nan = Parts::sound("llama");
    let (name, _, values) = &mut nan.tensors[7];
    assert_eq!(name, "blk.0.ffn_gate.weight");
    values[8 * 5 + 3] = f32::NAN;
    let message = refused(nan);
    assert!(message.starts_with("tensor model.layers.0.mlp.gate_proj.weight in "), "{message}");
    assert!(message.ends_with("model.gguf: weight 3 of row 5 is NaN or infinite; download it again"), "{message}");
    let mut infinite = Parts::sound("llama");
    infinite.tensors.last_mut().unwrap().2[7] = f32::INFINITY;
    let message = refused(infinite);
    assert!(message.starts_with("tensor model.norm.weight in ") && message.contains("weight 7 of row 0"), "{message}");
    for (key, value) in [
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        ("llama.rope.freq_base", f32::INFINITY),
        ("llama.rope.scaling.factor", f32::NAN),
        ("llama.rope.scaling.attn_factor", f32::NAN),
        ("llama.rope.scaling.yarn_beta_fast", f32::INFINITY),
        ("llama.rope.scaling.yarn_beta_slow", f32::NAN),
    ] {
        let mut parts = Parts::sound("llama");
        parts.set("llama.rope.scaling.type", MetadataValue::String("yarn".to_owned()));
        parts.set("llama.rope.scaling.factor", MetadataValue::F32(2.0));
        config(parts.clone());
        parts.set(key, MetadataValue::F32(value));
        let message = refused(parts);
        assert!(message.contains("NaN") || message.contains("inf"), "{key}: {message}");
    }
}

#[test]
fn damaged_files_are_refused_or_read_but_never_end_the_program() {
    let sound = Parts::sound("llama").bytes();
    read(&sound).unwrap();
    for end in [3, 4, 8, 23, 24, 100, 500, sound.len() / 2, sound.len() - 1] {
        let Err(error) = read(&sound[..end]) else { panic!("accepted {end} bytes of {}", sound.len()) };
        let message = error.to_string();
        assert!(matches!(error, ModelError::Gguf { .. }) && !message.contains('\n'), "{message}");
        assert!(message.contains("model.gguf") && message.ends_with("download it again"), "{message}");
        if end >= 1500 {
            let sizes = format!("cut short: it has {end} of {} bytes", sound.len());
            assert!(message.contains(&sizes), "{message}");
        } else if end > 4 {
            assert!(message.contains(&format!("its {end} bytes end before the list of its tensors does")), "{message}");
        }
    }
    // Every byte of the header, the metadata and the list of tensors in turn becomes 0, 255, and one more.
    let header = 1500.min(sound.len());
    let (mut refused, mut accepted) = (0, 0);
    for at in 0..header {
        for change in [|_: u8| 0, |_: u8| 255, |byte: u8| byte.wrapping_add(1)] {
            let mut bytes = sound.clone();
            bytes[at] = change(bytes[at]);
            match read(&bytes) {
                Ok(_) => accepted += 1,
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > header && accepted > 0, "{refused} refused, {accepted} accepted");
}

/// Writes the parts of a file that is split behind the tensor `last_of_first`. The first has the metadata.
fn write_parts(dir: &Path, parts: Parts, first: usize) -> [PathBuf; 2] {
    let n = parts.tensors.len() as i32;
    let (mut head, mut tail) = (parts.clone(), Parts { metadata: Vec::new(), ..parts });
    (head.tensors, tail.tensors) = (head.tensors[..first].to_vec(), tail.tensors[first..].to_vec());
    let paths = [1, 2].map(|number| dir.join(format!("m-{number:05}-of-00002.gguf")));
    for (no, mut part) in [head, tail].into_iter().enumerate() {
        part.set("split.no", MetadataValue::U16(no as u16));
        part.set("split.count", MetadataValue::U16(2));
        part.set("split.tensors.count", MetadataValue::I32(n));
        std::fs::write(&paths[no], part.bytes()).unwrap();
    }
    paths
}

#[test]
fn a_split_file_is_the_file_in_one_part() {
    let whole = read(&Parts::sound("llama").bytes()).unwrap();
    for first in [1, 6] {
        let dir = tempfile::tempdir().unwrap();
        for path in write_parts(dir.path(), Parts::sound("llama"), first) {
            let (config, facts, weights) = load(&path, &mut InMemory).unwrap();
            assert_eq!((&config, facts.end_ids()), (&whole.0, vec![3]));
            assert!(weights.final_norm == whole.1.final_norm && weights.layers.len() == 1);
            let rows = |weights: &Weights| {
                let mut row = vec![0.0; 8];
                weights.embedding.row(7, &mut row);
                row
            };
            assert_eq!(rows(&weights), rows(&whole.1));
            assert_eq!(crate::Model::load(&path).unwrap().name(), "m");
        }
    }
}

#[test]
fn parts_that_lack_tensors_or_a_sibling_are_refused() {
    let refused = |path: &Path| {
        let Err(error) = load(path, &mut InMemory) else { panic!("accepted") };
        error.to_string()
    };
    let dir = tempfile::tempdir().unwrap();
    let paths = write_parts(dir.path(), Parts::sound("llama"), 6);
    let mut fewer = Parts::sound("llama");
    fewer.tensors.drain(..7);
    fewer.metadata =
        vec![("split.no".to_owned(), MetadataValue::U16(1)), ("split.count".to_owned(), MetadataValue::U16(2))];
    std::fs::write(&paths[1], fewer.bytes()).unwrap();
    assert!(refused(&paths[0]).contains("its parts have 10 of 11 tensors"), "{}", refused(&paths[0]));
    std::fs::write(&paths[1], "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
    assert!(refused(&paths[0]).contains("m-00002-of-00002.gguf is a Git LFS pointer"), "{}", refused(&paths[0]));
    std::fs::remove_file(&paths[1]).unwrap();
    assert!(refused(&paths[0]).contains("part 2, m-00002-of-00002.gguf, is missing"), "{}", refused(&paths[0]));
}
