//! Reader of a model's shapes from the `config.json` published with its weights.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use trunkline_sim_workload::python_json::strict;

pub use self::errors::ModelError;
use self::hybrid::LayerFields;
use self::modules::Networks;
use self::quantisation::Quantisation;
use super::{Experts, Extras, Hybrid, Index, Latent, Model, Precision, Windows};

mod context;
mod errors;
mod hybrid;
mod modules;
mod published;
mod quantisation;
mod tower;
mod types;
mod unread;

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
    moe_latent_size: Option<u64>,
    shared_expert_intermediate_size: Option<u64>,
    n_shared_experts: Option<u64>,
    first_k_dense_replace: Option<u64>,
    decoder_sparse_step: Option<u64>,
    mlp_only_layers: Option<Vec<u64>>,
    interleave_moe_layer_step: Option<u64>,
    expert_layer_period: Option<u64>,
    /// `dense` or `sparse`, by layer.
    mlp_layer_types: Option<Vec<String>>,
    /// Whether a layer has experts, by layer; or a number.
    moe_layer_freq: Option<Value>,
    /// Width of the dense layers of Llama 4 and MiniMax-M3, whose `intermediate_size` is that of an expert.
    intermediate_size_mlp: Option<u64>,
}

/// Sort of a layer without experts in `mlp_layer_types`, and of a layer with experts.
const DENSE: &str = "dense";
const SPARSE: &str = "sparse";

impl ExpertConfig {
    /// Returns for each of so many layers whether it has a dense network instead of experts. A pattern says how many have.
    fn dense_layers(&self, layers: u64, in_pattern: Option<u64>) -> Vec<bool> {
        let no_experts = self.num_experts.unwrap_or(0) == 0;
        let flags = self.moe_layer_freq.as_ref().and_then(Value::as_array);
        let step = self.decoder_sparse_step.filter(|step| *step > 1);
        let step = step.or(self.interleave_moe_layer_step.filter(|step| *step > 1));
        let step = step.or(self.expert_layer_period.filter(|step| *step > 1));
        let is_dense = |layer: u64| {
            let at = layer as usize;
            if no_experts || in_pattern.is_some() {
                return no_experts || Some(layer) < in_pattern;
            }
            if let Some(sorts) = &self.mlp_layer_types {
                return sorts.get(at).is_some_and(|sort| sort == DENSE);
            }
            if let Some(flags) = flags {
                return flags.get(at).is_some_and(|flag| flag.as_u64() == Some(0));
            }
            // The last layer of each step has experts.
            step.is_some_and(|step| !(layer + 1).is_multiple_of(step))
                || layer < self.first_k_dense_replace.unwrap_or(0)
                || self.mlp_only_layers.as_ref().is_some_and(|listed| listed.contains(&layer))
        };
        (0..layers).map(is_dense).collect()
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
    attn_output_gate: Option<bool>,
    max_position_embeddings: Option<u64>,
    layer_types: Option<Vec<String>>,
    use_cla: Option<bool>,
    cla_share_factor: Option<u64>,
    /// Numbers of the layers whose attention reads an image.
    cross_attention_layers: Option<BTreeSet<u64>>,
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

    /// Returns what is said of the model besides its sizes.
    fn extras(&self, partial: Option<&'static str>, unread: String, tower_bytes: u64) -> Extras {
        Extras {
            family: self.model_type.clone().unwrap_or_default().leak(),
            planned_as_full: self.partial().or(partial),
            unread: unread.leak(),
            output_gate: self.attn_output_gate.unwrap_or(false),
            tower_bytes,
        }
    }

    /// Returns the number of layers with one KV in common.
    fn kv_share(&self) -> u64 {
        self.cla_share_factor.filter(|_| self.use_cla == Some(true)).unwrap_or(1)
    }

    /// Returns the number of layers, of so many, whose attention reads an image.
    fn cross_layers(&self, name: &str, layers: u64, hybrid: Option<Hybrid>) -> Result<u64, ModelError> {
        let (name, field) = (name.to_owned(), "cross_attention_layers");
        let Some(listed) = self.cross_attention_layers.as_ref() else { return Ok(0) };
        match (listed.last(), listed.len() as u64) {
            (Some(last), _) if *last >= layers => {
                let expected = "the number of a layer, from 0";
                Err(ModelError::OutOfRange { name, field, value: *last, expected })
            }
            (_, all) if all == layers => Err(ModelError::NoAttention { name, field }),
            (Some(_), _) if hybrid.is_some() => Err(ModelError::Unmodelled { name, field }),
            (_, count) => Ok(count),
        }
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
    index_head_dim: Option<u64>,
    index_n_heads: Option<u64>,
}

/// Greatest width of any matrix, elements.
const WIDTH_MAX: u64 = 1 << 20;
/// Greatest number of layers, heads or experts, and greatest head width. Products of these and two widths fit in 64 bits.
const COUNT_MAX: u64 = 1 << 12;

/// File next to a `config.json` with the quantisation of checkpoints of NVIDIA's Model Optimizer, where the `config.json` has none.
const QUANTISATION_FILE: &str = "hf_quant_config.json";

/// Reads the file at `path` and names the model after the file, or after the folder of a `config.json`. Quantisation that a `config.json` leaves out
/// is read from `hf_quant_config.json` in the same folder.
///
/// # Errors
///
/// [`ModelError`] if the file cannot be read or is invalid.
pub fn from_config(path: &Path) -> Result<Model, ModelError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|fault| ModelError::Unreadable { path: path.into(), fault })
    };
    let text = read(path)?;
    let other = path.with_file_name(QUANTISATION_FILE);
    let asks = path.ends_with("config.json") && !text.contains("\"quantization_config\"") && other.exists();
    let quantisation = if asks { Some(read(&other)?) } else { None };
    // A folder without a name is `.` or ends in `..`.
    let whole =
        if path.parent().is_some_and(|folder| folder.file_name().is_none()) { path.canonicalize().ok() } else { None };
    let whole = whole.as_deref().unwrap_or(path);
    let named = if path.ends_with("config.json") { whole.parent().and_then(Path::file_name) } else { path.file_stem() };
    let name = named.map(|name| name.to_string_lossy().into_owned());
    parse(&name.unwrap_or_else(|| path.display().to_string()), &text, quantisation.as_deref())
}

