//! A seeded run of a core under pressure: tiny pools, shared prefixes, aborts, stops, deadlines, lost workers, flushes.

use std::collections::BTreeMap;

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_core::{
    Action, BlockHash, Config, Core, Event, FinishReason, Namespace, Request, RequestId, Step, Token, eviction, policy,
};

use crate::oracle::{EOS, OracleWorker, VOCAB, continuation};

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The decision digest.
    pub digest: u64,
    /// Requests that ran to their own end.
    pub completed: u32,
    /// Requests that were aborted, stopped by the driver, timed out or failed.
    pub cut_short: u32,
    /// Requests refused.
    pub refused: u32,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Blocks merged.
    pub merged_blocks: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Times the worker was lost.
    pub workers_lost: u32,
}

/// A request as the driver remembers it.
struct Known {
    prompt: Vec<Token>,
    max_tokens: u32,
    min_tokens: u32,
    text: Vec<Token>,
    end: Option<FinishReason>,
    refused: bool,
}

struct Run {
    rng: Pcg64Mcg,
    core: Core,
    worker: OracleWorker,
    joined: bool,
    step: Option<Box<Step>>,
    known: BTreeMap<RequestId, Known>,
    now_ns: u64,
    actions: Vec<Action>,
    drained: u32,
    outcome: Outcome,
    /// Every event and its time, for a replay.
    events: Vec<(u64, Event)>,
}

/// Runs `requests` requests through a core whose limits are drawn from `seed`, checks every text against the oracle, and
/// replays the events through a second core, which must decide the same.
///
/// # Panics
/// If anything is wrong.
pub fn run(seed: u64, requests: u64) -> Outcome {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let block_size = [1, 2, 4, 5, 16][rng.random_range(0..5)];
    let max_batch_size = rng.random_range(1..12);
    let policies: Vec<_> = policy::names().collect();
    let evictions: Vec<_> = eviction::names().collect();
    let config = Config {
        block_size,
        device_blocks: rng.random_range(120 / block_size..400 / block_size + 2).max(2),
        max_batch_tokens: max_batch_size + rng.random_range(0..60),
        max_batch_size,
        max_queue: rng.random_range(1..30),
        max_context: 200,
        policy: policies[rng.random_range(0..policies.len())].into(),
        eviction: evictions[rng.random_range(0..evictions.len())].into(),
        ..Config::default()
    };
    let mut run = Run {
        worker: OracleWorker::new(config.block_size, config.device_blocks),
        core: Core::new(config.clone()).expect("the limits are within their ranges"),
        rng,
        joined: false,
        step: None,
        known: BTreeMap::new(),
        now_ns: 0,
        actions: Vec::new(),
        drained: 0,
        outcome: Outcome::default(),
        events: Vec::new(),
    };
    run.everything(requests);
    run.check_end();
    let stats = run.core.stats();
    let outcome = Outcome {
        digest: run.core.digest(),
        preemptions: stats.preemptions,
        cached_tokens: stats.cached_tokens,
        merged_blocks: stats.merged_blocks,
        evicted_blocks: stats.evicted_blocks,
        ..run.outcome
    };
    let mut second = Core::new(config).expect("the same limits");
    let mut ignored = Vec::new();
    for (at_ns, event) in run.events {
        second.handle(at_ns, event, &mut ignored);
        ignored.clear();
    }
    assert_eq!(second.digest(), outcome.digest, "the replay decided differently");
    outcome
}

impl Run {
    fn everything(&mut self, requests: u64) {
        let mut submitted = 0;
        while submitted < requests {
            self.now_ns += self.rng.random_range(0..1000);
            match self.rng.random_range(0..100) {
                0..30 => {
                    self.submit(submitted);
                    submitted += 1;
                }
                30..34 => self.some_request(Event::Abort),
                34..36 => self.some_request(Event::Stop),
                36 => self.event(Event::Tick),
                37 if self.rng.random_range(0..8) == 0 => self.lose_worker(),
                38 if self.rng.random_range(0..4) == 0 => self.event(Event::FlushCache),
                _ => self.advance(),
            }
        }
        let gentle = self.rng.random_range(0..4) > 0;
        self.event(if gentle { Event::Drain } else { Event::Shutdown });
        for _ in 0..1_000_000 {
            if self.drained > 0 && self.step.is_none() {
                return;
            }
            self.now_ns += self.rng.random_range(0..1000);
            self.advance();
        }
        panic!("the core never drained: {:?}", self.core.stats());
    }

    /// The worker makes progress: it joins, or ends its step.
    fn advance(&mut self) {
        if !self.joined {
            self.joined = true;
            self.event(Event::WorkerJoined);
        } else if let Some(step) = self.step.take() {
            let result = self.worker.run(&step);
            self.core.recycle(step);
            self.event(Event::StepFinished(result));
        }
    }

    fn lose_worker(&mut self) {
        if std::mem::take(&mut self.joined) {
            self.worker.reset();
            self.step = None;
            self.outcome.workers_lost += 1;
            self.event(Event::WorkerLost);
        }
    }

