//! Configurations as published: nested ones, fields under several names, and what a family leaves out because its class in `transformers`
//! has it by default.

use serde_json::{Map, Value};
use trunkline_quote::quoted;

/// Fields that hold the configuration of the language model of a multi-modal one, the outermost first: that of Qwen Omni thinks in text
/// before it talks.
const NESTED: [&str; 4] = ["thinker_config", "text_config", "llm_config", "language_config"];

/// Fields that hold a part of the configuration: DBRX, MPT.
const PARTS: [&str; 2] = ["attn_config", "ffn_config"];

/// Fields, and their other names.
const NAMES: [(&str, &[&str]); 24] = [
    ("num_hidden_layers", &["n_layer", "n_layers", "num_layers"]),
    ("hidden_size", &["n_embd", "n_embed", "d_model"]),
    ("num_attention_heads", &["n_head", "n_heads"]),
    ("num_key_value_heads", &["num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num"]),
    ("head_dim", &["attention_head_dim", "kv_channels"]),
    ("intermediate_size", &["ffn_hidden_size", "ffn_dim", "n_inner"]),
    ("vocab_size", &["padded_vocab_size"]),
    ("max_position_embeddings", &["n_positions", "seq_length", "max_seq_len"]),
    ("torch_dtype", &["dtype"]),
    ("quantization_config", &["compression_config"]),
    ("num_experts", &["num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"]),
    (
        "num_experts_per_tok",
        &["experts_per_token", "moe_top_k", "moe_k", "moe_topk", "top_k_experts", "num_experts_per_token"],
    ),
    ("n_shared_experts", &["moe_num_shared_experts", "num_shared_experts", "num_shared_expert"]),
    ("first_k_dense_replace", &["moe_layer_start_index", "num_dense_layers", "moe_layer_num_skipped"]),
    ("shared_expert_intermediate_size", &["shared_intermediate_size", "moe_shared_expert_intermediate_size"]),
    ("layer_types", &["layers_block_type", "block_types"]),
    ("mamba_d_state", &["ssm_state_size", "state_size"]),
    // openPangu.
    ("q_lora_rank", &["attention_q_lora_dim"]),
    ("intermediate_size_mlp", &["dense_intermediate_size"]),
    ("attn_output_gate", &["attention_output_gate"]),
    ("kv_lora_rank", &["attention_kv_lora_dim"]),
    ("qk_nope_head_dim", &["attention_qk_dim"]),
    ("qk_rope_head_dim", &["attention_qk_rope_dim"]),
    ("v_head_dim", &["attention_v_dim"]),
];

/// Marks of fields of models with experts or with a latent cache, and the field that says how many, or how wide: a model with the one and
/// without the other has it under a name that is not known here.
const MARKS: [(&str, &str); 3] =
    [("expert", "num_experts"), ("moe_intermediate_size", "num_experts"), ("kv_lora", "kv_lora_rank")];

/// Families whose output matrix is the embedding unless `tie_word_embeddings` says otherwise.
const TIED: [&str; 17] = [
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "cohere",
    "cohere2",
    "gpt2",
    "gpt_bigcode",
    "opt",
    "falcon",
    "bloom",
    "mpt",
    "starcoder2",
    "smollm3",
    "ernie4_5",
    "minicpm",
    "minicpm3",
];

/// Families whose attention has an output gate unless `attn_output_gate` says otherwise.
const GATED_ATTENTION: [&str; 5] = ["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"];

/// Families whose feed-forward networks have two matrices: no gate.
const UNGATED: [&str; 16] = [
    "gpt2",
    "gpt_bigcode",
    "gptj",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
    "mpt",
    "phi",
    "codegen",
    "starcoder2",
    "nemotron",
    "nemotron_h",
    "arcee",
    "apertus",
    "persimmon",
];

/// Fields of families that leave them out.
const DEFAULTS: [(&str, &[(&str, u64)]); 2] = [
    (
        "gemma3_text",
        &[
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("vocab_size", 262_208),
            ("sliding_window", 4096),
            ("sliding_window_pattern", 6),
            ("max_position_embeddings", 131_072),
        ],
    ),
    ("gemma2", &[("sliding_window", 4096), ("max_position_embeddings", 8192)]),
];

