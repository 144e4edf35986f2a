//! The content oracle: a worker without a model, which panics at the first thing a real one could not bear.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_core::{
    BlockHash, Config, Keeps, Place, Request, RequestId, Reuse, Step, StepResult, StepSeq, Token, Transfer,
};

use crate::groups::{GroupTables, lineage_of};
use crate::keys::Keys;
use crate::memory::{Cell, EMPTY, Memory, POISON, SharedStorage};
use crate::mirror::Mirror;
pub use spoiled::Faults;

/// Tokens it generates are below this.
pub const VOCAB: u32 = 1000;
/// Generated often enough to end some requests early.
pub const EOS: Token = 7;

/// The cell before the first: prefixes of two namespaces are different prefixes.
fn cell_before(root: BlockHash, flushes: u32) -> Cell {
    let space = (root.0 as u64 ^ (root.0 >> 64) as u64) | 1;
    Cell { prefix: space, flushes, space, ..EMPTY }
}

fn next_cell(before: Cell, token: Token) -> Cell {
    let mixed = (before.prefix ^ u64::from(token) ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let prefix = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
    Cell { prefix, token, copied: false, ..before }
}

fn sample(cell: Cell) -> Token {
    (cell.prefix >> 20) as u32 % VOCAB
}

/// Returns some score of a block: the same for a request and an entry at each time.
fn score(seq: &StepSeq, list: u64, entry: u32) -> f32 {
    let cell = next_cell(Cell { prefix: (seq.request.0 | 1) ^ list << 32, ..EMPTY }, entry);
    (cell.prefix >> 40) as f32 / (1 << 24) as f32
}

/// The tokens a prompt is continued with, when nothing goes wrong.
pub fn continuation(root: BlockHash, prompt: &[Token], n: usize) -> Vec<Token> {
    let mut cell = prompt.iter().fold(cell_before(root, 0), |cell, token| next_cell(cell, *token));
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        let token = sample(cell);
        out.push(token);
        cell = next_cell(cell, token);
    }
    out
}

/// Right tokens and cells of a request, as far as they are known.
#[derive(Debug)]
struct Truth {
    /// Number of the expectation, so that a later request with the same id is another one.
    number: u64,
    before: Cell,
    prompt_tokens: usize,
    tokens: Vec<Token>,
    /// One for each token.
    cells: Vec<Cell>,
    needs_history: bool,
    /// Reuse that the request asks for.
    reuse: Option<Reuse>,
    /// `true` if the request copies whole blocks alone.
    shares_cache: bool,
    /// `true` once cells were copied for the request: its text is known only as far as it is generated.
    has_copies: bool,
    /// Positions of its copied cells.
    copied: BTreeSet<usize>,
}

impl Truth {
    /// Starts with a request's prompt and the tokens that it generated elsewhere.
    fn of(request: &Request, number: u64, flushes: u32) -> Self {
        let mut truth = Self {
            number,
            before: cell_before(request.root, flushes),
            prompt_tokens: request.prompt.len(),
            tokens: Vec::new(),
            cells: Vec::new(),
            needs_history: request.sampling.needs_history(),
            reuse: request.reuse,
            shares_cache: request.shares_cache,
            has_copies: false,
            copied: BTreeSet::new(),
        };
        truth.extend(&request.prompt);
        truth.extend(&request.generated);
        truth
    }

    fn extend(&mut self, tokens: &[Token]) {
        for token in tokens {
            let cell = next_cell(reuse::last_cell(self.before, self.cells.iter().copied()), *token);
            self.tokens.push(*token);
            self.cells.push(cell);
        }
    }

    /// Takes in tokens sampled after `n_generated` others. Known tokens must be sampled again as they were.
    fn learn(&mut self, request: RequestId, n_generated: u32, sampled: &[Token]) {
        let at = self.prompt_tokens + n_generated as usize;
        assert!(at <= self.tokens.len(), "request {request} samples ahead of what is known");
        let known = (self.tokens.len() - at).min(sampled.len());
        assert_eq!(self.tokens[at..at + known], sampled[..known], "request {request} samples other tokens than before");
        self.extend(&sampled[known..]);
    }
}

/// Tokens that a test dictates to a sequence.
type Dictation<'a> = dyn FnMut(&StepSeq) -> Vec<Token> + 'a;

