//! Checks after every event: blocks, limits of steps, progress; and counts of blocks.

use trunkline_core::{Place, SeqFault, Step, StepSeq};

use crate::Driver;

impl Driver {
    /// Checks that the requests which the worker failed have ended, unless the worker may have failed them for what another spoiled.
    pub(crate) fn check_failed(&mut self) {
        for (id, _) in std::mem::take(&mut self.sent.failed) {
            let goes_on = self.sent.withdrawn.contains(&id)
                || self.sent.starting_over.contains(&id)
                || self.worker.faults.fails_reader
                || !self.joined;
            assert!(goes_on || !self.live.contains(&id), "request {id} failed, and goes on");
        }
    }

    /// Ends the oldest step in flight, in which the sequence of a request fails.
    ///
    /// # Panics
    /// If the step does not run the request.
    pub fn answer_failing(&mut self, id: u64, fault: SeqFault) {
        let at = self.ids().iter().position(|other| *other == id);
        self.worker.faults.fail(at.expect("the step runs the request"), fault);
        self.answer();
    }

    /// Asserts that every block is in one place and that nothing waits for ever.
    pub(crate) fn check(&self) {
        // In debug builds the core has checked itself.
        if !cfg!(debug_assertions) {
            self.core.check();
        }
        let (stats, config) = (self.stats(), self.core.config());
        assert_eq!(self.usable() + self.in_use(), config.pool_blocks(), "every block is in one place: {stats:?}");
        assert!(stats.free_host_blocks <= config.host_capacity());
        self.check_progress();
        self.check_runs();
    }

    /// Asserts that the core waits only for what is under way, and that no request outlives its deadline.
    fn check_progress(&self) {
        let is_idle = self.joined && self.steps.is_empty() && self.copies.is_empty() && self.lookups.is_empty();
        assert!(!is_idle || self.live.is_empty(), "{:?} wait for nothing: {:?}", self.live, self.stats());
        for id in &self.live {
            let known = &self.requests[id];
            let fails = !known.withdrawn && self.blame.of(*id).is_over;
            assert!(!fails, "request {id} fails for ever");
            let deadline_ns = known.request.deadline_ns;
            assert!(deadline_ns.is_none_or(|deadline_ns| deadline_ns > self.now_ns), "request {id} is late");
        }
    }

    /// Asserts that the worker does not idle alongside copies while several requests have their blocks and one of them could run. A swap-out
    /// is waited for, because it was begun for the blocks that it frees.
    fn check_runs(&self) {
        let swaps_out = self.copies.iter().any(|copy| (copy.from, copy.to) == (Place::Device, Place::Host));
        let idles = self.joined && self.steps.is_empty() && !swaps_out;
        let stats = self.stats();
        assert!(!idles || stats.running < 2, "the worker idles alongside {:?}: {stats:?}", self.copies);
    }

    /// Asserts that a step keeps to the limits, and continues each sequence where the last step left it.
    pub(crate) fn check_step(&self, step: &Step) {
        let config = self.core.config();
        let has_room = self.steps.len() < config.max_steps_in_flight as usize;
        assert!(self.joined && has_room, "so many steps in flight, on a worker that is there");
        let logits: u32 = step.seqs.iter().filter(|seq| seq.sample).map(|seq| 1 + seq.n_drafts).sum();
        assert!(logits <= config.max_step_logits, "step {} samples from {logits} positions", step.id);
        assert!(step.n_tokens() <= config.max_batch_tokens && step.seqs.len() <= config.max_batch_size as usize);
        for seq in &step.seqs {
            self.check_sequence(seq);
        }
        self.check_prompt_rows(step);
    }

    fn check_sequence(&self, seq: &StepSeq) {
        assert!(self.live.contains(&seq.request), "request {} runs after its end", seq.request);
        let known = &self.requests[&seq.request];
        // An ended request keeps its slot while a step runs it, so a later one with the same id has another.
        let is_part = |part: &&StepSeq| (part.request, part.slot) == (seq.request, seq.slot);
        let parts = self.steps.iter().flat_map(|step| &step.seqs).filter(is_part);
        let ahead = parts.clone().filter(|part| part.sample).count();
        assert!(parts.clone().all(|part| part.n_drafts == 0), "request {} runs on behind drafts", seq.request);
        let generated = known.text.len() + ahead;
        assert_eq!(seq.n_generated as usize, generated, "request {} lost count", seq.request);
        assert!(seq.n_generated < known.request.max_tokens, "request {} runs past its last token", seq.request);
        let is_last = (seq.computed + seq.n_tokens) as usize == known.request.prompt.len() + generated;
        assert_eq!(seq.sample, is_last, "request {} samples if it runs its last token", seq.request);
    }

    /// Returns the number of free or evictable blocks.
    pub fn usable(&self) -> u32 {
        let stats = self.stats();
        stats.free_blocks + stats.idle_blocks
    }

    /// Returns the number of blocks that requests or copies use.
    pub fn in_use(&self) -> u32 {
        let stats = self.stats();
        stats.held_blocks + stats.private_blocks + stats.moving_blocks
    }

    /// Returns `true` if every block of the device is free or evictable.
    pub fn all_blocks_usable(&self) -> bool {
        self.usable() == self.core.config().pool_blocks()
    }

    /// Returns the number of free blocks on the host.
    pub fn host_free(&self) -> u32 {
        self.stats().free_host_blocks
    }

    /// Asserts that no request is left and every block is usable again.
    pub fn assert_empty(&self) {
        let (stats, config) = (self.stats(), self.core.config());
        assert_eq!((stats.waiting, stats.running, stats.swapped), (0, 0, 0));
        assert_eq!((self.usable(), self.host_free()), (config.pool_blocks(), config.host_capacity()));
        assert!(self.steps.is_empty() && self.copies.is_empty());
    }
}
