//! Text to tokens, with the `tokenizer.json` of a model folder, the tokenizer in a GGUF file, or byte by byte.

use std::path::Path;
use std::sync::Arc;

use crate::added::{AddedTokens, TOKENIZER};
use crate::codec::{Added, Codec};
use crate::detokenizer::{Detokenizer, decode_all};
use crate::error::{FactsError, TokenizerError};
use crate::folder::Files;
use crate::gguf;
use crate::mistakes::{Lacks, Mistake};
use crate::parts::Parts;
use crate::probe;

/// A tokenizer: a Hugging Face `tokenizer.json`, the tokenizer in a GGUF file, or one token per byte. Clones share all tables.
#[derive(Clone)]
pub struct Tokenizer {
    codec: Arc<Codec>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model folder with the added tokens of the other files, or the tokenizer in a GGUF file. Truncation and padding
    /// requested by `tokenizer.json` are switched off.
    ///
    /// # Errors
    ///
    /// The file is missing, is not a fast tokenizer, or is a GGUF file with a tokenizer of another kind than byte-level BPE and
    /// SentencePiece BPE.
    pub fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
        if path.is_file() {
            let reader = gguf::open(path)?;
            let invalid = |problem| TokenizerError::Gguf { path: path.to_owned(), problem };
            return Ok(Self { codec: gguf::codec(reader.metadata()).and_then(probe::run).map_err(invalid)? });
        }
        if !path.exists() {
            return Err(FactsError::Absent { path: path.to_owned() }.into());
        }
        let file = path.join(TOKENIZER);
        if !file.exists() {
            let missing = TokenizerError::MissingFile { path: file };
            return Err(
                Mistake::of_folder(path, Lacks::Tokenizer).map_or(missing, |found| FactsError::from(found).into())
            );
        }
        Self::of_files(Files::Folder(path))
    }

    /// Reads the text of the `tokenizer.json` of a model folder `name`.
    ///
    /// # Errors
    ///
    /// The text is not a fast tokenizer.
    pub fn from_json(name: &str, json: &[u8]) -> Result<Self, TokenizerError> {
        Self::of_files(Files::Memory(name, &[(TOKENIZER, json)]))
    }

    fn of_files(files: Files<'_>) -> Result<Self, TokenizerError> {
        let added = AddedTokens::read(files)?;
        let tokens: Vec<Added> = added.tokens.into_iter().map(|(token, _)| token).collect();
        let json = files.read(TOKENIZER)?.unwrap_or_default();
        let invalid = |problem| TokenizerError::Invalid { path: files.path(TOKENIZER), problem };
        Ok(Self { codec: Codec::new(&json, &tokens, None).and_then(probe::run).map_err(invalid)? })
    }

    /// Returns the byte tokenizer: token `b` is byte `b`, 256 begins and 257 ends a text. Encoding adds neither, so a text
    /// has as many tokens as bytes. Small models made in memory use it.
    pub fn bytes() -> Tokenizer {
        Self { codec: Arc::new(Codec::bytes()) }
    }

    /// Returns one more than the largest token id of [`Tokenizer::encode`]. A model with a smaller vocabulary does not belong to
    /// this tokenizer.
    pub fn vocab_size(&self) -> u32 {
        self.codec.vocab_size
    }

    /// Returns the number of tokens with an id of `vocab_size` or above: a model of that vocabulary cannot compute these tokens.
    pub fn tokens_beyond(&self, vocab_size: u32) -> usize {
        let beyond = self.vocab_size().saturating_sub(vocab_size) as usize;
        let Some(library) = &self.codec.library else { return beyond };
        let named = |tokenizer: &tokenizers::Tokenizer| {
            Ok(tokenizer.get_vocab(true).into_values().filter(|id| *id >= vocab_size).count())
        };
        library.call(named).unwrap_or(beyond)
    }

    /// Returns the number of bytes of text that one token stands for, at most. (A token for unknown text may stand for more.)
    pub fn longest_piece(&self) -> u32 {
        self.codec.longest_piece
    }

    /// Returns the bytes that a token adds to a text, which may be part of a character, and `true` for a special token; `None` if that depends on the
    /// tokens around it. A token that is unknown adds nothing.
    pub fn piece(&self, id: u32) -> Option<(&[u8], bool)> {
        self.codec.pieces.as_ref().map(|pieces| (pieces.of(id, false), pieces.is_special(id)))
    }

    /// Starts to tokenise a text part by part; the tokens of all parts are the tokens of [`Tokenizer::encode_with`].
    pub fn parts(&self, text: String, add_special_tokens: bool) -> Parts {
        Parts::new(Arc::clone(&self.codec), text, add_special_tokens)
    }

    /// Returns the tokens of `text`, with the tokenizer's special tokens around the text (for Llama: a BOS token). Names of
    /// special tokens in the text become special tokens.
    ///
    /// # Errors
    ///
    /// The tokenizer has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, true)
    }

    /// Returns the tokens of `text`, with special tokens around the text only if `add_special_tokens`: a text with special tokens
    /// already, such as a rendered chat template, must not get a second set.
    ///
    /// # Errors
    ///
    /// The tokenizer has no token for a part of the text.
    pub fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut parts = self.parts(text.to_owned(), add_special_tokens);
        while !parts.advance(usize::MAX)? {}
        Ok(parts.into_ids())
    }

    /// Starts a new stream of text. With `skip_special_tokens` the text leaves out the names of special tokens.
    pub fn detokenizer(&self, skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.codec), skip_special_tokens)
    }

    /// Starts a new stream of text that goes on after a prompt with these last tokens, [`crate::PROMPT_END`] or as many as it has: a space between
    /// the prompt and the answer is part of the answer.
    pub fn detokenizer_behind(&self, prompt_end: &[u32], skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::behind(Arc::clone(&self.codec), skip_special_tokens, prompt_end)
    }

    /// Returns the text of `ids` without special tokens, as from a [`Detokenizer`]. Unknown ids have no text; bytes outside of
    /// UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        decode_all(&self.codec, ids)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::codec::{BOS, EOS, byte_level_alphabet};

    const TEXT: &str = "Zürich, 東京 and \u{1F600}\u{1F469}\u{200D}\u{1F680}: na\u{EF}ve\n\ttabs  two spaces";

    fn added(names: &[(u32, &str, bool)]) -> Value {
        let flags = |(id, content, special): &(u32, &str, bool)| {
            json!({
                "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            })
        };
        names.iter().map(flags).collect()
    }

    /// Byte-level BPE without merges: every byte is a token.
    fn byte_level() -> Tokenizer {
        byte_level_with(&Value::Null)
    }

    fn byte_level_with(post_processor: &Value) -> Tokenizer {
        let alphabet = byte_level_alphabet();
        let vocab: serde_json::Map<String, Value> = alphabet
            .iter()
            .enumerate()
            .filter(|(_, byte)| byte.is_some())
            .enumerate()
            .map(|(id, (c, _))| (char::from_u32(c as u32).unwrap().to_string(), json!(id)))
            .collect();
        let json = json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "added_tokens": added(&[(256, "<|begin|>", true), (257, "a b", false)]),
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
            "post_processor": post_processor,
        });
        Tokenizer::from_json("model", json.to_string().as_bytes()).unwrap()
    }

    /// SentencePiece as converted for Llama 2: names with U+2581 for spaces and bytes as `<0xNN>`.
    fn byte_fallback() -> Tokenizer {
        let mut vocab = serde_json::Map::from_iter([("<unk>".to_owned(), json!(0)), ("<s>".to_owned(), json!(1))]);
        for byte in 0..=255u8 {
            vocab.insert(format!("<0x{byte:02X}>"), json!(2 + u32::from(byte)));
        }
        for (i, c) in ('a'..='z').chain(['\u{2581}', 'Z', ',', ':']).enumerate() {
            vocab.insert(c.to_string(), json!(300 + i));
        }
        let json = json!({
            "version": "1.0",
            "added_tokens": added(&[(0, "<unk>", true), (1, "<s>", true)]),
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": true,
                "fuse_unk": true,
            },
        });
        Tokenizer::from_json("model", json.to_string().as_bytes()).unwrap()
    }

    /// A decoder that is decoded as a whole: WordPiece.
    fn word_piece() -> Tokenizer {
        let json = json!({
            "version": "1.0",
            "pre_tokenizer": {"type": "Whitespace"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {"[UNK]": 0, "token": 1, "##izer": 2, "##s": 3, "split": 4, "words": 5, "\u{6771}": 6},
            },
        });
        Tokenizer::from_json("model", json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn text_survives_every_tokenizer_and_streams_without_a_byte_lost_or_doubled() {
        for tokenizer in [Tokenizer::bytes(), byte_level(), byte_fallback()] {
            let ids = tokenizer.encode(TEXT).unwrap();
            assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()));
            assert_eq!(tokenizer.decode(&ids), TEXT);
            // Every prefix of the stream is a prefix of the text, and lags behind the bytes by one character at most.
            let mut detokenizer = tokenizer.detokenizer(false);
            let mut text = String::new();
            for (n, id) in ids.iter().enumerate() {
                text.push_str(&detokenizer.push(*id));
                assert!(TEXT.starts_with(&text));
                let now = text.clone() + &detokenizer_after(&tokenizer, &ids[..=n]);
                assert!(now.trim_end_matches('\u{FFFD}').len() <= text.len(), "{now:?} is ahead of {text:?}");
            }
            assert_eq!(text + &detokenizer.finish(), TEXT);
        }
    }

    /// What `finish` adds after `ids`.
    fn detokenizer_after(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let mut detokenizer = tokenizer.detokenizer(false);
        ids.iter().for_each(|id| drop(detokenizer.push(*id)));
        detokenizer.finish()
    }

    #[test]
    fn decoding_agrees_with_the_tokenizers_library() {
        for (tokenizer, text) in
            [(byte_level(), TEXT), (byte_fallback(), TEXT), (word_piece(), "tokenizers split words \u{6771}")]
        {
            let ids = tokenizer.encode(text).unwrap();
            let library = tokenizer.codec.library.as_ref().unwrap();
            library
                .call(|library| {
                    assert_eq!(ids, library.encode_fast(text, true)?.get_ids());
                    assert_eq!(tokenizer.decode(&ids), library.decode(&ids, true)?);
                    Ok(())
                })
                .unwrap();
        }
        let words = word_piece();
        let mut detokenizer = words.detokenizer(true);
        let parts: Vec<String> = [1, 2, 3, 4, 5].into_iter().map(|id| detokenizer.push(id)).collect();
        assert_eq!(parts, ["token", "izer", "s", " split", " words"]);
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn an_answer_begins_with_the_space_that_parts_it_from_its_prompt() {
        for (tokenizer, prompt, answer) in [(byte_fallback(), TEXT, "a b"), (word_piece(), "split", "words token")] {
            let [prompt, answer] = [prompt, answer].map(|text| tokenizer.encode(text).unwrap());
            let text = |mut stream: Detokenizer| {
                let text: String = answer.iter().map(|id| stream.push(*id)).collect();
                text + &stream.finish()
            };
            let alone = text(tokenizer.detokenizer(true));
            assert!(!alone.starts_with(' '), "{alone:?}");
            let end = &prompt[prompt.len().saturating_sub(crate::PROMPT_END)..];
            assert_eq!(text(tokenizer.detokenizer_behind(end, true)), format!(" {alone}"));
            assert_eq!(text(tokenizer.detokenizer_behind(&[], true)), alone);
        }
        // Bytes have no space of their own.
        let bytes = Tokenizer::bytes();
        assert_eq!(bytes.detokenizer_behind(&bytes.encode("ab").unwrap(), true).push(u32::from(b'c')), "c");
    }

    #[test]
    fn special_tokens_are_read_from_text_and_shown_only_if_asked_for() {
        let tokenizer = byte_level();
        let ids = tokenizer.encode("<|begin|>xa b").unwrap();
        assert_eq!((ids[0], ids[2], ids.len()), (256, 257, 3));
        assert_eq!(tokenizer.decode(&ids), "xa b");
        let mut shown = tokenizer.detokenizer(false);
        assert_eq!(ids.iter().map(|id| shown.push(*id)).collect::<String>(), "<|begin|>xa b");
        let named = |stream: Detokenizer, ids: &[u32]| ids.iter().map(|id| stream.left_out(*id)).collect::<String>();
        assert_eq!(named(tokenizer.detokenizer(true), &ids), "<|begin|>");
        assert_eq!(named(tokenizer.detokenizer(false), &ids), "", "nothing is left out");
        assert_eq!(named(Tokenizer::bytes().detokenizer(true), &[BOS, 65, EOS, 9999]), "<bos><eos>");
        let mut bytes = Tokenizer::bytes().detokenizer(false);
        assert_eq!([BOS, 65, EOS].map(|id| bytes.push(id)).concat(), "<bos>A<eos>");
        assert_eq!(Tokenizer::bytes().decode(&[BOS, 65, EOS]), "A");
        assert_eq!(tokenizer.piece(256), Some((&b"<|begin|>"[..], true)));
        assert_eq!(tokenizer.piece(257), Some((&b"a b"[..], false)));
        assert_eq!((tokenizer.piece(9999), word_piece().piece(1)), (Some((&[][..], false)), None));
    }

    #[test]
    fn a_begin_token_is_put_before_the_text_unless_the_text_brings_its_own() {
        let tokenizer = byte_level_with(&json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [256], "tokens": ["<|begin|>"]}},
        }));
        let plain = tokenizer.encode_with("xy", false).unwrap();
        assert_eq!(plain.len(), 2);
        let begun = [&[256], plain.as_slice()].concat();
        assert_eq!(tokenizer.encode("xy").unwrap(), begun);
        assert_eq!(tokenizer.encode_with("<|begin|>xy", false).unwrap(), begun);
        assert_eq!(tokenizer.encode("<|begin|>xy").unwrap(), [&[256], begun.as_slice()].concat());
    }

    #[test]
    fn truncation_asked_for_by_the_file_is_off() {
        assert_eq!(byte_level().encode("more than four").unwrap().len(), 14);
    }

    #[test]
    fn ids_that_no_one_knows_have_no_text() {
        for tokenizer in [Tokenizer::bytes(), byte_level(), byte_fallback(), word_piece()] {
            assert_eq!(tokenizer.decode(&[100_000, u32::MAX]), "");
        }
    }

    #[test]
    fn a_file_of_any_size_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        // A hole, which takes no place on the disk.
        std::fs::File::create(dir.path().join("tokenizer.json")).unwrap().set_len(1 << 40).unwrap();
        let Err(error) = Tokenizer::load(dir.path()) else { panic!("loaded") };
        let line = error.to_string();
        assert!(line.contains("tokenizer.json: it has 1099511627776 bytes; at most 268435456 are read"), "{line}");
    }

    #[test]
    fn bad_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let Err(error) = Tokenizer::load(dir.path()) else { panic!("loaded") };
        assert!(matches!(error, TokenizerError::MissingFile { .. }), "{error}");
        for bad in ["", "{", "{}", "[1]", r#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#] {
            std::fs::write(dir.path().join("tokenizer.json"), bad).unwrap();
            let Err(error) = Tokenizer::load(dir.path()) else { panic!("loaded {bad}") };
            assert!(matches!(error, TokenizerError::Invalid { .. } | TokenizerError::Facts(_)), "{error}");
            assert!(error.to_string().contains("tokenizer.json") && !error.to_string().contains('\n'), "{error}");
        }
        let json = r#"{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}"#;
        std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
        assert!(Tokenizer::load(dir.path()).is_err());
    }
}
