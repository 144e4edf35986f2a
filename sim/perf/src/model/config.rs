//! Reader of a model's shapes from the `config.json` published with its weights.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use self::hybrid::LayerFields;
use self::quantisation::Quantisation;
use super::{Experts, Latent, Model, Precision, Windows};
use trunkline_sim_workload::UnknownName;

mod hybrid;
mod published;
mod quantisation;

/// Failure to load a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Name of no known preset.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// File cannot be read.
    #[error("{}: cannot be read: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        fault: std::io::Error,
    },
    /// Not a configuration of a decoder.
    #[error("{name}: not the config.json of a decoder that is known here: {fault}")]
    Malformed {
        /// Name of the model.
        name: String,
        /// Error of the parser.
        fault: serde_json::Error,
    },
    /// Number out of range.
    #[error("{name}: {field} is {value}; it must be {expected}")]
    OutOfRange {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value as found in the input.
        value: u64,
        /// Permitted values, in words.
        expected: &'static str,
    },
    /// Layers without attention of a sort that is not modelled.
    #[error(
        "{name}: {field} names layers that are no attention, and no recurrent ones known here; there are: Mamba, Mamba 2, and gated delta nets"
    )]
    Recurrent {
        /// Name of the model.
        name: String,
        /// Field that names the layers.
        field: &'static str,
    },
    /// Field that another one needs.
    #[error("{name}: {field} is missing; {why}")]
    Missing {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// What needs the field.
        why: &'static str,
    },
    /// Layers of several shapes, or networks side by side.
    #[error("{name}: {field} says that layers differ in a way that is not modelled")]
    Unmodelled {
        /// Name of the model.
        name: String,
        /// Field with the difference.
        field: &'static str,
    },
    /// Recurrent layers alone.
    #[error("{name}: by {field} no layer has attention, so there is no KV to plan")]
    NoAttention {
        /// Name of the model.
        name: String,
        /// Field that names the layers.
        field: &'static str,
    },
    /// Weights of a type with unknown size or speed.
    #[error("{name}: weights of type '{dtype}' are not known here; there are: {known}")]
    UnknownDtype {
        /// Name of the model.
        name: String,
        /// Type as found in the file.
        dtype: String,
        /// Types that are known.
        known: &'static str,
    },
}

/// Relevant fields, under the first of their names.
#[derive(Deserialize)]
struct Config {
    num_hidden_layers: u64,
    hidden_size: u64,
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    intermediate_size: Option<u64>,
    vocab_size: u64,
    tie_word_embeddings: bool,
    gated: bool,
    torch_dtype: Option<String>,
    quantization_config: Option<Quantisation>,
    #[serde(flatten)]
    experts: ExpertConfig,
    #[serde(flatten)]
    latent: LatentConfig,
    #[serde(flatten)]
    attention: AttentionConfig,
}

/// Fields of a mixture of experts.
#[derive(Deserialize)]
struct ExpertConfig {
    num_experts: Option<u64>,
    num_experts_per_tok: Option<u64>,
    moe_intermediate_size: Option<u64>,
    shared_expert_intermediate_size: Option<u64>,
    n_shared_experts: Option<u64>,
    first_k_dense_replace: Option<u64>,
    decoder_sparse_step: Option<u64>,
    mlp_only_layers: Option<Vec<u64>>,
    interleave_moe_layer_step: Option<u64>,
    expert_layer_period: Option<u64>,
    /// Whether a layer has experts, by layer; or a number.
    moe_layer_freq: Option<Value>,
    /// Width of the dense layers of Llama 4, whose `intermediate_size` is that of an expert.
    intermediate_size_mlp: Option<u64>,
}

