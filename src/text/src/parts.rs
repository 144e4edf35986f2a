//! Tokenising a text part by part, with the tokens of the whole text.
//!
//! A long text takes long to tokenise, and nobody may need the tokens in the end: the client is gone, or the text is longer than
//! the context. [`Parts`] therefore tokenises a text in parts, and the caller decides after each part.
//!
//! # Exactness
//!
//! A text is cut only before a space between two ASCII letters, and only for byte-level BPE whose pre-tokenizer is known to cut
//! there as well:
//!
//! * No match of the known patterns (`around::PATTERNS`) that contains a letter continues with a space. So one match ends before the
//!   space, and its end does not depend on the text behind: a class of letters ends at a space as at the end of the text. The only
//!   look-ahead of the patterns, `\s+(?!\S)`, belongs to a match of white space alone. None looks back, so the matches from the
//!   space on depend on the text from there alone.
//! * Added tokens are found before. None contains a letter followed by a space, so none spans a cut, and none looks at its
//!   neighbours.
//! * BPE merges within a match. Without a normalizer, or with NFC, text is normalised on each side of a cut alone: an ASCII letter
//!   and a space combine with nothing before them.
//!
//! Other tokenizers get the text in one part.

use std::sync::Arc;

use crate::codec::Codec;
use crate::error::TokenizerError;

/// Returns the first place from byte `from` on at which a text may be cut; the end of the text if there is none.
fn cut(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let is_cut = |at: &usize| {
        bytes[*at] == b' '
            && bytes[at - 1].is_ascii_alphabetic()
            && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
    };
    (from.max(1)..bytes.len()).find(is_cut).unwrap_or(bytes.len())
}

/// A text being tokenised part by part.
pub struct Parts {
    codec: Arc<Codec>,
    text: String,
    add_special_tokens: bool,
    /// Bytes tokenised so far.
    done: usize,
    ids: Vec<u32>,
}

impl Parts {
    pub(crate) fn new(codec: Arc<Codec>, text: String, add_special_tokens: bool) -> Self {
        Self { codec, text, add_special_tokens, done: 0, ids: Vec::new() }
    }

    /// Tokenises the next part, of `bytes` bytes or more: up to the next place at which the text may be cut. Returns `true` if the
    /// whole text is tokenised.
    ///
    /// # Errors
    /// The tokenizer has no token for a part of the text.
    pub fn advance(&mut self, bytes: usize) -> Result<bool, TokenizerError> {
        let from = self.done.saturating_add(bytes);
        let Some(library) = &self.codec.hugging_face else {
            let end = from.min(self.text.len());
            self.ids.extend(self.text.as_bytes()[self.done..end].iter().map(|byte| u32::from(*byte)));
            self.done = end;
            return Ok(end == self.text.len());
        };
        let Some(around) = &self.codec.around else {
            self.done = self.text.len();
            let encoding = library.encode_fast(self.text.as_str(), self.add_special_tokens);
            self.ids.extend_from_slice(encoding.map_err(TokenizerError::encode)?.get_ids());
            return Ok(true);
        };
        if self.done == 0 && self.add_special_tokens {
            self.ids.extend_from_slice(&around.before);
        }
        let end = cut(&self.text, from);
        let encoding = library.encode_fast(&self.text[self.done..end], false).map_err(TokenizerError::encode)?;
        self.ids.extend_from_slice(encoding.get_ids());
        self.done = end;
        let all = end == self.text.len();
        if all && self.add_special_tokens {
            self.ids.extend_from_slice(&around.after);
        }
        Ok(all)
    }

    /// Returns the length of the next part, bytes, if `bytes` are asked for.
    pub fn next_part(&self, bytes: usize) -> usize {
        let from = self.done.saturating_add(bytes);
        let end = match (&self.codec.hugging_face, &self.codec.around) {
            (None, _) => from.min(self.text.len()),
            (Some(_), Some(_)) => cut(&self.text, from),
            (Some(_), None) => self.text.len(),
        };
        end - self.done
    }

    /// Returns the number of tokens so far.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Returns the tokens so far.
    pub fn into_ids(self) -> Vec<u32> {
        self.ids
    }
}

#[cfg(test)]
mod tests;
