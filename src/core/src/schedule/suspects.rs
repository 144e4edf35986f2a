//! Suspects: the search for the request that makes a worker fail.
//!
//! The cause of a failed step without a name may be any of its requests, or the worker itself. A request that was in
//! two failed steps since its last token is a *suspect*. While there are suspects, a step runs only suspects: those that failed least
//! often, in groups that halve with each failure, from half of the suspects down to one. A token clears a request. A failure counts
//! towards [`crate::WORKER_FAILURES_MAX`] only if the request ran alone. So among `n` requests the cause is alone after
//! `1 + log2(n)` failed steps, and the other requests lose time, but none of their failures.
//!
//! **Mortal workers.** A machine that is killed again and again makes a request fail alone by chance. Failed steps without the
//! request, or before the last token of the request, have another cause. Each such step, if a step succeeded since, raises the number of lone failures that
//! end the request by one, up to [`OTHER_FAILURES_MAX`]. If lone steps are lost with a chance `p`, six lost in a row end an innocent request:
//! a chance of `p` to the power of six. Failed steps of a request that ended are explained, and count no more. All are forgotten after [`CALM_STEPS`]
//! steps without a failure.
//!
//! **Several engines.** A request that fails alone is tried on the worker of another engine, and [`LoneFailure`] says what its failure here is worth: a
//! worker that was calm before is a good witness. A request that a worker names ([`crate::Event::Accuse`]) failed alone, too. The cluster decides,
//! and says which failures it found the cause of ([`Suspects::explain`]).
//!
//! After [`BLAMED_AFTER`] failed steps in a row, without a step that succeeds, the worker is taken to fail on its own. All requests then
//! run together, and each failed step counts for all its requests, so that all end.

use slab::Slab;

use crate::blocks::transitions::{Transition, next};
use crate::names::ids::RequestId;
use crate::request::sequence::Sequence;

/// Steps of one request alone that workers may fail to finish, without a token of the request in between, before the request ends with
/// [`crate::FinishReason::Error`]; up to three more while steps fail without the request, too. A failed step of several requests makes all of them
/// suspects, which run in ever smaller groups.
pub const WORKER_FAILURES_MAX: u32 = 3;
/// Failed steps of other causes that raise the limit of a request, at most.
pub const OTHER_FAILURES_MAX: u32 = 3;
/// Steps without a failure after which failed steps no longer count as evidence: some ten seconds of decodes.
const CALM_STEPS: u64 = 1024;
/// Failed steps of a sequence, since its last token, that make it a suspect.
const SUSPECT_FROM: u32 = 2;
/// Failed steps in a row after which the worker is blamed. Eight causes among many requests fail fewer steps in a row.
const BLAMED_AFTER: u32 = 32;

/// The party that failed steps are blamed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SuspectsState {
    /// Nobody: all requests run.
    #[default]
    Trusting,
    /// A suspect: suspects run in groups, the others wait.
    Narrowing,
    /// The worker: all requests run, and failures count for all.
    WorkerBlamed,
}

/// Causes of a change of [`SuspectsState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspectsEvent {
    /// A sequence became a suspect.
    Suspected,
    /// The last suspect was cleared or ended.
    Cleared,
    /// Too many steps in a row failed.
    FailedOn,
    /// A step succeeded.
    Succeeded,
}

/// Every change of [`SuspectsState`].
const TRANSITIONS: [Transition<SuspectsEvent, SuspectsState>; 8] = {
    use SuspectsEvent::{Cleared, FailedOn, Succeeded, Suspected};
    use SuspectsState::{Narrowing, Trusting, WorkerBlamed};
    [
        (Suspected, Trusting, Narrowing),
        (Suspected, Narrowing, Narrowing),
        (Suspected, WorkerBlamed, WorkerBlamed),
        (Cleared, Narrowing, Trusting),
        (FailedOn, Trusting, WorkerBlamed),
        (FailedOn, Narrowing, WorkerBlamed),
        (FailedOn, WorkerBlamed, WorkerBlamed),
        (Succeeded, WorkerBlamed, Narrowing),
    ]
};

/// A failure of a request that ran alone, or that the worker named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneFailure {
    /// The request that failed.
    pub request: RequestId,
    /// Failed steps of the request on this core, since its last token.
    pub failures: u32,
    /// Other failed steps here without a known cause, up to the last 1,024 steps without any.
    pub others: u32,
    /// `true` if the worker ran 1,024 steps without a failure before all of these.
    pub was_calm: bool,
}