    fn some_request(&mut self, event: fn(RequestId) -> Event) {
        // Mostly one that lives, at times one that ended or never was.
        let live: Vec<RequestId> =
            self.known.iter().filter(|(_, known)| known.end.is_none() && !known.refused).map(|(id, _)| *id).collect();
        let id = match live.len() {
            n if n > 0 && self.rng.random_range(0..8) > 0 => live[self.rng.random_range(0..n)],
            _ => RequestId(self.rng.random_range(0..100)),
        };
        self.event(event(id));
    }

    fn submit(&mut self, n: u64) {
        let tenant = self.rng.random_range(0..8) / 7;
        let salt = ["", "tenant-b"][tenant];
        let root: BlockHash = Namespace { salt, ..Namespace::default() }.root();
        let family = self.rng.random_range(0..4u32);
        let shared = self.rng.random_range(0..70usize);
        let own = self.rng.random_range(0..40usize);
        let mut prompt: Vec<Token> = (0..shared as u32).map(|at| (family * 1000 + at) % VOCAB).collect();
        if self.rng.random_range(0..4) == 0 {
            // A second turn: the first one's prompt and answer, then more.
            prompt.extend(continuation(&prompt, own));
        }
        prompt.extend((0..own).map(|_| self.rng.random_range(0..VOCAB)));
        let mut request = Request::new(RequestId(n), root, prompt, self.rng.random_range(0..60));
        request.min_tokens = self.rng.random_range(0..10);
        request.stop_token_ids = vec![EOS, EOS + 1];
        request.priority = self.rng.random_range(-1..3);
        if self.rng.random_range(0..12) == 0 {
            request.deadline_ns = Some(self.now_ns + self.rng.random_range(0..40_000));
        }
        request.hash_prompt(self.core.config().block_size);
        let known = Known {
            prompt: request.prompt.clone(),
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            text: Vec::new(),
            end: None,
            refused: false,
        };
        assert!(self.known.insert(request.id, known).is_none());
        self.event(Event::Submit(Box::new(request)));
    }

    fn event(&mut self, event: Event) {
        self.events.push((self.now_ns, event.clone()));
        let mut actions = std::mem::take(&mut self.actions);
        self.core.handle(self.now_ns, event, &mut actions);
        self.core.check();
        for action in actions.drain(..) {
            self.perform(action);
        }
        self.actions = actions;
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::RunStep(step) => {
                assert!(self.joined && self.step.is_none(), "one step at a time, on a worker that is there");
                self.step = Some(step);
            }
            Action::Transfer(_) => unreachable!("the core has no host blocks"),
            Action::Token { request, token } => {
                let known = self.known.get_mut(&request).expect("a token for a known request");
                assert!(known.end.is_none() && !known.refused, "{request} goes on after its end");
                known.text.push(token);
            }
            Action::Finish { request, reason, usage } => {
                let known = self.known.get_mut(&request).expect("the end of a known request");
                assert!(known.end.replace(reason).is_none() && !known.refused, "{request} ended twice");
                assert_eq!(usage.prompt_tokens as usize, known.prompt.len());
                assert_eq!(usage.completion_tokens as usize, known.text.len());
                assert!(usage.cached_tokens < usage.prompt_tokens, "the last token of a prompt is always run");
                let own_end = matches!(reason, FinishReason::Length) || known.text.last().is_some_and(|t| stops(*t));
                self.outcome.completed += u32::from(own_end);
                self.outcome.cut_short += u32::from(!own_end);
            }
            Action::Refuse { request, .. } => {
                let known = self.known.get_mut(&request).expect("the refusal of a known request");
                assert!(known.end.is_none() && known.text.is_empty() && !std::mem::replace(&mut known.refused, true));
                self.outcome.refused += 1;
            }
            Action::Flushed { .. } => {}
            Action::Drained => self.drained += 1,
        }
    }

    /// Every request has exactly one answer, and the text it would have alone, or a beginning of it.
    fn check_end(&mut self) {
        assert_eq!(self.drained, 1);
        for (id, known) in &self.known {
            assert!(known.refused != known.end.is_some(), "{id} has no answer, or two");
            if known.refused {
                continue;
            }
            let mut alone = continuation(&known.prompt, known.max_tokens as usize);
            let first = known.min_tokens.max(1) as usize - 1;
            if let Some(stop) = alone.iter().skip(first).position(|token| stops(*token)) {
                alone.truncate(first + stop + 1);
            }
            assert!(alone.starts_with(&known.text), "{id} says {:?}, alone it says {alone:?}", known.text);
            if known.end == Some(FinishReason::Length) {
                assert_eq!(known.text.len(), known.max_tokens as usize);
            }
        }
        self.event(Event::FlushCache);
        let stats = self.core.stats();
        assert_eq!(stats.free_blocks, self.core.config().device_blocks, "a block leaked: {stats:?}");
    }
}

fn stops(token: Token) -> bool {
    token == EOS || token == EOS + 1
}

/// A fresh seed for each run, from one base.
pub fn seeds(base: u64, n: usize) -> Vec<u64> {
    let mut rng = Pcg64Mcg::seed_from_u64(base);
    (0..n).map(|_| rng.next_u64() >> 16).collect()
}
