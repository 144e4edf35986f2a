//! The state machine: events in, actions out.

pub(crate) mod check;
pub mod event;
pub(crate) mod fast_forward;
pub(crate) mod listening;
mod rereading;
mod sequence_faults;
mod stepping;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::blocks::block::BlockState;
use crate::cache::transfer_table::TransferEnd;
use crate::config::{Config, ConfigError};
use crate::core::event::{Action, Event};
use crate::core::fast_forward::FastForward;
use crate::journal::Journal;
use crate::journal::digest::Decision;
use crate::journal::stats::Stats;
use crate::names::ids::RequestId;
use crate::policy::Policy;
use crate::policy::waiting::Waiting;
use crate::request::remains::Remains;
use crate::request::sequence::{Ending, Phase, Sequence, SequenceState};
use crate::request::{FinishReason, Refusal, Request};
use crate::schedule::prefetches;
use crate::schedule::scheduler::Scheduler;
use crate::schedule::state::{AHEAD, State};
use crate::schedule::steps::Steps;
use crate::schedule::suspects::LoneFailure;
use crate::{Step, StepResult};
use crate::{request::retention, schedule::readers, schedule::swap, schedule::transfer_end};

/// Deadlines of ended requests kept before they are cleared away, at most.
const DEADLINES_SPARE: usize = 64;

#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/contract.md"))]
pub struct Core {
    /// Sequences, queues and KV cache.
    pub(crate) state: State,
    scheduler: Scheduler,
    /// The steps in flight.
    steps: Steps,
    /// Slots of sequences with blocks to publish or about to leave; empty between calls.
    changed: Vec<usize>,
    /// Running sequences whose blocks so far go to a tier now: empty between steps.
    to_write: Vec<usize>,
    /// The fast-forward under way, if any.
    fast_forward: FastForward,
    /// Slot of each request. Never iterated.
    pub(crate) by_id: HashMap<RequestId, usize, ahash::RandomState>,
    /// (deadline, arrival, id); an entry of a request ended meanwhile is skipped at the deadline.
    deadlines: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    /// Memory of the requests that ended in the last event.
    remains: Remains,
    worker_joined: bool,
    now_ns: u64,
    draining: bool,
    drained: bool,
    #[cfg(debug_assertions)]
    pub(crate) events_seen: u64,
}

