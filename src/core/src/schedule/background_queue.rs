//! The background requests that have not ended: see [`crate::schedule::background`].

use std::collections::BTreeSet;

use crate::request::BACKGROUND_NS;
use crate::request::sequence::Sequence;
use crate::schedule::prefill_budget::Limit;

/// The background requests that have not ended, and whether the step being made holds them back.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// (time from which on the request ranks as any other, slot).
    until: BTreeSet<(u64, usize)>,
    is_held: bool,
}

impl Background {
    /// Returns `true` if there is a background request.
    pub fn is_any(&self) -> bool {
        !self.until.is_empty()
    }

    /// Takes note of an accepted request.
    pub fn enter(&mut self, slot: usize, seq: &Sequence) {
        if seq.cold.view.is_background {
            self.until.insert(place(slot, seq));
        }
    }

    /// Takes note of the end of a request.
    pub fn leave(&mut self, slot: usize, seq: &Sequence) {
        if self.is_any() && seq.cold.view.is_background {
            self.until.remove(&place(slot, seq));
        }
    }

    /// Returns `true` if a request is in the background.
    #[inline]
    pub fn has(&self, seq: &Sequence) -> bool {
        self.is_any() && seq.cold.view.is_background
    }

    /// Returns `true` if the step being made leaves a request out.
    #[inline]
    pub fn holds(&self, seq: &Sequence) -> bool {
        self.is_held && self.has(seq)
    }

    /// Returns the budgets for prompts without decodes in the step being made: held back, no background request has one there, else all are theirs.
    pub fn limit(&self) -> Limit {
        if self.is_any() && !self.is_held { Limit::Background } else { Limit::Alone }
    }

    /// Returns the request that has waited longest, if it ranks as any other at `now_ns`.
    pub fn first_due(&self, now_ns: u64) -> Option<usize> {
        self.until.first().filter(|(until_ns, _)| *until_ns <= now_ns).map(|(_, slot)| *slot)
    }

    /// Holds all back from the step being made.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Lets the step being made run the requests held back. Returns `false` if it might before.
    pub fn release(&mut self) -> bool {
        std::mem::take(&mut self.is_held)
    }
}

fn place(slot: usize, seq: &Sequence) -> (u64, usize) {
    (seq.cold.view.arrival_ns.saturating_add(BACKGROUND_NS), slot)
}
