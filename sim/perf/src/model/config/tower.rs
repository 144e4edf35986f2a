//! Weights of the tower that embeds images, which an engine loads with the language model.

use serde_json::{Map, Value};

/// Fields that hold the configuration of a tower.
const TOWERS: [&str; 3] = ["vision_config", "vision_tower_config", "visual"];
/// Names of the numbers of a tower: layers, width, width of its networks, width of what it gives to the language model, side of a patch.
const LAYERS: [&str; 5] = ["num_hidden_layers", "depth", "layers", "num_layers", "n_layers"];
const WIDTH: [&str; 5] = ["hidden_size", "embed_dim", "width", "d_model", "vision_hidden_size"];
const NETWORK: [&str; 3] = ["intermediate_size", "mlp_dim", "ffn_hidden_size"];
const OUT: [&str; 3] = ["out_hidden_size", "projector_hidden_size", "vision_output_dim"];
/// Families of towers whose networks have a gate.
const GATED: [&str; 4] = ["pixtral", "qwen2_5_vl", "kimi_vl", "glm4v"];
/// Bytes of an element: towers are not quantised.
const ELEMENT_BYTES: u64 = 2;
/// Greatest number in a tower; products of two widths and layers fit in 64 bits.
const NUMBER_MAX: u64 = 1 << 16;
/// Patches on a side that are merged into a token, if the tower does not say.
const MERGED: u64 = 2;
/// Most patches on a side of a token.
const MERGED_MAX: u64 = 8;

/// Returns the bytes of a tower's weights by the configuration of a whole model; 0 without one, or if it does not say its size. Embeddings of patches
/// and positions are left out: below 2 % of a tower.
pub(super) fn bytes(published: &Map<String, Value>) -> u64 {
    let inner = published.get("thinker_config").and_then(Value::as_object).unwrap_or(published);
    let Some(tower) = TOWERS.iter().find_map(|name| inner.get(*name)?.as_object()) else { return 0 };
    let number = |names: &[&str]| {
        let value = names.iter().find_map(|name| tower.get(*name)?.as_u64());
        value.filter(|value| (1..=NUMBER_MAX).contains(value))
    };
    let (Some(layers), Some(width)) = (number(&LAYERS), number(&WIDTH)) else { return 0 };
    let ratio = tower.get("mlp_ratio").and_then(Value::as_f64).filter(|ratio| (0.0..=64.0).contains(ratio));
    let network = number(&NETWORK).unwrap_or((width as f64 * ratio.unwrap_or(4.0)) as u64);
    let family = tower.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let matrices = if GATED.iter().any(|gated| family.starts_with(gated)) { 3 } else { 2 };
    let of_layers = layers * (4 * width * width + matrices * width * network);
    // The projector: from merged patches, by way of their width, to that of the language model.
    let merged = width * number(&["spatial_merge_size", "merge_size"]).unwrap_or(MERGED).min(MERGED_MAX).pow(2);
    let projector = number(&OUT).map_or(0, |out| merged * merged + merged * out);
    (of_layers + projector) * ELEMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> u64 {
        bytes(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    #[test]
    fn a_tower_counts_by_its_widths() {
        // SigLIP of Gemma 3: 417 million parameters by its card, with its embeddings.
        let siglip =
            of(r#"{"vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}}"#);
        assert_eq!(siglip, 2 * 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304));
        assert!((400_000_000..420_000_000).contains(&(siglip / 2)), "{siglip}");
        let qwen = of(
            r#"{"vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 256}}"#,
        );
        assert_eq!(qwen, 2 * (2 * (4 * 64 * 64 + 2 * 64 * 128) + 256 * 256 + 256 * 256));
        let gated = of(
            r#"{"vision_config": {"model_type": "pixtral", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128}}"#,
        );
        assert_eq!(gated, 2 * (4 * 64 * 64 + 3 * 64 * 128));
        for none in ["{}", r#"{"vision_config": {"hidden_size": 64}}"#, r#"{"vision_config": null}"#] {
            assert_eq!(of(none), 0, "{none}");
        }
        let huge = r#"{"vision_config": {"depth": 18446744073709551615, "hidden_size": 65536}}"#;
        assert_eq!(of(huge), 0);
        assert!(
            of(
                r#"{"vision_config": {"depth": 65536, "hidden_size": 65536, "mlp_ratio": 64, "out_hidden_size": 65536}}"#
            ) < 1 << 62
        );
    }
}
