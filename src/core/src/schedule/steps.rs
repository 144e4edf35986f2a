//! The steps in flight, and step buffers for reuse.

use std::collections::VecDeque;

use crate::{Step, StepResult, StepSeq};

/// Maximum number of step buffers kept for reuse.
const SPARE_STEPS_MAX: usize = 4;

/// Part of one sequence in a step in flight, as far as the answer needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Slot of the sequence in the core.
    pub slot: u32,
    /// Tokens that the step runs of the sequence, without drafts.
    pub n_tokens: u32,
    /// Tokens before these that are copied.
    pub n_copied: u32,
    /// First position whose KV the step writes: the blocks before are computed, or earlier steps compute them.
    pub write_from: u32,
    /// Tokens that the worker may draft.
    pub n_drafts: u32,
    /// `true` if the step samples for the sequence.
    pub sample: bool,
    /// `true` for a decode, `false` for a part of a prefill.
    pub decodes: bool,
}

impl Part {
    /// Returns the part of the sequence in `slot` of the core, as it was sent.
    #[inline(always)]
    pub fn new(slot: usize, sent: &StepSeq, n_copied: u32, decodes: bool) -> Self {
        let StepSeq { n_tokens, kv_write_from: write_from, n_drafts, sample, .. } = *sent;
        Self { slot: slot as u32, n_tokens, n_copied, write_from, n_drafts, sample, decodes }
    }

    /// Returns the slot of the sequence in the core.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Scores that a step in flight reports for one of its sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoredPart {
    /// Index of the sequence in the step.
    pub part: u32,
    /// Number of scores.
    pub n_scores: u32,
    /// Rows behind the scores.
    pub rows: u32,
}

/// Rows of a step in flight with log probabilities of prompt tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValuedPart {
    /// Index of the sequence in the step.
    pub part: u32,
    /// Position of the first row.
    pub from: u32,
    /// Number of rows.
    pub rows: u32,
}

/// The sequences of a step, as far as the answer needs them.
#[derive(Debug, Default)]
pub(crate) struct Picked {
    /// Sequences in the order of the step.
    pub parts: Vec<Part>,
    /// Sequences with scores, in the order of the step.
    pub scored: Vec<ScoredPart>,
    /// Sequences with values of their prompts, in the order of the step.
    pub valued: Vec<ValuedPart>,
}

impl Picked {
    /// Empties the lists and keeps their memory.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.scored.clear();
        self.valued.clear();
    }
}

/// A step on the worker, running or waiting for the step before.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    /// Id of the step.
    pub id: u64,
    /// Time at which the step was sent, nanoseconds.
    pub sent_ns: u64,
    /// Its sequences.
    pub picked: Picked,
}

/// The steps in flight, oldest first. The worker runs and answers them in this order.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    in_flight: VecDeque<StepInFlight>,
    /// End of the last step that was answered, nanoseconds.
    last_end_ns: u64,
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    spare_steps: Vec<Box<Step>>,
    spare_picked: Vec<Picked>,
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
        result.scores.clear();
        result.failed.clear();
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

    /// Notes that step `id` was sent. Takes what was `picked`, and leaves empty lists there.
    pub fn begin(&mut self, id: u64, picked: &mut Picked, now_ns: u64) {
        let empty = self.spare_picked.pop().unwrap_or_default();
        self.in_flight.push_back(StepInFlight { id, sent_ns: now_ns, picked: std::mem::replace(picked, empty) });
    }

    /// Returns the time of the oldest step in flight on the worker so far, nanoseconds.
    pub fn time_ns(&self, now_ns: u64) -> Option<u64> {
        let oldest = self.in_flight.front();
        oldest.map(|step| now_ns.saturating_sub(step.sent_ns.max(self.last_end_ns)))
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
    pub fn recycle_picked(&mut self, mut picked: Picked) {
        if self.spare_picked.len() < SPARE_STEPS_MAX {
            picked.clear();
            self.spare_picked.push(picked);
        }
    }

    /// Returns `true` if the result has the shape of an answer to the oldest step in flight.
    pub fn is_answer(&self, result: &StepResult) -> bool {
        let Some(step) = self.in_flight.front().filter(|step| step.id == result.step) else { return false };
        let Picked { parts, scored, .. } = &step.picked;
        let mut begin = 0;
        let mut fits = result.ends.len() == parts.len();
        let mut failed = result.failed.iter().map(|failed| failed.seq).peekable();
        for (at, (part, end)) in (0..).zip(parts.iter().zip(&result.ends)) {
            let n_tokens = end.wrapping_sub(begin);
            begin = *end;
            let has_failed = failed.next_if_eq(&at).is_some();
            fits &= match part.sample && !has_failed {
                true => n_tokens.wrapping_sub(1) <= part.n_drafts,
                false => n_tokens == 0,
            };
        }
        // Out of order, or beyond the last.
        fits &= failed.next().is_none();
        let n_scores: usize = scored.iter().map(|part| part.n_scores as usize).sum();
        // A worker that cannot score reports none.
        let is_scored = result.scores.is_empty() || n_scores == result.scores.len();
        fits && begin as usize == result.tokens.len() && is_scored
    }

    /// Returns the slots of sequences that steps in flight run, perhaps more than once each.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.in_flight.iter().flat_map(|step| &step.picked.parts).map(|part| part.slot())
    }

    /// Returns `true` if a step in flight has this id.
    pub fn contains(&self, id: u64) -> bool {
        self.in_flight.iter().any(|step| step.id == id)
    }
}
