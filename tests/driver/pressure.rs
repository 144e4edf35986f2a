//! A seeded run of a core under pressure: tiny pools, shared prefixes, aborts, stops, deadlines, lost workers, flushes,
//! copies that end late or fail, drafts, answers of every wrong shape, requests to blame, duplicate ids, hashes that collide, and ends in the
//! middle.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_core::{
    BlockFault, BlockHash, Core, Event, FailedSeq, FinishReason, Namespace, Place, Refusal, Request, RequestId, Reuse,
    SeqFault, StepResult, Token, h2o,
};

use crate::limits::{
    divide_layers, fail_sequences, hints, imitate, limits, pick, preempt_at_once, prefetch, retain, reuse_anywhere,
    run_prompts_first, share_a_tier, small_limits, suit_worker,
};
use crate::oracle::{EOS, VOCAB, continuation};
pub use crate::outcome::Outcome;
use crate::{Driver, Follower};

/// Lengths of requests, tokens, and how often two are equal.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Beginning of a prompt shared with others, at most.
    pub shared: usize,
    /// Rest of a prompt, at most.
    pub own: usize,
    /// Output, at most.
    pub output: u32,
    /// Of four requests, about so many repeat the prompt of the one before.
    pub repeated: u32,
}

/// Lengths at which a request fills a good part of a pool of [`limits`].
pub const LENGTHS: Lengths = Lengths { shared: 70, own: 40, output: 60, repeated: 1 };
/// The same for [`small_limits`].
const SMALL: Lengths = Lengths { shared: 16, own: 8, output: 24, repeated: 1 };

/// Size of a run.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// A pool of [`limits`], and so many requests.
    Whole(u64),
    /// A pool of [`small_limits`] and a few requests, so that many runs take little time. Rare events are less rare.
    Small,
}

struct Run {
    rng: Pcg64Mcg,
    driver: Driver,
    /// Of a hundred things that happen, about this many are requests that come.
    arrivals: u32,
    /// Of a hundred chances to end a copy while a step runs, about this many are taken.
    transfer_pace: u32,
    /// Of a hundred copies, about this many fail.
    transfer_failures: u32,
    /// Requests after which the core is drained or shut down, though more come.
    closes_after: u64,
    /// Every so many requests, one makes the worker fail whenever it runs; 0 for none.
    poison_every: u64,
    /// Generator of sequences that the worker fails, and of a thousand steps about as many have one.
    faults: Option<(Pcg64Mcg, u32)>,
    /// `true` to leave three bits of each hash, so that most prefixes collide.
    weak_hashes: bool,
    /// Of so many chances to flush the cache, one is taken; 0 for none.
    flush_every: u32,
    lengths: Lengths,
    is_small: bool,
    /// `true` if the connection of the worker breaks now and then.
    resumes: bool,
    /// Generator of retention hints, if requests have some.
    hint_rng: Option<Pcg64Mcg>,
    /// Generator of edits of prompts, if text that is not a prefix is reused.
    edit_rng: Option<Pcg64Mcg>,
    /// `true` if some requests ask for log probabilities of their prompts.
    values: bool,
    /// `true` if every fourth request is in the background.
    background: bool,
    outcome: Outcome,
    /// Every event and its time, for a replay.
    events: Vec<(u64, Event)>,
}

/// Runs `requests` requests through a core whose limits are drawn from `seed`, checks every text against the oracle,
/// and replays the events through a second core, which must decide the same. If the core shares a tier, another core runs half as many
/// before, and leaves what it wrote there.
///
/// # Panics
/// If anything is wrong.
pub fn run(seed: u64, requests: u64) -> Outcome {
    run_sized(seed, Size::Whole(requests), None, false)
}

/// Runs as [`run`] does, and hands the events of the cache to a follower, unless the seed makes hashes collide.
///
/// # Panics
/// If anything is wrong.
pub fn run_followed(seed: u64, requests: u64, follower: Follower) -> Outcome {
    run_sized(seed, Size::Whole(requests), Some(follower), false)
}

/// Runs a few short requests through a core with few blocks, as [`run`] does. Replays some of the runs.
///
/// # Panics
/// If anything is wrong.
pub fn run_small(seed: u64) -> Outcome {
    run_sized(seed, Size::Small, None, false)
}

