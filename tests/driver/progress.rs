//! Progress: a core may neither lose its own steps nor run steps for ever without an answer.

use std::collections::BTreeSet;

use trunkline_core::RequestId;

use crate::Driver;

/// Maximum number of steps without an answer in addition to those that compute each token of the requests that live a few times.
const STEPS_SPARE: usize = 100;
/// Times that each token may be computed without an answer: preempted prompts begin again.
const TIMES_MAX: usize = 3;

/// Work without an answer so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Steps ended since the last token or end.
    steps: usize,
    /// Answers at that time.
    answers: usize,
}

impl Driver {
    /// Takes note of the end of a step.
    pub(crate) fn note_step(&mut self) {
        self.progress.steps += 1;
    }

    /// Asserts that the core makes progress. `preempted` were preempted before the event while steps run them.
    ///
    /// # Panics
    /// If the last request of the batch was preempted while a step runs it, or too many steps ended without a token or an end.
    pub(crate) fn check_work(&mut self, preempted: &BTreeSet<RequestId>) {
        let is_empty = self.core.stats().running == 0;
        let lost = self.core.preempted().find(|id| is_empty && !preempted.contains(id));
        assert!(lost.is_none(), "request {lost:?} is alone, and gives up what its own steps in flight compute");
        let answers = self.tokens.len() + self.ends.len() + self.refusals.len() + self.withdrawn.len();
        if std::mem::replace(&mut self.progress.answers, answers) != answers || !self.joined {
            self.progress.steps = 0;
        }
        let tokens =
            self.live.iter().map(|id| &self.requests[id]).map(|known| known.request.prompt.len() + known.text.len());
        let most = STEPS_SPARE + TIMES_MAX * tokens.sum::<usize>();
        assert!(self.progress.steps <= most, "{} steps without an answer: {:?}", self.progress.steps, self.stats());
    }
}
