//! The longest context of a model, from the scaling of its rotary positions.
//!
//! Folders follow `_get_and_verify_max_len` of vLLM 0.11: Qwen2.5, for one, publishes YaRN by a factor of 4 with an unchanged
//! `max_position_embeddings`, and serves four times as much. GGUF files follow llama.cpp, which serves `context_length`; only where that is the
//! context before YaRN, the factor counts as in a folder.

use serde_json::Value;
use trunkline_quote::quoted;

/// Longest context of a model, tokens, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Maximum number of tokens of prompt and answer together.
    pub tokens: u32,
    /// Keys that say so.
    pub source: String,
}

/// Context under a scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// That of `max_position_embeddings`.
    Written,
    /// The factor times `max_position_embeddings`.
    Positions,
    /// The factor times `original_max_position_embeddings`.
    Original,
}

/// Rules by `rope_type`; `su` is an older name of `longrope`.
const RULES: [(&str, Rule); 8] = [
    ("default", Rule::Written),
    ("llama3", Rule::Written),
    ("longrope", Rule::Written),
    ("su", Rule::Written),
    ("mrope", Rule::Written),
    ("linear", Rule::Positions),
    ("dynamic", Rule::Positions),
    ("yarn", Rule::Original),
];

const POSITIONS: &str = "max_position_embeddings";
const ORIGINAL: &str = "original_max_position_embeddings";
/// Keys of the scaling, of which the first counts: from version 5 of transformers on, and before.
const SCALINGS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// Returns the context of a model with this `config.json`, and a note if the recipe is not plain. A configuration without positions has
/// `positions`.
pub fn context_of(config: &Value, positions: Option<u32>) -> (Option<Context>, Option<String>) {
    let count = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let written = count(config.get(POSITIONS));
    let Some(positions) = written.or(positions) else { return (None, None) };
    let as_written = || {
        let source = if written.is_some() { POSITIONS } else { "the default of the family" };
        Some(Context { tokens: positions, source: source.to_owned() })
    };
    let Some(scaling) = SCALINGS.iter().find_map(|key| config.get(*key).filter(|scaling| scaling.is_object())) else {
        return (as_written(), None);
    };
    let kind = ["rope_type", "type"].iter().find_map(|key| scaling.get(*key)?.as_str()).unwrap_or("default");
    let factor = scaling.get("factor").and_then(Value::as_f64).filter(|factor| factor.is_finite() && *factor > 0.0);
    let original = count(config.get(ORIGINAL)).or_else(|| count(scaling.get(ORIGINAL)));
    match (RULES.iter().find(|(known, _)| *known == kind), factor) {
        (Some((_, Rule::Written)), _) => (as_written(), None),
        (Some((_, Rule::Positions)), Some(factor)) => (Some(times(kind, factor, POSITIONS, positions)), None),
        (Some((_, Rule::Original)), Some(factor)) => {
            let (key, base) = original.map_or((POSITIONS, positions), |original| (ORIGINAL, original));
            let context = times(kind, factor, key, base);
            let is_plain = [base, context.tokens].contains(&positions) || context.tokens > positions;
            let note =
                format!("the context is {}, {}, though {POSITIONS} is {positions}", context.tokens, context.source);
            (Some(context), (!is_plain).then_some(note))
        }
        (Some(_), None) => (as_written(), None),
        (None, _) => {
            let note = format!("the context is {POSITIONS}, {positions}: rope type {} is not known", quoted(kind));
            (as_written(), Some(note))
        }
    }
}

/// Returns the context of a GGUF file with `context_length` tokens and the scaling `kind` by `factor` of `original`.
pub(crate) fn context_of_gguf(context_length: u32, kind: &str, factor: f64, original: Option<u32>) -> Context {
    if kind == "yarn" && factor > 1.0 && factor.is_finite() && original == Some(context_length) {
        return times(kind, factor, "rope.scaling.original_context_length", context_length);
    }
    Context { tokens: context_length, source: "context_length".to_owned() }
}

fn times(kind: &str, factor: f64, key: &str, base: u32) -> Context {
    Context { tokens: (f64::from(base) * factor) as u32, source: format!("{kind}: {factor} times {key}, {base}") }
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
