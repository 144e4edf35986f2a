//! Golden steps: the tokens and log probabilities that the worker answers for prompts, parameters and seeds, on two models of
//! `tests/conformance`.
//!
//! `tests/conformance/steps.json` has them, and the tests of the Python worker read the same file. To make it again, after a change of what a
//! seed means:
//!
//! ```text
//! TRUNKLINE_WRITE_GOLDEN=1 cargo test -p trunkline-worker --test conformance golden
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trunkline_port::Sampling;
use trunkline_worker::Model;

use super::folder;
use super::rig::{Rig, Seq};

const MODELS: [&str; 2] = ["mha-tied-f32", "llama-biases-f32"];
const BLOCK: u32 = 16;
/// Tokens generated for each prompt.
const TOKENS: usize = 24;
/// Most likely tokens reported with each token.
const TOP: u32 = 3;
/// Largest difference of log probabilities that rounding explains.
const TOLERANCE: f32 = 2e-4;

#[derive(Debug, Serialize, Deserialize)]
struct Golden {
    about: String,
    cases: Vec<Case>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Case {
    model: String,
    prompt: Vec<u32>,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    seed: u64,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The most likely tokens at each place, most likely first.
    top: Vec<Vec<u32>>,
}

/// Prompts of several lengths, with parameters of every kind.
fn cases() -> Vec<Case> {
    let all = [
        (1.0, 0, 1.0, 0.0, 1.0, 0),
        (0.0, 0, 1.0, 0.0, 1.0, 0),
        (0.0, 0, 1.0, 0.0, 1.3, 0),
        (0.8, 40, 0.95, 0.0, 1.0, 7),
        (1.0, 320, 1.0, 0.0, 1.0, 0),
        (1.0, i32::MAX as u32, 1.0, 0.0, 1.0, u64::MAX),
        (1.5, 0, 0.9, 0.05, 1.1, 3),
        (0.7, 5, 1.0, 0.1, 0.9, 11),
    ];
    let case = |model: &str, at: usize, (temperature, top_k, top_p, min_p, repetition_penalty, seed)| Case {
        model: model.into(),
        prompt: (0..3 + 13 * at as u32).map(|place| (place * 37 + 11 * at as u32) % 320).collect(),
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        tokens: Vec::new(),
        logprobs: Vec::new(),
        top: Vec::new(),
    };
    MODELS.iter().flat_map(|model| all.iter().enumerate().map(|(at, of)| case(model, at, *of))).collect()
}

/// Runs a case.
fn run(model: &Arc<Model>, case: &mut Case) {
    let Case { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = *case;
    let sampling = Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        logprobs: Some(TOP),
        ..Sampling::default()
    };
    let mut seq = Seq::new(0, &case.prompt, sampling);
    let mut rig = Rig::new(model, BLOCK, 64, 1);
    while seq.output().len() < TOKENS {
        let (output, _) = rig.step(&mut [&mut seq], 32);
        for of in output.logprobs {
            case.logprobs.push(of.logprob);
            case.top.push(of.top.iter().map(|(token, _)| *token).collect());
        }
    }
    case.tokens = seq.output().to_vec();
}

#[test]
fn golden_steps_are_what_prompts_parameters_and_seeds_mean() {
    let path = folder("steps.json");
    let mut made = cases();
    for name in MODELS {
        let model = Arc::new(Model::load(&folder(name)).unwrap());
        made.iter_mut().filter(|case| case.model == name).for_each(|case| run(&model, case));
    }
    if std::env::var_os("TRUNKLINE_WRITE_GOLDEN").is_some() {
        let about = "Answers of the embedded worker; see src/worker/tests/conformance/golden_steps.rs".into();
        let text = serde_json::to_string(&Golden { about, cases: made }).unwrap();
        return std::fs::write(path, text.replace("{\"model\"", "\n{\"model\"") + "\n").unwrap();
    }
    let golden: Golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(golden.cases.len(), made.len());
    for (golden, made) in golden.cases.iter().zip(&made) {
        assert_eq!((&golden.model, &golden.prompt, golden.seed), (&made.model, &made.prompt, made.seed));
        assert_eq!((&golden.tokens, &golden.top), (&made.tokens, &made.top), "{golden:?}");
        let far = golden.logprobs.iter().zip(&made.logprobs).find(|(a, b)| (*a - *b).abs() > TOLERANCE);
        assert_eq!(far, None, "{golden:?}");
        assert_eq!(made.tokens.len(), TOKENS);
    }
}
