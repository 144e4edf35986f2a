//! The tokenizer in a GGUF file, as the text of an equal `tokenizer.json`.
//!
//! Files of llama.cpp carry a vocabulary and merges, and a name for the rule that cuts a text into words (`tokenizer.ggml.pre`).
//! The rule itself is data of this module: for each name the pre-tokenizer of the models that use the name. Vocabularies of
//! SentencePiece carry scores instead of merges; the merges follow from the scores as in Hugging Face transformers.

use std::collections::HashMap;
use std::path::Path;

use gguf_rs_lib::prelude::Metadata;
use serde_json::{Map, Value, json};
use trunkline_quote::quoted;

use crate::codec::{Added, Codec};
use crate::error::FactsError;
use crate::metadata::Keys;
use crate::reader::{GgufReader, open_gguf};
use crate::split::{check, gguf_parts};
use crate::vocabulary::Vocabulary;

/// Words of GPT-2: contractions, then letters, digits or other characters with at most one space in front.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// Words of Llama 3: runs of at most three digits.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of Qwen 2: every digit alone.
const QWEN2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words of Mistral's Tekken: case begins a new word.
const TEKKEN_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Rule for the words of a byte-level tokenizer.
struct Words {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Expressions that split a text, one after the other; matches and the text between matches become pieces.
    splits: &'static [&'static str],
    /// `true` if GPT-2's expression, as the library has it, comes last.
    gpt2_last: bool,
    /// `true` if text is brought into Unicode's composed form first.
    composed: bool,
    /// `true` if a word in the vocabulary is a token even if merges do not lead to it.
    whole_words: bool,
    /// `true` if a BOS token precedes a text unless the file says otherwise.
    begins: bool,
}

/// A rule without expressions of its own.
const PLAIN: Words =
    Words { names: &[], splits: &[], gpt2_last: false, composed: false, whole_words: false, begins: false };

