//! Discrete-event driver: replicas of the core, an event queue, a modelled worker, and modelled links.
//!
//! A replica is a [`Core`], its step in flight, and the links to its host and tiers. A [`crate::router`] chooses the replica of
//! each request. Time jumps to the next event: an entry of the queue or an arrival of the [`Source`]. All consequences at that
//! instant are handled before the next event. Events of one instant are ordered by `SimEvent`, arrivals last, whenever they were
//! scheduled; so fast-forwarded steps change nothing (`fleet/fast_forward.rs`). Events of a failed replica stay in the queue with
//! the number of its previous life and are skipped; so are outdated wake-ups of a link (`fleet/copying.rs`).

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

/// Failed replay of a trace.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Invalid settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Requests cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Load out of range.
    #[error("load is {0}; it must be above 0, such as 0.8 for 80 % of the capacity")]
    LoadFraction(f64),
    /// Arrivals at a single instant, without a rate to scale.
    #[error("all requests of the trace arrive at one instant, so it has no rate; give no load")]
    NoRate,
    /// Every request refused.
    #[error("every request is too large for the device, so there is no capacity; give it more blocks")]
    NoCapacity,
    /// No event left, but unfinished requests: a fault of the core.
    #[error("the core fell silent at {at_s} s with {unfinished} requests unfinished")]
    Stalled {
        /// Time of the last event, seconds after the first arrival.
        at_s: f64,
        /// Number of unfinished requests.
        unfinished: u64,
    },
    /// Stopped by an observer.
    #[error("the replay was stopped")]
    Stopped,
}

/// Replays `trace` to its end. Calls `progress` with the number of ended requests now and then.
///
/// # Errors
///
/// [`ReplayError`] if the settings are invalid.
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

/// Replays `trace` under `observer`.
///
/// # Errors
///
/// [`ReplayError`] if the settings are invalid or the observer stops the replay.
pub fn replay_watched(
    trace: &Trace,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
) -> Result<Report, ReplayError> {
    replay_source(&mut trace.source(), settings, cost, observer)
}

/// Replays the requests of `source` under `observer`. Memory grows with the requests in flight, and by 24 bytes for each of the
/// first million latencies.
///
/// # Errors
///
/// [`ReplayError`] if the settings are invalid, the source cannot be read, or the observer stops the replay.
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

/// Core of one replica, with its pending step and copies.
struct Replica {
    core: Core,
    /// Step in flight; `None` between steps and during a fast-forward.
    in_flight: Option<Box<Step>>,
    /// End of the first step of the current fast-forward.
    leap_first_ns: u64,
    links: Links,
    state: State,
    /// Number of failures so far, to identify events of earlier lives.
    life: u32,
    /// Factor on the durations of its steps.
    slowness: f64,
    step_ends_ns: u64,
    busy_ns: u64,
}

/// Availability of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// Failed, with a return ahead.
    Down,
    Gone,
}

/// Event of the simulation. Events of one instant are handled in this order, then by replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Fail {
        failure: usize,
    },
    Return {
        replica: usize,
    },
    /// Wake-up of a link direction; void if the copies under way there have changed since.
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

/// Entry of the event queue.
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
    /// `true` if steady decode steps are fast-forwarded.
    leaps: bool,
    stopped: bool,
    pending: Pending,
    block_size: u32,
    root: BlockHash,
    replicas: Vec<Replica>,
    router: Box<dyn Router>,
    /// Load of each replica.
    loads: Vec<Load>,
    flights: Flights,
    /// Requests of permanently failed replicas, waiting for another replica.
    displaced: Vec<u64>,
    rerouted: u64,
    worker: Worker,
    meters: Meters<'a>,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    spare: Spare,
    totals: Totals,
}

/// Requests that have not arrived yet.
struct Pending {
    arrivals: Arrivals,
    /// Time of the next arrival, if arrivals follow the source and the source knows.
    next_ns: Option<u64>,
    /// Requests taken from the source for a replica before their turn, by replica.
    ahead: Vec<VecDeque<u64>>,
    /// Replicas where requests ended since the last look at arrivals that wait for ends.
    freed: Vec<usize>,
}