/// Runs as [`run_small`] does, with requests of which two of three ask for log probabilities of their prompts.
///
/// # Panics
/// If anything is wrong.
pub fn run_valued(seed: u64) -> Outcome {
    run_sized(seed, Size::Small, None, true)
}

fn run_sized(seed: u64, size: Size, follower: Option<Follower>, values: bool) -> Outcome {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let (mut config, requests) = match size {
        Size::Whole(requests) => (limits(&mut rng), requests),
        Size::Small => (small_limits(&mut rng), rng.random_range(3..14)),
    };
    divide_layers(seed, &mut config);
    let resumes = suit_worker(seed, &mut config);
    run_prompts_first(seed, &mut config);
    preempt_at_once(seed, &mut config);
    imitate(seed, &mut config);
    let hint_rng = retain(seed, &mut config);
    let edit_rng = reuse_anywhere(seed, &mut config);
    share_a_tier(&mut rng, &mut config);
    let is_shared = config.tiers.iter().any(|tier| tier.shared);
    let mut driver = Driver::with_content(config, rng.next_u64());
    if is_shared {
        let mut before = Run::new(&mut rng, driver, requests / 2, size);
        before.finish(requests / 2);
        driver = before.driver.replaced();
    }
    let (faults, background) = (fail_sequences(seed), seed % 4 == 3);
    let mut run =
        Run { resumes, hint_rng, edit_rng, faults, values, background, ..Run::new(&mut rng, driver, requests, size) };
    if let Some(follower) = follower.filter(|_| !run.weak_hashes) {
        run.driver.followed_by(follower);
    }
    let outcome = run.finish(requests);
    if matches!(size, Size::Whole(_)) || seed.is_multiple_of(8) {
        run.replay(&outcome);
    }
    outcome
}

impl Run {
    /// Draws what happens alongside the requests.
    fn new(rng: &mut Pcg64Mcg, driver: Driver, requests: u64, size: Size) -> Self {
        let is_shared = driver.core.config().tiers.iter().any(|tier| tier.shared);
        let is_small = matches!(size, Size::Small);
        let mut run = Self {
            driver,
            arrivals: pick(rng, &[6, 15, 30]),
            transfer_pace: pick(rng, &[2, 20, 60]),
            transfer_failures: pick(rng, &[0, 20]),
            closes_after: if rng.random_range(0..8) == 0 { rng.random_range(0..=requests) } else { u64::MAX },
            poison_every: pick(rng, &[0, 0, 0, 4, 30]),
            weak_hashes: rng.random_range(0..8) == 0,
            faults: None,
            // Nothing is looked up after a flush.
            resumes: false,
            hint_rng: None,
            edit_rng: None,
            values: false,
            background: false,
            flush_every: if !is_shared || is_small || rng.random_range(0..4) == 0 { 4 } else { 0 },
            lengths: if is_small { SMALL } else { LENGTHS },
            is_small,
            rng: Pcg64Mcg::seed_from_u64(rng.next_u64()),
            outcome: Outcome::default(),
            events: Vec::new(),
        };
        if is_small {
            run.flush_every = pick(&mut run.rng, &[0, 1, 1, 4]);
            run.arrivals = pick(&mut run.rng, &[2, 15, 30, 60]);
            run.lengths.repeated = pick(&mut run.rng, &[1, 3]);
            run.poison_every = pick(&mut run.rng, &[0, 0, 0, 0, 0, 4]);
        }
        if run.weak_hashes {
            run.driver.expect_collisions();
        }
        run
    }

    /// Replays the events through a second core.
    fn replay(self, outcome: &Outcome) {
        let mut second = Core::new(self.driver.core.config().clone()).expect("the same limits");
        let mut ignored = Vec::new();
        for (at_ns, event) in self.events {
            second.handle(at_ns, event, &mut ignored);
            ignored.clear();
        }
        assert_eq!(second.digest(), outcome.digest, "the replay decided differently");
        assert_eq!(second.stats(), self.driver.stats(), "the replay counted differently");
    }

