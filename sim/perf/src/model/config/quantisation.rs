//! Precision of published weights: `quantization_config`, by the names of vLLM's and SGLang's methods.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::ModelError;
use crate::model::{Arithmetic, Bits, Precision};

/// `quant_method` of the methods known here, for messages.
const KNOWN: &str = "fp8, awq, gptq, auto-round, compressed-tensors, mxfp4, modelopt (FP8, NVFP4), bitsandbytes";
/// Least number of bits of a quantised weight, and the largest.
const BITS: std::ops::RangeInclusive<u64> = 2..=8;

/// Relevant fields of `quantization_config`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Quantisation {
    quant_method: String,
    #[serde(alias = "w_bit")]
    bits: Option<u64>,
    /// Weights with a common scale; -1 for a whole row.
    #[serde(alias = "q_group_size")]
    group_size: Option<i64>,
    load_in_4bit: bool,
    bnb_4bit_use_double_quant: bool,
    quant_algo: Option<String>,
    config_groups: serde_json::Map<String, Value>,
    kv_cache_scheme: Option<Scheme>,
    kv_cache_quant_algo: Option<String>,
    /// Modules that are not quantised, or patterns of their names, by the names of several tools.
    ignore: Option<Value>,
    modules_to_not_convert: Option<Value>,
    ignored_layers: Option<Value>,
    exclude_modules: Option<Value>,
    /// Patterns of GPTQModel; those with `-:` are not quantised.
    dynamic: Option<serde_json::Map<String, Value>>,
}

/// How the weights, activations or KV of a `compressed-tensors` checkpoint are quantised.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Scheme {
    num_bits: u64,
    group_size: Option<i64>,
    #[serde(rename = "type")]
    sort: String,
}

/// Weights and activations of one group of `compressed-tensors`, and the names of its modules, or patterns of them.
#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    targets: Vec<String>,
    weights: Option<Scheme>,
    input_activations: Option<Scheme>,
}

impl Group {
    /// Returns `true` if the group names modules of a part of the layers.
    fn names(&self, is_of_part: fn(&str) -> bool) -> bool {
        self.targets.iter().any(|target| is_of_part(target))
    }

    /// Returns `true` if the group is of all matrices that no other group names.
    fn is_of_the_rest(&self) -> bool {
        !self.names(names_attention) && !self.names(is_feed_forward)
    }

    /// Returns `true` if the group quantises weights, and not those of the embedding and the output matrix alone.
    fn is_of_layers(&self) -> bool {
        let is_end = |target: &String| ["lm_head", "embed"].iter().any(|end| target.contains(end));
        self.weights.is_some() && (self.targets.is_empty() || !self.targets.iter().all(is_end))
    }

    /// Returns bits and arithmetic; `None` for bits out of range.
    fn precision(&self) -> Option<(Bits, Arithmetic)> {
        let weights = self.weights.as_ref()?;
        let scale = if weights.sort == "float" && weights.num_bits == 4 { 8 } else { 16 };
        let bits = bits(weights.num_bits, scale, weights.group_size, false)?;
        let narrow = self.input_activations.as_ref().filter(|activations| activations.num_bits == 8);
        let arithmetic = narrow.map_or(Arithmetic::Bits16, |activations| match activations.sort.as_str() {
            "int" => Arithmetic::Int8,
            _ => Arithmetic::Float8,
        });
        Some((bits, arithmetic))
    }
}

/// Contents of `hf_quant_config.json`, which Model Optimizer writes.
#[derive(Deserialize)]
struct OtherFile {
    quantization: Quantisation,
}