impl ExpertConfig {
    /// Returns the number of layers, of so many, with a dense network in place of experts.
    fn dense_layers(&self, layers: u64) -> u64 {
        if let Some(flags) = self.moe_layer_freq.as_ref().and_then(Value::as_array) {
            return (flags.iter().filter(|flag| flag.as_u64() == Some(0)).count() as u64).min(layers);
        }
        let every = |step: Option<u64>| step.filter(|step| *step > 1).map(|step| layers - layers / step);
        let stepped = every(self.decoder_sparse_step)
            .or_else(|| every(self.interleave_moe_layer_step))
            .or_else(|| every(self.expert_layer_period));
        let listed = self.mlp_only_layers.as_ref().map_or(0, |listed| listed.len() as u64);
        let dense = stepped.unwrap_or(0) + listed + self.first_k_dense_replace.unwrap_or(0);
        dense.min(layers)
    }
}

/// Fields that say which tokens the attention of a layer reads.
#[derive(Deserialize)]
struct AttentionConfig {
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    sliding_window_pattern: Option<u64>,
    max_window_layers: Option<u64>,
    model_type: Option<String>,
    attention_chunk_size: Option<u64>,
    index_topk: Option<u64>,
    max_position_embeddings: Option<u64>,
    layer_types: Option<Vec<String>>,
}

impl AttentionConfig {
    /// Returns `true` if a context can be longer than so many tokens.
    fn limits(&self, tokens: Option<u64>) -> bool {
        tokens.is_some_and(|tokens| tokens < self.max_position_embeddings.unwrap_or(u64::MAX))
    }

    /// Returns the number of layers of a sort, if the configuration lists the sorts.
    fn count(&self, sort: &str) -> Option<u64> {
        let types = self.layer_types.as_ref()?;
        Some(types.iter().filter(|layer| *layer == sort).count() as u64)
    }

    /// Returns the layers with a sliding window, if a context can be longer than the window.
    fn windows(&self, n_layers: u64) -> Option<Windows> {
        let tokens = self.sliding_window.filter(|tokens| *tokens > 0 && self.limits(Some(*tokens)))?;
        if self.use_sliding_window == Some(false) {
            return None;
        }
        // One layer of so many reads every token; in Gemma 2 every second, which its configuration does not say.
        let alternates = self.model_type.as_deref() == Some("gemma2");
        let pattern = self.sliding_window_pattern.or(alternates.then_some(2)).filter(|pattern| *pattern > 0);
        let unlisted = match (pattern, self.max_window_layers.filter(|_| self.use_sliding_window == Some(true))) {
            (Some(pattern), _) => n_layers - n_layers / pattern,
            (None, Some(full)) => n_layers.saturating_sub(full),
            (None, None) => n_layers,
        };
        let layers = self.count("sliding_attention").unwrap_or(unlisted).min(n_layers);
        (layers > 0).then_some(Windows { tokens: tokens.min(u64::from(u32::MAX)) as u32, layers })
    }

    /// Returns the attention that is planned as full attention though it reads a part of the context alone, if a context can be longer
    /// than that part.
    fn partial(&self) -> Option<&'static str> {
        if self.limits(self.attention_chunk_size) && self.count("chunked_attention") != Some(0) {
            return Some("chunked attention");
        }
        self.limits(self.index_topk).then_some("sparse attention")
    }
}

/// Fields of multi-head latent attention.
#[derive(Clone, Copy, Deserialize)]
struct LatentConfig {
    q_lora_rank: Option<u64>,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    qk_nope_head_dim: Option<u64>,
    v_head_dim: Option<u64>,
}

/// Greatest width of any matrix, elements.
const WIDTH_MAX: u64 = 1 << 20;
/// Greatest number of layers, heads or experts, and greatest head width. Products of these and two widths fit in 64 bits.
const COUNT_MAX: u64 = 1 << 12;

/// Reads the file at `path` and names the model after the file, or after the folder of a `config.json`.
///
/// # Errors
///
/// [`ModelError`] if the file cannot be read or is invalid.
pub fn from_config(path: &Path) -> Result<Model, ModelError> {
    let text = std::fs::read_to_string(path).map_err(|fault| ModelError::Unreadable { path: path.into(), fault })?;
    let named = if path.ends_with("config.json") { path.parent().and_then(Path::file_name) } else { path.file_stem() };
    let name = named.map(|name| name.to_string_lossy().into_owned());
    parse_config(&name.unwrap_or_else(|| path.display().to_string()), &text)
}

