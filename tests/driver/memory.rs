//! Blocks of cells, and the copies and steps at work on them.

use std::collections::BTreeMap;

use trunkline_core::{BlockKey, RequestId, Token};

/// Contents of a KV cell. Cells of one prefix are equal, whenever they were computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// Stands for the whole prefix up to and including the cell's token. Odd if it stands for anything.
    pub(crate) prefix: u64,
    /// Flushes of the cache before the prefix was begun.
    pub(crate) flushes: u32,
    /// Stands for the layer group, and for the entries that the sequence had dropped when the cell was computed; 0 in the first group,
    /// with all entries.
    pub(crate) lineage: u64,
    /// Token of the cell.
    pub(crate) token: Token,
    /// Namespace of the prefix.
    pub(crate) space: u64,
    /// `true` if the cell was computed after other tokens, and copied.
    pub(crate) copied: bool,
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        (self.prefix, self.lineage, self.copied) == (other.prefix, other.lineage, other.copied)
    }
}

/// The contents of no cell.
pub(crate) const EMPTY: Cell = Cell { prefix: 0, flushes: 0, lineage: 0, token: 0, space: 0, copied: false };
/// The contents of a cell that a copy is to write, or failed to write.
pub(crate) const POISON: Cell = Cell { prefix: 2, ..EMPTY };

/// Kind of contents that a sequence left which the worker failed, in the lowest bits of [`Cell::prefix`].
const SPOILED: u64 = 4;

impl Cell {
    /// Returns the contents of a cell that the worker failed to compute. Steps up to `last_step` were sent before anybody knew, and may read
    /// the cell: what they compute from it must not leave the core.
    pub(crate) fn spoiled(last_step: u64) -> Self {
        Self { prefix: last_step << 8 | SPOILED, ..EMPTY }
    }

    /// Returns the last step that may read a spoiled cell.
    pub(crate) fn spoiled_until(self) -> Option<u64> {
        (self.prefix & 0xff == SPOILED).then_some(self.prefix >> 8)
    }
}

/// What goes on in a block.
#[derive(Clone, Default, Debug)]
pub(crate) struct Traffic {
    pub(crate) copies_from: u32,
    pub(crate) copy_into: Option<u64>,
    pub(crate) read_by: Option<RequestId>,
    pub(crate) written_by: Option<RequestId>,
    /// The first table of the step that has it: whose, which layer group and entry, and what the sequence may do with it.
    pub(crate) in_table: Option<(RequestId, (usize, usize), Use)>,
}

/// What a sequence of a step may do with a block of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    /// Writes the block, which is full at the end of the step.
    Fills,
    Writes,
}

/// The KV blocks of one side.
#[derive(Debug)]
pub(crate) struct Memory {
    name: &'static str,
    pub(crate) block_size: usize,
    pub(crate) cells: Vec<Cell>,
    pub(crate) traffic: Vec<Traffic>,
}

impl Memory {
    pub(crate) fn new(name: &'static str, block_size: u32, blocks: u32) -> Self {
        let (block_size, blocks) = (block_size as usize, blocks as usize);
        Self { name, block_size, cells: vec![EMPTY; block_size * blocks], traffic: vec![Traffic::default(); blocks] }
    }

    pub(crate) fn reset(&mut self) {
        self.cells.fill(EMPTY);
        self.traffic.fill(Traffic::default());
    }

    pub(crate) fn traffic(&mut self, block: u32) -> &mut Traffic {
        let (name, blocks) = (self.name, self.traffic.len());
        self.traffic.get_mut(block as usize).unwrap_or_else(|| panic!("the {name} has {blocks} blocks, not {block}"))
    }

    pub(crate) fn block(&mut self, block: u32) -> &mut [Cell] {
        let at = block as usize * self.block_size;
        &mut self.cells[at..at + self.block_size]
    }

