//! Driver of one core: delivers events, performs actions with the content oracle, and records all answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use trunkline_core::{
    Action, Config, Core, Event, FinishReason, Keeps, Lookup, Namespace, Refusal, Request, RequestId, SeqFault, Stats,
    Step, StepResult, StepSeq, Token, Transfer, Usage, h2o,
};

use crate::blame::Blame;
use crate::found::Found;
use crate::listening::{self, Index};
use crate::oracle::OracleWorker;
use crate::progress::Progress;
use crate::records::Known;

/// Steps and copies after which a run counts as stuck.
const ANSWERS_MAX: u32 = 200_000;

/// Source of the tokens that the worker samples.
#[derive(Clone, Copy, Debug)]
enum Answers {
    /// Digest of all cells before the token.
    Content,
    /// Function from a request and n to its n-th output token.
    Script(fn(u64, u32) -> Token),
    /// Decided at each answer, in [`Driver::answer_with`].
    Dictated,
}

/// Default output of scripted requests: no two requests generate the same tokens.
fn own_tokens(id: u64, n: u32) -> Token {
    1_000_000 + id as u32 * 10_000 + n
}

/// Events that explain later answers.
#[derive(Default)]
pub(crate) struct Sent {
    /// The step whose answer is being delivered, with its requests.
    answering: Vec<(u64, RequestId)>,
    /// Sequences that the worker failed in that step, unless later requests have their ids.
    pub(crate) failed: Vec<(RequestId, SeqFault)>,
    /// `true` while a request with the id of a live one is being delivered.
    duplicate: bool,
    pub(crate) withdrawn: BTreeSet<RequestId>,
    /// Requests that were preempted while a step ran them, when the event was delivered.
    preempted: BTreeSet<RequestId>,
    /// Requests that were about to start over, because they read what another failed to compute.
    pub(crate) starting_over: BTreeSet<RequestId>,
    closing: bool,
}

/// A core, its worker, time, and everything that was answered.
pub struct Driver {
    /// Core under test.
    pub core: Core,
    /// Worker with the contents of all cells.
    pub worker: OracleWorker,
    answers: Answers,
    /// Time of the last event, nanoseconds.
    pub now_ns: u64,
    /// `true` if copies and prompts take as long as the configuration estimates, rather than a nanosecond.
    pub(crate) takes_time: bool,
    /// `true` while a worker is there.
    pub joined: bool,
    /// Steps in flight, oldest first. The worker has begun the first.
    pub steps: VecDeque<Box<Step>>,
    /// Copies in flight, in the order in which they began.
    pub copies: Vec<Transfer>,
    /// Look-ups in flight, in the order in which they began.
    pub lookups: Vec<Lookup>,
    /// Emitted tokens with their requests, in order.
    pub tokens: Vec<(u64, Token)>,
    /// Ended requests, in order.
    pub ends: Vec<(u64, FinishReason)>,
    /// Usage of each ended request.
    pub usages: BTreeMap<u64, Usage>,
    /// Refused requests, in order.
    pub refusals: Vec<(u64, Refusal)>,
    /// Requests that the core gave back.
    pub withdrawn: Vec<Request>,
    /// Blocks dropped by each flush, and by each [`Self::evict_idle`].
    pub flushed: Vec<u32>,
    /// Number of [`Action::Drained`].
    pub drained: u32,
    /// Number of [`Action::ResetWorker`].
    pub resets: u32,
    /// Copies that nobody waits for any more.
    pub cancelled: BTreeSet<u64>,
    /// Copies that were in flight when the worker was lost.
    pub lost_copies: u64,
    /// Block table of each request in the last step that ran it.
    pub tables: BTreeMap<u64, Vec<u32>>,
    /// All requests that were submitted.
    pub requests: BTreeMap<RequestId, Known>,
    /// Requests that have no answer yet.
    pub live: BTreeSet<RequestId>,
    /// Requests of the core's own among them.
    inner: BTreeSet<RequestId>,
    pub(crate) blame: Blame,
    pub(crate) found: Found,
    /// Blocks cached, as the core's events tell.
    pub(crate) index: Index,
    pub(crate) progress: Progress,
    pub(crate) sent: Sent,
}

impl Driver {
    /// Creates a core whose worker has joined. No two requests generate the same tokens.
    pub fn new(config: Config) -> Self {
        let mut driver = Self::without_worker(config);
        driver.join();
        driver
    }

