//! Leaps: the steps of a batch of decodes that nothing disturbs, without a step, an answer and actions for each.
//!
//! Between two occasions on which something is to be decided, each step of such a batch is the one before it with every sequence a
//! token further: now and then one publishes a block and takes another. A driver that needs neither the steps nor their tokens one by one,
//! because its worker computes nothing, lets the core go through them at once with [`Core::leap`].
//!
//! **A leap is exactly the steps that it leaps over**: the same decisions at the same times, the same digest. It ends where a step
//! would not be like the one before it: where a request gets its last token, a block is missing, a request can be admitted. What is not
//! worth the care is not leapt over at all: drafts, deadlines, copies under way, tiers that are written back to, tenants that take
//! turns.

use crate::core::Core;
use crate::event::Action;
use crate::ids::{RequestId, Token};
use crate::scheduler::{Scheduler, decision};
use crate::sequence::SequenceState;
use crate::step::StepSeq;

/// The decodes of a step that is like the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyBatch {
    /// How many there are.
    pub seqs: u32,
    /// Tokens that have KV, over all of them.
    pub computed: u64,
    /// Tokens of the longest that have KV.
    pub computed_max: u32,
}

/// A driver whose worker gives each decode a token when it is time.
pub trait Leaper {
    /// When the step ends that would begin at `begin_ns`, or `None` if it is not to be leapt over. A step that is given an end will have
    /// been run when the leap ends.
    fn end_of(&mut self, begin_ns: u64, batch: &SteadyBatch) -> Option<u64>;

    /// The `n`-th token, from 0, that a request generates.
    fn token(&mut self, request: RequestId, n: u32) -> Token;

    /// A request got so many tokens: one at the end of the step that was in flight, and of each that was leapt over.
    fn gave(&mut self, request: RequestId, tokens: u32);
}

/// A decode during a leap. Its [`crate::sequence::Sequence`] lags behind and is brought up to date when it matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decode {
    slot: usize,
    request: RequestId,
    computed: u32,
    /// Tokens it got in the leap.
    given: u32,
    /// Tokens that its sequence does not know of.
    behind: u32,
    /// Tokens until its last block is full.
    room: u32,
    /// The next step has news of its block table.
    news: bool,
}

impl Core {
    /// The step in flight ended at `now_ns` with a token for each sequence: the same as [`crate::Event::StepFinished`], but if the
    /// batch is steady the following steps are leapt over as far as `leaper` allows. Returns when the step began that is in flight
    /// then, and appends that to `actions`; there are no [`Action::Token`]s. Returns `None`, and does nothing, if the batch is not steady.
    ///
    /// A worker that is shown no step MUST NOT need any: block tables go on in the leap.
    pub fn leap(&mut self, now_ns: u64, leaper: &mut dyn Leaper, actions: &mut Vec<Action>) -> Option<u64> {
        let now_ns = self.now_ns.max(now_ns);
        let mut batch = std::mem::take(&mut self.leaping);
        batch.clear();
        let steady = self.in_flight.is_some() && self.next_deadline_ns().is_none();
        let left = if steady { self.sched.steady_batch(&self.in_flight_seqs, &mut batch) } else { 0 };
        if left > 0 {
            self.now_ns = now_ns;
            self.run_on(left, &mut batch, leaper);
            self.land(&mut batch, leaper, actions);
        }
        let began = (!batch.is_empty()).then_some(self.now_ns);
        self.leaping = batch;
        began
    }

    /// Ends the step in flight, and begins and ends others while each is like the one before it: `left` in all at most.
    fn run_on(&mut self, mut left: u32, batch: &mut [Decode], leaper: &mut dyn Leaper) {
        let mut shape = SteadyBatch {
            seqs: batch.len() as u32,
            computed: batch.iter().map(|decode| u64::from(decode.computed)).sum(),
            computed_max: batch.iter().map(|decode| decode.computed).max().unwrap_or(0),
        };
        let mut to_boundary = first_boundary(batch);
        loop {
            left -= 1;
            to_boundary -= 1;
            shape.computed += u64::from(shape.seqs);
            shape.computed_max += 1;
            for decode in &mut *batch {
                decode.computed += 1;
                decode.given += 1;
                decode.behind += 1;
                decode.room -= 1;
            }
            if to_boundary == 0 {
                if !self.sched.turn_blocks(batch, leaper) {
                    return;
                }
                to_boundary = first_boundary(batch);
            }
            if left == 0 || self.sched.may_admit() {
                return;
            }
            let Some(end_ns) = leaper.end_of(self.now_ns, &shape) else { return };
            self.sched.run_again(batch);
            self.now_ns = end_ns;
        }
    }