/// Parses the text of a `config.json`. `name` stays in memory for the life of the program.
///
/// # Errors
///
/// [`ModelError`] if the text is invalid.
pub fn parse_config(name: &str, text: &str) -> Result<Model, ModelError> {
    let malformed = |fault| ModelError::Malformed { name: name.into(), fault };
    let published: Map<String, Value> = serde_json::from_str(text).map_err(malformed)?;
    let fields = published::fields(published);
    if let Some(field) = published::unmodelled(&fields) {
        return Err(ModelError::Unmodelled { name: name.into(), field });
    }
    let fields = Value::Object(fields);
    let sorts: LayerFields = serde_json::from_value(fields.clone()).map_err(malformed)?;
    let config: Config = serde_json::from_value(fields).map_err(malformed)?;
    config.check(name)?;
    let hybrid = sorts.hybrid(name)?;
    let heads = config.num_attention_heads;
    let layers = hybrid.map_or(config.num_hidden_layers, |(layers, _)| layers);
    let hybrid = hybrid.map(|(_, hybrid)| hybrid);
    let windows = config.attention.windows(layers);
    let partial = windows.and(hybrid).map(|_| "sliding windows");
    Ok(Model {
        name: name.to_owned().leak(),
        layers,
        hidden: config.hidden_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim: config.head_dim.unwrap_or(config.hidden_size / heads),
        intermediate: config.experts.intermediate_size_mlp.unwrap_or(config.intermediate(name)?),
        gated: config.gated,
        vocab: config.vocab_size,
        tied: config.tie_word_embeddings,
        precision: config.precision(name, layers)?,
        // Engines keep the KV in 16 bits unless told otherwise.
        kv_dtype_bytes: config.quantization_config.as_ref().map_or(2, Quantisation::kv_bytes),
        experts: config.experts(name, layers, sorts.dense_in_pattern())?,
        latent: config.latent(),
        windows: windows.filter(|_| hybrid.is_none()),
        hybrid,
        planned_as_full: config.attention.partial().or(partial),
    })
}

impl Config {
    fn check(&self, name: &str) -> Result<(), ModelError> {
        let fail = |field, value, expected| Err(ModelError::OutOfRange { name: name.into(), field, value, expected });
        for (field, value) in [
            ("num_hidden_layers", Some(self.num_hidden_layers)),
            ("num_attention_heads", Some(self.num_attention_heads)),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("num_experts", self.experts.num_experts.filter(|count| *count > 0)),
            ("num_experts_per_tok", self.experts.num_experts_per_tok.filter(|_| self.experts.num_experts != Some(0))),
            ("qk_rope_head_dim", self.latent.kv_lora_rank.and(self.latent.qk_rope_head_dim)),
            ("qk_nope_head_dim", self.latent.kv_lora_rank.and(self.latent.qk_nope_head_dim)),
            ("v_head_dim", self.latent.kv_lora_rank.and(self.latent.v_head_dim)),
        ] {
            if let Some(value) = value.filter(|value| !(1..=COUNT_MAX).contains(value)) {
                return fail(field, value, "between 1 and 4096");
            }
        }
        for (field, value) in [
            ("hidden_size", Some(self.hidden_size)),
            ("intermediate_size", self.intermediate_size),
            ("vocab_size", Some(self.vocab_size)),
            ("moe_intermediate_size", self.experts.moe_intermediate_size),
            ("intermediate_size_mlp", self.experts.intermediate_size_mlp),
            ("kv_lora_rank", self.latent.kv_lora_rank),
        ] {
            if let Some(value) = value.filter(|value| !(1..=WIDTH_MAX).contains(value)) {
                return fail(field, value, "between 1 and 1048576");
            }
        }
        for (field, value, max, expected) in [
            ("q_lora_rank", self.latent.q_lora_rank, WIDTH_MAX, "at most 1048576"),
            (
                "shared_expert_intermediate_size",
                self.experts.shared_expert_intermediate_size,
                WIDTH_MAX,
                "at most 1048576",
            ),
            ("n_shared_experts", self.experts.n_shared_experts, COUNT_MAX, "at most 4096"),
        ] {
            if let Some(value) = value.filter(|value| *value > max) {
                return fail(field, value, expected);
            }
        }
        let ExpertConfig { num_experts, num_experts_per_tok, first_k_dense_replace, .. } = self.experts;
        let dense = first_k_dense_replace.unwrap_or(0);
        if self.head_dim.is_none() && self.hidden_size < self.num_attention_heads {
            return fail("hidden_size", self.hidden_size, "at least num_attention_heads, without head_dim");
        }
        match (num_experts, num_experts_per_tok) {
            (Some(1..), Some(active)) if Some(active) > num_experts => {
                fail("num_experts_per_tok", active, "at most the number of experts")
            }
            _ if dense > self.num_hidden_layers => fail("first_k_dense_replace", dense, "at most num_hidden_layers"),
            _ => Ok(()),
        }
    }

