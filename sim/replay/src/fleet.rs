//! Discrete-event driver: a cluster of engines, an event queue, a modelled worker, and modelled links.
//!
//! A replica is an engine of a [`Cluster`], with a step in flight, and links to the host and tiers. The cluster chooses the replica
//! of each request. Time jumps to the next event: an entry of the queue or an arrival of the [`Source`]. All consequences at that
//! instant are handled before the next event. Events of one instant are ordered by `SimEvent`, arrivals last, whenever they were
//! scheduled; so fast-forwarded steps change nothing (`fleet/fast_forward.rs`). Events of a failed replica stay in the queue with
//! the number of a previous life and are skipped; so are outdated wake-ups of a link (`fleet/copying.rs`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

use trunkline_cluster::{Cluster, EngineId, Input, Move, Output};
use trunkline_core::Step;
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{FinishReason, Request, RequestId};

use crate::in_flight::InFlightRequests;
use crate::meters::Meters;
use crate::settings::{Arrivals, Settings, SettingsError};
use crate::worker::Worker;
use trunkline_sim_perf::cost::{CostModel, Largest, PipelinedStep, StepShape, WeightReads};
use trunkline_sim_perf::link::{Copy, Links};
use trunkline_sim_report::observer::{Observer, ReplicaChange, StepSeen};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::{Extrapolated, Report, TooLong};
use trunkline_sim_workload::trace::{self, Looped, Source, TimeScaled, Trace};

mod arriving;
mod copying;
mod error;
mod fast_forward;
mod faults;
mod held;
mod lifecycle;
mod lock_step;
mod phase;
mod pipeline;
mod reporting;
mod roots;
mod scaling;
mod shared_storage;
mod turns;
mod watched;

pub use self::error::ReplayError;
use self::held::Held;
use self::lifecycle::Lifecycle;
use self::lock_step::LockSteps;
use self::phase::Phase;
use self::pipeline::Pipeline;
use self::roots::Roots;
use self::shared_storage::SharedStorage;
use self::turns::Turns;
use self::watched::Watched;
pub use self::watched::{RecordReplayError, record};

/// Ends of requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;

/// Virtual time at which a replay is given up. Half of what 63 bits hold: the end of any step that begins before fits.
const TIME_MAX_NS: u64 = 1 << 62;

/// Replays `trace` to the end. Calls `progress` with the number of ended requests now and then.
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
    let mut source = prepare(source, settings)?;
    let mut fleet = Fleet::new(&mut *source, settings, cost, Watched::by(observer))?;
    fleet.run()?;
    let mut report = fleet.report();
    report.wall_s = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Checks the settings, and puts the users of a closed loop before the source if the settings have any.
fn prepare<'a>(source: &'a mut dyn Source, settings: &Settings) -> Result<Box<dyn Source + 'a>, ReplayError> {
    settings.validate()?;
    let Some(shape) = settings.arrivals.closed() else { return Ok(Box::new(source)) };
    source.wait_for_no_end();
    if source.waits_for_ends() {
        return Err(ReplayError::OwnUsers);
    }
    Ok(Box::new(Looped::new(source, shape)))
}

/// Pending step and copies of one engine of the cluster.
struct Replica {
    /// Steps in flight, oldest first; empty between steps and during a fast-forward.
    in_flight: VecDeque<Box<Step>>,
    pipeline: Pipeline,
    /// End of the first step of the current fast-forward.
    fast_forward_first_ns: u64,
    links: Links,
    /// Positions that the layer groups hold; of a model with several.
    held: Held,
    /// Number of failures so far, to identify events of earlier lives.
    life: u32,
    /// Factor on the durations of the steps.
    slowness: f64,
    /// Largest steps that the times of this replica were measured with.
    largest: Option<Largest>,
    phase: Phase,
    /// Number of times in service so far, to draw the length of each.
    services: u64,
}

