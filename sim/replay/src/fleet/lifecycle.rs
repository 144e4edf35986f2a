//! Replicas that start, stop and fail, by the same inputs of the cluster as in a server.
//!
//! | change | inputs of the cluster |
//! |---|---|
//! | order | `OpenEngine`: requests wait at the replica only while none is up |
//! | start | `WorkerJoined` |
//! | stop | `DrainEngine`, and `WorkerLost` once the replica is empty |
//! | failure at a given time | `WorkerLost`, or `Retire` without a return ([`crate::faults`]) |
//! | failure at random | `WorkerLost`, and `DrainEngine` so that requests move ([`crate::random_failures`]) |
//!
//! A replica that stops or fails loses the KV on device and host, and the tiers too, unless one of them is shared: blocks in shared
//! storage outlive the replica, and the core then keeps all tiers.

use trunkline_cluster::{EngineState, Input};
use trunkline_core::core::event::Event;
use trunkline_sim_report::observer::ReplicaChange;
use trunkline_sim_report::service::{ServiceLog, ServiceReport};

use super::phase::Phase;
use super::scaling::Scaling;
use super::{Fleet, SimEvent, TIME_MAX_NS, engine};
use crate::settings::{Settings, SettingsError};

/// Starts, stops and failures of a fleet.
pub(super) struct Lifecycle {
    /// Requests moved to another replica.
    pub rerouted: u64,
    /// Requests that a core gave up on, to be submitted again.
    pub again: Vec<u64>,
    /// Replicas without a request since the last input.
    pub emptied: Vec<usize>,
    pub log: ServiceLog,
    /// Autoscaling, if the number of replicas changes by a policy.
    pub scaling: Option<Scaling>,
}

impl Lifecycle {
    pub(super) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let scaling = settings.routing.autoscale.as_ref().map(Scaling::new).transpose()?;
        Ok(Self { rerouted: 0, again: Vec::new(), emptied: Vec::new(), log: ServiceLog::default(), scaling })
    }

    /// Returns the report of the replicas in service; `None` if no replica changes and none has a price.
    pub(super) fn report(&self, settings: &Settings, duration_ns: u64) -> Option<ServiceReport> {
        if !settings.replicas_change() && settings.prices.is_empty() {
            return None;
        }
        let prices = settings.replica_prices();
        Some(self.log.report(settings.n_replicas(), settings.initial_replicas(), duration_ns, &prices))
    }
}

impl Fleet<'_> {
    /// Brings the replicas of the start up, and schedules failures and observations.
    pub(super) fn start_replicas(&mut self) {
        let initial = self.settings.initial_replicas() as usize;
        for replica in 0..initial {
            self.tell(replica, Event::WorkerJoined);
            self.schedule_random_failure(replica);
        }
        for replica in initial..self.replicas.len() {
            self.replicas[replica].phase = Phase::Off;
            self.input(Input::DrainEngine(engine(replica)));
        }
        self.schedule_faults();
        self.schedule_scaling();
    }

    /// Returns `true` once all requests have ended, after which no replica starts, stops or fails at random any more.
    pub(super) fn is_finished(&self) -> bool {
        self.totals.taken == self.totals.ended && self.pending.next_ns.is_none()
    }

    /// Notes a change of a replica, before the cluster is informed.
    pub(super) fn change(&mut self, replica: usize, change: ReplicaChange) {
        let requests = self.cluster.status(engine(replica)).load.requests;
        self.lifecycle.log.record(self.now_ns, replica as u32, change, requests);
        self.watched.observer.replica(self.now_ns, replica as u32, change);
    }

    /// Drops the steps and copies of a replica whose worker ends; pending events of the worker become void.
    pub(super) fn lose_worker(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.life += 1;
        replica.pipeline.clear(self.now_ns);
        for step in replica.in_flight.drain(..) {
            self.cluster.recycle(engine(at), step);
        }
        self.lose_copies(at);
    }

    /// Ends the worker of a replica, with the memory of the replica.
    pub(super) fn end_worker(&mut self, replica: usize, phase: Phase, change: ReplicaChange) {
        self.replicas[replica].phase = phase;
        self.lose_worker(replica);
        self.change(replica, change);
        self.tell(replica, Event::WorkerLost);
        let tiers = &self.settings.core.tiers;
        if !tiers.is_empty() && tiers.iter().all(|tier| !tier.shared) {
            self.tell(replica, Event::FlushCache);
        }
    }

    /// Takes a worker with an empty cache into service.
    pub(super) fn join(&mut self, replica: usize, change: ReplicaChange) {
        self.replicas[replica].phase = Phase::Up;
        self.change(replica, change);
        if self.state(replica) == EngineState::Closed {
            self.input(Input::OpenEngine(engine(replica)));
        }
        self.tell(replica, Event::WorkerJoined);
        self.schedule_random_failure(replica);
        // Requests that waited for a repair need not wait any longer.
        for other in 0..self.replicas.len() {
            if self.replicas[other].phase == Phase::Repair {
                self.input(Input::DrainEngine(engine(other)));
            }
        }
    }

    fn state(&self, replica: usize) -> EngineState {
        self.cluster.status(engine(replica)).state
    }

    /// Returns `true` if another replica takes requests, or holds them until a worker joins.
    pub(super) fn another_takes(&self, replica: usize) -> bool {
        let takes = |other: &usize| matches!(self.state(*other), EngineState::Up | EngineState::Absent);
        (0..self.replicas.len()).filter(|other| *other != replica).any(|other| takes(&other))
    }

    /// Makes sure that the requests of a replica about to go have a place to go to: a replica under repair, or a new one.
    pub(super) fn replace(&mut self, replica: usize) {
        if self.another_takes(replica) {
            return;
        }
        match self.replicas.iter().position(|other| other.phase == Phase::Repair) {
            Some(other) => self.input(Input::OpenEngine(engine(other))),
            None => {
                self.order();
            }
        }
    }

    /// Stops a draining replica without requests.
    pub(super) fn stop_emptied(&mut self, replica: usize) {
        if self.replicas[replica].phase == Phase::Draining {
            self.end_worker(replica, Phase::Off, ReplicaChange::Stopped);
        }
    }

    fn schedule_random_failure(&mut self, replica: usize) {
        let Some(random) = &self.settings.routing.random_failures else { return };
        let it = &mut self.replicas[replica];
        let at_ns = self.now_ns.saturating_add(random.service_ns(replica, it.services));
        it.services += 1;
        let life = it.life;
        if at_ns >= TIME_MAX_NS {
            return;
        }
        self.schedule(at_ns, SimEvent::FailAtRandom { replica, life });
    }

    /// Fails a replica for the time of a repair. A draining replica does not come back.
    pub(super) fn fail_at_random(&mut self, replica: usize) {
        let Some(random) = &self.settings.routing.random_failures else { return };
        if self.is_finished() || self.is_stuck() {
            return;
        }
        if self.replicas[replica].phase == Phase::Draining {
            return self.end_worker(replica, Phase::Off, ReplicaChange::Lost);
        }
        let back_ns = self.now_ns.saturating_add(random.repair_ns(replica, self.replicas[replica].services - 1));
        self.end_worker(replica, Phase::Repair, ReplicaChange::Failed);
        if self.another_takes(replica) {
            self.input(Input::DrainEngine(engine(replica)));
        }
        self.schedule(back_ns, SimEvent::Return { replica, life: self.replicas[replica].life });
    }
}
