//! Replicas that fail in the middle of a replay. See [`crate::faults`] for the fate of their requests.

use trunkline_cluster::Input;
use trunkline_core::event::Event;

use super::{Fleet, SimEvent, engine};

impl Fleet<'_> {
    pub(super) fn schedule_faults(&mut self) {
        for (failure, it) in self.settings.routing.failures.iter().enumerate() {
            self.schedule(it.at_ns, SimEvent::Fail { failure });
            if let Some(back_ns) = it.back_ns {
                self.schedule(back_ns, SimEvent::Return { replica: it.replica as usize });
            }
        }
    }

    pub(super) fn fail(&mut self, failure: usize) {
        let failure = self.settings.routing.failures[failure];
        let at = failure.replica as usize;
        let replica = &mut self.replicas[at];
        replica.life += 1;
        replica.pipeline.clear(self.now_ns);
        for step in replica.in_flight.drain(..) {
            self.cluster.recycle(engine(at), step);
        }
        self.lose_copies(at);
        self.observer.replica(self.now_ns, failure.replica, false);
        self.input(match failure.back_ns {
            Some(_) => Input::Engine(engine(at), Event::WorkerLost),
            None => Input::Retire(engine(at)),
        });
    }

    pub(super) fn come_back(&mut self, replica: usize) {
        self.observer.replica(self.now_ns, replica as u32, true);
        self.tell(replica, Event::WorkerJoined);
    }
}