/// Parses the text of a `config.json`. `name` stays in memory for the life of the program.
///
/// # Errors
///
/// [`ModelError`] if the text is invalid.
pub fn parse_config(name: &str, text: &str) -> Result<Model, ModelError> {
    parse(name, text, None)
}

/// Parses the text of a `config.json`, and of an `hf_quant_config.json` for a configuration without quantisation.
fn parse(name: &str, text: &str, other: Option<&str>) -> Result<Model, ModelError> {
    let malformed = |fault| ModelError::Malformed { name: name.into(), fault };
    // Python writes infinite limits of time steps of recurrent layers without quotes.
    let published: Map<String, Value> = serde_json::from_str(text)
        .or_else(|fault| serde_json::from_str(&strict(text)).map_err(|_| malformed(fault)))?;
    let tower_bytes = tower::bytes(&published);
    let mut fields = published::fields(published);
    refuse(name, &fields)?;
    types::settle(name, &mut fields)?;
    let quantisation = Quantisation::of(name, fields.remove("quantization_config"), other)?;
    let positions = fields.get("max_position_embeddings").and_then(Value::as_u64);
    let max_context = context::longest(&fields, positions);
    let unread_quantisation = quantisation.as_ref().map(Quantisation::unread).unwrap_or_default();
    let unread = unread::names(&fields, &unread_quantisation);
    let fields = Value::Object(fields);
    let sorts: LayerFields = serde_json::from_value(fields.clone()).map_err(malformed)?;
    let hybrid = sorts.hybrid(name);
    if let Err(fault @ ModelError::NoAttention { .. }) = hybrid {
        // Such a model may lack the fields of attention.
        return Err(fault);
    }
    let config: Config = serde_json::from_value(fields).map_err(malformed)?;
    config.check(name)?;
    let hybrid = hybrid?;
    let heads = config.num_attention_heads;
    let layers = hybrid.map_or(config.num_hidden_layers, |(layers, _)| layers);
    let hybrid = hybrid.map(|(_, hybrid)| hybrid);
    let is_dense = config.experts.dense_layers(layers, sorts.dense_in_pattern());
    let experts = config.experts(name, &is_dense)?;
    let intermediate = config.experts.intermediate_size_mlp.unwrap_or(config.intermediate(name)?);
    let windows = config.attention.windows(layers);
    let (kv_share, cross_layers) = (config.attention.kv_share(), config.attention.cross_layers(name, layers, hybrid)?);
    let has_window_groups = hybrid.is_none() && kv_share == 1 && cross_layers == 0;
    let partial = windows.filter(|_| !has_window_groups).map(|_| "sliding windows");
    Ok(Model {
        name: name.to_owned().leak(),
        layers,
        hidden: config.hidden_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim: config.head_dim.unwrap_or(config.hidden_size / heads),
        intermediate,
        gated: config.gated,
        vocab: config.vocab_size,
        tied: config.tie_word_embeddings,
        precision: config.precision(name, layers, networks(&is_dense, intermediate, experts), quantisation.as_ref())?,
        // Engines keep the KV in 16 bits unless told otherwise.
        kv_dtype_bytes: quantisation.as_ref().map_or(2, Quantisation::kv_bytes),
        experts,
        latent: config.latent(),
        windows: windows.filter(|_| has_window_groups),
        hybrid,
        kv_share,
        cross_layers,
        max_context,
        extras: config.attention.extras(partial, unread, tower_bytes),
    })
}

