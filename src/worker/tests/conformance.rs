//! The worker computes what Hugging Face transformers computes: logits and greedy text of the checkpoints that
//! `tests/conformance/make_checkpoints.py` made.

#[path = "conformance/golden_steps.rs"]
mod golden_steps;
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

const CHECKPOINTS: [&str; 7] = [
    "mha-tied-f32",
    "gqa-untied-bf16-sharded",
    "gqa-llama3-rope-f16",
    "llama-biases-f32",
    "mistral-yarn-rope-bf16",
    "qwen2-tied-linear-rope-f32",
    "qwen3-yarn-rope-f16",
];

/// Largest difference between a logit and the reference's.
const TOLERANCE: f32 = 1e-3;
/// Largest difference between a log probability and the reference's.
const LOGPROB_TOLERANCE: f64 = 2e-4;

const BLOCK_SIZE: u32 = 16;

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    text: Option<String>,
    tokens: Vec<u32>,
    logits_at: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
    /// Log probabilities of the greedy tokens; the oldest checkpoints have none.
    #[serde(default)]
    logprobs: Vec<f64>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(name)
}

fn load(name: &str) -> (Arc<Model>, Vec<Prompt>) {
    let model = Model::load(&folder(name)).unwrap();
    let expected = std::fs::read(folder(name).join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_slice(&expected).unwrap();
    (Arc::new(model), expected.prompts)
}

fn rig(model: &Arc<Model>) -> Rig {
    Rig::new(model, BLOCK_SIZE, 256, 1)
}

fn greedy(id: u32, tokens: &[u32]) -> Seq {
    Seq::new(id, tokens, Sampling::default())
}

/// The largest difference, which MUST be within the tolerance.
fn compare(got: &[f32], expected: &[f32], what: &str) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < TOLERANCE, "{what}: logits differ by {difference}");
    difference
}

#[test]
fn configurations_are_read_as_transformers_wrote_them() {
    let shapes = CHECKPOINTS.map(|name| {
        let model = Model::load(&folder(name)).unwrap();
        assert_eq!(model.name(), name);
        let config = model.config().clone();
        assert_eq!((config.vocab_size, config.hidden_size, config.n_layers, config.n_heads), (320, 32, 2, 4));
        // Positions are 512; YaRN by 4 from 64 positions on makes fewer of them, as in vLLM.
        let context = [("yarn", 256), ("linear", 2048), ("", 512)].into_iter().find(|(part, _)| name.contains(part));
        assert_eq!((Some(config.max_context), config.eos_token_ids.as_slice()), (context.map(|of| of.1), &[1][..]));
        (config.n_kv_heads, config.head_dim, config.tied_head, config.rope_scaling.is_some())
    });
    let expected = [
        (4, 8, true, false),
        (2, 8, false, false),
        (1, 8, false, true),
        (2, 8, false, false),
        (2, 8, false, true),
        (2, 8, true, true),
        (2, 16, false, true),
    ];
    assert_eq!(shapes, expected);
}

#[test]
fn log_probabilities_of_the_greedy_text_are_those_of_transformers() {
    let mut compared = 0;
    for name in CHECKPOINTS {
        let (model, prompts) = load(name);
        let mut largest = 0f64;
        for prompt in prompts.iter().filter(|prompt| !prompt.logprobs.is_empty()) {
            let mut seq = greedy(0, &prompt.tokens);
            let logits = rig(&model).generate(&mut seq, prompt.greedy.len(), usize::MAX);
            assert_eq!(seq.output(), prompt.greedy, "{name}");
            assert_eq!(prompt.logprobs.len(), prompt.greedy.len());
            for ((logits, token), expected) in logits.iter().zip(&prompt.greedy).zip(&prompt.logprobs) {
                largest = largest.max((log_probability(logits, *token) - expected).abs());
                compared += 1;
            }
        }
        if largest > 0.0 {
            println!("{name}: log probabilities differ by at most {largest:e}");
        }
        assert!(largest <= LOGPROB_TOLERANCE, "{name}: log probabilities differ by {largest:e}");
    }
    assert_eq!(compared, 4 * 4 * 40);
}