    /// The end of a leap: brings all sequences up to date and begins the next step.
    fn land(&mut self, batch: &mut [Decode], leaper: &mut dyn Leaper, actions: &mut Vec<Action>) {
        for decode in &mut *batch {
            self.sched.catch_up(decode, leaper);
            self.sched.sequences[decode.slot].in_step = false;
            leaper.gave(decode.request, decode.given);
        }
        self.in_flight = None;
        self.begin_step(actions);
        self.send_copies(actions);
        #[cfg(debug_assertions)]
        self.check_sometimes();
    }
}

/// Tokens until the first of the decodes has filled its block.
fn first_boundary(batch: &[Decode]) -> u32 {
    batch.iter().map(|decode| decode.room).min().unwrap_or(u32::MAX)
}

impl Scheduler {
    /// Puts the sequences of the step in flight into `batch` if they are decodes that go on together. Returns how many steps none of
    /// them ends with, that in flight included; 0 if the batch is not steady.
    fn steady_batch(&self, in_flight: &[(usize, StepSeq)], batch: &mut Vec<Decode>) -> u32 {
        let moving = self.is_moving() || self.swap.is_pressed() || !self.tiering.loading.is_empty();
        if in_flight.len() != self.running.len() || moving || self.max_drafts > 0 {
            return 0;
        }
        if self.waiting.counts_service() || self.tiering.writes_back() {
            return 0;
        }
        let mut left = u32::MAX;
        for (slot, step) in in_flight {
            let seq = &self.sequences[*slot];
            let plain = seq.ending.is_none() && seq.stop_token_ids.is_empty();
            let after = (seq.max_tokens - seq.generated()).saturating_sub(1);
            if seq.state != SequenceState::Decode || !plain || after == 0 {
                batch.clear();
                return 0;
            }
            left = left.min(after);
            batch.push(Decode {
                slot: *slot,
                request: step.request,
                computed: seq.computed,
                given: 0,
                behind: 0,
                room: self.block_size - seq.computed % self.block_size,
                news: false,
            });
        }
        if batch.is_empty() { 0 } else { left }
    }

    /// Tells a sequence what it missed.
    fn catch_up(&mut self, decode: &mut Decode, leaper: &mut dyn Leaper) {
        let seq = &mut self.sequences[decode.slot];
        let from = seq.generated();
        for n in from..from + decode.behind {
            seq.push(leaper.token(decode.request, n));
        }
        seq.computed = decode.computed;
        self.stats.generated_tokens += u64::from(decode.behind);
        decode.behind = 0;
    }

    /// Publishes the blocks that are full now, then takes new ones. Returns whether there are as many as are needed; if not, the next
    /// step has to see to it.
    fn turn_blocks(&mut self, batch: &mut [Decode], leaper: &mut dyn Leaper) -> bool {
        for decode in batch.iter_mut().filter(|decode| decode.room == 0) {
            self.catch_up(decode, leaper);
            if decode.computed / self.block_size > self.sequences[decode.slot].published {
                self.publish(decode.slot);
            }
        }
        for decode in batch.iter_mut().filter(|decode| decode.room == 0) {
            let seq = &mut self.sequences[decode.slot];
            let short = seq.computed == seq.table.len() as u32 * self.block_size;
            if short && !self.tree.allocate(1, &mut seq.table) {
                return false;
            }
            decode.room = self.block_size;
            decode.news = (seq.table_sent as usize) < seq.table.len();
        }
        true
    }

    /// Whether the next step might run something else than the decodes: asked without trying it, so in doubt it might.
    fn may_admit(&self) -> bool {
        !self.waiting.is_empty() && self.batched() < self.max_batch_size
    }

    /// Decides on a step of the same decodes.
    fn run_again(&mut self, batch: &mut [Decode]) {
        for decode in batch {
            let how_much = u64::from(decode.computed) << 32 | 1;
            self.digest.decide(decision::RUN, decode.request.0, how_much);
            if std::mem::take(&mut decode.news) {
                let seq = &mut self.sequences[decode.slot];
                for handle in &seq.table[seq.table_sent as usize..] {
                    self.digest.fold(u64::from(handle.index));
                }
                seq.table_sent = seq.table.len() as u32;
            }
        }
        self.stats.steps += 1;
        self.digest.decide(decision::STEP, self.stats.steps, self.tree.evicted());
    }
}
