//! Copies and prompts that take time.

use trunkline_core::Step;

use crate::Driver;

impl Driver {
    /// Makes copies and prompts take as long as the configuration estimates, rather than a nanosecond.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.takes_time = true;
        self
    }

    /// Lets the time pass that a copy of so many blocks takes, if copies take time.
    pub(crate) fn pass_copy(&mut self, blocks: usize) {
        if self.takes_time {
            self.now_ns += blocks as u64 * self.core.config().swap_block_ns;
        }
    }

    /// Lets the time pass that the prompts of a step take, if they take time.
    pub(crate) fn pass_prompts(&mut self, step: &Step) {
        if self.takes_time {
            let prompts = step.seqs.iter().filter(|seq| seq.n_tokens > 1).map(|seq| u64::from(seq.n_tokens));
            self.now_ns += prompts.sum::<u64>() * self.core.config().recompute_token_ns;
        }
    }
}