/// Event of the simulation. Events of one instant are handled in this order, then by replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Fail {
        failure: usize,
    },
    FailAtRandom {
        replica: usize,
        life: u32,
    },
    Return {
        replica: usize,
        life: u32,
    },
    /// End of the start delay of a replica.
    Ready {
        replica: usize,
        life: u32,
    },
    /// Wake-up of a link direction; void if the copies under way there have changed since.
    LinkWakeUp {
        replica: usize,
        direction: usize,
        version: u64,
    },
    TransferEnd {
        replica: usize,
        life: u32,
        id: u64,
    },
    LookupEnd {
        replica: usize,
        lookup: u64,
    },
    StepEnd {
        replica: usize,
        life: u32,
    },
    /// End of a step of a group in lock step, after the ends of its ranks, or start of one after an idle time.
    LockStep {
        group: usize,
    },
    /// Observation by the autoscaler.
    Scale,
}

/// Entry of the event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at_ns: u64,
    what: SimEvent,
}

struct Fleet<'a> {
    settings: &'a Settings,
    cost: &'a dyn CostModel,
    watched: Watched<'a>,
    /// `true` if steady decode steps are fast-forwarded.
    can_fast_forward: bool,
    pending: Pending<'a>,
    block_size: u32,
    roots: Roots,
    cluster: Cluster,
    replicas: Vec<Replica>,
    shared: SharedStorage,
    flights: InFlightRequests,
    lifecycle: Lifecycle,
    lock_steps: LockSteps,
    worker: Worker,
    meters: Meters<'a>,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    spare: Spare,
    totals: Totals,
}

/// Requests that have not arrived yet.
struct Pending<'a> {
    source: TimeScaled<&'a mut dyn Source>,
    /// Requests read ahead, if replicas take turns and the replay fast-forwards.
    turns: Option<Turns>,
    /// `true` if requests go to the replicas in turn, and replicas affect each other in no other way.
    in_turn: bool,
    /// `true` if all requests arrive at once, and the router does not send them in turn.
    routes_at_once: bool,
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
    /// Outputs of the cluster.
    outputs: Vec<Output>,
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
    /// Requests whose client's limit the trace does not say: `max_tokens` is the length of the answer.
    unlimited: u64,
    /// Requests longer than the model's context.
    too_long: Option<TooLong>,
    /// Time of the last end, nanoseconds.
    last_end_ns: u64,
    /// Sequences of all steps.
    seqs_run: u64,
    /// Tokens of all steps, drafts included.
    tokens_run: u64,
    /// Reads of weights.
    weights: WeightReads,
    /// Steps larger than any that their time was measured with, of the kind of replica with the furthest.
    extrapolated: Option<Extrapolated>,
    /// Steps begun in fast-forwards.
    fast_forwarded: u64,
    /// Fast-forwards, counted again when one resumes after a pause.
    fast_forwards: u64,
}

impl Totals {
    /// Takes note of a step larger than any that its time was measured with.
    fn measure(&mut self, shape: &StepShape, largest: Option<Largest>) {
        if let Some(measured) = largest
            && measured.is_exceeded_by(&shape.size())
        {
            let step = Extrapolated { largest: shape.size(), measured };
            self.extrapolated = Some(self.extrapolated.map_or(step, |before| before.or_further(step)));
        }
    }
}

