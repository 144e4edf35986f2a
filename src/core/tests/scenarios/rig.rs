//! A core with a worker that knows what every KV cell must hold, and copies that end when a test says so.
//!
//! A cell stands for the whole prefix up to its token. The worker panics when a step reads a cell that stands for
//! anything else, so every scenario also says that contents are right. Every event is followed by a count of all blocks.

use std::collections::BTreeMap;

use trunkline_core::{
    Action, Config, Core, Event, FinishReason, Namespace, Place, Preemption, Refusal, Request, RequestId, Stats, Step,
    StepResult, StepSeq, Token, Transfer, Usage,
};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Device to host.
    Out,
    /// Host to device.
    In,
}

/// A copy between device and host under way.
pub struct Copy {
    pub id: u64,
    pub direction: Direction,
    /// (block on the device, block on the host).
    pub pairs: Vec<(u32, u32)>,
}

impl Copy {
    fn of(transfer: Transfer) -> Self {
        let Transfer { id, from, to, pairs } = transfer;
        match (from, to) {
            (Place::Device, Place::Host) => Self { id, direction: Direction::Out, pairs },
            (Place::Host, Place::Device) => {
                let pairs = pairs.into_iter().map(|(host, device)| (device, host)).collect();
                Self { id, direction: Direction::In, pairs }
            }
            _ => panic!("a copy from {from:?} to {to:?}"),
        }
    }
}

/// Tokens in a block, unless a scenario says otherwise.
pub const BLOCK: u32 = 16;
/// A cell that holds nothing of use.
const POISON: u64 = 0;
/// Events after which a run that has not ended never will.
const EVENTS_MAX: u32 = 200_000;

/// The geometry of the scenarios. KsanaLLM's have two ranks; here is one, so counts on the host are half of theirs.
pub fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 100,
        host_blocks: 100,
        max_batch_tokens: 4096,
        max_batch_size: 16,
        max_queue: 256,
        max_context: 2048,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        preemption: Preemption::Swap,
        ..Config::default()
    }
}

/// `n` tokens that begin no other family.
pub fn text(family: u32, n: u32) -> Vec<Token> {
    (0..n).map(|at| family * 10_000 + at).collect()
}

/// The first `shared` tokens of one family, then `own` of another.
pub fn fork(shared_family: u32, shared: u32, own_family: u32, own: u32) -> Vec<Token> {
    [text(shared_family, shared), text(own_family, own)].concat()
}

/// A request in the default namespace.
pub fn request(id: u64, prompt: Vec<Token>, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens)
}

/// What requests say unless a scenario says otherwise: nobody says what another says.
fn own_words(id: u64, n: u32) -> Token {
    1_000_000 + id as u32 * 10_000 + n
}

/// The one who drives the core, and the worker.
pub struct Rig {
    pub core: Core,
    pub now_ns: u64,
    pub step: Option<Box<Step>>,
    /// Copies under way, in the order in which they began.
    pub copies: Vec<Copy>,
    /// Tokens that were emitted, by request.
    pub said: BTreeMap<u64, Vec<Token>>,
    pub ends: Vec<(u64, FinishReason)>,
    pub usages: BTreeMap<u64, Usage>,
    pub refusals: Vec<(u64, Refusal)>,
    pub flushed: u32,
    pub drained: u32,
    pub resets: u32,
    /// What a request says as its n-th token.
    pub says: fn(u64, u32) -> Token,
    /// Block tables as the last step had them, by request.
    pub tables: BTreeMap<u64, Vec<u32>>,
    prompts: BTreeMap<u64, Vec<Token>>,
    /// What the cells of each request stand for.
    truth: BTreeMap<u64, Vec<u64>>,
    /// Block tables by place on the worker.
    slots: BTreeMap<u32, Vec<u32>>,
    device: Vec<u64>,
    host: Vec<u64>,
}

impl Rig {
    /// A core with a worker.
    pub fn new(config: Config) -> Self {
        let mut rig = Self::without_worker(config);
        rig.event(Event::WorkerJoined);
        rig
    }

    /// A core whose requests wait until [`Event::WorkerJoined`].
    pub fn without_worker(config: Config) -> Self {
        let cells = |blocks: u32| vec![POISON; (blocks * config.block_size) as usize];
        Self {
            now_ns: 0,
            step: None,
            copies: Vec::new(),
            said: BTreeMap::new(),
            ends: Vec::new(),
            usages: BTreeMap::new(),
            refusals: Vec::new(),
            flushed: 0,
            drained: 0,
            resets: 0,
            says: own_words,
            tables: BTreeMap::new(),
            prompts: BTreeMap::new(),
            truth: BTreeMap::new(),
            slots: BTreeMap::new(),
            device: cells(config.device_blocks),
            host: cells(config.host_blocks),
            core: Core::new(config).unwrap(),
        }
    }