    /// Creates a core whose requests wait for [`Self::join`].
    pub fn without_worker(config: Config) -> Self {
        Self::with_answers(config, 1, Answers::Script(own_tokens))
    }

    /// Creates a core without a worker. Requests generate what the worker's cells say; `seed` decides which drafts are right.
    pub fn with_content(config: Config, seed: u64) -> Self {
        Self::with_answers(config, seed, Answers::Content)
    }

    /// Makes requests generate the tokens that `says` computes from their id and the number of tokens before.
    #[must_use]
    pub fn saying(self, says: fn(u64, u32) -> Token) -> Self {
        Self { answers: Answers::Script(says), ..self }
    }

    /// Makes requests generate only what [`Self::answer_with`] dictates.
    #[must_use]
    pub fn dictated(self) -> Self {
        Self { answers: Answers::Dictated, ..self }
    }

    fn with_answers(config: Config, seed: u64, answers: Answers) -> Self {
        let mut found = Found::new(&config);
        // A request with a long prefix takes the last blocks of a window alone: those before it may be gone for a shorter prefix. A
        // request that dropped blocks publishes no more. Where whole leaves are evicted, the request behind the one that needed room fits
        // too, and finds less, in the same pass.
        found.counts = config.h2o.mode == h2o::Mode::Off
            && !config.eviction.starts_with("leaves")
            && !config.worker.groups.iter().any(|keeps| matches!(keeps, Keeps::Window(_)));
        Self {
            worker: OracleWorker::new(&config, seed),
            core: listening::core(config),
            answers,
            now_ns: 0,
            takes_time: false,
            joined: false,
            steps: VecDeque::new(),
            copies: Vec::new(),
            lookups: Vec::new(),
            tokens: Vec::new(),
            ends: Vec::new(),
            usages: BTreeMap::new(),
            refusals: Vec::new(),
            withdrawn: Vec::new(),
            flushed: Vec::new(),
            drained: 0,
            resets: 0,
            cancelled: BTreeSet::new(),
            lost_copies: 0,
            tables: BTreeMap::new(),
            requests: BTreeMap::new(),
            live: BTreeSet::new(),
            inner: BTreeSet::new(),
            blame: Blame::default(),
            found,
            index: Index::default(),
            progress: Progress::default(),
            sent: Sent::default(),
        }
    }

    /// Begins again with an empty core and device, as a process does that finds its tiers as they were.
    ///
    /// # Panics
    /// If a request has no answer yet.
    #[must_use]
    pub fn restarted(self) -> Self {
        let mut driver = self.replaced();
        driver.join();
        driver
    }

    /// Begins again with an empty core, with the tiers as they were, and without a worker.
    ///
    /// # Panics
    /// If a request has no answer yet.
    #[must_use]
    pub fn replaced(self) -> Self {
        assert!(self.live.is_empty(), "requests are live: {:?}", self.live);
        let mut driver = Self::with_answers(self.core.config().clone(), 1, self.answers);
        driver.worker = self.worker;
        driver.worker.restart();
        driver
    }

    // Events.

    /// Delivers an event a nanosecond after the last one.
    pub fn event(&mut self, event: Event) {
        self.now_ns += 1;
        self.deliver(event);
    }

    /// Delivers an event now, performs what the core answers, and checks the core.
    ///
    /// # Panics
    /// If the core answers what it must not.
    pub fn deliver(&mut self, event: Event) {
        match &event {
            Event::WorkerJoined => {
                if self.joined {
                    self.forget_worker();
                }
                self.joined = true;
            }
            Event::WorkerLost => self.forget_worker(),
            Event::WorkerTaken => self.forget_blameless(),
            Event::WorkerResumed if self.joined => self.lose_sequences(),
            Event::Submit(request) => self.expect(request),
            Event::Fail(id) => self.blame.named(*id, &self.parts(), self.live.contains(id)),
            Event::Stop(id) => _ = self.requests.get_mut(id).map(|known| known.told_to_stop |= !known.is_answered()),
            Event::FlushCache => {
                self.found.flush(self.live.iter().copied());
                self.worker.flush();
            }
            Event::Withdraw(id) => _ = self.sent.withdrawn.insert(*id),
            Event::Drain | Event::Shutdown => self.sent.closing = true,
            _ => {}
        }
        let mut actions = Vec::new();
        self.sent.preempted = self.core.preempted().collect();
        self.sent.starting_over = self.core.starting_over().collect();
        let preemptions = self.core.stats().preemptions;
        self.core.handle(self.now_ns, event, &mut actions);
        self.follow_cache();
        self.forget_inner();
        let stats = self.core.stats();
        if stats.running + stats.loading + stats.swapped > 1 || stats.preemptions != preemptions {
            // A request finds less if others took blocks in the same pass, also to be swapped in, or if a retraction made room for several steps.
            self.found.forget_evicting(&stats);
        }
        actions.into_iter().for_each(|action| self.perform(action));
        if !self.sent.answering.is_empty() {
            self.blame.succeeded();
            self.sent.answering.clear();
        }
        self.check_failed();
        assert!(!std::mem::take(&mut self.sent.duplicate), "a request with the id of a live one is accepted");
        self.check();
        let preempted = std::mem::take(&mut self.sent.preempted);
        self.check_work(&preempted);
        self.found.forget_evicted(&self.core.stats());
    }

