//! The driver: replicas of the core, a queue of what happens next, a worker that only takes time.
//!
//! A replica is a [`Core`] and the step it has in flight. Requests go to replicas in turn. Time jumps to the next entry of the
//! queue, `(time, order of scheduling)`; everything that follows from it at that instant is done before the next is taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use trunkline_core::event::{Action, Event};
use trunkline_core::step::{Step, StepResult};
use trunkline_core::{BlockHash, Config, ConfigError, Core, FinishReason, Namespace, Request, RequestId, Token};

use crate::cost::{CostModel, StepShape};
use crate::hardware::Hardware;
use crate::latency::{Exact, Histogram};
use crate::model::Model;
use crate::report::{Report, SettingsReport};
use crate::trace::{GENERATED_FROM, LENGTH_TOKENS_MAX, Trace};

/// A queue no trace fills: a replay measures how long requests wait, so none is turned away for waiting.
pub const MAX_QUEUE: u32 = 1 << 24;
/// A context no trace exceeds, tokens: whether a model was trained for a length is not the replay's question.
pub const MAX_CONTEXT: u32 = 2 * LENGTH_TOKENS_MAX;
/// Ends of requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;

/// What a trace is replayed on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device of each replica. Reported; its speed is in the cost model.
    pub hardware: Hardware,
    /// The model they serve. Reported; its speed is in the cost model.
    pub model: Model,
    /// Replicas, at least one.
    pub replicas: u32,
    /// The limits of each replica's core. [`Settings::core`] gives limits fit for a replay.
    pub core: Config,
    /// Whether a request arrives when the one before it ended, whatever the trace says: so the cache alone is measured.
    pub serial: bool,
}

impl Settings {
    /// Limits with a queue and a context that nothing exceeds, and else the core's defaults.
    pub fn core() -> Config {
        Config { max_queue: MAX_QUEUE, max_context: MAX_CONTEXT, ..Config::default() }
    }
}

/// Why a trace could not be replayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The core cannot work under the limits.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is nothing to replay on.
    #[error("replicas is 0; it must be at least 1")]
    NoReplicas,
    /// The trace generates more tokens than there are ids for them.
    #[error("the trace generates more than {GENERATED_FROM} tokens, more than can be told apart; limit the requests")]
    TooManyGenerated,
    /// Nothing is left to happen, yet requests have not ended. A fault of the core.
    #[error("the core fell silent at {at_s} s with {unfinished} requests unfinished")]
    Stalled {
        /// When, seconds after the first arrival.
        at_s: f64,
        /// How many had not ended.
        unfinished: u64,
    },
}

/// Replays `trace` to its end. `progress` is told now and then how many requests have ended.
pub fn replay(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, ReplayError> {
    let started = Instant::now();
    let mut fleet = Fleet::new(trace, settings, cost)?;
    fleet.run(progress)?;
    let mut report = fleet.report(settings);
    report.wall_s = started.elapsed().as_secs_f64();
    Ok(report)
}

/// One replica's core and what it waits for.
struct Replica {
    core: Core,
    in_flight: Option<Box<Step>>,
}

/// What is known of a request while it runs. Its number is its id.
struct Progress {
    submitted_ns: u64,
    first_token_ns: u64,
    last_token_ns: u64,
    n_generated: u32,
    /// Its generated tokens are numbered from here on.
    generated_from: Token,
}

/// What is done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrival,
    StepEnd { replica: u32 },
}

/// An entry of the queue. `order` makes entries of one time come in the order they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at_ns: u64,
    order: u64,
    what: What,
}

struct Fleet<'a> {
    trace: &'a Trace,
    cost: &'a dyn CostModel,
    serial: bool,
    block_size: u32,
    root: BlockHash,
    replicas: Vec<Replica>,
    requests: Vec<Progress>,
    next_arrival: usize,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    actions: Vec<Action>,
    completed: u64,
    refused: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    ttft: Exact,
    tpot: Exact,
    itl: Histogram,
    e2e: Exact,
}

