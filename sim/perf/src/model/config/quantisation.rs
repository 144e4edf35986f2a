//! Precision of published weights: `quantization_config`, by the names of vLLM's and SGLang's methods.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::ModelError;
use super::modules::{Form, Networks, Table, WHOLE, parts_of};
use super::unread::says_something;
use crate::model::{Arithmetic, Bits, Precision};

/// `quant_method` of the methods known here, for messages.
const KNOWN: &str = "fp8, awq, gptq, auto-round, compressed-tensors, mxfp4, mxfp8, modelopt (FP8, NVFP4, MXFP8, W4A8_AWQ, MIXED_PRECISION), quark, \
                     bitsandbytes";
/// Fields that give some modules other bits, or the KV: those of auto-round and of Quark.
const OVERRIDES: [&str; 2] = ["extra_config", "kv_cache_quant_config"];
/// Words in the names of fields that list modules, as in `layer_quant_config` of Quark.
const LISTING: [&str; 2] = ["layer", "module"];
/// Least number of bits of a quantised weight, and the largest.
const BITS: std::ops::RangeInclusive<u64> = 2..=8;
/// Four bits, and a scale of 8 bits for each 32 weights.
const MXFP4: Form = (Bits::grouped(4, 8, 32), Arithmetic::Bits16);
/// Eight bits, with scales of a channel or of a block, which do not count.
const FP8: Form = (Bits::each(8), Arithmetic::Float8);

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
    /// Algorithm of the experts alone (MiniMax-M3).
    moe_quant_algo: Option<String>,
    config_groups: Map<String, Value>,
    /// Algorithm of each module, with MIXED_PRECISION.
    quantized_layers: Map<String, Value>,
    /// Weights of all modules, by AMD's Quark.
    global_quant_config: Option<QuarkGroup>,
    kv_cache_scheme: Option<Value>,
    kv_cache_quant_algo: Option<String>,
    #[serde(flatten)]
    spared: Spared,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Modules that are not quantised, or patterns of their names, by the names of several tools.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spared {
    ignore: Option<Value>,
    modules_to_not_convert: Option<Value>,
    ignored_layers: Option<Value>,
    exclude_modules: Option<Value>,
    exclude: Option<Value>,
    /// Of bitsandbytes.
    llm_int8_skip_modules: Option<Value>,
    /// Patterns of GPTQModel; those with `-:` are not quantised.
    dynamic: Option<Map<String, Value>>,
}

impl Spared {
    /// Returns the names and patterns.
    fn names(&self) -> Vec<&str> {
        let lists = [
            &self.ignore,
            &self.modules_to_not_convert,
            &self.ignored_layers,
            &self.exclude_modules,
            &self.exclude,
            &self.llm_int8_skip_modules,
        ];
        let listed = lists.into_iter().flatten().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        let patterns = self.dynamic.iter().flat_map(Map::keys).filter_map(|key| key.strip_prefix("-:"));
        listed.chain(patterns).collect()
    }
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

/// Weights of a Quark checkpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct QuarkGroup {
    weight: Option<QuarkTensor>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct QuarkTensor {
    dtype: String,
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
    /// Returns the form of the weights; `None` for bits out of range.
    fn form(&self) -> Option<Form> {
        let weights = self.weights.as_ref()?;
        let scale = if weights.sort == "float" && weights.num_bits == 4 { 8 } else { 16 };
        let bits = bits(weights.num_bits, scale, weights.group_size, false)?;
        let activations = self.input_activations.as_ref().map(|it| (it.num_bits, it.sort.as_str()));
        let arithmetic = match activations {
            Some((8, "int")) => Arithmetic::Int8,
            Some((8, _)) => Arithmetic::Float8,
            Some((4, "float")) => Arithmetic::Float4,
            _ => Arithmetic::Bits16,
        };
        Some((bits, arithmetic))
    }

    /// Returns `true` if the group is of all modules that no other group names.
    fn is_of_the_rest(&self) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| parts_of(target).len() > 3)
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