    /// Requests of the steps in flight, each with its step.
    fn parts(&self) -> Vec<(u64, RequestId)> {
        self.steps.iter().flat_map(|step| step.seqs.iter().map(|seq| (step.id, seq.request))).collect()
    }

    fn forget_worker(&mut self) {
        let mut failed = self.parts();
        failed.append(&mut self.sent.answering);
        self.blame.failed(&failed, &self.live);
        self.forget_blameless();
    }

    fn forget_blameless(&mut self) {
        self.joined = false;
        self.sent.answering.clear();
        self.found.forget();
        self.worker.reset();
        self.steps.clear();
        self.lost_copies += self.copies.len() as u64;
        self.copies.clear();
    }

    /// The worker is back with its KV; the steps in flight are lost.
    fn lose_sequences(&mut self) {
        self.sent.answering.clear();
        self.worker.resume(self.steps.front().map(|step| &**step));
        self.steps.clear();
    }

    fn expect(&mut self, request: &Request) {
        let id = request.id;
        if self.live.contains(&id) {
            self.sent.duplicate = true;
            return;
        }
        self.live.insert(id);
        if self.requests.get(&id).is_some_and(|known| known.withdrawn && !known.is_answered()) {
            self.blame.submitted_again(request);
            return;
        }
        // The id may have been another request's, whose end says nothing of this one.
        self.sent.withdrawn.remove(&id);
        self.blame.submitted(request);
        self.found.submitted(request);
        let before = self.requests.insert(id, Known::new(request));
        if let (Some(before), false) = (before, matches!(self.answers, Answers::Dictated)) {
            before.assert_text(self.script());
        }
        match self.answers {
            Answers::Content => self.worker.expect(request),
            Answers::Script(_) | Answers::Dictated => self.worker.expect_dictated(request),
        }
    }

    /// Expects the requests of the core's own that a step starts.
    fn meet_inner(&mut self, step: &Step) {
        for seq in step.seqs.iter().filter(|seq| seq.start) {
            let inner = self.core.inner_request(seq.request);
            if let Some(request) = inner.filter(|inner| !self.requests.contains_key(&inner.id)) {
                self.inner.insert(request.id);
                self.expect(&request);
            }
        }
    }

    /// Forgets the requests of the core's own that have ended.
    fn forget_inner(&mut self) {
        let ended: Vec<RequestId> =
            self.inner.iter().copied().filter(|id| self.core.inner_request(*id).is_none()).collect();
        for id in ended {
            self.inner.remove(&id);
            self.requests.remove(&id);
            self.answered(id);
        }
    }

