//! A worker whose answers are known texts.

use std::sync::Arc;

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
