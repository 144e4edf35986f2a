//! The driver: replicas of the core, a queue of what happens next, a worker and a link that only take time.
//!
//! A replica is a [`Core`], the step it has in flight, and the link to its host. A [`crate::router`] says which of them a request goes to.
//! Time jumps to the next entry of the queue, `(time, order of scheduling)`; everything that follows from it at that instant is done
//! before the next is taken. When a replica fails, what it had under way stays on the queue with the number of the life it was
//! begun in, and is passed over when its time comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::time::Instant;

use trunkline_core::event::{Action, Event};
use trunkline_core::step::Step;
use trunkline_core::{BlockHash, Core, FinishReason, Namespace, Request, Stats};

use crate::cost::{CostModel, StepShape};
use crate::link::Links;
use crate::meters::Meters;
use crate::observer::{Observer, StepSeen, TransferSeen};
use crate::outcome::Outcome;
use crate::report::{Report, SettingsReport, TierReport, ratio};
use crate::router::{self, Load, Router};
use crate::settings::{Arrivals, Settings, SettingsError};
use crate::trace::Trace;
use crate::worker::Worker;

mod faults;
mod placing;

/// More requests than a core may leave aside when it looks for one to admit.
const LOOK_AHEAD: usize = 64;
/// Ends of requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;

/// Why a trace could not be replayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Nothing can be replayed under the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No load.
    #[error("load is {0}; it must be above 0, such as 0.8 for 80 % of the capacity")]
    LoadFraction(f64),
    /// There is no rate of arrivals that could be scaled.
    #[error("all requests of the trace arrive at one instant, so it has no rate; give no load")]
    NoRate,
    /// Every request was refused.
    #[error("every request is too large for the device, so there is no capacity; give it more blocks")]
    NoCapacity,
    /// Nothing is left to happen, yet requests have not ended. A fault of the core.
    #[error("the core fell silent at {at_s} s with {unfinished} requests unfinished")]
    Stalled {
        /// When, seconds after the first arrival.
        at_s: f64,
        /// How many had not ended.
        unfinished: u64,
    },
    /// Who watched it had seen enough.
    #[error("the replay was stopped")]
    Stopped,
}

/// Replays `trace` to its end. `progress` is told now and then how many requests have ended.
pub fn replay(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, ReplayError> {
    let mut ended = 0;
    let mut watch = |_: &Outcome| {
        ended += 1;
        if ended % PROGRESS_EVERY == 0 {
            progress(ended);
        }
        ControlFlow::Continue(())
    };
    let result = replay_watched(trace, settings, cost, &mut watch);
    progress(ended);
    result
}

/// Replays `trace`, watched by `observer`.
pub fn replay_watched(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
) -> Result<Report, ReplayError> {
    let started = Instant::now();
    let mut fleet = Fleet::new(trace, settings, cost, observer)?;
    fleet.run()?;
    let mut report = fleet.report();
    report.wall_s = started.elapsed().as_secs_f64();
    Ok(report)
}

/// One replica's core and what it waits for.
struct Replica {
    core: Core,
    in_flight: Option<Box<Step>>,
    links: Links,
    /// Its next request, if all are there from the beginning.
    next_request: usize,
    state: State,
    /// How often it failed: which life it is in.
    life: u32,
    /// By what the durations of its steps are multiplied.
    slowness: f64,
    step_ends_ns: u64,
    busy_ns: u64,
}

/// Whether a replica works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// It will come back.
    Down,
    Gone,
}

/// Where a request is while it is somewhere.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// [`NOWHERE`] before it arrived and after it ended.
    replica: u32,
    /// Its part of [`Load::prefill_tokens`] there.
    prefill_tokens: u32,
}

const NOWHERE: u32 = u32::MAX;