    /// Submits a request in the default namespace.
    pub fn submit(&mut self, id: u64, prompt: Vec<Token>, max_tokens: u32) {
        self.submit_request(Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens));
    }

    /// Submits a request, hashed unless it has hashes.
    pub fn submit_request(&mut self, mut request: Request) {
        if request.hashes.is_empty() {
            request.hash_prompt(self.core.config().block_size);
        }
        self.event(Event::Submit(Box::new(request)));
    }

    /// Has the worker join.
    pub fn join(&mut self) {
        self.event(Event::WorkerJoined);
    }

    /// Loses the worker, with its cells, its steps and its copies.
    pub fn lose_worker(&mut self) {
        self.event(Event::WorkerLost);
    }

    /// Aborts a request.
    pub fn abort(&mut self, id: u64) {
        self.event(Event::Abort(RequestId(id)));
    }

    /// Aborts a request, and ends the step that runs the request, so that its blocks are released too.
    pub fn abort_now(&mut self, id: u64) {
        let in_step = self.ids().contains(&id);
        self.abort(id);
        assert!(self.has_ended(id));
        if in_step {
            self.answer();
        }
    }

    // Actions.

    fn perform(&mut self, action: Action) {
        match action {
            Action::RunStep(step) => {
                self.meet_inner(&step);
                self.check_step(&step);
                self.blame.sent(step.id);
                self.note_first_runs(&step);
                self.worker.send_step(&step);
                self.steps.push_back(step);
                if self.steps.len() == 1 {
                    self.begin_front();
                }
            }
            Action::ResetWorker => {
                self.resets += 1;
                self.forget_worker();
            }
            Action::Transfer(transfer) => {
                assert!(self.joined, "transfer {} is for a worker that is not there", transfer.id);
                self.worker.begin_transfer(&transfer);
                self.copies.push(*transfer);
            }
            Action::Cancel { transfer } => {
                assert!(self.copies.iter().any(|copy| copy.id == transfer), "transfer {transfer} was answered");
                self.cancelled.insert(transfer);
            }
            Action::Lookup(lookup) => self.lookups.push(*lookup),
            Action::Release { place, blocks } => self.worker.release(place, &blocks),
            Action::Adopt { tier, blocks } => self.worker.adopt(tier, &blocks),
            Action::PromptValued { request, first, n } => self.note_valued(request, first, n),
            Action::Token { request, token } => {
                let known = self.requests.get_mut(&request).expect("a token for a known request");
                assert!(!known.is_answered(), "request {request} goes on after its end");
                known.say(token);
                self.blame.token(request);
                self.tokens.push((request.0, token));
            }
            Action::Finish { request, reason, usage } => self.finish(request, reason, usage),
            Action::Refuse { request, refusal } => self.refuse(request, refusal),
            Action::Withdrawn(request) => self.take_back(*request),
            Action::Flushed { blocks } => self.flushed.push(blocks),
            Action::Drained => {
                assert!(self.sent.closing, "drained without a request to");
                assert!(self.live.is_empty(), "drained, and {:?} are not answered", self.live);
                self.drained += 1;
            }
        }
    }

    fn note_first_runs(&mut self, step: &Step) {
        for copy in &step.copies {
            let has = |seq: &&StepSeq| step.new_blocks_of(seq, 0).contains(&copy.to);
            let owner = step.seqs.iter().find(has).expect("a copy writes into a block of a sequence of the step");
            if let Some(known) = self.requests.get_mut(&owner.request) {
                known.has_copies = true;
            }
        }
        for seq in &step.seqs {
            self.found.runs(&self.requests[&seq.request].request, seq.computed);
        }
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason, usage: Usage) {
        let known = self.requests.get_mut(&id).expect("the end of a known request");
        assert!(!known.is_answered(), "request {id} ended twice");
        known.end = Some(reason);
        assert_eq!(usage.prompt_tokens as usize, known.request.prompt.len());
        assert_eq!(usage.completion_tokens as usize, known.text.len());
        let all_cached = known.withdrawn && !known.text.is_empty() && usage.cached_tokens == usage.prompt_tokens;
        let all_cached = all_cached || known.request.prefetch;
        assert!(usage.cached_tokens < usage.prompt_tokens || all_cached, "the last token is always run");
        let deadline_ns = known.request.deadline_ns;
        match reason {
            FinishReason::Timeout => assert!(deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.now_ns)),
            // A copy that fails costs time, not the request.
            FinishReason::Error => {
                let record = self.blame.of(id);
                assert!(record.guilty || record.is_over, "request {id} ends for what another did");
            }
            FinishReason::NotFinite | FinishReason::Unsupported => {
                let is_own = |(failed, fault): &(RequestId, SeqFault)| *failed == id && reason == (*fault).into();
                assert!(self.sent.failed.iter().any(is_own), "request {id} ends for what another did");
            }
            _ => {}
        }
        // What a step computes of a preempted request is not published.
        let is_published = !known.withdrawn && !self.sent.preempted.contains(&id);
        let is_published = is_published && !known.has_copies && !known.request.prefetch;
        if known.has_ended_by_itself() && is_published && !self.blame.of(id).guilty {
            self.found.ended(&known.request, &known.text);
        }
        self.ends.push((id.0, reason));
        self.usages.insert(id.0, usage);
        self.answered(id);
    }

    fn refuse(&mut self, id: RequestId, refusal: Refusal) {
        self.refusals.push((id.0, refusal));
        if std::mem::take(&mut self.sent.duplicate) {
            return;
        }
        assert!(refusal != Refusal::DuplicateId, "request {id} is refused as a duplicate of nothing");
        let known = self.requests.get_mut(&id).expect("the refusal of a known request");
        assert!(known.text.is_empty() || known.withdrawn, "request {id} is refused after it ran");
        assert!(!known.is_answered(), "request {id} is refused after its answer");
        known.refused = true;
        self.answered(id);
    }

    fn take_back(&mut self, request: Request) {
        assert!(self.sent.withdrawn.contains(&request.id), "request {} is given back by itself", request.id);
        let known = self.requests.get_mut(&request.id).expect("a known request is given back");
        assert!(!known.is_answered(), "request {} is given back after its end", request.id);
        assert_eq!(
            (&request.prompt, &request.generated),
            (&known.request.prompt, &known.text),
            "its tokens come along"
        );
        known.withdrawn = true;
        self.live.remove(&request.id);
        self.withdrawn.push(request);
    }

    fn answered(&mut self, id: RequestId) {
        assert!(self.live.remove(&id));
        self.worker.forget(id);
    }

    /// Expects hits to be missed, because hashes collide.
    pub fn expect_collisions(&mut self) {
        self.index.may_repeat = true;
        self.found.counts = false;
    }

    // The worker.

    /// Has the worker begin the oldest step in flight.
    pub fn begin_front(&mut self) {
        let Some(step) = self.steps.front() else { return };
        self.worker.begin_step(step);
        for seq in &step.seqs {
            self.tables.insert(seq.request.0, self.worker.table(seq).to_vec());
        }
    }

    /// Has the worker end the oldest step in flight. The answer is not delivered, and the next step is not begun.
    ///
    /// # Panics
    /// If no step is in flight, or answers are dictated.
    pub fn end_step(&mut self) -> StepResult {
        self.end_step_drafting(0)
    }

    fn end_step_drafting(&mut self, accepted: u32) -> StepResult {
        match self.answers {
            Answers::Content => self.end_front(OracleWorker::end_step),
            Answers::Script(says) => self.end_front(|worker, step| {
                let last = |seq: &StepSeq| seq.n_generated + accepted.min(seq.n_drafts);
                worker
                    .end_step_with(step, |seq| (seq.n_generated..=last(seq)).map(|n| says(seq.request.0, n)).collect())
            }),
            Answers::Dictated => panic!("the test dictates the answer"),
        }
    }

    fn end_front(&mut self, end: impl FnOnce(&mut OracleWorker, &Step) -> StepResult) -> StepResult {
        let step = self.steps.pop_front().expect("a step is in flight");
        self.pass_prompts(&step);
        let result = end(&mut self.worker, &step);
        self.sent.answering = step.seqs.iter().map(|seq| (step.id, seq.request)).collect();
        let failed = result.failed.iter().map(|failed| (step.seqs[failed.seq as usize].request, failed.fault));
        self.sent.failed = failed.filter(|(id, _)| self.blame.is_current(step.id, *id)).collect();
        self.core.recycle(step);
        self.note_step();
        result
    }

    /// Begins the next step and delivers an answer to the last one.
    fn deliver_answer(&mut self, result: StepResult) {
        self.begin_front();
        self.event(Event::StepFinished(result));
    }

    /// Ends the oldest step in flight. Scripted answers accept no draft.
    pub fn answer(&mut self) {
        self.answer_drafting(0);
    }

    /// Ends the oldest step in flight with this many drafts of each scripted sequence accepted.
    pub fn answer_drafting(&mut self, accepted: u32) {
        let result = self.end_step_drafting(accepted);
        self.deliver_answer(result);
    }

    /// Ends the oldest step in flight. Every sequence that samples gets `token`.
    pub fn answer_with(&mut self, token: Token) {
        let result = self.end_front(|worker, step| worker.end_step_with(step, |_| vec![token]));
        self.deliver_answer(result);
    }

    /// Ends steps until a condition holds. Copies in flight remain in flight.
    pub fn answer_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..ANSWERS_MAX {
            if is_so(self) {
                return;
            }
            self.answer();
        }
        panic!("it never came to be so");
    }

    /// Ends steps, look-ups and copies, a step and then the oldest copy, until none is in flight. Checks the text of every request.
    pub fn run_to_end(&mut self) {
        for _ in 0..ANSWERS_MAX {
            if self.steps.is_empty() && self.copies.is_empty() && self.lookups.is_empty() {
                return self.assert_texts();
            }
            if !self.lookups.is_empty() {
                self.end_lookup(0);
            }
            if !self.steps.is_empty() {
                self.answer();
            }
            if !self.copies.is_empty() {
                self.finish_copy(0);
            }
        }
        panic!("it never ended");
    }

    // Records.

    /// Returns the oldest step in flight.
    pub fn step(&self) -> Option<&Step> {
        self.steps.front().map(|step| &**step)
    }

    /// Returns the sequences of the oldest step in flight.
    pub fn seqs(&self) -> impl Iterator<Item = &StepSeq> {
        self.step().into_iter().flat_map(|step| &step.seqs)
    }

    /// Returns the sequences of the oldest step in flight: (request, computed, tokens, samples).
    pub fn running(&self) -> Vec<(u64, u32, u32, bool)> {
        self.seqs().map(|seq| (seq.request.0, seq.computed, seq.n_tokens, seq.sample)).collect()
    }

    /// Returns the requests of the oldest step in flight.
    pub fn ids(&self) -> Vec<u64> {
        self.seqs().map(|seq| seq.request.0).collect()
    }

    /// Returns the indexes of the sequences of the oldest step in flight that compute blocks which others in flight read already.
    pub fn read_ahead(&self) -> Vec<usize> {
        let Some(front) = self.step() else { return Vec::new() };
        let size = self.core.config().block_size;
        let is_read = |seq: &StepSeq| {
            let first = (seq.kv_write_from / size).saturating_sub(seq.table_keep) as usize;
            let written = front.new_blocks_of(seq, 0).get(first..).unwrap_or_default();
            let others = self.steps.iter().flat_map(|step| step.seqs.iter().map(move |other| (step, other)));
            others
                .filter(|(_, other)| other.request != seq.request)
                .any(|(step, other)| step.new_blocks_of(other, 0).iter().any(|block| written.contains(block)))
        };
        (0..).zip(&front.seqs).filter(|(_, seq)| is_read(seq)).map(|(at, _)| at).collect()
    }

    /// Returns the entries that sequences of the oldest step in flight drop from their tables: layer group and entries.
    pub fn drops(&self) -> Vec<(u32, Range<u32>)> {
        let drops = self.steps.front().into_iter().flat_map(|step| &step.drops);
        drops.map(|drop| (drop.group, drop.first..drop.first + drop.n)).collect()
    }

    /// Returns the core's counters.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Returns `true` if a request has ended.
    pub fn has_ended(&self, id: u64) -> bool {
        self.reason(id).is_some()
    }

    /// Returns the reason for a request's end, if it has ended.
    pub fn reason(&self, id: u64) -> Option<FinishReason> {
        self.requests.get(&RequestId(id)).and_then(|known| known.end)
    }

    /// Returns the tokens that a request has generated.
    pub fn said(&self, id: u64) -> &[Token] {
        self.requests.get(&RequestId(id)).map_or(&[], |known| &known.text)
    }

    /// Returns the n-th output token that the script gives a request.
    pub fn says(&self, id: u64, n: u32) -> Token {
        self.script().expect("the answers are scripted")(id, n)
    }

    fn script(&self) -> Option<fn(u64, u32) -> Token> {
        if let Answers::Script(says) = self.answers { Some(says) } else { None }
    }

    /// Asserts that every request has the text that it would have alone, or a beginning of it if it has not come to its end.
    /// Dictated texts are not known in advance.
    pub fn assert_texts(&self) {
        if !matches!(self.answers, Answers::Dictated) {
            self.requests.values().for_each(|known| known.assert_text(self.script()));
        }
    }

    /// Asserts that exactly these requests ended with all their tokens, equal to the output of each request alone.
    pub fn assert_all_said(&self, ids: impl IntoIterator<Item = u64>) {
        let mut ended: Vec<u64> = self.ends.iter().map(|(id, _)| *id).collect();
        ended.sort_unstable();
        assert_eq!(ended, ids.into_iter().collect::<Vec<_>>());
        for (id, reason) in &self.ends {
            assert_eq!(*reason, FinishReason::Length, "{id}");
            assert_eq!(self.usages[id].completion_tokens as usize, self.said(*id).len(), "{id}");
        }
        self.assert_texts();
    }
}
