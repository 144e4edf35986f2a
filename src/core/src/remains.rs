//! The memory of ended requests, for the driver to free elsewhere.
//!
//! Freeing the tokens of a request may give pages back to the system, which takes some 10 us for 8,000 tokens. A shutdown or a
//! common deadline can end 100,000 requests in one event, so the core frees nothing of them itself: it hands the memory out.

use crate::hash::BlockHash;
use crate::ids::Token;
use crate::sequence::Sequence;

/// Tokens and hashes of ended requests. Free them by dropping, on any thread.
#[derive(Debug, Default)]
pub struct Remains {
    tokens: Vec<Vec<Token>>,
    hashes: Vec<Vec<BlockHash>>,
}

impl Remains {
    /// Returns the number of ended requests.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns `true` if no request ended.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Takes over the remains of other requests.
    pub fn append(&mut self, mut other: Self) {
        self.tokens.append(&mut other.tokens);
        self.hashes.append(&mut other.hashes);
    }

    /// Takes the memory of an ended sequence.
    pub(crate) fn push(&mut self, seq: Sequence) {
        let (tokens, hashes) = seq.into_remains();
        self.tokens.push(tokens);
        self.hashes.push(hashes);
    }

    /// Frees the memory, and keeps the lists for the next requests.
    pub(crate) fn free(&mut self) {
        self.tokens.clear();
        self.hashes.clear();
    }
}
