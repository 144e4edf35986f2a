//! The trace that decisions leave: the digest and the counters.

pub(crate) mod digest;
pub(crate) mod preempted;
pub(crate) mod reasons;
pub(crate) mod stats;

use crate::StepSeq;
use crate::journal::digest::{Decision, Digest};
use crate::journal::preempted::Preempted;
use crate::journal::reasons::{Lack, NotAdmitted};
use crate::journal::stats::Stats;
use crate::names::ids::RequestId;

/// The digest of all decisions and the counters of [`Stats`]. Gauges are filled in by [`crate::Core::stats`].
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Running digest of all decisions.
    pub digest: Digest,
    /// Counters; gauges are 0 here.
    pub stats: Stats,
    /// Preemptions of the last input, if somebody asks for them.
    pub preempted: Option<Vec<Preempted>>,
    /// Admissions tried without success in the last input, if somebody asks for them.
    pub not_admitted: Option<Vec<NotAdmitted>>,
}

impl Journal {
    /// Folds a decision into the digest: the kind, the subject (usually a request id), and an amount.
    #[inline]
    pub fn decide(&mut self, decision: Decision, subject: u64, amount: u64) {
        self.digest.decide(decision, subject, amount);
    }

    /// Notes a preemption, if somebody asks for them. Readings of a prompt for a request are no requests of their own.
    pub fn note_preempted(&mut self, preempted: Preempted) {
        let by = preempted.by.filter(|by| *by != preempted.request && !by.is_inner());
        if let Some(all) = self.preempted.as_mut().filter(|_| !preempted.request.is_inner()) {
            all.push(Preempted { by, ..preempted });
        }
    }

    /// Notes that a waiting request was not admitted, if somebody asks.
    #[inline]
    pub fn note_lack(&mut self, request: RequestId, lack: Lack) {
        if let Some(all) = &mut self.not_admitted {
            all.push(NotAdmitted { request, lack });
        }
    }

    /// Folds a sequence of a step into the digest, and the new blocks of its table.
    #[inline(always)]
    pub fn run(&mut self, seq: &StepSeq, blocks: impl Iterator<Item = u32>) {
        self.digest.run(seq, blocks);
    }
}
