//! The door to the tokenizers library: all calls of its code on a model's file and on a client's text go through [`Library::call`].
//!
//! The library has `expect`s and indices that a damaged `tokenizer.json` meets, some of them when the file is read, some only with a text. Behind the
//! door its panic is a [`Fault`]. Sizes are checked before ([`crate::shape`]), as nobody catches a lack of memory; and texts are tried when a file is
//! read ([`crate::probe`]), so that a damaged file is refused instead of each request.

use tokenizers::Tokenizer;
use trunkline_foreign::Panicked;

/// Reason for which the library gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Its own error.
    #[error("{0}")]
    Refused(String),
    #[error("the tokenizers library failed on this file, without a reason of its own: {0}")]
    Panicked(Panicked),
}

/// A tokenizer of the library.
pub(crate) struct Library(Tokenizer);

impl Library {
    /// Makes the tokenizer.
    pub(crate) fn load(make: impl FnOnce() -> tokenizers::Result<Tokenizer>) -> Result<Self, String> {
        guarded(make).map(Self).map_err(|fault| fault.to_string())
    }

    /// Runs code of the library.
    pub(crate) fn call<T>(&self, run: impl FnOnce(&Tokenizer) -> tokenizers::Result<T>) -> Result<T, Fault> {
        guarded(|| run(&self.0))
    }

    /// Returns the text of tokens; none of no tokens, of which some decoders count the last.
    pub(crate) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Fault> {
        self.call(|tokenizer| {
            let is_left_out = |id: u32| skip_special && !self.special(id).is_empty();
            let is_shown = |id: &u32| tokenizer.id_to_token(*id).is_some() && !is_left_out(*id);
            if ids.iter().any(is_shown) { tokenizer.decode(ids, skip_special) } else { Ok(String::new()) }
        })
    }

    /// Returns the names of the first added tokens, `n` at most.
    pub(crate) fn added(&self, n: usize) -> Vec<String> {
        let mut added: Vec<_> = self.0.get_added_vocabulary().get_added_tokens_decoder().iter().collect();
        added.sort_unstable_by_key(|(id, _)| **id);
        added.into_iter().take(n).map(|(_, token)| token.content.clone()).collect()
    }

    /// Returns the name of a special token; empty for another token. A look-up in a table, which cannot fail.
    pub(crate) fn special(&self, token: u32) -> &str {
        let added = self.0.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).filter(|added| added.special).map_or("", |added| &added.content)
    }
}

fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, Fault> {
    match trunkline_foreign::call(run) {
        Ok(result) => result.map_err(|error| Fault::Refused(error.to_string().replace(['\n', '\r'], " "))),
        Err(panicked) => Err(Fault::Panicked(panicked)),
    }
}
