//! Answers to transfers: gathered pair by pair, on whatever threads the pairs end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use trunkline_port::{BlockFault, TransferReport};

use crate::links::Link;

/// Receiver of a report.
pub type Done = Box<dyn FnOnce(TransferReport) + Send>;

/// Report of a transfer in the making. Sent when the last [`Pair`] is gone, so every transfer is answered exactly once: a pair dropped
/// without an answer was interrupted.
pub struct Answer {
    outcomes: Mutex<Outcomes>,
}

struct Outcomes {
    faults: Vec<Option<BlockFault>>,
    stored_bytes: u64,
    is_cancelled: bool,
    done: Option<Done>,
}

/// Pair of a transfer, to be answered. Holds a credit of the link until then.
pub struct Pair {
    answer: Arc<Answer>,
    index: u32,
    link: Arc<Link>,
    begun: Instant,
    block_bytes: u64,
    is_counted: bool,
}

impl Answer {
    /// Returns the pairs of a transfer of `n` pairs. `done` is called when all of them are gone.
    pub fn pairs(n: u32, link: &Arc<Link>, block_bytes: u64, done: Done) -> Vec<Pair> {
        let faults = vec![Some(BlockFault::Interrupted); n as usize];
        let outcomes = Mutex::new(Outcomes { faults, stored_bytes: 0, is_cancelled: false, done: Some(done) });
        let answer = Arc::new(Self { outcomes });
        let begun = Instant::now();
        let pair = |index| {
            let (answer, link) = (Arc::clone(&answer), Arc::clone(link));
            Pair { answer, index, link, begun, block_bytes, is_counted: false }
        };
        (0..n).map(pair).collect()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let outcomes = self.outcomes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let faults = outcomes.faults.iter().enumerate().filter_map(|(at, fault)| Some((at as u32, (*fault)?)));
        let (stored_bytes, is_cancelled) = (outcomes.stored_bytes, outcomes.is_cancelled);
        let report = TransferReport { faults: faults.collect(), stored_bytes, is_cancelled };
        if let Some(done) = outcomes.done.take() {
            done(report);
        }
    }
}

impl Pair {
    /// Returns the index of the pair in its transfer.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    fn set(&self, fault: Option<BlockFault>, stored_bytes: u64) {
        let mut outcomes = self.answer.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.faults[self.index as usize] = fault;
        outcomes.stored_bytes += stored_bytes;
    }

    /// Reports the pair as arrived, with the bytes taken at the destination.
    pub fn arrived(mut self, stored_bytes: u64) {
        self.set(None, stored_bytes);
        self.link.arrived(self.block_bytes, stored_bytes, self.begun.elapsed());
        self.is_counted = true;
    }

    /// Reports the pair as failed.
    pub fn failed(mut self, fault: BlockFault) {
        self.set(Some(fault), 0);
        self.link.failed(fault == BlockFault::Refused, self.begun.elapsed());
        self.is_counted = true;
    }

    /// Reports the pair as interrupted by a cancellation.
    pub fn cancelled(mut self) {
        self.answer.outcomes.lock().unwrap_or_else(PoisonError::into_inner).is_cancelled = true;
        self.link.cancelled(self.begun.elapsed());
        self.is_counted = true;
    }

    /// Refuses the pair, which got no credit. The report waits until the pair is dropped.
    pub fn refuse_without_credit(&mut self) {
        self.set(Some(BlockFault::Refused), 0);
        self.link.refused(1);
        self.is_counted = true;
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.is_counted {
            self.link.failed(false, self.begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use trunkline_port::Place;

    use super::*;

    #[test]
    fn the_report_comes_once_after_the_last_pair_and_dropped_pairs_were_interrupted() {
        let (send, reports) = mpsc::channel();
        let link = Arc::new(Link::new(Place::Device, Place::Host));
        link.take(4, 4);
        let mut pairs = Answer::pairs(5, &link, 500, Box::new(move |report| send.send(report).unwrap()));
        pairs[4].refuse_without_credit();
        drop(pairs.pop());
        pairs.pop().unwrap().failed(BlockFault::Bad);
        pairs.pop().unwrap().arrived(100);
        drop(pairs.pop());
        assert!(reports.try_recv().is_err());
        pairs.pop().unwrap().arrived(11);
        let faults = vec![(1, BlockFault::Interrupted), (3, BlockFault::Bad), (4, BlockFault::Refused)];
        assert_eq!(reports.recv(), Ok(TransferReport { faults, stored_bytes: 111, is_cancelled: false }));
        assert!(reports.recv().is_err());
        let stats = link.stats();
        assert_eq!((stats.queued_blocks, stats.blocks, stats.failed, stats.refused), (0, 2, 2, 1));
        assert_eq!((stats.block_bytes, stats.stored_bytes, stats.waits.count), (1000, 111, 4));
    }
}