impl Quantisation {
    /// Returns the quantisation of the model called `name` from its configuration or, if the configuration has none, from the text of an
    /// `hf_quant_config.json` next to it; `None` for weights that are not quantised.
    ///
    /// # Errors
    ///
    /// [`ModelError::Quantisation`] if it is not understood.
    pub(super) fn of(name: &str, inside: Option<Value>, other: Option<&str>) -> Result<Option<Self>, ModelError> {
        let unclear = |field| move |fault| ModelError::Quantisation { name: name.into(), field, fault };
        if let Some(inside) = inside {
            return serde_json::from_value(inside).map(Some).map_err(unclear("quantization_config"));
        }
        let Some(other) = other else { return Ok(None) };
        let OtherFile { quantization } = serde_json::from_str(other).map_err(unclear("hf_quant_config.json"))?;
        Ok(Some(Self { quant_method: "modelopt".into(), ..quantization }))
    }

    /// Returns the precision of the weights of the model called `name`, of so many layers.
    ///
    /// # Errors
    ///
    /// [`ModelError::UnknownDtype`] for a method or a number of bits not known here.
    pub(super) fn precision(&self, name: &str, layers: u64) -> Result<Precision, ModelError> {
        let precision = self.precision_of_method(name)?;
        let attention = if self.spares_attention(layers) { Precision::BITS_16.attention } else { precision.attention };
        Ok(Precision { attention, ..precision })
    }

    /// Returns `true` if the matrices of attention of most layers are not quantised.
    fn spares_attention(&self, layers: u64) -> bool {
        let lists = [&self.ignore, &self.modules_to_not_convert, &self.ignored_layers, &self.exclude_modules];
        let listed = lists.into_iter().flatten().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        let patterns =
            self.dynamic.iter().flat_map(|patterns| patterns.keys()).filter_map(|key| key.strip_prefix("-:"));
        let spared: Vec<&str> = listed.chain(patterns).filter(|module| is_attention(module)).collect();
        let numbers: BTreeSet<u64> = spared.iter().filter_map(|module| layer_of(module)).collect();
        spared.iter().any(|module| layer_of(module).is_none()) || 2 * numbers.len() as u64 > layers
    }

    fn precision_of_method(&self, name: &str) -> Result<Precision, ModelError> {
        let unknown = || ModelError::UnknownDtype { name: name.into(), dtype: self.describe(), known: KNOWN };
        let widened = |bits| Precision::quantised(bits, Arithmetic::Bits16);
        let precision = match self.quant_method.as_str() {
            "fp8" | "fbgemm_fp8" => Precision::quantised(Bits::each(8), Arithmetic::Float8),
            // A scale of 16 bits and a zero point for each group.
            "awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto-round" | "auto_round" => {
                widened(bits(self.bits.ok_or_else(unknown)?, 16, self.group_size, true).ok_or_else(unknown)?)
            }
            "compressed-tensors" => self.compressed_tensors().ok_or_else(unknown)?,
            // As published for gpt-oss: experts alone.
            "mxfp4" => Precision { feed_forward: Bits::grouped(4, 8, 32), ..Precision::BITS_16 },
            "modelopt" | "modelopt_fp4" => match self.quant_algo.as_deref() {
                Some("FP8") => Precision::quantised(Bits::each(8), Arithmetic::Float8),
                Some("NVFP4") => widened(Bits::grouped(4, 8, 16)),
                // The KV alone.
                None if self.kv_cache_quant_algo.is_some() => Precision::BITS_16,
                _ => return Err(unknown()),
            },
            // NF4: the largest of 64 weights, in 32 bits or, quantised itself, in 8.
            "bitsandbytes" if self.load_in_4bit => {
                widened(Bits::grouped(4, if self.bnb_4bit_use_double_quant { 8 } else { 32 }, 64))
            }
            "bitsandbytes" => Precision::quantised(Bits::each(8), Arithmetic::Int8),
            _ => return Err(unknown()),
        };
        Ok(precision)
    }

    /// Returns the bytes of an element of the KV cache, which engines take from the checkpoint.
    pub(super) fn kv_bytes(&self) -> u64 {
        let is_fp8 = self.kv_cache_quant_algo.as_deref() == Some("FP8");
        if is_fp8 || self.kv_cache_scheme.as_ref().is_some_and(|scheme| scheme.num_bits == 8) { 1 } else { 2 }
    }