#[test]
fn logits_are_those_of_transformers() {
    for name in CHECKPOINTS {
        let (model, prompts) = load(name);
        let mut largest = 0f32;
        for (i, prompt) in prompts.iter().enumerate() {
            for (at, expected) in prompt.logits_at.iter().zip(&prompt.logits) {
                let mut seq = greedy(0, &prompt.tokens[..=*at]);
                let (_, logits) = rig(&model).step(&mut [&mut seq], usize::MAX);
                largest = largest.max(compare(&logits[0], expected, &format!("{name}, prompt {i} at {at}")));
            }
        }
        println!("{name}: logits differ by at most {largest:e}");
    }
}

#[test]
fn greedy_text_is_that_of_transformers_whole_chunked_and_from_shared_blocks() {
    for name in CHECKPOINTS {
        let (model, prompts) = load(name);
        for (i, prompt) in prompts.iter().enumerate() {
            let n = prompt.greedy.len();
            for chunk in [usize::MAX, 1, 7, 16, 50] {
                let mut seq = greedy(0, &prompt.tokens);
                let logits = rig(&model).generate(&mut seq, n, chunk);
                assert_eq!(seq.output(), prompt.greedy, "{name}, prompt {i}, chunks of {chunk}");
                compare(&logits[0], prompt.logits.last().unwrap(), &format!("{name}, prompt {i} in chunks of {chunk}"));
            }
            // The first request leaves its blocks; the next ones find as much of their prompt there as has full blocks,
            // and one the whole of a prompt that ends with a block.
            let mut rig = rig(&model);
            let mut first = greedy(0, &prompt.tokens);
            rig.generate(&mut first, n, usize::MAX);
            assert_eq!(first.output(), prompt.greedy);
            let full = prompt.tokens.len() / BLOCK_SIZE as usize * BLOCK_SIZE as usize;
            let mut hit =
                greedy(1, &prompt.tokens).share(&first, BLOCK_SIZE, full.min(prompt.tokens.len() - 1) / 16 * 16);
            rig.generate(&mut hit, n, usize::MAX);
            assert_eq!(hit.output(), prompt.greedy, "{name}, prompt {i}, from shared blocks");
            let all: Vec<u32> = prompt.tokens.iter().chain(&prompt.greedy).copied().collect();
            let grown = all.len() / BLOCK_SIZE as usize * BLOCK_SIZE as usize;
            if grown > prompt.tokens.len() {
                let mut cached = greedy(2, &all[..grown]).share(&first, BLOCK_SIZE, grown);
                rig.generate(&mut cached, all.len() - grown, usize::MAX);
                assert_eq!(cached.output(), &all[grown..], "{name}, prompt {i}, cached to the last token");
            }
        }
    }
}

#[test]
fn greedy_text_is_the_same_in_one_batch_of_all_prompts() {
    for name in CHECKPOINTS {
        let (model, prompts) = load(name);
        let mut rig = rig(&model);
        let mut seqs: Vec<Seq> = (0..).zip(&prompts).map(|(id, prompt)| greedy(id, &prompt.tokens)).collect();
        while seqs.iter().zip(&prompts).any(|(seq, prompt)| seq.output().len() < prompt.greedy.len()) {
            rig.step(&mut seqs.iter_mut().collect::<Vec<_>>(), 13);
        }
        for (seq, prompt) in seqs.iter().zip(&prompts) {
            assert_eq!(seq.output()[..prompt.greedy.len()], prompt.greedy);
        }
    }
}

#[test]
fn texts_have_the_tokens_that_the_python_library_gives_them() {
    for name in CHECKPOINTS {
        let tokenizer = Tokenizer::load(&folder(name)).unwrap();
        assert_eq!(tokenizer.vocab_size(), 320);
        for prompt in load(name).1 {
            if let Some(text) = prompt.text {
                assert_eq!(tokenizer.encode(&text).unwrap(), prompt.tokens);
                assert_eq!(tokenizer.decode(&prompt.tokens), text);
            }
        }
    }
}
