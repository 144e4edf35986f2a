//! Tokens to text, one token at a time.
//!
//! A token is a piece of bytes, not of text: one character may spread over several tokens. Text is given out once its bytes
//! can no longer change their meaning. So text sent to a client is never taken back, and all parts together equal the text
//! of the whole.

use std::sync::Arc;

use trunkline_foreign::Panicked;

use crate::codec::Codec;
use crate::error::TokenizerError;
use crate::library::Fault;

/// Turns a stream of tokens into a stream of text. Bytes outside of UTF-8 become U+FFFD.
pub struct Detokenizer {
    codec: Arc<Codec>,
    skip_special: bool,
    state: State,
    /// Panic of the decoder.
    panicked: Option<Panicked>,
}

/// Tokens at the end of a prompt that say how the text behind them begins.
pub const PROMPT_END: usize = 5;

enum State {
    /// Tokens have bytes of their own.
    Pieces {
        /// The beginning of a character.
        pending: Vec<u8>,
        /// Number of leading spaces still to be dropped, at most.
        strip: usize,
    },
    /// Tokens have text only in their context.
    Window(Window),
}

/// Tokens whose text is not complete.
#[derive(Default)]
struct Window {
    /// Tokens before, whose text has been given out: those of the last point with complete text.
    context: Vec<u32>,
    /// Tokens since then.
    new: Vec<u32>,
    /// Bytes of the text of `new` that have been given out.
    shown: usize,
    /// Number of leading tokens of `new` all of whose text has been given out, but for the last character.
    certain: usize,
}

/// Maximum number of tokens with an incomplete character: a character has four bytes, and a token has one at least. The first of four tokens that end
/// within a character is therefore no part of it, but broken by itself.
const UNCERTAIN: usize = 4;

impl Detokenizer {
    pub(crate) fn new(codec: Arc<Codec>, skip_special: bool) -> Self {
        let state = match &codec.pieces {
            Some(pieces) => State::Pieces { pending: Vec::new(), strip: pieces.strip },
            None => State::Window(Window::default()),
        };
        Self { codec, skip_special, state, panicked: None }
    }

    /// Starts a stream that goes on after a prompt with these last tokens, of which [`PROMPT_END`] are enough. A space between the prompt and
    /// the first token is part of the text then: decoders that drop the space at the beginning of a text keep it.
    pub(crate) fn behind(codec: Arc<Codec>, skip_special: bool, prompt_end: &[u32]) -> Self {
        let mut stream = Self::new(codec, skip_special);
        match &mut stream.state {
            State::Pieces { strip, .. } => {
                let pieces = stream.codec.pieces.as_ref().expect("the state follows the codec");
                if prompt_end.iter().any(|token| !pieces.of(*token, true).is_empty()) {
                    *strip = 0;
                }
            }
            State::Window(window) => window.context.extend_from_slice(prompt_end),
        }
        stream
    }

    /// Takes the next token and returns the newly certain text; empty within a character.
    pub fn push(&mut self, token: u32) -> String {
        match &mut self.state {
            State::Pieces { pending, strip } => {
                let pieces = self.codec.pieces.as_ref().expect("the state follows the codec");
                let mut bytes = pieces.of(token, self.skip_special);
                while *strip > 0 && !bytes.is_empty() {
                    match bytes.strip_prefix(b" ") {
                        Some(rest) => (bytes, *strip) = (rest, *strip - 1),
                        None => *strip = 0,
                    }
                }
                pending.extend_from_slice(bytes);
                take_certain(pending)
            }
            State::Window(window) => {
                let mut decode = Decode::new(&self.codec, self.skip_special);
                let text = window.push(&mut decode, token);
                self.panicked = self.panicked.take().or(decode.panicked);
                text
            }
        }
    }

    /// Checks that the text so far is that of the tokens.
    ///
    /// # Errors
    ///
    /// The decoder panicked.
    pub fn check(&self) -> Result<(), TokenizerError> {
        self.panicked.clone().map_or(Ok(()), |panicked| Err(TokenizerError::Panicked(panicked)))
    }

    /// Returns the name of a special token that the text leaves out; empty for any other token. A stop string may name the token.
    pub fn left_out(&self, token: u32) -> &str {
        if !self.skip_special {
            return "";
        }
        match (&self.codec.library, &self.codec.pieces) {
            (Some(library), _) => library.special(token),
            (None, Some(pieces)) if pieces.of(token, true).is_empty() => {
                std::str::from_utf8(pieces.of(token, false)).unwrap_or_default()
            }
            (None, _) => "",
        }
    }

