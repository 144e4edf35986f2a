//! Earliest deadline first (Liu and Layland, 1973).

use super::{Policy, RequestView};

/// The request that must end first is admitted first and preempted last; those without a deadline come last, in order
/// of arrival.
pub(super) struct Edf;

impl Policy for Edf {
    fn rank(&self, request: &RequestView) -> i64 {
        request.deadline_ns.map_or(i64::MAX, |deadline_ns| i64::try_from(deadline_ns).unwrap_or(i64::MAX))
    }
}