/// Fields that a nested configuration leaves out if they are those of the family's class in `transformers`, which writes differences alone.
const NESTED_DEFAULTS: [(&str, &[(&str, u64)]); 5] = [
    (
        "llama",
        &[
            ("hidden_size", 4096),
            ("intermediate_size", 11_008),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("vocab_size", 32_000),
            ("max_position_embeddings", 2048),
        ],
    ),
    (
        "mistral",
        &[
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("num_key_value_heads", 8),
            ("vocab_size", 32_000),
            ("max_position_embeddings", 131_072),
        ],
    ),
    (
        "qwen2",
        &[
            ("hidden_size", 4096),
            ("intermediate_size", 22_016),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("num_key_value_heads", 32),
            ("vocab_size", 151_936),
            ("max_position_embeddings", 32_768),
        ],
    ),
    (
        "qwen3",
        &[
            ("hidden_size", 4096),
            ("intermediate_size", 22_016),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("num_key_value_heads", 32),
            ("head_dim", 128),
            ("vocab_size", 151_936),
            ("max_position_embeddings", 32_768),
        ],
    ),
    ("gemma3_text", &[("hidden_size", 2304), ("intermediate_size", 9216), ("num_hidden_layers", 26)]),
];

/// Fields of models whose layers differ in KV, heads, widths or networks: Gemma 4, MiMo-V2, Step-3.5, Nemotron NAS, LongCat, Grok, Arctic, Ring,
/// DeepSeek-V4, whose layers compress their KV differently and whose experts have a type of their own, Gemma 3n, Laguna, MiniMax-M3, whose index
/// chooses blocks, and HRM, whose layers run several times. `per_layer_config` is what `transformers` from version 5 on writes for all such families.
const UNMODELLED: [&str; 18] = [
    "num_global_key_value_heads",
    "hybrid_layer_pattern",
    "num_attention_groups",
    "block_configs",
    "zero_expert_num",
    "residual_moe",
    "parallel_attn_mlp_res",
    "enable_moe_block",
    "layer_group_size",
    "moe_layers_enum",
    "compress_ratios",
    "expert_dtype",
    "num_kv_shared_layers",
    "num_attention_heads_per_layer",
    "per_layer_config",
    "global_head_dim",
    "index_topk_blocks",
    "H_cycles",
];

/// Returns `true` for a field by which models are refused, unless it says nothing.
pub(super) fn says_what_differs(field: &str) -> bool {
    UNMODELLED.contains(&field)
}

/// Families whose attention has experts of its own.
const EXPERTS_OF_ATTENTION: [&str; 1] = ["jetmoe"];

/// Families of encoders, which are decoders too if `is_decoder` says so.
const ENCODERS: [&str; 13] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "albert",
    "electra",
    "deberta",
    "deberta-v2",
    "mpnet",
    "modernbert",
    "nomic_bert",
    "eurobert",
];

/// Returns the field, with its value, by which the model is an encoder or has one, if it does.
pub(super) fn no_decoder(fields: &Map<String, Value>) -> Option<String> {
    let is = |name: &str| fields.get(name).and_then(Value::as_bool) == Some(true);
    if is("is_encoder_decoder") {
        return Some("is_encoder_decoder".into());
    }
    if is("is_decoder") {
        return None;
    }
    let family = fields.get("model_type").and_then(Value::as_str).filter(|family| ENCODERS.contains(family));
    let classes = fields.get("architectures").and_then(Value::as_array);
    let masked = classes.into_iter().flatten().filter_map(Value::as_str).find(|class| class.ends_with("ForMaskedLM"));
    let family = family.map(|family| format!("model_type {family}", family = quoted(family)));
    family.or_else(|| masked.map(|class| format!("the class {class}", class = quoted(class))))
}

/// Returns a field that says what is not modelled, if there is one.
pub(super) fn unmodelled(fields: &Map<String, Value>) -> Option<&'static str> {
    let is_nothing = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        value => *value == Value::Bool(false) || value.as_u64() == Some(0),
    };
    let says = |field: &&str| fields.get(*field).is_some_and(|value| !is_nothing(value));
    let number = |field: &str| fields.get(field).and_then(Value::as_u64);
    // Keys and values of different widths, but in a latent cache.
    let is_uneven =
        number("kv_lora_rank").is_none() && number("v_head_dim").is_some_and(|width| Some(width) != number("head_dim"));
    let own_indexes = |sorts: &Value| sorts.as_array().is_some_and(|sorts| sorts.iter().all(|sort| sort == "full"));
    let shares_indexes = fields.get("indexer_types").is_some_and(|sorts| !own_indexes(sorts));
    let family = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    [
        (is_uneven, "v_head_dim"),
        (shares_indexes, "indexer_types"),
        (EXPERTS_OF_ATTENTION.contains(&family), "model_type"),
    ]
    .into_iter()
    .find_map(|(is_so, field)| is_so.then_some(field))
    .or_else(|| UNMODELLED.into_iter().find(says))
}

