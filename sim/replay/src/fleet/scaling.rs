//! A policy that changes the number of replicas while a replay runs. See [`crate::autoscale`].

use trunkline_cluster::Input;
use trunkline_sim_report::observer::ReplicaChange;

use super::phase::Phase;
use super::{Fleet, SimEvent, engine};
use crate::autoscale::{Autoscale, AutoscaleError, Autoscaler, Observed};
use crate::in_flight::InFlightRequest;

/// Autoscaler, and what it observes between two observations.
pub(super) struct Scaling {
    autoscaler: Autoscaler,
    /// TTFT of the first tokens since the last observation, nanoseconds.
    ttft_ns: Vec<u64>,
    /// TPOT of the requests completed since the last observation, nanoseconds.
    tpot_ns: Vec<u64>,
}

impl Scaling {
    pub(super) fn new(autoscale: &Autoscale) -> Result<Self, AutoscaleError> {
        let autoscaler = Autoscaler::new(&autoscale.policy, autoscale.initial)?;
        Ok(Self { autoscaler, ttft_ns: Vec::new(), tpot_ns: Vec::new() })
    }

    /// Notes a token, before it is counted.
    pub(super) fn token(&mut self, flight: &InFlightRequest, at_ns: u64) {
        if flight.n_generated == 0 {
            self.ttft_ns.push(at_ns - flight.submitted_ns);
        }
    }

    /// Notes the end of a request.
    pub(super) fn end(&mut self, tpot_ns: Option<u64>) {
        self.tpot_ns.extend(tpot_ns);
    }
}

impl Fleet<'_> {
    pub(super) fn schedule_scaling(&mut self) {
        if let Some(scaling) = &self.lifecycle.scaling {
            let at_ns = self.now_ns.saturating_add(scaling.autoscaler.limits().interval_ns);
            self.schedule(at_ns, SimEvent::Scale);
        }
    }

    /// Observes the fleet, and orders or releases replicas until there are as many as the policy wants.
    pub(super) fn scale(&mut self) {
        if self.is_finished() {
            return;
        }
        let mut observed = self.observe();
        let Some(scaling) = &mut self.lifecycle.scaling else { return };
        observed.ttft_ns = std::mem::take(&mut scaling.ttft_ns);
        observed.tpot_ns = std::mem::take(&mut scaling.tpot_ns);
        let (desired, present) = (scaling.autoscaler.desired(&observed), observed.provisioned());
        for _ in present..desired {
            self.order();
        }
        for _ in desired..present {
            self.release();
        }
        if desired != present || !self.is_stuck() {
            self.schedule_scaling();
        }
    }

    /// Returns `true` if a replica is up and only observations, failures at random and repairs would follow: a fault of the core, to
    /// be reported instead of observed for ever.
    pub(super) fn is_stuck(&self) -> bool {
        let is_idle = |event: &SimEvent| match event {
            SimEvent::FailAtRandom { .. } | SimEvent::Scale => true,
            SimEvent::Return { replica, .. } => self.replicas[*replica].phase != Phase::Failed,
            _ => false,
        };
        self.pending.next_ns.is_none()
            && self.replicas.iter().any(|it| it.phase == Phase::Up)
            && self.queue.iter().all(|event| is_idle(&event.0.what))
    }

    fn observe(&self) -> Observed {
        let count = |phases: &[Phase]| self.replicas.iter().filter(|it| phases.contains(&it.phase)).count() as u32;
        let waiting = (0..self.replicas.len()).map(|replica| self.cluster.core(engine(replica)).stats().waiting);
        let waiting = waiting.sum::<u32>();
        let age = |flight: &InFlightRequest| self.now_ns - flight.submitted_ns;
        let unserved = || self.flights.iter().filter(|flight| flight.n_generated == 0);
        Observed {
            now_ns: self.now_ns,
            ready: count(&[Phase::Up]),
            starting: count(&[Phase::Starting]),
            failed: count(&[Phase::Failed, Phase::Repair]),
            waiting,
            running: (self.cluster.requests() as u32).saturating_sub(waiting),
            oldest_waiting_ns: unserved().filter(|flight| !flight.began).map(age).max().unwrap_or(0),
            ttft_ns: Vec::new(),
            tpot_ns: Vec::new(),
            unserved_ns: unserved().map(age).collect(),
        }
    }

    /// Takes a draining replica back, or orders the first that is off. Returns `false` if there is none.
    pub(super) fn order(&mut self) -> bool {
        let Some(scaling) = &self.lifecycle.scaling else { return false };
        let delay_ns = scaling.autoscaler.limits().start_delay_ns;
        let first = |phase| self.replicas.iter().position(|it| it.phase == phase);
        if let Some(replica) = first(Phase::Draining) {
            self.replicas[replica].phase = Phase::Up;
            self.change(replica, ReplicaChange::Reopened);
            self.input(Input::OpenEngine(engine(replica)));
            return true;
        }
        let Some(replica) = first(Phase::Off) else { return false };
        self.replicas[replica].phase = Phase::Starting;
        self.replicas[replica].life += 1;
        self.change(replica, ReplicaChange::Ordered);
        self.input(Input::OpenEngine(engine(replica)));
        let ready = SimEvent::Ready { replica, life: self.replicas[replica].life };
        self.schedule(self.now_ns.saturating_add(delay_ns), ready);
        true
    }

    /// Takes out the replica that costs the requests least: one that is starting, one that failed, or the ready one with the fewest
    /// requests; of equal ones the last.
    fn release(&mut self) {
        let last = |phases: &[Phase]| self.replicas.iter().rposition(|it| phases.contains(&it.phase));
        if let Some(replica) = last(&[Phase::Starting]).or_else(|| last(&[Phase::Failed, Phase::Repair])) {
            self.replicas[replica].phase = Phase::Off;
            self.replicas[replica].life += 1;
            self.change(replica, ReplicaChange::Stopped);
            self.replace(replica);
            return self.input(Input::DrainEngine(engine(replica)));
        }
        let up = (0..self.replicas.len()).filter(|replica| self.replicas[*replica].phase == Phase::Up);
        let requests = |replica: usize| self.cluster.status(engine(replica)).load.requests;
        if let Some(replica) = up.min_by_key(|replica| (requests(*replica), usize::MAX - replica)) {
            self.replicas[replica].phase = Phase::Draining;
            self.change(replica, ReplicaChange::Draining);
            self.input(Input::DrainEngine(engine(replica)));
        }
    }
}
