//! Tests of added tokens. `facts_tests.rs` compares with transformers.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model_rig::{added, byte_level_json, contents, folder};
use crate::tokenizer::Tokenizer;

fn read(files: &[(&str, &Value)]) -> AddedTokens {
    AddedTokens::read(Files::Folder(folder(files).path())).unwrap()
}

#[test]
fn ids_that_contradict_each_other_are_noted_and_change_nothing() {
    let json = byte_level_json(&[added(256, "<a>", true)]);
    let decoder =
        |id: &str, content: &str| json!({"added_tokens_decoder": {id: {"content": content, "special": true}}});
    let all = read(&[("tokenizer.json", &json), ("tokenizer_config.json", &decoder("300", "<a>"))]);
    assert_eq!((all.id("<a>"), all.notes.len()), (Some(256), 1), "{:?}", all.notes);
    assert_eq!(all.notes, ["tokenizer_config.json has '<a>' as token 300, tokenizer.json as 256"]);
    let all = read(&[("tokenizer.json", &json), ("tokenizer_config.json", &decoder("256", "<b>"))]);
    assert_eq!((all.id("<b>"), all.name(256)), (None, Some("<a>")));
    assert_eq!(all.notes, ["tokenizer_config.json has '<b>' as token 256, which is '<a>': it is not a token"]);
}

#[test]
fn tokens_have_the_ids_of_the_file_also_with_gaps_and_with_the_name_of_a_byte() {
    let json = byte_level_json(&[added(260, "<a>", true), added(300, "<b>", false), added(301, "\u{E9}", false)]);
    let dir = folder(&[("tokenizer.json", &json)]);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(tokenizer.encode("<b><a>\u{E9}").unwrap(), [300, 260, 301]);
    assert_eq!((tokenizer.decode(&[300, 260, 301]), tokenizer.vocab_size()), ("<b>\u{E9}".to_owned(), 302));
    // The byte with the name of the added token is still a byte.
    let text = "\u{9D34} caf\u{E8}";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
}

#[test]
fn a_vocabulary_may_be_a_list() {
    let json = json!({
        "version": "1.0", "added_tokens": [added(1, "</s>", true)],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]},
    });
    let config = json!({"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"});
    let files = [("tokenizer.json", &json), ("tokenizer_config.json", &config)];
    let all = read(&files);
    assert_eq!((all.id("a"), all.id("<pad>"), all.id("<unk>")), (Some(2), Some(3), Some(0)));
    assert_eq!(all.end, Some(("</s>".to_owned(), CONFIG)));
    let dir = folder(&files);
    assert_eq!(Tokenizer::load(dir.path()).unwrap().encode("a<pad>a").unwrap(), [2, 3, 2]);
}

/// SentencePiece as in folders, with words that stand for themselves and a run of spaces as an added token, as Gemma has one.
fn byte_fallback_json(added: &[Value]) -> Value {
    let bytes = (0..=255u32).map(|byte| (format!("<0x{byte:02X}>"), json!(byte)));
    let words = ["<unk>", "\u{2581}", "\u{2581}\u{2581}", "a"]
        .into_iter()
        .zip(256..)
        .map(|(word, id)| (word.to_owned(), json!(id)));
    let vocab: Map<String, Value> = bytes.chain(words).collect();
    json!({
        "version": "1.0", "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["\u{2581}", "\u{2581}"]], "unk_token": "<unk>", "byte_fallback": true},
    })
}

#[test]
fn a_run_of_spaces_is_a_word_though_it_is_an_added_token() {
    let json = byte_fallback_json(&[added(258, "\u{2581}\u{2581}", false)]);
    let dir = folder(&[("tokenizer.json", &json)]);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let ids = tokenizer.encode("a  a").unwrap();
    assert_eq!((ids.clone(), tokenizer.decode(&ids)), (vec![259, 258, 259], "a  a".to_owned()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_text_of_an_added_token_is_its_content_whichever_file_names_it(
        contents in contents(), special in any::<bool>(), config in any::<bool>(), gap in 0u32..3,
    ) {
        let ids: Vec<u32> = (0..contents.len() as u32).map(|i| 260 + i * (gap + 1)).collect();
        let tokens: Vec<Value> = ids.iter().zip(&contents).map(|(id, content)| added(*id, content, special)).collect();
        let decoder: Map<String, Value> = ids.iter().zip(&tokens).map(|(id, token)| (id.to_string(), token.clone())).collect();
        let config_json = if config { json!({"added_tokens_decoder": decoder}) } else { json!({}) };
        let listed = if config { &[][..] } else { &tokens };
        for json in [byte_level_json(listed), byte_fallback_json(listed)] {
            let dir = folder(&[("tokenizer.json", &json), ("tokenizer_config.json", &config_json)]);
            let tokenizer = Tokenizer::load(dir.path()).unwrap();
            for (id, content) in ids.iter().zip(&contents) {
                prop_assert_eq!(tokenizer.encode(content).unwrap(), [*id], "{:?}", content);
                prop_assert_eq!(tokenizer.detokenizer(false).push(*id), content.clone());
                prop_assert_eq!(tokenizer.decode(&[*id]), if special { "" } else { content.as_str() });
            }
        }
    }
}
