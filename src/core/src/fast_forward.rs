//! Fast-forward: steady decode steps without a step, an answer and actions for each.
//!
//! Between scheduling decisions, consecutive decode steps differ only in the length of the sequences, one token more per step; now
//! and then a sequence publishes a block and takes another. A driver with a worker that computes nothing needs neither the steps
//! nor the tokens one by one, and lets the core run through the steps with [`crate::Core::fast_forward`].
//!
//! **A fast-forward equals the skipped steps**: the same decisions at the same times, the same digest. A fast-forward pauses before
//! a step during which an event may come: the step is then in flight, and the fast-forward resumes from there. A fast-forward ends
//! where the next step would differ: a request gets the last token, a block is missing, a request can be admitted. Rare or complex
//! cases are never skipped: drafts, deadlines, transfers and look-ups in flight, tiers that are written back to, policies that share among
//! tenants.

use crate::digest::Decision;
use crate::ids::{RequestId, Token};
use crate::sequence::Ahead;
use crate::state::State;
use crate::step::StepSeq;
use crate::steps::Part;

/// The batch of a step that differs from the step before only in length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyBatch {
    /// Number of decodes.
    pub seqs: u32,
    /// Tokens with KV, over all decodes.
    pub computed: u64,
    /// Tokens with KV of the longest decode.
    pub computed_max: u32,
}

/// The driver's answer to a steady step that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyStep {
    /// End of the step, nanoseconds.
    pub end_ns: u64,
    /// `true` to skip the step: no event for the core comes before it ends.
    pub skip: bool,
}

/// A driver whose worker produces one token per decode when the step's time has passed.
pub trait FastForwardDriver {
    /// A step of the same decodes begins at `begin_ns`. The step will run to the end.
    fn on_step_begin(&mut self, begin_ns: u64, batch: &SteadyBatch) -> SteadyStep;

    /// The step begun last, or the one in flight before, ended with a token for each of `requests` requests.
    fn on_step_end(&mut self, requests: u32);

    /// Returns the `n`-th token, from 0, that a request generates.
    fn token(&mut self, request: RequestId, n: u32) -> Token;

    /// A request got `tokens` tokens since the batch became steady: one at the end of each of as many steps.
    fn on_tokens(&mut self, request: RequestId, tokens: u32);
}

/// The outcome of [`crate::Core::fast_forward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastForwardResult {
    /// The batch is not steady: nothing was done.
    NotSteady,
    /// A steady step is in flight, without an action. The end of the step MUST be reported by another
    /// [`crate::Core::fast_forward`]. Until then the core MUST get no events but submitted requests, and ticks at the deadlines of
    /// requests.
    Paused {
        /// End of the step in flight, nanoseconds.
        end_ns: u64,
    },
    /// An ordinary step began, which is in the actions.
    Ended {
        /// Begin of that step, nanoseconds.
        begin_ns: u64,
    },
}

/// A decode during a fast-forward. Its [`crate::sequence::Sequence`] lags behind and is brought up to date when needed.
#[derive(Clone, Copy, Debug)]
struct Decode {
    slot: usize,
    /// Slot on the worker.
    worker_slot: u32,
    request: RequestId,
    /// Tokens with KV.
    computed: u32,
    /// Tokens generated in this fast-forward.
    generated: u32,
    /// Tokens not yet in the sequence.
    behind: u32,
    /// Tokens until its last block is full.
    block_left: u32,
    /// `true` if the next step has new entries of its block table.
    table_changed: bool,
}

impl Decode {
    /// Returns the part of the sequence in the next step, with new entries in the block table from `table_keep` to `table_len`.
    #[inline]
    fn part(&self, table_keep: u32, table_len: usize) -> StepSeq {
        StepSeq {
            request: self.request,
            slot: self.worker_slot,
            start: false,
            computed: self.computed,
            n_tokens: 1,
            n_history: 0,
            tokens_at: 0,
            input_from_last: false,
            kv_write_from: self.computed,
            table_keep,
            blocks_at: 0,
            n_blocks: table_len as u32 - table_keep,
            sample: true,
            n_generated: 0,
            n_drafts: 0,
        }
    }
}

