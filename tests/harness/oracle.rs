//! The content oracle: a worker without a model.

use trunkline_core::{Step, StepResult, Token};

/// Tokens it generates are below this.
pub const VOCAB: u32 = 1000;
/// Generated often enough to end some requests early.
pub const EOS: Token = 7;

/// What a KV cell stands for: the whole prefix up to and including its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell(u64);

/// The contents of no cell.
const EMPTY: Cell = Cell(0);

fn next_cell(before: Cell, token: Token) -> Cell {
    let mixed = (before.0 ^ u64::from(token) ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Cell((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
}

fn sample(cell: Cell) -> Token {
    (cell.0 >> 20) as u32 % VOCAB
}

/// The tokens a prompt is continued with, when nothing goes wrong.
pub fn continuation(prompt: &[Token], n: usize) -> Vec<Token> {
    let mut cell = prompt.iter().fold(EMPTY, |cell, token| next_cell(cell, *token));
    let mut out = Vec::new();
    while out.len() < n {
        let token = sample(cell);
        out.push(token);
        cell = next_cell(cell, token);
    }
    out
}

/// A worker with a paged cache of cells.
#[derive(Debug)]
pub struct OracleWorker {
    block_size: usize,
    cells: Vec<Cell>,
    tables: Vec<Vec<u32>>,
}

impl OracleWorker {
    /// A worker with `device_blocks` empty blocks.
    pub fn new(block_size: u32, device_blocks: u32) -> Self {
        Self {
            block_size: block_size as usize,
            cells: vec![EMPTY; (block_size * device_blocks) as usize],
            tables: Vec::new(),
        }
    }

    /// Forgets everything, as a worker that restarts does.
    pub fn reset(&mut self) {
        self.cells.fill(EMPTY);
        self.tables.clear();
    }

    /// Runs a step.
    ///
    /// # Panics
    /// If the step writes a block that another of its sequences has in its table, or writes below `kv_write_from`.
    pub fn run(&mut self, step: &Step) -> StepResult {
        for seq in &step.seqs {
            let slot = seq.slot as usize;
            if self.tables.len() <= slot {
                self.tables.resize(slot + 1, Vec::new());
            }
            let table = &mut self.tables[slot];
            if seq.start {
                table.clear();
            }
            assert!(
                table.len() >= seq.table_keep as usize,
                "the mirror of {} is shorter than the core thinks",
                seq.request
            );
            table.truncate(seq.table_keep as usize);
            table.extend_from_slice(step.new_blocks(seq));
        }
        self.assert_writes_are_exclusive(step);
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            let table = &self.tables[seq.slot as usize];
            let at = |position: u32| {
                table[position as usize / self.block_size] as usize * self.block_size
                    + position as usize % self.block_size
            };
            let mut cell = if seq.computed == 0 { EMPTY } else { self.cells[at(seq.computed - 1)] };
            for (position, token) in (seq.computed..).zip(step.run_tokens(seq)) {
                if position >= seq.kv_write_from {
                    self.cells[at(position)] = next_cell(cell, *token);
                }
                cell = self.cells[at(position)];
            }
            result.push(if seq.sample { std::slice::from_ref(&TOKENS[sample(cell) as usize]) } else { &[] });
        }
        result
    }

    fn assert_writes_are_exclusive(&self, step: &Step) {
        for writer in &step.seqs {
            for position in writer.kv_write_from..writer.computed + writer.n_tokens {
                let block = self.tables[writer.slot as usize][position as usize / self.block_size];
                for reader in step.seqs.iter().filter(|reader| reader.slot != writer.slot) {
                    let reads = &self.tables[reader.slot as usize];
                    assert!(!reads.contains(&block), "{} writes block {block} of {}", writer.request, reader.request);
                }
            }
        }
    }
}

/// Every token by its number, so that one can be borrowed.
static TOKENS: [Token; VOCAB as usize] = {
    let mut tokens = [0; VOCAB as usize];
    let mut at = 0;
    while at < VOCAB {
        tokens[at as usize] = at;
        at += 1;
    }
    tokens
};
