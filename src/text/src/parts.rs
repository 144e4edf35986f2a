//! Tokenising a text part by part, with the tokens of the whole text.
//!
//! A long text takes long to tokenise, and nobody may need the tokens in the end: the client is gone, or the text is longer than
//! the context. [`Parts`] therefore tokenises a text in parts, and the caller decides after each part.
//!
//! The byte tokenizer is cut anywhere. A tokenizer of a file first takes the whole text, finds the added tokens, normalises the rest
//! and splits it into words as its pre-tokenizer says; then words become tokens part by part. No token crosses words, so the tokens are
//! those of the whole. A tokenizer without a pre-tokenizer, as of Llama 2, has one word between two added tokens.

use std::cell::Cell;
use std::sync::Arc;

use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer};

use crate::codec::Codec;
use crate::error::TokenizerError;
use crate::shape;

/// A text being tokenised part by part.
pub struct Parts {
    codec: Arc<Codec>,
    text: String,
    add_special_tokens: bool,
    /// Bytes tokenised so far.
    done: usize,
    /// Tokens so far.
    tokens: usize,
    /// Words of the text, some of them with their tokens; `None` before the first part.
    words: Option<PreTokenizedString>,
    ids: Vec<u32>,
}

impl Parts {
    pub(crate) fn new(codec: Arc<Codec>, text: String, add_special_tokens: bool) -> Self {
        Self { codec, text, add_special_tokens, done: 0, tokens: 0, words: None, ids: Vec::new() }
    }

    /// Tokenises the next part, of `bytes` bytes or more. Returns `true` if the whole text is tokenised.
    ///
    /// # Errors
    /// The tokenizer has no token for a part of the text.
    pub fn advance(&mut self, bytes: usize) -> Result<bool, TokenizerError> {
        let codec = Arc::clone(&self.codec);
        let Some(library) = &codec.library else {
            let end = self.done + self.next_part(bytes);
            self.ids.extend(self.text.as_bytes()[self.done..end].iter().map(|byte| u32::from(*byte)));
            (self.done, self.tokens) = (end, end);
            return Ok(end == self.text.len());
        };
        let Some(mut words) = self.words.take() else {
            self.words = Some(library.call(|tokenizer| split(tokenizer, &self.text))?);
            return if self.text.len() <= bytes { self.advance(usize::MAX) } else { Ok(false) };
        };
        let (all, tokens) = library.call(|tokenizer| tokenise(tokenizer, &mut words, bytes))?;
        self.tokens += tokens;
        if all {
            self.ids = library.call(|tokenizer| finish(tokenizer, words, self.add_special_tokens))?;
            self.tokens = self.ids.len();
        } else {
            self.words = Some(words);
        }
        Ok(all)
    }

    /// Returns the length of the next part, bytes, if `bytes` are asked for; one word may be longer.
    pub fn next_part(&self, bytes: usize) -> usize {
        let is_cut = self.codec.library.is_none() || self.words.is_some();
        let left = self.text.len() - self.done;
        if is_cut { bytes.min(left) } else { left }
    }

    /// Returns the number of tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the tokens of the text, or those so far if the byte tokenizer has not tokenised all; none so far of another tokenizer.
    pub fn into_ids(self) -> Vec<u32> {
        self.ids
    }
}

/// Finds the added tokens in a text and splits the rest into words.
fn split(library: &Tokenizer, text: &str) -> tokenizers::Result<PreTokenizedString> {
    let mut words = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
    if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    let bytes: usize =
        words.get_splits(OffsetReferential::Normalized, OffsetType::None).iter().map(|(word, ..)| word.len()).sum();
    if bytes > shape::grown_max(text.len()) {
        return Err(format!("the normalizer makes {bytes} bytes of a text of {}", text.len()).into());
    }
    Ok(words)
}

/// Turns words of `bytes` bytes and more into tokens. Returns `true` if no word is left, and the number of new tokens.
fn tokenise(library: &Tokenizer, words: &mut PreTokenizedString, bytes: usize) -> tokenizers::Result<(bool, usize)> {
    let (left, tokens, is_cut) = (Cell::new(bytes), Cell::new(0), Cell::new(false));
    let result = words.tokenize(|word| {
        if left.get() == 0 {
            // Words before this one keep their tokens.
            is_cut.set(true);
            return Err("the part is full".into());
        }
        let new = library.get_model().tokenize(word.get())?;
        left.set(left.get().saturating_sub(word.get().len().max(1)));
        tokens.set(tokens.get() + new.len());
        Ok(new)
    });
    if is_cut.get() { Ok((false, tokens.get())) } else { result.map(|()| (true, tokens.get())) }
}

/// Returns the tokens of all words, with the special tokens around them if asked for.
fn finish(library: &Tokenizer, words: PreTokenizedString, add_special_tokens: bool) -> tokenizers::Result<Vec<u32>> {
    let encoding = words.into_encoding(None, 0, OffsetType::None)?;
    Ok(library.post_process(encoding, None, add_special_tokens)?.get_ids().to_vec())
}

#[cfg(test)]
mod tests;
