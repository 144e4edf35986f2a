//! Copies within the device, and the right contents of the requests that have some.
//!
//! A copied cell is marked, unless it is the very cell that the request would compute. The cell computed after copied ones stands for all cells
//! before it, so the text says what was copied, and a copied cell, or one computed behind it, is wrong for every request that did not copy it.

use std::collections::BTreeMap;

use trunkline_core::{CellCopy, Reuse, Step, StepSeq, Token};

use super::{OracleWorker, Truth, next_cell};
use crate::memory::Cell;

/// Token that marks a copy.
const COPIED: Token = 0xc09d;

/// Returns the cell behind which the next one is computed, from the cell `before` the first and all cells so far.
pub(super) fn last_cell(before: Cell, cells: impl DoubleEndedIterator<Item = Cell> + Clone) -> Cell {
    match cells.clone().next_back() {
        None => before,
        Some(last) if !last.copied => last,
        Some(_) => cells.fold(before, |all, cell| next_cell(all, cell.prefix as u32 ^ (cell.prefix >> 32) as u32)),
    }
}

impl Truth {
    /// Starts again with the tokens generated so far. Positions for which `copied` returns a cell hold that cell.
    fn restart(&mut self, n_generated: u32, copied: impl Fn(usize) -> Option<Cell>) {
        self.tokens.truncate(self.prompt_tokens + n_generated as usize);
        self.cells.clear();
        for at in 0..self.tokens.len() {
            let last = last_cell(self.before, self.cells.iter().copied());
            let cell = copied(at).unwrap_or_else(|| next_cell(last, self.tokens[at]));
            assert_eq!(cell.token, self.tokens[at], "the cell at {at} is of another token");
            self.cells.push(cell);
        }
    }
}

impl OracleWorker {
    /// Makes the copies of a step, and takes note of what the sequences that start now hold.
    ///
    /// # Panics
    /// If a copy reads or writes what it must not.
    pub(super) fn copy_cells(&mut self, step: &Step) {
        let mut written = vec![Vec::new(); step.seqs.len()];
        for copy in &step.copies {
            assert!(step.copies.iter().all(|other| other.to != copy.from), "a copy reads what another writes");
            let (at, position) = self.destination(step, copy);
            let seq = &step.seqs[at];
            for i in 0..copy.n_tokens {
                let from = (copy.from * self.block_size as u32 + copy.from_cell + i) as usize;
                let cell = self.copied_cell(seq, position + i as usize, from);
                let to = self.at(seq, position + i as usize);
                self.device.cells[to] = cell;
                written[at].push(position + i as usize);
            }
            self.copied += u64::from(copy.n_tokens);
        }
        self.check_whole_blocks(step);
        for (at, (seq, written)) in step.seqs.iter().zip(&written).enumerate() {
            assert!(written.is_empty() || seq.start, "request {} copies after its start", seq.request);
            if seq.start {
                self.restart_truth(&step.seqs[..at], seq, written);
            }
        }
        for copy in &step.copies {
            let traffic = self.device.traffic(copy.from);
            assert!(traffic.copy_into.is_none(), "a copy reads block {}, which a transfer writes", copy.from);
            let traffic = self.device.traffic(copy.to);
            assert!(traffic.copy_into.is_none() && traffic.copies_from == 0, "a copy writes what a transfer has");
        }
    }

    /// Asserts that a step writes no source of its copies. MUST follow the claims of the step.
    pub(super) fn check_sources(&self, step: &Step) {
        for copy in &step.copies {
            let writer = self.device.traffic[copy.from as usize].written_by;
            assert!(writer.is_none(), "{writer:?} writes block {}, which the step copies", copy.from);
        }
    }

    /// Asserts that requests whose cache tenants share copy no block of a source in part: each to its end, at least.
    fn check_whole_blocks(&self, step: &Step) {
        let mut ends: BTreeMap<(usize, u32), u32> = BTreeMap::new();
        for copy in &step.copies {
            let (at, _) = self.destination(step, copy);
            if self.truth(&step.seqs[at]).is_some_and(|truth| truth.shares_cache) {
                let end = ends.entry((at, copy.from)).or_default();
                *end = (copy.from_cell + copy.n_tokens).max(*end);
            }
        }
        for ((at, from), end) in ends {
            let request = step.seqs[at].request;
            assert_eq!(
                end as usize, self.block_size,
                "request {request} copies a part of block {from}, and shares a cache"
            );
        }
    }