impl<'a> Fleet<'a> {
    fn new(trace: &'a Trace, settings: &Settings, cost: &'a dyn CostModel) -> Result<Self, ReplayError> {
        if settings.replicas == 0 {
            return Err(ReplayError::NoReplicas);
        }
        let mut replicas = Vec::new();
        for _ in 0..settings.replicas {
            replicas.push(Replica { core: Core::new(settings.core.clone())?, in_flight: None });
        }
        let mut generated_from = GENERATED_FROM;
        let mut requests = Vec::with_capacity(trace.requests.len());
        for request in &trace.requests {
            requests.push(Progress {
                submitted_ns: 0,
                first_token_ns: 0,
                last_token_ns: 0,
                n_generated: 0,
                generated_from,
            });
            generated_from = generated_from.checked_add(request.output_tokens).ok_or(ReplayError::TooManyGenerated)?;
        }
        let n = trace.requests.len();
        Ok(Self {
            trace,
            cost,
            serial: settings.serial,
            block_size: settings.core.block_size,
            root: Namespace { model: settings.model.name, ..Namespace::default() }.root(),
            replicas,
            requests,
            next_arrival: 0,
            now_ns: 0,
            queue: BinaryHeap::new(),
            order: 0,
            actions: Vec::new(),
            completed: 0,
            refused: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            ttft: Exact::with_capacity(n),
            tpot: Exact::with_capacity(n),
            itl: Histogram::default(),
            e2e: Exact::with_capacity(n),
        })
    }

    fn run(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), ReplayError> {
        for replica in 0..self.replicas.len() {
            self.tell(replica, Event::WorkerJoined);
        }
        self.schedule_arrival();
        let mut reported = 0;
        while let Some(Reverse(next)) = self.queue.pop() {
            assert!(next.at_ns >= self.now_ns, "time goes forward");
            self.now_ns = next.at_ns;
            match next.what {
                What::Arrival => self.arrive(),
                What::StepEnd { replica } => self.end_step(replica as usize),
            }
            let ended = self.completed + self.refused;
            if ended >= reported + PROGRESS_EVERY {
                reported = ended;
                progress(ended);
            }
        }
        let ended = self.completed + self.refused;
        progress(ended);
        match self.requests.len() as u64 - ended {
            0 => Ok(()),
            unfinished => Err(ReplayError::Stalled { at_s: self.now_ns as f64 / 1e9, unfinished }),
        }
    }

