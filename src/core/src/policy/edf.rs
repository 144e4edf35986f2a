//! Deadlines by slack, hopeless requests last.
//!
//! A request has to begin by its deadline less its expected service: that is its latest start, and the earliest goes first. Where all
//! deadlines can be met, this order meets them. Where they cannot, it would miss nearly all, one after another, so two rules bound the
//! loss. A request that still waits at its latest start is hopeless: it goes behind all others, so that it costs no deadline but its own,
//! and is counted. And a token to compute weighs a fixed amount of waiting, as in `sjf`, because the shortest first miss the fewest.
//!
//! There is no other ageing, because a latest start comes nearer by itself. Requests without a deadline wait as long as others have one.

use super::{Policy, RequestView, TAKES_SEATS};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 2] = [
    TAKES_SEATS,
    Param {
        key: "ageing_us_per_token",
        about: "waiting that makes up for one more token to prefill, microseconds",
        default: 1_000,
        min: 0,
        max: 1_000_000,
    },
];

const NS_PER_US: i128 = 1_000;
/// Rank of a request without a deadline, beyond all times.
const WITHOUT_DEADLINE: i128 = 1 << 90;

/// The request that can wait least is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Edf {
    takes_seats: bool,
    ageing_ns_per_token: i128,
}

impl Edf {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { takes_seats: values[0] > 0, ageing_ns_per_token: i128::from(values[1]) * NS_PER_US }
    }
}

impl Policy for Edf {
    fn rank(&self, request: &RequestView) -> i128 {
        let Some(latest_ns) = request.latest_start_ns() else { return WITHOUT_DEADLINE };
        i128::from(latest_ns) + i128::from(request.uncached_tokens) * self.ageing_ns_per_token
    }

    fn takes_seats(&self) -> bool {
        self.takes_seats
    }

    fn weighs_service(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn until(deadline_ns: Option<u64>) -> RequestView {
        RequestView { deadline_ns, service_ns: 100, ..RequestView::default() }
    }

    #[test]
    fn who_can_wait_least_goes_first_and_requests_without_a_deadline_last() {
        let views = [None, Some(190), Some(180), None, Some(190), Some(u64::MAX)].map(until);
        assert_eq!(order("edf", &views), [2, 1, 4, 5, 0, 3]);
        let rank = |deadline_ns| make("edf").preemption_rank(&until(deadline_ns));
        assert!(rank(None) < rank(Some(190)) && rank(Some(190)) < rank(Some(180)));
    }

    #[test]
    fn longer_service_begins_earlier_and_more_work_later() {
        let view = |service_ns, uncached_tokens| RequestView { service_ns, uncached_tokens, ..until(Some(1_000_000)) };
        assert_eq!(order("edf", &[view(400_000, 0), view(900_000, 0), view(900_000, 2)]), [1, 0, 2]);
    }
}