    pub fn event(&mut self, event: Event) {
        self.now_ns += 1;
        let mut actions = Vec::new();
        self.core.handle(self.now_ns, event, &mut actions);
        self.core.check();
        let stats = self.stats();
        let device = self.usable() + self.in_use();
        assert_eq!(device, self.core.config().device_blocks, "scenario 36: every block is in one place");
        assert!(stats.free_host_blocks <= self.core.config().host_blocks);
        actions.into_iter().for_each(|action| self.perform(action));
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::RunStep(step) => self.begin_step(step),
            Action::ResetWorker => self.resets += 1,
            Action::Transfer(transfer) => self.begin_copy(*transfer),
            Action::Token { request, token } => self.said.entry(request.0).or_default().push(token),
            Action::Finish { request, reason, usage } => {
                self.ends.push((request.0, reason));
                assert!(self.usages.insert(request.0, usage).is_none(), "{request} ended twice");
            }
            Action::Refuse { request, refusal } => self.refusals.push((request.0, refusal)),
            Action::Flushed { blocks } => self.flushed += blocks,
            Action::Drained => self.drained += 1,
            Action::Withdrawn(request) => unreachable!("{} was not withdrawn", request.id),
        }
    }

    pub fn submit(&mut self, id: u64, prompt: Vec<Token>, max_tokens: u32) {
        self.submit_request(request(id, prompt, max_tokens));
    }

    pub fn submit_request(&mut self, mut request: Request) {
        if request.hashes.is_empty() {
            request.hash_prompt(self.core.config().block_size);
        }
        self.prompts.insert(request.id.0, request.prompt.clone());
        self.event(Event::Submit(Box::new(request)));
    }

    /// A request that takes so many blocks and needs one more after `room` decodes.
    pub fn submit_filler(&mut self, id: u64, blocks: u32, room: u32) {
        let Config { block_size, device_blocks, .. } = *self.core.config();
        let prompt = blocks * block_size - room;
        self.submit(id, text(900 + id as u32, prompt), (device_blocks * block_size - prompt).min(400));
    }

    pub fn join(&mut self) {
        self.event(Event::WorkerJoined);
    }

    pub fn abort(&mut self, id: u64) {
        self.event(Event::Abort(RequestId(id)));
    }

    /// Aborts a request and lets the step end that runs it.
    pub fn abort_now(&mut self, id: u64) {
        self.abort(id);
        if !self.has_ended(id) {
            self.answer();
        }
        assert!(self.has_ended(id));
    }

    /// Evicts whatever is idle.
    pub fn flush(&mut self) {
        self.event(Event::FlushCache);
    }

    /// The worker is gone, with all it held and all it was doing.
    pub fn lose_worker(&mut self) {
        self.step = None;
        self.copies.clear();
        self.device.fill(POISON);
        self.host.fill(POISON);
        self.event(Event::WorkerLost);
    }

    // What there is to see.

    /// What the step in flight runs: (request, computed, tokens, samples).
    pub fn running(&self) -> Vec<(u64, u32, u32, bool)> {
        self.seqs().map(|seq| (seq.request.0, seq.computed, seq.n_tokens, seq.sample)).collect()
    }

    /// The requests that the step in flight runs.
    pub fn ids(&self) -> Vec<u64> {
        self.seqs().map(|seq| seq.request.0).collect()
    }

    pub fn seqs(&self) -> impl Iterator<Item = &StepSeq> {
        self.step.iter().flat_map(|step| &step.seqs)
    }

    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Blocks that are free or evictable.
    pub fn usable(&self) -> u32 {
        let stats = self.stats();
        stats.free_blocks + stats.idle_blocks
    }

    pub fn in_use(&self) -> u32 {
        let stats = self.stats();
        stats.held_blocks + stats.private_blocks + stats.moving_blocks
    }

    pub fn host_free(&self) -> u32 {
        self.stats().free_host_blocks
    }

    pub fn has_ended(&self, id: u64) -> bool {
        self.usages.contains_key(&id)
    }

    /// Directions of the copies under way and their numbers of blocks.
    pub fn moves(&self) -> Vec<(Direction, usize)> {
        self.copies.iter().map(|copy| (copy.direction, copy.pairs.len())).collect()
    }

    /// Panics unless nothing is left and every block is back.
    pub fn assert_empty(&self) {
        let (stats, config) = (self.stats(), self.core.config());
        assert_eq!((stats.waiting, stats.running, stats.swapped), (0, 0, 0));
        assert_eq!((self.usable(), self.host_free()), (config.device_blocks, config.host_blocks));
        assert!(self.step.is_none() && self.copies.is_empty());
    }

    /// Panics unless these requests, and no others, ended with all their tokens, and said what they would have alone.
    pub fn assert_all_said(&self, ids: impl IntoIterator<Item = u64>) {
        let mut ended: Vec<u64> = self.ends.iter().map(|(id, _)| *id).collect();
        ended.sort_unstable();
        assert_eq!(ended, ids.into_iter().collect::<Vec<_>>());
        for (id, reason) in &self.ends {
            assert_eq!(*reason, FinishReason::Length, "{id}");
            let alone: Vec<_> = (0..self.usages[id].completion_tokens).map(|n| (self.says)(*id, n)).collect();
            assert_eq!(self.said[id], alone, "{id}");
        }
    }

    // What can be done.

    /// Ends the step in flight; no draft was right.
    pub fn answer(&mut self) {
        self.answer_drafting(0);
    }

    /// Ends the step in flight; of each sequence's drafts this many were right.
    pub fn answer_drafting(&mut self, right: u32) {
        let step = self.step.take().expect("a step is in flight");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            let right = right.min(seq.n_drafts);
            let end = seq.computed + seq.n_tokens;
            self.learn(seq.request.0, end + right);
            for position in seq.kv_write_from..end + seq.n_drafts {
                let cell = self.truth[&seq.request.0].get(position as usize).copied();
                let cell = cell.filter(|_| position < end + right).unwrap_or(POISON);
                let at = self.at(seq, position);
                self.device[at] = cell;
            }
            let sampled = if seq.sample { 0..1 + right } else { 0..0 };
            let tokens: Vec<_> = sampled.map(|i| (self.says)(seq.request.0, seq.n_generated + i)).collect();
            result.push(&tokens);
        }
        self.event(Event::StepFinished(result));
    }

    /// Ends steps until something is so. Copies under way stay so.
    pub fn answer_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..EVENTS_MAX {
            if is_so(self) {
                return;
            }
            self.answer();
        }
        panic!("it never came to be so");
    }

    /// Ends the copy of this place in [`Self::copies`].
    pub fn finish_copy(&mut self, at: usize) {
        let copy = self.copies.remove(at);
        for (device, host) in &copy.pairs {
            let (device, host) = (self.cells(*device), self.cells(*host));
            match copy.direction {
                Direction::Out => self.host[host].copy_from_slice(&self.device[device]),
                Direction::In => self.device[device].copy_from_slice(&self.host[host]),
            }
        }
        self.event(Event::TransferFinished(copy.id));
    }

    /// Has the copy of this place fail.
    pub fn fail_copy(&mut self, at: usize) {
        let copy = self.copies.remove(at);
        self.event(Event::TransferFailed(copy.id));
    }

    /// Ends steps and copies, oldest first, until there are none.
    pub fn run_to_end(&mut self) {
        for _ in 0..EVENTS_MAX {
            match (self.step.is_some(), self.copies.is_empty()) {
                (false, true) => return,
                (true, _) => self.answer(),
                (false, false) => {}
            }
            if !self.copies.is_empty() {
                self.finish_copy(0);
            }
        }
        panic!("it never ended");
    }

    // The worker.

    fn begin_step(&mut self, step: Box<Step>) {
        for seq in &step.seqs {
            let id = seq.request.0;
            let table = self.slots.entry(seq.slot).or_default();
            if seq.start {
                table.clear();
            }
            table.truncate(seq.table_keep as usize);
            table.extend(step.new_blocks(seq));
            self.tables.insert(id, table.clone());
            for (position, token) in (seq.computed..).zip(step.run_tokens(seq)) {
                assert_eq!(*token, self.token(id, position), "token {position} of {id}");
            }
            self.learn(id, seq.computed);
            for position in 0..seq.computed {
                let cell = self.device[self.at(seq, position)];
                assert_eq!(cell, self.truth[&id][position as usize], "{id} reads a wrong cell at {position}");
            }
        }
        assert!(self.step.replace(step).is_none(), "one step at a time");
    }

    fn begin_copy(&mut self, transfer: Transfer) {
        let copy = Copy::of(transfer);
        for (device, host) in &copy.pairs {
            let (device, host) = (self.cells(*device), self.cells(*host));
            match copy.direction {
                Direction::Out => self.host[host].fill(POISON),
                Direction::In => self.device[device].fill(POISON),
            }
        }
        self.copies.push(copy);
    }

    fn cells(&self, block: u32) -> std::ops::Range<usize> {
        let size = self.core.config().block_size as usize;
        block as usize * size..(block as usize + 1) * size
    }

    fn at(&self, seq: &StepSeq, position: u32) -> usize {
        let size = self.core.config().block_size;
        (self.slots[&seq.slot][(position / size) as usize] * size + position % size) as usize
    }

    fn token(&self, id: u64, position: u32) -> Token {
        let prompt = &self.prompts[&id];
        let said = || (self.says)(id, position - prompt.len() as u32);
        prompt.get(position as usize).copied().unwrap_or_else(said)
    }

    /// Sees to it that [`Self::truth`] has the first `n` cells of a request.
    fn learn(&mut self, id: u64, n: u32) {
        let mut truth = self.truth.remove(&id).unwrap_or_default();
        while truth.len() < n as usize {
            let before = truth.last().copied().unwrap_or(1);
            let token = u64::from(self.token(id, truth.len() as u32));
            truth.push((before ^ token << 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        }
        self.truth.insert(id, truth);
    }
}
