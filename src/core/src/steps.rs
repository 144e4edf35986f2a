//! The steps in flight, and step buffers for reuse.

use std::collections::VecDeque;

use crate::ids::RequestId;
use crate::step::{Step, StepResult, StepSeq};

/// Step buffers kept for reuse, at most.
const SPARE_STEPS_MAX: usize = 4;

/// A step on the worker, running or waiting for the step before.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    /// Id of the step.
    pub id: u64,
    /// Time at which the step was sent, nanoseconds.
    pub sent_ns: u64,
    /// Sequences in the order of the step: slot in the core, and part in the step.
    pub seqs: Vec<(usize, StepSeq)>,
}

/// The steps in flight, oldest first. The worker runs and answers them in this order.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    in_flight: VecDeque<StepInFlight>,
    /// End of the last step that was answered, nanoseconds.
    last_end_ns: u64,
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    spare_steps: Vec<Box<Step>>,
    spare_seqs: Vec<Vec<(usize, StepSeq)>>,
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

    /// Returns the number of steps in flight.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the id of the oldest step in flight.
    pub fn oldest(&self) -> Option<u64> {
        self.in_flight.front().map(|step| step.id)
    }

    /// Returns the step in flight if there is one and no other.
    pub fn only(&mut self) -> Option<&mut StepInFlight> {
        if let [step] = self.in_flight.make_contiguous() { Some(step) } else { None }
    }

    /// Notes that a step of the sequences in slots `picked` was sent.
    pub fn begin(&mut self, step: &Step, picked: &[usize], now_ns: u64) {
        let mut seqs = self.spare_seqs.pop().unwrap_or_default();
        seqs.clear();
        seqs.extend(picked.iter().zip(&step.seqs).map(|(slot, seq)| (*slot, *seq)));
        self.in_flight.push_back(StepInFlight { id: step.id, sent_ns: now_ns, seqs });
    }

    /// Removes the oldest step in flight, which ended at `now_ns`. Returns the step and its time on the worker, nanoseconds: steps
    /// run one after another.
    pub fn end(&mut self, now_ns: u64) -> Option<(StepInFlight, u64)> {
        let step = self.in_flight.pop_front()?;
        let begun_ns = step.sent_ns.max(self.last_end_ns);
        self.last_end_ns = now_ns;
        Some((step, now_ns.saturating_sub(begun_ns)))
    }

    /// Removes all steps in flight: none will be answered.
    pub fn lose(&mut self) -> VecDeque<StepInFlight> {
        std::mem::take(&mut self.in_flight)
    }

    /// Keeps the memory of a step that ended.
    pub fn recycle_seqs(&mut self, seqs: Vec<(usize, StepSeq)>) {
        if self.spare_seqs.len() < SPARE_STEPS_MAX {
            self.spare_seqs.push(seqs);
        }
    }

    /// Returns `true` if the result has the shape of an answer to the oldest step in flight.
    pub fn is_answer(&self, result: &StepResult) -> bool {
        let Some(step) = self.in_flight.front().filter(|step| step.id == result.step) else { return false };
        let mut begin = 0;
        result.ends.len() == step.seqs.len()
            && step.seqs.iter().zip(&result.ends).all(|((_, seq), end)| {
                let n_tokens = end.wrapping_sub(begin);
                begin = *end;
                if seq.sample { (1..=1 + seq.n_drafts).contains(&n_tokens) } else { n_tokens == 0 }
            })
            && begin as usize == result.tokens.len()
    }

    /// Returns the slots of sequences that steps in flight run for a request of this id, perhaps more than once each.
    pub fn slots_of(&self, id: RequestId) -> impl Iterator<Item = usize> {
        let seqs = self.in_flight.iter().flat_map(|step| &step.seqs);
        seqs.filter(move |(_, seq)| seq.request == id).map(|(slot, _)| *slot)
    }

    /// Returns `true` if a step in flight has this id.
    pub fn contains(&self, id: u64) -> bool {
        self.in_flight.iter().any(|step| step.id == id)
    }
}