/// What is done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrival { request: usize },
    StepEnd { replica: usize, life: u32 },
    TransferEnd { replica: usize, life: u32, id: u64 },
    Fail { failure: usize },
    Return { replica: usize },
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
    settings: &'a Settings,
    cost: &'a dyn CostModel,
    observer: &'a mut dyn Observer,
    /// Whether it is shown every step.
    shows_steps: bool,
    stopped: bool,
    arrivals: Arrivals,
    block_size: u32,
    root: BlockHash,
    replicas: Vec<Replica>,
    router: Box<dyn Router>,
    /// By replica.
    loads: Vec<Load>,
    /// By request.
    placed: Vec<Placed>,
    /// Requests taken from replicas that are gone, not yet sent elsewhere.
    displaced: Vec<usize>,
    rerouted: u64,
    worker: Worker,
    meters: Meters<'a>,
    next_arrival: usize,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    actions: Vec<Action>,
    /// Requests that ended or were refused, and when the last of them did.
    ended: u64,
    last_end_ns: u64,
    seqs_run: u64,
    tokens_run: u64,
}

impl<'a> Fleet<'a> {
    fn new(
        trace: &'a Trace,
        settings: &'a Settings,
        cost: &'a dyn CostModel,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, ReplayError> {
        settings.validate()?;
        let routing = &settings.routing;
        let mut replicas = Vec::new();
        for number in 0..settings.n_replicas() as usize {
            replicas.push(Replica {
                core: Core::new(settings.core_of(number)).map_err(SettingsError::Config)?,
                in_flight: None,
                links: Links::new(
                    settings.hardware_of(number),
                    &settings.model,
                    settings.core.block_size,
                    &settings.far_links,
                ),
                next_request: number,
                state: State::Up,
                life: 0,
                slowness: routing
                    .slow
                    .iter()
                    .find(|slow| slow.replica as usize == number)
                    .map_or(1.0, |slow| slow.factor),
                step_ends_ns: 0,
                busy_ns: 0,
            });
        }
        Ok(Self {
            trace,
            settings,
            cost,
            shows_steps: observer.wants_steps(),
            observer,
            stopped: false,
            arrivals: settings.arrivals,
            block_size: settings.core.block_size,
            root: Namespace { model: settings.model.name, ..Namespace::default() }.root(),
            meters: Meters::new(trace, &settings.tenants, replicas.len()),
            router: router::make(&routing.router, settings.site()).map_err(SettingsError::Router)?,
            loads: vec![Load { open: true, ..Load::default() }; replicas.len()],
            placed: vec![Placed { replica: NOWHERE, prefill_tokens: 0 }; trace.requests.len()],
            displaced: Vec::new(),
            rerouted: 0,
            replicas,
            worker: Worker::new(settings.draft_acceptance),
            next_arrival: 0,
            now_ns: 0,
            queue: BinaryHeap::new(),
            order: 0,
            actions: Vec::new(),
            ended: 0,
            last_end_ns: 0,
            seqs_run: 0,
            tokens_run: 0,
        })
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        for replica in 0..self.replicas.len() {
            self.tell(replica, Event::WorkerJoined);
        }
        self.schedule_faults();
        self.schedule_first();
        while let Some(Reverse(next)) = self.queue.pop() {
            assert!(next.at_ns >= self.now_ns, "time goes forward");
            self.now_ns = next.at_ns;
            match next.what {
                What::Arrival { request } => self.arrive(request),
                What::StepEnd { replica, life } if life == self.replicas[replica].life => self.end_step(replica),
                What::TransferEnd { replica, life, id } if life == self.replicas[replica].life => {
                    self.tell(replica, Event::TransferFinished(id));
                }
                What::StepEnd { .. } | What::TransferEnd { .. } => {}
                What::Fail { failure } => self.fail(failure),
                What::Return { replica } => self.come_back(replica),
            }
            if self.stopped {
                return Err(ReplayError::Stopped);
            }
        }
        match self.trace.requests.len() as u64 - self.ended {
            0 => Ok(()),
            unfinished => Err(ReplayError::Stalled { at_s: self.now_ns as f64 / 1e9, unfinished }),
        }
    }