    /// Returns the rest of the text, an incomplete character as U+FFFD, and starts over.
    pub fn finish(&mut self) -> String {
        let rest = match &mut self.state {
            State::Pieces { pending, .. } => String::from_utf8_lossy(pending).into_owned(),
            State::Window(window) => {
                let mut decode = Decode::new(&self.codec, self.skip_special);
                let rest = window.rest(&window.text(&mut decode, window.new.len()));
                self.panicked = self.panicked.take().or(decode.panicked);
                rest
            }
        };
        let panicked = self.panicked.take();
        *self = Self { panicked, ..Self::new(Arc::clone(&self.codec), self.skip_special) };
        rest
    }
}

/// Returns the text of `ids` without special tokens.
pub(crate) fn decode_all(codec: &Arc<Codec>, ids: &[u32]) -> String {
    decode_checked(codec, ids).0
}

/// Returns the text of `ids` without special tokens, and whether it is theirs.
pub(crate) fn decode_checked(codec: &Arc<Codec>, ids: &[u32]) -> (String, Result<(), TokenizerError>) {
    let mut detokenizer = Detokenizer::new(Arc::clone(codec), true);
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text.push_str(&detokenizer.finish());
    (text, detokenizer.check())
}

/// Takes from `pending` everything but an incomplete last character.
fn take_certain(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(good) => {
                text.push_str(good);
                pending.clear();
                return text;
            }
            Err(error) => {
                let (good, bad) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(good).expect("found valid"));
                let Some(len) = error.error_len() else {
                    let kept = pending.len() - bad.len();
                    pending.drain(..kept);
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &bad[len..];
            }
        }
    }
}

impl Window {
    /// Takes the next token and returns the newly certain text. Takes the time of a few tokens, however many came before.
    fn push(&mut self, decode: &mut Decode<'_>, token: u32) -> String {
        self.new.push(token);
        let mut taken = String::new();
        loop {
            let text = self.text(decode, self.new.len());
            let complete = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
            if complete == text.len() {
                taken.push_str(&self.rest(&text));
                // Tokens without text leave the context as it is.
                let context =
                    if text.is_empty() { std::mem::take(&mut self.context) } else { std::mem::take(&mut self.new) };
                *self = Self { context, ..Self::default() };
                return taken;
            }
            if complete > self.shown {
                taken.push_str(&self.rest(&text[..complete]));
                (self.shown, self.certain) = (complete, self.new.len() - 1);
            }
            if self.new.len() - self.certain < UNCERTAIN {
                return taken;
            }
            // A broken token is no context of the tokens behind: decoders that join bytes would find all of them broken.
            taken.push_str(&self.rest(&self.text(decode, self.certain + 1)));
            self.new.drain(..=self.certain);
            (self.shown, self.certain) = (0, 0);
        }
    }

    /// Returns the text of the first `n` new tokens after the context. If the two do not part, as at bytes that are joined over both, the text
    /// of the new tokens alone.
    fn text(&self, decode: &mut Decode<'_>, n: usize) -> String {
        let new = &self.new[..n];
        let all = decode.text(&[&self.context, new].concat());
        match all.strip_prefix(&decode.text(&self.context)) {
            Some(text) => text.to_owned(),
            None => decode.text(new),
        }
    }

    /// Returns what has not been given out of the text of new tokens.
    fn rest(&self, text: &str) -> String {
        text.get(self.shown..).unwrap_or_default().to_owned()
    }
}

/// The decoder of the library.
struct Decode<'a> {
    codec: &'a Codec,
    skip_special: bool,
    panicked: Option<Panicked>,
}

impl<'a> Decode<'a> {
    fn new(codec: &'a Codec, skip_special: bool) -> Self {
        Self { codec, skip_special, panicked: None }
    }

