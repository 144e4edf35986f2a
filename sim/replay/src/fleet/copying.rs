//! Copies of blocks over the links of replicas.
//!
//! The end of a copy is unknown at the start, since later copies take their shares of the link ([`trunkline_sim_perf::link`]). Each
//! link direction therefore has one valid wake-up in the queue. When the copies under way change the time of the next event, a new
//! wake-up replaces the old one, which is recognised by the version and skipped.

use trunkline_core::Transfer;

use super::{Fleet, SimEvent};
use trunkline_sim_perf::link::Copy;
use trunkline_sim_report::observer::TransferSeen;

impl Fleet<'_> {
    pub(super) fn begin_copy(&mut self, at_ns: u64, replica: usize, transfer: &Transfer) {
        self.note_shared(replica, transfer);
        let direction = self.replicas[replica].links.ask(at_ns, transfer);
        self.schedule_wake_up(replica, direction);
    }

    /// Handles a wake-up of a link. The core learns of finished copies after all wake-ups of this instant, in the order of its
    /// requests.
    pub(super) fn wake_up_link(&mut self, replica: usize, direction: usize, version: u64) {
        let mut ended = std::mem::take(&mut self.spare.ended_copies);
        let it = &mut self.replicas[replica];
        it.links.wake_up(self.now_ns, direction, version, &mut ended);
        let life = it.life;
        for copy in ended.drain(..) {
            self.show_copy(replica, &copy, false);
            self.schedule(self.now_ns, SimEvent::TransferEnd { replica, life, id: copy.id });
        }
        self.spare.ended_copies = ended;
        self.schedule_wake_up(replica, direction);
    }

    /// Cancels the copies of a failed replica.
    pub(super) fn lose_copies(&mut self, replica: usize) {
        self.shared.lose(replica);
        self.answer_settled_lookups();
        for copy in self.replicas[replica].links.lose(self.now_ns) {
            self.show_copy(replica, &copy, true);
        }
    }

    fn schedule_wake_up(&mut self, replica: usize, direction: usize) {
        if let Some(wake_up) = self.replicas[replica].links.next_wake_up(direction) {
            self.schedule(wake_up.at_ns, SimEvent::LinkWakeUp { replica, direction, version: wake_up.version });
        }
    }

    fn show_copy(&mut self, replica: usize, copy: &Copy, interrupted: bool) {
        self.watched.observer.transfer(&TransferSeen {
            replica: replica as u32,
            asked_ns: copy.asked_ns,
            begin_ns: copy.begin_ns.min(self.now_ns),
            end_ns: self.now_ns,
            interrupted,
            from: copy.from,
            to: copy.to,
            blocks: copy.blocks,
        });
    }
}
