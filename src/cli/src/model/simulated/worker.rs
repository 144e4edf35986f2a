//! Worker of a simulated device: a step ends when the cost model's time for the step has passed.

use std::collections::HashSet;
use std::sync::Arc;

use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner, Token};
use trunkline_sim_perf::cost::{BoxedCost, StepShape};
use trunkline_sim_replay::accepted_drafts;
use trunkline_sim_replay::settings::DRAFT_ACCEPTANCE_DEFAULT;

use super::blocks::{BlockTimes, SimulatedBlocks};
use super::clock::Clock;
use super::text::{Text, TextKind};
use crate::model::null_worker::uniform_logprobs;

/// Longest time after a step within which a step of the same sequences counts as begun at the end of that step. Covers the time of the
/// server between two steps, also on a busy machine; after a longer pause the device was idle.
const QUEUED_NS: u64 = 20_000_000;

/// Facts that all devices of a server share.
pub struct Device {
    /// Durations of the steps.
    pub cost: BoxedCost,
    /// Times of the link to the host.
    pub link: BlockTimes,
    /// Clock of the steps and copies.
    pub clock: Arc<dyn Clock>,
    /// Text of the answers.
    pub text: Text,
    /// Number of token ids.
    pub vocab_size: u32,
}

/// Worker without a model, whose steps take the time of the cost model.
pub struct SimulatedWorker {
    device: Arc<Device>,
    slots: Vec<Slot>,
    /// Slots of the last step.
    last: HashSet<u32>,
    /// End of the last step, nanoseconds.
    free_ns: u64,
}

/// Facts about a running request.
#[derive(Clone, Debug, Default)]
struct Slot {
    seed: u64,
    logprobs: Option<u32>,
    /// Tokens of the prompt, if the text needs them.
    prompt: Vec<Token>,
}

impl SimulatedWorker {
    /// Makes an idle worker.
    pub fn new(device: Arc<Device>) -> Self {
        Self { device, slots: Vec::new(), last: HashSet::new(), free_ns: 0 }
    }

    /// Takes note of starting sequences.
    fn start(&mut self, step: &Step) {
        for (seq, start) in step.seqs.iter().filter(|seq| seq.start).zip(&step.starts) {
            let at = seq.slot as usize;
            if self.slots.len() <= at {
                self.slots.resize(at + 1, Slot::default());
            }
            let prompt = match self.device.text.kind() {
                TextKind::Random => Vec::new(),
                TextKind::Echo => step.all_tokens(seq, start)[..start.n_prompt as usize].to_vec(),
            };
            self.slots[at] = Slot { seed: start.sampling.seed, logprobs: start.sampling.logprobs, prompt };
        }
    }

    /// Returns the end of a step that was asked for at `now_ns`. A step that continues a sequence of the step before was caused by that step's
    /// result, so the device was not idle in between: the server's own time does not add up.
    fn end_ns(&mut self, step: &Step, now_ns: u64) -> u64 {
        let continues = step.seqs.iter().any(|seq| !seq.start && self.last.contains(&seq.slot));
        self.last.clear();
        self.last.extend(step.seqs.iter().map(|seq| seq.slot));
        let is_queued = continues && now_ns <= self.free_ns + QUEUED_NS;
        let begin_ns = if is_queued { self.free_ns } else { now_ns.max(self.free_ns) };
        self.free_ns = begin_ns + self.device.cost.step_ns(&StepShape::of(step));
        self.free_ns
    }

    fn answer(&self, step: &Step) -> StepOutput {
        let mut output = StepOutput::default();
        output.result.step = step.id;
        output.result.ends.reserve(step.seqs.len());
        let mut tokens = Vec::new();
        for seq in &step.seqs {
            tokens.clear();
            if seq.sample {
                let slot = &self.slots[seq.slot as usize];
                let accepted = accepted_drafts(DRAFT_ACCEPTANCE_DEFAULT, seq.request.0, seq.n_generated, seq.n_drafts);
                output.drafted += u64::from(seq.n_drafts);
                output.accepted += u64::from(accepted);
                let numbers = seq.n_generated..=seq.n_generated + accepted;
                tokens.extend(numbers.map(|n| self.device.text.token(slot.seed, &slot.prompt, n)));
                let asked = slot.logprobs.into_iter();
                output.logprobs.extend(asked.flat_map(|n_top| {
                    tokens.iter().map(move |token| uniform_logprobs(seq.request, *token, n_top, self.device.vocab_size))
                }));
            }
            output.result.push(&tokens);
        }
        output
    }
}

impl StepRunner for SimulatedWorker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let now_ns = self.device.clock.now_ns();
        let end_ns = self.end_ns(step, now_ns);
        self.start(step);
        let output = self.answer(step);
        self.device.clock.wait_until(end_ns);
        Ok(output)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::new(SimulatedBlocks::new(self.device.clock.clone(), self.device.link))
    }

    fn reset(&mut self) {
        self.slots.clear();
        self.last.clear();
    }
}

#[cfg(test)]
mod tests;
