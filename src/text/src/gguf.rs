//! The tokenizer in a GGUF file, as the text of an equal `tokenizer.json`.
//!
//! Files of llama.cpp carry a vocabulary and merges, and a name for the rule that cuts a text into words (`tokenizer.ggml.pre`).
//! The rule itself is data of this module: for each name the pre-tokenizer of the models that use the name. Vocabularies of
//! SentencePiece carry scores instead of merges; the merges follow from the scores as in Hugging Face transformers.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use gguf_rs_lib::format::MetadataArray;
use gguf_rs_lib::prelude::{GGUFFileReader, Metadata, MetadataValue};
use serde_json::{Map, Value, json};

use crate::error::TokenizerError;

/// Kinds of tokens, `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

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
    /// `true` if a begin token precedes a text unless the file says otherwise.
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

/// Returns the text of a `tokenizer.json` for the tokenizer in the GGUF file at `path`.
///
/// # Errors
///
/// The file cannot be read or is malformed, or has a tokenizer of an unsupported kind.
pub(crate) fn tokenizer_json(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let invalid = |problem: String| TokenizerError::Gguf { path: path.to_owned(), problem };
    let file = File::open(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
    let reader = GGUFFileReader::new(BufReader::new(file))
        .map_err(|error| invalid(format!("not a GGUF file of version 3: {error}").replace(['\n', '\r'], " ")))?;
    let json = from_metadata(reader.metadata()).map_err(invalid)?;
    serde_json::to_vec(&json).map_err(|error| invalid(error.to_string()))
}

fn from_metadata(metadata: &Metadata) -> Result<Value, String> {
    let facts = Facts { metadata };
    match facts.text("tokenizer.ggml.model")? {
        Some("gpt2") => byte_level(&facts),
        Some("llama") => sentence_piece(&facts),
        Some(other) => Err(format!("tokenizer {other:?} is not supported; the tokenizers are \"gpt2\" and \"llama\"")),
        None => Err("the file has no tokenizer (tokenizer.ggml.model)".to_owned()),
    }
}

/// Byte-level BPE.
fn byte_level(facts: &Facts<'_>) -> Result<Value, String> {
    let name = facts.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let Some(words) = WORDS.iter().find(|words| words.names.contains(&name)) else {
        let known: Vec<&str> = WORDS.iter().flat_map(|words| words.names).copied().collect();
        return Err(format!("the pre-tokenizer {name:?} is not supported; there are {}", known.join(", ")));
    };
    let vocabulary = Vocabulary::read(facts)?;
    let mut merges = Vec::new();
    for merge in facts.texts("tokenizer.ggml.merges")? {
        let merge = merge?;
        // A name may begin with a space only in vocabularies that are not byte-level.
        let Some(pair) = merge.split_once(' ') else { return Err(format!("the merge {merge:?} has no space")) };
        merges.push(json!([pair.0, pair.1]));
    }
    let split = |expression: &&str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let mut steps: Vec<Value> = words.splits.iter().map(split).collect();
    steps.push(byte_level(words.gpt2_last));
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added,
        "normalizer": if words.composed { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": frame(facts, &vocabulary, words.begins)?,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "vocab": vocabulary.ids, "merges": merges, "ignore_merges": words.whole_words,
        },
    }))
}

