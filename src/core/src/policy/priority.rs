//! Priorities, with linear ageing (Jackson, *Some Problems in Queueing with Dynamic Priorities*, 1960).
//!
//! As in vLLM, a lower value is more urgent. Strict priorities starve: a steady stream of urgent requests keeps all others
//! waiting for ever. Waiting `ageing_ms` is therefore worth one level. The rank is static, `priority * ageing_ns +
//! arrival_ns`: all requests age at the same rate, and two waiting requests stay in order. A request `n` levels less urgent
//! is overtaken by requests that arrive up to `n * ageing_ms` later, and by none after that.
//!
//! The default is 30 s per level. An interactive client has disconnected by then, so levels are strict in any queue short
//! enough to be useful, and a batch request ten levels down still runs after five minutes.

use super::{Policy, RequestView, TAKES_SEATS};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 2] = [
    Param {
        key: "ageing_ms",
        about: "waiting that is worth one level of priority, milliseconds; 0 is never: priorities are strict",
        default: 30_000,
        min: 0,
        max: 86_400_000,
    },
    TAKES_SEATS,
];

const NS_PER_MS: i128 = 1_000_000;

/// The lowest priority value less the time waited is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Priority {
    ageing_ns: i128,
    takes_seats: bool,
}

impl Priority {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { ageing_ns: i128::from(values[0]) * NS_PER_MS, takes_seats: values[1] > 0 }
    }
}

impl Policy for Priority {
    fn rank(&self, request: &RequestView) -> i128 {
        let priority = i128::from(request.priority);
        match self.ageing_ns {
            0 => priority,
            ageing_ns => priority * ageing_ns + i128::from(request.arrival_ns),
        }
    }

    fn takes_seats(&self) -> bool {
        self.takes_seats
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn at(priority: i32, arrival_ms: u64) -> RequestView {
        RequestView { priority, arrival_ns: arrival_ms * 1_000_000, ..RequestView::default() }
    }

    #[test]
    fn the_lowest_value_goes_first_and_equals_by_arrival() {
        let views = [at(5, 0), at(-3, 10), at(5, 20), at(0, 30)];
        assert_eq!(order("priority", &views), [1, 3, 0, 2]);
        assert_eq!(order("priority:ageing_ms=0", &views), [1, 3, 0, 2]);
    }

    #[test]
    fn waiting_compensates_a_level() {
        let views = [at(1, 0), at(0, 4_999), at(0, 5_000), at(-1, 9_999), at(-1, 10_001)];
        assert_eq!(order("priority:ageing_ms=5000", &views), [1, 3, 0, 2, 4]);
        assert_eq!(order("priority:ageing_ms=0", &views), [3, 4, 1, 2, 0]);
        assert_eq!(order("priority", &[at(1, 0), at(0, 29_999), at(0, 30_001)]), [1, 0, 2]);
    }

    #[test]
    fn a_steady_stream_of_urgent_requests_starves_others_only_if_priorities_are_strict() {
        // One arrives each second and one is admitted each second.
        let mut views = vec![at(3, 0)];
        views.extend((0..60).map(|second| at(0, second * 1_000)));
        let place = |spec| order(spec, &views).iter().position(|slot| *slot == 0).unwrap();
        assert_eq!(place("priority:ageing_ms=10000"), 30, "after the requests that arrived within 3 levels of 10 s");
        assert_eq!(place("priority:ageing_ms=0"), 60);
    }

    #[test]
    fn the_least_urgent_is_preempted_first() {
        let rank = |view| make("priority").preemption_rank(&view);
        assert!(rank(at(1, 0)) < rank(at(0, 0)));
        assert!(rank(at(0, 1)) < rank(at(0, 0)));
        assert!(rank(at(1, 0)) > rank(at(0, 31_000)));
    }
}
