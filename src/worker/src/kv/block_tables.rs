//! The block tables of a sequence, one for each layer group, and the check of a step's changes to the tables.
//!
//! Entry `i` of a table stands for the positions from `i * block_size` on. The tables of all groups have equal length; entries without a
//! block, holes, hold [`NO_BLOCK`].

use trunkline_port::{Dropped, Keeps, NO_BLOCK, Step, StepSeq};

use crate::error::SequenceFault;

/// Block tables of a sequence; one entry for each layer group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockTables(Vec<Vec<u32>>);

impl BlockTables {
    /// Returns empty tables.
    pub(crate) fn new(n_groups: usize) -> Self {
        Self(vec![Vec::new(); n_groups])
    }

    /// Returns the number of entries of every table.
    pub(crate) fn len(&self) -> usize {
        self.0[0].len()
    }

    /// Returns the table of a layer group.
    pub(crate) fn of(&self, group: usize) -> &[u32] {
        &self.0[group]
    }

    /// Drops, cuts and extends the tables as the step says of its sequence number `index`. The changes MUST have passed [`Changes::check`].
    pub(crate) fn apply(&mut self, step: &Step, index: usize) {
        let seq = &step.seqs[index];
        for drop in step.drops_of(index) {
            self.0[drop.group as usize][drop.first as usize..][..drop.n as usize].fill(NO_BLOCK);
        }
        for (group, table) in self.0.iter_mut().enumerate() {
            table.truncate(seq.table_keep as usize);
            table.extend_from_slice(step.new_blocks_of(seq, group));
        }
    }
}

/// Changes of a step to the tables of one sequence.
pub(crate) struct Changes<'a> {
    pub(crate) step: &'a Step,
    /// Index of the sequence in the step.
    pub(crate) index: usize,
    /// Tables held so far; `None` for a sequence that starts.
    pub(crate) held: Option<&'a BlockTables>,
    /// Positions kept by each layer group.
    pub(crate) keeps: &'a [Keeps],
}