    /// Returns the precision of a `compressed-tensors` checkpoint; `None` without groups, or if a part of the layers has several.
    fn compressed_tensors(&self) -> Option<Precision> {
        let groups = self.config_groups.values().map(|group| serde_json::from_value(group.clone()).ok());
        let mut groups: Vec<Group> = groups.collect::<Option<_>>()?;
        groups.retain(Group::is_of_layers);
        if groups.is_empty() {
            return None;
        }
        let of_part = |is_of_part: fn(&str) -> bool| {
            let mut own = groups.iter().filter(|group| group.names(is_of_part)).peekable();
            let rest = if own.peek().is_none() { &groups[..] } else { &[] };
            let mut all = own.chain(rest.iter().filter(|group| group.is_of_the_rest())).map(Group::precision);
            let first = all.next().unwrap_or(Some((Bits::each(16), Arithmetic::Bits16)))?;
            all.all(|other| other == Some(first)).then_some(first)
        };
        let ((attention, _), (feed_forward, arithmetic)) = (of_part(names_attention)?, of_part(is_feed_forward)?);
        Some(Precision { attention, ..Precision::quantised(feed_forward, arithmetic) })
    }

    /// Returns the method for a message.
    fn describe(&self) -> String {
        let method = &self.quant_method;
        match (&self.quant_algo, self.bits) {
            (Some(algorithm), _) => format!("{method} {algorithm}"),
            (None, Some(bits)) => format!("{method} of {bits} bits"),
            (None, None) => method.clone(),
        }
    }
}

/// Returns `true` for the name, or a pattern, of all matrices of attention or of one of them.
fn is_attention(module: &str) -> bool {
    let Some(at) = module.rfind("attn") else { return false };
    let part = module[at + 4..].trim_matches(|c: char| !c.is_alphanumeric());
    part.is_empty()
        || ["q_proj", "k_proj", "v_proj", "o_proj", "qkv", "in_proj_qkv", "out_proj"]
            .iter()
            .any(|name| part.starts_with(name))
}

/// Returns `true` for a target of matrices of attention: a name, or a pattern, with `attn` or without.
fn names_attention(target: &str) -> bool {
    let name = target.trim_end_matches(|c: char| !c.is_alphanumeric());
    is_attention(target) || ["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"].iter().any(|end| name.ends_with(end))
}

/// Returns `true` for the name, or a pattern, of matrices of feed-forward networks, or of experts.
fn is_feed_forward(module: &str) -> bool {
    ["mlp", "ffn", "feed_forward", "expert", "gate_proj", "up_proj", "down_proj"]
        .iter()
        .any(|part| module.contains(part))
}

/// Returns the number of the layer in the name of a module; `None` for a pattern of all layers.
fn layer_of(module: &str) -> Option<u64> {
    module.split('.').find_map(|part| part.parse().ok())
}

