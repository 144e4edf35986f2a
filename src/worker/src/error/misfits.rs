//! Weights that do not fit the model's configuration, recognised by the names of the tensors.

/// Ends of names that tell of quantised weights, and the format.
const QUANTISED: [(&str, &str); 6] = [
    (".qweight", "GPTQ or AWQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale", "FP8"),
    (".weight_scale_inv", "FP8"),
    (".absmax", "bitsandbytes"),
    (".scales", "MLX"),
];

/// Remedy for quantised weights.
pub(crate) const UNQUANTISED: &str = "take the model in F32, F16 or BF16, or as a GGUF file";

/// Returns the format of quantised weights, if a name has one.
pub(crate) fn quantised<'a>(mut present: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    present.find_map(|name| QUANTISED.iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| *format))
}

/// Returns what the tensors `present` are, and the remedy, if one of the names tells why the tensor `missing` is missing.
pub(crate) fn misfit(missing: &str, present: &[&str]) -> Option<String> {
    if present.iter().any(|name| name.starts_with("base_model.") || name.contains(".lora_")) {
        return Some(
            "the tensors are those of an adapter (LoRA); merge it into its base model with merge_and_unload of peft, and save that with \
             save_pretrained"
                .to_owned(),
        );
    }
    if let Some(format) = quantised(present.iter().copied()) {
        return Some(format!("the weights are quantised ({format}); {UNQUANTISED}"));
    }
    if let Some(bare) = missing.strip_prefix("model.").filter(|bare| present.contains(bare)) {
        return Some(format!(
            "{bare} without the prefix \"model.\" is there, so these are the weights of a base model without its head; save the whole \
             model, as AutoModelForCausalLM of transformers does"
        ));
    }
    let suffix = format!(".{missing}");
    if let Some(prefix) = present.iter().find_map(|name| name.strip_suffix(&suffix)) {
        return Some(format!(
            "it is there with the prefix \"{prefix}.\", so these are the weights of a larger model around this one; save the language \
             model alone"
        ));
    }
    if missing == "lm_head.weight" {
        return Some(
            "the configuration does not say \"tie_word_embeddings\": true, so the head has weights of its own; say so if the head is the \
             embedding, or take the weights with the head"
                .to_owned(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_the_weights_are() {
        for (missing, present, expected) in [
            (
                "model.norm.weight",
                &["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"][..],
                "an adapter",
            ),
            ("model.norm.weight", &["model.layers.0.mlp.up_proj.lora_B.default.weight"], "an adapter"),
            ("model.layers.0.mlp.up_proj.weight", &["model.layers.0.mlp.up_proj.qweight"], "quantised (GPTQ or AWQ)"),
            ("model.layers.0.mlp.up_proj.weight", &["model.layers.0.mlp.up_proj.weight_packed"], "compressed-tensors"),
            (
                "model.embed_tokens.weight",
                &["embed_tokens.weight"],
                "embed_tokens.weight without the prefix \"model.\"",
            ),
            ("model.embed_tokens.weight", &["language_model.model.embed_tokens.weight"], "prefix \"language_model.\""),
            ("model.embed_tokens.weight", &["_orig_mod.model.embed_tokens.weight"], "prefix \"_orig_mod.\""),
            ("lm_head.weight", &["model.embed_tokens.weight"], "\"tie_word_embeddings\": true"),
        ] {
            let hint = misfit(missing, present).unwrap();
            assert!(hint.contains(expected) && !hint.contains('\n'), "{hint}");
        }
        assert_eq!(misfit("model.norm.weight", &["model.embed_tokens.weight"]), None);
        assert_eq!(misfit("model.norm.weight", &[]), None);
    }
}
