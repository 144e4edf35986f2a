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

use trunkline_cluster::{Cluster, EngineId, Input, Output};
use trunkline_core::event::{Action, Event};
use trunkline_core::step::Step;
use trunkline_core::{BlockHash, FinishReason, Namespace, Request, RequestId};

use crate::flights::Flights;
use crate::meters::Meters;
use crate::settings::{Arrivals, Settings, SettingsError};
use crate::worker::Worker;
use trunkline_sim_perf::cost::{CostModel, StepShape};
use trunkline_sim_perf::link::{Copy, Links};
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::Report;
use trunkline_sim_workload::trace::{self, Source, Sped, Trace, TraceError, generated_token};

mod arriving;
mod copying;
mod faults;
mod leap;
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

/// What one engine of the cluster waits for.
struct Replica {
    /// Nothing while no step is in flight, and in a leap.
    in_flight: Option<Box<Step>>,
    /// When the first step of the leap ended that is under way.
    leap_first_ns: u64,
    links: Links,
    /// How often it failed: which life it is in.
    life: u32,
    /// By what the durations of its steps are multiplied.
    slowness: f64,
    step_ends_ns: u64,
    busy_ns: u64,
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
    cluster: Cluster,
    replicas: Vec<Replica>,
    flights: Flights,
    rerouted: u64,
    /// Requests that a core gave up on, to be submitted again.
    again: Vec<u64>,
    worker: Worker,
    meters: Meters<'a>,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    outputs: Vec<Output>,
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
            replicas.push(Replica {
                in_flight: None,
                leap_first_ns: 0,
                links: Links::new(
                    settings.hardware_of(number),
                    &settings.model,
                    settings.core.block_size,
                    &settings.far_links,
                ),
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
        let mut cluster = Cluster::new(&settings.cluster()).map_err(SettingsError::Cluster)?;
        cluster.omit_tokens();
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
            cluster,
            flights: Flights::default(),
            rerouted: 0,
            again: Vec::new(),
            replicas,
            worker: Worker::new(settings.draft_acceptance),
            now_ns: 0,
            queue: BinaryHeap::new(),
            outputs: Vec::new(),
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
        let spare = self.cluster.spare_result(engine(replica));
        let result = self.worker.answer(&step, spare);
        self.meters.step_ended(&mut self.flights, replica, &step.seqs, &result.ends);
        self.cluster.recycle(engine(replica), step);
        self.tell(replica, Event::StepFinished(result));
    }

    /// Makes a request that is under way, with the tokens that its client has.
    fn request(&mut self, number: u64) -> Request {
        let flight = self.flights.get(number);
        let traced = &flight.traced;
        let mut request = Request::new(RequestId(number), self.root, traced.prompt(), traced.output_tokens);
        request.tenant = u64::from(flight.tenant);
        request.generated = (0..flight.n_generated).map(|n| generated_token(number, n)).collect();
        request.hashes.reserve_exact(request.prompt.capacity() / self.block_size as usize);
        request.hash_prompt(self.block_size);
        request
    }

    /// Delivers an event of a replica's worker to the cluster.
    fn tell(&mut self, replica: usize, event: Event) {
        self.input(Input::Engine(engine(replica), event));
    }

    /// Delivers an input to the cluster and performs its outputs.
    fn input(&mut self, input: Input) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.cluster.handle(self.now_ns, input, &mut outputs);
        self.perform_all(self.now_ns, outputs);
        while let Some(number) = self.again.pop() {
            self.rerouted += 1;
            self.arrive(number, None);
        }
        debug_assert_eq!(
            self.cluster.next_deadline_ns(),
            None,
            "traced requests have no deadline, so nothing is to be ticked"
        );
    }

    /// Performs the outputs of the cluster at `at_ns`, which is now unless decode steps were fast-forwarded.
    fn perform_all(&mut self, at_ns: u64, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            self.perform(at_ns, output);
        }
        self.outputs = outputs;
    }

    fn perform(&mut self, at_ns: u64, output: Output) {
        match output {
            Output::Engine(engine, action) => self.perform_action(at_ns, engine.index(), action),
            Output::Placed { request, engine } => {
                let flight = self.flights.get(request.0);
                let is_new = flight.replica == u32::MAX;
                flight.replica = engine.0;
                if is_new {
                    self.meters.submit(flight, self.now_ns, engine.index());
                } else {
                    self.meters.resubmit(flight, at_ns, engine.index());
                }
            }
            Output::Moved { request, from, to, .. } => {
                let flight = self.flights.get(request.0);
                flight.replica = to.0;
                self.rerouted += 1;
                self.meters.take_back(flight, at_ns, from.index());
                self.meters.resubmit(flight, at_ns, to.index());
            }
            Output::Cluster(Action::Refuse { request, .. } | Action::Finish { request, .. }) => {
                // No replica is left that could run it.
                let replica = self.flights.get(request.0).replica as usize;
                self.refuse(at_ns, replica, request);
            }
            Output::Cluster(_) | Output::Emptied(_) => unreachable!("a replay neither flushes nor drains"),
        }
    }

    fn perform_action(&mut self, at_ns: u64, replica: usize, action: Action) {
        match action {
            Action::Token { request, token } => {
                self.meters.token(self.flights.get(request.0), at_ns, request.0, token);
            }
            Action::RunStep(step) => self.begin_step(at_ns, replica, step),
            Action::Transfer(transfer) => self.begin_copy(at_ns, replica, &transfer),
            Action::Finish { request, reason: FinishReason::Error, .. } => self.send_again(at_ns, replica, request),
            Action::Finish { request, reason, usage } => {
                assert_eq!(reason, FinishReason::Length, "traced requests end by length alone");
                let flight = self.flights.remove(request.0);
                let outcome = self.meters.finish(&flight, at_ns, replica, request.0, &usage);
                self.end(replica, &outcome);
            }
            Action::Refuse { request, .. } => self.refuse(at_ns, replica, request),
            Action::ResetWorker | Action::Flushed { .. } | Action::Drained | Action::Withdrawn(_) => {
                unreachable!("a modelled worker answers what it was asked, and a replay asks for nothing else")
            }
        }
    }

    /// A core gave up on a request after too many failures of workers. Modelled failures are not the request's fault, so it is
    /// submitted again with the tokens that it has, as a client that retries would do.
    fn send_again(&mut self, at_ns: u64, replica: usize, request: RequestId) {
        let flight = self.flights.get(request.0);
        self.meters.take_back(flight, at_ns, replica);
        self.again.push(request.0);
    }

    fn refuse(&mut self, at_ns: u64, replica: usize, request: RequestId) {
        let flight = self.flights.remove(request.0);
        let outcome = self.meters.refuse(&flight, at_ns, replica, request.0);
        self.end(replica, &outcome);
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
            let stats = &self.cluster.core(engine(replica)).stats();
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

/// Returns the engine of the cluster that a replica is.
fn engine(replica: usize) -> EngineId {
    EngineId(replica as u32)
}

impl Replica {
    /// How long a step takes that would take `duration_ns` if the replica were well.
    fn slowed(duration_ns: u64, slowness: f64) -> u64 {
        if slowness == 1.0 { duration_ns } else { (duration_ns as f64 * slowness).round() as u64 }
    }
}

#[cfg(test)]
mod tests;