impl Core {
    /// Creates a core with an empty cache and no worker.
    ///
    /// # Errors
    /// If a limit is outside its range or a policy is unknown.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            scheduler: Scheduler::new(&config),
            state: State::new(config)?,
            steps: Steps::default(),
            changed: Vec::new(),
            to_write: Vec::new(),
            fast_forward: FastForward::default(),
            by_id: HashMap::default(),
            deadlines: BinaryHeap::new(),
            remains: Remains::default(),
            worker_joined: false,
            now_ns: 0,
            draining: false,
            drained: false,
            #[cfg(debug_assertions)]
            events_seen: 0,
        })
    }

    /// Creates a core like [`Self::new`] whose requests are scheduled by a policy that is in no registry, instead of [`Config::policy`].
    ///
    /// The floors of tenants ([`Config::retained_blocks`]) follow [`Config::policy`] all the same. A recording does not name the policy: it
    /// replays only in a program that has it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_policy(config: Config, policy: Box<dyn Policy>) -> Result<Self, ConfigError> {
        let mut core = Self::new(config)?;
        core.state.waiting = Waiting::new(policy);
        Ok(core)
    }

    /// Handles an event of time `now_ns`, and appends the resulting actions to `actions`.
    ///
    /// Times MUST NOT go back; an earlier time counts as the latest time seen.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        let is_allowed = !self.fast_forward.is_under_way() || matches!(event, Event::Submit(_) | Event::Tick);
        assert!(is_allowed, "a fast-forward is under way: {event:?}");
        self.advance(now_ns);
        self.remains.free();
        match event {
            Event::Submit(request) => self.submit(*request, actions),
            Event::Abort(id) => self.end_by_id(id, FinishReason::Abort, actions),
            Event::Stop(id) => self.end_by_id(id, FinishReason::Stop, actions),
            Event::Withdraw(id) => self.withdraw(id, actions),
            Event::Fail(id) => self.fail(id, actions),
            Event::Accuse(id) => self.accuse(id, actions),
            Event::WorkerJoined => self.join(actions),
            Event::WorkerLost => {
                self.worker_joined = false;
                self.lose_kv(true, actions);
            }
            Event::WorkerTaken => {
                self.worker_joined = false;
                self.lose_kv(false, actions);
            }
            Event::WorkerResumed => self.resume_worker(actions),
            Event::DraftsLimited(n) => self.state.limit_drafts(n),
            Event::StepFinished(result) => {
                self.step_finished(&result, actions);
                self.steps.recycle_result(result);
            }
            Event::TransferFinished(id) => transfer_end::end(&mut self.state, id, TransferEnd::Finished),
            Event::TransferFailed(id) => transfer_end::end(&mut self.state, id, TransferEnd::Failed),
            Event::TransferInterrupted(id) => transfer_end::end(&mut self.state, id, TransferEnd::Interrupted),
            Event::TransferPartial { transfer, faults } => {
                transfer_end::end_partly(&mut self.state, transfer, faults);
            }
            Event::TierFound { tier, blocks } => self.state.kv.adopt_tier(tier, &blocks, &mut self.state.journal),
            Event::TierFoundLater { tier, blocks } => {
                let blocks = self.state.kv.adopt_later(tier, &blocks, &mut self.state.journal);
                actions.push(Action::Adopt { tier, blocks });
            }
            Event::TierResized { tier, blocks } => self.state.kv.resize_tier(tier, blocks, &mut self.state.journal),
            Event::LookupEnded { lookup, found } => {
                let State { kv, journal, waiting, .. } = &mut self.state;
                kv.end_lookup(lookup, found, journal).into_iter().for_each(|first| waiting.wake(first));
            }
            Event::Tick => {}
            Event::FlushCache => self.flush(actions),
            Event::Drain => self.draining = true,
            Event::Shutdown => self.shutdown(actions),
        }
        self.expire(actions);
        self.tend_rereads(actions);
        self.begin_steps(actions);
        self.end_prefetches(actions);
        self.send_transfers(actions);
        if self.draining && !self.drained && self.state.sequences.is_empty() && !self.is_storing() {
            self.drained = true;
            actions.push(Action::Drained);
        }
        #[cfg(debug_assertions)]
        self.check_sometimes();
    }

    /// Leaves out what nobody in a simulation asks for: the tokens of prefills in [`Step::tokens`], and SHA-256 and tokens of blocks in tiers
    /// and transfers. Decisions do not change. MUST be called before the first event, and not with [`Self::listen_to_cache`].
    pub fn simulate(&mut self) {
        self.scheduler.sends_tokens = false;
        self.state.kv.tiers.simulate();
    }

    /// Returns the memory of the last step's result, emptied, for the next one.
    pub fn spare_result(&mut self) -> StepResult {
        self.steps.empty_result()
    }

    /// Returns the memory of the requests that ended in the last event, to be freed on another thread. Left here, the next event
    /// frees it.
    pub fn take_remains(&mut self) -> Remains {
        std::mem::take(&mut self.remains)
    }

    /// Takes the memory of a step back, so that the next step needs no allocation.
    pub fn recycle(&mut self, step: Box<Step>) {
        self.steps.recycle(step);
    }

    /// Returns the earliest deadline of a request, a transfer or a wait. The driver sends an [`Event::Tick`] at that time, unless another event
    /// comes first.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let request_ns = self.deadlines.peek().map(|Reverse((deadline_ns, ..))| *deadline_ns);
        let kv = &self.state.kv;
        let waits_ns = [kv.transfers.next_due_ns(), kv.lookups.next_due_ns(), swap::next_due_ns(&self.state)];
        waits_ns.into_iter().chain([request_ns]).flatten().min()
    }

    /// Returns `true` if blocks are being copied to a tier, in time so far. A driver that stops now loses what a later request could
    /// find there.
    pub fn is_storing(&self) -> bool {
        self.state.kv.transfers.is_storing()
    }

    /// Returns the running digest of all decisions: equal for equal events and times, on every driver.
    pub fn digest(&self) -> u64 {
        self.state.journal.digest.value()
    }

    /// Returns `true` if a request is in the waiting queue, with no block and in no step.
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.by_id.get(&id).is_some_and(|slot| self.state.sequences[*slot].state() == SequenceState::Waiting)
    }

    /// Returns the requests preempted at once and still run by steps in flight. For tests.
    #[doc(hidden)]
    pub fn preempted(&self) -> impl Iterator<Item = RequestId> {
        self.state.batch.preempted.iter().map(|slot| self.state.sequences[*slot].id)
    }

    /// Returns the requests that start over at the end of the steps that run them: a fault of these steps does not end them. For tests.
    #[doc(hidden)]
    pub fn starting_over(&self) -> impl Iterator<Item = RequestId> {
        let ending = self.state.sequences.iter().filter(|(_, seq)| seq.ending == Some(Ending::StartOver));
        ending.map(|(_, seq)| seq.id)
    }

    /// Returns a request of the core's own, which reads a prompt again, unless it has ended. For workers of tests, which check what they run.
    #[doc(hidden)]
    pub fn inner_request(&mut self, id: RequestId) -> Option<Request> {
        let slot = self.by_id.get(&id).filter(|_| id.is_inner())?;
        let seq = &mut self.state.sequences[*slot];
        seq.settle();
        let prompt = &seq.tokens()[..seq.prompt_tokens as usize];
        Some(Request::new(id, seq.cold.root, prompt.to_vec(), seq.max_tokens))
    }

    /// Returns the limits of the core.
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// Returns the drafts of a sequence in one step, at most: [`Config::max_drafts`], or fewer after [`Event::DraftsLimited`].
    pub fn max_drafts(&self) -> u32 {
        self.state.max_drafts
    }

    /// Returns the time that the worker is expected to take for so many prompt tokens, nanoseconds; `None` before the first prefill.
    pub fn prefill_ns(&self, tokens: u64) -> Option<u64> {
        self.state.kv.transfers.links.prefill_ns(tokens)
    }

    /// Returns the number of steps that failed in a row, whatever their cause, since the last that succeeded, and the time lost with them, nanoseconds.
    pub fn failed_in_a_row(&self) -> (u32, u64) {
        self.state.suspects.row()
    }

    /// Returns the time that the worker has spent on the oldest step in flight, nanoseconds.
    pub fn step_time_ns(&self, now_ns: u64) -> Option<u64> {
        self.steps.time_ns(now_ns)
    }

    /// Returns the request that failed alone in the last failed step, or that the worker named, and what the failure is worth.
    pub fn lone_failure(&self) -> Option<LoneFailure> {
        self.state.suspects.lone()
    }

    /// Notes that the cause of so many failed steps was found: a request that has ended.
    pub fn explain(&mut self, failures: u32) {
        self.state.suspects.explain(failures);
    }

    /// Returns gauges and counters.
    pub fn stats(&self) -> Stats {
        let state = &self.state;
        let pool = state.kv.tree.pool();
        let (prefix_blocks, prefix_runs) = state.kv.tree.taken();
        let groups = &state.kv.groups;
        let waiting = state.waiting.len() + state.batch.preempted.len();
        let loading = state.loading.len() + state.prefetches.len();
        let placed = waiting + state.batch.running.len() + loading;
        Stats {
            waiting: waiting as u32,
            running: state.batch.len(),
            free_blocks: pool.count(BlockState::Free),
            idle_blocks: pool.count(BlockState::Idle) + groups.n_idle(),
            held_blocks: pool.count(BlockState::Held) + pool.count(BlockState::Stale) + groups.n_blocks()
                - groups.n_idle(),
            private_blocks: pool.count(BlockState::Private) - groups.n_blocks(),
            evicted_blocks: state.kv.tree.evicted() + groups.evicted(),
            prefix_blocks,
            prefix_runs,
            moving_blocks: pool.count(BlockState::Moving),
            free_host_blocks: state.kv.free_hosts(),
            loading: loading as u32,
            swapped: (state.sequences.len() - placed - state.reported) as u32,
            tiers: state.kv.tiers.stats(),
            retention: state.kv.tree.retention(),
            ..state.journal.stats
        }
    }

    /// Sets the time to `now_ns`, unless that is earlier than the latest time seen.
    fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.state.kv.transfers.now_ns = self.now_ns;
        self.state.kv.tree.advance(self.now_ns);
        self.state.kv.tiers.advance(self.now_ns);
    }

    /// Notes that a worker joined, with empty KV blocks. A worker there before, whose loss was not reported, is lost.
    fn join(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.worker_joined) {
            self.lose_kv(true, actions);
        }
        self.worker_joined = true;
    }

    fn submit(&mut self, request: Request, actions: &mut Vec<Action>) {
        let id = request.id;
        if let Some(refusal) = self.refusal(&request) {
            self.state.journal.decide(Decision::Refuse, id.0, refusal.number());
            self.state.journal.stats.requests.refused += 1;
            actions.push(Action::Refuse { request: id, refusal });
            return;
        }
        debug_assert_eq!(
            request.hashes.len(),
            request.prompt.len() / self.state.config.block_size as usize,
            "hash the prompt first"
        );
        self.state.journal.decide(Decision::Accept, id.0, request.prompt.len() as u64);
        self.state.journal.stats.requests.accepted += 1;
        let arrival = self.state.next_arrival;
        // The odd numbers are for second readings of the prompt, which wait right behind.
        self.state.next_arrival += 2;
        if let Some(deadline_ns) = request.deadline_ns {
            self.deadlines.push(Reverse((deadline_ns, arrival, id)));
        }
        if self.state.sequences.is_empty() {
            self.state.reserve.reset();
        }
        if !request.retention.is_empty() {
            let limits = self.state.config.retained_blocks();
            self.state.kv.tree.follow_hints(self.now_ns, limits);
        }
        let seq = Sequence::new(request, arrival, self.now_ns);
        let (tenant, is_prefetch) = (seq.tenant, seq.is_prefetch());
        let slot = self.state.sequences.insert(seq);
        self.by_id.insert(id, slot);
        if is_prefetch {
            return self.state.prefetches.push(slot);
        }
        self.state.waiting.joined(tenant);
        let State { suspects, sequences, .. } = &mut self.state;
        suspects.consider(slot, &sequences[slot]);
        self.state.background.enter(slot, &self.state.sequences[slot]);
        self.state.wait(slot);
    }

    /// Returns the reason to refuse a request, if there is one. Decided before anything changes.
    fn refusal(&self, request: &Request) -> Option<Refusal> {
        let (config, waiting) = (self.config(), &self.state.waiting);
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let max_tokens = request.asked_tokens();
        let queued_tokens = waiting.tokens();
        let is_new_prefetch = request.prefetch && !request.is_accepted;
        let total = prompt_tokens.saturating_add(max_tokens);
        // The last token generated needs no KV.
        let needed = total.saturating_sub(1).div_ceil(config.block_size);
        let needed_blocks = self.state.kv.blocks_for(0, 0, needed);
        if self.draining {
            Some(Refusal::Draining)
        } else if prompt_tokens == 0 {
            Some(Refusal::EmptyPrompt)
        } else if max_tokens as usize <= request.generated.len() && !request.prefetch {
            Some(Refusal::NoTokensAsked)
        } else if total > config.max_context {
            Some(Refusal::ContextTooLong { prompt_tokens, max_tokens, context: config.max_context })
        } else if needed_blocks > config.pool_blocks() {
            Some(Refusal::NeverFits { prompt_tokens, max_tokens, needed, capacity: config.device_blocks })
        } else if let Some(refusal) = prefetches::refusal(&self.state, request.tenant).filter(|_| is_new_prefetch) {
            Some(refusal)
        } else if waiting.len() as u32 >= config.max_queue && !request.is_accepted {
            Some(Refusal::QueueFull { limit: config.max_queue })
        } else if queued_tokens + u64::from(prompt_tokens) > config.max_queued_tokens
            && queued_tokens > 0
            && !request.is_accepted
        {
            Some(Refusal::QueueTokensFull { queued_tokens, limit: config.max_queued_tokens })
        } else if self.by_id.contains_key(&request.id) {
            Some(Refusal::DuplicateId)
        } else if request.id.is_inner() {
            Some(Refusal::ReservedId)
        } else {
            retention::check(&request.retention).err().map(Refusal::Retention)
        }
    }

    fn end_by_id(&mut self, id: RequestId, reason: FinishReason, actions: &mut Vec<Action>) {
        if let Some(slot) = self.by_id.get(&id).copied() {
            self.end(slot, reason, actions);
        }
    }

    /// Ends a request at once. A request that waits to be handed back ends too.
    fn end(&mut self, slot: usize, reason: FinishReason, actions: &mut Vec<Action>) {
        if self.state.sequences[slot].is_in_step() {
            self.report_early(slot, reason, actions);
            self.state.batch.leave(slot);
        } else {
            self.part(slot, Ending::Finish(reason), actions);
        }
    }

    /// Ends a request that the worker cannot compute, and notes the request as the cause of the failure. A request that ended since
    /// is blamed for the steps in flight that run it, and a later request of its id is not.
    fn fail(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let sequences = &mut self.state.sequences;
        let mut has_ended = false;
        for slot in self.steps.slots() {
            let seq = &mut sequences[slot];
            if seq.id == id {
                has_ended |= matches!(seq.ending, Some(Ending::Reported(_)));
                seq.guilty = true;
            }
        }
        let live = self.by_id.get(&id).copied();
        if let Some(slot) = live.filter(|slot| !has_ended || sequences[*slot].is_in_step()) {
            sequences[slot].guilty = true;
            self.end(slot, FinishReason::Error, actions);
        }
    }

    /// Hands back a request that the worker named, as after a failure of the request alone. Its steps in flight, which are about to fail, count
    /// for nobody else.
    fn accuse(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let has_ended = |slot| {
            let seq: &Sequence = &self.state.sequences[slot];
            seq.id == id && matches!(seq.ending, Some(Ending::Reported(_)))
        };
        let live = self.by_id.get(&id).copied();
        let Some(slot) = live.filter(|_| !id.is_inner() && !self.steps.slots().any(has_ended)) else {
            return self.fail(id, actions);
        };
        let State { suspects, sequences, journal, .. } = &mut self.state;
        suspects.begin_failure(journal.stats.steps);
        let seq = &mut sequences[slot];
        suspects.note_row(seq);
        seq.worker_failures = seq.worker_failures.saturating_add(1);
        seq.guilty = true;
        suspects.note_lone(seq);
        self.withdraw(id, actions);
    }

    /// Hands a request back: at once, or at the end of the steps in flight that run the request, whose tokens are dropped.
    fn withdraw(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let Some(slot) = self.by_id.get(&id).copied().filter(|_| !id.is_inner()) else { return };
        let seq = &mut self.state.sequences[slot];
        if seq.is_in_step() {
            seq.ending = Some(Ending::Withdraw);
            self.state.end_shared_work(slot);
        } else {
            self.part(slot, Ending::Withdraw, actions);
        }
    }

    /// Lets a request leave the core that no step in flight runs. Transfers begun for the request keep the blocks they still read or
    /// write.
    fn part(&mut self, slot: usize, ending: Ending, actions: &mut Vec<Action>) {
        transfer_end::orphan(&mut self.state, slot);
        self.leave_queue(slot);
        self.remove(slot, ending, actions);
        swap::resume_arrived(&mut self.state);
    }

    /// Takes a sequence out of the queue for the sequence's state.
    fn leave_queue(&mut self, slot: usize) {
        if self.state.prefetches.remove(slot) {
            return;
        }
        match self.state.sequences[slot].state() {
            SequenceState::Waiting => {
                self.state.waiting.remove(slot);
            }
            SequenceState::Prefill | SequenceState::Decode => self.state.leave_batch(slot),
            SequenceState::SwappingOut | SequenceState::Swapped | SequenceState::SwappingIn => {
                swap::leave_queue(&mut self.state, slot);
            }
            SequenceState::Preempted => self.state.batch.leave(slot),
            SequenceState::Loading => {}
        }
    }

    /// Removes a sequence without a queue, and reports the end of the request.
    fn remove(&mut self, slot: usize, ending: Ending, actions: &mut Vec<Action>) {
        let computed = self.computed_blocks(slot);
        let state = &mut self.state;
        state.end_shared_work(slot);
        state.orphan_tail(slot);
        state.free_worker_slot(slot);
        if matches!(ending, Ending::Finish(_)) {
            state.kv.pin(&mut state.sequences[slot]);
        }
        let failed = state.sequences[slot].guilty || ending == Ending::Finish(FinishReason::Error);
        if self.worker_joined && !failed && !state.sequences[slot].id.is_inner() {
            state.kv.write_through(&mut state.sequences[slot], computed, &mut state.journal);
        }
        state.release(slot);
        let seq = state.sequences.remove(slot);
        if !seq.is_prefetch() {
            state.waiting.left(seq.tenant);
            state.background.leave(slot, &seq);
        }
        self.by_id.remove(&seq.id);
        let journal = &mut state.journal;
        match ending {
            Ending::Withdraw => {
                journal.stats.requests.withdrawn += 1;
                journal.decide(Decision::Withdraw, seq.id.0, u64::from(seq.generated()));
                actions.push(Action::Withdrawn(Box::new(seq.into_request(state.config.block_size))));
            }
            Ending::Reported(_) => unreachable!("the end is reported once"),
            Ending::StartOver => unreachable!("the request goes on"),
            Ending::Finish(reason) => {
                finish(journal, &seq, reason, actions);
                if matches!(reason, FinishReason::Stop | FinishReason::Length) {
                    state.answers.observe(&seq, self.now_ns);
                }
                self.remains.push(seq);
            }
        }
        self.forget_deadlines();
    }

    /// Returns the number of leading published blocks of a sequence that no step in flight computes. A sequence whose prompt is not read yet MUST
    /// be in no step.
    fn computed_blocks(&self, slot: usize) -> usize {
        let State { sequences, config, kv, .. } = &self.state;
        let seq = &sequences[slot];
        let published = seq.published as usize;
        if !self.state.publishes_ahead() || kv.tiers.is_empty() {
            return published;
        }
        if kv.copies_wait() {
            // A step in flight may still compute blocks that its request gave up at once: these are in no table but of those who found them.
            return 0;
        }
        // Behind these a step failed to compute them.
        let published = kv.tree.n_findable(&seq.table[..published]);
        let others = self.steps.slots().filter_map(|slot| sequences.get(slot));
        others.fold(published, |computed, other| {
            let from = (other.computed / config.block_size) as usize;
            let is_shared = from < computed.min(other.published as usize) && other.table[from] == seq.table[from];
            if is_shared { from } else { computed }
        })
    }

    /// Reports the end of a request while steps in flight still run the request's sequence. Of the sequence, which the caller takes
    /// out of the batch, only the blocks and the slot on the worker are left until the last of these steps ends.
    fn report_early(&mut self, slot: usize, reason: FinishReason, actions: &mut Vec<Action>) {
        let state = &mut self.state;
        state.end_shared_work(slot);
        state.orphan_tail(slot);
        let seq = &mut state.sequences[slot];
        seq.ending = Some(Ending::Reported(reason));
        state.reported += 1;
        let (kv, size) = (&state.kv, u64::from(state.config.block_size));
        let own = || seq.table.len() - readers::shared(kv, &seq.table[..seq.published as usize]);
        state.reserve.end(slot, || own() as u64 * size);
        state.waiting.left(seq.tenant);
        state.background.leave(slot, seq);
        state.kv.pin(seq);
        self.by_id.remove(&seq.id);
        finish(&mut state.journal, seq, reason, actions);
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            state.answers.observe(seq, self.now_ns);
        }
        self.forget_deadlines();
    }

    /// Removes a sequence whose end was reported, once no step in flight runs it.
    fn discard(&mut self, slot: usize) {
        let computed = self.computed_blocks(slot);
        let state = &mut self.state;
        state.reported -= 1;
        state.reserve.released(slot);
        state.free_worker_slot(slot);
        let seq = &state.sequences[slot];
        if self.worker_joined && !seq.has_failed() && !seq.id.is_inner() {
            state.kv.write_through(&mut state.sequences[slot], computed, &mut state.journal);
        }
        state.release(slot);
        self.remains.push(state.sequences.remove(slot));
    }

    /// Drops deadlines of ended requests: the next ones, and all such deadlines when they outnumber the others.
    fn forget_deadlines(&mut self) {
        let (by_id, sequences) = (&self.by_id, &self.state.sequences);
        let lives = |Reverse((_, arrival, id)): &Reverse<(u64, u64, RequestId)>| {
            by_id.get(id).is_some_and(|slot| sequences[*slot].cold.view.arrival == *arrival)
        };
        while self.deadlines.peek().is_some_and(|entry| !lives(entry)) {
            self.deadlines.pop();
        }
        if self.deadlines.len() > DEADLINES_SPARE + 2 * by_id.len() {
            self.deadlines.retain(lives);
        }
    }

    /// Ends requests whose deadline has passed, and gives up waiting for overdue transfers and look-ups.
    fn expire(&mut self, actions: &mut Vec<Action>) {
        while let Some(Reverse((deadline_ns, arrival, id))) = self.deadlines.peek().copied() {
            if deadline_ns > self.now_ns {
                break;
            }
            self.deadlines.pop();
            let slot = self.by_id.get(&id).copied();
            if let Some(slot) = slot.filter(|slot| self.state.sequences[*slot].cold.view.arrival == arrival) {
                self.end(slot, FinishReason::Timeout, actions);
            }
        }
        transfer_end::give_up_overdue(&mut self.state);
        let State { kv, journal, waiting, .. } = &mut self.state;
        while let Some(first) = kv.take_overdue_lookup(journal) {
            waiting.wake(first);
        }
    }

    fn shutdown(&mut self, actions: &mut Vec<Action>) {
        self.draining = true;
        let live = self.state.sequences.iter().filter(|(_, seq)| !matches!(seq.ending, Some(Ending::Reported(_))));
        let slots: Vec<usize> = live.map(|(slot, _)| slot).collect();
        // All requests end, so none needs to be looked up and struck out.
        self.by_id.clear();
        for slots in slots.chunks(AHEAD) {
            self.state.load_cold_ahead(slots);
            for slot in slots {
                self.end(*slot, FinishReason::Abort, actions);
            }
        }
    }

    /// Evicts every idle device block, as a request in need of all of them would. For tests that set a scene: no event does this.
    #[doc(hidden)]
    pub fn evict_idle(&mut self) -> u32 {
        let blocks = self.state.kv.tree.flush();
        self.state.kv.free_left();
        blocks
    }

    /// Drops the cache. Requests that run keep their blocks, and publish no more of them: the weights may have changed since.
    fn flush(&mut self, actions: &mut Vec<Action>) {
        let blocks = self.state.kv.flush();
        let has_kv = |seq: &Sequence| !matches!(seq.phase, Phase::Waiting | Phase::Preempted);
        let with_kv = self.state.sequences.iter().filter(|(_, seq)| has_kv(seq));
        for slot in with_kv.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.state.sequences[slot].cold.is_stale = true;
            if !self.state.sequences[slot].unpublishable {
                self.state.end_shared_work(slot);
                self.state.sequences[slot].unpublishable = true;
            }
        }
        self.state.journal.decide(Decision::Flush, 0, u64::from(blocks));
        actions.push(Action::Flushed { blocks });
    }
}

/// Reports the end of a request. Of an inner request nobody knows.
fn finish(journal: &mut Journal, seq: &Sequence, reason: FinishReason, actions: &mut Vec<Action>) {
    if seq.id.is_inner() {
        return;
    }
    journal.stats.requests.finished += 1;
    journal.decide(Decision::Finish, seq.id.0, u64::from(seq.generated()) << 8 | reason as u64);
    actions.push(Action::Finish { request: seq.id, reason, usage: seq.usage() });
}

#[cfg(test)]
mod tests;
