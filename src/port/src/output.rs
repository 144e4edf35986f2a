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
    /// Log probabilities of prompt tokens, in the order of [`crate::Step::prompt_rows`], without sequences that failed.
    pub prompts: Vec<PromptLogprobs>,
    /// Number of tokens drafted in this step.
    pub drafted: u64,
    /// Number of drafts equal to the sampled token; each saved a step.
    pub accepted: u64,
    /// Reads of streamed weights; zeros if all weights are in memory.
    pub weights: WeightReads,
}

/// Log probabilities of neighbouring tokens of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprobs {
    /// Request of the prompt.
    pub request: RequestId,
    /// Position of the first of the tokens, at least 1: nothing is before the first token of a prompt.
    pub first: u32,
    /// The tokens, each with what its row says.
    pub tokens: Vec<TokenLogprobs>,
}

/// Log probabilities at one sampled token, or one of a prompt: natural logarithms of a softmax over the model's own logits, before
/// repetition penalty, temperature and truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Request of the token.
    pub request: RequestId,
    /// The token's id.
    pub token: Token,
    /// Log probability of the token.
    pub logprob: f32,
    /// The most likely tokens with their log probabilities, as many as the request asked for, most likely first.
    pub top: Vec<(Token, f32)>,
}
