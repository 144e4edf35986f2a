//! Copies of blocks over the links of replicas.
//!
//! When a copy ends is not known when it is asked for: those that come after it take their shares of the link ([`trunkline_sim_perf::link`]). So each
//! direction of a link has one turn on the queue that counts, the next time that something happens there. When what is under way
//! changes such that it comes at another time, a new one is put on the queue, and the old one is passed over by its number.

use trunkline_core::transfer::Transfer;

use super::{Fleet, What};
use trunkline_sim_perf::link::Copy;
use trunkline_sim_report::observer::TransferSeen;

impl Fleet<'_> {
    pub(super) fn begin_copy(&mut self, at_ns: u64, replica: usize, transfer: &Transfer) {
        let lane = self.replicas[replica].links.ask(at_ns, transfer);
        self.schedule_turn(replica, lane);
    }

    /// The core is told of the copies that have ended after all turns of this instant, in the order in which it asked for them.
    pub(super) fn turn_link(&mut self, replica: usize, lane: usize, version: u64) {
        let mut ended = std::mem::take(&mut self.ended_copies);
        let it = &mut self.replicas[replica];
        it.links.turn(self.now_ns, lane, version, &mut ended);
        let life = it.life;
        for copy in ended.drain(..) {
            self.show_copy(replica, &copy, false);
            self.schedule(self.now_ns, What::TransferEnd { replica, life, id: copy.id });
        }
        self.ended_copies = ended;
        self.schedule_turn(replica, lane);
    }

    /// The copies of a replica that failed.
    pub(super) fn lose_copies(&mut self, replica: usize) {
        for copy in self.replicas[replica].links.lose(self.now_ns) {
            self.show_copy(replica, &copy, true);
        }
    }

    fn schedule_turn(&mut self, replica: usize, lane: usize) {
        if let Some(turn) = self.replicas[replica].links.next_turn(lane) {
            self.schedule(turn.at_ns, What::LinkTurn { replica, lane, version: turn.version });
        }
    }

    fn show_copy(&mut self, replica: usize, copy: &Copy, cut: bool) {
        self.observer.transfer(&TransferSeen {
            replica: replica as u32,
            asked_ns: copy.asked_ns,
            begin_ns: copy.begin_ns.min(self.now_ns),
            end_ns: self.now_ns,
            cut,
            from: copy.from,
            to: copy.to,
            blocks: copy.blocks,
        });
    }
}
