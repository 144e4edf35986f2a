//! Facts of small models: those of llama.cpp and transformers, from `tests/conformance/facts.json`.

use serde_json::json;

use super::*;
use crate::model_rig::{added, byte_level_gguf, byte_level_json, folder, gguf, sentence_piece_gguf};
use crate::tokenizer::Tokenizer;

/// What the libraries say. `tests/conformance/make_facts.py` made the file, and compares again.
const FACTS: &str = include_str!("../../../tests/conformance/facts.json");

/// A token's id and text, without special tokens and with them.
type Printed = (u32, String, String);

/// A GGUF file.
#[derive(Deserialize)]
struct GgufRow {
    name: String,
    model: String,
    keys: std::collections::BTreeMap<String, String>,
    names: Vec<(String, i32)>,
    end_kind: i32,
    ends: Vec<u32>,
    tokens: Vec<(String, Vec<u32>)>,
    printed: Vec<Printed>,
}

/// A folder, by file; `tokenizer.json` has only the added tokens.
#[derive(Deserialize)]
struct FolderRow {
    name: String,
    files: std::collections::BTreeMap<String, Value>,
    ends: Vec<u32>,
    tokens: Vec<(String, Vec<u32>)>,
    printed: Vec<Printed>,
}

#[derive(Deserialize)]
struct Facts {
    ggufs: Vec<GgufRow>,
    folders: Vec<FolderRow>,
}

fn known() -> Facts {
    serde_json::from_str(FACTS).unwrap()
}

/// Compares the tokens of texts, and the texts of tokens.
fn compare(name: &str, tokenizer: &Tokenizer, tokens: &[(String, Vec<u32>)], printed: &[Printed]) {
    for (text, ids) in tokens {
        assert_eq!(tokenizer.encode_with(text, false).unwrap(), *ids, "{name}: {text:?}");
    }
    let text = |id: u32, skip_special: bool| {
        // Behind another token: vocabularies of SentencePiece drop the first space of a text.
        let mut stream = tokenizer.detokenizer_behind(&[260], skip_special);
        stream.push(id) + &stream.finish()
    };
    for (id, plain, shown) in printed {
        assert_eq!((text(*id, true), text(*id, false)), (plain.clone(), shown.clone()), "{name}: token {id}");
    }
}

/// Metadata of a row.
fn entries(row: &GgufRow) -> crate::model_rig::Entries {
    let names: Vec<(&str, i32)> = row.names.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let begin = [("<unk>", 2), ("<s>", 3), ("</s>", row.end_kind)];
    let bytes = bytes.iter().map(|name| (name.as_str(), 6));
    let letters = ["\u{2581}", "a", "b", "c"].map(|letter| (letter, 1));
    let pieces: Vec<(&str, i32)> = begin.into_iter().chain(bytes).chain(letters).chain(names.iter().copied()).collect();
    let (mut entries, first) = match row.model.as_str() {
        "gpt2" => (byte_level_gguf(&names), 256),
        _ => (sentence_piece_gguf(&pieces), 263),
    };
    for (key, name) in &row.keys {
        let at = row.names.iter().position(|(known, _)| known == name);
        let id = at.map_or(2, |at| first + at as u32);
        let key: &'static str = format!("tokenizer.ggml.{key}_token_id").leak();
        entries.push((key, gguf_rs_lib::prelude::MetadataValue::U32(id)));
    }
    entries
}

#[test]
fn gguf_files_of_all_families_end_and_read_and_print_as_in_llama_cpp() {
    let rows = known().ggufs;
    assert!(rows.len() >= 20);
    for row in rows {
        let (_dir, path) = gguf(&entries(&row));
        let facts = ModelFacts::read(&path).unwrap();
        assert_eq!(facts.end_ids(), row.ends, "{}", row.name);
        assert!(facts.ends.iter().all(|end| end.name.is_some() && !end.sources.is_empty()), "{facts}");
        let tokenizer = Tokenizer::load(&path).unwrap();
        compare(&row.name, &tokenizer, &row.tokens, &row.printed);
    }
}

#[test]
fn folders_in_all_forms_end_and_read_and_print_as_in_transformers() {
    let rows = known().folders;
    assert!(rows.len() >= 12);
    for row in rows {
        let files: Vec<(&str, Value)> = row
            .files
            .iter()
            .map(|(name, json)| match name.as_str() {
                "tokenizer.json" => (name.as_str(), byte_level_json(json.as_array().unwrap())),
                name => (name, json.clone()),
            })
            .collect();
        let dir = folder(&files.iter().map(|(name, json)| (*name, json)).collect::<Vec<_>>());
        let facts = ModelFacts::read(dir.path()).unwrap();
        assert_eq!(facts.end_ids(), row.ends, "{}: {facts}", row.name);
        compare(&row.name, &Tokenizer::load(dir.path()).unwrap(), &row.tokens, &row.printed);
    }
}