    /// Runs the requests to their end.
    fn finish(&mut self, requests: u64) -> Outcome {
        self.everything(requests);
        self.check_end();
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        let Self { driver, .. } = self;
        let stats = driver.stats();
        let known = || driver.requests.values();
        let completed = known().filter(|known| known.is_complete()).count();
        let by_tokens = driver.refusals.iter().filter(|(_, why)| matches!(why, Refusal::QueueTokensFull { .. }));
        Outcome {
            digest: driver.core.digest(),
            completed: completed as u64,
            cut_short: (driver.ends.len() - completed) as u64,
            timed_out: driver.ends.iter().filter(|(_, reason)| *reason == FinishReason::Timeout).count() as u64,
            refused: driver.refusals.len() as u64,
            refused_by_tokens: by_tokens.count() as u64,
            preemptions: stats.preemptions,
            cached_tokens: stats.tokens.cached_tokens,
            copied_tokens: driver.worker.copied,
            merged_blocks: stats.merged_blocks,
            evicted_blocks: stats.evicted_blocks,
            dropped_blocks: stats.h2o.h2o_dropped_blocks,
            evicted_retained: stats.retention.evicted_retained_blocks,
            ignored_retained: stats.retention.ignored_retained_blocks,
            prefetched_tokens: stats.tokens.prefetched_tokens,
            head_blocks: stats.loads.head_blocks,
            pinned_tokens: driver.usages.values().map(|usage| u64::from(usage.pinned_tokens)).sum(),
            lost_transfers: driver.lost_copies,
            drafts_allowed: driver.worker.drafts_allowed,
            drafts_accepted: driver.worker.drafts_accepted,
            ..self.outcome
        }
    }

    fn everything(&mut self, requests: u64) {
        let mut submitted = 0;
        while submitted < requests {
            self.pass_time();
            if submitted == self.closes_after {
                self.closes_after = u64::MAX;
                self.close();
            }
            if self.rng.random_range(0..100) < self.arrivals {
                self.submit(submitted);
                submitted += 1;
                continue;
            }
            // Clients that send less give up less.
            let gives_up = self.rng.random_range(0..30) < self.arrivals;
            match self.rng.random_range(30..100) {
                30..34 if gives_up => self.some_request(Event::Abort),
                34..36 if gives_up => self.some_request(Event::Stop),
                36 => self.event(Event::Tick),
                37 => self.disturb_worker(),
                38 if self.flush_every > 0 && self.rng.random_range(0..self.flush_every) == 0 => {
                    self.event(Event::FlushCache);
                }
                39 => self.answer_nothing(),
                40 if self.rng.random_range(0..8) == 0 => self.answer_nonsense(),
                41..45 => self.end_transfer(),
                45 => self.end_lookup(),
                46 => self.some_request(Event::Withdraw),
                47 if self.rng.random_range(0..12) == 0 => self.fail(),
                48 if self.rng.random_range(0..3) == 0 => self.submit_twice(),
                // A worker that came back before its loss was noticed.
                49 if self.rng.random_range(0..16) == 0 => self.event(Event::WorkerJoined),
                _ => self.advance(),
            }
        }
        self.close();
        for _ in 0..1_000_000 {
            let driver = &self.driver;
            let is_over = driver.steps.is_empty() && driver.copies.is_empty() && driver.lookups.is_empty();
            if driver.drained > 0 && is_over {
                return;
            }
            self.pass_time();
            self.advance();
        }
        panic!("the core never drained: {:?}", self.driver.stats());
    }

    /// Time passes: less than a microsecond, at times not at all, and once in a while much.
    fn pass_time(&mut self) {
        self.driver.now_ns += match self.rng.random_range(0..1024) {
            0 => 2_000_000,
            1..128 => 0,
            _ => self.rng.random_range(0..1000),
        };
    }

    fn close(&mut self) {
        let gentle = self.rng.random_range(0..4) > 0;
        self.event(if gentle { Event::Drain } else { Event::Shutdown });
    }

    /// A worker names a request that it cannot compute, and mostly fails; its client may have given up just before.
    fn fail(&mut self) {
        let in_step = self.driver.step().and_then(|step| step.seqs.last()).map(|seq| seq.request);
        let Some(id) = in_step else { return self.some_request(Event::Fail) };
        if self.rng.random_range(0..2) == 0 {
            self.event(Event::Abort(id));
        }
        self.event(Event::Fail(id));
        if self.rng.random_range(0..4) > 0 {
            self.lose_worker();
        }
    }