    /// Returns the precision of the weights. Engines run a checkpoint in 32 bits in 16 (`--dtype auto` of vLLM and SGLang).
    fn precision(&self, name: &str, layers: u64) -> Result<Precision, ModelError> {
        if let Some(quantisation) = &self.quantization_config {
            return quantisation.precision(name, layers);
        }
        match self.torch_dtype.as_deref().unwrap_or("bfloat16") {
            "bfloat16" | "float16" | "float32" => Ok(Precision::BITS_16),
            other => {
                let known = "bfloat16, float16, float32";
                Err(ModelError::UnknownDtype { name: name.into(), dtype: other.into(), known })
            }
        }
    }

    /// Returns the width of a dense feed-forward network.
    fn intermediate(&self, name: &str) -> Result<u64, ModelError> {
        // A model of experts alone may leave it out.
        let width = self.intermediate_size.or(self.experts.moe_intermediate_size);
        let why = "it is the width of the feed-forward networks";
        width.ok_or_else(|| ModelError::Missing { name: name.into(), field: "intermediate_size", why })
    }

    /// Returns the experts of a model of so many layers, of which a pattern says how many are `dense`, if there is one.
    fn experts(&self, name: &str, layers: u64, dense: Option<u64>) -> Result<Option<Experts>, ModelError> {
        let experts = &self.experts;
        let Some(count) = experts.num_experts.filter(|count| *count > 0) else { return Ok(None) };
        let why = "it says how many of the experts a token uses";
        let missing = || ModelError::Missing { name: name.into(), field: "num_experts_per_tok", why };
        let active = experts.num_experts_per_tok.ok_or_else(missing)?;
        let width = experts.moe_intermediate_size.map_or_else(|| self.intermediate(name), Ok)?;
        // Llama 4 has one shared expert, which its configuration does not say.
        let shared = experts.n_shared_experts.unwrap_or(experts.interleave_moe_layer_step.map_or(0, |_| 1));
        Ok(Some(Experts {
            count,
            active,
            width,
            shared_width: experts.shared_expert_intermediate_size.unwrap_or(shared * width),
            dense_layers: dense.unwrap_or_else(|| experts.dense_layers(layers)),
        }))
    }

    fn latent(&self) -> Option<Latent> {
        Some(Latent {
            query_rank: self.latent.q_lora_rank.unwrap_or(0),
            kv_rank: self.latent.kv_lora_rank?,
            rope_dim: self.latent.qk_rope_head_dim?,
            nope_dim: self.latent.qk_nope_head_dim?,
            value_dim: self.latent.v_head_dim?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn a_dense_config_gives_the_preset() {
        let text = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "vocab_size": 128256, "rope_theta": 500000.0}"#;
        assert_eq!(parse_config("llama-3.1-8b", text).unwrap(), *model::by_name("llama-3.1-8b").unwrap());
    }

    #[test]
    fn experts_go_by_several_names() {
        let mixtral = r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}"#;
        assert_eq!(parse_config("mixtral-8x7b", mixtral).unwrap(), *model::by_name("mixtral-8x7b").unwrap());
        let qwen = r#"{"head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
            "num_key_value_heads": 4, "torch_dtype": "bfloat16", "vocab_size": 151936}"#;
        assert_eq!(parse_config("qwen3-30b-a3b", qwen).unwrap(), *model::by_name("qwen3-30b-a3b").unwrap());
    }

