//! The memory of ended requests, for the driver to free elsewhere.
//!
//! Freeing the tokens of a request may give pages back to the system, which takes some 10 us for 8,000 tokens. A shutdown or a
//! common deadline can end 100,000 requests in one event, so the core frees nothing of them itself: it hands the memory out.

use crate::request::sequence::{Cold, Sequence};

/// Tokens and hashes of ended requests. Free them by dropping, on any thread.
#[derive(Debug, Default)]
pub struct Remains {
    #[expect(clippy::vec_box, reason = "moving what is in the boxes would read it")]
    requests: Vec<Box<Cold>>,
}

impl Remains {
    /// Returns the number of ended requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns `true` if no request ended.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes over the remains of other requests.
    pub fn append(&mut self, mut other: Self) {
        self.requests.append(&mut other.requests);
    }

    /// Takes the memory of an ended sequence.
    pub(crate) fn push(&mut self, seq: Sequence) {
        self.requests.push(seq.cold);
    }

    /// Frees the memory, and keeps the list for the next requests.
    pub(crate) fn free(&mut self) {
        self.requests.clear();
    }
}
