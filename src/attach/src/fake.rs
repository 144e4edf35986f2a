//! Worker without a model whose KV carries contents: the reference of the protocol, and a worker for tests.
//!
//! A KV cell is a hash of the token, its position, and all cells visible before it; a sampled token is a hash of all cells that the
//! sequence's block table shows. So a wrong table, an early reuse of a block, a copy to the wrong place, or a token run at a wrong position
//! changes the text. The token of the largest positive bias takes its place, of several the lowest; with a penalty one that was not generated yet. Equal prefixes have equal cells, whichever request computed the cells, so prefix hits, preemption, swapping and
//! restarts change nothing. Sampling draws token n from (seed, n).
//!
//! A [`FakeFault`] makes the worker wrong in one way, to prove that a test notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_port::{
    CopyError, DeviceBlocks, Keeps, LayerGroup, ModelInfo, NO_BLOCK, Sampling, SeqFault, SeqStart, Step, StepError,
    StepOutput, StepRunner, StepSeq, Token, TokenLogprobs,
};

use crate::hello::{Abilities, Hello, KvRoom};

/// Token ids of the fake model.
const VOCAB: u32 = 997;
/// Longest sequence of the fake model, tokens.
const CONTEXT: u32 = 4096;
/// Bytes of a cell: a key and a value of one element each.
const CELL_BYTES: usize = 8;
/// Contents of a cell that was never written.
const EMPTY: u64 = 0;

/// Mistake of a fake worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeFault {
    /// The block table is never cut: new blocks follow the old ones.
    KeepsTable,
    /// KV below `kv_write_from` is written.
    WritesShared,
    /// A sequence that starts keeps the sampling parameters of the slot's last one.
    KeepsSlot,
    /// Sampling depends on the number of sequences in the step.
    SamplesByBatch,
    /// A block is read as the block before it.
    ReadsNeighbour,
    /// A reset leaves all cells and tables as they are, and new cells are not written.
    IgnoresReset,
    /// Positions of a chunk count from the chunk's begin.
    ChunksFromZero,
    /// The second sequence of a step reads the table of the first.
    MixesBatch,
    /// Log probabilities are those of another token.
    WrongLogprobs,
    /// Entries that leave a block table are read on.
    IgnoresDrops,
    /// All layer groups use the blocks of the first.
    MixesGroups,
    /// A step without sequences takes the last block of every block table.
    IdlesInTables,
    /// The sequences of a step run last to first.
    RunsBackwards,
    /// A sequence that starts counts all of its tokens for the prompt.
    ForgetsGenerated,
}

/// Settings of a fake worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeConfig {
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks of the device.
    pub blocks: u32,
    /// Layer groups after the first, each of one layer whose blocks are dropped by scores.
    pub scored_groups: u32,
    /// Token after which the model computes NaN, so that the sequence fails; `None` if there is none.
    pub bad_token: Option<Token>,
    /// Mistake of the worker; `None` for a correct one.
    pub fault: Option<FakeFault>,
}

/// Worker without a model whose KV carries contents.
pub struct FakeWorker {
    config: FakeConfig,
    cells: Arc<FakeCells>,
    slots: Vec<Slot>,
    /// `true` after a reset that was ignored.
    stuck: bool,
}

/// Sequence in a slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Block table of each layer group.
    tables: Vec<Vec<u32>>,
    sampling: Sampling,
    /// Parameters at the last start.
    last: Option<Sampling>,
    /// Generated tokens.
    generated: Vec<Token>,
}

impl FakeWorker {
    /// Makes a worker with empty cells.
    pub fn new(config: FakeConfig) -> Self {
        let n_cells = config.blocks as usize * config.block_size as usize;
        let cells = (0..n_cells).map(|_| AtomicU64::new(EMPTY)).collect();
        let cells = Arc::new(FakeCells { cells, block_size: config.block_size as usize, fault: config.fault });
        Self { config, cells, slots: Vec::new(), stuck: false }
    }

    /// Returns facts about the fake model: one layer in each layer group.
    fn info(config: &FakeConfig) -> ModelInfo {
        let n_layers = 1 + config.scored_groups;
        let group = |layer| LayerGroup {
            layers: vec![layer],
            keeps: if layer == 0 { Keeps::All } else { Keeps::Scored },
            ..LayerGroup::default()
        };
        let groups = if n_layers > 1 { (0..n_layers).map(group).collect() } else { Vec::new() };
        ModelInfo {
            name: "fake".into(),
            revision: "1".into(),
            vocab_size: VOCAB,
            max_context: CONTEXT,
            n_layers,
            groups,
            hidden_size: 1,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            kv_dtype: "f32".into(),
            kv_bytes_per_token: CELL_BYTES as u64 * u64::from(n_layers),
            ..ModelInfo::default()
        }
    }