    fn schedule(&mut self, at_ns: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { at_ns, order: self.order, what }));
    }

    /// Schedules the arrivals that wait for nothing.
    fn schedule_first(&mut self) {
        if self.arrivals != Arrivals::AtOnce {
            return self.schedule_next();
        }
        // As many as can run, and as many again and some, so that no scheduling pass comes to the end of the queue.
        let batch = self.replicas[0].core.config().max_batch_size as usize;
        for _ in 0..2 * batch + LOOK_AHEAD {
            for replica in 0..self.replicas.len() {
                self.schedule_next_of(replica);
            }
        }
    }

    /// Schedules the next arrival in the order of the trace, now or at its time.
    fn schedule_next(&mut self) {
        let request = self.next_arrival;
        if let Some(traced) = self.trace.requests.get(request) {
            self.next_arrival += 1;
            self.schedule(self.now_ns.max(self.arrivals.at_ns(traced)), What::Arrival { request });
        }
    }

    /// Schedules the next arrival at one replica, now.
    fn schedule_next_of(&mut self, replica: usize) {
        let request = self.replicas[replica].next_request;
        if request < self.trace.requests.len() {
            self.replicas[replica].next_request += self.replicas.len();
            self.schedule(self.now_ns, What::Arrival { request });
        }
    }

    fn arrive(&mut self, index: usize) {
        if matches!(self.arrivals, Arrivals::Traced { .. }) {
            self.schedule_next();
        }
        let request = self.request(index);
        let pick = self.pick(index, &request);
        let asked_ns = if self.arrivals == Arrivals::AtOnce { 0 } else { self.now_ns };
        let tenant = self.meters.submit(self.now_ns, asked_ns, pick.replica, index);
        self.place(pick, Request { tenant: tenant as u64, ..request });
    }

    fn end_step(&mut self, replica: usize) {
        let step = self.replicas[replica].in_flight.take().expect("a step in flight ends once");
        let result = self.worker.answer(&step);
        self.meters.step_ended(replica, &step.seqs, &result.ends);
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
            Action::Token { request, token } => {
                self.count_token(replica, request);
                self.meters.token(self.now_ns, request.0, token);
            }
            Action::RunStep(step) => self.begin_step(replica, step),
            Action::ResetWorker => unreachable!("a modelled worker answers what it was asked"),
            Action::Transfer(transfer) => {
                let copy = self.replicas[replica].links.copy(self.now_ns, &transfer);
                self.observer.transfer(&TransferSeen {
                    replica: replica as u32,
                    asked_ns: self.now_ns,
                    end_ns: copy.end_ns,
                    duration_ns: copy.duration_ns,
                    from: transfer.from,
                    to: transfer.to,
                    blocks: transfer.pairs.len() as u32,
                });
                let life = self.replicas[replica].life;
                self.schedule(copy.end_ns, What::TransferEnd { replica, life, id: transfer.id });
            }
            Action::Finish { request, reason: FinishReason::Length, usage } => {
                self.leave(replica, request, usage.completion_tokens);
                let outcome = self.meters.finish(self.now_ns, replica, request.0 as usize, &usage);
                self.end(replica, &outcome);
            }
            Action::Finish { request, reason, usage } => {
                assert!(self.replicas[replica].life > 0, "{reason:?} ends a traced request only if its replica failed");
                self.leave(replica, request, usage.completion_tokens);
                self.meters.take_back(self.now_ns, replica, request.0 as usize);
                self.displaced.push(request.0 as usize);
            }
            Action::Refuse { request, .. } => {
                self.leave(replica, request, 0);
                let outcome = self.meters.refuse(self.now_ns, replica, request.0 as usize);
                self.end(replica, &outcome);
            }
            Action::Flushed { .. } | Action::Drained => unreachable!("a replay asks for neither"),
        }
    }

    fn begin_step(&mut self, replica: usize, step: Box<Step>) {
        let shape = StepShape::of(&step);
        self.seqs_run += step.seqs.len() as u64;
        self.tokens_run += shape.tokens;
        self.meters.step_began(self.now_ns, replica, &step.seqs);
        let mut duration_ns = self.cost.replica_step_ns(replica, &shape);
        let it = &mut self.replicas[replica];
        if it.slowness != 1.0 {
            duration_ns = (duration_ns as f64 * it.slowness).round() as u64;
        }
        let previous = it.in_flight.replace(step);
        assert!(previous.is_none(), "one step in flight at a time");
        it.step_ends_ns = self.now_ns + duration_ns;
        it.busy_ns += duration_ns;
        let (ends_ns, life) = (it.step_ends_ns, it.life);
        if self.shows_steps {
            let (begin_ns, replica) = (self.now_ns, replica as u32);
            let stats = &it.core.stats();
            self.observer.step(&StepSeen { replica, begin_ns, end_ns: ends_ns, shape, stats });
        }
        self.schedule(ends_ns, What::StepEnd { replica, life });
    }

    /// A request of this replica left it; some arrivals wait for that.
    fn end(&mut self, replica: usize, outcome: &Outcome) {
        self.stopped |= self.observer.ended(outcome).is_break();
        self.ended += 1;
        self.last_end_ns = self.now_ns;
        match self.arrivals {
            Arrivals::Traced { .. } => {}
            Arrivals::Serial => self.schedule_next(),
            Arrivals::AtOnce => self.schedule_next_of(replica),
        }
    }

    fn report(self) -> Report {
        let settings = self.settings;
        let stats: Vec<_> = self.replicas.iter().map(|replica| replica.core.stats()).collect();
        for stats in &stats {
            let requests = stats.waiting + stats.running + stats.swapped + stats.loading;
            let held = requests + stats.private_blocks;
            assert_eq!(held, 0, "nothing is held when all requests have ended: {stats:?}");
        }
        for load in &self.loads {
            assert_eq!((load.requests, load.tokens, load.prefill_tokens), (0, 0, 0), "no load is left");
        }
        let digest = fold_digests(self.replicas.iter().map(|replica| replica.core.digest()));
        let links = |at| Links::report(self.replicas.iter().map(|replica| &replica.links), at);
        let [link_out, link_in] = links(0);
        let tiers = settings.core.tiers.iter().enumerate();
        let tiers =
            tiers.map(|(at, tier)| TierReport::new(&tier.name, stats.iter().map(|stats| stats.tiers[at]), links(at)));
        let sum = |count: fn(&Stats) -> u64| stats.iter().map(count).sum::<u64>();
        let steps = sum(|stats| stats.steps);
        let duration_s = self.last_end_ns as f64 / 1e9;
        let busy_s = self.replicas.iter().map(|replica| replica.busy_ns as f64 / 1e9).sum::<f64>();
        let (total, itl_s, fairness) = self.meters.end();
        Report {
            settings: SettingsReport::new(self.trace.format, settings, self.cost.name()),
            requests: total.requests,
            completed: total.completed,
            refused: total.refused,
            duration_s,
            requests_s: ratio(total.completed as f64, duration_s),
            prompt_tokens: total.prompt_tokens,
            output_tokens: total.output_tokens,
            prefix_hit_tokens: total.cached_tokens,
            prefix_hit_ratio: ratio(total.cached_tokens as f64, total.prompt_tokens as f64),
            preemptions: sum(|stats| stats.preemptions),
            swap_outs: sum(|stats| stats.swap_outs),
            swap_ins: sum(|stats| stats.swap_ins),
            link_out,
            link_in,
            tiers: tiers.collect(),
            steps,
            mean_batch: ratio(self.seqs_run as f64, steps as f64),
            mean_step_tokens: ratio(self.tokens_run as f64, steps as f64),
            drafted_tokens: sum(|stats| stats.draft_tokens),
            accepted_drafts: sum(|stats| stats.accepted_draft_tokens),
            evicted_blocks: sum(|stats| stats.evicted_blocks),
            utilisation: ratio(busy_s, duration_s * self.replicas.len() as f64),
            rerouted: self.rerouted,
            ttft_s: total.ttft.summary(),
            tpot_s: total.tpot.summary(),
            itl_s,
            e2e_s: total.e2e.summary(),
            fairness,
            load: None,
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