    /// Submits a request with the id of one that lives.
    fn submit_twice(&mut self) {
        let Some(id) = self.driver.live.first().copied() else { return };
        let mut request = self.driver.requests[&id].request.clone();
        request.max_tokens = request.max_tokens.max(1);
        self.event(Event::Submit(Box::new(request)));
    }

    /// The worker makes progress: it joins, ends a copy, or ends its step.
    fn advance(&mut self) {
        if !self.driver.joined {
            self.event(Event::WorkerJoined);
        } else if self.driver.steps.is_empty() || self.rng.random_range(0..100) < self.transfer_pace {
            self.end_transfer();
            self.end_lookup();
        } else if self.is_poisoned() {
            self.outcome.poisoned += 1;
            self.lose_worker();
        } else {
            self.end_step(|_| ());
        }
    }

    /// Returns `true` if the oldest step in flight runs a request that makes the worker fail.
    fn is_poisoned(&self) -> bool {
        let is_poison = |id: RequestId| self.poison_every > 0 && id.0.is_multiple_of(self.poison_every);
        self.driver.step().is_some_and(|step| step.seqs.iter().any(|seq| is_poison(seq.request)))
    }

    /// The worker ends its step; its answer passes through `spoil`.
    fn end_step(&mut self, spoil: fn(&mut StepResult)) {
        if self.driver.steps.is_empty() {
            return;
        }
        self.fail_one();
        let (resets, restarted) = (self.driver.resets, self.driver.stats().requests.restarted);
        let mut result = self.driver.end_step();
        self.outcome.steps_ahead += u64::from(!self.driver.steps.is_empty());
        spoil(&mut result);
        // The worker begins the next step before the core has the answer to the last one, or after.
        let at_once = self.rng.random_range(0..2) == 0;
        let next = self.driver.step().map(|step| step.id);
        if at_once {
            self.driver.begin_front();
        }
        self.event(Event::StepFinished(result));
        if self.driver.resets == resets {
            self.outcome.started_over += self.driver.stats().requests.restarted - restarted;
        }
        if !at_once && next.is_some() && self.driver.step().map(|step| step.id) == next {
            self.driver.begin_front();
        }
    }

    /// The worker fails one sequence of its step, at times.
    fn fail_one(&mut self) {
        let Some((rng, rate)) = &mut self.faults else { return };
        // Few steps have one.
        let rate = if self.driver.read_ahead().is_empty() { *rate } else { 200 };
        if rng.random_range(0..1000) < rate {
            // Mostly one whose blocks others read already, if there is one.
            let read = self.driver.read_ahead();
            let index = match read.is_empty() || rng.random_range(0..4) == 0 {
                true => rng.random_range(0..self.driver.seqs().count()),
                false => pick(rng, &read),
            };
            self.driver.worker.faults.fail(index, pick(rng, &[SeqFault::NotFinite, SeqFault::Unsupported]));
            self.outcome.failed_alone += 1;
        }
    }

    /// Answers any one of the look-ups in flight: with what is there, with less, or with more.
    fn end_lookup(&mut self) {
        if self.driver.lookups.is_empty() {
            return;
        }
        let lookup = self.driver.lookups.swap_remove(self.rng.random_range(0..self.driver.lookups.len()));
        let there = lookup.keys.iter().take_while(|key| self.driver.worker.stores(lookup.tier, key)).count() as u32;
        let found = pick(&mut self.rng, &[there, there, there / 2, there + 2]);
        self.outcome.looked_up += u64::from(found.min(there));
        self.event(Event::LookupEnded { lookup: lookup.id, found });
    }

