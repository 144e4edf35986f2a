//! The driver: replicas of the core, a queue of what happens next, a worker and a link that only take time.
//!
//! A replica is a [`Core`], the step it has in flight, and the links to its host and tiers. A [`crate::router`] says which of them a
//! request goes to. Time jumps to whatever comes next, an entry of the queue or an arrival of the [`Source`]; everything that follows
//! from it at that instant is done before the next is taken. What comes at one instant comes in the order of `What`, arrivals last:
//! no matter when it was scheduled, so that steps may be leapt over (`fleet/leap.rs`). When a replica fails, what it had under way
//! stays on the queue with the number of the life it was begun in, and is passed over when its time comes; so is a turn of a link if what
//! is under way there has changed (`fleet/copying.rs`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

use trunkline_core::event::{Action, Event};
use trunkline_core::step::Step;
use trunkline_core::{BlockHash, Core, FinishReason, Namespace};

use crate::flights::Flights;
use crate::meters::Meters;
use crate::router::{self, Load, Router};
use crate::settings::{Arrivals, Settings, SettingsError};
use crate::worker::Worker;
use trunkline_sim_perf::cost::{CostModel, StepShape};
use trunkline_sim_perf::link::{Copy, Links};
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::Report;
use trunkline_sim_workload::trace::{self, Source, Sped, Trace, TraceError};

mod arriving;
mod copying;
mod faults;
mod leap;
mod placing;
mod reporting;

/// Ends of requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;

/// Why a trace could not be replayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Nothing can be replayed under the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The requests could not be read to their end.
    #[error(transparent)]
    Trace(#[from] TraceError),
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
    replay_source(&mut trace.source(), settings, cost, observer)
}

/// Replays what `source` gives, watched by `observer`. Memory grows with the requests that are under way, and by 24 bytes for each of the
/// first million, whose latencies are kept.
pub fn replay_source(
    source: &mut dyn Source,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
) -> Result<Report, ReplayError> {
    let started = Instant::now();
    let mut fleet = Fleet::new(source, settings, cost, observer)?;
    fleet.run()?;
    let mut report = fleet.report();
    report.wall_s = started.elapsed().as_secs_f64();
    Ok(report)
}

/// One replica's core and what it waits for.
struct Replica {
    core: Core,
    /// Nothing while no step is in flight, and in a leap.
    in_flight: Option<Box<Step>>,
    /// When the first step of the leap ended that is under way.
    leap_first_ns: u64,
    links: Links,
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

/// What is done at a time. What is done at the same time is done in this order, by replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Fail {
        failure: usize,
    },
    Return {
        replica: usize,
    },
    /// Something happens in one direction of a link, unless what is under way there has changed since this was said.
    LinkTurn {
        replica: usize,
        lane: usize,
        version: u64,
    },
    TransferEnd {
        replica: usize,
        life: u32,
        id: u64,
    },
    StepEnd {
        replica: usize,
        life: u32,
    },
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at_ns: u64,
    what: What,
}

struct Fleet<'a> {
    source: Sped<&'a mut dyn Source>,
    settings: &'a Settings,
    cost: &'a dyn CostModel,
    observer: &'a mut dyn Observer,
    /// Whether steps that are like the one before them are leapt over.
    leaps: bool,
    stopped: bool,
    arrivals: Arrivals,
    /// When the next request arrives, if requests arrive as the source says and it knows.
    next_arrival_ns: Option<u64>,
    /// Requests that were taken from the source for a replica before their turn, by replica.
    ahead: Vec<VecDeque<u64>>,
    block_size: u32,
    root: BlockHash,
    replicas: Vec<Replica>,
    router: Box<dyn Router>,
    /// By replica.
    loads: Vec<Load>,
    flights: Flights,
    /// Requests taken from replicas that are gone, not yet sent elsewhere.
    displaced: Vec<u64>,
    rerouted: u64,
    worker: Worker,
    meters: Meters<'a>,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    actions: Vec<Action>,
    /// Copies that end at one turn of a link, emptied after each use.
    ended_copies: Vec<Copy>,
    /// Requests taken from the source, those that ended or were refused, and when the last of them did.
    taken: u64,
    ended: u64,
    last_end_ns: u64,
    /// Where requests ended since arrivals that may wait for that were last looked at.
    freed: Vec<usize>,
    seqs_run: u64,
    tokens_run: u64,
    /// Steps begun in leaps.
    leapt: u64,
}