    /// Returns the announcement of a fake worker with all abilities but drafts and scores.
    pub fn hello(name: &str, config: &FakeConfig) -> Hello {
        Hello {
            name: name.into(),
            program: concat!("trunkline-fake ", env!("CARGO_PKG_VERSION")).into(),
            model: Self::info(config),
            kv: KvRoom {
                block_sizes: vec![config.block_size],
                tokens: u64::from(config.blocks) * u64::from(config.block_size),
                block_io: true,
            },
            abilities: Abilities {
                max_sequences: 512,
                max_tokens: 8192,
                steps_in_flight: 2,
                max_logprobs: 20,
                partial_writes: true,
                in_step_hits: true,
                shared_memory: true,
                seeded_sampling: true,
                penalties: true,
                ..Abilities::default()
            },
            ..Hello::default()
        }
    }

    fn has(&self, fault: FakeFault) -> bool {
        self.config.fault == Some(fault)
    }

    /// Takes in the changes of a sequence's slot.
    fn apply(&mut self, step: &Step, i: usize, start: Option<&SeqStart>) {
        let seq = &step.seqs[i];
        let at = seq.slot as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::default());
        }
        let (keeps_slot, keeps_table) = (self.has(FakeFault::KeepsSlot), self.has(FakeFault::KeepsTable));
        let forgets = self.has(FakeFault::ForgetsGenerated);
        let drops = if self.has(FakeFault::IgnoresDrops) { &[] } else { step.drops_of(i) };
        let slot = &mut self.slots[at];
        if let Some(start) = start {
            let last = slot.last.replace(start.sampling.clone()).filter(|_| keeps_slot);
            slot.sampling = last.unwrap_or_else(|| start.sampling.clone());
            slot.tables.clear();
            let n_prompt = if forgets { usize::MAX } else { start.n_prompt as usize };
            slot.generated = step.all_tokens(seq, start).iter().copied().skip(n_prompt).collect();
        }
        slot.tables.resize(1 + self.config.scored_groups as usize, Vec::new());
        for drop in drops {
            let dropped = slot.tables[drop.group as usize].iter_mut().skip(drop.first as usize).take(drop.n as usize);
            dropped.for_each(|entry| *entry = NO_BLOCK);
        }
        for (group, table) in slot.tables.iter_mut().enumerate() {
            if !keeps_table {
                table.truncate(seq.table_keep as usize);
            }
            table.extend_from_slice(step.new_blocks_of(seq, group));
        }
    }

    /// Returns the place of a position's cell; `None` if the table has no block there.
    fn place(&self, table: &[u32], position: u32) -> Option<usize> {
        let block = *table.get((position / self.config.block_size) as usize)?;
        let within = (position % self.config.block_size) as usize;
        (block < self.config.blocks).then(|| block as usize * self.config.block_size as usize + within)
    }

    /// Runs the tokens of a sequence through all layer groups, and returns the digest of all cells that its tables show.
    fn forward(&self, step: &Step, seq: &StepSeq, tables: &[Vec<u32>]) -> u64 {
        let table_of = |group| if self.has(FakeFault::MixesGroups) { &tables[0] } else { &tables[group] };
        let digests = (0..tables.len()).map(|group| self.forward_group(step, seq, table_of(group), group as u64));
        digests.reduce(mix).unwrap_or_default()
    }

    fn forward_group(&self, step: &Step, seq: &StepSeq, table: &[u32], group: u64) -> u64 {
        let mut digest = 1 + group;
        for position in 0..seq.computed {
            if let Some(at) = self.place(table, position) {
                digest = mix(digest, self.cells.get(at));
            }
        }
        for (position, token) in (seq.computed..).zip(step.run_tokens(seq)) {
            let shown = if self.has(FakeFault::ChunksFromZero) { position - seq.computed } else { position };
            let cell = mix(mix(digest, u64::from(*token)), u64::from(shown)) | 1;
            let Some(at) = self.place(table, position) else { continue };
            let may_write = position >= seq.kv_write_from || self.has(FakeFault::WritesShared);
            if may_write && !self.stuck {
                self.cells.set(at, cell);
            }
            digest = mix(digest, self.cells.get(at));
        }
        digest
    }

    /// Picks the token after a digest, with log probabilities if asked for.
    fn pick(&mut self, seq: &StepSeq, digest: u64, n_seqs: usize) -> (u32, Option<TokenLogprobs>) {
        let sampling = &self.slots[seq.slot as usize].sampling;
        let mut drawn = digest;
        if sampling.temperature > 0.0 {
            drawn = mix(mix(digest, sampling.seed), u64::from(seq.n_generated));
            if self.has(FakeFault::SamplesByBatch) {
                drawn = mix(drawn, n_seqs as u64);
            }
        }
        let mut token = (drawn % u64::from(VOCAB)) as u32;
        let generated = &self.slots[seq.slot as usize].generated;
        let is_open = |token: Token| !sampling.counts_generated() || !generated.contains(&token);
        let liked = sampling.logit_bias.entries().iter().filter(|(token, bias)| *bias > 0.0 && is_open(*token));
        if let Some((liked, _)) = liked.reduce(|best, next| if next.1 > best.1 { next } else { best }) {
            token = *liked;
        }
        let logprob = -((digest >> 32) as f32 / u32::MAX as f32) - 0.1;
        let logprobs = sampling.logprobs.map(|n| {
            // The greedy token is the most likely one; each further token is a little less likely.
            let greedy = (digest % u64::from(VOCAB)) as u32;
            let top = (0..n.min(VOCAB)).map(|i| ((greedy + i) % VOCAB, logprob - i as f32)).collect();
            let wrong = if self.has(FakeFault::WrongLogprobs) { 0.7 } else { 0.0 };
            let behind = (token + VOCAB - greedy) % VOCAB;
            TokenLogprobs { request: seq.request, token, logprob: logprob - behind as f32 - wrong, top }
        });
        self.slots[seq.slot as usize].generated.push(token);
        (token, logprobs)
    }
}