    fn schedule(&mut self, at_ns: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { at_ns, order: self.order, what }));
    }

    fn schedule_arrival(&mut self) {
        if let Some(request) = self.trace.requests.get(self.next_arrival) {
            let at_ns = if self.serial { self.now_ns } else { request.arrival_ns };
            self.schedule(at_ns, What::Arrival);
        }
    }

    fn arrive(&mut self) {
        let index = self.next_arrival;
        self.next_arrival += 1;
        if !self.serial {
            self.schedule_arrival();
        }
        let traced = &self.trace.requests[index];
        self.requests[index].submitted_ns = self.now_ns;
        let mut request = Request::new(RequestId(index as u64), self.root, traced.prompt(), traced.output_tokens);
        request.hashes.reserve_exact(request.prompt.capacity() / self.block_size as usize);
        request.hash_prompt(self.block_size);
        let replica = index % self.replicas.len();
        self.tell(replica, Event::Submit(Box::new(request)));
    }

    fn end_step(&mut self, replica: usize) {
        let step = self.replicas[replica].in_flight.take().expect("a step in flight ends once");
        let mut result = StepResult {
            step: step.id,
            tokens: Vec::with_capacity(step.seqs.len()),
            ends: Vec::with_capacity(step.seqs.len()),
        };
        for seq in &step.seqs {
            if seq.sample {
                // The token depends on the request and the position alone, so a preemption does not change it.
                result.tokens.push(self.requests[seq.request.0 as usize].generated_from + seq.n_generated);
            }
            result.ends.push(result.tokens.len() as u32);
        }
        self.replicas[replica].core.recycle(step);
        self.tell(replica, Event::StepFinished(result));
    }

    /// Gives a core an event and does what it wants.
    fn tell(&mut self, replica: usize, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.replicas[replica].core.handle(self.now_ns, event, &mut actions);
        for action in actions.drain(..) {
            self.perform(replica, action);
        }
        self.actions = actions;
        let deadline_ns = self.replicas[replica].core.next_deadline_ns();
        debug_assert_eq!(deadline_ns, None, "traced requests have no deadline, so nothing is to be ticked");
    }

    fn perform(&mut self, replica: usize, action: Action) {
        match action {
            Action::Transfer(_) => unreachable!("the core has no host blocks"),
            Action::Token { request, token } => self.take_token(request, token),
            Action::RunStep(step) => {
                let duration_ns = self.cost.step_ns(&StepShape::of(&step));
                let previous = self.replicas[replica].in_flight.replace(step);
                assert!(previous.is_none(), "one step in flight at a time");
                self.schedule(self.now_ns + duration_ns, What::StepEnd { replica: replica as u32 });
            }
            Action::Finish { request, reason, usage } => {
                self.finish(request, reason);
                self.prompt_tokens += u64::from(usage.prompt_tokens);
                self.cached_tokens += u64::from(usage.cached_tokens);
                self.output_tokens += u64::from(usage.completion_tokens);
            }
            Action::Refuse { .. } => {
                self.refused += 1;
                if self.serial {
                    self.schedule_arrival();
                }
            }
            Action::Flushed { .. } | Action::Drained => unreachable!("a replay asks for neither"),
        }
    }

    fn take_token(&mut self, request: RequestId, token: Token) {
        let record = &mut self.requests[request.0 as usize];
        assert_eq!(token, record.generated_from + record.n_generated, "tokens of a request come once and in order");
        if record.n_generated == 0 {
            record.first_token_ns = self.now_ns;
            self.ttft.record(self.now_ns - record.submitted_ns);
        } else {
            self.itl.record(self.now_ns - record.last_token_ns);
        }
        record.last_token_ns = self.now_ns;
        record.n_generated += 1;
    }

    fn finish(&mut self, request: RequestId, reason: FinishReason) {
        let record = &self.requests[request.0 as usize];
        assert_eq!(reason, FinishReason::Length, "nothing else ends a traced request");
        let asked = self.trace.requests[request.0 as usize].output_tokens;
        assert_eq!(record.n_generated, asked, "a request ends when it has its tokens");
        self.e2e.record(self.now_ns - record.submitted_ns);
        if asked > 1 {
            self.tpot.record((self.now_ns - record.first_token_ns) / u64::from(asked - 1));
        }
        self.completed += 1;
        if self.serial {
            self.schedule_arrival();
        }
    }

    fn report(self, settings: &Settings) -> Report {
        let stats: Vec<_> = self.replicas.iter().map(|replica| replica.core.stats()).collect();
        for stats in &stats {
            let held = stats.waiting + stats.running + stats.held_blocks + stats.private_blocks;
            assert_eq!(held, 0, "nothing is held when all requests have ended: {stats:?}");
        }
        let digest = fold_digests(self.replicas.iter().map(|replica| replica.core.digest()));
        Report {
            settings: SettingsReport::new(self.trace.format, settings, self.cost.name()),
            requests: self.requests.len() as u64,
            completed: self.completed,
            refused: self.refused,
            duration_s: self.now_ns as f64 / 1e9,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            prefix_hit_tokens: self.cached_tokens,
            prefix_hit_ratio: if self.prompt_tokens == 0 {
                0.0
            } else {
                self.cached_tokens as f64 / self.prompt_tokens as f64
            },
            preemptions: stats.iter().map(|stats| stats.preemptions).sum(),
            steps: stats.iter().map(|stats| stats.steps).sum(),
            evicted_blocks: stats.iter().map(|stats| stats.evicted_blocks).sum(),
            ttft_s: self.ttft.summary(),
            tpot_s: self.tpot.summary(),
            itl_s: self.itl.summary(),
            e2e_s: self.e2e.summary(),
            digest: format!("{digest:016x}"),
            wall_s: 0.0,
        }
    }
}

/// One digest of all replicas', in their order. That of a single replica is its own.
fn fold_digests(digests: impl Iterator<Item = u64>) -> u64 {
    digests
        .reduce(|folded, next| (folded.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .expect("at least one replica")
}

#[cfg(test)]
mod tests;