/// The suspects among the sequences, and the failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    state: SuspectsState,
    /// (arrival, slot) of suspects in order of arrival, with some that were cleared or ended since.
    suspects: Vec<(u64, usize)>,
    /// Suspects in the beginning of the search: the first group is half as large.
    at_first: usize,
    failures_in_a_row: u32,
    /// The same, with those of a known cause.
    failed_in_a_row: u32,
    /// Time that these steps took until they failed.
    lost_ns: u64,
    /// Rows of failures, or of no failure, that ended.
    row: u64,
    /// Failed steps without a known cause, since the last calm.
    unexplained: u32,
    /// Last step sent before the last such failure.
    failed_at: u64,
    /// `true` if no step had failed for long before the first of the unexplained failures.
    was_calm: bool,
    /// The request that failed alone in the last failure, or was named before.
    lone: Option<LoneFailure>,
    /// Slots of the group to run; empty between calls.
    group: Vec<usize>,
}

impl Suspects {
    /// Returns `true` if only suspects are to run.
    pub fn is_narrowing(&self) -> bool {
        self.state == SuspectsState::Narrowing
    }

    /// Returns `true` if a failure counts for each sequence of the failed steps; `alone` is `true` if there was only one.
    pub fn counts(&self, alone: bool) -> bool {
        alone || self.state == SuspectsState::WorkerBlamed
    }

    /// Takes note of failed steps without a known cause, before their sequences. `last` is the last step sent.
    pub fn begin_failure(&mut self, last: u64) {
        if last - std::mem::replace(&mut self.failed_at, last) > CALM_STEPS {
            (self.unexplained, self.was_calm) = (0, true);
        }
        self.unexplained = self.unexplained.saturating_add(1);
        self.lone = None;
    }

    /// Notes that a sequence failed alone, after the failure is counted.
    pub fn note_lone(&mut self, seq: &Sequence) {
        let failures = seq.failures_here();
        let (others, was_calm) = (self.unexplained.saturating_sub(failures), self.was_calm);
        self.lone = Some(LoneFailure { request: seq.id, failures, others, was_calm });
    }

    /// Returns the request that failed alone in the last failure, or was named before it.
    pub fn lone(&self) -> Option<LoneFailure> {
        self.lone
    }

    /// Returns the failed steps in a row, whatever their cause, and the time lost with them.
    pub fn row(&self) -> (u32, u64) {
        (self.failed_in_a_row, self.lost_ns)
    }

    /// Takes note of the time lost with failed steps.
    pub fn lose_time(&mut self, ns: u64) {
        self.lost_ns = self.lost_ns.saturating_add(ns);
    }

    /// Notes a failed step in the history of a sequence, before the step is counted.
    pub fn note_row(&self, seq: &mut Sequence) {
        let failures = seq.failures_here();
        let history = &mut seq.cold.history;
        let row = self.row + 1;
        if std::mem::replace(&mut history.failed_row, row) != row {
            history.failures_before_row = failures;
        }
    }

    /// Returns the number of failures that count, after which a sequence that fails now ends.
    pub fn limit(&self, seq: &Sequence) -> u32 {
        let before_row = self.unexplained.saturating_sub(self.failures_in_a_row + 1);
        let others = before_row.saturating_sub(seq.cold.history.failures_before_row);
        WORKER_FAILURES_MAX + others.min(OTHER_FAILURES_MAX)
    }

    /// Takes note of sequences that end for their `failures`.
    pub fn explain(&mut self, failures: u32) {
        self.unexplained = self.unexplained.saturating_sub(failures);
    }

    /// Takes note of a sequence with one more failure, here or on another core before: the sequence may be a suspect now.
    pub fn consider(&mut self, slot: usize, seq: &Sequence) {
        if seq.failures() < SUSPECT_FROM {
            return;
        }
        self.change(SuspectsEvent::Suspected);
        let suspect = (seq.cold.view.arrival, slot);
        if let Err(at) = self.suspects.binary_search(&suspect) {
            self.suspects.insert(at, suspect);
        }
        self.at_first = self.at_first.max(self.suspects.len());
    }

    /// Takes note of failed steps, after all their sequences. `named` is `true` if the cause is known.
    pub fn failed(&mut self, named: bool) {
        self.failed_in_a_row = self.failed_in_a_row.saturating_add(1);
        if named {
            self.end_row();
        } else {
            self.failures_in_a_row += 1;
        }
        if self.failures_in_a_row >= BLAMED_AFTER {
            self.change(SuspectsEvent::FailedOn);
        }
    }

