//! Replicas that fail at given times in the middle of a replay. See [`crate::faults`] for the fate of their requests.

use trunkline_cluster::Input;
use trunkline_core::core::event::Event;
use trunkline_sim_report::observer::ReplicaChange;

use super::phase::Phase;
use super::{Fleet, SimEvent, engine};

impl Fleet<'_> {
    pub(super) fn schedule_faults(&mut self) {
        for (failure, it) in self.settings.routing.failures.iter().enumerate() {
            self.schedule(it.at_ns, SimEvent::Fail { failure });
        }
    }

    /// Fails a replica. A replica that is not in service cannot fail; one that is draining, or down already, does not come back.
    pub(super) fn fail(&mut self, failure: usize) {
        let failure = self.settings.routing.failures[failure];
        let at = failure.replica as usize;
        match (self.replicas[at].phase, failure.back_ns) {
            (Phase::Off | Phase::Starting | Phase::Gone, _) | (Phase::Failed | Phase::Repair, Some(_)) => {}
            (Phase::Draining, _) => self.end_worker(at, Phase::Off, ReplicaChange::Lost),
            (Phase::Up, Some(back_ns)) => {
                self.replicas[at].phase = Phase::Failed;
                self.lose_worker(at);
                self.change(at, ReplicaChange::Failed);
                self.schedule(back_ns, SimEvent::Return { replica: at, life: self.replicas[at].life });
                self.tell(at, Event::WorkerLost);
            }
            (Phase::Up | Phase::Failed | Phase::Repair, None) => {
                self.replicas[at].phase = Phase::Gone;
                self.replace(at);
                self.lose_worker(at);
                self.change(at, ReplicaChange::Lost);
                self.input(Input::Retire(engine(at)));
            }
        }
    }
}
