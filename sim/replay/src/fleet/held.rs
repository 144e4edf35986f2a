//! What attention reads in models with several layer groups: dropped blocks and windows.
//!
//! The cost models know a step by the tokens of KV that its attention reads in each layer. With layer groups the layers read different
//! numbers of tokens; their mean stands for all.

use std::ops::Range;

use trunkline_core::{Keeps, NO_BLOCK, Step, StepSeq};
use trunkline_sim_perf::cost::StepShape;

use crate::settings::Settings;

/// Holes in the block tables of the sequences on one replica, as its worker sees them.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Positions kept by each group, and its layers or KV heads; empty for a model without groups.
    groups: Vec<(Keeps, u64)>,
    block_size: u32,
    /// For each slot on the worker, the holes in the table of each group.
    tables: Vec<Vec<Holes>>,
}

/// Holes in a block table.
#[derive(Clone, Debug, Default)]
struct Holes {
    /// `true` for each entry that is a hole.
    is_hole: Vec<bool>,
    /// Number of holes.
    n: u64,
}

impl Holes {
    fn drop(&mut self, entries: Range<usize>) {
        for is_hole in &mut self.is_hole[entries] {
            self.n += u64::from(!std::mem::replace(is_hole, true));
        }
    }

    /// Cuts the table to `keep` entries, and appends others.
    fn replace_tail(&mut self, keep: usize, blocks: &[u32]) {
        let count = |holes: &[bool]| holes.iter().filter(|is_hole| **is_hole).count() as u64;
        let keep = keep.min(self.is_hole.len());
        self.n -= count(&self.is_hole[keep..]);
        self.is_hole.truncate(keep);
        self.is_hole.extend(blocks.iter().map(|block| *block == NO_BLOCK));
        self.n += count(&self.is_hole[keep..]);
    }
}

impl Held {
    /// Returns the state of a worker without sequences.
    pub(crate) fn new(settings: &Settings) -> Self {
        let layers = settings.group_sizes.iter().map(|layers| u64::from(*layers));
        let groups = settings.core.worker.groups.iter().copied().zip(layers).collect();
        Self { groups, block_size: settings.core.block_size, tables: Vec::new() }
    }

    /// Takes in the table changes of a step. Returns its batch shape.
    pub(crate) fn shape(&mut self, step: &Step) -> StepShape {
        if self.groups.is_empty() {
            return StepShape::of(step);
        }
        self.update(step);
        StepShape::reading(step, |seq| self.read(seq))
    }

    fn update(&mut self, step: &Step) {
        for (index, seq) in step.seqs.iter().enumerate() {
            let slot = seq.slot as usize;
            if self.tables.len() <= slot {
                self.tables.resize(slot + 1, Vec::new());
            }
            let tables = &mut self.tables[slot];
            if seq.start {
                tables.clear();
            }
            tables.resize(self.groups.len(), Holes::default());
            for drop in step.drops_of(index) {
                tables[drop.group as usize].drop(drop.first as usize..(drop.first + drop.n) as usize);
            }
            for (group, table) in tables.iter_mut().enumerate() {
                table.replace_tail(seq.table_keep as usize, step.new_blocks_of(seq, group));
            }
        }
    }

    /// Returns the tokens of KV before a sequence's chunk that its attention reads: the mean over the layers.
    fn read(&self, seq: &StepSeq) -> u64 {
        let computed = u64::from(seq.computed);
        let (mut read, mut layers) = (0, 0);
        for ((keeps, n), table) in self.groups.iter().zip(&self.tables[seq.slot as usize]) {
            let tokens = match keeps {
                Keeps::All => computed,
                Keeps::Window(window) => computed.min(u64::from(*window)),
                Keeps::Scored => computed.saturating_sub(table.n * u64::from(self.block_size)),
            };
            read += n * tokens;
            layers += n;
        }
        read / layers
    }
}
