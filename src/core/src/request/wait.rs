//! Waits for copies and answers: none is longer than what it saves.
//!
//! A request waits for KV from elsewhere because computing the same takes longer. So every such wait knows the time of computing, and ends with it,
//! however long a tier or the host takes:
//!
//! | who waits | for what | instead of computing | when the wait is over |
//! |---|---|---|---|
//! | a waiting request | the answer to a look-up ([`crate::cache::lookups`]) | the blocks asked for | it is admitted without the answer |
//! | a loading request | its blocks in tiers ([`crate::schedule::loading`]) | the blocks of the load | it starts over; leading blocks that arrived are found |
//! | a request on its way to the host | the end of the copy ([`crate::schedule::swap`]) | the blocks copied | it starts over, and the copy is cancelled |
//! | a request on its way back | its own copy, and those of others that it joined | the blocks that are not there | as above |
//! | a decode without a block, a request that does not fit | writes to a tier with the blocks in question | the blocks written | the writes are cancelled, and nobody counts on their ends any more |
//!
//! A decode counts on swap-outs too, whose ends are those of their requests. When nobody counts on a copy any more, a victim is preempted in
//! its place, and computed again rather than copied: a copy that was late has its place left alone until it ends and for a pause ([`crate::cache::pause`]).
//! Swapped requests wait for room on the device, and are computed again while the host is left alone for a copy that has not ended.
//!
//! **The copy itself has no such end.** It may still read or write its blocks, so they are given to nobody before it is answered. A request
//! that needs just these blocks, with no other victim, waits for them: the head of the queue, or a decode alone on the device. What of the
//! copy has not begun is cancelled, and nothing further is copied to the same place meanwhile.
//!
//! Parked requests wait for blocks that another request computes or loads, which ends as said here. All other waits are for steps,
//! or for what running requests have.

/// A wait ends no earlier, nanoseconds: this is less than what a step takes.
const LEAST_NS: u64 = 1_000_000;

/// A wait of a request, instead of computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Beginning, nanoseconds.
    pub begun_ns: u64,
    /// Time at which nobody waits any more, nanoseconds.
    pub end_ns: u64,
}

impl Wait {
    /// Creates the wait for an answer, instead of `compute_ns` of computing.
    pub fn for_answer(begun_ns: u64, compute_ns: u64) -> Self {
        Self { begun_ns, end_ns: begun_ns.saturating_add(compute_ns) }
    }

    /// Creates the wait for a copy that is expected to take `expected_ns`, instead of `compute_ns` of computing: as long as the copy is expected to
    /// take, if that is less than computing, and as long again as computing. The request so waits and computes for at most three times as long as
    /// it would have computed.
    pub fn for_copy(begun_ns: u64, expected_ns: u64, compute_ns: u64) -> Self {
        let length_ns = compute_ns.saturating_add(expected_ns.min(compute_ns)).max(LEAST_NS);
        Self { begun_ns, end_ns: begun_ns.saturating_add(length_ns) }
    }

    /// Creates the wait of a configuration without a limit for copies.
    pub fn without_end(begun_ns: u64) -> Self {
        Self { begun_ns, end_ns: u64::MAX }
    }

    /// Returns `true` once nobody waits any more.
    pub fn is_over(self, now_ns: u64) -> bool {
        self.end_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_and_the_computing_behind_it_take_three_times_as_long_as_computing_at_most() {
        for (expected_ns, length_ns) in [(0, 35), (10, 45), (35, 70), (15_000, 70)] {
            let wait = Wait::for_copy(7, expected_ns * 1_000_000, 35_000_000);
            assert_eq!(wait.end_ns - wait.begun_ns, length_ns * 1_000_000, "{expected_ns}");
            assert!(!wait.is_over(wait.end_ns - 1) && wait.is_over(wait.end_ns));
        }
        assert_eq!(Wait::for_copy(0, 5, 5).end_ns, LEAST_NS);
        assert_eq!(Wait::for_answer(5, 7).end_ns, 12);
    }
}