/// Returns the bits of a weight with a scale for each group, and a zero point if there is one; `None` for bits out of range.
fn bits(bits: u64, scale: u64, group_size: Option<i64>, zero_point: bool) -> Option<Bits> {
    let shared = scale + if zero_point { bits } else { 0 };
    BITS.contains(&bits).then(|| match group_size.and_then(|size| u64::try_from(size).ok()) {
        Some(group @ 1..) => Bits::grouped(bits, shared, group),
        _ => Bits::each(bits),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precision(text: &str) -> Result<Precision, String> {
        let quantisation: Quantisation = serde_json::from_str(text).unwrap();
        quantisation.precision("m", 4).map_err(|error| error.to_string())
    }

    #[test]
    fn methods_have_the_bits_of_their_files() {
        let widened = |bits| Ok(Precision::quantised(bits, Arithmetic::Bits16));
        let in_8_bits = Ok(Precision::quantised(Bits::each(8), Arithmetic::Float8));
        let in_8_bit_integers = Ok(Precision::quantised(Bits::each(8), Arithmetic::Int8));
        for (text, expected) in [
            (
                r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true}"#,
                widened(Bits::grouped(4, 20, 128)),
            ),
            (r#"{"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": true}"#, widened(Bits::each(8))),
            (r#"{"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}"#, in_8_bits.clone()),
            (
                r#"{"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "float", "dynamic": true}}}}"#,
                in_8_bits.clone(),
            ),
            (
                r#"{"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                    "weights": {"num_bits": 4, "type": "int", "group_size": 128}, "input_activations": null}}}"#,
                widened(Bits::grouped(4, 16, 128)),
            ),
            (
                r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}"#,
                Ok(Precision { feed_forward: Bits::grouped(4, 8, 32), ..Precision::BITS_16 }),
            ),
            (
                r#"{"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"], "config_groups": {"group_0": {
                    "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}"#,
                Ok(Precision { feed_forward: Bits::grouped(4, 16, 32), ..Precision::BITS_16 }),
            ),
            (r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#, widened(Bits::grouped(4, 8, 16))),
            (r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#, widened(Bits::grouped(4, 32, 64))),
            (r#"{"quant_method": "bitsandbytes", "load_in_8bit": true}"#, in_8_bit_integers.clone()),
            (
                r#"{"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}}}"#,
                in_8_bit_integers,
            ),
        ] {
            assert_eq!(precision(text), expected, "{text}");
        }
    }

    #[test]
    fn attention_that_is_left_out_has_16_bits() {
        let spared = |lists: &str| {
            let text = format!(r#"{{"quant_method": "fp8", {lists}}}"#);
            precision(&text).unwrap()
                == Precision { attention: Bits::each(16), ..Precision::quantised(Bits::each(8), Arithmetic::Float8) }
        };
        for lists in [
            r#""modules_to_not_convert": ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn", "model.layers.2.self_attn"]"#,
            r#""ignored_layers": ["re:.*self_attn.*"]"#,
            r#""exclude_modules": ["lm_head", "*.self_attn.o_proj"]"#,
            r#""dynamic": {"-:.*attn.*": {}}"#,
            r#""ignore": null, "modules_to_not_convert": ["self_attn"]"#,
        ] {
            assert!(spared(lists), "{lists}");
        }
        for lists in [
            r#""modules_to_not_convert": ["model.layers.0.self_attn", "model.layers.3.self_attn"]"#,
            r#""ignore": ["lm_head", "model.layers.0.linear_attn.conv1d", "re:.*self_attn.q_norm"]"#,
            r#""dynamic": {"+:.*attn.*": {}}"#,
        ] {
            assert!(!spared(lists), "{lists}");
        }
    }

    #[test]
    fn groups_of_compressed_tensors_count_for_the_matrices_they_name() {
        let fp8 = r#"{"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}"#;
        let nvfp4 = r#"{"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}"#;
        let rest = r#"{"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}"#;
        let of = |groups: &[&str]| {
            let groups: Vec<_> =
                groups.iter().enumerate().map(|(n, group)| format!(r#""group_{n}": {group}"#)).collect();
            precision(&format!(
                r#"{{"quant_method": "compressed-tensors", "config_groups": {{{}}}}}"#,
                groups.join(",")
            ))
        };
        let four = Precision::quantised(Bits::grouped(4, 8, 16), Arithmetic::Bits16);
        let mixed = Precision { attention: Bits::each(8), ..four };
        for groups in [[fp8, nvfp4], [nvfp4, fp8], [fp8, rest], [rest, fp8]] {
            assert_eq!(of(&groups), Ok(mixed), "{groups:?}");
        }
        assert_eq!(of(&[nvfp4]), Ok(Precision { attention: Bits::each(16), ..four }), "attention is in no group");
        assert_eq!(of(&[rest, rest]), Ok(four));
        // By the names of single matrices, with an output matrix, and with activations alone.
        let by_name = r#"{"targets": ["re:.*q_proj", "re:.*o_proj$", "re:.*up_proj"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}"#;
        assert_eq!(of(&[by_name]), Ok(four));
        let head = r#"{"targets": ["re:.*lm_head"], "weights": {"num_bits": 8, "type": "float"}}"#;
        let activations = r#"{"targets": ["LlamaAttention"], "weights": null, "input_activations": {"num_bits": 8}}"#;
        assert_eq!(of(&[rest, head, activations]), Ok(four));
        let eight = nvfp4.replace(r#""num_bits": 4"#, r#""num_bits": 8"#);
        assert!(of(&[fp8, nvfp4, &eight]).unwrap_err().contains("'compressed-tensors' are not known here"));
    }

    #[test]
    fn what_is_not_known_is_named_with_what_is() {
        for (text, what) in [
            (r#"{"quant_method": "exl2", "bits": 5}"#, "exl2 of 5 bits"),
            (r#"{"quant_method": "gptq", "bits": 16}"#, "gptq of 16 bits"),
            (r#"{"quant_method": "awq"}"#, "awq"),
            (r#"{"quant_method": "modelopt", "quant_algo": "MIXED"}"#, "modelopt MIXED"),
            (r#"{"quant_method": "compressed-tensors"}"#, "compressed-tensors"),
            ("{}", ""),
        ] {
            let error = precision(text).unwrap_err();
            assert!(
                error.starts_with(&format!("m: weights of type '{what}' are not known here; there are: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn quantisation_beside_a_configuration_counts_if_it_has_none() {
        let of = |inside: Option<&str>, other: &str| {
            let inside = inside.map(|text| serde_json::from_str(text).unwrap());
            let quantisation = Quantisation::of("m", inside, Some(other)).map_err(|error| error.to_string())?.unwrap();
            let precision = quantisation.precision("m", 4).map_err(|error| error.to_string())?;
            Ok::<_, String>((precision, quantisation.kv_bytes()))
        };
        let other =
            |algorithms: &str| format!(r#"{{"producer": {{"name": "modelopt"}}, "quantization": {{{algorithms}}}}}"#);
        let nvfp4 = other(
            r#""quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]"#,
        );
        let widened = Precision::quantised(Bits::grouped(4, 8, 16), Arithmetic::Bits16);
        assert_eq!(of(None, &nvfp4), Ok((widened, 1)));
        let in_8_bits = Precision::quantised(Bits::each(8), Arithmetic::Float8);
        assert_eq!(of(Some(r#"{"quant_method": "fp8"}"#), &nvfp4), Ok((in_8_bits, 2)));
        let kv_alone = other(r#""quant_algo": null, "kv_cache_quant_algo": "FP8""#);
        assert_eq!(of(None, &kv_alone), Ok((Precision::BITS_16, 1)));
        let error = of(None, &other(r#""quant_algo": "W4A8_AWQ""#)).unwrap_err();
        assert!(error.starts_with("m: weights of type 'modelopt W4A8_AWQ' are not known here"), "{error}");
        let error = of(None, "{}").unwrap_err();
        assert!(error.starts_with("m: hf_quant_config.json is not understood: missing field"), "{error}");
        assert_eq!(Quantisation::of("m", None, None).unwrap().map(|_| ()), None);
    }

    #[test]
    fn the_kv_follows_the_checkpoint() {
        let kv_bytes = |text: &str| serde_json::from_str::<Quantisation>(text).unwrap().kv_bytes();
        assert_eq!(kv_bytes(r#"{"quant_method": "fp8"}"#), 2);
        assert_eq!(kv_bytes(r#"{"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}"#), 1);
        assert_eq!(
            kv_bytes(r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}"#),
            1
        );
    }
}