/// A worker with a paged cache of cells on the device, another on the host, and one in each tier.
#[derive(Debug)]
pub struct OracleWorker {
    block_size: usize,
    max_drafts: u32,
    /// `true` if a sequence is sent whole when it starts.
    all_tokens: bool,
    /// `true` if every token that is run is written.
    whole_block_hits: bool,
    /// `true` if sequences may read blocks that earlier ones of the same step fill.
    in_step_hits: bool,
    /// Positions that each layer group keeps.
    keeps: Vec<Keeps>,
    device: Memory,
    host: Memory,
    tiers: Vec<Memory>,
    /// Storage of each shared tier; slots of the tier hold nothing by themselves.
    shared: Vec<Option<SharedStorage>>,
    mirrors: Vec<Option<Mirror>>,
    /// Block tables of sequences from before a broken connection or a swap, by request and number of its [`Truth`].
    resumed: BTreeMap<(RequestId, Option<u64>), GroupTables>,
    /// Transfers in flight, with what their sources held at the start.
    transfers: BTreeMap<u64, (Transfer, Vec<Cell>)>,
    last_transfer: u64,
    keys: Keys,
    /// Blocks that were released, in order.
    pub released: Vec<(Place, u32)>,
    step: Option<u64>,
    /// Sequences that the worker fails.
    pub faults: Faults,
    /// Sequences that start in steps sent and not begun: number of the [`Truth`], and the cell before the first.
    sent: BTreeMap<(u64, RequestId), (Option<u64>, Cell)>,
    truths: BTreeMap<RequestId, Truth>,
    /// Requests expected so far.
    expected: u64,
    /// Flushes of the cache so far.
    flushes: u32,
    rng: Pcg64Mcg,
    /// Of a hundred drafts, about this many are right.
    right_drafts: u32,
    /// Tokens copied within the device.
    pub copied: u64,
    /// Tokens that it was allowed to draft.
    pub drafts_allowed: u64,
    /// Drafts that were right, as were all before them.
    pub drafts_accepted: u64,
}

