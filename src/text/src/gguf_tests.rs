//! Tests of tokenizers in GGUF files. `src/worker/tests/gguf.rs` compares with the Python libraries.

use gguf_rs_lib::prelude::MetadataValue;

use super::*;
use crate::error::TokenizerError;
use crate::model_rig::{gguf, integers as kinds, text, texts};
use crate::tokenizer::Tokenizer;

/// Metadata of a byte-level vocabulary of a few letters, a special token and an unused one.
fn sound() -> Vec<(&'static str, MetadataValue)> {
    vec![
        ("general.architecture", text("llama")),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("llama-bpe")),
        ("tokenizer.ggml.tokens", texts(&["<s>", "a", "b", "c", "ab", "abc", "[PAD6]"])),
        ("tokenizer.ggml.token_type", kinds(&[3, 1, 1, 1, 1, 1, 5])),
        ("tokenizer.ggml.merges", texts(&["a b"])),
        ("tokenizer.ggml.bos_token_id", MetadataValue::U32(0)),
        ("tokenizer.ggml.eos_token_id", MetadataValue::U32(3)),
    ]
}

/// Loads a file with [`sound`] metadata after `changes`; a change without a value removes the key.
fn load(changes: &[(&'static str, Option<MetadataValue>)]) -> Result<Tokenizer, TokenizerError> {
    let mut entries = sound();
    for (key, value) in changes {
        entries.retain(|(known, _)| known != key);
        entries.extend(value.clone().map(|value| (*key, value)));
    }
    let (_dir, path) = gguf(&entries);
    Tokenizer::load(&path)
}

#[test]
fn the_file_decides_about_tokens_around_a_text_and_the_vocabulary_about_the_default() {
    let encode = |changes: &[(&'static str, Option<MetadataValue>)]| load(changes).unwrap().encode("ab").unwrap();
    let flag = |value| Some(MetadataValue::Bool(value));
    assert_eq!(encode(&[]), [0, 4]);
    assert_eq!(encode(&[("tokenizer.ggml.add_bos_token", flag(false))]), [4]);
    assert_eq!(encode(&[("tokenizer.ggml.add_eos_token", flag(true))]), [0, 4, 3]);
    assert_eq!(encode(&[("tokenizer.ggml.pre", Some(text("qwen2")))]), [4]);
    let begins = ("tokenizer.ggml.add_bos_token", flag(true));
    assert_eq!(encode(&[("tokenizer.ggml.pre", Some(text("gpt-2"))), begins]), [0, 4]);
}

#[test]
fn words_of_the_vocabulary_are_tokens_where_the_rule_says_so() {
    // No merge leads to "abc".
    let encode =
        |pre: &str| load(&[("tokenizer.ggml.pre", Some(text(pre)))]).unwrap().encode_with("abc", false).unwrap();
    assert_eq!(encode("llama-bpe"), [5]);
    assert_eq!(encode("tekken"), [5]);
    assert_eq!(encode("qwen2"), [4, 3]);
    assert_eq!(encode("default"), [4, 3]);
}

#[test]
fn special_tokens_are_recognised_and_unused_ones_do_not_exist() {
    let tokenizer = load(&[]).unwrap();
    assert_eq!(tokenizer.encode_with("a<s>b", false).unwrap(), [1, 0, 2]);
    assert_eq!((tokenizer.decode(&[0, 4, 6]), tokenizer.vocab_size()), ("ab".to_owned(), 6));
}

#[test]
fn merges_follow_scores_then_lengths() {
    let normal = [(0, "a"), (1, "b"), (2, "ab"), (3, "ba"), (4, "aba")];
    let merges = merges_of(&normal, &[-9.0, -9.0, -2.0, -1.0, -3.0]);
    assert_eq!(merges, json!([["b", "a"], ["a", "b"], ["ab", "a"], ["a", "ba"]]));
}

#[test]
fn tokenizers_that_cannot_be_used_are_refused_in_one_line() {
    let cases: [(&str, Option<MetadataValue>, &str); 11] = [
        ("tokenizer.ggml.model", None, "has no tokenizer"),
        ("tokenizer.ggml.model", Some(text("bert")), "tokenizer 'bert' is not supported"),
        ("tokenizer.ggml.model", Some(text("llama")), "0 scores for 7 tokens"),
        ("tokenizer.ggml.model", Some(MetadataValue::U32(1)), "is not a text"),
        ("tokenizer.ggml.pre", Some(text("gpt-4o")), "pre-tokenizer 'gpt-4o' is not supported; there are gpt-2"),
        ("tokenizer.ggml.tokens", None, "7 kinds of 0 tokens"),
        ("tokenizer.ggml.tokens", Some(kinds(&[1; 7])), "not a text"),
        ("tokenizer.ggml.merges", Some(texts(&["ab"])), "has no space"),
        ("tokenizer.ggml.merges", Some(texts(&["a x"])), "x"),
        ("tokenizer.ggml.token_type", Some(texts(&["a"; 7])), "not a whole number"),
        ("tokenizer.ggml.bos_token_id", Some(MetadataValue::U32(7)), "token 7 is not in the vocabulary of 7 tokens"),
    ];
    for (key, value, expected) in cases {
        let Err(error) = load(&[(key, value)]) else { panic!("accepted {key}: {expected}") };
        let message = error.to_string();
        assert!(matches!(error, TokenizerError::Gguf { .. }), "{message}");
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_file_that_is_no_gguf_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for bytes in [&b"GGUF"[..], b"GGUF\x02\0\0\0", b"not a model"] {
        std::fs::write(&path, bytes).unwrap();
        let Err(error) = Tokenizer::load(&path) else { panic!("loaded") };
        assert!(matches!(error, TokenizerError::Facts(_)) && error.to_string().contains("GGUF"), "{error}");
    }
}