    /// Ends any one of the copies in flight, well or not.
    fn end_transfer(&mut self) {
        if self.driver.copies.is_empty() {
            return;
        }
        let transfer = self.driver.copies.swap_remove(self.rng.random_range(0..self.driver.copies.len()));
        let (id, blocks) = (transfer.id, transfer.pairs.len() as u64);
        let ok = self.rng.random_range(0..100) >= self.transfer_failures;
        // A copy may fail in part; then it says which blocks, and why.
        let missing = self.driver.worker.missing(id);
        let mut faults: Vec<(u32, BlockFault)> = missing.map(|pair| (pair, BlockFault::Bad)).collect();
        if faults.is_empty() && !ok && self.rng.random_range(0..2) == 0 {
            let kinds = [BlockFault::Bad, BlockFault::Interrupted, BlockFault::Refused];
            let failed = (0..blocks as u32).filter(|_| self.rng.random_range(0..3) == 0).collect::<Vec<_>>();
            faults = failed.into_iter().map(|pair| (pair, pick(&mut self.rng, &kinds))).collect();
        }
        let is_partial = !faults.is_empty();
        let ok = ok && !is_partial;
        let failed = |pair: usize| faults.iter().any(|(failed, _)| *failed as usize == pair);
        self.driver.worker.end_transfer_partly(id, |pair| if is_partial { !failed(pair) } else { ok });
        let outcome = &mut self.outcome;
        let (transfers, moved) = match (transfer.from, transfer.to) {
            (Place::Device, Place::Host) => (&mut outcome.swaps_out, &mut outcome.blocks_out),
            (Place::Host, _) => (&mut outcome.swaps_in, &mut outcome.blocks_in),
            (Place::Tier(_), Place::Device) => (&mut outcome.loads, &mut outcome.blocks_loaded),
            _ => (&mut outcome.stores, &mut outcome.blocks_stored),
        };
        *transfers += u64::from(ok);
        let is_divided = !self.driver.core.config().worker.groups.is_empty();
        outcome.groups_in += u64::from(ok && is_divided && transfer.from == Place::Host);
        let is_load = matches!((transfer.from, transfer.to), (Place::Tier(_), Place::Device));
        outcome.groups_loaded += u64::from(ok && is_divided && is_load);
        *moved += if ok { blocks } else { 0 };
        outcome.failed_transfers += u64::from(!ok);
        if is_partial {
            return self.event(Event::TransferPartial { transfer: id, faults });
        }
        // Storage that honours a cancel interrupts what it has not begun.
        if self.driver.cancelled.contains(&id) && id.is_multiple_of(2) {
            return self.event(Event::TransferInterrupted(id));
        }
        // A copy that fails as a whole says whether its sources are to blame.
        let failed = pick(&mut self.rng, &[Event::TransferFailed as fn(u64) -> Event, Event::TransferInterrupted]);
        self.event(if ok { Event::TransferFinished(id) } else { failed(id) });
    }

    /// Loses the worker, or its connection.
    fn disturb_worker(&mut self) {
        match self.rng.random_range(0..8) {
            0 => self.lose_worker(),
            2 if self.driver.joined && self.rng.random_range(0..4) == 0 => {
                self.outcome.workers_lost += 1;
                self.event(Event::WorkerTaken);
            }
            1 if self.resumes && self.driver.joined => {
                self.outcome.workers_resumed += 1;
                self.event(Event::WorkerResumed);
            }
            _ => {}
        }
    }

    fn lose_worker(&mut self) {
        if self.driver.joined {
            self.outcome.workers_lost += 1;
            self.event(Event::WorkerLost);
        }
    }

    /// An answer that no one waits for, as of a worker that was declared lost: it must not matter.
    fn answer_nothing(&mut self) {
        let id = self.rng.random_range(0..=self.driver.worker.last_transfer());
        if self.driver.copies.iter().all(|transfer| transfer.id != id) {
            let ok = self.rng.random_range(0..2) == 0;
            self.event(if ok { Event::TransferFinished(id) } else { Event::TransferFailed(id) });
        }
        if self.driver.steps.is_empty() {
            let step = self.rng.random_range(0..=self.driver.stats().steps);
            self.event(Event::StepFinished(StepResult { step, ..StepResult::default() }));
        }
    }

