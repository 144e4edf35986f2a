//! Sequences that the worker fails, and what others read of them.
//!
//! The cells of a sequence in the step that fails it are spoiled, and so is whatever a sequence computes that reads one. Steps sent before the
//! core knew may read them; the token sampled then is in no text, so that a core is found out which lets it pass.

use trunkline_core::{SeqFault, Step, StepResult, StepSeq, Token};

use super::{OracleWorker, VOCAB};
use crate::memory::Cell;

/// Sampled where there is nothing to sample from. No text has it.
const NO_TOKEN: Token = 2 * VOCAB;

/// Sequences that the worker fails.
#[derive(Debug, Default)]
pub struct Faults {
    /// Number of the last step sent.
    last_sent: u64,
    /// Sequence of the next step to end that fails, and the reason.
    next: Option<(usize, SeqFault)>,
    /// The same of the step that ends.
    now: Option<(usize, SeqFault)>,
    /// `true` if the sequence that failed last read what another had spoiled.
    pub fails_reader: bool,
}

impl Faults {
    /// Fails the `index`-th sequence of the step that ends next.
    pub fn fail(&mut self, index: usize, fault: SeqFault) {
        self.next = Some((index, fault));
    }

    /// Notes a step that was sent.
    pub(super) fn sent(&mut self, step: &Step) {
        self.last_sent = step.id;
    }

    /// Begins the end of a step.
    pub(super) fn begin(&mut self) {
        (self.now, self.fails_reader) = (self.next.take(), false);
    }
}

impl OracleWorker {
    /// Ends a sequence of a step that fails, or that reads what another has spoiled. Returns `false`, and does nothing, for any other.
    pub(super) fn end_spoiled(&mut self, step: &Step, index: usize, result: &mut StepResult) -> bool {
        let seq = &step.seqs[index];
        let fault = self.faults.now.filter(|(failed, _)| *failed == index).map(|(_, fault)| fault);
        let reads_spoiled = self.reads_spoiled(step, seq);
        self.faults.fails_reader |= fault.is_some() && reads_spoiled;
        match fault {
            Some(fault) => result.push_failed(fault),
            None if reads_spoiled => result.push(if seq.sample { &[NO_TOKEN] } else { &[] }),
            None => return false,
        }
        self.spoil(seq);
        true
    }

    /// Returns `true` if a sequence of the step that was begun reads a spoiled cell, or has read or copied one before. Groups of layers have none where the first has none.
    ///
    /// # Panics
    /// If the step was sent after the core knew.
    pub(super) fn reads_spoiled(&self, step: &Step, seq: &StepSeq) -> bool {
        let end = (seq.computed + seq.n_tokens) as usize;
        let read = 0..(seq.computed as usize).max(end.min(seq.kv_write_from as usize));
        let read = read.filter(|at| !self.awaits(step, seq, *at));
        let cells = read.filter_map(|at| self.device.cells[self.at(seq, at)].spoiled_until());
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        let until = cells.chain(mirror.spoiled.filter(|(first, _)| *first < end).map(|(_, until)| until)).min();
        let Some(until) = until else { return false };
        assert!(step.id <= until, "request {} reads KV that the worker failed to compute", seq.request);
        true
    }

    /// Returns `true` if a sequence will read what the worker failed to compute.
    pub(super) fn is_spoiled(&self, seq: &StepSeq) -> bool {
        self.mirrors[seq.slot as usize].as_ref().is_some_and(|mirror| mirror.spoiled.is_some())
    }

    /// Spoils what a sequence writes in a step.
    fn spoil(&mut self, seq: &StepSeq) {
        let cell = Cell::spoiled(self.faults.last_sent);
        let end = (seq.computed + seq.n_tokens + seq.n_drafts) as usize;
        for position in seq.computed.max(seq.kv_write_from) as usize..end {
            let at = self.at(seq, position);
            self.device.cells[at] = cell;
            for group in 1..self.keeps.len() {
                let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
                let block = mirror.groups.block(group, position / self.block_size);
                let block = block.unwrap_or_else(|| panic!("request {} writes into a hole at {position}", seq.request));
                self.device.cells[block as usize * self.block_size + position % self.block_size] = cell;
            }
        }
        if let Some(mirror) = &mut self.mirrors[seq.slot as usize] {
            (mirror.sampled, mirror.spoiled) = (Some(NO_TOKEN), Some((0, self.faults.last_sent)));
        }
    }
}
