//! Parameters for picking the next token, applied by a worker.

use serde::{Deserialize, Serialize};

/// Sampling parameters of one request. The core hands the parameters to the worker unread, except for [`Sampling::needs_history`]:
/// only then does a worker receive the whole history of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits, from 0.01 to 100; 0 is greedy.
    pub temperature: f32,
    /// Number of most likely tokens to choose from; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this share of the most likely token's probability; 0 drops none.
    pub min_p: f32,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by this; 1 is off.
    pub repetition_penalty: f32,
    /// The n-th token of a request is drawn from (seed, n) alone, so neither batching nor preemption changes the token.
    pub seed: u64,
    /// Number of most likely tokens to report with each token; `None` reports no log probabilities at all.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0, logprobs: None }
    }
}

impl Sampling {
    /// Returns `true` if the next token depends on earlier tokens other than through the model.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}