impl Changes<'_> {
    fn seq(&self) -> &StepSeq {
        &self.step.seqs[self.index]
    }

    /// Checks ranges, block numbers and holes.
    pub(crate) fn check(&self, n_blocks: u32, block_size: u32) -> Result<(), SequenceFault> {
        let (step, seq) = (self.step, self.seq());
        let blocks_end = u64::from(seq.blocks_at) + u64::from(seq.n_blocks) * self.keeps.len() as u64;
        if blocks_end > step.blocks.len() as u64 {
            return Err(SequenceFault::Range { what: "blocks", end: blocks_end, len: step.blocks.len() });
        }
        let len = self.held.map_or(0, BlockTables::len);
        if seq.table_keep as usize > len {
            return Err(SequenceFault::TableKeep { keep: seq.table_keep, len });
        }
        for drop in step.drops_of(self.index) {
            self.check_drop(drop)?;
        }
        for (group, keeps) in self.keeps.iter().enumerate() {
            let mut new = step.new_blocks_of(seq, group).iter().copied();
            if let Some(block) = new.find(|block| *block >= n_blocks && *block != NO_BLOCK) {
                return Err(SequenceFault::Block { block, limit: n_blocks });
            }
            self.check_holes(group, *keeps, block_size)?;
        }
        Ok(())
    }

    fn check_drop(&self, drop: &Dropped) -> Result<(), SequenceFault> {
        let Dropped { group, first, n, .. } = *drop;
        let Some(keeps) = self.keeps.get(group as usize) else {
            return Err(SequenceFault::NoGroup { group, n_groups: self.keeps.len() as u32 });
        };
        let keep = self.seq().table_keep;
        if n == 0 || u64::from(first) + u64::from(n) > u64::from(keep) {
            return Err(SequenceFault::Drop { group, first, n, keep });
        }
        if *keeps == Keeps::All { Err(SequenceFault::Hole { group, entry: first }) } else { Ok(()) }
    }

    /// Checks that every entry has a block that the rows write or MUST read.
    fn check_holes(&self, group: usize, keeps: Keeps, block_size: u32) -> Result<(), SequenceFault> {
        let (step, seq) = (self.step, self.seq());
        let keep = seq.table_keep as usize;
        let first = match keeps {
            // Earlier entries passed when they were new.
            Keeps::All => keep,
            _ if seq.n_tokens == 0 => return Ok(()),
            Keeps::Scored => (seq.computed / block_size) as usize,
            Keeps::Window(window) => {
                // The first row's window begins before all others'.
                ((u64::from(seq.computed) + 1).saturating_sub(window.into()) / u64::from(block_size)) as usize
            }
        };
        let new = step.new_blocks_of(seq, group);
        let dropped = |entry: usize| {
            let hits = |drop: &Dropped| {
                let first = drop.first as usize;
                drop.group as usize == group && (first..first + drop.n as usize).contains(&entry)
            };
            step.drops_of(self.index).iter().any(hits)
        };
        let hole = |entry: &usize| match entry.checked_sub(keep) {
            Some(at) => new[at] == NO_BLOCK,
            None => self.held.is_some_and(|held| held.of(group)[*entry] == NO_BLOCK) || dropped(*entry),
        };
        match (first..keep + new.len()).find(hole) {
            Some(entry) => Err(SequenceFault::Hole { group: group as u32, entry: entry as u32 }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPS: [Keeps; 3] = [Keeps::All, Keeps::Scored, Keeps::Window(6)];

    fn drop_of(group: u32, first: u32, n: u32) -> Dropped {
        Dropped { seq: 0, group, first, n }
    }

    /// A sequence with four blocks of four tokens in each of three groups, that runs position 16 in a fifth block.
    fn held_and_step() -> (BlockTables, Step) {
        let mut held = BlockTables::new(3);
        let first = StepSeq { n_tokens: 16, n_blocks: 4, ..StepSeq::default() };
        held.apply(&Step { seqs: vec![first], blocks: (0..12).collect(), ..Step::default() }, 0);
        let seq = StepSeq { computed: 16, n_tokens: 1, table_keep: 4, n_blocks: 1, ..StepSeq::default() };
        let drops = vec![drop_of(1, 1, 2), drop_of(2, 0, 2)];
        (held, Step { seqs: vec![seq], blocks: vec![12, 13, 14], drops, ..Step::default() })
    }

    fn check(held: &BlockTables, step: &Step) -> Result<(), SequenceFault> {
        Changes { step, index: 0, held: Some(held), keeps: &KEEPS }.check(20, 4)
    }

    #[test]
    fn each_group_has_a_table_and_drops_leave_holes() {
        let (mut held, step) = held_and_step();
        // The same step once more, after a failure, leads to the same tables.
        for _ in 0..2 {
            assert_eq!(check(&held, &step), Ok(()));
            held.apply(&step, 0);
            assert_eq!(held.of(0), [0, 1, 2, 3, 12]);
            assert_eq!(held.of(1), [4, NO_BLOCK, NO_BLOCK, 7, 13]);
            assert_eq!(held.of(2), [NO_BLOCK, NO_BLOCK, 10, 11, 14]);
        }
        assert_eq!(held.len(), 5);
    }

    #[test]
    fn changes_that_make_no_sense_are_named() {
        type Change = fn(&mut Step);
        let hole = |group, entry| SequenceFault::Hole { group, entry };
        let faults: [(Change, SequenceFault); 10] = [
            (|step| step.seqs[0].n_blocks = 2, SequenceFault::Range { what: "blocks", end: 6, len: 3 }),
            (|step| step.drops[0].group = 3, SequenceFault::NoGroup { group: 3, n_groups: 3 }),
            (|step| step.drops[0].n = 0, SequenceFault::Drop { group: 1, first: 1, n: 0, keep: 4 }),
            (|step| step.drops[0].first = 3, SequenceFault::Drop { group: 1, first: 3, n: 2, keep: 4 }),
            (|step| step.drops[0].first = u32::MAX, SequenceFault::Drop { group: 1, first: u32::MAX, n: 2, keep: 4 }),
            // A group that keeps everything has no holes, old or new.
            (|step| step.drops[0].group = 0, hole(0, 1)),
            (|step| step.blocks[0] = NO_BLOCK, hole(0, 4)),
            // A row's own position, and the window before it: 11 to 16.
            (|step| step.blocks[1] = NO_BLOCK, hole(1, 4)),
            (|step| step.drops[1].n = 3, hole(2, 2)),
            (|step| step.blocks[2] = 20, SequenceFault::Block { block: 20, limit: 20 }),
        ];
        for (change, expected) in faults {
            let (held, mut step) = held_and_step();
            change(&mut step);
            assert_eq!(check(&held, &step), Err(expected));
        }
    }

    #[test]
    fn new_entries_may_be_holes_where_no_row_reads() {
        let seq = StepSeq { start: true, computed: 9, n_tokens: 3, n_blocks: 3, ..StepSeq::default() };
        let blocks = vec![0, 1, 2, NO_BLOCK, 4, 5, NO_BLOCK, 7, 8];
        let step = Step { seqs: vec![seq], blocks, ..Step::default() };
        let changes = |step: &Step| Changes { step, index: 0, held: None, keeps: &KEEPS }.check(20, 4);
        assert_eq!(changes(&step), Ok(()));
        // The window of position 8 begins at 3.
        let wider = Step { seqs: vec![StepSeq { computed: 8, ..seq }], ..step };
        assert_eq!(changes(&wider), Err(SequenceFault::Hole { group: 2, entry: 0 }));
    }
}