/// Buffers kept between uses to save allocations; empty between uses.
#[derive(Default)]
struct Spare {
    /// Actions of one core.
    actions: Vec<Action>,
    /// Copies that ended at one wake-up of a link.
    ended_copies: Vec<Copy>,
}

/// Counters over all replicas.
#[derive(Default)]
struct Totals {
    /// Requests taken from the source.
    taken: u64,
    /// Requests completed or refused.
    ended: u64,
    /// Time of the last end, nanoseconds.
    last_end_ns: u64,
    /// Sequences of all steps.
    seqs_run: u64,
    /// Tokens of all steps, drafts included.
    tokens_run: u64,
    /// Steps begun in fast-forwards.
    fast_forwarded: u64,
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
        let replicas = (0..settings.n_replicas() as usize).map(|number| Replica::new(settings, number));
        let replicas = replicas.collect::<Result<Vec<_>, _>>()?;
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
            pending: Pending {
                arrivals: settings.arrivals,
                next_ns: None,
                ahead: vec![VecDeque::new(); replicas.len()],
                freed: Vec::new(),
            },
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
            spare: Spare::default(),
            totals: Totals::default(),
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
            match self.pending.next_ns {
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
        match self.totals.taken - self.totals.ended {
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

    /// Delivers an event to a core and performs its actions.
    fn tell(&mut self, replica: usize, event: Event) {
        let mut actions = std::mem::take(&mut self.spare.actions);
        self.replicas[replica].core.handle(self.now_ns, event, &mut actions);
        self.perform_all(self.now_ns, replica, actions);
        let deadline_ns = self.replicas[replica].core.next_deadline_ns();
        debug_assert_eq!(deadline_ns, None, "traced requests have no deadline, so nothing is to be ticked");
    }

    /// Performs the actions of a core at `at_ns`, which is later than now after a fast-forward.
    fn perform_all(&mut self, at_ns: u64, replica: usize, mut actions: Vec<Action>) {
        for action in actions.drain(..) {
            self.perform(at_ns, replica, action);
        }
        self.spare.actions = actions;
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
        self.totals.seqs_run += shape.sequences();
        self.totals.tokens_run += shape.tokens;
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

    /// Counts the end of a request at a replica; some arrivals wait for ends.
    fn end(&mut self, replica: usize, outcome: &Outcome) {
        self.stopped |= self.observer.ended(outcome).is_break();
        self.totals.ended += 1;
        self.totals.last_end_ns = self.now_ns;
        self.pending.freed.push(replica);
        let how = if outcome.refused { trace::Outcome::Refused } else { trace::Outcome::Completed };
        self.source.ended(outcome.request, self.now_ns, how);
    }
}

impl Replica {
    /// Returns replica `number` of a fleet, up and idle.
    fn new(settings: &Settings, number: usize) -> Result<Self, SettingsError> {
        let mut core = Core::new(settings.core_of(number))?;
        core.omit_tokens();
        let (hardware, block_size) = (settings.hardware_of(number), settings.core.block_size);
        let slow = settings.routing.slow.iter().find(|slow| slow.replica as usize == number);
        Ok(Self {
            core,
            in_flight: None,
            leap_first_ns: 0,
            links: Links::new(hardware, &settings.model, block_size, &settings.far_links),
            state: State::Up,
            life: 0,
            slowness: slow.map_or(1.0, |slow| slow.factor),
            step_ends_ns: 0,
            busy_ns: 0,
        })
    }

    /// Returns the duration of a step on a slow replica.
    fn slowed(duration_ns: u64, slowness: f64) -> u64 {
        if slowness == 1.0 { duration_ns } else { (duration_ns as f64 * slowness).round() as u64 }
    }
}

#[cfg(test)]
mod tests;
