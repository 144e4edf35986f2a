//! Waits for a worker whose connection broke.
//!
//! The worker may come back with the KV of its running requests, or be dead. Going on elsewhere costs the time to compute the tokens of these requests
//! again, and the KV if the worker comes back later. Nobody knows how long the worker stays away, so the rule is that of the ski
//! rental: wait for as long as going on elsewhere would take, then go. Both together take at most twice the time of the better choice.
//!
//! Two bounds shorten the wait. A worker that lives dials again at once if its end of the connection was closed, so after a heartbeat such a worker is
//! taken for dead: most often its process was killed. And no wait is longer than the limit of the operator, which alone holds where requests have
//! nowhere to go.

/// Absence of a worker whose connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Longest wait that the operator allows, nanoseconds.
    pub limit_ns: u64,
    /// Longest pause between two signs of life of a worker, nanoseconds.
    pub heartbeat_ns: u64,
    /// `true` if the worker's end closed the connection; `false` if the worker was silent for too long.
    pub is_closed: bool,
}

impl Absence {
    /// Returns the time to wait for the worker, nanoseconds. `again_ns` is the time to compute the running requests again on other engines; `None` if
    /// nothing runs, or no other engine takes requests over.
    pub fn patience_ns(&self, again_ns: Option<u64>) -> u64 {
        let Some(again_ns) = again_ns else { return self.limit_ns };
        let alive_ns = if self.is_closed { self.heartbeat_ns } else { u64::MAX };
        self.limit_ns.min(again_ns).min(alive_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_no_longer_than_going_on_elsewhere_takes() {
        let closed = Absence { limit_ns: 10_000, heartbeat_ns: 2_000, is_closed: true };
        let silent = Absence { is_closed: false, ..closed };
        let waits = |again_ns| [closed, silent].map(|absence| absence.patience_ns(again_ns));
        assert_eq!(waits(Some(0)), [0, 0]);
        assert_eq!(waits(Some(300)), [300, 300]);
        assert_eq!(waits(Some(5_000)), [2_000, 5_000], "a worker that lives would have dialled again");
        assert_eq!(waits(Some(60_000)), [2_000, 10_000]);
        assert_eq!(waits(None), [10_000, 10_000], "nowhere to go");
    }
}