    /// The worker runs its step, but the answer lacks a sequence.
    fn answer_nonsense(&mut self) {
        self.outcome.nonsense += u64::from(!self.driver.steps.is_empty());
        if self.driver.steps.len() > 1 && self.rng.random_range(0..2) == 0 {
            // The answer to a later step before that to the first.
            let seqs = &self.driver.steps[1].seqs;
            let mut result = StepResult { step: self.driver.steps[1].id, ..StepResult::default() };
            seqs.iter().for_each(|seq| result.push(if seq.sample { &[EOS] } else { &[] }));
            return self.event(Event::StepFinished(result));
        }
        let resets = self.driver.resets;
        let had_step = !self.driver.steps.is_empty();
        let spoil: fn(&mut StepResult) = pick(
            &mut self.rng,
            &[
                |result| _ = result.ends.pop(),
                |result| result.push(&[]),
                |result| result.push(&[EOS]),
                |result| result.tokens.push(EOS),
                |result| result.ends.iter_mut().for_each(|end| *end += 1),
                |result| result.failed = vec![failed(result.ends.len())],
                |result| result.failed = [0, 0].map(failed).to_vec(),
                |result| {
                    // More tokens than any number of drafts allows.
                    let many = [EOS; 70];
                    result.tokens.splice(0..0, many);
                    result.ends.iter_mut().for_each(|end| *end += many.len() as u32);
                },
                |result| {
                    result.tokens.insert(0, EOS);
                    result.ends.fill(result.tokens.len() as u32);
                    result.ends.push(0);
                },
            ],
        );
        self.end_step(spoil);
        assert_eq!(self.driver.resets, resets + u32::from(had_step), "nonsense is believed");
    }

    fn some_request(&mut self, event: fn(RequestId) -> Event) {
        // Mostly one that lives, at times one that ended or never was.
        let id = match self.driver.live.len() {
            n if n > 0 && self.rng.random_range(0..8) > 0 => {
                *self.driver.live.iter().nth(self.rng.random_range(0..n)).expect("there are as many")
            }
            _ => RequestId(self.rng.random_range(0..self.driver.requests.len() as u64 + 10)),
        };
        self.event(event(id));
    }

    fn submit(&mut self, n: u64) {
        let known = n.checked_sub(1).and_then(|before| self.driver.requests.get(&RequestId(before)));
        let previous = known.map(|known| &known.request.prompt[..]);
        let block_size = self.driver.core.config().block_size;
        let (now_ns, lengths) = (self.driver.now_ns, self.lengths);
        let mut request = request(&mut self.rng, n, previous, lengths, (now_ns, block_size));
        if self.is_small && !n.is_multiple_of(8) {
            // Mostly one that fits the device, which a longer one is not let in to.
            let config = self.driver.core.config();
            let room = (config.device_blocks * block_size).min(config.max_context);
            request.prompt.truncate(room as usize / 2 + 1);
            request.max_tokens = request.max_tokens.clamp(1, (room - request.prompt.len() as u32).max(1));
            request.hashes.clear();
            request.hash_prompt(block_size);
        }
        // The id of a request that has just ended, of which steps or copies may still be in flight.
        let ended = self.driver.ends.last().filter(|(id, _)| !self.driver.live.contains(&RequestId(*id)));
        if let Some((id, _)) = ended
            && self.rng.random_range(0..6) == 0
        {
            self.outcome.reused_ids += 1;
            request.id = RequestId(*id);
        }
        if self.driver.core.config().h2o.mode != h2o::Mode::Off {
            let modes = [None, None, Some(h2o::Mode::Off), Some(h2o::Mode::Probe), Some(h2o::Mode::On)];
            request.h2o = modes[n as usize % modes.len()];
        }
        if let Some(rng) = &mut self.hint_rng {
            request.retention = hints(rng, request.prompt.len() as u32 + 1);
            prefetch(rng, &mut request);
        }
        if let Some(rng) = &mut self.edit_rng {
            edit(rng, &mut request);
            request.hash_prompt(block_size);
        }
        request.background = self.background && n % 4 == 1;
        request.prompt_logprobs = Some(n as u32 % 2).filter(|_| self.values && n % 3 < 2 && !request.prefetch);
        if self.weak_hashes {
            request.hashes.clear();
            request.hash_prompt(block_size);
            request.hashes.iter_mut().for_each(|hash| hash.0 &= !(u128::from(u64::MAX) >> 3 << 3));
        }
        self.event(Event::Submit(Box::new(request)));
    }

