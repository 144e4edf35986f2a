//! The state machine: events in, actions out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::block::BlockState;
use crate::config::{Config, ConfigError};
use crate::event::{Action, Event};
use crate::host::HostState;
use crate::ids::{BlockHandle, RequestId};
use crate::leap::Course;
use crate::request::{FinishReason, Refusal, Request};
use crate::scheduler::{Scheduler, decision};
use crate::sequence::{Sequence, SequenceState};
use crate::stats::Stats;
use crate::step::{Step, StepResult, StepSeq};
use crate::tiering::Tiering;

/// Steps of one request that a worker may fail to finish before the request ends with [`FinishReason::Error`].
pub const WORKER_FAILURES_MAX: u32 = 3;
/// Deadlines of ended requests that may stay before they are cleared away.
const DEADLINES_SPARE: usize = 64;
/// Step buffers kept for later.
const SPARE_STEPS_MAX: usize = 4;

/// The core. Single-threaded, without I/O, clock or randomness: its decisions are a function of the events and times it
/// was given.
pub struct Core {
    config: Config,
    pub(crate) sched: Scheduler,
    /// Never iterated.
    by_id: HashMap<RequestId, usize, ahash::RandomState>,
    /// (deadline, arrival, id); entries of requests that ended meanwhile are skipped when they come up.
    deadlines: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    worker_joined: bool,
    /// The step the worker runs, if it runs one, its sequences in order, and when it began.
    pub(crate) in_flight: Option<u64>,
    pub(crate) in_flight_seqs: Vec<(usize, StepSeq)>,
    step_begun_ns: u64,
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    spare_steps: Vec<Box<Step>>,
    spare_result: StepResult,
    next_arrival: u64,
    pub(crate) now_ns: u64,
    /// The leap that is under way, if one is.
    pub(crate) leaping: Course,
    draining: bool,
    drained: bool,
    #[cfg(debug_assertions)]
    events_seen: u64,
}

