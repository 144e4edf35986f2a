//! Tokens to text, one token at a time.
//!
//! A token is a piece of bytes, not of text: one character may spread over several tokens. Text is given out once its bytes
//! can no longer change their meaning. So text sent to a client is never taken back, and all parts together equal the text
//! of the whole.

use std::sync::Arc;

use crate::codec::Codec;

/// Turns a stream of tokens into a stream of text. Bytes outside of UTF-8 become U+FFFD.
pub struct Detokenizer {
    codec: Arc<Codec>,
    skip_special: bool,
    state: State,
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
    Window {
        /// Tokens since the last point with complete text.
        ids: Vec<u32>,
        /// Number of leading `ids` whose text has been given out; decoded again, as the context of the rest.
        done: usize,
    },
}

impl Detokenizer {
    pub(crate) fn new(codec: Arc<Codec>, skip_special: bool) -> Self {
        let state = match &codec.pieces {
            Some(pieces) => State::Pieces { pending: Vec::new(), strip: pieces.strip },
            None => State::Window { ids: Vec::new(), done: 0 },
        };
        Self { codec, skip_special, state }
    }

    /// Starts a stream that goes on behind a prompt with these last tokens, of which [`PROMPT_END`] are enough. A space between the prompt and
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
            State::Window { ids, done } => {
                ids.extend_from_slice(prompt_end);
                *done = ids.len();
            }
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
            State::Window { ids, done } => {
                ids.push(token);
                let text = decode(&self.codec, ids, self.skip_special);
                if text.ends_with(char::REPLACEMENT_CHARACTER) {
                    return String::new();
                }
                let new = after(&text, &decode(&self.codec, &ids[..*done], self.skip_special));
                ids.drain(..*done);
                *done = ids.len();
                new
            }
        }
    }

    /// Returns the name of a special token that the text leaves out; empty for any other token. A stop string may name the token.
    pub fn left_out(&self, token: u32) -> &str {
        if !self.skip_special {
            return "";
        }
        match (&self.codec.hugging_face, &self.codec.pieces) {
            (Some(library), _) => {
                let added = library.get_added_vocabulary().get_added_tokens_decoder();
                added.get(&token).filter(|added| added.special).map_or("", |added| &added.content)
            }
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
            State::Window { ids, done } => {
                let text = decode(&self.codec, ids, self.skip_special);
                after(&text, &decode(&self.codec, &ids[..*done], self.skip_special))
            }
        };
        *self = Self::new(Arc::clone(&self.codec), self.skip_special);
        rest
    }
}

/// Returns the text of `ids` without special tokens.
pub(crate) fn decode_all(codec: &Arc<Codec>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(codec), true);
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text.push_str(&detokenizer.finish());
    text
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

fn decode(codec: &Codec, ids: &[u32], skip_special: bool) -> String {
    let library = codec.hugging_face.as_ref().expect("the state follows the codec");
    // The decoders that come here fail on no list of known tokens; text that cannot be had is no text.
    library.decode(ids, skip_special).unwrap_or_default()
}

/// Returns the part of `text` after `context`; `text` normally begins with `context`.
fn after(text: &str, context: &str) -> String {
    text.strip_prefix(context).or_else(|| text.get(context.len()..)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
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
