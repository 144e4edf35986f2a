//! Golden draws: the tokens that parameters, seeds and indexes mean, for every sampler of the project.
//!
//! `tests/conformance/draws.json` has them. The tests of the samplers in Python read the same file, so that a request which moves from one
//! worker to another goes on as it would have. To make the file again, after a change of what a seed means:
//!
//! ```text
//! TRUNKLINE_WRITE_GOLDEN=1 cargo test -p trunkline-worker --lib golden
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use trunkline_port::{LogitBias, Sampling, Token};

use super::{draw, sample};
use crate::kernels::noise::Noise;
use crate::worker::past::Past;

#[derive(Serialize)]
struct Golden {
    about: String,
    /// Logits by name; `None` stands for minus infinity.
    logits: BTreeMap<String, Vec<Option<f32>>>,
    /// Seed, index, and the number in `0 .. 1` that follows from them.
    numbers: Vec<(u64, u32, f64)>,
    cases: Vec<Case>,
}

#[derive(Default, Serialize)]
struct Case {
    logits: String,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    /// Tokens in the sequence, to which the penalty applies.
    seen: Vec<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Changes>,
    seed: u64,
    /// Index of the drawn token, and the token.
    draws: Vec<(u32, Token)>,
}

/// Further changes of the logits.
#[derive(Clone, Serialize)]
struct Changes {
    frequency_penalty: f32,
    presence_penalty: f32,
    logit_bias: LogitBias,
    /// Generated tokens, to which the penalties apply.
    generated: Vec<Token>,
}

impl Case {
    fn sampling(&self) -> Sampling {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = *self;
        let plain = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, ..Sampling::default() };
        let Some(Changes { frequency_penalty, presence_penalty, logit_bias, .. }) = self.changes.clone() else {
            return plain;
        };
        Sampling { frequency_penalty, presence_penalty, logit_bias, ..plain }
    }

    /// Returns the tokens of a sequence with the case's parameters: those seen, then those generated.
    fn past(&self) -> Past {
        let mut past = Past::default();
        past.put(&self.sampling(), self.seen.len() as u32, 0, &self.seen);
        let generated = self.changes.iter().flat_map(|changes| &changes.generated);
        generated.for_each(|token| past.push(&self.sampling(), *token));
        past
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/draws.json")
}

/// Logits of every kind: of all sizes, equal, masked, far apart, few.
fn logits() -> BTreeMap<String, Vec<Option<f32>>> {
    let mut noise = Noise::new(77);
    let mut noisy = |n: usize, bound: f32| (0..n).map(|_| Some(noise.uniform(bound))).collect::<Vec<_>>();
    let noise = noisy(64, 4.0);
    let masked = |at: usize, logit| if at % 3 == 1 { None } else { logit };
    BTreeMap::from([
        // More than a search for a nucleus sorts at first.
        ("long".into(), noisy(700, 2.0)),
        ("steep".into(), noisy(65, 30.0)),
        ("ties".into(), noisy(48, 3.0).into_iter().map(|logit| logit.map(f32::round)).collect()),
        ("flat".into(), vec![Some(1.5); 33]),
        ("masked".into(), noise.iter().copied().enumerate().map(|(at, logit)| masked(at, logit)).collect()),
        ("far".into(), [3e38, -3e38, 2.9e38, 0.0, -1.0, 1e30, 3e38].map(Some).to_vec()),
        ("two".into(), vec![Some(-0.5), Some(0.25)]),
        ("one".into(), vec![Some(-7.0)]),
        ("noise".into(), noise),
    ])
}

