//! Modelled worker: answers every step like a real worker, without computing.
//!
//! Token `n` of a request depends only on the request and `n`, so batching, preemptions and drafts never change the output. The
//! acceptance of a draft is drawn for its request and position, with one probability for all.

use trunkline_core::draw::unit;
use trunkline_core::{Step, StepResult};
use trunkline_sim_workload::trace::generated_token;

use crate::in_flight::InFlightRequests;

/// Stream of draws for the acceptance of drafts; see [`trunkline_core::draw`].
const DRAFT_STREAM: u64 = 2;

/// Worker that answers steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worker {
    acceptance: f64,
}

impl Worker {
    /// Returns a worker with the given probability of accepting a draft.
    pub(crate) fn new(acceptance: f64) -> Self {
        Self { acceptance }
    }

    /// Returns the answer to a step, in the memory of an empty answer.
    pub(crate) fn answer(&self, step: &Step, flights: &InFlightRequests, mut result: StepResult) -> StepResult {
        debug_assert!(result.tokens.is_empty() && result.ends.is_empty());
        result.step = step.id;
        for seq in &step.seqs {
            if seq.sample {
                let request = seq.request.0;
                let accepted = accepted_drafts(self.acceptance, request, seq.n_generated, seq.n_drafts);
                // A request whose deadline passed during the step has ended, and its tokens count for nothing.
                let flight = flights.find(request);
                for n in seq.n_generated..=seq.n_generated + accepted {
                    let token = flight.map(|flight| flight.traced.output_token(request, n));
                    result.tokens.push(token.unwrap_or_else(|| generated_token(request, n)));
                }
            }
            result.ends.push(result.tokens.len() as u32);
        }
        result
    }
}

/// Returns the number of accepted drafts of a request with `n_generated` tokens: those before the first rejected one. Each draft is accepted
/// with probability `acceptance`.
pub fn accepted_drafts(acceptance: f64, request: u64, n_generated: u32, n_drafts: u32) -> u32 {
    let right = |i: &u32| unit(DRAFT_STREAM, request, u64::from(n_generated + i)) < acceptance;
    (0..n_drafts).take_while(right).count() as u32
}

#[cfg(test)]
mod tests {
    use trunkline_core::{RequestId, StepSeq};

    use super::*;

    fn seq(request: u64, n_generated: u32, sample: bool, n_drafts: u32) -> StepSeq {
        StepSeq {
            request: RequestId(request),
            slot: 0,
            start: false,
            computed: 10,
            n_tokens: 1,
            n_history: 0,
            tokens_at: 0,
            input_from_last: false,
            kv_write_from: 10,
            table_keep: 0,
            blocks_at: 0,
            n_blocks: 0,
            sample,
            n_generated,
            n_drafts,
        }
    }

    #[test]
    fn one_token_for_each_sequence_that_samples() {
        let worker = Worker::new(1.0);
        let step =
            Step { id: 7, seqs: vec![seq(3, 5, true, 0), seq(4, 0, false, 0), seq(5, 0, true, 2)], ..Step::default() };
        let result = worker.answer(&step, &InFlightRequests::default(), StepResult::default());
        assert_eq!((result.step, result.ends.as_slice()), (7, &[1, 1, 4][..]));
        assert_eq!(result.of(0), [generated_token(3, 5)]);
        assert_eq!(result.of(2), [0, 1, 2].map(|n| generated_token(5, n)));
    }

    #[test]
    fn drafts_end_at_the_first_wrong_one_and_change_no_token() {
        // Generating request by request with drafts gives the tokens of generating one by one, and the share of right drafts
        // is the probability.
        let worker = Worker::new(0.6);
        let mut steps = 0u32;
        for request in 0..500 {
            let mut tokens = Vec::new();
            while tokens.len() < 200 {
                steps += 1;
                let step = Step { seqs: vec![seq(request, tokens.len() as u32, true, 4)], ..Step::default() };
                tokens.extend(worker.answer(&step, &InFlightRequests::default(), StepResult::default()).tokens);
            }
            assert!((0..).zip(&tokens).all(|(n, token)| *token == generated_token(request, n)));
        }
        // 1 + 0.6 + 0.36 + 0.216 + 0.1296 tokens in a step on average.
        let mean = 100_000.0 / f64::from(steps);
        assert!((mean / 2.3056 - 1.0).abs() < 0.02, "{mean}");
        let never = Worker::new(0.0);
        let step = Step { seqs: vec![seq(0, 0, true, 9)], ..Step::default() };
        assert_eq!(never.answer(&step, &InFlightRequests::default(), StepResult::default()).tokens.len(), 1);
    }
}