impl<'a> Fleet<'a> {
    fn new(
        source: &'a mut dyn Source,
        settings: &'a Settings,
        cost: &'a dyn CostModel,
        watched: Watched<'a>,
    ) -> Result<Self, ReplayError> {
        settings.validate()?;
        let replicas =
            (0..settings.n_replicas() as usize).map(|number| Replica::new(settings, number, cost)).collect::<Vec<_>>();
        let mut cluster = Cluster::new(&settings.cluster()).map_err(SettingsError::Cluster)?;
        cluster.simulate();
        let speed = settings.arrivals.speed().unwrap_or(1.0);
        let meters = Meters::new(&settings.tenants, replicas.len());
        let lock_steps = LockSteps::new(settings);
        let can_fast_forward = !watched.wants_steps()
            && !settings.replicas_change()
            && meters.is_alone()
            && settings.group_sizes.is_empty()
            && lock_steps.is_empty();
        if !settings.arrivals.is_timed() {
            source.wait_for_no_end();
        }
        let source = TimeScaled::new(source, speed);
        Ok(Self {
            settings,
            cost,
            can_fast_forward,
            watched,
            pending: Pending {
                turns: Turns::new(settings, &source).filter(|_| can_fast_forward),
                source,
                in_turn: turns::are_taken(settings),
                routes_at_once: turns::are_routed_at_once(settings),
                arrivals: settings.arrivals,
                next_ns: None,
                ahead: vec![VecDeque::new(); replicas.len()],
                freed: Vec::new(),
            },
            block_size: settings.core.block_size,
            roots: Roots::default(),
            meters,
            cluster,
            flights: InFlightRequests::default(),
            lifecycle: Lifecycle::new(settings)?,
            lock_steps,
            replicas,
            shared: SharedStorage::new(settings),
            worker: Worker::new(settings.draft_acceptance),
            now_ns: 0,
            queue: BinaryHeap::new(),
            spare: Spare::default(),
            totals: Totals::default(),
        })
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        self.start_replicas();
        self.begin_arrivals()?;
        loop {
            self.follow_up()?;
            if self.watched.stopped {
                return Err(ReplayError::Stopped);
            }
            let queued_ns = self.queue.peek().map(|Reverse(next)| next.at_ns);
            let next_ns = queued_ns.into_iter().chain(self.pending.next_ns).min();
            if next_ns.is_some_and(|next_ns| next_ns >= TIME_MAX_NS) {
                return Err(ReplayError::EndOfTime);
            }
            // Copies have deadlines, and requests may have.
            if let Some(deadline_ns) = self.cluster.next_deadline_ns()
                && next_ns.is_none_or(|next_ns| deadline_ns < next_ns)
            {
                self.now_ns = self.now_ns.max(deadline_ns);
                self.input(Input::Client(Event::Tick));
                continue;
            }
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
            SimEvent::StepEnd { replica, life } if life == self.replicas[replica].life => self.end_step(replica),
            SimEvent::TransferEnd { replica, life, id } if life == self.replicas[replica].life => {
                let ended = self.shared.end(replica, id);
                self.answer_settled_lookups();
                self.tell(replica, ended);
            }
            SimEvent::LookupEnd { replica, lookup } => self.end_lookup(replica, lookup),
            SimEvent::StepEnd { .. } | SimEvent::TransferEnd { .. } => {}
            SimEvent::LinkWakeUp { replica, direction, version } => self.wake_up_link(replica, direction, version),
            SimEvent::Fail { failure } => self.fail(failure),
            SimEvent::FailAtRandom { replica, life } if life == self.replicas[replica].life => {
                self.fail_at_random(replica);
            }
            SimEvent::Return { replica, life } if life == self.replicas[replica].life => {
                self.join(replica, ReplicaChange::Back);
            }
            SimEvent::Ready { replica, life } if life == self.replicas[replica].life => {
                self.join(replica, ReplicaChange::Started);
            }
            SimEvent::FailAtRandom { .. } | SimEvent::Return { .. } | SimEvent::Ready { .. } => {}
            SimEvent::LockStep { group } => self.begin_lock_step(group),
            SimEvent::Scale => self.scale(),
        }
    }

    fn schedule(&mut self, at_ns: u64, what: SimEvent) {
        self.queue.push(Reverse(Scheduled { at_ns, what }));
    }

    fn end_step(&mut self, replica: usize) {
        if self.can_fast_forward && self.fast_forward(replica) {
            return;
        }
        let step = self.replicas[replica].in_flight.pop_front().expect("a step in flight ends once");
        let spare = self.cluster.spare_result(engine(replica));
        let result = self.worker.answer(&step, &self.flights, spare);
        self.meters.step_ended(&mut self.flights, replica, &step.seqs, &result.ends);
        self.cluster.recycle(engine(replica), step);
        self.tell(replica, Event::StepFinished(result));
    }

