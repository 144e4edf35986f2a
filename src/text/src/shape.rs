//! Checks of a `tokenizer.json` before the library reads it: what would take memory or time without end, which no door stops.
//!
//! | bound | why | range in use |
//! |---|---|---|
//! | [`NODES_MAX`] values in a stage | each step may run over the whole text | tens, vocabularies aside |
//! | [`GROWTH_MAX`] of `Replace`, `ByteLevel` and templates in a row | each multiplies the text | 3 (a space becomes U+2581) |
//! | [`REPEATS_MAX`] of a regex | the library unrolls `x{n}` | `\p{N}{1,3}` |
//! | [`WORD_CHARS_MAX`] of WordPiece | cubic time in a word | 100, transformers' own default, and 200 |
//! | a charsmap that is as long as it says | its length is allocated | |
//! | second parts of merges begin with the model's prefix | the library cuts the prefix off unseen | |

use serde::Deserialize;
use serde_json::Value;
use trunkline_quote::{cut, quoted};

const NODES_MAX: usize = 10_000;
const GROWTH_MAX: usize = 4096;
const REPEATS_MAX: u64 = 10_000;
const WORD_CHARS_MAX: u64 = 1000;
/// Bytes that a text may have after its normalizer for each of its own.
const GROWN: usize = 64;
/// Bytes that any text may have after its normalizer.
const GROWN_FREE: usize = 64 << 10;

/// Parts of a file; the vocabulary is left out.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Model,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    max_input_chars_per_word: Value,
}

#[derive(Deserialize)]
struct WithMerges {
    model: Merges,
}

#[derive(Deserialize)]
struct Merges {
    #[serde(default)]
    merges: Value,
}

/// Returns the bytes or tokens that a text of so many bytes may become, at most.
pub(crate) fn grown_max(bytes: usize) -> usize {
    bytes.saturating_mul(GROWN).saturating_add(GROWN_FREE)
}

/// Checks the text of a `tokenizer.json`.
///
/// # Errors
///
/// It is not a JSON object, or has one of the faults above.
pub(crate) fn check(json: &[u8]) -> Result<(), String> {
    let outline: Outline = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let stages = [
        ("normalizer", &outline.normalizer),
        ("pre_tokenizer", &outline.pre_tokenizer),
        ("post_processor", &outline.post_processor),
        ("decoder", &outline.decoder),
    ];
    for (name, stage) in stages {
        let (mut nodes, mut growth) = (0, 1usize);
        walk(stage, &mut |value| {
            nodes += 1;
            if nodes > NODES_MAX {
                return Err(format!("it has more than {NODES_MAX} values"));
            }
            growth = growth.saturating_mul(growth_of(value)?);
            if growth > GROWTH_MAX {
                return Err(format!("its steps may make a text more than {GROWTH_MAX} times as long"));
            }
            Ok(())
        })
        .map_err(|problem| format!("{name}: {problem}"))?;
    }
    if outline.model.max_input_chars_per_word.as_u64().is_some_and(|chars| chars > WORD_CHARS_MAX) {
        return Err(format!("model: max_input_chars_per_word is not {WORD_CHARS_MAX} or less"));
    }
    match outline.model.continuing_subword_prefix.as_str() {
        Some(prefix) if !prefix.is_empty() => check_merges(json, prefix),
        _ => Ok(()),
    }
}

/// Visits a value and all values in it, parents first.
fn walk(value: &Value, visit: &mut impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    visit(value)?;
    match value {
        Value::Array(values) => values.iter().try_for_each(|value| walk(value, visit)),
        Value::Object(values) => values.values().try_for_each(|value| walk(value, visit)),
        _ => Ok(()),
    }
}

/// Checks a step by itself, and returns how many times as long it makes a text, at most. The library also takes steps that do not say their type.
fn growth_of(step: &Value) -> Result<usize, String> {
    if let Some(Value::String(regex)) = step.get("Regex") {
        check_repeats(regex)?;
    }
    if let Some(Value::String(map)) = step.get("precompiled_charsmap") {
        check_charsmap(map)?;
    }
    if let Some(Value::Array(pieces)) = step.get("single") {
        let texts = pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count();
        return Ok(texts.max(1));
    }
    if step.get("type").and_then(Value::as_str) == Some("ByteLevel") {
        return Ok(2);
    }
    match (step.get("pattern"), step.get("content").and_then(Value::as_str)) {
        // A replacement of nothing comes between all characters.
        (Some(pattern), Some(content)) => {
            let bytes = pattern.get("String").and_then(Value::as_str).map_or(0, str::len);
            Ok(if bytes == 0 { content.len() + 1 } else { content.len().div_ceil(bytes).max(1) })
        }
        _ => Ok(1),
    }
}

