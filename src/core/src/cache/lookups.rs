//! Look-ups in a shared tier: the questions in flight, and the learned value of an answer.
//!
//! Other cores write blocks to a shared tier, so only the storage knows the tier's blocks, and the answer takes time. Every look-up may
//! serve later requests. The request waits for the answer only if waiting is expected to pay: if the time saved by loading,
//! times the share of blocks found by earlier look-ups, exceeds the mean time of earlier look-ups.

use crate::blocks::hash::BlockHash;
use crate::names::ids::Token;
use crate::request::wait::Wait;
use crate::{BlockKey, Lookup};

/// Maximum number of blocks of one look-up.
pub(crate) const BLOCKS_MAX: usize = 1 << 14;
/// Maximum number of look-ups in flight.
const IN_FLIGHT_MAX: usize = 64;
/// Weight of the earlier answers when another comes in.
const DECAY: f64 = 15.0 / 16.0;
/// Answers, all of them hits, that the share of blocks found starts with: the first requests wait.
const START_WEIGHT: f64 = 4.0;

/// A mean with more weight on later values.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn observe(&mut self, value: f64) {
        (self.sum, self.weight) = (DECAY * self.sum + value, DECAY * self.weight + 1.0);
    }

    /// Returns the mean, 0 without any value.
    fn value(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

/// Blocks asked for, or found.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Identities of the blocks.
    pub keys: Vec<BlockKey>,
    /// Tokens of the blocks, equally many for each.
    pub tokens: Vec<Token>,
}

impl Blocks {
    /// Adds a block.
    pub fn push(&mut self, key: BlockKey, tokens: &[Token]) {
        self.keys.push(key);
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets all blocks but the first `n`.
    pub fn truncate(&mut self, n: usize) {
        let block_size = self.tokens.len().checked_div(self.keys.len()).unwrap_or(0);
        self.keys.truncate(n);
        self.tokens.truncate(n * block_size);
    }
}

/// What a look-up asks for, and why.
#[derive(Debug)]
pub(crate) struct Question {
    /// Hash of the first block asked for; requests wait under this hash.
    pub first: BlockHash,
    /// Blocks of the prompt before that block.
    pub before: usize,
    /// The blocks.
    pub blocks: Blocks,
    /// Blocks that an earlier question of the same purpose found, and the share of the blocks asked for. They are of use only if
    /// `blocks` are all there.
    pub found: Option<(Blocks, f64)>,
    /// The wait for the answer, from the first question on.
    pub wait: Wait,
    /// `true` while requests may wait for the answer.
    pub is_awaited: bool,
}

/// A look-up in flight.
#[derive(Debug)]
struct Pending {
    /// Unique number, counting up from 1.
    id: u64,
    question: Question,
}

/// Look-ups in flight, in the order of asking, and the record of earlier answers.
#[derive(Debug)]
pub(crate) struct Lookups {
    next_id: u64,
    pending: Vec<Pending>,
    /// Look-ups not yet handed to the driver.
    outbox: Vec<Lookup>,
    /// `true` after a flush of the cache.
    is_closed: bool,
    /// Blocks found, as a share of the blocks asked for.
    found_share: Mean,
    /// Time until the answer, nanoseconds.
    took_ns: Mean,
}

impl Default for Lookups {
    /// Creates an optimistic record: everything is found, at once.
    fn default() -> Self {
        Self {
            next_id: 1,
            pending: Vec::new(),
            outbox: Vec::new(),
            is_closed: false,
            found_share: Mean { sum: START_WEIGHT, weight: START_WEIGHT },
            took_ns: Mean::default(),
        }
    }
}

impl Lookups {
    /// Returns `true` if no look-up is in flight.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns `true` if another look-up can begin: few are in flight, each in time, and the cache was not flushed.
    pub fn is_open(&self, now_ns: u64) -> bool {
        let in_time = |Pending { question, .. }: &Pending| question.is_awaited || !question.wait.is_over(now_ns);
        !self.is_closed && self.pending.len() < IN_FLIGHT_MAX && self.pending.iter().all(in_time)
    }

    /// Begins no look-up any more, and forgets the blocks of look-ups in flight: storage may hold blocks from before the flush.
    pub fn close(&mut self) {
        self.is_closed = true;
        for Pending { question, .. } in &mut self.pending {
            (question.blocks, question.found) = (Blocks::default(), None);
        }
    }

    /// Returns `true` if loading that saves `saved_ns` is expected to pay a wait for the answer. Before the first answer one request
    /// waits at a time: the storage may be dead.
    pub fn pays(&self, saved_ns: f64) -> bool {
        if self.took_ns.weight == 0.0 && self.is_any_awaited() {
            return false;
        }
        self.found_share.value() * saved_ns > self.took_ns.value()
    }

    /// Asks a tier for blocks: how many of them, from the first on, are there. Requests wait for the answer until the question is due, if it is
    /// awaited. Returns the number of the look-up.
    pub fn begin(&mut self, tier: u8, question: Question) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.outbox.push(Lookup { id, tier, keys: question.blocks.keys.clone() });
        self.pending.push(Pending { id, question });
        id
    }

    /// Removes a look-up. Returns `None` for an id of no look-up in flight.
    pub fn end(&mut self, id: u64) -> Option<Question> {
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        Some(self.pending.remove(at).question)
    }

    /// Learns from a question, begun at `begun_ns` and answered now, with this share of its blocks found.
    pub fn learn(&mut self, begun_ns: u64, share: f64, now_ns: u64) {
        self.found_share.observe(share);
        self.took_ns.observe((now_ns - begun_ns) as f64);
    }

    /// Returns the earliest time at which the wait for a look-up ends.
    pub fn next_due_ns(&self) -> Option<u64> {
        let awaited = self.questions().filter(|question| question.is_awaited);
        awaited.map(|question| question.wait.end_ns).min()
    }

    /// Ends the wait for the first look-up due by now. Returns its number, and the hash under which requests wait.
    pub fn take_overdue(&mut self, now_ns: u64) -> Option<(u64, BlockHash)> {
        let is_due = |pending: &&mut Pending| pending.question.is_awaited && pending.question.wait.is_over(now_ns);
        let Pending { id, question } = self.pending.iter_mut().find(is_due)?;
        question.is_awaited = false;
        Some((*id, question.first))
    }

    /// Returns `true` if requests wait for an answer on the block with this hash.
    pub fn is_awaited(&self, first: BlockHash) -> bool {
        self.questions().any(|question| question.is_awaited && question.first == first)
    }

    /// Returns `true` if requests may wait for an answer.
    pub fn is_any_awaited(&self) -> bool {
        self.questions().any(|question| question.is_awaited)
    }

    /// Returns `true` if a look-up for the block with this hash is in flight, awaited or not.
    pub fn is_pending(&self, first: BlockHash) -> bool {
        self.questions().any(|question| question.first == first)
    }

    fn questions(&self) -> impl Iterator<Item = &Question> {
        self.pending.iter().map(|pending| &pending.question)
    }

    /// Removes and returns the look-ups to hand to the driver.
    pub fn take_outbox(&mut self) -> impl Iterator<Item = Lookup> {
        self.outbox.drain(..)
    }
}
