//! The step that the worker runs, and step buffers for reuse.

use crate::step::{Step, StepResult, StepSeq};

/// Step buffers kept for reuse, at most.
const SPARE_STEPS_MAX: usize = 4;

/// The step in flight, if any: its id, its begin, and its sequences.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Id of the step in flight. `None` if the worker runs no step.
    pub in_flight: Option<u64>,
    /// Begin of that step, nanoseconds.
    pub begun_ns: u64,
    /// Sequences of that step, in its order: slot in the core, and part in the step.
    pub seqs: Vec<(usize, StepSeq)>,
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    spare_steps: Vec<Box<Step>>,
    spare_result: StepResult,
}

impl Steps {
    /// Returns an empty step, with the memory of a recycled one if there is one.
    pub fn empty(&mut self) -> Box<Step> {
        let mut step = self.spare_steps.pop().unwrap_or_default();
        step.clear();
        step
    }

    /// Keeps the memory of a step for the next one.
    pub fn recycle(&mut self, step: Box<Step>) {
        if self.spare_steps.len() < SPARE_STEPS_MAX {
            self.spare_steps.push(step);
        }
    }

    /// Keeps the memory of a result for the next one.
    pub fn recycle_result(&mut self, result: StepResult) {
        self.spare_result = result;
    }

    /// Returns an empty result, with the memory of the last one.
    pub fn empty_result(&mut self) -> StepResult {
        let mut result = std::mem::take(&mut self.spare_result);
        result.tokens.clear();
        result.ends.clear();
        result
    }

    /// Notes that a step of the sequences in slots `picked` began.
    pub fn begin(&mut self, step: &Step, picked: &[usize], now_ns: u64) {
        self.in_flight = Some(step.id);
        self.begun_ns = now_ns;
        self.seqs.clear();
        self.seqs.extend(picked.iter().zip(&step.seqs).map(|(slot, seq)| (*slot, *seq)));
    }

    /// Returns `true` if the result has the shape of an answer to the step in flight.
    pub fn is_answer(&self, result: &StepResult) -> bool {
        let mut begin = 0;
        result.ends.len() == self.seqs.len()
            && self.seqs.iter().zip(&result.ends).all(|((_, seq), end)| {
                let n_tokens = end.wrapping_sub(begin);
                begin = *end;
                if seq.sample { (1..=1 + seq.n_drafts).contains(&n_tokens) } else { n_tokens == 0 }
            })
            && begin as usize == result.tokens.len()
    }
}
