//! What the sequences of a step may do with the blocks of their tables, and what shared tiers have.

use trunkline_core::BlockKey;
use trunkline_core::StepSeq;

use super::OracleWorker;
use crate::memory::{EMPTY, Use};

impl OracleWorker {
    /// Returns `true` if the storage of a shared tier holds a block with this key.
    pub fn stores(&self, tier: u8, key: &BlockKey) -> bool {
        self.shared[tier as usize].as_ref().is_some_and(|storage| storage.get(key).is_some())
    }

    /// Returns the pairs of a copy in flight whose sources a shared tier did not have when the copy began.
    ///
    /// # Panics
    /// If there is no such copy.
    pub fn missing(&self, id: u64) -> impl Iterator<Item = u32> {
        let (_, before) = self.transfers.get(&id).expect("the transfer is in flight");
        let blocks = (0..).zip(before.chunks(self.block_size));
        blocks.filter(|(_, cells)| cells.contains(&EMPTY)).map(|(pair, _)| pair)
    }

    pub(super) fn assert_drafts_are_allowed(&self, seq: &StepSeq) {
        let request = seq.request;
        assert!(seq.n_tokens > 0, "request {request} runs nothing");
        assert!(seq.n_drafts <= self.max_drafts, "request {request} drafts {} tokens", seq.n_drafts);
        assert!(seq.sample || seq.n_drafts == 0, "request {request} drafts and does not sample");
        let end = (seq.computed + seq.n_tokens + seq.n_drafts) as usize;
        let room = self.table(seq).len() * self.block_size;
        assert!(room >= end, "request {request} has room for {room} tokens and runs or drafts {end}");
    }

    /// Two sequences may have the same block only at the same place, and then neither may write it, but for the first, if that fills it.
    pub(super) fn claim_table(&mut self, seq: &StepSeq) {
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        for (group, index, block) in mirror.groups.entries(&mirror.table) {
            let end = ((index + 1) * self.block_size) as u32;
            let is_filled = self.in_step_hits && seq.n_drafts == 0 && end <= seq.computed + seq.n_tokens;
            let own = match end <= seq.kv_write_from {
                true => Use::Reads,
                false if is_filled => Use::Fills,
                false => Use::Writes,
            };
            let place = (group, index);
            let first = self.device.traffic(block).in_table.get_or_insert((seq.request, place, own));
            if *first == (seq.request, place, own) {
                continue;
            }
            assert_ne!(first.0, seq.request, "request {} has block {block} twice", seq.request);
            assert_eq!(first.1, place, "requests {} and {} have block {block} in two places", first.0, seq.request);
            assert!(
                first.2 != Use::Writes && own == Use::Reads,
                "requests {} and {} have block {block}, and one may write it",
                first.0,
                seq.request
            );
        }
    }

    /// Marks what the step reads and writes, room for drafts included: nobody may write there, or copy to or from it.
    pub(super) fn claim_blocks(&mut self, seq: &StepSeq) {
        let size = self.block_size;
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        let write_from = seq.kv_write_from.max(seq.computed) as usize;
        let run_end = (seq.computed + seq.n_tokens) as usize;
        let write_end = run_end + seq.n_drafts as usize;
        let read = ..write_from.min(run_end).div_ceil(size);
        let written = if write_from < write_end { write_from / size..write_end.div_ceil(size) } else { 0..0 };
        for (_, index, block) in mirror.groups.entries(&mirror.table) {
            if read.contains(&index) {
                self.device.begin_step_read(block, seq.request);
            }
            if written.contains(&index) {
                self.device.begin_step_write(block, seq.request);
            }
        }
    }
}
