//! Longest prefix match in a queue sorted as a whole, as SGLang sorts (`SchedulePolicy`, version 0.5, `--schedule-policy lpm`).
//!
//! Before each scheduling pass the waiting requests are sorted by cached tokens, most first. The sort is stable: equals keep the order
//! of the pass before, and new requests come in at the end. So there is no ageing, and a request without a hit may starve; [`super::lpm`]
//! bounds the wait.
//!
//! **Long queues.** With more than `queue_max` waiting requests none is looked up or sorted: the order stays, new requests at the end.
//! The default is SGLang's own limit, 128 (`_determine_active_policy`), and bounds the work of a pass.
//!
//! **Shared beginnings.** Of several requests with one new prefix, one is to compute the prefix for all. A request with at most
//! `check_tokens` cached tokens goes last if the prompt shares `shared_tokens` tokens, in whole blocks, with one before in the queue.
//! Both defaults are SGLang's: 32 (`IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`, `IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`).

use super::{Policy, RequestView, Sorting};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 3] = [
    Param {
        key: "queue_max",
        about: "waiting requests that are sorted, at most; a longer queue stays as it is",
        default: 128,
        min: 1,
        max: 1_024,
    },
    Param {
        key: "check_tokens",
        about: "cached tokens, at most, of a request that goes last if another waiting one has its beginning",
        default: 32,
        min: 0,
        max: 1 << 20,
    },
    Param {
        key: "shared_tokens",
        about: "tokens that such a beginning has at least; 0 puts no request last",
        default: 32,
        min: 0,
        max: 1 << 20,
    },
];

/// A queue sorted by cached tokens before each scheduling pass; the youngest request is preempted first.
#[derive(Debug)]
pub(super) struct LpmSorted {
    sorting: Sorting,
}

impl LpmSorted {
    pub(super) fn new(values: &[u64]) -> Self {
        let [queue_max, check_tokens, shared_tokens] = [0, 1, 2].map(|at| values[at] as u32);
        Self { sorting: Sorting { queue_max, check_tokens, shared_tokens } }
    }
}

impl Policy for LpmSorted {
    fn rank(&self, _: &RequestView) -> i128 {
        0
    }

    fn has_preemption_ranks(&self) -> bool {
        false
    }

    fn sorting(&self) -> Option<Sorting> {
        Some(self.sorting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::make;
    use super::*;

    #[test]
    fn the_defaults_are_those_of_sglang() {
        assert_eq!(make("lpm_sorted").sorting(), Some(Sorting { queue_max: 128, check_tokens: 32, shared_tokens: 32 }));
        assert_eq!(
            make("lpm_sorted:queue_max=5,check_tokens=6,shared_tokens=0").sorting(),
            Some(Sorting { queue_max: 5, check_tokens: 6, shared_tokens: 0 })
        );
        assert_eq!(make("lpm").sorting(), None);
    }
}