#[test]
fn the_line_for_the_log_has_names_and_sources() {
    let tokens = [added(256, "<|im_start|>", true), added(257, "<|im_end|>", true)];
    let dir = folder(&[
        ("tokenizer.json", &byte_level_json(&tokens)),
        ("config.json", &json!({"eos_token_id": 257, "max_position_embeddings": 64})),
        ("generation_config.json", &json!({"eos_token_id": [257, 7]})),
        ("tokenizer_config.json", &json!({"eos_token": "<|im_end|>", "chat_template": "{{ x }}"})),
    ]);
    let facts = ModelFacts::read(dir.path()).unwrap();
    let line = "an answer ends at \u{107} 7 (generation_config.json), <|im_end|> 257 (config.json, generation_config.json, tokenizer_config.json); \
                2 added tokens (tokenizer.json); context 64 (max_position_embeddings); chat template (tokenizer_config.json), which clients apply";
    assert_eq!(facts.to_string(), line);
    assert!(facts.notes.is_empty(), "{:?}", facts.notes);
    let mut entries = byte_level_gguf(&[("<|im_end|>", 3), ("<e>", 3)]);
    entries.push(("tokenizer.ggml.eos_token_id", gguf_rs_lib::prelude::MetadataValue::U32(257)));
    entries.push(("llama.context_length", gguf_rs_lib::prelude::MetadataValue::U32(32)));
    let (_dir, path) = gguf(&entries);
    let line = "an answer ends at <|im_end|> 256 (its name), <e> 257 (tokenizer.ggml.eos_token_id); 2 added tokens (tokenizer.ggml.token_type); \
                context 32 (context_length)";
    assert_eq!(ModelFacts::read(&path).unwrap().to_string(), line);
}

#[test]
fn ends_beyond_the_model_are_refused_if_a_file_states_the_id_and_noted_if_a_name_does() {
    let with = |config: Value, tokenizer: Value| {
        let tokens = [added(256, "<a>", true), added(300, "<b>", true)];
        let tokens = byte_level_json(&tokens);
        let dir =
            folder(&[("tokenizer.json", &tokens), ("config.json", &config), ("tokenizer_config.json", &tokenizer)]);
        ModelFacts::read(dir.path()).unwrap().within(257)
    };
    assert_eq!(with(json!({"eos_token_id": [256, 300]}), json!({})), Err((300, "config.json")));
    let facts = with(json!({"eos_token_id": 256}), json!({"eos_token": "<b>"})).unwrap();
    assert_eq!(facts.end_ids(), [256]);
    assert_eq!(
        facts.notes,
        ["<b> 300 (tokenizer_config.json) is beyond the 257 tokens of the model, and ends nothing"]
    );
    let facts = with(json!({}), json!({"eos_token": "<nowhere>"})).unwrap();
    assert!(facts.ends.is_empty() && facts.notes.len() == 2, "{facts:?}");
}

#[test]
fn malformed_files_are_named_in_one_line() {
    for (name, text, expected) in [
        ("config.json", "{\"eos_token_id\": -1}", "config.json: eos_token_id is -1; it must be a token id"),
        ("config.json", "{\"eos_token_id\": \"x\"}", "eos_token_id must be a token id or a list of token ids"),
        ("generation_config.json", "{", "generation_config.json: EOF"),
        (
            "generation_config.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "is a Git LFS pointer",
        ),
        ("tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"y\"}}}", "has the id 'x'"),
        ("tokenizer_config.json", "{\"added_tokens_decoder\": {\"1\": {}}}", "added_tokens_decoder is malformed"),
        ("tokenizer_config.json", "{\"eos_token\": 3}", "eos_token is not a token"),
    ] {
        let dir = folder(&[("tokenizer.json", &byte_level_json(&[]))]);
        std::fs::write(dir.path().join(name), text).unwrap();
        let message = ModelFacts::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(name) && !message.contains('\n'), "{message}");
    }
    let message = ModelFacts::read(Path::new("/no/model")).unwrap_err().to_string();
    assert!(message.starts_with("/no/model: there is no such folder or file"), "{message}");
}