impl Core {
    /// A core with an empty cache and no worker yet.
    ///
    /// # Errors
    /// If a limit is outside its range or no policy has the name.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            sched: Scheduler::new(&config, config.make_policy()?, config.make_eviction()?, Tiering::new(&config)?),
            config,
            by_id: HashMap::default(),
            deadlines: BinaryHeap::new(),
            worker_joined: false,
            in_flight: None,
            in_flight_seqs: Vec::new(),
            step_begun_ns: 0,
            spare_steps: Vec::new(),
            spare_result: StepResult::default(),
            next_arrival: 0,
            now_ns: 0,
            leaping: Course::default(),
            draining: false,
            drained: false,
            #[cfg(debug_assertions)]
            events_seen: 0,
        })
    }

    /// Takes in what happened at `now_ns` and appends what is to be done to `actions`.
    ///
    /// Times MUST NOT go back; one that does is taken as the latest time seen.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        let fits_a_leap = matches!(event, Event::Submit(_) | Event::Tick);
        assert!(!self.leaping.is_on() || fits_a_leap, "a leap is under way: {event:?}");
        self.now_ns = self.now_ns.max(now_ns);
        match event {
            Event::Submit(request) => self.submit(*request, actions),
            Event::Abort(id) => self.end_by_id(id, FinishReason::Abort, actions),
            Event::Stop(id) => self.end_by_id(id, FinishReason::Stop, actions),
            Event::Withdraw(id) => self.withdraw(id, actions),
            Event::Fail(id) => self.end_by_id(id, FinishReason::Error, actions),
            Event::WorkerJoined => self.worker_joined = true,
            Event::WorkerLost => {
                self.worker_joined = false;
                self.lose_kv(actions);
            }
            Event::StepFinished(result) => {
                self.step_finished(&result, actions);
                self.spare_result = result;
            }
            Event::TransferFinished(id) => self.end_transfer(id, true, actions),
            Event::TransferFailed(id) => self.end_transfer(id, false, actions),
            Event::Tick => {}
            Event::FlushCache => self.flush(actions),
            Event::Drain => self.draining = true,
            Event::Shutdown => self.shutdown(actions),
        }
        self.expire(actions);
        self.begin_step(actions);
        self.send_copies(actions);
        if self.draining && !self.drained && self.sched.sequences.is_empty() {
            self.drained = true;
            actions.push(Action::Drained);
        }
        #[cfg(debug_assertions)]
        self.check_sometimes();
    }

    /// Leaves the tokens of prefills out of [`Step::tokens`] from now on, for a worker that computes nothing. Decisions do not change.
    pub fn omit_tokens(&mut self) {
        self.sched.sends_tokens = false;
    }

    /// The memory of the last step's answer, empty, for the next one.
    pub fn spare_result(&mut self) -> StepResult {
        let mut result = std::mem::take(&mut self.spare_result);
        result.tokens.clear();
        result.ends.clear();
        result
    }

    /// Gives the memory of a step back, so that the next one needs no allocation.
    pub fn recycle(&mut self, step: Box<Step>) {
        if self.spare_steps.len() < SPARE_STEPS_MAX {
            self.spare_steps.push(step);
        }
    }

    /// The earliest deadline: the driver sends a [`Event::Tick`] then, unless another event comes first.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((deadline_ns, ..))| *deadline_ns)
    }

    /// The running digest of all decisions: equal for equal events and times, on every driver.
    pub fn digest(&self) -> u64 {
        self.sched.digest.value()
    }

    /// Returns `true` if a request is in the waiting queue, with no block and in no step.
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.by_id.get(&id).is_some_and(|slot| self.sched.sequences[*slot].state == SequenceState::Waiting)
    }

    /// The limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Gauges and counters.
    pub fn stats(&self) -> Stats {
        let pool = self.sched.tree.pool();
        Stats {
            waiting: self.sched.waiting.len() as u32,
            running: self.sched.running.len() as u32,
            free_blocks: pool.count(BlockState::Free),
            idle_blocks: pool.count(BlockState::Idle),
            held_blocks: pool.count(BlockState::Held),
            private_blocks: pool.count(BlockState::Private),
            evicted_blocks: self.sched.tree.evicted(),
            moving_blocks: pool.count(BlockState::Moving),
            free_host_blocks: self.sched.swap.host.count(HostState::Free),
            loading: self.sched.tiering.loading.len() as u32,
            swapped: (self.sched.sequences.len()
                - self.sched.waiting.len()
                - self.sched.running.len()
                - self.sched.tiering.loading.len()) as u32,
            tiers: self.sched.tiering.stats(),
            ..self.sched.stats
        }
    }

    fn submit(&mut self, request: Request, actions: &mut Vec<Action>) {
        let id = request.id;
        if let Some(refusal) = self.refusal(&request) {
            self.sched.digest.decide(decision::REFUSE, id.0, 0);
            self.sched.stats.refused += 1;
            actions.push(Action::Refuse { request: id, refusal });
            return;
        }
        debug_assert_eq!(
            request.hashes.len(),
            request.prompt.len() / self.config.block_size as usize,
            "hash the prompt first"
        );
        self.sched.digest.decide(decision::ACCEPT, id.0, request.prompt.len() as u64);
        self.sched.stats.accepted += 1;
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        if let Some(deadline_ns) = request.deadline_ns {
            self.deadlines.push(Reverse((deadline_ns, arrival, id)));
        }
        let seq = Sequence::new(request, arrival, self.now_ns);
        self.sched.waiting.joined(seq.view.tenant);
        let slot = self.sched.sequences.insert(seq);
        self.by_id.insert(id, slot);
        self.sched.wait(slot);
    }

    /// What speaks against a request. Decided at the door, before anything changes.
    fn refusal(&self, request: &Request) -> Option<Refusal> {
        let config = &self.config;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let max_tokens = request.max_tokens;
        let queued_tokens = self.sched.waiting.tokens();
        let total = prompt_tokens.saturating_add(max_tokens);
        // The last token generated needs no KV.
        let needed = total.saturating_sub(1).div_ceil(config.block_size);
        if self.draining {
            Some(Refusal::Draining)
        } else if prompt_tokens == 0 {
            Some(Refusal::EmptyPrompt)
        } else if max_tokens as usize <= request.generated.len() {
            Some(Refusal::NoTokensAsked)
        } else if total > config.max_context {
            Some(Refusal::ContextTooLong { prompt_tokens, max_tokens, context: config.max_context })
        } else if needed > config.device_blocks {
            Some(Refusal::NeverFits { prompt_tokens, max_tokens, needed, capacity: config.device_blocks })
        } else if self.sched.waiting.len() as u32 >= config.max_queue {
            Some(Refusal::QueueFull { limit: config.max_queue })
        } else if queued_tokens + u64::from(prompt_tokens) > config.max_queued_tokens && queued_tokens > 0 {
            Some(Refusal::QueueTokensFull { queued_tokens, limit: config.max_queued_tokens })
        } else if self.by_id.contains_key(&request.id) {
            Some(Refusal::DuplicateId)
        } else {
            None
        }
    }

    fn end_by_id(&mut self, id: RequestId, reason: FinishReason, actions: &mut Vec<Action>) {
        if let Some(slot) = self.by_id.get(&id).copied() {
            self.end(slot, reason, actions);
        }
    }

    /// Ends a request: at once, or when the step that runs it ends.
    fn end(&mut self, slot: usize, reason: FinishReason, actions: &mut Vec<Action>) {
        let seq = &mut self.sched.sequences[slot];
        if std::mem::take(&mut seq.withdrawing) {
            // A request that ends while it is handed back ends here.
            seq.ending = None;
        }
        if seq.in_step || seq.transfer.is_some() || seq.state == SequenceState::Loading {
            seq.ending.get_or_insert(reason);
            return;
        }
        self.leave(slot);
        self.finish(slot, reason, actions);
        self.sched.settle_arrivals();
    }

    /// Hands a request back: at once, or when the step or the copy that works on it ends.
    fn withdraw(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let Some(slot) = self.by_id.get(&id).copied() else { return };
        let seq = &mut self.sched.sequences[slot];
        if seq.ending.is_some() {
            return;
        }
        seq.withdrawing = true;
        if seq.in_step || seq.transfer.is_some() || seq.state == SequenceState::Loading {
            seq.ending = Some(FinishReason::Abort);
            return;
        }
        self.leave(slot);
        self.finish(slot, FinishReason::Abort, actions);
        self.sched.settle_arrivals();
    }

    /// Takes a request out of the queue or list that its state says it stands in.
    fn leave(&mut self, slot: usize) {
        let seq = &self.sched.sequences[slot];
        match seq.state {
            SequenceState::Waiting => {
                self.sched.waiting.remove(slot);
            }
            SequenceState::Prefill | SequenceState::Decode => self.sched.leave_batch(slot),
            SequenceState::SwappingOut | SequenceState::Swapped | SequenceState::SwappingIn => {
                self.sched.leave_swap(slot);
            }
            SequenceState::Loading => unreachable!("it waits for its copies"),
        }
    }

    fn end_transfer(&mut self, id: u64, ok: bool, actions: &mut Vec<Action>) {
        if let Some(slot) = self.sched.end_transfer(id, ok) {
            let reason = self.sched.sequences[slot].ending.expect("the sequence ends");
            self.finish(slot, reason, actions);
        }
    }

    /// The end of a request that is in no queue any more.
    fn finish(&mut self, slot: usize, reason: FinishReason, actions: &mut Vec<Action>) {
        self.sched.free_worker_slot(slot);
        if self.worker_joined && reason != FinishReason::Error {
            self.sched.store(slot);
        }
        self.sched.release_all(slot);
        let seq = self.sched.sequences.remove(slot);
        self.sched.waiting.left(seq.view.tenant);
        self.by_id.remove(&seq.id);
        if seq.withdrawing {
            self.sched.stats.withdrawn += 1;
            self.sched.digest.decide(decision::WITHDRAW, seq.id.0, u64::from(seq.generated()));
            actions.push(Action::Withdrawn(Box::new(seq.into_request(self.config.block_size))));
            return self.forget_deadlines();
        }
        self.sched.stats.finished += 1;
        self.sched.digest.decide(decision::FINISH, seq.id.0, u64::from(seq.generated()) << 8 | reason as u64);
        actions.push(Action::Finish { request: seq.id, reason, usage: seq.usage() });
        self.forget_deadlines();
    }

    /// Drops deadlines of requests that have ended: those that are next, and all when they are the most.
    fn forget_deadlines(&mut self) {
        let (by_id, sequences) = (&self.by_id, &self.sched.sequences);
        let lives = |Reverse((_, arrival, id)): &Reverse<(u64, u64, RequestId)>| {
            by_id.get(id).is_some_and(|slot| sequences[*slot].arrival == *arrival)
        };
        while self.deadlines.peek().is_some_and(|entry| !lives(entry)) {
            self.deadlines.pop();
        }
        if self.deadlines.len() > DEADLINES_SPARE + 2 * by_id.len() {
            self.deadlines.retain(lives);
        }
    }

    pub(crate) fn expire(&mut self, actions: &mut Vec<Action>) {
        while let Some(Reverse((deadline_ns, arrival, id))) = self.deadlines.peek().copied() {
            if deadline_ns > self.now_ns {
                break;
            }
            self.deadlines.pop();
            let slot = self.by_id.get(&id).copied();
            if let Some(slot) = slot.filter(|slot| self.sched.sequences[*slot].arrival == arrival) {
                self.end(slot, FinishReason::Timeout, actions);
            }
        }
    }

    fn shutdown(&mut self, actions: &mut Vec<Action>) {
        self.draining = true;
        let slots: Vec<usize> = self.sched.sequences.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.end(slot, FinishReason::Abort, actions);
        }
    }

    fn flush(&mut self, actions: &mut Vec<Action>) {
        let blocks = self.sched.tree.flush();
        self.sched.tiering.flush();
        self.sched.digest.decide(decision::FLUSH, 0, u64::from(blocks));
        actions.push(Action::Flushed { blocks });
    }

    pub(crate) fn begin_step(&mut self, actions: &mut Vec<Action>) {
        if self.in_flight.is_some() || !self.worker_joined || self.sched.sequences.is_empty() {
            return;
        }
        let mut step = self.spare_steps.pop().unwrap_or_default();
        step.clear();
        self.sched.schedule(&mut step);
        self.send_copies(actions);
        if step.seqs.is_empty() {
            assert!(self.sched.is_moving(), "with no step and no copy in flight, something can run");
            self.recycle(step);
            return;
        }
        let drafts = if self.config.max_drafts > 0 { step.seqs.iter().map(|seq| seq.n_drafts).sum() } else { 0 };
        debug_assert!(
            step.n_tokens() + drafts <= self.config.max_batch_tokens
                && step.seqs.len() as u32 <= self.config.max_batch_size
        );
        self.sched.stats.draft_tokens += u64::from(drafts);
        self.step_begun_ns = self.now_ns;
        self.sched.stats.steps += 1;
        step.id = self.sched.stats.steps;
        self.sched.digest.decide(decision::STEP, step.id, self.sched.tree.evicted());
        self.in_flight = Some(step.id);
        self.in_flight_seqs.clear();
        let picked = self.sched.picked.iter().zip(&step.seqs);
        self.in_flight_seqs.extend(picked.map(|(slot, seq)| (*slot, *seq)));
        actions.push(Action::RunStep(step));
    }

    pub(crate) fn send_copies(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.sched.swap.outbox.drain(..).map(|transfer| Action::Transfer(Box::new(transfer))));
    }

    fn step_finished(&mut self, result: &StepResult, actions: &mut Vec<Action>) {
        if self.in_flight != Some(result.step) {
            // The answer to a step whose worker was declared lost.
            return;
        }
        if !self.is_answer(result) {
            // A worker that answers nonsense may have written nonsense.
            self.worker_joined = false;
            actions.push(Action::ResetWorker);
            self.lose_kv(actions);
            return;
        }
        self.in_flight = None;
        let seqs = std::mem::take(&mut self.in_flight_seqs);
        let mut any_ended = false;
        self.observe_pace(&seqs);
        for (i, (slot, seq)) in seqs.iter().enumerate() {
            any_ended |= self.apply(*slot, seq.n_tokens, result.of(i), actions);
        }
        if any_ended {
            let sequences = &self.sched.sequences;
            self.sched.running.retain(|slot| sequences[*slot].ending.is_none());
            for (slot, _) in &seqs {
                if let Some(reason) = self.sched.sequences.get(*slot).and_then(|seq| seq.ending) {
                    self.finish(*slot, reason, actions);
                }
            }
        }
        self.in_flight_seqs = seqs;
    }

    /// Whether the result has the shape of an answer to the step in flight.
    fn is_answer(&self, result: &StepResult) -> bool {
        let mut begin = 0;
        result.ends.len() == self.in_flight_seqs.len()
            && self.in_flight_seqs.iter().zip(&result.ends).all(|((_, seq), end)| {
                let n_tokens = end.wrapping_sub(begin);
                begin = *end;
                if seq.sample { (1..=1 + seq.n_drafts).contains(&n_tokens) } else { n_tokens == 0 }
            })
            && begin as usize == result.tokens.len()
    }

    /// Applies a step's result to one sequence. Returns whether it ends.
    fn apply(&mut self, slot: usize, n_tokens: u32, sampled: &[u32], actions: &mut Vec<Action>) -> bool {
        let seq = &mut self.sched.sequences[slot];
        seq.in_step = false;
        if seq.ending.is_none() && !sampled.is_empty() {
            if seq.state == SequenceState::Prefill {
                seq.set_state(SequenceState::Decode);
            }
            self.sched.stats.accepted_draft_tokens += sampled.len() as u64 - 1;
            for token in sampled {
                seq.push(*token);
                if self.sched.waiting.counts_service() {
                    self.sched.waiting.served(seq.view.tenant, 0, 1);
                }
                self.sched.stats.generated_tokens += 1;
                actions.push(Action::Token { request: seq.id, token: *token });
                seq.ending = seq.finished();
                if seq.ending.is_some() {
                    break;
                }
            }
        }
        // Every token sampled but the last was a draft, and has KV. Those after the end of the request were dropped.
        let computed = seq.computed + n_tokens + (sampled.len() as u32).saturating_sub(1);
        seq.computed = computed.min(seq.tokens.len() as u32);
        let ends = seq.ending.is_some();
        // What the worker could not compute is nobody's prefix.
        if seq.ending != Some(FinishReason::Error) && seq.computed / self.config.block_size > seq.published {
            self.sched.publish(slot);
        }
        ends
    }

    /// Tells the pace how long a step took that decodes had to share with prefills.
    fn observe_pace(&mut self, seqs: &[(usize, StepSeq)]) {
        let is_decode = |slot: usize| self.sched.sequences[slot].state == SequenceState::Decode;
        if self.config.target_step_ns > 0 && seqs.first().is_some_and(|(slot, _)| is_decode(*slot)) {
            let prompt_tokens = seqs.iter().filter(|(slot, _)| !is_decode(*slot)).map(|(_, seq)| seq.n_tokens).sum();
            self.sched.pace.observe(prompt_tokens, self.now_ns - self.step_begun_ns);
        }
    }

    /// All KV is gone: every running sequence starts over, every published block is forgotten.
    fn lose_kv(&mut self, actions: &mut Vec<Action>) {
        self.sched.digest.decide(decision::WORKER_LOST, 0, self.in_flight.unwrap_or(0));
        if self.in_flight.take().is_some() {
            let seqs = std::mem::take(&mut self.in_flight_seqs);
            // If the guilty one is known, the others did nothing.
            let named = seqs.iter().any(|(slot, _)| self.sched.sequences[*slot].ending == Some(FinishReason::Error));
            for (slot, _) in seqs {
                let seq = &mut self.sched.sequences[slot];
                seq.in_step = false;
                seq.worker_failures += u32::from(!named);
                if seq.worker_failures >= WORKER_FAILURES_MAX {
                    seq.ending.get_or_insert(FinishReason::Error);
                }
            }
        }
        for slot in self.sched.running.clone() {
            match self.sched.sequences[slot].ending {
                Some(reason) => {
                    self.leave(slot);
                    self.finish(slot, reason, actions);
                    self.sched.settle_arrivals();
                }
                None => {
                    self.sched.preempt(slot);
                    // That it will find nothing again says nothing of preemptions.
                    let seq = &mut self.sched.sequences[slot];
                    (seq.left_shared, seq.left_cached) = (0, 0);
                }
            }
        }
        let mut lost = self.sched.lose_swap();
        lost.extend(self.sched.lose_copies());
        for slot in lost {
            match self.sched.sequences[slot].ending {
                Some(reason) => self.finish(slot, reason, actions),
                None => self.sched.start_over(slot),
            }
        }
        self.sched.tree.flush();
    }

    /// Panics unless every block is in exactly one place and every sequence reads only what it may.
    /// O(blocks + tokens held). Runs after every event in debug builds if the pool is small, else now and then.
    pub fn check(&self) {
        let tree = &self.sched.tree;
        tree.check();
        let (mut private, mut moving) = (0, 0);
        let mut expect = |handle: &BlockHandle, expected: BlockState, id: RequestId| {
            assert!(tree.pool().is_current(*handle), "{id} holds a stale {handle:?}");
            assert_eq!(tree.pool().state(handle.index), expected, "block {} of {id}", handle.index);
            private += u32::from(expected == BlockState::Private);
            moving += u32::from(expected == BlockState::Moving);
        };
        for (slot, seq) in &self.sched.sequences {
            assert_eq!(self.by_id.get(&seq.id), Some(&slot));
            self.check_place(slot, seq);
            let size = self.config.block_size;
            assert!(seq.computed <= (seq.table.len() + seq.host.len() + seq.arriving.len()) as u32 * size);
            let going = seq.state == SequenceState::SwappingOut;
            let published = seq.published as usize;
            for (at, handle) in seq.table.iter().enumerate() {
                let moves = going || at < published + seq.loading as usize;
                let own = if moves { BlockState::Moving } else { BlockState::Private };
                expect(handle, if at < published { BlockState::Held } else { own }, seq.id);
            }
            for (at, handle) in seq.arriving.iter().enumerate() {
                let copied = at < seq.copied as usize;
                expect(handle, if copied { BlockState::Moving } else { BlockState::Private }, seq.id);
            }
        }
        let sequences = self.sched.sequences.iter();
        self.sched.swap.host.check(sequences.flat_map(|(_, seq)| seq.host.iter().copied()));
        self.sched.tiering.check();
        for chain in self.sched.tiering.stored_chains() {
            assert!(chain.iter().all(|handle| tree.pool().is_current(*handle)), "a copy reads a freed block");
        }
        moving += self.sched.tiering.demoted_blocks();
        assert_eq!(moving, tree.pool().count(BlockState::Moving), "a block is copied for nobody, or for two");
        // Each private block is in some table, and no two tables can claim one: the number would not add up.
        assert_eq!(private, tree.pool().count(BlockState::Private), "a private block has no owner, or two");
        assert_eq!(self.by_id.len(), self.sched.sequences.len());
    }

    /// Panics unless a sequence is where its state says, and has what its state says.
    fn check_place(&self, slot: usize, seq: &Sequence) {
        let sched = &self.sched;
        let places = [
            (SequenceState::Waiting, sched.waiting.contains(slot)),
            (SequenceState::Swapped, sched.swap.swapped.contains(&(Reverse(seq.keep), seq.arrival, slot))),
            (SequenceState::SwappingIn, sched.swap.arrivals.contains(&slot)),
            (SequenceState::Loading, sched.tiering.loading.contains(&slot)),
        ];
        for (state, is_there) in places {
            assert_eq!(seq.state == state, is_there, "{} is {:?}", seq.id, seq.state);
        }
        let in_batch = matches!(seq.state, SequenceState::Prefill | SequenceState::Decode);
        assert_eq!(in_batch, sched.running.contains(&slot), "{} is {:?}", seq.id, seq.state);
        assert!(in_batch || !seq.in_step, "{} is {:?} and in a step", seq.id, seq.state);
        match seq.state {
            SequenceState::Waiting => {
                assert!(seq.table.is_empty() && seq.host.is_empty() && seq.arriving.is_empty(), "waiting pins nothing");
            }
            SequenceState::Prefill | SequenceState::Decode => {
                assert!(seq.host.is_empty() && seq.arriving.is_empty() && seq.transfer.is_none());
            }
            SequenceState::Loading => assert!(seq.loads > 0 && seq.loading > 0),
            SequenceState::SwappingOut => assert!(seq.transfer.is_some() && !seq.host.is_empty()),
            SequenceState::Swapped => {
                assert!(seq.transfer.is_none() && seq.arriving.is_empty() && seq.published as usize == seq.table.len());
                let blocks = seq.table.len() + seq.host.len();
                assert_eq!(blocks, seq.computed_blocks(self.config.block_size), "{} lost KV", seq.id);
            }
            SequenceState::SwappingIn => {
                assert!(seq.host.len() >= seq.copied as usize && seq.arriving.len() >= seq.copied as usize);
                assert_eq!(seq.published as usize, seq.table.len());
            }
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn check_sometimes(&mut self) {
        self.events_seen += 1;
        let every = if self.config.device_blocks <= 1024 { 1 } else { 256 };
        if self.events_seen.is_multiple_of(every) {
            self.check();
        }
    }
}