    /// Makes a request that is under way, with the tokens that its client has.
    fn request(&mut self, number: u64) -> Request {
        let flight = self.flights.get(number);
        let traced = &flight.traced;
        let terms = traced.terms;
        let model = &self.settings.model;
        let root = match self.settings.prefix_caching {
            true => self.roots.of(model, terms.namespace),
            false => Roots::of_request(model, number),
        };
        let mut request = Request::new(RequestId(number), root, traced.prompt(), traced.output_tokens);
        request.tenant = if self.settings.tenants.is_traced() { terms.tenant.into() } else { u64::from(flight.tenant) };
        (request.priority, request.background) = (terms.priority, terms.background);
        request.prefetch = traced.is_prefetch();
        let limit = terms.max_tokens.filter(|_| !request.prefetch);
        request.client_limit = limit.map(|limit| limit.max(traced.output_tokens));
        if self.settings.hints {
            request.retention = traced.retention.to_vec();
        }
        // Requests that all arrive at once measure a capacity, not service in time.
        let timed = self.pending.arrivals != Arrivals::AtOnce;
        request.deadline_ns = terms.deadline_ns.filter(|_| timed).map(|ns| flight.submitted_ns.saturating_add(ns));
        request.generated = (0..flight.n_generated).map(|n| traced.output_token(number, n)).collect();
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
        let mut outputs = std::mem::take(&mut self.spare.outputs);
        self.watched.input(self.now_ns, &input);
        self.cluster.handle(self.now_ns, input, &mut outputs);
        self.perform_all(self.now_ns, outputs);
        while let Some(number) = self.lifecycle.again.pop() {
            self.lifecycle.rerouted += 1;
            self.arrive(number, None);
        }
        while let Some(replica) = self.lifecycle.emptied.pop() {
            self.stop_emptied(replica);
        }
    }

