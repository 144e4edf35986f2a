//! Earliest deadline first (Liu and Layland, 1973).
//!
//! If any order meets all deadlines of a single server, this order does. If none can, the choice of requests to miss theirs
//! is arbitrary. There is no ageing, because a deadline comes nearer by itself. Requests without a deadline wait as long as
//! others have one.

use super::{Policy, RequestView, TAKES_SEATS};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] = [TAKES_SEATS];

/// The earliest deadline is admitted first and preempted last. Requests without a deadline come last, in order of arrival.
#[derive(Debug)]
pub(super) struct Edf {
    takes_seats: bool,
}

impl Edf {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { takes_seats: values[0] > 0 }
    }
}

impl Policy for Edf {
    fn rank(&self, request: &RequestView) -> i128 {
        i128::from(request.deadline_ns.unwrap_or(u64::MAX))
    }

    fn takes_seats(&self) -> bool {
        self.takes_seats
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn until(deadline_ns: Option<u64>) -> RequestView {
        RequestView { deadline_ns, ..RequestView::default() }
    }

    #[test]
    fn the_earliest_deadline_goes_first_and_requests_without_one_last() {
        let views = [None, Some(9), Some(8), None, Some(9), Some(u64::MAX)].map(until);
        assert_eq!(order("edf", &views), [2, 1, 4, 0, 3, 5]);
        let rank = |deadline_ns| make("edf").preemption_rank(&until(deadline_ns));
        assert!(rank(None) < rank(Some(9)) && rank(Some(9)) < rank(Some(8)));
    }
}