    /// Returns the text of tokens; none if the decoder refuses the tokens.
    fn text(&mut self, ids: &[u32]) -> String {
        let library = self.codec.library.as_ref().expect("the state follows the codec");
        match library.decode(ids, self.skip_special) {
            Ok(text) => text,
            Err(Fault::Refused(_)) => String::new(),
            Err(Fault::Panicked(panicked)) => {
                self.panicked = Some(panicked);
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn bytes() -> Detokenizer {
        Detokenizer::new(Arc::new(Codec::bytes()), true)
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut detokenizer = bytes();
        let parts: Vec<String> = "a\u{E9}\u{20AC}\u{1F600}".bytes().map(|byte| detokenizer.push(byte.into())).collect();
        assert_eq!(parts, ["a", "", "\u{E9}", "", "", "\u{20AC}", "", "", "", "\u{1F600}"]);
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn broken_characters_are_replaced_at_once_and_incomplete_ones_at_the_end() {
        let mut detokenizer = bytes();
        let parts: Vec<String> = [0xE2, 0x82, 0x41, 0xFF, 0xC3].map(|byte| detokenizer.push(byte)).to_vec();
        assert_eq!(parts, ["", "", "\u{FFFD}A", "\u{FFFD}", ""]);
        assert_eq!(detokenizer.finish(), "\u{FFFD}");
        assert_eq!(detokenizer.push(0x42), "B");
    }

    /// SentencePiece with a decoder that is decoded as a whole: bytes `<0xNN>` are tokens 0 to 255, and words follow.
    fn windowed() -> Arc<Codec> {
        let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), json!(byte)));
        let words =
            ["\u{2581}the", "\u{2581}", "line"].into_iter().zip(256..).map(|(word, id)| (word.to_owned(), json!(id)));
        let vocab: serde_json::Map<String, serde_json::Value> = bytes.chain(words).collect();
        let metaspace =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
        let json = json!({
            "version": "1.0", "added_tokens": [{
                "id": 259, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }],
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]},
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
        });
        let added = [crate::codec::Added::new(259, "<s>", true)];
        let codec = Codec::new(json.to_string().as_bytes(), &added, None).unwrap();
        assert!(codec.pieces.is_none(), "the decoder is of no known kind");
        Arc::new(codec)
    }

    /// Number of tokens that may still change.
    fn uncertain(detokenizer: &Detokenizer) -> usize {
        let State::Window(window) = &detokenizer.state else { panic!("tokens have bytes of their own") };
        window.new.len() - window.certain
    }

    #[test]
    fn broken_bytes_of_an_unknown_decoder_come_out_at_once_and_hold_back_nothing() {
        let mut detokenizer = Detokenizer::new(windowed(), true);
        let parts: Vec<String> = (0..3200).map(|_| detokenizer.push(0xFF)).collect();
        assert_eq!(parts[..UNCERTAIN], ["", "", "", "\u{FFFD}"], "the first of four is broken");
        assert!(parts[UNCERTAIN..].iter().all(|part| part == "\u{FFFD}"), "and so is each that follows");
        // A character behind broken bytes is whole.
        let parts = "\u{6771}".bytes().chain(*b"a").map(|byte| detokenizer.push(byte.into())).collect::<Vec<_>>();
        assert_eq!(parts, ["\u{FFFD}", "\u{FFFD}", "\u{FFFD}\u{6771}", "a"]);
    }

    #[test]
    fn words_keep_their_spaces_behind_characters_and_special_tokens() {
        let mut detokenizer = Detokenizer::new(windowed(), true);
        let parts = [256, 0xE6, 0x9D, 0xB1, 256, 259, 256, 258].map(|id| detokenizer.push(id));
        assert_eq!(parts, ["the", "", "", "\u{6771}", " the", "", " the", "line"]);
    }

    proptest! {
        #[test]
        fn an_unknown_decoder_gives_the_text_of_the_whole_and_lags_by_four_tokens_at_most(
            pieces in proptest::collection::vec(proptest::sample::select(&["\u{2581}the", "line", "\u{E9}", "\u{6771}", "\u{1F600}", "a"][..]), 0..20),
            broken in proptest::collection::vec(proptest::sample::select(&[0xFF, 0xE6, 0x9D, 0xF0, 0x9F, 256, 258, 259][..]), 0..24),
        ) {
            let codec = windowed();
            let ids: Vec<u32> = pieces.iter().flat_map(|piece| match *piece {
                "\u{2581}the" => vec![256],
                "line" => vec![258],
                text => text.bytes().map(u32::from).collect(),
            }).collect();
            prop_assert_eq!(decode_all(&codec, &ids), codec.library.as_ref().unwrap().decode(&ids, true).unwrap());
            let mut detokenizer = Detokenizer::new(codec, true);
            for id in broken {
                detokenizer.push(id);
                prop_assert!(uncertain(&detokenizer) < UNCERTAIN);
            }
        }

        #[test]
        fn any_bytes_give_the_text_of_the_whole(
            // Mostly bytes that begin or continue characters.
            bytes in proptest::collection::vec(proptest::sample::select(&[0x41, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0xFF][..]), 12),
        ) {
            let ids: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
            prop_assert_eq!(decode_all(&Arc::new(Codec::bytes()), &ids), String::from_utf8_lossy(&bytes));
        }
    }
}