impl OracleWorker {
    /// A worker with as many empty blocks as `config` says, which draws its drafts from `seed`.
    pub fn new(config: &Config, seed: u64) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        Self {
            block_size: config.block_size as usize,
            max_drafts: config.max_drafts,
            all_tokens: config.worker.all_tokens,
            whole_block_hits: config.worker.whole_block_hits,
            in_step_hits: config.worker.in_step_hits,
            keeps: config.worker.groups.clone(),
            device: Memory::new("device", config.block_size, config.pool_blocks()),
            host: Memory::new("host", config.block_size, config.host_capacity()),
            tiers: (0..config.tiers.len())
                .map(|tier| Memory::new("tier", config.block_size, config.tier_capacity(tier)))
                .collect(),
            shared: config.tiers.iter().map(|tier| tier.shared.then(SharedStorage::default)).collect(),
            mirrors: Vec::new(),
            resumed: BTreeMap::new(),
            transfers: BTreeMap::new(),
            last_transfer: 0,
            keys: Keys::default(),
            released: Vec::new(),
            step: None,
            faults: Faults::default(),
            sent: BTreeMap::new(),
            truths: BTreeMap::new(),
            expected: 0,
            flushes: 0,
            right_drafts: [0, 50, 90, 100][rng.random_range(0..4)],
            rng,
            copied: 0,
            drafts_allowed: 0,
            drafts_accepted: 0,
        }
    }

    /// Expects a request that samples what the cells say, before a step runs it: from then on every token that it is sent and
    /// every cell that it reads is compared with the right one.
    pub fn expect(&mut self, request: &Request) {
        self.expect_dictated(request);
        let right = continuation(request.root, &request.prompt, request.max_tokens as usize);
        let truth = self.truths.get_mut(&request.id).expect("it was just inserted");
        truth.learn(request.id, 0, &right);
    }

    /// Expects a request whose tokens a test dictates in [`Self::end_step_with`]. Its tokens and cells are compared as well.
    pub fn expect_dictated(&mut self, request: &Request) {
        self.expected += 1;
        self.truths.insert(request.id, Truth::of(request, self.expected, self.flushes));
    }

    /// Notes that the cache was flushed, as after an update of the weights: requests expected from now on must read no KV of
    /// requests from before.
    pub fn flush(&mut self) {
        self.flushes += 1;
    }

    /// Forgets a request that has ended. Steps in flight may still run it, unchecked.
    pub fn forget(&mut self, request: RequestId) {
        self.truths.remove(&request);
    }

    /// Forgets all KV but that of the tiers, the step and the transfers, as a worker that restarts does. What is expected
    /// of requests stays.
    pub fn reset(&mut self) {
        self.device.reset();
        self.host.reset();
        self.mirrors.clear();
        self.resumed.clear();
        for (transfer, _) in std::mem::take(&mut self.transfers).into_values() {
            for (source, destination) in &transfer.pairs {
                // Copies from and to tiers were cut off: what they wrote is poison.
                if let Place::Tier(_) = transfer.from {
                    self.memory(transfer.from).traffic(*source).copies_from -= 1;
                }
                if let Place::Tier(_) = transfer.to {
                    self.memory(transfer.to).traffic(*destination).copy_into = None;
                }
            }
        }
        self.step = None;
        self.sent.clear();
    }

    /// Forgets all sequences and keeps the KV, as a worker does whose connection broke. A step `begun` has written a part of its KV.
    pub fn resume(&mut self, begun: Option<&Step>) {
        if let Some(step) = begun.filter(|step| self.step == Some(step.id)) {
            for seq in &step.seqs {
                let end = seq.computed + seq.n_tokens + seq.n_drafts;
                (seq.computed.max(seq.kv_write_from)..end)
                    .for_each(|position| self.write(seq, position as usize, POISON));
            }
        }
        self.device.end_step();
        self.resumed.extend(std::mem::take(&mut self.mirrors).into_iter().flatten().map(Mirror::into_groups));
        self.step = None;
        self.sent.clear();
    }

    /// Forgets all KV but that of the tiers, for a new core, to which earlier flushes are unknown.
    pub fn restart(&mut self) {
        self.reset();
        self.last_transfer = 0;
        self.flushes = 0;
        self.shared.iter_mut().flatten().for_each(SharedStorage::forget_flushes);
    }

    /// The id of the latest transfer that was begun; 0 if none was.
    pub fn last_transfer(&self) -> u64 {
        self.last_transfer
    }

    /// Begins a copy. Until its end nobody may write its sources or touch its destinations, which hold poison.
    ///
    /// # Panics
    /// If it is in the way of another copy or of the step.
    pub fn begin_transfer(&mut self, transfer: &Transfer) {
        self.last_transfer += 1;
        let id = transfer.id;
        assert_eq!(id, self.last_transfer, "transfers are numbered one after another");
        assert!(!transfer.pairs.is_empty(), "transfer {id} copies nothing");
        assert_ne!(transfer.from, transfer.to, "transfer {id} goes nowhere");
        let mut before = Vec::new();
        self.fetch(transfer);
        for (source, destination) in &transfer.pairs {
            before.extend_from_slice(self.memory(transfer.from).begin_copy_from(*source, id));
            self.memory(transfer.to).begin_copy_into(*destination, id);
        }
        let prefixes: Vec<u64> = before.iter().map(|cell| cell.prefix).collect();
        let next = |prefix, token| next_cell(Cell { prefix, ..EMPTY }, token).prefix;
        let may_lack = matches!(transfer.from, Place::Tier(tier) if self.shared[tier as usize].is_some());
        self.keys.check(transfer, may_lack, &prefixes, next);
        self.transfers.insert(id, (transfer.clone(), before));
    }

    /// Fills the sources of a transfer from a shared tier with what is stored under their keys; with nothing where nothing is.
    fn fetch(&mut self, transfer: &Transfer) {
        let Place::Tier(tier) = transfer.from else { return };
        let Some(storage) = &self.shared[tier as usize] else { return };
        for ((source, _), key) in transfer.pairs.iter().zip(&transfer.keys) {
            match storage.get(key) {
                Some(cells) => self.tiers[tier as usize].block(*source).copy_from_slice(cells),
                None => self.tiers[tier as usize].block(*source).fill(EMPTY),
            }
        }
    }

    /// Ends a copy: the destinations hold what the sources held, or poison if it failed.
    ///
    /// # Panics
    /// If somebody wrote where only the copy may, or there is no such copy.
    pub fn end_transfer(&mut self, id: u64, ok: bool) {
        self.end_transfer_partly(id, |_| ok);
    }

    /// Ends a copy: the destinations of the pairs that arrived hold what the sources held, and the others poison.
    ///
    /// # Panics
    /// If somebody wrote where only the copy may, or there is no such copy.
    pub fn end_transfer_partly(&mut self, id: u64, arrived: impl Fn(usize) -> bool) {
        let (transfer, before) = self.transfers.remove(&id).expect("the transfer is in flight");
        let pairs = transfer.pairs.iter().zip(before.chunks(self.block_size));
        for (at, ((source, destination), cells)) in pairs.enumerate() {
            self.memory(transfer.from).end_copy_from(*source, cells, id);
            self.memory(transfer.to).end_copy_into(*destination, id, arrived(at).then_some(cells));
            if let (Place::Tier(tier), true) = (transfer.to, arrived(at))
                && let Some(storage) = &mut self.shared[tier as usize]
            {
                storage.put(&transfer.keys[at], cells);
            }
        }
    }

    /// Forgets blocks that hold nothing of use any more.
    ///
    /// # Panics
    /// If a copy reads or writes one of them.
    pub fn release(&mut self, place: Place, blocks: &[u32]) {
        self.released.extend(blocks.iter().map(|block| (place, *block)));
        for block in blocks {
            let traffic = self.memory(place).traffic(*block);
            assert!(traffic.copies_from == 0 && traffic.copy_into.is_none(), "block {block} of {place:?} is in use");
            self.memory(place).block(*block).fill(POISON);
        }
    }

    /// Puts blocks of a tier's storage into slots. The storage has them under the numbers of other slots.
    pub fn adopt(&mut self, tier: u8, blocks: &[(u32, Option<u32>)]) {
        if blocks.iter().all(|(_, slot)| slot.is_none()) {
            return;
        }
        let memory = self.memory(Place::Tier(tier));
        let contents: Vec<_> = blocks.iter().map(|(number, _)| memory.block(*number).to_vec()).collect();
        for (slot, contents) in blocks.iter().map(|(_, slot)| *slot).zip(contents) {
            if let Some(slot) = slot {
                memory.block(slot).copy_from_slice(&contents);
            }
        }
    }

    fn memory(&mut self, place: Place) -> &mut Memory {
        match place {
            Place::Device => &mut self.device,
            Place::Host => &mut self.host,
            Place::Tier(tier) => &mut self.tiers[tier as usize],
        }
    }

    /// Takes note of a step that was sent. Requests of the step may end, and their ids be used again, before the step begins.
    pub fn send_step(&mut self, step: &Step) {
        self.faults.sent(step);
        for seq in step.seqs.iter().filter(|seq| seq.start) {
            let start = self.start_of(seq.request);
            self.sent.insert((step.id, seq.request), start);
        }
    }

    /// Returns the number of a request's [`Truth`], and the cell before the request's first.
    fn start_of(&self, request: RequestId) -> (Option<u64>, Cell) {
        let before = |truth: &Truth| Cell { flushes: self.flushes, ..truth.before };
        self.truths.get(&request).map_or((None, EMPTY), |truth| (Some(truth.number), before(truth)))
    }

    /// Begins a step: takes in the block tables, and compares what is to be read with what it must be.
    ///
    /// # Panics
    /// If the step reads or writes what it must not, or is not what [`StepSeq`] says.
    pub fn begin_step(&mut self, step: &Step) {
        assert!(self.step.replace(step.id).is_none(), "one step at a time");
        let starts = step.seqs.iter().filter(|seq| seq.start).count();
        assert_eq!(starts, step.starts.len(), "sampling parameters come with `start`, and only then");
        for (at, seq) in step.seqs.iter().enumerate() {
            let alone = step.seqs[..at].iter().all(|other| other.slot != seq.slot && other.request != seq.request);
            assert!(alone, "request {} is in the step twice, or shares its slot", seq.request);
            self.update_mirror(step, at);
        }
        self.copy_cells(step);
        for seq in &step.seqs {
            self.assert_drafts_are_allowed(seq);
            self.claim_table(seq);
            self.claim_blocks(seq);
            self.assert_true(step, seq);
        }
        self.check_sources(step);
    }

    /// Ends the step that was begun: writes its cells and samples.
    ///
    /// # Panics
    /// If a cell that it reads holds nothing.
    pub fn end_step(&mut self, step: &Step) -> StepResult {
        self.end(step, None)
    }

    /// Ends the step that was begun with tokens that `says` dictates to each sequence that samples: one, and one more for each
    /// accepted draft.
    ///
    /// # Panics
    /// If a cell that it reads holds nothing, or more drafts are accepted than the sequence was allowed.
    pub fn end_step_with(&mut self, step: &Step, mut says: impl FnMut(&StepSeq) -> Vec<Token>) -> StepResult {
        self.end(step, Some(&mut says))
    }

    fn end(&mut self, step: &Step, mut says: Option<&mut Dictation<'_>>) -> StepResult {
        assert_eq!(self.step.take(), Some(step.id), "the step was begun");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        self.faults.begin();
        for (index, seq) in step.seqs.iter().enumerate() {
            if !self.end_spoiled(step, index, &mut result) {
                let dictated = if seq.sample { says.as_mut().map(|says| says(seq)) } else { None };
                let sampled = self.run(step, seq, dictated);
                result.push(&sampled);
            }
            if step.scored_rows(index) > 0 {
                let entries = (seq.computed + seq.n_tokens).div_ceil(self.block_size as u32);
                let entries = (0..u64::from(step.score_lists.max(1)))
                    .flat_map(|list| (0..entries).map(move |entry| (list, entry)));
                result.scores.extend(entries.map(|(list, entry)| score(seq, list, entry)));
            }
        }
        self.device.end_step();
        result
    }

    /// Exchanges the first two destinations of a copy in flight, so that the copy writes wrong contents.
    ///
    /// # Panics
    /// If there is no such copy, or it copies a single block.
    pub fn spoil_transfer(&mut self, id: u64) {
        let (transfer, _) = self.transfers.get_mut(&id).expect("the transfer is in flight");
        (transfer.pairs[0].1, transfer.pairs[1].1) = (transfer.pairs[1].1, transfer.pairs[0].1);
    }

    fn update_mirror(&mut self, step: &Step, index: usize) {
        let seq = &step.seqs[index];
        let slot = seq.slot as usize;
        if self.mirrors.len() <= slot {
            self.mirrors.resize(slot + 1, None);
        }
        if seq.start {
            let sent = self.sent.remove(&(step.id, seq.request));
            let (number, before) = sent.unwrap_or_else(|| self.start_of(seq.request));
            // What is known of layer groups survives a swap.
            let gone = self
                .mirrors
                .iter_mut()
                .enumerate()
                .filter_map(|(at, mirror)| mirror.take_if(|mirror| at == slot || mirror.request == seq.request));
            self.resumed.extend(gone.map(Mirror::into_groups));
            self.mirrors[slot] = Some(Mirror {
                request: seq.request,
                number,
                before,
                table: Vec::new(),
                groups: GroupTables::at_start(self.resumed.remove(&(seq.request, number)), step, seq, &self.keeps),
                sampled: None,
                spoiled: None,
            });
        }
        let mirror =
            self.mirrors[slot].as_mut().unwrap_or_else(|| panic!("request {} goes on without a start", seq.request));
        assert_eq!(
            mirror.request, seq.request,
            "request {} goes on in a slot that another has started in",
            seq.request
        );
        let kept = mirror.table.len() >= seq.table_keep as usize;
        assert!(kept, "the mirror of request {} is shorter than the core thinks", seq.request);
        mirror.table.truncate(seq.table_keep as usize);
        mirror.table.extend_from_slice(step.new_blocks_of(seq, 0));
        mirror.groups.update(step, index, &self.keeps);
        assert!(mirror.groups.tables.iter().all(|table| table.len() == mirror.table.len()));
    }

    /// Returns the block table of a sequence of the step that was begun.
    ///
    /// # Panics
    /// If no step has started the sequence.
    pub fn table(&self, seq: &StepSeq) -> &[u32] {
        &self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated").table
    }

    /// Returns the right contents of a sequence, unless its request has ended.
    fn truth(&self, seq: &StepSeq) -> Option<&Truth> {
        let number = self.mirrors[seq.slot as usize].as_ref().and_then(|mirror| mirror.number);
        self.truths.get(&seq.request).filter(|truth| Some(truth.number) == number)
    }

    /// Compares a sequence's tokens, and all cells that it reads, with what they must be. Cells that earlier sequences of the step write
    /// are compared when these have run.
    fn assert_true(&self, step: &Step, seq: &StepSeq) {
        let is_spoiled = self.reads_spoiled(step, seq) || self.is_spoiled(seq);
        let Some(truth) = self.truth(seq).filter(|_| !is_spoiled) else { return };
        let request = seq.request;
        let (computed, end) = (seq.computed as usize, (seq.computed + seq.n_tokens) as usize);
        assert!(end <= truth.tokens.len(), "request {request} runs past its end");
        if seq.input_from_last {
            assert_eq!(
                (seq.n_tokens, seq.start),
                (1, false),
                "request {request} runs one token that it has just sampled"
            );
        } else {
            let own = &truth.tokens[computed..end];
            assert_eq!(step.run_tokens(seq), own, "request {request} is sent other tokens than its own");
        }
        let wants_history = truth.needs_history || self.max_drafts > 0 || self.all_tokens;
        // Of a sequence that goes on, the worker lacks the tokens copied since.
        let lacked = |at: &usize| seq.start || truth.copied.contains(at);
        let n_lacked = (0..computed).rev().take_while(lacked).count();
        assert_eq!(
            seq.n_history as usize,
            if wants_history { n_lacked } else { 0 },
            "request {request} is sent so much history"
        );
        let history = &truth.tokens[computed - seq.n_history as usize..computed];
        assert_eq!(step.history(seq), history, "the history of request {request}");
        if self.whole_block_hits {
            assert_eq!(seq.kv_write_from, seq.computed, "request {request} writes all that it runs");
        }
        if seq.sample {
            assert_eq!(seq.n_generated as usize + truth.prompt_tokens, end, "request {request} samples another token");
        }
        for position in 0..computed.max(end.min(seq.kv_write_from as usize)) {
            if self.awaits(step, seq, position) {
                continue;
            }
            for group in 0..self.keeps.len().max(1) {
                let Some(cell) = self.read_in(seq, group, position) else { continue };
                assert!(
                    cell == self.lineage(seq, group, truth.cells[position], position),
                    "request {request} reads wrong KV at {position}, {computed} are computed (group {group})"
                );
                assert!(
                    cell.flushes >= truth.before.flushes,
                    "request {request} reads KV from before a flush at {position}"
                );
            }
        }
    }

    /// Returns `true` if an earlier sequence of the step has to run before this one reads a position.
    fn awaits(&self, step: &Step, seq: &StepSeq, position: usize) -> bool {
        let writer = self.device.traffic[self.table(seq)[position / self.block_size] as usize].written_by;
        self.in_step_hits && self.step == Some(step.id) && writer.is_some_and(|writer| writer != seq.request)
    }

    /// Returns the cell of a position in a layer group, given the cell in the first group of a sequence that dropped nothing.
    fn lineage(&self, seq: &StepSeq, group: usize, cell: Cell, position: usize) -> Cell {
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        Cell { lineage: lineage_of(group, mirror.groups.dropped_before(position)), ..cell }
    }

    /// Reads the cell of a position in a layer group; `None` if the group may lack it, and does.
    fn read_in(&self, seq: &StepSeq, group: usize, position: usize) -> Option<Cell> {
        if group == 0 {
            return Some(self.read(seq, position));
        }
        let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
        let block = mirror.groups.block(group, position / self.block_size);
        let Some(block) = block else {
            let may_lack = mirror.groups.may_lack(self.keeps[group], group, position, seq.computed, self.block_size);
            assert!(may_lack, "request {} lacks position {position} in group {group}", seq.request);
            return None;
        };
        let cell = self.device.cells[block as usize * self.block_size + position % self.block_size];
        assert!(cell.prefix & 1 == 1, "request {} reads nothing at {position} in group {group}", seq.request);
        Some(cell)
    }

    fn at(&self, seq: &StepSeq, position: usize) -> usize {
        self.table(seq)[position / self.block_size] as usize * self.block_size + position % self.block_size
    }

    fn read(&self, seq: &StepSeq, position: usize) -> Cell {
        let cell = self.device.cells[self.at(seq, position)];
        let found = if cell == POISON { "what a copy left unfinished" } else { "what nobody wrote" };
        assert!(cell.prefix & 1 == 1, "request {} reads {found} at {position}", seq.request);
        cell
    }

    /// Writes the cell of a position in all layer groups, given the cell in the first group of a sequence that dropped nothing.
    fn write(&mut self, seq: &StepSeq, position: usize, cell: Cell) {
        let at = self.at(seq, position);
        self.device.cells[at] = self.lineage(seq, 0, cell, position);
        for group in 1..self.keeps.len() {
            let mirror = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated");
            let block = mirror.groups.block(group, position / self.block_size);
            let block = block.unwrap_or_else(|| panic!("request {} writes into a hole at {position}", seq.request));
            self.device.cells[block as usize * self.block_size + position % self.block_size] =
                self.lineage(seq, group, cell, position);
        }
    }

    /// Runs one sequence and its drafts. Returns its sampled tokens: `dictated`, or what the cells say.
    fn run(&mut self, step: &Step, seq: &StepSeq, dictated: Option<Vec<Token>>) -> Vec<Token> {
        if self.in_step_hits {
            self.assert_true(step, seq);
        }
        let before = self.mirrors[seq.slot as usize].as_ref().expect("the mirror was updated").before;
        let mut cell = reuse::last_cell(before, (0..seq.computed as usize).map(|at| self.read(seq, at)));
        let last = self.mirrors[seq.slot as usize].as_ref().and_then(|mirror| mirror.sampled);
        for (position, token) in (seq.computed as usize..).zip(step.run_tokens(seq)) {
            let token = if seq.input_from_last { last.expect("the step before sampled") } else { *token };
            if position >= seq.kv_write_from as usize {
                self.write(seq, position, next_cell(cell, token));
            }
            cell = self.read(seq, position);
        }
        let sampled = match dictated {
            Some(dictated) => self.follow(seq, cell, dictated),
            None if seq.sample => self.draft(seq, cell),
            None => Vec::new(),
        };
        if self.truth(seq).is_some_and(|truth| truth.has_copies)
            && let Some(truth) = self.truths.get_mut(&seq.request)
        {
            truth.learn(seq.request, seq.n_generated, &sampled);
        }
        if let Some(mirror) = &mut self.mirrors[seq.slot as usize] {
            mirror.sampled = sampled.last().copied();
        }
        sampled
    }

    /// Writes the KV of dictated tokens but the last, and wrong KV where further drafts are allowed.
    fn follow(&mut self, seq: &StepSeq, mut cell: Cell, dictated: Vec<Token>) -> Vec<Token> {
        let accepted = dictated.len() - 1;
        assert!(accepted <= seq.n_drafts as usize, "request {} has {accepted} drafts accepted", seq.request);
        let end = (seq.computed + seq.n_tokens) as usize;
        for draft in 0..seq.n_drafts as usize {
            let token = if draft < accepted { dictated[draft] } else { !dictated[accepted] };
            cell = next_cell(cell, token);
            self.write(seq, end + draft, cell);
        }
        if self.truth(seq).is_some()
            && let Some(truth) = self.truths.get_mut(&seq.request)
        {
            truth.learn(seq.request, seq.n_generated, &dictated);
        }
        dictated
    }

    /// Samples after `cell`, then drafts as many tokens as it likes. KV of drafts that are wrong is written as well.
    fn draft(&mut self, seq: &StepSeq, mut cell: Cell) -> Vec<Token> {
        let mut sampled = vec![sample(cell)];
        let mut all_right = true;
        let end = (seq.computed + seq.n_tokens) as usize;
        for position in end..end + self.rng.random_range(0..=seq.n_drafts) as usize {
            let right = self.rng.random_range(0..100) < self.right_drafts;
            let off = if right { 0 } else { self.rng.random_range(1..VOCAB) };
            all_right &= right;
            cell = next_cell(cell, (sample(cell) + off) % VOCAB);
            self.write(seq, position, cell);
            if all_right {
                sampled.push(sample(cell));
            }
        }
        self.drafts_allowed += u64::from(seq.n_drafts);
        self.drafts_accepted += sampled.len() as u64 - 1;
        sampled
    }
}

#[path = "oracle_claims.rs"]
mod claims;
#[cfg(test)]
#[path = "oracle_faults.rs"]
mod faults;
#[path = "oracle_reuse.rs"]
mod reuse;
#[path = "oracle_spoiled.rs"]
mod spoiled;
