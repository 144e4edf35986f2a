//! How long answers take, learned from those that ended.

use crate::request::sequence::Sequence;

/// Weight of one answer against those before.
const WEIGHT: f64 = 1.0 / 64.0;

/// The time between two tokens, and the share of the tokens asked for that an answer has.
#[derive(Debug)]
pub(crate) struct Answers {
    /// `None` before the first answer of two tokens.
    token_ns: Option<f64>,
    share: f64,
}

impl Default for Answers {
    fn default() -> Self {
        Self { token_ns: None, share: 1.0 }
    }
}

impl Answers {
    /// Takes in an answer that ended by itself. Prefetches and second readings of prompts have none.
    pub fn observe(&mut self, seq: &Sequence, now_ns: u64) {
        if seq.is_prefetch() || seq.id.is_inner() {
            return;
        }
        let generated = seq.generated();
        self.share += WEIGHT * (f64::from(generated) / f64::from(seq.cold.view.max_tokens.max(1)) - self.share);
        let Some(steps) = generated.checked_sub(1 + seq.cold.history.imported_tokens).filter(|steps| *steps > 0) else {
            return;
        };
        let token_ns = now_ns.saturating_sub(seq.cold.history.first_token_ns) as f64 / f64::from(steps);
        let before = self.token_ns.unwrap_or(token_ns);
        self.token_ns = Some(before + WEIGHT * (token_ns - before));
    }

    /// Returns the expected time of an answer of `max_tokens` at most, from its first token on, nanoseconds.
    pub fn expected_ns(&self, max_tokens: u32) -> u64 {
        (self.token_ns.unwrap_or(0.0) * self.share * f64::from(max_tokens)) as u64
    }
}