impl StepRunner for FakeWorker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let mut starts = step.starts.iter();
        for (i, seq) in step.seqs.iter().enumerate() {
            let start = if seq.start { starts.next() } else { None };
            self.apply(step, i, start);
        }
        let mut output = StepOutput::default();
        output.result.step = step.id;
        let mut digests = vec![0; step.seqs.len()];
        for at in 0..step.seqs.len() {
            let i = if self.has(FakeFault::RunsBackwards) { step.seqs.len() - 1 - at } else { at };
            let of = if self.has(FakeFault::MixesBatch) { 0 } else { i };
            let tables = &self.slots[step.seqs[of].slot as usize].tables;
            digests[i] = self.forward(step, &step.seqs[i], tables);
        }
        for (seq, digest) in step.seqs.iter().zip(digests) {
            let last = step.run_tokens(seq).last().copied();
            if seq.sample && last.is_some() && last == self.config.bad_token {
                output.result.push_failed(SeqFault::NotFinite);
            } else if seq.sample {
                let (token, logprobs) = self.pick(seq, digest, step.seqs.len());
                output.result.push(&[token]);
                output.logprobs.extend(logprobs);
            } else {
                output.result.push(&[]);
            }
        }
        Ok(output)
    }

    fn idle(&mut self) {
        if self.has(FakeFault::IdlesInTables) {
            self.slots.iter_mut().flat_map(|slot| &mut slot.tables).for_each(|table| _ = table.pop());
        }
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.cells.clone()
    }

    fn reset(&mut self) {
        if self.has(FakeFault::IgnoresReset) {
            self.stuck = true;
            return;
        }
        self.slots.clear();
        self.cells.cells.iter().for_each(|cell| cell.store(EMPTY, Ordering::Relaxed));
    }
}

/// Cells of all blocks.
struct FakeCells {
    cells: Vec<AtomicU64>,
    block_size: usize,
    fault: Option<FakeFault>,
}

impl FakeCells {
    fn get(&self, at: usize) -> u64 {
        self.cells[at].load(Ordering::Relaxed)
    }

    fn set(&self, at: usize, cell: u64) {
        self.cells[at].store(cell, Ordering::Relaxed);
    }

    fn block(&self, block: u32) -> Result<&[AtomicU64], CopyError> {
        let begin = block as usize * self.block_size;
        self.cells
            .get(begin..begin + self.block_size)
            .ok_or_else(|| CopyError::new(format!("there is no block {block}")))
    }
}

impl DeviceBlocks for FakeCells {
    fn block_bytes(&self) -> usize {
        self.block_size * CELL_BYTES
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        let block = if self.fault == Some(FakeFault::ReadsNeighbour) { block.saturating_sub(1) } else { block };
        // The low half of a cell is its key, the high half its value.
        let (keys, values) = bytes.split_at_mut(self.block_size * 4);
        let places = keys.chunks_exact_mut(4).zip(values.chunks_exact_mut(4));
        for (cell, (key, value)) in self.block(block)?.iter().zip(places) {
            let cell = cell.load(Ordering::Relaxed);
            key.copy_from_slice(&(cell as u32).to_le_bytes());
            value.copy_from_slice(&((cell >> 32) as u32).to_le_bytes());
        }
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        let (keys, values) = bytes.split_at(self.block_size * 4);
        let half = |bytes: &[u8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let contents = keys.chunks_exact(4).zip(values.chunks_exact(4));
        for (cell, (key, value)) in self.block(block)?.iter().zip(contents) {
            cell.store(half(key) | half(value) << 32, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Hashes two numbers to one (the finaliser of SplitMix64).
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
