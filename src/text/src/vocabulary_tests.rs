//! Tests of the tokens in GGUF files. `facts_tests.rs` compares with llama.cpp.

use proptest::prelude::*;

use super::*;
use crate::model_rig::{byte_level_gguf, contents, gguf, sentence_piece_gguf};
use crate::tokenizer::Tokenizer;

#[test]
fn kinds_have_their_numbers() {
    assert!(KINDS.iter().zip(0..).all(|(kind, number)| kind.number == number));
    assert_eq!(kind(9), &KINDS[0]);
    assert_eq!(kind(-1), &KINDS[0]);
}

#[test]
fn no_name_is_listed_twice() {
    let mut names: Vec<&str> = ENDS.into_iter().chain(ROLES.iter().flat_map(|role| role.names).copied()).collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}

/// Text of each token `first ..` of the file with special tokens, and the number of tokens of that text.
fn round(path: &std::path::Path, first: u32, contents: &[String]) -> Vec<(String, usize)> {
    let tokenizer = Tokenizer::load(path).unwrap();
    let round = |(id, content): (u32, &String)| {
        // Behind another token: the first space of a text may be dropped.
        let mut stream = tokenizer.detokenizer_behind(&[first], false);
        let ids = tokenizer.encode_with(content, false).unwrap();
        assert_eq!(ids, [id], "{content:?}");
        (stream.push(id) + &stream.finish(), ids.len())
    };
    (first..).zip(contents).map(round).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_text_of_a_matched_token_is_its_content(contents in contents(), kind in prop::sample::select(&[2, 3, 4][..])) {
        let names: Vec<(&str, i32)> = contents.iter().map(|content| (content.as_str(), kind)).collect();
        let expected: Vec<(String, usize)> = contents.iter().map(|content| (content.clone(), 1)).collect();
        let (_dir, path) = gguf(&byte_level_gguf(&names));
        prop_assert_eq!(round(&path, 256, &contents), expected.clone());
        let pieces: Vec<(&str, i32)> = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1)].into_iter().chain(names).collect();
        let (_dir, path) = gguf(&sentence_piece_gguf(&pieces));
        prop_assert_eq!(round(&path, 4, &contents), expected);
    }
}
