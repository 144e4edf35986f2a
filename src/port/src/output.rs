//! Everything a worker returns for one step.

use crate::ids::{RequestId, Token};
use crate::step::StepResult;
use crate::weight_reads::WeightReads;

/// Sampled tokens of a step, with log probabilities and counts of drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// The sampled tokens; the only part read by the core.
    pub result: StepResult,
    /// Log probabilities of each sampled token, in step order, for sequences with log probabilities requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Number of tokens drafted in this step.
    pub drafted: u64,
    /// Number of drafts equal to the sampled token; each saved a step.
    pub accepted: u64,
    /// Reads of streamed weights; zeros if all weights are in memory.
    pub weights: WeightReads,
}

/// Log probabilities at one sampled token: natural logarithms of a softmax over the model's own logits, before
/// repetition penalty, temperature and truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Request of the token.
    pub request: RequestId,
    /// The sampled token's id.
    pub token: Token,
    /// Log probability of the sampled token.
    pub logprob: f32,
    /// The most likely tokens with their log probabilities, as many as the request asked for, most likely first.
    pub top: Vec<(Token, f32)>,
}