    /// Returns the precision of the weights of the model called `name`, of so many layers with such networks.
    ///
    /// # Errors
    ///
    /// [`ModelError::UnknownDtype`] for a method or a number of bits not known here.
    pub(super) fn precision(&self, name: &str, layers: u64, networks: Networks<'_>) -> Result<Precision, ModelError> {
        let unknown = || ModelError::UnknownDtype { name: name.into(), dtype: self.describe(), known: KNOWN };
        let mut table = self.table(layers).ok_or_else(unknown)?;
        if let Some(algorithm) = &self.moe_quant_algo {
            table.set("experts", of_algorithm(algorithm, self.group_size).ok_or_else(unknown)?);
        }
        self.spared.names().into_iter().for_each(|module| table.set(module, WHOLE));
        Ok(table.precision(networks))
    }

    /// Returns the forms of all modules by the method, before modules are left out; `None` for a method not known here.
    fn table(&self, layers: u64) -> Option<Table> {
        let of_all = |form| Some(Table::new(layers, form));
        let widened = |bits| of_all((bits, Arithmetic::Bits16));
        match self.quant_method.as_str() {
            "fp8" | "fbgemm_fp8" => of_all(FP8),
            "mxfp8" => of_all(of_algorithm("MXFP8", None)?),
            // A scale of 16 bits and a zero point for each group.
            "awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto-round" | "auto_round" => {
                widened(bits(self.bits?, 16, self.group_size, true)?)
            }
            "compressed-tensors" => self.compressed_tensors(layers),
            // As published for gpt-oss: experts alone.
            "mxfp4" => {
                let mut table = Table::new(layers, WHOLE);
                table.set("experts", MXFP4);
                Some(table)
            }
            "modelopt" | "modelopt_fp4" | "modelopt_mixed" => match self.quant_algo.as_deref() {
                Some("MIXED_PRECISION") => self.mixed(layers),
                Some(algorithm) => of_all(of_algorithm(algorithm, self.group_size)?),
                // The KV alone.
                None => self.kv_cache_quant_algo.as_ref().and_then(|_| of_all(WHOLE)),
            },
            "quark" => match self.global_quant_config.as_ref()?.weight.as_ref()?.dtype.as_str() {
                "fp8_e4m3" => of_all(FP8),
                "fp4" => of_all(MXFP4),
                "int8" => of_all((Bits::each(8), Arithmetic::Int8)),
                _ => None,
            },
            // NF4: the largest of 64 weights, in 32 bits or, quantised itself, in 8.
            "bitsandbytes" if self.load_in_4bit => {
                widened(Bits::grouped(4, if self.bnb_4bit_use_double_quant { 8 } else { 32 }, 64))
            }
            "bitsandbytes" => of_all((Bits::each(8), Arithmetic::Int8)),
            _ => None,
        }
    }

    /// Returns the forms of modules that are listed with an algorithm each; others are whole.
    fn mixed(&self, layers: u64) -> Option<Table> {
        let mut table = Table::new(layers, WHOLE);
        for (module, form) in &self.quantized_layers {
            let algorithm = form.get("quant_algo")?.as_str()?;
            let group_size = form.get("group_size").and_then(Value::as_i64).or(self.group_size);
            table.set(module, of_algorithm(algorithm, group_size)?);
        }
        (!self.quantized_layers.is_empty()).then_some(table)
    }

    /// Returns the bytes of an element of the KV cache, which engines take from the checkpoint.
    pub(super) fn kv_bytes(&self) -> u64 {
        let is_narrow =
            |text: &str| ["fp8", "static", "dynamic", "float8", "int8"].iter().any(|it| text.starts_with(it));
        let by_scheme = match &self.kv_cache_scheme {
            Some(Value::String(text)) => is_narrow(&text.to_ascii_lowercase()),
            Some(Value::Object(scheme)) => scheme.get("num_bits").and_then(Value::as_u64) == Some(8),
            _ => false,
        };
        let by_algorithm =
            self.kv_cache_quant_algo.as_deref().is_some_and(|text| is_narrow(&text.to_ascii_lowercase()));
        if by_scheme || by_algorithm { 1 } else { 2 }
    }

