//! Longest context of a model, as engines derive it (`_get_and_verify_max_len` of vLLM).

use serde_json::{Map, Value};

/// Fields with the scaling of the rotary positions: before version 5 of `transformers`, and from it on.
const SCALINGS: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Scalings after which the context is longer than `max_position_embeddings` says.
const STRETCHING: [&str; 3] = ["linear", "dynamic", "yarn"];

/// Families whose `max_position_embeddings` is the length after scaling.
const SCALED: [&str; 2] = ["gemma3", "gemma3_text"];

/// Returns the most tokens of prompt and answer together for a model of so many positions; `None` if the configuration does not say.
pub(super) fn longest(fields: &Map<String, Value>, positions: Option<u64>) -> Option<u32> {
    let family = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let scalings = SCALINGS.iter().filter_map(|name| fields.get(*name)?.as_object());
    // Models whose layers differ have an object for each sort of layer.
    let stretched = scalings
        .flat_map(|scaling| std::iter::once(scaling).chain(scaling.values().filter_map(Value::as_object)))
        .filter(|_| !SCALED.contains(&family))
        .filter_map(|scaling| stretch(scaling, positions));
    let tokens = stretched.max().or(positions)?;
    (tokens > 0).then(|| u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// Returns the longest context by one scaling; `None` if it leaves the context as it is.
fn stretch(scaling: &Map<String, Value>, positions: Option<u64>) -> Option<u64> {
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type"))?.as_str()?;
    if !STRETCHING.contains(&kind) {
        return None;
    }
    let factor = scaling.get("factor")?.as_f64().filter(|factor| *factor >= 1.0)?;
    let original = scaling.get("original_max_position_embeddings").and_then(Value::as_u64);
    let positions = original.filter(|_| kind == "yarn").or(positions)?;
    Some((positions as f64 * factor) as u64)
}

#[cfg(test)]
mod tests {
    use crate::model::parse_config;

    /// Returns the longest context of a small model of the family `llama` with more fields.
    fn longest(more: &str) -> Option<u32> {
        let text = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
            "intermediate_size": 128, "vocab_size": 256{more}}}"#
        );
        parse_config("small", &text).unwrap().max_context
    }

    #[test]
    fn the_longest_context_is_the_positions_times_the_factor_of_scalings_that_stretch_them() {
        assert_eq!(longest(""), None, "not said");
        let positions = r#", "max_position_embeddings": 4096"#;
        for (scaling, expected) in [
            ("", 4096),
            (r#", "rope_scaling": null"#, 4096),
            (r#", "rope_scaling": {"type": "linear", "factor": 4.0}"#, 16_384),
            (r#", "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}"#, 10_240),
            (
                r#", "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}"#,
                4096,
            ),
            (r#", "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}"#, 4096),
            (r#", "rope_scaling": {"type": "yarn", "factor": 4.0}"#, 16_384),
            (
                r#", "rope_parameters": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096}"#,
                32_768,
            ),
            (
                r#", "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}, "sliding_attention": {"rope_type": "default"}}"#,
                8192,
            ),
            (r#", "rope_scaling": {"type": "linear", "factor": -1}"#, 4096),
        ] {
            assert_eq!(longest(&format!("{positions}{scaling}")), Some(expected), "{scaling}");
        }
        let endless = r#", "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 1e300}"#;
        assert_eq!(longest(endless), Some(u32::MAX));
    }
}