const WORDS: [Words; 6] = [
    Words { names: &["gpt-2"], gpt2_last: true, ..PLAIN },
    Words {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        splits: &[LLAMA3_WORDS],
        whole_words: true,
        begins: true,
        ..PLAIN
    },
    Words { names: &["tekken"], splits: &[TEKKEN_WORDS], whole_words: true, begins: true, ..PLAIN },
    Words { names: &["qwen2", "deepseek-r1-qwen"], splits: &[QWEN2_WORDS], composed: true, ..PLAIN },
    Words { names: &["smollm"], splits: &[r"\p{N}"], gpt2_last: true, ..PLAIN },
    // The rule of llama.cpp for files that name no other.
    Words {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

/// Opens the GGUF file at `path`, the first part of a split one.
///
/// # Errors
///
/// The file cannot be read or is malformed, or another part is missing.
pub(crate) fn open(path: &Path) -> Result<GgufReader, FactsError> {
    let path = &gguf_parts(path)?[0];
    let reader = open_gguf(path)?;
    check(path, Keys { metadata: reader.metadata() })?;
    Ok(reader)
}

/// Returns the tokenizer of a file with this metadata.
///
/// # Errors
///
/// The file has no tokenizer, or a tokenizer of an unsupported kind.
pub(crate) fn codec(metadata: &Metadata) -> Result<Codec, String> {
    let keys = Keys { metadata };
    let model = keys.text("tokenizer.ggml.model")?;
    let vocabulary = Vocabulary::read(keys)?;
    let mut json = match model {
        Some("gpt2") => byte_level(keys, &vocabulary),
        Some("llama") => sentence_piece(keys, &vocabulary),
        Some(other) => {
            Err(format!("tokenizer {} is not supported; the tokenizers are 'gpt2' and 'llama'", quoted(other)))
        }
        None => Err("the file has no tokenizer (tokenizer.ggml.model)".to_owned()),
    }?;
    let mut pieces = vocabulary.pieces();
    pieces.strip = usize::from(model == Some("llama") && has_space_prefix(keys)?);
    let added: Vec<Added> =
        vocabulary.matched().map(|(id, name, special)| Added::new(id as u32, name, special)).collect();
    json["added_tokens"] = json!(added);
    let json = serde_json::to_vec(&json).map_err(|error| error.to_string())?;
    Codec::new(&json, &added, Some(pieces))
}

/// Returns `true` if a space precedes a text.
fn has_space_prefix(keys: Keys<'_>) -> Result<bool, String> {
    Ok(keys.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true))
}

/// Byte-level BPE.
fn byte_level(keys: Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Value, String> {
    let name = keys.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let Some(words) = WORDS.iter().find(|words| words.names.contains(&name)) else {
        let known: Vec<&str> = WORDS.iter().flat_map(|words| words.names).copied().collect();
        return Err(format!("the pre-tokenizer {} is not supported; there are {}", quoted(name), known.join(", ")));
    };
    let mut merges = Vec::new();
    for merge in keys.texts("tokenizer.ggml.merges")? {
        let merge = merge?;
        // A name may begin with a space only in vocabularies that are not byte-level.
        let Some(pair) = merge.split_once(' ') else { return Err(format!("the merge {} has no space", quoted(merge))) };
        merges.push(json!([pair.0, pair.1]));
    }
    let split = |expression: &&str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let mut steps: Vec<Value> = words.splits.iter().map(split).collect();
    steps.push(byte_level(words.gpt2_last));
    Ok(json!({
        "version": "1.0",
        "normalizer": if words.composed { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": frame(keys, vocabulary, words.begins)?,
        "model": {
            "type": "BPE", "vocab": vocabulary.ids(), "merges": merges, "ignore_merges": words.whole_words,
        },
    }))
}

/// SentencePiece BPE with byte fallback.
fn sentence_piece(keys: Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Value, String> {
    let scores = keys.reals("tokenizer.ggml.scores")?;
    if scores.len() != vocabulary.len() {
        return Err(format!("there are {} scores for {} tokens", scores.len(), vocabulary.len()));
    }
    let [_, _, unknown] = vocabulary.frame(keys)?;
    let unknown = unknown.map_or(Ok(None), |id| vocabulary.name(id).map(Some))?;
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    if has_space_prefix(keys)? {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
    }
    Ok(json!({
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "post_processor": frame(keys, vocabulary, true)?,
        "model": {
            "type": "BPE", "vocab": vocabulary.ids(), "merges": merges_of(&vocabulary.normal(), &scores),
            "unk_token": unknown, "byte_fallback": true, "fuse_unk": true,
        },
    }))
}

/// Returns the merges of the normal tokens of a vocabulary with scores, the best first: every way to cut a token into two tokens is
/// a merge with the token's score. Among equal scores longer left parts come first, then longer right parts.
fn merges_of(normal: &[(usize, &str)], scores: &[f64]) -> Value {
    let ids: HashMap<&str, usize> = normal.iter().map(|(id, name)| (*name, *id)).collect();
    let mut merges = Vec::new();
    for (id, name) in normal {
        let mut cuts: Vec<(&str, &str)> = name
            .char_indices()
            .skip(1)
            .map(|(at, _)| name.split_at(at))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        cuts.sort_by_key(|(left, right)| (ids[left], ids[right]));
        merges.extend(cuts.into_iter().map(|(left, right)| (scores[*id], left, right)));
    }
    let length = |text: &str| text.chars().count();
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(length(b.1).cmp(&length(a.1))).then(length(b.2).cmp(&length(a.2))));
    merges.into_iter().map(|(_, left, right)| json!([left, right])).collect()
}

/// Returns the post-processor that puts a BOS token before a text and an end token behind, as the file asks.
fn frame(keys: Keys<'_>, vocabulary: &Vocabulary<'_>, begins: bool) -> Result<Value, String> {
    let token = |wanted: bool, id: Option<i64>| match id {
        Some(id) if wanted => Ok(Some((vocabulary.name(id)?, id))),
        _ => Ok::<_, String>(None),
    };
    let [begin, end, _] = vocabulary.frame(keys)?;
    let begin = token(keys.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(begins), begin)?;
    let end = token(keys.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false), end)?;
    let mut specials = Map::new();
    for (name, id) in begin.iter().chain(&end) {
        specials.insert((*name).to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}));
    }
    let special = |(name, _): &(&str, i64)| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let single: Vec<Value> = begin.iter().map(special).chain([sequence("A")]).chain(end.iter().map(special)).collect();
    let pair = [sequence("A"), sequence("B")];
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}))
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
