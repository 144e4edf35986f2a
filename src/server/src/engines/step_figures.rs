//! Times and sizes of the steps of one engine, as histograms of the core's thread.

use trunkline_port::Step;

use crate::requests::histogram::{Histogram, STEP_SIZE, STEP_TIME};

/// Figures of the ended steps of one engine since the server started.
#[derive(Clone, Debug)]
pub(crate) struct StepFigures {
    /// From the sending of a step, or the end of the step before if that is later, to the answer.
    pub(crate) duration: Histogram,
    /// Tokens run: prompts and decodes.
    pub(crate) tokens: Histogram,
    pub(crate) sequences: Histogram,
}

impl Default for StepFigures {
    fn default() -> Self {
        let size = || Histogram::new(&STEP_SIZE);
        Self { duration: Histogram::new(&STEP_TIME), tokens: size(), sequences: size() }
    }
}

impl StepFigures {
    /// Notes the end of a step.
    pub(crate) fn add(&mut self, step: &Step, duration_ns: u64) {
        self.duration.add(duration_ns);
        self.tokens.add(step.n_tokens().into());
        self.sequences.add(step.seqs.len() as u64);
    }
}