/// The fast-forward under way, if any.
#[derive(Debug, Default)]
pub(crate) struct FastForward {
    /// Empty if no fast-forward is under way.
    batch: Vec<Decode>,
    /// Steps in which no request ends, including the one in flight.
    steps_left: u32,
    /// Tokens until the first decode has filled its block.
    to_boundary: u32,
    computed: u64,
    computed_max: u32,
}

impl FastForward {
    /// Returns `true` if the step in flight is one without an action.
    pub fn is_under_way(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Begins a fast-forward if the step in flight runs a steady batch. Returns `false`, and changes nothing, if it does not.
    pub fn begin(&mut self, state: &State, in_flight: &[Part]) -> bool {
        if state.kv.groups.n() > 0 || state.planners.is_used {
            return false;
        }
        self.steps_left = steady_batch(state, in_flight, &mut self.batch);
        self.computed = self.batch.iter().map(|decode| u64::from(decode.computed)).sum();
        self.computed_max = self.batch.iter().map(|decode| decode.computed).max().unwrap_or(0);
        self.find_boundary();
        self.is_under_way()
    }

    /// Ends the step in flight, and begins and ends others while each is steady. Returns the end of the step begun but not skipped,
    /// or `None` if the next step differs. `has_deadlines` is `true` if some request may time out.
    pub fn run(
        &mut self,
        state: &mut State,
        now_ns: &mut u64,
        has_deadlines: bool,
        driver: &mut dyn FastForwardDriver,
    ) -> Option<u64> {
        loop {
            self.end_step();
            driver.on_step_end(self.batch.len() as u32);
            if self.to_boundary == 0 {
                state.kv.tree.advance(*now_ns);
                if !renew_blocks(state, &mut self.batch, driver) {
                    return None;
                }
                self.find_boundary();
            }
            if self.steps_left == 0 || may_admit(state) || has_deadlines {
                return None;
            }
            let step = driver.on_step_begin(*now_ns, &self.steady_batch());
            decide_step(state, &mut self.batch);
            if !step.skip {
                return Some(step.end_ns);
            }
            *now_ns = step.end_ns;
        }
    }

    /// Ends the fast-forward: brings all sequences up to date.
    pub fn end(&mut self, state: &mut State, driver: &mut dyn FastForwardDriver) {
        for mut decode in self.batch.drain(..) {
            catch_up(state, &mut decode, driver);
            state.sequences[decode.slot].ahead = Ahead::default();
            driver.on_tokens(decode.request, decode.generated);
        }
    }

    fn find_boundary(&mut self) {
        self.to_boundary = self.batch.iter().map(|decode| decode.block_left).min().unwrap_or(u32::MAX);
    }

    /// Ends the step in flight: every decode is one token longer.
    fn end_step(&mut self) {
        self.steps_left -= 1;
        self.to_boundary -= 1;
        self.computed += self.batch.len() as u64;
        self.computed_max += 1;
        for decode in &mut self.batch {
            decode.computed += 1;
            decode.generated += 1;
            decode.behind += 1;
            decode.block_left -= 1;
        }
    }

    fn steady_batch(&self) -> SteadyBatch {
        SteadyBatch { seqs: self.batch.len() as u32, computed: self.computed, computed_max: self.computed_max }
    }
}

/// Puts the sequences of the step in flight into `batch` if they are decodes that continue together. Returns the number of steps in
/// which no request ends, including the one in flight; 0 if the batch is not steady.
fn steady_batch(state: &State, in_flight: &[Part], batch: &mut Vec<Decode>) -> u32 {
    let moving = !state.kv.transfers.is_empty() || state.is_under_memory_pressure() || !state.loading.is_empty();
    // An answer may come between any two steps.
    if !state.kv.lookups.is_empty() {
        return 0;
    }
    if state.suspects.is_narrowing() {
        return 0;
    }
    if in_flight.len() != state.batch.running.len() || moving || state.config.max_drafts > 0 {
        return 0;
    }
    if state.waiting.counts_service() || state.kv.tiers.writes_back() {
        return 0;
    }
    let block_size = state.config.block_size;
    let mut steps_left = u32::MAX;
    for slot in in_flight.iter().map(|part| part.slot()) {
        let seq = &state.sequences[slot];
        let plain = seq.ending.is_none() && !seq.has_stop_tokens();
        let after = (seq.max_tokens - seq.generated()).saturating_sub(1);
        if !seq.is_decode() || !plain || after == 0 {
            batch.clear();
            return 0;
        }
        steps_left = steps_left.min(after);
        batch.push(Decode {
            slot,
            worker_slot: seq.mirror.slot().expect("a sequence in the batch has a slot on the worker"),
            request: seq.id,
            computed: seq.computed,
            generated: 0,
            behind: 0,
            block_left: block_size - seq.computed % block_size,
            table_changed: false,
        });
    }
    if batch.is_empty() { 0 } else { steps_left }
}

/// Brings a sequence up to date with its decode.
fn catch_up(state: &mut State, decode: &mut Decode, driver: &mut dyn FastForwardDriver) {
    let seq = &mut state.sequences[decode.slot];
    let from = seq.generated();
    for n in from..from + decode.behind {
        seq.push(driver.token(decode.request, n));
    }
    seq.computed = decode.computed;
    state.journal.stats.tokens.generated_tokens += u64::from(decode.behind);
    decode.behind = 0;
}

/// Publishes the blocks that became full, then allocates new ones. Returns `false` if a block is missing; the next scheduling pass
/// then has to find one.
fn renew_blocks(state: &mut State, batch: &mut [Decode], driver: &mut dyn FastForwardDriver) -> bool {
    let block_size = state.config.block_size;
    for decode in batch.iter_mut().filter(|decode| decode.block_left == 0) {
        catch_up(state, decode, driver);
        if decode.computed / block_size > state.sequences[decode.slot].published {
            state.publish(decode.slot);
        }
    }
    // No step is in flight here, so no step reads the duplicates of the blocks published just now.
    state.kv.free_retired(u64::MAX);
    for decode in batch.iter_mut().filter(|decode| decode.block_left == 0) {
        let seq = &mut state.sequences[decode.slot];
        let short = seq.computed == seq.capacity(block_size);
        if short && !state.kv.tree.allocate(1, &mut seq.table) {
            return false;
        }
        decode.block_left = block_size;
        decode.table_changed = (seq.mirror.table_sent as usize) < seq.table.len();
    }
    true
}

/// Returns `true` if the next step might run a waiting request. An admission is not tried, so in doubt the answer is `true`.
fn may_admit(state: &State) -> bool {
    !state.waiting.is_empty() && state.batched() < state.config.max_batch_size
}

/// Decides on a step of the same decodes.
fn decide_step(state: &mut State, batch: &mut [Decode]) {
    let State { sequences, kv, journal, reserve, .. } = state;
    reserve.skip_decode_step();
    for decode in batch {
        if std::mem::take(&mut decode.table_changed) {
            let seq = &mut sequences[decode.slot];
            let part = StepSeq { n_generated: seq.generated(), ..decode.part(seq.mirror.table_sent, seq.table.len()) };
            journal.run(&part, seq.table[part.table_keep as usize..].iter().map(|handle| handle.index));
            seq.mirror.table_sent = seq.table.len() as u32;
        } else {
            journal.run(&decode.part(0, 0), std::iter::empty());
        }
    }
    journal.stats.steps += 1;
    journal.decide(Decision::Step, journal.stats.steps, kv.tree.evicted());
}

#[cfg(test)]
mod tests;
