//! Log probabilities of the tokens of prompts.

use trunkline_port::{PromptLogprobs, PromptRows, RequestId, Step, Token, TokenLogprobs};

use super::{SAMPLE_COST, Worker};
use crate::worker::sampler::log_probabilities;

/// Maximum number of rows whose logits are in memory at once: a chunk of a prompt has thousands of rows, and a row a number for each token.
const ROWS_MAX: usize = 64;

/// Log probabilities of a prompt in a step.
pub(super) struct ValuedPrompt {
    /// Index of the sequence in [`Step::seqs`].
    pub(super) index: usize,
    /// `None` if logits are not finite.
    pub(super) values: Option<PromptLogprobs>,
}

impl Worker {
    /// Values the prompts of a step that ran, in the order of [`Step::prompt_rows`].
    pub(super) fn value_prompts(&mut self, step: &Step) -> Vec<ValuedPrompt> {
        step.prompt_rows.iter().map(|rows| self.value_prompt(step, rows)).collect()
    }

    fn value_prompt(&mut self, step: &Step, rows: &PromptRows) -> ValuedPrompt {
        let index = rows.seq as usize;
        let seq = &step.seqs[index];
        // Drafts stand behind the tokens of a sequence that samples.
        let begin = self.scratch.first_rows[index] + rows.first as usize;
        let behind: Vec<Token> = step.tokens_behind(rows).collect();
        let mut tokens = Vec::with_capacity(behind.len());
        for (part, behind) in (0..).zip(behind.chunks(ROWS_MAX)) {
            let first = begin + part * ROWS_MAX;
            let Self { model, threads, scratch, .. } = self;
            threads.enter(|| model.head(first..first + behind.len(), scratch, threads));
            match self.value(seq.request, behind, rows.n_top) {
                Some(values) => tokens.extend(values),
                None => return ValuedPrompt { index, values: None },
            }
        }
        let first = seq.computed + rows.first + 1;
        ValuedPrompt { index, values: Some(PromptLogprobs { request: seq.request, first, tokens }) }
    }

    /// Returns the log probability of each token by the row of logits in its place; `None` if logits are not finite.
    fn value(&self, request: RequestId, tokens: &[Token], n_top: u32) -> Option<Vec<TokenLogprobs>> {
        let cost = self.scratch.logits.len() * SAMPLE_COST;
        let values = self.threads.map(tokens.len(), cost, |at| {
            let (logits, token) = (self.logits(at), tokens[at]);
            logits.iter().all(|logit| logit.is_finite()).then(|| {
                let (logprob, top) = log_probabilities(logits, token, n_top);
                TokenLogprobs { request, token, logprob, top }
            })
        });
        values.into_iter().collect()
    }
}