/// Refuses models whose configuration has fields that cannot be modelled, or lacks those of a decoder.
fn refuse(name: &str, fields: &Map<String, Value>) -> Result<(), ModelError> {
    if let Some(field) = published::unmodelled(fields) {
        return Err(ModelError::Unmodelled { name: name.into(), field });
    }
    if let Some((field, lacks)) = published::unknown_name(fields) {
        return Err(ModelError::UnknownField { name: name.into(), field, lacks });
    }
    match published::no_decoder(fields) {
        Some(field) => Err(ModelError::NoDecoder { name: name.into(), field }),
        None => Ok(()),
    }
}

/// Returns the networks that a token passes through, in layers of which these are dense.
fn networks(is_dense: &[bool], intermediate: u64, experts: Option<Experts>) -> Networks<'_> {
    let Some(moe) = experts else { return Networks { is_dense, dense: 1, shared: 0, experts: 0 } };
    let sparse = (is_dense.len() as u64).saturating_sub(moe.dense_layers);
    Networks {
        is_dense,
        dense: moe.dense_layers * intermediate,
        shared: sparse * moe.shared_width,
        experts: sparse * moe.active * moe.width,
    }
}

impl Config {
    fn check(&self, name: &str) -> Result<(), ModelError> {
        let fail = |field, value, expected| Err(ModelError::OutOfRange { name: name.into(), field, value, expected });
        for (field, value) in [
            ("num_hidden_layers", Some(self.num_hidden_layers)),
            ("num_attention_heads", Some(self.num_attention_heads)),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("cla_share_factor", self.attention.cla_share_factor),
            ("num_experts", self.experts.num_experts.filter(|count| *count > 0)),
            ("num_experts_per_tok", self.experts.num_experts_per_tok.filter(|_| self.experts.num_experts != Some(0))),
            ("qk_rope_head_dim", self.latent.kv_lora_rank.and(self.latent.qk_rope_head_dim)),
            ("qk_nope_head_dim", self.latent.kv_lora_rank.and(self.latent.qk_nope_head_dim)),
            ("v_head_dim", self.latent.kv_lora_rank.and(self.latent.v_head_dim)),
            ("index_head_dim", self.latent.index_head_dim),
            ("index_n_heads", self.latent.index_n_heads),
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
            ("moe_latent_size", self.experts.moe_latent_size),
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
        self.check_relations(name)
    }

    /// Checks the numbers that depend on others.
    fn check_relations(&self, name: &str) -> Result<(), ModelError> {
        let fail = |field, value, expected| Err(ModelError::OutOfRange { name: name.into(), field, value, expected });
        let ExpertConfig { num_experts, num_experts_per_tok, first_k_dense_replace, .. } = self.experts;
        let dense = first_k_dense_replace.unwrap_or(0);
        if self.head_dim.is_none() && self.hidden_size < self.num_attention_heads {
            return fail("hidden_size", self.hidden_size, "at least num_attention_heads, without head_dim");
        }
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads.unwrap_or(1));
        if self.latent.kv_lora_rank.is_none() && !heads.is_multiple_of(kv_heads) {
            return fail("num_key_value_heads", kv_heads, "a divisor of num_attention_heads");
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
    fn precision(
        &self,
        name: &str,
        layers: u64,
        networks: Networks<'_>,
        quantisation: Option<&Quantisation>,
    ) -> Result<Precision, ModelError> {
        if let Some(quantisation) = quantisation {
            return quantisation.precision(name, layers, networks);
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

    /// Returns the experts of a model whose layers are dense or not.
    fn experts(&self, name: &str, is_dense: &[bool]) -> Result<Option<Experts>, ModelError> {
        let experts = &self.experts;
        let Some(count) = experts.num_experts.filter(|count| *count > 0) else { return Ok(None) };
        let unknown = |sort: &String| ![DENSE, SPARSE].contains(&sort.as_str());
        if experts.mlp_layer_types.iter().flatten().any(unknown) {
            return Err(ModelError::Unmodelled { name: name.into(), field: "mlp_layer_types" });
        }
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
            dense_layers: is_dense.iter().filter(|is_dense| **is_dense).count() as u64,
            latent_width: experts.moe_latent_size,
        }))
    }

    fn latent(&self) -> Option<Latent> {
        Some(Latent {
            query_rank: self.latent.q_lora_rank.unwrap_or(0),
            kv_rank: self.latent.kv_lora_rank?,
            rope_dim: self.latent.qk_rope_head_dim?,
            nope_dim: self.latent.qk_nope_head_dim?,
            value_dim: self.latent.v_head_dim?,
            // By default as in DeepSeek-V3.2.
            index: self.attention.index_topk.map(|_| Index {
                heads: self.latent.index_n_heads.unwrap_or(64),
                dim: self.latent.index_head_dim.unwrap_or(128),
            }),
        })
    }
}

#[cfg(test)]
mod tests;