    #[test]
    fn deepseek_v3_has_as_many_weights_and_as_little_kv_as_its_report_says() {
        let text = r#"{"first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
            "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {"quant_method": "fp8"},
            "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280}"#;
        let model = parse_config("deepseek-v3", text).unwrap();
        let weights = model.layer_elements() + 2 * model.head_elements();
        assert!((weights as f64 / 671e9 - 1.0).abs() < 2e-3, "{weights}");
        assert_eq!(model.weight_bytes(), weights + 2 * model.head_elements(), "ends are of 16 bits");
        let active = model.active_elements() + model.head_elements();
        assert!((active as f64 / 37e9 - 1.0).abs() < 0.03, "{active}");
        assert_eq!(model.kv_bytes_per_token(), 61 * 576 * 2);
    }

    /// A model of 26 layers and 32,768 tokens of context, with further fields.
    fn small(more: &str) -> Result<Model, ModelError> {
        let text = format!(
            r#"{{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 26, "vocab_size": 9,
            "max_position_embeddings": 32768{more}}}"#
        );
        parse_config("m", &text)
    }

    #[test]
    fn a_model_is_named_after_its_file_or_folder() {
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("config/published/gemma-3-4b.json");
        for (file, name) in [("qwen/config.json", "qwen"), ("qwen/gemma-3-4b.json", "gemma-3-4b")] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            assert_eq!(from_config(&path).unwrap().name, name);
        }
    }

    /// Parameters of published models, and the bytes of their checkpoints and of the KV of a token, by their model cards and files.
    #[test]
    fn published_models_have_the_parameters_of_their_cards() {
        for (name, billions, gigabytes, kv_bytes) in [
            ("gpt-oss-20b", 20.9, 13.8, 24 * 2 * 8 * 64 * 2),
            ("gemma-3-4b", 3.88, 7.76, 34 * 2 * 4 * 256 * 2),
            ("llama-4-scout", 107.8, 215.5, 48 * 2 * 8 * 128 * 2),
            ("qwen3-next-80b", 79.5, 159.0, 12 * 2 * 2 * 256 * 2),
            ("nemotron-h-8b", 8.1, 16.2, 4 * 2 * 8 * 128 * 2),
            ("jamba-1.5-mini", 51.5, 103.0, 4 * 2 * 8 * 128 * 2),
            ("granite-4-h-small", 32.2, 64.4, 4 * 2 * 8 * 128 * 2),
            ("bamba-9b", 9.78, 19.6, 3 * 2 * 8 * 128 * 2),
            ("falcon-7b", 6.92, 13.8, 32 * 2 * 64 * 2),
            ("starcoder2-15b", 15.7, 31.3, 40 * 2 * 4 * 128 * 2),
            ("qwen2.5-7b-awq", 7.62, 5.6, 28 * 2 * 4 * 128 * 2),
            ("dbrx", 131.6, 263.1, 40 * 2 * 8 * 128 * 2),
            ("ernie-4.5-21b-a3b", 21.8, 43.6, 28 * 2 * 4 * 128 * 2),
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/model/config/published");
            let model =
                parse_config(name, &std::fs::read_to_string(path.join(format!("{name}.json"))).unwrap()).unwrap();
            let embedding = if model.tied { 0 } else { model.head_elements() };
            let weights = (model.layer_elements() + model.head_elements() + embedding) as f64 / 1e9;
            assert!((weights / billions - 1.0).abs() < 0.01, "{name}: {weights}");
            let bytes = model.weight_bytes() as f64 / 1e9;
            assert!((bytes / gigabytes - 1.0).abs() < 0.015, "{name}: {bytes}");
            assert_eq!(model.kv_bytes_per_token(), kv_bytes, "{name}");
        }
    }

    #[test]
    fn windows_are_those_of_the_families() {
        let windows = |more: &str| small(more).unwrap().windows.map(|windows| (windows.tokens, windows.layers));
        let types = |sorts: [&str; 2]| format!("{:?}", sorts.repeat(13));
        for (more, expected) in [
            // Mistral 0.1 and 0.2, Phi-3, and Qwen2 without and with windows.
            (r#", "sliding_window": 4096"#.into(), Some((4096, 26))),
            (r#", "sliding_window": null"#.into(), None),
            (r#", "sliding_window": 2047"#.into(), Some((2047, 26))),
            (r#", "sliding_window": 4096, "use_sliding_window": false"#.into(), None),
            (
                r#", "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 20"#.into(),
                Some((4096, 6)),
            ),
            (r#", "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 26"#.into(), None),
            // Gemma 2 and 3, gpt-oss; a window as long as any context.
            (r#", "sliding_window": 4096, "model_type": "gemma2""#.into(), Some((4096, 13))),
            (r#", "sliding_window": 512, "sliding_window_pattern": 6"#.into(), Some((512, 22))),
            (
                format!(
                    r#", "sliding_window": 128, "layer_types": {}"#,
                    types(["sliding_attention", "full_attention"])
                ),
                Some((128, 13)),
            ),
            (format!(r#", "sliding_window": 128, "layer_types": {}"#, types(["full_attention"; 2])), None),
            (r#", "sliding_window": 32768"#.into(), None),
        ] {
            assert_eq!(windows(&more), expected, "{more}");
        }
    }

    #[test]
    fn attention_that_is_planned_as_full_is_named_and_unknown_layers_are_refused() {
        let parse = |more: &str| small(more).map(|model| model.planned_as_full).map_err(|error| error.to_string());
        for (more, what) in [
            // Mistral, Llama 4, DeepSeek 3.2; chunks as long as any context.
            (r#", "sliding_window": 4096"#, None),
            (r#", "attention_chunk_size": 8192"#, Some("chunked attention")),
            (r#", "index_topk": 2048"#, Some("sparse attention")),
            (r#", "attention_chunk_size": 32768"#, None),
        ] {
            assert_eq!(parse(more), Ok(what), "{more}");
        }
        for (more, field) in [
            // LFM2, RecurrentGemma, Zamba2, and recurrent layers without sizes.
            (r#", "layer_types": ["conv", "full_attention"]"#, "layer_types"),
            (r#", "layers_block_type": ["mamba", "hybrid"]"#, "layer_types"),
            (r#", "layer_types": ["linear_attention", "full_attention"]"#, "layer_types"),
            (r#", "hybrid_override_pattern": "M-*?""#, "hybrid_override_pattern"),
            (r#", "block_types": ["recurrent", "attention"]"#, "layer_types"),
            (r#", "attn_layer_period": 8"#, "attn_layer_period"),
            // MiniMax, Kimi Linear, Phi-4 flash.
            (r#", "attn_type_list": [0, 0, 1]"#, "attn_type_list"),
            (r#", "linear_attn_config": {"kda_layers": [1]}"#, "linear_attn_config"),
            (r#", "mamba_d_state": 16, "mb_per_layer": 2"#, "mamba_d_state"),
        ] {
            let error = "names layers that are no attention, and no recurrent ones known here; there are: Mamba, Mamba 2, and gated delta nets";
            assert_eq!(parse(more), Err(format!("m: {field} {error}")));
        }
        let pure = parse(r#", "model_type": "mamba", "state_size": 16, "expand": 2, "conv_kernel": 4"#);
        assert_eq!(pure, Err("m: by mamba_d_state no layer has attention, so there is no KV to plan".into()));
    }

    #[test]
    fn what_says_too_little_or_too_much_is_refused() {
        let error = |more: &str| small(more).unwrap_err().to_string();
        assert_eq!(
            error(r#", "num_experts": 8"#),
            "m: num_experts_per_tok is missing; it says how many of the experts a token uses"
        );
        for field in ["hybrid_layer_pattern", "num_global_key_value_heads", "residual_moe"] {
            let expected = format!("m: {field} says that layers differ in a way that is not modelled");
            assert_eq!(error(&format!(r#", "{field}": [0, 1]"#)), expected);
            assert!(small(&format!(r#", "{field}": false"#)).is_ok());
        }
        let narrow = r#"{"hidden_size": 2, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9}"#;
        assert_eq!(
            parse_config("m", narrow).unwrap_err().to_string(),
            "m: hidden_size is 2; it must be at least num_attention_heads, without head_dim"
        );
        let huge = r#", "linear_num_value_heads": 4096, "linear_value_head_dim": 1048576, "linear_num_key_heads": 4096,
            "linear_key_head_dim": 4096, "full_attention_interval": 2"#;
        assert!(error(huge).starts_with("m: full_attention_interval names layers that are no attention"));
    }

    #[test]
    fn fields_of_families_are_understood() {
        // MiniMax M2 has attention in all layers; the first Qwen counts gate and input together; MiMo lists its dense layers.
        assert_eq!(small(r#", "attn_type_list": [1, 1]"#).unwrap().hybrid, None);
        assert_eq!(small(r#", "model_type": "qwen""#).unwrap().intermediate, 32);
        let experts = |more: &str| small(&format!(r#", "num_experts": 8{more}"#)).unwrap().experts.unwrap();
        assert_eq!(experts(r#", "top_k_experts": 2, "moe_layer_freq": [0, 1, 1, 0]"#).dense_layers, 2);
        assert_eq!(experts(r#", "moe_k": 2, "num_dense_layers": 3"#).dense_layers, 3);
        assert_eq!(experts(r#", "num_experts_per_tok": 2, "decoder_sparse_step": 2"#).dense_layers, 13);
        // A null does not hide what is around the configuration of the text model.
        let nested = r#"{"quantization_config": {"quant_method": "fp8"}, "text_config": {"hidden_size": 64, "intermediate_size": 64,
            "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9, "quantization_config": null}}"#;
        assert_ne!(parse_config("m", nested).unwrap().precision, Precision::BITS_16);
    }

    #[test]
    fn the_largest_numbers_can_be_counted_with() {
        let text = r#"{"hidden_size": 1048576, "intermediate_size": 1048576, "num_attention_heads": 4096, "head_dim": 4096,
            "num_hidden_layers": 4096, "num_experts": 4096, "num_experts_per_tok": 4096, "vocab_size": 1048576,
            "num_key_value_heads": 4096}"#;
        let model = parse_config("m", text).unwrap();
        assert!(model.weight_bytes() > 1 << 58 && model.kv_bytes_per_token() > 1 << 36 && model.pair_flops() > 1 << 36);
    }

    #[test]
    fn what_is_no_model_is_refused_in_one_line() {
        let error = |text: &str| parse_config("m", text).unwrap_err().to_string();
        assert!(error("{}").starts_with("m: not the config.json of a decoder that is known here: missing field"));
        let with = |more: &str| {
            format!(
                r#"{{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9{more}}}"#
            )
        };
        assert!(parse_config("m", &with("")).is_ok());
        assert_eq!(error(&with(r#", "head_dim": 0"#)), "m: head_dim is 0; it must be between 1 and 4096");
        assert_eq!(
            error(&with(r#", "num_experts": 2, "num_experts_per_tok": 3"#)),
            "m: num_experts_per_tok is 3; it must be at most the number of experts"
        );
        assert_eq!(
            error(&with(r#", "dtype": "int8""#)),
            "m: weights of type 'int8' are not known here; there are: bfloat16, float16, float32"
        );
    }
}
