//! Shortest job first (Smith, 1956), where a job is the prefill of the uncached tokens.
//!
//! Shortest job first has the least mean wait, and starves long jobs. Each uncached token therefore weighs a fixed amount of
//! waiting: the rank is `uncached_tokens * ageing_ns_per_token + arrival_ns`. A request is overtaken only by requests
//! arriving within the weight of the request's own tokens, so the length of a request bounds the wait, under any load.
//!
//! The default weight is 1 ms per token. At 10,000 tokens/s of prefill, also the default of
//! [`crate::Config::recompute_token_ns`], a token takes 0.1 ms: a request lets others pass for ten times the request's own
//! prefill time. A weight far below the prefill time is `fcfs`, because no wait in a queue of several requests is outweighed; a
//! weight far above makes long prompts wait long.
//!
//! The length of the output is not known, and `max_tokens` is a poor predictor, so the output does not count.

use super::{Policy, RequestView};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "ageing_us_per_token",
    about: "waiting that makes up for one more token to prefill, microseconds; 0 is fcfs",
    default: 1_000,
    min: 0,
    max: 1_000_000,
}];

const NS_PER_US: i128 = 1_000;

/// The request with the fewest uncached tokens less time waited is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Sjf {
    ageing_ns_per_token: i128,
}

impl Sjf {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { ageing_ns_per_token: i128::from(values[0]) * NS_PER_US }
    }
}

impl Policy for Sjf {
    fn rank(&self, request: &RequestView) -> i128 {
        let uncached_tokens = request.tokens.saturating_sub(request.cached_tokens);
        i128::from(uncached_tokens) * self.ageing_ns_per_token + i128::from(request.arrival_ns)
    }

    fn ranks_by_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn at(tokens: u32, cached_tokens: u32, arrival_ms: u64) -> RequestView {
        RequestView { tokens, cached_tokens, arrival_ns: arrival_ms * 1_000_000, ..RequestView::default() }
    }

    #[test]
    fn the_least_uncached_work_goes_first_and_equals_by_arrival() {
        let views = [at(3_000, 0, 0), at(500, 0, 0), at(4_000, 3_900, 0), at(500, 0, 0), at(7, 9, 0)];
        assert_eq!(order("sjf", &views), [4, 2, 1, 3, 0]);
    }

    #[test]
    fn a_request_is_overtaken_only_within_the_weight_of_its_own_tokens() {
        // 1,000 tokens at 1 ms each; shorter ones arrive every 100 ms for 10 s.
        let mut views = vec![at(1_000, 0, 0)];
        views.extend((1..=100).map(|i| at(1, 0, i * 100)));
        let place = |spec| order(spec, &views).iter().position(|slot| *slot == 0).unwrap();
        assert_eq!(place("sjf"), 9, "behind the requests that arrived within 999 ms");
        assert_eq!(place("sjf:ageing_us_per_token=5000"), 49);
        assert_eq!(place("sjf:ageing_us_per_token=0"), 0);
        assert_eq!(place("sjf:ageing_us_per_token=1000000"), 100);
    }

    #[test]
    fn the_request_with_the_most_to_compute_is_preempted_first() {
        let rank = |view| make("sjf").preemption_rank(&view);
        assert!(rank(at(100, 0, 0)) < rank(at(100, 50, 0)));
        assert!(rank(at(100, 0, 0)) < rank(at(90, 0, 0)));
    }
}