    /// Performs the outputs of the cluster at `at_ns`, which is now unless decode steps were fast-forwarded.
    fn perform_all(&mut self, at_ns: u64, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            self.perform(at_ns, output);
        }
        self.spare.outputs = outputs;
    }

    fn perform(&mut self, at_ns: u64, output: Output) {
        match output {
            Output::Engine(engine, action) => self.perform_action(at_ns, engine.index(), action),
            Output::Placed { request, engine } => {
                let turns = self.pending.turns.as_ref();
                let in_turn = turns.is_none_or(|turns| turns.replica_of(request.0) == engine.index());
                assert!(in_turn, "the router sends requests in turn");
                let flight = self.flights.get(request.0);
                let is_new = flight.replica == u32::MAX;
                flight.replica = engine.0;
                if is_new {
                    self.meters.submit(flight, self.now_ns, engine.index());
                } else {
                    self.meters.resubmit(flight, at_ns, engine.index());
                }
            }
            Output::Moved { request, from, to, why } => {
                let flight = self.flights.get(request.0);
                flight.replica = to.0;
                self.lifecycle.rerouted += u64::from(why != Move::HandedOver);
                self.meters.take_back(flight, at_ns, from.index());
                self.meters.resubmit(flight, at_ns, to.index());
            }
            Output::Cluster(Action::Refuse { request, .. } | Action::Finish { request, .. }) => {
                // No replica is left that could run it.
                let replica = self.flights.get(request.0).replica as usize;
                self.refuse(at_ns, replica, request);
            }
            Output::Health { .. } => {}
            Output::Emptied(engine) => self.lifecycle.emptied.push(engine.index()),
            Output::Cluster(_) => unreachable!("a replay neither flushes all caches nor ends the cluster"),
        }
    }

    fn perform_action(&mut self, at_ns: u64, replica: usize, action: Action) {
        match action {
            Action::Token { request, token } => {
                let flight = self.flights.get(request.0);
                if let Some(scaling) = &mut self.lifecycle.scaling {
                    scaling.token(flight, at_ns);
                }
                self.meters.token(flight, at_ns, request.0, token);
            }
            Action::RunStep(step) => self.begin_step(at_ns, replica, step),
            Action::Transfer(transfer) => self.begin_copy(at_ns, replica, &transfer),
            Action::Lookup(lookup) => self.look_up(at_ns, replica, &lookup),
            // A modelled copy ends in its time; a model of the saving would need the copies that others queue after it.
            Action::Release { .. } | Action::Adopt { .. } | Action::Cancel { .. } | Action::PromptValued { .. } => {}
            Action::Finish { request, reason: FinishReason::Error, .. } => self.send_again(at_ns, replica, request),
            Action::Finish { request, reason, usage } => {
                let flight = self.flights.remove(request.0);
                if flight.traced.is_prefetch() {
                    return self.end_prefetch(replica, request, usage.loaded_tokens);
                }
                let outcome = match reason {
                    FinishReason::Length => self.meters.finish(&flight, at_ns, replica, request.0, &usage),
                    FinishReason::Timeout => self.meters.time_out(&flight, at_ns, replica, request.0, &usage),
                    _ => unreachable!("traced requests end by length or deadline alone"),
                };
                if let Some(scaling) = &mut self.lifecycle.scaling {
                    scaling.end(outcome.tpot_ns);
                }
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
        self.lifecycle.again.push(request.0);
    }

    fn refuse(&mut self, at_ns: u64, replica: usize, request: RequestId) {
        let flight = self.flights.remove(request.0);
        if flight.traced.is_prefetch() {
            return self.end_prefetch(replica, request, 0);
        }
        let outcome = self.meters.refuse(&flight, at_ns, replica, request.0);
        self.end(replica, &outcome);
    }

    fn begin_step(&mut self, at_ns: u64, replica: usize, step: Box<Step>) {
        let shape = self.replicas[replica].held.shape(&step);
        self.totals.seqs_run += shape.sequences();
        self.totals.tokens_run += shape.tokens;
        self.totals.measure(&shape, self.replicas[replica].largest);
        if let Some(group) = self.lock_steps.group_of(replica) {
            self.totals.weights += self.cost.weight_reads(replica, &shape);
            return self.await_group(at_ns, replica, group, shape, step);
        }
        let it = &mut self.replicas[replica];
        let times = if it.pipeline.has_stages() {
            self.totals.weights += self.cost.weight_reads(replica, &shape);
            self.cost.replica_pipelined(replica, &shape)
        } else {
            let timed = self.cost.timed_step(replica, &shape);
            self.totals.weights += timed.reads;
            PipelinedStep::undivided(timed.ns)
        };
        let awaits_token = step.seqs.iter().any(|seq| seq.input_from_last);
        let times = it.pipeline.push(at_ns, times, it.slowness, awaits_token);
        self.started(replica, times, shape, step);
    }

    /// Notes the start and the end of a step on a replica.
    fn started(&mut self, replica: usize, (begin_ns, end_ns): (u64, u64), shape: StepShape, step: Box<Step>) {
        self.meters.step_began(&mut self.flights, begin_ns, replica, &step.seqs);
        let it = &mut self.replicas[replica];
        it.in_flight.push_back(step);
        let life = it.life;
        if !self.can_fast_forward && self.watched.observer.wants_steps() {
            let stats = &self.cluster.core(engine(replica)).stats();
            let weights = self.cost.weight_reads(replica, &shape);
            self.watched.observer.step(&StepSeen { replica: replica as u32, begin_ns, end_ns, shape, weights, stats });
        }
        self.schedule(end_ns, SimEvent::StepEnd { replica, life });
    }

    /// Counts the end of a request at a replica; some arrivals wait for ends.
    fn end(&mut self, replica: usize, outcome: &Outcome) {
        self.watched.stopped |= self.watched.observer.ended(outcome).is_break();
        let how = if outcome.refused { trace::Outcome::Refused } else { trace::Outcome::Completed };
        self.free(replica, outcome.request, how);
    }

    /// Takes note of the end of a prefetch, which is no request with an outcome.
    fn end_prefetch(&mut self, replica: usize, request: RequestId, loaded_tokens: u32) {
        self.meters.prefetched(loaded_tokens);
        self.free(replica, request.0, trace::Outcome::Completed);
    }

    fn free(&mut self, replica: usize, request: u64, how: trace::Outcome) {
        self.totals.ended += 1;
        self.totals.last_end_ns = self.now_ns;
        self.pending.freed.push(replica);
        self.pending.source.ended(request, self.now_ns, how);
    }
}

/// Returns the engine of the cluster that a replica is.
fn engine(replica: usize) -> EngineId {
    EngineId(replica as u32)
}

impl Replica {
    /// Returns replica `number` of a fleet, up and idle.
    fn new(settings: &Settings, number: usize, cost: &dyn CostModel) -> Self {
        let hardware = settings.hardware_of(number);
        let device_bytes = settings.device_block_bytes(settings.parallel_of(number));
        let slow = settings.routing.slow.iter().find(|slow| slow.replica as usize == number);
        Self {
            in_flight: VecDeque::new(),
            pipeline: Pipeline::new(settings.core_of(number).pipeline_stages),
            fast_forward_first_ns: 0,
            links: Links::new(hardware, device_bytes, settings.block_bytes(), &settings.far_links),
            held: Held::new(settings),
            life: 0,
            slowness: slow.map_or(1.0, |slow| slow.factor),
            largest: cost.largest(number),
            phase: Phase::Up,
            services: 0,
        }
    }
}

#[cfg(test)]
mod tests;