    pub(crate) fn begin_copy_from(&mut self, block: u32, id: u64) -> &[Cell] {
        let name = self.name;
        let traffic = self.traffic(block);
        let into = traffic.copy_into;
        assert!(into.is_none(), "transfer {id} reads {name} block {block}, which transfer {} writes", into.unwrap());
        let step = traffic.written_by;
        assert!(step.is_none(), "transfer {id} reads {name} block {block}, which request {} is writing", step.unwrap());
        traffic.copies_from += 1;
        self.block(block)
    }

    pub(crate) fn begin_copy_into(&mut self, block: u32, id: u64) {
        let name = self.name;
        let traffic = self.traffic(block);
        assert!(traffic.copies_from == 0, "transfer {id} writes {name} block {block}, which another transfer reads");
        let into = traffic.copy_into.replace(id);
        assert!(into.is_none(), "transfer {id} writes {name} block {block}, which transfer {} writes", into.unwrap());
        let step = traffic.read_by.or(traffic.written_by);
        assert!(
            step.is_none(),
            "transfer {id} writes {name} block {block}, which request {} has in a step",
            step.unwrap()
        );
        self.block(block).fill(POISON);
    }

    pub(crate) fn end_copy_from(&mut self, block: u32, before: &[Cell], id: u64) {
        self.traffic(block).copies_from -= 1;
        let name = self.name;
        assert!(self.block(block) == before, "{name} block {block} was written while transfer {id} read it");
    }

    pub(crate) fn end_copy_into(&mut self, block: u32, id: u64, contents: Option<&[Cell]>) {
        assert_eq!(self.traffic(block).copy_into.take(), Some(id));
        let name = self.name;
        let cells = self.block(block);
        let untouched = cells.iter().all(|cell| *cell == POISON);
        assert!(untouched, "{name} block {block} was written while transfer {id} wrote it");
        if let Some(contents) = contents {
            cells.copy_from_slice(contents);
        }
    }

    pub(crate) fn begin_step_read(&mut self, block: u32, request: RequestId) {
        let traffic = self.traffic(block);
        let into = traffic.copy_into;
        assert!(into.is_none(), "request {request} reads block {block}, which transfer {} writes", into.unwrap());
        traffic.read_by = Some(request);
    }

    pub(crate) fn begin_step_write(&mut self, block: u32, request: RequestId) {
        let traffic = self.traffic(block);
        let into = traffic.copy_into;
        assert!(into.is_none(), "request {request} writes block {block}, which transfer {} writes", into.unwrap());
        assert!(traffic.copies_from == 0, "request {request} writes block {block}, which a transfer reads");
        traffic.written_by = Some(request);
    }

    pub(crate) fn end_step(&mut self) {
        for traffic in &mut self.traffic {
            *traffic = Traffic { copies_from: traffic.copies_from, copy_into: traffic.copy_into, ..Traffic::default() };
        }
    }
}

/// Storage of a shared tier: contents by key, whichever core wrote them.
#[derive(Debug, Default)]
pub(crate) struct SharedStorage(BTreeMap<u128, Vec<Cell>>);

impl SharedStorage {
    /// Returns the contents under a key.
    pub(crate) fn get(&self, key: &BlockKey) -> Option<&[Cell]> {
        self.0.get(&key.hash).map(Vec::as_slice)
    }

    /// Makes all contents look as if the cache had never been flushed.
    pub(crate) fn forget_flushes(&mut self) {
        self.0.values_mut().flatten().for_each(|cell| cell.flushes = 0);
    }

    /// Puts contents under a key.
    ///
    /// # Panics
    /// If the contents are from before a flush, and those in their place are not: they would be found.
    pub(crate) fn put(&mut self, key: &BlockKey, cells: &[Cell]) {
        let before = self.0.insert(key.hash, cells.to_vec());
        let is_older = |(before, cell): (&Cell, &Cell)| before.flushes > cell.flushes;
        let is_late = before.is_some_and(|before| before.iter().zip(cells).any(is_older));
        assert!(!is_late, "a write from before a flush replaces one from after it: {key:?}");
    }
}