    /// Takes note of a step that succeeded.
    pub fn succeeded(&mut self) {
        self.end_row();
        (self.failed_in_a_row, self.lost_ns) = (0, 0);
        if self.state == SuspectsState::WorkerBlamed {
            self.change(SuspectsEvent::Succeeded);
        }
    }

    /// Returns the slots of the next group to run, in order of arrival: suspects that failed equally often, the least of all. Empty if no
    /// suspect is left. The list is given back with [`Self::put_back`].
    pub fn take_group(&mut self, sequences: &Slab<Sequence>) -> Vec<usize> {
        let mut group = std::mem::take(&mut self.group);
        let failures = |(arrival, slot): &(u64, usize)| {
            let seq = sequences.get(*slot).filter(|seq| seq.cold.view.arrival == *arrival && seq.ending.is_none());
            seq.map_or(0, Sequence::failures)
        };
        self.suspects.retain(|suspect| failures(suspect) >= SUSPECT_FROM);
        let Some(least) = self.suspects.iter().map(failures).min() else {
            self.at_first = 0;
            self.change(SuspectsEvent::Cleared);
            return group;
        };
        let limit = self.at_first.checked_shr(least + 1 - SUSPECT_FROM).unwrap_or(0).max(1);
        let equals = self.suspects.iter().filter(|suspect| failures(suspect) == least);
        group.extend(equals.take(limit).map(|(_, slot)| *slot));
        group
    }

    /// Keeps the memory of a group.
    pub fn put_back(&mut self, mut group: Vec<usize>) {
        group.clear();
        self.group = group;
    }

    fn end_row(&mut self) {
        (self.failures_in_a_row, self.row) = (0, self.row + 1);
    }

    fn change(&mut self, event: SuspectsEvent) {
        let from = self.state;
        self.state = next(&TRANSITIONS, event, from)
            .unwrap_or_else(|| panic!("suspects are {from:?}, where {event:?} cannot happen"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::hash::Namespace;
    use crate::names::ids::RequestId;
    use crate::request::Request;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let reviewed = "\
Suspected: Trusting -> Narrowing
Suspected: Narrowing -> Narrowing
Suspected: WorkerBlamed -> WorkerBlamed
Cleared: Narrowing -> Trusting
FailedOn: Trusting -> WorkerBlamed
FailedOn: Narrowing -> WorkerBlamed
FailedOn: WorkerBlamed -> WorkerBlamed
Succeeded: WorkerBlamed -> Narrowing
";
        assert_eq!(crate::blocks::transitions::text(&TRANSITIONS), reviewed);
    }

    #[test]
    fn groups_halve_with_each_failure_and_those_that_failed_least_come_first() {
        let mut sequences = Slab::new();
        let mut suspects = Suspects::default();
        for id in 0..8 {
            let request = Request::new(RequestId(id), Namespace::default().root(), vec![1; 3], 5);
            let mut seq = Sequence::new(request, id, 0);
            seq.suspicion = 1;
            let slot = sequences.insert(seq);
            suspects.consider(slot, &sequences[slot]);
        }
        assert!(!suspects.is_narrowing(), "a single failure says nothing");
        let mut fail = |slots: &[usize], suspects: &mut Suspects| {
            for slot in slots {
                sequences[*slot].suspicion += 1;
                suspects.consider(*slot, &sequences[*slot]);
            }
            suspects.failed(false);
            suspects.take_group(&sequences)
        };
        let mut groups = vec![fail(&[0, 1, 2, 3, 4, 5, 6, 7], &mut suspects)];
        for _ in 0..5 {
            let failing = groups.last().unwrap().clone();
            groups.push(fail(&failing, &mut suspects));
        }
        let expected: [&[usize]; 6] = [&[0, 1, 2, 3], &[4, 5, 6, 7], &[0, 1], &[2, 3], &[4, 5], &[6, 7]];
        assert_eq!(groups, expected);
        let all: Vec<usize> = sequences.iter().map(|(slot, _)| slot).collect();
        all.iter().for_each(|slot| sequences[*slot].push(9));
        assert!(suspects.is_narrowing() && suspects.take_group(&sequences).is_empty() && !suspects.is_narrowing());
    }

    #[test]
    fn the_worker_is_blamed_after_many_failures_in_a_row_until_a_step_succeeds() {
        let mut suspects = Suspects::default();
        (1..2 * BLAMED_AFTER).for_each(|n| suspects.failed(n == BLAMED_AFTER));
        assert!(!suspects.counts(false) && suspects.counts(true));
        suspects.failed(false);
        assert!(suspects.counts(false));
        suspects.succeeded();
        assert!(!suspects.counts(false));
    }
}
