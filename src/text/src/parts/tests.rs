//! Parts of texts have the tokens of the whole.

use proptest::prelude::*;
use serde_json::json;

use crate::tokenizer::Tokenizer;

/// The tokens of a text in parts of `bytes` and more, and the number of parts.
fn in_parts(tokenizer: &Tokenizer, text: &str, bytes: usize) -> (Vec<u32>, usize) {
    let mut parts = tokenizer.parts(text.into(), true);
    let mut n = 1;
    while !parts.advance(bytes).unwrap() {
        n += 1;
    }
    (parts.into_ids(), n)
}

/// Byte-level BPE with merges, an added token and a BOS token.
fn byte_level() -> Tokenizer {
    let alphabet = crate::codec::byte_level_alphabet();
    let names =
        alphabet.iter().enumerate().filter(|(_, byte)| byte.is_some()).map(|(c, _)| char::from_u32(c as u32).unwrap());
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        names.enumerate().map(|(id, name)| (name.to_string(), json!(id))).collect();
    vocab.insert("he".into(), json!(300));
    vocab.insert("\u{120}t".into(), json!(301));
    vocab.insert("\u{120}the".into(), json!(302));
    let json = json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 310, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "\u{120} t", "\u{120}t he"]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [310], "tokens": ["<|end|>"]}},
        },
    });
    Tokenizer::from_json("model", json.to_string().as_bytes()).unwrap()
}

proptest! {
    #[test]
    fn words_in_parts_have_the_tokens_of_the_text(
        pieces in prop::collection::vec(prop_oneof![
            Just(" the"), Just("he"), Just("<|end|>"), Just("  \n"), Just("\u{e9}e\u{301}"), Just("42's"), Just("\u{6771}"), Just("<|en"),
        ], 0..40),
        bytes in 1usize..30,
        add in any::<bool>(),
    ) {
        let (tokenizer, text) = (byte_level(), pieces.concat());
        let mut parts = tokenizer.parts(text.clone(), add);
        let mut before = 0;
        while !parts.advance(bytes).unwrap() {
            prop_assert!(parts.tokens() >= before, "tokens are counted as they come");
            before = parts.tokens();
        }
        prop_assert_eq!(parts.into_ids(), tokenizer.encode_with(&text, add).unwrap());
    }
}

#[test]
fn a_text_of_many_words_comes_in_many_parts_and_can_be_left_early() {
    let tokenizer = byte_level();
    let text = " the".repeat(1000);
    assert_eq!(in_parts(&tokenizer, &text, 400).1, 1 + 13, "the words, of five bytes each, are found first");
    assert_eq!(in_parts(&tokenizer, &text, 4000).1, 1, "a short text is tokenised at once");
    let mut parts = tokenizer.parts(text, true);
    assert_eq!(parts.next_part(400), 4000);
    assert!(!parts.advance(400).unwrap() && !parts.advance(400).unwrap());
    assert_eq!((parts.tokens(), parts.next_part(400)), (80, 400), "nobody had to tokenise the rest");
}

#[test]
fn bytes_are_cut_anywhere_and_words_of_other_tokenizers_are_not() {
    let bytes = Tokenizer::bytes();
    assert_eq!(in_parts(&bytes, "a\u{E9}b", 1), (vec![97, 0xC3, 0xA9, 98], 4));
    let words = json!({
        "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "a": 1, "b": 2},
        },
    });
    let words = Tokenizer::from_json("model", words.to_string().as_bytes()).unwrap();
    assert_eq!(in_parts(&words, "a b a", 1), (vec![1, 2, 1], 1 + 3));
    assert_eq!(in_parts(&words, "", 1), (vec![], 1));
}
