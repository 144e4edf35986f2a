//! GGUF files: logits, greedy text and tokens are those of the Python libraries, for the files that
//! `tests/conformance/make_gguf.py` made.

#[path = "rig/likelihood.rs"]
mod likelihood;
mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use likelihood::log_probability;
use rig::{Rig, Seq};
use serde::Deserialize;
use trunkline_port::Sampling;
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

const FILES: [&str; 4] = ["llama-k-quants", "qwen2-mixed", "qwen3-bf16", "llama-sentencepiece"];

/// Files with quantised matrices: products with their weights round activations to 16 bits, the reference's do not.
const QUANTISED: [&str; 3] = ["llama-k-quants", "qwen2-mixed", "llama-sentencepiece"];

/// Largest difference between a logit and the reference's.
fn tolerance(name: &str) -> f32 {
    if QUANTISED.contains(&name) { 2e-3 } else { 1e-3 }
}

/// Largest difference between a log probability and the reference's.
fn logprob_tolerance(name: &str) -> f64 {
    if QUANTISED.contains(&name) { 2e-3 } else { 2e-4 }
}

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Prompt {
    text: Option<String>,
    tokens: Vec<u32>,
    logits_at: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
    logprobs: Vec<f64>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    tokens: Vec<u32>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/gguf").join(name)
}

fn load(name: &str) -> (Arc<Model>, Expected) {
    let model = Model::load(&path(&format!("{name}.gguf"))).unwrap();
    let expected = std::fs::read(path(&format!("{name}.json"))).unwrap();
    (Arc::new(model), serde_json::from_slice(&expected).unwrap())
}

fn rig(model: &Arc<Model>) -> Rig {
    Rig::new(model, 16, 64, 1)
}

#[test]
fn configurations_follow_from_the_metadata() {
    let shapes = FILES.map(|name| {
        let model = load(name).0;
        assert_eq!(model.name(), name);
        let config = model.config();
        assert_eq!(config.max_context, 512);
        (config.vocab_size, config.hidden_size, config.n_layers, config.n_kv_heads, config.head_dim, config.tied_head)
    });
    let expected =
        [(320, 256, 1, 1, 64, true), (320, 64, 2, 2, 16, false), (320, 32, 2, 2, 16, true), (384, 32, 2, 2, 8, false)];
    assert_eq!(shapes, expected);
    assert_eq!(FILES.map(|name| load(name).0.config().eos_token_ids.clone()), [[1], [1], [1], [2]]);
}

#[test]
fn logits_are_those_of_transformers() {
    for name in FILES {
        let (model, expected) = load(name);
        let mut largest = 0f32;
        for prompt in &expected.prompts {
            for (at, expected) in prompt.logits_at.iter().zip(&prompt.logits) {
                let mut seq = Seq::new(0, &prompt.tokens[..=*at], Sampling::default());
                let (_, logits) = rig(&model).step(&mut [&mut seq], usize::MAX);
                assert_eq!(logits[0].len(), expected.len());
                let differences = logits[0].iter().zip(expected).map(|(a, b)| (a - b).abs());
                largest = differences.fold(largest, f32::max);
            }
        }
        println!("{name}: logits differ by at most {largest:e}");
        assert!(largest < tolerance(name), "{name}: logits differ by {largest:e}");
    }
}

#[test]
fn greedy_text_and_log_probabilities_are_those_of_transformers() {
    for name in FILES {
        let (model, expected) = load(name);
        let mut largest = 0f64;
        for prompt in &expected.prompts {
            let mut rig = rig(&model);
            let mut seq = Seq::new(0, &prompt.tokens, Sampling::default());
            let logits = rig.generate(&mut seq, prompt.greedy.len(), usize::MAX);
            assert_eq!(seq.output(), prompt.greedy, "{name}");
            let full = (prompt.tokens.len() - 1) / 16 * 16;
            let mut hit = Seq::new(1, &prompt.tokens, Sampling::default()).share(&seq, 16, full);
            rig.generate(&mut hit, prompt.greedy.len(), 7);
            assert_eq!(hit.output(), prompt.greedy, "{name}, from shared blocks");
            for ((logits, token), expected) in logits.iter().zip(&prompt.greedy).zip(&prompt.logprobs) {
                largest = largest.max((log_probability(logits, *token) - expected).abs());
            }
        }
        println!("{name}: log probabilities differ by at most {largest:e}");
        assert!(largest <= logprob_tolerance(name), "{name}: log probabilities differ by {largest:e}");
    }
}

#[test]
fn texts_have_the_tokens_that_the_python_libraries_give_them() {
    for name in FILES {
        let (model, expected) = load(name);
        let tokenizer = Tokenizer::load(&path(&format!("{name}.gguf"))).unwrap();
        assert_eq!(tokenizer.vocab_size(), model.config().vocab_size);
        let prompts = expected.prompts.iter().filter_map(|prompt| Some((prompt.text.as_ref()?, &prompt.tokens)));
        for (text, tokens) in prompts.chain(expected.texts.iter().map(|text| (&text.text, &text.tokens))) {
            assert_eq!(tokenizer.encode(text).unwrap(), *tokens, "{name}: {text:?}");
            let plain = !text.contains('<');
            assert!(!plain || tokenizer.decode(tokens) == *text, "{name}: {text:?}");
        }
    }
}