/// SentencePiece BPE with byte fallback.
fn sentence_piece(facts: &Facts<'_>) -> Result<Value, String> {
    let vocabulary = Vocabulary::read(facts)?;
    let scores = facts.reals("tokenizer.ggml.scores")?;
    if scores.len() != vocabulary.names.len() {
        return Err(format!("there are {} scores for {} tokens", scores.len(), vocabulary.names.len()));
    }
    let unknown =
        facts.integer("tokenizer.ggml.unknown_token_id")?.map_or(Ok(None), |id| vocabulary.name(id).map(Some))?;
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if facts.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "post_processor": frame(facts, &vocabulary, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocabulary.ids, "merges": merges_of(&vocabulary.normal, &scores),
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

/// Returns the post-processor that puts a begin token before a text and an end token behind, as the file asks.
fn frame(facts: &Facts<'_>, vocabulary: &Vocabulary<'_>, begins: bool) -> Result<Value, String> {
    let token = |wanted: bool, key: &str| match facts.integer(key)? {
        Some(id) if wanted => Ok(Some((vocabulary.name(id)?, id))),
        _ => Ok::<_, String>(None),
    };
    let begins = facts.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
    let ends = facts.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let begin = token(begins, "tokenizer.ggml.bos_token_id")?;
    let end = token(ends, "tokenizer.ggml.eos_token_id")?;
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

/// The tokens of a file.
struct Vocabulary<'a> {
    names: Vec<&'a str>,
    /// Id and name of the tokens that are neither special nor bytes.
    normal: Vec<(usize, &'a str)>,
    /// Name to id, without tokens that nothing uses.
    ids: Map<String, Value>,
    /// Tokens recognised in a text before anything else.
    added: Vec<Value>,
}

impl<'a> Vocabulary<'a> {
    fn read(facts: &Facts<'a>) -> Result<Self, String> {
        let names: Vec<&str> = facts.texts("tokenizer.ggml.tokens")?.collect::<Result<_, _>>()?;
        let kinds = facts.integers("tokenizer.ggml.token_type")?;
        if !kinds.is_empty() && kinds.len() != names.len() {
            return Err(format!("there are {} kinds of {} tokens", kinds.len(), names.len()));
        }
        let (mut ids, mut normal, mut added) = (Map::new(), Vec::new(), Vec::new());
        for (id, name) in names.iter().enumerate() {
            let kind = kinds.get(id).copied().unwrap_or(NORMAL);
            if kind == UNUSED || name.is_empty() {
                continue;
            }
            ids.insert((*name).to_owned(), json!(id));
            if kind == NORMAL {
                normal.push((id, *name));
            }
            if [CONTROL, USER_DEFINED].contains(&kind) {
                added.push(json!({
                    "id": id, "content": name, "special": kind == CONTROL, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false,
                }));
            }
        }
        Ok(Self { names, normal, ids, added })
    }

    /// Returns the name of a token that the metadata refers to.
    fn name(&self, id: i64) -> Result<&'a str, String> {
        let name = usize::try_from(id).ok().and_then(|id| self.names.get(id));
        name.copied().ok_or_else(|| format!("token {id} is not in the vocabulary of {} tokens", self.names.len()))
    }
}

/// Metadata by key, with types.
struct Facts<'a> {
    metadata: &'a Metadata,
}

impl<'a> Facts<'a> {
    fn get<T>(
        &self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let value = self.metadata.get(key);
        value.map(|value| read(value).ok_or_else(|| format!("{key} is not {kind}"))).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.get(key, "a text", MetadataValue::as_str)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.get(key, "true or false", MetadataValue::as_bool)
    }

    fn integer(&self, key: &str) -> Result<Option<i64>, String> {
        self.get(key, "a whole number", integer)
    }

    /// Returns the elements of a list, none if the file does not have the list.
    fn list(&self, key: &str) -> Result<std::slice::Iter<'a, MetadataValue>, String> {
        let list = self.get(key, "a list", |value| match value {
            MetadataValue::Array(list) => Some(list.as_ref()),
            _ => None,
        })?;
        Ok(list.map(MetadataArray::iter).unwrap_or_default())
    }

    fn texts(&self, key: &'static str) -> Result<impl Iterator<Item = Result<&'a str, String>>, String> {
        let texts = self.list(key)?;
        Ok(texts.map(move |value| value.as_str().ok_or_else(|| format!("{key} has an element that is not a text"))))
    }

    fn integers(&self, key: &str) -> Result<Vec<i64>, String> {
        let values: Option<Vec<i64>> = self.list(key)?.map(integer).collect();
        values.ok_or_else(|| format!("{key} has an element that is not a whole number"))
    }

    fn reals(&self, key: &str) -> Result<Vec<f64>, String> {
        let values: Option<Vec<f64>> = self.list(key)?.map(MetadataValue::as_f64).collect();
        values.ok_or_else(|| format!("{key} has an element that is not a number"))
    }
}

fn integer(value: &MetadataValue) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().and_then(|value| i64::try_from(value).ok()))
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
