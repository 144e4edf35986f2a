//! The block tables of a sequence in the layer groups after the first, as the worker sees them.

use std::collections::BTreeSet;

use trunkline_core::{Keeps, NO_BLOCK, Step, StepSeq};

/// Tables of the groups after the first, and all that was dropped from tables of groups that evict.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupTables {
    /// Tables of the groups after the first.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Entries dropped from tables that keep what is not dropped: group and entry.
    dropped: BTreeSet<(usize, usize)>,
    /// Positions from which on cells are computed without what was dropped then, each with a number for all that was dropped.
    lineages: Vec<(usize, u64)>,
}

/// Returns what a cell stands for in addition to its prefix: a layer group, and what was dropped before.
pub(crate) fn lineage_of(group: usize, dropped: u64) -> u64 {
    (group as u64) << 48 ^ dropped
}

impl GroupTables {
    /// Returns the tables of a sequence that starts: those from `before` a broken connection if entries are missing that were dropped then.
    pub(crate) fn at_start(before: Option<Self>, step: &Step, seq: &StepSeq, keeps: &[Keeps]) -> Self {
        let mut scored = (1..keeps.len()).filter(|group| keeps[*group] == Keeps::Scored);
        let has_holes = scored.any(|group| step.new_blocks_of(seq, group).contains(&NO_BLOCK));
        before.filter(|_| has_holes).unwrap_or_default()
    }

    /// Takes in the part of a step.
    ///
    /// # Panics
    /// If an entry is dropped that is not there, or one comes without a block that was never dropped.
    pub(crate) fn update(&mut self, step: &Step, index: usize, keeps: &[Keeps]) {
        let seq = &step.seqs[index];
        self.tables.resize_with(keeps.len().saturating_sub(1), Vec::new);
        for drop in step.drops_of(index) {
            let group = drop.group as usize;
            for entry in drop.first..drop.first + drop.n {
                let block = &mut self.tables[group - 1][entry as usize];
                assert_ne!(*block, NO_BLOCK, "request {} drops entry {entry} twice", seq.request);
                *block = NO_BLOCK;
                self.dropped(group, entry as usize, seq, keeps);
            }
        }
        // An entry that is sent again may have been dropped since it was sent first.
        for group in 1..keeps.len() {
            let kept = seq.table_keep as usize;
            let again = self.tables[group - 1].iter().skip(kept).zip(step.new_blocks_of(seq, group)).enumerate();
            let gone = again.filter(|(_, (before, now))| **before != NO_BLOCK && **now == NO_BLOCK);
            for entry in gone.map(|(at, _)| kept + at).collect::<Vec<_>>() {
                self.dropped(group, entry, seq, keeps);
            }
        }
        for (table, group) in self.tables.iter_mut().zip(1..) {
            table.truncate(seq.table_keep as usize);
            table.extend_from_slice(step.new_blocks_of(seq, group));
            let first_lost = table.iter().enumerate().find(|(at, block)| {
                **block == NO_BLOCK && keeps[group] == Keeps::Scored && !self.dropped.contains(&(group, *at))
            });
            assert!(first_lost.is_none(), "request {} lost entry {first_lost:?} of group {group}", seq.request);
        }
    }

    /// Notes that a sequence dropped an entry, if the group keeps what is not dropped.
    fn dropped(&mut self, group: usize, entry: usize, seq: &StepSeq, keeps: &[Keeps]) {
        if keeps[group] == Keeps::Scored {
            self.dropped.insert((group, entry));
            let before = self.lineages.last().map_or(0, |(_, dropped)| *dropped);
            let mixed = (before ^ (entry as u64) << 8 ^ group as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.lineages.push((seq.computed as usize, mixed >> 20 | 1));
        }
    }

    /// Returns all blocks of all groups, with group and entry.
    pub(crate) fn entries(&self, first: &[u32]) -> Vec<(usize, usize, u32)> {
        let tables = std::iter::once(first).chain(self.tables.iter().map(Vec::as_slice));
        let entries = tables
            .enumerate()
            .flat_map(|(group, table)| table.iter().enumerate().map(move |(entry, block)| (group, entry, *block)));
        entries.filter(|(_, _, block)| *block != NO_BLOCK).collect()
    }

    /// Returns the block of an entry in a group after the first, if there is one.
    pub(crate) fn block(&self, group: usize, entry: usize) -> Option<u32> {
        Some(self.tables[group - 1][entry]).filter(|block| *block != NO_BLOCK)
    }

    /// Returns `true` if a position may be missing for the query at `computed` and later ones.
    pub(crate) fn may_lack(&self, keeps: Keeps, group: usize, position: usize, computed: u32, size: usize) -> bool {
        match keeps {
            Keeps::All => false,
            Keeps::Window(window) => position + window as usize <= computed as usize,
            Keeps::Scored => self.dropped.contains(&(group, position / size)),
        }
    }

    /// Returns a number for all that was dropped before the cell at a position was computed; 0 for nothing.
    pub(crate) fn dropped_before(&self, position: usize) -> u64 {
        self.lineages.iter().rev().find(|(from, _)| *from <= position).map_or(0, |(_, dropped)| *dropped)
    }
}