    /// Delivers an event, and submits again what the core gives back.
    fn event(&mut self, event: Event) {
        self.events.push((self.driver.now_ns, event.clone()));
        let preempted = self.driver.core.preempted().count();
        self.driver.deliver(event);
        self.outcome.preempted_in_steps += u64::from(self.driver.core.preempted().count() > preempted);
        if let Some(request) = self.driver.withdrawn.pop() {
            self.outcome.withdrawn += 1;
            self.event(Event::Submit(Box::new(request)));
        }
    }

    /// Every request has exactly one answer, and the text it would have alone, or a beginning of it.
    fn check_end(&mut self) {
        assert_eq!(self.driver.drained, 1);
        for (id, known) in &self.driver.requests {
            assert!(known.refused != known.end.is_some(), "request {id} has no answer, or two");
        }
        self.driver.assert_texts();
        self.event(Event::FlushCache);
        let (stats, config) = (self.driver.stats(), self.driver.core.config());
        assert_eq!(stats.free_blocks, config.pool_blocks(), "a block leaked: {stats:?}");
        assert_eq!(stats.free_host_blocks, config.host_capacity(), "a host block leaked: {stats:?}");
    }
}

/// Returns the note that the `index`-th sequence of a step failed.
fn failed(index: usize) -> FailedSeq {
    FailedSeq { seq: index as u32, fault: SeqFault::NotFinite }
}

/// Draws request number `n`, whose prompt shares a prefix with others, or is that of the request before.
pub fn request(
    rng: &mut Pcg64Mcg,
    n: u64,
    previous: Option<&[Token]>,
    lengths: Lengths,
    (now_ns, block_size): (u64, u32),
) -> Request {
    let salt = ["", "tenant-b"][rng.random_range(0..8) / 7];
    let root: BlockHash = Namespace { salt, ..Namespace::default() }.root();
    let family = rng.random_range(0..4u32);
    let shared = rng.random_range(0..lengths.shared);
    let own = rng.random_range(0..lengths.own);
    let mut prompt: Vec<Token> = (0..shared as u32).map(|at| (family * 1000 + at) % VOCAB).collect();
    if rng.random_range(0..4) == 0 {
        // A second turn: the first one's prompt and answer, then more.
        prompt.extend(continuation(root, &prompt, own));
    }
    prompt.extend((0..own).map(|_| rng.random_range(0..VOCAB)));
    if let Some(previous) = previous
        && rng.random_range(0..4) < lengths.repeated
    {
        // What was just asked, again: both generate the same, and who computes a block second merges it.
        prompt = previous.to_vec();
    }
    let mut request = Request::new(RequestId(n), root, prompt, rng.random_range(0..lengths.output));
    request.min_tokens = rng.random_range(0..10);
    request.stop_token_ids = vec![EOS, EOS + 1];
    request.tenant = rng.random_range(0..3);
    request.priority = rng.random_range(-1..3);
    if rng.random_range(0..6) == 0 {
        // From at once to long after its end, so that it is due in every state.
        let within = pick(rng, &[2_000, 20_000, 100_000]);
        request.deadline_ns = Some(now_ns + rng.random_range(0..within));
    }
    if rng.random_range(0..4) == 0 {
        request.sampling.repetition_penalty = 1.1;
    }
    request.hash_prompt(block_size);
    request
}

/// Moves some of a prompt's tokens to other positions, and draws the reuse that the request asks for, and whether tenants share its namespace.
fn edit(rng: &mut Pcg64Mcg, request: &mut Request) {
    let prompt = &mut request.prompt;
    let at = rng.random_range(0..=prompt.len());
    match rng.random_range(0..4) {
        0 if prompt.len() > 1 => _ = prompt.remove(at.min(prompt.len() - 1)),
        1 => _ = prompt.splice(at..at, (0..1 + at as u32 % 5).map(|new| new * 7)),
        2 => prompt.rotate_left(at),
        _ => {}
    }
    request.reuse = pick(rng, &[None, None, Some(Reuse::Anywhere), Some(Reuse::Prefix)]);
    request.shares_cache = rng.random_range(0..3) == 0;
    request.hashes.clear();
}

/// Returns `true` if a token ends every request of [`request`].
pub fn stops(token: Token) -> bool {
    token == EOS || token == EOS + 1
}