    /// Returns the fields that may give modules, or the KV, bits that are not read.
    pub(super) fn unread(&self) -> Vec<String> {
        let lists = |name: &str| OVERRIDES.contains(&name) || LISTING.iter().any(|word| name.contains(word));
        let others = self.others.iter().filter(|(name, value)| lists(name) && says_something(value));
        let patterns = self.spared.dynamic.iter().flatten();
        let overrides = patterns.filter(|(pattern, value)| !pattern.starts_with("-:") && says_something(value));
        let dynamic = overrides.map(|_| "dynamic").next();
        others.map(|(name, _)| name.as_str()).chain(dynamic).chain(self.unread_kv()).map(str::to_owned).collect()
    }

    /// Returns a quantisation of the KV that is not known here, if there is one.
    fn unread_kv(&self) -> Option<&'static str> {
        let said = |text: &str| !text.is_empty() && !["none", "auto"].contains(&text.to_ascii_lowercase().as_str());
        let by_scheme = match &self.kv_cache_scheme {
            None | Some(Value::Null) => false,
            Some(Value::String(text)) => said(text),
            Some(_) => true,
        };
        match self.kv_bytes() {
            2 if by_scheme => Some("kv_cache_scheme"),
            2 if self.kv_cache_quant_algo.as_deref().is_some_and(said) => Some("kv_cache_quant_algo"),
            _ => None,
        }
    }

    /// Returns the forms of a `compressed-tensors` checkpoint; `None` without groups, or if two groups say different things of a module.
    fn compressed_tensors(&self, layers: u64) -> Option<Table> {
        let groups = self.config_groups.values().map(|group| serde_json::from_value(group.clone()).ok());
        let mut groups: Vec<Group> = groups.collect::<Option<_>>()?;
        groups.retain(|group| group.weights.is_some());
        let forms: Vec<Form> = groups.iter().map(Group::form).collect::<Option<_>>()?;
        let of = |rest: bool| groups.iter().zip(&forms).filter(move |(group, _)| group.is_of_the_rest() == rest);
        let mut rest = of(true).map(|(_, form)| *form);
        let first = rest.next();
        if groups.is_empty() || rest.any(|form| Some(form) != first) {
            return None;
        }
        let mut table = Table::new(layers, first.unwrap_or(WHOLE));
        let mut named: Vec<(&str, Form)> = Vec::new();
        for (group, form) in of(false) {
            for target in &group.targets {
                let meets = |(other, of): &(&str, Form)| {
                    *of != *form
                        && *other != target
                        && parts_of(other).iter().any(|part| parts_of(target).contains(part))
                };
                // Lists of single layers differ from layer to layer.
                let is_of_all = |name: &str| !name.contains(|c: char| c.is_ascii_digit());
                if is_of_all(target) && named.iter().any(|it| is_of_all(it.0) && meets(it)) {
                    return None;
                }
                if named.iter().any(|(other, of)| *other == target && of != form) {
                    return None;
                }
                named.push((target, *form));
                table.set(target, *form);
            }
        }
        Some(table)
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

/// Returns the form of an algorithm of NVIDIA's Model Optimizer; `None` for one not known here.
fn of_algorithm(algorithm: &str, group_size: Option<i64>) -> Option<Form> {
    let grouped = |scale: u64, default: u64| {
        let group = group_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        Bits::grouped(4, scale, group.unwrap_or(default))
    };
    match algorithm {
        "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "FP8_PB_WO" => Some(FP8),
        "MXFP8" => Some((Bits::grouped(8, 8, 32), Arithmetic::Float8)),
        "NVFP4" | "NVFP4_AWQ" => Some((grouped(8, 16), Arithmetic::Float4)),
        "W4A16_NVFP4" => Some((grouped(8, 16), Arithmetic::Bits16)),
        "MXFP4" => Some(MXFP4),
        "W4A8_AWQ" | "W4A16_AWQ" | "INT4_AWQ" => Some((grouped(16, 128), Arithmetic::Bits16)),
        "W8A8_SQ_PER_CHANNEL" | "INT8_SQ" => Some((Bits::each(8), Arithmetic::Int8)),
        _ => None,
    }
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
        quantisation.precision("m", 4, NETWORKS).map_err(|error| error.to_string())
    }

    /// Networks of four layers, half of them with a dense one and half with experts that are shared.
    const NETWORKS: Networks<'static> =
        Networks { is_dense: &[true, true, false, false], dense: 1, shared: 1, experts: 1 };

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
                Ok(Precision { experts: Bits::grouped(4, 8, 32), ..Precision::BITS_16 }),
            ),
            (
                r#"{"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"], "config_groups": {"group_0": {
                    "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}"#,
                Ok(Precision {
                    attention: Bits::each(16),
                    ..Precision::quantised(Bits::grouped(4, 16, 32), Arithmetic::Bits16)
                }),
            ),
            (
                r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#,
                Ok(Precision::quantised(Bits::grouped(4, 8, 16), Arithmetic::Float4)),
            ),
            (r#"{"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}"#, widened(Bits::grouped(4, 8, 16))),
            (
                r#"{"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}"#,
                Ok(Precision {
                    experts: Bits::grouped(4, 8, 16),
                    ..Precision::quantised(Bits::grouped(8, 8, 32), Arithmetic::Float8)
                }),
            ),
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
            r#""modules_to_not_convert": ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn", "re:.*layers.(2|3).self_attn"]"#,
            r#""ignored_layers": ["re:.*self_attn.*"]"#,
            r#""exclude_modules": ["lm_head", "*.self_attn.o_proj"]"#,
            r#""dynamic": {"-:.*self_attn.*": {}}"#,
            r#""llm_int8_skip_modules": ["lm_head", "self_attn"]"#,
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
        let whole = Bits::each(16);
        for groups in [[fp8, rest], [rest, fp8]] {
            assert_eq!(of(&groups), Ok(mixed), "{groups:?}");
        }
        for groups in [[fp8, nvfp4], [nvfp4, fp8]] {
            assert_eq!(of(&groups), Ok(Precision { recurrent: whole, ..mixed }), "{groups:?}");
        }
        let networks = Precision { attention: whole, recurrent: whole, ..four };
        assert_eq!(of(&[nvfp4]), Ok(networks), "attention is in no group");
        assert_eq!(of(&[rest, rest]), Ok(four));
        // By the names of single matrices, with an output matrix, and with activations alone.
        let by_name = r#"{"targets": ["re:.*q_proj", "re:.*o_proj$", "re:.*up_proj"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}"#;
        assert_eq!(of(&[by_name]), Ok(Precision { recurrent: whole, ..four }));
        let head = r#"{"targets": ["re:.*lm_head"], "weights": {"num_bits": 8, "type": "float"}}"#;
        let activations = r#"{"targets": ["LlamaAttention"], "weights": null, "input_activations": {"num_bits": 8}}"#;
        assert_eq!(of(&[rest, head, activations]), Ok(Precision { ends: Bits::each(12), ..four }));
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
            (r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}"#, "modelopt MIXED_PRECISION"),
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
            let precision = quantisation.precision("m", 4, NETWORKS).map_err(|error| error.to_string())?;
            Ok::<_, String>((precision, quantisation.kv_bytes()))
        };
        let other =
            |algorithms: &str| format!(r#"{{"producer": {{"name": "modelopt"}}, "quantization": {{{algorithms}}}}}"#);
        let nvfp4 = other(
            r#""quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]"#,
        );
        let in_4_bits = Precision::quantised(Bits::grouped(4, 8, 16), Arithmetic::Float4);
        assert_eq!(of(None, &nvfp4), Ok((in_4_bits, 1)));
        let in_8_bits = Precision::quantised(Bits::each(8), Arithmetic::Float8);
        assert_eq!(of(Some(r#"{"quant_method": "fp8"}"#), &nvfp4), Ok((in_8_bits, 2)));
        let kv_alone = other(r#""quant_algo": null, "kv_cache_quant_algo": "FP8""#);
        assert_eq!(of(None, &kv_alone), Ok((Precision::BITS_16, 1)));
        let error = of(None, &other(r#""quant_algo": "W3A8""#)).unwrap_err();
        assert!(error.starts_with("m: weights of type 'modelopt W3A8' are not known here"), "{error}");
        let error = of(None, "{}").unwrap_err();
        assert!(error.starts_with("m: hf_quant_config.json is not understood: missing field"), "{error}");
        assert_eq!(Quantisation::of("m", None, None).unwrap().map(|_| ()), None);
    }

    #[test]
    fn the_kv_follows_the_checkpoint() {
        let kv_bytes = |text: &str| serde_json::from_str::<Quantisation>(text).unwrap().kv_bytes();
        assert_eq!(kv_bytes(r#"{"quant_method": "fp8"}"#), 2);
        assert_eq!(kv_bytes(r#"{"quant_method": "fp8", "kv_cache_scheme": "static"}"#), 1);
        assert_eq!(kv_bytes(r#"{"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"}"#), 1);
        let unread = |text: &str| serde_json::from_str::<Quantisation>(text).unwrap().unread_kv();
        assert_eq!(unread(r#"{"quant_method": "fp8", "kv_cache_scheme": "static"}"#), None);
        assert_eq!(unread(r#"{"quant_method": "fp8", "kv_cache_scheme": "int4"}"#), Some("kv_cache_scheme"));
        assert_eq!(unread(r#"{"kv_cache_quant_algo": "NVFP4"}"#), Some("kv_cache_quant_algo"));
        assert_eq!(unread(r#"{"kv_cache_quant_algo": "none", "kv_cache_scheme": null}"#), None);
        assert_eq!(kv_bytes(r#"{"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}"#), 1);
        assert_eq!(
            kv_bytes(r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}"#),
            1
        );
    }

    #[test]
    fn overrides_that_are_not_read_are_named() {
        let unread = |fields: &str| {
            let text = format!(r#"{{"quant_method": "fp8", {fields}}}"#);
            serde_json::from_str::<Quantisation>(&text).unwrap().unread().join(", ")
        };
        for (fields, named) in [
            (r#""layer_quant_config": {"*k_proj": {"weight": {"dtype": "int4"}}}"#, "layer_quant_config"),
            (r#""layer_type_quant_config": {"Linear": {"bits": 4}}"#, "layer_type_quant_config"),
            (r#""dynamic": {"-:.*attn.*": {}, "+:.*mlp.*": {"bits": 8}}"#, "dynamic"),
            (r#""extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}}"#, "extra_config"),
            (r#""bits_of_modules": ["a"], "kv_cache_scheme": "int4""#, "bits_of_modules, kv_cache_scheme"),
            (r#""layer_quant_config": {}, "layer_type_quant_config": null, "extra_config": {}, "modules": []"#, ""),
            (r#""modules_to_not_convert": ["lm_head"], "ignored_layers": ["lm_head"], "exclude_modules": ["a"]"#, ""),
            (r#""dynamic": {"-:.*attn.*": {"bits": 8}}, "fmt": "e4m3", "weight_block_size": [128, 128]"#, ""),
        ] {
            assert_eq!(unread(fields), named, "{fields}");
        }
    }

    #[test]
    fn modules_of_mixed_precision_have_the_bits_of_their_algorithms() {
        let of = |network: &str| {
            let layer = |layer: u64| {
                let modules = ["q_proj", "o_proj"]
                    .map(|matrix| format!(r#""model.layers.{layer}.self_attn.{matrix}": {{"quant_algo": "FP8"}}"#));
                format!(r#"{}, "model.layers.{layer}.mlp.up_proj": {network}"#, modules.join(", "))
            };
            let layers: Vec<String> = (0..4).map(layer).collect();
            precision(&format!(
                r#"{{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {{{}}}}}"#,
                layers.join(", ")
            ))
        };
        let four = Bits::grouped(4, 8, 16);
        let found = of(r#"{"quant_algo": "NVFP4", "group_size": 16}"#).unwrap();
        // Shared experts are in no list.
        let mean = Bits::mean([(four, 1), (Bits::each(16), 1)].into_iter());
        let expected = Precision { attention: Bits::each(8), feed_forward: mean, ..Precision::BITS_16 };
        assert_eq!(found, expected);
        assert!(of(r#"{"quant_algo": "W3"}"#).unwrap_err().contains("'modelopt MIXED_PRECISION' are not known here"));
    }
}
