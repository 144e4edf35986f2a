//! Small models for the tests of this crate: GGUF files of metadata alone, and folders of tokenizer files.

use std::path::PathBuf;

use gguf_rs_lib::format::{GGUFValueType, MetadataArray};
use gguf_rs_lib::prelude::{GGUFBuilder, MetadataValue};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::codec::byte_level_alphabet;

/// Metadata of a file.
pub(crate) type Entries = Vec<(&'static str, MetadataValue)>;

pub(crate) fn texts(values: &[&str]) -> MetadataValue {
    let values = values.iter().map(|value| MetadataValue::String((*value).to_owned())).collect();
    MetadataValue::Array(Box::new(MetadataArray::new(GGUFValueType::String, values).unwrap()))
}

pub(crate) fn integers(values: &[i32]) -> MetadataValue {
    let values = values.iter().map(|value| MetadataValue::I32(*value)).collect();
    MetadataValue::Array(Box::new(MetadataArray::new(GGUFValueType::I32, values).unwrap()))
}

pub(crate) fn reals(values: &[f32]) -> MetadataValue {
    let values = values.iter().map(|value| MetadataValue::F32(*value)).collect();
    MetadataValue::Array(Box::new(MetadataArray::new(GGUFValueType::F32, values).unwrap()))
}

pub(crate) fn text(value: &str) -> MetadataValue {
    MetadataValue::String(value.to_owned())
}

/// The bytes of a file with metadata alone.
pub(crate) fn gguf_bytes(entries: &[(&'static str, MetadataValue)]) -> Vec<u8> {
    let file = entries.iter().fold(GGUFBuilder::new(), |file, (key, value)| file.add_metadata(*key, value.clone()));
    file.build_to_bytes().unwrap().0
}

/// A file `model.gguf` with metadata alone; it lives as long as the first value.
pub(crate) fn gguf(entries: &[(&'static str, MetadataValue)]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, gguf_bytes(entries)).unwrap();
    (dir, path)
}

/// The names of all bytes in a byte-level vocabulary, by byte.
pub(crate) fn byte_names() -> Vec<String> {
    let alphabet = byte_level_alphabet();
    let name = |byte: u8| alphabet.iter().position(|of| *of == Some(byte)).unwrap() as u32;
    (0..=u8::MAX).map(|byte| char::from_u32(name(byte)).unwrap().to_string()).collect()
}

/// Metadata of a byte-level vocabulary: 256 bytes, then `names` with their kinds.
pub(crate) fn byte_level_gguf(names: &[(&str, i32)]) -> Entries {
    let bytes = byte_names();
    let all: Vec<&str> = bytes.iter().map(String::as_str).chain(names.iter().map(|(name, _)| *name)).collect();
    let kinds: Vec<i32> = bytes.iter().map(|_| 1).chain(names.iter().map(|(_, kind)| *kind)).collect();
    vec![
        ("general.architecture", text("llama")),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", texts(&all)),
        ("tokenizer.ggml.token_type", integers(&kinds)),
    ]
}

/// Metadata of a vocabulary of SentencePiece: `names` with their kinds, all scores equal.
pub(crate) fn sentence_piece_gguf(names: &[(&str, i32)]) -> Entries {
    vec![
        ("general.architecture", text("llama")),
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", texts(&names.iter().map(|(name, _)| *name).collect::<Vec<_>>())),
        ("tokenizer.ggml.token_type", integers(&names.iter().map(|(_, kind)| *kind).collect::<Vec<_>>())),
        ("tokenizer.ggml.scores", reals(&vec![0.0; names.len()])),
    ]
}

/// An added token as in `tokenizer.json`.
pub(crate) fn added(id: u32, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

/// A byte-level `tokenizer.json` of 256 bytes and the tokens `added`.
pub(crate) fn byte_level_json(added: &[Value]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        byte_names().into_iter().enumerate().map(|(id, name)| (name, json!(id))).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// A folder with these files.
pub(crate) fn folder(files: &[(&str, &Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, json) in files {
        std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    }
    dir
}

/// Contents of added tokens with letters of several alphabets, none in another: the longest would be found.
pub(crate) fn contents() -> impl Strategy<Value = Vec<String>> {
    let letters = ['a', '\u{E9}', '\u{111}', '\u{120}', '\u{C3}', '\u{A9}', ' ', '\u{2581}', '\u{6771}', '<'];
    let letters = prop::collection::vec(prop::sample::select(letters.to_vec()), 1..6);
    let content = letters.prop_map(|letters| letters.into_iter().collect::<String>());
    prop::collection::vec(content, 1..4)
        .prop_map(|contents| contents.iter().enumerate().map(|(i, content)| format!("[{i}{content}{i}]")).collect())
}