/// Checks the product of the repetitions `{n}` and `{n,m}` of a regex.
fn check_repeats(regex: &str) -> Result<(), String> {
    let counts = regex.split('{').skip(1).filter_map(|rest| {
        let (inside, _) = rest.split_once('}')?;
        inside.split(',').filter(|n| !n.is_empty()).map(|n| n.trim().parse::<u64>().ok()).collect::<Option<Vec<_>>>()
    });
    let product =
        counts.filter_map(|counts| counts.into_iter().max()).fold(1, |all: u64, n| all.saturating_mul(n.max(1)));
    let is_within = product <= REPEATS_MAX;
    if is_within {
        Ok(())
    } else {
        Err(format!("a regex repeats a part {product} times; at most {REPEATS_MAX} are read"))
    }
}

/// Checks that a charsmap in base64 begins with a length that it has.
fn check_charsmap(map: &str) -> Result<(), String> {
    let digit = |c: &u8| match c {
        b'A'..=b'Z' => u64::from(c - b'A'),
        b'a'..=b'z' => u64::from(c - b'a') + 26,
        b'0'..=b'9' => u64::from(c - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let bits = map.as_bytes().iter().take(6).fold(0, |bits, c| bits << 6 | digit(c));
    // Six digits are 36 bits; the length is the first four bytes, the lowest first.
    let said = ((bits >> 4) as u32).swap_bytes();
    let has = map.len() / 4 * 3;
    if map.len() < 8 || said as usize > has {
        return Err(format!("the charsmap says {said} bytes, and has {has}"));
    }
    Ok(())
}

/// Checks that the second parts of merges begin with `prefix`.
fn check_merges(json: &[u8], prefix: &str) -> Result<(), String> {
    let merges: WithMerges = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    for merge in merges.model.merges.as_array().into_iter().flatten() {
        let second = match merge {
            Value::String(pair) => pair.split_once(' ').map(|(_, second)| second),
            pair => pair.get(1).and_then(Value::as_str),
        };
        if second.is_some_and(|second| !second.starts_with(prefix)) {
            return Err(format!(
                "model: the merge {} does not go on with continuing_subword_prefix {}",
                cut(&merge.to_string()),
                quoted(prefix)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> String {
        check(json.as_bytes()).unwrap_err()
    }

    #[test]
    fn sizes_without_end_are_refused_and_those_of_models_are_not() {
        let replace = r#"{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}"#;
        let steps = |n: usize| {
            format!(r#"{{"normalizer":{{"type":"Sequence","normalizers":[{}]}}}}"#, vec![replace; n].join(","))
        };
        assert_eq!(check(steps(3).as_bytes()), Ok(()));
        assert_eq!(problem(&steps(9)), "normalizer: its steps may make a text more than 4096 times as long");
        let digits = format!(r#"{{"pre_tokenizer":{{"digits":[{}]}}}}"#, vec!["1"; NODES_MAX].join(","));
        assert_eq!(problem(&digits), "pre_tokenizer: it has more than 10000 values");
        let regex = |regex: &str| format!(r#"{{"pre_tokenizer":{{"type":"Split","pattern":{{"Regex":"{regex}"}}}}}}"#);
        assert_eq!(check(regex(r"\\p{N}{1,3}|\\s{2,}").as_bytes()), Ok(()));
        assert!(problem(&regex("(?=a){1,9}{99999999}")).contains("repeats a part 899999991 times"));
        let word = r#"{"model":{"type":"WordPiece","max_input_chars_per_word":100000}}"#;
        assert_eq!(problem(word), "model: max_input_chars_per_word is not 1000 or less");
        let map = |map: &str| format!(r#"{{"normalizer":{{"type":"Precompiled","precompiled_charsmap":"{map}"}}}}"#);
        assert_eq!(check(map("BAAAAAAAAAAA").as_bytes()), Ok(()));
        assert_eq!(problem(&map("/////wAAAAAA")), "normalizer: the charsmap says 4294967295 bytes, and has 9");
        let merges =
            |merge: &str| format!(r#"{{"model":{{"continuing_subword_prefix":"\u00e9","merges":[{merge}]}}}}"#);
        assert_eq!(check(merges(r#""a \u00e9b",["a","\u00e9b"]"#).as_bytes()), Ok(()));
        assert!(problem(&merges(r#""a \u20acb""#)).contains("does not go on with continuing_subword_prefix"));
        let twice = r#"{"single":[{"Sequence":{"id":"A"}},{"Sequence":{"id":"A"}}]}"#;
        let chain = |n: usize| format!(r#"{{"post_processor":[{}]}}"#, vec![twice; n].join(","));
        assert_eq!(check(chain(2).as_bytes()), Ok(()));
        assert!(problem(&chain(13)).starts_with("post_processor: its steps"));
    }
}