    /// Returns the sequence into whose own block a copy writes, and the position of the first token there.
    fn destination(&self, step: &Step, copy: &CellCopy) -> (usize, usize) {
        let size = self.block_size as u32;
        let is_inside = copy.n_tokens > 0 && copy.from_cell.max(copy.to_cell) + copy.n_tokens <= size;
        assert!(is_inside, "{copy:?} copies from or to more than a block");
        let entry = |seq: &StepSeq| self.table(seq).iter().position(|block| *block == copy.to);
        // A later sequence may read the block, if copies and this step fill it with what both would compute.
        let mut owners = step.seqs.iter().enumerate().filter_map(|(at, seq)| Some((at, entry(seq)?)));
        let (at, entry) = owners.next().expect("a copy writes into a block of a sequence of the step");
        assert!(owners.next().is_none() || self.in_step_hits, "a copy writes into a block of two sequences");
        let position = entry * self.block_size + copy.to_cell as usize;
        assert_eq!(copy.position as usize, position, "a copy is for another position than its place");
        (at, position)
    }

    /// Returns the cell that a copy puts at a position of a sequence.
    fn copied_cell(&self, seq: &StepSeq, position: usize, from: usize) -> Cell {
        let cell = self.device.cells[from];
        if cell.spoiled_until().is_some_and(|last| self.step.is_some_and(|step| step <= last)) {
            return cell;
        }
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        assert!(cell.prefix & 1 == 1 && !cell.copied, "request {} copies what nobody computed", seq.request);
        if mirror.number.is_some() {
            assert_eq!(cell.space, mirror.before.space, "request {} copies from another namespace", seq.request);
        }
        let last = match position.checked_sub(1) {
            None => mirror.before,
            Some(before) => self.device.cells[self.at(seq, before)],
        };
        let is_own = !last.copied && next_cell(last, cell.token) == cell;
        if is_own { cell } else { Cell { copied: true, prefix: next_cell(cell, COPIED).prefix, ..cell } }
    }

    /// Corrects what is known of a sequence that starts with copied cells, of this step or from before a swap, or that had some when it
    /// started before. The sequences `ahead` of it in the step have not run yet.
    fn restart_truth(&mut self, ahead: &[StepSeq], seq: &StepSeq, written: &[usize]) {
        let Some(truth) = self.truth(seq) else { return };
        if written.is_empty() && !truth.has_copies {
            return;
        }
        let is_written = |at: usize| {
            let block = self.table(seq)[at / self.block_size];
            let written = |other: &StepSeq| &self.table(other)[other.kv_write_from as usize / self.block_size..];
            ahead.iter().any(|other| written(other).contains(&block))
        };
        // What is not kept is compared as computed later.
        let kept = |at: usize| {
            let cell = self.device.cells[self.at(seq, at)];
            (truth.copied.contains(&at) && truth.cells[at] == cell && !is_written(at)).then_some((at, cell))
        };
        let now = written.iter().map(|at| (*at, self.device.cells[self.at(seq, *at)]));
        let before = (0..seq.computed as usize).filter(|at| !written.contains(at)).filter_map(kept);
        let copied: BTreeMap<usize, Cell> = now.chain(before).collect();
        let spoiled = copied.iter().find_map(|(at, cell)| Some((*at, cell.spoiled_until()?)));
        if spoiled.is_some() {
            // What it says from there on does not count, and it starts again.
            self.mirrors[seq.slot as usize].as_mut().expect("the mirror was updated").spoiled = spoiled;
            return;
        }
        let truth = self.truths.get_mut(&seq.request).expect("it was just found");
        let may_copy = written.is_empty() || truth.reuse != Some(Reuse::Prefix);
        assert!(may_copy, "request {} did not ask for copies", seq.request);
        truth.has_copies = true;
        truth.copied = copied.keys().copied().collect();
        truth.restart(seq.n_generated, |at| copied.get(&at).copied());
        assert!(copied.keys().all(|at| at + 1 < truth.tokens.len()), "the last token is always run");
    }
}
