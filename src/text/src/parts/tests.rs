//! Parts of texts have the tokens of the whole.

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

#[test]
fn bytes_are_cut_anywhere_and_other_tokenizers_get_one_part() {
    let bytes = Tokenizer::bytes();
    assert_eq!(in_parts(&bytes, "a\u{E9}b", 1), (vec![97, 0xC3, 0xA9, 98], 4));
    let words = json!({
        "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "a": 1, "b": 2},
        },
    });
    let words = Tokenizer::parse(words.to_string().as_bytes()).unwrap();
    assert_eq!(in_parts(&words, "a b a", 1), (vec![1, 2, 1], 1));
}
