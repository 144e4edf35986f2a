//! Shortest job first (Smith, 1956), where the job is the prefill that the cache does not spare.
//!
//! Short jobs first gives the least mean wait, and starves long ones. So each uncached token is weighed as so much
//! waiting: the rank is `uncached_tokens * ageing_ns_per_token + arrival_ns`. A request is overtaken only by those that
//! arrive within the weight of its own tokens, so its wait is bounded by its own length, whatever the others do.
//!
//! The default is 1 ms for a token. At 10,000 tokens/s of prefill, the estimate that
//! [`crate::Config::recompute_token_ns`] has too, a token takes 0.1 ms: a request lets pass those that arrive within
//! ten times what it takes itself. Much less than the service time is `fcfs`, for then no wait in a queue of several
//! requests is outweighed; much more is a long wait for long prompts.
//!
//! How long it will decode is not known, and the tokens it may generate are a poor guess, so they do not count.

use super::{Policy, RequestView};
use crate::spec::Param;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "ageing_us_per_token",
    about: "waiting that makes up for one more token to prefill, microseconds; 0 is fcfs",
    default: 1_000,
    min: 0,
    max: 1_000_000,
}];

const NS_PER_US: i128 = 1_000;

/// The request with the fewest tokens to prefill, less what it has waited, is admitted first and preempted last.
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
        assert_eq!(place("sjf"), 9, "those that arrived within 999 ms");
        assert_eq!(place("sjf:ageing_us_per_token=5000"), 49);
        assert_eq!(place("sjf:ageing_us_per_token=0"), 0);
        assert_eq!(place("sjf:ageing_us_per_token=1000000"), 100);
    }

    #[test]
    fn the_one_with_the_most_to_compute_is_preempted_first() {
        let keep = |view| make("sjf").keep(&view);
        assert!(keep(at(100, 0, 0)) < keep(at(100, 50, 0)));
        assert!(keep(at(100, 0, 0)) < keep(at(90, 0, 0)));
    }
}