impl<'a> Fleet<'a> {
    fn new(
        source: &'a mut dyn Source,
        settings: &'a Settings,
        cost: &'a dyn CostModel,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, ReplayError> {
        settings.validate()?;
        let routing = &settings.routing;
        let mut replicas = Vec::new();
        for number in 0..settings.n_replicas() as usize {
            let mut core = Core::new(settings.core_of(number)).map_err(SettingsError::Config)?;
            core.omit_tokens();
            replicas.push(Replica {
                core,
                in_flight: None,
                leap_first_ns: 0,
                links: Links::new(
                    settings.hardware_of(number),
                    &settings.model,
                    settings.core.block_size,
                    &settings.far_links,
                ),
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
        let speed = match settings.arrivals {
            Arrivals::Traced { speed } => speed,
            Arrivals::Serial | Arrivals::AtOnce => 1.0,
        };
        let meters = Meters::new(&settings.tenants, replicas.len());
        Ok(Self {
            source: Sped::new(source, speed),
            settings,
            cost,
            leaps: !observer.wants_steps() && routing.failures.is_empty() && meters.is_alone(),
            observer,
            stopped: false,
            arrivals: settings.arrivals,
            next_arrival_ns: None,
            ahead: vec![VecDeque::new(); replicas.len()],
            block_size: settings.core.block_size,
            root: Namespace { model: settings.model.name, ..Namespace::default() }.root(),
            meters,
            router: router::make(&routing.router, settings.site()).map_err(SettingsError::Router)?,
            loads: vec![Load { open: true, ..Load::default() }; replicas.len()],
            flights: Flights::default(),
            displaced: Vec::new(),
            rerouted: 0,
            replicas,
            worker: Worker::new(settings.draft_acceptance),
            now_ns: 0,
            queue: BinaryHeap::new(),
            actions: Vec::new(),
            ended_copies: Vec::new(),
            taken: 0,
            ended: 0,
            last_end_ns: 0,
            freed: Vec::new(),
            seqs_run: 0,
            tokens_run: 0,
            leapt: 0,
        })
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        for replica in 0..self.replicas.len() {
            self.tell(replica, Event::WorkerJoined);
        }
        self.schedule_faults();
        self.begin_arrivals()?;
        loop {
            self.follow_up()?;
            if self.stopped {
                return Err(ReplayError::Stopped);
            }
            let queued_ns = self.queue.peek().map(|Reverse(next)| next.at_ns);
            match self.next_arrival_ns {
                Some(at_ns) if queued_ns.is_none_or(|queued_ns| at_ns < queued_ns) => {
                    self.now_ns = self.now_ns.max(at_ns);
                    self.arrive_next()?;
                }
                _ => match self.queue.pop() {
                    Some(Reverse(next)) => self.happen(next),
                    None => break,
                },
            }
        }
        match self.taken - self.ended {
            0 => Ok(()),
            unfinished => Err(ReplayError::Stalled { at_s: self.now_ns as f64 / 1e9, unfinished }),
        }
    }

    fn happen(&mut self, next: Scheduled) {
        assert!(next.at_ns >= self.now_ns, "time goes forward");
        self.now_ns = next.at_ns;
        match next.what {
            What::StepEnd { replica, life } if life == self.replicas[replica].life => self.end_step(replica),
            What::TransferEnd { replica, life, id } if life == self.replicas[replica].life => {
                self.tell(replica, Event::TransferFinished(id));
            }
            What::StepEnd { .. } | What::TransferEnd { .. } => {}
            What::LinkTurn { replica, lane, version } => self.turn_link(replica, lane, version),
            What::Fail { failure } => self.fail(failure),
            What::Return { replica } => self.come_back(replica),
        }
    }

    fn schedule(&mut self, at_ns: u64, what: What) {
        self.queue.push(Reverse(Scheduled { at_ns, what }));
    }

    fn end_step(&mut self, replica: usize) {
        if self.leaps && self.leap(replica) {
            return;
        }
        let step = self.replicas[replica].in_flight.take().expect("a step in flight ends once");
        let spare = self.replicas[replica].core.spare_result();
        let result = self.worker.answer(&step, spare);
        self.meters.step_ended(&mut self.flights, replica, &step.seqs, &result.ends);
        self.replicas[replica].core.recycle(step);
        self.tell(replica, Event::StepFinished(result));
    }

    /// Gives a core an event and does what it wants.
    fn tell(&mut self, replica: usize, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.replicas[replica].core.handle(self.now_ns, event, &mut actions);
        self.perform_all(self.now_ns, replica, actions);
        let deadline_ns = self.replicas[replica].core.next_deadline_ns();
        debug_assert_eq!(deadline_ns, None, "traced requests have no deadline, so nothing is to be ticked");
    }

    /// Does what a core wanted at `at_ns`, which is now unless it leapt ahead.
    fn perform_all(&mut self, at_ns: u64, replica: usize, mut actions: Vec<Action>) {
        for action in actions.drain(..) {
            self.perform(at_ns, replica, action);
        }
        self.actions = actions;
    }

    fn perform(&mut self, at_ns: u64, replica: usize, action: Action) {
        match action {
            Action::Token { request, token } => {
                self.count_token(replica, request);
                self.meters.token(self.flights.get(request.0), at_ns, request.0, token);
            }
            Action::RunStep(step) => self.begin_step(at_ns, replica, step),
            Action::ResetWorker => unreachable!("a modelled worker answers what it was asked"),
            Action::Transfer(transfer) => self.begin_copy(at_ns, replica, &transfer),
            Action::Finish { request, reason: FinishReason::Length, usage } => {
                self.leave(replica, request, usage.completion_tokens);
                let flight = self.flights.remove(request.0);
                let outcome = self.meters.finish(&flight, at_ns, replica, request.0, &usage);
                self.end(replica, &outcome);
            }
            Action::Finish { request, reason, usage } => {
                assert!(self.replicas[replica].life > 0, "{reason:?} ends a traced request only if its replica failed");
                self.leave(replica, request, usage.completion_tokens);
                self.meters.take_back(self.flights.get(request.0), at_ns, replica);
                self.displaced.push(request.0);
            }
            Action::Refuse { request, .. } => {
                self.leave(replica, request, 0);
                let flight = self.flights.remove(request.0);
                let outcome = self.meters.refuse(&flight, at_ns, replica, request.0);
                self.end(replica, &outcome);
            }
            Action::Flushed { .. } | Action::Drained | Action::Withdrawn(_) => unreachable!("a replay asks for none"),
        }
    }

    fn begin_step(&mut self, at_ns: u64, replica: usize, step: Box<Step>) {
        let shape = StepShape::of(&step);
        self.meters.step_began(&mut self.flights, at_ns, replica, &step.seqs);
        self.seqs_run += shape.sequences();
        self.tokens_run += shape.tokens;
        let it = &mut self.replicas[replica];
        let duration_ns = Replica::slowed(self.cost.replica_step_ns(replica, &shape), it.slowness);
        let previous = it.in_flight.replace(step);
        assert!(previous.is_none(), "one step in flight at a time");
        it.step_ends_ns = at_ns + duration_ns;
        it.busy_ns += duration_ns;
        let (end_ns, life) = (it.step_ends_ns, it.life);
        if !self.leaps && self.observer.wants_steps() {
            let stats = &it.core.stats();
            self.observer.step(&StepSeen { replica: replica as u32, begin_ns: at_ns, end_ns, shape, stats });
        }
        self.schedule(end_ns, What::StepEnd { replica, life });
    }

    /// A request of this replica left it; some arrivals wait for that.
    fn end(&mut self, replica: usize, outcome: &Outcome) {
        self.stopped |= self.observer.ended(outcome).is_break();
        self.ended += 1;
        self.last_end_ns = self.now_ns;
        self.freed.push(replica);
        let how = if outcome.refused { trace::Outcome::Refused } else { trace::Outcome::Completed };
        self.source.ended(outcome.request, self.now_ns, how);
    }
}

impl Replica {
    /// How long a step takes that would take `duration_ns` if the replica were well.
    fn slowed(duration_ns: u64, slowness: f64) -> u64 {
        if slowness == 1.0 { duration_ns } else { (duration_ns as f64 * slowness).round() as u64 }
    }
}

#[cfg(test)]
mod tests;