/// Cases of all parameters, one away from their usual values at a time, and many at random.
fn cases(logits: &BTreeMap<String, Vec<Option<f32>>>) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut noise = Noise::new(78);
    for (name, of) in logits {
        let n = of.len() as u32;
        let temperatures = [0.0, f32::from_bits(1), 1e-38, 0.01, 0.7, 1.0, 5.0, 1e30, f32::MAX];
        let top_ks = [0, 1, 2, 5, n - 1, n, n + 1, i32::MAX as u32, u32::MAX];
        let top_ps = [f32::from_bits(1), 1e-9, 0.1, 0.5, 0.9, 0.999_999, 1.0];
        let min_ps = [0.0, f32::from_bits(1), 1e-9, 0.05, 0.3, 1.0];
        let penalties = [1.0, 1.3, 0.5, 1e-38, 1e38];
        let seeds = [0, 1, 9, i64::MAX as u64, u64::MAX];
        let usual = || Case {
            logits: name.clone(),
            temperature: 1.0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            seed: 42,
            ..Case::default()
        };
        let seen = || (0..n).step_by(3).collect::<Vec<_>>();
        cases.extend(temperatures.map(|temperature| Case { temperature, ..usual() }));
        cases.extend(top_ks.map(|top_k| Case { top_k, ..usual() }));
        cases.extend(top_ps.map(|top_p| Case { top_p, ..usual() }));
        cases.extend(min_ps.map(|min_p| Case { min_p, ..usual() }));
        cases.extend(penalties.map(|repetition_penalty| Case { repetition_penalty, seen: seen(), ..usual() }));
        cases.extend(seeds.map(|seed| Case { seed, ..usual() }));
        let mut pick = |n: usize| (noise.bits() % n as u64) as usize;
        cases.extend((0..24).map(|_| Case {
            temperature: temperatures[pick(temperatures.len())],
            top_k: top_ks[pick(top_ks.len())],
            top_p: top_ps[pick(top_ps.len())],
            min_p: min_ps[pick(min_ps.len())],
            repetition_penalty: penalties[pick(penalties.len())],
            seen: seen(),
            seed: seeds[pick(seeds.len())],
            ..usual()
        }));
        let generated: Vec<Token> = (0..n).flat_map(|token| (0..token % 4).map(move |_| token)).collect();
        let bias = |of: &[(Token, f32)]| of.iter().copied().filter(|(token, _)| *token < n).collect::<LogitBias>();
        let (both, ban) = (bias(&[(0, 1.5), (2, -0.75), (30, 100.0)]), bias(&[(0, -100.0), (1, 100.0)]));
        for (frequency_penalty, presence_penalty, logit_bias) in [
            (0.5, 0.0, bias(&[])),
            (0.0, -2.0, bias(&[])),
            (0.7, 0.3, both.clone()),
            (0.0, 0.0, both),
            (-1.1, 2.0, ban),
        ] {
            let generated = if frequency_penalty == presence_penalty { Vec::new() } else { generated.clone() };
            // Generated tokens are in the sequence, too.
            let is_seen = |token: &Token| token.is_multiple_of(3) || generated.contains(token);
            let seen: Vec<Token> = (0..n).filter(is_seen).collect();
            let changes = Some(Changes { frequency_penalty, presence_penalty, logit_bias, generated });
            for (temperature, repetition_penalty) in [(0.0, 1.0), (0.7, 1.0), (1.0, 1.3)] {
                let (changes, seen) = (changes.clone(), seen.clone());
                cases.push(Case { temperature, repetition_penalty, changes, seen, ..usual() });
            }
        }
    }
    cases
}

/// What this sampler says.
fn made() -> Golden {
    let indexes = [0, 1, 2, 3, 17, 4095, i32::MAX as u32];
    let logits = logits();
    let mut cases = cases(&logits);
    for case in &mut cases {
        let values: Vec<f32> = logits[&case.logits].iter().map(|logit| logit.unwrap_or(f32::NEG_INFINITY)).collect();
        let (sampling, past) = (case.sampling(), case.past());
        case.draws = indexes.map(|n| (n, sample(&values, &sampling, &past, n))).to_vec();
    }
    let numbers = [0, 1, 42, u64::MAX].into_iter().flat_map(|seed| indexes.map(|n| (seed, n, draw(seed, n))));
    Golden {
        about: "Draws of the embedded worker's sampler; see src/worker/src/worker/sampler/golden.rs. A logit of null is minus infinity.".into(),
        numbers: numbers.collect(),
        cases,
        logits,
    }
}

#[test]
fn golden_draws_are_what_parameters_and_seeds_mean() {
    // A case to a line, so that a change shows what it changes.
    let made = serde_json::to_string(&made()).unwrap().replace("{\"logits\":\"", "\n{\"logits\":\"") + "\n";
    if std::env::var_os("TRUNKLINE_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), &made).unwrap();
    }
    // As text: a parser may round numbers.
    let golden = std::fs::read_to_string(path()).unwrap();
    for (golden, made) in golden.lines().zip(made.lines()) {
        assert_eq!(golden, made);
    }
    assert_eq!(golden.len(), made.len());
}
