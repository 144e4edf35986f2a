//! Workers whose answers are known: texts, or none at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use trunkline_core::RequestId;
use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_worker::Worker;

/// Token behind the text.
const END: u32 = 257;

struct Scripted {
    worker: Worker,
    text: Vec<u8>,
}

/// Returns a wrapper of a worker under which every answer is `text` and ends.
pub fn scripted(text: &str) -> impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + use<> {
    let text = text.as_bytes().to_vec();
    move |worker| -> Box<dyn StepRunner> { Box::new(Scripted { worker, text }) }
}

impl StepRunner for Scripted {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        StepRunner::run(&mut self.worker, step)?;
        let mut output = StepOutput::default();
        output.result.step = step.id;
        for seq in &step.seqs {
            let token = self.text.get(seq.n_generated as usize).map_or(END, |byte| u32::from(*byte));
            output.result.push(if seq.sample { std::slice::from_ref(&token) } else { &[] });
        }
        Ok(output)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

/// A worker whose model answers a prompt that ends with a colon with its end token, unless that is masked.
struct Unwilling {
    worker: Worker,
    /// Requests that mask the end token.
    masked: BTreeSet<RequestId>,
}

/// Returns a worker whose model answers a prompt that ends with a colon with its end token, unless that is masked.
pub fn unwilling(worker: Worker) -> Box<dyn StepRunner> {
    Box::new(Unwilling { worker, masked: BTreeSet::new() })
}

impl StepRunner for Unwilling {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let whole = StepRunner::run(&mut self.worker, step)?.result;
        let mut output = StepOutput::default();
        output.result.step = step.id;
        let (mut starts, mut begin) = (step.starts.iter(), 0);
        for (seq, end) in step.seqs.iter().zip(&whole.ends) {
            let tokens = &whole.tokens[begin..*end as usize];
            begin = *end as usize;
            let start = if seq.start { starts.next() } else { None };
            if start.is_some_and(|start| start.sampling.logit_bias.entries().iter().any(|(token, _)| *token == END)) {
                self.masked.insert(seq.request);
            }
            let last = step.tokens[(seq.tokens_at + seq.n_history + seq.n_tokens) as usize - 1];
            let is_asked = seq.n_generated == 0 && last == u32::from(b':') && !self.masked.contains(&seq.request);
            output.result.push(if is_asked && seq.sample { &[END][..] } else { tokens });
        }
        Ok(output)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}
