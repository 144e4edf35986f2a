//! Parts of texts have the tokens of the whole, for trained tokenizers with every kind of pre-tokenizer.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::around::{Around, NUMBERS, PATTERNS};
use crate::tokenizer::Tokenizer;

const PROSE: &str = include_str!("../../../../README.md");
/// Pieces of texts, with everything that patterns treat specially.
const FRAGMENTS: &[&str] = &[
    "a",
    "B",
    "the",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "'s",
    "'LL",
    "'",
    "7",
    "2026",
    ".",
    ",",
    "!?",
    "/",
    "é",
    "e\u{301}",
    "ß",
    "東京",
    "\u{1F600}",
    "\u{A0}",
    "\u{200D}",
    "<|begin|>",
    "user",
    " user",
    "\n\n\n",
    "x y",
    "\u{301}",
    "Ǆ",
    "ʰ",
    "_",
    "-",
];

const CODE: &str = include_str!("../parts.rs");

/// Bytes of prose and of code to tokenise: a word is a part of its own, and each part takes as long as a text.
const TEXT_BYTES: usize = 2000;

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn sequence(of: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": of})
}

/// An untrained byte-level BPE.
fn untrained(
    pre_tokenizer: &Value,
    normalizer: &Value,
    post_processor: &Value,
    added: &Value,
) -> tokenizers::Tokenizer {
    let json = json!({
        "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(true), "post_processor": post_processor,
        "model": {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": false},
    });
    tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap()
}

/// A tokenizer with merges learned from prose and code.
fn trained(pre_tokenizer: &Value, normalizer: &Value) -> Tokenizer {
    let mut tokenizer = untrained(pre_tokenizer, normalizer, &Value::Null, &json!([]));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(600)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut TrainerWrapper::from(trainer), [PROSE, CODE].iter()).unwrap();
    let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
    let n = tokenizer.get_vocab_size(true);
    json["added_tokens"] = json!([added(n, "<|begin|>"), added(n + 1, "user"), added(n + 2, "\n\n\n")]);
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "user", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|begin|>": {"id": "<|begin|>", "ids": [n], "tokens": ["<|begin|>"]},
            "user": {"id": "user", "ids": [n + 1], "tokens": ["user"]},
        },
    });
    Tokenizer::parse(json.to_string().as_bytes()).unwrap()
}

fn added(id: usize, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    })
}

/// One tokenizer for each kind of pre-tokenizer that texts are cut for.
static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let mut kinds = vec![(byte_level(true), Value::Null), (sequence(&[digits, byte_level(true)]), Value::Null)];
    kinds.extend(
        PATTERNS.iter().map(|pattern| (sequence(&[split(pattern), byte_level(false)]), json!({"type": "NFC"}))),
    );
    kinds.push((sequence(&[split(NUMBERS[0]), split(PATTERNS[1]), byte_level(false)]), Value::Null));
    kinds.iter().map(|(pre_tokenizer, normalizer)| trained(pre_tokenizer, normalizer)).collect()
});

/// The tokens of a text in parts of `bytes` and more, and the number of parts.
fn in_parts(tokenizer: &Tokenizer, text: &str, special: bool, bytes: usize) -> (Vec<u32>, usize) {
    let mut parts = tokenizer.parts(text.into(), special);
    let mut n = 1;
    while !parts.advance(bytes).unwrap() {
        n += 1;
    }
    (parts.into_ids(), n)
}

#[test]
fn parts_of_prose_and_code_have_the_tokens_of_the_whole() {
    for tokenizer in TOKENIZERS.iter() {
        assert!(tokenizer.cuts_texts());
        for text in [PROSE, CODE].map(|text| &text[..text.floor_char_boundary(TEXT_BYTES)]) {
            for special in [false, true] {
                let whole = tokenizer.encode_with(text, special).unwrap();
                for bytes in [usize::from(special), 100, 1024] {
                    let (ids, parts) = in_parts(tokenizer, text, special, bytes);
                    assert!(ids == whole, "{bytes} bytes, special tokens: {special}");
                    assert!(parts > 1 && (bytes > 1 || parts > 100), "{parts}");
                }
            }
        }
    }
}

#[test]
fn any_mixture_in_parts_has_the_tokens_of_the_whole() {
    let mixture = proptest::collection::vec(proptest::sample::select(FRAGMENTS), 1..60);
    proptest!(ProptestConfig { max_shrink_iters: 100, ..ProptestConfig::with_cases(32) }, |(mixture in mixture, special in any::<bool>())| {
        let text = mixture.concat();
        for tokenizer in TOKENIZERS.iter() {
            let whole = tokenizer.encode_with(&text, special).unwrap();
            prop_assert_eq!(in_parts(tokenizer, &text, special, 0).0, whole);
        }
    });
}

#[test]
fn texts_are_cut_only_if_the_cuts_are_known_to_change_nothing() {
    let none = Value::Null;
    let cuts = |pre_tokenizer: &Value, normalizer: &Value, added: &Value| {
        Around::of(&untrained(pre_tokenizer, normalizer, &none, added)).is_some()
    };
    let no_tokens = json!([]);
    assert!(cuts(&byte_level(true), &none, &no_tokens));
    let with_space = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    for pre_tokenizer in [
        none.clone(),
        byte_level(false),
        with_space,
        json!({"type": "Whitespace"}),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": true}),
        sequence(&[split(r"\w+ \w+"), byte_level(true)]),
        sequence(&[split(NUMBERS[0]), byte_level(false)]),
    ] {
        assert!(!cuts(&pre_tokenizer, &none, &no_tokens), "{pre_tokenizer}");
    }
    for normalizer in [json!({"type": "Lowercase"}), json!({"type": "Prepend", "prepend": "\u{2581}"})] {
        assert!(!cuts(&byte_level(true), &normalizer, &no_tokens), "{normalizer}");
    }
    let mut strips = added(0, "<mask>");
    strips["lstrip"] = json!(true);
    for token in [strips, added(0, "of the"), added(0, "end ")] {
        assert!(!cuts(&byte_level(true), &none, &json!([token])), "{token}");
    }
}

#[test]
fn bytes_are_cut_anywhere_and_other_tokenizers_get_one_part() {
    let bytes = Tokenizer::bytes();
    assert_eq!(in_parts(&bytes, "a\u{E9}b", true, 1), (vec![97, 0xC3, 0xA9, 98], 4));
    let words = json!({
        "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "a": 1, "b": 2},
        },
    });
    let words = Tokenizer::parse(words.to_string().as_bytes()).unwrap();
    assert_eq!(in_parts(&words, "a b a", true, 1), (vec![1, 2, 1], 1));
}
