//! Replicas that fail in the middle of a replay. See [`crate::faults`] for what becomes of their requests.

use trunkline_core::event::Event;
use trunkline_core::{Request, RequestId};

use super::{Fleet, State, What};

impl Fleet<'_> {
    pub(super) fn schedule_faults(&mut self) {
        for (failure, it) in self.settings.routing.failures.iter().enumerate() {
            self.schedule(it.at_ns, What::Fail { failure });
            if let Some(back_ns) = it.back_ns {
                self.schedule(back_ns, What::Return { replica: it.replica as usize });
            }
        }
    }

    pub(super) fn fail(&mut self, failure: usize) {
        let failure = self.settings.routing.failures[failure];
        let at = failure.replica as usize;
        let replica = &mut self.replicas[at];
        replica.life += 1;
        replica.state = if failure.back_ns.is_some() { State::Down } else { State::Gone };
        if let Some(step) = replica.in_flight.take() {
            replica.busy_ns -= replica.step_ends_ns - self.now_ns;
            replica.core.recycle(step);
        }
        self.lose_copies(at);
        self.router.lost(at);
        self.observer.replica(self.now_ns, failure.replica, false);
        self.open_doors();
        self.tell(at, Event::WorkerLost);
        if failure.back_ns.is_none() {
            for request in self.flights.at(failure.replica) {
                self.tell(at, Event::Abort(RequestId(request)));
            }
        }
        self.place_displaced();
    }

    pub(super) fn come_back(&mut self, replica: usize) {
        self.replicas[replica].state = State::Up;
        self.observer.replica(self.now_ns, replica as u32, true);
        self.open_doors();
        self.tell(replica, Event::WorkerJoined);
    }

    /// New requests go to replicas that are up; if none is, to those that will be.
    fn open_doors(&mut self) {
        let any_up = self.replicas.iter().any(|replica| replica.state == State::Up);
        let open = if any_up { State::Up } else { State::Down };
        for (load, replica) in self.loads.iter_mut().zip(&self.replicas) {
            load.open = replica.state == open;
        }
    }

    /// Sends requests elsewhere that the core of a failed replica gave up, or was told to.
    fn place_displaced(&mut self) {
        for number in std::mem::take(&mut self.displaced) {
            self.rerouted += 1;
            let request = self.request(number);
            let pick = self.pick(number, &request);
            let flight = self.flights.get(number);
            self.meters.resubmit(flight, self.now_ns, pick.replica);
            let tenant = u64::from(flight.tenant);
            self.place(pick, Request { tenant, ..request });
        }
    }
}
