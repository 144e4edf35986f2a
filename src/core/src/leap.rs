//! Leaps: the steps of a batch of decodes that nothing disturbs, without a step, an answer and actions for each.
//!
//! Between two occasions on which something is to be decided, each step of such a batch is the one before it with every sequence a
//! token further: now and then one publishes a block and takes another. A driver that needs neither the steps nor their tokens one by one,
//! because its worker computes nothing, lets the core go through them at once with [`Core::leap`].
//!
//! **A leap is exactly the steps that it leaps over**: the same decisions at the same times, the same digest. It pauses where something
//! may happen before a step ends: that step is in flight then, and the leap goes on from there. It ends where a step
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

/// When a step ends that is like the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyStep {
    /// When, nanoseconds.
    pub end_ns: u64,
    /// Whether to leap over it: nothing happens before it ends that the core is to be told of.
    pub leap_over: bool,
}

/// A driver whose worker gives each decode a token when it is time.
pub trait Leaper {
    /// A step of the same decodes begins at `begin_ns`. It will be run to its end.
    fn begin(&mut self, begin_ns: u64, batch: &SteadyBatch) -> SteadyStep;

    /// The step that was in flight, or the one begun last, ended with a token for each of so many requests.
    fn ended(&mut self, requests: u32);

    /// The `n`-th token, from 0, that a request generates.
    fn token(&mut self, request: RequestId, n: u32) -> Token;

    /// A request got so many tokens since the batch became steady: one at the end of each of as many steps.
    fn gave(&mut self, request: RequestId, tokens: u32);
}

/// How far [`Core::leap`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leapt {
    /// The batch is not steady: nothing was done.
    Nowhere,
    /// To a step that is like the one before it and is in flight now. No action tells of it. When it ends, the core MUST be told by
    /// another [`Core::leap`], and before that of nothing but requests that are submitted and deadlines of theirs that pass.
    Steady {
        /// When it ends.
        end_ns: u64,
    },
    /// To a step like any other, which is in the actions.
    Landed {
        /// When it began.
        begin_ns: u64,
    },
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

/// A batch on its leap.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Empty if there is no leap.
    batch: Vec<Decode>,
    /// Steps that none of them ends with, the one in flight included.
    left: u32,
    /// Tokens until the first of them has filled its block.
    to_boundary: u32,
    computed: u64,
    computed_max: u32,
}

impl Course {
    /// Whether the step in flight is one that no action told of.
    pub fn is_on(&self) -> bool {
        !self.batch.is_empty()
    }

    fn set_out(&mut self, left: u32) {
        self.left = left;
        self.computed = self.batch.iter().map(|decode| u64::from(decode.computed)).sum();
        self.computed_max = self.batch.iter().map(|decode| decode.computed).max().unwrap_or(0);
        self.find_boundary();
    }

    fn find_boundary(&mut self) {
        self.to_boundary = self.batch.iter().map(|decode| decode.room).min().unwrap_or(u32::MAX);
    }

    /// The step in flight ended: all are a token further.
    fn go_on(&mut self) {
        self.left -= 1;
        self.to_boundary -= 1;
        self.computed += self.batch.len() as u64;
        self.computed_max += 1;
        for decode in &mut self.batch {
            decode.computed += 1;
            decode.given += 1;
            decode.behind += 1;
            decode.room -= 1;
        }
    }

    fn shape(&self) -> SteadyBatch {
        SteadyBatch { seqs: self.batch.len() as u32, computed: self.computed, computed_max: self.computed_max }
    }
}

impl Core {
    /// The step in flight ended at `now_ns` with a token for each sequence. If the batch is steady, that is the same as
    /// [`crate::Event::StepFinished`] but for [`crate::Action::Token`]s, and the following steps are leapt over as far as `leaper`
    /// allows. A worker that is shown no step MUST NOT need any: block tables go on in the leap.
    pub fn leap(&mut self, now_ns: u64, leaper: &mut dyn Leaper, actions: &mut Vec<Action>) -> Leapt {
        let mut course = std::mem::take(&mut self.leaping);
        if !course.is_on() {
            let steady = self.in_flight.is_some() && self.next_deadline_ns().is_none();
            let left = if steady { self.sched.steady_batch(&self.in_flight_seqs, &mut course.batch) } else { 0 };
            if left == 0 {
                self.leaping = course;
                return Leapt::Nowhere;
            }
            course.set_out(left);
        }
        self.now_ns = self.now_ns.max(now_ns);
        let end_ns = self.run_on(&mut course, leaper);
        let leapt = match end_ns {
            Some(end_ns) => Leapt::Steady { end_ns },
            None => {
                self.land(&mut course.batch, leaper, actions);
                Leapt::Landed { begin_ns: self.now_ns }
            }
        };
        self.leaping = course;
        leapt
    }

    /// Ends the step in flight, and begins and ends others while each is like the one before it. Returns when the step ends that is
    /// begun and not leapt over, or `None` if the next one is not like the one before it.
    fn run_on(&mut self, course: &mut Course, leaper: &mut dyn Leaper) -> Option<u64> {
        loop {
            course.go_on();
            leaper.ended(course.batch.len() as u32);
            if course.to_boundary == 0 {
                if !self.sched.turn_blocks(&mut course.batch, leaper) {
                    return None;
                }
                course.find_boundary();
            }
            if course.left == 0 || self.sched.may_admit() || self.next_deadline_ns().is_some() {
                return None;
            }
            let step = leaper.begin(self.now_ns, &course.shape());
            self.sched.run_again(&mut course.batch);
            self.in_flight = Some(self.sched.stats.steps);
            if !step.leap_over {
                return Some(step.end_ns);
            }
            self.now_ns = step.end_ns;
        }
    }

    /// The end of a leap: brings all sequences up to date and begins the next step.
    fn land(&mut self, batch: &mut Vec<Decode>, leaper: &mut dyn Leaper, actions: &mut Vec<Action>) {
        for mut decode in batch.drain(..) {
            self.sched.catch_up(&mut decode, leaper);
            self.sched.sequences[decode.slot].in_step = false;
            leaper.gave(decode.request, decode.given);
        }
        self.in_flight = None;
        self.expire(actions);
        self.begin_step(actions);
        self.send_copies(actions);
        #[cfg(debug_assertions)]
        self.check_sometimes();
    }
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

#[cfg(test)]
mod tests;
