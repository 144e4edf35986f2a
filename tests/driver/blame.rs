//! Blame for failed steps: who a worker named, and how often a step failed with a request and nobody named.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_core::{Request, RequestId, WORKER_FAILURES_MAX};

/// Steps that fail in a row, without one that succeeds, before the worker itself is to blame.
pub const WORKER_BLAMED_AFTER: u32 = 32;
/// Lone failures beyond [`WORKER_FAILURES_MAX`] that a request may have while steps fail without it, at most.
pub const OTHER_FAILURES_MAX: u32 = 3;
/// Steps without a failure after which failures no longer count as evidence.
pub const CALM_STEPS: u64 = 1024;

/// One request among all that had an id: the id, and the last step sent before its submission.
type Owner = (RequestId, u64);

/// Guilt and failures of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// `true` if a worker named the request.
    pub guilty: bool,
    /// Failures that the request brought along, and steps that failed with the request and nobody to blame, since its last token.
    pub failures: u32,
    /// Those of the failures in which it ran alone, or the worker was to blame.
    pub counted: u32,
    /// Those of the failures that the request brought along.
    imported: u32,
    /// The last row of failures with the request, without a success in between.
    row: Option<u64>,
    /// Failures on this core before that row.
    before_row: u32,
    /// `true` if a failure that counted was one too many: the request must end.
    pub is_over: bool,
}

/// The records of all requests. Ids may be used again while steps in flight still run the request before.
#[derive(Debug, Default)]
pub(crate) struct Blame {
    last_step: u64,
    current: BTreeMap<RequestId, Owner>,
    records: BTreeMap<Owner, Record>,
    /// Steps that failed in a row, with nobody to blame.
    in_a_row: u32,
    /// Number of such rows before.
    row: u64,
    /// Failures without a known cause, since the last calm.
    unexplained: u32,
    /// The last step sent before the last of them.
    failed_at: u64,
}

impl Blame {
    /// Begins the record of a new request, which brings failures along.
    pub fn submitted(&mut self, request: &Request) {
        let owner = (request.id, self.last_step);
        self.current.insert(request.id, owner);
        let failures = request.worker_failures + request.suspicion;
        let (counted, imported) = (request.worker_failures, failures);
        self.records.insert(owner, Record { failures, counted, imported, ..Record::default() });
    }

    /// Notes that a request that was handed back came again, with the failures it had.
    pub fn submitted_again(&mut self, request: &Request) {
        let record = self.records.get_mut(&self.current[&request.id]).expect("a known request");
        (record.row, record.imported) = (None, record.failures);
        let failures = (request.worker_failures + request.suspicion, request.worker_failures);
        assert_eq!((record.failures, record.counted), failures, "the request brings its failures along");
    }

    /// Notes a step that was sent.
    pub fn sent(&mut self, step: u64) {
        self.last_step = step;
    }

    /// Returns `true` if the request that a step ran under an id is the latest with the id.
    pub fn is_current(&self, step: u64, id: RequestId) -> bool {
        self.owner(step, id) == self.current[&id]
    }

    /// The record of the latest request with an id.
    pub fn of(&self, id: RequestId) -> Record {
        self.records[&self.current[&id]]
    }

    /// Notes a token of a request.
    pub fn token(&mut self, id: RequestId) {
        let record = self.records.get_mut(&self.current[&id]).expect("a known request");
        (record.failures, record.counted, record.imported) = (0, 0, 0);
    }

    /// Notes that a worker named a request. `parts` are the steps in flight with their requests. A request that has ended is blamed
    /// for the steps that still run it, and the one that has its id now is not.
    pub fn named(&mut self, id: RequestId, parts: &[(u64, RequestId)], lives: bool) {
        let Some(current) = self.current.get(&id).copied() else { return };
        let owners: BTreeSet<Owner> =
            parts.iter().filter(|(_, other)| *other == id).map(|(step, _)| self.owner(*step, id)).collect();
        let has_ended = owners.iter().any(|owner| *owner != current);
        let blamed = owners.iter().copied().chain((lives && !has_ended).then_some(current));
        for owner in blamed.collect::<Vec<_>>() {
            self.records.get_mut(&owner).expect("a known request").guilty = true;
        }
    }

    /// Counts a failure for every request in the steps that failed, unless one of them is known to be the cause. Requests in `live` have
    /// not ended.
    pub fn failed(&mut self, parts: &[(u64, RequestId)], live: &BTreeSet<RequestId>) {
        let owners: BTreeSet<Owner> = parts.iter().map(|(step, id)| self.owner(*step, *id)).collect();
        if owners.iter().any(|owner| self.records[owner].guilty) {
            (self.in_a_row, self.row) = (0, self.row + 1);
            return;
        }
        let counts = owners.len() == 1 || self.in_a_row >= WORKER_BLAMED_AFTER;
        if !owners.is_empty() {
            if self.last_step - std::mem::replace(&mut self.failed_at, self.last_step) > CALM_STEPS {
                self.unexplained = 0;
            }
            self.unexplained += 1;
        }
        let mut explained = 0;
        for owner in &owners {
            let record = self.records.get_mut(owner).expect("a known request runs");
            if record.row.replace(self.row) != Some(self.row) {
                record.before_row = record.failures - record.imported;
            }
            record.failures += 1;
            record.counted += u32::from(counts);
            let others = self.unexplained.saturating_sub(self.in_a_row + 1).saturating_sub(record.before_row);
            let is_over = counts && record.counted >= WORKER_FAILURES_MAX + others.min(OTHER_FAILURES_MAX);
            if is_over && self.current[&owner.0] == *owner && live.contains(&owner.0) {
                explained += record.failures - record.imported;
            }
            record.is_over |= is_over;
        }
        self.unexplained = self.unexplained.saturating_sub(explained);
        self.in_a_row += u32::from(!owners.is_empty());
    }

    /// Notes a step that succeeded.
    pub fn succeeded(&mut self) {
        (self.in_a_row, self.row) = (0, self.row + 1);
    }

    /// The request that a step ran under an id: the last one submitted before the step.
    fn owner(&self, step: u64, id: RequestId) -> Owner {
        *self.records.range((id, 0)..(id, step)).next_back().expect("a step runs known requests").0
    }
}