/// Returns a field of a model with experts or with a latent cache, and the field that it lacks, if there is one.
pub(super) fn unknown_name(fields: &Map<String, Value>) -> Option<(String, &'static str)> {
    let marked = |(field, value): (&String, &Value)| {
        let number = value.as_u64().filter(|number| *number > 1)?;
        let (_, lacks) = MARKS.iter().find(|(mark, lacks)| field.contains(mark) && !fields.contains_key(*lacks))?;
        (number > 1).then(|| (field.clone(), *lacks))
    };
    fields.iter().find_map(marked)
}

/// Returns the fields of the language model, each under its first name, with the defaults of the family. Fields of a nested configuration
/// come before those around it.
pub(super) fn fields(mut published: Map<String, Value>) -> Map<String, Value> {
    let mut no_experts = without_nulls(&mut published);
    let mut is_nested = false;
    for name in NESTED {
        if let Some(Value::Object(mut inner)) = published.remove(name) {
            is_nested = true;
            no_experts |= without_nulls(&mut inner);
            published.extend(inner);
        }
    }
    for name in PARTS {
        if let Some(Value::Object(part)) = published.remove(name) {
            part.into_iter().filter(|(_, value)| !value.is_null()).for_each(|(name, value)| {
                published.entry(name).or_insert(value);
            });
        }
    }
    for (name, others) in NAMES {
        for other in others {
            if let Some(value) = published.remove(*other) {
                published.entry(name).or_insert(value);
            }
        }
    }
    if no_experts {
        published.entry("num_experts").or_insert(0.into());
    }
    // Nemotron-H as transformers from version 5 on writes it.
    if let Some(layers) = published.get("layer_types").and_then(Value::as_array).map(Vec::len) {
        published.entry("num_hidden_layers").or_insert(layers.into());
    }
    let family = published.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let defaults = DEFAULTS.iter().chain(if is_nested { &NESTED_DEFAULTS[..] } else { &[] });
    for (name, value) in defaults.filter(|(name, _)| *name == family).flat_map(|(_, defaults)| *defaults) {
        published.entry(*name).or_insert((*value).into());
    }
    published.entry("tie_word_embeddings").or_insert(TIED.contains(&family.as_str()).into());
    // By the class of Qwen3-Next, whose configuration does not say it.
    if GATED_ATTENTION.contains(&family.as_str()) {
        published.entry("attn_output_gate").or_insert(true.into());
    }
    published.entry("gated").or_insert((!UNGATED.contains(&family.as_str())).into());
    if UNGATED.contains(&family.as_str())
        && let Some(hidden) = published.get("hidden_size").and_then(Value::as_u64)
    {
        published.entry("intermediate_size").or_insert(hidden.saturating_mul(4).into());
    }
    correct(&family, &mut published);
    published
}

/// Removes fields without a value. Returns `true` if the number of experts is one of them: there are none then, unless another name has a number.
fn without_nulls(fields: &mut Map<String, Value>) -> bool {
    let (_, others) = NAMES.iter().find(|(name, _)| *name == "num_experts").expect("a name of the list");
    let mut names = others.iter().chain(&["num_experts"]);
    let no_experts = names.any(|name| fields.get(*name).is_some_and(Value::is_null));
    fields.retain(|_, value| !value.is_null());
    no_experts
}

/// Corrects fields that mean something else in a family than in others.
fn correct(family: &str, published: &mut Map<String, Value>) {
    // The first Qwen counts gate and input together.
    if family == "qwen"
        && let Some(width) = published.get("intermediate_size").and_then(Value::as_u64)
    {
        published.insert("intermediate_size".into(), (width / 2).into());
    }
    // Derived from the width, as without the field.
    if published.get("mamba_dt_rank").is_some_and(|rank| rank == "auto") {
        published.remove("mamba_dt_rank");
    }
    // EXAONE 4 spells the pattern of its layers out, and lists them too.
    if published.get("sliding_window_pattern").is_some_and(Value::is_string) {
        published.remove("sliding_window_pattern");
    }
    // Hunyuan says of dense models too how many experts there are, and of models without shared experts how many of those.
    if let Some(Value::Bool(has_shared)) = published.get("use_mixed_mlp_moe").cloned() {
        if !has_shared {
            published.remove("n_shared_experts");
        }
        if published.get("num_experts").and_then(Value::as_u64) == Some(1) {
            published.insert("num_experts".into(), 0.into());
        }
    }
    // One KV head for all queries: Falcon 7B, StarCoder.
    let is = |name: &str| published.get(name).and_then(Value::as_bool) == Some(true);
    if is("multi_query") && !is("new_decoder_architecture") {
        published.insert("num_key_value_heads".into(), 1.into());
    }
}
