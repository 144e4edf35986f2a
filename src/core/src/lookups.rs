//! Look-ups in a shared tier: the questions in flight, and the learned value of an answer.
//!
//! Other cores write blocks to a shared tier, so only the storage knows the tier's blocks, and the answer takes time. Every look-up may
//! serve later requests. The request at hand waits for the answer only if waiting is expected to pay: if the time saved by loading,
//! times the share of blocks found by earlier look-ups, exceeds the mean time of earlier look-ups.

use crate::hash::BlockHash;
use crate::ids::Token;
use crate::transfer::{BlockKey, Lookup};

/// Blocks of one look-up, at most.
pub(crate) const BLOCKS_MAX: usize = 1 << 14;
/// Look-ups in flight, at most.
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

/// A look-up in flight.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Unique number, counting up from 1.
    id: u64,
    /// Hash of the first block asked for; requests wait under this hash.
    pub first: BlockHash,
    /// Identities of the blocks, a chain.
    pub keys: Vec<BlockKey>,
    /// Tokens of the blocks, equally many for each.
    pub tokens: Vec<Token>,
    begun_ns: u64,
    due_ns: u64,
    /// `true` while requests may wait for the answer.
    is_awaited: bool,
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
    /// Share of blocks found, of those asked for.
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
        let in_time = |pending: &Pending| pending.is_awaited || pending.due_ns > now_ns;
        !self.is_closed && self.pending.len() < IN_FLIGHT_MAX && self.pending.iter().all(in_time)
    }

    /// Begins no look-up any more, and forgets the blocks of look-ups in flight: storage may hold blocks from before the flush.
    pub fn close(&mut self) {
        self.is_closed = true;
        for pending in &mut self.pending {
            pending.keys.clear();
            pending.tokens.clear();
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

    /// Asks a tier for a chain of blocks. Requests wait for the answer until `due_ns` if `is_awaited`. Returns the number of the
    /// look-up.
    pub fn begin(
        &mut self,
        tier: u8,
        first: BlockHash,
        (keys, tokens): (Vec<BlockKey>, Vec<Token>),
        (now_ns, due_ns): (u64, u64),
        is_awaited: bool,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.outbox.push(Lookup { id, tier, keys: keys.clone() });
        self.pending.push(Pending { id, first, keys, tokens, begun_ns: now_ns, due_ns, is_awaited });
        id
    }

    /// Removes a look-up with `found` leading blocks found, and learns from the answer. Returns `None` for an id of no
    /// look-up in flight.
    pub fn end(&mut self, id: u64, found: u32, now_ns: u64) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        let pending = self.pending.remove(at);
        if !pending.keys.is_empty() {
            let share = f64::from(found).min(pending.keys.len() as f64) / pending.keys.len() as f64;
            self.found_share.observe(share);
            self.took_ns.observe((now_ns - pending.begun_ns) as f64);
        }
        Some(pending)
    }

    /// Returns the earliest time at which the wait for a look-up ends.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.pending.iter().filter(|pending| pending.is_awaited).map(|pending| pending.due_ns).min()
    }

    /// Ends the wait for the first look-up that is due by now. Returns its number, and the hash under which requests wait.
    pub fn take_overdue(&mut self, now_ns: u64) -> Option<(u64, BlockHash)> {
        let is_due = |pending: &&mut Pending| pending.is_awaited && pending.due_ns <= now_ns;
        let pending = self.pending.iter_mut().find(is_due)?;
        pending.is_awaited = false;
        Some((pending.id, pending.first))
    }

    /// Returns `true` if requests wait for an answer on the block with this hash.
    pub fn is_awaited(&self, first: BlockHash) -> bool {
        self.pending.iter().any(|pending| pending.is_awaited && pending.first == first)
    }

    /// Returns `true` if requests may wait for an answer.
    pub fn is_any_awaited(&self) -> bool {
        self.pending.iter().any(|pending| pending.is_awaited)
    }

    /// Returns `true` if a look-up for the block with this hash is in flight, awaited or not.
    pub fn is_pending(&self, first: BlockHash) -> bool {
        self.pending.iter().any(|pending| pending.first == first)
    }

    /// Removes and returns the look-ups to hand to the driver.
    pub fn take_outbox(&mut self) -> impl Iterator<Item = Lookup> {
        self.outbox.drain(..)
    }
}
