//! Sequences that the worker could not compute in a step, alongside others that it did.
//!
//! Such a request ends alone. Blocks published before the step stay cached. Where prompts join the step that computes their prefix
//! ([`crate::WorkerFacts::in_step_hits`]), blocks of the failed sequence may have been published before they were computed: these are struck
//! out of the cache, and sequences that read them already start over. No token computed from such a block leaves the core, because the steps that
//! read the block have not been answered yet.

use super::Core;
use crate::FailedSeq;
use crate::journal::digest::Decision;
use crate::names::ids::BlockHandle;
use crate::request::FinishReason;
use crate::request::sequence::{Ending, Sequence, SequenceEvent};
use crate::schedule::state::State;
use crate::schedule::steps::Part;
use crate::{schedule::swap, schedule::transfer_end};

impl Core {
    /// Takes what a step was to compute of its failed sequences out of the cache. MUST come before the results of the step count.
    pub(super) fn fail_sequences(&mut self, parts: &[Part], failed: &[FailedSeq]) {
        for FailedSeq { seq, fault } in failed {
            let part = parts[*seq as usize];
            let slot = part.slot();
            self.state.end_shared_work(slot);
            let seq = &mut self.state.sequences[slot];
            seq.unpublishable = true;
            self.state.journal.decide(Decision::SequenceFailed, seq.id.0, *fault as u64);
            if let Some(first) = first_ahead(&self.state, part) {
                self.strike_out(slot, part.write_from / self.state.config.block_size, first);
            }
        }
    }

    /// Strikes out the `at`-th block of a failed sequence with all that follow, and lets the readers of the block start over.
    fn strike_out(&mut self, failed: usize, at: u32, first: BlockHandle) {
        let State { sequences, kv, journal, .. } = &mut self.state;
        let struck = kv.strike_out(first);
        journal.decide(Decision::StruckOut, sequences[failed].id.0, u64::from(struck));
        let reads = |seq: &Sequence| {
            let (published, sources) = seq.read_in_steps();
            published.get(at as usize) == Some(&first) || sources.contains(&first)
        };
        let readers = sequences.iter().filter(|(slot, seq)| *slot != failed && reads(seq));
        for slot in readers.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.state.end_shared_work(slot);
            let seq = &mut self.state.sequences[slot];
            seq.unpublishable = true;
            match seq.ending {
                None if seq.is_in_step() => seq.ending = Some(Ending::StartOver),
                None => self.start_over(slot),
                Some(_) => {}
            }
        }
    }

    /// Lets a sequence that no step in flight runs release all blocks, and wait for admission again.
    pub(super) fn start_over(&mut self, slot: usize) {
        let state = &mut self.state;
        state.sequences[slot].ending = None;
        if state.sequences[slot].is_preempted() {
            // It has no block, and waits as soon as its steps have ended.
            return;
        }
        transfer_end::orphan(state, slot);
        state.end_shared_work(slot);
        self.leave_queue(slot);
        let state = &mut self.state;
        state.release(slot);
        state.journal.stats.requests.restarted += 1;
        let history = &mut state.sequences[slot].cold.history;
        (history.shared_at_preemption, history.cached_at_preemption) = (0, 0);
        state.start_over(slot, SequenceEvent::SourceFailed);
        swap::resume_arrived(state);
    }

    /// Drops the wish of sequences to start over, as all are about to.
    pub(super) fn keep_restarts(&mut self) {
        let restarts = |seq: &&mut Sequence| seq.ending == Some(Ending::StartOver);
        let sequences = self.state.sequences.iter_mut().map(|(_, seq)| seq);
        sequences.filter(restarts).for_each(|seq| seq.ending = None);
    }
}

/// Returns the first block that a part of a step was to compute, if the block was published before.
fn first_ahead(state: &State, part: Part) -> Option<BlockHandle> {
    let seq = &state.sequences[part.slot()];
    let at = (part.write_from / state.config.block_size) as usize;
    seq.read_in_steps().0.get(at).copied()
}

impl Sequence {
    /// Returns `true` if a worker named the sequence as the cause of a failure, or failed it too often.
    pub fn has_failed(&self) -> bool {
        self.guilty || self.ending == Some(Ending::Finish(FinishReason::Error))
    }

    /// Returns `true` if the worker failed to compute the sequence, or blocks that the sequence reads, in a step that it computed for others.
    pub fn has_bad_kv(&self) -> bool {
        match self.ending {
            Some(Ending::StartOver) => true,
            Some(Ending::Finish(reason) | Ending::Reported(reason)) => reason.is_fault(),
            Some(Ending::Withdraw) | None => false,
        }
    }
}
