//! Tokenising a text part by part, with the tokens of the whole text.
//!
//! A long text takes long to tokenise, and nobody may need the tokens in the end: the client is gone, or the text is longer than
//! the context. [`Parts`] therefore tokenises a text in parts, and the caller decides after each part.
//!
//! The byte tokenizer is cut anywhere. A tokenizer of a file gets the text in one part: the tokens around a cut may depend on both
//! sides, and equality with the tokens of the whole comes first.

use std::sync::Arc;

use crate::codec::Codec;
use crate::error::TokenizerError;

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

    /// Tokenises the next part, of `bytes` bytes or more. Returns `true` if the whole text is tokenised.
    ///
    /// # Errors
    /// The tokenizer has no token for a part of the text.
    pub fn advance(&mut self, bytes: usize) -> Result<bool, TokenizerError> {
        let end = self.done + self.next_part(bytes);
        match &self.codec.hugging_face {
            None => self.ids.extend(self.text.as_bytes()[self.done..end].iter().map(|byte| u32::from(*byte))),
            Some(library) => {
                let encoding = library.encode_fast(self.text.as_str(), self.add_special_tokens);
                self.ids.extend_from_slice(encoding.map_err(TokenizerError::encode)?.get_ids());
            }
        }
        self.done = end;
        Ok(end == self.text.len())
    }

    /// Returns the length of the next part, bytes, if `bytes` are asked for.
    pub fn next_part(&self, bytes: usize) -> usize {
        let left = self.text.len() - self.done;
        if self.codec.hugging_face.is_none() { bytes.min(left) } else { left }
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
