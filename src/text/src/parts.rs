//! Tokenising a text part by part, with the tokens of the whole text.
//!
//! A long text takes long to tokenise, and nobody may need the tokens in the end: the client is gone, or the text is longer than
//! the context. [`Parts`] therefore tokenises a text in parts, and the caller decides after each part.
//!
//! The byte tokenizer is cut anywhere. A tokenizer of a file first takes the whole text, finds the added tokens, normalises the rest
//! and splits it into words as its pre-tokenizer says; then words become tokens part by part, each looked at once. No token crosses words, so
//! the tokens are those of the whole. A tokenizer without a pre-tokenizer, as of Llama 2, has one word between two added tokens.

use std::sync::Arc;

use tokenizers::{Encoding, Model, OffsetReferential, OffsetType, PreTokenizer, Tokenizer};

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
    /// Words of the text; `None` before the first part.
    words: Option<Words>,
    ids: Vec<u32>,
}

/// A text, normalised and split.
struct Words {
    text: String,
    words: std::vec::IntoIter<Word>,
    /// End of the words so far in the text.
    end: usize,
}

/// A word: that up to a position of the text, or an added token.
enum Word {
    UpTo(usize),
    Added(u32),
}

impl Parts {
    pub(crate) fn new(codec: Arc<Codec>, text: String, add_special_tokens: bool) -> Self {
        Self { codec, text, add_special_tokens, done: 0, words: None, ids: Vec::new() }
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
            self.done = end;
            return Ok(end == self.text.len());
        };
        let Some(words) = &mut self.words else {
            self.words = Some(library.call(|tokenizer| split(tokenizer, &self.text))?);
            return if self.text.len() <= bytes { self.advance(usize::MAX) } else { Ok(false) };
        };
        let all = library.call(|tokenizer| tokenise(tokenizer, words, bytes, &mut self.ids))?;
        if all && self.add_special_tokens {
            let ids = std::mem::take(&mut self.ids);
            self.ids = library.call(|tokenizer| with_special_tokens(tokenizer, ids))?;
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
        self.ids.len()
    }

    /// Returns the tokens of the text, or those so far.
    pub fn into_ids(self) -> Vec<u32> {
        self.ids
    }
}

/// Finds the added tokens in a text and splits the rest into words.
fn split(library: &Tokenizer, text: &str) -> tokenizers::Result<Words> {
    let mut split = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
    if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut split)?;
    }
    let splits = split.get_splits(OffsetReferential::Normalized, OffsetType::None);
    let bytes: usize = splits.iter().map(|(word, ..)| word.len()).sum();
    if bytes > shape::grown_max(text.len()) {
        return Err(format!("the normalizer makes {bytes} bytes of a text of {}", text.len()).into());
    }
    let (mut text, mut words) = (String::with_capacity(bytes), Vec::with_capacity(splits.len()));
    for (word, _, added) in splits {
        match added {
            Some(added) => words.extend(added.iter().map(|token| Word::Added(token.id))),
            None => {
                text.push_str(word);
                words.push(Word::UpTo(text.len()));
            }
        }
    }
    Ok(Words { text, words: words.into_iter(), end: 0 })
}

/// Appends the tokens of words of `bytes` bytes and more. Returns `true` if no word is left.
fn tokenise(library: &Tokenizer, words: &mut Words, bytes: usize, ids: &mut Vec<u32>) -> tokenizers::Result<bool> {
    let mut left = bytes;
    for word in words.words.by_ref() {
        match word {
            Word::Added(id) => ids.push(id),
            Word::UpTo(end) => {
                let text = &words.text[words.end..end];
                words.end = end;
                ids.extend(library.get_model().tokenize(text)?.iter().map(|token| token.id));
                left = left.saturating_sub(text.len().max(1));
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(words.words.as_slice().is_empty())
}

/// Returns tokens with the special tokens around them.
fn with_special_tokens(library: &Tokenizer, ids: Vec<u32>) -> tokenizers::Result<Vec<u32>> {
    let encoding: Encoding = ids.into_iter().map(|id| (id, String::new(), (0, 0), None, 0)).collect();
    Ok(library.post_process(encoding, None, true)?.get_ids().to_vec())
}

#[cfg(test)]
mod tests;
