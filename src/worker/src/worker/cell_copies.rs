//! Copies of tokens' KV from block to block, to other positions, ahead of a step.
//!
//! A key is stored rotated by its position. Rotations add up, so a key moves by a further rotation, by the difference of the two angles: rounded
//! once more, it is the key computed at the new position, norms of heads included. YaRN's factor is in the key already. Values do not
//! depend on positions.

use trunkline_port::{CellCopy, Step};

use crate::error::{CopyFault, WorkerError};
use crate::kv::rope::Rope;
use crate::kv::{KvDtype, KvMemory};
use crate::layers::threads::Threads;
use crate::worker::mirror::Limits;

/// Checks the copies of a step before any is made.
pub(crate) fn check(step: &Step, limits: &Limits, dtype: KvDtype, n_groups: usize) -> Result<(), WorkerError> {
    let fault = |copy: &CellCopy| {
        let blocks = copy.from.max(copy.to);
        let end = u64::from(copy.from_cell.max(copy.to_cell)) + u64::from(copy.n_tokens);
        let source = i64::from(copy.position) - i64::from(copy.shift);
        if n_groups > 1 {
            Some(CopyFault::Groups)
        } else if !dtype.is_float() {
            Some(CopyFault::Quantised { dtype: dtype.name() })
        } else if blocks >= limits.n_blocks || copy.from == copy.to {
            Some(CopyFault::Block { from: copy.from, to: copy.to, n_blocks: limits.n_blocks })
        } else if end > limits.block_size.into() {
            Some(CopyFault::Cells { end, block_size: limits.block_size })
        } else if source < 0 || u64::from(copy.position) + u64::from(copy.n_tokens) > limits.context.into() {
            Some(CopyFault::Position { position: copy.position, shift: copy.shift })
        } else {
            None
        }
    };
    match step.copies.iter().enumerate().find_map(|(index, copy)| Some((index, fault(copy)?))) {
        Some((index, fault)) => Err(WorkerError::Copy { step: step.id, index, fault }),
        None => Ok(()),
    }
}

/// Makes checked copies, in any order: no source is a destination.
pub(crate) fn run(copies: &[CellCopy], memory: &KvMemory, rope: &Rope, threads: &Threads) {
    let n_tokens: usize = copies.iter().map(|copy| copy.n_tokens as usize).sum();
    let cost = n_tokens * memory.block_bytes() / memory.block_size();
    threads.map(copies.len(), cost, |at| {
        let copy = &copies[at];
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in copy.position..copy.position + copy.n_tokens {
            rope.turns(position, copy.shift, &mut cos, &mut sin);
        }
        memory.copy_cells(copy, &cos, &sin);
    });
}
