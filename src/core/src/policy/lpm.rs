//! Longest prefix match first (Zheng et al., *SGLang: Efficient Execution of Structured Language Model Programs*,
//! NeurIPS 2024).
//!
//! The request with the most cached tokens is admitted first, before the prefix is evicted, and requests that share a prefix
//! run together. For requests known beforehand this order is a depth-first walk of the prefix tree, with the best
//! possible hit rate. Pure longest-prefix-match starves requests without a hit, so here a cached token weighs a fixed amount
//! of waiting: the rank is `arrival_ns - cached_tokens * ageing_ns_per_token`. A request is overtaken only by requests that
//! arrive within the weight of their cached tokens.
//!
//! The default weight is 1 ms per token, as in `sjf`: ten times the time to compute a token at 10,000 tokens/s. A shared
//! prefix of 2,000 tokens then outweighs 2 s of waiting, about as long as a busy cache keeps an idle prefix.

use super::{Policy, RequestView};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "ageing_us_per_token",
    about: "waiting that makes up for one cached token less, microseconds; 0 is fcfs",
    default: 1_000,
    min: 0,
    max: 1_000_000,
}];

const NS_PER_US: i128 = 1_000;

/// The request with the most cached tokens plus time waited is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Lpm {
    ageing_ns_per_token: i128,
}

impl Lpm {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { ageing_ns_per_token: i128::from(values[0]) * NS_PER_US }
    }
}

impl Policy for Lpm {
    fn rank(&self, request: &RequestView) -> i128 {
        i128::from(request.arrival_ns) - i128::from(request.cached_tokens) * self.ageing_ns_per_token
    }

    fn ranks_by_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn at(cached_tokens: u32, arrival_ms: u64) -> RequestView {
        RequestView { tokens: 5_000, cached_tokens, arrival_ns: arrival_ms * 1_000_000, ..RequestView::default() }
    }

    #[test]
    fn the_longest_prefix_goes_first_and_equals_by_arrival() {
        assert_eq!(order("lpm", &[at(0, 0), at(64, 0), at(4_096, 0), at(64, 0), at(16, 0)]), [2, 1, 3, 4, 0]);
    }

    #[test]
    fn a_request_without_a_hit_is_overtaken_only_within_the_weight_of_the_hits_of_others() {
        let mut views = vec![at(0, 0)];
        views.extend((1..=100).map(|i| at(1_000, i * 100)));
        let place = |spec| order(spec, &views).iter().position(|slot| *slot == 0).unwrap();
        assert_eq!(place("lpm"), 9, "at 1,000 ms they are equal, and it came first");
        assert_eq!(place("lpm:ageing_us_per_token=5000"), 49);
        assert_eq!(place("lpm:ageing_us_per_token=0"), 0);
        assert_eq!(place("lpm:ageing_us_per_token=1000000"), 100);
    }

    #[test]
    fn the_request_with_the_fewest_cached_tokens_is_preempted_first() {
        let rank = |view| make("lpm").preemption_rank(&view);
        assert!(rank(at(10, 0)) < rank(at(20, 0)));
        assert!(rank(at(10, 1)) < rank(at(10, 0)));
    }
}
